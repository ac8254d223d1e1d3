//! A conversation whose messages have parts.

use crate::prompt::{Message, PromptError, Role};
use crate::template::{TemplatePart, TemplateView};

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text. It is never structure, even where it looks like a special token.
    Text(String),
    /// The place of a clip.
    Audio,
    /// The place of an image.
    Image,
    /// The place of a video.
    Video,
}

/// What a message says. Templates tell the two apart: a system message of parts may become several turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// One text.
    Text(String),
    /// Texts and media.
    Parts(Vec<Part>),
}

/// A function that the assistant has called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its name.
    pub name: String,
    /// JSON, as the model or a client wrote it.
    pub arguments: String,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaMessage {
    /// Who speaks.
    pub role: Role,
    /// What.
    pub content: Content,
    /// What the assistant calls behind that.
    pub calls: Vec<ToolCall>,
}

impl Content {
    /// The texts in it.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (whole, parts): (Option<&str>, &[Part]) = match self {
            Content::Text(text) => (Some(text), &[]),
            Content::Parts(parts) => (None, parts),
        };
        whole.into_iter().chain(parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        }))
    }
}

impl MediaMessage {
    /// The texts of the message.
    pub(in crate::prompt) fn texts(&self) -> impl Iterator<Item = &str> {
        let calls = self.calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
        self.content.texts().chain(calls)
    }

    /// The message with other texts.
    pub(in crate::prompt) fn map(&self, text: impl Fn(&str) -> String) -> MediaMessage {
        let content = match &self.content {
            Content::Text(whole) => Content::Text(text(whole)),
            Content::Parts(parts) => {
                let part = |part: &Part| match part {
                    Part::Text(one) => Part::Text(text(one)),
                    other => other.clone(),
                };
                Content::Parts(parts.iter().map(part).collect())
            }
        };
        let call = |call: &ToolCall| ToolCall { name: text(&call.name), arguments: text(&call.arguments) };
        MediaMessage { role: self.role, content, calls: self.calls.iter().map(call).collect() }
    }

    /// The message as templates see it.
    pub(in crate::prompt) fn view(&self) -> TemplateView {
        let role = self.role.as_str();
        let view = match &self.content {
            Content::Text(text) => TemplateView::text(role, text),
            Content::Parts(parts) => TemplateView::parts(
                role,
                parts.iter().map(|part| match part {
                    Part::Text(text) => TemplatePart::Text(text),
                    Part::Audio => TemplatePart::Medium("audio"),
                    Part::Image => TemplatePart::Medium("image"),
                    Part::Video => TemplatePart::Medium("video"),
                }),
            ),
        };
        match self.calls.is_empty() {
            true => view,
            false => view.calling(self.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str()))),
        }
    }

    /// Whether a conversation can be answered.
    pub(in crate::prompt) fn check(messages: &[MediaMessage]) -> Result<(), PromptError> {
        match messages.last() {
            None => Err(PromptError::Empty),
            Some(last) if !matches!(last.role, Role::User | Role::Tool) => Err(PromptError::LastNotUser(last.role)),
            Some(_) => Ok(()),
        }
    }
}

impl From<&Message> for MediaMessage {
    fn from(message: &Message) -> MediaMessage {
        MediaMessage { role: message.role, content: Content::Text(message.content.clone()), calls: Vec::new() }
    }
}
