//! `[realtime]`: sessions of `/v1/realtime`.

use super::access::texts;
use super::reader::Reader;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Addresses of a server, of which an answer names each.
const MOST_ADDRESSES: usize = 8;

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
    /// Calls over WebRTC.
    pub webrtc: WebRtcConfig,
}

/// `[realtime.webrtc]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct WebRtcConfig {
    /// The UDP address of all calls; `None`: there are none.
    pub listen: Option<SocketAddr>,
    /// Addresses at which others reach it, where these are not its own.
    pub public_addresses: Vec<IpAddr>,
    /// Calls that are open at the same time.
    pub max_calls: usize,
    /// Bytes of an offer.
    pub max_sdp_bytes: usize,
    /// How long a call may take from its answer to its first event.
    pub setup_timeout: Duration,
    /// How long a call goes on without a packet of its client.
    pub lost_timeout: Duration,
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
        webrtc: webrtc(r),
    }
}

fn webrtc(r: &mut Reader) -> WebRtcConfig {
    let secs = Duration::from_secs;
    let allowed = "a UDP address and a port, such as \"0.0.0.0:8443\", or empty for none";
    let listen = r.text("realtime.webrtc.listen", "", allowed, |text| match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    });
    let allowed = "a list of IP addresses, such as [\"203.0.113.7\"], or [] for its own".to_owned();
    let public = r.value("realtime.webrtc.public_addresses", "[]", allowed, |value| {
        texts(value, |text| text.parse().ok()).filter(|all| all.len() <= MOST_ADDRESSES)
    });
    WebRtcConfig {
        listen: listen.flatten(),
        public_addresses: public.unwrap_or_default(),
        // As many as sessions.
        max_calls: r.int("realtime.webrtc.max_calls", 64, 0..=65_536),
        // Browsers offer 2 to 8 KiB.
        max_sdp_bytes: r.int("realtime.webrtc.max_sdp_bytes", 64 << 10, 1024..=1 << 20),
        // A few losses of each packet of the handshake.
        setup_timeout: r.duration("realtime.webrtc.setup_timeout", secs(15), secs(1)..=secs(300)),
        // Browsers send a check every few seconds, and give up after 30 s without an answer.
        lost_timeout: r.duration("realtime.webrtc.lost_timeout", secs(30), secs(5)..=secs(600)),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, parse};
    use std::path::Path;

    #[test]
    fn calls_are_off_unless_an_address_is_given_and_bad_values_are_told_with_what_is_allowed() {
        assert_eq!(Config::default().server.realtime.webrtc.listen, None);
        let text =
            "[realtime.webrtc]\nlisten = \"0.0.0.0:8443\"\npublic_addresses = [\"203.0.113.7\", \"2001:db8::7\"]";
        let webrtc = parse(text, Path::new("."), &[]).unwrap().server.realtime.webrtc;
        assert_eq!((webrtc.listen.unwrap().port(), webrtc.public_addresses.len()), (8443, 2));
        for (line, says) in [
            ("listen = \"8443\"", "0.0.0.0:8443"),
            ("public_addresses = [\"example.org\"]", "203.0.113.7"),
            ("setup_timeout = \"0s\"", "1s"),
        ] {
            let problems = parse(&format!("[realtime.webrtc]\n{line}"), Path::new("."), &[]).unwrap_err().to_string();
            assert!(problems.contains(says), "{line}: {problems}");
        }
    }
}
