//! Speech of a session: a wav file that is heard again for each turn, and longer while it is spoken. Its spectrum is made
//! block by block, and a block that was made before is taken from a store, so what is left to compute is what is new.
//!
//! ```text
//! 16-bit samples -> 16 kHz (each sample of a few milliseconds) -> frames (each of 25 ms) -> blocks of a second
//! ```
//!
//! A block is known by a hash of all the samples that it is computed from, and of whose they are. Those that reach
//! behind the end of the clip are computed each time: silence stands there now, and what is said next may stand there
//! later. The numbers are those of [`samples`](crate::hearing::samples) and [`LogMel::spectrum`], bit by bit.

use crate::limits::{MediaError, MediaLimits};
use crate::medium::MediaHash;
use crate::mel::LogMel;
use crate::polyphase::Polyphase;
use crate::resample::resampled_len;
use crate::sound::{AudioError, MAX_RATE, MIN_RATE};
use crate::spectrum::{BLOCK_FRAMES, Block, Spectrum};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the head of a wav file with one format and nothing else in front of its samples.
const HEAD: usize = 44;
/// Bytes of a sample.
const WIDTH: usize = 2;

/// Where blocks are kept between requests.
pub trait Blocks {
    /// The block that is known by this.
    fn get(&self, key: &MediaHash) -> Option<Arc<Block>>;
    /// Keeps a block.
    fn keep(&self, key: MediaHash, block: &Arc<Block>);
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Speech {
    wav: Arc<[u8]>,
    rate: u32,
    /// At the rate of the spectrum.
    samples: usize,
}

impl Speech {
    /// Of a wav file of 16-bit samples, mono, as this process writes them: its head has 44 bytes.
    ///
    /// # Errors
    /// [`MediaError::Audio`] for another file, and for one that is longer than the limit; [`MediaError::TooLittle`] for
    /// one that is too short for a spectrum.
    pub fn of_wav(wav: &Arc<[u8]>, limits: &MediaLimits, mel: &LogMel) -> Result<Speech, MediaError> {
        limits.check_bytes("audio", wav)?;
        let number =
            |at: usize| wav.get(at..at + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let is_plain = wav.starts_with(b"RIFF")
            && wav.get(8..16) == Some(b"WAVEfmt ")
            // One format of 16 bytes: integers, one channel, 16 bits.
            && (number(16), number(20), wav.get(32..36)) == (Some(16), Some(0x0001_0001), Some(&[2, 0, 16, 0]))
            && wav.get(36..40) == Some(b"data")
            && number(40).is_some_and(|bytes| bytes as usize == wav.len() - HEAD)
            && (wav.len() - HEAD).is_multiple_of(WIDTH);
        let Some(rate) = number(24).filter(|_| is_plain) else {
            let reason = "it is not as this program writes it".to_owned();
            return Err(AudioError::Damaged { format: "wav", reason }.into());
        };
        if !(MIN_RATE..=MAX_RATE).contains(&rate) {
            return Err(AudioError::Rate(rate).into());
        }
        let (count, to) = ((wav.len() - HEAD) / WIDTH, mel.config().rate);
        if count as f64 > limits.max_seconds * f64::from(rate) {
            return Err(AudioError::TooLong { limit: limits.max_seconds }.into());
        }
        let samples = if rate == to { count } else { resampled_len(count, rate, to) };
        mel.check_length(samples)?;
        Ok(Speech { wav: Arc::clone(wav), rate, samples })
    }

    fn len(&self) -> usize {
        (self.wav.len() - HEAD) / WIDTH
    }

    /// Samples that it has at the rate of the spectrum.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The bytes of these samples.
    fn bytes(&self, samples: &Range<usize>) -> &[u8] {
        &self.wav[HEAD + WIDTH * samples.start..HEAD + WIDTH * samples.end]
    }

    /// These samples.
    fn pcm(&self, samples: &Range<usize>) -> Vec<f32> {
        let pairs = self.bytes(samples).as_chunks::<WIDTH>().0;
        pairs.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32_768.0).collect()
    }

    /// All of it at this rate, as [`samples`](crate::hearing::samples) has it.
    ///
    /// # Errors
    /// [`MediaError::Audio`] for a rate that no sound has.
    pub fn at_rate(&self, rate: u32) -> Result<Vec<f32>, MediaError> {
        crate::hearing::at_rate(crate::sound::Clip { pcm: self.pcm(&(0..self.len())), rate: self.rate }, rate)
    }

    /// [`LogMel::spectrum`] of it, padded with zeros to `padded` samples at the rate of the spectrum. `owner`: whose it
    /// is, so that nobody finds a block of another's.
    ///
    /// # Errors
    /// [`MediaError::TooLittle`] for less than a spectrum needs.
    pub fn spectrum(
        &self,
        mel: &LogMel,
        padded: usize,
        owner: &MediaHash,
        store: &impl Blocks,
    ) -> Result<Spectrum, MediaError> {
        let bands = mel.config().bands;
        let (samples, extent) = (self.samples, mel.extent(self.samples, padded)?);
        let filter = if self.rate == mel.config().rate { None } else { Polyphase::new(self.rate, mel.config().rate) };
        let Some(filter) = filter else {
            // No rate of a session: another filter, or none.
            return mel.spectrum(&self.at_rate(mel.config().rate)?, padded);
        };
        let mut blocks = Vec::with_capacity(extent.computed / BLOCK_FRAMES + 1);
        loop {
            let first = blocks.len() * BLOCK_FRAMES;
            let frames = first..first + BLOCK_FRAMES;
            let heard = mel.reach(&frames);
            let needed = heard.start.max(0) as u64..heard.end as u64;
            let reach = filter.reach(&needed);
            let is_inside =
                frames.end <= extent.computed && reach.end <= self.len() as i64 && needed.end <= samples as u64;
            if !is_inside {
                break;
            }
            let inputs = reach.start.max(0) as usize..reach.end as usize;
            let key = Sha256::new_with_prefix(owner)
                .chain_update(self.rate.to_le_bytes())
                .chain_update(filter.phase(needed.start).to_le_bytes())
                // In front of a clip there is silence, and a reflection of what follows.
                .chain_update((heard.start.min(0) as i64).to_le_bytes())
                .chain_update(reach.start.min(0).to_le_bytes())
                .chain_update(self.bytes(&inputs))
                .finalize()
                .into();
            let block = store.get(&key).unwrap_or_else(|| {
                let pcm = filter.outputs(&self.pcm(&inputs), inputs.start as i64, needed.clone());
                let at = |i: isize| pcm[i.unsigned_abs() - needed.start as usize];
                let block = mel.blocks(at, frames).swap_remove(0);
                store.keep(key, &block);
                block
            });
            blocks.push(block);
        }
        let rest = blocks.len() * BLOCK_FRAMES..extent.computed;
        if !rest.is_empty() {
            let needed = mel.reach(&rest).start.max(0) as u64..samples as u64;
            let inputs = filter.reach(&needed).start.max(0) as usize..self.len();
            let pcm = filter.outputs(&self.pcm(&inputs), inputs.start as i64, needed.clone());
            let at = |i: isize| {
                let behind = extent.reflected(i).checked_sub(needed.start as usize);
                behind.and_then(|at| pcm.get(at)).copied().unwrap_or(0.0)
            };
            blocks.extend(mel.blocks(at, rest));
        }
        Ok(Spectrum::new(blocks, bands, extent.frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hearing::{samples, spectra};
    use crate::mel::MelConfig;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;

    const CONFIG: MelConfig = MelConfig { rate: 16_000, window: 400, hop: 160, bands: 16 };

    #[derive(Default)]
    struct Store {
        blocks: RefCell<HashMap<MediaHash, Arc<Block>>>,
        found: Cell<usize>,
    }

    impl Blocks for Store {
        fn get(&self, key: &MediaHash) -> Option<Arc<Block>> {
            let block = self.blocks.borrow().get(key).cloned();
            self.found.set(self.found.get() + usize::from(block.is_some()));
            block
        }

        fn keep(&self, key: MediaHash, block: &Arc<Block>) {
            self.blocks.borrow_mut().insert(key, Arc::clone(block));
        }
    }

    fn noise(seed: u32, samples: usize, loud: u32) -> Vec<i16> {
        let mut state = seed;
        let sample = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) % (2 * loud + 1)) as i16 - loud as i16
        };
        (0..samples).map(sample).collect()
    }

    fn wav(samples: &[i16], rate: u32) -> Arc<[u8]> {
        let data = 2 * samples.len() as u32;
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file[4..8].copy_from_slice(&(36 + data).to_le_bytes());
        file.extend([rate.to_le_bytes(), (2 * rate).to_le_bytes()].concat());
        file.extend(b"\x02\0\x10\0data");
        file.extend(data.to_le_bytes());
        file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        file.into()
    }

    fn heard(wav: &Arc<[u8]>, padded: usize, owner: u8, store: &Store) -> Spectrum {
        let mel = LogMel::new(CONFIG).unwrap();
        let speech = Speech::of_wav(wav, &MediaLimits::default(), &mel).unwrap();
        speech.spectrum(&mel, padded, &[owner; 32], store).unwrap()
    }

    #[test]
    fn samples_at_every_rate_are_those_of_any_file() {
        for rate in [8_000, 16_000, 22_050, 44_100, 48_000] {
            let file = wav(&noise(1, rate as usize / 3, 9_000), rate);
            let speech = Speech::of_wav(&file, &MediaLimits::default(), &LogMel::new(CONFIG).unwrap()).unwrap();
            let any = samples(&file, &MediaLimits::default(), &CONFIG).unwrap();
            assert!(speech.at_rate(CONFIG.rate).unwrap() == any, "{rate}");
            assert_eq!(speech.samples(), any.len());
        }
    }

    /// As any file is heard.
    fn whole(wav: &[u8], padded: usize) -> Spectrum {
        let mel = LogMel::new(CONFIG).unwrap();
        let pcm = samples(wav, &MediaLimits::default(), mel.config()).unwrap();
        let silence = vec![0.0; padded];
        spectra(&[&pcm, &silence], &mel).unwrap().swap_remove(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn speech_that_grows_has_the_bits_of_the_whole_each_time(
            rate in prop::sample::select(vec![8_000u32, 11_025, 16_000, 24_000]),
            steps in prop::collection::vec((0usize..40_000, 1u32..9_000), 1..6),
            padded in 0usize..60_000,
        ) {
            let (mut said, store) = (Vec::new(), Store::default());
            for (at, (more, loud)) in steps.into_iter().enumerate() {
                said.extend(noise(at as u32, more.max(200 * usize::from(said.is_empty()) * 3), loud));
                // At times with the silence of an end.
                let rested: Vec<i16> = said.iter().copied().chain(vec![0; (at % 2) * 700]).collect();
                let file = wav(&rested, rate);
                prop_assert!(heard(&file, padded, 0, &store) == whole(&file, padded), "{at}");
                prop_assert!(heard(&file, padded, 0, &Store::default()) == whole(&file, padded), "{at}");
            }
        }
    }

    #[test]
    fn what_was_heard_is_not_computed_again_and_belongs_to_one_owner() {
        let (said, store) = (noise(1, 24_000 * 5, 3_000), Store::default());
        let blocks = |samples: usize, owner: u8| {
            let before = (store.found.get(), store.blocks.borrow().len());
            heard(&wav(&said[..samples], 24_000), 0, owner, &store);
            (store.found.get() - before.0, store.blocks.borrow().len() - before.1)
        };
        // The second that reaches to the end is not kept.
        assert_eq!(blocks(24_000 * 3, 1), (0, 2));
        assert_eq!(blocks(24_000 * 3, 1), (2, 0));
        assert_eq!(blocks(24_000 * 5, 1), (2, 2));
        assert_eq!(blocks(24_000 * 5, 2), (0, 4));
    }

    #[test]
    fn a_second_in_the_middle_of_a_clip_is_another_at_its_beginning() {
        let (said, store) = (noise(1, 24_000 * 5, 3_000), Store::default());
        heard(&wav(&said, 24_000), 0, 1, &store);
        for from in [24_000, 24_000 - 402] {
            let file = wav(&said[from..], 24_000);
            assert!(heard(&file, 0, 1, &store) == whole(&file, 0));
        }
    }

    #[test]
    fn other_files_and_too_much_are_refused() {
        let limits = MediaLimits { max_seconds: 1.0, ..MediaLimits::default() };
        let mel = LogMel::new(CONFIG).unwrap();
        let refused = |file: &Arc<[u8]>| Speech::of_wav(file, &limits, &mel).unwrap_err().to_string();
        let same = |file: &Arc<[u8]>| {
            assert_eq!(refused(file), samples(file, &limits, mel.config()).unwrap_err().to_string());
        };
        same(&wav(&noise(1, 24_001, 3), 24_000));
        same(&wav(&noise(1, 900, 3), 7_000));
        same(&wav(&noise(1, 100, 3), 24_000));
        assert!(refused(&wav(&[], 24_000)).starts_with("the audio has 0 samples"));
        let mut stereo = wav(&noise(1, 900, 3), 24_000).to_vec();
        stereo[22] = 2;
        assert!(refused(&stereo.into()).contains("the wav is damaged"));
        assert!(refused(&wav(&noise(1, 900, 3), 24_000)[..90].into()).contains("the wav is damaged"));
    }
}
