//! The framing of the Wyoming protocol, both ways. A plain state machine: no sockets, no clock.
//!
//! A frame is a line of JSON; behind it `data_length` bytes of JSON, whose fields go before those of the line's `data`;
//! behind them `payload_length` bytes of any kind. A server that speaks takes no payloads: they are counted and dropped.
//! What is kept of an unfinished frame is taken from the budget before it grows.

use crate::api::FieldError;
use crate::api::measure::JsonLimits;
use crate::api::{Fields, kind};
use crate::body::{parse_now, parse_object};
use crate::budget::Held;
use crate::error::ApiError;
use crate::reader::Decode;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest line, bytes. The reference client reads none that is longer.
const LINE: usize = 64 << 10;

/// Limits on a frame of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a frame behind its line.
    pub bytes: usize,
    pub json: JsonLimits,
}

/// A line of which the data may still have to be read.
#[derive(Debug)]
pub(super) struct Frame {
    /// The type of its event.
    pub name: String,
    /// The data in the line.
    inline: Map<String, Value>,
    /// The data behind it.
    behind: Vec<u8>,
    limits: JsonLimits,
    /// The parts of the budget of both.
    held: (Held, Held),
}

impl Frame {
    /// Its type, all of its data, and their part of the budget.
    ///
    /// # Errors
    /// Data that is no object, or more JSON than the limits allow.
    pub async fn data(self) -> Result<(String, Map<String, Value>, (Held, Held)), ApiError> {
        let (mut data, (of_line, of_data)) = (self.inline, self.held);
        if self.behind.is_empty() {
            return Ok((self.name, data, (of_line, of_data)));
        }
        let (behind, of_data) = parse_object(self.behind, self.limits, of_data).await?;
        data.extend(behind);
        Ok((self.name, data, (of_line, of_data)))
    }
}

/// What comes next.
#[derive(Debug)]
enum Expected {
    Line,
    /// The rest of a frame: bytes of its data and of its payload that are still to come.
    Rest {
        frame: Frame,
        data: usize,
        payload: usize,
    },
}

/// Reads the frames of one client.
#[derive(Debug)]
pub(super) struct Decoder {
    limits: Limits,
    /// The line as far as it has come.
    line: Vec<u8>,
    held: Held,
    expected: Expected,
}

/// What a line must have.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    name: Option<String>,
}

impl Decoder {
    /// `held` is an empty part of the budget.
    pub fn new(limits: Limits, held: Held) -> Decoder {
        Decoder { limits, line: Vec::new(), held, expected: Expected::Line }
    }
}

impl Decode for Decoder {
    type Message = Frame;
    type Violation = ApiError;

    fn is_inside(&self) -> bool {
        !self.line.is_empty() || matches!(self.expected, Expected::Rest { .. })
    }

    /// # Errors
    /// Bytes that are no frame, lengths over the limits, a budget without room.
    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, ApiError> {
        if let Expected::Line = self.expected {
            let end = input.iter().position(|byte| *byte == b'\n');
            let piece = &input[..end.unwrap_or(input.len())];
            if self.line.len() + piece.len() > LINE {
                let message =
                    format!("a line was longer than {LINE} bytes; send long data behind it, with data_length");
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "message_too_large", message));
            }
            if !self.held.take(piece.len()) {
                return Err(self.held.exhausted());
            }
            self.line.extend_from_slice(piece);
            *input = &input[piece.len()..];
            if end.is_none() {
                return Ok(None);
            }
            *input = &input[1..];
            self.expected = self.head()?;
        }
        let Expected::Rest { frame, data, payload } = &mut self.expected else { return Ok(None) };
        let (piece, rest) = input.split_at((*data).min(input.len()));
        if !frame.held.1.take(piece.len()) {
            return Err(frame.held.1.exhausted());
        }
        frame.behind.extend_from_slice(piece);
        *data -= piece.len();
        let (dropped, rest) = rest.split_at((*payload).min(rest.len()));
        *payload -= dropped.len();
        *input = rest;
        if *data > 0 || *payload > 0 {
            return Ok(None);
        }
        match std::mem::replace(&mut self.expected, Expected::Line) {
            Expected::Rest { frame, .. } => Ok(Some(frame)),
            Expected::Line => Ok(None),
        }
    }
}

impl Decoder {
    /// Reads the line that is there.
    fn head(&mut self) -> Result<Expected, ApiError> {
        let (line, held) = (std::mem::take(&mut self.line), self.held.split_off());
        if line.trim_ascii().is_empty() {
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", "an empty line is no event"));
        }
        let (mut map, held) = parse_now(line, self.limits.json, held)?;
        let Head { name } = Fields::top(&map).read()?;
        let name = name.ok_or_else(|| FieldError::missing("type", "the name of an event"))?;
        let data = length("data_length", map.get("data_length"), self.limits.bytes)?;
        let payload = length("payload_length", map.get("payload_length"), self.limits.bytes.saturating_sub(data))?;
        let inline = match map.remove("data") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(data)) => data,
            Some(other) => return Err(FieldError::wrong_type("data", "an object", kind(&other)).into()),
        };
        let of_data = held.another();
        let frame = Frame { name, inline, behind: Vec::new(), limits: self.limits.json, held: (held, of_data) };
        Ok(Expected::Rest { frame, data, payload })
    }
}

/// A length that a line gives.
fn length(field: &str, given: Option<&Value>, limit: usize) -> Result<usize, FieldError> {
    let given = match given {
        None | Some(Value::Null) => return Ok(0),
        Some(value) => value.as_i64().ok_or_else(|| FieldError::wrong_type(field, "a whole number", kind(value)))?,
    };
    usize::try_from(given).ok().filter(|bytes| *bytes <= limit).ok_or_else(|| {
        let message = format_args!("{given} is not from 0 to {limit} bytes (server.max_body_bytes, for a whole event)");
        FieldError::invalid(field, message)
    })
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    name: &'a str,
    version: &'a str,
    data_length: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_length: Option<usize>,
}

/// The release of the reference whose events these are.
const VERSION: &str = "1.10.2";

/// The bytes of a frame. Data goes behind the line, for clients read no long lines; every frame has some.
pub(super) fn encode(name: &str, data: &impl Serialize, payload: &[u8]) -> Vec<u8> {
    // A struct of numbers and strings is always JSON.
    let data = serde_json::to_vec(data).unwrap_or_default();
    let payload_length = Some(payload.len()).filter(|length| *length > 0);
    let line = Line { name, version: VERSION, data_length: data.len(), payload_length };
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.reserve_exact(1 + data.len() + payload.len());
    bytes.push(b'\n');
    bytes.extend_from_slice(&data);
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, What};
    use metrics::Gauge;
    use serde_json::json;

    fn decoder(bytes: usize) -> Decoder {
        let limits = Limits { bytes, json: JsonLimits { values: 1000, depth: 8 } };
        Decoder::new(limits, Held::nothing(&Budget::new(What::Input, 1 << 20, Gauge::noop())))
    }

    /// The frames of bytes that come in pieces of this length.
    fn frames(bytes: &[u8], piece: usize) -> Result<Vec<(String, Value)>, ApiError> {
        let (mut decoder, mut frames) = (decoder(1000), Vec::new());
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                if let Some(frame) = decoder.decode(&mut piece)? {
                    let (name, data, _) = futures::executor::block_on(frame.data())?;
                    frames.push((name, Value::Object(data)));
                }
            }
        }
        assert!(!decoder.is_inside(), "a frame is not whole");
        Ok(frames)
    }

    #[test]
    fn data_comes_in_the_line_and_behind_it_and_payloads_are_dropped() {
        let text = concat!(
            "{\"type\": \"a\", \"data\": {\"x\": 1, \"y\": 2}, \"data_length\": 8, \"payload_length\": 3}\r\n",
            "{\"x\": 3}abc{\"type\":\"b\"}\n",
        );
        for piece in [1, 7, 1000] {
            let frames = frames(text.as_bytes(), piece).unwrap();
            assert_eq!(frames, [("a".to_owned(), json!({"x": 3, "y": 2})), ("b".to_owned(), json!({}))], "{piece}");
        }
    }

    #[test]
    fn what_is_encoded_can_be_read() {
        let bytes = encode("audio-chunk", &json!({"rate": 24_000, "text": "a\nb"}), b"\n{}");
        let read = frames(&bytes, 5).unwrap();
        assert_eq!(read, [("audio-chunk".to_owned(), json!({"rate": 24_000, "text": "a\nb"}))]);
    }

    #[test]
    fn lines_that_lie_are_refused_with_the_field_and_the_limit() {
        for (line, code, says) in [
            ("GET / HTTP/1.1", "invalid_json", "not valid JSON"),
            ("", "invalid_json", "an empty line"),
            ("[1]", "invalid_json", "found an array"),
            ("{\"data\": {}}", "missing_required_parameter", "type is missing"),
            ("{\"type\": 7}", "invalid_type", "type: expected a string"),
            ("{\"type\": \"a\", \"data\": []}", "invalid_type", "data: expected an object, found an array"),
            ("{\"type\": \"a\", \"data_length\": -1}", "invalid_value", "data_length: -1 is not from 0 to 1000 bytes"),
            ("{\"type\": \"a\", \"data_length\": 1001}", "invalid_value", "data_length: 1001 is not from 0"),
            ("{\"type\": \"a\", \"data_length\": 1e3}", "invalid_type", "data_length: expected a whole number"),
            ("{\"type\": \"a\", \"data_length\": 400, \"payload_length\": 601}", "invalid_value", "from 0 to 600"),
            ("{\"type\": \"a\", \"data_length\": 4}\n[12]", "invalid_json", "found an array"),
            ("{\"type\": \"a\", \"data\": [[[[[[[[[1]]]]]]]]]}", "invalid_json", "server.max_json_depth"),
        ] {
            let error = frames(format!("{line}\n").as_bytes(), 11).unwrap_err();
            assert!(error.code == code && error.message.contains(says), "{line}: {error:?}");
        }
        let error = frames(&vec![b' '; LINE + 1], 4096).unwrap_err();
        assert!(error.message.contains("65536 bytes"), "{error:?}");
    }

    #[test]
    fn frames_take_from_the_budget_before_they_grow_and_give_it_back() {
        let budget = Budget::new(What::Input, 4096, Gauge::noop());
        let limits = Limits { bytes: 4096, json: JsonLimits { values: 1000, depth: 8 } };
        let mut decoder = Decoder::new(limits, Held::nothing(&budget));
        assert!(decoder.decode(&mut &b"{\"type\": \"a\", \"data_length\": 4096}\n"[..]).unwrap().is_none());
        let error = decoder.decode(&mut &[b' '; 4096][..]).unwrap_err();
        assert_eq!(error.code, "too_much_input");
        drop(decoder);
        assert!(Held::nothing(&budget).take(4096), "all is given back");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused_however_they_are_cut(
            bytes in proptest::collection::vec(proptest::prop_oneof![
                proptest::strategy::Just(b'\n'), proptest::strategy::Just(b'{'), proptest::prelude::any::<u8>()
            ], 0..200),
            good in proptest::bool::ANY,
            piece in 1..50_usize,
        ) {
            let begin: &[u8] = if good { b"{\"type\":\"a\",\"data_length\":2}\n{}" } else { b"" };
            let bytes = [begin, &bytes].concat();
            let read = |piece| {
                let mut decoder = decoder(1000);
                let mut count = 0;
                for mut part in bytes.chunks(piece) {
                    while !part.is_empty() {
                        match decoder.decode(&mut part) {
                            Ok(frame) => count += usize::from(frame.is_some()),
                            Err(error) => return (count, Some(error.message)),
                        }
                    }
                }
                (count, None)
            };
            let (count, error) = read(piece);
            proptest::prop_assert!(count >= usize::from(good));
            proptest::prop_assert_eq!((count, error), read(1000));
        }
    }
}
