//! What requests, loads and time do to the state of each model.

use super::*;
use proptest::prelude::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn limits(memory: Option<u64>) -> ResidenceLimits {
    ResidenceLimits { memory, pause: s(1), longest_pause: s(60) }
}

fn on_demand(bytes: u64) -> Resident {
    Resident { at_start: false, unload_after: None, bytes }
}

fn failed(entry: &Entry) -> Option<Duration> {
    match entry {
        Entry::Failed { pause, .. } => Some(*pause),
        _ => None,
    }
}

#[test]
fn the_models_of_the_start_are_loaded_at_once_and_the_others_by_their_first_request() {
    let first = Resident { at_start: true, ..on_demand(1) };
    let mut models = Residence::new([first, on_demand(1)], limits(None));
    assert_eq!(models.effects(s(0)), [Effect::Load(0)]);
    assert!(!models.is_settled());
    models.loaded(0, s(1));
    assert!(models.is_settled());
    assert_eq!(models.enter(1, s(2), false), Entry::Wait);
    assert_eq!(models.enter(1, s(2), false), Entry::Wait);
    assert_eq!(models.effects(s(2)), [Effect::Load(1)], "one load for both requests");
    assert_eq!(models.effects(s(2)), []);
    models.loaded(1, s(3));
    assert_eq!(models.enter(1, s(3), true), Entry::Entered);
    assert_eq!(models.enter(1, s(3), true), Entry::Entered);
    assert_eq!(models.uses(1), 2);
}

#[test]
fn an_idle_model_is_unloaded_after_its_time_and_not_while_it_is_used() {
    let resident = Resident { at_start: true, unload_after: Some(s(10)), bytes: 1 };
    let mut models = Residence::new([resident], limits(None));
    models.effects(s(0));
    models.loaded(0, s(5));
    assert_eq!(models.next(), Some(s(15)));
    assert_eq!(models.enter(0, s(6), false), Entry::Entered);
    assert_eq!((models.next(), models.effects(s(100))), (None, vec![]));
    models.left(0, s(100));
    assert_eq!(models.effects(s(109)), []);
    assert_eq!(models.effects(s(110)), [Effect::Unload(0)]);
    assert_eq!(models.enter(0, s(110), false), Entry::Wait);
    assert_eq!(models.effects(s(110)), [], "it is unloaded first");
    models.unloaded(0);
    assert_eq!(models.effects(s(111)), [Effect::Load(0)]);
}

#[test]
fn the_model_whose_last_use_is_the_longest_ago_makes_room() {
    let mut models = Residence::new([on_demand(4), on_demand(4), on_demand(6)], limits(Some(10)));
    for (index, at) in [(0, s(1)), (1, s(2))] {
        models.enter(index, at, false);
        assert_eq!(models.effects(at), [Effect::Load(index)]);
        models.loaded(index, at);
        models.enter(index, at, true);
    }
    models.left(0, s(4));
    models.left(1, s(3));
    models.enter(2, s(5), false);
    assert_eq!(models.effects(s(5)), [Effect::Unload(1)], "one is enough");
    assert_eq!(models.effects(s(5)), []);
    models.unloaded(1);
    assert_eq!(models.effects(s(6)), [Effect::Load(2)]);
}

#[test]
fn a_model_that_needs_room_waits_for_requests_and_is_forgotten_with_its_own() {
    let mut models = Residence::new([on_demand(8), on_demand(8)], limits(Some(10)));
    models.enter(0, s(0), false);
    models.effects(s(0));
    models.loaded(0, s(0));
    models.enter(0, s(0), true);
    models.enter(1, s(1), false);
    assert_eq!(models.effects(s(1)), [], "a request runs");
    assert_eq!(models.state(1), &LoadState::Loading);
    models.stopped_waiting(1);
    models.left(0, s(2));
    assert_eq!(models.effects(s(2)), [], "none wants it any more");
    assert_eq!(models.state(1), &LoadState::Unloaded);
    models.enter(1, s(3), false);
    assert_eq!(models.effects(s(3)), [Effect::Unload(0)]);
}

#[test]
fn a_failed_load_is_tried_again_after_a_growing_pause() {
    let mut models = Residence::new([on_demand(1)], limits(None));
    let mut now = s(0);
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(models.enter(0, now, false), Entry::Wait);
        assert_eq!(models.effects(now), [Effect::Load(0)]);
        models.failed(0, "no weights", now);
        assert_eq!(failed(&models.enter(0, now, true)), Some(s(pause)));
        assert_eq!(models.effects(now + s(pause)), [], "no request wants it");
        now += s(pause);
    }
    models.enter(0, now, false);
    models.effects(now);
    models.loaded(0, now);
    models.given_up(0);
    assert_eq!(models.enter(0, now, true), Entry::Wait);
    models.failed(0, "gave up", now);
    assert_eq!(failed(&models.enter(0, now, true)), Some(s(60)), "it failed again at once");
    now += s(60);
    models.enter(0, now, false);
    models.effects(now);
    models.loaded(0, now);
    now += s(61);
    models.failed(0, "gave up", now);
    assert_eq!(failed(&models.enter(0, now, true)), Some(s(1)), "it served for long");
}

#[test]
fn a_model_of_the_start_is_tried_again_without_a_request() {
    let mut models = Residence::new([Resident { at_start: true, ..on_demand(1) }], limits(None));
    models.effects(s(0));
    models.failed(0, "no weights", s(0));
    assert!(models.is_settled());
    assert_eq!(models.next(), Some(s(1)));
    assert_eq!(models.effects(s(1)), [Effect::Load(0)]);
    models.failed(0, "no weights", s(2));
    models.close();
    assert_eq!((models.next(), models.effects(s(100))), (None, vec![]), "nothing is loaded at the end");
}

proptest! {
    /// Requests come and go, loads end well or badly, in any order: what is used is never unloaded, what is loaded
    /// fits, and a model is loaded and unloaded in turns.
    #[test]
    fn no_history_breaks_the_rules(steps in proptest::collection::vec((0..3usize, 0..7u8, 0..20u64), 0..200)) {
        let residents = [3u64, 5, 7].map(|bytes| Resident { unload_after: Some(s(30)), ..on_demand(bytes) });
        let mut models = Residence::new(residents, limits(Some(10)));
        let mut now = s(0);
        let (mut waits, mut inside, mut in_memory) = ([0usize; 3], [0usize; 3], [false; 3]);
        let mut running: [Option<Effect>; 3] = [None; 3];
        for (index, action, passed) in steps {
            now += s(passed);
            match (action, running[index]) {
                (0, _) => match models.enter(index, now, false) {
                    Entry::Wait => waits[index] += 1,
                    Entry::Entered => inside[index] += 1,
                    Entry::Failed { .. } => {}
                },
                (1, _) if waits[index] > 0 => match models.enter(index, now, true) {
                    Entry::Wait => {}
                    Entry::Entered => (waits[index], inside[index]) = (waits[index] - 1, inside[index] + 1),
                    Entry::Failed { .. } => waits[index] -= 1,
                },
                (2, _) if inside[index] > 0 => {
                    inside[index] -= 1;
                    models.left(index, now);
                }
                (3, _) if waits[index] > 0 => {
                    waits[index] -= 1;
                    models.stopped_waiting(index);
                }
                (4, Some(Effect::Load(_))) => {
                    running[index] = None;
                    models.loaded(index, now);
                }
                (5, Some(Effect::Load(_))) => {
                    (running[index], in_memory[index]) = (None, false);
                    models.failed(index, "no", now);
                }
                (6, Some(Effect::Unload(_))) => {
                    (running[index], in_memory[index]) = (None, false);
                    models.unloaded(index);
                }
                _ => {}
            }
            for effect in models.effects(now) {
                let (Effect::Load(at) | Effect::Unload(at)) = effect;
                prop_assert!(running[at].is_none());
                let loads = matches!(effect, Effect::Load(_));
                prop_assert_eq!(in_memory[at], !loads);
                prop_assert!(loads || (inside[at] == 0 && waits[at] == 0));
                (running[at], in_memory[at]) = (Some(effect), true);
            }
            let held: u64 = residents.iter().zip(in_memory).map(|(one, here)| one.bytes * u64::from(here)).sum();
            prop_assert!(held <= 10);
            for (at, users) in inside.iter().enumerate() {
                prop_assert_eq!(models.uses(at), *users);
            }
        }
    }
}
