//! The report of a run: one line per case.

use super::compare::Comparison;
use std::fmt;

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct Report {
    /// The case.
    pub name: String,
    /// Its outcome.
    pub verdict: Verdict,
}

/// The outcome of a case.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It ran and was compared; see [`Comparison::passed`].
    Compared {
        /// The result.
        comparison: Box<Comparison>,
        /// Remarks for the reader.
        notes: Vec<String>,
    },
    /// It ran on a device that rounds.
    Judged {
        /// The result.
        judgement: Judgement,
        /// Remarks for the reader.
        notes: Vec<String>,
    },
    /// It could not be run.
    Broken(String),
    /// It belongs to another checkpoint than the one that was asked for.
    Other(String),
    /// This program does not run such cases yet.
    Skipped(String),
}

/// Decibels above what is lost that a waveform must have.
const LEAST_SNR: f64 = 40.0;
/// Share of codes 0, over all cases, that must be picked as the reference does. The reference in bf16 picks 92 % of
/// those that it picks in f32 (docs/spec.md, section 13).
const LEAST_SHARE: f64 = 0.9;

/// The result of a case on a device that rounds. Picks are judged over all cases together, because one case has few.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// How often it would have picked the reference's codes.
    pub picks: Picks,
    /// The waveform with the largest loss, and its level above the loss in decibels.
    pub worst: Option<(String, f64)>,
}

/// How often a talker would have picked the reference's codes, which are forced on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picks {
    /// Codes 0.
    pub first: Share,
    /// Codes of all groups.
    pub all: Share,
}

/// A count out of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Share {
    pub agreed: u64,
    pub of: u64,
}

impl Judgement {
    fn passed(&self) -> bool {
        // Written so that NaN fails.
        self.worst.as_ref().is_none_or(|(_, snr)| *snr >= LEAST_SNR)
    }

    fn summary(&self) -> String {
        let mut parts = Vec::new();
        if self.picks.first.of > 0 {
            parts.push(self.picks.to_string());
        }
        if let Some((name, snr)) = &self.worst {
            let least = if self.passed() { String::new() } else { format!(", at least {LEAST_SNR} wanted") };
            parts.push(format!("{name} is {snr:.1} dB above what is lost{least}"));
        }
        parts.join("; ")
    }
}

impl Picks {
    /// Counts one more code.
    pub(super) fn count(&mut self, group: usize, agrees: bool) {
        self.all.add(Share { agreed: agrees.into(), of: 1 });
        if group == 0 {
            self.first.add(Share { agreed: agrees.into(), of: 1 });
        }
    }
}

impl Share {
    fn add(&mut self, other: Share) {
        self.agreed += other.agreed;
        self.of += other.of;
    }

    fn ratio(self) -> f64 {
        self.agreed as f64 / self.of.max(1) as f64
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({:.1} %)", self.agreed, self.of, 100.0 * self.ratio())
    }
}

impl fmt::Display for Picks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "picks the same code 0 in {}, the same codes of all groups in {}", self.first, self.all)
    }
}

/// Cases by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub other: usize,
    pub picks: Picks,
}

impl Report {
    /// Whether the case failed.
    pub fn failed(&self) -> bool {
        match &self.verdict {
            Verdict::Compared { comparison, .. } => !comparison.passed(),
            Verdict::Judged { judgement, .. } => !judgement.passed(),
            Verdict::Broken(_) => true,
            Verdict::Other(_) | Verdict::Skipped(_) => false,
        }
    }
}

impl Summary {
    pub(super) fn count(&mut self, report: &Report) {
        let place = match &report.verdict {
            Verdict::Other(_) => &mut self.other,
            Verdict::Skipped(_) => &mut self.skipped,
            _ if report.failed() => &mut self.failed,
            _ => &mut self.passed,
        };
        *place += 1;
        if let Verdict::Judged { judgement, .. } = &report.verdict {
            self.picks.first.add(judgement.picks.first);
            self.picks.all.add(judgement.picks.all);
        }
    }

    /// Whether no case failed, and the picks of all cases together agree as often as they must.
    pub fn passed_all(&self) -> bool {
        self.failed == 0 && self.picks_pass()
    }

    fn picks_pass(&self) -> bool {
        self.picks.first.of == 0 || self.picks.first.ratio() >= LEAST_SHARE
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.verdict {
            Verdict::Broken(reason) => write!(f, "FAIL  {name}  {}", one_line(reason)),
            Verdict::Other(checkpoint) => write!(f, "OTHER {name}  is for the checkpoint {checkpoint}"),
            Verdict::Skipped(reason) => write!(f, "SKIP  {name}  {}", one_line(reason)),
            Verdict::Compared { comparison, notes } => {
                let word = if comparison.passed() { "PASS " } else { "FAIL " };
                write!(f, "{word} {name}  {}", comparison.summary())?;
                notes.iter().try_for_each(|note| write!(f, "; {note}"))
            }
            Verdict::Judged { judgement, notes } => {
                let word = if judgement.passed() { "PASS " } else { "FAIL " };
                write!(f, "{word} {name}  {}", judgement.summary())?;
                notes.iter().try_for_each(|note| write!(f, "; {note}"))
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { passed, failed, skipped, other, picks } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped, {other} for other checkpoints")?;
        if picks.first.of > 0 {
            write!(f, "; {picks}")?;
        }
        if !self.picks_pass() {
            write!(f, "; at least {} % of codes 0 wanted", 100.0 * LEAST_SHARE)?;
        }
        Ok(())
    }
}

impl Comparison {
    fn summary(&self) -> String {
        let mut parts = Vec::new();
        match (&self.worst, &self.largest) {
            (Some(worst), _) => parts.push(format!("max error {worst}, allowed {:.1e}", worst.allowed)),
            (None, Some(largest)) => parts.push(format!("max error {largest}")),
            (None, None) => {}
        }
        match &self.difference {
            Some(difference) => parts.push(format!("first difference {difference}")),
            None if self.integers > 0 => parts.push("all tokens equal".into()),
            None => {}
        }
        parts.extend(self.misfits.iter().cloned());
        parts.push(format!("{} of {} tensors compared", self.compared, self.compared + self.unknown.len()));
        if !self.unknown.is_empty() {
            parts.push(format!("not computed here: {}", self.unknown.join(", ")));
        }
        parts.join("; ")
    }
}

/// Joins the lines of an error: a case has one line.
fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
