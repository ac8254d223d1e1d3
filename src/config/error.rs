//! Errors of a config: everything that is wrong with it, in one list.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line of the file, from 1; `None` for values of the command line and for what spans lines.
    pub line: Option<usize>,
    /// Dotted path of the key; empty for the whole file.
    pub key: String,
    /// What was written, as TOML; `None` for an unknown key or section.
    pub value: Option<String>,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            f.write_str(&self.key)?;
            if let Some(value) = &self.value {
                write!(f, " = {value}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file was read; these things in it are wrong.
    #[error("{}", listed(.0))]
    Problems(Vec<Problem>),
}

impl ConfigError {
    /// What is wrong, one by one; empty for a file that could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ConfigError::Io { .. } => &[],
            ConfigError::Problems(problems) => problems,
        }
    }
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
