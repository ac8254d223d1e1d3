//! Delta debugging: which few of many faults suffice to make a run fail. Pure: it names the next candidate, and the
//! caller runs it and reports the result.
//!
//! Zeller and Hildebrandt's ddmin. What it ends with is 1-minimal: without any single one of its members the run does
//! not fail. Where a superset of what fails fails too, no smaller part fails at all.

/// The search. Members are known by their place in the list that is shrunk.
#[derive(Clone, Debug)]
pub struct Shrinker {
    /// The smallest set known to fail.
    best: Vec<usize>,
    /// Into how many parts it is cut.
    parts: usize,
    /// The next candidate of this cut: first each part alone, then all but each part.
    turn: usize,
    /// Candidates that may still be tried.
    runs: usize,
}

impl Shrinker {
    /// Of a list of `members` that is known to fail. No more than `runs` candidates will be tried.
    pub fn new(members: usize, runs: usize) -> Shrinker {
        Shrinker { best: (0..members).collect(), parts: 2, turn: 0, runs }
    }

    /// The smallest set known to fail, ascending.
    pub fn best(&self) -> &[usize] {
        &self.best
    }

    /// What to try next, ascending; `None` when nothing is left to try, or no runs are.
    pub fn candidate(&mut self) -> Option<Vec<usize>> {
        loop {
            // The caller has tried a run without faults already.
            if self.runs == 0 || self.best.len() < 2 {
                return None;
            }
            self.parts = self.parts.min(self.best.len());
            // In two parts, all but one is the other one.
            let turns = if self.parts == 2 { 2 } else { 2 * self.parts };
            if self.turn < turns {
                self.runs -= 1;
                return Some(self.of_turn());
            }
            if self.parts == self.best.len() {
                return None;
            }
            self.parts = (2 * self.parts).min(self.best.len());
            self.turn = 0;
        }
    }

    /// Whether the last candidate failed.
    pub fn judged(&mut self, fails: bool) {
        if !fails {
            self.turn += 1;
            return;
        }
        let alone = self.turn < self.parts;
        self.best = self.of_turn();
        // What is left of a complement was cut already: its parts need not become larger.
        self.parts = if alone { 2 } else { (self.parts - 1).max(2) };
        self.turn = 0;
    }

    fn of_turn(&self) -> Vec<usize> {
        let part = |i: usize| i * self.best.len() / self.parts..(i + 1) * self.best.len() / self.parts;
        if self.turn < self.parts {
            return self.best[part(self.turn)].to_vec();
        }
        let without = part(self.turn - self.parts);
        [&self.best[..without.start], &self.best[without.end..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Shrinks a list of `members` by a predicate; gives what is left, and the candidates tried.
    fn shrink(members: usize, runs: usize, fails: impl Fn(&[usize]) -> bool) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut shrinker = Shrinker::new(members, runs);
        let mut tried = Vec::new();
        while let Some(candidate) = shrinker.candidate() {
            shrinker.judged(fails(&candidate));
            tried.push(candidate);
        }
        (shrinker.best().to_vec(), tried)
    }

    #[test]
    fn one_culprit_of_a_thousand_is_found_in_a_few_runs() {
        let (left, tried) = shrink(1000, usize::MAX, |set| set.contains(&617));
        assert_eq!(left, [617]);
        assert!(tried.len() <= 20, "{} runs", tried.len());
    }

    #[test]
    fn a_single_fault_is_not_shrunk_further() {
        assert_eq!(shrink(1, 100, |_| true), (vec![0], vec![]));
        assert_eq!(shrink(0, 100, |_| true), (vec![], vec![]));
    }

    proptest! {
        #[test]
        fn what_is_left_is_the_smallest_set_that_fails(
            members in 1usize..60, culprits in prop::collection::btree_set(0usize..60, 1..6),
        ) {
            let culprits: BTreeSet<usize> = culprits.into_iter().map(|i| i % members).collect();
            let (left, _) = shrink(members, usize::MAX, |set| culprits.iter().all(|i| set.contains(i)));
            prop_assert_eq!(left, culprits.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn of_two_causes_one_is_left(members in 4usize..60, a in 0usize..30, b in 30usize..60) {
            let (a, b) = (a % (members / 2), members / 2 + b % (members - members / 2));
            let (left, _) = shrink(members, usize::MAX, |set| set.contains(&a) || set.contains(&b));
            prop_assert!(left == [a] || left == [b], "{left:?}");
        }

        #[test]
        fn whatever_is_answered_the_runs_are_bounded_and_the_best_is_one_that_failed(
            members in 0usize..40, runs in 0usize..50, answers in prop::collection::vec(any::<bool>(), 50),
        ) {
            let mut shrinker = Shrinker::new(members, runs);
            let (mut tried, mut failed) = (0, (0..members).collect::<Vec<_>>());
            while let Some(candidate) = shrinker.candidate() {
                prop_assert!(!candidate.is_empty() && candidate.len() < failed.len());
                prop_assert!(candidate.is_sorted_by(|a, b| a < b));
                let fails = answers[tried];
                shrinker.judged(fails);
                if fails {
                    failed = candidate;
                }
                tried += 1;
            }
            prop_assert!(tried <= runs);
            prop_assert_eq!(shrinker.best(), failed);
        }

        #[test]
        fn without_any_one_of_what_is_left_nothing_fails(
            members in 1usize..30, weights in prop::collection::vec(0u32..9, 30), limit in 1u32..60,
        ) {
            let weigh = |set: &[usize]| set.iter().map(|i| weights[*i]).sum::<u32>() >= limit;
            prop_assume!(weigh(&(0..members).collect::<Vec<_>>()));
            let (left, _) = shrink(members, usize::MAX, weigh);
            prop_assert!(weigh(&left));
            for i in 0..left.len() {
                let mut fewer = left.clone();
                fewer.remove(i);
                prop_assert!(left.len() == 1 || !weigh(&fewer), "{left:?} without {i}");
            }
        }
    }
}
