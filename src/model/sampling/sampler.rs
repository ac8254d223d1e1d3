//! Picks one token from one vector of logits.

use super::{History, SamplingParams};
use crate::ModelError;
use std::ops::Range;

/// Thinning out fewer candidates than this costs more than keeping them.
const MIN_ROOM: usize = 256;

/// Tokens that are never sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppress {
    /// These ...
    pub range: Range<u32>,
    /// ... but not this one ...
    pub except: Option<u32>,
    /// ... and this one wherever it is.
    pub also: Option<u32>,
}

impl Suppress {
    /// Every token is allowed.
    pub const NONE: Suppress = Suppress { range: 0..0, except: None, also: None };
}

/// Picks tokens. Keeps its buffers between calls, so that it allocates only until they have grown to the vocabulary.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Logits after penalties and suppression.
    scores: Vec<f32>,
    /// Scratch of the selections.
    order: Vec<f32>,
    /// Tokens still possible, in the order of their ids, with their likelihood as a share of the most likely one's.
    kept: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler for up to `vocabulary` tokens without growing.
    pub fn new(vocabulary: usize) -> Sampler {
        Sampler {
            scores: Vec::with_capacity(vocabulary),
            order: Vec::with_capacity(vocabulary.max(MIN_ROOM)),
            kept: Vec::with_capacity(vocabulary),
        }
    }

    /// The token that `uniform` in [0, 1) selects. Of equally likely tokens the one with the lowest id comes first.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when a logit is not a number or infinite, or no token is allowed.
    pub fn sample(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: &History,
        suppress: &Suppress,
        uniform: f32,
    ) -> Result<u32, ModelError> {
        self.penalize(logits, params, history, suppress);
        let (best, max) = self.most_likely(logits)?;
        if params.is_greedy() {
            return Ok(best);
        }
        let least = self.kth_largest(params.top_k as usize);
        self.keep(least, max, params.temperature);
        if params.top_p < 1.0 {
            self.keep_top_p(f64::from(params.top_p));
        }
        if params.min_p > 0.0 {
            self.kept.retain(|(_, weight)| *weight >= params.min_p);
        }
        Ok(self.draw(uniform).unwrap_or(best))
    }

    fn penalize(&mut self, logits: &[f32], params: &SamplingParams, history: &History, suppress: &Suppress) {
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        let off = params.repetition_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0;
        for &(token, count) in if off { &[] } else { history.counts() } {
            let Some(score) = self.scores.get_mut(token as usize) else { continue };
            if *score > 0.0 {
                *score /= params.repetition_penalty;
            } else {
                *score *= params.repetition_penalty;
            }
            if count > 0 {
                *score -= params.frequency_penalty * count as f32 + params.presence_penalty;
            }
        }
        let end = (suppress.range.end as usize).min(logits.len());
        let start = (suppress.range.start as usize).min(end);
        let spared =
            suppress.except.map(|t| t as usize).filter(|t| (start..end).contains(t)).map(|t| (t, self.scores[t]));
        self.scores[start..end].fill(f32::NEG_INFINITY);
        if let Some((token, score)) = spared {
            self.scores[token] = score;
        }
        if let Some(score) = suppress.also.and_then(|token| self.scores.get_mut(token as usize)) {
            *score = f32::NEG_INFINITY;
        }
    }

    /// The first of the largest scores.
    fn most_likely(&self, logits: &[f32]) -> Result<(u32, f32), ModelError> {
        // Suppressed ones are looked at too: one that is not a number means that the sequence's state is lost.
        for values in [logits, &self.scores] {
            if !all_below_infinity(values) {
                let at = values.iter().position(|x| !is_below_infinity(*x)).unwrap_or_default();
                let text = format!("the logit of token {at} is {}, so no token can be sampled", values[at]);
                return Err(ModelError::Sequence(text));
            }
        }
        let max = self.scores.iter().fold(f32::NEG_INFINITY, |max, score| max.max(*score));
        let first = self.scores.iter().position(|score| *score == max);
        match first {
            Some(token) if max > f32::NEG_INFINITY => Ok((token as u32, max)),
            _ => Err(ModelError::Sequence("no token can be sampled: all are suppressed or impossible".into())),
        }
    }

    /// The k-th largest score; minus infinity when there are not more than k, or `k` is 0.
    fn kth_largest(&mut self, k: usize) -> f32 {
        if !(1..self.scores.len()).contains(&k) {
            return f32::NEG_INFINITY;
        }
        // Candidates are gathered until there are several times as many as needed, then thinned out: most scores cost
        // one comparison.
        let room = k.saturating_mul(4).max(MIN_ROOM);
        let mut least = f32::NEG_INFINITY;
        self.order.clear();
        for &score in &self.scores {
            if score > least {
                self.order.push(score);
                if self.order.len() == room {
                    least = nth_largest(&mut self.order, k);
                    self.order.truncate(k);
                }
            }
        }
        if self.order.len() < k { f32::NEG_INFINITY } else { nth_largest(&mut self.order, k) }
    }

    /// Fills `kept` with what scores at least `least`.
    fn keep(&mut self, least: f32, max: f32, temperature: f32) {
        let passing = self.scores.iter().enumerate().filter(|(_, score)| **score >= least);
        let weighed = passing.map(|(token, score)| (token as u32, ((score - max) / temperature).exp()));
        self.kept.clear();
        self.kept.extend(weighed.filter(|(_, weight)| *weight > 0.0));
    }

    /// Drops the tail: a token stays while the tokens before it, most likely first, have less than `p` together.
    fn keep_top_p(&mut self, p: f64) {
        let total = self.total();
        // Tokens this unlikely have less than 1 - p even all together: they go without being sorted.
        let hopeless = (1.0 - p) * total / self.kept.len() as f64;
        self.kept.retain(|(_, weight)| *weight == 1.0 || f64::from(*weight) > hopeless);

        self.order.clear();
        self.order.extend(self.kept.iter().map(|(_, weight)| *weight));
        self.order.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut before = 0.0;
        let mut count = 0;
        for weight in &self.order {
            if count > 0 && before >= p * total {
                break;
            }
            before += f64::from(*weight);
            count += 1;
        }
        // Ties at the border: the lowest ids stay.
        let least = self.order[count - 1];
        let mut ties = self.order[..count].iter().filter(|weight| **weight == least).count();
        self.kept.retain(|(_, weight)| {
            let tie = *weight == least && ties > 0;
            ties -= usize::from(tie);
            *weight > least || tie
        });
    }

    /// Inverts the distribution of `kept` in the order of ids: there, a small change of the logits moves borders by
    /// little, while in the order of likelihood it could swap neighbours.
    fn draw(&self, uniform: f32) -> Option<u32> {
        let target = f64::from(uniform) * self.total();
        let mut sum = 0.0;
        for (token, weight) in &self.kept {
            sum += f64::from(*weight);
            if sum > target {
                return Some(*token);
            }
        }
        None
    }

    fn total(&self) -> f64 {
        self.kept.iter().map(|(_, weight)| f64::from(*weight)).sum()
    }
}

/// The k-th largest of `values`, which then come before all smaller ones.
fn nth_largest(values: &mut [f32], k: usize) -> f32 {
    *values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

/// Whether all are finite.
fn is_below_infinity(x: f32) -> bool {
    x < f32::INFINITY
}

/// Has no early exit, so that the compiler vectorizes it.
fn all_below_infinity(values: &[f32]) -> bool {
    values.iter().fold(true, |all, x| all & is_below_infinity(*x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Domain, uniform};
    use proptest::prelude::*;

    const PLAIN: SamplingParams = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };

    fn history(tokens: &[u32]) -> History {
        let mut history = History::default();
        tokens.iter().for_each(|t| history.push(*t));
        history
    }

    fn pick(logits: &[f32], params: &SamplingParams, tokens: &[u32], suppress: &Suppress, u: f32) -> u32 {
        Sampler::new(logits.len()).sample(logits, params, &history(tokens), suppress, u).unwrap()
    }

    /// Probabilities by the definitions, in f64, sorting everything. The second value is how close a decision was.
    fn reference(logits: &[f32], p: &SamplingParams, tokens: &[u32], suppress: &Suppress) -> (Vec<f64>, f64) {
        let mut scores: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        for (token, score) in scores.iter_mut().enumerate() {
            let count = tokens.iter().filter(|t| **t as usize == token).count();
            if count > 0 {
                let r = f64::from(p.repetition_penalty);
                *score = if *score > 0.0 { *score / r } else { *score * r };
                *score -= f64::from(p.frequency_penalty) * count as f64 + f64::from(p.presence_penalty);
            }
            let token = Some(token as u32);
            if suppress.also == token
                || (token.is_some_and(|t| suppress.range.contains(&t)) && suppress.except != token)
            {
                *score = f64::NEG_INFINITY;
            }
        }
        let mut margin = f64::INFINITY;
        let mut order: Vec<usize> = (0..scores.len()).filter(|t| scores[*t].is_finite()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        if p.top_k > 0 && order.len() > p.top_k as usize {
            let least = scores[order[p.top_k as usize - 1]];
            margin = margin.min(least - scores[order[p.top_k as usize]]);
            order.retain(|t| scores[*t] >= least);
        }
        let softmax = |order: &[usize]| -> Vec<f64> {
            let weights: Vec<f64> =
                order.iter().map(|t| ((scores[*t] - scores[order[0]]) / f64::from(p.temperature)).exp()).collect();
            let total: f64 = weights.iter().sum();
            weights.into_iter().map(|w| w / total).collect()
        };
        if p.top_p < 1.0 {
            let (mut sum, mut keep) = (0.0, 0);
            for prob in softmax(&order) {
                margin = margin.min((sum - f64::from(p.top_p)).abs());
                if keep > 0 && sum >= f64::from(p.top_p) {
                    break;
                }
                sum += prob;
                keep += 1;
            }
            order.truncate(keep);
        }
        let probs = softmax(&order);
        for prob in &probs {
            margin = margin.min((prob / probs[0] - f64::from(p.min_p)).abs());
        }
        let keep = probs.iter().take_while(|prob| **prob / probs[0] >= f64::from(p.min_p)).count();
        order.truncate(keep);
        let mut out = vec![0.0; logits.len()];
        for (token, prob) in order.iter().zip(softmax(&order)) {
            out[*token] = prob;
        }
        (out, margin)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn every_token_is_the_one_that_the_definitions_select(
            logits in prop::collection::vec(-12.0f32..12.0, 1..80),
            tokens in prop::collection::vec(0u32..80, 0..12),
            temperature in 0.2f32..2.0,
            top_k in prop_oneof![Just(0u32), 1u32..90],
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..0.9],
            repetition_penalty in prop_oneof![Just(1.0f32), 0.5f32..2.0],
            frequency_penalty in prop_oneof![Just(0.0f32), -1.0f32..1.0],
            presence_penalty in prop_oneof![Just(0.0f32), -1.0f32..1.0],
            (start, length) in (0u32..80, 0u32..40),
            (except, also) in (prop::option::of(0u32..80), prop::option::of(0u32..80)),
            us in prop::collection::vec(0.0f32..1.0, 8),
        ) {
            let params = SamplingParams {
                temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty,
            };
            let suppress = Suppress { range: start..start + length, except, also };
            let (probs, margin) = reference(&logits, &params, &tokens, &suppress);
            let mut sampler = Sampler::default();
            let history = history(&tokens);
            if probs.iter().all(|p| *p == 0.0) || probs.iter().any(|p| p.is_nan()) {
                prop_assert!(sampler.sample(&logits, &params, &history, &suppress, 0.5).is_err());
                return Ok(());
            }
            prop_assume!(margin > 1e-4);
            for u in us {
                let mut sum = 0.0;
                let borders: Vec<f64> = probs.iter().map(|p| { sum += p; sum }).collect();
                if borders.iter().any(|b| (b - f64::from(u)).abs() < 1e-4) {
                    continue;
                }
                let want = borders.iter().position(|b| *b > f64::from(u)).unwrap();
                let got = sampler.sample(&logits, &params, &history, &suppress, u).unwrap();
                prop_assert_eq!(got as usize, want);
            }
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_after_penalties_and_suppression() {
        let logits = [1.0, 3.0, 3.0, 2.9, 8.0];
        let greedy = SamplingParams::GREEDY;
        let high = Suppress { range: 4..5, ..Suppress::NONE };
        assert_eq!(pick(&logits, &greedy, &[], &Suppress::NONE, 0.9), 4);
        assert_eq!(pick(&logits, &greedy, &[], &high, 0.9), 1);
        assert_eq!(pick(&logits, &greedy, &[], &Suppress { range: 1..5, except: Some(3), also: None }, 0.9), 3);
        let penalized = SamplingParams { repetition_penalty: 1.05, ..greedy };
        assert_eq!(pick(&logits, &penalized, &[1, 1], &high, 0.9), 2);
        assert_eq!(pick(&logits, &penalized, &[1, 2], &high, 0.9), 3);
    }

    #[test]
    fn a_repeated_token_is_penalized_once_by_repetition_and_each_time_by_frequency() {
        let logits = [4.0, 3.5];
        let repetition = SamplingParams { repetition_penalty: 1.1, ..SamplingParams::GREEDY };
        assert_eq!(pick(&logits, &repetition, &[0, 0, 0], &Suppress::NONE, 0.0), 0);
        let frequency = SamplingParams { frequency_penalty: 0.2, ..SamplingParams::GREEDY };
        assert_eq!(pick(&logits, &frequency, &[0, 0], &Suppress::NONE, 0.0), 0);
        assert_eq!(pick(&logits, &frequency, &[0, 0, 0], &Suppress::NONE, 0.0), 1);
        let presence = SamplingParams { presence_penalty: 0.4, ..SamplingParams::GREEDY };
        assert_eq!(pick(&logits, &presence, &[0, 0, 0], &Suppress::NONE, 0.0), 0);
    }

    #[test]
    fn a_negative_logit_is_multiplied_by_the_repetition_penalty() {
        let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::GREEDY };
        assert_eq!(pick(&[-1.0, -1.5], &params, &[0], &Suppress::NONE, 0.0), 1);
    }

    #[test]
    fn prompt_tokens_are_penalized_by_repetition_only() {
        let mut history = History::default();
        history.push_prompt(&[0]);
        let sample = |params| {
            let params = SamplingParams { temperature: 0.0, ..params };
            Sampler::default().sample(&[4.0, 3.5], &params, &history, &Suppress::NONE, 0.0).unwrap()
        };
        assert_eq!(sample(SamplingParams { presence_penalty: 2.0, ..PLAIN }), 0);
        assert_eq!(sample(SamplingParams { repetition_penalty: 2.0, ..PLAIN }), 1);
    }

    #[test]
    fn top_k_keeps_every_tie_of_the_kth() {
        let params = SamplingParams { top_k: 2, ..PLAIN };
        let logits = [1.0, 2.0, 1.0, 0.0];
        let picked: Vec<u32> =
            (0..100).map(|i| pick(&logits, &params, &[], &Suppress::NONE, i as f32 / 100.0)).collect();
        assert!(picked.contains(&0) && picked.contains(&1) && picked.contains(&2) && !picked.contains(&3));
    }

    #[test]
    fn top_p_of_zero_keeps_one_token() {
        let params = SamplingParams { top_p: 0.0, ..PLAIN };
        assert!((0..100).all(|i| pick(&[1.0, 1.0, 1.0], &params, &[], &Suppress::NONE, i as f32 / 100.0) == 0));
    }

    #[test]
    fn a_tiny_temperature_is_greedy_and_not_a_failure() {
        let params = SamplingParams { temperature: 1e-40, ..PLAIN };
        assert_eq!(pick(&[5.0, 90.0, -80.0], &params, &[], &Suppress::NONE, 0.999), 1);
    }

    #[test]
    fn logits_that_are_not_numbers_fail_the_row_alone() {
        for bad in [f32::NAN, f32::INFINITY] {
            let error = Sampler::default()
                .sample(&[0.0, bad], &PLAIN, &History::default(), &Suppress { range: 1..2, ..Suppress::NONE }, 0.5)
                .unwrap_err();
            assert!(matches!(&error, ModelError::Sequence(text) if text.contains("token 1")), "{error}");
        }
        let none =
            Sampler::default().sample(&[f32::NEG_INFINITY; 3], &PLAIN, &History::default(), &Suppress::NONE, 0.5);
        assert!(matches!(none, Err(ModelError::Sequence(_))));
        let empty = Sampler::default().sample(&[], &PLAIN, &History::default(), &Suppress::NONE, 0.5);
        assert!(matches!(empty, Err(ModelError::Sequence(_))));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits: Vec<f32> = (0..40).map(|i| ((i * 7) % 13) as f32 * 0.4).collect();
        let params = SamplingParams { temperature: 0.9, top_k: 20, top_p: 0.9, repetition_penalty: 1.05, ..PLAIN };
        let (probs, _) = reference(&logits, &params, &[3, 12], &Suppress::NONE);
        let (mut sampler, history) = (Sampler::default(), history(&[3, 12]));
        let mut counts = vec![0.0f64; 40];
        let draws = 40_000;
        for step in 0..draws {
            let u = uniform(1234, Domain::Codes, step, 0);
            counts[sampler.sample(&logits, &params, &history, &Suppress::NONE, u).unwrap() as usize] += 1.0;
        }
        let (mut chi, mut kept) = (0.0, 0);
        for (count, prob) in counts.iter().zip(&probs) {
            if *prob == 0.0 {
                assert_eq!(*count, 0.0);
                continue;
            }
            let expected = prob * f64::from(draws);
            chi += (count - expected).powi(2) / expected;
            kept += 1;
        }
        // Mean kept - 1, standard deviation sqrt(2 (kept - 1)): four of them are far out.
        let freedom = f64::from(kept - 1);
        assert!(kept > 5 && chi < freedom + 4.0 * (2.0 * freedom).sqrt(), "{chi} with {kept} tokens");
    }

    #[test]
    fn buffers_do_not_grow_once_they_have_the_size_of_the_vocabulary() {
        let mut sampler = Sampler::new(512);
        let room = |s: &Sampler| (s.scores.capacity(), s.order.capacity(), s.kept.capacity());
        let before = room(&sampler);
        let logits: Vec<f32> = (0..512).map(|i| (i % 97) as f32 * 0.01).collect();
        for top_k in [0, 50] {
            let params = SamplingParams { top_k, top_p: 0.8, ..PLAIN };
            sampler.sample(&logits, &params, &History::default(), &Suppress::NONE, 0.3).unwrap();
        }
        assert_eq!(room(&sampler), before);
    }
}
