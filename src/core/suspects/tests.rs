//! Random lives of a stage: requests that bring it down at a unit, some of them the same request again, faults that come
//! from elsewhere, clients that leave; restarted as its policy says.

use super::*;
use crate::restart::{RestartLimits, RestartPolicy, Verdict};
use proptest::prelude::*;
use std::time::Duration;

const LIMITS: RestartLimits = RestartLimits {
    backoff: Duration::from_millis(1),
    max_backoff: Duration::from_millis(1),
    max_restarts: 5,
    window: Duration::from_secs(3600),
};

/// A request as the world knows it.
#[derive(Clone, Copy, Debug)]
struct Truth {
    content: Content,
    /// The unit that it dies of.
    dies_at: Option<u32>,
    units: u32,
    made: u32,
    /// Failures that concerned it since it made progress.
    failures: u32,
    ended: bool,
}

struct World {
    suspects: Suspects,
    policy: RestartPolicy,
    requests: Vec<Truth>,
    given_up: bool,
    /// Two that bring the stage down in each step that has both.
    not_together: Option<[usize; 2]>,
}

impl World {
    fn new(max_restarts: usize) -> World {
        let limits = RestartLimits { max_restarts, ..LIMITS };
        let policy = RestartPolicy::new(limits);
        World { suspects: Suspects::default(), policy, requests: Vec::new(), given_up: false, not_together: None }
    }

    fn arrives(&mut self, content: u64, dies_at: Option<u32>, units: u32) -> usize {
        let content = Content(content);
        self.requests.push(Truth { content, dies_at, units, made: 0, failures: 0, ended: false });
        let at = self.requests.len() - 1;
        self.suspects.came(RequestId(at as u64), content);
        at
    }

    fn open(&self) -> Vec<usize> {
        (0..self.requests.len()).filter(|at| !self.requests[*at].ended).collect()
    }

    /// The failing actor had these in hand. Who was found guilty.
    fn fails(&mut self, hands: &[usize]) -> Option<usize> {
        let concerned: Vec<Concerned> = hands
            .iter()
            .map(|at| {
                self.requests[*at].failures += 1;
                let Truth { content, made, .. } = self.requests[*at];
                Concerned { request: RequestId(*at as u64), content, unit: made }
            })
            .collect();
        let Judgement { guilty, attribution } = self.suspects.failed(&concerned, Some(7));
        self.given_up |= self.policy.failed(Duration::ZERO, &attribution) == Verdict::GiveUp;
        let (request, _) = guilty?;
        self.requests[request.0 as usize].ended = true;
        Some(request.0 as usize)
    }

    fn leaves(&mut self, at: usize) {
        self.requests[at].ended = true;
        self.suspects.gone(RequestId(at as u64));
    }

    /// The next step: a suspect alone, or all others together. Each makes a unit, unless one of them dies of its own.
    fn step(&mut self) -> Option<usize> {
        let open = self.open();
        let is_alone =
            |at: &usize| self.suspects.alone(RequestId(*at as u64)).is_some_and(|unit| self.requests[*at].made <= unit);
        let mut alone: Vec<usize> = open.iter().copied().filter(is_alone).collect();
        alone.sort_by_key(|at| self.suspects.failures_of(RequestId(*at as u64)));
        let together: Vec<usize> = open.into_iter().filter(|at| !alone.contains(at)).collect();
        for batch in [together].into_iter().chain(alone.into_iter().map(|at| vec![at])) {
            let dies = |at: &usize| self.requests[*at].dies_at == Some(self.requests[*at].made);
            let fatal =
                batch.len() > 1 && self.not_together.is_some_and(|pair| pair.iter().all(|at| batch.contains(at)));
            if fatal || batch.iter().any(dies) {
                return self.fails(&batch);
            }
            for at in batch {
                let request = &mut self.requests[at];
                request.made += 1;
                request.failures = 0;
                request.ended = request.made >= request.units;
                let (made, all) = (request.made, request.ended);
                self.suspects.made(RequestId(at as u64), made, all);
            }
        }
        None
    }
}

/// Whether those that die are also those that were ended.
fn ended_rightly(world: &World) -> bool {
    world.requests.iter().all(|request| request.made == request.units || request.dies_at == Some(request.made))
}

#[test]
fn a_request_that_fails_alone_ends_at_the_third_failure_and_counts_once() {
    let mut world = World::new(1);
    for _ in 0..4 {
        world.arrives(1, None, 20);
    }
    let poison = world.arrives(2, Some(3), 20);
    let failed: Vec<_> = (0..30).map(|_| world.step()).filter(Option::is_some).collect();
    assert_eq!(failed, [Some(poison)]);
    assert_eq!(world.requests[poison].failures, 3, "the first and two more");
    assert!(!world.given_up && ended_rightly(&world));
}

#[test]
fn a_stage_that_fails_for_everybody_is_given_up() {
    let mut world = World::new(5);
    for content in 0..6 {
        assert!(!world.given_up, "request {content}");
        world.arrives(content, Some(0), 5);
        while !world.open().is_empty() {
            world.step();
        }
    }
    assert!(world.given_up);
}

#[test]
fn a_stage_that_fails_for_a_whole_batch_is_given_up() {
    let mut world = World::new(5);
    (0..12).for_each(|content| _ = world.arrives(content, Some(0), 5));
    for _ in 0..100 {
        world.step();
    }
    assert!(world.given_up);
}

#[test]
fn a_failure_that_concerns_no_request_counts() {
    let mut world = World::new(5);
    (0..6).for_each(|_| _ = world.fails(&[]));
    assert!(world.given_up);
}

#[test]
fn a_request_that_leaves_before_it_is_judged_is_known_when_it_comes_again() {
    let mut world = World::new(1);
    for round in 0..20 {
        let poison = world.arrives(7, Some(0), 5);
        assert_eq!(world.suspects.alone(RequestId(poison as u64)).is_some(), round > 0, "round {round}");
        world.step();
        world.leaves(poison);
    }
    assert!(!world.given_up);
}

#[test]
fn a_request_that_gets_through_is_no_suspect_any_more_and_neither_is_one_that_asks_for_the_same() {
    let mut world = World::new(5);
    let met = world.arrives(1, None, 20);
    world.step();
    world.fails(&[met]);
    assert_eq!(world.suspects.alone(RequestId(0)), Some(1));
    world.leaves(met);
    let again = world.arrives(1, None, 20);
    assert_eq!(world.suspects.alone(RequestId(1)), Some(1));
    (0..10).for_each(|_| _ = world.step());
    assert_eq!(world.suspects.alone(RequestId(again as u64)), None);
    let third = world.arrives(1, None, 20);
    assert_eq!(world.suspects.alone(RequestId(third as u64)), None);
}

#[test]
fn two_requests_that_fail_only_together_are_both_heard_to_their_end() {
    let mut world = World::new(5);
    let pair = [world.arrives(1, None, 700), world.arrives(2, None, 700)];
    world.arrives(3, None, 700);
    world.not_together = Some(pair);
    while !world.open().is_empty() {
        assert_eq!(world.step(), None);
    }
    assert!(!world.given_up && ended_rightly(&world), "after {} failures", world.suspects.failures);
}

#[test]
fn suspects_that_failed_together_twice_enter_one_at_a_time() {
    let mut suspects = Suspects::default();
    let concerned = |request: u64| Concerned { request: RequestId(request), content: Content(request), unit: 5 };
    let all = [concerned(1), concerned(2), concerned(3)];
    suspects.failed(&all, Some(7));
    assert!((1..=4).all(|request| suspects.may_enter(RequestId(request))), "not before it is needed");
    suspects.failed(&all[..2], Some(7));
    let enters = |suspects: &mut Suspects| (1..=4).filter(|n| suspects.may_enter(RequestId(*n))).collect::<Vec<_>>();
    assert_eq!(enters(&mut suspects), [3, 4], "who failed least often, and one that is no suspect");
    assert_eq!(suspects.next_to_enter(), None, "it is waited for");
    suspects.made(RequestId(3), 6, false);
    assert_eq!(suspects.next_to_enter(), Some(RequestId(1)));
    assert_eq!(enters(&mut suspects), [1, 3, 4]);
    (0..=PATIENCE).for_each(|_| suspects.look());
    assert_eq!(suspects.next_to_enter(), Some(RequestId(2)), "one that makes nothing has had its time");
    assert_eq!(enters(&mut suspects), [1, 2, 3, 4]);
    let Judgement { guilty, attribution } = suspects.failed(&[all[1], Concerned { unit: 7, ..concerned(3) }], Some(7));
    assert_eq!((guilty, attribution.counts), (Some((RequestId(2), 3)), false), "request 3 has come further");
    assert!([1, 3, 4].iter().all(|n| enters(&mut suspects).contains(n)), "1 keeps nobody waiting any more");
}

#[test]
fn a_machine_that_is_only_slow_ends_no_request_and_counts() {
    let mut suspects = Suspects::default();
    let one = [Concerned { request: RequestId(1), content: Content(1), unit: 5 }];
    for _ in 0..10 {
        let Judgement { guilty, attribution } = suspects.failed(&one, None);
        assert_eq!((guilty, attribution.counts), (None, true));
        assert_eq!(suspects.alone(RequestId(1)), Some(5), "it runs alone, which is the quickest that it can");
    }
}

#[test]
fn faults_that_differ_end_a_request_only_when_there_is_no_end_of_them() {
    let mut suspects = Suspects::default();
    let one = [Concerned { request: RequestId(1), content: Content(1), unit: 5 }];
    let ended = (0..100).map(|cause| suspects.failed(&one, Some(cause % 3)).guilty).take_while(Option::is_none);
    assert_eq!(ended.count() as u32, TRIES_IN_ALL - 1);
}

#[derive(Clone, Debug)]
enum Move {
    /// Its content, the unit that it dies of, its length.
    Arrive(u64, u32),
    Poison(u64),
    Step,
    Leave(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => (0..1000u64, 1..30u32).prop_map(|(content, units)| Move::Arrive(content, units)),
        2 => (0..4u64).prop_map(Move::Poison),
        12 => Just(Move::Step),
        1 => any::<usize>().prop_map(Move::Leave),
    ];
    proptest::collection::vec(one, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn requests_that_die_end_after_two_more_failures_and_others_are_heard_and_no_stage_is_given_up(moves in moves()) {
        // As many kinds of poison as restarts are allowed: no more can count.
        let mut world = World::new(4);
        for step in moves {
            match step {
                Move::Arrive(content, units) => _ = world.arrives(1000 + content, None, units),
                Move::Poison(content) => _ = world.arrives(content, Some(content as u32 * 3), 30),
                Move::Step => _ = world.step(),
                Move::Leave(at) => {
                    let open = world.open();
                    if let Some(at) = open.get(at % open.len().max(1)) {
                        world.leaves(*at);
                    }
                }
            }
            prop_assert!(!world.given_up);
            for (at, request) in world.requests.iter().enumerate().filter(|(_, request)| !request.ended) {
                prop_assert!(request.failures <= TRIES, "request {} failed {} times", at, request.failures);
            }
        }
        let left: Vec<usize> = world.open();
        for _ in 0..2000 {
            world.step();
        }
        prop_assert_eq!(world.open(), Vec::<usize>::new());
        prop_assert!(!world.given_up);
        for at in left {
            let request = world.requests[at];
            prop_assert!(request.made == request.units || request.dies_at == Some(request.made), "request {}", at);
            prop_assert!(request.failures <= TRIES);
        }
        prop_assert!(world.suspects.suspects.is_empty(), "nothing is left of requests that are gone");
    }

    #[test]
    fn faults_from_elsewhere_end_no_request_unless_they_meet_it_three_times_at_one_place(
        faults in proptest::collection::vec(proptest::collection::vec(0..6usize, 0..6), 1..60), steps in 0..3u32,
    ) {
        let mut world = World::new(1000);
        (0..6).for_each(|content| _ = world.arrives(content, None, 400));
        for mut hands in faults {
            hands.sort_unstable();
            hands.dedup();
            hands.retain(|at| !world.requests[*at].ended);
            if let Some(guilty) = world.fails(&hands) {
                prop_assert!(world.requests[guilty].failures >= TRIES);
                prop_assert_eq!(steps, 0, "it made progress between the failures");
            }
            for _ in 0..steps * (NEAR + 1) {
                world.step();
            }
        }
    }
}
