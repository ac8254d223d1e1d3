//! One direction of a network that can be broken: which packets arrive, and when. Pure.

use crate::bench::plan::uniform;
use std::collections::VecDeque;
use std::time::Duration;

/// Packets that are kept at most while a way is held; what comes on top is lost.
const MOST_HELD: usize = 1 << 14;

/// What a way does with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Passage {
    /// They arrive.
    #[default]
    Open,
    /// They are lost.
    Cut,
    /// They take a time, and a share of them is lost.
    Slow {
        /// How long each takes.
        delay: Duration,
        /// The probability with which one is lost.
        lost: f64,
    },
    /// They are kept, and arrive when the way is in another state.
    Held,
}

/// See the module. The same seed loses the same packets of a sequence.
#[derive(Clone, Debug)]
pub struct Way<P> {
    passage: Passage,
    seed: u64,
    drawn: u64,
    under_way: VecDeque<(Duration, P)>,
    held: Vec<P>,
}

impl<P> Way<P> {
    /// An open way.
    pub fn new(seed: u64) -> Way<P> {
        Way { passage: Passage::Open, seed, drawn: 0, under_way: VecDeque::new(), held: Vec::new() }
    }

    /// From now on. What was held until now arrives now.
    pub fn set(&mut self, now: Duration, passage: Passage) {
        self.passage = passage;
        if passage != Passage::Held {
            for packet in std::mem::take(&mut self.held) {
                self.send(now, packet);
            }
        }
    }

    /// A packet is sent.
    pub fn sent(&mut self, now: Duration, packet: P) {
        match self.passage {
            Passage::Open => self.send(now, packet),
            Passage::Cut => {}
            Passage::Slow { delay, lost } => {
                self.drawn += 1;
                if uniform(self.seed, self.drawn) >= lost {
                    self.send(now + delay, packet);
                }
            }
            Passage::Held if self.held.len() < MOST_HELD => self.held.push(packet),
            Passage::Held => {}
        }
    }

    /// None overtakes another.
    fn send(&mut self, due: Duration, packet: P) {
        let last = self.under_way.back().map_or(Duration::ZERO, |(last, _)| *last);
        self.under_way.push_back((due.max(last), packet));
    }

    /// The next packet that arrives by now.
    pub fn arrived(&mut self, now: Duration) -> Option<P> {
        let (due, _) = self.under_way.front()?;
        if *due > now { None } else { self.under_way.pop_front().map(|(_, packet)| packet) }
    }

    /// When the next one does.
    pub fn next(&self) -> Option<Duration> {
        self.under_way.front().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn arrived(way: &mut Way<u32>, now: Duration) -> Vec<u32> {
        std::iter::from_fn(|| way.arrived(now)).collect()
    }

    #[test]
    fn an_open_way_lets_all_through_at_once_and_a_cut_one_nothing() {
        let mut way = Way::new(1);
        way.sent(ms(1), 1);
        assert_eq!(arrived(&mut way, ms(1)), [1]);
        way.set(ms(2), Passage::Cut);
        way.sent(ms(2), 2);
        way.set(ms(3), Passage::Open);
        assert_eq!((arrived(&mut way, ms(60_000)), way.next()), (vec![], None));
    }

    #[test]
    fn what_is_held_arrives_in_its_order_once_the_way_is_open() {
        let mut way = Way::new(1);
        way.set(ms(0), Passage::Held);
        (0..5).for_each(|packet| way.sent(ms(u64::from(packet)), packet));
        assert_eq!(arrived(&mut way, ms(4000)), [] as [u32; 0]);
        way.set(ms(4000), Passage::Open);
        way.sent(ms(4000), 5);
        assert_eq!(arrived(&mut way, ms(4000)), [0, 1, 2, 3, 4, 5]);
        way.set(ms(5000), Passage::Held);
        (0..MOST_HELD as u32 + 9).for_each(|packet| way.sent(ms(5000), packet));
        way.set(ms(6000), Passage::Open);
        assert_eq!(arrived(&mut way, ms(6000)).len(), MOST_HELD);
    }

    #[test]
    fn a_slow_way_takes_its_time_also_when_it_is_open_again() {
        let mut way = Way::new(1);
        way.set(ms(0), Passage::Slow { delay: ms(50), lost: 0.0 });
        way.sent(ms(10), 1);
        assert_eq!((arrived(&mut way, ms(59)), way.next()), (vec![], Some(ms(60))));
        way.set(ms(20), Passage::Open);
        way.sent(ms(20), 2);
        assert_eq!(arrived(&mut way, ms(60)), [1, 2]);
    }

    proptest! {
        #[test]
        fn a_seed_loses_the_same_packets_again_and_about_as_many_as_it_should(seed: u64, percent in 0u32..=100) {
            let lost = f64::from(percent) / 100.0;
            let through = || {
                let mut way = Way::new(seed);
                way.set(ms(0), Passage::Slow { delay: ms(50), lost });
                (0..4000u32).for_each(|packet| way.sent(ms(0), packet));
                arrived(&mut way, ms(50))
            };
            let kept = through();
            prop_assert_eq!(&kept, &through());
            prop_assert!(kept.is_sorted());
            let share = kept.len() as f64 / 4000.0;
            prop_assert!((share - (1.0 - lost)).abs() < 0.06, "{}", share);
        }
    }
}
