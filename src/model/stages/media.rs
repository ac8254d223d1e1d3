//! Media in the prompts of the thinker stage: embeddings that have arrived, and what a step takes of them.

use super::Running;
use super::thinker::Sequence;
use crate::ModelError;
use crate::embeddings::{DeviceEmbeddings, Embeddings};
use crate::error::refused;
use crate::hf::ThinkerConfig;
use crate::media::{MediaLayout, Positions};
use crate::thinker::Thinker;
use crate::transformer::MediaInput;
use candle_core::{Result, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The media of a sequence's prompt.
pub struct PromptMedia {
    layout: Arc<MediaLayout>,
    /// By position of the prompt, until a step takes it.
    rows: BTreeMap<u32, MediaRow>,
    /// The positions that embeddings still have to arrive for, the next one last, with the width of each span.
    missing: Vec<(usize, Vec<u32>)>,
    /// Positions before this one take no embeddings any more.
    needed_from: u32,
}

/// Embeddings of media, `[n, width]`; of a position, one.
#[derive(Clone, Debug)]
pub enum MediaRow {
    /// In the host's memory, of f32.
    Here(Tensor),
    /// Where the encoder left it.
    There(DeviceEmbeddings),
}

impl MediaRow {
    /// One of them.
    fn one(&self, number: usize) -> Result<MediaRow> {
        Ok(match self {
            MediaRow::Here(rows) => MediaRow::Here(rows.narrow(0, number, 1)?),
            MediaRow::There(rows) => MediaRow::There(rows.one(number)),
        })
    }

    /// Numbers of one.
    pub fn width(&self) -> usize {
        match self {
            MediaRow::Here(rows) => rows.dims().last().copied().unwrap_or(0),
            MediaRow::There(rows) => rows.buffer().width(),
        }
    }

    /// In the host's memory.
    fn here(self) -> Result<Tensor> {
        match self {
            MediaRow::Here(row) => Ok(row),
            MediaRow::There(_) => candle_core::bail!("the embedding of a medium is still on its device"),
        }
    }
}

impl PromptMedia {
    /// Nothing has arrived yet. The layout [fits](ThinkerConfig::check_media) the model.
    pub fn new(config: &ThinkerConfig, layout: &Arc<MediaLayout>) -> PromptMedia {
        let spans = layout.spans.iter().rev();
        let missing = spans.map(|span| {
            let mut at: Vec<u32> = span.at.iter().cloned().flatten().map(|at| at as u32).collect();
            at.reverse();
            (config.media_width(span.kind), at)
        });
        PromptMedia { missing: missing.collect(), rows: BTreeMap::new(), layout: Arc::clone(layout), needed_from: 0 }
    }

    /// Takes the next embeddings of the first span that lacks some.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for embeddings of another shape, more than there is room for, or an early end.
    pub fn push(&mut self, input: Option<Embeddings>, end: bool) -> std::result::Result<(), ModelError> {
        if let Some(input) = input {
            let (count, width) = input.shape();
            let Some((wanted, at)) = self.missing.last_mut() else {
                return refused(format!("{count} embeddings of media behind the last one of the prompt"));
            };
            if width != *wanted || count == 0 || count > at.len() {
                let left = at.len();
                return refused(format!(
                    "embeddings of media have shape [{count}, {width}]: expected [1..={left}, {wanted}]"
                ));
            }
            let rows = match input {
                Embeddings::Device(there) => MediaRow::There(there),
                here => MediaRow::Here(here.tensor()?),
            };
            for (row, at) in at.drain(at.len() - count..).rev().enumerate() {
                if at >= self.needed_from {
                    self.rows.insert(at, rows.one(row)?);
                }
            }
            self.missing.pop_if(|(_, at)| at.is_empty());
        }
        let left: usize = self.missing.iter().map(|(_, at)| at.len()).sum();
        if end && left > 0 {
            return refused(format!("the embeddings of media ended and {left} are missing"));
        }
        Ok(())
    }

    /// Checks that the embeddings of some positions of the prompt have arrived.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] with the first position that lacks its own.
    pub fn check_arrived(&self, from: u32, count: u32) -> std::result::Result<(), ModelError> {
        let missing = self.missing.iter().flat_map(|(_, at)| at).filter(|at| (from..from + count).contains(at)).min();
        match missing {
            Some(at) => refused(format!("the embedding of prompt position {at} has not arrived")),
            None => Ok(()),
        }
    }

    /// The media positions of a range of the prompt, in order.
    pub fn positions(&self, from: u32, count: u32) -> Vec<u32> {
        let ranges = self.layout.spans.iter().flat_map(|span| &span.at);
        let inside = ranges.flat_map(|range| (range.start as u32).max(from)..(range.end as u32).min(from + count));
        let mut positions: Vec<u32> = inside.collect();
        positions.sort_unstable();
        positions
    }

    /// Takes the embedding of a media position of the prompt; `None`: it has not arrived, or was taken.
    pub fn take(&mut self, at: u32) -> Option<MediaRow> {
        self.rows.remove(&at)
    }

    /// The positions before `at` were computed before: embeddings that have arrived for them, or come, are dropped.
    pub fn need_none_before(&mut self, at: u32) {
        self.rows = self.rows.split_off(&at);
        self.needed_from = at;
    }

    /// Positions on three axes; `None` where they are those of the cache.
    pub fn axes(&self) -> Option<&Positions> {
        self.layout.positions.as_ref()
    }
}

/// What the media of a batch change in its forward; `None` for a batch of text, which pays nothing. Overwrites the
/// embeddings of placeholders in `x [n, hidden]`, which is this step's own.
pub(super) fn scatter(x: &Tensor, running: &mut [Running<Sequence>]) -> Result<Option<MediaInput>> {
    if running.iter().all(|entry| entry.sequence.media.is_none()) {
        return Ok(None);
    }
    let hidden = x.dim(1)?;
    let (mut input, mut added, mut start) = (MediaInput::default(), Vec::new(), 0);
    for Running { sequence, len, .. } in &mut *running {
        let (from, count) = (sequence.cached() as u32, *len as u32);
        if let Some(media) = &mut sequence.media {
            for at in media.positions(from, count) {
                let Some(row) = media.take(at) else {
                    candle_core::bail!("the embedding of prompt position {at} is gone");
                };
                let row = row.here()?;
                let place = start + (at - from) as usize;
                x.slice_set(&row.narrow(1, 0, hidden)?.contiguous()?, 0, place)?;
                if row.dim(1)? > hidden {
                    input.visual.push(place as u32);
                    added.push(row);
                }
            }
        }
        start += *len;
    }
    if let Some(first) = added.first() {
        let levels = first.dim(1)? / hidden;
        let added = Tensor::cat(&added, 0)?;
        input.levels = (1..levels).map(|k| added.narrow(1, k * hidden, hidden)?.contiguous()).collect::<Result<_>>()?;
    }
    input.positions = positions(running);
    Ok(Some(input))
}

/// Positions of a batch's new tokens on three axes, if a sequence has others than those of its cache.
fn positions(running: &[Running<Sequence>]) -> Option<[Vec<f32>; 3]> {
    if running.iter().all(|entry| own(&entry.sequence).is_none()) {
        return None;
    }
    let mut axes = [const { Vec::new() }; 3];
    for Running { sequence, len, .. } in running {
        let own = own(sequence);
        let first = sequence.cached();
        for at in first..first + len {
            let position = own.map_or([at as f32; 3], |positions| positions.at(at));
            axes.iter_mut().zip(position).for_each(|(axis, position)| axis.push(position));
        }
    }
    Some(axes)
}

fn own(sequence: &Sequence) -> Option<&Positions> {
    sequence.media.as_ref().and_then(PromptMedia::axes)
}

/// The embeddings that the talker gets of prompt positions: those of text, and at media the hidden states that the
/// layers gave there.
pub(super) fn spoken(net: &Thinker, sequence: &Sequence, positions: &[u32]) -> Result<Tensor> {
    let tokens: Vec<u32> = positions.iter().map(|at| sequence.spec.prompt[*at as usize]).collect();
    let embeddings = net.embed(&tokens)?;
    let (Some(media), Some(first), Some(last)) = (&sequence.media, positions.first(), positions.last()) else {
        return Ok(embeddings);
    };
    for at in media.positions(*first, last + 1 - first) {
        if let Ok(place) = positions.binary_search(&at) {
            let Some(state) = sequence.hidden.get(&at) else {
                candle_core::bail!("the hidden state of prompt position {at} is gone");
            };
            embeddings.slice_set(state, 0, place)?;
        }
    }
    Ok(embeddings)
}
