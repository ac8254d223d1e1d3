//! What the actors of a generation have in hand: the requests that a failure concerns. Each actor writes down what it
//! takes up and what it is done with; a failure leaves what was written, for the supervisor to read.
//!
//! It is a few words of memory that are only stored to, so writing takes no lock and no allocation. In a process of the
//! stage's own they are shared with the parent ([`Notes`]), which reads them when the process has died, however it did.
//!
//! Steps are in a ring of entries, with four positions that only grow:
//!
//! ```text
//! settled <= taken <= returned <= launched
//!    the scheduler works on   the sampler waits for
//! ```

use crate::pulse::Role;
use omni_core::ids::RequestId;
use omni_core::scheduler::Plan;
use omni_transfer::shm::Notes;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of an entry that say the unit.
const UNIT_BITS: u32 = 24;
/// Bits of an entry that say the request.
const REQUEST_BITS: u32 = u64::BITS - UNIT_BITS;
/// The actor knows of no unit.
const NO_UNIT: u32 = (1 << UNIT_BITS) - 1;
/// Words in front of the ring: one per role, one of the parent, and the positions.
const FIXED: usize = Role::ALL.len() + 5;
const PARENT: usize = Role::ALL.len();
const SETTLED: usize = PARENT + 1;
const TAKEN: usize = SETTLED + 1;
const RETURNED: usize = TAKEN + 1;
const LAUNCHED: usize = RETURNED + 1;

/// The sequences that a failure concerns.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum InHands {
    /// These, each with the unit of its output at which it was; `None`: an actor had it in hand that knows of no unit.
    These(Vec<(RequestId, Option<u32>)>),
    /// All that the stage had: more than could be written down.
    All,
}

impl InHands {
    /// A failure that concerns no request.
    pub fn nothing() -> InHands {
        InHands::These(Vec::new())
    }
}

/// See the module.
pub(crate) struct InHand(Words);

enum Words {
    Own(Box<[AtomicU64]>),
    Shared(Notes),
}

impl InHand {
    /// Nothing in hand, and room for the steps of so many sequences; in `notes`, for as many as there is room there.
    pub fn new(sequences: usize, notes: Option<&Notes>) -> InHand {
        let words = match notes {
            Some(notes) => Words::Shared(notes.clone()),
            None => Words::Own((0..FIXED + sequences.max(1)).map(|_| AtomicU64::new(0)).collect()),
        };
        let new = InHand(words);
        new.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        new
    }

    /// What another process wrote there.
    pub fn of(notes: &Notes) -> InHand {
        InHand(Words::Shared(notes.clone()))
    }

    /// A role takes up something about one request.
    pub fn take(&self, role: Role, request: RequestId) {
        self.put(role as usize, entry(request, NO_UNIT));
    }

    /// The same, at this unit of its output.
    pub fn take_at(&self, role: Role, request: RequestId, unit: u32) {
        self.put(role as usize, entry(request, unit.min(NO_UNIT - 1)));
    }

    /// A role is done with it.
    pub fn rest(&self, role: Role) {
        self.put(role as usize, 0);
    }

    /// The parent of the stage's process takes up a payload that came from there.
    pub fn parent_takes(&self, request: RequestId, unit: u32) {
        self.put(PARENT, entry(request, unit.min(NO_UNIT - 1)));
    }

    /// The parent is done with it.
    pub fn parent_rests(&self) {
        self.put(PARENT, 0);
    }

    /// What the parent has in hand.
    pub fn of_parent(&self) -> InHands {
        let one = decoded(self.get(PARENT));
        InHands::These(one.into_iter().collect())
    }

    /// The launch thread is about to launch a step.
    pub fn launching(&self, plan: &Plan) {
        let from = self.get(LAUNCHED);
        let ring = &self.words()[FIXED..];
        for (at, sequence) in (from..).zip(&plan.sequences) {
            let word = entry(sequence.request, sequence.unit.min(NO_UNIT - 1));
            ring[(at % ring.len() as u64) as usize].store(word, Ordering::Relaxed);
        }
        self.advance(LAUNCHED, plan.sequences.len());
    }

    /// The sampler has seen a step of so many sequences through.
    pub fn returned(&self, sequences: usize) {
        self.advance(RETURNED, sequences);
    }

    /// The scheduler takes up the outcome of a step.
    pub fn taking(&self, sequences: usize) {
        self.advance(TAKEN, sequences);
    }

    /// It is done with that.
    pub fn settled(&self) {
        self.put(SETTLED, self.get(TAKEN));
    }

    /// What a role has in hand; what all of them have, where it is not known which of them failed.
    pub fn of_role(&self, role: Option<Role>) -> InHands {
        let mut found = Vec::new();
        let roles = match role {
            // On the launch thread both are one, and a device tells either of a failure.
            Some(Role::Runner | Role::Sampler) => &[Role::Runner, Role::Sampler][..],
            Some(ref role) => std::slice::from_ref(role),
            None => &Role::ALL,
        };
        let single = roles.iter().map(|role| self.get(*role as usize)).filter(|word| *word != 0);
        found.extend(single);
        let (from, to) = match role {
            Some(Role::Runner | Role::Sampler) => (RETURNED, LAUNCHED),
            Some(Role::Scheduler) => (SETTLED, TAKEN),
            Some(_) => (LAUNCHED, LAUNCHED),
            None => (SETTLED, LAUNCHED),
        };
        let (from, to) = (self.get(from), self.get(to));
        let ring = &self.words()[FIXED..];
        // Also what a process wrote that was out of its mind.
        if from > to || to - from > ring.len() as u64 {
            return InHands::All;
        }
        found.extend((from..to).map(|at| ring[(at % ring.len() as u64) as usize].load(Ordering::Relaxed)));
        let mut these: Vec<(RequestId, Option<u32>)> = Vec::new();
        for (request, unit) in found.into_iter().filter_map(decoded) {
            match these.iter_mut().find(|(known, _)| *known == request) {
                // Any of the units that were out may be the one at which it failed.
                Some((_, known)) => *known = (*known).max(unit),
                None => these.push((request, unit)),
            }
        }
        InHands::These(these)
    }

    fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            Words::Own(words) => words,
            Words::Shared(notes) => notes.words(),
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.words()[at].load(Ordering::Acquire)
    }

    fn put(&self, at: usize, word: u64) {
        self.words()[at].store(word, Ordering::Release);
    }

    /// Each position has one writer.
    fn advance(&self, position: usize, by: usize) {
        self.put(position, self.get(position).wrapping_add(by as u64));
    }
}

fn entry(request: RequestId, unit: u32) -> u64 {
    // Engines number requests one by one, from 1: at a million a second it takes twelve days to get there.
    debug_assert!(request.0 >> REQUEST_BITS == 0, "the number of request {request} leaves no room for its unit");
    request.0 << UNIT_BITS | u64::from(unit)
}

fn decoded(word: u64) -> Option<(RequestId, Option<u32>)> {
    let (request, unit) = (word >> UNIT_BITS, (word & u64::from(NO_UNIT)) as u32);
    (request > 0).then_some((RequestId(request), (unit != NO_UNIT).then_some(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_core::deadline::PlaybackPolicy;
    use omni_core::scheduler::{Effect, Event, Pace, SchedulerConfig, SchedulerCore, SequenceParams, Start, Yields};
    use omni_transfer::shm::ring;
    use proptest::prelude::*;
    use std::time::Duration;

    /// A plan of request 1, at its first unit.
    fn plan() -> Plan {
        let playback = PlaybackPolicy { unit: Duration::from_millis(80), gathers: 0, lead_cap: None };
        let mut core = SchedulerCore::new(SchedulerConfig {
            slots: 1,
            max_batch: 1,
            prefill_chunk: 1,
            prefill_least: 0,
            yields: Yields::Never,
            joins_prompts: false,
            paced: false,
            run_ahead: 1,
            window: 8,
            max_step_units: None,
            buckets: Vec::new(),
            playback,
        });
        let params = SequenceParams::unprompted(Pace::Free);
        let effects = core.handle(Event::Admit(RequestId(1), params, Start::default()), Duration::ZERO);
        let launch = |effect| if let Effect::Launch(plan) = effect { Some(plan) } else { None };
        effects.into_iter().find_map(launch).unwrap()
    }

    fn these(in_hands: InHands) -> Vec<(u64, Option<u32>)> {
        match in_hands {
            InHands::These(these) => these.into_iter().map(|(request, unit)| (request.0, unit)).collect(),
            InHands::All => panic!("all of them"),
        }
    }

    #[test]
    fn each_role_is_asked_for_what_it_had() {
        let in_hand = InHand::new(8, None);
        in_hand.take_at(Role::Packager, RequestId(7), 3);
        in_hand.take(Role::Inbound, RequestId(8));
        let one = plan();
        assert_eq!(one.sequences.len(), 1);
        in_hand.launching(&one);
        assert_eq!(these(in_hand.of_role(Some(Role::Packager))), [(7, Some(3))]);
        assert_eq!(these(in_hand.of_role(Some(Role::Inbound))), [(8, None)]);
        assert_eq!(these(in_hand.of_role(Some(Role::Outbound))), []);
        assert_eq!(these(in_hand.of_role(Some(Role::Runner))), [(1, Some(0))]);
        assert_eq!(these(in_hand.of_role(None)), [(7, Some(3)), (8, None), (1, Some(0))], "nobody knows who it was");
        in_hand.returned(1);
        assert_eq!(these(in_hand.of_role(Some(Role::Sampler))), []);
        in_hand.taking(1);
        assert_eq!(these(in_hand.of_role(Some(Role::Scheduler))), [(1, Some(0))]);
        in_hand.settled();
        in_hand.rest(Role::Packager);
        assert_eq!(these(in_hand.of_role(None)), [(8, None)]);
    }

    #[test]
    fn the_largest_number_of_a_request_is_read_as_it_was_written() {
        let in_hand = InHand::new(1, None);
        let largest = (1_u64 << REQUEST_BITS) - 1;
        in_hand.take_at(Role::Packager, RequestId(largest), u32::MAX);
        assert_eq!(these(in_hand.of_role(Some(Role::Packager))), [(largest, Some(NO_UNIT - 1))]);
        in_hand.take(Role::Packager, RequestId(largest));
        assert_eq!(these(in_hand.of_role(Some(Role::Packager))), [(largest, None)]);
    }

    #[test]
    fn more_than_can_be_written_down_is_all_of_them() {
        let in_hand = InHand::new(3, None);
        for _ in 0..4 {
            in_hand.launching(&plan());
        }
        assert_eq!(in_hand.of_role(None), InHands::All);
        in_hand.returned(1);
        assert_eq!(these(in_hand.of_role(Some(Role::Runner))), [(1, Some(0))]);
    }

    #[test]
    fn what_one_end_of_a_ring_writes_down_the_other_reads_when_that_is_gone() {
        let (producer, consumer) = ring(1).unwrap();
        let theirs = InHand::new(0, Some(&producer.notes()));
        let ours = InHand::of(&consumer.notes());
        theirs.launching(&plan());
        theirs.take(Role::Scheduler, RequestId(5));
        drop((theirs, producer));
        assert_eq!(these(ours.of_role(None)), [(5, None), (1, Some(0))]);
        assert!(consumer.notes().words().len() > 256 + FIXED, "a step of the largest batch");
    }

    proptest! {
        #[test]
        fn whatever_is_written_there_can_be_read(words in proptest::collection::vec(any::<u64>(), FIXED + 4)) {
            let in_hand = InHand::new(4, None);
            words.iter().zip(in_hand.words()).for_each(|(word, place)| place.store(*word, Ordering::Relaxed));
            for role in Role::ALL.into_iter().map(Some).chain([None]) {
                in_hand.of_role(role);
            }
            in_hand.of_parent();
        }
    }
}
