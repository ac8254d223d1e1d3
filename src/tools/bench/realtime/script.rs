//! What a conversation does when: drawn from a seed. Pure.

use crate::bench::plan::uniform;
use std::ops::Range;
use std::time::Duration;

/// Over which conversations begin, so that their turns do not fall together.
const BEGINNING: f64 = 2.0;
/// How long a user listens before speaking into an answer.
const INTO: Range<f64> = 0.2..0.8;
/// How long a user thinks after an answer is over.
const THINKING: Range<f64> = 0.2..0.8;

/// A conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// When it begins, since the level did.
    pub begins: Duration,
    /// What its user says.
    pub turns: Vec<Turn>,
}

/// What a user says next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Which of the recordings or texts.
    pub says: usize,
    /// When.
    pub when: When,
}

/// When a turn begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// So long after all of the answer before was played.
    After(Duration),
    /// So long after the first sound of the answer before, which it interrupts.
    Into(Duration),
}

impl Script {
    /// The conversation of this number: so many turns, of which a share interrupts the answer before. Recordings are
    /// taken in turn, each conversation from another one on.
    pub fn new(seed: u64, number: usize, turns: usize, share: f64, recordings: usize) -> Script {
        // Each conversation draws from a stretch of its own.
        let mut next = (number as u64) << 32;
        let mut draw = || {
            next += 1;
            uniform(seed, next)
        };
        let begins = Duration::from_secs_f64(draw() * BEGINNING);
        let turn = |i: usize| {
            let (chance, place) = (draw(), draw());
            let within = |range: Range<f64>| Duration::from_secs_f64(range.start + place * (range.end - range.start));
            // There is nothing to interrupt before the first turn.
            let when = match i > 0 && chance < share {
                true => When::Into(within(INTO)),
                false => When::After(within(THINKING)),
            };
            Turn { says: (number + i) % recordings.max(1), when }
        };
        Script { begins, turns: (0..turns).map(turn).collect() }
    }

    /// Whether the answer to a turn is interrupted.
    pub fn is_interrupted(&self, turn: usize) -> bool {
        self.turns.get(turn + 1).is_some_and(|next| matches!(next.when, When::Into(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_conversations_again_and_no_two_alike() {
        let script = |seed, number| Script::new(seed, number, 20, 0.3, 5);
        assert_eq!(script(1, 0), script(1, 0));
        assert_ne!(script(1, 0).turns, script(1, 1).turns);
        assert_ne!(script(1, 0).begins, script(2, 0).begins);
        assert!(script(1, 4).turns.iter().zip(4..).all(|(turn, i)| turn.says == i % 5));
    }

    #[test]
    fn the_share_of_interruptions_is_the_one_asked_for() {
        let interrupts = |turn: &&Turn| matches!(turn.when, When::Into(_));
        let script = Script::new(7, 0, 2_001, 0.25, 3);
        let count = script.turns.iter().filter(interrupts).count();
        assert!((430..570).contains(&count), "{count}");
        assert!(!interrupts(&&script.turns[0]));
        assert_eq!((0..2_001).filter(|turn| script.is_interrupted(*turn)).count(), count);
        assert!(Script::new(7, 0, 50, 0.0, 3).turns.iter().all(|turn| !interrupts(&turn)));
        assert!(Script::new(7, 0, 50, 1.0, 3).turns[1..].iter().all(|turn| interrupts(&turn)));
    }
}
