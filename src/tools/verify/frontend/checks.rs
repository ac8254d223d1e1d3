//! Collects comparisons of one case, each with its own tolerance (the front ends' are not those of nets).

use crate::verify::compare::{Comparison, Difference, FloatError};
use crate::verify::value::{Data, Values};

/// Comparisons so far.
#[derive(Default)]
pub(super) struct Checks {
    found: Comparison,
    seen: Vec<String>,
}

impl Checks {
    /// What was found. Tensors that nothing was compared with are said to be unknown.
    pub fn finish(mut self, reference: &Values) -> Comparison {
        self.found.unknown = reference.keys().filter(|name| !self.seen.contains(name)).cloned().collect();
        self.found
    }

    fn compared(&mut self, name: &str) {
        self.found.compared += 1;
        self.seen.push(name.to_owned());
    }

    /// Whole numbers of a tensor, of whatever shape, which must be equal.
    pub fn tensor(&mut self, reference: &Values, name: &str, got: impl IntoIterator<Item = i64>) -> Result<(), String> {
        match reference.get(name).map(|value| &value.data) {
            Some(Data::Ints(want)) => {
                self.equal(name, want, &got.into_iter().collect::<Vec<_>>());
                Ok(())
            }
            Some(Data::Floats(_)) => Err(format!("{name} has floats: expected whole numbers")),
            None => Err(format!("the tensor {name} is missing")),
        }
    }

    /// Floats of a tensor, each at most `allowed` away.
    pub fn floats(&mut self, reference: &Values, name: &str, got: &[f32], allowed: f32) -> Result<(), String> {
        let want = floats(reference, name)?;
        if want.len() != got.len() {
            self.compared(name);
            self.found.misfits.push(format!("{name} has {} numbers, got {}", want.len(), got.len()));
            return Ok(());
        }
        let error = want.iter().zip(got).map(|(a, b)| (a - b).abs());
        // The largest, or what is no number.
        let error = error.fold(0f32, |max, e| if e > max || e.is_nan() { e } else { max });
        self.bound(name, error, allowed);
        Ok(())
    }

    /// Whole numbers that must be equal.
    pub fn equal(&mut self, name: &str, want: &[i64], got: &[i64]) {
        self.compared(name);
        self.found.integers += 1;
        let at = (0..want.len().max(got.len())).find(|at| want.get(*at) != got.get(*at));
        if let (Some(at), None) = (at, &self.found.difference) {
            let (expected, got) = (want.get(at).copied(), got.get(at).copied());
            self.found.difference = Some(Difference { tensor: name.to_owned(), index: vec![at], expected, got });
        }
    }

    /// Whole numbers of `meta`, which must be equal.
    pub fn counts(&mut self, name: &str, want: &[usize], got: &[usize]) {
        let ints = |counts: &[usize]| counts.iter().map(|n| *n as i64).collect::<Vec<_>>();
        self.equal(name, &ints(want), &ints(got));
    }

    /// Texts that must be equal.
    pub fn texts(&mut self, name: &str, want: &str, got: &str) {
        self.compared(name);
        if want != got {
            let at = want.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
            self.found.misfits.push(format!("{name} differs at byte {at}"));
        }
    }

    /// An error and the largest that is allowed.
    pub fn bound(&mut self, name: &str, error: f32, allowed: f32) {
        self.compared(name);
        let found = FloatError { tensor: name.to_owned(), error, allowed };
        if !error.is_finite() {
            self.found.misfits.push(format!("{name} holds numbers that are not finite"));
        } else if error > allowed && self.found.worst.is_none() {
            self.found.worst = Some(found.clone());
        }
        if self.found.largest.as_ref().is_none_or(|largest| error > largest.error) {
            self.found.largest = Some(found);
        }
    }
}

/// The numbers of a float tensor.
pub(super) fn floats<'a>(reference: &'a Values, name: &str) -> Result<&'a [f32], String> {
    match reference.get(name).map(|value| &value.data) {
        Some(Data::Floats(floats)) => Ok(floats),
        Some(Data::Ints(_)) => Err(format!("{name} has whole numbers: expected floats")),
        None => Err(format!("the tensor {name} is missing")),
    }
}
