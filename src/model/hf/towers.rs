//! Configs of the encoders of Qwen3-Omni: the audio tower and the vision tower (spec section 4). Every size comes from
//! the file; a checkpoint may lack either tower.

use super::json::Node;

/// Epsilon of the audio tower's layer norms, which no config holds.
pub const AUDIO_NORM_EPS: f64 = 1e-5;
/// Epsilon of the vision tower's layer norms, which no config holds.
pub const VISION_NORM_EPS: f64 = 1e-6;
/// Base of the vision tower's rotary frequencies, which no config holds.
pub const VISION_ROPE_THETA: f64 = 1e4;

/// Log-mel frames to embeddings of the thinker.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioTowerConfig {
    /// Bins of the spectrum.
    pub num_mel_bins: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Layers.
    pub encoder_layers: usize,
    /// Heads.
    pub encoder_attention_heads: usize,
    /// Inner width of the feed-forward layers.
    pub encoder_ffn_dim: usize,
    /// Half the frames of a chunk, which the convolutions see at once.
    pub n_window: usize,
    /// Frames of a window, inside which attention is bidirectional.
    pub n_window_infer: usize,
    /// Channels of the convolutions.
    pub downsample_hidden_size: usize,
    /// Width of an embedding: the thinker's.
    pub output_dim: usize,
}

impl AudioTowerConfig {
    /// Reads an `audio_config`.
    pub(super) fn read(node: &Node<'_>) -> AudioTowerConfig {
        let before = node.problems().len();
        only(node, "activation_function", "gelu");
        let config = AudioTowerConfig {
            num_mel_bins: node.size("num_mel_bins"),
            d_model: node.size("d_model"),
            encoder_layers: node.size("encoder_layers"),
            encoder_attention_heads: node.size("encoder_attention_heads"),
            encoder_ffn_dim: node.size("encoder_ffn_dim"),
            n_window: node.size("n_window"),
            n_window_infer: node.size("n_window_infer"),
            downsample_hidden_size: node.size("downsample_hidden_size"),
            output_dim: node.size("output_dim"),
        };
        // Placeholders for missing numbers would cause misleading complaints.
        if node.problems().len() == before {
            config.check(node);
        }
        config
    }

    /// Frames of a chunk.
    pub fn chunk_frames(&self) -> usize {
        2 * self.n_window
    }

    /// Frames that the chunks of a request are padded to with zeros, when its longest clip has `longest` frames.
    pub fn padded_chunk(&self, longest: usize) -> usize {
        self.chunk_frames().min(longest)
    }

    /// Frames of a window: whole chunks.
    pub fn window_frames(&self) -> usize {
        self.n_window_infer / self.chunk_frames() * self.chunk_frames()
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.d_model / self.encoder_attention_heads
    }

    /// Embeddings of a clip of `frames` frames: those of its chunks.
    pub fn tokens(&self, frames: usize) -> usize {
        let chunk = self.chunk_frames();
        frames / chunk * downsampled(chunk) + downsampled(frames % chunk)
    }

    fn check(&self, node: &Node<'_>) {
        let problems = node.problems();
        let (width, heads) = (self.d_model, self.encoder_attention_heads);
        problems.require(width.is_multiple_of(heads), || {
            format!("{} = {heads} does not divide d_model = {width}", node.path_of("encoder_attention_heads"))
        });
        problems.require(width.is_multiple_of(2) && width > 2, || {
            format!(
                "{} = {width}: expected an even number above 2, half sines and half cosines",
                node.path_of("d_model")
            )
        });
        let chunk = self.chunk_frames();
        problems.require(self.n_window_infer >= chunk, || {
            let path = node.path_of("n_window_infer");
            format!("{path} = {}: expected at least the {chunk} frames of a chunk, 2 * n_window", self.n_window_infer)
        });
        let (tokens, positions) = (downsampled(chunk), node.optional_size("max_source_positions"));
        problems.require(positions.is_none_or(|positions| tokens <= positions), || {
            format!("{} is less than the {tokens} positions of a chunk", node.path_of("max_source_positions"))
        });
    }
}

/// What three convolutions of stride 2 leave of so many frames or bins.
pub fn downsampled(size: usize) -> usize {
    (0..3).fold(size, |size, _| size.div_ceil(2))
}

/// Patches of pictures to embeddings of the thinker.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionTowerConfig {
    /// Layers.
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of the feed-forward layers.
    pub intermediate_size: usize,
    /// Heads.
    pub num_heads: usize,
    /// Channels of a picture.
    pub in_channels: usize,
    /// Pixels along each side of a patch.
    pub patch_size: usize,
    /// Frames of a patch.
    pub temporal_patch_size: usize,
    /// Patches along each side of the block that becomes one embedding.
    pub spatial_merge_size: usize,
    /// Width of an embedding: the thinker's.
    pub out_hidden_size: usize,
    /// Rows and columns of the square table of positions.
    pub grid_side: usize,
    /// Layers whose outputs also go to the thinker, in the order of their mergers.
    pub deepstack_visual_indexes: Vec<usize>,
}

impl VisionTowerConfig {
    /// Reads a `vision_config`.
    pub(super) fn read(node: &Node<'_>) -> VisionTowerConfig {
        let before = node.problems().len();
        only(node, "hidden_act", "gelu_pytorch_tanh");
        let positions = node.size("num_position_embeddings");
        let config = VisionTowerConfig {
            depth: node.size("depth"),
            hidden_size: node.size("hidden_size"),
            intermediate_size: node.size("intermediate_size"),
            num_heads: node.size("num_heads"),
            in_channels: node.size("in_channels"),
            patch_size: node.size("patch_size"),
            temporal_patch_size: node.size("temporal_patch_size"),
            spatial_merge_size: node.size("spatial_merge_size"),
            out_hidden_size: node.size("out_hidden_size"),
            grid_side: positions.isqrt(),
            deepstack_visual_indexes: node.optional_counts("deepstack_visual_indexes").unwrap_or_default(),
        };
        if node.problems().len() == before {
            config.check(node, positions);
        }
        config
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Numbers of a patch: channel, frame, row, column.
    pub fn patch_width(&self) -> usize {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Patches that become one embedding.
    pub fn merge_unit(&self) -> usize {
        self.spatial_merge_size * self.spatial_merge_size
    }

    fn check(&self, node: &Node<'_>, positions: usize) {
        let problems = node.problems();
        let (width, heads) = (self.hidden_size, self.num_heads);
        problems.require(width.is_multiple_of(heads) && (width / heads).is_multiple_of(4), || {
            let path = node.path_of("num_heads");
            format!("{path} = {heads}: hidden_size = {width} must give heads of a multiple of 4, half of it for rows")
        });
        problems.require(self.grid_side * self.grid_side == positions, || {
            format!("{} = {positions} is not a square", node.path_of("num_position_embeddings"))
        });
        let taken = &self.deepstack_visual_indexes;
        let twice = taken.iter().enumerate().any(|(i, layer)| taken[..i].contains(layer));
        problems.require(!twice && taken.iter().all(|layer| *layer < self.depth), || {
            let path = node.path_of("deepstack_visual_indexes");
            format!("{path} = {taken:?}: expected different layers below depth = {}", self.depth)
        });
        let sides = [self.patch_size, self.patch_size, self.temporal_patch_size, self.in_channels];
        let patch = sides.iter().try_fold(1usize, |n, side| n.checked_mul(*side)).filter(|n| *n <= 1 << 24);
        problems.require(patch.is_some() && self.spatial_merge_size <= 1 << 10, || {
            format!("{} and the sizes beside it make a patch too large", node.path_of("patch_size"))
        });
    }
}

/// Refuses another value of a text field than the one that is served; a missing one means it.
fn only(node: &Node<'_>, key: &str, served: &str) {
    let found = node.optional_text(key).unwrap_or(served);
    node.problems()
        .require(found == served, || format!("{} = {found:?} is not served: expected {served:?}", node.path_of(key)));
}
