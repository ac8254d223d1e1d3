//! The tables that describe sequences to kernels: the layouts of `kernels/frame.cuh`.

use omni_model::sampling::SamplingParams;

/// No slot: padding of a batch.
pub(crate) const NONE: u32 = u32::MAX;

/// The end must not be sampled.
pub(crate) const NO_END: u32 = 1;
/// The limit is reached with this code.
pub(crate) const LAST: u32 = 2;

/// The sequence had ended before.
pub(crate) const STALE: u32 = 1;
/// The end was sampled.
pub(crate) const STOPPED: u32 = 2;
/// The limit was reached.
pub(crate) const EXHAUSTED: u32 = 4;
/// A logit is not a number, or no token is allowed.
pub(crate) const BROKEN: u32 = 8;

/// Kinds of the codec side of a prompt position.
pub(crate) const PLAIN_TEXT: u32 = 0;
pub(crate) const TOKEN: u32 = 1;
pub(crate) const X_VECTOR: u32 = 2;
pub(crate) const REFERENCE_FRAME: u32 = 3;
/// No position of a prompt but the next one of a sequence.
pub(crate) const NEXT: u32 = 4;

/// A record that kernels read.
///
/// # Safety
/// `repr(C)` without padding: all of its bytes are initialized.
pub(crate) unsafe trait Record: Copy {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the promise of the trait.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// One sequence of a step.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct StepSequence {
    pub slot: u32,
    pub position: i32,
    pub text: u32,
    pub count: u32,
    pub flags: u32,
    /// Where its forced codes begin in the step's list; [`NONE`]: none are forced.
    pub forced: u32,
    /// The positions that the rotation takes.
    pub axes: [f32; 3],
    /// Where a pass over prompts did the layers: which of its rows.
    pub of: u32,
    pub unused: [u32; 2],
}
// SAFETY: twelve words.
unsafe impl Record for StepSequence {}

impl StepSequence {
    pub const PADDING: StepSequence = StepSequence {
        slot: NONE,
        position: -1,
        text: 0,
        count: 0,
        flags: 0,
        forced: NONE,
        axes: [0.0; 3],
        of: 0,
        unused: [0; 2],
    };
}

/// A page that was given to a slot.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct NewPage {
    pub slot: u32,
    pub index: u32,
    pub page: u32,
    pub unused: u32,
}
// SAFETY: four words.
unsafe impl Record for NewPage {}

/// Ahead of the sequences.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct StepHead {
    pub out: u64,
    pub times: u64,
    pub pages: u32,
    pub unused: u32,
}
// SAFETY: 8 + 8 + 4 + 4 bytes, aligned to 8.
unsafe impl Record for StepHead {}

/// One position of a prompt.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PromptEmbedding {
    pub slot: u32,
    pub position: i32,
    pub text: u32,
    pub kind: u32,
    pub codes: u32,
    pub last: u32,
    /// The positions that the rotation takes.
    pub axes: [f32; 3],
    pub unused: [u32; 3],
}
// SAFETY: twelve words.
unsafe impl Record for PromptEmbedding {}

impl PromptEmbedding {
    pub const PADDING: PromptEmbedding = PromptEmbedding {
        slot: NONE,
        position: -1,
        text: 0,
        kind: PLAIN_TEXT,
        codes: 0,
        last: 0,
        axes: [0.0; 3],
        unused: [0; 3],
    };
}

/// How one token is picked.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SamplingArgs {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    unused: u32,
}

impl From<&SamplingParams> for SamplingArgs {
    fn from(p: &SamplingParams) -> SamplingArgs {
        SamplingArgs {
            temperature: p.temperature,
            top_p: p.top_p,
            min_p: p.min_p,
            top_k: p.top_k,
            repetition: p.repetition_penalty,
            frequency: p.frequency_penalty,
            presence: p.presence_penalty,
            unused: 0,
        }
    }
}

/// What a slot keeps for the life of its sequence.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SlotParams {
    pub first: SamplingArgs,
    pub others: SamplingArgs,
    pub seed: [u32; 2],
    pub unused: [u32; 2],
}
// SAFETY: twenty words.
unsafe impl Record for SlotParams {}

/// A step's table as kernels read it: the head, the rows, the new pages, codes of references or forced ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbox {
    pub rows: usize,
    pub pages: usize,
    pub codes: usize,
    pub bytes: usize,
}

impl Inbox {
    const HEAD: usize = 64;

    pub fn new(rows: usize, codes: usize, pages: usize) -> Inbox {
        let pages_at = Inbox::HEAD + rows * size_of::<StepSequence>();
        let codes_at = pages_at + pages * size_of::<NewPage>();
        Inbox {
            rows: Inbox::HEAD,
            pages: pages_at,
            codes: codes_at,
            bytes: (codes_at + codes * 4).next_multiple_of(16),
        }
    }
}
