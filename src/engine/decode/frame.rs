//! What goes through the two pipes: one frame there, one frame back.
//!
//! ```text
//! tag: u8 | length of the head: u32 | length of the body: u64 | head: JSON | body: bytes
//! ```
//!
//! Numbers are little-endian. The tag says what kind of bytes the body has; a reader refuses one that it does not
//! know, a head of more than [`MAX_HEAD`] bytes, and a body of more bytes than it was told to take. So there is room
//! for other kinds (pictures, video), which bring a tag and a head of their own.

use omni_model::frontend::AudioLimits;
use serde::{Deserialize, Serialize};
use std::io::{self, Error, ErrorKind, Read, Write};

/// Most bytes of a head.
pub(super) const MAX_HEAD: usize = 4096;
/// Longest reason of a refusal, in characters.
const MAX_REASON: usize = 500;
/// Samples that are converted at a time.
const PIECE: usize = 16 << 10;
/// Bytes of tag and lengths.
const PRELUDE: usize = 1 + 4 + 8;

/// The body of a job is an audio file, that of its answer mono samples: f32.
const RECORDING: u8 = 1;
/// The answer has no body; its head says why.
const REFUSED: u8 = 255;

/// What is to be done with the body that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Job {
    /// Decode an audio file.
    Recording(RecordingHead),
}

/// The limits of a recording; see [`AudioLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordingHead {
    max_bytes: usize,
    min_seconds: f64,
    max_seconds: f64,
}

/// What a worker found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// Hz.
    pub rate: u32,
    /// Mono samples.
    pub samples: Vec<f32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplesHead {
    rate: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedHead {
    reason: String,
}

impl Job {
    /// Decodes a recording within these limits.
    pub fn recording(limits: &AudioLimits) -> Job {
        let AudioLimits { max_bytes, min_seconds, max_seconds } = *limits;
        Job::Recording(RecordingHead { max_bytes, min_seconds, max_seconds })
    }
}

impl From<RecordingHead> for AudioLimits {
    fn from(head: RecordingHead) -> AudioLimits {
        let RecordingHead { max_bytes, min_seconds, max_seconds } = head;
        AudioLimits { max_bytes, min_seconds, max_seconds }
    }
}

/// The server's side: sends a job and its bytes.
pub(super) fn send_job(to: &mut impl Write, job: &Job, body: &[u8]) -> io::Result<()> {
    let Job::Recording(head) = job;
    begin(to, RECORDING, head, body.len() as u64)?;
    to.write_all(body)?;
    to.flush()
}

/// The worker's side: the job and its bytes, of which there may be so many.
pub(super) fn receive_job(from: &mut impl Read, most: u64) -> io::Result<(Job, Vec<u8>)> {
    let (tag, head, length) = receive_head(from)?;
    if tag != RECORDING {
        return Err(malformed(format!("no job has the tag {tag}")));
    }
    if length > most {
        return Err(malformed(format!("a body of {length} bytes, where {most} are taken")));
    }
    let job = Job::Recording(parse(&head)?);
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body)?;
    Ok((job, body))
}

/// The worker's side: samples, or why there are none.
pub(super) fn send_answer(to: &mut impl Write, answer: &Result<Answer, String>) -> io::Result<()> {
    match answer {
        Ok(Answer { rate, samples }) => {
            let bytes = size_of_val(samples.as_slice()) as u64;
            begin(to, RECORDING, &SamplesHead { rate: *rate }, bytes)?;
            let mut piece = Vec::with_capacity(PIECE * size_of::<f32>());
            for samples in samples.chunks(PIECE) {
                piece.clear();
                piece.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
                to.write_all(&piece)?;
            }
        }
        Err(reason) => begin(to, REFUSED, &RefusedHead { reason: readable(reason) }, 0)?,
    }
    to.flush()
}

/// The server's side: the answer, with at most so many bytes of samples. The outer error is one of the protocol.
pub(super) fn receive_answer(from: &mut impl Read, most: u64) -> io::Result<Result<Answer, String>> {
    let (tag, head, length) = receive_head(from)?;
    match tag {
        RECORDING => {
            let SamplesHead { rate } = parse(&head)?;
            if length > most || !length.is_multiple_of(size_of::<f32>() as u64) {
                return Err(malformed(format!("{length} bytes of samples, where {most} are taken")));
            }
            let mut samples = Vec::with_capacity(length as usize / size_of::<f32>());
            let mut piece = vec![0; PIECE * size_of::<f32>()];
            let mut left = length as usize;
            while left > 0 {
                let now = left.min(piece.len());
                from.read_exact(&mut piece[..now])?;
                let (four, _) = piece[..now].as_chunks::<4>();
                samples.extend(four.iter().map(|four| f32::from_le_bytes(*four)));
                left -= now;
            }
            if !samples.iter().all(|sample| sample.is_finite()) {
                return Err(malformed("samples that are not finite".to_owned()));
            }
            Ok(Ok(Answer { rate, samples }))
        }
        REFUSED if length == 0 => Ok(Err(readable(&parse::<RefusedHead>(&head)?.reason))),
        _ => Err(malformed(format!("no answer has the tag {tag} and {length} bytes"))),
    }
}

fn begin(to: &mut impl Write, tag: u8, head: &impl Serialize, body: u64) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let mut frame = Vec::with_capacity(PRELUDE + head.len());
    frame.push(tag);
    frame.extend((head.len() as u32).to_le_bytes());
    frame.extend(body.to_le_bytes());
    frame.extend(head);
    to.write_all(&frame)
}

fn receive_head(from: &mut impl Read) -> io::Result<(u8, Vec<u8>, u64)> {
    let mut tag = [0; 1];
    let mut length = [0; 4];
    let mut body = [0; 8];
    from.read_exact(&mut tag)?;
    from.read_exact(&mut length)?;
    from.read_exact(&mut body)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEAD {
        return Err(malformed(format!("a head of {length} bytes, where {MAX_HEAD} are taken")));
    }
    let mut head = vec![0; length];
    from.read_exact(&mut head)?;
    Ok((tag[0], head, u64::from_le_bytes(body)))
}

fn parse<'a, T: Deserialize<'a>>(head: &'a [u8]) -> io::Result<T> {
    serde_json::from_slice(head).map_err(|error| malformed(error.to_string()))
}

fn malformed(reason: String) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}

/// A reason that a client and a log can be shown, whoever wrote it.
fn readable(reason: &str) -> String {
    reason.chars().take(MAX_REASON).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(samples: Vec<f32>) -> Result<Answer, String> {
        Ok(Answer { rate: 24_000, samples })
    }

    fn sent(answer: &Result<Answer, String>) -> Vec<u8> {
        let mut bytes = Vec::new();
        send_answer(&mut bytes, answer).unwrap();
        bytes
    }

    #[test]
    fn jobs_and_answers_arrive_as_they_were_sent() {
        let job = Job::recording(&AudioLimits::default());
        let mut bytes = Vec::new();
        send_job(&mut bytes, &job, b"RIFF").unwrap();
        assert_eq!(receive_job(&mut bytes.as_slice(), 4).unwrap(), (job, b"RIFF".to_vec()));
        let samples: Vec<f32> = (0..2 * PIECE + 7).map(|n| n as f32 / 7.0 - 1.0).collect();
        let bytes = (samples.len() * 4) as u64;
        for answer in [answer(samples), answer(Vec::new()), Err("it is a picture".to_owned())] {
            assert_eq!(receive_answer(&mut sent(&answer).as_slice(), bytes).unwrap(), answer);
        }
    }

    #[test]
    fn more_than_is_taken_is_an_error_before_it_is_read() {
        let bytes = sent(&answer(vec![0.5; 100]));
        assert!(receive_answer(&mut bytes.as_slice(), 400).is_ok());
        assert!(receive_answer(&mut bytes.as_slice(), 399).unwrap_err().to_string().contains("400 bytes"));
        let mut long = vec![RECORDING];
        long.extend((MAX_HEAD as u32 + 1).to_le_bytes());
        long.extend([0; 8]);
        assert!(receive_answer(&mut long.as_slice(), 400).unwrap_err().to_string().contains("a head of 4097"));
        let mut job = Vec::new();
        send_job(&mut job, &Job::recording(&AudioLimits::default()), &[7; 10]).unwrap();
        assert!(receive_job(&mut job.as_slice(), 9).unwrap_err().to_string().contains("10 bytes"));
        job[0] = 9;
        assert!(receive_job(&mut job.as_slice(), 10).unwrap_err().to_string().contains("the tag 9"));
    }

    #[test]
    fn a_worker_that_was_taken_over_puts_no_nonsense_into_samples_or_words() {
        let bytes = sent(&answer(vec![0.5, f32::NAN]));
        assert!(receive_answer(&mut bytes.as_slice(), 8).unwrap_err().to_string().contains("not finite"));
        let rude = Err(format!("line\nline\u{1b}[2J{}", "a".repeat(3000)));
        let told = receive_answer(&mut sent(&rude).as_slice(), 8).unwrap().unwrap_err();
        assert!(told.starts_with("line line [2J") && told.chars().count() == MAX_REASON, "{told}");
    }

    proptest! {
        #[test]
        fn hostile_answers_are_an_error_and_never_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), flip in any::<(usize, u8)>()
        ) {
            let _ = receive_answer(&mut bytes.as_slice(), 1 << 20);
            let mut good = sent(&answer(vec![0.5; 10]));
            let at = flip.0 % good.len();
            good[at] ^= flip.1;
            let _ = receive_answer(&mut good.as_slice(), 1 << 20);
            let _ = receive_job(&mut good.as_slice(), 1 << 20);
        }
    }
}
