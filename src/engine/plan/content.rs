//! What a request asks for, as one number: the same text, voice and conversation give the same, whatever the seed. A
//! request that comes again is recognized by it.

use super::RequestPlan;
use bincode::enc::write::Writer;
use bincode::error::EncodeError;
use omni_core::ids::{Content, StageName};
use omni_model::stage::SequenceSpec;

impl RequestPlan {
    /// What it asks for.
    pub fn content(&self) -> Content {
        let mut hash = Fnv(0xCBF2_9CE4_8422_2325);
        for (_, sequence) in self.sequences.iter().filter(|(stage, _)| *stage != StageName::Encoder) {
            let mut spec = sequence.spec.clone();
            match &mut spec {
                // Seed and tenant do not change what a prompt asks for.
                SequenceSpec::Thinker(thinker) => (thinker.seed, thinker.reuse) = (0, None),
                SequenceSpec::Talker(talker) => (talker.seed, talker.owner) = (0, None),
                SequenceSpec::Encoder(_) | SequenceSpec::Vocoder(_) => {}
            }
            hash.take(&spec);
        }
        // The cache decides whether there is an encoder's sequence, and the hashes say more than its sizes.
        hash.take(&self.media.spans);
        if let Some(text) = &self.follow {
            hash.take(&text.tokens);
        }
        Content(hash.0)
    }
}

/// FNV-1a, which is the same in every build.
struct Fnv(u64);

impl Fnv {
    fn take(&mut self, value: &impl bincode::Encode) {
        // A hash takes any number of bytes.
        let _ = bincode::encode_into_writer(value, self, bincode::config::standard());
    }
}

impl Writer for &mut Fnv {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
        Ok(())
    }
}
