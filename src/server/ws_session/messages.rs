//! What the session does with a message of its client.

use super::{Over, Session, text};
use crate::api::Fields;
use crate::api::session::{ClientMessage, ServerMessage};
use crate::error::ApiError;
use crate::ws_frames::Incoming;
use crate::ws_input::{Ended, Refused};
use crate::ws_protocol::{SessionConfig, close_code, error_event, read, session_done};
use crate::ws_socket::Unreadable;
use crate::ws_utterance::Text;
use serde_json::{Map, Value};
use tokio::time::Instant;

impl Session {
    /// Does what a message asks for.
    pub(super) async fn hear(&mut self, incoming: Result<Incoming, Unreadable>) -> Result<(), Over> {
        self.unanswered = 0;
        let (text, held) = match incoming {
            Ok(Incoming::Text(text, held)) => (text, held),
            Ok(Incoming::Binary) => {
                self.heard = Instant::now();
                let error = ApiError::invalid("type", "messages are JSON in text frames; a binary frame was ignored");
                return self.tell(&error_event(None, &error)).await;
            }
            Ok(Incoming::Ping(payload)) => {
                self.out.pong(payload);
                return Ok(());
            }
            Ok(Incoming::Pong) => return Ok(()),
            // RFC 6455 wants the close answered with a close.
            Ok(Incoming::Close) => return self.close(close_code::NORMAL, "").await,
            Err(broken) => return self.broken(broken).await,
        };
        self.heard = Instant::now();
        self.activity.said();
        if let Err(error) = self.caller.sent(text.len()) {
            self.tell(&error_event(None, &error)).await?;
            return self.close(close_code::AGAIN, "too many bytes").await;
        }
        let (message, _held) = match read(text, self.app.json, held).await {
            Ok((message, held)) => (Ok(message), Some(held)),
            Err(error) => (Err(error), None),
        };
        match message {
            Err(error) => self.tell(&error_event(None, &error)).await,
            Ok(ClientMessage::Cancel) => self.cancel().await,
            Ok(_) if self.closing => Ok(()),
            Ok(ClientMessage::Config(map)) => self.configure(&map).await,
            Ok(ClientMessage::Text(piece)) => {
                let pushed = self.input.push_text(piece.text.unwrap_or_default());
                let counted = pushed.and_then(|()| match self.waiting.resize(self.input.bytes()) {
                    true => Ok(()),
                    false => Err(self.input.refuse_newest()),
                });
                match counted {
                    Ok(()) => Ok(()),
                    Err(refused) => self.refuse(&refused).await,
                }
            }
            Ok(ClientMessage::Commit(commit)) => self.commit(commit.commit_id).await,
            Ok(ClientMessage::Done) => match self.input.push_end() {
                Ok(Ended::Queued | Ended::Cancelled) => Ok(()),
                Ok(Ended::Dropped) => self.tell(&session_done(None, 0)).await,
                Err(refused) => {
                    self.refuse(&refused).await?;
                    self.tell(&session_done(None, 0)).await
                }
            },
            Ok(ClientMessage::Close) => {
                self.closing = true;
                if self.input.is_open() {
                    // An open utterance has text, so its end is never refused.
                    let _ = self.input.push_end();
                }
                Ok(())
            }
        }
    }

    async fn configure(&mut self, map: &Map<String, Value>) -> Result<(), Over> {
        let read = async {
            let app = self.app.chosen(Fields::top(map)).await?;
            Ok::<_, ApiError>((SessionConfig::parse(&app, map).await?, app))
        };
        match read.await {
            Ok((config, app)) => {
                (self.config, self.app) = (config, app);
                let updated = text(&ServerMessage::Updated { session: self.config.state(&self.app) });
                self.say(updated).await
            }
            Err(error) => self.tell(&error_event(None, &error)).await,
        }
    }

    /// Other servers begin to speak at a commit. Here speech has begun already, so a commit only ends a sentence.
    async fn commit(&mut self, id: Option<String>) -> Result<(), Over> {
        match self.input.commit() {
            Some(sentence) => self.tell(&ServerMessage::Committed { commit_id: id, sentence_index: sentence }).await,
            None => {
                let error = ApiError::invalid("type", "input.commit came without any input.text before it");
                self.tell(&error_event(None, &error)).await
            }
        }
    }

    async fn refuse(&mut self, refused: &Refused) -> Result<(), Over> {
        let error = match refused {
            Refused::NoText => ApiError::invalid("type", "input.done came without any input.text before it"),
            Refused::TooLong => {
                let limit = self.input.limit();
                let message = format!("more than {limit} characters in one utterance or waiting; it was dropped");
                ApiError { code: "text_too_long", ..ApiError::invalid("text", message) }
            }
            Refused::Full => self.app.budget.exhausted(),
        };
        // The text that is too long may belong to the utterance that is being spoken, or to one behind it.
        let speaking = self.current.as_ref().is_some_and(|utterance| !matches!(utterance.text, Text::Ended));
        let concerns_current = *refused != Refused::NoText && speaking && self.input.next().is_none();
        if concerns_current {
            self.current = None;
        }
        self.tell(&error_event(concerns_current.then_some(self.utterance), &error)).await
    }

    async fn cancel(&mut self) -> Result<(), Over> {
        let stopped = self.current.take();
        self.input.cancel();
        let utterance = stopped.as_ref().map(|_| self.utterance);
        let samples = stopped.map_or(0, |utterance| utterance.writer.samples());
        self.tell(&ServerMessage::Cancelled { utterance, samples }).await
    }
}
