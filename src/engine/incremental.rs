//! Text that is spoken while it is being written: the talker takes one token per frame, so it can begin with the first
//! word. A sequence lasts for a sentence; when the writer pauses inside one and everything is spoken, it ends there.

use super::api::{Event, RequestError, ResponseStream};
use super::plan::{FamilyPlanner, FollowedText, SpeechVoice, TtsPlanner, TtsVoice};
use super::relay::{Relay, Stop, refused};
use super::script::Words;
use omni_core::ids::RequestId;
use omni_core::text::{IncrementalText, TextStep};
use omni_model::prompt::{TtsPromptError, TtsStream};
use std::collections::VecDeque;

/// Reads a text aloud as it comes.
pub(super) async fn read(relay: &mut Relay, pieces: flume::Receiver<String>, words: Words) -> Result<(), Stop> {
    let text = IncrementalText::new(relay.shared.max_segment_chars);
    let mut writer = Writer { pieces: Some(pieces), text, words, steps: VecDeque::new(), chars: 0, said: 0 };
    while !writer.is_done() && relay.may_go_on() {
        Sentence::begin(relay)?.read(relay, &mut writer).await?;
    }
    Ok(())
}

/// The text that a client is still writing.
struct Writer {
    /// `None` when nothing follows.
    pieces: Option<flume::Receiver<String>>,
    text: IncrementalText,
    words: Words,
    /// Steps that no sentence has taken yet.
    steps: VecDeque<TextStep>,
    chars: usize,
    /// Characters as they are said.
    said: usize,
}

impl Writer {
    fn is_done(&self) -> bool {
        self.pieces.is_none() && self.steps.is_empty()
    }

    /// Words as they are said.
    fn say(&mut self, words: String) -> Result<String, RequestError> {
        let said = self.words.apply(&words).map_err(RequestError::Refused)?.into_owned();
        self.said += said.chars().count();
        if self.said > self.words.max_chars && said != words {
            return Err(RequestError::Refused(self.words.too_long()));
        }
        Ok(said)
    }

    /// More steps; never resolves when there will be none.
    async fn wait(&mut self) -> Option<String> {
        match &self.pieces {
            Some(pieces) => pieces.recv_async().await.ok(),
            None => std::future::pending().await,
        }
    }

    fn wrote(&mut self, piece: Option<String>, relay: &Relay) -> Result<(), RequestError> {
        match piece {
            Some(piece) => {
                let chars = piece.chars().count();
                self.chars += chars;
                relay.watch.wrote(chars);
                relay.shared.planner.check_length("input", self.chars).map_err(refused)?;
                self.steps.extend(self.text.push(&piece));
            }
            None => {
                relay.watch.wrote(0);
                self.pieces = None;
                self.steps.extend(self.text.finish());
            }
        }
        Ok(())
    }
}

/// One sentence: a sequence of the talker, once enough is written for it.
struct Sentence {
    text: TtsStream,
    /// The same as it was written.
    written: String,
    sequence: Option<Sequence>,
    /// The writer has finished it.
    complete: bool,
}

struct Sequence {
    stream: ResponseStream,
    request: RequestId,
    /// Tokens that it has.
    tokens: u32,
    /// It has been told that no token follows.
    ended: bool,
}

impl Sentence {
    fn begin(relay: &Relay) -> Result<Sentence, RequestError> {
        let (planner, voice) = parts(relay)?;
        let text = planner.stream(voice).map_err(refused)?;
        Ok(Sentence { text, written: String::new(), sequence: None, complete: false })
    }

    async fn read(mut self, relay: &mut Relay, writer: &mut Writer) -> Result<(), Stop> {
        let patience = relay.shared.speech.flush_after;
        loop {
            // The steps up to the border belong to this sentence, those behind it to the next.
            while !self.complete
                && let Some(step) = writer.steps.pop_front()
            {
                let step = match step {
                    TextStep::Words(words) => TextStep::Words(writer.say(words)?),
                    TextStep::Border => TextStep::Border,
                };
                self.take(step).map_err(not_speakable)?;
            }
            self.push_tokens(relay).await?;
            if self.sequence.is_none() && writer.is_done() {
                return Ok(());
            }
            let begun = self.sequence.is_some();
            if !begun {
                relay.watch.waits_for_text();
            }
            tokio::select! {
                // In this order, so that a late look at the clock is no pause: what was written by now counts.
                biased;
                event = next_event(&mut self.sequence) => {
                    if !relay.pass_on(event).await? {
                        relay.keep_voice(&self.written);
                        return Ok(());
                    }
                }
                piece = writer.wait(), if !self.complete => writer.wrote(piece, relay)?,
                // Neither words nor sound for a while: all that was written has been spoken.
                () = tokio::time::sleep(patience), if begun && !self.complete => {
                    writer.steps.extend(writer.text.pause());
                }
            }
        }
    }

    fn take(&mut self, step: TextStep) -> Result<(), TtsPromptError> {
        match step {
            TextStep::Words(words) => {
                self.written.push_str(&words);
                self.text.push(&words)
            }
            // Of a sentence that ended before its border was known: nothing of it is left for this one.
            TextStep::Border if self.written.is_empty() => Ok(()),
            TextStep::Border => {
                self.complete = true;
                self.text.finish()
            }
        }
    }

    /// Opens the sequence as soon as there is text enough for its prompt, and gives it the tokens that were written.
    async fn push_tokens(&mut self, relay: &mut Relay) -> Result<(), Stop> {
        match &mut self.sequence {
            None => {
                let Some(prompt) = self.text.prompt() else { return Ok(()) };
                let tokens = self.text.take_tokens();
                let (count, ended) = (tokens.len() as u32, self.complete);
                let (planner, _) = parts(relay)?;
                let plan = planner.begun(&relay.shared.planner.common, prompt, tokens, ended, &relay.options);
                let plan = plan.map_err(refused)?;
                let mut stream = relay.open(plan, None);
                let first = stream.next().await;
                let Some(Event::Started { id: request, .. }) = first else {
                    return Err(RequestError::ShuttingDown.into());
                };
                relay.pass_on(first).await?;
                self.sequence = Some(Sequence { stream, request, tokens: count, ended });
            }
            Some(sequence) if !sequence.ended => {
                let tokens = self.text.take_tokens();
                if !tokens.is_empty() || self.complete {
                    let before = sequence.tokens;
                    sequence.tokens += tokens.len() as u32;
                    sequence.ended = self.complete;
                    let text = FollowedText { tokens, ended: self.complete };
                    relay.shared.ledger.push_text(sequence.request, before, text);
                }
            }
            Some(_) => {}
        }
        Ok(())
    }
}

async fn next_event(sequence: &mut Option<Sequence>) -> Option<Event> {
    match sequence {
        Some(sequence) => sequence.stream.next().await,
        None => std::future::pending().await,
    }
}

/// Only Qwen3-TTS reads word by word.
fn parts(relay: &Relay) -> Result<(&TtsPlanner, &TtsVoice), RequestError> {
    match (&relay.shared.planner.family, &relay.options.voice) {
        (FamilyPlanner::Tts(planner), SpeechVoice::Tts(voice)) => Ok((planner, voice)),
        _ => Err(RequestError::Refused("this model does not read word by word".into())),
    }
}

fn not_speakable(error: TtsPromptError) -> RequestError {
    RequestError::Refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_model::checkpoint::Checkpoint;
    use omni_model::prompt::{Speaker, TtsRequest};
    use std::path::Path;

    #[test]
    fn a_border_behind_words_that_another_sentence_took_is_none() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_tts/custom_voice");
        let prompter = Checkpoint::open(&folder).unwrap().tts_prompter().unwrap();
        let speaker = Speaker::Named("Vivian");
        let request = TtsRequest { text: "", language: None, speaker, instruct: None, non_streaming: None };
        let text = prompter.stream(&request).unwrap();
        let mut sentence = Sentence { text, written: String::new(), sequence: None, complete: false };
        sentence.take(TextStep::Border).unwrap();
        assert!(!sentence.complete && sentence.text.prompt().is_none());
        sentence.take(TextStep::Words("And this as well.".to_owned())).unwrap();
        sentence.take(TextStep::Border).unwrap();
        assert!(sentence.complete && sentence.text.prompt().is_some(), "the next sentence is spoken");
    }
}
