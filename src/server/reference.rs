//! Recordings of requests: inside the request, at an address, or in a file that the config lets the server read. This
//! module returns bytes; the engine decides whether they are sound.

use super::error::ApiError;
use super::fetch;
use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use omni_config::ReferenceAudioConfig;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use url::Url;

/// Padding may be missing: some clients leave it out.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Reads the recordings of one request. It keeps the last one, which items of a batch often share.
pub(super) struct References<'a> {
    config: &'a ReferenceAudioConfig,
    last: Option<(String, Arc<[u8]>)>,
}

impl<'a> References<'a> {
    pub fn new(config: &'a ReferenceAudioConfig) -> References<'a> {
        References { config, last: None }
    }

    /// The bytes of the recording that `ref_audio` names.
    pub async fn load(&mut self, ref_audio: &str) -> Result<Arc<[u8]>, ApiError> {
        if let Some((text, bytes)) = &self.last
            && text == ref_audio
        {
            return Ok(Arc::clone(bytes));
        }
        let bytes: Arc<[u8]> = match Place::of(ref_audio)? {
            Place::Here(text) => decode(text, self.config.max_bytes)?,
            Place::Address(url) => fetch::fetch(&url, self.config).await.map_err(|error| invalid(error.to_string()))?,
            Place::File(path) => read_file(path, self.config).await?,
        }
        .into();
        self.last = Some((ref_audio.to_owned(), Arc::clone(&bytes)));
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
    ApiError::invalid("ref_audio", format!("ref_audio: {message}"))
}

/// Base64, of either alphabet, with or without line breaks and padding.
fn decode(text: &str, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
    let clean: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if clean.is_empty() {
        return Err(invalid("there is no audio in it"));
    }
    let too_large = || invalid(format!("is larger than {max_bytes} bytes; send a shorter or compressed recording"));
    // Four letters are three bytes, so the size is known before anything is decoded.
    if clean.len() / 4 * 3 > max_bytes.saturating_add(3) {
        return Err(too_large());
    }
    let url_safe = clean.iter().any(|byte| matches!(byte, b'-' | b'_'));
    let engine = GeneralPurpose::new(if url_safe { &URL_SAFE } else { &STANDARD }, LENIENT);
    let bytes = engine
        .decode(&clean)
        .map_err(|error| invalid(format!("is not base64, or was cut off: {}", error.to_string().to_lowercase())))?;
    if bytes.len() > max_bytes { Err(too_large()) } else { Ok(bytes) }
}

/// A file in one of the folders that the config allows, links and `..` resolved. Every failure has the same words, so
/// that a client cannot find out which files exist.
async fn read_file(path: PathBuf, config: &ReferenceAudioConfig) -> Result<Vec<u8>, ApiError> {
    if config.allowed_folders.is_empty() {
        return Err(invalid("this server reads no files; send base64 or a data URL (reference_audio.allowed_folders)"));
    }
    let refuse = || invalid("there is no such file in the folders that this server may read");
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
    let mut bytes = Vec::new();
    file.take(config.max_bytes as u64 + 1).read_to_end(&mut bytes).await.map_err(|_| refuse())?;
    if bytes.len() > config.max_bytes {
        return Err(invalid(format!("the file is larger than {} bytes", config.max_bytes)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        }
    }

    async fn load(text: &str, folders: &[&Path]) -> Result<Vec<u8>, String> {
        let config = config(folders);
        let loaded = References::new(&config).load(text).await;
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
            ("data:audio/wav;base64,", "there is no audio in it"),
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
        let mut references = References::new(&config);
        let first = references.load("UklGRg==").await.unwrap();
        assert!(Arc::ptr_eq(&first, &references.load("UklGRg==").await.unwrap()));
    }
}
