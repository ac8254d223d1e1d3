//! Which event may come when, and what it means. A plain state machine: no sockets, no clock, no engine.

use super::event::{ClientEvent, Voice};
use crate::api::FieldError;
use crate::error::ApiError;

/// What the connection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Rest,
    /// A whole text is spoken.
    Speaking,
    /// A text comes in pieces, so many characters up to now.
    Writing(usize),
    /// The text that came in pieces is complete, and is being spoken.
    Ending,
}

/// What an event asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Ignore,
    Describe,
    Pong(Option<String>),
    /// Speak a whole text.
    Speak {
        text: String,
        voice: Voice,
    },
    /// A text in pieces begins.
    Begin(Voice),
    /// Speak this, too; it is not empty.
    Feed(String),
    /// The text in pieces is complete.
    End,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    state: State,
    /// Most characters of one text.
    limit: usize,
}

impl Session {
    /// A session that takes texts of at most `limit` characters.
    pub fn new(limit: usize) -> Session {
        Session { state: State::Rest, limit }
    }

    /// Nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        self.state == State::Rest
    }

    /// More text may come.
    pub fn is_writing(&self) -> bool {
        matches!(self.state, State::Writing(_))
    }

    /// Whether an event has to wait until what is spoken has ended.
    pub fn defers(&self, event: &ClientEvent) -> bool {
        let asks = !matches!(event, ClientEvent::Describe | ClientEvent::Ping { .. } | ClientEvent::Other);
        asks && matches!(self.state, State::Speaking | State::Ending)
    }

    /// What an event asks for. Not to be called with one that it defers.
    ///
    /// # Errors
    /// An event that must not come now, a text over the limit, no text.
    pub fn on(&mut self, event: ClientEvent) -> Result<Action, ApiError> {
        match (event, self.state) {
            (ClientEvent::Describe, _) => Ok(Action::Describe),
            (ClientEvent::Ping { text }, _) => Ok(Action::Pong(text)),
            // Clients send the whole text in a stream, too, for servers that know no streams.
            (ClientEvent::Other, _) | (ClientEvent::Synthesize { .. }, State::Writing(_)) => Ok(Action::Ignore),
            (ClientEvent::Synthesize { text, voice }, _) => {
                if text.trim().is_empty() {
                    return Err(FieldError::invalid("text", "there is nothing to speak in an empty text").into());
                }
                self.check(text.chars().count())?;
                self.state = State::Speaking;
                Ok(Action::Speak { text, voice })
            }
            (ClientEvent::Start { .. }, State::Writing(_)) => {
                Err(out_of_order("synthesize-start came inside of a stream; end that with synthesize-stop"))
            }
            (ClientEvent::Start { voice }, _) => {
                self.state = State::Writing(0);
                Ok(Action::Begin(voice))
            }
            (ClientEvent::Chunk { text }, State::Writing(before)) => {
                let chars = before.saturating_add(text.chars().count());
                self.check(chars)?;
                self.state = State::Writing(chars);
                Ok(if text.is_empty() { Action::Ignore } else { Action::Feed(text) })
            }
            (ClientEvent::Stop, State::Writing(_)) => {
                self.state = State::Ending;
                Ok(Action::End)
            }
            (ClientEvent::Chunk { .. }, _) => {
                Err(out_of_order("synthesize-chunk came without a synthesize-start before it"))
            }
            (ClientEvent::Stop, _) => Err(out_of_order("synthesize-stop came without a synthesize-start before it")),
        }
    }

    /// All has been spoken. True if a text in pieces was.
    pub fn over(&mut self) -> bool {
        std::mem::replace(&mut self.state, State::Rest) == State::Ending
    }

    fn check(&self, chars: usize) -> Result<(), FieldError> {
        FieldError::at_most("text", (chars, "characters"), self.limit, Some("limits.max_input_chars"))
    }
}

fn out_of_order(message: &str) -> ApiError {
    ApiError::invalid("type", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> ClientEvent {
        ClientEvent::Synthesize { text: text.to_owned(), voice: Voice::default() }
    }

    fn chunk(text: &str) -> ClientEvent {
        ClientEvent::Chunk { text: text.to_owned() }
    }

    const START: ClientEvent = ClientEvent::Start { voice: Voice { name: None, language: None, speaker: None } };

    #[test]
    fn the_whole_text_inside_of_a_stream_is_ignored_and_between_streams_it_is_spoken() {
        let mut session = Session::new(100);
        assert_eq!(session.on(START), Ok(Action::Begin(Voice::default())));
        assert_eq!(session.on(chunk("Hello.")), Ok(Action::Feed("Hello.".to_owned())));
        assert_eq!(session.on(chunk("")), Ok(Action::Ignore));
        assert!(!session.defers(&whole("Hello.")) && session.is_writing());
        assert_eq!(session.on(whole("Hello.")), Ok(Action::Ignore));
        assert_eq!(session.on(ClientEvent::Stop), Ok(Action::End));
        assert!(session.defers(&whole("Next.")) && session.defers(&START));
        assert!(!session.defers(&ClientEvent::Describe));
        assert!(session.over() && session.is_at_rest());
        assert!(matches!(session.on(whole("Next.")), Ok(Action::Speak { .. })));
        assert!(session.defers(&chunk("x")));
        assert!(!session.over(), "no stream");
    }

    #[test]
    fn events_out_of_order_are_told_apart() {
        for (before, event, says) in [
            (vec![], chunk("a"), "synthesize-chunk came without"),
            (vec![], ClientEvent::Stop, "synthesize-stop came without"),
            (vec![START], START, "inside of a stream"),
            (vec![], whole(" \n"), "nothing to speak"),
            (vec![], whole("123456789"), "9 characters are more than the limit of 8 (limits.max_input_chars)"),
            (vec![START, chunk("12345")], chunk("6789"), "9 characters are more than the limit of 8"),
        ] {
            let mut session = Session::new(8);
            for event in before {
                session.on(event).unwrap();
            }
            let error = session.on(event).unwrap_err();
            assert!(error.message.contains(says), "{}", error.message);
        }
    }

    #[test]
    fn pings_and_questions_are_answered_at_any_time() {
        let mut session = Session::new(8);
        for event in [START, chunk("a"), ClientEvent::Stop] {
            session.on(event).unwrap();
            let pong = session.on(ClientEvent::Ping { text: Some("p".to_owned()) });
            assert_eq!(pong, Ok(Action::Pong(Some("p".to_owned()))));
            assert_eq!(session.on(ClientEvent::Describe), Ok(Action::Describe));
            assert_eq!(session.on(ClientEvent::Other), Ok(Action::Ignore));
        }
    }
}
