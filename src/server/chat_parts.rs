//! What the parts of chat messages mean: text for the conversation, and where sounds, pictures and videos are. Pure: nothing
//! is decoded or fetched.

use super::api::FieldError;
use super::api::chat::Message;
use super::api::parts::{Content, DetailName, Frames, Link, Part, Processor};
use super::api::short;
use omni_engine::{ChatMessage, Content as Said, Detail, MediaKind, ModelInfo, Part as Place};
use std::ops::RangeInclusive;

/// Frames of a second that a video may be seen with.
const RATES: RangeInclusive<f64> = 0.05..=240.0;
/// Frames of a second of a list that says nothing.
const USUAL_RATE: f64 = 2.0;

/// A sound, picture or video of a request: what it is, and where.
#[derive(Debug, PartialEq)]
pub(super) struct SourceRef<'a> {
    /// The part of the request, such as `messages[0].content[1]`.
    pub param: String,
    pub what: What<'a>,
}

/// Each text is base64, a `data:` URL or an address.
#[derive(Debug, PartialEq)]
pub(super) enum What<'a> {
    Audio(&'a str),
    Image(&'a str, Detail),
    Video { url: &'a str, hear: bool, frames_per_second: Option<f64> },
    Frames { urls: Vec<&'a str>, frames_per_second: f64 },
}

impl What<'_> {
    fn kind(&self) -> MediaKind {
        match self {
            What::Audio(_) => MediaKind::Audio,
            What::Image(..) => MediaKind::Image,
            What::Video { .. } | What::Frames { .. } => MediaKind::Video,
        }
    }
}

/// Limits on what a request may carry.
pub(super) struct Counts {
    /// `media.max_files`
    pub files: usize,
    /// `media.max_frames`
    pub frames: usize,
}

/// Refuses what the model cannot take, and too many of them.
pub(super) fn check(sources: &[SourceRef<'_>], model: &ModelInfo, most: &Counts) -> Result<(), FieldError> {
    for SourceRef { param, what } in sources {
        let kind = what.kind();
        let (can, senses) = if kind == MediaKind::Audio { (model.hears, "hear") } else { (model.sees, "see") };
        if !can {
            let message = format_args!("the model {:?} cannot {senses}; send text", model.id);
            return Err(FieldError { code: "unsupported_parameter", ..FieldError::invalid(param, message) });
        }
        if let What::Frames { urls, .. } = what
            && urls.len() > most.frames
        {
            let message =
                format_args!("{} frames are more than the limit of {} (media.max_frames)", urls.len(), most.frames);
            return Err(FieldError::invalid(param, message));
        }
    }
    if let Some(beyond) = sources.get(most.files) {
        let (have, limit) = (sources.len(), most.files);
        let message = format_args!(
            "{have} sounds, pictures and videos are more than the limit of {limit} of a request (media.max_files)"
        );
        return Err(FieldError::invalid(&beyond.param, message));
    }
    Ok(())
}

/// One message; what its parts that are no text stand for goes to `sources`.
pub(super) fn message<'a>(
    index: usize,
    wire: Message<'a>,
    processor: Option<&Processor>,
    sources: &mut Vec<SourceRef<'a>>,
) -> Result<ChatMessage, FieldError> {
    let at = |field: &str, message: &str| FieldError::invalid(format!("messages[{index}]{field}"), message);
    let role = wire.role.ok_or_else(|| at(".role", "expected a string, found nothing"))?.0;
    let before = sources.len();
    let content = match wire.content {
        Some(Content::Text(text)) => Said::Text(text),
        Some(Content::Parts(parts)) => {
            let mut places = Vec::with_capacity(parts.len());
            for (number, part) in parts.into_iter().enumerate() {
                let param = format!("messages[{index}].content[{number}]");
                places.push(match read(param, part, processor)? {
                    Read::Text(text) => Place::Text(text),
                    Read::Source(source) => {
                        let place = match source.what.kind() {
                            MediaKind::Audio => Place::Audio,
                            MediaKind::Image => Place::Image,
                            MediaKind::Video => Place::Video,
                        };
                        sources.push(source);
                        place
                    }
                });
            }
            match sources.len() > before {
                true => Said::Parts(places),
                false => Said::Text(Said::Parts(places).texts().collect()),
            }
        }
        None if wire.audio.is_some() => {
            return Err(at(".audio", "earlier audio is not kept; send its transcript as content"));
        }
        None => return Err(at(".content", "expected a string or an array of parts, found nothing")),
    };
    if role != "user"
        && let Some(source) = sources.get(before)
    {
        return Err(FieldError::invalid(
            &source.param,
            "only messages of the user may carry sound, pictures and videos",
        ));
    }
    if role == "user" && sources.len() == before && content.texts().all(|text| text.trim().is_empty()) {
        return Err(at(".content", "is empty"));
    }
    Ok(ChatMessage { role: role.to_owned(), content, calls: Vec::new() })
}

enum Read<'a> {
    Text(String),
    Source(SourceRef<'a>),
}

fn read<'a>(param: String, part: Part<'a>, processor: Option<&Processor>) -> Result<Read<'a>, FieldError> {
    let rate = match part.fps {
        Some(fps) => check_rate(format!("{param}.fps"), fps)?,
        None => match processor.and_then(|processor| processor.fps) {
            Some(fps) => check_rate("mm_processor_kwargs.fps".to_owned(), fps)?,
            None => None,
        },
    };
    let missing = |field: &str| FieldError::missing(format!("{param}.{field}"), "base64, a data URL or an address");
    let url = |field: &str, link: Option<Link<'a>>| link.and_then(|link| link.url()).ok_or_else(|| missing(field));
    let hear = processor.and_then(|processor| processor.use_audio_in_video).unwrap_or(false);
    let film = |url| What::Video { url, hear, frames_per_second: rate };
    let what = match part.kind {
        Some("text") => {
            let text = part.text.ok_or_else(|| FieldError::missing(format!("{param}.text"), "a string"))?;
            return Ok(Read::Text(text));
        }
        Some("input_audio") => {
            let data = part.input_audio.and_then(|audio| audio.data).ok_or_else(|| missing("input_audio.data"))?;
            let here = data.split_once(':').is_none_or(|(scheme, _)| scheme.trim().eq_ignore_ascii_case("data"));
            if !here {
                let message = "must be base64; send an address as {\"type\": \"audio_url\", ...}";
                return Err(FieldError::invalid(format!("{param}.input_audio.data"), message));
            }
            What::Audio(data)
        }
        Some("audio_url") => What::Audio(url("audio_url", part.audio_url)?),
        Some("audio") => What::Audio(url("audio", part.audio)?),
        Some("image_url") => image(part.image_url).ok_or_else(|| missing("image_url"))?,
        Some("image") => image(part.image).ok_or_else(|| missing("image"))?,
        Some("video_url") => film(url("video_url", part.video_url)?),
        Some("video") => match part.video {
            Some(Frames::File(url)) => film(url),
            Some(Frames::List(links)) => {
                let urls: Option<Vec<&str>> = links.iter().map(Link::url).collect();
                let urls = urls.filter(|urls| !urls.is_empty()).ok_or_else(|| missing("video"))?;
                What::Frames { urls, frames_per_second: rate.unwrap_or(USUAL_RATE) }
            }
            None => return Err(missing("video")),
        },
        Some(other) => {
            let message = format_args!("{:?} parts are not supported; {KINDS}", short(other));
            return Err(FieldError::invalid(param, message));
        }
        None => return Err(FieldError::invalid(param, format_args!("has no type; {KINDS}"))),
    };
    Ok(Read::Source(SourceRef { param, what }))
}

const KINDS: &str = "send text, input_audio, audio_url, image_url, video_url or video";

fn image(link: Option<Link<'_>>) -> Option<What<'_>> {
    let link = link?;
    let detail = match link.detail() {
        None | Some(DetailName::Auto) => Detail::Auto,
        Some(DetailName::Low) => Detail::Low,
        Some(DetailName::High) => Detail::High,
    };
    Some(What::Image(link.url()?, detail))
}

fn check_rate(param: String, fps: f64) -> Result<Option<f64>, FieldError> {
    match RATES.contains(&fps) {
        true => Ok(Some(fps)),
        false => Err(FieldError::invalid(
            param,
            format_args!("must be from {} to {} frames a second", RATES.start(), RATES.end()),
        )),
    }
}
