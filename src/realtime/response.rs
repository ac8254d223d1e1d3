//! An answer that is being made, and what the client is told of it.

use crate::calls::{Call, CallFinder, Found};
use crate::item::{Content, Item, Role, Status};
use crate::job::{Ending, Job, JobId, PromptTurn, Usage};
use crate::server_event::{ItemObject, PartObject, Place, ResponseObject, ServerEvent};
use crate::session::Abilities;
use crate::settings::AnswerSettings;
use crate::spoken::Spoken;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

/// How a response ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Finished(Ending, Usage),
    Cancelled(&'static str),
    Failed { code: String, message: String },
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub id: String,
    pub job: JobId,
    /// Whether it is part of the conversation.
    pub in_conversation: bool,
    pub settings: AnswerSettings,
    pub metadata: Option<Map<String, Value>>,
    pub seed: u64,
    /// The message that is being made, once the engine has begun; where functions may be called, once there is
    /// something in it.
    pub item: Option<String>,
    /// Whether the engine has begun.
    pub begun: bool,
    /// Items that are complete.
    done: Vec<Item>,
    calls: Option<CallFinder>,
    text: String,
    /// Text that waits for its item.
    early: String,
    spoken: Spoken,
    /// Bytes of sound that were sent.
    sound: u64,
}

impl Response {
    pub fn new(
        id: String,
        job: JobId,
        in_conversation: bool,
        settings: AnswerSettings,
        metadata: Option<Map<String, Value>>,
        seed: u64,
    ) -> Response {
        let spoken = Spoken { speed: settings.speed, ..Spoken::default() };
        let calls = (!settings.tools.offered().is_empty()).then(CallFinder::default);
        Response {
            id,
            job,
            in_conversation,
            settings,
            metadata,
            seed,
            item: None,
            begun: false,
            done: Vec::new(),
            calls,
            text: String::new(),
            early: String::new(),
            spoken,
            sound: 0,
        }
    }

    /// The request that makes it.
    pub fn job(&self, turns: Vec<PromptTurn>) -> Job {
        Job {
            id: self.job,
            turns,
            tools: self.settings.tools.offered(),
            prepares: false,
            speaks: self.settings.speaks,
            voice: self.settings.voice.clone(),
            speed: self.settings.speed,
            format: self.settings.format,
            max_tokens: self.settings.max_tokens,
            temperature: self.settings.temperature,
            seed: self.seed,
        }
    }

    /// As a client is told.
    pub fn object(&self, abilities: &Abilities, conversation: &str, outcome: Option<&Outcome>) -> ResponseObject {
        let (status, status_details) = match outcome {
            None => ("in_progress", None),
            Some(Outcome::Finished(Ending::Stop, _)) => ("completed", Some(json!({"type": "completed"}))),
            Some(Outcome::Finished(Ending::Length, _)) => {
                ("incomplete", Some(json!({"type": "incomplete", "reason": "max_output_tokens"})))
            }
            Some(Outcome::Cancelled(reason)) => ("cancelled", Some(json!({"type": "cancelled", "reason": reason}))),
            Some(Outcome::Failed { code, message }) => {
                let error = json!({"type": "server_error", "code": code, "message": message});
                ("failed", Some(json!({"type": "failed", "error": error})))
            }
        };
        let usage = outcome.map(|outcome| match outcome {
            Outcome::Finished(_, usage) => usage.object(),
            // What the prompt took is not known of an answer that was cut off.
            _ => Usage { output_text: self.spoken.marks.len() as u32, ..Usage::default() }.object(),
        });
        let last = outcome.and_then(|outcome| self.item(outcome));
        let items = self.done.iter().chain(&last).filter(|_| outcome.is_some());
        ResponseObject {
            id: self.id.clone(),
            object: "realtime.response",
            status,
            status_details,
            output: items.map(|item| item.object(false)).collect(),
            conversation_id: self.in_conversation.then(|| conversation.to_owned()),
            output_modalities: [self.settings.modality()],
            audio: json!({"output": self.settings.output_object(abilities)}),
            max_output_tokens: self.settings.max_tokens_object(),
            metadata: self.metadata.clone(),
            seed: self.seed,
            usage,
        }
    }

    /// The number of the item that is being made.
    fn index(&self) -> u32 {
        self.done.len() as u32
    }

    fn place(&self) -> Place {
        let item_id = self.item.clone().unwrap_or_default();
        Place { response_id: self.id.clone(), item_id, output_index: self.index(), content_index: 0 }
    }

    fn part(&self) -> PartObject {
        match self.settings.speaks {
            true => PartObject { kind: "audio", transcript: Some(self.text.clone()), ..PartObject::default() },
            false => PartObject { kind: "text", text: Some(self.text.clone()), ..PartObject::default() },
        }
    }

    /// The item before anything of it has come. `frame_ms`: of a frame of sound.
    pub fn begin(&mut self, item: String, frame_ms: f64) -> Item {
        self.spoken.frame_ms = frame_ms;
        self.item = Some(item.clone());
        Item { id: item, role: Role::Assistant, status: Status::InProgress, content: Vec::new() }
    }

    /// The item is there: what goes out with it, before it, and behind it.
    pub fn item_added(&self, item: ItemObject) -> ServerEvent {
        ServerEvent::OutputItemAdded { response_id: self.id.clone(), output_index: self.index(), item }
    }

    pub fn part_added(&self) -> ServerEvent {
        ServerEvent::PartAdded { place: self.place(), part: self.part() }
    }

    /// Whether an item is begun with the engine, not with the first of its content.
    pub fn begins_at_once(&self) -> bool {
        self.calls.is_none()
    }

    /// What the text of the next token is, and whether it begins the message.
    pub fn find(&mut self, delta: String) -> Vec<Found> {
        match &mut self.calls {
            None => vec![Found::Text(delta)],
            Some(calls) => {
                let found: Vec<Found> = calls.push(&delta).into();
                // The talker takes the token all the same.
                let nothing = found.is_empty() && !calls.has_called();
                if nothing { vec![Found::Text(String::new())] } else { found }
            }
        }
    }

    /// What the end of the text is.
    pub fn find_last(&mut self) -> Option<Found> {
        self.calls.as_mut().and_then(CallFinder::finish)
    }

    /// Whether sound has a message: one that was begun, also where a call is being written already, for sound comes
    /// behind its text; or one that begins with it.
    pub fn takes_sound(&self) -> bool {
        self.item.is_some() || (self.begun && !self.calls.as_ref().is_some_and(CallFinder::has_called))
    }

    /// More text, behind what has waited for the message; `None` while that has not begun and all is blank.
    pub fn due(&mut self, delta: String) -> Option<String> {
        if self.begins_at_once() {
            return Some(delta);
        }
        self.early.push_str(&delta);
        if self.item.is_none() && self.early.trim().is_empty() {
            // A token of the talker's like any other.
            self.spoken.marks.push(0);
            return None;
        }
        Some(std::mem::take(&mut self.early))
    }

    /// The message is complete: another item may follow.
    pub fn close(&mut self, item: Item) {
        self.item = None;
        self.done.push(item);
    }

    /// The events of a call, whose item was told already.
    pub fn called(&self, item_id: &str, call_id: &str, call: &Call) -> [ServerEvent; 2] {
        let (response_id, output_index) = (self.id.clone(), self.index());
        let (item_id, call_id, arguments) = (item_id.to_owned(), call_id.to_owned(), call.arguments.clone());
        [
            ServerEvent::ArgumentsDelta {
                response_id: response_id.clone(),
                item_id: item_id.clone(),
                output_index,
                call_id: call_id.clone(),
                delta: arguments.clone(),
            },
            ServerEvent::ArgumentsDone {
                response_id,
                item_id,
                output_index,
                call_id,
                name: call.name.clone(),
                arguments,
            },
        ]
    }

    /// More text.
    pub fn text(&mut self, delta: String) -> ServerEvent {
        let position = self.spoken.marks.len();
        self.text.push_str(&delta);
        self.spoken.marks.push(self.text.len() as u32);
        let place = self.place();
        if !self.settings.speaks {
            return ServerEvent::TextDelta { place, delta };
        }
        let start = position as f64 * self.spoken.frame_ms / 1000.0 / f64::from(self.settings.speed);
        ServerEvent::TranscriptDelta { place, delta, start_time: (start * 1000.0).round() / 1000.0 }
    }

    /// More sound, as it is told.
    pub fn audio(&mut self, bytes: &[u8]) -> ServerEvent {
        self.sounds(bytes);
        ServerEvent::AudioDelta { place: self.place(), delta: BASE64_STANDARD.encode(bytes) }
    }

    /// More sound.
    pub fn sounds(&mut self, bytes: &[u8]) {
        self.sound += bytes.len() as u64;
        let format = self.settings.format;
        self.spoken.ms = self.sound * 1000 / (format.width() as u64 * u64::from(format.rate()));
    }

    /// The item with what has come.
    pub fn item(&self, outcome: &Outcome) -> Option<Item> {
        let id = self.item.clone()?;
        let complete = matches!(outcome, Outcome::Finished(..));
        let content = match self.settings.speaks {
            true => {
                let spoken = Spoken { complete, ..self.spoken.clone() };
                Content::OutputAudio { transcript: self.text.clone(), spoken }
            }
            false => Content::OutputText(self.text.clone()),
        };
        let status = match outcome {
            Outcome::Finished(Ending::Stop, _) => Status::Completed,
            _ => Status::Incomplete,
        };
        Some(Item { id, role: Role::Assistant, status, content: vec![content] })
    }

    /// What ends the part.
    pub fn part_done(&self) -> Vec<ServerEvent> {
        let place = self.place();
        let mut events = match self.settings.speaks {
            true => vec![
                ServerEvent::AudioDone { place: place.clone() },
                ServerEvent::TranscriptDone { place: place.clone(), transcript: self.text.clone() },
            ],
            false => vec![ServerEvent::TextDone { place: place.clone(), text: self.text.clone() }],
        };
        events.push(ServerEvent::PartDone { place, part: self.part() });
        events
    }

    /// What ends the item.
    pub fn item_done(&self, item: ItemObject) -> ServerEvent {
        ServerEvent::OutputItemDone { response_id: self.id.clone(), output_index: self.index(), item }
    }
}
