//! What holds and tells of an admitted request: its permit, and who reads its answer.

use super::{Ender, Place, Shared};
use crate::api::{Event, RequestError};
use omni_core::admission::Ticket;
use std::sync::Arc;
use std::time::Duration;

/// What admission is told of a request that it has admitted, and when.
pub(super) struct Told {
    pub ticket: Ticket,
    pub now: Duration,
    pub news: News,
}

pub(super) enum News {
    /// Its reader waits for the next event.
    Waits,
    /// Its reader has sound of this length.
    Heard(Duration),
    /// Its reader has so many characters of text.
    Read(usize),
    /// Its reader has the last event.
    Complete,
    /// It waits for text that its client is still writing.
    WaitsForText,
    /// Its client wrote so many characters.
    Wrote(usize),
    /// This ends it when its place is taken away.
    EndsBy(Ender),
    /// It gives its place back.
    Left,
}

/// The right of one request to be served, given back when dropped.
pub(crate) struct Permit {
    pub(super) shared: Arc<Shared>,
    pub(super) ticket: Ticket,
    pub(super) place: Arc<Place>,
}

/// Tells admission when the reader of a response gets its audio, which is how admission learns what the server carries.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Permit {
    /// Says what ends the request when its place is taken away.
    pub fn ends_by(&self, ender: impl FnOnce(RequestError) + Send + 'static) {
        self.shared.tell(self.ticket, News::EndsBy(Box::new(ender)));
    }

    /// For what is made for the request.
    pub fn place(&self) -> Arc<Place> {
        Arc::clone(&self.place)
    }

    /// For the reader of the answer.
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::clone(&self.shared), ticket: self.ticket }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.tell(self.ticket, News::Left);
    }
}

impl Watch {
    /// The reader waits for the next event.
    pub fn waits(&self) {
        self.shared.tell(self.ticket, News::Waits);
    }

    /// It has read one.
    pub fn heard(&self, event: &Event) {
        let news = match event {
            Event::Audio(chunk) => {
                News::Heard(Duration::from_secs_f64(chunk.samples.len() as f64 / self.shared.samples_per_second))
            }
            Event::Text(text) => News::Read(text.chars().count()),
            Event::Finished { .. } | Event::Failed(_) => News::Complete,
            Event::Started { .. } | Event::Word(_) => return,
        };
        self.shared.tell(self.ticket, news);
    }

    /// The request waits for text that its client is still writing.
    pub fn waits_for_text(&self) {
        self.shared.tell(self.ticket, News::WaitsForText);
    }

    /// Its client wrote so many characters.
    pub fn wrote(&self, chars: usize) {
        self.shared.tell(self.ticket, News::Wrote(chars));
    }
}
