//! One line per case.

use super::compare::Comparison;
use std::fmt;

/// What became of a case.
#[derive(Clone, Debug)]
pub struct Report {
    /// The case.
    pub name: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a case.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It was run and compared; see [`Comparison::passed`].
    Compared {
        /// What was found.
        comparison: Box<Comparison>,
        /// What a reader should know about it.
        notes: Vec<String>,
    },
    /// It could not be run.
    Broken(String),
    /// It belongs to another checkpoint than the one that was asked for.
    Other(String),
    /// This program does not run such cases yet.
    Skipped(String),
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub other: usize,
}

impl Report {
    /// Whether something is wrong.
    pub fn failed(&self) -> bool {
        match &self.verdict {
            Verdict::Compared { comparison, .. } => !comparison.passed(),
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
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { passed, failed, skipped, other } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped, {other} for other checkpoints")
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

/// Errors may list problems on lines of their own; a case has one line.
fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
