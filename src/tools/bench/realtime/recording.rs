//! What the users of the conversations say: files, or sentences of the embedded voice, as the pieces of 20 ms that a
//! microphone sends.

use crate::EmbeddedFiles;
use crate::bench::plan::uniform;
use crate::model;
use crate::realtime::speech;
use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use omni_config::Config;
use omni_engine::{Engine, Event, Service, SpeechParams, SpeechRequest, TextSource};
use omni_media::hearing::at_rate;
use omni_media::sound::{AudioLimits, decode_sound};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// What OpenAI's `audio/pcm` has.
const RATE: u32 = 24_000;
/// Of a piece.
pub(super) const PIECE: Duration = Duration::from_millis(20);
/// Samples of it.
const SAMPLES: usize = RATE as usize / 50;
/// Sentences of the embedded voice, where there are no files.
const SENTENCES: usize = 8;
/// Sound that is quieter than this share of the loudest, at the edges of a recording, is not said.
const QUIET: f32 = 0.05;
/// How long the embedded voice gets to stop.
const STOPPING: Duration = Duration::from_secs(10);

/// A recording without the silence at its edges, in whole pieces.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    samples: Vec<i16>,
}

impl Recording {
    /// Of samples at 24 kHz; `None` where none of them is loud.
    pub fn new(pcm: &[f32]) -> Option<Recording> {
        let mut samples: Vec<i16> = spoken(pcm)?.iter().map(|sample| to_i16(*sample)).collect();
        samples.resize(samples.len().next_multiple_of(SAMPLES), 0);
        Some(Recording { samples })
    }

    /// How many pieces it has.
    pub fn pieces(&self) -> usize {
        self.samples.len() / SAMPLES
    }

    /// The event for piece `at`, `input_audio_buffer.append`, in a turn of this number: each has noise of its own, of the
    /// least loudness that there is, so that a server that has heard the recording in another turn has not heard this.
    pub fn piece(&self, at: usize, turn: u64) -> Value {
        let samples = &self.samples[at * SAMPLES..(at + 1) * SAMPLES];
        let noisy = samples
            .iter()
            .zip(at as u64 * SAMPLES as u64..)
            .flat_map(|(sample, number)| sample.saturating_add(i16::from(uniform(turn, number) < 0.5)).to_le_bytes());
        append(&noisy.collect::<Vec<u8>>())
    }

    /// How long it lasts.
    pub fn length(&self) -> Duration {
        PIECE * self.pieces() as u32
    }
}

/// What a microphone sends while nothing is said.
pub(super) fn silence() -> Value {
    append(&[0; 2 * SAMPLES])
}

fn append(bytes: &[u8]) -> Value {
    json!({"type": "input_audio_buffer.append", "audio": BASE64_STANDARD.encode(bytes)})
}

fn to_i16(sample: f32) -> i16 {
    (sample * 32_767.0).clamp(-32_768.0, 32_767.0) as i16
}

/// From the first to the last loud sample.
fn spoken(pcm: &[f32]) -> Option<&[f32]> {
    let loudest = pcm.iter().fold(0f32, |loudest, sample| loudest.max(sample.abs()));
    let is_loud = |sample: &f32| loudest > 0.0 && sample.abs() >= QUIET * loudest;
    Some(&pcm[pcm.iter().position(is_loud)?..=pcm.iter().rposition(is_loud)?])
}

/// The recordings of files.
///
/// # Errors
/// A file that cannot be read, is no sound or is silent.
pub(super) fn from_files(files: &[PathBuf]) -> anyhow::Result<Vec<Recording>> {
    let limits = AudioLimits::default();
    let read = |path: &PathBuf| {
        let name = path.display();
        let bytes = std::fs::read(path).with_context(|| format!("--recording: cannot read {name}"))?;
        let clip = decode_sound(&bytes, &limits).with_context(|| format!("--recording: {name}"))?;
        let pcm = at_rate(clip, RATE).with_context(|| format!("--recording: {name}"))?;
        Recording::new(&pcm).with_context(|| format!("--recording: {name} is silent"))
    };
    files.iter().map(read).collect()
}

/// What the embedded voice makes of the first of these sentences, in an engine that is gone before anything is measured;
/// vowels, in a build that has no voice.
///
/// # Errors
/// The voice said nothing.
pub(super) async fn from_texts(texts: &[String], embedded: Option<EmbeddedFiles>) -> anyhow::Result<Vec<Recording>> {
    if embedded.is_none() {
        let vowels = |seed| speech(seed).into_iter().map(|sample| f32::from(sample) / 32_768.0).collect::<Vec<_>>();
        return Ok((0..SENTENCES as u64).filter_map(|seed| Recording::new(&vowels(seed))).collect());
    }
    let config = Config::default();
    let checkpoint = model::open(&config, embedded)?;
    let engine = Engine::start(&checkpoint, &config).await?;
    let mut recordings = Vec::new();
    for (text, seed) in texts.iter().take(SENTENCES).zip(1..) {
        let params = SpeechParams { seed: Some(seed), ..SpeechParams::default() };
        let mut stream = engine.speak(SpeechRequest { text: TextSource::Whole(text.clone()), params }).await?;
        let mut pcm = Vec::new();
        loop {
            match stream.next().await {
                Some(Event::Audio(chunk)) => pcm.extend_from_slice(&chunk.samples),
                Some(Event::Finished { .. }) => break,
                Some(Event::Failed(error)) => return Err(error).context("the embedded voice failed"),
                Some(_) => {}
                None => anyhow::bail!("the embedded voice ended without a last event"),
            }
        }
        ensure!(engine.info().sample_rate == RATE, "the embedded voice has another sample rate than OpenAI's pcm");
        recordings.extend(Recording::new(&pcm));
    }
    engine.drain(STOPPING).await;
    ensure!(!recordings.is_empty(), "the embedded voice said nothing");
    Ok(recordings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(piece: &Value) -> Vec<u8> {
        BASE64_STANDARD.decode(piece["audio"].as_str().unwrap()).unwrap()
    }

    #[test]
    fn a_recording_begins_and_ends_with_what_is_said_in_whole_pieces() {
        let quiet = vec![0.001; 4_000];
        let pcm = [&quiet[..], &[0.5; 1_000], &[0.0; 700], &[-0.5; 1], &quiet].concat();
        let recording = Recording::new(&pcm).unwrap();
        // 1,701 samples.
        assert_eq!((recording.pieces(), recording.length()), (4, Duration::from_millis(80)));
        let all = |turn| -> Vec<i16> {
            let bytes: Vec<u8> = (0..4).flat_map(|at| bytes(&recording.piece(at, turn))).collect();
            bytes.as_chunks().0.iter().map(|pair| i16::from_le_bytes(*pair)).collect()
        };
        let said = all(1);
        assert_eq!(said.len(), 4 * SAMPLES);
        let near = |at: usize, sample: i16| (sample..=sample + 1).contains(&said[at]);
        assert!(near(0, 16_383) && near(1_700, -16_383) && near(1_701, 0), "with noise of one step");
        assert!(said == all(1) && said != all(2), "which each turn has of its own");
        assert_eq!(bytes(&silence()), vec![0; 960]);
    }

    #[test]
    fn silence_is_no_recording() {
        assert!(Recording::new(&[0.0; 900]).is_none() && Recording::new(&[]).is_none());
    }

    #[test]
    fn samples_out_of_range_are_clipped() {
        assert_eq!([-9.0, -1.0, 0.0, 1.0, 9.0].map(to_i16), [-32_768, -32_767, 0, 32_767, 32_767]);
    }
}
