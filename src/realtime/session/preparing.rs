//! What is computed of a turn while it is spoken: each time one more window of its sound is whole, a request for the
//! conversation with the windows so far, whose answer nothing takes; and, as soon as all has come that the model hears of
//! a turn if its user has stopped, one for the conversation with all of the turn. The engine then knows them when the turn
//! ends, and only the rest is left.
//!
//! At most one such request runs. One that is over makes room for the newest state of the turn; one of a turn that has
//! ended, or was dropped, is cancelled. What is answered does not depend on it.

use super::{Effect, Session};
use crate::item::Item;
use crate::job::{AnswerPart, Job, JobId, PromptPart, PromptTurn};
use crate::sound::{REST_MS, WireFormat};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Preparing {
    /// Windows of the turn that were asked for.
    windows: u64,
    /// The end of the whole turn that was asked for.
    said: u64,
    /// The request that runs, and the bytes of its sounds.
    running: Option<(JobId, usize)>,
}

impl Preparing {
    /// Bytes that the request holds.
    pub fn bytes(&self) -> usize {
        self.running.map_or(0, |(_, bytes)| bytes)
    }

    /// Whether this is the request that runs.
    pub fn is(&self, job: JobId) -> bool {
        self.running.is_some_and(|(running, _)| running == job)
    }
}

impl Session {
    /// Asks for the turn where it may be over, and else for the windows that are whole, where there are more than before.
    /// While an answer is made that may still become a part of the prompt, it waits.
    pub(super) fn prepare(&mut self) {
        let window_ms = self.opening.limits.window_ms;
        if window_ms == 0 || self.preparing.running.is_some() || self.active.is_some() {
            return;
        }
        // The last frame of a window reaches into what follows, as far as the silence at the end of a turn is long.
        let windows = self.listening.turn_ms().saturating_sub(REST_MS) / window_ms;
        let samples = match self.listening.said() {
            Some(end) if end <= self.preparing.said => return,
            Some(end) => {
                self.preparing.said = end;
                self.listening.turn_before(end)
            }
            None if windows <= self.preparing.windows => return,
            None => self.listening.beginning(windows * window_ms + REST_MS),
        };
        self.preparing.windows = windows;
        let turn = Item::heard(String::new(), &samples, self.listening.rate());
        let turns = self.conversation.prompt_with(Some(&turn), &self.opening.limits);
        let is_heard = turns.last().is_some_and(|turn| turn.parts.iter().any(|part| part.sound() > 0));
        // Pictures would be decoded again each time.
        let sees = turns.iter().flat_map(|turn| &turn.parts).any(|part| matches!(part, PromptPart::Image { .. }));
        if !is_heard || sees {
            return;
        }
        let Ok(turns) = self.turns(&self.settings.answer.instructions, None, Some(turns)) else { return };
        let id = self.fresh_job();
        let bytes = turns.iter().flat_map(|turn: &PromptTurn| &turn.parts).map(PromptPart::sound).sum();
        self.preparing.running = Some((id, bytes));
        let job = Job {
            id,
            turns,
            tools: self.settings.answer.tools.offered(),
            prepares: true,
            speaks: false,
            voice: None,
            speed: 1.0,
            format: WireFormat::Pcm,
            max_tokens: Some(1),
            temperature: Some(0.0),
            seed: self.settings.seed,
        };
        self.effects.push(Effect::Begin(Box::new(job)));
    }

    /// The turn has ended, or what was said of it is gone.
    pub(super) fn stop_preparing(&mut self) {
        if let Preparing { running: Some((job, _)), .. } = std::mem::take(&mut self.preparing) {
            self.effects.push(Effect::Cancel(job));
        }
    }

    /// What came of the request: nothing that anybody is told.
    pub(super) fn prepared(&mut self, part: &AnswerPart) {
        if matches!(part, AnswerPart::Finished { .. } | AnswerPart::Failed { .. }) {
            self.preparing.running = None;
        }
    }
}
