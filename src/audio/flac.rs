//! FLAC: the same 16-bit samples as wav, losslessly compressed in blocks of 40 ms.

use super::pcm::to_i16;
use super::{AudioError, Encode};
use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, StreamInfo};
use flacenc::config;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Context, Fill, FrameBuf};
use std::fmt::Display;

/// Samples of a block. Two blocks are a codec frame of 80 ms, so all of a first chunk of one frame leaves at once.
const BLOCK: usize = 960;
/// Bytes of `fLaC`, the header of the one metadata block, and STREAMINFO.
const FRONT: usize = 4 + 4 + 34;

pub(super) struct Flac {
    rate: u32,
    config: Verified<config::Encoder>,
    info: StreamInfo,
    buffer: FrameBuf,
    /// Counts samples and hashes them for STREAMINFO.
    context: Context,
    /// Less than a block.
    waiting: Vec<i32>,
    begun: bool,
    blocks: usize,
    /// Bytes of the smallest and of the largest frame.
    sizes: Option<(usize, usize)>,
}

impl Flac {
    pub fn new(rate: u32) -> Result<Flac, AudioError> {
        let mut encoder = config::Encoder::default();
        encoder.block_size = BLOCK;
        let config = encoder.into_verified().map_err(|(_, error)| failed(&error))?;
        Ok(Flac {
            rate,
            config,
            info: StreamInfo::new(rate as usize, 1, 16).map_err(|error| failed(&error))?,
            buffer: FrameBuf::with_size(1, BLOCK).map_err(|error| failed(&error))?,
            context: Context::new(16, 1),
            waiting: Vec::with_capacity(BLOCK),
            begun: false,
            blocks: 0,
            sizes: None,
        })
    }

    /// Encodes the samples that wait: a whole block, or the shorter last one.
    fn block(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.context.fill_interleaved(&self.waiting).map_err(|error| failed(&error))?;
        self.buffer.fill_interleaved(&self.waiting).map_err(|error| failed(&error))?;
        let frame = flacenc::encode_fixed_size_frame(&self.config, &self.buffer, self.blocks, &self.info)
            .map_err(|error| failed(&error))?;
        let mut sink = ByteSink::with_capacity(frame.count_bits());
        frame.write(&mut sink).map_err(|error| failed(&error))?;
        let bytes = sink.as_slice();
        let (least, most) = self.sizes.unwrap_or((bytes.len(), bytes.len()));
        self.sizes = Some((least.min(bytes.len()), most.max(bytes.len())));
        out.extend_from_slice(bytes);
        self.blocks += 1;
        self.waiting.clear();
        Ok(())
    }

    /// The bytes before the first frame. Fields that depend on the length are 0, "unknown", until it is known.
    fn head(&self, known: bool) -> Vec<u8> {
        let mut head = Vec::with_capacity(FRONT);
        head.extend_from_slice(b"fLaC");
        head.extend_from_slice(&[0x80, 0, 0, 34]); // last metadata block, STREAMINFO, its length
        let block = (BLOCK as u16).to_be_bytes();
        head.extend_from_slice(&block);
        head.extend_from_slice(&block);
        let (least, most) = self.sizes.filter(|_| known).unwrap_or((0, 0));
        head.extend_from_slice(&(least as u32).to_be_bytes()[1..]);
        head.extend_from_slice(&(most as u32).to_be_bytes()[1..]);
        // 20 bits rate, 3 bits channels - 1, 5 bits of a sample - 1, 36 bits count
        let count = if known { self.context.total_samples() as u64 & 0xf_ffff_ffff } else { 0 };
        let packed = u64::from(self.rate) << 44 | 15 << 36 | count;
        head.extend_from_slice(&packed.to_be_bytes());
        head.extend_from_slice(&if known { self.context.md5_digest() } else { [0; 16] });
        head
    }
}

impl Encode for Flac {
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        if !self.begun {
            self.begun = true;
            out.extend_from_slice(&self.head(false));
        }
        for &sample in samples {
            self.waiting.push(i32::from(to_i16(sample)));
            if self.waiting.len() == BLOCK {
                self.block(out)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.push(&[], out)?;
        if self.waiting.is_empty() { Ok(()) } else { self.block(out) }
    }

    fn front(&self) -> Option<Vec<u8>> {
        Some(self.head(true))
    }
}

fn failed(reason: &impl Display) -> AudioError {
    AudioError::Encoder { format: "flac", reason: reason.to_string() }
}
