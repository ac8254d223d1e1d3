//! What goes through the two pipes: one frame there, one frame back, or one for each picture.
//!
//! ```text
//! tag: u8 | length of the head: u32 | length of the body: u64 | head: JSON | body: bytes
//! ```
//!
//! Numbers are little-endian. The tag says what kind of bytes the body has; a reader refuses one that it does not
//! know, a head of more than [`MAX_HEAD`] bytes, and a body of more bytes than it was told to take.

use super::job::{Answer, FilmHead, Job, Pictures, PicturesHead, RecordingHead, Samples, SoundHead};
use omni_media::picture::Picture;
use omni_media::size::Size;
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
/// The body of a job is an audio file, that of its answer mono samples as [`RECORDING`].
const SOUND: u8 = 2;
/// The body of a job is pictures, one behind the other, that of an answer pictures: 8-bit RGB, one behind the other.
const PICTURES: u8 = 3;
/// The body of a job is an animation, that of its answer pictures as [`PICTURES`].
const ANIMATION: u8 = 4;
/// The answer has no body; its head says why.
const REFUSED: u8 = 255;

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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FramesHead {
    height: usize,
    width: usize,
    /// Bits of an f64: decimal digits would not come back the same.
    frames_per_second: u64,
}

/// The server's side: sends a job and the bytes of its files.
pub(super) fn send_job(to: &mut impl Write, job: &Job, files: &[&[u8]]) -> io::Result<()> {
    let length = files.iter().map(|file| file.len() as u64).sum();
    match job {
        Job::Recording(head) => begin(to, RECORDING, head, length)?,
        Job::Sound(head) => begin(to, SOUND, head, length)?,
        Job::Pictures(head) => begin(to, PICTURES, head, length)?,
        Job::Animation(head) => begin(to, ANIMATION, head, length)?,
    }
    for file in files {
        to.write_all(file)?;
    }
    to.flush()
}

/// The worker's side: the job and its bytes, of which there may be so many.
pub(super) fn receive_job(from: &mut impl Read, most: u64) -> io::Result<(Job, Vec<u8>)> {
    let (tag, head, length) = receive_head(from)?;
    let job = match tag {
        RECORDING => Job::Recording(parse::<RecordingHead>(&head)?),
        SOUND => Job::Sound(parse::<SoundHead>(&head)?),
        PICTURES => Job::Pictures(parse::<PicturesHead>(&head)?),
        ANIMATION => Job::Animation(parse::<FilmHead>(&head)?),
        _ => return Err(malformed(format!("no job has the tag {tag}"))),
    };
    if length > most {
        return Err(malformed(format!("a body of {length} bytes, where {most} are taken")));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body)?;
    Ok((job, body))
}

/// The worker's side: samples or pictures, which have one size, or why there are none.
pub(super) fn send_answer(to: &mut impl Write, answer: &Result<Answer, String>) -> io::Result<()> {
    match answer {
        Ok(Answer::Samples(Samples { rate, samples })) => {
            let bytes = size_of_val(samples.as_slice()) as u64;
            begin(to, RECORDING, &SamplesHead { rate: *rate }, bytes)?;
            let mut piece = Vec::with_capacity(PIECE * size_of::<f32>());
            for samples in samples.chunks(PIECE) {
                piece.clear();
                piece.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
                to.write_all(&piece)?;
            }
        }
        Ok(Answer::Pictures(Pictures { frames, frames_per_second })) => {
            let Size { height, width } = frames.first().map_or(Size { height: 0, width: 0 }, Picture::size);
            let head = FramesHead { height, width, frames_per_second: frames_per_second.to_bits() };
            begin(to, PICTURES, &head, frames.iter().map(|frame| frame.rgb().len() as u64).sum())?;
            for frame in frames {
                to.write_all(frame.rgb())?;
            }
        }
        Err(reason) => begin(to, REFUSED, &RefusedHead { reason: readable(reason) }, 0)?,
    }
    to.flush()
}

/// The server's side: the answer, with at most so many bytes of samples or pictures. The outer error is one of the protocol.
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
            Ok(Ok(Answer::Samples(Samples { rate, samples })))
        }
        PICTURES => {
            let FramesHead { height, width, frames_per_second } = parse(&head)?;
            let frames_per_second = f64::from_bits(frames_per_second);
            let one = (height as u64).checked_mul(width as u64).and_then(|pixels| pixels.checked_mul(3)).unwrap_or(0);
            if one == 0 || length == 0 || length > most || !length.is_multiple_of(one) {
                return Err(malformed(format!(
                    "{length} bytes of pictures of {width} x {height} pixels, where {most} are taken"
                )));
            }
            if !(frames_per_second > 0.0 && frames_per_second.is_finite()) {
                return Err(malformed(format!("{frames_per_second} pictures a second")));
            }
            let mut frames = Vec::new();
            for _ in 0..length / one {
                let mut rgb = vec![0; one as usize];
                from.read_exact(&mut rgb)?;
                frames.push(Picture::new(Size { height, width }, rgb));
            }
            Ok(Ok(Answer::Pictures(Pictures { frames, frames_per_second })))
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

/// A reason from another process, made fit for clients and logs.
fn readable(reason: &str) -> String {
    reason.chars().take(MAX_REASON).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_media::MediaLimits;
    use omni_media::size::SizeRule;
    use omni_model::frontend::AudioLimits;
    use proptest::prelude::*;

    fn answer(samples: Vec<f32>) -> Result<Answer, String> {
        Ok(Answer::Samples(Samples { rate: 24_000, samples }))
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
        send_job(&mut bytes, &job, &[b"RI", b"FF"]).unwrap();
        assert_eq!(receive_job(&mut bytes.as_slice(), 4).unwrap(), (job, b"RIFF".to_vec()));
        let samples: Vec<f32> = (0..2 * PIECE + 7).map(|n| n as f32 / 7.0 - 1.0).collect();
        let bytes = (samples.len() * 4) as u64;
        for answer in [answer(samples), answer(Vec::new()), Err("it is a picture".to_owned())] {
            assert_eq!(receive_answer(&mut sent(&answer).as_slice(), bytes).unwrap(), answer);
        }
    }

    #[test]
    fn pictures_arrive_as_they_were_sent_and_only_whole_ones() {
        let rule = SizeRule { factor: 32, min_pixels: 3_136, max_pixels: 65_536 };
        for job in [
            Job::pictures(&MediaLimits::default(), &rule, vec![2, 4]),
            Job::animation(&MediaLimits::default(), &rule, 2.0 / 3.0),
        ] {
            let mut bytes = Vec::new();
            send_job(&mut bytes, &job, &[b"GIF89a"]).unwrap();
            assert_eq!(receive_job(&mut bytes.as_slice(), 6).unwrap(), (job, b"GIF89a".to_vec()));
        }
        let picture = |value| Picture::new(Size { height: 2, width: 3 }, vec![value; 18]);
        let pictures = Pictures { frames: vec![picture(1), picture(2)], frames_per_second: 29.97 };
        let answer = Ok(Answer::Pictures(pictures));
        let good = sent(&answer);
        assert_eq!(receive_answer(&mut good.as_slice(), 36).unwrap(), answer);
        assert!(receive_answer(&mut good.as_slice(), 35).unwrap_err().to_string().contains("36 bytes of pictures"));
        for (from, to) in [("\"height\":2", "\"height\":5"), ("\"width\":3", "\"width\":0")] {
            let head = String::from_utf8_lossy(&good).replace(from, to).into_bytes();
            // Nothing in this frame is longer than ASCII but the bits of the rate, which are digits.
            assert!(receive_answer(&mut head.as_slice(), 36).is_err(), "{to}");
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
        send_job(&mut job, &Job::recording(&AudioLimits::default()), &[&[7; 10]]).unwrap();
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
