//! Opus in packets, both ways: 24 kHz, mono, 20 ms at a time. Times on the wire count samples of 48 kHz.

use opus_rs::{Application, OpusDecoder, OpusEncoder};

/// Samples a second of what goes in and comes out.
pub const RATE: u32 = 24_000;
/// Samples of a packet that is sent, 20 ms.
pub const FRAME: usize = 480;
/// Ticks a second of the times of packets, whatever the rate.
pub(crate) const CLOCK: u32 = 48_000;
/// Ticks of a sample.
const TICKS: u64 = (CLOCK / RATE) as u64;
/// bit/s of what is sent, on average.
pub const BIT_RATE: i32 = 64_000;
/// Largest packet.
const MAX_PACKET: usize = 1275;
/// Samples of the longest packet that a peer may send, 120 ms.
const LONGEST: usize = 6 * FRAME;
/// Samples that are made up in the place of lost packets; what is missing beyond them is silent.
const CONCEALED: u64 = 5 * FRAME as u64;
/// Samples that one gap is filled with at most.
const FILLED: u64 = 50 * FRAME as u64;

/// Writes packets.
pub(crate) struct Mouth {
    encoder: OpusEncoder,
    /// When the next packet begins, in ticks.
    pub time: u64,
}

impl Mouth {
    pub fn new() -> Result<Mouth, &'static str> {
        let mut encoder = OpusEncoder::new(RATE as i32, 1, Application::Audio)?;
        encoder.bitrate_bps = BIT_RATE;
        Ok(Mouth { encoder, time: 0 })
    }

    /// A packet of so many samples as a packet has.
    pub fn packet(&mut self, samples: &[i16; FRAME]) -> Result<Vec<u8>, &'static str> {
        let samples = samples.map(|sample| f32::from(sample) / 32768.0);
        let mut packet = vec![0; MAX_PACKET];
        let length = self.encoder.encode(&samples, FRAME, &mut packet)?;
        packet.truncate(length);
        Ok(packet)
    }

    /// The time of a packet passes, whether one is sent or not.
    pub fn pass(&mut self) {
        self.time += FRAME as u64 * TICKS;
    }
}

/// Reads packets in their order, and fills what is missing between them.
pub(crate) struct Ear {
    decoder: Box<OpusDecoder>,
    /// When the next packet is to begin, in ticks; `None` before the first.
    next: Option<u64>,
}

impl Ear {
    pub fn new() -> Result<Ear, &'static str> {
        Ok(Ear { decoder: Box::new(OpusDecoder::new(RATE as i32, 1)?), next: None })
    }

    /// The samples of a packet that begins at this tick, behind those of the packets lost before it. One that is none of
    /// Opus counts as lost.
    pub fn hear(&mut self, begins: u64, packet: &[u8]) -> Vec<i16> {
        let mut samples = Vec::new();
        let missing = self.next.map_or(0, |next| begins.saturating_sub(next) / TICKS);
        // A clock that jumps has not lost so much.
        if missing <= FILLED {
            let made_up = (missing.min(CONCEALED) as usize) / FRAME;
            for _ in 0..made_up {
                self.decode(&[], FRAME, &mut samples);
            }
            samples.resize(missing as usize, 0);
        }
        let before = samples.len();
        if !self.decode(packet, LONGEST, &mut samples) {
            self.decode(&[], FRAME, &mut samples);
        }
        self.next = Some(begins + (samples.len() - before) as u64 * TICKS);
        samples
    }

    /// A packet's worth of silence, of a peer that sends nothing.
    pub fn silence(&mut self) -> Vec<i16> {
        if let Some(next) = &mut self.next {
            *next += FRAME as u64 * TICKS;
        }
        vec![0; FRAME]
    }

    fn decode(&mut self, packet: &[u8], room: usize, samples: &mut Vec<i16>) -> bool {
        let mut decoded = [0.0; LONGEST];
        let Ok(count) = self.decoder.decode(packet, room, &mut decoded[..room]) else { return false };
        let whole = |sample: &f32| (sample * 32768.0).round().clamp(-32768.0, 32767.0) as i16;
        samples.extend(decoded[..count.min(room)].iter().map(whole));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACKET: u64 = FRAME as u64 * TICKS;

    fn tone(number: usize) -> [i16; FRAME] {
        std::array::from_fn(|at| {
            let time = (number * FRAME + at) as f32 / RATE as f32;
            (8000.0 * (time * 440.0 * std::f32::consts::TAU).sin()) as i16
        })
    }

    fn packets(count: usize) -> Vec<Vec<u8>> {
        let mut mouth = Mouth::new().unwrap();
        (0..count).map(|number| mouth.packet(&tone(number)).unwrap()).collect()
    }

    fn loudness(samples: &[i16]) -> f64 {
        (samples.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / samples.len() as f64).sqrt()
    }

    #[test]
    fn a_tone_goes_through_as_long_and_as_loud_as_it_was() {
        let mut ear = Ear::new().unwrap();
        let heard: Vec<i16> =
            packets(50).iter().zip(0..).flat_map(|(packet, at)| ear.hear(7000 + at * PACKET, packet)).collect();
        assert_eq!(heard.len(), 50 * FRAME);
        let (was, is) = (loudness(tone(0).as_slice()), loudness(&heard[5 * FRAME..]));
        assert!((is / was - 1.0).abs() < 0.05, "{was} {is}");
    }

    #[test]
    fn lost_packets_leave_no_hole_in_time() {
        let mut ear = Ear::new().unwrap();
        let packets = packets(40);
        let mut heard = Vec::new();
        for at in (0..40).filter(|at| !(10..12).contains(at) && !(20..30).contains(at)) {
            heard.extend(ear.hear(at as u64 * PACKET, &packets[at]));
        }
        assert_eq!(heard.len(), 40 * FRAME);
        assert!(loudness(&heard[10 * FRAME..11 * FRAME]) > 1000.0, "made up");
        assert_eq!(loudness(&heard[26 * FRAME..30 * FRAME]), 0.0, "silent");
    }

    #[test]
    fn silence_that_was_filled_is_not_filled_again_and_a_clock_may_jump() {
        let mut ear = Ear::new().unwrap();
        let packets = packets(4);
        assert_eq!(ear.hear(0, &packets[0]).len(), FRAME);
        for _ in 0..9 {
            assert_eq!(ear.silence(), [0; FRAME]);
        }
        assert_eq!(ear.hear(10 * PACKET, &packets[1]).len(), FRAME);
        assert_eq!(ear.hear(1 << 40, &packets[2]).len(), FRAME);
        assert_eq!(ear.hear(5, &packets[3]).len(), FRAME);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_sound_of_a_packets_length(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..8),
        ) {
            let mut ear = Ear::new().unwrap();
            for (packet, at) in packets.iter().zip(0..) {
                let heard = ear.hear(at * PACKET, packet);
                prop_assert!(!heard.is_empty() && heard.len() <= LONGEST + FRAME * 2, "{}", heard.len());
            }
        }
    }
}
