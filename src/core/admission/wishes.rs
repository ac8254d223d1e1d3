//! Clients with strange wishes: none of them makes the server refuse what it can do.

use super::shares::REMEMBERED;
use super::tests::{FIRST_SOUND, LISTENED, admission, asked, ms, tenant};
use super::*;
use proptest::prelude::*;
use std::net::IpAddr;

/// A stream of `who` that hears its first sound after `took`, and nothing else.
fn hears_late(core: &mut AdmissionCore, who: Tenant, steady: bool, took: Duration, now: &mut Duration) {
    let asked = Asked { tenant: who, steady, ..asked(LISTENED) };
    let Ok(Accepted { ticket, .. }) = core.ask(&asked, *now) else { return };
    core.waits(ticket, *now);
    *now += took;
    core.heard(ticket, ms(80), *now);
    core.complete(ticket);
    core.left(ticket, *now);
}

fn leave(core: &mut AdmissionCore, ticket: Ticket, now: Duration) {
    core.left(ticket, now);
}

#[test]
fn five_long_waits_and_silence_do_not_make_an_idle_server_refuse() {
    let (mut core, mut now) = (admission(16, true), ms(1000));
    for steady in [false, true] {
        (0..5).for_each(|_| hears_late(&mut core, tenant(1, 1), steady, ms(6400), &mut now));
        assert!(core.ask(&asked(LISTENED), now).is_ok(), "at once");
        let again = core.streams.keys().copied().collect::<Vec<_>>();
        again.into_iter().for_each(|ticket| leave(&mut core, ticket, now));
        now += FORGETS_IDLE;
        for _ in 0..16 {
            core.ask(&asked(LISTENED), now).unwrap();
        }
        core.streams.keys().copied().collect::<Vec<_>>().into_iter().for_each(|ticket| leave(&mut core, ticket, now));
    }
}

#[test]
fn deadlines_that_no_server_meets_lower_no_capacity() {
    let (mut core, mut now) = (admission(16, true), ms(1000));
    let hasty = Asked { tenant: tenant(1, 1), ..asked(Slo::Realtime(ms(1))) };
    for _ in 0..300 {
        let tickets: Vec<_> = (0..8).filter_map(|_| core.ask(&hasty, now).ok()).map(|it| it.ticket).collect();
        tickets.iter().for_each(|ticket| core.waits(*ticket, now));
        now += ms(100);
        for ticket in tickets {
            core.heard(ticket, ms(80), now);
            core.complete(ticket);
            core.left(ticket, now);
        }
    }
    assert_eq!(core.status().capacity, 16);
    // One place is kept for the tenant that was here.
    (0..15).for_each(|_| assert!(core.ask(&asked(LISTENED), now).is_ok()));
}

#[test]
fn one_tenant_that_is_late_alone_is_no_overload_and_two_are() {
    for (late, unchanged) in [(1, true), (2, false)] {
        let (mut core, mut now) = (admission(16, true), ms(1000));
        let enter = |core: &mut AdmissionCore, who| core.ask(&Asked { tenant: tenant(who, 1), ..asked(LISTENED) }, now);
        let streams: Vec<_> = (0..6).map(|who| enter(&mut core, who % 3).unwrap().ticket).collect();
        streams.iter().for_each(|ticket| core.waits(*ticket, now));
        now += ms(50);
        for (who, ticket) in streams.iter().enumerate().filter(|(who, _)| who % 3 >= late) {
            core.heard(*ticket, ms(9000), now);
            assert!(who % 3 >= late);
        }
        now += FIRST_SOUND + ms(2000);
        let _ = core.ask(&Asked { tenant: tenant(2, 1), ..asked(LISTENED) }, now);
        now += ms(1100);
        core.look(now);
        assert_eq!(core.status().capacity == 16, unchanged, "{late} of three tenants are late: {:?}", core.status());
    }
}

#[test]
fn an_idle_server_recovers_its_capacity() {
    let (mut core, mut now) = (admission(16, true), ms(1000));
    let late: Vec<_> = (0..8).map(|_| core.ask(&asked(LISTENED), now).unwrap().ticket).collect();
    late.iter().for_each(|ticket| core.waits(*ticket, now));
    now += FIRST_SOUND + ms(1100);
    late.into_iter().for_each(|ticket| leave(&mut core, ticket, now));
    let learned = core.status().capacity;
    assert!(learned < 16, "{learned}");
    now += ms(5000);
    assert!(core.tick(now).is_empty());
    assert_eq!(core.status().capacity, 16.min(learned + 5));
    now += ms(20_000);
    core.tick(now);
    assert_eq!(core.status().capacity, 16);
}

#[test]
fn a_refusal_costs_a_token_of_the_rate() {
    let mut core = admission(1, true);
    let limited = Tenant { requests_per_minute: Some(3), ..tenant(1, 1) };
    let limited = Asked { tenant: limited, ..asked(Slo::BestEffort) };
    core.ask(&limited, ms(0)).unwrap();
    (0..2).for_each(|_| assert_eq!(core.ask(&limited, ms(0)).unwrap_err().reason, Reason::Places));
    assert_eq!(core.ask(&limited, ms(0)).unwrap_err().reason, Reason::OwnRate(3));
}

/// One of these was paused.
fn is_one_of(slow: &[Ticket], changes: &[(Ticket, bool)]) -> bool {
    matches!(changes, [(ticket, true)] if slow.contains(ticket))
}

#[test]
fn a_paused_request_goes_on_when_its_client_is_back_and_there_is_a_place() {
    let (mut core, mut now) = (admission(2, false), ms(1000));
    let [reader, writer] = [(); 2].map(|()| core.ask(&asked(Slo::BestEffort), now).unwrap().ticket);
    core.waits(reader, now);
    core.heard(reader, ms(5000), now);
    core.waits(writer, now);
    core.waits_for_text(writer, now);
    now += ms(1999);
    assert_eq!(core.ask(&asked(LISTENED), now).unwrap_err().reason, Reason::Places);
    now += ms(1);
    // What it has saved up lets it live, but does not keep its place.
    let [first, second] = [(); 2].map(|()| core.ask(&asked(LISTENED), now).unwrap());
    assert_eq!((first.instead_of, second.instead_of), (None, None), "none is ended");
    assert_eq!(core.ask(&asked(LISTENED), now).unwrap_err().reason, Reason::Places);
    let mut paused = core.changes();
    paused.sort_unstable();
    assert_eq!(paused, [(reader, true), (writer, true)]);
    // One is back: it is the next in place of one that is idle, and the first where a place is free.
    core.waits(reader, now);
    core.waits(first.ticket, now);
    core.waits(second.ticket, now);
    assert_eq!(core.changes(), []);
    core.left(first.ticket, now);
    assert_eq!(core.changes(), [(reader, false)]);
    core.wrote(writer, 1, now);
    assert_eq!(core.changes(), []);
    core.heard(second.ticket, ms(80), now);
    now += ms(2000);
    core.tick(now);
    assert_eq!(core.changes(), [(second.ticket, true), (writer, false)]);
    assert_eq!((core.running(), core.status().held), (2, 3));
    [reader, writer, second.ticket].into_iter().for_each(|ticket| _ = core.left(ticket, now));
    assert_eq!(core.changes(), [], "what has ended does not go on");
    (0..2).for_each(|_| _ = core.ask(&asked(LISTENED), now).unwrap());
    assert_eq!(core.ask(&asked(LISTENED), now).unwrap_err().reason, Reason::Places);
}

#[test]
fn the_place_of_a_paused_request_that_goes_on_counts_though_its_tenant_was_forgotten() {
    let (mut core, mut now) = (admission(1, false), ms(1000));
    let from = |tenant| Asked { tenant, ..asked(LISTENED) };
    let reader = core.ask(&from(tenant(1, 1)), now).unwrap().ticket;
    core.waits(reader, now);
    core.heard(reader, ms(80), now);
    now += ms(3000);
    let other = core.ask(&from(tenant(2, 1)), now).unwrap().ticket;
    core.waits(other, now);
    assert_eq!(core.changes(), [(reader, true)]);
    for number in 0..=u16::try_from(REMEMBERED).unwrap() {
        let [high, low] = number.to_be_bytes();
        let id = TenantId::Address(IpAddr::from([10, 1, high, low]));
        let refusal = core.ask(&from(Tenant { id, ..Tenant::default() }), now).unwrap_err();
        assert_eq!(refusal.reason, Reason::Places);
    }
    core.waits(reader, now);
    core.left(other, now);
    assert_eq!(core.changes(), [(reader, false)]);
    assert_eq!(core.ask(&from(tenant(3, 1)), now).unwrap_err().reason, Reason::Places);
    core.left(reader, now);
    core.ask(&from(tenant(3, 1)), now).unwrap();
}

#[test]
fn as_many_are_paused_as_there_are_places_and_then_the_longest_ends() {
    let (mut core, mut now) = (admission(2, false), ms(1000));
    let mut tickets = Vec::new();
    for round in 0..5 {
        for _ in 0..2 {
            let accepted = core.ask(&asked(LISTENED), now).unwrap();
            let ended = tickets.len().checked_sub(4).map(|at| tickets[at]);
            assert_eq!(accepted.instead_of, ended, "round {round}");
            core.waits(accepted.ticket, now);
            core.heard(accepted.ticket, ms(80), now);
            tickets.push(accepted.ticket);
            now += ms(1);
        }
        now += ms(2000);
    }
    assert_eq!((core.running(), core.status().held), (2, 4));
}

#[test]
fn a_key_has_no_more_requests_by_pausing_them() {
    let (mut core, now) = (admission(2, false), ms(1000));
    let own = Asked { tenant: Tenant { max_requests: Some(2), ..tenant(1, 1) }, ..asked(Slo::BestEffort) };
    for ticket in [(); 2].map(|()| core.ask(&own, now).unwrap().ticket) {
        core.waits(ticket, now);
        core.heard(ticket, ms(80), now);
    }
    let now = now + ms(3000);
    core.ask(&asked(LISTENED), now).unwrap();
    assert_eq!(core.changes().len(), 1);
    assert_eq!(core.ask(&own, now).unwrap_err().reason, Reason::OwnPlaces(2));
}

#[test]
fn clients_are_not_slow_while_the_server_stands_still() {
    let (mut core, now) = (admission(1, false), ms(1000));
    let reader = core.ask(&asked(LISTENED), now).unwrap().ticket;
    core.waits(reader, now);
    core.heard(reader, ms(80), now);
    let later = now + ms(90_000);
    core.excuse(ms(89_000), later);
    assert_eq!(core.tick(later), []);
    assert_eq!(core.ask(&asked(LISTENED), later).unwrap_err().reason, Reason::Places);
    assert_eq!(core.changes(), []);
    core.ask(&asked(LISTENED), later + ms(1000)).unwrap();
    assert_eq!(core.changes(), [(reader, true)]);
}

#[test]
fn places_of_slow_readers_are_the_next_requests() {
    let (mut core, mut now) = (admission(4, false), ms(1000));
    let slow: Vec<_> = (0..4).map(|_| core.ask(&asked(Slo::BestEffort), now).unwrap().ticket).collect();
    // One of them listens in real time.
    for _ in 0..20 {
        slow.iter().for_each(|ticket| core.waits(*ticket, now));
        core.heard(slow[0], ms(1000), now);
        slow[1..].iter().for_each(|ticket| core.heard(*ticket, ms(85), now));
        now += ms(1000);
    }
    now += ms(1500);
    core.heard(slow[0], ms(1000), now);
    for _ in 0..2 {
        core.ask(&Asked { tenant: tenant(1, 1), ..asked(LISTENED) }, now).unwrap();
        assert!(is_one_of(&slow[1..], &core.changes()));
    }
    let third = core.ask(&Asked { tenant: tenant(1, 1), ..asked(LISTENED) }, now).unwrap_err();
    assert_eq!(third.reason, Reason::Share, "it has its share");
    core.ask(&asked(LISTENED), now).unwrap();
    assert!(is_one_of(&slow[1..], &core.changes()), "also of its own tenant");
    assert_eq!(core.ask(&asked(LISTENED), now).unwrap_err().reason, Reason::Places, "no other is slow");
    assert_eq!((core.running(), core.status().held), (4, 7), "three are paused");
}

#[test]
fn places_of_slow_readers_are_the_next_requests_where_the_server_carries_fewer_than_are_held() {
    let (mut core, mut now) = (admission(16, true), ms(1000));
    let slow: Vec<_> = (0..16).map(|_| core.ask(&asked(LISTENED), now).unwrap().ticket).collect();
    slow.iter().for_each(|ticket| core.waits(*ticket, now));
    // All of them are late at first, then none of them reads any more.
    now += ms(3000);
    assert!(core.ask(&asked(LISTENED), now).is_err());
    slow.iter().for_each(|ticket| core.heard(*ticket, ms(80), now));
    now += ms(3000);
    let capacity = core.status().capacity;
    assert!(capacity < 8, "{capacity}");
    // As many as the server carries get a place, and no more.
    for _ in 0..capacity {
        core.ask(&asked(LISTENED), now).unwrap();
        assert!(is_one_of(&slow, &core.changes()));
    }
    let refusal = core.ask(&asked(LISTENED), now).unwrap_err();
    assert_eq!(refusal.reason, Reason::Streams { capacity });
}

#[test]
fn slow_readers_and_slow_writers_are_ended_and_others_are_not() {
    let (mut core, mut now) = (admission(8, false), ms(1000));
    let [listener, reader, stopped, writer, typist, waiting] =
        [(); 6].map(|()| core.ask(&asked(Slo::BestEffort), now).unwrap().ticket);
    let mut ended = Vec::new();
    for second in 0..100 {
        for (ticket, heard) in [(listener, 1000), (reader, 85)] {
            core.waits(ticket, now);
            core.heard(ticket, ms(heard), now);
        }
        for ticket in [writer, typist, waiting] {
            core.waits(ticket, now);
        }
        if second == 0 {
            core.heard(stopped, ms(80), now);
        }
        core.waits_for_text(writer, now);
        core.waits_for_text(typist, now);
        now += ms(1000);
        core.wrote(writer, usize::from(second % 10 == 9), now);
        core.wrote(typist, 3, now);
        ended.extend(core.tick(now).into_iter().map(|(ticket, why)| (ticket, why, second)));
    }
    assert!(
        ended.iter().all(|(_, why, second)| *why == Ended::Slow(ms(30_000)) && (28..40).contains(second)),
        "{ended:?}"
    );
    let ended: BTreeSet<_> = ended.into_iter().map(|(ticket, ..)| ticket).collect();
    assert_eq!(ended, BTreeSet::from([reader, stopped, writer]));
    assert_eq!(core.status().held, 3);
}

#[test]
fn a_request_that_gives_nothing_to_hear_lives_as_long_as_the_config_says() {
    let (mut core, mut now) = (admission(2, false), ms(0));
    let [silent, heard] = [(); 2].map(|()| core.ask(&asked(Slo::BestEffort), now).unwrap().ticket);
    while now < ms(200_000) {
        for ticket in [silent, heard] {
            core.waits(ticket, now);
        }
        core.heard(heard, ms(500), now);
        now += ms(1000);
        let ended = core.tick(now);
        assert_eq!(ended, if now == ms(121_000) { vec![(silent, Ended::Old(ms(120_000)))] } else { vec![] }, "{now:?}");
    }
}

/// Something that clients do. Tenants 0 to 2 wish for anything; times are in milliseconds.
#[derive(Clone, Debug)]
enum Wish {
    Ask { who: u8, deadline: Option<u64>, steady: bool, chat: bool },
    Wait(prop::sample::Index),
    Hear(prop::sample::Index, u64),
    Text(prop::sample::Index, usize),
    Complete(prop::sample::Index),
    Leave(prop::sample::Index),
    Pass(u64),
}

fn wish() -> impl Strategy<Value = Wish> {
    let any_of = any::<prop::sample::Index>;
    prop_oneof![
        (0..3u8, proptest::option::of(0..100_000u64), any::<bool>(), any::<bool>())
            .prop_map(|(who, deadline, steady, chat)| Wish::Ask { who, deadline, steady, chat }),
        any_of().prop_map(Wish::Wait),
        (any_of(), 0..20_000u64).prop_map(|(stream, length)| Wish::Hear(stream, length)),
        (any_of(), 0..100usize).prop_map(|(stream, chars)| Wish::Text(stream, chars)),
        any_of().prop_map(Wish::Complete),
        any_of().prop_map(Wish::Leave),
        (0..10_000u64).prop_map(Wish::Pass),
    ]
}

proptest! {
    /// Whatever clients wished for: when they are gone, an ordinary request is accepted, of any tenant and kind.
    #[test]
    fn an_idle_server_takes_an_ordinary_request(
        wishes in proptest::collection::vec(wish(), 0..200), places in 1..20usize, who in 0..4u8, chat: bool, listens: bool,
    ) {
        let (mut core, mut now) = (admission(places, true), ms(1000));
        let pick = |core: &AdmissionCore, index: prop::sample::Index| {
            let all: Vec<_> = core.streams.keys().copied().collect();
            (!all.is_empty()).then(|| all[index.index(all.len())])
        };
        for wish in wishes {
            match wish {
                Wish::Ask { who, deadline, steady, chat } => {
                    let slo = deadline.map_or(Slo::BestEffort, |deadline| Slo::Realtime(ms(deadline)));
                    let _ = core.ask(&Asked { tenant: tenant(who, 1), steady, chat, ..asked(slo) }, now);
                }
                Wish::Wait(stream) => pick(&core, stream).into_iter().for_each(|ticket| core.waits(ticket, now)),
                Wish::Hear(stream, length) => {
                    pick(&core, stream).into_iter().for_each(|ticket| core.heard(ticket, ms(length), now));
                }
                Wish::Text(stream, chars) => pick(&core, stream).into_iter().for_each(|ticket| {
                    core.waits_for_text(ticket, now);
                    core.wrote(ticket, chars, now);
                }),
                Wish::Complete(stream) => pick(&core, stream).into_iter().for_each(|ticket| core.complete(ticket)),
                Wish::Leave(stream) => pick(&core, stream).into_iter().for_each(|ticket| leave(&mut core, ticket, now)),
                Wish::Pass(time) => {
                    now += ms(time);
                    core.tick(now);
                }
            }
        }
        for ticket in core.streams.keys().copied().collect::<Vec<_>>() {
            core.left(ticket, now);
        }
        let slo = if listens { LISTENED } else { Slo::BestEffort };
        let ordinary = Asked { tenant: tenant(who, 1), chat, ..asked(slo) };
        prop_assert!(core.ask(&ordinary, now).is_ok());
    }

    /// Requests whose times count for nothing, and deadlines of clients, leave the capacity as it is.
    #[test]
    fn wishes_lower_no_capacity(wishes in proptest::collection::vec(wish(), 0..200)) {
        let (mut core, mut now) = (admission(8, true), ms(1000));
        for wish in wishes {
            match wish {
                Wish::Ask { who, deadline, chat, .. } => {
                    let slo = deadline.map_or(Slo::BestEffort, |deadline| Slo::Realtime(ms(deadline)));
                    let _ = core.ask(&Asked { tenant: tenant(who, 1), steady: false, chat, ..asked(slo) }, now);
                }
                Wish::Pass(time) => now += ms(time),
                Wish::Wait(stream) | Wish::Hear(stream, _) | Wish::Text(stream, _) | Wish::Complete(stream) | Wish::Leave(stream) => {
                    let all: Vec<_> = core.streams.keys().copied().collect();
                    let Some(ticket) = (!all.is_empty()).then(|| all[stream.index(all.len())]) else { continue };
                    core.waits(ticket, now);
                    core.heard(ticket, ms(80), now);
                }
            }
            prop_assert_eq!(core.status().capacity, 8);
        }
    }
}
