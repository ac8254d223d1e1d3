//! Mends times that do not rise: `fix_timestamp` of qwen-asr 0.0.6 (`inference/qwen3_forced_aligner.py`).
//!
//! The longest run of times that never fall (of several, the one that ends first) is right. Of the others, one or two
//! in a row get the time of the nearer right one, the left one where both are as near; more are put between both at
//! equal distances. Where there is no right time on one side, that of the other side counts.

/// Wrong times in a row that are not spread between the right ones.
const FEW: usize = 2;

/// The times, mended: milliseconds, rounded down.
pub fn repaired(times: &[f64]) -> Vec<u64> {
    let right = longest_run(times);
    let mut mended = times.to_vec();
    let mut from = 0;
    while from < times.len() {
        let to = (from..times.len()).find(|at| right[*at] != right[from]).unwrap_or(times.len());
        if !right[from] {
            let left = from.checked_sub(1).map(|at| times[at]);
            fill(&mut mended[from..to], left, times.get(to).copied());
        }
        from = to;
    }
    // Times are not negative, so this rounds as the reference does.
    mended.into_iter().map(|time| time as u64).collect()
}

/// Fills a gap between two right times.
fn fill(gap: &mut [f64], left: Option<f64>, right: Option<f64>) {
    let len = gap.len();
    for (at, time) in gap.iter_mut().enumerate() {
        *time = match (left, right) {
            (Some(left), Some(right)) if len > FEW => left + (right - left) / (len + 1) as f64 * (at + 1) as f64,
            (Some(left), Some(right)) => {
                if at < len - at {
                    left
                } else {
                    right
                }
            }
            (Some(one), None) | (None, Some(one)) => one,
            // The run has one time at least.
            (None, None) => *time,
        };
    }
}

/// Which times belong to the longest run that never falls. In `n log n`, where the reference needs `n^2`, with its
/// choice among equals: the run ends at the first time that ends one of full length, and before each time stands the
/// first of those that end the longest run it can continue.
fn longest_run(times: &[f64]) -> Vec<bool> {
    // The least time that ends a run of `k + 1`.
    let mut least: Vec<f64> = Vec::new();
    let lengths: Vec<usize> = times
        .iter()
        .map(|time| {
            let length = least.partition_point(|end| end <= time);
            match least.get_mut(length) {
                Some(end) => *end = *time,
                None => least.push(*time),
            }
            length
        })
        .collect();
    // Where runs of each length end, in order: their times fall strictly, so the first that fits is found by halving.
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); least.len()];
    lengths.iter().enumerate().for_each(|(at, length)| ends[*length].push(at));
    let mut right = vec![false; times.len()];
    let mut at = ends.last().and_then(|ends| ends.first()).copied();
    while let Some(here) = at {
        right[here] = true;
        at = lengths[here].checked_sub(1).and_then(|shorter| {
            let ends = &ends[shorter];
            ends.get(ends.partition_point(|before| times[*before] > times[here])).copied()
        });
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference's search, as it is written there.
    fn searched(times: &[f64]) -> Vec<bool> {
        let (mut dp, mut parent) = (vec![1; times.len()], vec![None; times.len()]);
        for i in 1..times.len() {
            for j in 0..i {
                if times[j] <= times[i] && dp[j] + 1 > dp[i] {
                    (dp[i], parent[i]) = (dp[j] + 1, Some(j));
                }
            }
        }
        let most = dp.iter().max().copied();
        let mut at = dp.iter().position(|length| Some(*length) == most);
        let mut right = vec![false; times.len()];
        while let Some(here) = at {
            right[here] = true;
            at = parent[here];
        }
        right
    }

    proptest! {
        #[test]
        fn the_run_is_the_one_that_the_reference_finds(times in prop::collection::vec(0u8..12, 0..40)) {
            let times: Vec<f64> = times.into_iter().map(f64::from).collect();
            prop_assert_eq!(longest_run(&times), searched(&times));
        }

        #[test]
        fn mended_times_never_fall(times in prop::collection::vec(0u32..400_000, 0..60)) {
            let mended = repaired(&times.iter().copied().map(f64::from).collect::<Vec<_>>());
            prop_assert_eq!(mended.len(), times.len());
            prop_assert!(mended.is_sorted(), "{:?}", mended);
        }
    }

    #[test]
    fn few_wrong_times_take_the_nearer_one_and_many_are_spread() {
        assert_eq!(repaired(&[80.0, 4000.0, 160.0, 240.0]), [80, 80, 160, 240]);
        assert_eq!(repaired(&[80.0, 9000.0, 9000.0, 160.0, 240.0, 320.0]), [80, 80, 160, 160, 240, 320]);
        let many = [80.0, 160.0, 240.0, 320.0, 0.0, 0.0, 0.0, 800.0, 880.0];
        assert_eq!(repaired(&many), [80, 160, 240, 320, 440, 560, 680, 800, 880]);
        assert_eq!(repaired(&[500.0, 80.0, 160.0]), [80, 80, 160]);
        assert_eq!(repaired(&[]), [0u64; 0]);
    }
}
