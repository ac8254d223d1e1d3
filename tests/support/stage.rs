//! One stage alone: its real actors around a model that the test or benchmark chooses, its edges in the test's hands.
#![allow(dead_code, clippy::unwrap_used, reason = "every user needs a part of this")]

use crate::support::wait::{self, PATIENCE};
use omni_actors::actors::{
    self, AckSink, Admission, Arbiter, OutEdge, Outputs, Resume, StageFailure, StageHandle, StageReports, StageSetup,
    StageState,
};
use omni_actors::core::deadline::PlaybackPolicy;
use omni_actors::core::ids::{Attempt, Content, FinishReason, Generation, RequestId, Seq, Slot, StageName};
use omni_actors::core::restart::RestartLimits;
use omni_actors::core::scheduler::{Ack, Pace, SchedulerConfig, SequenceParams, Yields};
use omni_actors::core::suspects::Attribution;
use omni_actors::fault::{FaultPlan, FaultRule};
use omni_actors::model::stage::{
    Launched, PendingStep, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel,
    StepOutcome, VocoderSpec,
};
use omni_actors::model::{LoadError, ModelError};
use omni_actors::telemetry::trace::Recorder;
use omni_actors::telemetry::{EdgeMetrics, StageMetrics};
use omni_actors::transfer::lease::LeaseBook;
use omni_actors::transfer::payload::{Header, Kind, Part, Payload};
use omni_actors::transfer::transport::{PayloadSender, TransportError, inproc};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What happens soon. Panics where it does not, with the place of the call.
#[track_caller]
pub fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    async move { tokio::time::timeout(PATIENCE, what).await.unwrap_or_else(|_| panic!("waited in vain at {place}")) }
}

/// Returns once it is so. Panics where it does not become so, with the place of the call.
#[track_caller]
pub fn until(is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    wait::comes("a state", is_so)
}

/// The next one. Panics where none comes, with the place of the call.
#[track_caller]
pub fn next<T>(queue: &flume::Receiver<T>) -> impl Future<Output = T> {
    let next = soon(queue.recv_async());
    async move { next.await.expect("its sender lives") }
}

pub const SPEECH: Outputs = Outputs { tokens: false, speech: true };

/// A new sequence without a prompt.
pub fn sequence(request: RequestId, pace: Pace, deliver: Outputs) -> Admission {
    let params = SequenceParams::unprompted(pace);
    Admission {
        request,
        params,
        spec: SequenceSpec::Vocoder(VocoderSpec::default()),
        deliver,
        from: Resume::default(),
        content: Content::default(),
    }
}

/// A stage and everything around it.
pub struct Rig {
    pub stage: Arc<StageHandle>,
    pub input: Arc<dyn PayloadSender>,
    pub output: flume::Receiver<Payload>,
    pub context: Arc<FaultContext>,
    pub leases: LeaseBook,
}

/// What the stage told others.
#[derive(Default)]
pub struct FaultContext {
    pub failed: Mutex<Vec<(RequestId, String)>>,
    pub acked: Mutex<HashMap<RequestId, u32>>,
    /// Why the stage died; only where a test says that it may.
    pub deaths: Mutex<Vec<String>>,
    pub may_die: AtomicBool,
}

impl StageReports for FaultContext {
    fn sequence_failed(&self, request: RequestId, _: StageName, reason: String) {
        self.failed.lock().unwrap().push((request, reason));
    }
    fn input_lost(&self, request: RequestId, _: StageName, _: Attempt, unit: Seq) {
        self.failed.lock().unwrap().push((request, format!("input unit {unit} was lost")));
    }
    fn stage_up(&self, _: StageName, show: &mut dyn FnMut()) {
        show();
    }
    fn stage_down(&self, _: StageName, failure: &StageFailure) -> Attribution {
        assert!(self.may_die.load(Ordering::Relaxed), "the stage died: {}", failure.reason);
        self.deaths.lock().unwrap().push(failure.reason.clone());
        Attribution::default()
    }
    fn stage_given_up(&self, _: StageName, _: &str) {}
}

impl AckSink for FaultContext {
    fn acked(&self, acks: &[Ack]) {
        let mut acked = self.acked.lock().unwrap();
        acks.iter().for_each(|Ack { request, upto }| _ = acked.insert(*request, *upto));
    }
}

struct Out(flume::Sender<Payload>);

impl PayloadSender for Out {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        self.0.send(payload).map_err(|_| TransportError::Closed)
    }
}

pub fn scheduler() -> SchedulerConfig {
    SchedulerConfig {
        slots: 64,
        max_batch: 64,
        prefill_chunk: 256,
        prefill_least: 0,
        yields: Yields::Never,
        joins_prompts: false,
        paced: false,
        run_ahead: 2,
        window: 4096,
        max_step_units: None,
        buckets: Vec::new(),
        playback: PlaybackPolicy { unit: Duration::from_millis(80), gathers: 0, lead_cap: None },
    }
}

pub async fn rig(
    name: StageName,
    factory: impl StageFactory + 'static,
    scheduler: SchedulerConfig,
    faults: &[FaultRule],
) -> Rig {
    watched(name, factory, scheduler, faults, Duration::from_secs(60)).await
}

/// A rig whose runner may be at one thing for as long as `watchdog`.
pub async fn watched(
    name: StageName,
    factory: impl StageFactory + 'static,
    scheduler: SchedulerConfig,
    faults: &[FaultRule],
    watchdog: Duration,
) -> Rig {
    started(name, factory, scheduler, faults, watchdog, None, true).await
}

/// A rig on a device that it shares with others.
pub async fn sharing(
    name: StageName,
    factory: impl StageFactory + 'static,
    scheduler: SchedulerConfig,
    faults: &[FaultRule],
    arbiter: &Arc<Arbiter>,
) -> Rig {
    started(name, factory, scheduler, faults, Duration::from_secs(60), Some(Arc::clone(arbiter)), true).await
}

/// A rig in the serialized order: its scheduler hears of a step when its payloads are on their way.
pub async fn serialized(
    name: StageName,
    factory: impl StageFactory + 'static,
    scheduler: SchedulerConfig,
    faults: &[FaultRule],
) -> Rig {
    started(name, factory, scheduler, faults, Duration::from_secs(60), None, false).await
}

async fn started(
    name: StageName,
    factory: impl StageFactory + 'static,
    scheduler: SchedulerConfig,
    faults: &[FaultRule],
    watchdog: Duration,
    arbiter: Option<Arc<Arbiter>>,
    early_handoff: bool,
) -> Rig {
    let (send, output) = flume::unbounded();
    let (input, inbound) = inproc(1 << 16);
    let (context, leases) = (Arc::new(FaultContext::default()), LeaseBook::default());
    let kinds = [Kind::Embeddings, Kind::Tokens, Kind::Codes, Kind::Audio];
    let edge = |kind| OutEdge {
        kind,
        sender: Arc::new(Out(send.clone())),
        handles: false,
        metrics: EdgeMetrics::new(name, kind),
    };
    let setup = StageSetup {
        name,
        replica: 0,
        scheduler,
        arbiter,
        factory: Arc::new(factory),
        restart: RestartLimits {
            backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(1),
            max_restarts: 1,
            window: Duration::from_secs(1),
        },
        watchdog,
        faults: FaultPlan::new(faults),
        metrics: StageMetrics::new(name, None, Recorder::default()),
        recorder: Recorder::default(),
        outbound: kinds.map(edge).into(),
        inbound: Arc::new(inbound),
        early_handoff,
        acks: Arc::clone(&context) as Arc<dyn AckSink>,
        reports: Arc::clone(&context) as Arc<dyn StageReports>,
        notes: None,
        leases: leases.clone(),
        own_process: false,
    };
    let stage = StageHandle::new(name);
    actors::start(setup, Arc::clone(&stage)).await.unwrap();
    stage.status().wait_for(|status| status.state == StageState::Running).await.unwrap();
    Rig { stage, input: Arc::new(input), output, context, leases }
}

impl Rig {
    pub fn admit(&self, admission: Admission) {
        assert!(self.stage.admit(admission), "the stage is down");
    }

    /// Sends input to the stage as the stage before would, leased.
    pub fn push_input(&self, request: RequestId, seq: u32, part: Part, units: u32, end: bool) {
        let kind = if matches!(part, Part::Embeddings(_)) { Kind::Embeddings } else { Kind::Codes };
        let (generation, seq, end) = (Generation(1), Seq(seq), end.then_some(FinishReason::Stop));
        let header = Header { request, generation, attempt: Attempt(0), seq, kind, units, end, sent: 0, cached: 0 };
        self.input.put(Payload { header, parts: vec![part], leases: vec![self.leases.lease(4)] }).unwrap();
    }
}

/// A model that does nothing but say that it did: one frame of codes per unit, a token each, until `stop` units.
#[derive(Clone)]
pub struct Script {
    /// Each step, as it runs.
    pub steps: flume::Sender<Vec<SequenceWork>>,
    pub stop: u32,
}

impl StageFactory for Script {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(Scripted { script: self.clone(), sequences: HashMap::new() }))
    }
}

struct Scripted {
    script: Script,
    sequences: HashMap<Slot, u32>,
}

impl StageModel for Scripted {
    fn open(&mut self, slot: Slot, _: SequenceSpec) -> Result<(), ModelError> {
        self.sequences.insert(slot, 0);
        Ok(())
    }
    fn push_input(&mut self, _: Slot, _: Option<StageData>, _: bool) -> Result<(), ModelError> {
        Ok(())
    }
    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        let _ = self.script.steps.send(sequences.to_vec());
        let outputs = sequences.iter().map(|work| {
            let Some(done) = self.sequences.get_mut(&work.slot) else { return Ok(SequenceOutput::default()) };
            if *done >= self.script.stop {
                return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
            }
            *done += 1;
            let finish = (*done >= self.script.stop || work.advance == 0).then_some(FinishReason::Stop);
            Ok(SequenceOutput {
                sampled: Some(*done),
                finish,
                emit: Some(StageData::Codes(vec![*done])),
                ..SequenceOutput::default()
            })
        });
        Ok(Launched::Done(outputs.collect::<Vec<_>>().into()))
    }
    fn close(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
    }
    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

/// A [`Script`] on a device that runs beside the host: its steps are pending until the test lets them end.
pub struct Beside {
    /// Each step, as it is launched.
    pub launches: flume::Sender<Launch>,
    pub stop: u32,
}

/// A step that a test holds. Dropped, the device has failed.
#[derive(Debug)]
pub struct Launch {
    pub sequences: Vec<SequenceWork>,
    end: flume::Sender<Ending>,
    model: Weak<()>,
}

#[derive(Debug)]
enum Ending {
    Well,
    Panic,
}

impl Launch {
    /// The device is done with the step.
    pub fn end(self) {
        self.end.send(Ending::Well).unwrap();
    }
    /// Whether the model that launched the step is still there.
    pub fn model_lives(&self) -> bool {
        self.model.strong_count() > 0
    }
    /// The thread that waits for the step panics.
    pub fn panic(self) {
        self.end.send(Ending::Panic).unwrap();
    }
}

impl StageFactory for Beside {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        // No test listens to what the device would do; the launches below tell the same.
        let script = Script { steps: flume::unbounded().0, stop: self.stop };
        Ok(Box::new(BesideModel { inner: script.build()?, launches: self.launches.clone(), life: Arc::new(()) }))
    }
}

struct BesideModel {
    inner: Box<dyn StageModel>,
    life: Arc<()>,
    launches: flume::Sender<Launch>,
}

struct HeldStep {
    sequences: Vec<Result<SequenceOutput, ModelError>>,
    ended: flume::Receiver<Ending>,
}

impl PendingStep for HeldStep {
    fn wait(self: Box<Self>) -> Result<StepOutcome, ModelError> {
        match self.ended.recv() {
            Ok(Ending::Well) => Ok(self.sequences.into()),
            Ok(Ending::Panic) => panic!("the waiting thread dies"),
            Err(_) => Err(ModelError::Device(candle_core::Error::Msg("the device is gone".into()))),
        }
    }
}

impl StageModel for BesideModel {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        self.inner.open(slot, spec)
    }
    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        self.inner.push_input(slot, input, end)
    }
    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        let (end, ended) = flume::bounded(1);
        let _ = self.launches.send(Launch { sequences: sequences.to_vec(), end, model: Arc::downgrade(&self.life) });
        Ok(Launched::Pending(Box::new(HeldStep { sequences: self.inner.step(sequences)?, ended })))
    }
    fn close(&mut self, slot: Slot) {
        self.inner.close(slot);
    }
    fn live_sequences(&self) -> usize {
        self.inner.live_sequences()
    }
}
