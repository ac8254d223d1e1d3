//! Voices that clients give: encodes each once, keeps uploaded ones on disk, finds them by name.
//!
//! The encoding of a recording depends on its bytes and its transcript alone. The cache has it under their hash, never
//! under a name or label of a request.

mod encoder;
mod file;
mod turns;

pub(super) use encoder::{Spoken, Voiceprint};

use super::api::TenantId;
use super::caught;
use super::decode::Decoders;
use super::voice::{NewVoice, Recording, UploadInfo, VoiceError, VoiceInfo, VoiceSource};
use encoder::Encoder;
use file::Kept;
use omni_config::VoicesDirectory;
use omni_fault::FaultSite;
use omni_model::LoadError;
use omni_model::checkpoint::Checkpoint;
use omni_model::frontend::AudioLimits;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinError;
use turns::{Purpose, Turns};

const MAX_NAME: usize = NewVoice::MAX_NAME;
const MAX_TEXT: usize = NewVoice::MAX_TEXT;
/// Recordings of single requests that stay encoded.
const REMEMBERED: usize = 64;

/// The voices of a Base checkpoint.
pub(super) struct Voices {
    encoder: Encoder,
    fingerprint: [u8; 32],
    /// Where voices are kept; `None` keeps them in memory.
    folder: Option<PathBuf>,
    max_count: usize,
    max_bytes: u64,
    turns: Turns,
    /// The fault point of writes to the disk.
    fault: FaultSite,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By lower-case name.
    voices: BTreeMap<String, Entry>,
    /// Most recently used last.
    recent: VecDeque<([u8; 32], Arc<Voiceprint>)>,
}

enum Entry {
    /// Being encoded, or being deleted: the name is taken, and so are the bytes of its recording.
    Busy(u64),
    Here(Box<Voice>),
}

impl Entry {
    /// Of its recording.
    fn bytes(&self) -> u64 {
        match self {
            Entry::Busy(bytes) => *bytes,
            Entry::Here(voice) => voice.bytes(),
        }
    }
}

struct Voice {
    info: Arc<VoiceInfo>,
    /// `None` when another encoder made it: it is encoded again when it is first used.
    print: Option<Arc<Voiceprint>>,
    /// Of a voice that is kept in memory only.
    kept: Option<Arc<Kept>>,
}

impl Voices {
    /// Loads the encoders and the voices in `folder`; faults strike writes and encodings. Slow: not for an async thread.
    ///
    /// # Errors
    /// When the weights do not fit. A voice that cannot be read stays where it is, with a warning.
    pub fn open(
        checkpoint: &Checkpoint,
        folder: Option<PathBuf>,
        (max_count, max_bytes): (usize, u64),
        decoding: (Decoders, AudioLimits),
        [fault, encoding]: [FaultSite; 2],
    ) -> Result<Voices, LoadError> {
        let encoder = Encoder::load(checkpoint, decoding, encoding)?;
        let fingerprint = encoder
            .fingerprint()
            .map_err(|error| LoadError::Invalid { file: "speaker_encoder".into(), reason: error.to_string() })?;
        let mut state = State::default();
        // The first uploaded voice makes the folder: a server without uploads leaves nothing behind.
        if let Some(folder) = folder.as_ref().filter(|folder| folder.exists()) {
            let io = |source| LoadError::Io { path: folder.clone(), source };
            for path in file::list(folder).map_err(io)? {
                match file::read(&path) {
                    Ok(kept) => {
                        let name = kept.name.to_lowercase();
                        state.voices.insert(name, Entry::Here(Box::new(Voice::of(&kept, &fingerprint))));
                    }
                    Err(reason) => tracing::warn!(file = %path.display(), reason, "a kept voice cannot be read"),
                }
            }
            tracing::info!(folder = %folder.display(), voices = state.voices.len(), "kept voices read");
        }
        let turns = Turns::new();
        Ok(Voices { encoder, fingerprint, folder, max_count, max_bytes, turns, fault, state: Mutex::new(state) })
    }

    /// Uploaded voices by name.
    pub fn list(&self) -> Vec<Arc<VoiceInfo>> {
        let state = self.lock();
        let here = state.voices.values().filter_map(|entry| match entry {
            Entry::Here(voice) => Some(Arc::clone(&voice.info)),
            Entry::Busy(_) => None,
        });
        here.collect()
    }

    /// Whether there is a voice of this name.
    pub fn has(&self, name: &str) -> bool {
        matches!(self.lock().voices.get(&name.to_lowercase()), Some(Entry::Here(_)))
    }

    /// Encodes and keeps a voice.
    pub async fn add(self: &Arc<Self>, voice: NewVoice) -> Result<VoiceInfo, VoiceError> {
        check(&voice)?;
        let bytes = match &voice.source {
            VoiceSource::Recording { recording, .. } => recording.audio.len() as u64,
            VoiceSource::Embedding(_) => 0,
        };
        let claim = Claim::new(self, voice.name.to_lowercase(), bytes)?;
        let voices = Arc::clone(self);
        // In a task of its own: a client that leaves in the middle must not leave a voice behind that no list knows.
        let adding = tokio::spawn(async move {
            let keeper = Arc::clone(&voices);
            let tenant = voice.tenant;
            let voice = voices.take_turn((tenant, Purpose::Upload), move || keeper.keep(voice)).await?;
            Ok(claim.fulfil(voice))
        });
        adding.await.unwrap_or_else(|error| Err(panicked(error)))
    }

    /// Forgets a voice.
    pub async fn remove(self: &Arc<Self>, name: &str) -> Result<(), VoiceError> {
        let (voices, name) = (Arc::clone(self), name.to_owned());
        let removing = tokio::task::spawn_blocking(move || voices.remove_now(&name));
        removing.await.unwrap_or_else(|error| Err(panicked(error)))
    }

    fn remove_now(&self, name: &str) -> Result<(), VoiceError> {
        let key = name.to_lowercase();
        let unknown = || VoiceError::Unknown(name.into());
        // The disk takes its time, which the lock must not: every request that names a voice needs it.
        let removed = {
            let mut state = self.lock();
            let entry =
                state.voices.get_mut(&key).filter(|entry| matches!(entry, Entry::Here(_))).ok_or_else(unknown)?;
            let bytes = entry.bytes();
            std::mem::replace(entry, Entry::Busy(bytes))
        };
        let done = self.folder.as_ref().map_or(Ok(()), |folder| file::remove(&file::path_of(folder, name)));
        let mut state = self.lock();
        match done {
            Ok(()) => {
                state.voices.remove(&key);
                Ok(())
            }
            Err(error) => {
                state.voices.insert(key, removed);
                Err(VoiceError::Storage(error.to_string()))
            }
        }
    }

    /// The encoding of an uploaded voice.
    pub async fn named(self: &Arc<Self>, name: &str, tenant: TenantId) -> Result<Arc<Voiceprint>, VoiceError> {
        let key = name.to_lowercase();
        let (print, kept) = match self.lock().voices.get(&key) {
            Some(Entry::Here(voice)) => (voice.print.clone(), voice.kept.clone()),
            _ => return Err(VoiceError::Unknown(name.into())),
        };
        if let Some(print) = print {
            return Ok(print);
        }
        let voices = Arc::clone(self);
        let print = self.take_turn((tenant, Purpose::Request), move || voices.encode_again(&key, kept)).await?;
        Ok(print)
    }

    /// The encoding of the recording of one request.
    pub async fn once(self: &Arc<Self>, recording: Recording, tenant: TenantId) -> Result<Arc<Voiceprint>, VoiceError> {
        if let Some(text) = &recording.text {
            check_text("ref_text", text)?;
        }
        let recording = if recording.x_vector_only { Recording { text: None, ..recording } } else { recording };
        let text = recording.text.as_deref().unwrap_or_default();
        let key = sha256(&[&recording.audio, text.as_bytes()]);
        if let Some(print) = self.lock().recall(&key) {
            return Ok(print);
        }
        let voices = Arc::clone(self);
        self.take_turn((tenant, Purpose::Request), move || {
            // Another client may have given the same one in the meantime.
            if let Some(print) = voices.lock().recall(&key) {
                return Ok(print);
            }
            let encoded = voices.encoder.encode(&recording)?;
            let print = Arc::new(voiceprint(encoded.x_vector, recording.text.as_deref(), encoded.codes));
            voices.lock().remember(key, Arc::clone(&print));
            Ok(print)
        })
        .await
    }

    /// Runs an encoding in its turn, away from the async threads.
    async fn take_turn<T: Send + 'static>(
        self: &Arc<Self>,
        (tenant, purpose): (TenantId, Purpose),
        work: impl FnOnce() -> Result<T, VoiceError> + Send + 'static,
    ) -> Result<T, VoiceError> {
        let turn = self.turns.take(tenant, purpose).await?;
        // The turn lasts as long as the work, also where the client leaves meanwhile.
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(panicked(error)))
    }

    fn keep(&self, voice: NewVoice) -> Result<Voice, VoiceError> {
        let NewVoice { name, source, consent, description, owner, tenant: _ } = voice;
        let created_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let encoder = self.fingerprint;
        let blank = |x_vector: Vec<f32>| Kept {
            name,
            created_at,
            consent,
            description,
            ref_text: None,
            mime_type: None,
            audio: Vec::new(),
            seconds: 0.0,
            encoder,
            x_vector,
            codes: Vec::new(),
            owner,
        };
        let kept = match source {
            VoiceSource::Embedding(x_vector) => {
                self.encoder.check_x_vector(&x_vector)?;
                blank(x_vector.to_vec())
            }
            VoiceSource::Recording { recording, mime_type } => {
                let encoded = self.encoder.encode(&recording)?;
                Kept {
                    ref_text: recording.text,
                    mime_type,
                    audio: recording.audio.to_vec(),
                    seconds: encoded.seconds,
                    codes: encoded.codes.to_vec(),
                    ..blank(encoded.x_vector.to_vec())
                }
            }
        };
        self.write(&kept)?;
        let voice = Voice::of(&kept, &self.fingerprint);
        Ok(Voice { kept: self.folder.is_none().then(|| Arc::new(kept)), ..voice })
    }

    /// Encodes a voice again that was uploaded for another checkpoint.
    fn encode_again(&self, key: &str, kept: Option<Arc<Kept>>) -> Result<Arc<Voiceprint>, VoiceError> {
        let mut kept = match (kept, &self.folder) {
            (Some(kept), _) => Kept::clone(&kept),
            (None, Some(folder)) => file::read(&file::path_of(folder, key)).map_err(VoiceError::Storage)?,
            (None, None) => return Err(VoiceError::Unknown(key.into())),
        };
        if kept.audio.is_empty() {
            let message = format!(
                "voice {:?} is an embedding made for another checkpoint; delete it and upload one for this",
                kept.name
            );
            return Err(VoiceError::Invalid { param: "voice", message });
        }
        let recording = Recording {
            audio: std::mem::take(&mut kept.audio).into(),
            text: kept.ref_text.clone(),
            x_vector_only: false,
        };
        let encoded = self.encoder.encode(&recording)?;
        kept.audio = recording.audio.to_vec();
        kept.encoder = self.fingerprint;
        kept.x_vector = encoded.x_vector.to_vec();
        kept.codes = encoded.codes.to_vec();
        self.write(&kept)?;
        let voice = Voice::of(&kept, &self.fingerprint);
        let Some(print) = voice.print.clone() else { return Err(VoiceError::Unknown(key.into())) };
        match self.lock().voices.get_mut(key) {
            Some(Entry::Here(entry)) => entry.print = voice.print,
            // The voice was deleted in the meantime: it must not come back with the next start.
            _ => self.folder.iter().for_each(|folder| drop(file::remove(&file::path_of(folder, key)))),
        }
        Ok(print)
    }

    fn write(&self, kept: &Kept) -> Result<(), VoiceError> {
        match &self.folder {
            Some(folder) => {
                let write = |()| file::write(&file::path_of(folder, &kept.name), kept, &self.fault);
                let written = file::make_folder(folder).and_then(write);
                written.map_err(|error| VoiceError::Storage(error.to_string()))
            }
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recording, or something about a voice, that the code cannot take: it ends this request alone.
fn panicked(error: JoinError) -> VoiceError {
    let reason = error.try_into_panic().map_or_else(|error| error.to_string(), |panic| caught::text(panic.as_ref()));
    VoiceError::Internal(format!("the voice could not be encoded: {reason}"))
}

impl State {
    fn recall(&mut self, key: &[u8; 32]) -> Option<Arc<Voiceprint>> {
        let at = self.recent.iter().position(|(known, _)| known == key)?;
        let found = self.recent.remove(at)?;
        let print = Arc::clone(&found.1);
        self.recent.push_back(found);
        Some(print)
    }

    fn remember(&mut self, key: [u8; 32], print: Arc<Voiceprint>) {
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((key, print));
    }
}

impl Voice {
    /// Of its recording.
    fn bytes(&self) -> u64 {
        self.info.upload.as_ref().map_or(0, |upload| upload.file_size)
    }

    fn of(kept: &Kept, fingerprint: &[u8; 32]) -> Voice {
        let upload = UploadInfo {
            created_at: kept.created_at,
            consent: kept.consent.clone(),
            description: kept.description.clone(),
            ref_text: kept.ref_text.clone(),
            mime_type: kept.mime_type.clone(),
            file_size: kept.audio.len() as u64,
            seconds: kept.seconds,
            owner: kept.owner.clone(),
        };
        let print = (kept.encoder == *fingerprint).then(|| {
            let (x_vector, codes) = (kept.x_vector.as_slice().into(), kept.codes.as_slice().into());
            Arc::new(voiceprint(x_vector, kept.ref_text.as_deref(), codes))
        });
        let info = Arc::new(VoiceInfo { name: kept.name.clone(), uploaded: true, upload: Some(upload) });
        Voice { info, print, kept: None }
    }
}

fn voiceprint(x_vector: Arc<[f32]>, text: Option<&str>, codes: Arc<[u32]>) -> Voiceprint {
    let reference = text.filter(|_| !codes.is_empty()).map(|text| Spoken { text: text.into(), codes });
    Voiceprint { x_vector, reference }
}

/// A name that is taken while its voice is being encoded, and free again if the encoding fails.
struct Claim {
    voices: Arc<Voices>,
    name: String,
}

impl Claim {
    fn new(voices: &Arc<Voices>, name: String, bytes: u64) -> Result<Claim, VoiceError> {
        let mut state = voices.lock();
        if state.voices.contains_key(&name) {
            return Err(VoiceError::Exists(name));
        }
        if state.voices.len() >= voices.max_count {
            return Err(VoiceError::TooMany(voices.max_count));
        }
        let kept: u64 = state.voices.values().map(Entry::bytes).sum();
        if kept.saturating_add(bytes) > voices.max_bytes {
            return Err(VoiceError::TooLarge { kept, limit: voices.max_bytes });
        }
        state.voices.insert(name.clone(), Entry::Busy(bytes));
        Ok(Claim { voices: Arc::clone(voices), name })
    }

    fn fulfil(self, voice: Voice) -> VoiceInfo {
        let info = VoiceInfo::clone(&voice.info);
        self.voices.lock().voices.insert(self.name.clone(), Entry::Here(Box::new(voice)));
        info
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.voices.lock();
        if matches!(state.voices.get(&self.name), Some(Entry::Busy(_))) {
            state.voices.remove(&self.name);
        }
    }
}

fn check(voice: &NewVoice) -> Result<(), VoiceError> {
    let invalid = |param, message: String| Err(VoiceError::Invalid { param, message });
    let name = voice.name.as_str();
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    let length = name.chars().take(MAX_NAME + 1).count();
    if length == 0 || length > MAX_NAME || !name.chars().all(allowed) || name.trim() != name {
        let message =
            format!("a name has 1 to {MAX_NAME} letters, digits, '-', '_', '.' or spaces, and no space at its ends");
        return invalid("name", message);
    }
    if voice.consent.trim().is_empty() {
        return invalid("consent", "say how the speaker agreed to this use of the voice".into());
    }
    check_text("consent", &voice.consent)?;
    check_text("speaker_description", voice.description.as_deref().unwrap_or_default())?;
    match &voice.source {
        VoiceSource::Recording { recording: Recording { text: Some(text), .. }, .. } if text.trim().is_empty() => {
            invalid("ref_text", "the transcript is empty: leave it out, or say what is said in the recording".into())
        }
        VoiceSource::Recording { recording, .. } => {
            check_text("ref_text", recording.text.as_deref().unwrap_or_default())
        }
        VoiceSource::Embedding(_) => Ok(()),
    }
}

fn check_text(param: &'static str, text: &str) -> Result<(), VoiceError> {
    if text.chars().take(MAX_TEXT + 1).count() <= MAX_TEXT {
        return Ok(());
    }
    Err(VoiceError::Invalid { param, message: format!("{param} is longer than {MAX_TEXT} characters") })
}

/// Where voices are kept when the config does not say: a folder of this user.
fn user_folder() -> Option<PathBuf> {
    let home = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = home("XDG_DATA_HOME").or_else(|| home("HOME").map(|home| home.join(Path::new(".local/share"))))?;
    Some(data.join("omni-actors/voices"))
}

/// Where the voices of a model are kept; `None` is in memory.
pub(super) fn folder(directory: &VoicesDirectory, model: &str) -> Option<PathBuf> {
    match directory {
        VoicesDirectory::Memory => None,
        VoicesDirectory::Folder(path) => Some(path.clone()),
        VoicesDirectory::User => {
            let tame = |c: char| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
            let name: String = model.chars().map(tame).collect();
            let name = name.trim_start_matches('.');
            user_folder().map(|folder| folder.join(if name.is_empty() { "model" } else { name }))
        }
    }
}

/// The voices that lie in a folder, by name, read without an encoder. Slow: not for an async thread.
pub(super) fn kept(folder: &Path) -> Vec<Arc<VoiceInfo>> {
    if !folder.exists() {
        return Vec::new();
    }
    // One that cannot be read is told of when the voices are opened.
    let read = file::list(folder).unwrap_or_default().into_iter().filter_map(|path| file::read(&path).ok());
    let voices: BTreeMap<String, Arc<VoiceInfo>> =
        read.map(|kept| (kept.name.to_lowercase(), Voice::of(&kept, &[0; 32]).info)).collect();
    voices.into_values().collect()
}

/// The hash of the parts one after the other, each preceded by its length.
fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
