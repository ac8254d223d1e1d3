//! What a listener heard against what it would have heard undisturbed, and what a difference looks like. Pure.

use serde::Serialize;

/// Windows in which a displaced part is looked for, in samples: first one that nothing but speech itself matches, then
/// shorter ones for parts that are not as long.
const WINDOWS: [usize; 3] = [480, 64, 16];

/// Where two streams part, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The first sample that differs, or that one of the streams does not have.
    pub at: usize,
    /// What it looks like.
    #[serde(flatten)]
    pub looks: Looks,
}

/// What a difference looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "looks", rename_all = "lowercase")]
pub enum Looks {
    /// So many samples are missing.
    Lost {
        /// How many.
        samples: usize,
    },
    /// So many samples were heard a second time.
    Repeated {
        /// How many.
        samples: usize,
    },
    /// What should have come here came later.
    Reordered {
        /// By how many samples the stream is ahead there.
        samples: usize,
    },
    /// Other samples, which stand nowhere in the truth.
    Changed {
        /// How many of the samples that both streams have are others.
        samples: usize,
    },
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, samples) = match self.looks {
            Looks::Lost { samples } => ("lost", samples),
            Looks::Repeated { samples } => ("repeated", samples),
            Looks::Reordered { samples } => ("reordered", samples),
            Looks::Changed { samples } => ("changed", samples),
        };
        write!(f, "sample {}: {samples} {what}", self.at)
    }
}

/// The first difference of `heard` from `truth`, bit by bit; `None` if there is none.
pub fn compare(truth: &[f32], heard: &[f32]) -> Option<Difference> {
    let parts = truth.iter().zip(heard).position(|(a, b)| a.to_bits() != b.to_bits());
    let at = match parts {
        Some(at) => at,
        None if truth.len() == heard.len() => return None,
        None => truth.len().min(heard.len()),
    };
    Some(Difference { at, looks: looks(truth, heard, at) })
}

fn looks(truth: &[f32], heard: &[f32], at: usize) -> Looks {
    let (owed, got) = (&truth[at..], &heard[at..]);
    if got.is_empty() {
        return Looks::Lost { samples: owed.len() };
    }
    for window in WINDOWS {
        let Some(part) = got.get(..window.min(got.len())).filter(|part| part.len() >= WINDOWS[2]) else { break };
        if let Some(ahead) = find(owed, part).filter(|ahead| *ahead > 0) {
            let skipped = &owed[..ahead.min(window)];
            return match find(got, skipped) {
                Some(_) => Looks::Reordered { samples: ahead },
                None => Looks::Lost { samples: ahead },
            };
        }
        // The nearest one: a listener hears a repetition of what was just said.
        if let Some(back) = (1..=at).find(|back| starts_with(&truth[at - back..], part)) {
            return Looks::Repeated { samples: back };
        }
    }
    let others = owed.iter().zip(got).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    Looks::Changed { samples: others.max(got.len().saturating_sub(owed.len())) }
}

fn find(all: &[f32], part: &[f32]) -> Option<usize> {
    (0..=all.len().checked_sub(part.len())?).find(|at| starts_with(&all[*at..], part))
}

fn starts_with(all: &[f32], part: &[f32]) -> bool {
    all.len() >= part.len() && all.iter().zip(part).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// No two samples alike, so that where a part comes from is never in doubt.
    fn speech(samples: usize) -> Vec<f32> {
        (0..samples).map(|i| i as f32 * 1e-4).collect()
    }

    fn differs(truth: &[f32], heard: &[f32]) -> Difference {
        compare(truth, heard).expect("they differ")
    }

    #[test]
    fn a_stream_that_is_the_same_bit_by_bit_has_no_difference() {
        assert_eq!(compare(&speech(1000), &speech(1000)), None);
        assert_eq!(compare(&[f32::NAN], &[f32::NAN]), None);
        assert_eq!(compare(&[], &[]), None);
    }

    #[test]
    fn zeros_of_either_sign_are_different_samples() {
        assert_eq!(differs(&[0.0], &[-0.0]), Difference { at: 0, looks: Looks::Changed { samples: 1 } });
    }

    #[test]
    fn a_stream_that_says_nothing_has_lost_everything() {
        assert_eq!(differs(&speech(50), &[]), Difference { at: 0, looks: Looks::Lost { samples: 50 } });
    }

    #[test]
    fn sound_where_none_is_owed_is_a_change() {
        assert_eq!(differs(&[], &speech(50)).looks, Looks::Changed { samples: 50 });
    }

    #[test]
    fn the_start_said_again_at_the_end_is_a_repetition() {
        let mut heard = speech(1000);
        heard.extend_from_slice(&speech(1000));
        assert_eq!(differs(&speech(1000), &heard), Difference { at: 1000, looks: Looks::Repeated { samples: 1000 } });
    }

    #[test]
    fn the_text_of_a_difference_names_its_place_and_kind() {
        let difference = Difference { at: 7, looks: Looks::Lost { samples: 1920 } };
        assert_eq!(difference.to_string(), "sample 7: 1920 lost");
    }

    proptest! {
        #[test]
        fn what_is_cut_out_is_lost(length in 600usize..3000, at in 0usize..3000, gap in 1usize..600) {
            let truth = speech(length);
            let at = at % (length - 1);
            let gap = gap.min(length - at);
            // What is left behind the gap must be long enough to be recognized, or nothing.
            let rest = length - at - gap;
            prop_assume!(rest == 0 || rest >= WINDOWS[2]);
            let heard = [&truth[..at], &truth[at + gap..]].concat();
            prop_assert_eq!(differs(&truth, &heard), Difference { at, looks: Looks::Lost { samples: gap } });
        }

        #[test]
        fn what_is_said_twice_is_repeated(length in 600usize..3000, at in 0usize..3000, again in 16usize..600) {
            let truth = speech(length);
            let at = again + at % (length - again);
            let heard = [&truth[..at], &truth[at - again..]].concat();
            prop_assert_eq!(differs(&truth, &heard), Difference { at, looks: Looks::Repeated { samples: again } });
        }

        #[test]
        fn two_parts_that_change_places_are_reordered(
            before in 0usize..1000, first in 16usize..600, second in 16usize..600, after in 0usize..1000,
        ) {
            let truth = speech(before + first + second + after);
            let (a, b) = (before + first, before + first + second);
            let heard = [&truth[..before], &truth[a..b], &truth[before..a], &truth[b..]].concat();
            let expected = Difference { at: before, looks: Looks::Reordered { samples: first } };
            prop_assert_eq!(differs(&truth, &heard), expected);
        }

        #[test]
        fn a_sample_that_is_another_is_changed(length in 1usize..2000, at in 0usize..2000) {
            let (truth, mut heard, at) = (speech(length), speech(length), at % length);
            heard[at] += 7.0;
            prop_assert_eq!(differs(&truth, &heard), Difference { at, looks: Looks::Changed { samples: 1 } });
        }

        #[test]
        fn no_two_streams_make_it_fail(
            truth in prop::collection::vec(-2i8..2, 0..200), heard in prop::collection::vec(-2i8..2, 0..200),
        ) {
            let (truth, heard): (Vec<f32>, Vec<f32>) =
                (truth.iter().map(|x| f32::from(*x)).collect(), heard.iter().map(|x| f32::from(*x)).collect());
            prop_assert_eq!(compare(&truth, &heard).is_none(), truth == heard);
        }
    }
}
