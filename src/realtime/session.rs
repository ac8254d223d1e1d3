//! One session: settings, conversation, input audio buffer, the answers that are being made. It decides; it neither waits
//! nor computes an answer. The ids that it gives follow from counters, so a script that is played again gets the same.

mod answers;
mod edits;
mod hearing;
mod playing;
mod preparing;

use crate::client_event::{ClientEvent, SessionFields};
use crate::conversation::Conversation;
use crate::job::{Job, JobId};
use crate::listening::Listening;
use crate::playback::Playback;
use crate::refusal::Refusal;
use crate::response::Response;
use crate::server_event::{ErrorObject, Sent, ServerEvent};
use crate::settings::Settings;
use preparing::Preparing;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a name is that of the model.
pub type IsModel = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// The voice of a name, or why there is none.
pub type FindVoice = Arc<dyn Fn(&str) -> Result<Option<String>, String> + Send + Sync>;

/// What the model can do, and how names are looked up.
#[derive(Clone)]
pub struct Abilities {
    /// The name of the model.
    pub model: String,
    /// Whether it hears sound.
    pub hears: bool,
    /// Whether it sees pictures.
    pub sees: bool,
    /// Whether it can call functions.
    pub calls: bool,
    /// The voice of answers whose client names none.
    pub default_voice: Option<String>,
    /// Milliseconds of a frame of sound.
    pub frame_ms: f64,
    /// Whether a name is that of the model.
    pub is_model: IsModel,
    /// The voice of a name, as the engine knows it, or why there is none; `None` is the default.
    pub find_voice: FindVoice,
}

impl std::fmt::Debug for Abilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abilities").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Abilities {
    pub(crate) fn check_hears(&self, param: &'static str) -> Result<(), Refusal> {
        if self.hears {
            return Ok(());
        }
        Err(Refusal::unsupported(param, format!("the model {:?} cannot hear; send text", self.model)))
    }
}

/// Limits of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Items of the conversation.
    pub items: usize,
    /// Bytes of the conversation, sound included.
    pub bytes: usize,
    /// Milliseconds of the input audio buffer, which is also the longest turn.
    pub audio_ms: u64,
    /// Characters of instructions.
    pub instruction_chars: usize,
    /// Characters of the texts of an item.
    pub item_chars: usize,
    /// Parts of an item, and items of the input of a response.
    pub parts: usize,
    /// Sounds and pictures of a prompt, and milliseconds of its sound: of more than these, the first ones are given by
    /// their transcripts, or left out where there is none.
    pub media: usize,
    /// See `media`.
    pub media_ms: u64,
    /// Milliseconds of the sound that the model encodes at once; 0: nothing is computed of a turn before it ends.
    pub window_ms: u64,
    /// Answers that are made at the same time, transcriptions included.
    pub jobs: usize,
}

/// With what a session begins.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The name of the session.
    pub id: String,
    /// From which the seeds of its responses follow.
    pub seed: u64,
    /// When it ends at the latest, Unix seconds.
    pub expires_at: u64,
    /// What the model can do.
    pub abilities: Abilities,
    /// What it may take.
    pub limits: Limits,
    /// Whether it is a call: its sound is not told but played, by [`Session::play`], and the user's comes as samples,
    /// by [`Session::listen`].
    pub plays: bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send the client an event.
    Send(Box<Sent>),
    /// Begin a request; its answer comes to [`Session::answer`].
    Begin(Box<Job>),
    /// End a request: nothing more of it may come.
    Cancel(JobId),
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    opening: Opening,
    conversation_id: String,
    settings: Settings,
    conversation: Conversation,
    listening: Listening,
    playback: Playback,
    /// The item that the turn being spoken will be.
    turn_item: Option<String>,
    /// What is computed of it before it ends.
    preparing: Preparing,
    /// The answer that is part of the conversation.
    active: Option<Response>,
    /// A turn ended while another answer was made, and waits for its own.
    wanted: bool,
    /// Answers that are not.
    others: BTreeMap<JobId, Response>,
    /// What the user said, being written down: the item, and the text so far.
    transcriptions: BTreeMap<JobId, (String, String)>,
    events: u64,
    items: u64,
    responses: u64,
    jobs: u64,
    effects: Vec<Effect>,
}

impl Session {
    /// A session that has heard nothing, and its first event.
    pub fn new(opening: Opening) -> (Session, Vec<Effect>) {
        let settings = Settings::initial(opening.seed, &opening.abilities);
        let mut session = Session {
            conversation_id: format!("conv_{}", opening.id),
            conversation: Conversation::default(),
            listening: Listening::new(&settings),
            playback: Playback::default(),
            settings,
            opening,
            turn_item: None,
            preparing: Preparing::default(),
            active: None,
            wanted: false,
            others: BTreeMap::new(),
            transcriptions: BTreeMap::new(),
            events: 0,
            items: 0,
            responses: 0,
            jobs: 0,
            effects: Vec::new(),
        };
        let created = ServerEvent::SessionCreated { session: session.object() };
        session.tell(created);
        let effects = session.effects();
        (session, effects)
    }

    /// A session that begins with settings of its client's: the fields of `session.update`.
    ///
    /// # Errors
    /// What such an event would be refused for.
    pub fn configured(opening: Opening, session: Map<String, Value>) -> Result<(Session, Vec<Effect>), Refusal> {
        let (mut new, _) = Session::new(opening);
        let event = [("type", Value::from("session.update")), ("session", Value::Object(session))];
        if let ClientEvent::Update(fields) =
            ClientEvent::read(event.map(|(k, v)| (k.to_owned(), v)).into_iter().collect()).1?
        {
            new.update(&fields)?;
        }
        // Its first event tells of all of it.
        (new.effects, new.events) = (Vec::new(), 0);
        let created = ServerEvent::SessionCreated { session: new.object() };
        new.tell(created);
        let effects = new.effects();
        Ok((new, effects))
    }

    /// As its client is told of it.
    pub fn described(&self) -> Value {
        self.object()
    }

    /// Bytes that the session keeps for its client.
    pub fn bytes(&self) -> usize {
        let answer = &self.settings.answer;
        let held = self.conversation.bytes() + self.listening.bytes() + self.preparing.bytes() + self.playback.bytes();
        held + answer.instructions.len() + answer.tools.bytes()
    }

    /// Takes an event of the client.
    pub fn client_event(&mut self, event: Map<String, Value>) -> Vec<Effect> {
        // What came before is heard before.
        while self.listening.is_behind() {
            self.hear();
        }
        let (id, event) = ClientEvent::read(event);
        if let Err(refusal) = event.and_then(|event| self.follow(event)) {
            self.refuse(refusal, id);
        }
        self.next_turn();
        // Without a detector there is nothing to go on with; with one, a piece at once.
        if self.listening.is_behind() {
            self.hear();
        }
        self.prepare();
        self.effects()
    }

    /// Refuses what is no event.
    pub fn refused(&mut self, refusal: Refusal) -> Vec<Effect> {
        self.refuse(refusal, None);
        self.effects()
    }

    /// Whether there is sound that it has not listened to: [`Session::go_on`] does.
    pub fn is_behind(&self) -> bool {
        self.listening.is_behind()
    }

    /// Listens to one piece more of what was appended.
    pub fn go_on(&mut self) -> Vec<Effect> {
        if self.listening.is_behind() {
            self.hear();
        }
        self.prepare();
        self.effects()
    }

    fn follow(&mut self, event: ClientEvent) -> Result<(), Refusal> {
        match event {
            ClientEvent::Update(fields) => self.update(&fields),
            ClientEvent::Append(audio) => {
                self.opening.abilities.check_hears("audio")?;
                self.listening.append(&audio, &self.opening.limits)
            }
            ClientEvent::Commit => self.commit(),
            ClientEvent::Clear => {
                self.listening.clear();
                self.turn_item = None;
                self.stop_preparing();
                self.tell(ServerEvent::Cleared {});
                Ok(())
            }
            ClientEvent::ClearOutput => self.clear_output(),
            ClientEvent::Create(fields) => self.create(*fields),
            ClientEvent::Retrieve(id) => self.retrieve(&id),
            ClientEvent::Truncate(fields) => self.truncate(&fields),
            ClientEvent::Delete(id) => self.delete(&id),
            ClientEvent::Respond(fields) => self.respond(*fields),
            ClientEvent::Cancel(id) => self.cancel(id.as_deref()),
        }
    }

    fn update(&mut self, fields: &SessionFields) -> Result<(), Refusal> {
        let settings = self.settings.updated(fields, &self.opening.abilities, &self.opening.limits)?;
        self.check_format(settings.input, "audio.input.format")?;
        self.check_format(settings.answer.format, "audio.output.format")?;
        let (input, detects) = (self.settings.input, self.settings.turns.is_some());
        self.listening.configure(&settings)?;
        if settings.turns.is_none() {
            self.turn_item = None;
        }
        if settings.input != input || settings.turns.is_some() != detects {
            self.stop_preparing();
        }
        self.settings = settings;
        let updated = ServerEvent::SessionUpdated { session: self.object() };
        self.tell(updated);
        Ok(())
    }

    fn object(&self) -> Value {
        let Opening { id, expires_at, abilities, .. } = &self.opening;
        self.settings.object(id, *expires_at, abilities)
    }

    fn tell(&mut self, event: ServerEvent) {
        self.events += 1;
        let event_id = format!("event_{}", self.events);
        self.effects.push(Effect::Send(Box::new(Sent { event_id, event })));
    }

    fn refuse(&mut self, refusal: Refusal, event_id: Option<String>) {
        self.tell(ServerEvent::Error { error: ErrorObject::new(refusal, event_id) });
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// A name for an item that no item has.
    fn fresh_item(&mut self) -> String {
        loop {
            self.items += 1;
            let id = format!("item_{}", self.items);
            if self.conversation.get(&id).is_none() {
                return id;
            }
        }
    }

    /// Requests that are being served.
    fn jobs(&self) -> usize {
        let played = self.playback.waiting();
        usize::from(self.active.is_some()) + self.others.len() + self.transcriptions.len() + played
    }

    fn check_jobs(&self) -> Result<(), Refusal> {
        let most = self.opening.limits.jobs;
        if self.jobs() < most {
            return Ok(());
        }
        let message =
            format!("{most} responses of this session are being made or played already; wait for one or cancel it");
        Err(Refusal::new("too_many_responses", None, message))
    }

    fn fresh_job(&mut self) -> JobId {
        self.jobs += 1;
        JobId(self.jobs)
    }

    #[cfg(test)]
    pub(crate) fn conversation(&self) -> &Conversation {
        &self.conversation
    }
}

/// The seed of a response: SplitMix64 of the session's and the response's number, in 53 bits so that every client reads
/// it as it is.
pub(crate) fn response_seed(session: u64, number: u64) -> u64 {
    let mut z = session.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) >> 11
}
