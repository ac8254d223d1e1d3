//! Whether a stream was what it should be. Pure.

use super::compare::{Difference, compare};
use omni_core::ids::StageName;
use omni_core::suspects::TRIES_IN_ALL;
use omni_engine::{FinishReason, Usage};
use serde::Serialize;
use std::time::Duration;

/// How a stream ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// With its last event.
    Finished(FinishReason, Usage),
    /// With an error.
    Failed(String),
    /// With the error of a request that brought this stage down so often.
    Ended(StageName, u32),
    /// It was never accepted.
    Refused(String),
    /// Nothing came for so long that the listener gave up.
    Hung(Duration),
}

/// All that a listener heard.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// Of all chunks.
    pub samples: Vec<f32>,
    /// Of all pieces.
    pub text: String,
    /// How it ended.
    pub end: End,
}

/// How one stream compares with the undisturbed one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// Not a bit differs.
    Identical,
    /// Something was lost, repeated, reordered or changed.
    Wrong {
        /// In the samples.
        #[serde(flatten)]
        samples: Option<Difference>,
        /// The first character of the text that differs.
        text_at: Option<usize>,
        /// How it should have ended, and how it did.
        end: Option<String>,
    },
    /// It brings a stage down each time, and ended with the error that says so after at most two failures more than the
    /// first.
    Ended {
        /// Which stage.
        stage: StageName,
        /// How often it did.
        times: u32,
    },
    /// It ended with an error.
    Failed {
        /// Which.
        error: String,
    },
    /// It was not accepted, however often it asked.
    Refused {
        /// Why.
        error: String,
    },
    /// Nothing came for too long.
    Hung {
        /// For how long, in seconds.
        after_s: f64,
    },
}

impl Verdict {
    /// Whether the stream was as it should be.
    pub fn is_good(&self) -> bool {
        matches!(self, Verdict::Identical | Verdict::Ended { .. })
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Identical => f.write_str("identical"),
            Verdict::Ended { stage, times } => write!(f, "ended after it had brought the {stage} down {times} times"),
            Verdict::Failed { error } => write!(f, "failed: {error}"),
            Verdict::Refused { error } => write!(f, "refused: {error}"),
            Verdict::Hung { after_s } => write!(f, "hung: nothing came for {after_s:.1} s"),
            Verdict::Wrong { samples, text_at, end } => {
                let text = text_at.map(|at| format!("text differs at character {at}"));
                let parts = [samples.map(|samples| samples.to_string()), text, end.clone()];
                f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// Judges a stream by the undisturbed one.
pub fn judge(truth: &Heard, heard: &Heard) -> Verdict {
    match &heard.end {
        // Other faults may have come between its own.
        End::Ended(stage, times)
            if matches!(truth.end, End::Ended(of, _) if of == *stage) && *times <= TRIES_IN_ALL =>
        {
            return Verdict::Ended { stage: *stage, times: *times };
        }
        End::Ended(stage, times) => {
            let error = format!("it is said to have brought the {stage} down {times} times");
            return Verdict::Failed { error };
        }
        End::Failed(error) => return Verdict::Failed { error: error.clone() },
        End::Refused(error) => return Verdict::Refused { error: error.clone() },
        End::Hung(after) => return Verdict::Hung { after_s: after.as_secs_f64() },
        End::Finished(..) => {}
    }
    let samples = compare(&truth.samples, &heard.samples);
    let text_at = differs(&truth.text, &heard.text);
    let end = (truth.end != heard.end).then(|| format!("ended with {:?} instead of {:?}", heard.end, truth.end));
    match (samples, text_at, end) {
        (None, None, None) => Verdict::Identical,
        (samples, text_at, end) => Verdict::Wrong { samples, text_at, end },
    }
}

fn differs(truth: &str, heard: &str) -> Option<usize> {
    let longer = truth.chars().count().max(heard.chars().count());
    (0..longer)
        .zip(truth.chars().map(Some).chain(std::iter::repeat(None)))
        .zip(heard.chars().map(Some).chain(std::iter::repeat(None)))
        .find(|((_, truth), heard)| truth != heard)
        .map(|((at, _), _)| at)
}

#[cfg(test)]
mod tests {
    use super::super::compare::Looks;
    use super::*;

    fn heard(samples: &[f32], text: &str) -> Heard {
        let end = End::Finished(FinishReason::Stop, Usage::default());
        Heard { samples: samples.to_vec(), text: text.to_owned(), end }
    }

    #[test]
    fn what_is_the_same_is_identical() {
        let truth = heard(&[0.1, 0.2], "hello");
        assert_eq!(judge(&truth, &truth.clone()), Verdict::Identical);
    }

    #[test]
    fn no_rounding_is_forgiven_and_no_sample_may_lack() {
        let (truth, other) = (heard(&[0.1, 0.2], ""), heard(&[0.1, f32::from_bits(0.2f32.to_bits() + 1)], ""));
        let wrong = judge(&truth, &other);
        assert!(!wrong.is_good());
        assert_eq!(wrong.to_string(), "sample 1: 1 changed");
        let shorter = judge(&truth, &heard(&[0.1], ""));
        let difference = Difference { at: 1, looks: Looks::Lost { samples: 1 } };
        assert_eq!(shorter, Verdict::Wrong { samples: Some(difference), text_at: None, end: None });
    }

    #[test]
    fn a_text_that_differs_is_wrong_whatever_the_samples_are() {
        for (other, at) in [("hellp", 4), ("hell", 4), ("hello!", 5), ("", 0)] {
            let verdict = judge(&heard(&[], "hello"), &heard(&[], other));
            assert_eq!(verdict, Verdict::Wrong { samples: None, text_at: Some(at), end: None });
        }
    }

    #[test]
    fn another_end_is_wrong_and_both_are_named() {
        let (truth, mut other) = (heard(&[0.1], ""), heard(&[0.1], ""));
        other.end = End::Finished(FinishReason::Length, Usage::default());
        let verdict = judge(&truth, &other);
        assert!(!verdict.is_good());
        let said = verdict.to_string();
        assert!(said.contains("Length") && said.contains("Stop"), "{said}");
    }

    #[test]
    fn who_brings_a_stage_down_is_to_be_ended_in_time_and_nobody_else_is() {
        let ended = |stage, times| Heard { end: End::Ended(stage, times), ..heard(&[], "") };
        let truth = ended(StageName::Talker, 3);
        let judge = |truth: &Heard, heard: &Heard| judge(truth, heard).is_good();
        assert!(judge(&truth, &truth));
        assert!(!judge(&truth, &ended(StageName::Talker, TRIES_IN_ALL + 1)), "a failure too many");
        assert!(!judge(&truth, &ended(StageName::Vocoder, 3)), "another stage");
        assert!(!judge(&truth, &heard(&[], "")), "it got through");
        assert!(!judge(&heard(&[0.1], ""), &truth), "it was innocent");
    }

    #[test]
    fn a_stream_without_its_end_is_not_excused_by_what_came_before() {
        let truth = heard(&[0.1], "a");
        for end in [End::Failed("x".into()), End::Refused("y".into()), End::Hung(Duration::from_secs(3))] {
            assert!(!judge(&truth, &Heard { end, ..truth.clone() }).is_good());
        }
    }
}
