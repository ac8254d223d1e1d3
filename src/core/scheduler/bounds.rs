//! How much fits into one step.

/// What chunks fit into one step. A device runs the chunks of one length together and those of different lengths one
/// after the other, so a step takes one length only, that of its most urgent sequence: no listener waits for
/// the chunks of others who need them less.
pub(super) struct StepBounds {
    /// Units of the whole step.
    most: Option<u32>,
    units: u32,
    /// Length of the chunks, and whether they are of a prompt.
    alike: Option<(u32, bool)>,
}

impl StepBounds {
    /// Of a step without chunks.
    pub fn new(most: Option<u32>) -> StepBounds {
        StepBounds { most, units: 0, alike: None }
    }

    /// Whether a chunk goes into the step, and if so, takes it in.
    pub fn admit(&mut self, advance: u32, prefilling: bool) -> bool {
        let Some(most) = self.most.filter(|_| advance > 0) else { return true };
        let fits = match self.alike {
            None => true,
            Some(alike) => alike == (advance, prefilling) && self.units + advance <= most,
        };
        if fits {
            self.alike = Some((advance, prefilling));
            self.units += advance;
        }
        fits
    }
}
