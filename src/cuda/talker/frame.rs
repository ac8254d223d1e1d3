//! The state of sequences on the device between frames, and the graphs that advance them.

use super::constants::Constants;
use super::graphs::{Graphs, LayersAs};
use super::net::{TalkerNet, Text};
use super::persistent::{Batch, Persistent, Step};
use super::stage::TalkerOptions;
use super::table::{Inbox, PromptEmbedding, SlotParams, StepHead, StepSequence};
use crate::buffer::Buffer;
use crate::decoder::{Cache, Engine, PAGE, Rows};
use crate::kernel::{Kernel, Shape, kernel_args};
use crate::linear::{Input, Mode};
use crate::sizes::{LEAST_PROMPT, prompt_sizes};
use crate::stream::{Graph, Stream};
use crate::take::{Origins, TakeRows};
use crate::weights::element_size;
use crate::{CudaError, Gpu};
use omni_config::Precision;
use omni_model::hf::SPECIAL_CODEC_IDS;
use std::mem::offset_of;

/// Threads of the kernels that begin a step.
const BEGIN_THREADS: u32 = 256;
/// `PICKERS` and `EACH` of `kernels/sample.cuh`.
const PICKERS: u32 = 512;
pub(super) const MAX_SAMPLED: usize = 512 * 8;

/// State of all sequences.
pub(super) struct Frames {
    pub inbox: Buffer<u8>,
    pub prompt_inbox: Buffer<u8>,
    pub frame_layout: Inbox,
    pub prompt_layout: Inbox,
    pub params: Buffer<u8>,
    pub counts: Buffer<u32>,
    pub done: Buffer<u32>,
    pub codec: Buffer<f32>,
    pub x_vectors: Buffer<f32>,
    /// The table of text, for a talker that does not read itself; see `prompt.rs`.
    pub text: Option<Buffer<u8>>,
    pub cache: Cache,
    pub engine: Engine,
    x: Buffer<f32>,
    /// Rows of `x` behind a pass over prompts that a frame goes on from.
    taken: Buffer<f32>,
    narrow: Buffer<f32>,
    logits: Buffer<f32>,
    slots: Buffer<u32>,
    positions: Buffer<i32>,
    axes: Buffer<f32>,
    inner_cache: Cache,
    kernels: Kernels,
    pub graphs: Graphs,
    /// What the graphs of frames read.
    constants: Vec<Constants>,
    /// Layers, and the predictor's passes, in one launch each.
    pub persistent: Option<Persistent>,
}

struct Kernels {
    begin_frame: Kernel,
    begin_prompt: Kernel,
    take: TakeRows,
    first: Kernel,
    group: Kernel,
}

/// `BeginArgs` of `kernels/frame.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct BeginArgs {
    head: u64,
    rows: u64,
    new_pages: u64,
    pages: u64,
    codec: u64,
    text: u64,
    x: u64,
    slots: u64,
    positions: u64,
    axes: u64,
    width: i32,
    max_pages: i32,
}

/// `PromptArgs` of `kernels/frame.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PromptArgs {
    rows: u64,
    codes: u64,
    codec: u64,
    x_vectors: u64,
    text: u64,
    table: u64,
    tables: u64,
    x: u64,
    slots: u64,
    positions: u64,
    axes: u64,
    width: i32,
    groups: i32,
}

/// `FirstArgs` of `kernels/sample.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct FirstArgs {
    logits: u64,
    rows: u64,
    head: u64,
    params: u64,
    counts: u64,
    done: u64,
    codec: u64,
    next: u64,
    table: u64,
    narrowed: u64,
    forced: u64,
    next_row: i32,
    size: i32,
    outer: i32,
    inner: i32,
    first_banned: i32,
    eos: i32,
    groups: i32,
}

/// `GroupArgs` of `kernels/sample.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct GroupArgs {
    logits: u64,
    rows: u64,
    head: u64,
    params: u64,
    done: u64,
    codec: u64,
    next: u64,
    table: u64,
    narrowed: u64,
    forced: u64,
    size: i32,
    outer: i32,
    inner: i32,
    group: i32,
    groups: i32,
}

impl Frames {
    /// Room for everything, and the graphs of all buckets.
    ///
    /// # Errors
    /// When the device has no room, or a graph cannot be captured.
    pub fn new(net: &TalkerNet, options: &TalkerOptions, stream: &Stream, pages: usize) -> Result<Frames, CudaError> {
        let (gpu, config) = (&net.gpu, &net.config);
        let (hidden, inner) = (config.text.hidden_size, config.predictor.hidden_size);
        let (slots, batch) = (options.slots, options.batch());
        let chunk = options.prefill_chunk.next_power_of_two().max(LEAST_PROMPT);
        let rows = chunk.max(2 * batch);
        let groups = config.num_code_groups;
        let max_pages = config.text.max_position_embeddings.div_ceil(PAGE).min(pages.max(1));
        let frame_layout = Inbox::new(batch, batch * groups, batch);
        let prompt_layout = Inbox::new(chunk, chunk * groups, 0);
        let inner_pages = (groups + 1).div_ceil(PAGE);
        let inner_cache = net.predictor.stack.cache(gpu, net.precision, batch * inner_pages, batch, inner_pages)?;
        let tables: Vec<u32> = (0..(batch * inner_pages) as u32).collect();
        inner_cache.tables_buffer().write(0, &tables)?;
        let sizes = [&config.text, &config.predictor];
        let width = config.text_projection_size.max(config.text_hidden_size);
        let mut frames = Frames {
            inbox: gpu.zeros("tables of a step", frame_layout.bytes)?,
            prompt_inbox: gpu.zeros("tables of a step", prompt_layout.bytes)?,
            params: gpu.zeros("parameters of rows", slots * size_of::<SlotParams>())?,
            counts: gpu.zeros("token counts", slots * config.text.vocab_size)?,
            done: gpu.zeros("flags of rows", slots)?,
            codec: gpu.zeros("inputs of rows", slots * hidden)?,
            x_vectors: gpu.zeros("voices of rows", slots * hidden)?,
            text: match &net.text {
                Text::Table { .. } => None,
                Text::Embeddings { special, .. } => {
                    let row = hidden * element_size(net.precision);
                    let pool = gpu.zeros("rows of text", (3 + options.text_embeddings) * row)?;
                    pool.copy_async(stream, 0, special.buffer(), 0, 3 * row)?;
                    Some(pool)
                }
            },
            cache: net.stack.cache(gpu, net.precision, pages, slots, max_pages)?,
            engine: Engine::new(gpu, net.precision, rows, &sizes, width)?,
            x: gpu.zeros("activations", rows * hidden)?,
            taken: gpu.zeros("activations", batch * hidden)?,
            narrow: gpu.zeros("activations", 2 * batch * inner)?,
            logits: gpu.zeros("logits", batch * config.text.vocab_size.max(config.predictor.vocab_size))?,
            slots: gpu.zeros("tables of a step", rows)?,
            positions: gpu.zeros("tables of a step", rows)?,
            axes: gpu.zeros("tables of a step", 3 * rows)?,
            inner_cache,
            kernels: Kernels::new(gpu, net.precision, hidden)?,
            frame_layout,
            prompt_layout,
            graphs: Graphs::default(),
            constants: Vec::new(),
            persistent: match options.persistent {
                Some(limit) => Persistent::new(net, batch, limit, stream)?,
                None => None,
            },
        };
        stream.synchronize()?;
        for bucket in &options.buckets {
            let constants = Constants::new(gpu, *bucket, groups)?;
            // Run once before capture, on rows of padding, so that all kernels are loaded.
            frames.pad(batch, chunk)?;
            for layers in LayersAs::ways(frames.persistent.as_ref(), *bucket) {
                frames.frame(net, stream, (*bucket, *layers), &constants)?;
                let graph = stream.capture(|| frames.frame(net, stream, (*bucket, *layers), &constants))?;
                tracing::debug!(rows = bucket, ?layers, nodes = graph.nodes(), "captured a frame");
                frames.graphs.add_frame(*bucket, *layers, graph);
            }
            frames.tail(net, stream, *bucket, &constants)?;
            let tail = stream.capture(|| frames.tail(net, stream, *bucket, &constants))?;
            frames.graphs.add_tail(*bucket, tail);
            frames.constants.push(constants);
        }
        for bucket in prompt_sizes(chunk) {
            frames.prompt(net, stream, bucket)?;
            let graph = stream.capture(|| frames.prompt(net, stream, bucket))?;
            frames.graphs.add_prompt(bucket, graph);
        }
        stream.synchronize()?;
        Ok(frames)
    }

    /// Rows of padding everywhere.
    fn pad(&self, batch: usize, chunk: usize) -> Result<(), CudaError> {
        use super::table::Record;
        let rows: Vec<u8> = StepSequence::PADDING.bytes().repeat(batch);
        self.inbox.write(self.frame_layout.rows, &rows)?;
        let rows: Vec<u8> = PromptEmbedding::PADDING.bytes().repeat(chunk);
        self.prompt_inbox.write(self.prompt_layout.rows, &rows)
    }

    /// The graph of the smallest bucket that holds `rows`, the last of which is at position `last`, and its size.
    pub fn frame_graph(&self, rows: usize, last: usize) -> Option<(usize, &Graph)> {
        self.graphs.frame(self.persistent.as_ref(), rows, last)
    }

    /// Queues one frame of `rows` rows: layers, code 0, all passes of the predictor, the next input.
    fn frame(
        &self,
        net: &TalkerNet,
        stream: &Stream,
        (rows, layers): (usize, LayersAs),
        constants: &Constants,
    ) -> Result<(), CudaError> {
        self.begin(net, stream, rows)?;
        let x = self.x.address();
        let (slots, positions) = (self.slots.address(), self.positions.address());
        let batch = Batch { count: rows, x, slots, positions, cache: &self.cache };
        if let (Some(persistent), LayersAs::Usual) = (&self.persistent, layers)
            && persistent.layers(stream, &batch)?
        {
            return self.codes(net, stream, (x, rows), constants);
        }
        let distinct = Rows { count: rows, slots, positions, axes: self.turns(net), distinct: true, most: None };
        net.stack.run(&self.engine, stream, x, distinct, &self.cache)?;
        self.codes(net, stream, (x, rows), constants)
    }

    /// Queues the same without the layers, which the last pass over prompts did.
    fn tail(&self, net: &TalkerNet, stream: &Stream, rows: usize, constants: &Constants) -> Result<(), CudaError> {
        let (x, out) = (self.x.address(), self.taken.address());
        let of = self.inbox.at(self.frame_layout.rows + offset_of!(StepSequence, of));
        let origins = Origins { of, stride: size_of::<StepSequence>() };
        // SAFETY: buffers of `self`; the rows that the table names are of the pass.
        unsafe { self.kernels.take.queue(stream, origins, (x, out), rows)? };
        self.codes(net, stream, (out, rows), constants)
    }

    /// Queues the beginning of a frame: the input of each row, and the pages that slots got.
    pub fn begin(&self, net: &TalkerNet, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        let begin = BeginArgs {
            head: self.inbox.address(),
            rows: self.inbox.at(self.frame_layout.rows),
            new_pages: self.inbox.at(self.frame_layout.pages),
            pages: self.cache.tables(),
            codec: self.codec.address(),
            text: self.text_table(net),
            x: self.x.address(),
            slots: self.slots.address(),
            positions: self.positions.address(),
            axes: self.axes.address(),
            width: net.config.text.hidden_size as i32,
            max_pages: self.cache.max_pages() as i32,
        };
        // SAFETY: the argument is `BeginArgs`, with addresses of buffers of `self` and `net`.
        unsafe { self.kernels.begin_frame.launch(stream, Shape::new(rows, BEGIN_THREADS), kernel_args![begin]) }
    }

    /// Queues what follows the layers: code 0, all passes of the predictor, the next input.
    fn codes(
        &self,
        net: &TalkerNet,
        stream: &Stream,
        (x, rows): (u64, usize),
        constants: &Constants,
    ) -> Result<(), CudaError> {
        let (config, predictor, products) = (&net.config, &net.predictor, &self.engine.products);
        let (hidden, inner, groups) = (config.text.hidden_size, config.predictor.hidden_size, config.num_code_groups);
        let (head, table) = (self.inbox.address(), self.inbox.at(self.frame_layout.rows));
        let (logits, narrow) = (self.logits.address(), self.narrow.address());
        let last = Input::Normed(x, net.stack.norm());
        products.run(stream, Mode::StoreF32, &net.head, last, logits, rows)?;
        match &predictor.projection {
            Some(projection) => products.run(stream, Mode::StoreF32, projection, last, narrow, rows)?,
            None => products.norm_full(stream, x, net.stack.norm(), narrow, rows, hidden)?,
        }
        let vocabulary = config.text.vocab_size;
        let first = FirstArgs {
            logits,
            rows: table,
            head,
            params: self.params.address(),
            counts: self.counts.address(),
            done: self.done.address(),
            codec: self.codec.address(),
            next: narrow,
            table: net.table.address(),
            narrowed: predictor.narrowed(0, net.table.address()),
            forced: self.inbox.at(self.frame_layout.codes),
            next_row: rows as i32,
            size: vocabulary as i32,
            outer: hidden as i32,
            inner: inner as i32,
            first_banned: vocabulary.saturating_sub(SPECIAL_CODEC_IDS) as i32,
            eos: config.tokens.eos as i32,
            groups: groups as i32,
        };
        let sampling = Shape::new(rows, PICKERS).overlapping();
        // SAFETY: the argument is `FirstArgs`, with addresses of buffers of `self` and `net`.
        unsafe { self.kernels.first.launch(stream, sampling, kernel_args![first])? };
        for (pass, layer) in predictor.heads.iter().enumerate() {
            let (group, sequences) = (pass + 1, constants.sequences.address());
            let positions = constants.later.at(pass.saturating_sub(1) * rows);
            // A row's prompt, its hidden state and its code 0, goes in as two rows; then one row per code.
            let batch = if pass == 0 {
                Rows {
                    count: 2 * rows,
                    slots: sequences,
                    positions: constants.first.address(),
                    axes: 0,
                    distinct: false,
                    most: Some(2),
                }
            } else {
                Rows { count: rows, slots: sequences, positions, axes: 0, distinct: true, most: Some(groups + 1) }
            };
            predictor.stack.run(&self.engine, stream, narrow, batch, &self.inner_cache)?;
            let last = if pass == 0 { self.narrow.at(rows * inner) } else { narrow };
            let last = Input::Normed(last, predictor.stack.norm());
            products.run(stream, Mode::StoreF32, layer, last, logits, rows)?;
            let args = GroupArgs {
                logits,
                rows: table,
                head,
                params: self.params.address(),
                done: self.done.address(),
                codec: self.codec.address(),
                // The last code is only embedded.
                next: if group + 1 < groups { narrow } else { 0 },
                table: predictor.tables[pass].address(),
                narrowed: predictor.narrowed(group, net.table.address()),
                forced: self.inbox.at(self.frame_layout.codes),
                size: layer.outputs() as i32,
                outer: hidden as i32,
                inner: inner as i32,
                group: group as i32,
                groups: groups as i32,
            };
            // SAFETY: the argument is `GroupArgs`, with addresses of buffers of `self` and `net`.
            unsafe { self.kernels.group.launch(stream, sampling, kernel_args![args])? };
            let step = Step {
                count: rows,
                x: narrow,
                rows: table,
                head,
                params: self.params.address(),
                codec: self.codec.address(),
                forced: self.inbox.at(self.frame_layout.codes),
                cache: &self.inner_cache,
            };
            if let Some(persistent) = &self.persistent
                && persistent.passes(stream, &step)?
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Queues the layers over `rows` positions of prompts: their only results are keys and values.
    fn prompt(&self, net: &TalkerNet, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        let (layout, inbox) = (&self.prompt_layout, &self.prompt_inbox);
        let args = PromptArgs {
            rows: inbox.at(layout.rows),
            codes: inbox.at(layout.codes),
            codec: self.codec.address(),
            x_vectors: self.x_vectors.address(),
            text: self.text_table(net),
            table: net.table.address(),
            tables: net.predictor.table_addresses.address(),
            x: self.x.address(),
            slots: self.slots.address(),
            positions: self.positions.address(),
            axes: self.axes.address(),
            width: net.config.text.hidden_size as i32,
            groups: net.config.num_code_groups as i32,
        };
        // SAFETY: the argument is `PromptArgs`, with addresses of buffers of `self` and `net`.
        unsafe { self.kernels.begin_prompt.launch(stream, Shape::new(rows, BEGIN_THREADS), kernel_args![args])? };
        let batch = Rows {
            count: rows,
            slots: self.slots.address(),
            positions: self.positions.address(),
            axes: self.turns(net),
            distinct: false,
            most: None,
        };
        net.stack.run(&self.engine, stream, self.x.address(), batch, &self.cache)
    }

    /// Where the positions are that the rotation takes, for a talker whose prompts may have media.
    fn turns(&self, net: &TalkerNet) -> u64 {
        match net.text {
            Text::Table { .. } => 0,
            Text::Embeddings { .. } => self.axes.address(),
        }
    }

    fn text_table(&self, net: &TalkerNet) -> u64 {
        match (&net.text, &self.text) {
            (Text::Table { rows, .. }, _) => rows.address(),
            (Text::Embeddings { special, .. }, None) => special.address(),
            (Text::Embeddings { .. }, Some(pool)) => pool.address(),
        }
    }
}

impl Kernels {
    fn new(gpu: &Gpu, precision: Precision, width: usize) -> Result<Kernels, CudaError> {
        let names = match precision {
            Precision::F32 => ["begin_frame_f32", "begin_prompt_f32", "sample_first_f32", "sample_group_f32"],
            Precision::Bf16 => ["begin_frame_bf16", "begin_prompt_bf16", "sample_first_bf16", "sample_group_bf16"],
        };
        let [begin_frame, begin_prompt, first, group] = names;
        Ok(Kernels {
            begin_frame: gpu.kernel(begin_frame)?,
            begin_prompt: gpu.kernel(begin_prompt)?,
            take: TakeRows::new(gpu, width)?,
            first: gpu.kernel(first)?,
            group: gpu.kernel(group)?,
        })
    }
}

/// The place of a table's head, and its content.
pub(super) fn head(out: u64, times: u64, pages: usize) -> StepHead {
    StepHead { out, times, pages: pages as u32, unused: 0 }
}
