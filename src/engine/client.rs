//! One client: turns tokens into text and samples into chunks, and counts what was used.

use super::api::{AudioChunk, Event, Usage};
use omni_core::ids::{FinishReason, Frames};
use omni_model::tokenizer::{Detokenizer, Tokenizer};
use omni_telemetry::{Outcome, RequestMeter};
use omni_transfer::payload::{Kind, Part, Payload};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Client {
    events: flume::Sender<Event>,
    /// Present when the client gets text.
    text: Option<(Arc<Tokenizer>, Detokenizer)>,
    /// Whether it gets speech.
    audio: bool,
    samples_per_second: u32,
    usage: Usage,
    reason: FinishReason,
    meter: RequestMeter,
}

impl Client {
    pub fn new(
        events: flume::Sender<Event>,
        tokenizer: Option<Arc<Tokenizer>>,
        audio: bool,
        prompt_tokens: u32,
        samples_per_second: u32,
        meter: RequestMeter,
    ) -> Client {
        let text = tokenizer.map(|tokenizer| (tokenizer, Detokenizer::default()));
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Client { events, text, audio, samples_per_second, usage, reason: FinishReason::Stop, meter }
    }

    /// Whether text is all that it gets.
    pub fn is_text_only(&self) -> bool {
        !self.audio
    }

    /// Turns a payload into events; returns how many.
    pub fn take(&mut self, payload: Payload) -> usize {
        let (header, part) = (payload.header, payload.parts.into_iter().next());
        match (header.kind, part) {
            (Kind::Tokens, Some(Part::U32(tokens))) => self.tokens(&tokens, header.end),
            (Kind::Audio, Some(Part::F32(samples))) => {
                self.usage.frames.0 += header.units;
                if samples.is_empty() {
                    return 0;
                }
                let length = Duration::from_secs_f64(samples.len() as f64 / f64::from(self.samples_per_second));
                self.meter.audio(Instant::now(), length);
                self.event(Event::Audio(AudioChunk { samples: samples.into(), frames: Frames(header.units) }))
            }
            _ => 0,
        }
    }

    /// A stage has finished. The client learns of a limit that any of them hit.
    pub fn stage_ended(&mut self, reason: FinishReason) {
        if reason == FinishReason::Length {
            self.reason = reason;
        }
    }

    /// The last event, made here when all went well.
    pub fn end(self, failed: Option<Event>, outcome: Outcome) {
        if outcome == Outcome::Finished {
            let finished = Event::Finished { reason: self.reason, usage: self.usage };
            self.event(finished);
        } else if let Some(failed) = failed {
            self.event(failed);
        }
        self.meter.end(Instant::now(), outcome);
    }

    /// Sends an event. The channel has room for all that the windows let through, so sending fails only when the client
    /// has left.
    pub fn event(&self, event: Event) -> usize {
        usize::from(self.events.try_send(event).is_ok())
    }

    /// Counts tokens of a text that is spoken as given: the client gets no text back.
    pub fn followed(&mut self, tokens: u32) {
        self.usage.text_tokens += tokens;
    }

    fn tokens(&mut self, tokens: &[u32], end: Option<FinishReason>) -> usize {
        self.usage.text_tokens += tokens.len() as u32;
        if let Some(reason) = end {
            self.stage_ended(reason);
        }
        let Some((tokenizer, detokenizer)) = &mut self.text else { return 0 };
        let mut delta: String = tokens.iter().map(|token| detokenizer.push(tokenizer, *token)).collect();
        if end.is_some() {
            delta.push_str(&detokenizer.finish());
        }
        if delta.is_empty() {
            return 0;
        }
        self.meter.text(Instant::now());
        self.event(Event::Text(delta))
    }
}
