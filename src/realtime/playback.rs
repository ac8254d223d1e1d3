//! Sound that waits to be played, of a session whose sound the server plays itself: a call. It knows what was played, so
//! that an interruption cuts an answer where its listener stopped hearing it.

use crate::job::JobId;
use std::collections::VecDeque;

/// Samples that are played at a time: 20 ms of 24 kHz.
pub const PLAYED: usize = 480;
/// Samples that wait while more of the same answer is asked for: 5 s, longer than a stage takes to begin again.
const AHEAD: usize = 5 * 24_000;

/// The sound of one answer.
#[derive(Clone, Debug)]
struct Track {
    job: JobId,
    response: String,
    item: String,
    in_conversation: bool,
    samples: VecDeque<i16>,
    /// Samples that were played.
    played: u64,
    /// Whether no more will come.
    complete: bool,
}

impl Track {
    fn is_over(&self) -> bool {
        self.complete && self.samples.is_empty()
    }
}

/// What was cut off: the response, its item, and how many milliseconds of it were played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub job: JobId,
    pub response: String,
    pub item: String,
    pub ms: u64,
    /// Whether any of it was played.
    pub begun: bool,
}

/// What comes of the next 20 ms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Played {
    /// The first samples of this response.
    First(String, Box<[i16; PLAYED]>),
    More(Box<[i16; PLAYED]>),
    /// Nothing: the next samples are not made yet.
    Late,
    /// All of this response was played.
    Last(String),
    Nothing,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Playback {
    /// Played one after the other.
    tracks: VecDeque<Track>,
}

impl Playback {
    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.tracks.iter().map(|track| 2 * track.samples.len()).sum()
    }

    /// Answers that are made, and not played to their end.
    pub fn waiting(&self) -> usize {
        self.tracks.iter().filter(|track| track.complete).count()
    }

    /// Whether there is anything to play, now or later.
    pub fn is_playing(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Whether more of an answer is asked for.
    pub fn wants(&self, job: JobId) -> bool {
        self.tracks.iter().all(|track| track.job != job || track.samples.len() < AHEAD)
    }

    /// More sound of an answer: 16-bit samples, little-endian.
    pub fn push(&mut self, job: JobId, (response, item): (&str, &str), in_conversation: bool, bytes: &[u8]) {
        let at = self.tracks.iter().position(|track| track.job == job).unwrap_or(self.tracks.len());
        if at == self.tracks.len() {
            let (response, item, samples) = (response.to_owned(), item.to_owned(), VecDeque::new());
            self.tracks.push_back(Track { job, response, item, in_conversation, samples, played: 0, complete: false });
        }
        let samples = bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]]));
        self.tracks[at].samples.extend(samples);
    }

    /// No more will come of an answer.
    pub fn complete(&mut self, job: JobId) {
        if let Some(track) = self.tracks.iter_mut().find(|track| track.job == job) {
            track.complete = true;
        }
    }

    /// Milliseconds of an item that were played, as far as its end is not told.
    pub fn played_ms(&self, item: &str) -> u64 {
        self.tracks.iter().find(|track| track.item == item).map_or(0, |track| track.played / 24)
    }

    /// The next 20 ms. The last of an answer end in silence.
    pub fn play(&mut self) -> Played {
        let Some(track) = self.tracks.front_mut() else { return Played::Nothing };
        if track.is_over() {
            return self.tracks.pop_front().map_or(Played::Nothing, |track| Played::Last(track.response));
        }
        if track.samples.len() < PLAYED && !track.complete {
            return Played::Late;
        }
        let mut samples = Box::new([0; PLAYED]);
        let count = track.samples.len().min(PLAYED);
        samples.iter_mut().zip(track.samples.drain(..count)).for_each(|(to, from)| *to = from);
        track.played += count as u64;
        match track.played == count as u64 {
            true => Played::First(track.response.clone(), samples),
            false => Played::More(samples),
        }
    }

    /// Drops what waits of the answers to which this applies; of one that was played to its end nothing is cut.
    fn cut(&mut self, applies: impl Fn(&Track) -> bool) -> Vec<Cut> {
        let mut cut = Vec::new();
        self.tracks.retain(|track| {
            let goes = applies(track) && !track.is_over();
            if goes {
                let (response, item) = (track.response.clone(), track.item.clone());
                let (ms, begun) = (track.played / 24, track.played > 0);
                cut.push(Cut { job: track.job, response, item, ms, begun });
            }
            !goes
        });
        cut
    }

    /// Drops the sound of the conversation.
    pub fn cut_conversation(&mut self) -> Vec<Cut> {
        self.cut(|track| track.in_conversation)
    }

    /// Drops all.
    pub fn cut_all(&mut self) -> Vec<Cut> {
        self.cut(|_| true)
    }

    /// Drops the sound of an item.
    pub fn cut_item(&mut self, item: &str) -> Vec<Cut> {
        self.cut(|track| track.item == item)
    }
}
