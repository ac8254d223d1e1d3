//! Config of Qwen3-ForcedAligner: an audio tower, a decoder stack, a head of times. `model_type` is "qwen3_asr";
//! "forced_aligner" in `thinker_config.model_type` gives the head another size.

use super::json::{Node, Problems};
use super::{AudioTowerConfig, DecoderConfig};
use omni_media::mel::MelConfig;
use serde_json::Value;

/// A class of the head lasts this long at most: more is a typo.
const LONGEST_SEGMENT_MS: f64 = 10_000.0;

/// Sizes and ids of one checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedAlignerConfig {
    /// Sound to embeddings.
    pub audio: AudioTowerConfig,
    /// The layers that read them.
    pub text: DecoderConfig,
    /// Classes of the head: times from 0 on.
    pub classes: usize,
    /// Milliseconds from one class to the next.
    pub segment_ms: f64,
    /// Placeholder of an embedding of sound.
    pub audio_token: u32,
    /// In front of the sound.
    pub audio_start: u32,
    /// Behind the sound.
    pub audio_end: u32,
    /// Where a time is asked for.
    pub timestamp: u32,
    /// The spectrum that is heard.
    pub mel: MelConfig,
}

impl ForcedAlignerConfig {
    /// Reads `config.json`, but for [`ForcedAlignerConfig::mel`], and `preprocessor_config.json`.
    ///
    /// # Errors
    /// Which of the two is wrong (`true`: the first) and everything that is wrong with it, one line each.
    pub fn parse(config: &Value, preprocessor: &Value) -> Result<ForcedAlignerConfig, (bool, Vec<String>)> {
        let inner = config.get("thinker_config").and_then(|thinker| thinker.get("model_type")).and_then(Value::as_str);
        let outer = config.get("model_type").and_then(Value::as_str);
        // As the reference tells an aligner from a recognizer of speech, which have the same layout.
        if outer != Some("qwen3_asr") || !inner.is_some_and(|kind| kind.contains("forced_aligner")) {
            let found = |kind: Option<&str>| kind.map_or("missing".to_owned(), |kind| format!("{kind:?}"));
            return Err((
                true,
                vec![format!(
                    "is no aligner: model_type is {} and thinker_config.model_type is {}; expected \"qwen3_asr\" and \
                 \"qwen3_forced_aligner\", as Qwen3-ForcedAligner-0.6B has",
                    found(outer),
                    found(inner)
                )],
            ));
        }
        let problems = Problems::default();
        let root = Node::root(config, &problems);
        let thinker = root.object("thinker_config");
        let audio = AudioTowerConfig::read(&thinker.object("audio_config"));
        let text = DecoderConfig::read(&thinker.object("text_config"));
        let classes = thinker.size("classify_num");
        let segment_ms = root.positive("timestamp_segment_time");
        let ids = [
            ("thinker_config.audio_token_id", thinker.id("audio_token_id")),
            ("thinker_config.audio_start_token_id", thinker.id("audio_start_token_id")),
            ("thinker_config.audio_end_token_id", thinker.id("audio_end_token_id")),
            ("timestamp_token_id", root.id("timestamp_token_id")),
        ];
        problems.require(segment_ms <= LONGEST_SEGMENT_MS, || {
            format!("timestamp_segment_time = {segment_ms}: expected at most {LONGEST_SEGMENT_MS} ms")
        });
        problems.require(audio.output_dim == text.hidden_size, || {
            format!(
                "thinker_config.audio_config.output_dim = {} differs from thinker_config.text_config.hidden_size = {}",
                audio.output_dim, text.hidden_size
            )
        });
        for (key, id) in ids {
            problems.require((id as usize) < text.vocab_size, || {
                format!("{key} = {id} is outside the vocabulary of {}", text.vocab_size)
            });
        }
        let list = problems.into_vec();
        if !list.is_empty() {
            return Err((true, list));
        }
        let mel = mel(preprocessor, audio.num_mel_bins).map_err(|list| (false, list))?;
        let [audio_token, audio_start, audio_end, timestamp] = ids.map(|(_, id)| id);
        Ok(ForcedAlignerConfig {
            audio,
            text,
            classes,
            segment_ms,
            audio_token,
            audio_start,
            audio_end,
            timestamp,
            mel,
        })
    }
}

/// The spectrum, for a tower that takes so many bins.
fn mel(preprocessor: &Value, bins: usize) -> Result<MelConfig, Vec<String>> {
    let problems = Problems::default();
    let root = Node::root(preprocessor, &problems);
    let mel = MelConfig {
        rate: root.size("sampling_rate") as u32,
        window: root.size("n_fft"),
        hop: root.size("hop_length"),
        bands: root.size("feature_size"),
    };
    let dither = root.optional_between("dither", 0.0, f64::MAX).unwrap_or(0.0);
    problems.require(dither == 0.0, || format!("dither = {dither} is not served: expected 0"));
    problems.require(mel.bands == bins, || {
        format!("feature_size = {} differs from the {bins} num_mel_bins of the audio tower", mel.bands)
    });
    let list = problems.into_vec();
    if list.is_empty() { Ok(mel) } else { Err(list) }
}
