//! The state of sequences on the device between steps, and the graphs that advance them.

use super::net::ThinkerNet;
use super::options::ThinkerOptions;
use super::persistent::{Persistent, Row};
use super::table::{TokenHead, TokenParams, TokenRow};
use crate::decoder::{Cache, Engine, PAGE, Rows};
use crate::kernel::{Kernel, Shape, kernel_args};
use crate::linear::{Input, Mode};
use crate::sizes::{LEAST_PROMPT, prompt_sizes, sizes};
use crate::stream::fitting;
use crate::take::{Origins, TakeRows};
use crate::talker::table::Record;
use crate::{Buffer, CudaError, Graph, Stream};
use omni_config::Precision;
use std::mem::offset_of;

const BEGIN_THREADS: u32 = 256;
/// `SAMPLERS` of `kernels/token.cu`.
const SAMPLERS: u32 = 1024;
/// Where the rows of a table begin, behind its head.
pub(super) const ROWS_AT: usize = 64;

/// State of all sequences.
pub(super) struct Steps {
    /// A step's input: its head and its rows.
    pub inbox: Buffer<u8>,
    /// The same of the rows of a pass that are sampled behind it.
    pub sampled: Buffer<u8>,
    pub params: Buffer<u8>,
    pub counts: Buffer<u32>,
    pub done: Buffer<u32>,
    pub cache: Cache,
    last: Buffer<u32>,
    engine: Engine,
    x: Buffer<f32>,
    /// Of [`Steps::sampled`].
    taken: Buffer<f32>,
    logits: Buffer<f32>,
    slots: Buffer<u32>,
    positions: Buffer<i32>,
    axes: Buffer<f32>,
    /// Embeddings of media that a pass takes; one number for a model that takes none.
    pub media: Buffer<u8>,
    /// Hidden states of the media positions of each page of the cache, `[pages, PAGE, hidden]`: what the talker takes
    /// there outlives the step, as keys and values do. `None` where no prompts are kept, or none has media.
    pub hidden: Option<Buffer<u8>>,
    begin: Kernel,
    take: TakeRows,
    sample: Kernel,
    hand: Kernel,
    level: Kernel,
    states: Kernel,
    /// By rows, ascending: the next token of so many rows, what samples so many rows of a pass, and so many positions of
    /// prompts, without and with media.
    tokens: Vec<(usize, Graph)>,
    tails: Vec<(usize, Graph)>,
    prompts: Vec<(usize, Graph)>,
    media_prompts: Vec<(usize, Graph)>,
    /// The next token of one row, with the layers as one launch.
    alone: Option<Graph>,
    pub persistent: Option<Persistent>,
}

/// What the rows of a pass are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// The next tokens of different sequences.
    Tokens,
    /// Positions of prompts in their order, and single tokens of other sequences.
    Prompts,
    /// The same, some of which are media.
    Media,
}

/// `BeginTokensArgs` of `kernels/token.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct BeginArgs {
    rows: u64,
    last: u64,
    counts: u64,
    table: u64,
    x: u64,
    slots: u64,
    positions: u64,
    axes: u64,
    media: u64,
    width: i32,
    size: i32,
    media_width: i32,
    unused: i32,
}

/// `MediaArgs` of `kernels/token.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct MediaArgs {
    head: u64,
    rows: u64,
    media: u64,
    x: u64,
    gain: u64,
    width: i32,
    media_width: i32,
    level: i32,
    eps: f32,
}

/// `SampleTokenArgs` of `kernels/token.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SampleArgs {
    logits: u64,
    head: u64,
    rows: u64,
    params: u64,
    counts: u64,
    done: u64,
    last: u64,
    size: i32,
}

/// `HandRowsArgs` of `kernels/token.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct HandArgs {
    sources: u64,
    last: u64,
    table: u64,
    out: u64,
    width: i32,
    unused: i32,
}

impl Steps {
    /// Room for rows, and graphs. `pages`: of the cache, each with `hidden` bytes of hidden states.
    pub fn new(
        net: &ThinkerNet,
        options: &ThinkerOptions,
        stream: &Stream,
        (pages, hidden): (usize, usize),
    ) -> Result<Steps, CudaError> {
        let (gpu, config) = (&net.gpu, &net.config);
        let batch = options.batch.max(1).next_power_of_two();
        let chunk = options.prefill_chunk.max(LEAST_PROMPT).next_power_of_two();
        let rows = batch.max(chunk);
        let size = config.vocab_size;
        let [begin, hand, states] = match net.precision {
            Precision::F32 => ["begin_tokens_f32", "hand_rows_f32", "hand_states_f32"],
            Precision::Bf16 => ["begin_tokens_bf16", "hand_rows_bf16", "hand_states_bf16"],
        };
        let media = if net.takes_media() { chunk * net.media_width() } else { 1 } * size_of::<f32>();
        let max_pages = config.max_position_embeddings.div_ceil(PAGE).min(pages);
        let mut steps = Steps {
            inbox: gpu.zeros("tables of a step", ROWS_AT + rows * size_of::<TokenRow>())?,
            sampled: gpu.zeros("tables of a step", ROWS_AT + batch * size_of::<TokenRow>())?,
            params: gpu.zeros("parameters of rows", options.slots * size_of::<TokenParams>())?,
            counts: gpu.zeros("token counts", options.slots * size)?,
            done: gpu.zeros("flags of rows", options.slots)?,
            last: gpu.zeros("tokens of rows", options.slots)?,
            cache: net.stack.cache(gpu, net.precision, pages, options.slots, max_pages)?,
            engine: Engine::new(gpu, net.precision, rows, &[config], config.hidden_size)?,
            x: gpu.zeros("activations", rows * config.hidden_size)?,
            taken: gpu.zeros("activations", batch * config.hidden_size)?,
            logits: gpu.zeros("logits", batch * size)?,
            slots: gpu.zeros("tables of a step", rows)?,
            positions: gpu.zeros("tables of a step", rows)?,
            axes: gpu.zeros("tables of a step", 3 * rows)?,
            media: gpu.zeros("embeddings of media", media)?,
            hidden: match hidden {
                0 => None,
                bytes => Some(gpu.alloc("hidden states of kept prompts", pages * bytes)?),
            },
            begin: gpu.kernel(begin)?,
            take: TakeRows::new(gpu, config.hidden_size)?,
            sample: gpu.kernel("sample_token")?,
            hand: gpu.kernel(hand)?,
            level: gpu.kernel("add_level")?,
            states: gpu.kernel(states)?,
            tokens: Vec::new(),
            tails: Vec::new(),
            prompts: Vec::new(),
            media_prompts: Vec::new(),
            alone: None,
            persistent: match options.persistent {
                Some(limit) => Persistent::new(net, limit, stream)?,
                None => None,
            },
        };
        steps.inbox.write(ROWS_AT, &TokenRow::PADDING.bytes().repeat(rows))?;
        steps.sampled.write(ROWS_AT, &TokenRow::PADDING.bytes().repeat(batch))?;
        // Each is run once before capture, on rows of padding, so that all kernels are loaded.
        for bucket in sizes(1, batch) {
            steps.queue_tokens(net, stream, bucket)?;
            let graph = stream.capture(|| steps.queue_tokens(net, stream, bucket))?;
            tracing::debug!(rows = bucket, nodes = graph.nodes(), "captured a token");
            steps.tokens.push((bucket, graph));
            steps.queue_tail(net, stream, bucket)?;
            let graph = stream.capture(|| steps.queue_tail(net, stream, bucket))?;
            steps.tails.push((bucket, graph));
        }
        for bucket in prompt_sizes(chunk) {
            steps.queue_layers(net, stream, bucket, Pass::Prompts)?;
            let graph = stream.capture(|| steps.queue_layers(net, stream, bucket, Pass::Prompts))?;
            steps.prompts.push((bucket, graph));
            if net.takes_media() {
                steps.queue_layers(net, stream, bucket, Pass::Media)?;
                let graph = stream.capture(|| steps.queue_layers(net, stream, bucket, Pass::Media))?;
                steps.media_prompts.push((bucket, graph));
            }
        }
        if let Some(persistent) = &steps.persistent {
            // Where other stages have steps it is only loaded: its neighbours ran in the other graphs.
            persistent.launch(stream, || steps.queue_alone(net, stream, persistent))?;
            steps.alone = Some(stream.capture(|| steps.queue_alone(net, stream, persistent))?);
        }
        stream.synchronize()?;
        Ok(steps)
    }

    /// Rows that one step can sample for.
    pub fn batch(&self) -> usize {
        self.tokens.last().map_or(0, |(bucket, _)| *bucket)
    }

    /// Positions of prompts that fit into one pass.
    pub fn prompt_embeddings(&self) -> usize {
        self.prompts.last().map_or(1, |(bucket, _)| *bucket)
    }

    /// The graph of the smallest bucket that holds so many rows, and its size.
    pub fn token_graph(&self, rows: usize) -> Option<(usize, &Graph)> {
        fitting(&self.tokens, rows)
    }

    /// The same for rows of a pass that are sampled behind it.
    pub fn tail_graph(&self, rows: usize) -> Option<(usize, &Graph)> {
        fitting(&self.tails, rows)
    }

    /// The same for positions of prompts, of which some are `media`.
    pub fn prompt_graph(&self, rows: usize, media: bool) -> Option<(usize, &Graph)> {
        fitting(if media { &self.media_prompts } else { &self.prompts }, rows)
    }

    /// Launches the next token of one row with the layers as one launch, and says whether it did: not where there is no
    /// such launch, or another stage uses the GPU.
    pub fn launch_alone(&self, stream: &Stream) -> Result<bool, CudaError> {
        match (&self.persistent, &self.alone) {
            (Some(persistent), Some(graph)) => persistent.launch(stream, || graph.launch(stream)),
            _ => Ok(false),
        }
    }

    /// The table of a pass over `rows`, filled up to `bucket`; where its tokens go, and what it hands on.
    pub fn table(rows: &[TokenRow], bucket: usize, head: TokenHead) -> Vec<u8> {
        let mut table = head.bytes().to_vec();
        table.resize(ROWS_AT, 0);
        for row in rows.iter().chain(std::iter::repeat(&TokenRow::PADDING)).take(bucket) {
            table.extend_from_slice(row.bytes());
        }
        table
    }

    /// Queues the beginning of a pass over the rows in the inbox: their embeddings and positions. Tokens of prompts are
    /// marked on the way, for the penalty on repetition.
    fn queue_begin(&self, net: &ThinkerNet, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        let args = BeginArgs {
            rows: self.inbox.at(ROWS_AT),
            last: self.last.address(),
            counts: self.counts.address(),
            table: net.table.address(),
            x: self.x.address(),
            slots: self.slots.address(),
            positions: self.positions.address(),
            axes: self.axes.address(),
            media: self.media.address(),
            width: net.config.hidden_size as i32,
            size: net.config.vocab_size as i32,
            media_width: net.media_width() as i32,
            unused: 0,
        };
        // SAFETY: the argument is `BeginTokensArgs`, with addresses of buffers of `self` and `net`.
        unsafe { self.begin.launch(stream, Shape::new(rows, BEGIN_THREADS), kernel_args![args]) }
    }

    /// Queues what the rows in the inbox leave to be done of a prompt whose positions are kept: their tokens are marked.
    pub fn mark(&self, net: &ThinkerNet, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        // The next pass begins anew with whatever else this writes.
        self.queue_begin(net, stream, rows)
    }

    /// Queues embedding and layers.
    fn queue_layers(&self, net: &ThinkerNet, stream: &Stream, rows: usize, pass: Pass) -> Result<(), CudaError> {
        self.queue_begin(net, stream, rows)?;
        let batch = Rows {
            count: rows,
            slots: self.slots.address(),
            positions: self.positions.address(),
            axes: self.axes.address(),
            distinct: pass == Pass::Tokens,
            most: None,
        };
        let x = self.x.address();
        match pass {
            Pass::Tokens | Pass::Prompts => net.stack.run(&self.engine, stream, x, batch, &self.cache),
            Pass::Media => net.stack.run_with(&self.engine, stream, x, batch, &self.cache, |layer| {
                self.queue_media(net, stream, rows, layer)
            }),
        }
    }

    /// Queues what media change before layer `layer`, or behind the last one: the hidden states that the talker takes
    /// are those before a level is added.
    fn queue_media(&self, net: &ThinkerNet, stream: &Stream, rows: usize, layer: usize) -> Result<(), CudaError> {
        let (accepted, last) = (net.whole.accept_hidden_layer, net.config.num_hidden_layers);
        let norm = net.stack.norm();
        let args = MediaArgs {
            head: self.inbox.address(),
            rows: self.inbox.at(ROWS_AT),
            media: self.media.address(),
            x: self.x.address(),
            gain: 0,
            width: net.config.hidden_size as i32,
            media_width: net.media_width() as i32,
            level: layer as i32 - 1,
            eps: norm.eps,
        };
        let launch = |kernel: &Kernel, args: MediaArgs| {
            // SAFETY: the argument is `MediaArgs`, with addresses of buffers of `self` and `net`.
            unsafe { kernel.launch(stream, Shape::new(rows, BEGIN_THREADS), kernel_args![args]) }
        };
        if layer == accepted && layer < last {
            launch(&self.states, args)?;
        }
        if (1..=net.whole.levels()).contains(&layer) {
            launch(&self.level, args)?;
        }
        // The reference counts the last one behind the norm.
        if layer == accepted && layer == last {
            launch(&self.states, MediaArgs { gain: norm.gain, ..args })?;
        }
        Ok(())
    }

    /// Queues the next token of `rows` rows.
    fn queue_tokens(&self, net: &ThinkerNet, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        self.queue_layers(net, stream, rows, Pass::Tokens)?;
        self.queue_samples(net, stream, rows, self.x.address(), &self.inbox)
    }

    /// Queues the next token of one row, with the layers as one launch.
    fn queue_alone(&self, net: &ThinkerNet, stream: &Stream, persistent: &Persistent) -> Result<(), CudaError> {
        self.queue_begin(net, stream, 1)?;
        let row = Row {
            x: self.x.address(),
            slots: self.slots.address(),
            positions: self.positions.address(),
            axes: self.axes.address(),
            cache: &self.cache,
        };
        persistent.queue(stream, &row)?;
        self.queue_samples(net, stream, 1, row.x, &self.inbox)
    }

    /// Queues the tokens of the rows of the last pass that [`Steps::sampled`] names.
    fn queue_tail(&self, net: &ThinkerNet, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        let (x, out) = (self.x.address(), self.taken.address());
        let origins =
            Origins { of: self.sampled.at(ROWS_AT + offset_of!(TokenRow, of)), stride: size_of::<TokenRow>() };
        // SAFETY: buffers of `self`; the rows that the table names are of the pass.
        unsafe { self.take.queue(stream, origins, (x, out), rows)? };
        self.queue_samples(net, stream, rows, out, &self.sampled)
    }

    /// Queues the tokens of `rows` rows of a residual stream, which a table describes.
    fn queue_samples(
        &self,
        net: &ThinkerNet,
        stream: &Stream,
        rows: usize,
        x: u64,
        table: &Buffer<u8>,
    ) -> Result<(), CudaError> {
        let input = Input::Normed(x, net.stack.norm());
        self.engine.products.run(stream, Mode::StoreF32, &net.head, input, self.logits.address(), rows)?;
        let args = SampleArgs {
            logits: self.logits.address(),
            head: table.address(),
            rows: table.at(ROWS_AT),
            params: self.params.address(),
            counts: self.counts.address(),
            done: self.done.address(),
            last: self.last.address(),
            size: net.config.vocab_size as i32,
        };
        // SAFETY: the argument is `SampleTokenArgs`, with addresses of buffers of `self`.
        unsafe { self.sample.launch(stream, Shape::new(rows, SAMPLERS).overlapping(), kernel_args![args]) }
    }

    /// Queues the copy of `count` rows of `table` for the next stage to `out`: those at `sources`, for the table of
    /// embeddings tokens (or [`SAMPLED`](super::table::SAMPLED) and a slot). Where a source is
    /// [`NONE`](crate::talker::table::NONE), `out` stays as it is.
    pub fn hand_rows(
        &self,
        net: &ThinkerNet,
        stream: &Stream,
        table: u64,
        (sources, out): (u64, u64),
        count: usize,
    ) -> Result<(), CudaError> {
        let args = HandArgs {
            sources,
            last: self.last.address(),
            table,
            out,
            width: net.config.hidden_size as i32,
            unused: 0,
        };
        // SAFETY: the argument is `HandRowsArgs`; the caller's memory holds `count` words and has room for as many
        // rows, and the words are rows of its table.
        unsafe { self.hand.launch(stream, Shape::new(count, BEGIN_THREADS), kernel_args![args]) }
    }
}
