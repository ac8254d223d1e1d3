//! The answer of a device's thinker to a request of Qwen3-Omni: its tokens, and what it hands on to the talker.

use super::device::step;
use super::generate::{Request, spoken_positions};
use super::media::Media;
use candle_core::Tensor;
use omni_core::ids::Slot;
use omni_model::ModelError;
use omni_model::embeddings::Embeddings;
use omni_model::sampling::SamplingParams;
use omni_model::stage::{SequenceOutput, SequenceSpec, SequenceWork, StageData, StageModel, ThinkerMode, ThinkerSpec};
use std::sync::Arc;

const SLOT: Slot = Slot(0);
/// Prompt positions of a step: small, so that media are cut.
const PIECE: u32 = 48;

/// What a thinker said.
pub(super) struct Answer {
    /// Its tokens, the last one included.
    pub tokens: Vec<u32>,
    /// `[n, width]`: embeddings of text and hidden states of media that the talker gets.
    pub embeddings: Tensor,
}

impl Answer {
    /// Runs a request greedily behind the tokens of its answer that are `known`.
    pub fn of(
        stage: &mut dyn StageModel,
        request: &Request,
        media: Option<&Media>,
        known: &[u32],
    ) -> Result<Answer, ModelError> {
        let answer = answer(stage, request, media, known);
        stage.close(SLOT);
        answer
    }
}

fn answer(
    stage: &mut dyn StageModel,
    request: &Request,
    media: Option<&Media>,
    known: &[u32],
) -> Result<Answer, ModelError> {
    let prompt = [&request.prompt.ids, known].concat();
    let positions = spoken_positions(request, prompt.len());
    let emit: Vec<_> = positions.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1).collect();
    // Behind known tokens one is sampled.
    let max_tokens = if known.is_empty() { request.text_tokens } else { known.len() + 1 };
    let spec = ThinkerSpec {
        prompt: prompt.as_slice().into(),
        generated_len: known.len() as u32,
        mode: ThinkerMode::Sample,
        emit: Some(emit.into()),
        sampling: SamplingParams::GREEDY,
        eos: request.thinker_eos.as_slice().into(),
        max_tokens: max_tokens as u32,
        seed: 0,
        media: media.map(|media| Arc::new(media.layout.clone())),
        reuse: None,
    };
    stage.open(SLOT, SequenceSpec::Thinker(spec))?;
    for rows in media.iter().flat_map(|media| &media.rows) {
        let rows = Embeddings::Host(rows.joined()?);
        stage.push_input(SLOT, Some(StageData::Embeddings(rows)), false)?;
    }
    let (mut tokens, mut handed, mut left) = (known.to_vec(), Vec::new(), prompt.len() as u32);
    loop {
        let advance = PIECE.min(left).max(1);
        left = left.saturating_sub(advance);
        let SequenceOutput { sampled, finish, emit, .. } = step(stage, SequenceWork { slot: SLOT, advance })?;
        tokens.extend(sampled);
        if let Some(StageData::Embeddings(embeddings)) = emit {
            handed.push(embeddings.tensor()?);
        }
        if finish.is_some() {
            break;
        }
    }
    Ok(Answer { tokens, embeddings: Tensor::cat(&handed, 0)? })
}
