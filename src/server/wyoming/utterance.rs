//! One text that is spoken to a client of the Wyoming protocol. Dropping it aborts it.

use super::event;
use crate::budget::Held;
use crate::error::ApiError;
use crate::feed::Feed;
use crate::visit::Visit;
use omni_audio::AudioWriter;
use omni_engine::{Event, ResponseStream};

/// What a piece of text takes besides its bytes: its place in the queue and its allocation.
const PIECE: usize = 48;

/// Where the text is.
pub(super) enum Text {
    /// More may come. The last piece is still here until the engine has taken it.
    Open(Feed, Option<String>),
    /// The engine takes no more; it says why.
    Refused,
    /// Complete.
    Ended,
}

/// See the module.
pub(super) struct Utterance {
    pub text: Text,
    pub stream: ResponseStream,
    pub visit: Visit,
    /// The parts of the budget for its text.
    pub held: Held,
    /// Makes 16-bit samples.
    pub writer: AudioWriter,
    /// Samples per second.
    pub rate: u32,
    /// Whether the beginning of the speech has been sent.
    pub begun: bool,
}

/// What becomes of an event of the engine.
pub(super) enum Passed {
    /// There is nothing to send.
    Nothing,
    /// Send this.
    Bytes(Vec<u8>),
    /// Send this; it was the last.
    Last(Vec<u8>),
}

impl Utterance {
    /// Whether a piece of the text waits for the engine.
    pub fn waits(&self) -> bool {
        matches!(self.text, Text::Open(_, Some(_)))
    }

    /// Takes one more piece; none may wait.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn push(&mut self, text: String) -> Result<(), ApiError> {
        if let Text::Open(_, waiting) = &mut self.text {
            if !self.held.take(PIECE + text.len()) {
                return Err(self.held.exhausted());
            }
            *waiting = Some(text);
        }
        Ok(())
    }

    /// The engine has taken the piece that waited, or takes no more.
    pub fn fed(&mut self, taken: bool) {
        match &mut self.text {
            Text::Open(_, waiting) if taken => *waiting = None,
            text => *text = Text::Refused,
        }
    }

    /// The bytes that a client gets for an event of the engine.
    ///
    /// # Errors
    /// The speech failed.
    pub fn pass_on(&mut self, event: Option<Event>) -> Result<Passed, ApiError> {
        match event {
            Some(Event::Started { id, .. }) => {
                self.visit.leads_to(id);
                Ok(Passed::Nothing)
            }
            Some(Event::Audio(chunk)) => {
                let before = self.writer.samples();
                let pcm = self.writer.push(&chunk.samples)?;
                Ok(Passed::Bytes(self.sound(before, &pcm)))
            }
            Some(Event::Text(_) | Event::Word(_)) => Ok(Passed::Nothing),
            Some(Event::Finished { .. }) => {
                let before = self.writer.samples();
                let rest = self.writer.finish()?;
                let mut bytes = self.sound(before, &rest);
                bytes.extend_from_slice(&event::audio_stop(self.rate, self.writer.samples()));
                Ok(Passed::Last(bytes))
            }
            Some(Event::Failed(error)) => Err(error.into()),
            None => Err(ApiError::internal("the answer ended before it was complete")),
        }
    }

    /// Samples as events; the first ones begin the speech.
    fn sound(&mut self, before: u64, pcm: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            bytes = event::audio_start(self.rate);
        }
        if !pcm.is_empty() {
            bytes.extend_from_slice(&event::audio_chunk(self.rate, before, pcm));
        }
        bytes
    }
}

/// Gives the engine the piece of text that waits: true if it took it, false if it takes none. Pending while none waits.
pub(super) async fn feed(text: Option<&mut Text>) -> bool {
    match text {
        Some(Text::Open(feed, Some(piece))) => feed.give(piece).await,
        _ => std::future::pending().await,
    }
}
