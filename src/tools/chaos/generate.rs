//! Which fault when: drawn evenly from all that an engine allows, the same for the same seed. Pure.

use crate::bench::plan::uniform;
use omni_core::ids::StageName;
use omni_fault::{Beside, FaultKind, FaultPoint, FaultRule, Phase};
use std::time::Duration;

/// How long something takes that is slow on purpose: longer than a step, shorter than a listener is ahead.
const DELAY: Duration = Duration::from_millis(50);
/// How long a client takes that is slow: as long as it plays a chunk of the middle of a stream.
const SLOW: Duration = Duration::from_millis(320);

/// A kind of fault, and where it can happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Deck {
    /// The kind.
    pub kind: FaultKind,
    /// One per place and phase.
    pub places: Vec<(Option<StageName>, FaultPoint, Option<Phase>)>,
}

/// Every kind that an engine allows, with all places where it can happen.
pub fn decks(suits: impl Fn(&FaultRule) -> bool) -> Vec<Deck> {
    let stages: Vec<Option<StageName>> = [None].into_iter().chain(StageName::ALL.map(Some)).collect();
    let kinds =
        FaultKind::all(DELAY).map(|kind| if kind == FaultKind::Slow(DELAY) { FaultKind::Slow(SLOW) } else { kind });
    // The engine does not drain while listeners listen, no listener uploads a voice, and a request that cannot be
    // planned is refused: that is no fault to survive.
    let phases = Phase::ALL.iter().filter(|phase| **phase != Phase::Drain).map(|phase| Some(*phase));
    let phases: Vec<Option<Phase>> = [None].into_iter().chain(phases).collect();
    let points = FaultPoint::ALL.iter().filter(|point| point.has_request() || **point == FaultPoint::Build);
    let points: Vec<FaultPoint> = points.copied().collect();
    let places = |kind| {
        let all = stages.iter().flat_map(|stage| points.iter().map(move |point| (*stage, *point)));
        let all = all.flat_map(|(stage, point)| phases.iter().map(move |phase| (stage, point, *phase)));
        all.filter(|place| suits(&rule(kind, *place))).collect()
    };
    let decks = kinds.into_iter().map(|kind| Deck { kind, places: places(kind) });
    decks.filter(|deck| !deck.places.is_empty()).collect()
}

/// A fault every so often for so long. Kinds take turns in an order that is drawn anew for each round of all of them,
/// and so do the places of each kind.
pub fn plan(decks: &[Deck], seed: u64, every: Duration, duration: Duration) -> Vec<FaultRule> {
    let mut draws = Draws::new(seed);
    let mut kinds = Shuffled::new(decks.len());
    let mut places: Vec<Shuffled> = decks.iter().map(|deck| Shuffled::new(deck.places.len())).collect();
    let mut rules = Vec::new();
    let mut at = every;
    while at < duration && !decks.is_empty() {
        let kind = kinds.draw(&mut draws);
        let deck = &decks[kind];
        let place = places[kind].draw(&mut draws);
        rules.push(rule(deck.kind, deck.places[place]).after(at));
        at += every;
    }
    rules
}

/// Faults that come with a request: one request in so many brings a stage down each time, and as many others do only
/// where they run together with another request.
pub fn correlated(stages: &[StageName], seed: u64, one_in: u64) -> Vec<FaultRule> {
    let mut draws = Draws::new(seed);
    // A text-only answer has a part in the first stage alone.
    let (stage, other) = (stages[draws.below(stages.len())], stages[draws.below(stages.len())]);
    let always = |stage, kind| FaultRule::new(stage, FaultPoint::Runner, kind).one_in(one_in).times(u64::MAX);
    vec![always(stage, FaultKind::Panic), always(other, FaultKind::Error).beside(Beside::Any)]
}

fn rule(kind: FaultKind, (stage, point, phase): (Option<StageName>, FaultPoint, Option<Phase>)) -> FaultRule {
    FaultRule { phase, ..FaultRule::new(stage, point, kind) }
}

/// Numbers that follow from a seed.
pub(super) struct Draws {
    seed: u64,
    next: u64,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws { seed, next: 0 }
    }

    /// Below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.next += 1;
        ((uniform(self.seed, self.next) * limit as f64) as usize).min(limit.saturating_sub(1))
    }
}

/// Each number below a limit once, in random order, and then all of them again in another.
pub(super) struct Shuffled {
    limit: usize,
    left: Vec<usize>,
}

impl Shuffled {
    pub(super) fn new(limit: usize) -> Shuffled {
        Shuffled { limit, left: Vec::new() }
    }

    pub(super) fn draw(&mut self, draws: &mut Draws) -> usize {
        if self.left.is_empty() {
            self.left.extend(0..self.limit);
        }
        self.left.swap_remove(draws.below(self.left.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_fault::FaultCapabilities;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashSet};

    fn suiting(apart: bool, framed: bool) -> Vec<Deck> {
        let stages = StageName::ALL.to_vec();
        let capabilities = FaultCapabilities {
            apart: if apart { stages.clone() } else { Vec::new() },
            framed: if framed { stages[..3].to_vec() } else { Vec::new() },
            stages,
            voices: true,
            gpu: false,
        };
        decks(|rule| capabilities.check(rule).is_ok())
    }

    fn names(decks: &[Deck]) -> Vec<&'static str> {
        decks.iter().map(|deck| deck.kind.as_str()).collect()
    }

    #[test]
    fn generated_faults_are_those_that_the_engine_allows() {
        let threads = ["panic", "error", "delay", "hang", "oom", "nan", "slow"];
        assert_eq!(names(&suiting(false, false)), threads);
        assert!(names(&suiting(true, false)).contains(&"kill"));
        let framed = names(&suiting(false, true));
        assert!(
            ["drop", "duplicate", "reorder", "corrupt", "cut"].iter().all(|kind| framed.contains(kind)),
            "{framed:?}"
        );
    }

    #[test]
    fn every_actor_of_every_stage_gets_its_turn() {
        let decks = suiting(false, false);
        let panics = decks.iter().find(|deck| deck.kind == FaultKind::Panic).unwrap();
        let hit: HashSet<_> = panics.places.iter().map(|(stage, point, _)| (*stage, *point)).collect();
        for point in FaultPoint::ALL.iter().filter(|point| FaultKind::Panic.suits(**point) && point.has_stage()) {
            for stage in StageName::ALL {
                assert!(hit.contains(&(Some(stage), *point)), "{stage} {point:?}");
            }
        }
    }

    #[test]
    fn without_anything_to_break_nothing_is_planned() {
        assert!(plan(&[], 1, Duration::from_millis(1), Duration::from_secs(1)).is_empty());
    }

    proptest! {
        #[test]
        fn kinds_and_places_come_equally_often(seed: u64, apart: bool, framed: bool) {
            let decks = suiting(apart, framed);
            let every = Duration::from_millis(200);
            let rounds = 7;
            let rules = plan(&decks, seed, every, every * (decks.len() as u32 * rounds + 1));
            let mut kinds = BTreeMap::<_, Vec<&FaultRule>>::new();
            rules.iter().for_each(|rule| kinds.entry(rule.kind.as_str()).or_default().push(rule));
            prop_assert!(kinds.len() == decks.len() && kinds.values().all(|rules| rules.len() == rounds as usize));
            for (deck, rules) in decks.iter().map(|deck| (deck, &kinds[deck.kind.as_str()])) {
                let places: HashSet<_> = rules.iter().map(|rule| (rule.stage, rule.point, rule.phase)).collect();
                prop_assert_eq!(places.len(), deck.places.len().min(rounds as usize));
            }
        }

        #[test]
        fn a_seed_gives_the_same_plan_again_and_a_longer_one_begins_like_it(seed: u64, every in 1u64..2000, faults in 1u32..200) {
            let (decks, every) = (suiting(true, true), Duration::from_millis(every));
            let short = plan(&decks, seed, every, every * faults);
            let long = plan(&decks, seed, every, every * faults * 2);
            prop_assert_eq!(short.len() as u32, faults - 1);
            prop_assert_eq!(&short[..], &long[..short.len()]);
            for (rule, number) in short.iter().zip(1..) {
                prop_assert_eq!(rule.after, every * number);
                prop_assert!(rule.check().is_ok());
            }
        }
    }
}
