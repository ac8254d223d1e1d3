//! The ways on which a session and its client talk: a WebSocket, or a call over WebRTC. The session is the same; what
//! differs is how events and sound come and go, and how the client learns of the end.

use crate::budget::Held;
use omni_realtime::PLAYED;

/// What a link tells of its client.
pub(super) enum News {
    /// The text of an event, and its part of the budget.
    Event(String, Held),
    /// A message that is no text.
    NotText,
    /// Sound of the user's, 24,000 samples a second, and how many bytes of packets it was.
    #[cfg_attr(not(feature = "webrtc"), expect(dead_code, reason = "of calls"))]
    Heard(Vec<i16>, usize),
    /// The next 20 ms of sound are due.
    #[cfg_attr(not(feature = "webrtc"), expect(dead_code, reason = "of calls"))]
    Due,
    /// The message that waits may be sent.
    Room,
    /// The client ends the session.
    Ends,
    /// It is gone, and cannot be told anything.
    Gone,
    /// Nothing more can be read; with a message for the client, where there is one.
    Broken(Option<Message>, Farewell),
}

/// What the client is told of an error.
pub(super) struct Message {
    /// For programs.
    pub code: &'static str,
    /// What is wrong and what is allowed.
    pub text: String,
}

/// How a session ends: a code of WebSocket, and its reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct Farewell {
    pub code: u16,
    pub reason: &'static str,
}

/// See the module.
pub(super) trait Link: Send {
    /// What comes next. It may be dropped and called again. `reads`: whether another event of the client may come now.
    /// `waits`: the length of the message that waits to be sent.
    fn next(&mut self, reads: bool, waits: Option<usize>) -> impl Future<Output = News> + Send;

    /// Sends a message, after [`News::Room`].
    fn send(&mut self, message: String);

    /// Plays 20 ms, after [`News::Due`]; `None`: there are none, because nothing is spoken or, if `late`, because they are
    /// not made yet.
    fn play(&mut self, samples: Option<&[i16; PLAYED]>, late: bool);

    /// Sends what is left, and ends.
    fn end(&mut self, messages: Vec<String>, farewell: Farewell) -> impl Future<Output = ()> + Send;
}
