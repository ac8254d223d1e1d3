//! Plans of chat turns with sound and pictures: the prompt, where the media stand in it, what the encoder is to do, and
//! what need not be encoded because it was before.

use super::omni::{OmniPlanner, refuse_prompt};
use super::{SequencePlan, SubmitError};
use crate::api::{GenerateRequest, Slo};
use crate::encoded::{Known, MediaCache, MediaMemory, MediaPlan, MediaStore};
use crate::journal::{Encoding, Feed};
use omni_core::ids::StageName;
use omni_core::scheduler::{Pace, PromptRun, SequenceParams};
use omni_media::Medium;
use omni_media::hearing::audio_tokens;
use omni_media::medium::MediaHash;
use omni_model::ModelError;
use omni_model::encoder::{Encodable, EncoderSpec, Grain, Schedule, Work};
use omni_model::hf::{MediaConfig, ThinkerConfig};
use omni_model::media::{MediaKind, MediaLayout, Positions};
use omni_model::prompt::{ChatPrompt, MediaItem, MediaPrompt, Side, positions};
use omni_model::stage::{EncodedPart, SequenceSpec};
use omni_stage::Outputs;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;

/// What a planner needs for media.
pub(crate) struct MediaPlanner {
    /// The front ends; why there are none.
    pub config: Result<MediaConfig, String>,
    pub cache: Arc<MediaCache>,
    pub memory: Arc<MediaMemory>,
    /// How large the units of pictures are.
    pub grain: Grain,
}

/// The media of a prompt.
pub(super) struct PromptedMedia {
    pub layout: Arc<MediaLayout>,
    /// Embeddings that the thinker waits for.
    pub rows: u32,
    /// Which of the talker's inputs stand for media.
    pub spoken: Arc<[Range<u32>]>,
    /// Positions of the talker's prompt.
    pub talker: Option<Positions>,
    /// The encoder's sequence, where something is to be encoded.
    pub encoder: Option<SequencePlan>,
    pub plan: MediaPlan,
}

impl MediaPlanner {
    /// For a checkpoint that has towers, or not.
    pub fn new(
        config: Result<MediaConfig, String>,
        cache: Arc<MediaCache>,
        memory: Arc<MediaMemory>,
        grain: Grain,
    ) -> MediaPlanner {
        MediaPlanner { config, cache, memory, grain }
    }
}

impl OmniPlanner {
    /// The prompt of a conversation with media, and what they change.
    pub(super) fn prompted(
        &self,
        request: &GenerateRequest,
        media: &[Arc<Medium>],
    ) -> Result<(ChatPrompt, PromptedMedia), SubmitError> {
        let refuse = |message: String| SubmitError::Invalid { param: "messages", message };
        let config = self.media.config.as_ref().map_err(|why| refuse(why.clone()))?;
        let messages: Vec<_> = request.messages.iter().map(super::omni::message).collect::<Result<_, SubmitError>>()?;
        let items: Vec<MediaItem> = media.iter().map(|medium| item(medium, config)).collect();
        let most = self.config.thinker.text.max_position_embeddings;
        let prompted = self.prompter.media(&messages, &request.tools, &items, config, most);
        let MediaPrompt { prompt, layout, items: of } = prompted.map_err(|error| refuse_prompt("messages", &error))?;
        let talker = talker_positions(&prompt, &layout, &items, &of, config)
            .map_err(|error| refuse_prompt("messages", &error))?;
        let spoken = spoken(&prompt, &layout);
        let sides: Vec<(Arc<Medium>, bool)> = layout
            .spans
            .iter()
            .zip(&of)
            .map(|(span, item)| (Arc::clone(&media[*item]), span.kind == MediaKind::Audio))
            .collect();
        let thinker = &self.config.thinker;
        let (rows, encoder, plan) =
            self.media.encoding(thinker, &sides, request.options.slo).map_err(|error| match error {
                Unplanned::Model(error) => refuse(error.to_string()),
                Unplanned::Memory(error) => error,
            })?;
        let wanted: usize = layout.spans.iter().map(omni_model::media::Span::len).sum();
        if wanted != rows as usize {
            return Err(SubmitError::Internal(format!("media of {rows} embeddings stand at {wanted} positions")));
        }
        let media = PromptedMedia { layout: layout.into(), rows, spoken, talker, encoder, plan };
        Ok((prompt, media))
    }
}

/// Why media cannot be encoded.
pub(crate) enum Unplanned {
    Model(ModelError),
    Memory(SubmitError),
}

impl MediaPlanner {
    /// What is done for media that stand in a prompt in this order, each with whether its sound is meant.
    pub fn encoding(
        &self,
        thinker: &ThinkerConfig,
        media: &[(Arc<Medium>, bool)],
        slo: Slo,
    ) -> Result<(u32, Option<SequencePlan>, MediaPlan), Unplanned> {
        let nothing = || Unplanned::Model(ModelError::Sequence("a medium without what is encoded of it".into()));
        let encodables = media.iter().map(|(medium, sound)| Encodable::of(medium, *sound).ok_or_else(nothing));
        let encodables: Vec<Encodable> = encodables.collect::<Result<_, _>>()?;
        let schedule = Schedule::of(thinker, &encodables, self.grain).map_err(Unplanned::Model)?;
        let frames = |of: &Encodable| if let Encodable::Sound { frames } = of { *frames } else { 0 };
        let longest = encodables.iter().map(frames).max().unwrap_or(0);

        let width = |sound: bool| {
            let levels = thinker.vision.as_ref().filter(|_| !sound).map_or(0, |v| v.deepstack_visual_indexes.len());
            thinker.text.hidden_size * (1 + levels) * size_of::<f32>()
        };
        let spans = media.iter().enumerate().map(|(at, (_, sound))| (schedule.rows_of(at), *sound));
        let rows: usize = spans.map(|(rows, sound)| rows.len() * width(sound)).sum();
        let feed = Feed::new(
            schedule.clone(),
            media.iter().map(|(medium, sound)| Encoding { medium: Arc::clone(medium), sound: *sound }).collect(),
        );
        let permit = match slo {
            Slo::Background => self.memory.take_aside(rows as u64),
            Slo::BestEffort | Slo::Realtime(_) => self.memory.take(rows as u64),
        };
        let permit = permit.map_err(Unplanned::Memory)?;

        let chunk = thinker.audio.as_ref().map_or(0, |tower| tower.padded_chunk(longest as usize));
        let spans: Arc<[Arc<[EncodedPart]>]> =
            media.iter().enumerate().map(|(at, medium)| keyed(medium, &schedule, at, chunk)).collect();
        let mut row = 0;
        let parts = spans.iter().flat_map(|parts| parts.iter()).map(|part| {
            row += part.rows;
            (part.hash, row - part.rows..row)
        });
        let mut parts: Vec<(MediaHash, Range<u32>)> = parts.collect();
        // What stands in front and is known is given to the thinker; what stands behind something new is encoded again.
        let (mut known, all_rows) = (Vec::new(), schedule.rows());
        let given = parts.iter().map_while(|(hash, rows)| {
            let cached = self.cache.get(hash)?;
            known.extend(Known::all(&cached, rows.start, rows.end == all_rows));
            Some(())
        });
        let given = given.count();
        if given == parts.len() {
            return Ok((all_rows, None, MediaPlan { known, spans, permit: Some(permit), ..MediaPlan::default() }));
        }
        let store = MediaStore::new(Arc::clone(&self.cache), parts.split_off(given));
        let params = SequenceParams {
            // The thinker can take over all of them before it runs.
            prompt_emits: all_rows,
            ..SequenceParams::unprompted(Pace::Chunks(vec![1]))
        };
        let spec = EncoderSpec { media: encodables.into(), longest, done: 0, grain: self.grain };
        let spec = SequenceSpec::Encoder(spec);
        let encoder = SequencePlan { params, spec, deliver: Outputs { tokens: false, speech: true } };
        let plan = MediaPlan { feed: Some(feed), known, spans, store: Some(store), permit: Some(permit) };
        Ok((all_rows, Some(encoder), plan))
    }
}

/// The positions of a prompt that stand for media, by the embedding that each stands for.
pub(crate) fn runs(layout: &MediaLayout) -> Vec<PromptRun> {
    let ranges = layout.spans.iter().flat_map(|span| &span.at);
    let run = |input: &mut u32, range: &Range<usize>| {
        let run = PromptRun { at: range.start as u32, input: *input, len: range.len() as u32 };
        *input += run.len;
        Some(run)
    };
    ranges.scan(0, run).collect()
}

/// What embeddings of medium `at` of a schedule are known by: of sound the features of each window and what its chunks
/// are padded to, of pictures and videos all features.
fn keyed((medium, sound): &(Arc<Medium>, bool), schedule: &Schedule, at: usize, chunk: usize) -> Arc<[EncodedPart]> {
    let key = |features: MediaHash, chunk: usize| {
        Sha256::new_with_prefix(features).chain_update((chunk as u64).to_le_bytes()).finalize().into()
    };
    if !sound {
        let rows = schedule.rows_of(at).len() as u32;
        return std::iter::once(EncodedPart { rows, hash: key(medium.hash_of_pictures(), 0) }).collect();
    }
    let windows = schedule.parts().iter().filter(|part| part.medium == at);
    let windows = windows.filter_map(|part| match &part.work {
        Work::Window(frames) => {
            Some(EncodedPart { rows: part.rows, hash: key(medium.hash_of_sound(frames.clone()), chunk) })
        }
        Work::Slice { .. } => None,
    });
    windows.collect()
}

/// A medium as the prompt sees it.
fn item(medium: &Medium, config: &MediaConfig) -> MediaItem {
    let heard = |frames: usize| audio_tokens(frames, config.n_window);
    match medium {
        Medium::Audio(sound) => MediaItem::Audio(heard(sound.frames())),
        Medium::Image(patches) => MediaItem::Image(patches.grid()),
        Medium::Video { frames, second_per_grid, sound } => MediaItem::Video {
            grid: frames.grid(),
            second_per_grid: *second_per_grid,
            audio: sound.as_ref().map(|sound| heard(sound.frames())),
        },
    }
}

/// The talker's inputs that stand for media: it is given hidden states there.
fn spoken(prompt: &ChatPrompt, layout: &MediaLayout) -> Arc<[Range<u32>]> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for range in layout.spans.iter().flat_map(|span| &span.at) {
        let mut before = 0;
        for turn in prompt.emit.iter() {
            let (start, end) = (turn.start.max(range.start as u32), turn.end.min(range.end as u32));
            if start < end {
                ranges.push(before + start - turn.start..before + end - turn.start);
            }
            before += turn.end - turn.start;
        }
    }
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.into()
}

/// Positions of what the talker is given of the prompt; `None` where they are 0, 1, 2, ...
fn talker_positions(
    prompt: &ChatPrompt,
    layout: &MediaLayout,
    items: &[MediaItem],
    of: &[usize],
    config: &MediaConfig,
) -> Result<Option<Positions>, omni_model::prompt::PromptError> {
    if layout.positions.is_none() {
        return Ok(None);
    }
    let ids: Vec<u32> = prompt.emit.iter().cloned().flatten().map(|at| prompt.ids[at as usize]).collect();
    let is_given = |at: usize| prompt.emit.iter().any(|turn| turn.contains(&(at as u32)));
    let given = layout.spans.iter().zip(of).filter(|(span, _)| span.at.first().is_some_and(|at| is_given(at.start)));
    let mut numbers: Vec<usize> = given.map(|(_, item)| *item).collect();
    // A video that is heard has two spans, one behind the other.
    numbers.dedup();
    let items: Vec<MediaItem> = numbers.iter().filter_map(|number| items.get(*number)).copied().collect();
    positions(&ids, &items, config, Side::Talker).map(Some)
}

impl PromptedMedia {
    /// The stage of the sequence that encodes, with it.
    pub fn sequence(&mut self) -> Option<(StageName, SequencePlan)> {
        self.encoder.take().map(|sequence| (StageName::Encoder, sequence))
    }
}
