//! Qwen3-ForcedAligner-0.6B: when each word of a text sounds, heard from the sound itself. From qwen-asr 0.0.6; goldens
//! are in `tests/fixtures/qwen3_forced_aligner`.
//!
//! One pass and no sampling: the sound goes through an audio tower as Qwen3-Omni has it, the decoder stack reads its
//! embeddings and the text with two `<timestamp>` tokens behind each unit, and the head says at each of these which
//! class is its time. The same samples and text give the same times. The embedded voice has a smaller aligner, which
//! reads its codes ([`crate::aligner`]).
//!
//! 1. Sound: mono, 16 kHz, at most 300 s; log-mel and `thinker.audio_tower` as Qwen3-Omni has them, windows of 800
//!    frames.
//! 2. Text: words and Chinese characters ([`units()`]).
//! 3. Prompt, no chat template: `<|audio_start|>`, `<|audio_pad|>` for each embedding of the tower, which stands in for
//!    it, `<|audio_end|>`, then each unit and two `<timestamp>`.
//! 4. Decoder: `thinker.model`, Qwen3, plain rotation, one causal pass.
//! 5. Head: `thinker.lm_head.weight` of `[5000, 1024]`, no bias, at the timestamps alone. A time is argmax times
//!    `timestamp_segment_time` (80 ms): the first is a unit's start, the second its end.
//! 6. Times that do not rise are mended ([`repaired`]) and rounded down to milliseconds.

mod repair;
mod units;

pub use repair::repaired;
pub use units::{Unit, units};

use crate::error::refused;
use crate::hf::ForcedAlignerConfig;
use crate::towers::AudioTower;
use crate::transformer::{DecoderStack, Segment};
use crate::weights::{Files, Loader, Source, Weights};
use crate::{LoadError, ModelError, Tokenizer};
use candle_core::{DType, Device, Tensor};
use omni_media::hearing::{at_rate, audio_tokens};
use omni_media::mel::LogMel;
use omni_media::sound::Clip;
use omni_ops::Linear;
use std::path::Path;

/// Longest sound: Qwen3-ForcedAligner is made for five minutes.
pub const MAX_SECONDS: u64 = 300;

const CONFIG: &str = "config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";

/// An aligner with its weights, on the CPU.
pub struct ForcedAligner {
    config: ForcedAlignerConfig,
    tokenizer: Tokenizer,
    mel: LogMel,
    tower: AudioTower,
    /// `[vocabulary, hidden]`.
    embedding: Tensor,
    stack: DecoderStack,
    /// Hidden states to classes.
    head: Linear,
}

/// When a unit sounds, in milliseconds from the beginning of the sound; `start` is not above `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTime {
    /// When it begins.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

impl ForcedAligner {
    /// Loads a folder in the layout of Qwen3-ForcedAligner-0.6B.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and what is wrong with it: another model, sizes that do not fit, tensors that are
    /// missing, a tokenizer without the tokens of the config.
    pub fn load(dir: &Path) -> Result<ForcedAligner, LoadError> {
        let files = Files::folder(dir)?;
        let config = read_config(&files)?;
        let tokenizer = Tokenizer::load(&files)?;
        check_tokens(&files, &tokenizer, &config)?;
        let mel = LogMel::new(config.mel).map_err(|error| files.invalid(PREPROCESSOR, error.to_string()))?;
        let loader = Loader::new(
            Source::Stored(Weights::open(&files)?.into()),
            &Device::Cpu,
            &["thinker", "thinker.audio_tower"],
        );
        let (scope, text) = (loader.scope("thinker"), &config.text);
        let embedding = scope.at("model").at("embed_tokens").get("weight", &[text.vocab_size, text.hidden_size])?;
        let stack = DecoderStack::load(text, &scope.at("model"))?;
        let head = Linear::new(scope.at("lm_head").get("weight", &[config.classes, text.hidden_size])?, None)?;
        let tower = AudioTower::load(&scope.at("audio_tower"), &config.audio)?;
        loader.finish()?;
        Ok(ForcedAligner { config, tokenizer, mel, tower, embedding, stack, head })
    }

    /// Reads and checks the configs and the tokenizer of a folder, without its weights.
    ///
    /// # Errors
    /// Those of [`ForcedAligner::load`] that need no weights.
    pub fn check(dir: &Path) -> Result<ForcedAlignerConfig, LoadError> {
        let files = Files::folder(dir)?;
        let config = read_config(&files)?;
        check_tokens(&files, &Tokenizer::load(&files)?, &config)?;
        Weights::open(&files)?;
        Ok(config)
    }

    /// Sizes and ids.
    pub fn config(&self) -> &ForcedAlignerConfig {
        &self.config
    }

    /// When each of `units` (as [`Unit::read`] has them) sounds in mono samples at `rate`: as many as there are units.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for more than [`MAX_SECONDS`] of sound, less than one window of a spectrum, a rate that
    /// cannot be changed to the aligner's, or more text than its context holds.
    pub fn align(&self, units: &[String], pcm: &[f32], rate: u32) -> Result<Vec<UnitTime>, ModelError> {
        if units.is_empty() {
            return Ok(Vec::new());
        }
        if pcm.len() as u64 > MAX_SECONDS * u64::from(rate) {
            return refused(format!("a piece of speech is longer than the {MAX_SECONDS} s that the aligner takes"));
        }
        let clip = at_rate(Clip { pcm: pcm.to_vec(), rate }, self.mel.config().rate);
        let pcm = clip.or_else(|error| refused(error.to_string()))?;
        let classes = argmax(&self.logits(units, &self.features(&pcm)?)?)?;
        let times: Vec<f64> =
            classes.into_iter().map(|class| f64::from(class as f32 * self.config.segment_ms as f32)).collect();
        let mended = repaired(&times);
        Ok(mended.as_chunks::<2>().0.iter().map(|[start, end]| UnitTime { start: *start, end: *end }).collect())
    }

    /// What the tower hears of samples at the spectrum's rate, `[bins, frames]`.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for less than one window.
    pub fn features(&self, pcm: &[f32]) -> Result<Tensor, ModelError> {
        let spectrum = self.mel.spectrum(pcm, pcm.len()).or_else(|error| refused(error.to_string()))?;
        Ok(Tensor::from_vec(spectrum.features(), (self.mel.config().bands, spectrum.frames()), &Device::Cpu)?)
    }

    /// The embeddings of sound, `[tokens, hidden]`.
    ///
    /// # Errors
    /// Those of [`AudioTower::encode`].
    pub fn hear(&self, features: &Tensor) -> Result<Tensor, ModelError> {
        Ok(self.tower.encode(features)?.rows)
    }

    /// The prompt for sound of `frames` frames: placeholders between their marks, then each unit and two timestamps.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for text that has no tokens.
    pub fn prompt(&self, units: &[String], frames: usize) -> Result<Vec<u32>, ModelError> {
        let config = &self.config;
        let mut ids = vec![config.audio_start];
        ids.resize(1 + audio_tokens(frames, config.audio.n_window), config.audio_token);
        ids.push(config.audio_end);
        for unit in units {
            // Text of clients: nothing in it becomes a timestamp.
            ids.extend(self.tokenizer.encode_text(unit).or_else(|error| refused(error.to_string()))?);
            ids.extend([config.timestamp; 2]);
        }
        Ok(ids)
    }

    /// The logits of all timestamps, `[2 units, classes]`, for features `[bins, frames]`.
    ///
    /// # Errors
    /// Those of [`ForcedAligner::hear`] and [`ForcedAligner::prompt`]; [`ModelError::Sequence`] for a prompt that is
    /// longer than the context.
    pub fn logits(&self, units: &[String], features: &Tensor) -> Result<Tensor, ModelError> {
        let ids = self.prompt(units, features.dim(1)?)?;
        let mut cache = self.stack.new_cache()?;
        cache.check_room(ids.len()).or_else(|error| refused(error.to_string()))?;
        let sound = self.hear(features)?;
        let behind = 1 + sound.dim(0)?;
        if ids.get(behind) != Some(&self.config.audio_end) {
            return refused(format!(
                "the tower made {} embeddings of sound, and the prompt has another number",
                behind - 1
            ));
        }
        let text = |ids: &[u32]| self.embedding.index_select(&Tensor::new(ids, &Device::Cpu)?, 0);
        let x = Tensor::cat(&[text(&ids[..1])?, sound, text(&ids[behind..])?], 0)?;
        let len = ids.len();
        let residual = self.stack.forward(&x, &mut [Segment { cache: &mut cache, len }])?;
        let asked: Vec<u32> =
            (0u32..).zip(&ids).filter(|(_, id)| **id == self.config.timestamp).map(|(at, _)| at).collect();
        let asked = residual.index_select(&Tensor::new(asked, &Device::Cpu)?, 0)?;
        Ok(self.head.forward(&self.stack.norm(&asked)?)?)
    }
}

/// The first of the largest logits of each row.
fn argmax(logits: &Tensor) -> Result<Vec<u32>, ModelError> {
    let first_largest = |row: Vec<f32>| {
        let best =
            (0u32..).zip(row).fold((0, f32::NEG_INFINITY), |best, (at, x)| if x > best.1 { (at, x) } else { best });
        best.0
    };
    Ok(logits.to_dtype(DType::F32)?.to_vec2()?.into_iter().map(first_largest).collect())
}

fn read_config(files: &Files) -> Result<ForcedAlignerConfig, LoadError> {
    let read = |name: &str| {
        let missing = || files.invalid(name, "does not exist; give the folder of Qwen3-ForcedAligner-0.6B");
        files.read_json(name)?.ok_or_else(missing)
    };
    let (config, preprocessor) = (read(CONFIG)?, read(PREPROCESSOR)?);
    ForcedAlignerConfig::parse(&config, &preprocessor)
        .map_err(|(first, list)| files.invalid(if first { CONFIG } else { PREPROCESSOR }, list.join("\n  ")))
}

/// Refuses a tokenizer that is of another model.
fn check_tokens(files: &Files, tokenizer: &Tokenizer, config: &ForcedAlignerConfig) -> Result<(), LoadError> {
    let tokens = [
        ("<|audio_start|>", config.audio_start),
        ("<|audio_pad|>", config.audio_token),
        ("<|audio_end|>", config.audio_end),
        ("<timestamp>", config.timestamp),
    ];
    for (text, id) in tokens {
        if !tokenizer.added().iter().any(|token| token.content == text && token.id == id) {
            return Err(files.invalid("tokenizer.json", format!("does not give {text} the id {id} that {CONFIG} says")));
        }
    }
    let (have, room) = (tokenizer.vocabulary_size(), config.text.vocab_size);
    if have > room {
        let reason = format!("has {have} ids, but the vocabulary of {CONFIG} has {room}");
        return Err(files.invalid("tokenizer.json", reason));
    }
    Ok(())
}
