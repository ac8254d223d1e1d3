//! The file of a voice: one per voice, written whole or not at all.
//!
//! `OMNV`, version (u16), length of the body (u64), CRC-32 of the body (u32), all little-endian, then the body in
//! bincode. A file is written beside its place, flushed to the disk and renamed, so whatever happens to the process, a
//! voice is there with all it has or not there.

use omni_fault::{FaultKind, FaultSite};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"OMNV";
/// Version 1 had no owner.
const VERSION: u16 = 2;
/// How `None` is written.
const NO_OWNER: u8 = 0;
const HEADER: usize = 4 + 2 + 8 + 4;
/// No accepted voice is larger; a header that says so is damaged.
const MAX_BODY: u64 = 1 << 30;
/// The ending of a file until it is complete.
const PARTIAL: &str = "partial";
/// The ending of a voice's file.
pub(super) const ENDING: &str = "voice";

/// The content of a voice's file.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
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
    let body = bincode::encode_to_vec(voice, config()).map_err(io::Error::other)?;
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
    if !(1..=VERSION).contains(&version) {
        return Err("it was written by another version of this program".into());
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
    if version == 1 {
        body.push(NO_OWNER);
    }
    let decoded = bincode::decode_from_slice(&body, config()).map_err(|error| error.to_string())?;
    let (voice, used): (Kept, usize) = decoded;
    if used == body.len() { Ok(voice) } else { Err("it has more in it than a voice".into()) }
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
    fn a_voice_of_the_first_version_is_read_and_has_no_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), "Clara");
        let voice = Kept { owner: None, ..voice() };
        let mut body = bincode::encode_to_vec(&voice, config()).unwrap();
        assert_eq!(body.pop(), Some(NO_OWNER));
        let length = (body.len() as u64).to_le_bytes();
        let checksum = crc32fast::hash(&body).to_le_bytes();
        let file = [&MAGIC[..], &1_u16.to_le_bytes(), &length, &checksum, &body].concat();
        std::fs::write(&path, file).unwrap();
        assert_eq!(read(&path).unwrap(), voice);
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
