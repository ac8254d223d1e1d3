//! A gateway: what its engine does with the real nodes, seats, ledger and edges, and journals that only count.

use super::node::{LinkId, ToNode};
use crate::ids::{Attempt, RequestId, StageName};
use crate::ledger::{Effect, LedgerCore, LedgerLimits, Owed};
use crate::nodes::{Nodes, Offer, PROTOCOL, Terms, Ticket};
use crate::random::mix;
use crate::seats::Seats;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The stages that are on nodes.
pub(super) const STAGES: [StageName; 2] = [StageName::Talker, StageName::Vocoder];
/// How long a request lives besides what its client hears.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A unit of a stage, on its way to the gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub stage: StageName,
    pub request: RequestId,
    pub seq: u32,
    pub value: u64,
    pub end: bool,
}

/// What a unit has to be.
pub(super) fn unit(seed: u64, stage: StageName, seq: u32) -> u64 {
    mix(mix(seed, stage as u64), seq.into())
}

/// A session of a gateway.
pub(super) fn name(gateway: usize, life: u32) -> String {
    format!("g{gateway}-{life}")
}

/// Of gateways and nodes that have this checkpoint.
pub(super) fn terms(checkpoint: u8) -> Terms {
    Terms { protocol: PROTOCOL, program: "simulated".into(), checkpoint: [checkpoint; 32] }
}

/// What the world carries out for a gateway.
#[derive(Debug)]
pub(super) enum Out {
    /// Asks the node of a ticket for a link, for this stage and replica.
    Ask(usize, usize, Ticket),
    /// On a link to a node.
    Tell(usize, LinkId, ToNode),
    /// Closes a link to a node.
    Close(usize, LinkId),
    /// A client hears a unit.
    Hear { client: usize, request: RequestId, seq: u32, value: u64, end: bool },
    /// A client's request took too long.
    Expired { client: usize },
}

/// A replica of a stage.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// It looks for a node.
    Searching,
    /// It has asked one.
    Asking(Ticket),
    /// It has a link.
    Open(Open),
}

#[derive(Clone, Debug)]
pub(super) struct Open {
    ticket: Ticket,
    pub node: usize,
    pub link: LinkId,
    pub heard: Duration,
}

/// What is known of a request: how far each stage has come, and the attempt of each stage.
struct Journal {
    client: usize,
    seed: u64,
    units: u32,
    made: [u32; 2],
    attempts: u32,
    current: [Attempt; 2],
}

pub(super) struct Gateway {
    pub life: u32,
    pub is_up: bool,
    pub nodes: Nodes,
    pub places: [Vec<Place>; 2],
    /// The session of each node that has joined, and when it was heard.
    pub seen: Vec<(Option<u32>, Duration)>,
    pub looks_at: Option<Duration>,
    /// Since when each stage has had no node, if it had one before.
    bare: [Option<Duration>; 2],
    seats: [Seats; 2],
    ledger: LedgerCore,
    accepted: u64,
    requests: BTreeMap<RequestId, Journal>,
    pub out: Vec<Out>,
    pub readmitted: u64,
    pub stale: u64,
    /// The first thing that went wrong.
    pub wrong: Option<String>,
}

impl Gateway {
    pub fn new(index: usize, life: u32, nodes: usize, max_nodes: usize) -> Gateway {
        let limits = LedgerLimits { request_timeout: REQUEST_TIMEOUT, stalled_client_timeout: REQUEST_TIMEOUT };
        Gateway {
            life,
            is_up: true,
            nodes: Nodes::new(terms(0), max_nodes).in_order_of(&name(index, life)),
            places: [vec![Place::Searching; max_nodes], vec![Place::Searching; max_nodes]],
            seen: vec![(None, Duration::ZERO); nodes],
            looks_at: None,
            bare: [None; 2],
            seats: [(); 2].map(|()| Seats::new(max_nodes).in_order_of(mix(index as u64, life.into()))),
            ledger: LedgerCore::new(limits),
            accepted: 0,
            requests: BTreeMap::new(),
            out: Vec::new(),
            readmitted: 0,
            stale: 0,
            wrong: None,
        }
    }

    /// Whether it takes a request: no more than its nodes have slots for.
    pub fn has_room(&self) -> bool {
        let slots = |stage: usize| -> u32 {
            (0..self.places[stage].len()).map(|replica| self.seats[stage].places(replica)).sum()
        };
        self.is_up && self.ledger.open() < slots(0).min(slots(1)) as usize
    }

    pub fn open_requests(&self) -> usize {
        self.ledger.open()
    }

    /// Whose requests it has.
    pub fn clients(&self) -> Vec<usize> {
        self.requests.values().map(|journal| journal.client).collect()
    }

    pub fn joins(&mut self, node: usize, session: u32, offer: Offer, now: Duration) {
        self.nodes.joined(format!("{node}-{session}"), offer, now);
        self.search(now);
    }

    pub fn leaves(&mut self, node: usize, session: u32, now: Duration) {
        self.nodes.left(&format!("{node}-{session}"));
        for (stage, replica, _) in self.links().into_iter().filter(|(_, _, open)| open.node == node) {
            self.close(stage, replica, now);
        }
        self.search(now);
    }

    /// Open links: stage, replica and link.
    pub fn links(&self) -> Vec<(usize, usize, Open)> {
        let of = |stage: usize| {
            let open = move |(replica, place): (usize, &Place)| match place {
                Place::Open(open) => Some((stage, replica, open.clone())),
                _ => None,
            };
            self.places[stage].iter().enumerate().filter_map(open)
        };
        of(0).chain(of(1)).collect()
    }

    /// Whether a link is open here.
    pub fn has(&self, node: usize, link: LinkId) -> bool {
        let is_it = |place: &Place| matches!(place, Place::Open(open) if (open.node, open.link) == (node, link));
        self.places.iter().flatten().any(is_it)
    }

    /// Every replica that has no node looks for one, as each of them does for itself in an engine.
    pub fn search(&mut self, now: Duration) {
        for (stage, name) in STAGES.into_iter().enumerate() {
            for replica in 0..self.places[stage].len() {
                if matches!(self.places[stage][replica], Place::Searching)
                    && let Some(ticket) = self.nodes.take(name, replica as u8, now)
                {
                    self.places[stage][replica] = Place::Asking(ticket.clone());
                    self.out.push(Out::Ask(stage, replica, ticket));
                }
            }
        }
    }

    /// When the next node may be asked again, where a replica has none.
    pub fn next_look(&self, now: Duration) -> Option<Duration> {
        let searches = |stage: &usize| self.places[*stage].iter().any(|place| matches!(place, Place::Searching));
        (0..STAGES.len()).filter(searches).filter_map(|stage| self.nodes.next_look(STAGES[stage], now)).min()
    }

    /// A node has answered, or did not in time.
    pub fn answered(
        &mut self,
        (stage, replica): (usize, usize),
        asked: &Ticket,
        answer: Result<(usize, LinkId), String>,
        now: Duration,
    ) {
        if !matches!(&self.places[stage][replica], Place::Asking(ticket) if ticket == asked) {
            // It comes too late: nothing listens on that link.
            return;
        }
        match answer {
            Ok((node, link)) => {
                if !self.nodes.linked(asked) {
                    self.out.push(Out::Close(node, link));
                    self.places[stage][replica] = Place::Searching;
                    return self.search(now);
                }
                self.nodes.running(asked, true);
                self.places[stage][replica] = Place::Open(Open { ticket: asked.clone(), node, link, heard: now });
                self.seats[stage].up(replica, asked.slots);
                self.bare[stage] = None;
                let seatless = |request: &&RequestId| self.seats[stage].of(**request).is_none();
                let waiting: Vec<RequestId> = self.requests.keys().filter(seatless).copied().collect();
                waiting.into_iter().for_each(|request| self.admit(stage, request));
                // The node is there for the other stage too.
                self.search(now);
            }
            Err(reason) => {
                self.nodes.refused(asked, reason, now);
                self.nodes.release(asked);
                self.places[stage][replica] = Place::Searching;
                self.search(now);
            }
        }
    }

    /// A link is of no use any more.
    pub fn close(&mut self, stage: usize, replica: usize, now: Duration) {
        let place = std::mem::replace(&mut self.places[stage][replica], Place::Searching);
        let Place::Open(open) = place else { return };
        self.nodes.release(&open.ticket);
        self.out.push(Out::Close(open.node, open.link));
        let lost = self.seats[stage].down(replica);
        if !self.seats[stage].is_up() {
            self.bare[stage] = Some(now);
        }
        self.readmitted += lost.len() as u64;
        lost.into_iter().for_each(|request| self.admit(stage, request));
        self.search(now);
    }

    pub fn request(&mut self, client: usize, seed: u64, units: u32, now: Duration) -> RequestId {
        self.accepted += 1;
        let request = RequestId(self.accepted);
        self.ledger.accept(request, Owed { text: false, audio: true }, STAGES.to_vec(), now);
        self.requests
            .insert(request, Journal { client, seed, units, made: [0; 2], attempts: 0, current: Default::default() });
        (0..STAGES.len()).for_each(|stage| self.admit(stage, request));
        request
    }

    /// Gives a request a sequence in a stage that it still needs, in the place where the seats say.
    fn admit(&mut self, stage: usize, request: RequestId) {
        let Some(journal) = self.requests.get_mut(&request) else { return };
        if journal.made[stage] == journal.units || !self.seats[stage].is_up() {
            return;
        }
        journal.attempts += 1;
        let (attempt, from) = (Attempt(journal.attempts), journal.made[stage]);
        journal.current[stage] = attempt;
        let input = if stage == 0 { journal.units } else { journal.made[0] };
        let admission = ToNode::Admit { request, attempt, seed: journal.seed, from, units: journal.units, input };
        let Some(seat) = self.seats[stage].take(request) else { return };
        let seats = &self.seats[stage];
        let up = (0..self.places[stage].len()).filter_map(|at| Some((seats.taken(at)?, seats.places(at) as usize)));
        let up: Vec<(usize, usize)> = up.collect();
        let (taken, places) = up.iter().fold((0, 0), |sum, its| (sum.0 + its.0, sum.1 + its.1));
        // The bound of a placement: the part of its places that all of them would have taken with one sequence more each,
        // in which this one is counted already. For places that are the same everywhere it is the mean, rounded up.
        if seats.taken(seat) > Some(seats.places(seat) as usize * (taken - 1 + up.len()) / places) {
            self.wrong = Some(format!("{request} was placed on the fullest of {up:?}: {seat}"));
        }
        match &self.places[stage][seat] {
            Place::Open(open) => self.out.push(Out::Tell(open.node, open.link, admission)),
            other => self.wrong = Some(format!("{request} was placed on a replica that is {other:?}")),
        }
    }

    /// A unit arrives, on whatever link. A journal takes the next one of its edge, whichever attempt has made it, and
    /// drops what it has and what it cannot use yet.
    pub fn arrived(&mut self, payload: Payload) {
        let Payload { stage: name, request, seq, value, end } = payload;
        let stage = usize::from(name == StageName::Vocoder);
        let Some(journal) = self.requests.get_mut(&request).filter(|journal| journal.made[stage] == seq) else {
            return self.stale += 1;
        };
        journal.made[stage] += 1;
        if value != unit(journal.seed, name, seq) || end != (journal.made[stage] == journal.units) {
            self.wrong = Some(format!("{name} {request}: unit {seq} is another one"));
        }
        let (client, attempt) = (journal.client, journal.current[1]);
        if stage == 0 {
            if let Some(seat) = self.seats[1].of(request)
                && let Place::Open(open) = &self.places[1][seat]
            {
                self.out.push(Out::Tell(open.node, open.link, ToNode::Input { request, attempt, seq }));
            }
        } else {
            self.out.push(Out::Hear { client, request, seq, value, end });
        }
        if end {
            self.ledger.stage_done(request, name);
            self.seats[stage].leave(request);
            if stage == 1 {
                let effect = self.ledger.audio_done(request);
                if effect != Some(Effect::Complete(request)) {
                    self.wrong = Some(format!("{request} ends with {effect:?}"));
                }
                self.requests.remove(&request);
            }
        }
    }

    /// Ends what has taken too long; its clients ask again.
    pub fn tick(&mut self, now: Duration) {
        for effect in self.ledger.tick(now) {
            let (Effect::Fail(request, _) | Effect::Complete(request) | Effect::Release(request)) = effect;
            let Some(journal) = self.requests.remove(&request) else { continue };
            for stage in 0..STAGES.len() {
                let seat = self.seats[stage].of(request).map(|seat| &self.places[stage][seat]);
                if let Some(Place::Open(open)) = seat {
                    self.out.push(Out::Tell(open.node, open.link, ToNode::Abort { request }));
                }
                self.seats[stage].leave(request);
            }
            self.out.push(Out::Expired { client: journal.client });
        }
    }

    /// A stage that had a node, and has had none for so long.
    pub fn bare_for(&self, long: Duration, now: Duration) -> Option<StageName> {
        let is_bare = |since: &Option<Duration>| since.is_some_and(|since| now > since + long);
        self.bare.iter().position(is_bare).map(|stage| STAGES[stage])
    }

    /// Something that must not be, if there is any.
    pub fn problem(&self) -> Option<String> {
        let nodes: BTreeSet<usize> = self.links().into_iter().map(|(_, _, open)| open.node).collect();
        if nodes.len() > self.places[0].len() {
            return Some(format!("a gateway has the nodes {nodes:?}, and may have {}", self.places[0].len()));
        }
        for (stage, name) in STAGES.into_iter().enumerate() {
            let is_up = |replica: usize| self.seats[stage].taken(replica).is_some();
            let open = |place: &Place| matches!(place, Place::Open(_));
            if let Some((replica, place)) =
                self.places[stage].iter().enumerate().find(|(replica, place)| is_up(*replica) != open(place))
            {
                return Some(format!("replica {replica} of the {name} is {place:?}"));
            }
            let waits = |journal: &Journal| journal.made[stage] < journal.units;
            let forgotten = |(request, journal): &(&RequestId, &Journal)| {
                waits(journal) && self.seats[stage].is_up() && self.seats[stage].of(**request).is_none()
            };
            if let Some((request, _)) = self.requests.iter().find(forgotten) {
                return Some(format!("{request} has no sequence in the {name}, which is up"));
            }
        }
        (self.ledger.open() != self.requests.len()).then(|| "the ledger has another number of requests".to_owned())
    }

    /// Sequences that replicas have.
    pub fn seated(&self) -> usize {
        let of = |stage: usize| (0..self.places[stage].len()).filter_map(move |at| self.seats[stage].taken(at));
        of(0).chain(of(1)).sum()
    }
}
