//! The thinker stage.
//!
//! Units are positions. A row first advances through its prompt, in pieces of any size. The step that completes the
//! prompt of a [`ThinkerMode::Sample`] row also samples its first token; every later step feeds the last token and samples
//! the next, one unit each. A token that does not end the answer emits its embedding row in the step that sampled it.
//!
//! A [`ThinkerMode::Follow`] row takes the same steps through its prompt, without running the layers. Then each fed token
//! is a unit, as many per step as have arrived; `sampled` is the last of them. It ends with the step that takes its last
//! token, if the end of the input is known by then, and otherwise with a step of 0 units.

use super::{Batch, LanguageModel};
use crate::error::{in_vocabulary, not_open, refused};
use crate::sampling::{Domain, History, Sampler, Suppress, uniform};
use crate::stage::{
    Emit, Finish, Launched, RowInput, RowOutput, RowSpec, RowWork, StageFactory, StageModel, ThinkerMode, ThinkerRow,
};
use crate::thinker::Thinker;
use crate::transformer::{KvCache, Segment};
use crate::{LoadError, ModelError};
use candle_core::Tensor;
use omni_core::ids::Slot;
use omni_telemetry::{Phase, PhaseClock};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Makes [`ThinkerStage`]s that share one net.
pub struct ThinkerFactory {
    net: Arc<Thinker>,
}

impl ThinkerFactory {
    /// For a loaded net.
    pub fn new(net: Arc<Thinker>) -> ThinkerFactory {
        ThinkerFactory { net }
    }
}

impl StageFactory for ThinkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        let sampler = Sampler::new(self.net.vocabulary() as usize);
        Ok(Box::new(ThinkerStage { net: self.net.clone(), rows: HashMap::new(), sampler }))
    }
}

/// Rows of the thinker.
pub struct ThinkerStage {
    net: Arc<Thinker>,
    rows: HashMap<Slot, Row>,
    sampler: Sampler,
}

pub(super) struct Row {
    spec: ThinkerRow,
    /// Prompt positions done.
    prefilled: u32,
    finished: bool,
    answer: Answer,
}

/// Where the answer comes from, with its state.
pub(super) enum Answer {
    Sampled {
        cache: KvCache,
        history: History,
        /// Tokens sampled, and the last of them, which the next step feeds.
        count: u32,
        last: u32,
    },
    Followed {
        waiting: VecDeque<u32>,
        ended: bool,
    },
}

impl StageModel for ThinkerStage {
    fn open(&mut self, slot: Slot, spec: RowSpec) -> Result<(), ModelError> {
        let RowSpec::Thinker(spec) = spec else { return refused(format!("{slot}: the thinker cannot open {spec:?}")) };
        if self.rows.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        check(&spec, self.net.vocabulary(), self.net.stack().config().max_position_embeddings)?;
        let answer = match spec.mode {
            ThinkerMode::Sample => {
                let mut history = History::default();
                history.push_prompt(spec.asked());
                spec.answered().iter().for_each(|token| history.push(*token));
                Answer::Sampled { cache: self.net.stack().new_cache()?, history, count: spec.said, last: 0 }
            }
            ThinkerMode::Follow => Answer::Followed { waiting: VecDeque::new(), ended: false },
        };
        self.rows.insert(slot, Row { spec, prefilled: 0, finished: false, answer });
        Ok(())
    }

    fn feed(&mut self, slot: Slot, input: RowInput, end: bool) -> Result<(), ModelError> {
        let vocabulary = self.net.vocabulary();
        let row = self.rows.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        let Answer::Followed { waiting, ended } = &mut row.answer else {
            return refused(format!("{slot}: a thinker row that samples its answer takes no input"));
        };
        if *ended {
            return refused(format!("{slot}: tokens after the end of the answer"));
        }
        waiting.extend(input.into_tokens(slot, vocabulary)?);
        *ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[RowWork]) -> Result<Launched, ModelError> {
        Ok(Launched::Done(self.step_rows(work)?))
    }

    fn close(&mut self, slot: Slot) {
        self.rows.remove(&slot);
    }

    fn live_rows(&self) -> usize {
        self.rows.len()
    }
}

/// Whether a row asks for what a thinker of so many tokens and positions can do.
///
/// # Errors
/// [`ModelError::Row`] with the first thing that it cannot.
pub fn check(spec: &ThinkerRow, vocabulary: u32, limit: usize) -> Result<(), ModelError> {
    in_vocabulary(&spec.prompt, vocabulary)?;
    let len = spec.prompt.len();
    if len == 0 || len > limit {
        return refused(format!("the prompt has {len} tokens: expected 1 to {limit}, the positions of the model"));
    }
    if spec.max_tokens == 0 {
        return refused("max_tokens is 0: expected at least 1");
    }
    if spec.said as usize >= len || spec.said >= spec.max_tokens {
        let (said, most) = (spec.said, spec.max_tokens);
        return refused(format!("{said} tokens were said, of a prompt of {len} and max_tokens {most}: expected fewer"));
    }
    spec.sampling.check().map_err(ModelError::Row)?;
    let mut end = 0;
    for range in spec.emit.iter().flat_map(|ranges| ranges.iter()) {
        if range.start < end || range.end < range.start || range.end as usize > len {
            return refused(format!("range {range:?} of prompt rows is out of order or beyond {len} tokens"));
        }
        end = range.end;
    }
    Ok(())
}

/// Of the `count` prompt positions from `from` on those that the talker needs, as tokens.
pub fn prompt_rows(spec: &ThinkerRow, from: u32, count: u32) -> Vec<u32> {
    let ranges = spec.emit.iter().flat_map(|ranges| ranges.iter());
    let inside = ranges.flat_map(|range| range.start.max(from)..range.end.min(from + count));
    inside.map(|at| spec.prompt[at as usize]).collect()
}

impl LanguageModel for ThinkerStage {
    type Row = Row;
    type Input = u32;

    fn rows(&mut self) -> &mut HashMap<Slot, Row> {
        &mut self.rows
    }

    fn begin(&mut self, place: usize, work: RowWork, batch: &mut Batch<Row, u32>) -> Result<RowOutput, ModelError> {
        let slot = work.slot;
        let row = self.rows.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if row.finished {
            return Ok(RowOutput { stale: true, ..RowOutput::default() });
        }
        let prompt = row.spec.prompt.len() as u32;
        let left = prompt - row.prefilled;
        if left > 0 && (work.advance == 0 || work.advance > left) {
            return refused(format!("{slot}: asked for {} of {left} prompt positions", work.advance));
        }
        match &mut row.answer {
            Answer::Followed { .. } if left > 0 => {
                let rows = prompt_rows(&row.spec, row.prefilled, work.advance);
                row.prefilled += work.advance;
                Ok(RowOutput { emit: embedded(&self.net, &rows)?, ..RowOutput::default() })
            }
            Answer::Followed { waiting, ended } => {
                let want = work.advance as usize;
                if want > waiting.len() || (want == 0 && !*ended) {
                    return refused(format!("{slot}: asked for {want} tokens, {} are there", waiting.len()));
                }
                let followed: Vec<u32> = waiting.drain(..want).collect();
                row.finished = *ended && waiting.is_empty();
                let rows = if row.spec.emit.is_some() { followed.as_slice() } else { &[] };
                Ok(RowOutput {
                    sampled: followed.last().copied(),
                    finish: row.finished.then_some(Finish::Stop),
                    emit: embedded(&self.net, rows)?,
                    ..RowOutput::default()
                })
            }
            Answer::Sampled { cache, last, .. } => {
                if left == 0 && work.advance != 1 {
                    return refused(format!("{slot}: asked for {} units, a decode step is 1", work.advance));
                }
                cache.check_room(work.advance as usize).map_err(|full| ModelError::Row(full.to_string()))?;
                match left {
                    0 => batch.input.push(*last),
                    _ => batch.input.extend(&row.spec.prompt[row.prefilled as usize..][..work.advance as usize]),
                }
                batch.take(&mut self.rows, place, work, left <= work.advance)?;
                Ok(RowOutput::default())
            }
        }
    }

    fn run(
        &mut self,
        batch: &mut Batch<Row, u32>,
        results: &mut [Result<RowOutput, ModelError>],
        clock: &mut PhaseClock,
    ) -> Result<(), ModelError> {
        let x = self.net.embed(&batch.input)?;
        let last = batch.last_positions();
        let mut segments = Vec::with_capacity(batch.running.len());
        for entry in &mut batch.running {
            if let Answer::Sampled { cache, .. } = &mut entry.row.answer {
                segments.push(Segment { cache, len: entry.len });
            }
        }
        clock.lap(Phase::Preprocess);
        let residual = self.net.stack().forward(&x, &mut segments)?;
        let mut logits = if last.is_empty() {
            Vec::new()
        } else {
            let last = Tensor::new(last.as_slice(), residual.device())?;
            self.net.logits(&residual.index_select(&last, 0)?)?.to_vec2::<f32>()?
        }
        .into_iter();
        clock.lap(Phase::Backbone);
        for entry in &mut batch.running {
            let row = &mut entry.row;
            let mut rows = Vec::new();
            if row.prefilled < row.spec.prompt.len() as u32 {
                rows = prompt_rows(&row.spec, row.prefilled, entry.len as u32);
                row.prefilled += entry.len as u32;
            }
            let mut output = RowOutput::default();
            if entry.samples {
                let logits = logits.next().unwrap_or_default();
                clock.lap(Phase::Postprocess);
                let sampled = row.sample(&logits, &mut self.sampler);
                clock.lap(Phase::Sampling);
                match sampled {
                    Ok(token) => {
                        output.sampled = Some(token);
                        output.finish = row.ends_with(token);
                        row.finished = output.finish.is_some();
                        if !row.finished && row.spec.emit.is_some() {
                            rows.push(token);
                        }
                    }
                    Err(error) => {
                        row.finished = true;
                        results[entry.place] = Err(error);
                        continue;
                    }
                }
            }
            output.emit = embedded(&self.net, &rows)?;
            results[entry.place] = Ok(output);
        }
        Ok(())
    }
}

impl Row {
    fn sample(&mut self, logits: &[f32], sampler: &mut Sampler) -> Result<u32, ModelError> {
        let Answer::Sampled { history, count, last, .. } = &mut self.answer else {
            return refused("a row that follows text was asked to sample");
        };
        let number = uniform(self.spec.seed, Domain::Thinker, *count, 0);
        let token = sampler.sample(logits, &self.spec.sampling, history, &Suppress::NONE, number)?;
        history.push(token);
        *count += 1;
        *last = token;
        Ok(token)
    }

    fn ends_with(&self, token: u32) -> Option<Finish> {
        let Answer::Sampled { count, .. } = &self.answer else { return None };
        if self.spec.eos.contains(&token) {
            Some(Finish::Stop)
        } else {
            (*count >= self.spec.max_tokens).then_some(Finish::Length)
        }
    }
}

fn embedded(net: &Thinker, tokens: &[u32]) -> Result<Emit, ModelError> {
    if tokens.is_empty() { Ok(Emit::None) } else { Ok(Emit::Rows(net.embed(tokens)?.into())) }
}
