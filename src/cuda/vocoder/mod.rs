//! The vocoder on a GPU: the net of [`omni_model::vocoder`], many streams at a time.
//!
//! One launch advances up to a batch of sequences by the same number of frames each, as one graph of some hundred
//! kernels (`kernels/vocoder*`). What a stream carries from chunk to chunk stays in a slot of an arena on the device; a
//! launch gets a small table that says which sequence is in which slot. Besides it, only codes go to the device and
//! only samples come back.
//!
//! The samples of a stream have the same bits however it is cut into chunks, whatever is decoded beside it, and
//! whichever graph runs: every sum has one order. Products run on tensor cores with f32 sums, their operands F16 or TF32
//! numbers ([`Precision`]; docs/cuda-vocoder.md has the measured loss), or in plain f32.

mod args;
mod contexts;
mod layout;
mod lease;
mod net;
mod packing;
mod plan;
mod stage;
mod tiles;
mod weights;
mod workspace;

pub use net::CudaVocoder;
pub use stage::CudaVocoderFactory;

use omni_model::hf::VocoderConfig;

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// All in f32, for comparing.
    F32,
    /// On tensor cores: operands rounded to 11 significant bits, sums in f32. 44 dB or more below the signal is lost.
    Tf32,
    /// The same bits of operands in half the memory and time. What is beyond 65,504 is clipped there, and counted.
    F16,
}

impl Precision {
    /// Bytes of an operand.
    fn bytes(self) -> usize {
        if self == Precision::F16 { size_of::<u16>() } else { size_of::<f32>() }
    }

    /// The width that so many channels of operands have in memory: whole pieces of 16 bytes.
    fn wide(self, channels: usize) -> usize {
        channels.next_multiple_of(16 / self.bytes())
    }

    /// Operands of one step of a product.
    fn depth(self) -> usize {
        tiles::LINE / self.bytes()
    }
}

/// Limits of the vocoder, which determine its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that are open at the same time.
    pub sequences: usize,
    /// References of in-context cloning that are kept decoded, beside the sequences.
    pub contexts: usize,
    /// Sequences of one launch; more become several.
    pub batch: usize,
    /// Frames of one launch, over all sequences; more become several.
    pub frames: usize,
    /// Frames of a sequence in one launch for which graphs are made, ascending; a number between two takes the larger
    /// graph.
    pub chunks: Vec<usize>,
}

impl Limits {
    /// For so many sequences and the frames of the audio chunks in use.
    pub fn new(sequences: usize, chunks: &[u32]) -> Limits {
        // More frames at once would make launches longer than a first chunk should wait, and save nothing.
        let chunks = chunks.iter().map(|frames| (*frames as usize).min(16)).collect();
        Limits { sequences, contexts: 16, batch: sequences.min(64), frames: 256, chunks }.sound()
    }

    /// The same, such that every launch has a graph and every graph fits its memory.
    fn sound(mut self) -> Limits {
        self.chunks.push(1);
        self.chunks.retain(|frames| *frames > 0);
        self.chunks.sort_unstable();
        self.chunks.dedup();
        self.batch = self.batch.max(1);
        self.frames = self.frames.max(self.chunk());
        self
    }

    /// Frames of a sequence in one launch at most.
    fn chunk(&self) -> usize {
        self.chunks.last().copied().unwrap_or(1)
    }

    /// Positions of the ring of keys and values: the window and the frames that a launch adds.
    fn ring(&self, config: &VocoderConfig) -> usize {
        config.transformer.sliding_window - 1 + self.chunk()
    }
}
