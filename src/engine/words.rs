//! The words of a speech request and when they sound, for clients that asked for them.
//!
//! Each piece of the text has an alignment of its own, which hears the codes that the ledger recorded; what it finds is
//! moved to where the piece stands in the answer and its words in the client's text. The same codes give the same times:
//! when a stage dies and its sequence goes on, the ledger has each code once.

use super::api::WordTime;
use super::plan::CodeLog;
use omni_core::align::{Aligner, Alignment, Heard, QUARTERS, SourceText, WordSpan};
use omni_core::text::spoken_words;
use std::sync::{Arc, PoisonError};

/// See the module.
pub(super) struct WordTimes {
    aligner: Arc<dyn Aligner>,
    source: SourceText,
    samples_per_frame: u64,
    /// Samples of the pieces before the current one.
    before: u64,
    piece: Option<Piece>,
}

/// The piece that is being spoken.
struct Piece {
    alignment: Box<dyn Alignment>,
    codes: CodeLog,
    /// Codes of the log that were heard.
    heard: usize,
    /// Samples that were delivered.
    samples: u64,
    /// Its words as the client wrote them; those before `found` have been looked up in the source.
    written: Vec<String>,
    found: usize,
}

impl WordTimes {
    pub fn new(aligner: Arc<dyn Aligner>, samples_per_frame: u32) -> WordTimes {
        let samples_per_frame = samples_per_frame.into();
        WordTimes { aligner, source: SourceText::default(), samples_per_frame, before: 0, piece: None }
    }

    /// More of the client's text.
    pub fn wrote(&mut self, text: &str) {
        self.source.push(text);
    }

    /// A piece of the text begins, whose codes come in `codes`.
    pub fn begin(&mut self, text: &str, codes: CodeLog) {
        let (written, spoken): (Vec<_>, Vec<_>) = spoken_words(text).into_iter().unzip();
        let alignment = self.aligner.begin(&spoken);
        self.piece = Some(Piece { alignment, codes, heard: 0, samples: 0, written, found: 0 });
    }

    /// More of the piece's sound was delivered; returns the words that are known now.
    pub fn hear(&mut self, samples: &[f32]) -> Vec<WordTime> {
        let Some(piece) = &mut self.piece else { return Vec::new() };
        piece.samples += samples.len() as u64;
        let codes: Vec<u32> = {
            let log = piece.codes.lock().unwrap_or_else(PoisonError::into_inner);
            log.get(piece.heard..).unwrap_or_default().to_vec()
        };
        piece.heard += codes.len();
        let spans = piece.alignment.hear(Heard { codes: &codes, samples });
        self.told(spans, u64::MAX)
    }

    /// The piece is over; returns its other words.
    pub fn finish(&mut self) -> Vec<WordTime> {
        let mut words = self.hear(&[]);
        let Some(piece) = &mut self.piece else { return words };
        let (spans, samples) = (piece.alignment.finish(), piece.samples);
        words.extend(self.told(spans, samples));
        // Words that are not spoken, such as a dash, are passed over too.
        if let Some(piece) = self.piece.take() {
            for word in &piece.written[piece.found..] {
                self.source.find(word);
            }
        }
        self.before += samples;
        words
    }

    /// Words of the piece in the client's text and in the whole answer; none ends behind `most` samples of the piece.
    fn told(&mut self, spans: Vec<WordSpan>, most: u64) -> Vec<WordTime> {
        let Some(piece) = &mut self.piece else { return Vec::new() };
        let mut words = Vec::new();
        for span in spans {
            let mut text = 0..0;
            while piece.found <= span.word
                && let Some(word) = piece.written.get(piece.found)
            {
                text = self.source.find(word);
                piece.found += 1;
            }
            let Some(word) = piece.written.get(span.word).cloned() else { continue };
            let sample = |quarter: u64| self.before + (quarter * self.samples_per_frame / QUARTERS).min(most);
            words.push(WordTime { word, text, start: sample(span.start), end: sample(span.end) });
        }
        words
    }
}
