//! One conversation over its socket: a microphone that sends a piece every 20 ms, and a user who follows a script.

use super::recording::{PIECE, Recording, silence};
use super::script::{Script, When};
use super::watch::Watch;
use super::{Manner, Turns};
use crate::realtime::Session;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// How much silence ends a turn: OpenAI's default.
const SILENCE_MS: u64 = 500;

/// What the user does.
enum Doing {
    /// Listens, or thinks.
    Waits,
    /// Says the piece of this number next.
    Speaks(usize),
}

/// A conversation that goes on.
pub(super) struct Talk<'a> {
    session: Session,
    script: Script,
    manner: &'a Manner,
    number: u64,
    began: Instant,
    watch: Watch,
    doing: Doing,
    /// The turn that is spoken or answered, and when all of it was said; `None` before the first.
    turn: Option<usize>,
    said: Duration,
    /// The limit on answers that the server knows.
    limit: Option<Value>,
}

impl<'a> Talk<'a> {
    /// Opens the session. The session's seed follows from the number of the conversation.
    pub async fn open(
        base: &str,
        script: Script,
        number: usize,
        manner: &'a Manner,
        began: Instant,
    ) -> Result<Talk<'a>, String> {
        let mut query = vec![("seed", manner.seed.wrapping_add(number as u64).to_string())];
        query.extend(manner.model.iter().map(|model| ("model", model.clone())));
        let mut session = Session::open(base, &query).await?;
        let turns = match manner.turns {
            Turns::Vad => json!({"type": "server_vad", "silence_duration_ms": SILENCE_MS}),
            Turns::Push | Turns::Text => Value::Null,
        };
        let input = match manner.turns {
            // Of a model that does not hear.
            Turns::Text => json!({}),
            Turns::Vad | Turns::Push => json!({"input": {"turn_detection": turns}}),
        };
        let mut settings = json!({"type": "realtime", "output_modalities": ["audio"], "audio": input});
        if let Some(voice) = &manner.voice {
            settings["audio"]["output"] = json!({"voice": voice});
        }
        session.send(&json!({"type": "session.update", "session": settings}))?;
        let watch = Watch::default();
        let (doing, said) = (Doing::Waits, began.elapsed());
        Ok(Talk { session, script, manner, number: number as u64, began, watch, doing, turn: None, said, limit: None })
    }

    /// Talks to the end of the script. What was noted is in the watch, also of a conversation that ended early.
    ///
    /// # Errors
    /// Why it ended early.
    pub async fn run(mut self) -> (Watch, Result<(), String>) {
        let result = self.talk().await;
        (self.watch, result)
    }

    async fn talk(&mut self) -> Result<(), String> {
        let mut ticks = interval(PIECE.div_f64(self.manner.pace));
        // A microphone makes up for what it is late.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            let patience = self.began + self.said + self.manner.timeout;
            let awaits =
                matches!(self.doing, Doing::Waits) && self.turn.is_some() && !self.watch.is_answered(self.said);
            tokio::select! {
                event = self.session.next() => {
                    let (event, now) = (event?, self.began.elapsed());
                    self.watch.event(now, &event)?;
                    // The player stops when the server tells that the user speaks.
                    if event["type"] == "input_audio_buffer.speech_started" {
                        self.truncate(now)?;
                    }
                }
                _ = ticks.tick() => self.hear()?,
                () = sleep_until(patience), if awaits => return Err("no answer came in time".to_owned()),
            }
            if matches!(self.doing, Doing::Waits) && self.is_time()? {
                return Ok(());
            }
        }
    }

    /// What the microphone hears in 20 ms.
    fn hear(&mut self) -> Result<(), String> {
        let Doing::Speaks(at) = self.doing else {
            return match self.manner.turns {
                Turns::Vad => self.session.send(&silence()),
                Turns::Push | Turns::Text => Ok(()),
            };
        };
        let now = self.began.elapsed();
        let recording: &Recording = &self.manner.recordings[self.says()];
        self.session.send(&recording.piece(at, self.saying()))?;
        if at == 0 {
            self.watch.speaks(now);
        }
        self.doing = Doing::Speaks(at + 1);
        if at + 1 == recording.pieces() {
            self.watch.said(now);
            (self.doing, self.said) = (Doing::Waits, now);
            if self.manner.turns == Turns::Push {
                self.session.send(&json!({"type": "input_audio_buffer.commit"}))?;
                self.ask(now)?;
            }
        }
        Ok(())
    }

    /// A number that no other turn of this run has.
    fn saying(&self) -> u64 {
        (self.manner.level << 48) + (self.number << 24) + self.turn.unwrap_or(0) as u64
    }

    fn says(&self) -> usize {
        self.turn.and_then(|turn| self.script.turns.get(turn)).map_or(0, |turn| turn.says)
    }

    /// Begins the next turn if it is time for it; whether there is none, and all is answered.
    fn is_time(&mut self) -> Result<bool, String> {
        let now = self.began.elapsed();
        let next = self.turn.map_or(0, |turn| turn + 1);
        // The first turn has no answer before it.
        let answered = self.turn.is_none() || self.watch.is_answered(self.said);
        let Some(turn) = self.script.turns.get(next) else { return Ok(answered) };
        let (says, when) = (turn.says, turn.when);
        let over = self.watch.dry_at().max(self.said);
        let begins = match when {
            When::After(pause) => answered && now >= over + pause,
            When::Into(wait) => match self.watch.first_sound(self.said) {
                Some(first) => now >= first + wait,
                // It failed.
                None => answered,
            },
        };
        if begins {
            self.begin(next, says, now)?;
        }
        Ok(false)
    }

    fn begin(&mut self, turn: usize, says: usize, now: Duration) -> Result<(), String> {
        self.turn = Some(turn);
        if self.manner.turns != Turns::Vad && self.watch.is_answering() {
            self.session.send(&json!({"type": "response.cancel"}))?;
            self.watch.cancels(now);
            self.truncate(now)?;
        }
        // An answer that is to be interrupted must not be over before.
        let limit = match self.script.is_interrupted(turn) {
            true => json!("inf"),
            false => json!(self.manner.frames),
        };
        if self.limit.as_ref() != Some(&limit) {
            let settings = json!({"type": "realtime", "max_output_tokens": limit});
            self.session.send(&json!({"type": "session.update", "session": settings}))?;
            self.limit = Some(limit);
        }
        match self.manner.turns {
            Turns::Vad | Turns::Push => self.doing = Doing::Speaks(0),
            Turns::Text => {
                let content = json!([{"type": "input_text", "text": self.manner.texts[says]}]);
                let item = json!({"type": "message", "role": "user", "content": content});
                self.session.send(&json!({"type": "conversation.item.create", "item": item}))?;
                self.said = now;
                self.ask(now)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, now: Duration) -> Result<(), String> {
        self.watch.asks(now);
        self.session.send(&json!({"type": "response.create"}))
    }

    /// Tells the server what of the answer was heard.
    fn truncate(&mut self, now: Duration) -> Result<(), String> {
        let Some((item, heard)) = self.watch.stop_playing(now) else { return Ok(()) };
        let event = json!({"type": "conversation.item.truncate", "item_id": item, "content_index": 0,
            "audio_end_ms": heard});
        self.session.send(&event)
    }
}
