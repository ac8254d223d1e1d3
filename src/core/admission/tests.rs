//! The whole of admission against an engine on paper that makes so many seconds of speech per second, and no more.

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;

pub(super) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) const FIRST_SOUND: Duration = ms(1000);
pub(super) const LISTENED: Slo = Slo::Realtime(FIRST_SOUND);

pub(super) fn tenant(number: u8, weight: u32) -> Tenant {
    Tenant { id: TenantId::Address(IpAddr::from([10, 0, 0, number])), weight, ..Tenant::default() }
}

pub(super) fn asked(slo: Slo) -> Asked {
    Asked { tenant: Tenant::default(), slo, steady: true, chat: false, charged: false }
}

pub(super) fn admission(places: usize, by_deadlines: bool) -> AdmissionCore {
    AdmissionCore::new(AdmissionLimits {
        places,
        by_deadlines,
        first_audio: FIRST_SOUND,
        slow_client: ms(30_000),
        life: ms(120_000),
    })
}

impl AdmissionCore {
    /// A ticket, where no other request has to end for it.
    fn enter(&mut self, asked: &Asked, now: Duration) -> Result<Ticket, Refusal> {
        let accepted = self.ask(asked, now)?;
        assert_eq!(accepted.instead_of, None);
        Ok(accepted.ticket)
    }
}

/// Speech in chunks of 80 ms, shared out evenly, never faster than `rate` together; listeners read at once.
struct Paper {
    core: AdmissionCore,
    rate: f64,
    now: Duration,
    /// Ticket, seconds made and not delivered, chunks still to come.
    speaking: Vec<(Ticket, f64, u32)>,
    kept: Vec<Kept>,
    most: usize,
}

impl Paper {
    const STEP: Duration = ms(10);
    const CHUNK: Duration = ms(80);

    fn new(most: usize, rate: f64) -> Paper {
        let core = admission(most, true);
        Paper { core, rate, now: Duration::ZERO, speaking: Vec::new(), kept: Vec::new(), most: 0 }
    }

    fn ask(&mut self, slo: Slo, seconds: f64) -> Result<Ticket, Refusal> {
        let ticket = self.core.enter(&asked(slo), self.now)?;
        self.core.waits(ticket, self.now);
        self.speaking.push((ticket, 0.0, (seconds / 0.08) as u32));
        self.most = self.most.max(self.speaking.len());
        Ok(ticket)
    }

    fn step(&mut self) {
        self.now += Paper::STEP;
        let each = self.rate * Paper::STEP.as_secs_f64() / self.speaking.len().max(1) as f64;
        for (ticket, made, left) in &mut self.speaking {
            *made += each;
            while *made >= 0.08 && *left > 0 {
                *made -= 0.08;
                *left -= 1;
                self.core.heard(*ticket, Paper::CHUNK, self.now);
                self.core.waits(*ticket, self.now);
            }
        }
        for (ticket, _, _) in self.speaking.extract_if(.., |(_, _, left)| *left == 0) {
            self.core.complete(ticket);
            self.kept.extend(self.core.left(ticket, self.now));
        }
    }

    /// A client asks every `every`; returns how many were accepted.
    fn crowd(&mut self, every: Duration, lasting: Duration, slo: Slo) -> usize {
        let until = self.now + lasting;
        let mut next = self.now;
        let mut admitted = 0;
        while self.now < until {
            while next <= self.now {
                admitted += usize::from(self.ask(slo, 4.0).is_ok());
                next += every;
            }
            self.step();
        }
        admitted
    }
}

fn in_time(kept: &[Kept]) -> f64 {
    let good = kept.iter().filter(|kept| kept.first_sound == Some(true) && kept.playback == Some(true)).count();
    good as f64 / kept.len().max(1) as f64
}

#[test]
fn a_stream_whose_sound_has_all_come_is_in_nobodys_way() {
    let mut core = admission(4, true);
    let slow = core.enter(&asked(LISTENED), ms(0)).unwrap();
    core.waits(slow, ms(0));
    core.heard(slow, ms(80), ms(3000));
    let refusal = core.enter(&asked(LISTENED), ms(3000)).unwrap_err();
    assert!(matches!(refusal.reason, Reason::FirstSound { .. }), "{refusal:?}");
    core.complete(slow);
    core.enter(&asked(LISTENED), ms(3000)).unwrap();
}

#[test]
fn under_four_times_the_load_accepted_streams_are_in_time() {
    let mut paper = Paper::new(64, 6.0);
    // 6 s of speech per second in pieces of 4 s: 1.5 requests per second can be served, 6 come.
    paper.crowd(ms(166), ms(10_000), LISTENED);
    paper.kept.clear();
    let admitted = paper.crowd(ms(166), ms(60_000), LISTENED);
    assert!(in_time(&paper.kept) > 0.95, "only {} of those let in heard in time", in_time(&paper.kept));
    assert!(admitted > 60, "only {admitted} were let in where 90 could have been");
    let status = paper.core.status();
    assert!((4..=7).contains(&status.capacity), "{status:?}");
}

#[test]
fn a_machine_that_carries_all_refuses_no_request() {
    let mut paper = Paper::new(16, 40.0);
    let admitted = paper.crowd(ms(300), ms(20_000), LISTENED);
    assert_eq!(admitted, 67);
    assert_eq!(in_time(&paper.kept), 1.0);
    assert_eq!(paper.core.status().capacity, 16);
}

#[test]
fn what_was_learned_under_load_is_unlearned_when_the_machine_is_faster() {
    let mut paper = Paper::new(16, 3.0);
    paper.crowd(ms(200), ms(20_000), LISTENED);
    assert!(paper.core.status().capacity <= 4);
    paper.rate = 40.0;
    paper.crowd(ms(20), ms(120_000), LISTENED);
    assert!(paper.core.status().capacity >= 12, "{:?}", paper.core.status());
}

#[test]
fn the_limit_does_not_flap() {
    let mut paper = Paper::new(64, 6.0);
    paper.crowd(ms(166), ms(10_000), LISTENED);
    let mut seen = Vec::new();
    for _ in 0..60 {
        paper.crowd(ms(166), ms(1000), LISTENED);
        seen.push(paper.core.status().capacity);
    }
    let changes = seen.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 20, "{seen:?}");
    assert!(seen.iter().all(|capacity| (4..=8).contains(capacity)), "{seen:?}");
}

#[test]
fn a_restart_is_no_overload() {
    let mut paper = Paper::new(16, 40.0);
    paper.crowd(ms(300), ms(5000), LISTENED);
    paper.rate = 0.0;
    for _ in 0..80 {
        paper.step();
    }
    paper.rate = 40.0;
    paper.core.disturbed(paper.now);
    paper.crowd(ms(300), ms(5000), LISTENED);
    assert_eq!(paper.core.status().capacity, 16);
}

#[test]
fn best_effort_requests_fill_the_machine_and_yield() {
    let mut paper = Paper::new(8, 3.0);
    // One of them stays longer: where none is left, none has to yield.
    for seconds in [24.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0] {
        paper.ask(Slo::BestEffort, seconds).unwrap();
    }
    let full = paper.ask(Slo::BestEffort, 8.0).unwrap_err();
    assert_eq!(full.reason, Reason::Places);
    // The first free place goes to a stream with a deadline, though requests without one ask more often.
    let mut patient = 0;
    for step in 0.. {
        if step % 100 == 0 && paper.ask(LISTENED, 4.0).is_ok() {
            break;
        }
        patient += usize::from(paper.ask(Slo::BestEffort, 8.0).is_ok());
        paper.step();
    }
    assert_eq!(patient, 0);
    // And it is not kept for ever.
    while paper.ask(Slo::BestEffort, 8.0).is_ok() {}
    paper.ask(LISTENED, 4.0).unwrap_err();
    while paper.ask(Slo::BestEffort, 8.0).is_err() {
        paper.step();
    }
}

#[test]
fn a_stream_whose_first_sound_would_come_too_late_is_refused() {
    let mut core = admission(16, true);
    let mut now = ms(1000);
    // Each first sound takes 100 ms, one after the other.
    for _ in 0..5 {
        let tickets: Vec<_> = (0..4).map(|_| core.enter(&asked(LISTENED), now).unwrap()).collect();
        for ticket in tickets {
            core.waits(ticket, now);
            now += ms(100);
            core.heard(ticket, ms(80), now);
            core.complete(ticket);
            core.left(ticket, now);
        }
        now += ms(100);
    }
    let soon = |milliseconds| asked(Slo::Realtime(ms(milliseconds)));
    let _ = core.enter(&soon(350), now).unwrap();
    let _ = core.enter(&soon(350), now).unwrap();
    let refused = core.enter(&soon(120), now).unwrap_err();
    let Reason::FirstSound { expected, deadline } = refused.reason else { panic!("{refused:?}") };
    assert!(deadline == ms(120) && expected > ms(250) && expected < ms(350), "{expected:?}");
}

#[test]
fn with_places_alone_deadlines_mean_nothing() {
    let mut core = admission(3, false);
    let tickets: Vec<_> = (0..3).map(|_| core.enter(&asked(Slo::Realtime(ms(1))), ms(0)).unwrap()).collect();
    tickets.iter().for_each(|ticket| core.waits(*ticket, ms(0)));
    assert_eq!(core.enter(&asked(LISTENED), ms(9000)).unwrap_err().reason, Reason::Places);
    core.left(tickets[0], ms(9000));
    assert!(core.enter(&asked(LISTENED), ms(9000)).is_ok());
}

#[test]
fn a_burst_is_refused_before_its_neighbours_are() {
    let mut core = admission(8, true);
    let from = |who| Asked { tenant: who, ..asked(Slo::BestEffort) };
    let (quiet, loud) = (tenant(1, 1), tenant(2, 1));
    let first = core.enter(&from(quiet), ms(0)).unwrap();
    core.left(first, ms(10));
    let let_in = (0..20).filter(|_| core.enter(&from(loud), ms(20)).is_ok()).count();
    assert_eq!(let_in, 7, "one place is kept for a tenant that was here lately");
    assert!(core.enter(&from(quiet), ms(30)).is_ok());
}

#[test]
fn limits_of_a_key_hold_whatever_is_free() {
    let mut core = admission(8, true);
    let key = Tenant { max_requests: Some(2), ..tenant(1, 1) };
    let limited = Tenant { requests_per_minute: Some(3), ..tenant(2, 1) };
    let from = |who| Asked { tenant: who, ..asked(Slo::BestEffort) };
    let tickets: Vec<_> = (0..2).map(|_| core.enter(&from(key), ms(0)).unwrap()).collect();
    assert_eq!(core.enter(&from(key), ms(0)).unwrap_err().reason, Reason::OwnPlaces(2));
    core.left(tickets[0], ms(0));
    assert!(core.enter(&from(key), ms(0)).is_ok());
    for _ in 0..3 {
        let ticket = core.enter(&from(limited), ms(0)).unwrap();
        core.left(ticket, ms(0));
    }
    let refused = core.enter(&from(limited), ms(0)).unwrap_err();
    assert_eq!((refused.reason, refused.retry_after), (Reason::OwnRate(3), Duration::from_secs(20)));
    assert!(core.enter(&from(limited), ms(20_001)).is_ok());
}

#[test]
fn a_request_that_waits_for_a_place_is_charged_once() {
    let mut core = admission(1, true);
    let limited = Tenant { requests_per_minute: Some(2), ..tenant(1, 1) };
    let new = Asked { tenant: limited, ..asked(Slo::BestEffort) };
    let again = Asked { charged: true, ..new };
    let other = core.enter(&asked(Slo::BestEffort), ms(0)).unwrap();
    assert_eq!(core.enter(&new, ms(0)).unwrap_err().reason, Reason::Places);
    for _ in 0..9 {
        assert_eq!(core.enter(&again, ms(0)).unwrap_err().reason, Reason::Places);
    }
    core.left(other, ms(0));
    for request in [again, new] {
        let ticket = core.enter(&request, ms(0)).unwrap();
        core.left(ticket, ms(0));
    }
    assert_eq!(core.enter(&new, ms(0)).unwrap_err().reason, Reason::OwnRate(2));
}

#[test]
fn a_tenant_that_comes_with_another_weight_has_the_share_of_that_weight() {
    let mut core = admission(8, false);
    let one = Asked { tenant: tenant(1, 1), ..asked(Slo::BestEffort) };
    let other = |weight| Asked { tenant: tenant(2, weight), ..asked(Slo::BestEffort) };
    let held: Vec<_> = (0..4).map(|_| core.enter(&one, ms(0)).unwrap()).collect();
    for _ in 0..4 {
        core.enter(&other(1), ms(0)).unwrap();
    }
    // Each has half of the places; of these three quarters are the other's now.
    assert_eq!(core.enter(&other(3), ms(0)).unwrap_err().reason, Reason::Places);
    core.left(held[0], ms(0));
    assert_eq!(core.enter(&one, ms(0)).unwrap_err().reason, Reason::Share);
    assert!(core.enter(&other(3), ms(0)).is_ok());
}

proptest! {
    /// Every tenant always asks for more, some more often than others, and gives places back at random.
    #[test]
    fn a_greedy_tenant_gets_its_share_and_no_tenant_starves(
        weights in proptest::collection::vec(1..5u32, 2..6),
        places in 6..32usize,
        steps in proptest::collection::vec((0..6usize, any::<prop::sample::Index>()), 600),
    ) {
        let mut core = admission(places, true);
        let mut held: Vec<Vec<Ticket>> = vec![Vec::new(); weights.len()];
        let (mut now, mut sums, mut counted) = (Duration::ZERO, vec![0; weights.len()], 0);
        for (step, (first, leaver)) in steps.into_iter().enumerate() {
            now += ms(20);
            for turn in 0..weights.len() {
                let who = (first + turn) % weights.len();
                let who_asks = Asked { tenant: tenant(who as u8, weights[who]), ..asked(Slo::BestEffort) };
                // The first ones are loud.
                for _ in 0..weights.len() - who {
                    held[who].extend(core.enter(&who_asks, now));
                }
            }
            let all: Vec<(usize, usize)> =
                held.iter().enumerate().flat_map(|(i, own)| (0..own.len()).map(move |j| (i, j))).collect();
            prop_assert!(all.len() <= places && all.len() == core.status().held);
            if step >= 300 {
                counted += 1;
                sums.iter_mut().zip(&held).for_each(|(sum, own)| *sum += own.len());
            }
            let (i, j) = all[leaver.index(all.len())];
            core.left(held[i].swap_remove(j), now);
        }
        let sum: u32 = weights.iter().sum();
        for (who, held) in sums.iter().enumerate() {
            let share = f64::from(places as u32 * weights[who]) / f64::from(sum);
            let held = f64::from(*held as u32) / f64::from(counted);
            prop_assert!(held > share.floor().max(1.0) - 1.0, "{who} holds {held} of {places}, its share is {share}");
        }
    }

    /// Whatever happens in whatever order, places are counted right and advice is finite.
    #[test]
    fn places_are_never_lost(moves in proptest::collection::vec((0..8u8, 0..4u8, 0..5000u64), 1..300), places in 1..10usize) {
        let mut core = admission(places, true);
        let (mut tickets, mut pauses, mut now) = (Vec::new(), BTreeSet::new(), Duration::ZERO);
        for (kind, who, time) in moves {
            now += ms(time);
            let ticket = tickets.get(time as usize % tickets.len().max(1)).copied();
            match (kind, ticket) {
                (0..=2, _) => {
                    let slo = if kind == 0 { LISTENED } else { Slo::BestEffort };
                    match core.ask(&Asked { tenant: tenant(who, 1), ..asked(slo) }, now) {
                        Ok(accepted) => {
                            tickets.retain(|other| Some(*other) != accepted.instead_of);
                            tickets.push(accepted.ticket);
                        }
                        Err(refusal) => prop_assert!(refusal.retry_after <= LONGEST_ADVICE),
                    }
                }
                (3, Some(ticket)) => core.waits(ticket, now),
                (4, Some(ticket)) => core.heard(ticket, ms(80), now),
                (5, Some(ticket)) if who == 0 => core.read(ticket, 3, now),
                (5, Some(ticket)) => core.complete(ticket),
                (6, Some(ticket)) => {
                    core.left(ticket, now);
                    tickets.retain(|other| *other != ticket);
                }
                (7, Some(ticket)) if who == 0 => core.waits_for_text(ticket, now),
                (7, Some(ticket)) if who == 1 => core.wrote(ticket, 5, now),
                (7, _) if who == 2 => {
                    for (ended, _) in core.tick(now) {
                        prop_assert!(tickets.contains(&ended));
                        tickets.retain(|other| *other != ended);
                    }
                }
                _ => core.disturbed(now),
            }
            for (ticket, paused) in core.changes() {
                let is_new = if paused { pauses.insert(ticket) } else { pauses.remove(&ticket) };
                prop_assert!(is_new);
            }
            pauses.retain(|ticket| tickets.contains(ticket));
            let status = core.status();
            prop_assert_eq!(status.held, tickets.len());
            prop_assert_eq!((core.running(), pauses.len()), (tickets.len() - pauses.len(), status.held - core.running()));
            prop_assert!(core.running() <= places && pauses.len() <= places);
            prop_assert!((1..=places).contains(&status.capacity));
        }
    }
}
