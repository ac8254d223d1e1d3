//! A checkpoint in the layout of Hugging Face: config, weights and generation defaults.
//!
//! Opening reads and checks the configs and the headers of the weights. A net reads its tensors through a [`Loader`],
//! which makes them from a seed when the checkpoint was opened without weights ([`crate::weights::random`]). The
//! tokenizer and the prompters stand above this module ([`crate::prompters`]): it must not import them.

mod fingerprint;
mod origin;

pub use origin::Origin;

use crate::LoadError;
use crate::hf::{Family, GenerationDefaults, OmniConfig, TtsConfig};
use crate::weights::{EmbeddedFiles, Files, Loader, Source, Weights};
use candle_core::Device;
use omni_config::WeightsKind;
use omni_core::ids::StageName;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

pub(crate) const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
/// Where the codec of a Qwen3-TTS checkpoint is.
const CODEC: &str = "speech_tokenizer";

/// An opened checkpoint. Clones share everything.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    origin: Arc<Origin>,
    files: Files,
    tokenizer_files: Files,
    family: Family,
    generation: Arc<GenerationDefaults>,
    weights: Source,
    /// The codec's tensors, where they have a file of their own.
    codec: Option<Source>,
}

/// What a model takes in besides text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Senses {
    /// Sound.
    pub hears: bool,
    /// Pictures and films.
    pub sees: bool,
}

impl Senses {
    /// Whether it takes in anything besides text.
    pub fn any(self) -> bool {
        self.hears || self.sees
    }
}

impl Checkpoint {
    /// Opens a folder.
    ///
    /// # Errors
    /// [`LoadError`] naming the file, what is wrong with it and what to do.
    pub fn open(dir: &Path) -> Result<Checkpoint, LoadError> {
        Checkpoint::open_with(dir, &Map::new())
    }

    /// Opens a folder with some fields of its `config.json` changed: `{"a": {"b": 1}}` and `{"a.b": 1}` both set field
    /// `b` of object `a`.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`]; [`LoadError::Invalid`] for an override that leads through something that is not
    /// an object.
    pub fn open_with(dir: &Path, overrides: &Map<String, Value>) -> Result<Checkpoint, LoadError> {
        Checkpoint::from_files(Files::folder(dir)?, overrides, WeightsKind::Stored)
    }

    /// Opens a folder as the server's config says: its weights may be made from a seed, in the shapes of the folder's
    /// configs, and its tokenizer may come from another folder.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open_as(dir: &Path, weights: WeightsKind, tokenizer: Option<&Path>) -> Result<Checkpoint, LoadError> {
        Checkpoint::from_files(Files::folder(dir)?, &Map::new(), weights)?.with_tokenizer(tokenizer)
    }

    fn with_tokenizer(mut self, folder: Option<&Path>) -> Result<Checkpoint, LoadError> {
        if let Some(folder) = folder {
            self.tokenizer_files = Files::folder(folder)?;
            self.origin = Arc::new(self.origin.with_tokenizer(folder));
        }
        Ok(self)
    }

    /// Opens a checkpoint that is part of the binary.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn embedded(files: EmbeddedFiles) -> Result<Checkpoint, LoadError> {
        Checkpoint::from_files(Files::Embedded(files), &Map::new(), WeightsKind::Stored)
    }

    fn from_files(files: Files, overrides: &Map<String, Value>, kind: WeightsKind) -> Result<Checkpoint, LoadError> {
        let Some(mut config) = files.read_json(CONFIG)? else {
            return Err(files.invalid(CONFIG, "does not exist; give the folder of a Hugging Face checkpoint"));
        };
        for (key, value) in overrides {
            change(&mut config, key, value).map_err(|reason| files.invalid(CONFIG, reason))?;
        }
        let codec_files = files.nested(CODEC);
        let codec_config = || match codec_files.read_json(CONFIG) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(vec![format!(
                "{} does not exist: a Qwen3-TTS checkpoint holds its codec in the folder {CODEC}; was the download interrupted?",
                codec_files.label(CONFIG)
            )]),
            Err(error) => Err(vec![error.to_string()]),
        };
        let family = Family::parse(&config, codec_config).map_err(|list| files.invalid(CONFIG, list.join("\n  ")))?;
        let generation = files.read_json(GENERATION)?;
        let generation = match &family {
            Family::Omni(config) => GenerationDefaults::parse(generation.as_ref(), config.tokens.im_end),
            Family::Tts(_) => GenerationDefaults::parse_tts(generation.as_ref()),
        };
        let generation = generation.map_err(|list| files.invalid(GENERATION, list.join("\n  ")))?;
        let vocabulary = family.text_vocab_size();
        if let Some(id) = generation.thinker_eos.iter().find(|id| **id as usize >= vocabulary) {
            let reason = format!("end token {id} is outside the thinker's vocabulary of {vocabulary}");
            return Err(files.invalid(GENERATION, reason));
        }
        let source = |files: &Files, known: &[&str]| match kind {
            WeightsKind::Random { seed } => Ok(Source::Random { seed }),
            WeightsKind::Stored => {
                let weights = Weights::open(files)?;
                refuse_unknown_tensors(&weights, known).map(|()| Source::Stored(weights.into()))
            }
        };
        let weights = source(&files, family.weights())?;
        let codec = match &family {
            Family::Omni(_) => None,
            Family::Tts(_) => Some(source(&codec_files, &["encoder", "decoder"])?),
        };
        let origin = Arc::new(Origin::new(&files, overrides, kind));
        let tokenizer_files = files.clone();
        Ok(Checkpoint { origin, tokenizer_files, files, family, generation: generation.into(), weights, codec })
    }

    /// How it was opened, for [`Checkpoint::reopen`].
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The parsed configs.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// Stages of the pipeline, upstream first: with an encoder where the config describes a tower and the weights have
    /// it.
    pub fn stages(&self) -> &'static [StageName] {
        if self.senses().any() { &StageName::ALL } else { self.family.stages() }
    }

    /// What it can take in besides text: the towers that the config describes and the weights have.
    pub fn senses(&self) -> Senses {
        let Family::Omni(config) = &self.family else { return Senses::default() };
        let loader = self.loader(&[], &Device::Cpu);
        Senses {
            hears: config.thinker.audio.is_some() && loader.scope("thinker.audio_tower.conv_out").offers("weight"),
            sees: config.thinker.vision.is_some() && loader.scope("thinker.visual.patch_embed.proj").offers("weight"),
        }
    }

    /// The config of a Qwen3-Omni checkpoint.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] when the checkpoint is of the other family.
    pub fn omni(&self) -> Result<&Arc<OmniConfig>, LoadError> {
        match &self.family {
            Family::Omni(config) => Ok(config),
            Family::Tts(_) => Err(self.files.invalid(CONFIG, "is a Qwen3-TTS model: expected a Qwen3-Omni model")),
        }
    }

    /// The config of a Qwen3-TTS checkpoint.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] when the checkpoint is of the other family.
    pub fn tts(&self) -> Result<&Arc<TtsConfig>, LoadError> {
        match &self.family {
            Family::Tts(config) => Ok(config),
            Family::Omni(_) => Err(self.files.invalid(CONFIG, "is a Qwen3-Omni model: expected a Qwen3-TTS model")),
        }
    }

    /// The defaults of `generation_config.json`, completed with the family's own.
    pub fn generation(&self) -> &Arc<GenerationDefaults> {
        &self.generation
    }

    /// The files, for readers that open them on demand.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The files that hold the tokenizer: those of another folder if the checkpoint was opened with one.
    pub(crate) fn tokenizer_files(&self) -> &Files {
        &self.tokenizer_files
    }

    /// Tensors for nets on `device`. The net must use all of each family in `owned` (`thinker`, `talker`, `code2wav`;
    /// `talker`, `speaker_encoder`); it may use others too.
    pub fn loader(&self, owned: &[&str], device: &Device) -> Loader {
        Loader::new(self.weights.clone(), device, owned)
    }

    /// Tensors of the codec of a Qwen3-TTS checkpoint, `encoder` and `decoder`, which have a file of their own.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] when this is a Qwen3-Omni model.
    pub fn codec_loader(&self, owned: &[&str], device: &Device) -> Result<Loader, LoadError> {
        self.tts()?;
        match &self.codec {
            Some(weights) => Ok(Loader::new(weights.clone(), device, owned)),
            None => Err(self.files.invalid(CODEC, "was not opened")),
        }
    }
}

/// Refuses weights with tensors outside the known families: they belong to another model.
fn refuse_unknown_tensors(weights: &Weights, known: &[&str]) -> Result<(), LoadError> {
    let unknown = weights.families().into_iter().filter(|family| !known.contains(family));
    let lines: Vec<_> = unknown.map(|family| format!("extra   {family}.*: expected {}", known.join(", "))).collect();
    if lines.is_empty() { Ok(()) } else { Err(LoadError::Tensors(lines)) }
}

/// Sets the field at a dotted path; objects are merged into objects.
fn change(target: &mut Value, path: &str, value: &Value) -> Result<(), String> {
    let (head, rest) = path.split_once('.').map_or((path, None), |(head, rest)| (head, Some(rest)));
    let Some(fields) = target.as_object_mut() else {
        return Err(format!("cannot set {path}: it is inside something that is not an object"));
    };
    match (rest, value) {
        (Some(rest), _) => match fields.get_mut(head) {
            Some(inner) => change(inner, rest, value),
            None => Err(format!("cannot set {path}: there is no {head}")),
        },
        (None, Value::Object(changes)) if fields.get(head).is_some_and(Value::is_object) => {
            let inner = &mut fields[head];
            changes.iter().try_for_each(|(key, value)| change(inner, key, value))
        }
        _ => {
            fields.insert(head.to_owned(), value.clone());
            Ok(())
        }
    }
}
