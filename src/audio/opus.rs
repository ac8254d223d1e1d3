//! Opus in Ogg (RFC 6716, RFC 7845): packets of 20 ms, one page for each piece of audio.

use super::{AudioError, Encode, sane};
use ogg::writing::{PacketWriteEndInfo, PacketWriter};
use opus_rs::{Application, OpusEncoder};
use std::fmt::Display;

/// Sample rates that Opus takes, Hz.
pub(super) const RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];
/// bit/s on average; each packet takes what it needs.
const BIT_RATE: i32 = 64_000;
/// Positions in the stream count samples of 48 kHz whatever the input.
const CLOCK: u32 = 48_000;
/// Packets per second.
const PACKETS: u32 = 50;
/// What the encoder looks ahead, seconds: 2.5 ms of its transform and 4 ms to line its two halves up (RFC 6716, 6.5
/// ms).
const LOOK_AHEAD_TENTHS_MS: u32 = 65;
/// Largest packet.
const MAX_PACKET: usize = 1275;
/// Names the one stream inside the file. Constant, so that the same speech is the same bytes.
const SERIAL: u32 = 0x6f6d_6e69;

pub(super) struct Opus {
    encoder: OpusEncoder,
    pages: PacketWriter<'static, Vec<u8>>,
    rate: u32,
    /// Less than a packet.
    waiting: Vec<f32>,
    begun: bool,
    packets: u64,
    /// Samples taken.
    samples: u64,
}

impl Opus {
    pub fn new(rate: u32) -> Result<Opus, AudioError> {
        let mut encoder = OpusEncoder::new(rate as i32, 1, Application::Audio).map_err(|error| failed(&error))?;
        encoder.bitrate_bps = BIT_RATE;
        Ok(Opus {
            encoder,
            pages: PacketWriter::new(Vec::new()),
            rate,
            waiting: Vec::new(),
            begun: false,
            packets: 0,
            samples: 0,
        })
    }

    /// Samples of a packet.
    fn packet_samples(&self) -> usize {
        (self.rate / PACKETS) as usize
    }

    fn packet(&mut self, input: &[f32]) -> Result<Vec<u8>, AudioError> {
        let mut packet = vec![0; MAX_PACKET];
        let length = self.encoder.encode(input, input.len(), &mut packet).map_err(|error| failed(&error))?;
        packet.truncate(length);
        self.packets += 1;
        Ok(packet)
    }

    /// All whole packets that are waiting.
    fn whole_packets(&mut self) -> Result<Vec<Vec<u8>>, AudioError> {
        let waiting = std::mem::take(&mut self.waiting);
        let blocks = waiting.chunks_exact(self.packet_samples());
        self.waiting = blocks.remainder().to_vec();
        blocks.map(|block| self.packet(block)).collect()
    }

    /// Puts packets on pages; the last one ends its page, and the stream if `last` is its end position.
    fn write(&mut self, packets: Vec<Vec<u8>>, last: Option<u64>) -> Result<(), AudioError> {
        let count = packets.len() as u64;
        for (packet, number) in packets.into_iter().zip(1..) {
            let position = (self.packets - count + number) * u64::from(CLOCK / PACKETS);
            let (position, end) = match last {
                Some(last) if number == count => (last, PacketWriteEndInfo::EndStream),
                _ if number == count => (position, PacketWriteEndInfo::EndPage),
                _ => (position, PacketWriteEndInfo::NormalPacket),
            };
            self.page(packet, end, position)?;
        }
        Ok(())
    }

    fn page(&mut self, packet: Vec<u8>, end: PacketWriteEndInfo, position: u64) -> Result<(), AudioError> {
        self.pages.write_packet(packet, SERIAL, end, position).map_err(|error| failed(&error))
    }

    /// The two header packets, each on a page of its own.
    fn begin(&mut self) -> Result<(), AudioError> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let mut head = b"OpusHead".to_vec();
        head.extend_from_slice(&[1, 1]); // version, channels
        head.extend_from_slice(&(pre_skip() as u16).to_le_bytes());
        head.extend_from_slice(&self.rate.to_le_bytes());
        head.extend_from_slice(&[0, 0, 0]); // gain, channel mapping
        let vendor = concat!("omni-actors ", env!("CARGO_PKG_VERSION"));
        let mut tags = b"OpusTags".to_vec();
        tags.extend_from_slice(&(vendor.len() as u32).to_le_bytes());
        tags.extend_from_slice(vendor.as_bytes());
        tags.extend_from_slice(&0u32.to_le_bytes()); // comments
        self.page(head, PacketWriteEndInfo::EndPage, 0)?;
        self.page(tags, PacketWriteEndInfo::EndPage, 0)
    }
}

/// Samples of 48 kHz that a decoder drops at the beginning.
fn pre_skip() -> u32 {
    CLOCK * LOOK_AHEAD_TENTHS_MS / 10_000
}

impl Encode for Opus {
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.begin()?;
        self.samples += samples.len() as u64;
        self.waiting.extend(samples.iter().copied().map(sane));
        let packets = self.whole_packets()?;
        self.write(packets, None)?;
        out.append(self.pages.inner_mut());
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.begin()?;
        // Silence up to where the last sample has come out of the decoder; the end position cuts it off again.
        let per_packet = self.packet_samples();
        let look_ahead = (pre_skip() * self.rate / CLOCK) as usize;
        let padded = (self.waiting.len() + look_ahead).next_multiple_of(per_packet);
        self.waiting.resize(padded, 0.0);
        let packets = self.whole_packets()?;
        let end = u64::from(pre_skip()) + self.samples * u64::from(CLOCK / self.rate);
        self.write(packets, Some(end))?;
        out.append(self.pages.inner_mut());
        Ok(())
    }

    fn front(&self) -> Option<Vec<u8>> {
        None
    }
}

fn failed(reason: &impl Display) -> AudioError {
    AudioError::Encoder { format: "opus", reason: reason.to_string() }
}
