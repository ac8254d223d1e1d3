//! What the client of a conversation hears, event by event. Pure.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    id: String,
    /// The name of its message, once it has one.
    pub item: Option<String>,
    /// Its sound.
    pub samples: Vec<f32>,
    /// Its text.
    pub text: String,
    /// How it ended.
    pub ended: Option<Ended>,
}

/// How an answer ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// As the server says it.
    pub status: String,
    /// Of one that failed: the code, and why.
    pub error: Option<(String, String)>,
    /// Tokens of the prompt, of text, of sound.
    pub usage: [u32; 3],
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// In their order.
    pub answers: Vec<Answer>,
    /// How often the server heard speech begin, and end.
    pub speech: (usize, usize),
    /// The session is as it was asked for.
    pub updated: bool,
}

impl Notes {
    /// Takes an event; the samples of sound that it brought.
    ///
    /// # Errors
    /// The event is an error, or belongs to no answer that is made.
    pub fn event(&mut self, event: &Value) -> Result<usize, String> {
        let kind = event["type"].as_str().unwrap_or_default();
        match kind {
            "session.updated" => self.updated = true,
            "input_audio_buffer.speech_started" => self.speech.0 += 1,
            "input_audio_buffer.speech_stopped" => self.speech.1 += 1,
            "response.created" => {
                let id = text(&event["response"]["id"]);
                self.answers.push(Answer { id, ..Answer::default() });
            }
            "response.output_item.added" => self.of(&event["response_id"])?.item = Some(text(&event["item"]["id"])),
            "response.output_audio_transcript.delta" => {
                let delta = text(&event["delta"]);
                self.of(&event["response_id"])?.text.push_str(&delta);
            }
            "response.output_audio.delta" => {
                let bytes = BASE64_STANDARD.decode(event["delta"].as_str().unwrap_or_default());
                let bytes = bytes.map_err(|_| "sound that is not base64")?;
                let samples = bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]]));
                let answer = self.of(&event["response_id"])?;
                answer.samples.extend(samples.map(|sample| f32::from(sample) / 32_768.0));
                return Ok(bytes.len() / 2);
            }
            "response.done" => {
                let response = &event["response"];
                let error = &response["status_details"]["error"];
                let error = error.is_object().then(|| (text(&error["code"]), text(&error["message"])));
                let (usage, output) = (&response["usage"], &response["usage"]["output_token_details"]);
                let counts = [&usage["input_tokens"], &output["text_tokens"], &output["audio_tokens"]];
                let usage = counts.map(|count| count.as_u64().and_then(|count| count.try_into().ok()).unwrap_or(0));
                let status = text(&response["status"]);
                self.of(&response["id"])?.ended = Some(Ended { status, error, usage });
            }
            // The answer was over before the server heard that the client does not want it.
            "error" if event["error"]["code"] == "response_cancel_not_active" => {}
            "error" => return Err(text(&event["error"]["message"])),
            _ => {}
        }
        Ok(0)
    }

    /// The answer of this name, which has not ended.
    fn of(&mut self, id: &Value) -> Result<&mut Answer, String> {
        let answer = self.answers.iter_mut().find(|answer| *id == answer.id.as_str() && answer.ended.is_none());
        answer.ok_or_else(|| format!("something came of {id}, which is over"))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sound(samples: &[i16]) -> Value {
        let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        json!({"type": "response.output_audio.delta", "response_id": "r", "delta": BASE64_STANDARD.encode(bytes)})
    }

    #[test]
    fn an_answer_is_put_together_from_its_events() {
        let mut notes = Notes::default();
        let usage = json!({"input_tokens": 9, "output_token_details": {"text_tokens": 2, "audio_tokens": 3}});
        let response = json!({"id": "r", "status": "completed", "status_details": null, "usage": usage});
        let events = [
            json!({"type": "session.updated"}),
            json!({"type": "input_audio_buffer.speech_started"}),
            json!({"type": "response.created", "response": {"id": "r"}}),
            json!({"type": "response.output_item.added", "response_id": "r", "item": {"id": "i"}}),
            json!({"type": "response.output_audio_transcript.delta", "response_id": "r", "delta": "Hi"}),
            sound(&[16_384, -16_384]),
            sound(&[1]),
            json!({"type": "response.done", "response": response}),
        ];
        let counts: Vec<usize> = events.iter().map(|event| notes.event(event).unwrap()).collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 2, 1, 0]);
        let [answer] = &notes.answers[..] else { panic!("{notes:?}") };
        assert_eq!((answer.item.as_deref(), answer.text.as_str()), (Some("i"), "Hi"));
        assert_eq!(answer.samples, [0.5, -0.5, 1.0 / 32_768.0]);
        let ended = Ended { status: "completed".to_owned(), error: None, usage: [9, 2, 3] };
        assert_eq!((answer.ended.as_ref(), notes.speech, notes.updated), (Some(&ended), (1, 0), true));
        assert!(notes.event(&sound(&[1])).is_err(), "sound of an answer that is over");
    }

    #[test]
    fn failures_and_errors_are_told() {
        let mut notes = Notes::default();
        notes.event(&json!({"type": "response.created", "response": {"id": "r"}})).unwrap();
        let details = json!({"error": {"code": "not_ready", "message": "later"}});
        let response = json!({"id": "r", "status": "failed", "status_details": details, "usage": null});
        notes.event(&json!({"type": "response.done", "response": response})).unwrap();
        let error = notes.answers[0].ended.as_ref().and_then(|ended| ended.error.clone());
        assert_eq!(error, Some(("not_ready".to_owned(), "later".to_owned())));
        let refused = |code: &str| json!({"type": "error", "error": {"code": code, "message": "no"}});
        assert_eq!(notes.event(&refused("invalid_value")), Err("no".to_owned()));
        assert_eq!(notes.event(&refused("response_cancel_not_active")), Ok(0));
    }
}
