//! The tables that describe sequences to kernels: the layouts of `kernels/token.cuh`.

use crate::talker::table::{NONE, Record, SamplingArgs};
use omni_model::ModelError;
use omni_model::stage::ThinkerSpec;

/// `MAX_STOPS` of `kernels/token.cuh`.
const MAX_STOPS: usize = 12;

/// `SAMPLED` of `kernels/token.cuh`: not a token, but the one that the slot in the other bits sampled last.
pub(super) const SAMPLED: u32 = 0x8000_0000;

/// The row of media has levels that are added behind the first layers.
pub(super) const SEEN: u32 = 4;

/// One sequence of a step.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TokenRow {
    pub slot: u32,
    pub position: i32,
    /// [`NONE`]: the one sampled last.
    pub token: u32,
    pub count: u32,
    pub flags: u32,
    /// The row of the pass's media that takes the place of the token's embedding; [`NONE`]: it does not.
    pub media: u32,
    /// The row of [`TokenHead::handed`] that its hidden state goes to; [`NONE`]: none.
    pub hand: u32,
    /// Of a row that is sampled behind a pass: which row of the pass it is.
    pub of: u32,
    /// The positions that the rotation takes.
    pub axes: [f32; 3],
    pub unused_too: u32,
}
// SAFETY: twelve words.
unsafe impl Record for TokenRow {}

impl TokenRow {
    pub const PADDING: TokenRow = TokenRow {
        slot: NONE,
        position: -1,
        token: 0,
        count: 0,
        flags: 0,
        media: NONE,
        hand: NONE,
        of: 0,
        axes: [0.0; 3],
        unused_too: 0,
    };
}

/// Ahead of the sequences.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TokenHead {
    pub out: u64,
    /// Where hidden states go: among what the step hands on, or beside the pages of the cache.
    pub handed: u64,
}
// SAFETY: two numbers of eight bytes.
unsafe impl Record for TokenHead {}

/// What a slot keeps for the life of its sequence.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TokenParams {
    sampling: SamplingArgs,
    seed: [u32; 2],
    stops: u32,
    unused: u32,
    stop: [u32; MAX_STOPS],
}
// SAFETY: twenty-four words.
unsafe impl Record for TokenParams {}

impl TokenParams {
    /// Those of a sequence.
    pub fn new(sequence: &ThinkerSpec) -> Result<TokenParams, ModelError> {
        let mut stop = [NONE; MAX_STOPS];
        let Some(room) = stop.get_mut(..sequence.eos.len()) else {
            let told = format!("{} tokens end the answer: on a GPU up to {MAX_STOPS} can", sequence.eos.len());
            return Err(ModelError::Sequence(told));
        };
        room.copy_from_slice(&sequence.eos);
        Ok(TokenParams {
            sampling: (&sequence.sampling).into(),
            seed: [sequence.seed as u32, (sequence.seed >> 32) as u32],
            stops: sequence.eos.len() as u32,
            unused: 0,
            stop,
        })
    }
}
