//! The thinker stage.
//!
//! Units are positions. A sequence first advances through its prompt, in pieces of any size. The step that completes
//! the prompt of a [`ThinkerMode::Sample`] sequence also samples its first token; every later step takes the last token
//! and samples the next, one unit each. A token that does not end the answer emits its embedding in the step that
//! sampled it.
//!
//! A [`ThinkerMode::Follow`] sequence takes the same steps through its prompt, without running the layers. Then each
//! token of input is a unit, as many per step as have arrived; `sampled` is the last of them. It ends with the step
//! that takes its last token, if the end of the input is known by then, and otherwise with a step of 0 units.
//!
//! The embeddings of media in a prompt arrive as input. A step may take prompt positions once their embeddings are
//! there; at media positions it emits the hidden states that the talker takes for them.
//!
//! Prompt positions that an earlier sequence has computed are taken over (`src/model/stages/kept/`): a step that finds
//! some computes only the rest of its units, and makes the same of them.

use super::kept::{Keeping, KeptPrompts, Parts};
use super::media::{PromptMedia, scatter, spoken};
use super::{Batch, LanguageModel};
use crate::error::{in_vocabulary, not_open, refused};
use crate::sampling::{Domain, History, Sampler, Suppress, uniform};
use crate::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, ThinkerMode, ThinkerSpec,
};
use crate::thinker::Thinker;
use crate::transformer::{KvCache, Segment};
use crate::{LoadError, ModelError};
use candle_core::Tensor;
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_telemetry::{Phase, PhaseClock};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Makes [`ThinkerStage`]s that share one net.
pub struct ThinkerFactory {
    net: Arc<Thinker>,
    kept: usize,
}

impl ThinkerFactory {
    /// For a loaded net; keeps no prompts.
    pub fn new(net: Arc<Thinker>) -> ThinkerFactory {
        ThinkerFactory { net, kept: 0 }
    }

    /// Has each stage keep so many bytes of prompts, for sequences that begin alike.
    #[must_use]
    pub fn keeping(self, bytes: usize) -> ThinkerFactory {
        ThinkerFactory { kept: bytes, ..self }
    }

    pub(super) fn stage(&self) -> ThinkerStage {
        let sampler = Sampler::new(self.net.vocabulary() as usize);
        let kept = KeptPrompts::new(StageName::Thinker, self.kept);
        ThinkerStage { net: self.net.clone(), sequences: HashMap::new(), sampler, kept }
    }
}

impl StageFactory for ThinkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(self.stage()))
    }
}

/// Sequences of the thinker.
pub struct ThinkerStage {
    net: Arc<Thinker>,
    sequences: HashMap<Slot, Sequence>,
    sampler: Sampler,
    /// `None` where prompts are not kept.
    kept: Option<KeptPrompts>,
}

#[cfg(test)]
impl ThinkerStage {
    /// Bytes of prompts that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, KeptPrompts::bytes)
    }

    pub(super) fn net(&self) -> &Thinker {
        &self.net
    }
}

pub(super) struct Sequence {
    pub(super) spec: ThinkerSpec,
    /// Prompt positions done.
    pub(super) prefilled: u32,
    finished: bool,
    answer: Answer,
    /// `None` for a prompt of text.
    pub(super) media: Option<PromptMedia>,
    /// Hidden states `[1, hidden]` at media positions that are still to be handed on or kept.
    pub(super) hidden: BTreeMap<u32, Tensor>,
    /// `None` where its prompt is not kept.
    keeping: Option<Keeping>,
}

/// Where the answer comes from, with its state.
pub(super) enum Answer {
    Sampled {
        cache: KvCache,
        history: History,
        /// Tokens sampled, and the last of them, which is the next step's input.
        count: u32,
        last: u32,
    },
    Followed {
        waiting: VecDeque<u32>,
        ended: bool,
    },
}

impl StageModel for ThinkerStage {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Thinker(spec) = spec else {
            return refused(format!("{slot}: the thinker cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        check(&spec, self.net.vocabulary(), self.net.stack().config().max_position_embeddings)?;
        let media = match &spec.media {
            Some(layout) => {
                self.net.config().check_media(layout, spec.asked().len())?;
                Some(PromptMedia::new(self.net.config(), layout))
            }
            None => None,
        };
        let keeping = match &mut self.kept {
            Some(kept) if spec.mode == ThinkerMode::Sample => kept.begin(&spec)?,
            _ => None,
        };
        let answer = match spec.mode {
            ThinkerMode::Sample => {
                let mut history = History::default();
                history.push_prompt(spec.asked());
                spec.answered().iter().for_each(|token| history.push(*token));
                Answer::Sampled { cache: self.net.stack().new_cache()?, history, count: spec.generated_len, last: 0 }
            }
            ThinkerMode::Follow => Answer::Followed { waiting: VecDeque::new(), ended: false },
        };
        let (prefilled, hidden) = (0, BTreeMap::new());
        self.sequences.insert(slot, Sequence { spec, prefilled, finished: false, answer, media, hidden, keeping });
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let vocabulary = self.net.vocabulary();
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        let Answer::Followed { waiting, ended } = &mut sequence.answer else {
            if let Some(media) = &mut sequence.media {
                return match input {
                    Some(StageData::Embeddings(embeddings)) => media.push(Some(embeddings), end),
                    None => media.push(None, end),
                    Some(_) => refused(format!("{slot}: a prompt with media takes their embeddings only")),
                };
            }
            return refused(format!("{slot}: a thinker sequence that samples its answer takes no input"));
        };
        if *ended {
            return refused(format!("{slot}: tokens after the end of the answer"));
        }
        if let Some(input) = input {
            waiting.extend(input.into_tokens(slot, vocabulary)?);
        }
        *ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[SequenceWork]) -> Result<Launched, ModelError> {
        Ok(Launched::Done(self.step_sequences(work)?))
    }

    fn close(&mut self, slot: Slot) {
        let closed = self.sequences.remove(&slot);
        if let (Some(kept), Some(Sequence { keeping: Some(keeping), .. })) = (&mut self.kept, closed) {
            kept.end(&keeping);
        }
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

/// Checks that a thinker of so many tokens and positions can do what a sequence asks for.
///
/// # Errors
/// [`ModelError::Sequence`] with the first thing that it cannot do.
pub fn check(spec: &ThinkerSpec, vocabulary: u32, limit: usize) -> Result<(), ModelError> {
    in_vocabulary(&spec.prompt, vocabulary)?;
    let len = spec.prompt.len();
    if len == 0 || len > limit {
        return refused(format!("the prompt has {len} tokens: expected 1 to {limit}, the positions of the model"));
    }
    if spec.max_tokens == 0 {
        return refused("max_tokens is 0: expected at least 1");
    }
    if spec.generated_len as usize >= len || spec.generated_len >= spec.max_tokens {
        let (said, most) = (spec.generated_len, spec.max_tokens);
        return refused(format!("{said} tokens were said, of a prompt of {len} and max_tokens {most}: expected fewer"));
    }
    if spec.media.is_some() && spec.mode == ThinkerMode::Follow {
        return refused("a sequence that follows an answer runs no layers, so its prompt cannot have media");
    }
    spec.sampling.check().map_err(ModelError::Sequence)?;
    let mut end = 0;
    for range in spec.emit.iter().flat_map(|ranges| ranges.iter()) {
        if range.start < end || range.end < range.start || range.end as usize > len {
            return refused(format!("range {range:?} of prompt sequences is out of order or beyond {len} tokens"));
        }
        end = range.end;
    }
    Ok(())
}

/// Of the `count` prompt positions from `from` on those that the talker needs, as tokens.
pub fn prompt_embeddings(spec: &ThinkerSpec, from: u32, count: u32) -> Vec<u32> {
    prompt_positions(spec, from, count).map(|at| spec.prompt[at as usize]).collect()
}

/// Of the `count` prompt positions from `from` on those that the talker needs.
pub fn prompt_positions(spec: &ThinkerSpec, from: u32, count: u32) -> impl Iterator<Item = u32> {
    let ranges = spec.emit.iter().flat_map(|ranges| ranges.iter());
    ranges.flat_map(move |range| range.start.max(from)..range.end.min(from + count))
}

impl LanguageModel for ThinkerStage {
    type Sequence = Sequence;
    type Input = u32;

    fn sequences(&mut self) -> &mut HashMap<Slot, Sequence> {
        &mut self.sequences
    }

    fn begin(
        &mut self,
        place: usize,
        work: SequenceWork,
        batch: &mut Batch<Sequence, u32>,
    ) -> Result<SequenceOutput, ModelError> {
        let slot = work.slot;
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.finished {
            return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
        }
        let prompt = sequence.spec.prompt.len() as u32;
        let left = prompt - sequence.prefilled;
        if left > 0 && (work.advance == 0 || work.advance > left) {
            return refused(format!("{slot}: asked for {} of {left} prompt positions", work.advance));
        }
        match &mut sequence.answer {
            Answer::Followed { .. } if left > 0 => {
                let sequences = prompt_embeddings(&sequence.spec, sequence.prefilled, work.advance);
                sequence.prefilled += work.advance;
                Ok(SequenceOutput { emit: embedded(&self.net, &sequences)?, ..SequenceOutput::default() })
            }
            Answer::Followed { waiting, ended } => {
                let want = work.advance as usize;
                if want > waiting.len() || (want == 0 && !*ended) {
                    return refused(format!("{slot}: asked for {want} tokens, {} are there", waiting.len()));
                }
                let followed: Vec<u32> = waiting.drain(..want).collect();
                sequence.finished = *ended && waiting.is_empty();
                let sequences = if sequence.spec.emit.is_some() { followed.as_slice() } else { &[] };
                Ok(SequenceOutput {
                    sampled: followed.last().copied(),
                    finish: sequence.finished.then_some(FinishReason::Stop),
                    emit: embedded(&self.net, sequences)?,
                    ..SequenceOutput::default()
                })
            }
            Answer::Sampled { cache, last, .. } => {
                if left == 0 && work.advance != 1 {
                    return refused(format!("{slot}: asked for {} units, a decode step is 1", work.advance));
                }
                if left == 0 {
                    cache.check_room(1).map_err(|full| ModelError::Sequence(full.to_string()))?;
                    batch.input.push(*last);
                    batch.take(&mut self.sequences, place, work, true)?;
                    return Ok(SequenceOutput::default());
                }
                let (from, upto) = (sequence.prefilled, sequence.prefilled + work.advance);
                if let (Some(kept), Some(keeping)) = (&mut self.kept, &mut sequence.keeping) {
                    let media = sequence.media.as_mut().zip(Some(&mut sequence.hidden));
                    kept.take_over(keeping, prompt as usize, upto as usize, Parts { cache, media })?;
                }
                let first = cache.len() as u32;
                if first >= upto {
                    sequence.prefilled = upto;
                    let emit = prompt_given(&self.net, sequence, from, upto)?;
                    return Ok(SequenceOutput {
                        emit: emit.map(|given| StageData::Embeddings(given.into())),
                        ..SequenceOutput::default()
                    });
                }
                let advance = upto - first;
                cache.check_room(advance as usize).map_err(|full| ModelError::Sequence(full.to_string()))?;
                if let Some(media) = &sequence.media {
                    media.check_arrived(first, advance)?;
                }
                batch.input.extend(&sequence.spec.prompt[first as usize..upto as usize]);
                batch.take(&mut self.sequences, place, SequenceWork { advance, ..work }, left <= work.advance)?;
                Ok(SequenceOutput::default())
            }
        }
    }

    fn run(
        &mut self,
        batch: &mut Batch<Sequence, u32>,
        results: &mut [Result<SequenceOutput, ModelError>],
        clock: &mut PhaseClock,
    ) -> Result<(), ModelError> {
        let x = self.net.embed(&batch.input)?;
        let last = batch.last_positions();
        let media = scatter(&x, &mut batch.running)?;
        let mut segments = Vec::with_capacity(batch.running.len());
        for entry in &mut batch.running {
            if let Answer::Sampled { cache, .. } = &mut entry.sequence.answer {
                segments.push(Segment { cache, len: entry.len });
            }
        }
        clock.lap(Phase::Preprocess);
        let mut accepted = None;
        let residual = match &media {
            None => self.net.stack().forward(&x, &mut segments)?,
            Some(media) => self.net.forward_media(&x, &mut segments, media, &mut accepted)?,
        };
        let mut logits = if last.is_empty() {
            Vec::new()
        } else {
            let last = Tensor::new(last.as_slice(), residual.device())?;
            self.net.logits(&residual.index_select(&last, 0)?)?.to_vec2::<f32>()?
        }
        .into_iter();
        clock.lap(Phase::Backbone);
        let mut end = 0;
        for entry in &mut batch.running {
            let sequence = &mut entry.sequence;
            let (mut sequences, mut prompt) = (Vec::new(), None);
            end += entry.len;
            if sequence.prefilled < sequence.spec.prompt.len() as u32 {
                let (from, upto) = (sequence.prefilled, sequence.cached() as u32);
                if let Some(accepted) = &accepted {
                    sequence.take_hidden(&accepted.narrow(0, end - entry.len, entry.len)?)?;
                }
                if sequence.media.is_some() {
                    prompt = prompt_given(&self.net, sequence, from, upto)?;
                } else {
                    sequences = prompt_embeddings(&sequence.spec, from, upto - from);
                }
                sequence.prefilled = upto;
            }
            let cached = sequence.keep(&mut self.kept, entry.samples)?;
            let mut output = SequenceOutput { cached, ..SequenceOutput::default() };
            if entry.samples {
                let logits = logits.next().unwrap_or_default();
                clock.lap(Phase::Postprocess);
                let sampled = sequence.sample(&logits, &mut self.sampler);
                clock.lap(Phase::Sampling);
                match sampled {
                    Ok(token) => {
                        output.sampled = Some(token);
                        output.finish = sequence.ends_with(token);
                        sequence.finished = output.finish.is_some();
                        if !sequence.finished && sequence.spec.emit.is_some() {
                            sequences.push(token);
                        }
                    }
                    Err(error) => {
                        sequence.finished = true;
                        if let (Some(kept), Some(keeping)) = (&mut self.kept, &sequence.keeping) {
                            kept.forget(keeping);
                        }
                        results[entry.place] = Err(error);
                        continue;
                    }
                }
            }
            output.emit = match prompt {
                None => embedded(&self.net, &sequences)?,
                Some(prompt) if sequences.is_empty() => Some(StageData::Embeddings(prompt.into())),
                // The step that completes a prompt also samples the first token.
                Some(prompt) => {
                    let all = Tensor::cat(&[prompt, self.net.embed(&sequences)?], 0)?;
                    Some(StageData::Embeddings(all.into()))
                }
            };
            results[entry.place] = Ok(output);
        }
        Ok(())
    }
}

impl Sequence {
    /// Positions that earlier steps have computed.
    pub(super) fn cached(&self) -> usize {
        match &self.answer {
            Answer::Sampled { cache, .. } => cache.len(),
            Answer::Followed { .. } => 0,
        }
    }

    /// Takes the hidden states `[n, hidden]` of the positions that were cached last, those at media.
    fn take_hidden(&mut self, accepted: &Tensor) -> Result<(), ModelError> {
        let count = accepted.dim(0)? as u32;
        let first = self.cached() as u32 - count;
        let Some(media) = self.media.as_ref().filter(|_| self.spec.emit.is_some() || self.keeping.is_some()) else {
            return Ok(());
        };
        for at in media.positions(first, count) {
            self.hidden.insert(at, accepted.narrow(0, (at - first) as usize, 1)?);
        }
        Ok(())
    }

    /// Keeps what is new of its prompt and answer; drops the hidden states that nothing needs any more. `sampled`: a
    /// token is sampled in this step. Returns [`SequenceOutput::cached`].
    fn keep(&mut self, kept: &mut Option<KeptPrompts>, sampled: bool) -> Result<u32, ModelError> {
        let (mut needed_from, mut cached) = (self.prefilled, 0);
        if let (Some(kept), Some(keeping), Answer::Sampled { cache, count, .. }) =
            (kept, &mut self.keeping, &mut self.answer)
        {
            let media = self.media.as_mut().zip(Some(&mut self.hidden));
            needed_from = needed_from.min(kept.keep(keeping, Parts { cache, media })?);
            if sampled && *count == self.spec.generated_len {
                cached = kept.prefilled(keeping);
            }
        }
        if !self.hidden.is_empty() {
            self.hidden = self.hidden.split_off(&needed_from);
        }
        Ok(cached)
    }

    fn sample(&mut self, logits: &[f32], sampler: &mut Sampler) -> Result<u32, ModelError> {
        let Answer::Sampled { history, count, last, .. } = &mut self.answer else {
            return refused("a sequence that follows text was asked to sample");
        };
        let number = uniform(self.spec.seed, Domain::Thinker, *count, 0);
        let token = sampler.sample(logits, &self.spec.sampling, history, &Suppress::NONE, number)?;
        history.push(token);
        *count += 1;
        *last = token;
        if let Some(keeping) = &mut self.keeping {
            keeping.said(&self.spec, token);
        }
        Ok(token)
    }

    fn ends_with(&self, token: u32) -> Option<FinishReason> {
        let Answer::Sampled { count, .. } = &self.answer else { return None };
        if self.spec.eos.contains(&token) {
            Some(FinishReason::Stop)
        } else {
            (*count >= self.spec.max_tokens).then_some(FinishReason::Length)
        }
    }
}

/// What the talker gets of the positions `from..upto` of a prompt.
fn prompt_given(net: &Thinker, sequence: &Sequence, from: u32, upto: u32) -> Result<Option<Tensor>, ModelError> {
    let positions: Vec<u32> = prompt_positions(&sequence.spec, from, upto - from).collect();
    if positions.is_empty() { Ok(None) } else { Ok(Some(spoken(net, sequence, &positions)?)) }
}

fn embedded(net: &Thinker, tokens: &[u32]) -> Result<Option<StageData>, ModelError> {
    if tokens.is_empty() { Ok(None) } else { Ok(Some(StageData::Embeddings(net.embed(tokens)?.into()))) }
}
