//! Where speech begins and ends, from the scores of a detector: a function of the scores alone.

use crate::settings::TurnDetection;

/// How long a frame of the detector is.
pub(crate) const FRAME_MS: u64 = 16;
/// Frames in a row that make a beginning: a click is shorter.
pub(crate) const ONSET: u64 = 3;
/// Frames of silence at the end of a turn that the model hears, and so nothing of the silence that only shows that it is
/// over: while that comes, all that the model hears of the turn is there.
pub(crate) const HEARD_SILENCE: u64 = 13;
/// By how much less than the threshold a frame may score that goes on with speech.
const HYSTERESIS: f32 = 0.15;

/// What a frame has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Speech began with this frame, counted from the first one.
    Began(u64),
    /// Speech is over, behind so many frames of silence.
    Ended(u64),
}

/// Counts frames of one stream of sound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// Frames that have come.
    frames: u64,
    /// Frames of speech in a row while none is spoken, and frames of silence in a row while some is.
    run: u64,
    speaking: bool,
}

impl Turns {
    /// Takes the score of the next frame, 0 to 1.
    pub fn frame(&mut self, score: f32, settings: &TurnDetection) -> Option<Turn> {
        self.frames += 1;
        if !self.speaking {
            self.run = if score >= settings.threshold { self.run + 1 } else { 0 };
            if self.run < ONSET {
                return None;
            }
            (self.run, self.speaking) = (0, true);
            return Some(Turn::Began(self.frames - ONSET));
        }
        self.run = if score < settings.threshold - HYSTERESIS { self.run + 1 } else { 0 };
        if self.run * FRAME_MS < settings.silence_ms.max(FRAME_MS) {
            return None;
        }
        Some(Turn::Ended(self.end()))
    }

    /// Ends speech where it is: behind so many frames of silence.
    pub fn end(&mut self) -> u64 {
        let silent = self.silent();
        (self.run, self.speaking) = (0, false);
        silent
    }

    /// Frames of silence in a row within speech.
    pub fn silent(&self) -> u64 {
        if self.speaking { self.run } else { 0 }
    }

    /// Whether speech has begun and not ended.
    pub fn is_speaking(&self) -> bool {
        self.speaking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clicks_begin_nothing_and_short_pauses_end_nothing() {
        let settings = TurnDetection { threshold: 0.5, silence_ms: 64, ..TurnDetection::default() };
        let mut turns = Turns::default();
        let scores = [0.9, 0.9, 0.1, 0.6, 0.6, 0.6, 0.1, 0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.1, 0.9];
        let decided: Vec<_> =
            scores.iter().enumerate().filter_map(|(at, score)| Some((at, turns.frame(*score, &settings)?))).collect();
        assert_eq!(decided, [(5, Turn::Began(3)), (13, Turn::Ended(4))]);
        assert!(!turns.is_speaking());
    }
}
