//! The files of a checkpoint: a folder, or bytes inside the binary.

use crate::LoadError;
use omni_planes::{Planes, UnpackError};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Name and content of each file of a checkpoint that is part of the binary.
pub type EmbeddedFiles = &'static [(&'static str, Content)];

/// A file inside the binary.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Its bytes.
    Plain(&'static [u8]),
    /// What [`omni_planes::pack()`] made of them.
    Packed(&'static [u8]),
}

/// Where a checkpoint's files come from.
#[derive(Clone, Debug)]
pub enum Files {
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// Bytes that live as long as the program.
    Embedded(EmbeddedFiles),
}

impl Files {
    /// A folder that exists.
    ///
    /// # Errors
    /// [`LoadError::Io`] when it does not, [`LoadError::Invalid`] when it is something else.
    pub fn folder(dir: &Path) -> Result<Files, LoadError> {
        let meta = std::fs::metadata(dir).map_err(|source| LoadError::Io { path: dir.into(), source })?;
        if !meta.is_dir() {
            return Err(LoadError::Invalid {
                file: dir.display().to_string(),
                reason: "is not a folder; give the folder that holds config.json and the weights".into(),
            });
        }
        Ok(Files::Folder(dir.into()))
    }

    /// A folder inside this one, which need not exist. A checkpoint inside the binary has none.
    #[must_use]
    pub fn nested(&self, name: &str) -> Files {
        match self {
            Files::Folder(dir) => Files::Folder(dir.join(name)),
            Files::Embedded(_) => Files::Embedded(&[]),
        }
    }

    /// The whole content of a file, `None` when there is no such file.
    ///
    /// # Errors
    /// [`LoadError::Io`] when it is there and cannot be read, [`LoadError::Invalid`] when it is packed and damaged.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, LoadError> {
        match self {
            Files::Embedded(_) => match self.embedded(name) {
                Some(Content::Plain(bytes)) => Ok(Some(Cow::Borrowed(bytes))),
                Some(Content::Packed(packed)) => {
                    let all = Planes::open(packed).and_then(|planes| planes.read_all());
                    all.map(|bytes| Some(Cow::Owned(bytes))).map_err(|e| damaged(self.label(name), &e))
                }
                None => Ok(None),
            },
            Files::Folder(dir) => {
                let path = dir.join(name);
                match std::fs::read(&path) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(source) => Err(LoadError::Io { path, source }),
                }
            }
        }
    }

    /// The content of a text file, `None` when there is no such file.
    ///
    /// # Errors
    /// Those of [`Files::read`]; [`LoadError::Invalid`] when it is not UTF-8.
    pub fn read_text(&self, name: &str) -> Result<Option<String>, LoadError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        match String::from_utf8(bytes.into_owned()) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(self.invalid(name, format!("is not UTF-8 text: {}", e.utf8_error()))),
        }
    }

    /// A JSON file, `None` when there is no such file.
    ///
    /// # Errors
    /// Those of [`Files::read`]; [`LoadError::Invalid`] with line and column when it is not JSON.
    pub fn read_json(&self, name: &str) -> Result<Option<serde_json::Value>, LoadError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(self.invalid(name, format!("is not valid JSON: {e}"))),
        }
    }

    /// Whether there is such a file.
    pub fn exists(&self, name: &str) -> bool {
        match self {
            Files::Folder(dir) => dir.join(name).is_file(),
            Files::Embedded(_) => self.embedded(name).is_some(),
        }
    }

    /// A file of this name inside the binary.
    pub(super) fn embedded(&self, name: &str) -> Option<Content> {
        match self {
            Files::Embedded(files) => files.iter().find(|f| f.0 == name).map(|f| f.1),
            Files::Folder(_) => None,
        }
    }

    /// How a file is called in messages.
    pub fn label(&self, name: &str) -> String {
        match self {
            Files::Folder(dir) => dir.join(name).display().to_string(),
            Files::Embedded(_) => format!("embedded {name}"),
        }
    }

    /// An error about one file.
    pub fn invalid(&self, name: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Invalid { file: self.label(name), reason: reason.into() }
    }
}

/// The error about a packed file that cannot be read.
pub(super) fn damaged(file: String, error: &UnpackError) -> LoadError {
    LoadError::Invalid { file, reason: format!("{error}; install omni-actors again") }
}
