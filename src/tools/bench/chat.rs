//! One answer of the chat route, read event by event. It uses only what OpenAI's API and vLLM have, so that it can
//! measure any server.

use super::client::{SAMPLE_RATE, kind, refusal};
use super::stats::{Answer, Text};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use omni_core::playback::Playback;
use reqwest::Response;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Longest line of a stream that is read: a frame of speech in base64 has 5 kB.
const MAX_LINE: usize = 16 << 20;

/// How long an answer has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    /// Tokens of text.
    pub tokens: Option<u32>,
    /// Frames of speech.
    pub frames: Option<u32>,
}

/// The fields of a request that every server knows, besides the messages.
pub(super) fn common_fields(speaks: bool, voice: Option<&str>) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("stream".to_owned(), true.into());
    body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    if speaks {
        body.insert("modalities".to_owned(), json!(["text", "audio"]));
        let mut audio = json!({"format": "pcm16"});
        if let Some(voice) = voice {
            audio["voice"] = voice.into();
        }
        body.insert("audio".to_owned(), audio);
    }
    body
}

/// Adds a question, and how long its answer has to be.
pub(super) fn ask(body: &mut Map<String, Value>, question: &str, length: Length) {
    body.insert("messages".to_owned(), json!([{"role": "user", "content": question}]));
    if let Some(tokens) = length.tokens {
        body.insert("max_tokens".to_owned(), tokens.into());
        body.insert("ignore_eos".to_owned(), true.into());
    }
    if let (Some(frames), Some(Value::Object(audio))) = (length.frames, body.get_mut("audio")) {
        audio.insert("max_new_tokens".to_owned(), frames.into());
    }
}

/// Reads an answer to its end; times are since `due`. Any other number of tokens or frames than asked for is a failure.
pub(super) async fn read(mut answer: Response, length: Length, speaks: bool, due: Instant) -> Result<Answer, String> {
    if !answer.status().is_success() {
        return Err(refusal(answer).await);
    }
    let rate = answer.headers().get("x-sample-rate").and_then(|value| value.to_str().ok()?.parse().ok());
    let mut reading = Reading { rate: rate.unwrap_or(SAMPLE_RATE).max(1), ..Reading::default() };
    let mut lines = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| kind(&error))? {
        let now = due.elapsed();
        lines.extend_from_slice(&piece);
        let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in lines[..whole].split(|byte| *byte == b'\n') {
            if let Some(data) = line.strip_prefix(b"data:") {
                reading.event(data.trim_ascii(), now)?;
            }
        }
        lines.drain(..whole);
        if lines.len() > MAX_LINE {
            return Err("an event of the stream is too long".to_owned());
        }
    }
    reading.end(length, speaks)
}

/// What has come of an answer.
#[derive(Default)]
struct Reading {
    rate: u32,
    first: Option<Duration>,
    last: Duration,
    deltas: u32,
    tokens: Option<u32>,
    player: Playback,
    done: bool,
}

impl Reading {
    fn event(&mut self, data: &[u8], now: Duration) -> Result<(), String> {
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value = serde_json::from_slice(data).map_err(|_| "an event of the stream is not JSON".to_owned())?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(error["message"].as_str().unwrap_or("the stream ended with an error").to_owned());
        }
        let usage = &event["usage"];
        let of_text = usage["completion_tokens_details"]["text_tokens"].as_u64();
        let counted = of_text.or(usage["completion_tokens"].as_u64());
        self.tokens = counted.and_then(|tokens| u32::try_from(tokens).ok()).or(self.tokens);
        let delta = &event["choices"][0]["delta"];
        let text = delta["content"].as_str().or(delta["audio"]["transcript"].as_str()).unwrap_or_default();
        if !text.is_empty() {
            self.first.get_or_insert(now);
            self.last = now;
            self.deltas += 1;
        }
        // Tokens that are no text bring no delta: an answer in text ends when the server says why.
        if event["choices"][0]["finish_reason"].is_string() && self.player.length().is_zero() {
            self.last = now;
        }
        if let Some(data) = delta["audio"]["data"].as_str() {
            let bytes = BASE64_STANDARD.decode(data).map_err(|_| "the audio is not base64".to_owned())?;
            if bytes.len() >= 2 {
                let length = Duration::from_secs_f64((bytes.len() / 2) as f64 / f64::from(self.rate));
                self.player.chunk(now, length);
            }
        }
        Ok(())
    }

    fn end(self, asked: Length, speaks: bool) -> Result<Answer, String> {
        if !self.done {
            return Err("the stream ended before [DONE]".to_owned());
        }
        // A server that counts nothing sends a delta for each token.
        let tokens = self.tokens.unwrap_or(self.deltas);
        if let Some(asked) = asked.tokens.filter(|asked| *asked != tokens) {
            return Err(format!("{tokens} tokens instead of {asked}"));
        }
        // Those of a model with random weights are rarely text: then the time of the first is not known.
        let first = self.first.or((tokens > 0 && !speaks).then_some(self.last));
        let text = first.map(|first| Text { first, last: self.last, tokens });
        let player = self.player;
        if speaks {
            let ttfa = player.time_to_first().ok_or("no audio in the answer")?;
            let answer =
                Answer { ttfa, length: player.length(), underruns: player.underruns, silence: player.silence, text };
            match asked.frames {
                Some(asked) if asked != answer.frames() => {
                    Err(format!("{} frames instead of {asked}", answer.frames()))
                }
                _ => Ok(answer),
            }
        } else {
            let text = Some(text.ok_or("no text in the answer")?);
            Ok(Answer { text, ..Answer::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[Value], asked: Length, speaks: bool) -> Result<Answer, String> {
        let mut reading = Reading { rate: 24_000, ..Reading::default() };
        for (event, now) in events.iter().zip(1..) {
            reading.event(event.to_string().as_bytes(), Duration::from_millis(now * 10))?;
        }
        reading.event(b"[DONE]", Duration::from_millis(900))?;
        reading.end(asked, speaks)
    }

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"delta": delta}], "usage": null})
    }

    #[test]
    fn an_answer_is_timed_from_its_first_text_to_its_last() {
        let usage = json!({"choices": [], "usage": {"completion_tokens": 5}});
        let role = delta(&json!({"role": "assistant", "content": ""}));
        let end = json!({"choices": [{"delta": {}, "finish_reason": "length"}]});
        let events = [role, delta(&json!({"content": "A"})), delta(&json!({"content": "B C"})), end, usage];
        let ms = Duration::from_millis;
        let answer = read(&events, Length::default(), false).unwrap();
        assert_eq!(answer.text, Some(Text { first: ms(20), last: ms(40), tokens: 5 }));
        let wrong = read(&events, Length { tokens: Some(6), frames: None }, false);
        assert_eq!(wrong, Err("5 tokens instead of 6".to_owned()));
        let [_, _, _, end, usage] = events;
        let without_text = read(&[end.clone(), usage], Length::default(), false).unwrap();
        assert_eq!(without_text.text, Some(Text { first: ms(10), last: ms(10), tokens: 5 }));
        assert_eq!(read(&[end], Length::default(), false), Err("no text in the answer".to_owned()));
    }

    #[test]
    fn audio_is_played_as_it_comes() {
        let audio = |samples: usize| delta(&json!({"audio": {"data": BASE64_STANDARD.encode(vec![0; samples * 2])}}));
        let events = [delta(&json!({"content": "A"})), audio(1_920), audio(1_920)];
        let answer = read(&events, Length { tokens: None, frames: Some(2) }, true).unwrap();
        assert_eq!((answer.ttfa, answer.length), (Duration::from_millis(20), Duration::from_millis(160)));
        assert_eq!(
            read(&events, Length { tokens: None, frames: Some(3) }, true),
            Err("2 frames instead of 3".to_owned())
        );
        assert_eq!(read(&events[..1], Length::default(), true), Err("no audio in the answer".to_owned()));
    }

    #[test]
    fn a_stream_that_breaks_off_or_fails_is_no_answer() {
        let reading = Reading { rate: 24_000, first: Some(Duration::ZERO), ..Reading::default() };
        assert_eq!(reading.end(Length::default(), false), Err("the stream ended before [DONE]".to_owned()));
        let failed = json!({"error": {"message": "the stage failed"}});
        assert_eq!(read(&[failed], Length::default(), false), Err("the stage failed".to_owned()));
        assert!(Reading::default().event(b"{", Duration::ZERO).is_err());
    }

    #[test]
    fn lengths_are_fixed_by_fields_that_other_servers_have_too() {
        let mut body = common_fields(true, Some("heart"));
        ask(&mut body, "Hi", Length { tokens: Some(7), frames: Some(9) });
        assert_eq!((&body["max_tokens"], &body["ignore_eos"]), (&json!(7), &json!(true)));
        assert_eq!(body["audio"], json!({"format": "pcm16", "voice": "heart", "max_new_tokens": 9}));
        let mut body = common_fields(false, Some("heart"));
        ask(&mut body, "Hi", Length::default());
        assert_eq!(body.keys().collect::<Vec<_>>(), ["messages", "stream", "stream_options"]);
    }
}
