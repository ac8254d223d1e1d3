//! Compares tensors: tolerances, and the first difference.

use super::value::{Data, Values};

/// What a comparison of all tensors of a case found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Tensors that were compared.
    pub compared: usize,
    /// Those of them that hold whole numbers.
    pub integers: usize,
    /// The float tensor with the largest absolute error.
    pub largest: Option<FloatError>,
    /// The float tensor that is furthest beyond its tolerance.
    pub worst: Option<FloatError>,
    /// The first token, code or position that differs, in the order in which the model makes them.
    pub difference: Option<Difference>,
    /// Tensors whose shapes do not agree although the tokens do, or that hold values that are not finite.
    pub misfits: Vec<String>,
    /// Tensors of the reference that this program does not compute.
    pub unknown: Vec<String>,
}

/// The error of one float tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatError {
    /// Which tensor.
    pub tensor: String,
    /// Largest absolute difference.
    pub error: f32,
    /// The largest error allowed.
    pub allowed: f32,
}

/// Two whole numbers that should be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which tensor.
    pub tensor: String,
    /// Where in it.
    pub index: Vec<usize>,
    /// What the reference has; `None` when it is shorter.
    pub expected: Option<i64>,
    /// What was computed; `None` when it is shorter.
    pub got: Option<i64>,
}

impl Comparison {
    /// Everything that was compared agrees.
    pub fn passed(&self) -> bool {
        self.worst.is_none() && self.difference.is_none() && self.misfits.is_empty()
    }

    /// Adds the comparison of another request of the same case.
    pub(super) fn absorb(&mut self, other: Comparison) {
        let larger = |a: Option<FloatError>, b: Option<FloatError>, size: fn(&FloatError) -> f32| match (a, b) {
            (Some(a), Some(b)) => Some(if size(&b) > size(&a) { b } else { a }),
            (a, b) => a.or(b),
        };
        self.compared += other.compared;
        self.integers += other.integers;
        self.largest = larger(self.largest.take(), other.largest, |error| error.error);
        self.worst = larger(self.worst.take(), other.worst, |error| error.error / error.allowed);
        self.difference = self.difference.take().or(other.difference);
        self.misfits.extend(other.misfits);
        self.unknown.extend(other.unknown);
    }

    /// Puts the number of a request behind the name of every tensor, as the reference writes it.
    pub(super) fn name_request(&mut self, index: usize) {
        let errors = self.largest.iter_mut().chain(&mut self.worst).map(|error| &mut error.tensor);
        for tensor in errors.chain(self.difference.iter_mut().map(|difference| &mut difference.tensor)) {
            tensor.push_str(&format!(".{index}"));
        }
        self.misfits.iter_mut().for_each(|text| text.push_str(&format!(" in request {index}")));
        self.unknown.iter_mut().for_each(|tensor| tensor.push_str(&format!(".{index}")));
    }
}

/// Compares everything that both sides have. Inputs (`in.*`) are not results.
pub fn compare(reference: &Values, computed: &Values) -> Comparison {
    let mut found = Comparison::default();
    let mut differences = Vec::new();
    for (name, expected) in reference.iter().filter(|(name, _)| !name.starts_with("in.")) {
        let Some(got) = computed.get(name) else {
            found.unknown.push(name.clone());
            continue;
        };
        found.compared += 1;
        match (&expected.data, &got.data) {
            (Data::Ints(want), Data::Ints(have)) => {
                found.integers += 1;
                differences.extend(first_difference(name, (&expected.shape, want), (&got.shape, have)));
            }
            (Data::Floats(want), Data::Floats(have)) if expected.shape == got.shape => {
                found.floats(name, want, have);
            }
            (Data::Floats(_), Data::Floats(_)) => {
                found.misfits.push(format!("{name} has shape {:?}, got {:?}", expected.shape, got.shape));
            }
            _ => found.misfits.push(format!("{name} mixes floats and whole numbers")),
        }
    }
    differences.sort_by_key(|difference| stage_of(&difference.tensor));
    found.difference = differences.into_iter().next();
    if found.difference.is_some() {
        // Fewer tokens cause other shapes: report the tokens only.
        found.misfits.retain(|text| !text.contains(" has shape "));
    }
    found
}

impl Comparison {
    fn floats(&mut self, name: &str, want: &[f32], have: &[f32]) {
        let magnitude = want.iter().fold(0f32, |max, x| max.max(x.abs()));
        let error = want
            .iter()
            .zip(have)
            .map(|(a, b)| (a - b).abs())
            .fold(0f32, |max, e| if e > max || e.is_nan() { e } else { max });
        if !error.is_finite() {
            self.misfits.push(format!("{name} holds numbers that are not finite"));
            return;
        }
        let found = FloatError { tensor: name.to_owned(), error, allowed: allowed(name, magnitude) };
        if self.largest.as_ref().is_none_or(|largest| error > largest.error) {
            self.largest = Some(found.clone());
        }
        let excess = |e: &FloatError| e.error / e.allowed;
        if error > found.allowed && self.worst.as_ref().is_none_or(|worst| excess(&found) > excess(worst)) {
            self.worst = Some(found);
        }
    }
}

/// Largest absolute error of a float tensor whose largest element is `magnitude`, for f32 on the CPU.
fn allowed(name: &str, magnitude: f32) -> f32 {
    if name.starts_with("wav") {
        return 2e-4;
    }
    let embeddings = ["inputs_embeds", "prefill.hidden.0", "hidden0.all", "trailing_text_hidden", "tts_pad_embed"];
    if embeddings.iter().any(|suffix| name.ends_with(suffix)) {
        return 1e-5 * magnitude.max(1.0);
    }
    (1e-3 * magnitude).max(1e-4)
}

/// The order in which a pipeline computes its tensors.
fn stage_of(name: &str) -> usize {
    let order = ["input_ids", "thinker.prefill", "thinker.", "talker.prefill", "talker.codec0", "codes"];
    order.iter().position(|prefix| name.starts_with(prefix)).unwrap_or(order.len())
}

/// The first difference with the last dimension (time) as the slowest, so that of two codes the earlier frame counts.
fn first_difference(
    name: &str,
    (want_shape, want): (&[usize], &[i64]),
    (have_shape, have): (&[usize], &[i64]),
) -> Option<Difference> {
    let differs = |index: Vec<usize>, expected, got| Some(Difference { tensor: name.to_owned(), index, expected, got });
    let (Some((want_time, want_embeddings)), Some((have_time, have_embeddings))) =
        (want_shape.split_last(), have_shape.split_last())
    else {
        return if want == have { None } else { differs(vec![], want.first().copied(), have.first().copied()) };
    };
    if want_embeddings != have_embeddings {
        return differs(vec![], None, None);
    }
    let embeddings = want_embeddings.iter().product::<usize>();
    for time in 0..*want_time.max(have_time) {
        for embedding in 0..embeddings {
            let expected = (time < *want_time).then(|| want[embedding * want_time + time]);
            let got = (time < *have_time).then(|| have[embedding * have_time + time]);
            if expected != got {
                return differs(unravel(embedding, want_embeddings).chain([time]).collect(), expected, got);
            }
        }
    }
    None
}

fn unravel(mut at: usize, dims: &[usize]) -> impl Iterator<Item = usize> {
    let mut index: Vec<usize> = dims
        .iter()
        .rev()
        .map(|dim| {
            let i = at % dim;
            at /= dim;
            i
        })
        .collect();
    index.reverse();
    index.into_iter()
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |n: &Option<i64>| n.map_or("the end".to_owned(), |n| n.to_string());
        if self.expected.is_none() && self.got.is_none() {
            return write!(f, "{} has another shape", self.tensor);
        }
        write!(f, "{}{:?}: expected {}, got {}", self.tensor, self.index, number(&self.expected), number(&self.got))
    }
}

impl std::fmt::Display for FloatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1e} in {}", self.error, self.tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::Value;
    use super::*;

    fn values(entries: Vec<(&str, Value)>) -> Values {
        entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn floats(data: &[f32]) -> Value {
        Value { shape: vec![data.len()], data: Data::Floats(data.to_vec()) }
    }

    #[test]
    fn equal_tokens_and_close_floats_pass() {
        let reference =
            values(vec![("codes", Value::ints([1, 2, 2], [1, 2, 3, 4])), ("x.logits", floats(&[1.0, -9.0]))]);
        let computed =
            values(vec![("codes", Value::ints([1, 2, 2], [1, 2, 3, 4])), ("x.logits", floats(&[1.008, -9.0]))]);
        let found = compare(&reference, &computed);
        assert!(found.passed(), "{found:?}");
        assert_eq!(found.compared, 2);
        assert_eq!(found.largest.unwrap().tensor, "x.logits");
    }

    #[test]
    fn the_first_differing_code_is_that_of_the_earliest_frame() {
        let reference = values(vec![("codes", Value::ints([1, 2, 3], [1, 2, 9, 4, 5, 6]))]);
        let computed = values(vec![("codes", Value::ints([1, 2, 3], [1, 2, 3, 4, 7, 6]))]);
        let found = compare(&reference, &computed).difference.unwrap();
        assert_eq!(found.to_string(), "codes[0, 1, 1]: expected 5, got 7");
    }

    #[test]
    fn a_sequence_that_is_cut_short_differs_at_its_end() {
        let reference =
            values(vec![("thinker.sequences", Value::ints([1, 3], [1, 2, 3])), ("codes", Value::ints([1], [1]))]);
        let computed =
            values(vec![("thinker.sequences", Value::ints([1, 2], [1, 2])), ("codes", Value::ints([1], [2]))]);
        let found = compare(&reference, &computed).difference.unwrap();
        assert_eq!(found.to_string(), "thinker.sequences[0, 2]: expected 3, got the end");
    }

    #[test]
    fn an_error_beyond_tolerance_or_not_a_number_fails() {
        let far = compare(&values(vec![("wav", floats(&[0.1]))]), &values(vec![("wav", floats(&[0.1004]))]));
        assert_eq!(far.worst.as_ref().unwrap().tensor, "wav");
        assert!(!far.passed());
        let nan = compare(&values(vec![("wav", floats(&[0.1]))]), &values(vec![("wav", floats(&[f32::NAN]))]));
        assert!(!nan.passed());
    }

    #[test]
    fn embeddings_are_held_to_a_tighter_tolerance_than_logits() {
        let off = |name: &str| {
            compare(&values(vec![(name, floats(&[0.5]))]), &values(vec![(name, floats(&[0.500_05]))])).passed()
        };
        assert!(!off("talker.prefill.inputs_embeds"));
        assert!(off("talker.prefill.logits"));
    }

    #[test]
    fn what_is_not_computed_is_said_and_inputs_are_not_results() {
        let reference = values(vec![("in.pixel_values", floats(&[1.0])), ("frame_hidden", floats(&[1.0]))]);
        let found = compare(&reference, &Values::new());
        assert_eq!(found.unknown, ["frame_hidden"]);
        assert!(found.passed());
    }
}
