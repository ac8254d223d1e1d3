//! One conversation over `WS /v1/realtime`, against a server around the engine of the drill: a question, a turn whose
//! answer is interrupted, and a turn that is answered to the end. Users speak where the model hears, and the server finds
//! their turns; otherwise they write. What is compared depends on seeds alone: of the answer that is interrupted only the
//! first frames count, and it is taken out of the conversation.

use super::listen::{AGAIN, Timing};
use super::notes::Notes;
use super::verdict::{End, Heard};
use crate::realtime::{Session, speech};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use omni_core::ids::Frames;
use omni_engine::{FinishReason, Usage};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Samples a second of OpenAI's `audio/pcm`.
const RATE: f64 = 24_000.0;
/// Samples of an event: how they are cut changes nothing.
const PIECE: usize = 4_800;
/// Silence that ends a turn, and what is sent of it.
const SILENCE_MS: usize = 300;
const SENT_MS: usize = 600;
/// Codes of a refusal that will pass: another session begins the conversation anew.
const PASSING: [&str; 3] = ["not_ready", "overloaded", "rate_limit_exceeded"];

/// What a conversation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// What the user asks first.
    pub text: String,
    /// Of the session.
    pub seed: u64,
    /// Who answers; `None` is the model's.
    pub voice: Option<String>,
    /// Limit on tokens and frames of an answer.
    pub length: u32,
    /// Frames of the answer that is interrupted which count.
    pub counted: u32,
    /// Samples of a frame.
    pub frame: u32,
    /// Whether the model hears.
    pub hears: bool,
}

/// Why a conversation was not held to its end.
enum Broken {
    /// Another attempt may do.
    Passing(String),
    End(End),
}

/// Holds the conversation with the server at `base`. Gives up when nothing comes for `patience`.
pub async fn talk(base: &str, conversation: &Conversation, run_began: Instant, patience: Duration) -> (Heard, Timing) {
    let mut timing = Timing { began: run_began.elapsed(), ..Timing::default() };
    let first = Instant::now();
    let heard = loop {
        let mut talk = Talk { run_began, timing: &mut timing, notes: Notes::default(), patience };
        match talk.hold(base, conversation).await {
            Ok(()) => break heard(&talk.notes, conversation),
            Err(Broken::Passing(_)) if first.elapsed() < patience => tokio::time::sleep(AGAIN).await,
            Err(Broken::Passing(why)) => break nothing(End::Refused(why)),
            Err(Broken::End(end)) => break nothing(end),
        }
    };
    timing.ended = run_began.elapsed();
    (heard, timing)
}

fn nothing(end: End) -> Heard {
    Heard { samples: Vec::new(), text: String::new(), end }
}

/// What counts of the three answers, as one stream.
fn heard(notes: &Notes, conversation: &Conversation) -> Heard {
    let (mut samples, mut text, mut usage) = (Vec::new(), String::new(), Usage::default());
    for (i, answer) in notes.answers.iter().enumerate() {
        if i == 1 {
            samples.extend(answer.samples.iter().take(conversation.counted_samples()));
            continue;
        }
        samples.extend(&answer.samples);
        text.push_str(&answer.text);
        if let Some(ended) = &answer.ended {
            text += &format!(" [{}] ", ended.status);
            usage.prompt_tokens += ended.usage[0];
            usage.text_tokens += ended.usage[1];
            usage.frames = Frames(usage.frames.0 + ended.usage[2]);
        }
    }
    Heard { samples, text, end: End::Finished(FinishReason::Stop, usage) }
}

impl Conversation {
    fn counted_samples(&self) -> usize {
        self.counted as usize * self.frame as usize
    }

    fn settings(&self) -> Value {
        let mut audio = json!({});
        if self.hears {
            let turns = json!({"type": "server_vad", "silence_duration_ms": SILENCE_MS});
            audio["input"] = json!({"turn_detection": turns});
        }
        if let Some(voice) = &self.voice {
            audio["output"] = json!({"voice": voice});
        }
        json!({"type": "realtime", "max_output_tokens": self.length, "output_modalities": ["audio"], "audio": audio})
    }
}

/// The conversation while it is held.
struct Talk<'a> {
    run_began: Instant,
    timing: &'a mut Timing,
    notes: Notes,
    patience: Duration,
}

impl Talk<'_> {
    async fn hold(&mut self, base: &str, conversation: &Conversation) -> Result<(), Broken> {
        let seed = [("seed", conversation.seed.to_string())];
        let mut session = Session::open(base, &seed).await.map_err(Broken::Passing)?;
        let session = &mut session;
        send(session, &json!({"type": "session.update", "session": conversation.settings()}))?;
        self.wait(session, |notes| notes.updated).await?;

        write(session, &conversation.text)?;
        self.wait(session, |notes| has_ended(notes, 0)).await?;

        let counted = conversation.counted_samples();
        match conversation.hears {
            true => {
                append(session, &speech(conversation.seed))?;
                append(session, &silence())?;
            }
            false => write(session, "What else?")?,
        }
        let enough = |notes: &Notes| {
            has_ended(notes, 1) || notes.answers.get(1).is_some_and(|answer| answer.samples.len() >= counted)
        };
        self.wait(session, enough).await?;
        match conversation.hears {
            true => append(session, &speech(conversation.seed + 1))?,
            false => send(session, &json!({"type": "response.cancel"}))?,
        }
        let turns = if conversation.hears { 2 } else { 0 };
        self.wait(session, |notes| has_ended(notes, 1) && notes.speech.0 == turns).await?;
        // How much of it came depends on the times of the drill, so what follows must not.
        if let Some(item) = self.notes.answers.get(1).and_then(|answer| answer.item.clone()) {
            send(session, &json!({"type": "conversation.item.delete", "item_id": item}))?;
        }

        match conversation.hears {
            true => append(session, &silence())?,
            false => write(session, "Thank you. Good night.")?,
        }
        self.wait(session, |notes| has_ended(notes, 2)).await
    }

    /// Reads events until the notes say so.
    async fn wait(&mut self, session: &mut Session, until: impl Fn(&Notes) -> bool) -> Result<(), Broken> {
        while !until(&self.notes) {
            let event = tokio::time::timeout(self.patience, session.next()).await;
            let event = event.map_err(|_| Broken::End(End::Hung(self.patience)))?;
            let event = event.map_err(|error| Broken::End(End::Failed(error)))?;
            let samples = self.notes.event(&event).map_err(|error| Broken::End(End::Failed(error)))?;
            // Between answers the user speaks: only the first has the cadence of one stream.
            if samples > 0 && self.notes.answers.len() == 1 {
                let now = self.run_began.elapsed();
                let length = Duration::from_secs_f64(samples as f64 / RATE);
                self.timing.player.chunk(now.saturating_sub(self.timing.began), length);
            }
            let failed = self.notes.answers.iter().find_map(|answer| answer.ended.as_ref()?.error.clone());
            if let Some((code, message)) = failed {
                let passes = PASSING.contains(&code.as_str());
                let told = format!("{code}: {message}");
                return Err(if passes { Broken::Passing(told) } else { Broken::End(End::Failed(told)) });
            }
        }
        Ok(())
    }
}

fn has_ended(notes: &Notes, answer: usize) -> bool {
    notes.answers.get(answer).is_some_and(|answer| answer.ended.is_some())
}

fn send(session: &mut Session, event: &Value) -> Result<(), Broken> {
    session.send(event).map_err(|error| Broken::End(End::Failed(error)))
}

/// A turn in text, and the wish for its answer.
fn write(session: &mut Session, text: &str) -> Result<(), Broken> {
    let content = json!([{"type": "input_text", "text": text}]);
    let item = json!({"type": "message", "role": "user", "content": content});
    send(session, &json!({"type": "conversation.item.create", "item": item}))?;
    send(session, &json!({"type": "response.create"}))
}

fn append(session: &mut Session, samples: &[i16]) -> Result<(), Broken> {
    for piece in samples.chunks(PIECE) {
        let bytes: Vec<u8> = piece.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        send(session, &json!({"type": "input_audio_buffer.append", "audio": BASE64_STANDARD.encode(bytes)}))?;
    }
    Ok(())
}

fn silence() -> Vec<i16> {
    vec![0; SENT_MS * RATE as usize / 1000]
}
