//! Where the speech of `say` goes: a file that appears whole or not at all, or standard output while it is made.

use crate::server::{WAV_HEADER, push_pcm16, wav_header};
use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Stdout, Write};
use std::path::{Path, PathBuf};

/// A wav that is being written.
pub(super) enum WavSink {
    /// A file under a temporary name.
    File(PartialFile),
    /// Standard output: the header cannot be corrected afterwards, so it leaves the length open.
    Stdout(Stdout),
}

/// Removes itself unless it is finished.
pub(super) struct PartialFile {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
    sample_rate: u32,
    bytes: usize,
    finished: bool,
}

impl WavSink {
    /// `-` is standard output.
    ///
    /// # Errors
    /// A folder that is not there or may not be written.
    pub fn open(path: &Path, sample_rate: u32) -> anyhow::Result<WavSink> {
        if path == Path::new("-") {
            let mut stdout = std::io::stdout();
            stdout.write_all(&wav_header(sample_rate, None))?;
            return Ok(WavSink::Stdout(stdout));
        }
        let name = path.file_name().with_context(|| format!("{}: is not the name of a file", path.display()))?;
        let partial = path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
        let file = File::create(&partial).with_context(|| format!("cannot write {}", path.display()))?;
        let mut sink = PartialFile {
            file: BufWriter::new(file),
            partial,
            path: path.to_owned(),
            sample_rate,
            bytes: 0,
            finished: false,
        };
        sink.file.write_all(&[0; WAV_HEADER])?;
        Ok(WavSink::File(sink))
    }

    /// Appends samples in [-1, 1].
    pub fn write(&mut self, samples: &[f32]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        push_pcm16(samples, &mut bytes);
        match self {
            WavSink::File(sink) => {
                sink.bytes += bytes.len();
                sink.file.write_all(&bytes).with_context(|| format!("cannot write {}", sink.path.display()))
            }
            WavSink::Stdout(stdout) => {
                // Heard while it is made: nothing may wait in a buffer.
                stdout.write_all(&bytes).and_then(|()| stdout.flush()).context("cannot write to standard output")
            }
        }
    }

    /// Gives the file its sizes and its name.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            WavSink::Stdout(mut stdout) => Ok(stdout.flush()?),
            WavSink::File(mut sink) => {
                let size = u32::try_from(sink.bytes).ok();
                sink.file.seek(SeekFrom::Start(0))?;
                sink.file.write_all(&wav_header(sink.sample_rate, size))?;
                sink.file.flush()?;
                std::fs::rename(&sink.partial, &sink.path)
                    .with_context(|| format!("cannot write {}", sink.path.display()))?;
                sink.finished = true;
                Ok(())
            }
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished {
            // Nobody is left to tell; the worst is a hidden file that stays.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_finished_file_has_the_right_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        let mut sink = WavSink::open(&path, 24_000).unwrap();
        sink.write(&[0.0, 0.5]).unwrap();
        sink.write(&[-0.5]).unwrap();
        assert!(!path.exists());
        sink.finish().unwrap();
        let mut reader = hound::WavReader::open(&path).unwrap();
        assert_eq!((reader.spec().sample_rate, reader.spec().channels), (24_000, 1));
        assert_eq!(reader.samples::<i16>().map(Result::unwrap).collect::<Vec<_>>(), [0, 16384, -16384]);
        assert_eq!(files(folder.path()), ["a.wav"]);
    }

    #[test]
    fn an_abandoned_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = WavSink::open(&folder.path().join("a.wav"), 24_000).unwrap();
        sink.write(&[0.0; 100]).unwrap();
        drop(sink);
        assert!(files(folder.path()).is_empty());
    }

    #[test]
    fn a_missing_folder_is_told_with_the_name_that_was_asked_for() {
        let told = WavSink::open(Path::new("no/such/a.wav"), 24_000).err().unwrap().to_string();
        assert_eq!(told, "cannot write no/such/a.wav");
    }
}
