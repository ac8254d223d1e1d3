use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const SMALL: Limits = Limits { window: 8, attempts: 6 };

#[test]
fn a_quiet_channel_costs_one_frame_each() {
    let mut sender = Sender::new(SMALL);
    let mut receiver = Receiver::new(SMALL);
    for item in 0..20 {
        assert!(sender.has_room());
        sender.push(item);
        let Some(Action::Send { seq, behind: 0, item: &item }) = sender.action() else { panic!("not sent") };
        assert_eq!(receiver.arrived(seq, item), Arrival::InOrder);
        assert!(!receiver.ask(false));
        assert_eq!(sender.action(), None);
        sender.acknowledged(receiver.expected());
        assert_eq!((sender.unacknowledged(), receiver.take()), (0, Some(item)));
    }
}

#[test]
fn a_gap_is_asked_for_once_and_repaired() {
    let (mut sender, mut receiver) = (Sender::new(SMALL), Receiver::new(SMALL));
    let mut sent = Vec::new();
    for item in 0..3 {
        sender.push(item);
    }
    while let Some(Action::Send { seq, item, .. }) = sender.action() {
        sent.push((seq, *item));
    }
    assert_eq!(receiver.arrived(1, sent[1].1), Arrival::Early);
    assert!(receiver.ask(false));
    assert_eq!(receiver.arrived(2, sent[2].1), Arrival::Early);
    assert!(!receiver.ask(false), "the same gap");
    assert_eq!(receiver.arrived(2, sent[2].1), Arrival::Repeated);
    sender.missed();
    assert_eq!(sender.action(), Some(Action::Send { seq: 0, behind: 0, item: &0 }));
    assert_eq!(receiver.arrived(0, 0), Arrival::InOrder);
    assert_eq!(std::iter::from_fn(|| receiver.take()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(receiver.expected(), 3);
}

#[test]
fn what_never_gets_through_is_given_back_and_not_waited_for() {
    let (mut sender, mut receiver) = (Sender::new(SMALL), Receiver::new(SMALL));
    sender.push("lost");
    sender.push("kept");
    let mut attempts = 0;
    let given_up = loop {
        match sender.action() {
            Some(Action::Send { seq: 0, .. }) => attempts += 1,
            Some(Action::Send { seq, behind, item }) => {
                receiver.announced(seq, behind);
                receiver.arrived(seq, *item);
            }
            Some(Action::GiveUp(item)) => break item,
            None => sender.missed(),
        }
    };
    assert_eq!((given_up, attempts), ("lost", SMALL.attempts));
    assert_eq!(receiver.take(), None, "the receiver still waits");
    sender.missed();
    let Some(Action::Send { seq: 1, behind: 0, item: &"kept" }) = sender.action() else { panic!("not repeated") };
    assert_eq!(receiver.announced(1, 0), Arrival::Repeated);
    assert_eq!((receiver.take(), receiver.expected()), (Some("kept"), 2));
}

#[test]
fn numbers_that_cannot_be_are_ignored() {
    let (mut sender, mut receiver) = (Sender::new(SMALL), Receiver::new(SMALL));
    sender.push(7);
    sender.acknowledged(1);
    assert_eq!(sender.unacknowledged(), 1, "acknowledged before it was sent");
    let _ = sender.action();
    sender.acknowledged(99);
    assert_eq!(sender.unacknowledged(), 1);
    assert_eq!(receiver.announced(5, 6), Arrival::Impossible);
    assert_eq!(receiver.announced(50, SMALL.window), Arrival::Impossible);
    assert_eq!(receiver.arrived(u64::MAX, 7), Arrival::Impossible);
    assert_eq!(receiver.expected(), 0);
}

/// What the channel does to a frame.
#[derive(Clone, Copy, Debug)]
enum Harm {
    None,
    Drop,
    Duplicate,
    Swap,
    Damage,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![4 => Just(Harm::None), 1 => Just(Harm::Drop), 1 => Just(Harm::Duplicate), 1 => Just(Harm::Swap), 1 => Just(Harm::Damage)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// `turns` says who acts: the sender takes on and sends, or the receiver takes one frame off the channel.
    #[test]
    fn what_comes_out_is_what_went_in_or_was_given_back(
        count in 0..60u32,
        harms in proptest::collection::vec(harm(), 1..80),
        turns in proptest::collection::vec(any::<bool>(), 1..100),
        attempts in 1..8u32,
        window in 1..12u32,
    ) {
        let limits = Limits { window, attempts };
        let (mut sender, mut receiver) = (Sender::new(limits), Receiver::new(limits));
        // Number, how far back, item; `None` is a frame whose checksum is wrong.
        let mut channel: VecDeque<Option<(u64, u32, u32)>> = VecDeque::new();
        let (mut harms, mut turns) = (harms.into_iter().cycle(), turns.into_iter().cycle());
        let (mut pushed, mut out, mut lost) = (0, Vec::new(), Vec::new());
        let mut asked = false;
        for turn in 0.. {
            prop_assert!(turn < 100_000, "it does not end");
            let chance = turns.next().unwrap_or(true);
            if turn % 7 == 0 || turn % 7 != 1 && chance {
                sender.acknowledged(receiver.expected());
                if std::mem::take(&mut asked) {
                    sender.missed();
                }
                if pushed < count && sender.has_room() {
                    sender.push(pushed);
                    pushed += 1;
                }
                prop_assert!(sender.unacknowledged() <= window as usize);
                let waiting = sender.unacknowledged() > 0;
                match sender.action() {
                    Some(Action::GiveUp(item)) => lost.push(item),
                    Some(Action::Send { seq, behind, item }) => {
                        let frame = Some((seq, behind, *item));
                        match harms.next().unwrap_or(Harm::None) {
                            Harm::None => channel.push_back(frame),
                            Harm::Drop => {}
                            Harm::Duplicate => channel.extend([frame, frame]),
                            Harm::Swap => {
                                let place = channel.len().saturating_sub(1);
                                channel.insert(place, frame);
                            }
                            Harm::Damage => channel.push_back(None),
                        }
                    }
                    None if channel.is_empty() && waiting => sender.missed(),
                    None if channel.is_empty() && pushed == count => break,
                    None => {}
                }
            } else if let Some(frame) = channel.pop_front() {
                if let Some((seq, behind, item)) = frame {
                    prop_assert!(receiver.announced(seq, behind) != Arrival::Impossible);
                    prop_assert!(receiver.arrived(seq, item) != Arrival::Impossible);
                }
                asked |= receiver.ask(frame.is_none());
                out.extend(std::iter::from_fn(|| receiver.take()));
            }
        }
        prop_assert!(out.is_sorted_by(|a, b| a < b), "twice or out of order: {out:?}");
        let missing: Vec<u32> = (0..count).filter(|item| !out.contains(item)).collect();
        prop_assert!(missing.iter().all(|item| lost.contains(item)), "silently lost: {missing:?}, known {lost:?}");
    }
}
