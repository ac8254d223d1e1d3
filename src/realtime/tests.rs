//! Scripts of events against a session.

use crate::*;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod calls;
mod conversations;
mod histories;
mod preparing;
mod speech;
mod tools;

pub(super) fn opening() -> Opening {
    Opening {
        id: "sess_1".to_owned(),
        seed: 7,
        expires_at: 1,
        abilities: Abilities {
            model: "m".to_owned(),
            hears: true,
            sees: true,
            calls: true,
            default_voice: Some("ethan".to_owned()),
            frame_ms: 80.0,
            is_model: Arc::new(|name| name == "m"),
            find_voice: Arc::new(|name| match name {
                "ethan" | "chelsie" => Ok(Some(name.to_owned())),
                _ => Err("there is no such voice".to_owned()),
            }),
        },
        limits: Limits {
            items: 12,
            bytes: 200_000,
            audio_ms: 2_000,
            instruction_chars: 100,
            item_chars: 200,
            parts: 3,
            media: 2,
            media_ms: 10_000,
            window_ms: 0,
            jobs: 3,
        },
        plays: false,
    }
}

pub(super) fn map(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// A session, and what it has said and asked for.
pub(super) struct Played {
    pub session: Session,
    pub events: Vec<Value>,
    pub begun: Vec<Job>,
    pub cancelled: Vec<JobId>,
}

impl Played {
    pub fn new() -> Played {
        Played::of(opening())
    }

    pub fn of(opening: Opening) -> Played {
        let (session, effects) = Session::new(opening);
        let mut played = Played { session, events: Vec::new(), begun: Vec::new(), cancelled: Vec::new() };
        played.take(effects);
        played
    }

    pub fn send(&mut self, event: &Value) -> Vec<Value> {
        let effects = self.session.client_event(map(event));
        let before = self.events.len();
        self.take(effects);
        while self.session.is_behind() {
            let effects = self.session.go_on();
            self.take(effects);
        }
        self.events[before..].to_vec()
    }

    pub fn answer(&mut self, job: JobId, part: AnswerPart) -> Vec<Value> {
        let effects = self.session.answer(job, part);
        let before = self.events.len();
        self.take(effects);
        self.events[before..].to_vec()
    }

    /// The whole of a spoken answer, a frame of sound for each text.
    pub fn speak(&mut self, job: JobId, texts: &[&str], frames: usize) {
        self.answer(job, AnswerPart::Started);
        for text in texts {
            self.answer(job, AnswerPart::Text((*text).to_owned()));
        }
        for _ in 0..frames {
            self.answer(job, AnswerPart::Audio(vec![0; 3840]));
        }
    }

    pub fn finish(&mut self, job: JobId) -> Vec<Value> {
        let usage = Usage { input: 9, cached: 5, input_audio: 2, input_image: 1, output_text: 3, output_audio: 4 };
        self.answer(job, AnswerPart::Finished { ending: Ending::Stop, usage })
    }

    pub fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(sent) => self.events.push(serde_json::to_value(&sent).unwrap()),
                Effect::Begin(job) => self.begun.push(*job),
                Effect::Cancel(job) => self.cancelled.push(job),
            }
        }
    }

    pub fn last_job(&self) -> JobId {
        self.begun.last().unwrap().id
    }
}

pub(super) fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

pub(super) fn message(role: &str, kind: &str, text: &str) -> Value {
    json!({"type": "conversation.item.create", "item": {
        "type": "message", "role": role, "content": [{"type": kind, "text": text}],
    }})
}

/// What holds for everything that a session says, whatever happens to it.
pub(super) fn check(played: &Played) {
    let mut created = BTreeSet::new();
    let mut done = BTreeSet::new();
    let mut items: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (number, event) in played.events.iter().enumerate() {
        assert_eq!(event["event_id"], format!("event_{}", number + 1));
        let kind = event["type"].as_str().unwrap();
        assert!(ServerEvent::TYPES.contains(&kind), "{kind}");
        if let Some(id) = event["response"]["id"].as_str() {
            match kind {
                "response.created" => assert!(created.insert(id.to_owned()), "{id} twice"),
                _ => assert!(created.contains(id) && done.insert(id.to_owned()), "{id} done twice or before"),
            }
        }
        if let Some(id) = event["response_id"].as_str() {
            // What is played comes later than what is made.
            let late = kind.starts_with("output_audio_buffer.");
            assert!(created.contains(id) && (late || !done.contains(id)), "{kind} of {id} outside of it");
        }
        let item = event["item_id"].as_str().or(event["item"]["id"].as_str());
        if let Some(item) = item.filter(|_| kind.starts_with("response.")) {
            items.entry(item.to_owned()).or_default().push(kind);
        }
    }
    for kinds in items.values() {
        let at = |kind: &str| kinds.iter().position(|other| *other == kind);
        assert_eq!(at("response.output_item.added"), Some(0), "{kinds:?}");
        if at("response.function_call_arguments.done").is_some() {
            let call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"];
            let call = call.into_iter().chain(["output_item.done"]).map(|kind| format!("response.{kind}"));
            assert_eq!(kinds.clone(), call.collect::<Vec<_>>());
            continue;
        }
        assert_eq!(at("response.content_part.added"), Some(1), "{kinds:?}");
        if let Some(end) = at("response.output_item.done") {
            assert_eq!(end, kinds.len() - 1, "{kinds:?}");
            assert_eq!(at("response.content_part.done"), Some(end - 1), "{kinds:?}");
        }
    }
    let conversation = played.session.conversation();
    assert_eq!(conversation.bytes(), conversation.counted());
    let ids = conversation.ids();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    assert!(ids.len() <= 12 + 1, "{} items", ids.len());
}
