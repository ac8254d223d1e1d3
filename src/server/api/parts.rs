//! The content of a chat message: a text, or parts that are texts, sounds, pictures and videos. OpenAI's parts, vLLM's
//! and those of Qwen's own examples. Base64 and addresses stay where they are in the request; nothing is copied.

use super::values::{Text, short};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A text, whole or in parts.
#[derive(Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Content<'a> {
    Text(String),
    Parts(Vec<Part<'a>>),
}

/// A part of a message. Each `type` has the field of its name.
#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct Part<'a> {
    /// `text`, `input_audio`, `audio_url`, `image_url`, `video_url`, `video`; also `audio` and `image`.
    #[serde(rename = "type")]
    #[schemars(required)]
    pub kind: Option<&'a str>,
    pub text: Option<String>,
    /// A file of sound.
    pub input_audio: Option<InputAudio<'a>>,
    /// Where a file of sound is.
    pub audio_url: Option<Link<'a>>,
    /// Where a picture is; the first one of an animation.
    pub image_url: Option<Link<'a>>,
    /// Where a video or an animation is.
    pub video_url: Option<Link<'a>>,
    /// The same as `audio_url`.
    pub audio: Option<Link<'a>>,
    /// The same as `image_url`.
    pub image: Option<Link<'a>>,
    /// Where a video is, or its frames.
    pub video: Option<Frames<'a>>,
    /// Of a video's file: how many frames of a second are seen; of a list of frames: how many of them are a second.
    /// Default: 2.
    pub fps: Option<f64>,
}

/// OpenAI's form of sound.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct InputAudio<'a> {
    /// The file in base64.
    #[schemars(required)]
    pub data: Option<&'a str>,
    /// Without effect: the file says what it is.
    pub format: Option<&'a str>,
}

/// Base64, a `data:` URL, or an address that the server may read; as a string, or in an object.
#[derive(Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Link<'a> {
    Plain(&'a str),
    Object(LinkObject<'a>),
}

/// See [`Link`].
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct LinkObject<'a> {
    #[schemars(required)]
    pub url: Option<&'a str>,
    /// Of a picture: `low` is at most 512 x 512 pixels; `high` and `auto` are as many as the checkpoint takes.
    pub detail: Option<DetailName>,
}

/// How many pixels of a picture are seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DetailName {
    Auto,
    Low,
    High,
}

impl<'de> Deserialize<'de> for DetailName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DetailName, D::Error> {
        deserializer.deserialize_str(Text(|name: &str| match name {
            "auto" => Ok(DetailName::Auto),
            "low" => Ok(DetailName::Low),
            "high" => Ok(DetailName::High),
            other => Err(format!("{:?} is unknown; ask for \"auto\", \"low\" or \"high\"", short(other))),
        }))
    }
}

/// Where a video is, or where its frames are, in the order of time.
#[derive(Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Frames<'a> {
    File(&'a str),
    List(Vec<Link<'a>>),
}

/// Fields of vLLM's clients for what is seen and heard.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Processing {
    /// How videos are seen and heard.
    pub mm_processor_kwargs: Option<Processor>,
}

/// How videos are seen and heard.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Processor {
    /// Whether the sound of videos is heard with their frames. Default: false.
    pub use_audio_in_video: Option<bool>,
    /// How many frames of a second are seen, of videos that do not say. Default: 2.
    pub fps: Option<f64>,
}

impl<'a> Link<'a> {
    /// The address, if there is one.
    pub fn url(&self) -> Option<&'a str> {
        match self {
            Link::Plain(url) => Some(url),
            Link::Object(object) => object.url,
        }
    }

    /// What it says of the detail.
    pub fn detail(&self) -> Option<DetailName> {
        match self {
            Link::Plain(_) => None,
            Link::Object(object) => object.detail,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Link<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Link<'a>, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Link<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or an object with url")
            }

            fn visit_borrowed_str<E: Error>(self, url: &'de str) -> Result<Link<'de>, E> {
                Ok(Link::Plain(url))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Link<'de>, A::Error> {
                LinkObject::deserialize(MapAccessDeserializer::new(map)).map(Link::Object)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Frames<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Frames<'a>, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Frames<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address or an array of addresses")
            }

            fn visit_borrowed_str<E: Error>(self, url: &'de str) -> Result<Frames<'de>, E> {
                Ok(Frames::File(url))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, links: A) -> Result<Frames<'de>, A::Error> {
                list(links).map(Frames::List)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content<'a>, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content<'de>, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<Content<'de>, A::Error> {
                list(parts).map(Content::Parts)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

fn list<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut items: A) -> Result<Vec<T>, A::Error> {
    let mut found = Vec::new();
    while let Some(item) = items.next_element()? {
        found.push(item);
    }
    Ok(found)
}
