//! One placeholder of the template becomes as many as a medium has tokens.

use super::MediaItem;
use crate::hf::{MediaConfig, MediaTokens};
use crate::media::{MediaKind, Span};
use crate::prompt::PromptError;
use omni_media::patches::Grid;
use std::ops::Range;

/// A prompt whose placeholders were expanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Expanded {
    /// All ids.
    pub ids: Vec<u32>,
    /// What the placeholders stand for, in the order of the prompt; a video that is heard has two spans, first that of
    /// its frames.
    pub spans: Vec<Span>,
    /// For each span which of the prompt's items it is; the sound of a video has the video's number.
    pub items: Vec<usize>,
}

/// Expands the placeholders of `ids`: the i-th of a kind stands for the i-th item of that kind. The tokens around it
/// stay. A video that is heard becomes an audio start, frames and sound in the order of time, and an audio end
/// (`replace_multimodal_special_tokens` in transformers 5.23.0).
///
/// # Errors
/// [`PromptError::MediaCount`] when there are more or fewer items of a kind than placeholders;
/// [`PromptError::TooLong`] when the result has more ids than `most`, before it is made.
pub fn expand(ids: &[u32], media: &[MediaItem], config: &MediaConfig, most: usize) -> Result<Expanded, PromptError> {
    let (tokens, merge) = (&config.tokens, config.patches.merge_size);
    for kind in [MediaKind::Audio, MediaKind::Image, MediaKind::Video] {
        let places = ids.iter().filter(|id| **id == tokens.of(kind)).count();
        let items = media.iter().filter(|item| item.kind() == kind).count();
        if places != items {
            return Err(PromptError::MediaCount { kind, places, items });
        }
    }
    let tokens_in_all = media.iter().fold(ids.len() - media.len(), |sum, item| sum.saturating_add(item.tokens(merge)));
    if tokens_in_all > most {
        return Err(PromptError::TooLong { tokens: tokens_in_all, most });
    }
    let mut expanded = Expanded { ids: Vec::with_capacity(tokens_in_all), spans: Vec::new(), items: Vec::new() };
    let of_kind = |kind: MediaKind| media.iter().enumerate().filter(move |(_, item)| item.kind() == kind);
    let mut left = [MediaKind::Audio, MediaKind::Image, MediaKind::Video].map(|kind| (kind, of_kind(kind)));
    for id in ids {
        let next = left.iter_mut().find(|(kind, _)| *id == tokens.of(*kind)).and_then(|(_, items)| items.next());
        match next {
            None => expanded.ids.push(*id),
            Some((number, item)) => expanded.push(number, item, config),
        }
    }
    Ok(expanded)
}

impl Expanded {
    fn push(&mut self, item: usize, medium: &MediaItem, config: &MediaConfig) {
        let (tokens, merge) = (&config.tokens, config.patches.merge_size);
        let from = self.ids.len();
        match *medium {
            MediaItem::Video { grid, second_per_grid, audio: Some(heard) } => {
                self.ids.extend(audio_in_video(grid, second_per_grid, heard, config));
                for kind in [MediaKind::Video, MediaKind::Audio] {
                    let at = ranges(&self.ids, from, tokens.of(kind));
                    self.spans.push(Span { kind, at });
                    self.items.push(item);
                }
            }
            _ => {
                let kind = medium.kind();
                self.ids.extend(std::iter::repeat_n(tokens.of(kind), medium.tokens(merge)));
                self.spans.push(Span { kind, at: std::iter::once(from..self.ids.len()).collect() });
                self.items.push(item);
            }
        }
    }
}

impl MediaTokens {
    /// The placeholder of a kind.
    pub fn of(&self, kind: MediaKind) -> u32 {
        match kind {
            MediaKind::Audio => self.audio,
            MediaKind::Image => self.image,
            MediaKind::Video => self.video,
        }
    }
}

/// What stands between the vision tokens of a video that is heard: a frame's tokens come before those of the sound that
/// are of its time or later. Step `k` of the grid is at `k * second_per_grid * positions_per_second` positions, token `j` of
/// the sound at `j`, compared in f64.
pub fn audio_in_video(grid: Grid, second_per_grid: f64, heard: usize, config: &MediaConfig) -> Vec<u32> {
    let tokens = &config.tokens;
    let frame = grid.tokens(config.patches.merge_size) / grid.t.max(1);
    let mut ids = vec![tokens.audio_start];
    let mut audio = 0;
    for k in 0..grid.t {
        // All tokens of a step have one time: it waits for the sound before it.
        let time = k as f64 * second_per_grid * f64::from(config.positions_per_second);
        while audio < heard && (audio as f64) < time {
            ids.push(tokens.audio);
            audio += 1;
        }
        ids.extend(std::iter::repeat_n(tokens.video, frame));
    }
    ids.extend(std::iter::repeat_n(tokens.audio, heard - audio));
    ids.push(tokens.audio_end);
    ids
}

/// Where `id` stands, from `from` on.
fn ranges(ids: &[u32], from: usize, id: u32) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for at in (from..ids.len()).filter(|at| ids[*at] == id) {
        match ranges.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}
