//! Config of the speaker encoder of Qwen3-TTS Base (ECAPA-TDNN).

use super::json::Node;
use super::omni::SAMPLE_RATE;

/// Spectrum of a voice to an x-vector.
///
/// The real checkpoints say only the width of an x-vector. The rest are the defaults of the reference's config class,
/// with which they were trained.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerEncoderConfig {
    /// Bands of the spectrum.
    pub mel_dim: usize,
    /// Width of an x-vector.
    pub enc_dim: usize,
    /// Width of the first layer, of each block, and of what the blocks are brought together to.
    pub channels: Vec<usize>,
    /// Taps of the same.
    pub kernel_sizes: Vec<usize>,
    /// Distance of the taps of the same.
    pub dilations: Vec<usize>,
    /// Width of the attention over time.
    pub attention_channels: usize,
    /// Parts that a block cuts its channels into.
    pub res2net_scale: usize,
    /// Width of the squeeze of a block.
    pub se_channels: usize,
}

impl SpeakerEncoderConfig {
    /// Reads a `speaker_encoder_config`.
    pub fn read(node: &Node<'_>) -> SpeakerEncoderConfig {
        let before = node.problems().len();
        let sizes = |key: &str, default: [usize; 5]| node.optional_sizes(key).unwrap_or_else(|| default.into());
        let size = |key: &str, default| node.optional_size(key).unwrap_or(default);
        let config = SpeakerEncoderConfig {
            mel_dim: size("mel_dim", 128),
            enc_dim: node.size("enc_dim"),
            channels: sizes("enc_channels", [512, 512, 512, 512, 1536]),
            kernel_sizes: sizes("enc_kernel_sizes", [5, 3, 3, 3, 1]),
            dilations: sizes("enc_dilations", [1, 2, 3, 4, 1]),
            attention_channels: size("enc_attention_channels", 128),
            res2net_scale: size("enc_res2net_scale", 8),
            se_channels: size("enc_se_channels", 128),
        };
        let rate = size("sample_rate", SAMPLE_RATE as usize);
        node.problems().require(rate == SAMPLE_RATE as usize, || {
            format!("{} = {rate}: expected {SAMPLE_RATE}", node.path_of("sample_rate"))
        });
        if node.problems().len() == before {
            config.check(node);
        }
        config
    }

    fn check(&self, node: &Node<'_>) {
        let (channels, path) = (&self.channels, node.path_of("enc_channels"));
        let problems = node.problems();
        let layers = channels.len();
        problems.require(layers >= 3 && [self.kernel_sizes.len(), self.dilations.len()] == [layers; 2], || {
            format!(
                "{path} has {layers} entries: expected at least 3, and as many in enc_kernel_sizes and enc_dilations"
            )
        });
        let (Some((last, rest)), Some(first)) = (channels.split_last(), channels.first()) else { return };
        problems.require(rest.iter().all(|width| width == first), || {
            format!("{path} = {channels:?}: all but the last are added to each other and must be equal")
        });
        problems.require(rest.iter().skip(1).sum::<usize>() == *last, || {
            format!("{path} = {channels:?}: the last must be the sum of all but the first")
        });
        let scale = self.res2net_scale;
        problems.require(first.is_multiple_of(scale), || {
            format!("{} = {scale} does not divide {path}, {first}", node.path_of("enc_res2net_scale"))
        });
    }
}
