//! Predicts the time to first audio from the number of first sounds that wait already: a line through recent samples.
//!
//! Each tenant has a line of its own, because what one tenant asks for may take longer than what others do.

use super::TenantId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most lines that are kept.
const LINES: usize = 256;

/// What tenants have seen lately. First sounds of chats are another population than those of texts.
#[derive(Debug, Default)]
pub(super) struct TtfaPredictors(BTreeMap<(bool, TenantId), TtfaPredictor>);

impl TtfaPredictors {
    /// A first sound of this tenant took so long with so many ahead of it.
    pub fn learn(&mut self, (chat, tenant): (bool, TenantId), ahead: usize, took: Duration, now: Duration) {
        self.0.entry((chat, tenant)).or_default().learn(ahead, took, now);
        if self.0.len() > LINES
            && let Some(oldest) = self.0.iter().min_by_key(|(_, line)| line.at).map(|(key, _)| *key)
        {
            self.0.remove(&oldest);
        }
    }

    /// When the next first sound of this tenant would come: the least that any tenant would have to expect. What one
    /// other tenant alone has seen proves nothing.
    pub fn expect(&self, (chat, tenant): (bool, TenantId), ahead: usize, now: Duration) -> Option<Duration> {
        let lines = self.0.iter().filter(|((of_chat, _), _)| *of_chat == chat);
        let known: Vec<_> = lines.filter_map(|((_, who), line)| Some((*who, line.expect(ahead, now)?))).collect();
        match known.as_slice() {
            [(only, _)] if *only != tenant => None,
            known => known.iter().map(|(_, expected)| *expected).min(),
        }
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// A sample of so long ago counts half; after a few times as long without samples nothing is known.
const FORGETS: Duration = Duration::from_secs(20);
/// Each sample leaves so much of the weight of those before it.
const KEEPS: f64 = 15.0 / 16.0;
/// Less weight than this is no knowledge.
const LEAST: f64 = 0.2;

/// Weighted sums of a line: time = rest + slope * ahead.
#[derive(Debug, Default)]
struct TtfaPredictor {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    at: Duration,
}

impl TtfaPredictor {
    /// A first sound took so long with so many ahead of it.
    pub fn learn(&mut self, ahead: usize, took: Duration, now: Duration) {
        let keep = KEEPS * self.remembered(now);
        let (x, y) = (ahead as f64, took.as_secs_f64());
        for (sum, new) in
            [(&mut self.weight, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)]
        {
            *sum = *sum * keep + new;
        }
        self.at = now;
    }

    /// When the next first sound would come with so many ahead of it; `None` if nothing is known.
    pub fn expect(&self, ahead: usize, now: Duration) -> Option<Duration> {
        if self.weight * self.remembered(now) < LEAST {
            return None;
        }
        let (mean_x, mean_y) = (self.x / self.weight, self.y / self.weight);
        let spread = self.xx / self.weight - mean_x * mean_x;
        let slope = if spread > 1e-9 { (self.xy / self.weight - mean_x * mean_y) / spread } else { 0.0 };
        // A queue never makes a first sound come sooner.
        let expected = mean_y + slope.max(0.0) * (ahead as f64 - mean_x);
        Some(Duration::try_from_secs_f64(expected.max(0.0)).unwrap_or(Duration::MAX))
    }

    fn remembered(&self, now: Duration) -> f64 {
        (-now.saturating_sub(self.at).as_secs_f64() / FORGETS.as_secs_f64()).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    #[test]
    fn a_queue_of_first_sounds_is_learned_and_foretold() {
        let mut sounds = TtfaPredictor::default();
        assert_eq!(sounds.expect(3, NOW), None, "nothing is known yet");
        for ahead in [0, 1, 2, 3, 0, 1] {
            sounds.learn(ahead, Duration::from_millis(50 + 30 * ahead as u64), NOW);
        }
        let expected = sounds.expect(10, NOW).unwrap().as_secs_f64();
        assert!((expected - 0.350).abs() < 1e-6, "{expected}");
    }

    #[test]
    fn what_one_tenant_waits_for_says_nothing_of_another() {
        let [slow, quick, new] = [1, 2, 3].map(|number| (false, TenantId::Key(number)));
        let mut sounds = TtfaPredictors::default();
        (0..5).for_each(|_| sounds.learn(slow, 0, Duration::from_secs(6), NOW));
        assert_eq!(sounds.expect(slow, 0, NOW), Some(Duration::from_secs(6)));
        assert_eq!(sounds.expect(new, 0, NOW), None);
        sounds.learn(quick, 0, Duration::from_millis(80), NOW);
        for who in [slow, quick, new] {
            assert_eq!(sounds.expect(who, 0, NOW).map(|expected| expected.as_millis()), Some(80));
        }
        assert_eq!(sounds.expect((true, TenantId::Key(2)), 0, NOW), None, "chats are others");
    }

    #[test]
    fn lines_of_tenants_that_left_make_room() {
        let mut sounds = TtfaPredictors::default();
        for number in 0..1000 {
            sounds.learn((false, TenantId::Key(number)), 0, NOW, NOW + Duration::from_secs(u64::from(number)));
        }
        assert_eq!(sounds.0.len(), LINES);
        assert!(sounds.0.contains_key(&(false, TenantId::Key(999))));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut sounds = TtfaPredictor::default();
        sounds.learn(0, Duration::from_secs(9), NOW);
        assert!(sounds.expect(0, NOW + FORGETS).is_some());
        assert_eq!(sounds.expect(0, NOW + 3 * FORGETS), None);
    }

    #[test]
    fn one_kind_of_experience_is_no_slope() {
        let mut sounds = TtfaPredictor::default();
        (0..5).for_each(|_| sounds.learn(0, Duration::from_millis(80), NOW));
        assert_eq!(sounds.expect(100, NOW).unwrap().as_millis(), 80);
    }
}
