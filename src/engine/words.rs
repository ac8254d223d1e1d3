//! The words of a speech request and when they sound, for clients that asked for them.
//!
//! Each piece of the text is aligned by itself: while its codes come, by an aligner that reads codes, or when its sound
//! is complete, by the aligner of the config. What is found is moved to where the piece stands in the answer and its
//! words in the client's text. The same speech gives the same times: when a stage dies and its sequence goes on, the
//! ledger has each code and each sample once.

use super::api::{AlignerHealth, WordTime};
use super::plan::CodeLog;
use omni_core::align::{Aligner, Alignment, Heard, QUARTERS, SourceText};
use omni_core::text::spoken_words;
use omni_model::forced_aligner::{MAX_SECONDS, units};
use omni_stage::StageStatus;
use omni_stage::aligner::{AlignJob, Aligned, AlignerHandle};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use tokio::sync::oneshot;

/// What finds the words of a model's speech.
#[derive(Clone)]
pub(super) enum WordFinder {
    /// Reads the codes of a piece while they come.
    Codes(Arc<dyn Aligner>),
    /// Hears a piece when it is complete.
    Sound(AlignerHandle),
}

impl WordFinder {
    /// Of an aligner that can fail.
    pub fn health(&self) -> Option<AlignerHealth> {
        let WordFinder::Sound(aligner) = self else { return None };
        let StageStatus { state, restarts, last_reason, .. } = aligner.status();
        Some(AlignerHealth { state, restarts, last_reason })
    }
}

/// See the module.
pub(super) struct WordTimes {
    finder: WordFinder,
    source: SourceText,
    sample_rate: u32,
    samples_per_frame: u64,
    /// Samples of the pieces before the current one.
    before: u64,
    piece: Option<Piece>,
    /// Complete pieces whose words are still looked for, in their order.
    asked: VecDeque<(Place, oneshot::Receiver<Aligned>)>,
    failure: Option<String>,
}

/// The piece that is being spoken.
struct Piece {
    listening: Listening,
    place: Place,
}

enum Listening {
    Codes {
        alignment: Box<dyn Alignment>,
        codes: CodeLog,
        /// Codes of the log that were heard.
        heard: usize,
    },
    Sound {
        /// Its words as the aligner reads them.
        read: Vec<String>,
        pcm: Vec<f32>,
    },
}

/// Where the words of a piece are.
struct Place {
    /// Samples of the answer before it.
    before: u64,
    /// Samples that were delivered.
    samples: u64,
    /// Its words as the client wrote them; those before `found` have been looked up in the source.
    written: Vec<String>,
    found: usize,
    /// Which of them the aligner of sound times.
    timed: Vec<usize>,
}

/// Which word of a piece sounds from where to where, in samples of the piece.
type Span = (usize, u64, u64);

impl WordTimes {
    pub fn new(finder: WordFinder, sample_rate: u32, samples_per_frame: u32) -> WordTimes {
        let (source, samples_per_frame) = (SourceText::default(), samples_per_frame.into());
        let asked = VecDeque::new();
        WordTimes { finder, source, sample_rate, samples_per_frame, before: 0, piece: None, asked, failure: None }
    }

    /// More of the client's text.
    pub fn wrote(&mut self, text: &str) {
        self.source.push(text);
    }

    /// A piece of the text begins, whose codes come in `codes`.
    pub fn begin(&mut self, text: &str, codes: CodeLog) {
        let (written, listening, timed) = match &self.finder {
            WordFinder::Codes(aligner) => {
                let (written, spoken): (Vec<_>, Vec<_>) = spoken_words(text).into_iter().unzip();
                (written, Listening::Codes { alignment: aligner.begin(&spoken), codes, heard: 0 }, Vec::new())
            }
            WordFinder::Sound(_) => {
                let (written, read): (Vec<_>, Vec<_>) =
                    units(text).into_iter().map(|unit| (unit.written, unit.read)).unzip();
                let (timed, read) = read.into_iter().enumerate().filter(|(_, read)| !read.is_empty()).unzip();
                (written, Listening::Sound { read, pcm: Vec::new() }, timed)
            }
        };
        let place = Place { before: self.before, samples: 0, written, found: 0, timed };
        self.piece = Some(Piece { listening, place });
    }

    /// More of the piece's sound was delivered; returns the words that are known now, of this piece or earlier ones.
    pub fn hear(&mut self, samples: &[f32]) -> Vec<WordTime> {
        let mut words = self.answered();
        let Some(Piece { listening, place }) = &mut self.piece else { return words };
        place.samples += samples.len() as u64;
        match listening {
            Listening::Codes { alignment, codes, heard } => {
                let codes: Vec<u32> = {
                    let log = codes.lock().unwrap_or_else(PoisonError::into_inner);
                    log.get(*heard..).unwrap_or_default().to_vec()
                };
                *heard += codes.len();
                let per_frame = self.samples_per_frame;
                let spans = alignment.hear(Heard { codes: &codes, samples });
                let spans = spans
                    .into_iter()
                    .map(|span| (span.word, span.start * per_frame / QUARTERS, span.end * per_frame / QUARTERS));
                words.extend(place.told(&mut self.source, spans, u64::MAX));
            }
            Listening::Sound { pcm, .. } => {
                // One sample more than the aligner takes: it says then what is too long.
                let most = MAX_SECONDS as usize * self.sample_rate as usize + 1;
                pcm.extend(&samples[..samples.len().min(most - pcm.len())]);
            }
        }
        words
    }

    /// The piece is over; returns the words that are known now.
    pub fn finish(&mut self) -> Vec<WordTime> {
        let mut words = self.hear(&[]);
        let Some(Piece { listening, mut place }) = self.piece.take() else { return words };
        self.before += place.samples;
        match (listening, &self.finder) {
            (Listening::Codes { mut alignment, .. }, _) => {
                let (per_frame, most) = (self.samples_per_frame, place.samples);
                let spans = alignment
                    .finish()
                    .into_iter()
                    .map(|span| (span.word, span.start * per_frame / QUARTERS, span.end * per_frame / QUARTERS));
                words.extend(place.told(&mut self.source, spans, most));
                place.pass(&mut self.source);
            }
            (Listening::Sound { read, pcm }, WordFinder::Sound(aligner)) => {
                let answer = aligner.align(AlignJob { units: read, pcm, rate: self.sample_rate });
                self.asked.push_back((place, answer));
            }
            (Listening::Sound { .. }, WordFinder::Codes(_)) => {}
        }
        words
    }

    /// Waits for the words of all pieces that are over; also why some are not known, where they are not.
    pub async fn settle(&mut self) -> (Vec<WordTime>, Option<String>) {
        let mut words = Vec::new();
        while let Some((place, answer)) = self.asked.pop_front() {
            let aligned = answer.await;
            words.extend(self.found(place, aligned.unwrap_or_else(|_| Err("the aligner has ended".to_owned()))));
        }
        (words, self.failure.take())
    }

    /// The words of earlier pieces that are known by now.
    fn answered(&mut self) -> Vec<WordTime> {
        let mut words = Vec::new();
        while let Some((_, answer)) = self.asked.front_mut() {
            let aligned = match answer.try_recv() {
                Ok(aligned) => aligned,
                Err(oneshot::error::TryRecvError::Empty) => break,
                Err(oneshot::error::TryRecvError::Closed) => Err("the aligner has ended".to_owned()),
            };
            if let Some((place, _)) = self.asked.pop_front() {
                words.extend(self.found(place, aligned));
            }
        }
        words
    }

    /// What the aligner found in a piece, or why it found nothing.
    fn found(&mut self, mut place: Place, aligned: Aligned) -> Vec<WordTime> {
        let rate = u64::from(self.sample_rate);
        let words = match aligned {
            Ok(times) => {
                let spans = std::mem::take(&mut place.timed).into_iter().zip(times);
                let spans = spans.map(|(word, time)| (word, time.start * rate / 1000, time.end * rate / 1000));
                let most = place.samples;
                place.told(&mut self.source, spans, most)
            }
            Err(reason) => {
                self.failure.get_or_insert(reason);
                Vec::new()
            }
        };
        place.pass(&mut self.source);
        words
    }
}

impl Place {
    /// Words of the piece in the client's text and in the whole answer; none is behind `most` samples of the piece.
    fn told(&mut self, source: &mut SourceText, spans: impl Iterator<Item = Span>, most: u64) -> Vec<WordTime> {
        let mut words = Vec::new();
        for (at, start, end) in spans {
            let mut text = 0..0;
            while self.found <= at
                && let Some(word) = self.written.get(self.found)
            {
                text = source.find(word);
                self.found += 1;
            }
            let Some(word) = self.written.get(at).cloned() else { continue };
            words.push(WordTime { word, text, start: self.before + start.min(most), end: self.before + end.min(most) });
        }
        words
    }

    /// Words that are not spoken, such as a dash, are passed over.
    fn pass(&self, source: &mut SourceText) {
        for word in &self.written[self.found..] {
            source.find(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_core::restart::RestartLimits;
    use omni_fault::FaultSite;
    use omni_model::forced_aligner::ForcedAligner;
    use omni_stage::aligner::{AlignerSetup, start};
    use omni_telemetry::AlignerMetrics;
    use std::path::Path;
    use std::time::Duration;

    const RATE: u32 = 24_000;

    async fn hearing() -> WordTimes {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_forced_aligner");
        let (backoff, window) = (Duration::from_millis(1), Duration::from_secs(60));
        let setup = AlignerSetup {
            aligner: ForcedAligner::load(&folder).unwrap(),
            restart: RestartLimits { backoff, max_backoff: backoff, max_restarts: 1, window },
            timeout: Duration::from_secs(600),
            run: Box::new(|work| work()),
            fault: FaultSite::default(),
            metrics: AlignerMetrics::new(),
        };
        WordTimes::new(WordFinder::Sound(start(setup).await.unwrap()), RATE, RATE * 2 / 25)
    }

    fn sound(seconds: usize, step: f32) -> Vec<f32> {
        (0..seconds * RATE as usize).map(|i| 0.3 * (i as f32 * step).sin()).collect()
    }

    #[tokio::test]
    async fn words_of_each_piece_stand_where_it_stands_and_come_in_order() {
        let mut together = hearing().await;
        together.wrote("One \u{2014} two, ");
        together.wrote("三四 five.");
        let mut told = Vec::new();
        for (text, sound) in [("One \u{2014} two,", sound(1, 0.02)), ("三四 five.", sound(2, 0.05))] {
            together.begin(text, CodeLog::default());
            sound.chunks(7000).for_each(|chunk| told.extend(together.hear(chunk)));
            told.extend(together.finish());
        }
        let (rest, failure) = together.settle().await;
        told.extend(rest);
        assert_eq!(failure, None);
        let places: Vec<_> = told.iter().map(|word| (word.word.as_str(), word.text.clone())).collect();
        assert_eq!(places, [("One", 0..3), ("two,", 6..10), ("三", 11..12), ("四", 12..13), ("five.", 14..19)]);
        // The second piece by itself has the same times, from its own beginning.
        let mut alone = hearing().await;
        alone.wrote("三四 five.");
        alone.begin("三四 five.", CodeLog::default());
        alone.hear(&sound(2, 0.05));
        assert_eq!(alone.finish(), []);
        let (words, _) = alone.settle().await;
        let times = |words: &[WordTime], before: u64| -> Vec<_> {
            words.iter().map(|word| (word.start - before, word.end - before)).collect()
        };
        assert_eq!(times(&words, 0), times(&told[2..], u64::from(RATE)));
        assert!(told.iter().all(|word| word.start <= word.end && word.end <= 3 * u64::from(RATE)));
    }

    #[tokio::test]
    async fn a_piece_that_is_too_long_says_so_and_costs_no_other_its_words() {
        let mut words = hearing().await;
        words.wrote("long. Short.");
        for (text, seconds) in [("long.", 301), ("Short.", 1)] {
            words.begin(text, CodeLog::default());
            words.hear(&vec![0.1; seconds * RATE as usize]);
            words.finish();
        }
        let (told, failure) = words.settle().await;
        assert_eq!(failure.unwrap(), "a piece of speech is longer than the 300 s that the aligner takes");
        assert_eq!((told.len(), told[0].word.as_str(), told[0].text.clone()), (1, "Short.", 6..12));
        assert!(told[0].start >= 301 * u64::from(RATE));
    }
}
