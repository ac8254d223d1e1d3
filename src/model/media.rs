//! Media in a prompt: which positions stand for them, and the embeddings that the towers make of them.

use crate::ModelError;
use crate::error::refused;
use crate::hf::ThinkerConfig;
use candle_core::{Result, Tensor};
use std::fmt;
use std::ops::{Range, RangeInclusive};

/// Positions on the axes time, height and width (spec section 4).
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct Positions {
    /// For each axis one position per token of the prompt.
    pub axes: [Vec<f32>; 3],
    /// Behind the prompt, token `i` has position `i + delta` on all axes. May be fractional or negative.
    pub delta: f32,
}

impl Positions {
    /// The positions of text: 0, 1, 2, ...
    pub fn text(tokens: usize) -> Positions {
        let axis: Vec<f32> = (0..tokens).map(|i| i as f32).collect();
        Positions { axes: [axis.clone(), axis.clone(), axis], delta: 0.0 }
    }

    /// The position of token `at` on each axis.
    pub fn at(&self, at: usize) -> [f32; 3] {
        [0, 1, 2].map(|axis| self.axes[axis].get(at).copied().unwrap_or(at as f32 + self.delta))
    }

    /// Checks that there are finite positions, as many on each axis, for a prompt of a length in `lens`.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] with what does not fit.
    pub fn check(&self, lens: RangeInclusive<usize>) -> std::result::Result<(), ModelError> {
        let found = self.axes.each_ref().map(Vec::len);
        if found != [found[0]; 3] || !lens.contains(&found[0]) {
            let (first, last) = (lens.start(), lens.end());
            return refused(format!(
                "positions has {found:?} entries: expected {first} to {last}, on each axis as many"
            ));
        }
        if !self.delta.is_finite() || self.axes.iter().flatten().any(|position| !position.is_finite()) {
            return refused("positions has numbers that are not finite");
        }
        Ok(())
    }
}

/// What a span stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum MediaKind {
    /// A clip of sound.
    Audio,
    /// A picture.
    Image,
    /// The pictures of a video.
    Video,
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediaKind::Audio => "audio",
            MediaKind::Image => "image",
            MediaKind::Video => "video",
        })
    }
}

/// One clip, picture or video in a prompt.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Span {
    /// What it is.
    pub kind: MediaKind,
    /// The positions of the prompt that its embeddings take, in order.
    pub at: Vec<Range<usize>>,
}

impl Span {
    /// Embeddings that it takes.
    pub fn len(&self) -> usize {
        self.at.iter().map(ExactSizeIterator::len).sum()
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where media stand in a prompt.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct MediaLayout {
    /// Positions on three axes; `None` where they are 0, 1, 2, ...
    pub positions: Option<Positions>,
    /// What the placeholders stand for, in the order of their first ones.
    pub spans: Vec<Span>,
}

impl MediaLayout {
    /// Checks it against a prompt of `len` tokens.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] with what does not fit.
    pub fn check(&self, len: usize) -> std::result::Result<(), ModelError> {
        self.positions.as_ref().map_or(Ok(()), |positions| positions.check(len..=len))?;
        let mut taken = vec![false; len];
        for (number, span) in self.spans.iter().enumerate() {
            let mut end = 0;
            for range in &span.at {
                if range.start < end || range.end <= range.start || range.end > len {
                    return refused(format!(
                        "spans[{number}] has {range:?}: out of order, empty or beyond {len} tokens"
                    ));
                }
                end = range.end;
                if let Some(at) = range.clone().find(|at| std::mem::replace(&mut taken[*at], true)) {
                    return refused(format!("spans[{number}] has token {at}, which another span has too"));
                }
            }
            if span.at.is_empty() {
                return refused(format!("spans[{number}] is empty"));
            }
        }
        Ok(())
    }
}

impl ThinkerConfig {
    /// Numbers of an embedding of a kind of media: hidden, and what each deepstack level adds to a picture.
    pub fn media_width(&self, kind: MediaKind) -> usize {
        let levels = if kind == MediaKind::Audio { 0 } else { self.levels() };
        self.text.hidden_size * (1 + levels)
    }

    /// Levels of the deepstack, which are added behind the first layers.
    pub fn levels(&self) -> usize {
        self.vision.as_ref().map_or(0, |vision| vision.deepstack_visual_indexes.len())
    }

    /// Checks that the model can take the media of a prompt of `len` tokens.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] with what it cannot.
    pub fn check_media(&self, layout: &MediaLayout, len: usize) -> std::result::Result<(), ModelError> {
        layout.check(len)?;
        for span in &layout.spans {
            match span.kind {
                MediaKind::Audio if self.audio.is_none() => {
                    return refused("this checkpoint cannot hear: it has no audio tower");
                }
                MediaKind::Image | MediaKind::Video if self.vision.is_none() => {
                    return refused("this checkpoint cannot see: it has no vision tower");
                }
                _ => {}
            }
        }
        if layout.positions.is_some() && self.text.mrope_section.is_none() {
            return refused("this checkpoint has no mrope_section: its positions have one axis");
        }
        Ok(())
    }
}

/// The embeddings of one span.
#[derive(Clone, Debug)]
pub struct MediaRows {
    /// `[n, hidden]`: they take the place of the placeholders' embeddings.
    pub rows: Tensor,
    /// `[n, hidden]` each: level `k` is added to the residual stream behind layer `k` of the thinker. Empty for sound.
    pub deepstack: Vec<Tensor>,
}

impl MediaRows {
    /// Parts of a span, one behind the other; all have as many levels.
    ///
    /// # Errors
    /// When there are no parts or their widths differ.
    pub fn cat(parts: &[MediaRows]) -> Result<MediaRows> {
        let all = |pick: &dyn Fn(&MediaRows) -> Option<Tensor>| {
            Tensor::cat(&parts.iter().filter_map(pick).collect::<Vec<_>>(), 0)
        };
        let levels = parts.first().map_or(0, |part| part.deepstack.len());
        Ok(MediaRows {
            rows: all(&|part| Some(part.rows.clone()))?,
            deepstack: (0..levels).map(|k| all(&|part| part.deepstack.get(k).cloned())).collect::<Result<_>>()?,
        })
    }

    /// One tensor `[n, (1 + levels) * hidden]`: the embedding, then what each level adds.
    ///
    /// # Errors
    /// What the device says.
    pub fn joined(&self) -> Result<Tensor> {
        let parts: Vec<&Tensor> = std::iter::once(&self.rows).chain(&self.deepstack).collect();
        Tensor::cat(&parts, 1)
    }
}
