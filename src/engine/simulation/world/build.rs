//! The world before its first event.

use super::super::edges::{Counted, CountedAcks, Into, Outbox, Windows, Wire};
use super::super::media;
use super::super::model::{Book, Factory, pieces};
use super::super::plan::{SAMPLE_RATE, UNIT};
use super::super::scenario::Scenario;
use super::super::{Report, model};
use super::{Event, LIFE, MEDIA_MEMORY, STALL, Stage, TICK, World};
use crate::admission::Admissions;
use crate::encoded::{MediaCache, MediaMemory};
use crate::journal::Edge;
use crate::ledger::{Acks, Ledger, LedgerSink, Reports};
use crate::plan::MediaPlanner;
use crate::simulation::listener::Woken;
use crate::stages::Stages;
use omni_config::{AdmissionMode, Config, LimitsConfig};
use omni_core::deadline::PlaybackPolicy;
use omni_core::ids::StageName;
use omni_core::ledger::LedgerLimits;
use omni_core::random::{Random, mix};
use omni_core::scheduler::{SchedulerConfig, Yields};
use omni_fault::FaultPlan;
use omni_model::encoder::Grain;
use omni_stage::simulation::SimulatedStage;
use omni_stage::{AckSink, Arbiter, OutEdge, StageHandle, StageReports, StageSetup};
use omni_telemetry::clock::Clock;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{EdgeMetrics, RequestMetrics, StageMetrics};
use omni_transfer::lease::LeaseBook;
use omni_transfer::transport::{PayloadSender, inproc};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario) -> World<'a> {
        let shape = &scenario.shape;
        let nanos = Arc::new(AtomicU64::new(0));
        let clock = Clock::Simulated(Arc::clone(&nanos));
        let book = Arc::new(Book::default());
        for script in &scenario.requests {
            book.enter(script.seed, script.lengths, script.sick);
            if script.sick.is_some()
                && script.media.contains(&media::SICK)
                && let Some(medium) = media::medium(media::SICK)
            {
                for sound in [false, true] {
                    for (_, features) in pieces(&[(Arc::clone(&medium), sound)]) {
                        book.enter_features(script.seed, &features);
                    }
                }
            }
        }
        let handles = Stages::single(shape.names());
        let outbox = Outbox::default();
        let windows = Arc::new(std::sync::Mutex::new(Windows::default()));
        let (leases, recorder) = (LeaseBook::default(), Recorder::default());
        let limits = LedgerLimits { request_timeout: LIFE, stalled_client_timeout: STALL };
        let metrics = RequestMetrics::new(recorder.clone());
        let faults = FaultPlan::new(&[]);
        let ledger = Ledger::new(limits, handles.clone(), model::GROUPS, UNIT, metrics, faults.clone());
        let ledger = Arc::new(ledger.on(clock.clone()));
        let into = |stage: &Arc<StageHandle>| {
            Arc::new(Into { stage: stage.name(), outbox: Arc::clone(&outbox) }) as Arc<dyn PayloadSender>
        };
        ledger.leads_into(handles.iter().map(into).collect());
        let arbiter = shape.arbiter.then(Arbiter::new);
        let largest = shape.ramp.iter().copied().max().unwrap_or(1);
        let stages = handles.iter().map(|handle| {
            let (name, of) = (handle.name(), shape.stage(handle.name()));
            let most = match name {
                // All rows of a request may be ahead, and these are added.
                StageName::Encoder => of.window,
                // A text is followed in pieces; a sampled token comes with the end of its prompt.
                StageName::Thinker => of.window - 1 + of.prefill_chunk.max(2),
                StageName::Talker => of.window,
                StageName::Vocoder => of.window - 1 + largest,
            };
            let out = |edge: Edge| {
                let to = Arc::new(LedgerSink(Arc::clone(&ledger))) as Arc<dyn PayloadSender>;
                let sender = Arc::new(Counted { to, windows: Arc::clone(&windows), most });
                OutEdge { kind: edge.kind(), sender, handles: false, metrics: EdgeMetrics::new(name, edge.kind()) }
            };
            let edge = Edge::into_stage(name, handles.before(name).is_none());
            let acks = Arc::new(Acks { ledger: Arc::clone(&ledger), stage: name }) as Arc<dyn AckSink>;
            let setup = StageSetup {
                notes: None,
                name,
                replica: 0,
                scheduler: SchedulerConfig {
                    slots: shape.places as u32,
                    max_batch: of.max_batch,
                    prefill_chunk: of.prefill_chunk,
                    prefill_least: if shape.arbiter { of.prefill_chunk / 2 } else { 0 },
                    joins_prompts: shape.arbiter && name == StageName::Thinker,
                    paced: shape.arbiter && name == StageName::Talker,
                    yields: match name {
                        StageName::Thinker if shape.arbiter => Yields::Each,
                        StageName::Talker if shape.arbiter => Yields::Alone,
                        _ => Yields::Never,
                    },
                    run_ahead: of.run_ahead,
                    window: of.window,
                    buckets: if shape.arbiter { vec![1, 2, 4, 8] } else { Vec::new() },
                    max_step_units: of.max_step_units,
                    playback: PlaybackPolicy {
                        unit: if name == StageName::Encoder { Duration::ZERO } else { UNIT },
                        gathers: if name == StageName::Talker { largest } else { 0 },
                        lead_cap: (name > StageName::Thinker).then_some(Duration::from_secs(2)),
                    },
                },
                arbiter: arbiter.clone(),
                factory: Arc::new(Factory { stage: name, book: Arc::clone(&book) }),
                restart: shape.restart,
                watchdog: shape.watchdog,
                faults: faults.clone(),
                metrics: StageMetrics::new(name, None, recorder.clone()),
                recorder: recorder.clone(),
                outbound: Edge::from_stage(name).map(out).collect(),
                // Never read: the world fills the inbox.
                inbound: Arc::new(inproc(1).1),
                early_handoff: shape.early_handoff,
                acks: Arc::new(CountedAcks { to: acks, windows: Arc::clone(&windows), edge }),
                reports: Arc::new(Reports { ledger: Arc::clone(&ledger), replica: handle.place() })
                    as Arc<dyn StageReports>,
                leases: leases.clone(),
                own_process: false,
            };
            Stage {
                stage: SimulatedStage::new(setup, Arc::clone(handle), clock.clone()),
                handle: Arc::clone(handle),
                wire: Wire::new(of.frames),
                turning: [false; 5],
                dying: None,
                given_up: false,
                failing_starts: 0,
                again: None,
                poisoned: 0,
            }
        });
        let limits = LimitsConfig {
            max_requests: shape.places,
            admission: if shape.by_deadlines { AdmissionMode::Deadlines } else { AdmissionMode::Places },
            ..Config::default().limits
        };
        let admissions = Admissions::on(clock.clone(), &limits, SAMPLE_RATE);
        admissions.settled_by(&ledger);
        let mut world = World {
            scenario,
            random: Random::new(mix(0x3D, scenario.seed)),
            nanos,
            events: BinaryHeap::new(),
            what: Vec::new(),
            free: Vec::new(),
            admissions,
            stages: stages.collect(),
            ledger,
            leases,
            book,
            encodes: MediaPlanner::new(
                Err("a simulation decodes nothing".into()),
                MediaCache::new(shape.cache),
                MediaMemory::new(MEDIA_MEMORY),
                Grain::Fine,
            ),
            outbox,
            windows,
            clients: Vec::new(),
            woken: Woken::default(),
            draining: false,
            stopped: false,
            waiting: 0,
            number: 0,
            report: Report::default(),
        };
        for stage in shape.names() {
            world.at(Duration::ZERO, Event::Start(*stage));
        }
        for (at, script) in scenario.requests.iter().enumerate() {
            world.at(script.at, Event::Ask(at, script.again));
        }
        for (at, fault) in scenario.faults.iter().enumerate() {
            world.at(fault.at, Event::Fault(at));
        }
        world.at(TICK, Event::Tick);
        world
    }
}
