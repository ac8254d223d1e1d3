//! A sequence of the thinker on a GPU, and what a step sends to the device of all of them.

use super::table::TokenRow;
use crate::copies::EmbeddingBuffer;
use crate::talker::table::NONE;
use omni_config::Precision;
use omni_core::ids::Slot;
use omni_model::ModelError;
use omni_model::error::refused;
use omni_model::stage::ThinkerSpec;
use omni_model::stages::Held;
use omni_model::stages::media::{MediaRow, PromptMedia};
use omni_model::stages::thinker::prompt_positions;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Where an upload goes.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Params,
    PageTable,
    Counts,
}

pub(super) struct Sequence {
    /// Which of all that were opened.
    pub number: u64,
    pub spec: ThinkerSpec,
    /// Prompt positions launched.
    pub prefilled: u32,
    /// The limit on tokens was reached by a launch.
    pub exhausted: bool,
    /// Set by the step that ended the sequence.
    pub finished: Arc<AtomicBool>,
    pub answer: Answer,
    /// `None` for a prompt of text.
    pub media: Option<PromptMedia>,
}

impl Sequence {
    /// Puts the embeddings of the media at the positions that a step computes into it, whose rows of these positions
    /// begin with `first`, and what it hands on of the media at all of its `units`, with `handed`.
    pub fn take_media(
        &mut self,
        units: Range<u32>,
        computes: Range<u32>,
        (first, handed): (usize, usize),
        states: bool,
        plan: &mut Plan,
    ) -> Result<(), ModelError> {
        let (Some(media), Answer::Sampled { held, .. }) = (&mut self.media, &self.answer) else { return Ok(()) };
        let hands: Vec<u32> = prompt_positions(&self.spec, units.start, units.len() as u32).collect();
        for at in media.positions(computes.start, computes.len() as u32) {
            let Some(row) = media.take(at) else {
                return refused(format!("the embedding of prompt position {at} is gone"));
            };
            let place = first + (at - computes.start) as usize;
            if let MediaRow::There(row) = &row
                && (row.buffer().precision() != Precision::F32 || !row.buffer().as_any().is::<EmbeddingBuffer>())
            {
                return refused("these embeddings of media are on a device that this thinker cannot read");
            }
            plan.media.push((place, row));
            if states {
                plan.prompts[place].hand = held.row(at).unwrap_or(NONE);
            } else if let Ok(hand) = hands.binary_search(&at) {
                plan.prompts[place].hand = (handed + hand) as u32;
            }
        }
        for at in media.positions(units.start, units.len() as u32) {
            if let Ok(hand) = hands.binary_search(&at) {
                plan.handed[handed + hand] = NONE;
                plan.states.extend(held.row(at).filter(|_| states).map(|row| (handed + hand, row)));
            }
        }
        Ok(())
    }

    /// The positions that the rotation takes of position `at`.
    pub fn axes(&self, at: u32) -> [f32; 3] {
        let own = self.media.as_ref().and_then(PromptMedia::axes);
        own.map_or([at as f32; 3], |positions| positions.at(at as usize))
    }
}

pub(super) enum Answer {
    /// `count`: tokens launched.
    Sampled {
        held: Held,
        count: u32,
    },
    Followed {
        waiting: VecDeque<u32>,
        ended: bool,
    },
}

/// The data that a step sends to the device.
#[derive(Default)]
pub(super) struct Plan {
    pub prompts: Vec<TokenRow>,
    /// Those of `prompts` that are sampled: which, and as what.
    pub samples: Vec<(usize, TokenRow)>,
    /// Positions of prompts that are kept, whose tokens are marked.
    pub marked: Vec<TokenRow>,
    /// Single tokens of other sequences.
    pub tokens: Vec<TokenRow>,
    /// The embeddings of media that `prompts` take, in their order, with the place among them: of f32, as they came.
    pub media: Vec<(usize, MediaRow)>,
    /// The sources of the embeddings to hand on: tokens, slots with [`SAMPLED`](super::table::SAMPLED), or [`NONE`] for hidden states, which
    /// the layers hand on, or `states`.
    pub handed: Vec<u32>,
    /// The hidden states to hand on that lie beside the pages of the cache: the place among `handed`, and the row.
    pub states: Vec<(usize, u32)>,
    /// Sequences of whose prompts something is computed or taken over.
    pub prefills: Vec<Slot>,
}

impl Plan {
    /// Adds embeddings to hand on; returns their places.
    pub fn hand(&mut self, tokens: impl IntoIterator<Item = u32>) -> Range<usize> {
        let from = self.handed.len();
        self.handed.extend(tokens);
        from..self.handed.len()
    }
}
