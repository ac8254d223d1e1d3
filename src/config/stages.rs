//! `[stages.NAME]` and `[transfer]`: where stages run, how much each takes at once, and how payloads travel between
//! them.

use super::reader::Reader;
use super::replicas::{LAST_GPU, MOST, Replicas};
use super::resolve::size;
use omni_core::ids::{Frames, StageName};
use toml::Value;

/// `[stages.NAME]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct StageConfig {
    /// Where it runs.
    pub placement: Placement,
    /// How many of it there are, and where. Each takes any sequence, and those of one that goes down go on in the others.
    pub replicas: Replicas,
    /// On which GPU, where `replicas` names none; `None`: that of `[device]`.
    pub device_index: Option<usize>,
    /// Bytes of the device that it may allocate, weights included; `None`: no bound of its own.
    pub device_memory: Option<u64>,
    /// Sequences that advance together in one step; `None`: what suits the device, see
    /// [`Config::max_batch`](super::Config::max_batch).
    pub max_batch: Option<usize>,
    /// Prompt positions computed in one step, so that a long prompt does not stall running sequences. For the vocoder,
    /// which has no prompt, the frames of its largest chunk. `None`: what suits the device, see
    /// [`Config::prefill_chunk`](super::Config::prefill_chunk).
    pub prefill_chunk: Option<u32>,
    /// Thinker, and talker on a CPU, 0 for the others: bytes of prompts, and of a thinker's answers, that each replica
    /// keeps for prompts that begin alike; 0 keeps none.
    pub kept_prompts: usize,
    /// Thinker on a GPU only, 0 for the others: bytes of the host's memory in which each replica keeps copies of them.
    pub kept_prompts_host: usize,
    /// Steps launched ahead of the last one whose tokens the host has seen: 1 is the synchronous order. `None`: what
    /// suits the device, see [`Config::run_ahead`](super::Config::run_ahead).
    pub run_ahead: Option<usize>,
    /// Units that a sequence may be ahead of what the next stage has taken over; then it pauses.
    pub window: u32,
    /// Vocoder only, empty for the others: frames of the 1st, 2nd, ... chunk; the last entry repeats.
    pub chunk_ramp: Vec<Frames>,
    /// Vocoder only, `None` for the others: most frames of one step, over all sequences. Longer chunks are cut.
    pub max_step_frames: Option<u32>,
    /// Talker only, empty for the others: batch sizes, ascending, for which a GPU captures the graph of a frame. A step
    /// runs the smallest graph that holds its sequences.
    pub buckets: Vec<u32>,
}

/// `[transfer]`
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct TransferConfig {
    /// How payloads cross the edges between stages of one process.
    pub transport: TransportKind,
    /// The same for single edges.
    pub edges: EdgesConfig,
    /// Bytes of a shared-memory ring, one per direction of an edge or of a stage process.
    pub shm_bytes: usize,
    /// Whether a step's tokens go to the scheduler before its payloads are made. Off is the serialized order: for
    /// measuring what that costs.
    pub early_handoff: bool,
    /// Whether copies off a device run beside its steps, on a stream of their own; off: in the step.
    pub async_d2h: bool,
    /// Whether copies to a device run beside its steps, as soon as there is something to copy; off: in the step.
    pub async_h2d: bool,
    /// Whether a stage on the same device gets the producer's buffer; off: the host's copy of it.
    pub device_handover: bool,
    /// Whether a step of the talker on a GPU is launched just before the one ahead of it ends; off: when that begins.
    pub just_in_time: bool,
    /// Whether decoded embeddings stay in their frame until they are used; off: they are copied out.
    pub zero_copy: bool,
}

/// `[transfer.edges]`: `None` is what `[transfer] transport` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct EdgesConfig {
    /// From the thinker to the talker.
    pub embeddings: Option<TransportKind>,
    /// From the talker to the vocoder.
    pub codes: Option<TransportKind>,
}

/// How payloads cross an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum TransportKind {
    /// Handles: the consumer gets the producer's buffer.
    Inproc,
    /// Every payload is encoded as a wire frame and decoded again, as if a process border lay between: for measuring
    /// what that costs, and for testing the format under load.
    Wire,
    /// Frames in shared memory, as between processes.
    Shm,
}

/// Where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Placement {
    /// What [`placed`](super::placed) decides.
    Auto,
    /// In this process, on threads of its own.
    Thread,
    /// In a process of its own.
    Process,
    /// On the nodes of `[cluster]`.
    Nodes,
}

impl Placement {
    /// As the config writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Placement::Auto => "auto",
            Placement::Thread => "thread",
            Placement::Process => "process",
            Placement::Nodes => "nodes",
        }
    }

    /// Whether the stage is in another process than the engine.
    pub fn is_apart(self) -> bool {
        matches!(self, Placement::Process | Placement::Nodes)
    }
}

pub(super) fn transfer(r: &mut Reader) -> TransferConfig {
    let kinds = [("inproc", TransportKind::Inproc), ("wire", TransportKind::Wire), ("shm", TransportKind::Shm)];
    let transport = r.choice("transfer.transport", "inproc", &kinds).unwrap_or(TransportKind::Inproc);
    let shm_bytes = r.int("transfer.shm_bytes", 8 << 20, 1 << 16..=1 << 30);
    let mut switch = |key: &str| r.switch(&format!("transfer.{key}"), true);
    let (early_handoff, async_d2h, async_h2d) = (switch("early_handoff"), switch("async_d2h"), switch("async_h2d"));
    let (device_handover, zero_copy) = (switch("device_handover"), switch("zero_copy"));
    let just_in_time = switch("just_in_time");
    let kinds = [("default", None)].into_iter().chain(kinds.map(|(name, kind)| (name, Some(kind)))).collect::<Vec<_>>();
    let mut edge = |name: &str| r.choice(&format!("transfer.edges.{name}"), "default", &kinds).flatten();
    let edges = EdgesConfig { embeddings: edge("embeddings"), codes: edge("codes") };
    TransferConfig {
        transport,
        edges,
        shm_bytes,
        early_handoff,
        async_d2h,
        async_h2d,
        device_handover,
        just_in_time,
        zero_copy,
    }
}

pub(super) fn stage(r: &mut Reader, name: StageName) -> StageConfig {
    let key = |field: &str| format!("stages.{name}.{field}");
    let placements = [Placement::Auto, Placement::Thread, Placement::Process, Placement::Nodes];
    let placements = placements.map(|placement| (placement.as_str(), placement));
    let placement = r.choice(&key("placement"), "auto", &placements).unwrap_or(Placement::Auto);
    let replicas = replicas(r, &key("replicas"));
    let device_index = r.auto_int(&key("device_index"), 0..=LAST_GPU);
    if device_index.is_some() && !matches!(replicas, Replicas::Count(_)) {
        r.complain(&key("device_index"), "is set, and `replicas` says which GPUs: leave one of them out");
    }
    let device_memory = size(r, &key("device_memory"), 64 << 20, "64MiB");
    let max_batch = r.auto_int(&key("max_batch"), 1..=256);
    if name == StageName::Encoder {
        // The thinker waits for all embeddings, so no window holds the encoder back: this is room on its edge for the
        // pieces in which they come. Its work comes unit by unit.
        let (window, prefill_chunk) = (1024, Some(1));
        let (chunk_ramp, buckets, max_step_frames) = (Vec::new(), Vec::new(), None);
        return StageConfig {
            placement,
            replicas,
            device_index,
            device_memory,
            max_batch,
            prefill_chunk,
            kept_prompts: 0,
            kept_prompts_host: 0,
            run_ahead: None,
            window,
            chunk_ramp,
            max_step_frames,
            buckets,
        };
    }
    let run_ahead = r.auto_int(&key("run_ahead"), 1..=8);
    let (window, most) = match name {
        StageName::Thinker => (512, 65_536),
        StageName::Vocoder => (64, 4096),
        _ => (1024, 65_536),
    };
    let window = r.int(&key("window"), window, 1..=most);
    if name == StageName::Vocoder {
        let chunk_ramp = ramp(r, &key("chunk_ramp"));
        let prefill_chunk = Some(chunk_ramp.iter().map(|frames| frames.0).max().unwrap_or(1));
        let max_step_frames = Some(r.int(&key("max_step_frames"), 128, 1..=4096));
        let buckets = Vec::new();
        return StageConfig {
            placement,
            replicas,
            device_index,
            device_memory,
            max_batch,
            prefill_chunk,
            kept_prompts: 0,
            kept_prompts_host: 0,
            run_ahead,
            window,
            chunk_ramp,
            max_step_frames,
            buckets,
        };
    }
    let prefill_chunk = r.auto_int(&key("prefill_chunk"), 1..=8192);
    let mut bytes = |field: &str, usual| r.int(&key(field), usual, 0..=1usize << 40);
    let (kept_prompts, kept_prompts_host) = match name {
        // Some 1,400 positions of a thinker of 30B in f32, all conversations of a small one; and some 10,000 in bf16.
        StageName::Thinker => (bytes("kept_prompts", 256 << 20), bytes("kept_prompts_host", 1 << 30)),
        // Some 1,600 positions of its talker in f32, which are those of the user's turns alone.
        _ => (bytes("kept_prompts", 64 << 20), 0),
    };
    let buckets = if name == StageName::Talker { buckets(r, &key("buckets")) } else { Vec::new() };
    StageConfig {
        placement,
        replicas,
        device_index,
        device_memory,
        max_batch,
        prefill_chunk,
        kept_prompts,
        kept_prompts_host,
        run_ahead,
        window,
        chunk_ramp: Vec::new(),
        max_step_frames: None,
        buckets,
    }
}

fn replicas(r: &mut Reader, key: &str) -> Replicas {
    let allowed = format!(
        "a whole number from 1 to {MOST}, a list of up to {MOST} different numbers of GPUs from 0 to {LAST_GPU}, or \"auto\""
    );
    r.value(key, "1", allowed, Replicas::read).unwrap_or(Replicas::Count(1))
}

fn buckets(r: &mut Reader, key: &str) -> Vec<u32> {
    let allowed = "a list of 1 to 16 ascending whole numbers from 1 to 256".to_owned();
    let size = |value: &Value| u32::try_from(value.as_integer()?).ok().filter(|size| (1..=256).contains(size));
    r.value(key, "[1, 2, 4, 8, 16, 32, 64, 128]", allowed, |value| {
        let list = value.as_array().filter(|list| (1..=16).contains(&list.len()))?;
        let list = list.iter().map(size).collect::<Option<Vec<_>>>()?;
        list.is_sorted_by(|a, b| a < b).then_some(list)
    })
    .unwrap_or_else(|| (0..8).map(|power| 1 << power).collect())
}

fn ramp(r: &mut Reader, key: &str) -> Vec<Frames> {
    const DEFAULT: [u32; 4] = [1, 2, 4, 8];
    let frames = |value: &Value| {
        let number = u32::try_from(value.as_integer()?).ok()?;
        (1..=64).contains(&number).then_some(Frames(number))
    };
    let allowed = "a list of 1 to 16 whole numbers from 1 to 64".to_owned();
    r.value(key, "[1, 2, 4, 8]", allowed, |value| {
        let list = value.as_array().filter(|list| (1..=16).contains(&list.len()))?;
        list.iter().map(frames).collect::<Option<Vec<_>>>()
    })
    .unwrap_or_else(|| DEFAULT.map(Frames).to_vec())
}
