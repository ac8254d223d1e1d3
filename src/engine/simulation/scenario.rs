//! What happens in one simulation: who asks for what when, what breaks when, and the shape of the engine. All of it
//! follows from a seed, as lists, so that a scenario that fails can be cut to the few members that matter.

use super::media;
use super::model::{Lengths, Sickness};
use omni_core::ids::StageName;
use omni_core::random::{Random, mix};
use omni_core::restart::RestartLimits;
use omni_stage::simulation::SimulatedActor;
use std::time::Duration;

/// How large scenarios are, and what may happen in them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Requests at most, without those that clients ask again.
    pub requests: usize,
    /// Faults at most.
    pub faults: usize,
    /// Whether prompts may bring their stage down each time.
    pub poison: bool,
    /// Whether requests have sound and pictures, and an encoder is in front of the thinker. It draws from numbers of its
    /// own, so a seed without it is the scenario that it was before there were any.
    pub media: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { requests: 60, faults: 14, poison: false, media: false }
    }
}

/// One simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was made from.
    pub seed: u64,
    pub(super) shape: Shape,
    pub(super) requests: Vec<Script>,
    pub(super) faults: Vec<Fault>,
}

/// The config of the engine.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Without a thinker, as Qwen3-TTS.
    pub two_stages: bool,
    /// In front of the thinker, where requests have media.
    pub encoder: Option<StageShape>,
    /// Bytes of rows that are kept for requests to come.
    pub cache: usize,
    pub places: usize,
    pub by_deadlines: bool,
    pub stages: [StageShape; 3],
    pub ramp: Vec<u32>,
    /// All stages share a device.
    pub arbiter: bool,
    pub early_handoff: bool,
    pub restart: RestartLimits,
    pub watchdog: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StageShape {
    pub max_batch: usize,
    pub prefill_chunk: u32,
    pub run_ahead: u32,
    pub window: u32,
    pub max_step_units: Option<u32>,
    /// A step, and each unit of it, take so long.
    pub step: Duration,
    pub unit: Duration,
    /// The edge into it carries frames, so it can lose them, and it says how far it has come.
    pub frames: bool,
    /// The stage has its process: what is on the edge into it dies with it.
    pub process: bool,
    /// How long messages wait for its actors.
    pub pause: Duration,
}

/// One request and the client behind it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub at: Duration,
    /// Of the request; requests with the same one are the same request.
    pub seed: u64,
    pub kind: RequestKind,
    pub lengths: Lengths,
    /// What stands in its prompt besides text.
    pub media: Vec<u32>,
    pub sick: Option<Sickness>,
    pub client: Manner,
    /// The client asks again so often when its request ends badly or it has left.
    pub again: u32,
    pub tenant: u8,
    /// A first sound is wanted within this time.
    pub deadline: Option<Duration>,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// An answer as text.
    Text,
    /// An answer as text and speech.
    Chat,
    /// A text of so many tokens as speech.
    Speech(u32),
    /// The same, arriving in so many pieces.
    Pieces(u32, u32),
}

/// How a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// At once.
    Reads,
    /// With a pause behind each event.
    Slowly(Duration),
    /// Once, behind so many events, it does not read for a while.
    Stops(u32, Duration),
    /// It leaves behind so many events.
    Leaves(u32),
    /// Its request may take so long and no longer.
    Expires(Duration),
}

/// Something breaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub at: Duration,
    pub what: What,
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// An actor dies.
    Dies(StageName, SimulatedActor),
    /// An actor dies, and again as soon as its stage is up.
    DiesTwice(StageName, SimulatedActor),
    /// The stage dies, and once more while it starts.
    DiesStarting(StageName),
    /// An actor hangs until its stage is replaced.
    Hangs(StageName, SimulatedActor),
    /// Two stages die at once.
    DieTogether(StageName, StageName),
    /// A sequence fails alone in each of the next launches.
    Fails(StageName, u32),
    /// Payloads on the edge into a stage are lost.
    Loses(StageName, u32),
    /// They come twice.
    Doubles(StageName, u32),
    /// They are overtaken.
    Overtakes(StageName, u32),
    /// Their bits change.
    Damages(StageName, u32),
    /// The edge stands still.
    Delays(StageName, Duration),
    /// The server is told to stop; after this time it ends what is left.
    Stops(Duration),
}

impl What {
    /// Its kind, for counting.
    pub fn name(self) -> &'static str {
        match self {
            What::Dies(..) => "dies",
            What::DiesTwice(..) => "dies_twice",
            What::DiesStarting(_) => "dies_starting",
            What::Hangs(..) => "hangs",
            What::DieTogether(..) => "die_together",
            What::Fails(..) => "fails",
            What::Loses(..) => "loses",
            What::Doubles(..) => "doubles",
            What::Overtakes(..) => "overtakes",
            What::Damages(..) => "damages",
            What::Delays(..) => "delays",
            What::Stops(_) => "stops",
        }
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64, settings: &Settings) -> Scenario {
        let random = &mut Random::new(seed);
        let mut shape = Shape::new(random);
        if settings.media {
            shape.encode(&mut Random::new(mix(0xE7C0, seed)));
        }
        let count = random.within(1, settings.requests as u64 + 1) as usize;
        let sick = Sick::new(random, &shape, settings);
        let mut at = Duration::from_millis(50);
        // From one burst to an idle server.
        let apart = random.pick(&[0, 2, 20, 100, 400]);
        let requests: Vec<Script> = (0..count)
            .map(|number| {
                at += random.millis(0, apart + 1);
                Script::new(random, &shape, at, number as u64, &sick)
            })
            .collect();
        let lasts = at + Duration::from_secs(3);
        let faults = random.below(settings.faults as u64 + 1) as usize;
        let faults = (0..faults).map(|_| Fault::new(random, &shape, lasts)).collect();
        Scenario { seed, shape, requests, faults }
    }

    /// Members that can be left out: requests and faults.
    pub fn members(&self) -> usize {
        self.requests.len() + self.faults.len()
    }

    /// The scenario with these members alone: requests first, as [`Scenario::members`] counts them.
    #[must_use]
    pub fn of(&self, members: &[usize]) -> Scenario {
        let (requests, faults): (Vec<usize>, Vec<usize>) = members.iter().partition(|at| **at < self.requests.len());
        Scenario {
            requests: requests.into_iter().map(|at| self.requests[at].clone()).collect(),
            faults: faults.into_iter().map(|at| self.faults[at - self.requests.len()]).collect(),
            ..self.clone()
        }
    }

    /// What happens in it, one line each.
    pub fn lines(&self) -> Vec<String> {
        let shape = format!("{:?}", self.shape);
        let requests = self.requests.iter().map(|request| format!("{request:?}"));
        let faults = self.faults.iter().map(|fault| format!("{:?}: {:?}", fault.at, fault.what));
        std::iter::once(shape).chain(requests).chain(faults).collect()
    }
}

impl Shape {
    fn new(random: &mut Random) -> Shape {
        let ramp = random.pick(&[&[1, 2, 4][..], &[1], &[2, 3], &[1, 2, 4, 8]]).to_vec();
        let largest = ramp.iter().copied().max().unwrap_or(1);
        // Half of the engines carry frames on their edges.
        let framed = random.once_in(2);
        let speed = random.pick(&[1, 1, 4]);
        let mut stage = |stage: StageName| StageShape {
            max_batch: random.within(1, 9) as usize,
            prefill_chunk: random.within(2, 40) as u32,
            run_ahead: random.within(1, 5) as u32,
            // As the engine settles them: no smaller than what the next stage takes at once.
            window: (random.within(2, 17) as u32).max(if stage == StageName::Talker { largest + 1 } else { 2 }),
            max_step_units: random.pick(&[None, Some(8), Some(3)]),
            step: random.millis(1, 5 * speed),
            unit: random.millis(0, speed),
            frames: framed && stage != StageName::Thinker && !random.once_in(4),
            process: random.once_in(3),
            pause: Duration::from_micros(random.pick(&[5, 50, 2000])),
        };
        let stages = StageName::OF_TEXT.map(&mut stage);
        let often = random.once_in(6);
        Shape {
            two_stages: random.once_in(3),
            encoder: None,
            cache: 0,
            places: random.within(2, 17) as usize,
            by_deadlines: random.once_in(2),
            stages,
            ramp,
            arbiter: random.once_in(2),
            early_handoff: !random.once_in(8),
            restart: RestartLimits {
                backoff: random.millis(1, 60),
                max_backoff: random.millis(60, 1000),
                max_restarts: if often { 4 } else { 1000 },
                window: Duration::from_secs(30),
            },
            watchdog: random.millis(200, 2000),
        }
    }

    /// With an encoder, in front of a thinker.
    fn encode(&mut self, of: &mut Random) {
        let framed = of.once_in(2);
        self.two_stages = false;
        self.cache = of.pick(&[0, 40, 1 << 20]);
        self.stages[0].frames = framed && !of.once_in(4);
        self.encoder = Some(StageShape {
            max_batch: of.within(1, 5) as usize,
            // It has no prompt, and a window of what is encoded: the thinker takes over all of it before it runs.
            prefill_chunk: 1,
            run_ahead: of.within(1, 5) as u32,
            window: of.within(2, 17) as u32,
            max_step_units: None,
            step: of.millis(1, 20),
            unit: of.millis(0, 4),
            frames: framed && !of.once_in(4),
            process: of.once_in(3),
            pause: Duration::from_micros(of.pick(&[5, 50, 2000])),
        });
    }

    /// The stages of the family.
    pub fn names(&self) -> &'static [StageName] {
        match self.encoder {
            Some(_) => &StageName::ALL,
            None => &StageName::OF_TEXT[usize::from(self.two_stages)..],
        }
    }

    pub fn stage(&self, name: StageName) -> &StageShape {
        match &self.encoder {
            Some(encoder) if name == StageName::Encoder => encoder,
            // Of `StageName::OF_TEXT`.
            _ => &self.stages[(name as usize).saturating_sub(StageName::Thinker as usize)],
        }
    }
}

/// Which prompts no stage can go on with.
struct Sick {
    /// One prompt in so many is the sick one; 0: none is.
    one_in: u64,
    sickness: Sickness,
}

impl Sick {
    fn new(random: &mut Random, shape: &Shape, settings: &Settings) -> Sick {
        let kills = settings.poison && random.once_in(2);
        let sickness = Sickness { stage: random.pick(shape.names()), unit: random.below(4) as u32, kills };
        Sick { one_in: random.pick(&[0, 0, 10, 3]), sickness }
    }
}

/// The prompt that is sick, if one is.
const SICK: u64 = 0xFFFF;

impl Script {
    fn new(random: &mut Random, shape: &Shape, at: Duration, number: u64, sick: &Sick) -> Script {
        let is_sick = sick.one_in > 0 && random.once_in(sick.one_in);
        // Now and then the same request again.
        let seed = if is_sick { SICK } else { number + 1 - random.pick(&[0, 0, 0, 1]).min(number) };
        // All that is asked follows from the seed, so the same request is the same in all of it.
        let of = &mut Random::new(mix(0xA5, seed));
        let text = of.pick(&[0, 1, 3, 8, 20, 30]) as u32;
        let kind = match of.below(4) {
            0 if !shape.two_stages => RequestKind::Text,
            1 | 2 if !shape.two_stages => RequestKind::Chat,
            1 if shape.two_stages => RequestKind::Pieces(text.max(1), of.within(1, 6) as u32),
            _ => RequestKind::Speech(text),
        };
        let lengths = Lengths { tokens: of.within(1, 24) as u32, frames: of.pick(&[0, 1, 2, 7, 20, 40]) };
        let sick = is_sick.then_some(sick.sickness);
        let client = match random.below(12) {
            0 => Manner::Slowly(random.millis(1, 300)),
            1 => Manner::Stops(random.below(6) as u32, random.millis(100, 20_000)),
            2 => Manner::Leaves(random.below(8) as u32),
            3 => Manner::Expires(random.millis(1, 4000)),
            _ => Manner::Reads,
        };
        let answers = matches!(kind, RequestKind::Text | RequestKind::Chat);
        let media = match shape.encoder {
            Some(_) if answers => media::choose(&mut Random::new(mix(0xE7C1, seed)), is_sick),
            _ => Vec::new(),
        };
        let again = random.pick(&[0, 0, 1, 3]);
        let deadline = (!random.once_in(3)).then(|| random.millis(300, 5000));
        Script { at, seed, kind, lengths, media, sick, client, again, tenant: random.below(3) as u8, deadline }
    }
}

impl Fault {
    fn new(random: &mut Random, shape: &Shape, lasts: Duration) -> Fault {
        let at = Duration::from_nanos(random.within(20_000_000, lasts.as_nanos() as u64));
        let stage = random.pick(shape.names());
        let actor = random.pick(&SimulatedActor::ALL);
        // The edge into the first stage of a text cannot lose anything.
        let behind = random.pick(&shape.names()[usize::from(shape.encoder.is_none())..]);
        let count = random.within(1, 6) as u32;
        let what = match random.below(24) {
            0..=6 => What::Dies(stage, actor),
            7 | 8 => What::DiesTwice(stage, actor),
            9 => What::DiesStarting(stage),
            10 => What::Hangs(stage, actor),
            11 => What::DieTogether(stage, random.pick(shape.names())),
            12..=14 => What::Fails(stage, count),
            15 | 16 => What::Loses(behind, count),
            17 | 18 => What::Doubles(behind, count),
            19 => What::Overtakes(behind, count),
            20 => What::Damages(behind, count),
            21 | 22 => What::Delays(behind, random.millis(1, 400)),
            _ => What::Stops(random.millis(0, 3000)),
        };
        Fault { at, what }
    }
}
