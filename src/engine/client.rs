//! One client: turns tokens into text and samples into chunks, and counts what was used.

use super::api::{AudioChunk, Event, Usage};
use omni_core::ids::{FinishReason, Frames};
use omni_model::tokenizer::{Detokenizer, Tokenizer};
use omni_telemetry::{Outcome, RequestMeter};
use omni_transfer::payload::{Kind, Part, Payload};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More events than the windows let through: a bug, which must not cost a client any of them unseen.
#[derive(Debug, thiserror::Error)]
#[error("there is more output than its client has room for")]
pub(super) struct ChannelFull;

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

    /// Turns a payload into events; returns how many. All or nothing: after a panic in here the same payload can be
    /// taken again.
    ///
    /// # Errors
    /// [`ChannelFull`]
    pub fn take(&mut self, payload: &Payload) -> Result<usize, ChannelFull> {
        let header = payload.header;
        if header.kind == Kind::Tokens && header.seq.0 == 0 && header.units > 0 {
            // Of the attempt that made the first token: what an earlier one had found was of no use.
            self.usage.cached_tokens = header.cached.min(self.usage.prompt_tokens);
        }
        match (header.kind, payload.parts.first()) {
            (Kind::Tokens, Some(Part::U32(tokens))) => self.tokens(tokens, header.end),
            (Kind::Audio, Some(Part::F32(samples))) => {
                let mut sent = 0;
                if !samples.is_empty() {
                    let length = Duration::from_secs_f64(samples.len() as f64 / f64::from(self.samples_per_second));
                    self.meter.audio(Instant::now(), length);
                    let chunk = AudioChunk { samples: samples.as_slice().into(), frames: Frames(header.units) };
                    sent = self.event(Event::Audio(chunk))?;
                }
                self.usage.frames.0 = self.usage.frames.0.saturating_add(header.units);
                Ok(sent)
            }
            _ => Ok(0),
        }
    }

    /// A stage has finished. The client learns of a limit that any of them hit, and of speech that went astray.
    pub fn stage_ended(&mut self, reason: FinishReason) {
        if reason != FinishReason::Stop {
            self.reason = reason;
        }
    }

    /// The last event, made here when all went well.
    pub fn end(self, failed: Option<Event>, outcome: Outcome) {
        let finished = || Event::Finished { reason: self.reason, usage: self.usage };
        if let Some(last) = failed.or_else(|| (outcome == Outcome::Finished).then(finished)) {
            // There is always room for the last event. A client that has left needs none.
            let _ = self.events.try_send(last);
        }
        self.meter.end(Instant::now(), outcome);
    }

    /// Sends an event; returns how many the client gets, which is none when it has left. One place of the channel is
    /// left to the last event.
    ///
    /// # Errors
    /// [`ChannelFull`]
    pub fn event(&self, event: Event) -> Result<usize, ChannelFull> {
        if self.events.capacity().is_some_and(|places| self.events.len() + 1 >= places) {
            return if self.events.is_disconnected() { Ok(0) } else { Err(ChannelFull) };
        }
        match self.events.try_send(event) {
            Ok(()) => Ok(1),
            Err(flume::TrySendError::Disconnected(_)) => Ok(0),
            Err(flume::TrySendError::Full(_)) => Err(ChannelFull),
        }
    }

    /// Counts tokens of a text that is spoken as given: the client gets no text back.
    pub fn followed(&mut self, tokens: u32) {
        self.usage.text_tokens += tokens;
    }

    fn tokens(&mut self, tokens: &[u32], end: Option<FinishReason>) -> Result<usize, ChannelFull> {
        let mut sent = 0;
        if let Some((tokenizer, detokenizer)) = &self.text {
            let mut after = detokenizer.clone();
            // One event for each token, however many came together: a client may count them.
            let mut deltas: Vec<String> = tokens.iter().map(|token| after.push(tokenizer, *token)).collect();
            if end.is_some() {
                let rest = after.finish();
                match deltas.last_mut() {
                    Some(last) => last.push_str(&rest),
                    None => deltas.push(rest),
                }
            }
            deltas.retain(|delta| !delta.is_empty());
            if !deltas.is_empty() {
                self.meter.text(Instant::now());
            }
            for delta in deltas {
                sent += self.event(Event::Text(delta))?;
            }
            self.text = Some((Arc::clone(tokenizer), after));
        }
        self.usage.text_tokens = self.usage.text_tokens.saturating_add(tokens.len() as u32);
        if let Some(reason) = end {
            self.stage_ended(reason);
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RequestError;
    use omni_core::ids::{Attempt, Generation, RequestId, Seq};
    use omni_telemetry::trace::Recorder;
    use omni_telemetry::{RequestKind, RequestMetrics};
    use omni_transfer::payload::Header;

    fn listener(places: usize) -> (Client, flume::Receiver<Event>) {
        let (send, events) = flume::bounded(places);
        let metrics = RequestMetrics::new(Recorder::default());
        let meter = metrics.accepted(RequestId(1), RequestKind::Speech, Instant::now());
        (Client::new(send, None, true, 0, 24_000, meter), events)
    }

    fn sound(seq: u32) -> Payload {
        let (request, generation, attempt) = (RequestId(1), Generation(1), Attempt(0));
        let header = Header {
            request,
            generation,
            attempt,
            seq: Seq(seq),
            kind: Kind::Audio,
            units: 1,
            end: None,
            sent: 0,
            cached: 0,
        };
        Payload { header, parts: vec![Part::F32(vec![0.5; 4])], leases: Vec::new() }
    }

    #[test]
    fn a_full_channel_is_an_error_and_has_room_for_the_last_event() {
        let (mut client, events) = listener(3);
        assert_eq!(client.take(&sound(0)).unwrap(), 1);
        assert_eq!(client.take(&sound(1)).unwrap(), 1);
        assert!(client.take(&sound(2)).is_err(), "what has no room is not lost in silence");
        client.end(Some(Event::Failed(RequestError::ShuttingDown)), Outcome::Failed);
        let heard: Vec<Event> = events.drain().collect();
        assert!(matches!(heard[..], [Event::Audio(_), Event::Audio(_), Event::Failed(_)]), "{heard:?}");
    }

    #[test]
    fn a_client_that_has_left_is_no_error() {
        let (mut client, events) = listener(2);
        assert_eq!(client.take(&sound(0)).unwrap(), 1);
        drop(events);
        assert_eq!(client.take(&sound(1)).unwrap(), 0);
    }
}
