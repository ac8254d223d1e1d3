//! The best path of a speech through the phonemes of its text (Viterbi), and which words of it are settled.

use super::WordSpan;

/// Quarters of a frame behind the end of a word after which it is settled: 640 ms. A longer look ahead changes no more
/// than one word in some hundreds.
const LOOK_AHEAD: u64 = 32;
/// States behind the first one that is alive in which the path may be: more than are spoken in the look ahead.
const WIDTH: usize = 256;

const IMPOSSIBLE: f32 = f32::NEG_INFINITY;

/// What is unlikely, in nats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalties {
    /// A phoneme that is not spoken.
    pub skip: f32,
    /// A pause between two words.
    pub silence: f32,
}

/// A phoneme of a word, or the silence in front of a word (0), which need not be there.
#[derive(Clone, Copy, Debug)]
struct State {
    phoneme: u16,
    /// Which word of the piece; of a silence the word before it and one more.
    word: usize,
}

/// Text in, scores in, settled words out. See the module.
#[derive(Debug)]
pub(super) struct Path {
    states: Vec<State>,
    /// Of each state from `first` on: how good the best path to it is.
    scores: Vec<f32>,
    /// The first state in which a path may still be.
    first: usize,
    /// For each quarter since `since`: the first state of the row, and by how many states each path moved.
    moves: Vec<(usize, Vec<u8>)>,
    since: u64,
    now: u64,
    penalties: Penalties,
    /// Words are told in their order: the next state to be told, and the end of the last word.
    told: usize,
    ended: u64,
}

impl Path {
    /// For words of these phonemes; one that has none is left out.
    pub fn new(words: &[Vec<u16>], penalties: Penalties) -> Path {
        let mut states = vec![State { phoneme: 0, word: 0 }];
        for (word, phonemes) in words.iter().enumerate().filter(|(_, phonemes)| !phonemes.is_empty()) {
            states.extend(phonemes.iter().map(|phoneme| State { phoneme: *phoneme, word }));
            states.push(State { phoneme: 0, word: word + 1 });
        }
        let (scores, moves) = (Vec::new(), Vec::new());
        Path { states, scores, first: 0, moves, since: 0, now: 0, penalties, told: 0, ended: 0 }
    }

    /// The next quarter, in which each phoneme has this score.
    pub fn step(&mut self, phonemes: &[f32]) {
        let width = WIDTH.min(self.states.len() - self.first);
        let emission = |at: usize| phonemes.get(usize::from(self.states[at].phoneme)).copied().unwrap_or(IMPOSSIBLE);
        let (mut scores, mut moves) = (vec![IMPOSSIBLE; width], vec![0; width]);
        for (i, (score, moved)) in scores.iter_mut().zip(&mut moves).enumerate() {
            let at = self.first + i;
            if self.now == 0 {
                // Speech begins with silence or with the first word.
                *score = if at < 2 { emission(at) } else { IMPOSSIBLE };
                continue;
            }
            for by in 0..=i.min(2) {
                let Some(before) = self.scores.get(i - by) else { continue };
                let path = before - self.cost(at, by);
                if path > *score {
                    (*score, *moved) = (path, by as u8);
                }
            }
            *score += emission(at);
        }
        self.scores = scores;
        self.moves.push((self.first, moves));
        self.now += 1;
    }

    /// What it costs to come into state `at` from `by` states before.
    fn cost(&self, at: usize, by: usize) -> f32 {
        let silent = |at: usize| self.states[at].phoneme == 0;
        match by {
            0 => 0.0,
            1 if silent(at) => self.penalties.silence,
            1 => 0.0,
            // Over a silence that is not there, or over a phoneme of a longer word; into a silence: over the last one.
            _ if silent(at - 1) => 0.0,
            _ if silent(at) && silent(at - 2) => f32::INFINITY,
            _ if silent(at) => self.penalties.skip + self.penalties.silence,
            _ => self.penalties.skip,
        }
    }

    /// The words that are settled: on the best path they ended long enough ago. Paths that are still in them end.
    pub fn settle(&mut self) -> Vec<WordSpan> {
        if self.now < self.since + LOOK_AHEAD {
            return Vec::new();
        }
        let Some(best) = self.best(|_| true) else { return Vec::new() };
        let path = self.trace(best);
        let until = (self.now - self.since - LOOK_AHEAD) as usize;
        // Where the path was then: all words before that one are over.
        let Some(state) = path.get(until).copied() else { return Vec::new() };
        let letters = self.states[..state].iter().rev().take_while(|before| before.phoneme > 0).count();
        let (begin, keep) = match self.states[state].phoneme {
            0 => (state, state),
            _ => (state - letters, (state - letters).saturating_sub(1)),
        };
        let words = if begin > self.told { self.tell(&path, begin) } else { Vec::new() };
        if !words.is_empty() {
            // What is before the first quarter behind those words is not needed again.
            let left = path.iter().position(|at| *at >= keep).unwrap_or(until).min(until);
            self.moves.drain(..left);
            self.since += left as u64;
        }
        // Paths that have not come so far contradict what was told, or are too far behind in a very long word.
        let keep = keep.max(state.saturating_sub(WIDTH / 2)).max(self.first);
        self.scores.drain(..(keep - self.first).min(self.scores.len()));
        self.first = keep;
        words
    }

    /// The speech is over.
    pub fn finish(&mut self) -> Vec<WordSpan> {
        let last = self.states.len();
        let ends = self.best(|at| at + 2 >= last).or_else(|| self.best(|_| true));
        let path = ends.map(|end| self.trace(end)).unwrap_or_default();
        self.tell(&path, last)
    }

    /// The state of the best path, among those that may be its last.
    fn best(&self, may_be: impl Fn(usize) -> bool) -> Option<usize> {
        let alive = self.scores.iter().enumerate().filter(|(i, score)| **score > IMPOSSIBLE && may_be(self.first + i));
        alive.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).map(|(i, _)| self.first + i)
    }

    /// The states of the path that ends in `at`, one for each quarter since `since`.
    fn trace(&self, mut at: usize) -> Vec<usize> {
        let mut path = vec![at; self.moves.len()];
        for (state, (first, moves)) in path.iter_mut().zip(&self.moves).rev() {
            *state = at;
            let moved = at.checked_sub(*first).and_then(|i| moves.get(i)).copied().unwrap_or(0);
            at -= usize::from(moved);
        }
        path
    }

    /// The words of the states up to `until` that were not told.
    fn tell(&mut self, path: &[usize], until: usize) -> Vec<WordSpan> {
        let mut words = Vec::new();
        let mut at = self.told;
        while at < until {
            let State { phoneme, word } = self.states[at];
            if phoneme == 0 {
                at += 1;
                continue;
            }
            let behind = at + self.states[at..].iter().take_while(|s| s.word == word && s.phoneme > 0).count();
            let time = |i: usize| self.since + i as u64;
            let inside = |state: &usize| (at..behind).contains(state);
            let start = path.iter().position(inside).map(time);
            let end = path.iter().rposition(inside).map(|i| time(i + 1));
            // A word over which the path jumped sounds where the one behind it begins.
            let next = || path.iter().position(|state| *state >= behind).map_or(self.now, time);
            let start = start.unwrap_or_else(next).max(self.ended);
            let end = end.unwrap_or(start).max(start);
            self.ended = end;
            words.push(WordSpan { word, start, end });
            at = behind;
        }
        self.told = self.told.max(until);
        words
    }
}
