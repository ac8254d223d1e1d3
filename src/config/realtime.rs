//! `[realtime]`: sessions of `/v1/realtime`.

use super::reader::Reader;
use std::time::Duration;

/// `[realtime]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct RealtimeConfig {
    /// Sessions that are open at the same time; 0 is none.
    pub max_sessions: usize,
    /// How long a session lasts at the longest.
    pub max_time: Duration,
    /// How long a client may say nothing while no answer is made.
    pub idle_timeout: Duration,
    /// Items of a conversation.
    pub max_items: usize,
    /// Bytes of a conversation, sound included.
    pub max_conversation_bytes: usize,
    /// Sound of the input audio buffer, and of a turn.
    pub max_audio: Duration,
    /// Whether a turn is encoded and prefilled while it is spoken, window by window.
    pub prepare: bool,
}

pub(super) fn realtime(r: &mut Reader) -> RealtimeConfig {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let secs = Duration::from_secs;
    RealtimeConfig {
        // A quarter of server.max_connections.
        max_sessions: r.int("realtime.max_sessions", 64, 0..=65_536),
        // OpenAI's.
        max_time: r.duration("realtime.max_time", secs(3600), secs(1)..=DAY),
        idle_timeout: r.duration("realtime.idle_timeout", secs(300), Duration::from_millis(100)..=DAY),
        // An hour of talk, a turn every seven seconds.
        max_items: r.int("realtime.max_items", 512, 2..=100_000),
        // Five minutes of the user's speech at 24 kHz, which is what media.max_seconds has a prompt take.
        max_conversation_bytes: r.int("realtime.max_conversation_bytes", 16 << 20, 64 << 10..=1 << 30),
        max_audio: r.duration("realtime.max_audio", secs(60), secs(1)..=secs(3600)),
        prepare: r.switch("realtime.prepare", true),
    }
}
