//! Requests that nobody waits for: what they compute may be of use later. One takes a slot that no stream holds, and ends
//! as soon as a stream wants it. So no stream notices them: they have no part in shares, rates, the capacity that is
//! learned, and the first sounds that are predicted.

use super::{AdmissionCore, Slo, Ticket};
use std::time::Duration;

impl AdmissionCore {
    /// A slot, where one is free and no stream is late.
    pub fn ask_background(&mut self, now: Duration) -> Option<Ticket> {
        self.look(now);
        let places = self.places(Slo::Background).min(self.limits.places);
        if self.running() + self.background.len() >= places || !self.late(now).is_empty() {
            return None;
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.background.push_back(ticket);
        Some(ticket)
    }

    /// The background requests whose slots streams have now, the oldest first: they have to end before those streams
    /// begin or go on.
    pub fn make_way(&mut self) -> Vec<Ticket> {
        // This is asked with each chunk of each stream, and all streams are counted below.
        if self.background.is_empty() {
            return Vec::new();
        }
        let over = (self.running() + self.background.len()).saturating_sub(self.limits.places);
        self.background.drain(..over.min(self.background.len())).collect()
    }

    /// A background request is over; whether it was one.
    pub(super) fn background_left(&mut self, ticket: Ticket) -> bool {
        let before = self.background.len();
        self.background.retain(|other| *other != ticket);
        self.background.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LISTENED, admission, asked, ms};
    use super::super::*;

    #[test]
    fn what_nobody_waits_for_takes_free_slots_alone_and_gives_them_up_at_once() {
        let now = ms(1000);
        let mut core = admission(3, true);
        let [first, second] = [0; 2].map(|_| core.ask_background(now).unwrap());
        assert_eq!((core.status().held, core.make_way()), (0, vec![]));
        let stream = core.ask(&asked(LISTENED), now).unwrap().ticket;
        assert_eq!((core.make_way(), core.ask_background(now)), (vec![], None), "the last slot");
        core.ask(&asked(LISTENED), now).unwrap();
        assert_eq!(core.make_way(), [first], "the oldest goes");
        core.ask(&asked(Slo::BestEffort), now).unwrap();
        assert_eq!((core.make_way(), core.make_way()), (vec![second], vec![]));
        core.left(second, now);
        assert_eq!((core.status().held, core.ask_background(now)), (3, None));
        core.left(stream, now);
        assert!(core.ask_background(now).is_some());
    }

    #[test]
    fn while_a_stream_is_late_nothing_begins_that_nobody_waits_for() {
        let mut core = admission(16, true);
        let stream = core.ask(&asked(LISTENED), ms(0)).unwrap().ticket;
        core.waits(stream, ms(0));
        assert!(core.ask_background(ms(900)).is_some());
        assert_eq!(core.ask_background(ms(60_000)), None);
    }
}
