//! Where the speech of `say` goes: a file that appears whole or not at all, or standard output while it is made.

use anyhow::Context;
use omni_audio::AudioWriter;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Stdout, Write};
use std::path::{Path, PathBuf};

/// Speech that is being written.
pub(super) struct SpeechSink {
    writer: AudioWriter,
    place: Place,
}

enum Place {
    /// A file under a temporary name.
    File(PartialFile),
    /// Standard output: the beginning cannot be corrected afterwards, so a wav leaves its length open.
    Stdout(Stdout),
}

/// Removes itself unless it is finished.
struct PartialFile {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl SpeechSink {
    /// `-` is standard output.
    ///
    /// # Errors
    /// A folder that is not there or may not be written.
    pub fn open(path: &Path, writer: AudioWriter) -> anyhow::Result<SpeechSink> {
        if path == Path::new("-") {
            return Ok(SpeechSink { writer, place: Place::Stdout(std::io::stdout()) });
        }
        let name = path.file_name().with_context(|| format!("{}: is not the name of a file", path.display()))?;
        let partial = path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
        let file = File::create(&partial).with_context(|| format!("cannot write {}", path.display()))?;
        let file = PartialFile { file: BufWriter::new(file), partial, path: path.to_owned(), finished: false };
        Ok(SpeechSink { writer, place: Place::File(file) })
    }

    /// Appends samples in [-1, 1].
    pub fn write(&mut self, samples: &[f32]) -> anyhow::Result<()> {
        let bytes = self.writer.push(samples)?;
        self.place.write(&bytes)
    }

    /// Writes the rest of the file and its final header, and gives it its name.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let rest = self.writer.finish()?;
        self.place.write(&rest)?;
        if let Place::File(mut file) = self.place {
            if let Some(front) = self.writer.front() {
                file.file.seek(SeekFrom::Start(0))?;
                file.file.write_all(&front)?;
            }
            file.file.flush()?;
            std::fs::rename(&file.partial, &file.path)
                .with_context(|| format!("cannot write {}", file.path.display()))?;
            file.finished = true;
        }
        Ok(())
    }
}

impl Place {
    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Place::File(file) => {
                file.file.write_all(bytes).with_context(|| format!("cannot write {}", file.path.display()))
            }
            Place::Stdout(stdout) => {
                // Heard while it is made: nothing may wait in a buffer.
                stdout.write_all(bytes).and_then(|()| stdout.flush()).context("cannot write to standard output")
            }
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished {
            // The command has ended, so an error has no reader; the worst is a hidden file that stays.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_audio::{AudioFormat, Sound};

    fn writer(format: AudioFormat) -> AudioWriter {
        Sound::from(format).writer(24_000).unwrap()
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_finished_file_has_the_right_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        let mut sink = SpeechSink::open(&path, writer(AudioFormat::Wav)).unwrap();
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
        let mut sink = SpeechSink::open(&folder.path().join("a.mp3"), writer(AudioFormat::Mp3)).unwrap();
        sink.write(&[0.0; 100]).unwrap();
        drop(sink);
        assert!(files(folder.path()).is_empty());
    }

    #[test]
    fn a_missing_folder_is_told_with_the_name_that_was_asked_for() {
        let opened = SpeechSink::open(Path::new("no/such/a.wav"), writer(AudioFormat::Wav));
        assert_eq!(opened.err().unwrap().to_string(), "cannot write no/such/a.wav");
    }
}
