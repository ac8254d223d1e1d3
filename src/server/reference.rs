//! Recordings of requests: inside the request, at an address, or in a file that the config lets the server read. This
//! module returns bytes; the engine decides whether they are sound.

use super::budget::{Budget, Held};
use super::error::ApiError;
use super::fetch::{self, FetchError};
use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use omni_config::ReferenceAudioConfig;
use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use url::Url;

/// The field of a recording.
const REF_AUDIO: &str = "ref_audio";

/// Padding may be missing: some clients leave it out.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Reads the recordings of one request and counts them. It keeps the last one, which items of a batch often share.
pub(super) struct References<'a> {
    config: &'a ReferenceAudioConfig,
    budget: &'a Arc<Budget>,
    hashes: RandomState,
    last: Option<Loaded>,
    /// The part of the budget for the recording that was asked for last.
    held: Option<Arc<Held>>,
    /// The field that errors name.
    param: &'a str,
}

/// A recording and its part of the budget.
struct Loaded {
    named: Named,
    bytes: Arc<[u8]>,
    held: Arc<Held>,
}

/// How a request named a recording: the length and a keyed hash of the text, which may be as long as the recording.
type Named = (usize, u64);

impl<'a> References<'a> {
    pub fn new(config: &'a ReferenceAudioConfig, budget: &'a Arc<Budget>) -> References<'a> {
        References { config, budget, hashes: RandomState::new(), last: None, held: None, param: REF_AUDIO }
    }

    /// Names another field in errors: of a file that is no recording of a voice.
    pub fn named(self, param: &'a str) -> References<'a> {
        References { param, ..self }
    }

    /// The part of the budget for the recording that was asked for since the last call, to be held as long as it is.
    pub fn held(&mut self) -> Option<Arc<Held>> {
        self.held.take()
    }

    /// The bytes of the recording that `ref_audio` names.
    pub async fn load(&mut self, ref_audio: &str) -> Result<Arc<[u8]>, ApiError> {
        let loaded = self.find(ref_audio).await;
        loaded.map_err(|mut error| {
            if error.param.as_deref() == Some(REF_AUDIO) && self.param != REF_AUDIO {
                let said = error.message.strip_prefix("ref_audio: ").unwrap_or(&error.message);
                error.message = format!("{}: {said}", self.param);
                error.param = Some(self.param.to_owned());
            }
            error
        })
    }

    async fn find(&mut self, ref_audio: &str) -> Result<Arc<[u8]>, ApiError> {
        let named = (ref_audio.len(), self.hashes.hash_one(ref_audio));
        if let Some(last) = &self.last
            && last.named == named
        {
            self.held = Some(Arc::clone(&last.held));
            return Ok(Arc::clone(&last.bytes));
        }
        self.last = None;
        // Twice while it is read: buffers grow, and the bytes are copied to where they stay.
        let mut held = Held::nothing(self.budget);
        let counts = |held: &mut Held, bytes: usize| held.take(2 * bytes).then_some(()).ok_or_else(|| held.exhausted());
        let bytes: Arc<[u8]> = match Place::of(ref_audio)? {
            Place::Here(text) => {
                // Four letters are three bytes, so the size is known before anything is decoded.
                counts(&mut held, text.len().min(self.config.max_bytes.saturating_mul(2)))?;
                decode(text, self.config.max_bytes)?
            }
            Place::Address(url) => {
                let fetched = fetch::fetch(&url, self.config, &mut held).await;
                fetched.map_err(|error| match error {
                    FetchError::NoRoom => held.exhausted(),
                    error => invalid(error.to_string()),
                })?
            }
            Place::File(path) => {
                let mut file = open(path, self.config).await?;
                counts(&mut held, file.length)?;
                file.read(self.config.max_bytes).await?
            }
        }
        .into();
        held.resize(bytes.len()); // not more than before
        let held = Arc::new(held);
        self.held = Some(Arc::clone(&held));
        self.last = Some(Loaded { named, bytes: Arc::clone(&bytes), held });
        Ok(bytes)
    }
}

/// Where a recording is.
#[derive(Debug, PartialEq)]
enum Place<'a> {
    /// Base64 in the request itself.
    Here(&'a str),
    Address(Url),
    File(PathBuf),
}

impl Place<'_> {
    fn of(ref_audio: &str) -> Result<Place<'_>, ApiError> {
        let text = ref_audio.trim();
        if text.is_empty() {
            return Err(invalid("is empty; send base64, a data URL, or an address that the server may read"));
        }
        let Some((scheme, rest)) = text.split_once(':') else { return Ok(Place::Here(text)) };
        match scheme.to_ascii_lowercase().as_str() {
            "data" => {
                let (head, data) =
                    rest.split_once(',').ok_or_else(|| invalid("the data URL has no comma before its data"))?;
                let is_base64 = head.rsplit(';').next().is_some_and(|last| last.eq_ignore_ascii_case("base64"));
                if !is_base64 {
                    return Err(invalid("the data URL must be base64, such as data:audio/wav;base64,..."));
                }
                Ok(Place::Here(data))
            }
            "http" | "https" => {
                let url = Url::parse(text).map_err(|error| invalid(format!("is not an address: {error}")))?;
                Ok(Place::Address(url))
            }
            "file" => {
                let url = Url::parse(text).map_err(|error| invalid(format!("is not an address: {error}")))?;
                let path = url
                    .to_file_path()
                    .map_err(|()| invalid("is no file of this machine; write file:///folder/file"))?;
                Ok(Place::File(path))
            }
            // Base64 has no colon.
            _ => Err(invalid("is neither base64 nor an address of a kind that is read: data:, http:, https: or file:")),
        }
    }
}

fn invalid(message: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(REF_AUDIO, format!("{REF_AUDIO}: {message}"))
}

/// Base64, of either alphabet, with or without line breaks and padding.
fn decode(text: &str, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
    let clean: Cow<'_, [u8]> = match text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        true => text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect(),
        false => text.as_bytes().into(),
    };
    if clean.is_empty() {
        return Err(invalid("there is no data in it"));
    }
    let too_large = || invalid(format!("is larger than {max_bytes} bytes; send a smaller file"));
    // Four letters are three bytes, so the size is known before anything is decoded.
    if clean.len() / 4 * 3 > max_bytes.saturating_add(3) {
        return Err(too_large());
    }
    let url_safe = clean.iter().any(|byte| matches!(byte, b'-' | b'_'));
    let engine = GeneralPurpose::new(if url_safe { &URL_SAFE } else { &STANDARD }, LENIENT);
    let bytes = engine
        .decode(&*clean)
        .map_err(|error| invalid(format!("is not base64, or was cut off: {}", error.to_string().to_lowercase())))?;
    if bytes.len() > max_bytes { Err(too_large()) } else { Ok(bytes) }
}

/// A recording on this machine.
struct OpenFile {
    file: tokio::fs::File,
    /// Bytes that it had when it was opened, or one more than the limit.
    length: usize,
}

/// Opens a file in one of the folders that the config allows, links and `..` resolved. Every failure has the same
/// words, so that a client cannot find out which files exist.
async fn open(path: PathBuf, config: &ReferenceAudioConfig) -> Result<OpenFile, ApiError> {
    if config.allowed_folders.is_empty() {
        return Err(invalid("this server reads no files; send base64 or a data URL (reference_audio.allowed_folders)"));
    }
    let refuse = no_such_file;
    let path = tokio::fs::canonicalize(path).await.map_err(|_| refuse())?;
    let mut allowed = false;
    for folder in &config.allowed_folders {
        // A folder that is not there allows nothing.
        allowed |= tokio::fs::canonicalize(folder).await.is_ok_and(|folder| path.starts_with(folder));
    }
    // Opening a pipe or a device could wait for ever.
    let plain = allowed && tokio::fs::metadata(&path).await.is_ok_and(|found| found.is_file());
    if !plain {
        return Err(refuse());
    }
    let file = tokio::fs::File::open(&path).await.map_err(|_| refuse())?;
    let length = file.metadata().await.map_err(|_| refuse())?.len();
    if length > config.max_bytes as u64 {
        return Err(too_long_a_file(config.max_bytes));
    }
    Ok(OpenFile { file, length: length as usize })
}

impl OpenFile {
    /// Its bytes.
    async fn read(&mut self, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::with_capacity(self.length + 1);
        let most = max_bytes.min(self.length) as u64 + 1;
        (&mut self.file).take(most).read_to_end(&mut bytes).await.map_err(|_| no_such_file())?;
        // It has grown meanwhile.
        if bytes.len() > self.length { Err(too_long_a_file(max_bytes)) } else { Ok(bytes) }
    }
}

fn no_such_file() -> ApiError {
    invalid("there is no such file in the folders that this server may read")
}

fn too_long_a_file(max_bytes: usize) -> ApiError {
    invalid(format!("the file is larger than {max_bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::super::budget::What;
    use super::*;
    use metrics::Gauge;
    use omni_config::DecodePlace;
    use std::path::Path;
    use std::time::Duration;

    fn config(folders: &[&Path]) -> ReferenceAudioConfig {
        ReferenceAudioConfig {
            min_length: Duration::from_millis(500),
            max_length: Duration::from_secs(60),
            max_bytes: 100,
            allowed_hosts: Vec::new(),
            allowed_folders: folders.iter().map(|folder| folder.to_path_buf()).collect(),
            fetch_timeout: Duration::from_secs(1),
            decode: DecodePlace::Thread,
            decode_timeout: Duration::from_secs(10),
        }
    }

    fn budget() -> Arc<Budget> {
        Budget::new(What::Input, 1 << 20, Gauge::noop())
    }

    async fn load(text: &str, folders: &[&Path]) -> Result<Vec<u8>, String> {
        let config = config(folders);
        let budget = budget();
        let loaded = References::new(&config, &budget).load(text).await;
        loaded.map(|bytes| bytes.to_vec()).map_err(|error| {
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("ref_audio")));
            error.message
        })
    }

    #[tokio::test]
    async fn base64_comes_bare_or_as_a_data_url() {
        for text in
            ["UklGRg==", "UklGRg", " UklG\nRg==\n", "data:audio/wav;base64,UklGRg==", "DATA:;charset=x;BASE64,UklGRg"]
        {
            assert_eq!(load(text, &[]).await.unwrap(), b"RIFF", "{text}");
        }
        assert_eq!(load("-_-_", &[]).await.unwrap(), [0xfb, 0xff, 0xbf]);
    }

    #[tokio::test]
    async fn what_is_neither_is_refused_with_the_reason() {
        for (text, told) in [
            ("", "is empty"),
            ("data:audio/wav;base64,", "there is no data in it"),
            ("data:audio/wav,RIFF", "must be base64"),
            ("data:audio/wav;base64", "no comma"),
            ("UklGR", "is not base64, or was cut off"),
            ("UklG*g==", "is not base64, or was cut off"),
            ("ftp://host/a.wav", "neither base64 nor an address"),
            ("C:\\voice.wav", "neither base64 nor an address"),
            ("http://[half", "is not an address"),
            ("http://example.com/a.wav", "fetches nothing"),
            ("file:///etc/passwd", "reads no files"),
            ("file://other.host/etc/passwd", "is no file of this machine"),
        ] {
            let message = load(text, &[]).await.unwrap_err();
            assert!(message.contains(told), "{text}: {message}");
        }
    }

    #[tokio::test]
    async fn large_recordings_are_refused() {
        let just = base64::prelude::BASE64_STANDARD.encode([7; 100]);
        assert_eq!(load(&just, &[]).await.unwrap().len(), 100);
        for size in [101, 10_000] {
            let much = base64::prelude::BASE64_STANDARD.encode(vec![7; size]);
            assert!(load(&much, &[]).await.unwrap_err().contains("larger than 100 bytes"));
        }
    }

    #[tokio::test]
    async fn files_are_read_from_allowed_folders_only() {
        let root = tempfile::tempdir().unwrap();
        let (open, shut) = (root.path().join("open"), root.path().join("shut"));
        for folder in [&open, &shut, &open.join("inner"), &root.path().join("open-but-other")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(open.join("inner/a b.wav"), b"RIFF").unwrap();
        std::fs::write(shut.join("secret.wav"), b"secret").unwrap();
        std::fs::write(root.path().join("open-but-other/a.wav"), b"other").unwrap();
        std::fs::write(open.join("large.wav"), [0; 101]).unwrap();
        std::os::unix::fs::symlink(shut.join("secret.wav"), open.join("link.wav")).unwrap();
        std::os::unix::fs::symlink(&shut, open.join("folder")).unwrap();
        let url = |path: &Path| Url::from_file_path(path).unwrap().to_string();
        assert_eq!(load(&url(&open.join("inner/a b.wav")), &[&open]).await.unwrap(), b"RIFF");
        for path in
            ["../shut/secret.wav", "link.wav", "folder/secret.wav", "inner", "none.wav", "../open-but-other/a.wav"]
        {
            let plain = format!("file://{}/{path}", open.display());
            let hidden = plain.replace("..", "%2e%2e");
            for url in [plain, hidden] {
                let message = load(&url, &[&open, Path::new("/no/such")]).await.unwrap_err();
                assert!(message.contains("no such file in the folders"), "{url}: {message}");
            }
        }
        assert!(load("file:///dev/zero", &[Path::new("/dev")]).await.unwrap_err().contains("no such file"));
        assert!(load(&url(&open.join("large.wav")), &[&open]).await.unwrap_err().contains("larger than 100 bytes"));
    }

    #[tokio::test]
    async fn one_recording_for_many_items_is_read_once() {
        let config = config(&[]);
        let budget = budget();
        let mut references = References::new(&config, &budget);
        let first = references.load("UklGRg==").await.unwrap();
        assert!(Arc::ptr_eq(&first, &references.load("UklGRg==").await.unwrap()));
        assert!(!Arc::ptr_eq(&first, &references.load("UklGRw==").await.unwrap()));
    }

    #[tokio::test]
    async fn recordings_are_counted_as_long_as_they_are_held() {
        let config = config(&[]);
        let budget = Budget::new(What::Input, 1000, Gauge::noop());
        let recording = base64::prelude::BASE64_STANDARD.encode([7; 90]);
        let mut references = References::new(&config, &budget);
        references.load(&recording).await.unwrap();
        let held = references.held().unwrap();
        assert_eq!(held.bytes(), 90);
        drop(references);
        let mut others = Held::nothing(&budget);
        assert!(others.take(900));
        let refused = References::new(&config, &budget).load(&recording).await.unwrap_err();
        assert_eq!(refused.code, "too_much_input");
        drop((held, others));
        assert!(References::new(&config, &budget).load(&recording).await.is_ok());
    }
}
