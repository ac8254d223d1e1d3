//! Sound and pictures of simulated requests: a few media, each of which follows from its number, in prompts; and the
//! sizes of towers with which small media have many windows, slices and steps.

use omni_core::random::{Random, mix};
use omni_media::Medium;
use omni_media::patches::{PatchConfig, Patches};
use omni_media::picture::Picture;
use omni_media::size::{Size, SizeRule};
use omni_media::spectrum::Spectrum;
use omni_model::encoder::{Encodable, Schedule};
use omni_model::hf::{AudioTowerConfig, DecoderConfig, Placeholders, ThinkerConfig, VisionTowerConfig};
use omni_model::media::{MediaKind, MediaLayout, Span};
use std::sync::{Arc, LazyLock};

/// Media that requests choose from: few, so that requests share them.
const POOL: u64 = 10;
/// The medium of the prompt that no stage can go on with, which no other prompt has.
pub(super) const SICK: u32 = 0xFFFF;
/// Stands for media in a prompt. No text has it.
const PLACEHOLDER: u32 = 0x60;
const BANDS: usize = 2;
const FRAMES_OF_A_PATCH: usize = 2;
const MERGED: usize = 2;

/// A thinker with towers. A window of sound has 16 frames and 2 rows. A layer of the vision tower goes through 4 patches
/// in a step, and 2 rows are emitted in one: at these widths more would be too much work, and too large a piece.
pub(super) static CONFIG: LazyLock<ThinkerConfig> = LazyLock::new(|| {
    let hidden = 1 << 17;
    ThinkerConfig {
        text: DecoderConfig {
            vocab_size: 256,
            hidden_size: hidden,
            num_hidden_layers: 1,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: 2,
            intermediate_size: 1,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            mrope_section: None,
            max_position_embeddings: 1 << 16,
            attention_bias: false,
            tie_word_embeddings: false,
            moe: None,
        },
        accept_hidden_layer: 0,
        audio: Some(AudioTowerConfig {
            num_mel_bins: BANDS,
            d_model: 4,
            encoder_layers: 1,
            encoder_attention_heads: 1,
            encoder_ffn_dim: 1,
            n_window: 4,
            n_window_infer: 16,
            downsample_hidden_size: 1,
            output_dim: hidden,
        }),
        vision: Some(VisionTowerConfig {
            depth: 2,
            hidden_size: 1 << 16,
            intermediate_size: 1,
            num_heads: 1,
            in_channels: 3,
            patch_size: 1,
            temporal_patch_size: FRAMES_OF_A_PATCH,
            spatial_merge_size: MERGED,
            out_hidden_size: hidden,
            grid_side: 1,
            deepstack_visual_indexes: Vec::new(),
        }),
        placeholders: vec![PLACEHOLDER],
        media: Placeholders::default(),
    }
});

/// Which media a request has.
pub(super) fn choose(of: &mut Random, is_sick: bool) -> Vec<u32> {
    let count = of.pick(&[0, 1, 1, 1, 2, 3]);
    let mut media: Vec<u32> = (0..count).map(|_| of.below(POOL) as u32).collect();
    if let (Some(first), true) = (media.first_mut(), is_sick) {
        *first = SICK;
    }
    media
}

/// A medium, by its number.
pub(super) fn medium(number: u32) -> Option<Arc<Medium>> {
    let of = &mut Random::new(mix(0x3ED1A, u64::from(number)));
    Some(Arc::new(match of.below(3) {
        0 => Medium::Audio(sound(of)?),
        1 => Medium::Image(pictures(of, 1)?),
        _ => {
            let count = of.within(1, 8);
            let frames = pictures(of, count)?;
            let sound = if of.once_in(2) { Some(sound(of)?) } else { None };
            Medium::Video { frames, second_per_grid: 1.0, sound }
        }
    }))
}

fn sound(of: &mut Random) -> Option<Spectrum> {
    let frames = of.within(1, 70) as usize;
    let features: Vec<f32> = (0..frames * BANDS).map(|_| of.below(256) as f32 / 256.0).collect();
    Spectrum::from_features(&features, BANDS).ok()
}

fn pictures(of: &mut Random, frames: u64) -> Option<Patches> {
    let mut side = || of.within(1, 4) as usize * MERGED;
    let size = Size { height: side(), width: side() };
    let rule = SizeRule { factor: MERGED, min_pixels: 1, max_pixels: 1 << 10 };
    let (mean, std) = ([0.5; 3], [0.5; 3]);
    let config = PatchConfig { patch_size: 1, merge_size: MERGED, temporal_patch_size: FRAMES_OF_A_PATCH, mean, std };
    let mut picture = || Picture::new(size, (0..size.height * size.width * 3).map(|_| of.below(256) as u8).collect());
    let frames = (0..frames).map(|_| picture()).collect();
    Patches::new(frames, &rule, &config).ok()
}

/// A prompt with media.
pub(super) struct Prompted {
    pub prompt: Vec<u32>,
    /// Where the user's turn ends.
    pub user: u32,
    pub layout: MediaLayout,
    /// What is encoded for each span, and whether it is a sound.
    pub media: Vec<(Arc<Medium>, bool)>,
}

/// A text, of which the user said the first `user` tokens and whose last `header` tokens begin the answer, with media
/// anywhere before these.
pub(super) fn prompted(text: &[u32], (user, header): (u32, u32), media: &[u32], of: &mut Random) -> Option<Prompted> {
    let last = text.len() as u64 - u64::from(header);
    let mut places: Vec<(u64, u32)> = media.iter().map(|number| (of.below(last + 1), *number)).collect();
    places.sort_by_key(|(at, _)| *at);
    let mut prompted = Prompted {
        prompt: Vec::new(),
        user,
        layout: MediaLayout { positions: None, spans: Vec::new() },
        media: Vec::new(),
    };
    let mut from = 0;
    for (at, number) in places {
        prompted.prompt.extend(&text[from..at as usize]);
        from = at as usize;
        let before = prompted.prompt.len();
        prompted.stand(&medium(number)?, of)?;
        if at < u64::from(user) {
            prompted.user += (prompted.prompt.len() - before) as u32;
        }
    }
    prompted.prompt.extend(&text[from..]);
    Some(prompted)
}

impl Prompted {
    /// A medium stands at the end of the prompt. What is heard and what is seen of a video take turns.
    fn stand(&mut self, medium: &Arc<Medium>, of: &mut Random) -> Option<()> {
        let mut sides: Vec<(bool, Span, u32)> = Vec::new();
        let heard_first = of.once_in(2);
        for is_sound in [heard_first, !heard_first] {
            let Some(encodable) = Encodable::of(medium, is_sound) else { continue };
            let rows = Schedule::new(&CONFIG, &[encodable]).ok()?.rows();
            let kind = match (is_sound, &**medium) {
                (true, _) => MediaKind::Audio,
                (false, Medium::Image(_)) => MediaKind::Image,
                (false, _) => MediaKind::Video,
            };
            sides.push((is_sound, Span { kind, at: Vec::new() }, rows));
        }
        let turn = if sides.len() > 1 { of.within(1, 5) as u32 } else { u32::MAX };
        while sides.iter().any(|(_, _, left)| *left > 0) {
            for (_, span, left) in &mut sides {
                let count = turn.min(*left);
                if count > 0 {
                    let start = self.prompt.len();
                    self.prompt.extend((0..count).map(|_| PLACEHOLDER));
                    span.at.push(start..self.prompt.len());
                    *left -= count;
                }
            }
        }
        for (is_sound, span, _) in sides {
            self.layout.spans.push(span);
            self.media.push((Arc::clone(medium), is_sound));
        }
        Some(())
    }
}
