//! An answer that goes on: a request that is repeated with its seed is made again, sample for sample, and the server
//! leaves out what the client has. Nothing is kept for it, so it works after a restart and on any replica.
//!
//! A client says what it has in one of two ways: by a sample (`start_sample`), where a new file begins, or by a byte of
//! the file (`Range`, `Last-Event-ID`), which goes on. This module is about bytes; the writer of the audio leaves out
//! samples. It is pure.

use super::api::{FieldError, values};
use super::error::ApiError;
use super::speech_request::{Delivery, SpeechCall, needs_seed};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use omni_audio::AudioFormat;

/// The largest position. As the last byte of a range it means that the end is not known yet (RFC 8673).
const MAX_POSITION: u64 = values::MAX_POSITION.unsigned_abs();

const RANGE: &str = "Range";
const LAST_EVENT_ID: &str = "Last-Event-ID";

/// From which byte of its file an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// From the first.
    Start,
    /// From the byte of a `Range`. There must be such a byte.
    Range(u64),
    /// Behind the event of a `Last-Event-ID`, of which so many bytes have come. There may be none left.
    Event(u64),
}

impl Position {
    /// What the headers ask for: `Range` of a body of audio, `Last-Event-ID` of events.
    ///
    /// # Errors
    /// A position that makes no sense, a request without a seed, a format whose bytes are not the same again.
    pub fn read(headers: &HeaderMap, call: &SpeechCall) -> Result<Position, ApiError> {
        let (name, position) = match call.delivery {
            Delivery::Events => (LAST_EVENT_ID, event(headers)?),
            Delivery::Raw | Delivery::Whole => (RANGE, range(headers)?),
        };
        if position == Position::Start {
            return Ok(position);
        }
        if call.request.params.words && call.delivery == Delivery::Whole {
            let message = "an answer with the times of its words is one JSON object; begin it with start_sample";
            return Err(FieldError::invalid(name, message).into());
        }
        needs_seed(call.request.params.seed)?;
        cuttable(name, call.sound.format)?;
        Ok(position)
    }

    /// How an answer that goes on says where, as the metric has it; `None` for one that begins at its beginning.
    pub fn given_as(self, start_sample: u64) -> Option<&'static str> {
        match self {
            Position::Range(_) => Some("byte"),
            Position::Event(_) => Some("event"),
            Position::Start => (start_sample > 0).then_some("sample"),
        }
    }

    /// The first byte that is sent.
    pub fn byte(self) -> u64 {
        match self {
            Position::Start => 0,
            Position::Range(byte) | Position::Event(byte) => byte,
        }
    }

    /// Checks the position against the length of the whole file, in bytes.
    ///
    /// # Errors
    /// 416: the position is beyond the end.
    pub fn within(self, length: u64) -> Result<(), ApiError> {
        let (name, beyond) = match self {
            Position::Start => return Ok(()),
            Position::Range(byte) => (RANGE, byte >= length),
            Position::Event(byte) => (LAST_EVENT_ID, byte > length),
        };
        if !beyond {
            return Ok(());
        }
        let message = format!("{name}: the answer has {length} bytes and cannot go on at byte {}", self.byte());
        let error = ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", message);
        Err(ApiError { whole_length: Some(length), ..error.with_param(name) })
    }

    /// The status of the answer, and the header that says which part of the file it is. `length` is that of the whole
    /// file, in bytes, if it is known.
    pub fn head(self, length: Option<u64>) -> (StatusCode, HeaderMap) {
        let mut headers = HeaderMap::new();
        let Position::Range(byte) = self else { return (StatusCode::OK, headers) };
        let range = match length {
            Some(length) => format!("bytes {byte}-{}/{length}", length.saturating_sub(1)),
            None => format!("bytes {byte}-{MAX_POSITION}/*"),
        };
        // Digits and signs, which a header can carry.
        if let Ok(range) = HeaderValue::from_str(&range) {
            headers.insert(header::CONTENT_RANGE, range);
        }
        (StatusCode::PARTIAL_CONTENT, headers)
    }
}

/// Refuses formats whose bytes are not the same again.
fn cuttable(name: &str, format: AudioFormat) -> Result<(), FieldError> {
    if format.is_reproducible() {
        return Ok(());
    }
    let format = format.as_str();
    let message = format_args!("a file of {format:?} cannot go on at a byte; begin a new one with start_sample");
    Err(FieldError::invalid(name, message))
}

/// `bytes=K-`. Another unit is ignored, as RFC 9110 has it; another form is an error.
fn range(headers: &HeaderMap) -> Result<Position, FieldError> {
    let Some(value) = headers.get(header::RANGE) else { return Ok(Position::Start) };
    let Some(bytes) = value.as_bytes().strip_prefix(b"bytes=") else { return Ok(Position::Start) };
    match bytes.strip_suffix(b"-").and_then(number) {
        Some(0) => Ok(Position::Start),
        Some(byte) => Ok(Position::Range(byte)),
        None => {
            let message = format_args!("must be bytes=K-, with K from 0 to {MAX_POSITION}: all from byte K on");
            Err(FieldError::invalid(RANGE, message))
        }
    }
}

/// The `id:` of an event of the same answer.
fn event(headers: &HeaderMap) -> Result<Position, FieldError> {
    let id = headers.get(HeaderName::from_static("last-event-id")).map(HeaderValue::as_bytes);
    match id {
        // Without an event browsers send nothing, or an empty id.
        None | Some(b"") => Ok(Position::Start),
        Some(id) => match number(id) {
            Some(0) => Ok(Position::Start),
            Some(byte) => Ok(Position::Event(byte)),
            None => {
                let message = format_args!("must be the id of an event of this answer, from 0 to {MAX_POSITION}");
                Err(FieldError::invalid(LAST_EVENT_ID, message))
            }
        },
    }
}

/// Digits alone: `parse` would take a sign.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|number| *number <= MAX_POSITION)
}

/// Leaves out the bytes of a file before a position.
#[derive(Debug)]
pub(super) struct Cut {
    position: Position,
    /// Bytes of the file so far, those that are left out among them.
    length: u64,
}

impl Cut {
    pub fn new(position: Position) -> Cut {
        Cut { position, length: 0 }
    }

    /// What is left of the next bytes.
    pub fn rest(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let missing = self.position.byte().saturating_sub(self.length);
        self.length += bytes.len() as u64;
        let missing = usize::try_from(missing).unwrap_or(usize::MAX).min(bytes.len());
        bytes.drain(..missing);
        bytes
    }

    /// Bytes of the file so far, those that are left out among them.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Checks the position when the file is complete.
    ///
    /// # Errors
    /// That of [`Position::within`].
    pub fn end(&self) -> Result<(), ApiError> {
        self.position.within(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_range_is_all_from_a_byte_on() {
        let asked = |value: &str| range(&headers("range", value));
        assert_eq!(asked("bytes=44-"), Ok(Position::Range(44)));
        assert_eq!(asked("bytes=0-"), Ok(Position::Start));
        assert_eq!(asked("samples=1-"), Ok(Position::Start));
        assert_eq!(asked(&format!("bytes={MAX_POSITION}-")), Ok(Position::Range(MAX_POSITION)));
        for wrong in
            ["bytes=", "bytes=-", "bytes=-5", "bytes=1-2", "bytes=1-,5-", "bytes=+1-", "bytes=9007199254740992-"]
        {
            let error = asked(wrong).unwrap_err();
            assert_eq!((error.code, error.param.as_str()), ("invalid_value", "Range"), "{wrong}");
            assert!(error.message.contains("bytes=K-"), "{}", error.message);
        }
    }

    #[test]
    fn the_id_of_an_event_is_a_number_of_bytes() {
        let asked = |value: &str| event(&headers("last-event-id", value));
        assert_eq!(asked("3840"), Ok(Position::Event(3840)));
        assert_eq!((asked(""), asked("0")), (Ok(Position::Start), Ok(Position::Start)));
        for wrong in ["-1", "+1", "1.5", "a", "18446744073709551616"] {
            assert_eq!(asked(wrong).unwrap_err().param, "Last-Event-ID", "{wrong}");
        }
    }

    #[test]
    fn a_cut_leaves_out_the_same_bytes_however_they_come() {
        let file: Vec<u8> = (0..100).collect();
        for (piece, byte) in [(1, 0), (7, 1), (7, 50), (10, 50), (100, 99), (3, 100), (3, 101)] {
            let mut cut = Cut::new(Position::Event(byte));
            let rest: Vec<u8> = file.chunks(piece).flat_map(|bytes| cut.rest(bytes.to_vec())).collect();
            assert_eq!(rest, file[(byte as usize).min(100)..]);
            assert_eq!((cut.length(), cut.end().is_err()), (100, byte > 100));
        }
    }

    #[test]
    fn a_range_has_a_byte_and_an_event_may_be_the_last() {
        assert!(Position::Range(99).within(100).is_ok() && Position::Event(100).within(100).is_ok());
        for beyond in [Position::Range(100), Position::Event(101)] {
            let error = beyond.within(100).unwrap_err();
            assert_eq!((error.status.as_u16(), error.whole_length), (416, Some(100)));
        }
    }
}
