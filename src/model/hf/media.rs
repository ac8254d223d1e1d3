//! What the front ends of Qwen3-Omni need of `config.json` and `preprocessor_config.json`: ids of placeholders, the
//! scale of positions, shapes of spectra and patches.

use super::json::{Node, Problems};
use crate::LoadError;
use crate::weights::Files;
use omni_media::mel::MelConfig;
use omni_media::patches::PatchConfig;
use omni_media::size::SizeRule;
use serde_json::Value;

const CONFIG: &str = "config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";
/// Tokens of a frame of a video, least and most. No file of the checkpoint has them: they are defaults of the
/// reference's processor (`Qwen3OmniMoeProcessorKwargs` in transformers 5.23.0), which writes them as pixels.
const FRAME_TOKENS: [usize; 2] = [128, 768];

/// The front ends of one checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct MediaConfig {
    /// Ids of the prompt.
    pub tokens: MediaTokens,
    /// Positions of a second of sound or video (`position_id_per_seconds`).
    pub positions_per_second: f32,
    /// Half of the mel frames that the audio tower convolves at once (`audio_config.n_window`).
    pub n_window: usize,
    /// The spectrum that is heard.
    pub mel: MelConfig,
    /// How pictures are cut.
    pub patches: PatchConfig,
    /// Sizes of images.
    pub image: SizeRule,
    /// Sizes of a video's frames.
    pub video: SizeRule,
}

/// Ids with a meaning for media, in the thinker's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it all")]
pub struct MediaTokens {
    pub audio: u32,
    pub image: u32,
    pub video: u32,
    pub vision_start: u32,
    pub vision_end: u32,
    pub audio_start: u32,
    pub audio_end: u32,
}

impl MediaConfig {
    /// Reads both files of a checkpoint.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] with everything that is missing or wrong, one line each.
    pub fn load(files: &Files) -> Result<MediaConfig, LoadError> {
        let missing = |file| files.invalid(file, "does not exist, but a checkpoint that hears and sees has it");
        let config = files.read_json(CONFIG)?.ok_or_else(|| missing(CONFIG))?;
        let preprocessor = files.read_json(PREPROCESSOR)?.ok_or_else(|| missing(PREPROCESSOR))?;
        MediaConfig::parse(&config, &preprocessor).map_err(|(file, list)| files.invalid(file, list.join("\n  ")))
    }

    /// Reads `config.json` and `preprocessor_config.json`.
    ///
    /// # Errors
    /// The file that is wrong, and everything that is wrong with it, one line each.
    pub fn parse(config: &Value, preprocessor: &Value) -> Result<MediaConfig, (&'static str, Vec<String>)> {
        let problems = Problems::default();
        let thinker = Node::root(config, &problems).object("thinker_config");
        let tokens = MediaTokens {
            audio: thinker.id("audio_token_id"),
            image: thinker.id("image_token_id"),
            video: thinker.id("video_token_id"),
            vision_start: thinker.id("vision_start_token_id"),
            vision_end: thinker.id("vision_end_token_id"),
            audio_start: thinker.id("audio_start_token_id"),
            audio_end: thinker.id("audio_end_token_id"),
        };
        let positions_per_second = thinker.positive("position_id_per_seconds") as f32;
        let n_window = thinker.object("audio_config").size("n_window");
        let vision = thinker.object("vision_config");
        let tower = [
            ("patch_size", vision.size("patch_size")),
            ("merge_size", vision.size("spatial_merge_size")),
            ("temporal_patch_size", vision.size("temporal_patch_size")),
        ];
        let problems = problems.into_vec();
        if !problems.is_empty() {
            return Err((CONFIG, problems));
        }
        let problems = Problems::default();
        let root = Node::root(preprocessor, &problems);
        let colours = |key: &str| match root.optional_numbers(key).as_deref() {
            Some([r, g, b]) => [*r, *g, *b],
            _ => {
                problems.add(format!("{key}: expected a list of three numbers"));
                [0.5; 3]
            }
        };
        let patches = PatchConfig {
            patch_size: root.size("patch_size"),
            merge_size: root.size("merge_size"),
            temporal_patch_size: root.size("temporal_patch_size"),
            mean: colours("image_mean"),
            std: colours("image_std"),
        };
        for (key, tower) in tower {
            problems.require(root.optional_size(key).is_none_or(|size| size == tower), || {
                format!("{key} differs from {tower}, which thinker_config.vision_config of {CONFIG} has")
            });
        }
        problems.require(patches.std.iter().all(|std| *std > 0.0), || "image_std: expected numbers above 0".into());
        let mel = MelConfig {
            rate: root.size("sampling_rate") as u32,
            window: root.size("n_fft"),
            hop: root.size("hop_length"),
            bands: root.size("feature_size"),
        };
        let dither = root.optional_between("dither", 0.0, f64::MAX).unwrap_or(0.0);
        problems.require(dither == 0.0, || format!("dither = {dither} is not served: expected 0"));
        let factor = patches.factor();
        let image = SizeRule { factor, min_pixels: root.size("min_pixels"), max_pixels: root.size("max_pixels") };
        let [min_pixels, max_pixels] = FRAME_TOKENS.map(|tokens| tokens * factor * factor);
        let video = SizeRule { factor, min_pixels, max_pixels };
        let problems = problems.into_vec();
        if !problems.is_empty() {
            return Err((PREPROCESSOR, problems));
        }
        Ok(MediaConfig { tokens, positions_per_second, n_window, mel, patches, image, video })
    }
}
