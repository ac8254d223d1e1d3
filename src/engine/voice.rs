//! Voices as clients of the engine name, give and see them.

use super::api::TenantId;
use serde::Serialize;
use std::sync::Arc;

pub use omni_model::hf::Variant as TaskType;

/// Who speaks.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VoiceChoice {
    /// The model's default; where there is none, a voice has to be described or given.
    #[default]
    Default,
    /// A speaker of the checkpoint or an uploaded voice, any case.
    Named {
        /// Its name.
        name: String,
        /// Of an uploaded voice with a transcript, use the sound alone.
        x_vector_only: bool,
    },
    /// A recording, for this request alone.
    Clone(Recording),
    /// An x-vector, for this request alone.
    Embedding(Arc<[f32]>),
}

impl VoiceChoice {
    /// By name, or the default.
    pub fn named(name: Option<String>) -> VoiceChoice {
        name.map_or(VoiceChoice::Default, |name| VoiceChoice::Named { name, x_vector_only: false })
    }

    /// The name, when there is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            VoiceChoice::Named { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Which voice a name in a marked text means, or what is wrong with it and what is allowed. By default each name is that
/// of a voice.
#[derive(Clone)]
pub struct VoiceNames(Arc<FindVoice>);

type FindVoice = dyn Fn(&str) -> Result<VoiceChoice, String> + Send + Sync;

impl VoiceNames {
    /// Asks `find`, which must not wait.
    pub fn new(find: impl Fn(&str) -> Result<VoiceChoice, String> + Send + Sync + 'static) -> VoiceNames {
        VoiceNames(Arc::new(find))
    }

    /// The voice of a name.
    pub(super) fn find(&self, name: &str) -> Result<VoiceChoice, String> {
        (self.0)(name)
    }
}

impl Default for VoiceNames {
    fn default() -> VoiceNames {
        VoiceNames::new(|name| Ok(VoiceChoice::named(Some(name.to_owned()))))
    }
}

impl std::fmt::Debug for VoiceNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VoiceNames")
    }
}

/// A recording of a voice.
#[derive(Clone, PartialEq)]
pub struct Recording {
    /// An audio file as it came: wav, flac, mp3, ogg.
    pub audio: Arc<[u8]>,
    /// What is said in it. With it, the model goes on in the manner of the recording (in-context cloning).
    pub text: Option<String>,
    /// Use the sound of the voice alone, although `text` is there.
    pub x_vector_only: bool,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes: they are long, and a person's voice.
        write!(
            f,
            "Recording({} bytes, text: {}, x_vector_only: {})",
            self.audio.len(),
            self.text.is_some(),
            self.x_vector_only
        )
    }
}

/// A voice to keep.
#[derive(Clone, Debug)]
pub struct NewVoice {
    /// How requests will name it: 1 to 64 letters, digits, `-`, `_`, `.` or spaces; case does not matter.
    pub name: String,
    /// What it is made of.
    pub source: VoiceSource,
    /// That the speaker agreed: a reference to how, in the uploader's words. Not empty.
    pub consent: String,
    /// Free text for lists of voices.
    pub description: Option<String>,
    /// Name of the API key that it came with.
    pub owner: Option<String>,
    /// Whose upload it is: tenants take turns at the encoder.
    pub tenant: TenantId,
}

impl NewVoice {
    /// Longest name, in characters.
    pub const MAX_NAME: usize = 64;
    /// Longest consent, description and transcript, in characters.
    pub const MAX_TEXT: usize = 4096;
}

/// What a voice is made of.
#[derive(Clone, Debug)]
pub enum VoiceSource {
    /// A recording.
    Recording {
        /// As in [`Recording`]; `x_vector_only` is each request's business.
        recording: Recording,
        /// As the uploader named the format.
        mime_type: Option<String>,
    },
    /// An x-vector made elsewhere.
    Embedding(Arc<[f32]>),
}

/// A voice in a list of voices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VoiceInfo {
    /// As requests name it.
    pub name: String,
    /// Whether it was uploaded; the others belong to the checkpoint.
    pub uploaded: bool,
    /// Of an uploaded voice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<UploadInfo>,
}

/// What a list says of an uploaded voice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UploadInfo {
    /// Unix seconds.
    pub created_at: u64,
    /// As it was given.
    pub consent: String,
    /// As it was given.
    pub description: Option<String>,
    /// What is said in the recording; present for in-context cloning.
    pub ref_text: Option<String>,
    /// As the uploader named it.
    pub mime_type: Option<String>,
    /// Bytes of the recording; 0 for an x-vector.
    pub file_size: u64,
    /// Seconds of speech in the recording; 0 for an x-vector.
    pub seconds: f32,
    /// Name of the API key that it came with; for the server, not for lists.
    #[serde(skip)]
    pub owner: Option<String>,
}

/// A voice that was not added or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VoiceError {
    /// What the client gave cannot be used; the text says what to change. HTTP 400.
    #[error("{message}")]
    Invalid {
        /// The field at fault, as the HTTP API names it.
        param: &'static str,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// There is one of this name. HTTP 409.
    #[error("there is a voice {0:?} already; delete it first or choose another name")]
    Exists(String),
    /// There is none of this name. HTTP 404.
    #[error("there is no uploaded voice {0:?}")]
    Unknown(String),
    /// As many as the config allows. HTTP 409.
    #[error("{0} voices are kept already, as many as voices.max_count allows; delete one first")]
    TooMany(usize),
    /// Their recordings have as many bytes as the config allows. HTTP 409.
    #[error("the recordings of all voices have {kept} bytes, and voices.max_bytes allows {limit}; delete one first")]
    TooLarge {
        /// Bytes that are kept.
        kept: u64,
        /// Bytes that may be kept.
        limit: u64,
    },
    /// Too many are being encoded. HTTP 429.
    #[error("other voices are being encoded; try again in a second")]
    Busy,
    /// The machine has no room for what decodes the recording. HTTP 503.
    #[error("{0}")]
    Unavailable(String),
    /// The model that keeps it is not there. HTTP 503.
    #[error("{0}")]
    NotReady(String),
    /// The encoders failed where they should not. HTTP 500.
    #[error("{0}")]
    Internal(String),
    /// It could not be kept. HTTP 507.
    #[error("the voice could not be kept: {0}")]
    Storage(String),
}
