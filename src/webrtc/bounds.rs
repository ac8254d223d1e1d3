//! What a peer that has shown who it is may still not do: take memory or time that a call has no use for. str0m and its
//! SCTP leave each of these to their user.

use std::time::{Duration, Instant};

/// Streams of SCTP that a peer may use: one is needed, and browsers count from 0. Each that is named costs memory until
/// the call is over, and there could be 65536.
const STREAMS: u16 = 256;
/// Data channels besides that of the events, all of which are closed again: more are no mistake.
const CHANNELS: usize = 16;
/// Sound that may come at once, after the network stood still.
const BURST: Duration = Duration::from_secs(10);
/// By how much the clock of a microphone may be faster: one in so many.
const FASTER: u32 = 100;

/// Head of an SCTP packet, and of each chunk in it.
const PACKET_HEAD: usize = 12;
const CHUNK_HEAD: usize = 4;
/// The chunk that begins an association, and how often one may come: each time SCTP remembers it, and it is sent again
/// only while an answer is missing.
const INIT: u8 = 1;
const INITS: usize = 32;
/// The chunks that name a stream at once behind their head and the TSN: DATA and I-DATA.
const DATA: [u8; 2] = [0, 64];

/// Of the packets of SCTP, those that a call has a use for.
#[derive(Debug, Default)]
pub(crate) struct Association {
    inits: usize,
}

impl Association {
    /// Whether a packet may be read: it names no stream beyond the first, and does not begin the association too often.
    /// What is no such packet, SCTP finds out.
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        let Some(mut chunks) = packet.get(PACKET_HEAD..) else { return true };
        while let Some((&[kind, _, a, b], rest)) = chunks.split_first_chunk::<CHUNK_HEAD>() {
            let stream = rest.get(4..6).map_or(0, |id| u16::from_be_bytes([id[0], id[1]]));
            self.inits += usize::from(kind == INIT);
            if DATA.contains(&kind) && stream >= STREAMS || kind == INIT && self.inits > INITS {
                return false;
            }
            let length = usize::from(u16::from_be_bytes([a, b])).max(CHUNK_HEAD).next_multiple_of(4);
            let Some(next) = chunks.get(length..) else { break };
            chunks = next;
        }
        true
    }
}

/// Whether a packet is one of RTP (RFC 7983), and none of the reports between the formats of sound (RFC 5761).
pub(crate) fn is_sound(packet: &[u8]) -> bool {
    matches!(packet, [128..=191, kind, ..] if !(192..224).contains(kind))
}

/// Of the streams of sound, the one that is heard. str0m lets a packet that is not authentic yet say that another
/// stream takes a section's place, and remembers each that was authentic.
#[derive(Debug, Default)]
pub(crate) struct Source(Option<u32>);

impl Source {
    /// The stream that was heard first is the one.
    pub fn is(&mut self, stream: u32) {
        self.0.get_or_insert(stream);
    }

    /// Whether a packet is one of the stream, or none of RTP.
    pub fn admits(&self, packet: &[u8]) -> bool {
        match (is_sound(packet), self.0, packet.get(8..12)) {
            (true, Some(known), Some(stream)) => stream == known.to_be_bytes(),
            _ => true,
        }
    }
}

/// Keeps the sound of a peer from coming faster than it sounds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// What may come, and since when that has been so.
    open: Duration,
    since: Option<Instant>,
}

impl Pace {
    /// Whether so much sound may come now.
    pub fn takes(&mut self, sound: Duration, now: Instant) -> bool {
        let passed = self.since.map_or(BURST, |since| now.saturating_duration_since(since));
        self.since = Some(self.since.map_or(now, |since| since.max(now)));
        self.open = (self.open + passed + passed / FASTER).min(BURST);
        let taken = self.open.checked_sub(sound);
        self.open = taken.unwrap_or(self.open);
        taken.is_some()
    }
}

/// Data channels that have no meaning.
#[derive(Debug, Default)]
pub(crate) struct Channels(usize);

impl Channels {
    /// One more was opened; false if that is too many.
    pub fn closes_another(&mut self) -> bool {
        self.0 += 1;
        self.0 <= CHANNELS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(kind: u8, stream: u16) -> Vec<u8> {
        let mut chunk = vec![kind, 3, 0, 17, 0, 0, 0, 1];
        chunk.extend(stream.to_be_bytes());
        chunk.resize(20, 0);
        chunk
    }

    #[test]
    fn a_packet_may_name_the_first_streams_and_no_others() {
        let head = vec![0; PACKET_HEAD];
        let sack = vec![3, 0, 0, 16, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let packet = |chunks: &[Vec<u8>]| [vec![head.clone()], chunks.to_vec()].concat().concat();
        let mut association = Association::default();
        assert!(association.admits(&packet(&[sack.clone(), data(0, 0), data(64, 255)])));
        assert!(!association.admits(&packet(&[sack.clone(), data(0, 1), data(0, 256)])));
        assert!(!association.admits(&packet(&[data(64, 65_535)])));
        // A chunk of length 0 ends nothing.
        assert!(!association.admits(&packet(&[vec![9, 0, 0, 0], data(0, 400)])));
        let init = packet(&[vec![INIT, 0, 0, 4]]);
        assert_eq!((0..100).filter(|_| association.admits(&init)).count(), INITS);
    }

    #[test]
    fn only_the_first_stream_of_sound_is_heard_and_reports_pass() {
        let packet = |kind: u8, stream: u32| [vec![0x80, kind, 0, 1, 0, 0, 0, 2], stream.to_be_bytes().into()].concat();
        let mut source = Source::default();
        assert!(source.admits(&packet(111, 7)) && source.admits(&packet(111, 8)));
        source.is(7);
        source.is(8);
        assert!(source.admits(&packet(111, 7)) && source.admits(&packet(200, 8)) && source.admits(&[22, 1]));
        assert!(!source.admits(&packet(111, 8)) && !source.admits(&packet(0x80 | 111, 0)));
    }

    #[test]
    fn sound_comes_as_fast_as_it_sounds_after_a_burst() {
        #[expect(clippy::disallowed_methods, reason = "a moment to count from")]
        let begun = Instant::now();
        let (mut pace, packet) = (Pace::default(), Duration::from_millis(20));
        let burst = (0..2000).take_while(|_| pace.takes(packet, begun)).count();
        assert_eq!(burst, 500);
        // From then on the pace of a clock that is a little too fast, for a day.
        let mut at = begun;
        for _ in 0..100_000 {
            at += packet * 995 / 1000;
            assert!(pace.takes(packet, at));
        }
        assert!((0..1000).filter(|_| pace.takes(packet, at)).count() < 600);
        // A network that stood still gives back what it held.
        at += Duration::from_secs(60);
        assert_eq!((0..2000).take_while(|_| pace.takes(packet, at)).count(), 500);
    }

    proptest! {
        #[test]
        fn nothing_does_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Association::default().admits(&bytes);
            let _ = Source(Some(5)).admits(&bytes);
        }
    }
}
