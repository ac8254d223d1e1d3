//! Calls: sound that is heard as it comes, and played at the pace at which it sounds.

use super::{Effect, Session};
use crate::job::JobId;
use crate::playback::{Cut, PLAYED, Played};
use crate::refusal::Refusal;
use crate::server_event::ServerEvent;
use crate::sound::WireFormat;

impl Session {
    /// Takes sound of the user's, 24,000 samples a second. A model that cannot hear is not asked.
    pub fn listen(&mut self, samples: &[i16]) -> Vec<Effect> {
        if self.opening.abilities.hears {
            self.listening.extend(samples, &self.opening.limits);
            if self.listening.is_behind() {
                self.hear();
                self.prepare();
            }
        }
        self.effects()
    }

    /// The next 20 ms of sound for the user, if there are any, whose moment is now.
    pub fn play(&mut self) -> (Option<Box<[i16; PLAYED]>>, Vec<Effect>) {
        let samples = match self.playback.play() {
            Played::First(response_id, samples) => {
                self.tell(ServerEvent::OutputStarted { response_id });
                Some(samples)
            }
            Played::More(samples) => Some(samples),
            Played::Last(response_id) => {
                self.tell(ServerEvent::OutputStopped { response_id });
                None
            }
            Played::Late | Played::Nothing => None,
        };
        (samples, self.effects())
    }

    /// Whether sound of an answer is played, or will be.
    pub fn is_playing(&self) -> bool {
        self.playback.is_playing()
    }

    /// Whether more of a job is to be asked for now: not while much of it waits to be played.
    pub fn wants(&self, job: JobId) -> bool {
        self.playback.wants(job)
    }

    /// A call has one format each way, which the session does not choose.
    pub(super) fn check_format(&self, format: WireFormat, param: &'static str) -> Result<(), Refusal> {
        if self.opening.plays && format != WireFormat::Pcm {
            return Err(Refusal::unsupported(param, "the sound of a call is Opus; leave the format out"));
        }
        Ok(())
    }

    /// The user speaks: the answer that is made or played ends, and the conversation keeps what was heard of it.
    pub(super) fn interrupt(&mut self) {
        let unheard =
            self.active.as_ref().filter(|active| active.settings.speaks).and_then(|active| active.item.clone());
        self.stop_active("turn_detected");
        if !self.opening.plays {
            return;
        }
        let cut = self.playback.cut_conversation();
        if let Some(item) = unheard.filter(|item| cut.iter().all(|cut| cut.item != *item)) {
            // All of it that was made was played, if any was.
            let ms = self.playback.played_ms(&item);
            self.cut(&item, 0, ms);
        }
        self.clear(&cut);
    }

    /// `output_audio_buffer.clear`
    pub(super) fn clear_output(&mut self) -> Result<(), Refusal> {
        if !self.opening.plays {
            let message = "output_audio_buffer.clear is for calls over WebRTC; here the client plays the sound";
            return Err(Refusal::unsupported("type", message));
        }
        let cut = self.playback.cut_all();
        for Cut { job, response, .. } in &cut {
            if self.active.as_ref().is_some_and(|active| active.job == *job) || self.others.contains_key(job) {
                self.cancel(Some(response))?;
            }
        }
        self.clear(&cut);
        Ok(())
    }

    /// Says what is not played any more, and keeps in the conversation what was.
    fn clear(&mut self, cut: &[Cut]) {
        self.tell_cleared(cut);
        for Cut { item, ms, .. } in cut {
            self.cut(item, 0, *ms);
        }
    }

    pub(super) fn tell_cleared(&mut self, cut: &[Cut]) {
        for Cut { response, .. } in cut.iter().filter(|cut| cut.begun) {
            self.tell(ServerEvent::OutputCleared { response_id: response.clone() });
        }
    }
}
