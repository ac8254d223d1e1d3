//! The events of a simulation, the network between the sides, and the clients.

use super::gateway::{Gateway, Out, Payload, STAGES, name, terms};
use super::node::{LinkId, Node, ToNode};
use super::scenario::{Balancer, Scenario, What};
use super::{Report, Violation};
use crate::ids::{Attempt, RequestId};
use crate::nodes::{NodeId, Offer, Ticket};
use crate::random::Random;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// One way through the network.
const WAY: Duration = Duration::from_millis(1);
/// A unit takes a stage so long.
const UNIT: Duration = Duration::from_millis(200);
/// `cluster.silence`.
pub(super) const SILENCE: Duration = Duration::from_secs(2);
/// How often each side looks who is there.
const LOOK: Duration = Duration::from_millis(500);
/// How long a node may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// When a client that has no gateway asks again.
pub(super) const RETRY: Duration = Duration::from_millis(500);
/// Behind the last fault: the longest that one lasts, and the time in which everybody has noticed.
const SETTLED: Duration = Duration::from_secs(20);
/// How long everything may take: a single slot has eighty answers of up to eight seconds to make.
const PATIENCE: Duration = Duration::from_secs(1200);

#[derive(Debug)]
pub(super) enum Event {
    Request(usize),
    Fault(usize),
    Back(What),
    /// A question arrives: of which gateway and life, for which replica.
    Asked(usize, u32, (usize, usize), Ticket),
    Answered(usize, u32, (usize, usize), Ticket, Result<(usize, LinkId), String>),
    Told(usize, u32, LinkId, ToNode),
    Makes(usize, u32, LinkId, RequestId, Attempt),
    Arrives(usize, u32, Payload),
    /// A replica may ask a node again.
    Search(usize, u32),
    Look,
}

/// An event at its time. Those of one time come in the order of their numbers.
struct At(Duration, u64, Event);

impl PartialEq for At {
    fn eq(&self, other: &At) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for At {}
impl PartialOrd for At {
    fn partial_cmp(&self, other: &At) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for At {
    fn cmp(&self, other: &At) -> std::cmp::Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

/// A client, which hears each unit once, whatever happens.
#[derive(Clone, Default)]
pub(super) struct Client {
    seed: u64,
    units: u32,
    heard: u32,
    /// Whom it asked, and what of that answer it had already.
    asked: Option<(usize, RequestId, u32)>,
}

impl Client {
    pub fn is_done(&self) -> bool {
        self.units > 0 && self.heard == self.units
    }
}

pub(super) struct World<'a> {
    pub scenario: &'a Scenario,
    random: Random,
    pub now: Duration,
    events: BinaryHeap<At>,
    number: u64,
    link: LinkId,
    turn: usize,
    pub nodes: Vec<Node>,
    pub gateways: Vec<Gateway>,
    pub clients: Vec<Client>,
    /// Until when nothing passes between a gateway and a node.
    pub cuts: BTreeMap<(usize, usize), Duration>,
    pub report: Report,
    /// Clients that have heard all.
    done: usize,
    wrong: Option<String>,
}

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario) -> World<'a> {
        let settings = &scenario.settings;
        let (nodes, gateways) = (settings.nodes, settings.gateways);
        let mut world = World {
            scenario,
            random: Random::new(scenario.seed ^ 0xF1EE7),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            number: 0,
            link: 0,
            turn: 0,
            nodes: (0..nodes).map(|_| Node::new(settings.shares)).collect(),
            gateways: (0..gateways).map(|at| Gateway::new(at, 0, nodes, settings.max_nodes)).collect(),
            clients: vec![Client::default(); scenario.requests.len()],
            cuts: BTreeMap::new(),
            report: Report::default(),
            done: 0,
            wrong: None,
        };
        // Nodes have joined before the first request comes.
        let begin = 2 * LOOK;
        scenario.requests.iter().enumerate().for_each(|(at, its)| world.at(begin + its.at, Event::Request(at)));
        scenario.faults.iter().enumerate().for_each(|(at, its)| world.at(begin + its.at, Event::Fault(at)));
        world.at(Duration::ZERO, Event::Look);
        world
    }

    pub fn play(mut self) -> Result<Report, Violation> {
        let lasts = self.scenario.settings.lasts;
        while let Some(At(at, number, event)) = self.events.pop() {
            self.now = at;
            self.report.events += 1;
            let asleep = self.asleep(&event);
            match asleep {
                // It keeps its place in the order.
                Some(until) => self.events.push(At(until, number, event)),
                None => self.happens(event),
            }
            if let Some(what) = self.wrong.take() {
                return Err(self.violation(what));
            }
            let waiting = self.clients.len() - self.done;
            if at > lasts + PATIENCE {
                return Err(self.violation(format!("{waiting} clients still wait")));
            }
            if waiting == 0 && at > lasts + SETTLED {
                break;
            }
        }
        self.report.lasted = self.now;
        match self.left_over() {
            Some(what) => Err(self.violation(what)),
            None => Ok(self.report),
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.scenario.seed, at: self.now, what }
    }

    pub(super) fn at(&mut self, at: Duration, event: Event) {
        self.number += 1;
        self.events.push(At(at.max(self.now), self.number, event));
    }

    /// Until when the node that an event is for does nothing.
    fn asleep(&self, event: &Event) -> Option<Duration> {
        let node = match event {
            Event::Told(node, ..) | Event::Makes(node, ..) => *node,
            Event::Asked(.., ticket) => index(&ticket.id).0,
            _ => return None,
        };
        Some(self.nodes[node].stalled_until).filter(|until| *until > self.now)
    }

    /// When something arrives that is sent now. A network that is cut loses nothing: it comes later, on links that may
    /// be closed by then.
    fn arrives(&self, gateway: usize, node: usize) -> Duration {
        self.cuts.get(&(gateway, node)).copied().unwrap_or_default().max(self.now) + WAY
    }

    /// Whether both sides hear each other.
    pub fn hears(&self, gateway: usize, node: usize) -> bool {
        let (its, cut) = (&self.nodes[node], self.cuts.get(&(gateway, node)));
        self.gateways[gateway].is_up
            && its.is_up
            && its.stalled_until <= self.now
            && cut.is_none_or(|until| *until <= self.now)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Request(client) => self.asks(client),
            Event::Fault(at) => self.breaks(self.scenario.faults[at].what),
            Event::Back(What::KillsGateway(at, _)) => {
                let settings = &self.scenario.settings;
                self.gateways[at] = Gateway::new(at, self.gateways[at].life, settings.nodes, settings.max_nodes);
            }
            Event::Back(what) => {
                if let What::Kills(node, _) | What::Drains(node, _) | What::Retires(node, _) = what {
                    self.nodes[node].is_up = true;
                }
            }
            Event::Asked(gateway, life, place, ticket) => self.asked(gateway, life, place, ticket),
            Event::Answered(gateway, life, place, ticket, answer) => {
                if self.lives(gateway, life) {
                    self.gateways[gateway].answered(place, &ticket, answer, self.now);
                    self.carry_out(gateway);
                }
            }
            Event::Told(node, session, link, word) => {
                let its = &mut self.nodes[node];
                if its.session == session
                    && let Some(heard) = its.links.get_mut(&link)
                {
                    match heard.hears(word) {
                        Ok(next) => self.makes(node, session, link, next),
                        Err(what) => self.wrong = Some(what),
                    }
                }
            }
            Event::Makes(node, session, link, request, attempt) => {
                let its = &mut self.nodes[node];
                if its.session == session
                    && let Some(of) = its.links.get_mut(&link)
                    && let Some((payload, next)) = of.makes(request, attempt)
                {
                    let (gateway, life) = (of.gateway, of.life);
                    self.at(self.arrives(gateway, node), Event::Arrives(gateway, life, payload));
                    self.makes(node, session, link, next);
                }
            }
            Event::Arrives(gateway, life, payload) => {
                if self.lives(gateway, life) {
                    self.gateways[gateway].arrived(payload);
                    self.carry_out(gateway);
                }
            }
            Event::Search(gateway, life) => {
                if self.lives(gateway, life) {
                    self.gateways[gateway].looks_at = None;
                    self.gateways[gateway].search(self.now);
                    self.carry_out(gateway);
                }
            }
            Event::Look => {
                self.look();
                self.at(self.now + LOOK, Event::Look);
            }
        }
    }

    fn makes(&mut self, node: usize, session: u32, link: LinkId, next: Vec<(RequestId, Attempt)>) {
        for (request, attempt) in next {
            self.at(self.now + UNIT, Event::Makes(node, session, link, request, attempt));
        }
    }

    fn lives(&self, gateway: usize, life: u32) -> bool {
        self.gateways[gateway].is_up && self.gateways[gateway].life == life
    }

    /// A client asks a gateway that is ready and has room, or later.
    fn asks(&mut self, at: usize) {
        let ready: Vec<usize> = (0..self.gateways.len()).filter(|at| self.gateways[*at].has_room()).collect();
        if ready.is_empty() {
            return self.at(self.now + RETRY, Event::Request(at));
        }
        self.turn += 1;
        let gateway = match self.scenario.settings.balancer {
            Balancer::Random => self.random.pick(&ready),
            Balancer::Turns => ready[self.turn % ready.len()],
            Balancer::Fewest => *ready.iter().min_by_key(|at| self.gateways[**at].open_requests()).unwrap_or(&ready[0]),
        };
        let script = &self.scenario.requests[at];
        if self.clients[at].asked.is_none() {
            self.report.requests += 1;
        } else {
            self.report.asked_again += 1;
        }
        let request = self.gateways[gateway].request(at, script.seed, script.units, self.now);
        let client = &mut self.clients[at];
        (client.seed, client.units) = (script.seed, script.units);
        client.asked = Some((gateway, request, client.heard));
        self.carry_out(gateway);
    }

    /// A node is asked for a stage.
    fn asked(&mut self, gateway: usize, life: u32, place: (usize, usize), ticket: Ticket) {
        let (node, session) = index(&ticket.id);
        let its = &mut self.nodes[node];
        if !its.is_up || its.session != session {
            return;
        }
        let stage = STAGES[place.0];
        self.report.asks += 1;
        let answer = match its.shares.grant(&name(gateway, life), stage, ticket.beside, self.now) {
            Ok(()) => {
                self.link += 1;
                its.open(self.link, gateway, life, stage, ticket.slots as usize, self.now);
                Ok((node, self.link))
            }
            Err(reason) => {
                self.report.refusals += 1;
                Err(reason)
            }
        };
        self.at(self.arrives(gateway, node), Event::Answered(gateway, life, place, ticket, answer));
    }

    /// Does what a gateway wants.
    pub(super) fn carry_out(&mut self, at: usize) {
        let life = self.gateways[at].life;
        for out in std::mem::take(&mut self.gateways[at].out) {
            match out {
                Out::Ask(stage, replica, ticket) => {
                    let node = index(&ticket.id).0;
                    self.at(self.arrives(at, node), Event::Asked(at, life, (stage, replica), ticket.clone()));
                    let late = Err("it does not answer".to_owned());
                    self.at(self.now + ANSWER, Event::Answered(at, life, (stage, replica), ticket, late));
                }
                Out::Tell(node, link, word) => {
                    let session = self.nodes[node].session;
                    self.at(self.arrives(at, node), Event::Told(node, session, link, word));
                }
                Out::Close(node, link) => {
                    if self.hears(at, node) {
                        self.nodes[node].close(link);
                    }
                }
                Out::Hear { client, request, seq, value, end } => self.hear(at, client, request, (seq, value, end)),
                Out::Expired { client } => self.at(self.now, Event::Request(client)),
            }
        }
        self.wrong = self.wrong.take().or(self.gateways[at].wrong.take());
        if self.gateways[at].looks_at.is_none()
            && let Some(next) = self.gateways[at].next_look(self.now)
        {
            self.gateways[at].looks_at = Some(next);
            self.at(next, Event::Search(at, life));
        }
    }

    /// A client hears a unit of the answer that it asked for last. The server leaves out what it has heard.
    fn hear(&mut self, gateway: usize, at: usize, request: RequestId, (seq, value, end): (u32, u64, bool)) {
        let client = &mut self.clients[at];
        match client.asked {
            Some((asked, its, skip)) if (asked, its) == (gateway, request) => {
                if seq < skip {
                    return;
                }
            }
            _ => return self.wrong = Some(format!("client {at} hears an answer that it did not ask for")),
        }
        if seq != client.heard || value != super::gateway::unit(client.seed, STAGES[1], seq) {
            self.wrong = Some(format!("client {at} hears unit {seq} where {} is due", client.heard));
        }
        client.heard += 1;
        self.report.units += 1;
        self.done += usize::from(client.is_done());
        if end != client.is_done() {
            self.wrong = Some(format!("client {at} hears the end behind {} of {} units", client.heard, client.units));
        }
    }

    /// The offer of a node. Every third of a scenario with strangers has another checkpoint; the first never.
    fn offer(&self, node: usize) -> Offer {
        let settings = &self.scenario.settings;
        let stranger = settings.strangers && node % 3 == 1;
        Offer {
            name: format!("n{node}"),
            host: String::new(),
            pid: 0,
            slots: settings.slots_of(node),
            terms: terms(stranger.into()),
            arithmetic: "simulated".into(),
            stages: STAGES.to_vec(),
            gateways: settings.shares,
        }
    }

    /// Each side looks whom it hears.
    fn look(&mut self) {
        for at in (0..self.gateways.len()).filter(|at| self.gateways[*at].is_up).collect::<Vec<_>>() {
            for node in 0..self.nodes.len() {
                self.look_for(at, node);
            }
            for (stage, replica, open) in self.gateways[at].links() {
                let (hears, has) = (self.hears(at, open.node), self.nodes[open.node].links.contains_key(&open.link));
                let now = self.now;
                if hears && has {
                    if let super::gateway::Place::Open(open) = &mut self.gateways[at].places[stage][replica] {
                        open.heard = now;
                    }
                } else if hears || now.saturating_sub(open.heard) > SILENCE {
                    self.gateways[at].close(stage, replica, now);
                }
            }
            self.gateways[at].tick(self.now);
            self.carry_out(at);
        }
        self.look_from_nodes();
        if let Some(what) = self.check() {
            self.wrong = Some(what);
        }
    }

    /// Whether a gateway still hears a node, or again.
    fn look_for(&mut self, at: usize, node: usize) {
        let (session, hears, now) = (self.nodes[node].session, self.hears(at, node), self.now);
        let (seen, heard) = self.gateways[at].seen[node];
        match seen {
            Some(known) if (hears && known != session) || (!hears && now.saturating_sub(heard) > SILENCE) => {
                self.gateways[at].seen[node].0 = None;
                self.gateways[at].leaves(node, known, now);
            }
            None if hears => {
                let offer = self.offer(node);
                self.gateways[at].seen[node] = (Some(session), now);
                self.gateways[at].joins(node, session, offer, now);
            }
            _ if hears => self.gateways[at].seen[node].1 = now,
            _ => {}
        }
    }

    /// Nodes close links on which they hear nothing.
    fn look_from_nodes(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_up || self.nodes[node].stalled_until > self.now {
                continue;
            }
            let links: Vec<(LinkId, usize, u32)> =
                self.nodes[node].links.iter().map(|(id, link)| (*id, link.gateway, link.life)).collect();
            for (id, gateway, life) in links {
                let speaks =
                    self.lives(gateway, life) && self.hears(gateway, node) && self.gateways[gateway].has(node, id);
                let now = self.now;
                let Some(link) = self.nodes[node].links.get_mut(&id) else { continue };
                if speaks {
                    link.heard = now;
                } else if now.saturating_sub(link.heard) > SILENCE {
                    self.nodes[node].close(id);
                }
            }
        }
    }
}

/// Which node it is, and which session of it.
pub(super) fn index(id: &NodeId) -> (usize, u32) {
    let (node, session) = id.split_once('-').unwrap_or_default();
    (node.parse().unwrap_or_default(), session.parse().unwrap_or_default())
}
