//! The media of a request of Qwen3-Omni: from the reference's features to embeddings at positions of the prompt.

use super::encode::Encode;
use super::towers::{clips, pictures};
use super::value::{Data, Values};
use candle_core::{Result, Tensor};
use omni_model::hf::Placeholders;
use omni_model::media::{MediaKind, MediaLayout, MediaRows, Positions, Span};
use omni_model::transformer::MediaInput;

/// What a request has beside text.
pub struct Media {
    /// Where the media stand in the prompt.
    pub layout: MediaLayout,
    /// The embeddings of each span.
    pub rows: Vec<MediaRows>,
    /// Positions of the talker's prompt on three axes; `None`: 0, 1, 2, ...
    pub talker: Option<Positions>,
}

/// The media of a case and, once they are encoded, their embeddings: of clips, images, videos.
pub(super) struct Encoded<'a> {
    clips: &'a [Tensor],
    pictures: [&'a [(Tensor, [usize; 3])]; 2],
    rows: [Vec<MediaRows>; 3],
}

impl Encoded<'_> {
    /// Encodes them.
    pub(super) fn by(&mut self, encode: &mut dyn Encode) -> std::result::Result<(), String> {
        if !self.clips.is_empty() {
            self.rows[0] = encode.hear(self.clips)?;
        }
        for (pictures, rows) in self.pictures.iter().zip(&mut self.rows[1..]) {
            *rows = pictures
                .iter()
                .map(|(patches, grid)| encode.see(patches, *grid))
                .collect::<std::result::Result<_, _>>()?;
        }
        Ok(())
    }
}

impl Media {
    /// Encodes the media of a case for the prompt `ids`; `None` where it has only text. Takes the features out of the
    /// reference; where there are pictures also the positions, which are the reference's own here.
    pub(super) fn read(
        reference: &mut Values,
        ids: &[u32],
        tokens: Placeholders,
        encode: impl FnOnce(&mut Encoded<'_>) -> std::result::Result<(), String>,
    ) -> std::result::Result<Option<Media>, String> {
        let clips = clips(reference, "in.")?;
        let images = pictures(reference, "in.pixel_values", "in.image_grid_thw")?;
        let videos = pictures(reference, "in.pixel_values_videos", "in.video_grid_thw")?;
        reference.remove("in.video_second_per_grid");
        let left: Vec<&str> = reference.keys().filter(|name| name.starts_with("in.")).map(String::as_str).collect();
        if !left.is_empty() {
            return Err(format!("unknown inputs {}", left.join(", ")));
        }
        if clips.is_empty() && images.is_empty() && videos.is_empty() {
            return Ok(None);
        }
        let mut encoded = Encoded { clips: &clips, pictures: [&images, &videos], rows: Default::default() };
        encode(&mut encoded)?;
        let [audio, image, video] = encoded.rows;
        let mut layout = MediaLayout { positions: None, spans: Vec::new() };
        let mut rows = Vec::new();
        for (kind, token, encoded) in [
            (MediaKind::Audio, tokens.audio, audio),
            (MediaKind::Image, tokens.image, image),
            (MediaKind::Video, tokens.video, video),
        ] {
            let mut places = ids.iter().enumerate().filter(|(_, id)| Some(**id) == token).map(|(at, _)| at);
            for encoded in encoded {
                let count = encoded.rows.dims()[0];
                let taken: Vec<usize> = places.by_ref().take(count).collect();
                if taken.len() < count {
                    return Err(format!("input_ids has fewer placeholders of {kind:?} than there are embeddings"));
                }
                let runs = taken.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some(*run.first()?..run.last()? + 1));
                layout.spans.push(Span { kind, at: runs.collect() });
                rows.push(encoded);
            }
            if places.next().is_some() {
                return Err(format!("input_ids has more placeholders of {kind:?} than there are embeddings"));
            }
        }
        let mut talker = None;
        if !images.is_empty() || !videos.is_empty() {
            layout.positions = positions(reference, "thinker.prefill.position_ids")?;
            talker = positions(reference, "talker.prefill.position_ids")?;
        }
        Ok(Some(Media { layout, rows, talker }))
    }

    /// Whether a token of the prompt stands for media.
    pub(super) fn has(&self, at: usize) -> bool {
        self.layout.spans.iter().flat_map(|span| &span.at).any(|range| range.contains(&at))
    }

    /// The embeddings of a whole prompt with those of media in place of the placeholders', and what else media change.
    pub(super) fn scatter(&self, embedded: &Tensor) -> Result<(Tensor, MediaInput)> {
        let embedded = embedded.copy()?;
        let mut input = MediaInput { positions: self.axes(0..embedded.dim(0)?), ..MediaInput::default() };
        let mut levels: Vec<Vec<Tensor>> = Vec::new();
        for (span, encoded) in self.layout.spans.iter().zip(&self.rows) {
            for (row, at) in span.at.iter().cloned().flatten().enumerate() {
                embedded.slice_set(&encoded.rows.narrow(0, row, 1)?, 0, at)?;
                if !encoded.deepstack.is_empty() {
                    input.visual.push(at as u32);
                }
            }
            levels.resize_with(levels.len().max(encoded.deepstack.len()), Vec::new);
            levels.iter_mut().zip(&encoded.deepstack).for_each(|(all, level)| all.push(level.clone()));
        }
        input.levels = levels.iter().map(|all| Tensor::cat(all, 0)).collect::<Result<_>>()?;
        Ok((embedded, input))
    }

    /// Positions of some tokens on three axes, if they have others than 0, 1, 2, ...
    pub(super) fn axes(&self, range: std::ops::Range<usize>) -> Option<[Vec<f32>; 3]> {
        self.layout.positions.as_ref().map(|positions| axes(positions, range))
    }
}

/// Positions of a range on three axes.
pub(super) fn axes(positions: &Positions, range: std::ops::Range<usize>) -> [Vec<f32>; 3] {
    [0, 1, 2].map(|axis| range.clone().map(|at| positions.at(at)[axis]).collect())
}

/// The positions `[3, 1, n]` of a case, taken out of the reference. Where some are no whole numbers, the floats stand
/// beside them.
fn positions(reference: &mut Values, name: &str) -> std::result::Result<Option<Positions>, String> {
    let whole = reference.remove(name);
    let Some(value) = reference.remove(&format!("{name}_f32")).or(whole) else { return Ok(None) };
    let numbers: Vec<f32> = match &value.data {
        Data::Ints(numbers) => numbers.iter().map(|n| *n as f32).collect(),
        Data::Floats(numbers) => numbers.clone(),
    };
    let len = numbers.len() / 3;
    if len == 0 || value.shape != [3, 1, len] {
        return Err(format!("{name} has shape {:?}: expected [3, 1, n]", value.shape));
    }
    let last = numbers.iter().fold(f32::NEG_INFINITY, |last, position| last.max(*position));
    let axes = [0, 1, 2].map(|axis| numbers[axis * len..(axis + 1) * len].to_vec());
    Ok(Some(Positions { axes, delta: last + 1.0 - len as f32 }))
}
