//! Prompts with sound, images and videos: a conversation and the sizes of its media become token ids, the place of each
//! medium's rows among them, and positions in three axes.
//!
//! | file | what |
//! | --- | --- |
//! | `message` | a conversation whose messages have parts |
//! | `expand` | one placeholder of the template becomes as many as a medium has tokens |
//! | `positions` | positions in three axes |
//!
//! Everything is pure, and every number comes from [`MediaConfig`].

mod expand;
mod message;
mod positions;
#[cfg(test)]
mod tests;

pub use expand::{Expanded, audio_in_video, expand};
pub use message::{Content, MediaMessage, Part, ToolCall};
pub use positions::{Side, positions};

use super::{ChatPrompt, PromptError, Prompter};
use crate::hf::MediaConfig;
use crate::media::{MediaKind, MediaLayout};
use omni_media::patches::Grid;

/// A medium as the prompt sees it: how many tokens it has, and how they lie in space and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MediaItem {
    /// A clip of so many tokens.
    Audio(usize),
    /// An image.
    Image(Grid),
    /// Frames of a video.
    Video {
        /// Patches of the frames.
        grid: Grid,
        /// Seconds from one step of the grid to the next.
        second_per_grid: f64,
        /// Tokens of the video's own sound, where it is heard with the frames.
        audio: Option<usize>,
    },
}

impl MediaItem {
    /// What its placeholder is.
    pub fn kind(&self) -> MediaKind {
        match self {
            MediaItem::Audio(_) => MediaKind::Audio,
            MediaItem::Image(_) => MediaKind::Image,
            MediaItem::Video { .. } => MediaKind::Video,
        }
    }

    /// Whether it has rows and columns.
    fn is_seen(&self) -> bool {
        !matches!(self, MediaItem::Audio(_))
    }

    /// Tokens that its placeholder becomes.
    fn tokens(&self, merge_size: usize) -> usize {
        match self {
            MediaItem::Audio(tokens) => *tokens,
            MediaItem::Image(grid) => grid.tokens(merge_size),
            // Its sound has a start and an end of its own.
            MediaItem::Video { grid, audio, .. } => grid.tokens(merge_size) + audio.map_or(0, |tokens| tokens + 2),
        }
    }
}

/// A thinker prompt with media.
#[derive(Clone, Debug, PartialEq)]
pub struct MediaPrompt {
    /// All ids and what the talker takes of them. Placeholders stand where rows of the towers go.
    pub prompt: ChatPrompt,
    /// Where rows go, and the positions of the ids.
    pub layout: MediaLayout,
    /// For each span of the layout, whose rows it takes ([`Expanded::items`]).
    pub items: Vec<usize>,
}

impl Prompter {
    /// The prompt that asks for an answer to the last message, with the functions that it may call. `media` are the items of all messages in their order;
    /// the prompt may have `most` tokens.
    ///
    /// # Errors
    /// Those of [`Prompter::chat`]; [`PromptError::MediaCount`] when parts and items do not match,
    /// [`PromptError::TooLong`] for more tokens than `most`, before they are made.
    pub fn media(
        &self,
        messages: &[MediaMessage],
        tools: &[String],
        media: &[MediaItem],
        config: &MediaConfig,
        most: usize,
    ) -> Result<MediaPrompt, PromptError> {
        let ids = self.encode(messages, tools)?;
        let Expanded { ids, spans, items } = expand(&ids, media, config, most)?;
        let positions = match media.iter().any(MediaItem::is_seen) {
            true => Some(positions(&ids, media, config, Side::Thinker)?),
            false => None,
        };
        let layout = MediaLayout { positions, spans };
        Ok(MediaPrompt { prompt: ChatPrompt::from_ids(ids, self.tokens())?, layout, items })
    }
}
