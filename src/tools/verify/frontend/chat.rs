//! Conversations with media to prompts, ids and positions.

use super::audio::pcm;
use super::checks::Checks;
use super::picture::{cut, declared};
use super::{Case, list, text, whole};
use omni_media::hearing::{audio_tokens, spectra};
use omni_media::mel::LogMel;
use omni_media::patches::Grid;
use omni_media::size::SizeRule;
use omni_media::spectrum::Spectrum;
use omni_model::Tokenizer;
use omni_model::prompt::{Expanded, MediaItem, Side, expand, positions};
use omni_model::template::{ChatTemplate, Document};
use serde_json::Value as Json;

/// A part of a message that is no text.
enum Medium {
    Image(Grid),
    Video(Grid),
    /// A file.
    Audio(String),
}

/// `None` when the tokenizer is not the one that the case was made with.
pub(super) fn run(case: &Case<'_>) -> Result<Option<Checks>, String> {
    let error = |e: &dyn std::fmt::Display| e.to_string();
    let want = case.reference.get("input_ids").ok_or("the tensor input_ids is missing")?.tokens()?;
    let tokenizer = Tokenizer::load(&case.files).map_err(|e| error(&e))?;
    if want.iter().any(|id| *id as usize >= tokenizer.vocabulary_size()) {
        return Ok(None);
    }
    let mut checks = Checks::default();
    let template = ChatTemplate::load(&case.files).map_err(|e| error(&e))?;
    let prompt = rendered(case, &template)?;
    checks.texts("prompt", text(case.meta("prompt")?, "prompt")?, &prompt);

    let media = media(case)?;
    let (items, frames) = items(case, &media)?;
    let ids = tokenizer.encode_structure(&prompt).map_err(|e| error(&e))?;
    // A prompt without media is not expanded: what looks like a placeholder is text that the reference let through.
    let expanded = match items.is_empty() {
        true => Expanded { ids, spans: Vec::new(), items: Vec::new() },
        false => expand(&ids, &items, &case.config, usize::MAX).map_err(|e| error(&e))?,
    };
    let as_ints = |ids: &[u32]| ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>();
    checks.tensor(case.reference, "input_ids", as_ints(&expanded.ids))?;
    let written = tokenizer.encode_structure(text(case.meta("prompt_expanded")?, "prompt_expanded")?);
    checks.equal("prompt_expanded", &as_ints(&written.map_err(|e| error(&e))?), &as_ints(&expanded.ids));

    let positions = positions(&expanded.ids, &items, &case.config, Side::Thinker).map_err(|e| error(&e))?;
    checks.floats(case.reference, "position_ids", &positions.axes.concat(), 0.0)?;
    checks.floats(case.reference, "rope_delta", &[positions.delta], 0.0)?;

    let grids = |wanted: fn(&Medium) -> Option<Grid>| -> Vec<i64> {
        media.iter().filter_map(wanted).flat_map(|grid| [grid.t, grid.h, grid.w]).map(|n| n as i64).collect()
    };
    let images = grids(|medium| if let Medium::Image(grid) = medium { Some(*grid) } else { None });
    let videos = grids(|medium| if let Medium::Video(grid) = medium { Some(*grid) } else { None });
    if !images.is_empty() {
        checks.tensor(case.reference, "image_grid_thw", images)?;
    }
    if !videos.is_empty() {
        let seconds = vec![declared(case)? as f32; videos.len() / 3];
        checks.tensor(case.reference, "video_grid_thw", videos)?;
        checks.floats(case.reference, "video_second_per_grid", &seconds, 0.0)?;
    }
    if !frames.is_empty() {
        checks.tensor(case.reference, "audio_mel_frames", frames.iter().map(|n| *n as i64))?;
    }
    Ok(Some(checks))
}

/// What the template writes of the case's conversation. The manifest is read again, for fields in their order.
fn rendered(case: &Case<'_>, template: &ChatTemplate) -> Result<String, String> {
    let manifest = String::from_utf8(case.file(&format!("{}.json", case.manifest.name))?).map_err(|e| e.to_string())?;
    let meta = Document::parse(&manifest).map_err(|e| e.to_string())?.get("meta").ok_or("meta is missing")?;
    let field = |key: &str| meta.get(key).ok_or_else(|| format!("meta.{key} is missing"));
    let extra = field("template_extra")?;
    let mut fields: Vec<(String, Document)> =
        extra.keys().into_iter().filter_map(|key| extra.get(&key).map(|value| (key, value))).collect();
    fields.push(("messages".into(), field("template_messages")?));
    fields.push(("add_generation_prompt".into(), field("add_generation_prompt")?));
    template.render_document(fields, manifest.len()).map_err(|e| e.to_string())
}

/// The media of all messages, in their order.
fn media(case: &Case<'_>) -> Result<Vec<Medium>, String> {
    let mut media = Vec::new();
    for message in list(case.meta("messages")?, "messages")? {
        for part in message["content"].as_array().into_iter().flatten() {
            match part["type"].as_str() {
                Some("image_url") => {
                    let picture = case.picture(text(&part["image_url"]["url"], "image_url.url")?)?;
                    media.push(Medium::Image(cut(case, vec![picture], &case.config.image)?.grid()));
                }
                Some("video_url") => {
                    let (video, key) = (&part["video_url"], "video_url");
                    let (pattern, count) = (text(&video["pattern"], key)?, whole(&video["frames"], key)?);
                    let frames = (0..count).map(|i| case.picture(&format!("media/{pattern}{i}.png")));
                    let limits = case.wholes("video_min_max_pixels")?;
                    let [min_pixels, max_pixels] = limits[..] else { return Err("two limits are expected".into()) };
                    let rule = SizeRule { factor: case.config.patches.factor(), min_pixels, max_pixels };
                    media.push(Medium::Video(cut(case, frames.collect::<Result<_, _>>()?, &rule)?.grid()));
                }
                Some("input_audio") => {
                    media.push(Medium::Audio(text(&part["input_audio"]["data"], "input_audio.data")?.to_owned()));
                }
                _ => {}
            }
        }
    }
    Ok(media)
}

/// The items of the prompt, and the mel frames of all clips in their order, a video's own sound among them.
fn items(case: &Case<'_>, media: &[Medium]) -> Result<(Vec<MediaItem>, Vec<usize>), String> {
    let mel = LogMel::new(case.config.mel).map_err(|e| e.to_string())?;
    let own = case.manifest.meta.get("audio_from_video").and_then(Json::as_str);
    let mut clips = Vec::new();
    for medium in media {
        match (medium, own) {
            (Medium::Audio(file), _) => clips.push(pcm(case, file, &mel)?),
            (Medium::Video(_), Some(file)) => clips.push(pcm(case, file, &mel)?),
            _ => {}
        }
    }
    let clips: Vec<&[f32]> = clips.iter().map(Vec::as_slice).collect();
    let spectra = if clips.is_empty() { Vec::new() } else { spectra(&clips, &mel).map_err(|e| e.to_string())? };
    let frames: Vec<usize> = spectra.iter().map(Spectrum::frames).collect();
    let mut heard = frames.iter().map(|frames| audio_tokens(*frames, case.config.n_window));
    let mut items = Vec::new();
    for medium in media {
        items.push(match medium {
            Medium::Image(grid) => MediaItem::Image(*grid),
            Medium::Audio(_) => MediaItem::Audio(heard.next().unwrap_or_default()),
            Medium::Video(grid) => {
                let audio = own.and_then(|_| heard.next());
                MediaItem::Video { grid: *grid, second_per_grid: declared(case)?, audio }
            }
        });
    }
    Ok((items, frames))
}
