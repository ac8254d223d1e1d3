//! The prompt of a thinker that computes nothing: tokens, and rows that have come for the positions that stand for media.

use super::expect::read;
use omni_core::random::mix;
use omni_model::ModelError;
use omni_model::error::refused;
use omni_model::media::MediaLayout;
use omni_model::stage::ThinkerSpec;
use omni_model::stages::thinker::prompt_positions;
use std::collections::BTreeMap;

/// The rows of a prompt, in the order in which its spans stand.
pub(super) struct Rows {
    /// Which row each position stands for.
    at: BTreeMap<u32, usize>,
    /// Behind the rows of each span.
    ends: Vec<usize>,
    come: Vec<u32>,
}

impl Rows {
    /// Nothing has come yet.
    pub fn of(layout: Option<&MediaLayout>) -> Rows {
        let mut rows = Rows { at: BTreeMap::new(), ends: Vec::new(), come: Vec::new() };
        for span in layout.iter().flat_map(|layout| &layout.spans) {
            for at in span.at.iter().cloned().flatten() {
                let row = rows.at.len();
                rows.at.insert(at as u32, row);
            }
            rows.ends.push(rows.at.len());
        }
        rows
    }

    /// All have come.
    pub fn all(layout: Option<&MediaLayout>, come: Vec<u32>) -> Rows {
        Rows { come, ..Rows::of(layout) }
    }

    /// More have come, all of one span.
    pub fn push(&mut self, rows: &[u32], end: bool) -> Result<(), ModelError> {
        let left = self.ends.iter().find(|end| **end > self.come.len()).map_or(0, |end| end - self.come.len());
        if rows.len() > left {
            return refused(format!("{} rows of a span that lacks {left}", rows.len()));
        }
        self.come.extend(rows);
        if end && self.come.len() < self.at.len() {
            return refused(format!("the rows ended with {} of {}", self.come.len(), self.at.len()));
        }
        Ok(())
    }
}

/// Reads positions of a prompt. Returns what the talker needs of them: tokens, and what was known at each row.
pub(super) fn prefill(
    spec: &ThinkerSpec,
    rows: &Rows,
    from: u32,
    count: u32,
    state: &mut u64,
) -> Result<Vec<u32>, ModelError> {
    let mut known = BTreeMap::new();
    for at in from..from + count {
        *state = read(*state, spec.prompt[at as usize]);
        if let Some(row) = rows.at.get(&at) {
            let Some(row) = rows.come.get(*row) else {
                return refused(format!("the embedding of prompt position {at} has not come"));
            };
            *state = mix(*state, 0x1000 + u64::from(*row));
            // No token is as large.
            known.insert(at, *state as u32 & 0x7F_FFFF | 0x80_0000);
        }
    }
    let needed = prompt_positions(spec, from, count);
    Ok(needed.map(|at| known.get(&at).copied().unwrap_or(spec.prompt[at as usize])).collect())
}
