//! Which occurrences a rule hits: pure, and the same in every run.

use super::event::FaultEvent;
use super::rule::{Beside, FaultRule, Phase};
use omni_core::ids::{Content, RequestId};
use std::time::Duration;

/// What else decides whether a rule applies to an occurrence.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultContext {
    /// Requests accepted before the rule was made.
    pub before: u64,
    /// How long ago the rule was made.
    pub age: Duration,
    /// The engine drains.
    pub draining: bool,
    /// Of the plan.
    pub seed: u64,
}

/// Whether an occurrence counts for a rule; if so, the index of the event that it is about.
/// `content` says what a request asks for.
pub(super) fn fits(
    rule: &FaultRule,
    events: &[FaultEvent],
    context: FaultContext,
    content: impl Fn(RequestId) -> Option<Content>,
) -> Option<usize> {
    if context.age < rule.after || (rule.phase == Some(Phase::Drain) && !context.draining) {
        return None;
    }
    let phase = rule.phase.filter(|phase| *phase != Phase::Drain);
    if rule.request.is_none() && rule.one_in.is_none() && rule.beside.is_none() && phase.is_none() {
        return Some(0);
    }
    let is = |event: &FaultEvent, number: u64| event.request.0 == context.before.saturating_add(number);
    let is_chosen = |request: RequestId, one_in: u64| {
        content(request).is_some_and(|content| mix(mix(context.seed) ^ content.0).is_multiple_of(one_in))
    };
    let has_neighbour = |event: &FaultEvent, neighbour: Beside| {
        let mut others = events.iter().filter(|other| other.request != event.request);
        match neighbour {
            Beside::Any => others.next().is_some(),
            Beside::Request(number) => others.any(|other| is(other, number)),
        }
    };
    let is_it = |event: &FaultEvent| {
        rule.request.is_none_or(|number| is(event, number))
            && rule.one_in.is_none_or(|one_in| is_chosen(event.request, one_in))
            && rule.beside.is_none_or(|neighbour| has_neighbour(event, neighbour))
            && phase.is_none_or(|phase| event.is_at(phase))
    };
    events.iter().position(is_it)
}

/// Whether the `occurrence`-th that fits, counted from 1, is hit. `index` is the rule's place in its plan.
pub(super) fn is_hit(rule: &FaultRule, seed: u64, index: u64, occurrence: u64) -> bool {
    let can_be = occurrence >= rule.nth && occurrence - rule.nth < rule.times;
    can_be && (rule.chance >= 1.0 || draw(seed, index, occurrence) < rule.chance)
}

/// A number in [0, 1) for each occurrence of each rule: a counter goes in and nothing is kept.
fn draw(seed: u64, index: u64, occurrence: u64) -> f64 {
    let bits = mix(mix(mix(seed) ^ index) ^ occurrence);
    // The 53 bits that a float between 0 and 1 holds.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// SplitMix64's output function (Steele, Lea, Flood 2014): every bit of the input changes half of the output's.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultKind, FaultPoint};
    use omni_core::ids::{Seq, StageName};
    use proptest::prelude::*;

    fn rule() -> FaultRule {
        FaultRule::new(StageName::Talker, FaultPoint::Sampler, FaultKind::Panic)
    }

    const NOW: FaultContext = FaultContext { before: 0, age: Duration::ZERO, draining: false, seed: 0 };

    /// For requests of which no content is known.
    fn fits(rule: &FaultRule, events: &[FaultEvent], context: FaultContext) -> Option<usize> {
        super::fits(rule, events, context, |_| None)
    }

    #[test]
    fn a_rule_for_one_in_so_many_chooses_by_what_is_asked_for_and_by_the_seed() {
        let chosen = |seed| -> Vec<u64> {
            let context = FaultContext { seed, ..NOW };
            let of = |request: RequestId| Some(Content(request.0 % 1000));
            let hit =
                |n: &u64| super::fits(&rule().one_in(10), &[FaultEvent::of(RequestId(*n))], context, of).is_some();
            (0..2000).filter(hit).collect()
        };
        let first = chosen(1);
        let (once, again): (Vec<u64>, Vec<u64>) = first.iter().partition(|n| **n < 1000);
        assert_eq!(once, again.iter().map(|n| n - 1000).collect::<Vec<_>>(), "who asks again is chosen again");
        assert!((60..140).contains(&once.len()), "{} of 1000", once.len());
        assert_ne!(first, chosen(2));
        assert_eq!(fits(&rule().one_in(1), &[FaultEvent::of(RequestId(1))], NOW), None, "its content is not known");
    }

    #[test]
    fn a_rule_with_a_neighbour_fits_only_where_both_are_worked_on() {
        let events = |requests: &[u64]| requests.iter().map(|n| FaultEvent::of(RequestId(*n))).collect::<Vec<_>>();
        let both = rule().request(1).beside(Beside::Request(2));
        let any = rule().request(1).beside(Beside::Any);
        for (requests, with_it, with_any) in
            [(&[1][..], None, None), (&[2], None, None), (&[3, 1], None, Some(1)), (&[2, 1, 3], Some(1), Some(1))]
        {
            let found = (fits(&both, &events(requests), NOW), fits(&any, &events(requests), NOW));
            assert_eq!(found, (with_it, with_any), "{requests:?}");
        }
    }

    proptest! {
        #[test]
        fn a_rule_hits_as_many_as_it_says_from_the_one_that_it_names(nth in 1..50u64, times in 1..50u64, index: u64, seed: u64) {
            let rule = rule().nth(nth).times(times);
            let hits: Vec<u64> = (1..200).filter(|occurrence| is_hit(&rule, seed, index, *occurrence)).collect();
            prop_assert_eq!(hits, (nth..nth + times).collect::<Vec<_>>());
        }

        #[test]
        fn a_rule_for_all_hits_all(nth in 1..50u64, occurrence in 1..u64::MAX) {
            prop_assert_eq!(is_hit(&rule().nth(nth).times(u64::MAX), 0, 0, occurrence), occurrence >= nth);
        }

        #[test]
        fn chance_is_kept_and_the_same_in_every_run(seed: u64, index in 0..100u64, chance in 0.05..0.95f64) {
            let rule = rule().times(u64::MAX).chance(chance);
            let run = || (1..=4000).filter(|occurrence| is_hit(&rule, seed, index, *occurrence)).collect::<Vec<_>>();
            let hits = run();
            prop_assert_eq!(&hits, &run());
            // Five standard deviations of the worst case.
            prop_assert!((hits.len() as f64 / 4000.0 - chance).abs() < 0.04, "{} of 4000 at {chance}", hits.len());
            let other = (1..=4000).filter(|occurrence| is_hit(&rule, seed, index + 1, *occurrence));
            prop_assert_ne!(hits, other.collect::<Vec<_>>());
        }

        #[test]
        fn a_rule_of_a_request_fits_where_it_is_one_of_those_worked_on(
            number in 1..20u64, before in 0..20u64, requests in proptest::collection::vec(1..40u64, 0..6)
        ) {
            let events: Vec<_> = requests.iter().map(|request| FaultEvent::of(RequestId(*request))).collect();
            let context = FaultContext { before, ..NOW };
            let expected = requests.iter().position(|request| *request == before + number);
            prop_assert_eq!(fits(&rule().request(number), &events, context), expected);
            prop_assert_eq!(fits(&rule(), &events, context), Some(0));
        }

        #[test]
        fn a_unit_of_output_is_at_least_at_one_phase_and_never_in_the_prompt(seq in 0..9u32, last: bool) {
            let event = FaultEvent::units(RequestId(1), Seq(seq), last);
            let at: Vec<_> = Phase::ALL.iter().filter(|phase| fits(&rule().phase(**phase), &[event], NOW).is_some()).collect();
            let mut expected: Vec<&Phase> = Vec::new();
            expected.extend((seq == 0).then_some(&Phase::First));
            expected.extend((seq > 0 && !last).then_some(&Phase::Stream));
            expected.extend(last.then_some(&Phase::Last));
            prop_assert_eq!(at, expected);
        }
    }

    #[test]
    fn a_rule_waits_for_its_time_and_for_the_drain() {
        let later = rule().after(Duration::from_secs(2));
        assert_eq!(fits(&later, &[], FaultContext { age: Duration::from_millis(1999), ..NOW }), None);
        assert_eq!(fits(&later, &[], FaultContext { age: Duration::from_secs(2), ..NOW }), Some(0));
        let draining = rule().phase(Phase::Drain);
        assert_eq!(fits(&draining, &[], NOW), None);
        assert_eq!(fits(&draining, &[], FaultContext { draining: true, ..NOW }), Some(0));
    }

    #[test]
    fn both_request_and_phase_must_be_of_the_same_sequence() {
        let rule = rule().request(2).phase(Phase::First);
        let (one, two) = (RequestId(1), RequestId(2));
        let apart = [FaultEvent::output(one, true, false), FaultEvent::output(two, false, false)];
        assert_eq!(fits(&rule, &apart, NOW), None);
        assert_eq!(fits(&rule, &[apart[0], FaultEvent::output(two, true, true)], NOW), Some(1));
    }
}
