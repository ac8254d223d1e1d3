//! The file of a voice: one per voice, written whole or not at all.
//!
//! `OMNV`, version (u16), length of the body (u64), CRC-32 of the body (u32), all little-endian, then the body. A file
//! is written beside its place, flushed to the disk and renamed, so whatever happens to the process, a voice is there
//! with all it has or not there.
//!
//! The body of version 2 needs no library to be read: the length of a JSON object (u32), the object, then its arrays:
//! the recording as it came, the x-vector (f32), the codes (u32), as many of each as the object says. A later version
//! may add fields to the object, which this one ignores. Version 1, in bincode, is read and not written.

use omni_fault::{FaultKind, FaultSite};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"OMNV";
/// The version that is written.
const VERSION: u16 = 2;
/// Bincode.
const FIRST_VERSION: u16 = 1;
/// How bincode writes `None`.
const NONE: u8 = 0;
const HEADER: usize = 4 + 2 + 8 + 4;
/// No accepted voice is larger; a header that says so is damaged.
const MAX_BODY: u64 = 1 << 30;
/// The ending of a file until it is complete.
const PARTIAL: &str = "partial";
/// The ending of a voice's file.
pub(super) const ENDING: &str = "voice";

/// The content of a voice's file.
///
/// The order and the types of the fields are those of version 1.
#[derive(Clone, Debug, PartialEq, bincode::Decode)]
#[cfg_attr(test, derive(bincode::Encode))]
pub(super) struct Kept {
    pub name: String,
    /// Unix seconds.
    pub created_at: u64,
    pub consent: String,
    pub description: Option<String>,
    pub ref_text: Option<String>,
    pub mime_type: Option<String>,
    /// The recording as it came, empty for an x-vector: from it the voice is encoded again for another checkpoint.
    pub audio: Vec<u8>,
    /// Length of the recording.
    pub seconds: f32,
    /// Which encoder made what follows.
    pub encoder: [u8; 32],
    pub x_vector: Vec<f32>,
    /// Frame after frame; empty without a transcript.
    pub codes: Vec<u32>,
    /// Name of the API key that it came with.
    pub owner: Option<String>,
}

/// The object of version 2.
#[derive(serde::Serialize, serde::Deserialize)]
struct Head {
    name: String,
    created_at: u64,
    consent: String,
    description: Option<String>,
    ref_text: Option<String>,
    mime_type: Option<String>,
    seconds: f32,
    /// In hexadecimal.
    encoder: String,
    /// Bytes of the recording.
    audio: usize,
    /// Numbers of the x-vector.
    x_vector: usize,
    /// How many codes there are.
    codes: usize,
    owner: Option<String>,
}

/// The file of a voice: names differ when they differ in more than case, and no name leads out of the folder.
pub(super) fn path_of(folder: &Path, name: &str) -> PathBuf {
    let hash = super::sha256(&[name.to_lowercase().as_bytes()]);
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("{hex}.{ENDING}"))
}

/// Makes the folder if it is not there, readable for this user alone: it holds recordings of people.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Writes a voice to its place. When this returns `Ok`, it survives a power cut.
pub(super) fn write(path: &Path, voice: &Kept, fault: &FaultSite) -> io::Result<()> {
    let body = encoded(voice)?;
    let partial = path.with_extension(PARTIAL);
    let written = (|| {
        let mut file = File::create(&partial)?;
        file.write_all(&MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.write_all(&(body.len() as u64).to_le_bytes())?;
        file.write_all(&crc32fast::hash(&body).to_le_bytes())?;
        if fault.occurs(|| None).is_some_and(|hit| hit.kind == FaultKind::Full) {
            file.write_all(&body[..body.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all(&body)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)?;
        sync_folder(path)
    })();
    if written.is_err() {
        // The next start removes what is left of it.
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// Removes a voice for good.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)?;
    sync_folder(path)
}

/// Reads a voice; the error says what is wrong with the file.
pub(super) fn read(path: &Path) -> Result<Kept, String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|_| "it is cut short".to_owned())?;
    let (magic, rest) = header.split_at(4);
    let (version, rest) = rest.split_at(2);
    let (length, checksum) = rest.split_at(8);
    if magic != MAGIC {
        return Err("it is not a voice".into());
    }
    let version = u16::from_le_bytes(version.try_into().unwrap_or_default());
    if !(FIRST_VERSION..=VERSION).contains(&version) {
        return Err(format!("it has version {version} and was written by a later version of this program"));
    }
    let length = u64::from_le_bytes(length.try_into().unwrap_or_default());
    if length > MAX_BODY {
        return Err(format!("it claims to be {length} bytes long"));
    }
    let mut body = Vec::new();
    file.take(length + 1).read_to_end(&mut body).map_err(|error| error.to_string())?;
    if body.len() as u64 != length {
        return Err("it is cut short or too long".into());
    }
    if crc32fast::hash(&body).to_le_bytes() != checksum {
        return Err("its checksum does not match".into());
    }
    if version == FIRST_VERSION { decoded_first(&body) } else { decoded(&body) }
}

fn encoded(voice: &Kept) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(&Head {
        name: voice.name.clone(),
        created_at: voice.created_at,
        consent: voice.consent.clone(),
        description: voice.description.clone(),
        ref_text: voice.ref_text.clone(),
        mime_type: voice.mime_type.clone(),
        seconds: voice.seconds,
        encoder: voice.encoder.iter().map(|byte| format!("{byte:02x}")).collect(),
        audio: voice.audio.len(),
        x_vector: voice.x_vector.len(),
        codes: voice.codes.len(),
        owner: voice.owner.clone(),
    })?;
    let mut body = u32::try_from(head.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    body.extend(head);
    body.extend(&voice.audio);
    body.extend(voice.x_vector.iter().flat_map(|number| number.to_le_bytes()));
    body.extend(voice.codes.iter().flat_map(|code| code.to_le_bytes()));
    Ok(body)
}

fn decoded(body: &[u8]) -> Result<Kept, String> {
    let cut = || "its lengths do not fit".to_owned();
    let (length, rest) = body.split_first_chunk().ok_or_else(cut)?;
    let (head, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
    let head: Head = serde_json::from_slice(head).map_err(|error| error.to_string())?;
    let (audio, rest) = rest.split_at_checked(head.audio).ok_or_else(cut)?;
    let bytes = |numbers: usize| numbers.checked_mul(4).ok_or_else(cut);
    let (x_vector, codes) = rest.split_at_checked(bytes(head.x_vector)?).ok_or_else(cut)?;
    if codes.len() != bytes(head.codes)? {
        return Err("it has more in it than a voice".into());
    }
    let four = |bytes: &[u8]| -> [u8; 4] { bytes.try_into().unwrap_or_default() };
    Ok(Kept {
        encoder: from_hex(&head.encoder).ok_or("its encoder is no fingerprint")?,
        name: head.name,
        created_at: head.created_at,
        consent: head.consent,
        description: head.description,
        ref_text: head.ref_text,
        mime_type: head.mime_type,
        audio: audio.to_vec(),
        seconds: head.seconds,
        owner: head.owner,
        x_vector: x_vector.chunks_exact(4).map(|bytes| f32::from_le_bytes(four(bytes))).collect(),
        codes: codes.chunks_exact(4).map(|bytes| u32::from_le_bytes(four(bytes))).collect(),
    })
}

fn decoded_first(body: &[u8]) -> Result<Kept, String> {
    // It had no owner yet.
    let body = [body, &[NONE]].concat();
    let decoded = bincode::decode_from_slice(&body, config()).map_err(|error| error.to_string())?;
    let (voice, used): (Kept, usize) = decoded;
    if used == body.len() { Ok(voice) } else { Err("it has more in it than a voice".into()) }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks_exact(2).map(|pair| pair[0] * 16 + pair[1]).collect();
    bytes.try_into().ok().filter(|_| text.len() == 64)
}

/// What is in the folder: files of voices. Leftovers of a process that was killed while writing are removed.
pub(super) fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some(ENDING) => found.push(path),
            Some(PARTIAL) => std::fs::remove_file(&path)?,
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<{ MAX_BODY as usize }>()
}

/// A rename lasts once the folder is on the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn voice() -> Kept {
        Kept {
            name: "Clara".into(),
            created_at: 1_700_000_000,
            consent: "signed form 12".into(),
            description: None,
            ref_text: Some("good morning".into()),
            mime_type: Some("audio/wav".into()),
            audio: (0..200).collect(),
            seconds: 2.5,
            encoder: [7; 32],
            x_vector: vec![0.25, -1.0],
            codes: vec![1, 2, 3, 4],
            owner: Some("alice".into()),
        }
    }

    #[test]
    fn a_voice_comes_back_as_it_went_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), "Clara");
        write(&path, &voice(), &FaultSite::default()).unwrap();
        assert_eq!(read(&path).unwrap(), voice());
        assert_eq!(list(folder.path()).unwrap(), std::slice::from_ref(&path));
        remove(&path).unwrap();
        assert_eq!(list(folder.path()).unwrap(), Vec::<PathBuf>::new());
    }

    /// What version 0.1.0 wrote.
    const FIRST: &[u8] = include_bytes!("version_1.voice");

    #[test]
    fn a_file_of_the_first_version_is_read_and_has_no_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), "Clara");
        std::fs::write(&path, FIRST).unwrap();
        let voice = Kept { owner: None, ..voice() };
        assert_eq!(read(&path).unwrap(), voice);
        let mut body = bincode::encode_to_vec(voice, config()).unwrap();
        assert_eq!(body.pop(), Some(NONE));
        assert_eq!(FIRST[HEADER..], body);
    }

    #[test]
    fn a_later_version_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), "Clara");
        let mut later = FIRST.to_vec();
        later[4] = 3;
        std::fs::write(&path, later).unwrap();
        assert!(read(&path).unwrap_err().contains("version 3"));
    }

    #[test]
    fn a_field_that_a_later_program_adds_is_ignored_and_one_that_is_missing_refused() {
        let body = encoded(&voice()).unwrap();
        let length = u32::from_le_bytes(body[..4].try_into().unwrap()) as usize;
        let head = std::str::from_utf8(&body[4..4 + length]).unwrap();
        let with = |head: &str| [&(head.len() as u32).to_le_bytes(), head.as_bytes(), &body[4 + length..]].concat();
        assert_eq!(decoded(&with(&head.replacen('{', "{\"accent\":\"none\",", 1))).unwrap(), voice());
        assert!(decoded(&with(&head.replacen("\"consent\"", "\"conceit\"", 1))).unwrap_err().contains("consent"));
    }

    #[cfg(unix)]
    #[test]
    fn a_new_folder_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("kept/voices");
        make_folder(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        make_folder(&folder).unwrap();
    }

    #[test]
    fn names_stay_in_the_folder_and_ignore_case() {
        let folder = Path::new("voices");
        assert_eq!(path_of(folder, "Clara"), path_of(folder, "cLARA"));
        assert_ne!(path_of(folder, "Clara"), path_of(folder, "Clara "));
        for name in ["../../etc/passwd", "/etc/passwd", "a/b", "", "\0"] {
            assert_eq!(path_of(folder, name).parent(), Some(folder));
        }
    }

    #[test]
    fn what_a_killed_process_left_is_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let partial = path_of(folder.path(), "Clara").with_extension(PARTIAL);
        std::fs::write(&partial, b"OMNV half of a voi").unwrap();
        assert_eq!(list(folder.path()).unwrap(), Vec::<PathBuf>::new());
        assert!(!partial.exists());
    }

    proptest! {
        /// The checksum is no protection against a file that was made to harm.
        #[test]
        fn a_hostile_body_is_refused_and_never_panics(at in 0..1000usize, byte in any::<u8>(), cut in 0..1000usize) {
            let good = encoded(&voice()).unwrap();
            let mut body = good.clone();
            body[at % good.len()] = byte;
            let _ = decoded(&body);
            body.truncate(cut % good.len());
            let _ = decoded(&body);
        }

        #[test]
        fn a_damaged_file_is_refused_and_never_panics(at in 0..1000usize, bit in 0..8u8, cut in 0..1000usize) {
            let folder = tempfile::tempdir().unwrap();
            let path = path_of(folder.path(), "Clara");
            write(&path, &voice(), &FaultSite::default()).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(read(&path).is_err());
            bytes[at] ^= 1 << bit;
            bytes.truncate(cut % bytes.len());
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(read(&path).is_err());
        }
    }
}
