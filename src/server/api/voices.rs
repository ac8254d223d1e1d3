//! `/v1/audio/voices`.

use super::service::Named;
use super::{FieldError, short};
use omni_engine::{NewVoice, UploadInfo, VoiceInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The form of an upload. Its parts are read one by one, so this is for the schema alone.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema alone")]
pub(crate) struct VoiceForm {
    /// The recording, a file; or `speaker_embedding`.
    audio_sample: Option<Vec<u8>>,
    /// 1 to 64 letters, digits, `-`, `_`, `.` or spaces; case does not matter.
    #[schemars(length(min = 1, max = NewVoice::MAX_NAME))]
    name: String,
    /// How the speaker agreed, in the uploader's words.
    #[schemars(length(min = 1, max = NewVoice::MAX_TEXT))]
    consent: String,
    /// What is said in the recording: cloning in context.
    #[schemars(length(min = 1, max = NewVoice::MAX_TEXT))]
    ref_text: Option<String>,
    /// For people.
    #[schemars(length(max = NewVoice::MAX_TEXT))]
    speaker_description: Option<String>,
    /// The x-vector as a JSON list, instead of a recording.
    speaker_embedding: Option<String>,
    /// A description of the voice, instead of a recording: a VoiceDesign model among `[[models]]` speaks it. Then
    /// `consent` may be left out.
    instructions: Option<String>,
}

/// Which part of the voices an address asks for, behind its `?`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PageQuery {
    limit: Option<String>,
    /// The voice behind which the page begins.
    pub after: Option<String>,
    /// Whose voices; `None` is the first model.
    pub model: Option<String>,
}

/// Which model an address means, behind its `?`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ModelQuery {
    pub model: Option<String>,
}

impl PageQuery {
    /// Most voices of a page, and how many there are unless the address says otherwise.
    pub const MOST: usize = 1000;

    /// How many voices the page may have.
    pub fn limit(&self) -> Result<usize, FieldError> {
        let Some(text) = self.limit.as_deref() else { return Ok(PageQuery::MOST) };
        text.parse().ok().filter(|limit| (1..=PageQuery::MOST).contains(limit)).ok_or_else(|| {
            let message = format_args!("must be a whole number from 1 to {}, not {:?}", PageQuery::MOST, short(text));
            FieldError::invalid("limit", message)
        })
    }
}

/// The voices that a request may name.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VoiceList<'a> {
    /// What to choose from; with `legacy` names, without people's.
    pub voices: Choices<'a>,
    /// The names of `voices`.
    pub names: Vec<&'a str>,
    /// Other names, each with the voice that it stands for.
    pub aliases: BTreeMap<&'a str, &'a str>,
    /// The voice of a request that names none; null where one has to be given.
    pub default: Option<&'a str>,
    /// Samples per second of all audio.
    pub sample_rate: u32,
    /// What a Qwen3-TTS checkpoint was trained for; null for Qwen3-Omni.
    pub task_type: Option<&'static str>,
    /// What `language` may be besides `auto`; null for Qwen3-Omni.
    pub languages: Option<&'a [String]>,
    /// Whether the checkpoint follows `instructions`.
    pub instructions: bool,
    /// Whether there are voices behind these: ask again with `after` = `last_id`.
    pub has_more: bool,
    /// The last of these voices, aliases aside; null where there is none.
    pub last_id: Option<&'a str>,
    /// Those of the voices that were uploaded. Empty for callers without a key, where the server has keys.
    pub uploaded_voices: Vec<Voice<'a>>,
}

/// Voices to choose from.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Choices<'a> {
    Objects(Vec<Named<'a>>),
    Names(Vec<&'a str>),
}

/// An uploaded voice; what was not given is left out.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Voice<'a> {
    pub name: &'a str,
    #[serde(flatten)]
    pub upload: Option<Upload<'a>>,
}

/// How it came.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Upload<'a> {
    pub consent: &'a str,
    /// Unix seconds.
    pub created_at: u64,
    /// Bytes of the recording; 0 for an x-vector.
    pub file_size: u64,
    /// Seconds of speech in the recording, to a thousandth; 0 for an x-vector.
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ref_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker_description: Option<&'a str>,
}

impl<'a> From<&'a VoiceInfo> for Voice<'a> {
    fn from(voice: &'a VoiceInfo) -> Voice<'a> {
        let upload = |upload: &'a UploadInfo| Upload {
            consent: &upload.consent,
            created_at: upload.created_at,
            file_size: upload.file_size,
            seconds: (f64::from(upload.seconds) * 1000.0).round() / 1000.0,
            mime_type: upload.mime_type.as_deref(),
            ref_text: upload.ref_text.as_deref(),
            speaker_description: upload.description.as_deref(),
        };
        Voice { name: &voice.name, upload: voice.upload.as_ref().map(upload) }
    }
}

/// The answer to an upload.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VoiceAdded<'a> {
    pub success: bool,
    pub voice: Voice<'a>,
}

/// The answer to a deletion.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VoiceRemoved {
    pub success: bool,
    pub message: String,
}
