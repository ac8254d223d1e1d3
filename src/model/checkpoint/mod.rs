//! A checkpoint in the layout of Hugging Face: config, weights, tokenizer, generation defaults, chat template.
//!
//! Opening reads and checks the small files and the headers of the weights; tensors are read when a net asks for them.

mod files;
mod loader;
mod weights;

pub use files::{EmbeddedFiles, Files};
pub use loader::{Loader, Scope};
pub use weights::Weights;

use crate::model::LoadError;
use crate::model::hf::{GenerationDefaults, OmniConfig};
use crate::model::prompt::Prompter;
use crate::model::template::ChatTemplate;
use crate::model::tokenizer::Tokenizer;
use candle_core::Device;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
/// What the weights of this family begin with.
const FAMILIES: [&str; 3] = ["thinker", "talker", "code2wav"];

/// An opened checkpoint. Clones share everything.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    files: Files,
    config: Arc<OmniConfig>,
    generation: Arc<GenerationDefaults>,
    weights: Arc<Weights>,
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
        Checkpoint::from_files(Files::folder(dir)?, overrides)
    }

    /// Opens a checkpoint that is part of the binary.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn embedded(files: EmbeddedFiles) -> Result<Checkpoint, LoadError> {
        Checkpoint::from_files(Files::Embedded(files), &Map::new())
    }

    fn from_files(files: Files, overrides: &Map<String, Value>) -> Result<Checkpoint, LoadError> {
        let Some(mut config) = files.read_json(CONFIG)? else {
            return Err(files.invalid(CONFIG, "does not exist; give the folder of a Hugging Face checkpoint"));
        };
        for (key, value) in overrides {
            change(&mut config, key, value).map_err(|reason| files.invalid(CONFIG, reason))?;
        }
        let config = OmniConfig::parse(&config).map_err(|list| files.invalid(CONFIG, list.join("\n  ")))?;
        let generation = GenerationDefaults::parse(files.read_json(GENERATION)?.as_ref(), config.tokens.im_end)
            .map_err(|list| files.invalid(GENERATION, list.join("\n  ")))?;
        let vocabulary = config.thinker.text.vocab_size;
        if let Some(id) = generation.thinker_eos.iter().find(|id| **id as usize >= vocabulary) {
            let reason = format!("end token {id} is outside the thinker's vocabulary of {vocabulary}");
            return Err(files.invalid(GENERATION, reason));
        }
        let weights = Weights::open(&files)?;
        let strangers: Vec<_> = weights.families().into_iter().filter(|f| !FAMILIES.contains(f)).collect();
        if !strangers.is_empty() {
            let list = strangers.iter().map(|f| format!("extra   {f}.*: expected {}", FAMILIES.join(", ")));
            return Err(LoadError::Tensors(list.collect()));
        }
        Ok(Checkpoint { files, config: config.into(), generation: generation.into(), weights: weights.into() })
    }

    /// What `config.json` says.
    pub fn config(&self) -> &Arc<OmniConfig> {
        &self.config
    }

    /// What `generation_config.json` says, completed.
    pub fn generation(&self) -> &Arc<GenerationDefaults> {
        &self.generation
    }

    /// The files, for what is read on demand.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// What makes prompts: the tokenizer and the chat template, which are read now.
    ///
    /// # Errors
    /// [`LoadError`] when one of them is missing or malformed, or does not fit `config.json`.
    pub fn prompter(&self) -> Result<Prompter, LoadError> {
        let tokenizer = self.tokenizer()?;
        let template = ChatTemplate::load(&self.files)?;
        Ok(Prompter::new(tokenizer.into(), template.into(), &self.config))
    }

    /// The tokenizer, which is read now.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing or malformed, or its ids do not fit `config.json`.
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        let tokenizer = Tokenizer::load(&self.files)?;
        let misfit = |reason| Err(self.files.invalid("tokenizer.json", reason));
        let (have, room) = (tokenizer.vocabulary_size(), self.config.thinker.text.vocab_size);
        if have > room {
            return misfit(format!("has {have} ids, but the thinker of {CONFIG} has {room}"));
        }
        let tokens = &self.config.tokens;
        for (text, id) in [("<|im_start|>", tokens.im_start), ("<|im_end|>", tokens.im_end)] {
            match tokenizer.encode_structure(text) {
                Ok(ids) if ids == [id] => {}
                _ => return misfit(format!("does not give {text} the id {id} that {CONFIG} says")),
            }
        }
        Ok(tokenizer)
    }

    /// Tensors for nets on `device`. The net must use all of each family in `owned` (`thinker`, `talker` or
    /// `code2wav`); it may use others too.
    pub fn loader(&self, owned: &[&str], device: &Device) -> Loader {
        Loader::new(self.weights.clone(), device, owned)
    }
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
