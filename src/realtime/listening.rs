//! The input audio buffer: what was appended and is not committed, and, with turn detection, where speech begins and ends
//! in it. What it decides depends on the samples, not on how they were cut into events.

use crate::detector::Detector;
use crate::refusal::Refusal;
use crate::session::Limits;
use crate::settings::{Settings, TurnDetection};
use crate::sound::WireFormat;
use crate::turns::{FRAME_MS, HEARD_SILENCE, ONSET, Turn, Turns};
use std::collections::VecDeque;
use std::ops::Range;

/// Samples that one call goes through at most, 200 ms at 24 kHz: some milliseconds of work.
const PIECE: usize = 4_800;

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Speech began: the first millisecond of its turn.
    Began(u64),
    /// A turn is over: its last millisecond, and the samples of it that the model hears.
    Ended(u64, Vec<i16>),
    /// The detector failed, a bug of ours.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Listening {
    format: WireFormat,
    samples: VecDeque<i16>,
    /// The number of the first of them, counted from the first sample of the session.
    start: u64,
    /// The number of the first sample that the detector has not heard.
    heard: u64,
    detecting: Option<Detecting>,
}

#[derive(Debug)]
struct Detecting {
    settings: TurnDetection,
    detector: Detector,
    turns: Turns,
    /// The number of the sample at which the detector's first frame began.
    origin: u64,
    /// Frames that were scored.
    frames: u64,
    /// The first sample of the turn that is spoken.
    turn: u64,
    /// Before this sample nothing belongs to a turn to come.
    floor: u64,
}

impl Listening {
    /// Nothing was appended.
    pub fn new(settings: &Settings) -> Listening {
        let mut listening =
            Listening { format: settings.input, samples: VecDeque::new(), start: 0, heard: 0, detecting: None };
        // The formats of the protocol all have rates between which there is a resampler.
        let _ = listening.configure(settings);
        listening
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        2 * self.samples.len()
    }

    /// Takes over new settings. A new format asks for an empty buffer.
    pub fn configure(&mut self, settings: &Settings) -> Result<(), Refusal> {
        if settings.input != self.format {
            if !self.samples.is_empty() && self.detecting.is_none() {
                let message = "the buffer has sound of another format; commit or clear it first";
                return Err(Refusal::value("audio.input.format", message));
            }
            self.clear();
            self.format = settings.input;
            self.detecting = None;
        }
        match (&mut self.detecting, &settings.turns) {
            (Some(detecting), Some(turns)) => detecting.settings = turns.clone(),
            (Some(_), None) => self.detecting = None,
            (None, Some(turns)) => {
                let detector = Detector::new(self.format)
                    .map_err(|error| Refusal { internal: true, ..Refusal::new("internal_error", None, error) })?;
                self.detecting = Some(Detecting {
                    settings: turns.clone(),
                    detector,
                    turns: Turns::default(),
                    origin: self.start,
                    frames: 0,
                    turn: 0,
                    floor: self.start,
                });
                self.heard = self.start;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Appends base64 of the input's format.
    pub fn append(&mut self, audio: &str, limits: &Limits) -> Result<(), Refusal> {
        // Every sample needs this much of base64 at least, so nothing is decoded in vain.
        let most = (limits.audio_ms * u64::from(self.format.rate()) / 1000) as usize;
        let coming = audio.len() / 4 * 3 / self.format.width();
        let full = |have: usize| {
            let seconds = limits.audio_ms as f64 / 1000.0;
            let message =
                format!("{have} samples are more than the buffer takes, {seconds} s (realtime.max_audio); commit it");
            Refusal::new("input_audio_buffer_full", "audio", message)
        };
        // With turn detection, what is silent is dropped and what is spoken is committed where the limit is.
        let waiting = if self.detecting.is_some() { 0 } else { self.samples.len() };
        if waiting + coming > most + 3 {
            return Err(full(waiting + coming));
        }
        let samples = self.format.decode(audio).map_err(|message| Refusal::value("audio", message))?;
        self.samples.extend(samples);
        Ok(())
    }

    /// Appends samples of a microphone that is always on: without turn detection the last ones are kept.
    pub fn extend(&mut self, samples: &[i16], limits: &Limits) {
        self.samples.extend(samples);
        let most = limits.audio_ms * u64::from(self.format.rate()) / 1000;
        if self.detecting.is_none() && self.samples.len() as u64 > most {
            self.drop_before(self.end() - most);
        }
    }

    /// Whether there is sound that the detector has not heard.
    pub fn is_behind(&self) -> bool {
        self.detecting.is_some() && self.heard < self.end()
    }

    /// The number behind the last sample.
    fn end(&self) -> u64 {
        self.start + self.samples.len() as u64
    }

    /// Lets the detector hear one piece more.
    pub fn listen(&mut self, limits: &Limits) -> Vec<Heard> {
        let rate = u64::from(self.format.rate());
        let Some(mut detecting) = self.detecting.take() else { return Vec::new() };
        let from = (self.heard - self.start) as usize;
        let piece: Vec<i16> = self.samples.iter().skip(from).take(PIECE).copied().collect();
        self.heard += piece.len() as u64;
        let mut heard = Vec::new();
        match detecting.detector.push(&piece) {
            Ok(scores) => {
                for score in scores {
                    let decided = detecting.turns.frame(score, &detecting.settings);
                    detecting.frames += 1;
                    self.decide(&mut detecting, decided, limits, &mut heard);
                }
            }
            Err(error) => heard.push(Heard::Failed(error.to_string())),
        }
        // What no turn can need any more goes.
        let first = if detecting.turns.is_speaking() {
            detecting.turn
        } else {
            let now = detecting.origin + detecting.frames * FRAME_MS * rate / 1000;
            let kept = (detecting.settings.padding_ms + ONSET * FRAME_MS) * rate / 1000;
            now.saturating_sub(kept).max(detecting.floor).min(self.heard)
        };
        self.drop_before(first);
        self.detecting = Some(detecting);
        heard
    }

    /// What a frame means for the buffer.
    fn decide(&mut self, detecting: &mut Detecting, decided: Option<Turn>, limits: &Limits, heard: &mut Vec<Heard>) {
        let rate = u64::from(self.format.rate());
        let ms = |sample: u64| sample * 1000 / rate;
        let at = |frame: u64| detecting.origin + frame * FRAME_MS * rate / 1000;
        let now = at(detecting.frames);
        match decided {
            Some(Turn::Began(frame)) => {
                let padding = detecting.settings.padding_ms * rate / 1000;
                detecting.turn = at(frame).saturating_sub(padding).max(detecting.floor).max(self.start);
                heard.push(Heard::Began(ms(detecting.turn)));
            }
            None if !detecting.turns.is_speaking() => {}
            // A turn as long as the buffer ends there.
            None if ms(now - detecting.turn) + FRAME_MS <= limits.audio_ms => {}
            ended => {
                let silent = if let Some(Turn::Ended(silent)) = ended { silent } else { detecting.turns.end() };
                let samples = self.cut(detecting.turn..at(detecting.frames - silent.saturating_sub(HEARD_SILENCE)));
                detecting.floor = now;
                heard.push(Heard::Ended(ms(now), samples));
            }
        }
    }

    /// The number behind the last sample that the model hears of the turn that is spoken, if its end is. `None` while
    /// more of it may come that the model hears.
    pub fn said(&self) -> Option<u64> {
        let detecting = self.detecting.as_ref()?;
        let over = detecting.turns.silent().checked_sub(HEARD_SILENCE)?;
        let rate = u64::from(self.format.rate());
        Some(detecting.origin + (detecting.frames - over) * FRAME_MS * rate / 1000)
    }

    /// The samples of these numbers, as far as they are there.
    fn cut(&self, range: Range<u64>) -> Vec<i16> {
        let from = range.start.saturating_sub(self.start) as usize;
        let count = range.end.saturating_sub(range.start.max(self.start)) as usize;
        self.samples.iter().skip(from).take(count).copied().collect()
    }

    fn drop_before(&mut self, sample: u64) {
        let count = (sample.saturating_sub(self.start) as usize).min(self.samples.len());
        self.samples.drain(..count);
        self.start += count as u64;
    }

    /// Everything that is in it.
    pub fn samples(&self) -> Vec<i16> {
        self.samples.iter().copied().collect()
    }

    /// Drops what is in it. Whether speech had begun.
    pub fn clear(&mut self) -> bool {
        self.start = self.end();
        self.samples.clear();
        let mut spoke = false;
        if let Some(detecting) = &mut self.detecting {
            spoke = detecting.turns.is_speaking();
            let _ = detecting.turns.end();
            detecting.floor = self.start;
        }
        self.heard = self.heard.max(self.start);
        spoke
    }

    /// Milliseconds of the turn that is spoken: with a detector as far as that has heard, without one all of the buffer.
    /// 0 while none is spoken.
    pub fn turn_ms(&self) -> u64 {
        let rate = u64::from(self.format.rate());
        let samples = match &self.detecting {
            None => self.samples.len() as u64,
            Some(detecting) if detecting.turns.is_speaking() => {
                (detecting.origin + detecting.frames * FRAME_MS * rate / 1000).saturating_sub(detecting.turn)
            }
            Some(_) => 0,
        };
        samples * 1000 / rate
    }

    /// So many milliseconds of the turn that is spoken, the first ones.
    pub fn beginning(&self, ms: u64) -> Vec<i16> {
        let first = self.first();
        self.cut(first..first + ms * u64::from(self.format.rate()) / 1000)
    }

    /// The turn that is spoken, in front of the sample of this number.
    pub fn turn_before(&self, end: u64) -> Vec<i16> {
        self.cut(self.first()..end)
    }

    /// The number of the first sample of the turn that is spoken.
    fn first(&self) -> u64 {
        self.detecting.as_ref().map_or(self.start, |detecting| detecting.turn)
    }

    /// Samples a second.
    pub fn rate(&self) -> u32 {
        self.format.rate()
    }
}
