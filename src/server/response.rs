//! The events of a request as the routes need them. A route sends nothing before the first event with content, so that
//! a failure until then is still an HTTP status.

use super::auth::Caller;
use super::error::ApiError;
use super::traces::Recording;
use super::visit::REQUEST_ID;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use omni_core::ids::RequestId;
use omni_engine::{AudioChunk, Event, FinishReason, ResponseStream, Usage};

/// One event with content.
#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    Audio(AudioChunk),
    Finished { reason: FinishReason, usage: Usage },
}

/// An accepted request whose first piece is there. Dropping it aborts the request.
#[derive(Debug)]
pub(super) struct Answer {
    pub id: RequestId,
    pub seed: u64,
    first: Option<Piece>,
    rest: ResponseStream,
    /// For whom its speech counts.
    caller: Caller,
    sample_rate: u32,
    /// The trace of this request, which ends with the answer.
    recording: Option<Recording>,
}

impl Answer {
    /// Waits for the first piece.
    pub async fn begin(mut stream: ResponseStream, caller: Caller, sample_rate: u32) -> Result<Answer, ApiError> {
        let (id, seed) = match stream.next().await {
            Some(Event::Started { id, seed }) => (id, seed),
            Some(Event::Failed(error)) => return Err(error.into()),
            _ => return Err(ended_early()),
        };
        caller.visit.leads_to(id);
        let mut answer = Answer { id, seed, first: None, rest: stream, caller, sample_rate, recording: None };
        answer.first = Some(answer.next().await?);
        Ok(answer)
    }

    /// Ends a recording with the answer.
    pub fn recorded(self, recording: Option<Recording>) -> Answer {
        Answer { recording, ..self }
    }

    /// The next piece. Not to be called again after [`Piece::Finished`] or an error.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        match self.rest.next().await {
            Some(Event::Text(text)) => Ok(Piece::Text(text)),
            Some(Event::Audio(chunk)) => {
                self.caller.spoke(chunk.samples.len(), self.sample_rate);
                Ok(Piece::Audio(chunk))
            }
            Some(Event::Finished { reason, usage }) => Ok(Piece::Finished { reason, usage }),
            Some(Event::Failed(error)) => Err(error.into()),
            Some(Event::Started { .. }) | None => Err(ended_early()),
        }
    }

    /// Headers that every answer carries: its name and the seed that makes it again.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let id = self.id.to_string();
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(HeaderName::from_static("x-seed"), HeaderValue::from(self.seed));
        let path = self.recording.as_ref().map(Recording::path);
        if let Some(Ok(path)) = path.map(|path| HeaderValue::from_str(&path)) {
            headers.insert(HeaderName::from_static("x-trace"), path);
        }
        headers
    }
}

fn ended_early() -> ApiError {
    ApiError::internal("the answer ended before it was complete")
}

/// Lists the fields that the server does not know, so that a typo can be found.
pub(super) fn note_ignored(headers: &mut HeaderMap, ignored: &[String]) {
    // Names come from the client: only what a header can carry, and not too many.
    let plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_graphic()) && name.len() <= 64;
    let names: Vec<&str> = ignored.iter().filter(plain).take(16).map(String::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&names.join(", "))
        && !names.is_empty()
    {
        headers.insert(HeaderName::from_static("x-ignored-fields"), value);
    }
}
