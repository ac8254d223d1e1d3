//! A step of the thinker under way: waits for it and reads what it sampled.

use super::handed::Handed;
use crate::persistent::Stalled;
use crate::spinning::GpuUse;
use crate::talker::ring::{Lease, Ring};
use crate::talker::table::{BROKEN, EXHAUSTED, STALE, STOPPED};
use omni_config::Precision;
use omni_core::ids::{FinishReason, Slot};
use omni_model::ModelError;
use omni_model::error::refused;
use omni_model::stage::{PendingStep, SequenceOutput, StepOutcome};
use omni_model::stages::media::MediaRow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// One sequence's part in a step.
pub(super) enum Part {
    /// The outcome is known without the device, except for the embeddings that it hands on.
    Known(Result<SequenceOutput, ModelError>, Range<usize>),
    /// A token, at this place. The last embedding that it hands on, if any, is the token's own,
    /// unless the token ends the sequence.
    /// `cached`: see [`SequenceOutput::cached`].
    Token { place: Place, sequences: Range<usize>, finished: Arc<AtomicBool>, of: Serial, cached: u32 },
}

/// Where the output of a step has a token: those that are sampled behind prompts come before those of single tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Among those that are sampled behind prompts.
    Behind(usize),
    /// Among the single tokens.
    Alone(usize),
}

/// Tells a sequence from all others of its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Serial {
    pub slot: Slot,
    pub number: u64,
}

/// What a stage that keeps prompts hears of a step that has run.
pub(super) struct News {
    pub of: Serial,
    /// The token; `None`: the sequence has failed.
    pub sampled: Option<u32>,
}

/// A step under way.
pub(super) struct Pending {
    pub ring: Arc<Ring>,
    pub lease: Option<Lease>,
    pub parts: Vec<Part>,
    /// Tokens that are sampled behind prompts.
    pub behind: usize,
    pub handed: Handed,
    /// Width and element type of embeddings.
    pub shape: (usize, Precision),
    /// `None` for a thinker that makes no other stage wait.
    pub using: Option<GpuUse>,
    pub stalled: Option<Arc<Stalled>>,
    /// Embeddings of media that its copies read.
    pub _media: Vec<(usize, MediaRow)>,
    /// To the stage, if it keeps prompts.
    pub news: Option<Sender<News>>,
}

impl PendingStep for Pending {
    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let Some(lease) = &self.lease else { return Ok(StepOutcome::default()) };
        lease.end.gpu().bind()?;
        lease.end.wait()?;
        if let Some(using) = &self.using {
            using.ended();
        }
        if let Some(stalled) = &self.stalled {
            stalled.check(lease.end.gpu())?;
        }
        let device_time = lease.end.since(&lease.begin).ok();
        let handed = std::mem::replace(&mut self.handed, Handed::Nothing).arrived(self.shape);
        let mut sequences = Vec::with_capacity(self.parts.len());
        for part in std::mem::take(&mut self.parts) {
            sequences.push(match part {
                Part::Known(Ok(output), range) => Ok(SequenceOutput { emit: handed.sequences(range), ..output }),
                Part::Known(error, _) => error,
                Part::Token { place, sequences, finished, of, cached } => {
                    let at = match place {
                        Place::Behind(at) => at,
                        Place::Alone(at) => self.behind + at,
                    };
                    let output = read(&lease.out.get(2 * at..2 * at + 2), &finished);
                    self.tell(of, &output);
                    output.map(|output| {
                        let own = usize::from(output.sampled.is_some() && output.finish.is_none());
                        // A sequence without a token in this step still hands on embeddings of its prompt.
                        let range = sequences.start..sequences.end.saturating_sub(1 - own).max(sequences.start);
                        let emit = if output.stale { None } else { handed.sequences(range) };
                        let cached = if output.stale { 0 } else { cached };
                        SequenceOutput { emit, cached, ..output }
                    })
                }
            });
        }
        Ok(StepOutcome { sequences, times: device_time.into() })
    }
}

impl Pending {
    /// Tells the stage what a sequence has sampled. Before the step's outcome is known to anyone else, so that the stage
    /// has heard it when the sequence is closed.
    fn tell(&self, of: Serial, output: &Result<SequenceOutput, ModelError>) {
        let sampled = output.as_ref().map(|output| output.sampled).ok();
        // A stale output is no news.
        if let (Some(news), None | Some(Some(_))) = (&self.news, sampled) {
            // A stage that has ended keeps nothing.
            let _ = news.send(News { of, sampled: sampled.flatten() });
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.ring.give_back(lease);
        }
    }
}

/// The output of one sequence: the token and its status.
fn read(words: &[u32], finished: &AtomicBool) -> Result<SequenceOutput, ModelError> {
    let [token, status] = *words else { return refused("the step has no output") };
    if status & STALE != 0 {
        return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
    }
    if status != 0 {
        finished.store(true, Ordering::Release);
    }
    if status & BROKEN != 0 {
        return refused("a logit is not a number or no token is possible, so no token can be sampled");
    }
    let finish = match status {
        status if status & STOPPED != 0 => Some(FinishReason::Stop),
        status if status & EXHAUSTED != 0 => Some(FinishReason::Length),
        _ => None,
    };
    Ok(SequenceOutput { sampled: Some(token), finish, ..SequenceOutput::default() })
}
