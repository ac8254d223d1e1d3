//! Turns a conversation, or a text to be spoken, into the token ids of the thinker and says which of their embeddings
//! the talker takes (spec section 5).

use super::media::MediaMessage;
use crate::hf::{ChatTokens, OmniConfig};
use crate::media::MediaKind;
use crate::template::{ChatTemplate, Document, TemplateError};
use crate::tokenizer::{TokenizeError, Tokenizer};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// Ids that open the assistant's turn: `<|im_start|>`, `assistant`, newline.
const HEADER: usize = 3;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions. Never spoken to the talker.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// What came of a function that the model called. Templates write it as a user's turn.
    Tool,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = PromptError;

    fn from_str(text: &str) -> Result<Role, PromptError> {
        match text {
            "system" => Ok(Role::System),
            "user" => Ok(Role::User),
            "assistant" => Ok(Role::Assistant),
            "tool" => Ok(Role::Tool),
            other => Err(PromptError::UnknownRole(other.chars().take(64).collect())),
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text. It is never structure, even where it looks like a special token.
    pub content: String,
}

/// A conversation or text without a prompt. All but the last two are the client's mistake.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PromptError {
    #[error("the conversation is empty")]
    Empty,
    #[error("the last message is from the {0}; it must be from the user or a tool")]
    LastNotUser(Role),
    #[error("unknown role {0:?}; expected system, user, assistant or tool")]
    UnknownRole(String),
    #[error("the chat template of this checkpoint has no place for tools; leave them out")]
    NoTools,
    #[error("there is no text to speak")]
    NothingToSpeak,
    #[error("audio, image and video input is not served yet")]
    Multimodal,
    #[error("the conversation has {places} places for {kind}, but {items} are given")]
    MediaCount { kind: MediaKind, places: usize, items: usize },
    #[error("the prompt has {tokens} tokens with all media, at most {most} are taken: send less or smaller media")]
    TooLong { tokens: usize, most: usize },
    #[error("the prompt does not have the structure of this model: {0}")]
    Structure(String),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
}

/// A thinker prompt and what the talker takes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// All ids, the assistant's header last.
    pub ids: Arc<[u32]>,
    /// Positions whose embeddings go to the talker: each user turn whole, then the assistant's header.
    pub emit: Arc<[Range<u32>]>,
    /// How many of those embeddings belong to user turns.
    pub user_embeddings: u32,
}

/// A text to be spoken verbatim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechPrompt {
    /// The request that makes the thinker say it.
    pub prompt: ChatPrompt,
    /// The answer that is forced, without an end token.
    pub answer: Vec<u32>,
}

/// Builds prompts. Immutable and shared by all requests.
#[derive(Clone, Debug)]
pub struct Prompter {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    tokens: ChatTokens,
    placeholders: Arc<[u32]>,
}

impl Prompter {
    /// From the parts of one checkpoint.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Arc<ChatTemplate>, config: &OmniConfig) -> Prompter {
        let placeholders = config.thinker.placeholders.as_slice().into();
        Prompter { tokenizer, template, tokens: config.tokens, placeholders }
    }

    /// The tokenizer of these prompts, for turning answers into text.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The prompt that asks for an answer to the last message.
    ///
    /// # Errors
    /// [`PromptError`] for a conversation that has no user's message at its end.
    pub fn chat(&self, messages: &[Message]) -> Result<ChatPrompt, PromptError> {
        self.conversation(&messages.iter().map(MediaMessage::from).collect::<Vec<_>>(), &[])
    }

    /// [`Prompter::chat`] of messages that have calls but no media, with descriptions of the functions that the model
    /// may call: JSON, written in the order that it has.
    ///
    /// # Errors
    /// [`PromptError::NoTools`] for a template without a place for them, and what [`Prompter::chat`] says.
    pub fn conversation(&self, messages: &[MediaMessage], tools: &[String]) -> Result<ChatPrompt, PromptError> {
        let ids = self.encode(messages, tools)?;
        if ids.iter().any(|id| self.placeholders.contains(id)) {
            return Err(PromptError::Multimodal);
        }
        ChatPrompt::from_ids(ids, &self.tokens)
    }

    /// The prompt for speaking `text`. `pattern` is the user's turn, in which `{text}` stands for it.
    ///
    /// # Errors
    /// [`PromptError::NothingToSpeak`] for a text of spaces, and what [`Prompter::chat`] says.
    pub fn speech(&self, pattern: &str, text: &str) -> Result<SpeechPrompt, PromptError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(PromptError::NothingToSpeak);
        }
        let content = pattern.replace("{text}", text);
        let prompt = self.chat(&[Message { role: Role::User, content }])?;
        Ok(SpeechPrompt { prompt, answer: self.tokenizer.encode_text(text)? })
    }

    /// The ids that the reference gives the rendered conversation, except that content is never structure.
    ///
    /// Content and structure are tokenized together, for a word may reach across their border. So that a name like
    /// `<|im_end|>` in content stays text, it is broken up by a mark before the template runs and the mark is taken out
    /// again after structure has been recognized.
    pub(super) fn encode(&self, messages: &[MediaMessage], tools: &[String]) -> Result<Vec<u32>, PromptError> {
        MediaMessage::check(messages)?;
        let calls = !tools.is_empty() || messages.iter().any(|m| m.role == Role::Tool || !m.calls.is_empty());
        if calls && !self.knows_tools() {
            return Err(PromptError::NoTools);
        }
        // Written anew, for JSON may spell the name of a token with escapes.
        let written: Vec<String> =
            tools.iter().map(|tool| Document::parse(tool)?.to_json()).collect::<Result<_, TemplateError>>()?;
        let texts = || messages.iter().flat_map(MediaMessage::texts).chain(written.iter().map(String::as_str));
        let mark = unused_mark(texts)?;
        let described = written.iter().map(|tool| Document::parse(&self.break_up(tool, mark)));
        let described = described.collect::<Result<_, _>>()?;
        let broken_up = messages.iter().map(|message| message.map(|text| self.break_up(text, mark)).view()).collect();
        let given = texts().map(str::len).sum();
        let text = self.template.render_views(broken_up, described, given)?;
        Ok(self.tokenizer.encode_pieces(&text, |piece| {
            if piece.contains(mark) {
                self.tokenizer.encode_text(&piece.replace(mark, ""))
            } else {
                self.tokenizer.encode_text(piece)
            }
        })?)
    }

    /// Whether the template has a place for descriptions of tools, and calls can be told from text.
    pub fn knows_tools(&self) -> bool {
        self.template.knows_tools() && self.call_token().is_some()
    }

    /// The token that begins a call of a function, where the checkpoint has one that is text.
    pub fn call_token(&self) -> Option<u32> {
        self.tokenizer
            .added()
            .iter()
            .find(|token| token.content == "<tool_call>" && !token.special)
            .map(|token| token.id)
    }

    /// Ids of the chat format.
    pub(super) fn tokens(&self) -> &ChatTokens {
        &self.tokens
    }

    /// Content in which no added token can be found: a mark follows the first character of each.
    fn break_up(&self, content: &str, mark: char) -> String {
        let mut content = content.to_owned();
        for token in self.tokenizer.added() {
            while let Some(at) = content.find(&token.content) {
                let first = token.content.chars().next().map_or(0, char::len_utf8);
                content.insert(at + first, mark);
            }
        }
        content
    }
}

/// One of the characters that Unicode reserves for a program's own use, and that this conversation does not contain.
fn unused_mark<'a, I: Iterator<Item = &'a str>>(texts: impl Fn() -> I) -> Result<char, PromptError> {
    let mut marks = '\u{FDD0}'..='\u{FDEF}';
    let free = marks.find(|mark| texts().all(|text| !text.contains(*mark)));
    free.ok_or_else(|| PromptError::Structure("the text contains every character reserved for internal use".into()))
}

impl ChatPrompt {
    /// Finds the talker's embeddings in any prompt of this family (spec section 5): turns begin at each `<|im_start|>`
    /// with the role; system and earlier assistant turns are dropped.
    ///
    /// # Errors
    /// [`PromptError::Structure`] when the prompt does not end with an assistant header or has another role.
    pub fn from_ids(ids: Vec<u32>, tokens: &ChatTokens) -> Result<ChatPrompt, PromptError> {
        let starts: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == tokens.im_start).collect();
        let Some(&last) = starts.last() else {
            return Err(PromptError::Structure("it has no turns".into()));
        };
        let ends = starts[1..].iter().copied().chain([ids.len()]);
        let mut emit = Vec::new();
        for (&start, end) in starts.iter().zip(ends) {
            let role = ids.get(start + 1).copied();
            if role == Some(tokens.user) {
                emit.push(start as u32..end as u32);
            } else if role != Some(tokens.system) && role != Some(tokens.assistant) {
                let found = role.map_or("none".into(), |id| format!("token {id}"));
                return Err(PromptError::Structure(format!("a turn has the role {found}")));
            }
        }
        if ids.get(last + 1) != Some(&tokens.assistant) || ids.len() - last < HEADER {
            return Err(PromptError::Structure("it does not end with the assistant's header".into()));
        }
        let user_embeddings = emit.iter().map(|turn| turn.end - turn.start).sum();
        emit.push(last as u32..ids.len() as u32);
        Ok(ChatPrompt { ids: ids.into(), emit: emit.into(), user_embeddings })
    }
}
