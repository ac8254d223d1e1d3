//! Notices speech that no longer says its text: a talker that repeats itself, that is silent without end, or that ended
//! before it could have said anything.
//!
//! What it sees is the first code of each frame, which says what sounds. In speech it changes with almost every frame:
//! the goldens of the embedded voice have 27 different ones in 28 frames. A talker that is caught in a loop, or in
//! silence, has the same few again and again. A text may repeat itself, too, so this counts only once the text has had
//! twice the time that it takes to say. The verdict is a function of codes and text, so it is the same each time.

use crate::text::{longest_seconds, shortest_seconds};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Frames that are looked at together: 8 s at 12.5 frames/s.
const WINDOW: usize = 100;
/// So many different codes are few: loops of up to 2 s have no more.
const FEW: usize = WINDOW / 4;
/// When a text has had enough time, as a part of the longest that any speaker takes for it, which is four times what
/// speech takes.
const ENOUGH: f64 = 0.5;

/// Watches the frames of one piece of speech.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Frames in which the text can be said, those without which it cannot, and the most that any speaker takes.
    enough: usize,
    least: usize,
    most: usize,
    frames: usize,
    window: VecDeque<u32>,
    /// How often each code is in the window.
    counts: BTreeMap<u32, usize>,
}

impl Guard {
    /// For speech that says `text`, in frames of this length.
    pub fn new(text: &str, frame: Duration) -> Guard {
        let frame = frame.as_secs_f64().max(f64::MIN_POSITIVE);
        let longest = longest_seconds(text) / frame;
        let (enough, most) = ((ENOUGH * longest) as usize, longest as usize);
        let least = (shortest_seconds(text) / frame) as usize;
        Guard { enough, least, most, frames: 0, window: VecDeque::with_capacity(WINDOW), counts: BTreeMap::new() }
    }

    /// Takes the first code of one more frame. Whether speech has run away, which ends it behind this frame.
    pub fn runs_away(&mut self, code: u32) -> bool {
        self.frames += 1;
        if self.window.len() == WINDOW
            && let Some(oldest) = self.window.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.window.push_back(code);
        *self.counts.entry(code).or_default() += 1;
        self.frames > self.enough && self.window.len() == WINDOW && self.counts.len() <= FEW
    }

    /// Whether speech that a limit has ended now went on for longer than any speaker takes for its text.
    pub fn is_too_long(&self) -> bool {
        self.frames >= self.most
    }

    /// Whether speech that ends by itself now cannot have said its text.
    pub fn is_unspoken(&self) -> bool {
        self.frames < self.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAME: Duration = Duration::from_millis(80);
    const TEXT: &str = "The weather is lovely today.";

    /// The frame behind which these codes end.
    fn ends(text: &str, codes: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut guard = Guard::new(text, FRAME);
        codes.into_iter().position(|code| guard.runs_away(code)).map(|at| at + 1)
    }

    /// Codes as speech has them: one of some hundreds, hardly ever twice.
    fn speech(frames: u32) -> impl Iterator<Item = u32> {
        (0..frames).map(|i| i.wrapping_mul(2_654_435_761) % 509)
    }

    #[test]
    fn loops_and_silence_end_soon_after_the_text_could_have_been_said() {
        let enough = (ENOUGH * longest_seconds(TEXT) / 0.08) as usize;
        for period in [1, 2, 7, 25] {
            let stuck = speech(25).chain((0..).map(|i| 1000 + i % period));
            let ended = ends(TEXT, stuck.take(2000)).unwrap();
            assert!((enough..=enough.max(25) + WINDOW).contains(&ended), "{period}: {ended} of {enough}");
        }
    }

    #[test]
    fn speech_is_left_alone_however_long_it_takes() {
        assert_eq!(ends(TEXT, speech(3000)), None);
        // A breath of 4 s.
        assert_eq!(ends(TEXT, speech(150).chain((0..50).map(|_| 7)).chain(speech(150))), None);
    }

    #[test]
    fn a_text_that_repeats_itself_has_its_time() {
        let text = "no ".repeat(60);
        // Each word in three frames, a fifth of a minute in all.
        let said = (0..180).map(|i| i % 3);
        assert_eq!(ends(&text, said), None);
    }

    #[test]
    fn speech_is_too_long_from_the_longest_time_on() {
        let longest = (longest_seconds(TEXT) / 0.08) as usize;
        let mut guard = Guard::new(TEXT, FRAME);
        for (at, code) in speech(longest as u32).enumerate() {
            assert!(at < longest && !guard.is_too_long());
            assert!(!guard.runs_away(code));
        }
        assert!(guard.is_too_long());
    }

    #[test]
    fn speech_that_ends_at_once_has_not_said_a_long_text() {
        let long = "This sentence is long enough that nobody can have said it within a few hundredths of a second.";
        let heard = |text: &str, frames: u32| {
            let mut guard = Guard::new(text, FRAME);
            for code in speech(frames) {
                let _ = guard.runs_away(code);
            }
            !guard.is_unspoken()
        };
        assert!(!heard(long, 2) && heard(long, 40));
        assert!(heard("Hi.", 1) && heard("", 0) && heard("...", 1));
    }

    proptest! {
        #[test]
        fn the_verdict_is_the_count_of_different_codes(codes in prop::collection::vec(0..40u32, 0..400)) {
            let mut guard = Guard::new("", FRAME);
            let enough = (ENOUGH * longest_seconds("") / 0.08) as usize;
            for (at, code) in codes.iter().enumerate() {
                let seen = at + 1;
                let window = &codes[seen.saturating_sub(WINDOW)..seen];
                let different = window.iter().collect::<std::collections::BTreeSet<_>>().len();
                let expected = seen > enough && seen >= WINDOW && different <= FEW;
                prop_assert_eq!(guard.runs_away(*code), expected);
            }
        }
    }
}
