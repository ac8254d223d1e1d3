//! Answers: asked for, made, ended.

use super::{Effect, Session, response_seed};
use crate::calls::{Call, Found};
use crate::client_event::ResponseFields;
use crate::item::{Content, Item, MediaRoom, Role, Status};
use crate::job::{AnswerPart, Ending, Job, JobId, PromptPart, PromptTurn, Usage};
use crate::refusal::{Refusal, short};
use crate::response::{Outcome, Response};

use crate::server_event::{ErrorObject, ServerEvent};
use crate::sound::WireFormat;
use serde_json::Value;

/// Entries of `metadata`, and characters of their names and values: OpenAI's limits.
const METADATA: (usize, usize, usize) = (16, 64, 512);

impl Session {
    /// `response.create`
    pub(super) fn respond(&mut self, mut fields: ResponseFields) -> Result<(), Refusal> {
        let in_conversation = match fields.conversation.as_deref() {
            None | Some("auto") => true,
            Some("none") => false,
            Some(other) => {
                let message = format!("{:?} is unknown; send \"auto\" or \"none\"", short(other));
                return Err(Refusal::value("response.conversation", message));
            }
        };
        if in_conversation && let Some(active) = &self.active {
            let message = format!("the conversation has the active response {}; wait for it or cancel it", active.id);
            return Err(Refusal::new("conversation_already_has_active_response", None, message));
        }
        if in_conversation {
            self.conversation.check_answer(&self.opening.limits)?;
        }
        self.check_jobs()?;
        check_metadata(&fields)?;
        let input = fields.input.take().map(|input| self.input(input)).transpose()?;
        let opening = &self.opening;
        let settings = self.settings.answer.overridden(&fields, &opening.abilities, &opening.limits)?;
        self.check_format(settings.format, "response.audio.output.format")?;
        let own = fields.instructions.take();
        let turns = self.turns(&settings.instructions, own.as_deref(), input)?;
        self.responses += 1;
        let number = self.responses;
        let seed = response_seed(self.settings.seed, number);
        let job = self.fresh_job();
        let response = Response::new(format!("resp_{number}"), job, in_conversation, settings, fields.metadata, seed);
        let object = response.object(&self.opening.abilities, &self.conversation_id, None);
        self.tell(ServerEvent::ResponseCreated { response: object });
        self.effects.push(Effect::Begin(Box::new(response.job(turns))));
        match in_conversation {
            true => self.active = Some(response),
            false => _ = self.others.insert(job, response),
        }
        Ok(())
    }

    /// The prompt: instructions, then the conversation or what takes its place. The model answers a user; where none
    /// speaks last, the instructions of this response ask instead.
    pub(super) fn turns(
        &self,
        instructions: &str,
        own: Option<&str>,
        input: Option<Vec<PromptTurn>>,
    ) -> Result<Vec<PromptTurn>, Refusal> {
        let mut turns = input.unwrap_or_else(|| self.conversation.prompt_with(None, &self.opening.limits));
        let mut system = Some(instructions);
        if turns.last().is_none_or(|turn| turn.role != "user" && turn.role != "tool") {
            let Some(own) = own.filter(|own| !own.trim().is_empty()) else {
                let message = "there is nothing to answer: the last item is neither the user's nor a result of a function, and \
                               the response has no instructions";
                return Err(Refusal::new("nothing_to_answer", None, message));
            };
            turns.push(PromptTurn::text("user", own));
            // They stand in for those of the session where a user speaks.
            system = Some(self.settings.answer.instructions.as_str());
        }
        if let Some(system) = system.filter(|system| !system.trim().is_empty()) {
            turns.insert(0, PromptTurn::text("system", system));
        }
        Ok(turns)
    }

    /// The turns of `response.input`.
    fn input(&mut self, input: Vec<crate::client_event::ItemFields>) -> Result<Vec<PromptTurn>, Refusal> {
        let limits = &self.opening.limits;
        if input.len() > limits.items {
            let message =
                format!("{} items are more than the limit of {} (realtime.max_items)", input.len(), limits.items);
            return Err(Refusal::value("response.input", message));
        }
        let mut room = MediaRoom::new(limits);
        let mut turns = Vec::with_capacity(input.len());
        let (mut chars, mut bytes) = (0, 0);
        for fields in input {
            let turn = if fields.kind.as_deref() == Some("item_reference") {
                let id = fields.id.ok_or_else(|| Refusal::missing("response.input.id"))?;
                self.place_of(&id, "invalid_value", "response.input")?;
                self.conversation.get(&id).and_then(|item| item.prompt(&mut room))
            } else {
                // It is not kept, so its name is of no use.
                let abilities = &self.opening.abilities;
                Item::read(fields, String::new, self.settings.input, abilities, limits)?.prompt(&mut room)
            };
            let Some(turn) = turn else { continue };
            // An item may be named many times, and each time is a copy: none is made behind the first that is too much.
            let (more_chars, more_bytes) = size(&turn);
            chars += more_chars;
            bytes += more_bytes;
            if chars > limits.item_chars {
                let most = limits.item_chars;
                let message = format!("the items have more than {most} characters together (limits.max_input_chars)");
                return Err(Refusal::value("response.input", message));
            }
            if bytes > limits.bytes {
                let most = limits.bytes;
                let message =
                    format!("the pictures have more than {most} bytes together (realtime.max_conversation_bytes)");
                return Err(Refusal::value("response.input", message));
            }
            turns.push(turn);
        }
        Ok(PromptTurn::joined(turns))
    }

    /// Answers a turn that has ended, at once or as soon as the answer before is done.
    pub(super) fn respond_to_turn(&mut self) {
        if self.active.is_some() {
            self.wanted = true;
        } else if let Err(refusal) = self.respond(ResponseFields::default()) {
            self.refuse(refusal, None);
        }
    }

    /// `response.cancel`
    pub(super) fn cancel(&mut self, id: Option<&str>) -> Result<(), Refusal> {
        if let Some(id) = id
            && let Some(job) = self.others.values().find(|other| other.id == id).map(|other| other.job)
        {
            if let Some(response) = self.others.remove(&job) {
                self.effects.push(Effect::Cancel(job));
                self.end(response, &Outcome::Cancelled("client_cancelled"));
            }
            return Ok(());
        }
        if self.active.as_ref().is_none_or(|active| id.is_some_and(|id| active.id != id)) {
            let message = "there is no active response to cancel";
            return Err(Refusal::new("response_cancel_not_active", None, message));
        }
        self.stop_active("client_cancelled");
        Ok(())
    }

    /// Ends the active response, if there is one.
    pub(super) fn stop_active(&mut self, reason: &'static str) {
        let Some(response) = self.active.take() else { return };
        self.effects.push(Effect::Cancel(response.job));
        self.end(response, &Outcome::Cancelled(reason));
    }

    /// Takes what came of a job. Nothing of one that is over counts.
    pub fn answer(&mut self, job: JobId, part: AnswerPart) -> Vec<Effect> {
        if self.preparing.is(job) {
            self.prepared(&part);
        } else if self.transcriptions.contains_key(&job) {
            self.transcribed(job, part);
        } else if let Some(mut response) = self.take(job) {
            let is_last = matches!(part, AnswerPart::Finished { .. } | AnswerPart::Failed { .. });
            match self.told(&mut response, part) {
                None => self.put_back(response),
                Some(outcome) => {
                    if !is_last {
                        self.effects.push(Effect::Cancel(job));
                    }
                    self.end(response, &outcome);
                }
            }
            self.next_turn();
        }
        self.prepare();
        self.effects()
    }

    fn take(&mut self, job: JobId) -> Option<Response> {
        if self.active.as_ref().is_some_and(|active| active.job == job) {
            return self.active.take();
        }
        self.others.remove(&job)
    }

    fn put_back(&mut self, response: Response) {
        match response.in_conversation {
            true => self.active = Some(response),
            false => _ = self.others.insert(response.job, response),
        }
    }

    /// Tells the client of a part; the outcome where it was the last.
    fn told(&mut self, response: &mut Response, part: AnswerPart) -> Option<Outcome> {
        match part {
            AnswerPart::Started if !response.begun => {
                response.begun = true;
                if response.begins_at_once() {
                    self.begin_message(response);
                }
            }
            AnswerPart::Started => {}
            AnswerPart::Text(delta) if response.begun => {
                let found = response.find(delta);
                return found.into_iter().find_map(|found| self.found(response, found).err());
            }
            AnswerPart::Audio(bytes) if response.takes_sound() && !bytes.is_empty() => {
                if response.item.is_none() {
                    self.begin_message(response);
                }
                if self.opening.plays {
                    response.sounds(&bytes);
                    let place = (response.id.as_str(), response.item.as_deref().unwrap_or_default());
                    self.playback.push(response.job, place, response.in_conversation, &bytes);
                } else {
                    let event = response.audio(&bytes);
                    self.tell(event);
                }
            }
            AnswerPart::Text(_) | AnswerPart::Audio(_) => {}
            AnswerPart::Finished { ending, usage } => {
                let outcome = Outcome::Finished(ending, usage);
                return match response.find_last() {
                    // What a limit has cut off is not broken.
                    Some(Found::Broken(_)) if ending == Ending::Length => Some(outcome),
                    Some(found) => Some(self.found(response, found).err().unwrap_or(outcome)),
                    None => Some(outcome),
                };
            }
            AnswerPart::Failed { code, message } => return Some(Outcome::Failed { code, message }),
        }
        None
    }

    fn begin_message(&mut self, response: &mut Response) {
        let id = self.fresh_item();
        let item = response.begin(id, self.opening.abilities.frame_ms);
        self.item_begun(response, item);
        self.tell(response.part_added());
    }

    /// An item of a response is there.
    fn item_begun(&mut self, response: &Response, item: Item) {
        let object = item.object(false);
        self.tell(response.item_added(object.clone()));
        if response.in_conversation {
            let previous_item_id = self.conversation.last().map(str::to_owned);
            self.conversation.push(item);
            self.tell(ServerEvent::ItemAdded { previous_item_id, item: object });
        }
    }

    /// An item of a response is complete.
    fn item_complete(&mut self, response: &Response, item: &Item) {
        let object = item.object(false);
        if response.in_conversation {
            let previous_item_id = self.conversation.before(&item.id);
            self.conversation.change(&item.id, |place| *place = item.clone());
            self.tell(ServerEvent::ItemDone { previous_item_id, item: object.clone() });
        }
        self.tell(response.item_done(object));
    }

    /// Tells of what was found in the text of a response, or why that is over.
    fn found(&mut self, response: &mut Response, found: Found) -> Result<(), Outcome> {
        match found {
            Found::Text(delta) => {
                let Some(delta) = response.due(delta) else { return Ok(()) };
                if response.item.is_none() {
                    self.begin_message(response);
                }
                let says = !delta.is_empty();
                let event = response.text(delta);
                if says {
                    self.tell(event);
                }
                Ok(())
            }
            Found::Call(call) => self.called(response, call),
            Found::Broken(why) => {
                let message = format!("the model meant to call a function, but {why}");
                Err(Outcome::Failed { code: "invalid_function_call".to_owned(), message })
            }
        }
    }

    /// An item for a call, behind the message.
    fn called(&mut self, response: &mut Response, call: Call) -> Result<(), Outcome> {
        let outcome = Outcome::Finished(Ending::Stop, Usage::default());
        if let Some(message) = response.item(&outcome) {
            response.part_done().into_iter().for_each(|event| self.tell(event));
            self.item_complete(response, &message);
            response.close(message);
        }
        let id = self.fresh_item();
        let call_id = format!("call_{}", id.trim_start_matches("item_"));
        let content = Content::Call { call_id: call_id.clone(), call: call.clone() };
        let item = Item::done(id.clone(), Role::Assistant, content);
        if response.in_conversation
            && let Err(refusal) = self.conversation.check_room(item.bytes(), &self.opening.limits)
        {
            return Err(Outcome::Failed { code: refusal.code, message: refusal.message });
        }
        let empty = Call { arguments: String::new(), ..call.clone() };
        let content = vec![Content::Call { call_id: call_id.clone(), call: empty }];
        self.item_begun(response, Item { status: Status::InProgress, content, ..item.clone() });
        response.called(&id, &call_id, &call).into_iter().for_each(|event| self.tell(event));
        self.item_complete(response, &item);
        response.close(item);
        Ok(())
    }

    /// The last events of a response.
    fn end(&mut self, response: Response, outcome: &Outcome) {
        self.playback.complete(response.job);
        if let Some(item) = response.item(outcome) {
            response.part_done().into_iter().for_each(|event| self.tell(event));
            self.item_complete(&response, &item);
        }
        let object = response.object(&self.opening.abilities, &self.conversation_id, Some(outcome));
        self.tell(ServerEvent::ResponseDone { response: object });
    }

    /// Answers the turn that waited for the answer before, if there is one and that is over.
    pub(super) fn next_turn(&mut self) {
        if self.active.is_none() && std::mem::take(&mut self.wanted) {
            self.respond_to_turn();
        }
    }

    /// Has what the user said written down, where the session asks for that.
    pub(super) fn transcribe(&mut self, item: String) {
        let Some(transcription) = &self.settings.transcription else { return };
        let question = transcription.question();
        let Some(sound) = self.conversation.sound(&item) else { return };
        if let Err(refusal) = self.check_jobs() {
            let error = ErrorObject::new(refusal, None);
            return self.tell(ServerEvent::TranscriptionFailed { item_id: item, content_index: 0, error });
        }
        let id = self.fresh_job();
        let heard = if sound.ms() <= self.opening.limits.media_ms { sound.file() } else { sound.said() };
        let parts = vec![PromptPart::Audio(heard), PromptPart::Text(question)];
        let job = Job {
            id,
            turns: vec![PromptTurn { role: "user", parts, calls: Vec::new() }],
            tools: [].into(),
            prepares: false,
            speaks: false,
            voice: None,
            speed: 1.0,
            format: WireFormat::Pcm,
            max_tokens: None,
            temperature: Some(0.0),
            seed: self.settings.seed,
        };
        self.transcriptions.insert(id, (item, String::new()));
        self.effects.push(Effect::Begin(Box::new(job)));
    }

    fn transcribed(&mut self, job: JobId, part: AnswerPart) {
        let Some((item, text)) = self.transcriptions.get_mut(&job) else { return };
        let (item_id, content_index) = (item.clone(), 0);
        let event = match part {
            AnswerPart::Started | AnswerPart::Audio(_) => return,
            AnswerPart::Text(delta) => {
                text.push_str(&delta);
                return self.tell(ServerEvent::TranscriptionDelta { item_id, content_index, delta });
            }
            AnswerPart::Finished { usage, .. } => {
                let transcript = std::mem::take(text);
                self.conversation.change(&item_id, |item| {
                    if let Some(Content::InputAudio { transcript: known, .. }) = item.content.first_mut() {
                        *known = Some(transcript.clone());
                    }
                });
                let usage = usage.transcription();
                ServerEvent::TranscriptionCompleted { item_id, content_index, transcript, usage }
            }
            AnswerPart::Failed { code, message } => {
                let refusal = Refusal { internal: true, ..Refusal::new(code, None, message) };
                ServerEvent::TranscriptionFailed { item_id, content_index, error: ErrorObject::new(refusal, None) }
            }
        };
        self.transcriptions.remove(&job);
        self.tell(event);
    }
}

/// Characters of the texts and calls of a turn, and bytes of its pictures. Sound is shared, and has a limit of its own.
fn size(turn: &PromptTurn) -> (usize, usize) {
    let calls = turn.calls.iter().map(|call| call.name.chars().count() + call.arguments.chars().count());
    let parts = turn.parts.iter().map(|part| match part {
        PromptPart::Text(text) => (text.chars().count(), 0),
        PromptPart::Image { url, .. } => (0, url.len()),
        PromptPart::Audio(_) => (0, 0),
    });
    let called: usize = calls.sum();
    parts.fold((called, 0), |(chars, bytes), part| (chars + part.0, bytes + part.1))
}

fn check_metadata(fields: &ResponseFields) -> Result<(), Refusal> {
    let Some(metadata) = &fields.metadata else { return Ok(()) };
    let (entries, name, value) = METADATA;
    let fits = |(key, text): (&String, &Value)| {
        key.chars().count() <= name && text.as_str().is_some_and(|text| text.chars().count() <= value)
    };
    if metadata.len() <= entries && metadata.iter().all(fits) {
        return Ok(());
    }
    let message = format!("has at most {entries} entries, names of {name} characters and texts of {value}");
    Err(Refusal::value("response.metadata", message))
}
