//! The manifests of a golden folder.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// One case: `NAME.json`. The tensors are in `NAME.safetensors` beside it.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// File name without its ending.
    pub name: String,
    /// The kind of case.
    pub kind: Kind,
    /// Its checkpoint: a folder beside the golden folder, or `.` for the folder that holds the golden folder.
    pub checkpoint: String,
    /// Fields of config.json to change before loading.
    pub overrides: Map<String, Value>,
    /// Tensors that the safetensors file should have.
    pub tensors: Vec<String>,
    /// Settings of the run.
    pub meta: Map<String, Value>,
}

/// Kinds of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request of Qwen3-Omni from prompt to waveform.
    OmniGenerate,
    /// A request of Qwen3-TTS from text to waveform.
    TtsGenerate,
    /// A vocoder with its activations: code2wav of Qwen3-Omni or the 12 Hz decoder of Qwen3-TTS.
    Vocoder,
    /// The front ends of a cloned voice.
    TtsFrontend,
    /// The front ends of what Qwen3-Omni hears and sees.
    Frontend(FrontendKind),
    /// The audio tower of Qwen3-Omni.
    AudioTower,
    /// The vision tower of Qwen3-Omni.
    VisionTower,
}

/// What a front end makes of a file or conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendKind {
    /// Sound to spectra.
    Audio,
    /// A picture to patches.
    Image,
    /// Frames to patches.
    Video,
    /// A conversation to ids and positions.
    Chat,
    /// Sizes, counts and indices of many inputs.
    Table,
}

#[derive(Deserialize)]
struct RawManifest {
    case: RawCase,
    #[serde(default)]
    tensors: BTreeMap<String, Value>,
    #[serde(default)]
    meta: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawCase {
    kind: String,
    checkpoint: String,
    #[serde(default)]
    config_overrides: Option<Map<String, Value>>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub fn read(path: &Path) -> Result<Manifest, String> {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = std::fs::read(path).map_err(|e| format!("cannot read {file}: {e}"))?;
        let raw: RawManifest = serde_json::from_slice(&bytes).map_err(|e| {
            format!("{file} is not a manifest (\"case\": {{\"kind\", \"checkpoint\"}}, \"tensors\", \"meta\"): {e}")
        })?;
        let kind = match raw.case.kind.as_str() {
            "omni_generate" => Kind::OmniGenerate,
            "tts_generate" => Kind::TtsGenerate,
            "code2wav" | "decoder12hz" => Kind::Vocoder,
            "tts_frontend" => Kind::TtsFrontend,
            "frontend_audio" => Kind::Frontend(FrontendKind::Audio),
            "frontend_image" => Kind::Frontend(FrontendKind::Image),
            "frontend_video" => Kind::Frontend(FrontendKind::Video),
            "frontend_chat" => Kind::Frontend(FrontendKind::Chat),
            "frontend_table" => Kind::Frontend(FrontendKind::Table),
            "audio_tower" => Kind::AudioTower,
            "vision_tower" => Kind::VisionTower,
            other => {
                return Err(format!(
                    "unknown kind {other:?}: expected omni_generate, tts_generate, code2wav, decoder12hz, \
                     tts_frontend, frontend_audio, frontend_image, frontend_video, frontend_chat, frontend_table, \
                     audio_tower, vision_tower"
                ));
            }
        };
        Ok(Manifest {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            kind,
            checkpoint: raw.case.checkpoint,
            overrides: raw.case.config_overrides.unwrap_or_default(),
            tensors: raw.tensors.into_keys().collect(),
            meta: raw.meta,
        })
    }

    /// Where the case's checkpoint is, seen from the folder that holds the golden folder.
    ///
    /// # Errors
    /// When the name leads out of that folder.
    pub fn checkpoint_in(&self, parent: &Path) -> Result<PathBuf, String> {
        let relative = Path::new(&self.checkpoint);
        let inside = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if self.checkpoint.is_empty() || !inside {
            return Err(format!(
                "checkpoint {:?}: expected \".\" or a folder beside the golden folder",
                self.checkpoint
            ));
        }
        Ok(if self.checkpoint == "." { parent.to_owned() } else { parent.join(relative) })
    }

    /// Whether the case is one for the checkpoint folder of this name.
    pub fn is_for(&self, folder: &str) -> bool {
        self.checkpoint == "." || self.checkpoint == folder
    }

    /// A whole number of `meta`.
    ///
    /// # Errors
    /// When it is missing or something else.
    pub fn whole(&self, key: &str) -> Result<u32, String> {
        let value = self.meta.get(key).ok_or_else(|| format!("meta.{key} is missing"))?;
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("meta.{key} = {value}: expected a whole number"))
    }

    /// One whole number of `meta`, or a list of them.
    ///
    /// # Errors
    /// When it is missing or something else.
    pub fn wholes(&self, key: &str) -> Result<Vec<u32>, String> {
        let Some(Value::Array(list)) = self.meta.get(key) else { return Ok(vec![self.whole(key)?]) };
        let numbers = list.iter().map(|n| n.as_u64().and_then(|n| u32::try_from(n).ok()));
        numbers.collect::<Option<_>>().ok_or_else(|| format!("meta.{key}: expected whole numbers"))
    }

    /// A number of `meta`.
    ///
    /// # Errors
    /// When it is missing or something else.
    pub fn number(&self, key: &str) -> Result<f32, String> {
        let value = self.meta.get(key).ok_or_else(|| format!("meta.{key} is missing"))?;
        value.as_f64().map(|n| n as f32).ok_or_else(|| format!("meta.{key} = {value}: expected a number"))
    }

    /// The text of a list of one in `meta`; `None` when nothing is there.
    ///
    /// # Errors
    /// When there is more than one, or something else.
    pub fn only(&self, key: &str) -> Result<Option<&str>, String> {
        match self.meta.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(list)) if list.len() == 1 => match &list[0] {
                Value::Null => Ok(None),
                Value::String(text) => Ok(Some(text)),
                other => Err(format!("meta.{key}[0] = {other}: expected text")),
            },
            Some(other) => Err(format!("meta.{key} = {other}: expected a list of one text")),
        }
    }

    /// A text of `meta`.
    ///
    /// # Errors
    /// When it is missing or something else.
    pub fn text(&self, key: &str) -> Result<&str, String> {
        let value = self.meta.get(key).ok_or_else(|| format!("meta.{key} is missing"))?;
        value.as_str().ok_or_else(|| format!("meta.{key} = {value}: expected text"))
    }
}
