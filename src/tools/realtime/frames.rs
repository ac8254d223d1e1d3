//! The frames of RFC 6455 as a client writes and reads them. Pure: bytes in, messages out, no socket.

/// Longest message that is read: an item with a minute of sound has 4 MB.
const MAX_MESSAGE: usize = 16 << 20;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// What a server has sent, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A text message.
    Text(String),
    /// What the pong has to repeat.
    Ping(Vec<u8>),
    /// The server ends the connection, and why.
    Close(String),
}

/// A text message.
pub(super) fn text(message: &str, mask: [u8; 4]) -> Vec<u8> {
    frame(TEXT, message.as_bytes(), mask)
}

/// The answer to a ping.
pub(super) fn pong(payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    frame(PONG, payload, mask)
}

fn frame(opcode: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 14);
    bytes.push(0x80 | opcode);
    // The first bit says that the payload is masked, as that of every client is.
    match payload.len() {
        short @ ..=125 => bytes.push(0x80 | short as u8),
        middle @ ..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// Reads the frames of a server.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// What has come and is no whole frame yet.
    bytes: Vec<u8>,
    /// The text message of which frames have come.
    message: Vec<u8>,
}

impl Decoder {
    /// Takes bytes as they come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it has come.
    ///
    /// # Errors
    /// What is wrong with the frames; nothing can be read behind that.
    pub fn next(&mut self) -> Result<Option<Incoming>, String> {
        while let Some((first, payload)) = self.frame()? {
            let last = first & 0x80 != 0;
            match first & 0x0f {
                TEXT | CONTINUATION => {
                    self.message.extend_from_slice(&payload);
                    if self.message.len() > MAX_MESSAGE {
                        return Err("a message of the server is too long".to_owned());
                    }
                    if last {
                        let text = String::from_utf8(std::mem::take(&mut self.message));
                        let text = text.map_err(|_| "a message of the server is not UTF-8")?;
                        return Ok(Some(Incoming::Text(text)));
                    }
                }
                PING => return Ok(Some(Incoming::Ping(payload))),
                PONG => {}
                CLOSE => {
                    let reason = payload.get(2..).unwrap_or_default();
                    return Ok(Some(Incoming::Close(String::from_utf8_lossy(reason).into_owned())));
                }
                other => return Err(format!("the server sent a frame of the kind {other}")),
            }
        }
        Ok(None)
    }

    /// The first byte and the payload of the next frame.
    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, String> {
        let [first, second, rest @ ..] = &self.bytes[..] else { return Ok(None) };
        if second & 0x80 != 0 {
            return Err("the server masks its frames".to_owned());
        }
        let (length, head) = match (second & 0x7f, rest) {
            (126, [a, b, ..]) => (usize::from(u16::from_be_bytes([*a, *b])), 4),
            (127, [a, b, c, d, e, f, g, h, ..]) => {
                let length = u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
                (usize::try_from(length).unwrap_or(usize::MAX), 10)
            }
            (126 | 127, _) => return Ok(None),
            (short, _) => (usize::from(short), 2),
        };
        if length > MAX_MESSAGE {
            return Err("a frame of the server is too long".to_owned());
        }
        let first = *first;
        let Some(payload) = self.bytes.get(head..head + length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.bytes.drain(..head + length);
        Ok(Some((first, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a server sends it: without a mask.
    fn sent(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = frame(first & 0x0f, payload, [0; 4]);
        bytes[0] = first;
        bytes[1] &= 0x7f;
        let head = bytes.len() - payload.len();
        bytes.drain(head - 4..head);
        bytes
    }

    #[test]
    fn messages_of_every_length_come_whole_however_they_are_cut() {
        for length in [0, 1, 125, 126, 0xffff, 0x1_0000] {
            let message = "x".repeat(length);
            let bytes = [sent(0x80 | PING, b"hi"), sent(0x80 | TEXT, message.as_bytes())].concat();
            for cut in [1, 2, 9, bytes.len()] {
                let mut decoder = Decoder::default();
                let mut got = Vec::new();
                for piece in bytes.chunks(cut) {
                    decoder.push(piece);
                    while let Some(message) = decoder.next().unwrap() {
                        got.push(message);
                    }
                }
                assert_eq!(got, [Incoming::Ping(b"hi".to_vec()), Incoming::Text(message.clone())]);
            }
        }
    }

    #[test]
    fn a_message_in_several_frames_is_one() {
        let mut decoder = Decoder::default();
        decoder.push(&[sent(TEXT, b"ab"), sent(0x80 | PONG, b""), sent(0x80 | CONTINUATION, b"c")].concat());
        assert_eq!(decoder.next(), Ok(Some(Incoming::Text("abc".to_owned()))));
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn what_a_client_writes_is_masked() {
        let bytes = text("abc", [1, 2, 3, 4]);
        assert_eq!(bytes, [0x81, 0x83, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3]);
        assert_eq!(pong(b"", [0; 4]), [0x8a, 0x80, 0, 0, 0, 0]);
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for bytes in [text("abc", [0; 4]), sent(0x80 | 3, b""), sent(0x80 | TEXT, &[0xff])] {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            assert!(decoder.next().is_err(), "{bytes:?}");
        }
        let mut decoder = Decoder::default();
        decoder.push(&sent(0x80 | CLOSE, b"\x03\xe8idle"));
        assert_eq!(decoder.next(), Ok(Some(Incoming::Close("idle".to_owned()))));
    }
}
