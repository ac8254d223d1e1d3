//! What a client notes of its conversation: which answer was asked for when, when its sound came, how it ended. Pure:
//! events and times in, records out.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use omni_core::playback::Playback;
use serde_json::Value;
use std::time::Duration;

/// Samples a second, and bytes of each: OpenAI's `audio/pcm`.
const BYTES_PER_SECOND: f64 = 48_000.0;

/// One answer. Times are since the level began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// When the end of the user's turn was told, or the answer was asked for.
    pub asked: Duration,
    /// When the last piece of speech was sent, of a spoken turn.
    pub last_word: Option<Duration>,
    /// When its first sound came.
    pub first_sound: Option<Duration>,
    /// The player of its sound; its times are since `asked`.
    pub player: Playback,
    /// From each piece of sound to the next.
    pub gaps: Vec<Duration>,
    /// How it was interrupted.
    pub interruption: Option<Interruption>,
    /// Why it failed.
    pub failed: Option<String>,
}

impl Record {
    /// From the end of the turn to the first sound.
    pub fn waited(&self) -> Option<Duration> {
        Some(self.first_sound?.saturating_sub(self.asked))
    }
}

/// How an answer was interrupted while it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interruption {
    /// When the first piece of the speech was sent that interrupts it; `None`: the client cancels without a word.
    pub spoke: Option<Duration>,
    /// When the server told that speech began, or the client cancelled.
    pub decided: Duration,
    /// Sound that came after that, and when the last of it did.
    pub sounds: u32,
    /// See `sounds`.
    pub last_sound: Option<Duration>,
    /// When the server told that the answer is over.
    pub cancelled: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Watch {
    /// Answers that are over.
    pub records: Vec<Record>,
    /// The answer that is made.
    active: Option<Active>,
    /// When the turn ended whose answer has not begun.
    asked: Option<Duration>,
    first_word: Option<Duration>,
    last_word: Option<Duration>,
    /// Whether the server hears speech.
    hears: bool,
    /// The last answer with sound: its item, the sound that came, and when its first came.
    playing: Option<Playing>,
}

#[derive(Debug)]
struct Active {
    id: String,
    item: Option<String>,
    record: Record,
    last: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Playing {
    item: String,
    began: Duration,
    length: Duration,
    dry_at: Duration,
}

impl Watch {
    /// The first piece of a recording was sent.
    pub fn speaks(&mut self, now: Duration) {
        (self.first_word, self.last_word) = (Some(now), None);
    }

    /// The last one was.
    pub fn said(&mut self, now: Duration) {
        self.last_word = Some(now);
    }

    /// The client has asked for an answer.
    pub fn asks(&mut self, now: Duration) {
        self.asked = Some(now);
    }

    /// The client cancels the answer that is made.
    pub fn cancels(&mut self, now: Duration) {
        self.interrupt(now, None);
    }

    fn interrupt(&mut self, decided: Duration, spoke: Option<Duration>) {
        if let Some(active) = &mut self.active {
            active.record.interruption.get_or_insert(Interruption { spoke, decided, ..Interruption::default() });
        }
    }

    /// Takes an event of the server.
    ///
    /// # Errors
    /// The event is an error, or says what no server should.
    pub fn event(&mut self, now: Duration, event: &Value) -> Result<(), String> {
        match event["type"].as_str().unwrap_or_default() {
            "input_audio_buffer.speech_started" => {
                self.hears = true;
                let spoke = self.first_word;
                self.interrupt(now, spoke);
            }
            "input_audio_buffer.speech_stopped" => {
                self.hears = false;
                self.asked = Some(now);
            }
            "response.created" => {
                let asked = self.asked.take().unwrap_or(now);
                let record = Record { asked, last_word: self.last_word, ..Record::default() };
                self.active = Some(Active { id: text(&event["response"]["id"]), item: None, record, last: None });
            }
            "response.output_item.added" => {
                if let Some(active) = &mut self.active {
                    active.item = Some(text(&event["item"]["id"]));
                }
            }
            "response.output_audio.delta" => self.sound(now, event)?,
            "response.done" => self.done(now, &event["response"]),
            "error" => {
                let error = &event["error"];
                // The answer was over before the server heard that the client does not want it.
                if error["code"] != "response_cancel_not_active" {
                    return Err(error["message"].as_str().unwrap_or("the server told of an error").to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn sound(&mut self, now: Duration, event: &Value) -> Result<(), String> {
        let bytes = BASE64_STANDARD.decode(event["delta"].as_str().unwrap_or_default());
        let bytes = bytes.map_err(|_| "the audio is not base64")?.len();
        let active = self.active.as_mut().filter(|active| event["response_id"] == active.id.as_str());
        let Some(active) = active else { return Err("sound came of an answer that is over".to_owned()) };
        let length = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND);
        let record = &mut active.record;
        record.first_sound.get_or_insert(now);
        record.gaps.extend(active.last.replace(now).map(|last| now.saturating_sub(last)));
        record.player.chunk(now.saturating_sub(record.asked), length);
        if let Some(interruption) = &mut record.interruption {
            interruption.sounds += 1;
            interruption.last_sound = Some(now);
        }
        let item = active.item.clone().unwrap_or_default();
        let playing = self.playing.take().filter(|playing| playing.item == item);
        let mut playing = playing.unwrap_or(Playing { item, began: now, length: Duration::ZERO, dry_at: now });
        playing.length += length;
        playing.dry_at = playing.dry_at.max(now) + length;
        self.playing = Some(playing);
        Ok(())
    }

    fn done(&mut self, now: Duration, response: &Value) {
        let Some(active) = self.active.take_if(|active| response["id"] == active.id.as_str()) else { return };
        let mut record = active.record;
        match response["status"].as_str() {
            Some("cancelled") => {
                if let Some(interruption) = &mut record.interruption {
                    interruption.cancelled = now;
                }
            }
            Some("failed") => {
                let error = &response["status_details"]["error"];
                record.failed = Some(text(&error["code"]));
                record.interruption = None;
            }
            // It was complete before the server decided.
            _ => record.interruption = None,
        }
        self.records.push(record);
    }

    /// Whether the turn that ended at this time, or later, is answered and nothing else is awaited.
    pub fn is_answered(&self, since: Duration) -> bool {
        let last = self.records.last().is_some_and(|record| record.asked >= since);
        last && self.active.is_none() && self.asked.is_none() && !self.hears
    }

    /// Whether an answer is being made.
    pub fn is_answering(&self) -> bool {
        self.active.is_some()
    }

    /// When the first sound came of the answer to the turn that ended at this time or later.
    pub fn first_sound(&self, since: Duration) -> Option<Duration> {
        let last = self.active.as_ref().map(|active| &active.record).or(self.records.last())?;
        last.first_sound.filter(|_| last.asked >= since)
    }

    /// When all of the sound that has come is played.
    pub fn dry_at(&self) -> Duration {
        self.playing.as_ref().map_or(Duration::ZERO, |playing| playing.dry_at)
    }

    /// Stops the player: the item that it plays, and how much of that was heard, milliseconds. `None` where nothing is
    /// playing.
    pub fn stop_playing(&mut self, now: Duration) -> Option<(String, u64)> {
        let playing = self.playing.take().filter(|playing| playing.dry_at > now && !playing.item.is_empty())?;
        let heard = now.saturating_sub(playing.began).min(playing.length);
        Some((playing.item, u64::try_from(heard.as_millis()).unwrap_or(u64::MAX)))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn told(watch: &mut Watch, events: &[(u64, Value)]) {
        events.iter().for_each(|(now, event)| watch.event(at(*now), event).unwrap());
    }

    fn created(id: &str) -> Value {
        json!({"type": "response.created", "response": {"id": id}})
    }

    fn item(id: &str) -> Value {
        json!({"type": "response.output_item.added", "item": {"id": id}})
    }

    /// 80 ms.
    fn sound(id: &str) -> Value {
        let delta = BASE64_STANDARD.encode([0; 3_840]);
        json!({"type": "response.output_audio.delta", "response_id": id, "delta": delta})
    }

    fn done(id: &str, status: &str) -> Value {
        json!({"type": "response.done", "response": {"id": id, "status": status}})
    }

    fn heard(what: &str) -> Value {
        json!({"type": format!("input_audio_buffer.speech_{what}")})
    }

    #[test]
    fn a_spoken_turn_is_timed_from_its_end_to_the_first_sound() {
        let mut watch = Watch::default();
        watch.speaks(at(100));
        told(&mut watch, &[(160, heard("started"))]);
        watch.said(at(900));
        assert!(!watch.is_answered(at(900)));
        told(&mut watch, &[(1_400, heard("stopped")), (1_401, created("r")), (1_402, item("i"))]);
        assert_eq!((watch.first_sound(at(900)), watch.is_answering()), (None, true));
        told(&mut watch, &[(1_450, sound("r")), (1_460, sound("r")), (1_700, sound("r"))]);
        assert_eq!((watch.first_sound(at(900)), watch.first_sound(at(1_401))), (Some(at(1_450)), None));
        assert_eq!(watch.dry_at(), at(1_780));
        told(&mut watch, &[(1_701, done("r", "completed"))]);
        assert!(watch.is_answered(at(900)) && !watch.is_answered(at(1_500)));
        let [record] = &watch.records[..] else { panic!("{watch:?}") };
        assert_eq!((record.asked, record.last_word, record.first_sound), (at(1_400), Some(at(900)), Some(at(1_450))));
        assert_eq!((record.player.underruns, &record.gaps[..]), (1, &[at(10), at(240)][..]));
        // Of 240 ms the silence is not heard as sound.
        assert_eq!(watch.stop_playing(at(1_500)), Some(("i".to_owned(), 50)));
        assert_eq!(watch.stop_playing(at(1_500)), None);
    }

    #[test]
    fn speech_into_an_answer_is_an_interruption() {
        let mut watch = Watch::default();
        watch.asks(at(0));
        told(&mut watch, &[(1, created("r")), (2, item("i")), (50, sound("r"))]);
        watch.speaks(at(60));
        told(&mut watch, &[(130, heard("started")), (133, sound("r")), (140, done("r", "cancelled"))]);
        assert!(!watch.is_answered(at(0)), "speech has begun");
        let expected = Interruption {
            spoke: Some(at(60)),
            decided: at(130),
            sounds: 1,
            last_sound: Some(at(133)),
            cancelled: at(140),
        };
        assert_eq!(watch.records[0].interruption, Some(expected));
        assert_eq!(watch.event(at(150), &sound("r")), Err("sound came of an answer that is over".to_owned()));
    }

    #[test]
    fn an_answer_that_was_complete_before_is_not_interrupted() {
        let mut watch = Watch::default();
        watch.asks(at(0));
        told(&mut watch, &[(1, created("r")), (50, sound("r"))]);
        watch.cancels(at(60));
        let late = json!({"type": "error", "error": {"code": "response_cancel_not_active", "message": "x"}});
        told(&mut watch, &[(61, done("r", "incomplete")), (62, late)]);
        assert_eq!(watch.records[0].interruption, None);
        assert!(watch.is_answered(at(0)));
    }

    #[test]
    fn failures_are_told() {
        let mut watch = Watch::default();
        watch.asks(at(0));
        let details = json!({"error": {"code": "overloaded"}});
        let failed = json!({"id": "r", "status": "failed", "status_details": details});
        told(&mut watch, &[(1, created("r")), (5, json!({"type": "response.done", "response": failed}))]);
        assert_eq!(watch.records[0].failed.as_deref(), Some("overloaded"));
        let error = json!({"type": "error", "error": {"code": "invalid_value", "message": "no"}});
        assert_eq!(watch.event(at(6), &error), Err("no".to_owned()));
    }
}
