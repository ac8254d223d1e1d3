//! The frames of RFC 6455, as a server reads and writes them. A plain state machine: no sockets, no clock.
//!
//! It keeps the payload of one unfinished text message, counted before it grows, and nothing else: payloads that mean
//! nothing to the server are skipped.

use super::budget::Held;
use super::reader::Decode;

/// Longest payload of a control frame.
const CONTROL: usize = 125;
/// Longest head of a frame: two bytes, the length, the mask.
const HEAD: usize = 14;

/// What a client has sent, whole.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A text message, and its part of the budget.
    Text(String, Held),
    /// A binary message, which was skipped.
    Binary,
    /// What the pong has to repeat.
    Ping(Vec<u8>),
    Pong,
    Close,
}

/// Why nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("{0}")]
    Protocol(&'static str),
    #[error("the text of a message is not UTF-8")]
    NotText,
    #[error("a message is larger than the limit")]
    TooLarge,
    /// The budget has no room for the message.
    #[error("clients have sent too much together")]
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

/// The frame whose payload comes.
#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: Opcode,
    last: bool,
    mask: [u8; 4],
    /// Bytes of its payload taken, and still to come.
    taken: usize,
    left: usize,
}

/// The data message that is not complete.
#[derive(Debug)]
struct Message {
    /// A binary one is skipped.
    is_text: bool,
    length: usize,
    payload: Vec<u8>,
}

/// Reads the frames of one client.
#[derive(Debug)]
pub(super) struct Decoder {
    limit: usize,
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    head_length: usize,
    frame: Option<Frame>,
    message: Option<Message>,
    control: Vec<u8>,
    held: Held,
}

impl Decoder {
    /// For messages of at most `limit` bytes, which are counted by `held`.
    pub fn new(limit: usize, held: Held) -> Decoder {
        let control = Vec::new();
        Decoder { limit, head: [0; HEAD], head_length: 0, frame: None, message: None, control, held }
    }
}

impl Decode for Decoder {
    type Message = Incoming;
    type Violation = Violation;

    fn is_inside(&self) -> bool {
        self.head_length > 0 || self.frame.is_some() || self.message.is_some()
    }

    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Incoming>, Violation> {
        loop {
            if self.frame.is_none() && !self.read_head(input)? {
                return Ok(None);
            }
            if !self.read_payload(input)? {
                return Ok(None);
            }
            if let Some(whole) = self.end_frame()? {
                return Ok(Some(whole));
            }
        }
    }
}

impl Decoder {
    /// Reads the head of the next frame; false when bytes of it are missing.
    fn read_head(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        loop {
            let needed = match (self.head_length, self.head[1] & 0x7f) {
                (0 | 1, _) => 2,
                (_, 126) => 8,
                (_, 127) => 14,
                _ => 6,
            };
            let Some((first, rest)) = input.split_first().filter(|_| self.head_length < needed) else {
                if self.head_length < needed {
                    return Ok(false);
                }
                self.frame = Some(self.begin_frame()?);
                self.head_length = 0;
                return Ok(true);
            };
            self.head[self.head_length] = *first;
            self.head_length += 1;
            *input = rest;
        }
    }

    /// Checks the head of a frame.
    fn begin_frame(&mut self) -> Result<Frame, Violation> {
        let wrong = |what| Err(Violation::Protocol(what));
        let [first, second, ..] = self.head;
        let last = first & 0x80 != 0;
        if first & 0x70 != 0 {
            return wrong("a reserved bit of a frame is set");
        }
        let opcode = match first & 0xf {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return wrong("a frame is of an unknown kind"),
        };
        if second & 0x80 == 0 {
            return wrong("a frame of a client is not masked");
        }
        let be = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let (length, mask) = match second & 0x7f {
            126 => (be(&self.head[2..4]), 4),
            127 => (be(&self.head[2..10]), 10),
            short => (u64::from(short), 2),
        };
        let mask = [self.head[mask], self.head[mask + 1], self.head[mask + 2], self.head[mask + 3]];
        let left = usize::try_from(length).map_err(|_| Violation::TooLarge)?;
        match (opcode, &self.message) {
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) if !last || left > CONTROL => {
                return wrong("a control frame is too long or in pieces");
            }
            (Opcode::Continuation, None) => return wrong("a frame continues a message that has not begun"),
            (Opcode::Text | Opcode::Binary, Some(_)) => return wrong("a message begins inside of another one"),
            (Opcode::Text | Opcode::Binary, None) => {
                let is_text = opcode == Opcode::Text;
                self.message = Some(Message { is_text, length: 0, payload: Vec::new() });
            }
            _ => {}
        }
        if matches!(opcode, Opcode::Text | Opcode::Binary | Opcode::Continuation)
            && let Some(message) = &mut self.message
        {
            message.length = message.length.saturating_add(left);
            if message.length > self.limit {
                return Err(Violation::TooLarge);
            }
        }
        Ok(Frame { opcode, last, mask, taken: 0, left })
    }

    /// Takes what there is of the payload; false when more of it has to come.
    fn read_payload(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        let Some(frame) = &mut self.frame else { return Ok(false) };
        let (piece, rest) = input.split_at(input.len().min(frame.left));
        *input = rest;
        let kept = match (frame.opcode, &mut self.message) {
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => Some(&mut self.control),
            (_, Some(message)) if message.is_text => {
                grow(&mut message.payload, piece.len(), frame.left, &mut self.held)?;
                Some(&mut message.payload)
            }
            _ => None,
        };
        if let Some(kept) = kept {
            let (begin, mut mask) = (kept.len(), frame.mask);
            mask.rotate_left(frame.taken % 4);
            kept.extend_from_slice(piece);
            for four in kept[begin..].chunks_mut(4) {
                four.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
            }
        }
        frame.taken += piece.len();
        frame.left -= piece.len();
        Ok(frame.left == 0)
    }

    /// What the frame, whose payload has come, completes.
    fn end_frame(&mut self) -> Result<Option<Incoming>, Violation> {
        let Some(frame) = self.frame.take() else { return Ok(None) };
        let control = std::mem::take(&mut self.control);
        match frame.opcode {
            Opcode::Ping => return Ok(Some(Incoming::Ping(control))),
            Opcode::Pong => return Ok(Some(Incoming::Pong)),
            Opcode::Close => return Ok(Some(Incoming::Close)),
            _ if !frame.last => return Ok(None),
            _ => {}
        }
        let Some(Message { is_text, payload, .. }) = self.message.take() else { return Ok(None) };
        if !is_text {
            return Ok(Some(Incoming::Binary));
        }
        let text = String::from_utf8(payload).map_err(|_| Violation::NotText)?;
        Ok(Some(Incoming::Text(text, self.held.split_off())))
    }
}

/// Makes room for a piece of a frame of which so many bytes are left: half more than is there, but not more than is
/// announced.
fn grow(payload: &mut Vec<u8>, piece: usize, left: usize, held: &mut Held) -> Result<(), Violation> {
    let total = payload.len() + piece;
    if payload.capacity() >= total {
        return Ok(());
    }
    let room = (total + total / 2).min(payload.len() + left);
    if !held.resize(room) {
        return Err(Violation::Full);
    }
    payload.reserve_exact(room - payload.len());
    Ok(())
}

/// The head of a frame of the server, which is whole and not masked.
fn head(opcode: u8, length: usize) -> Vec<u8> {
    let mut head = vec![0x80 | opcode];
    match length {
        0..=125 => head.push(length as u8),
        126..=0xffff => {
            head.push(126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head.push(127);
            head.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    head
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    Text(String),
    Binary(Vec<u8>),
    Ping,
    Pong(Vec<u8>),
    /// The last one, with a code and a reason.
    Close(u16, &'static str),
}

impl Outgoing {
    /// The head and the payload of its frame.
    pub fn frame(self) -> (Vec<u8>, Vec<u8>) {
        let (opcode, payload) = match self {
            Outgoing::Text(text) => (1, text.into_bytes()),
            Outgoing::Binary(bytes) => (2, bytes),
            Outgoing::Ping => (9, Vec::new()),
            Outgoing::Pong(bytes) => (10, bytes),
            Outgoing::Close(code, reason) => (8, [&code.to_be_bytes(), reason.as_bytes()].concat()),
        };
        (head(opcode, payload.len()), payload)
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::{Budget, What};
    use super::*;
    use metrics::Gauge;
    use std::sync::Arc;

    const MASK: [u8; 4] = [7, 0, 255, 90];

    /// A frame as clients send it.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = head(0, payload.len());
        (bytes[0], bytes[1]) = (first, bytes[1] | 0x80);
        bytes.extend_from_slice(&MASK);
        bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    fn budget() -> Arc<Budget> {
        Budget::new(What::Input, 100_000, Gauge::noop())
    }

    fn decoder() -> Decoder {
        Decoder::new(70_000, Held::nothing(&budget()))
    }

    /// What comes of bytes that arrive in pieces of this size.
    fn decode(decoder: &mut Decoder, bytes: &[u8], size: usize) -> Result<Vec<String>, Violation> {
        let mut found = Vec::new();
        for mut piece in bytes.chunks(size) {
            while let Some(incoming) = decoder.decode(&mut piece)? {
                found.push(match incoming {
                    Incoming::Text(text, _) => text,
                    Incoming::Ping(payload) => format!("ping {}", payload.len()),
                    other => format!("{other:?}"),
                });
            }
            assert!(piece.is_empty());
        }
        Ok(found)
    }

    #[test]
    fn a_message_may_come_in_frames_with_pings_between_them_and_bytes_at_a_time() {
        let bytes = [
            frame(0x01, "gr".as_bytes()),
            frame(0x89, b"123"),
            frame(0x00, b""),
            frame(0x00, &[0xc3]),
            frame(0x8a, b""),
            frame(0x80, &[0xbc, b'n']),
            frame(0x82, &[0; 300]),
            frame(0x81, b""),
            frame(0x88, &[3, 232]),
        ]
        .concat();
        for size in [1, 2, 3, 7, bytes.len()] {
            let mut decoder = decoder();
            let found = decode(&mut decoder, &bytes, size).unwrap();
            assert_eq!(found, ["ping 3", "Pong", "grün", "Binary", "", "Close"]);
            assert!(!decoder.is_inside());
        }
    }

    #[test]
    fn what_breaks_the_protocol_is_refused() {
        let mut unmasked = frame(0x81, b"hi");
        unmasked[1] &= 0x7f;
        for wrong in [
            frame(0x80, b"continues nothing"),
            [frame(0x01, b"a"), frame(0x81, b"b")].concat(),
            frame(0x09, b"a ping in pieces"),
            frame(0x89, &[0; 126]),
            frame(0xc1, b"reserved"),
            frame(0x83, b"unknown"),
            unmasked,
        ] {
            let refused = decode(&mut decoder(), &wrong, 3);
            assert!(matches!(refused, Err(Violation::Protocol(_))), "{wrong:?}: {refused:?}");
        }
        assert_eq!(decode(&mut decoder(), &frame(0x81, &[0xff]), 9), Err(Violation::NotText));
        let longest = frame(0x81, &[b'x'; 70_000]);
        assert!(decode(&mut decoder(), &longest, 4096).is_ok());
        let two = [frame(0x01, &[b'x'; 70_000]), frame(0x80, b"y")].concat();
        assert_eq!(decode(&mut decoder(), &two, 4096), Err(Violation::TooLarge));
        let huge = [&[0x82, 0xff][..], &[0xff; 8], &MASK].concat();
        assert_eq!(decode(&mut decoder(), &huge, 4), Err(Violation::TooLarge));
    }

    #[test]
    fn payloads_are_counted_while_they_are_kept_and_nothing_else_is() {
        let budget = budget();
        let free = |wanted: usize| Held::nothing(&budget).take(wanted);
        let mut decoder = Decoder::new(70_000, Held::nothing(&budget));
        // What is announced takes nothing.
        let long = frame(0x01, &[b'x'; 60_000]);
        decode(&mut decoder, &long[..20], 20).unwrap();
        assert!(free(87_000));
        decode(&mut decoder, &long[20..], 5000).unwrap();
        assert!(!free(40_001) && free(20_000));
        for _ in 0..10_000 {
            decode(&mut decoder, &frame(0x00, b""), 100).unwrap();
            decode(&mut decoder, &frame(0x89, &[0; 125]), 1000).unwrap();
        }
        assert!(decoder.is_inside() && free(20_000));
        let mut last: &[u8] = &frame(0x80, b"");
        let Ok(Some(Incoming::Text(text, held))) = decoder.decode(&mut last) else { panic!() };
        assert_eq!((text.len(), free(60_000)), (60_000, false));
        drop((text, held));
        assert!(free(87_500));
        // A binary message is not kept.
        decode(&mut decoder, &frame(0x02, &[0; 60_000]), 5000).unwrap();
        assert!(free(87_500));
    }

    #[test]
    fn a_message_for_which_there_is_no_room_is_refused() {
        let budget = budget();
        let mut other = Held::nothing(&budget);
        assert!(other.take(60_000));
        let mut decoder = Decoder::new(70_000, Held::nothing(&budget));
        assert_eq!(decode(&mut decoder, &frame(0x81, &[b'x'; 60_000]), 5000), Err(Violation::Full));
    }

    #[test]
    fn frames_of_the_server_have_the_length_that_they_say() {
        for (length, size) in [(0, 2), (125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
            let (head, payload) = Outgoing::Binary(vec![1; length]).frame();
            assert_eq!((head[0], head.len(), payload.len()), (0x82, size, length));
        }
        assert_eq!(Outgoing::Close(1000, "bye").frame(), (vec![0x88, 5], vec![3, 232, b'b', b'y', b'e']));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let mut decoder = decoder();
            let mut input = bytes.as_slice();
            while let Ok(Some(_)) = decoder.decode(&mut input) {}
        }
    }
}
