//! Turns of the user: committed by the client, or found by turn detection.

use super::Session;
use crate::item::Item;
use crate::listening::Heard;
use crate::refusal::Refusal;
use crate::server_event::ServerEvent;

/// Least sound of a turn that a client commits: OpenAI's.
const LEAST_MS: usize = 100;

impl Session {
    /// Listens to a piece of what was appended.
    pub(super) fn hear(&mut self) {
        for heard in self.listening.listen(&self.opening.limits) {
            match heard {
                Heard::Began(audio_start_ms) => {
                    let item_id = self.fresh_item();
                    self.stop_preparing();
                    self.turn_item = Some(item_id.clone());
                    self.tell(ServerEvent::SpeechStarted { audio_start_ms, item_id });
                    if self.settings.turns.as_ref().is_some_and(|turns| turns.interrupt) {
                        // A turn that waits for its answer gets it together with this one.
                        self.wanted = false;
                        self.interrupt();
                    }
                }
                Heard::Ended(audio_end_ms, samples) => {
                    let Some(item_id) = self.turn_item.take() else { continue };
                    self.tell(ServerEvent::SpeechStopped { audio_end_ms, item_id: item_id.clone() });
                    match self.committed(item_id, &samples) {
                        Ok(()) if self.settings.turns.as_ref().is_some_and(|turns| turns.create) => {
                            self.respond_to_turn();
                        }
                        Ok(()) => {}
                        Err(refusal) => {
                            self.stop_preparing();
                            self.refuse(refusal, None);
                        }
                    }
                }
                Heard::Failed(message) => {
                    let refusal = Refusal::new("internal_error", None, message);
                    self.refuse(Refusal { internal: true, ..refusal }, None);
                }
            }
        }
    }

    /// `input_audio_buffer.commit`
    pub(super) fn commit(&mut self) -> Result<(), Refusal> {
        let rate = self.listening.rate() as usize;
        let samples = self.listening.bytes() / 2;
        if samples < LEAST_MS * rate / 1000 {
            let have = samples * 1000 / rate;
            let message = format!("the buffer has {have} ms of sound; a turn has {LEAST_MS} ms or more");
            return Err(Refusal::new("input_audio_buffer_commit_empty", None, message));
        }
        let samples = self.listening.samples();
        let item_id = match &self.turn_item {
            Some(id) => id.clone(),
            None => self.fresh_item(),
        };
        // What the conversation has no room for stays in the buffer.
        self.committed(item_id, &samples)?;
        self.listening.clear();
        self.turn_item = None;
        Ok(())
    }

    /// The user's turn becomes an item.
    fn committed(&mut self, id: String, samples: &[i16]) -> Result<(), Refusal> {
        let item = Item::heard(id.clone(), samples, self.listening.rate());
        self.conversation.check_room(item.bytes(), &self.opening.limits)?;
        self.stop_preparing();
        let previous_item_id = self.conversation.last().map(str::to_owned);
        self.conversation.push(item);
        self.tell(ServerEvent::Committed { previous_item_id, item_id: id.clone() });
        self.tell_item(&id);
        self.transcribe(id);
        Ok(())
    }
}
