//! One turn of the conversation: what it is made of, how a client is told of it, and what the model reads of it.

use crate::calls::{Call, MAX_CALL_BYTES};
use crate::client_event::{ContentFields, ItemFields};
use crate::job::{PromptPart, PromptTurn};
use crate::refusal::{Refusal, short};
use crate::server_event::{ItemObject, PartObject};
use crate::session::{Abilities, Limits};
use crate::sound::{UserSound, WireFormat};
use crate::spoken::Spoken;

/// Bytes that an item takes beside its content.
const OVERHEAD: usize = 256;
/// Longest id that a client may give.
const MAX_ID: usize = 64;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    System,
    User,
    Assistant,
    /// A function, with what came of a call.
    Tool,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// How much of a picture is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// As many pixels as the checkpoint takes.
    #[default]
    Auto,
    /// At most 512 x 512.
    Low,
    /// As many pixels as the checkpoint takes.
    High,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    InputText(String),
    /// The sound is `None` where the client sent a transcript alone.
    InputAudio {
        sound: Option<UserSound>,
        transcript: Option<String>,
    },
    /// Base64, a `data:` URL or an address.
    InputImage {
        url: String,
        detail: Detail,
    },
    /// A call of a function: all that its item has.
    Call {
        call_id: String,
        call: Call,
    },
    /// What came of it: all that its item has.
    CallOutput {
        call_id: String,
        output: String,
    },
    OutputText(String),
    OutputAudio {
        transcript: String,
        spoken: Spoken,
    },
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub id: String,
    pub role: Role,
    pub status: Status,
    pub content: Vec<Content>,
}

impl Item {
    /// A turn of the user that was heard.
    pub fn heard(id: String, samples: &[i16], rate: u32) -> Item {
        let content = vec![Content::InputAudio { sound: Some(UserSound::new(samples, rate)), transcript: None }];
        Item { id, role: Role::User, status: Status::Completed, content }
    }

    /// What a client sent. `fresh` names it where the client did not.
    pub fn read(
        fields: ItemFields,
        fresh: impl FnOnce() -> String,
        input: WireFormat,
        abilities: &Abilities,
        limits: &Limits,
    ) -> Result<Item, Refusal> {
        let id = match fields.id.clone() {
            Some(id) if id.is_empty() || id.len() > MAX_ID => {
                return Err(Refusal::value("item.id", format!("must have 1 to {MAX_ID} bytes")));
            }
            Some(id) => id,
            None => fresh(),
        };
        match fields.kind.as_deref() {
            Some("message") | None => {}
            Some("function_call") => return Item::of_call(fields, id, true, abilities, limits),
            Some("function_call_output") => return Item::of_call(fields, id, false, abilities, limits),
            Some(other) => {
                let message =
                    format!("{:?} is unknown; send message, function_call or function_call_output", short(other));
                return Err(Refusal::value("item.type", message));
            }
        }
        let role = match fields.role.as_deref() {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("system" | "developer") => Role::System,
            Some(other) => {
                let message = format!("{:?} is unknown; send user, assistant or system", short(other));
                return Err(Refusal::value("item.role", message));
            }
            None => return Err(Refusal::missing("item.role")),
        };
        let parts = fields.content.ok_or_else(|| Refusal::missing("item.content"))?;
        if parts.len() > limits.parts {
            let message = format!("{} parts are more than the limit of {}", parts.len(), limits.parts);
            return Err(Refusal::value("item.content", message));
        }
        let content: Vec<Content> =
            parts.into_iter().map(|part| Content::read(part, role, input, abilities)).collect::<Result<_, _>>()?;
        let chars: usize = content.iter().map(Content::chars).sum();
        if chars > limits.item_chars {
            let message =
                format!("{chars} characters are more than the limit of {} (limits.max_input_chars)", limits.item_chars);
            return Err(Refusal::value("item.content", message));
        }
        Ok(Item { id, role, status: Status::Completed, content })
    }

    /// A call, or what came of one, as a client sent it.
    fn of_call(
        fields: ItemFields,
        id: String,
        calls: bool,
        abilities: &Abilities,
        limits: &Limits,
    ) -> Result<Item, Refusal> {
        if !abilities.calls {
            let message = format!("the chat template of {:?} has no place for tools", abilities.model);
            return Err(Refusal::unsupported("item.type", message));
        }
        let call_id = fields.call_id.ok_or_else(|| Refusal::missing("item.call_id"))?;
        if call_id.is_empty() || call_id.len() > MAX_ID {
            return Err(Refusal::value("item.call_id", format!("must have 1 to {MAX_ID} bytes")));
        }
        if !calls {
            let output = fields.output.ok_or_else(|| Refusal::missing("item.output"))?;
            let chars = output.chars().count();
            if chars > limits.item_chars {
                let most = limits.item_chars;
                let message = format!("{chars} characters are more than the limit of {most} (limits.max_input_chars)");
                return Err(Refusal::value("item.output", message));
            }
            return Ok(Item::done(id, Role::Tool, Content::CallOutput { call_id, output }));
        }
        let name = fields.name.ok_or_else(|| Refusal::missing("item.name"))?;
        if name.is_empty() || name.len() > MAX_ID {
            return Err(Refusal::value("item.name", format!("must have 1 to {MAX_ID} bytes")));
        }
        let arguments = fields.arguments.ok_or_else(|| Refusal::missing("item.arguments"))?;
        if arguments.len() > MAX_CALL_BYTES.min(limits.item_chars) {
            let most = MAX_CALL_BYTES.min(limits.item_chars);
            return Err(Refusal::value("item.arguments", format!("has more than {most} bytes")));
        }
        if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&arguments).is_err() {
            return Err(Refusal::value("item.arguments", "must be a JSON object, as a string"));
        }
        Ok(Item::done(id, Role::Assistant, Content::Call { call_id, call: Call { name, arguments } }))
    }

    /// An item of one part that is complete.
    pub fn done(id: String, role: Role, content: Content) -> Item {
        Item { id, role, status: Status::Completed, content: vec![content] }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        OVERHEAD + self.id.len() + self.content.iter().map(Content::bytes).sum::<usize>()
    }

    /// As a client is told: `whole` with the bytes of sounds and pictures.
    pub fn object(&self, whole: bool) -> ItemObject {
        let status = match self.status {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        };
        let item = ItemObject { id: self.id.clone(), object: "realtime.item", status, ..ItemObject::default() };
        match self.content.first() {
            Some(Content::Call { call_id, call }) => ItemObject {
                kind: "function_call",
                call_id: Some(call_id.clone()),
                name: Some(call.name.clone()),
                arguments: Some(call.arguments.clone()),
                ..item
            },
            Some(Content::CallOutput { call_id, output }) => ItemObject {
                kind: "function_call_output",
                call_id: Some(call_id.clone()),
                output: Some(output.clone()),
                ..item
            },
            _ => ItemObject {
                kind: "message",
                role: Some(self.role.as_str()),
                content: Some(self.content.iter().map(|content| content.object(whole)).collect()),
                ..item
            },
        }
    }

    /// What the model reads; nothing of a turn in which nothing was said. Sounds and pictures for which `room` is not
    /// there are given by their transcripts, or left out.
    pub fn prompt(&self, room: &mut MediaRoom) -> Option<PromptTurn> {
        if let Some(Content::Call { call, .. }) = self.content.first() {
            return Some(PromptTurn { role: "assistant", parts: Vec::new(), calls: vec![call.clone()] });
        }
        if let Some(Content::CallOutput { output, .. }) = self.content.first() {
            return Some(PromptTurn::text("tool", output));
        }
        let mut parts: Vec<PromptPart> = self.content.iter().rev().filter_map(|content| content.prompt(room)).collect();
        parts.reverse();
        let says = |part: &PromptPart| !matches!(part, PromptPart::Text(text) if text.trim().is_empty());
        parts.iter().any(says).then(|| PromptTurn { role: self.role.as_str(), parts, calls: Vec::new() })
    }
}

/// How much sound and how many pictures a prompt has room for. The last ones of a conversation take it first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MediaRoom {
    files: usize,
    ms: u64,
}

impl MediaRoom {
    pub fn new(limits: &Limits) -> MediaRoom {
        MediaRoom { files: limits.media, ms: limits.media_ms }
    }

    /// For media of these lengths, with and without the silence behind them, in their order. Where not all of them have
    /// room, it is made for a quarter of `limits.media` at once, so that the conversation begins alike for some turns:
    /// what was computed of a prompt is of use for one that begins with it.
    pub fn of(limits: &Limits, media: &[(u64, u64)]) -> MediaRoom {
        let mut room = MediaRoom::new(limits);
        let fit = media.iter().rev().take_while(|(ms, said_ms)| room.take(*ms) || room.take(*said_ms)).count();
        // Never for so many that the last one goes, which is to be answered.
        let step = (limits.media / 4).min(fit).max(1);
        let out = (media.len() - fit).next_multiple_of(step);
        MediaRoom { files: media.len().saturating_sub(out).min(limits.media), ms: limits.media_ms }
    }

    pub fn take(&mut self, ms: u64) -> bool {
        let has = self.files > 0 && self.ms >= ms;
        if has {
            self.files -= 1;
            self.ms -= ms;
        }
        has
    }
}

impl Item {
    /// Milliseconds of each sound in it, with and without the silence behind it, and 0 for each picture.
    pub fn media(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.content.iter().filter_map(|content| match content {
            Content::InputAudio { sound: Some(sound), .. } => Some((sound.ms(), sound.said_ms())),
            Content::InputImage { .. } => Some((0, 0)),
            _ => None,
        })
    }
}

impl Content {
    fn prompt(&self, room: &mut MediaRoom) -> Option<PromptPart> {
        Some(match self {
            Content::InputText(text) | Content::OutputText(text) => PromptPart::Text(text.clone()),
            Content::OutputAudio { transcript, .. } => PromptPart::Text(transcript.clone()),
            Content::InputAudio { sound: Some(sound), .. } if room.take(sound.ms()) => PromptPart::Audio(sound.file()),
            // A sound that is as long as it may be is not lost for its silence.
            Content::InputAudio { sound: Some(sound), .. } if room.take(sound.said_ms()) => {
                PromptPart::Audio(sound.said())
            }
            Content::InputAudio { transcript, .. } => PromptPart::Text(transcript.clone()?),
            Content::InputImage { url, detail } if room.take(0) => {
                PromptPart::Image { url: url.clone(), detail: *detail }
            }
            // Items of their own, which Item::prompt has told.
            Content::InputImage { .. } | Content::Call { .. } | Content::CallOutput { .. } => return None,
        })
    }

    fn read(fields: ContentFields, role: Role, input: WireFormat, abilities: &Abilities) -> Result<Content, Refusal> {
        let text = |text: Option<String>| text.ok_or_else(|| Refusal::missing("item.content.text"));
        let kind = fields.kind.as_deref().ok_or_else(|| Refusal::missing("item.content.type"))?;
        match (role, kind) {
            (Role::User | Role::System, "input_text" | "text") => Ok(Content::InputText(text(fields.text)?)),
            (Role::Assistant, "output_text" | "text") => Ok(Content::OutputText(text(fields.text)?)),
            (Role::Assistant, "output_audio") => {
                let transcript = fields.transcript.ok_or_else(|| Refusal::missing("item.content.transcript"))?;
                Ok(Content::OutputAudio { transcript, spoken: Spoken::default() })
            }
            (Role::User, "input_audio") => {
                let refuse = |message: String| Refusal::value("item.content.audio", message);
                let sound = match fields.audio {
                    Some(audio) => {
                        abilities.check_hears("item.content")?;
                        let samples = input.decode(&audio).map_err(refuse)?;
                        if samples.is_empty() {
                            return Err(refuse("is empty".to_owned()));
                        }
                        Some(UserSound::new(&samples, input.rate()))
                    }
                    None if fields.transcript.is_some() => None,
                    None => return Err(Refusal::missing("item.content.audio")),
                };
                Ok(Content::InputAudio { sound, transcript: fields.transcript })
            }
            (Role::User, "input_image") => {
                if !abilities.sees {
                    let message = format!("the model {:?} cannot see; send text", abilities.model);
                    return Err(Refusal::unsupported("item.content", message));
                }
                let url = fields.image_url.ok_or_else(|| Refusal::missing("item.content.image_url"))?;
                let detail = match fields.detail.as_deref() {
                    None | Some("auto") => Detail::Auto,
                    Some("low") => Detail::Low,
                    Some("high") => Detail::High,
                    Some(other) => {
                        let message = format!("{:?} is none of auto, low, high", short(other));
                        return Err(Refusal::value("item.content.detail", message));
                    }
                };
                Ok(Content::InputImage { url, detail })
            }
            (role, kind) => {
                let allowed = match role {
                    Role::User => "input_text, input_audio or input_image",
                    Role::System => "input_text",
                    Role::Assistant | Role::Tool => "output_text or output_audio",
                };
                let message = format!("{:?} is no part of the {}'s; send {allowed}", short(kind), role.as_str());
                Err(Refusal::value("item.content.type", message))
            }
        }
    }

    fn chars(&self) -> usize {
        match self {
            Content::InputText(text) | Content::OutputText(text) => text.chars().count(),
            Content::OutputAudio { transcript, .. } => transcript.chars().count(),
            Content::InputAudio { transcript, .. } => transcript.as_ref().map_or(0, |text| text.chars().count()),
            Content::InputImage { .. } | Content::Call { .. } | Content::CallOutput { .. } => 0,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Content::InputText(text) | Content::OutputText(text) => text.len(),
            Content::OutputAudio { transcript, spoken } => transcript.len() + 4 * spoken.marks.len(),
            Content::InputAudio { sound, transcript } => {
                sound.as_ref().map_or(0, UserSound::bytes) + transcript.as_ref().map_or(0, String::len)
            }
            Content::InputImage { url, .. } => url.len(),
            Content::Call { call_id, call } => call_id.len() + call.name.len() + call.arguments.len(),
            Content::CallOutput { call_id, output } => call_id.len() + output.len(),
        }
    }

    fn object(&self, whole: bool) -> PartObject {
        let part = |kind| PartObject { kind, ..PartObject::default() };
        match self {
            Content::InputText(text) => PartObject { text: Some(text.clone()), ..part("input_text") },
            Content::OutputText(text) => PartObject { text: Some(text.clone()), ..part("output_text") },
            Content::OutputAudio { transcript, .. } => {
                PartObject { transcript: Some(transcript.clone()), ..part("output_audio") }
            }
            Content::InputAudio { sound, transcript } => {
                let audio = sound.as_ref().filter(|_| whole).map(UserSound::base64);
                PartObject { audio, transcript: transcript.clone(), ..part("input_audio") }
            }
            Content::InputImage { url, detail } => {
                let detail = match detail {
                    Detail::Auto => "auto",
                    Detail::Low => "low",
                    Detail::High => "high",
                };
                let image_url = whole.then(|| url.clone());
                PartObject { image_url, detail: Some(detail), ..part("input_image") }
            }
            // No parts of a message.
            Content::Call { .. } => part("function_call"),
            Content::CallOutput { .. } => part("function_call_output"),
        }
    }
}
