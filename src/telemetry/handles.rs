//! Handles for stages, edges and devices. Made once; recording through them is an atomic operation.

use super::catalogue::{self as c, Metric};
use super::exposition::install;
use super::phase::{Phase, Phases};
use super::trace::Recorder;
use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use omni_core::ids::{FinishReason, PayloadKind, Replica, StageName};
use std::time::Duration;

/// A bounded queue inside a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Queue {
    /// Input that arrived and is not yet with the model.
    Input,
    /// Plans that the runner has not launched.
    Plans,
    /// Steps that ran and whose tokens the sampler has not read.
    Tickets,
    /// Outputs that wait to be packaged.
    Packager,
    /// Payloads that wait for the next stage.
    Output,
}

impl Queue {
    const ALL: [Queue; 5] = [Queue::Input, Queue::Plans, Queue::Tickets, Queue::Packager, Queue::Output];

    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Queue::Input => "input",
            Queue::Plans => "plans",
            Queue::Tickets => "tickets",
            Queue::Packager => "packager",
            Queue::Output => "output",
        }
    }
}

/// What one stage records. A clone is cheap; a restarted stage goes on with the same series.
#[derive(Clone)]
pub struct StageMetrics {
    place: Replica,
    recorder: Recorder,
    /// Steps launched.
    pub steps: Counter,
    /// Seconds of one step.
    pub step_seconds: Histogram,
    phases: [Histogram; Phase::ALL.len()],
    /// Sequences of one step.
    pub batch_sequences: Histogram,
    /// Idle seconds between two steps.
    pub bubble_seconds: Histogram,
    /// Steps in flight, unseen, at a launch.
    pub run_ahead: Histogram,
    /// Positions or frames computed.
    pub units: Counter,
    /// Sequences computed in vain.
    pub stale_outcomes: Counter,
    /// Seconds from a step's end to its tokens being with the scheduler.
    pub sample_seconds: Histogram,
    /// Seconds to package one step.
    pub package_seconds: Histogram,
    /// Seconds that a payload was on its way into the stage.
    pub connector_seconds: Histogram,
    /// Sequences that hold a slot.
    pub sequences: Gauge,
    /// Current generation.
    pub generation: Gauge,
    /// Restarts.
    pub restarts: Counter,
    /// Seconds from failure to serving again.
    pub recovery_seconds: Histogram,
    queues: [Gauge; 5],
}

/// The labels of a stage; one that has several replicas gets their number as well.
fn labels(stage: StageName, replica: Option<usize>) -> Vec<Label> {
    let replica = replica.map(|replica| Label::new("replica", replica.to_string()));
    [Label::from_static_parts("stage", stage.as_str())].into_iter().chain(replica).collect()
}

impl StageMetrics {
    /// Handles of one stage, or of one of its replicas where it has several. A trace shows its queues too.
    pub fn new(stage: StageName, replica: Option<usize>, recorder: Recorder) -> StageMetrics {
        install();
        let of_stage = labels(stage, replica);
        let and = |key: &'static str, value: &'static str| {
            let more = Label::from_static_parts(key, value);
            of_stage.iter().cloned().chain([more]).collect::<Vec<_>>()
        };
        let count = |metric: Metric| counter!(metric.name, of_stage.iter());
        let gauge = |metric: Metric| gauge!(metric.name, of_stage.iter());
        let histogram = |metric: Metric| histogram!(metric.name, of_stage.iter());
        StageMetrics {
            place: Replica { stage, number: replica.unwrap_or(0) as u8 },
            recorder,
            steps: count(c::STEPS),
            step_seconds: histogram(c::STEP_SECONDS_M),
            phases: Phase::ALL.map(|phase| histogram!(c::PHASE_SECONDS.name, and("phase", phase.as_str()))),
            batch_sequences: histogram(c::BATCH_SEQUENCES),
            bubble_seconds: histogram(c::BUBBLE_SECONDS),
            run_ahead: histogram(c::RUN_AHEAD_STEPS),
            units: count(c::UNITS),
            stale_outcomes: count(c::STALE_OUTCOMES),
            sample_seconds: histogram(c::SAMPLE_SECONDS),
            package_seconds: histogram(c::PACKAGE_SECONDS),
            connector_seconds: histogram(c::CONNECTOR_SECONDS),
            sequences: gauge(c::SEQUENCES_LIVE),
            generation: gauge(c::GENERATION),
            restarts: count(c::RESTARTS),
            recovery_seconds: histogram(c::RECOVERY_SECONDS),
            queues: Queue::ALL.map(|queue| gauge!(c::QUEUE_DEPTH.name, and("queue", queue.as_str()))),
        }
    }

    /// What a step spent its time on.
    pub fn phases(&self, phases: &Phases) {
        for (phase, time) in phases.measured() {
            self.phases[phase as usize].record(time);
        }
    }

    /// Tells how many messages wait in a queue.
    pub fn queue_depth(&self, queue: Queue, depth: usize) {
        self.queues[queue as usize].set(depth as f64);
        self.recorder.queued(self.place, queue, depth);
    }
}

impl std::fmt::Debug for StageMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StageMetrics")
    }
}

/// What the supervisor of a stage process records; the process itself has the other series of the stage.
#[derive(Clone)]
pub struct SupervisionMetrics {
    /// Current generation.
    pub generation: Gauge,
    /// Restarts.
    pub restarts: Counter,
    /// Seconds from failure to serving again.
    pub recovery_seconds: Histogram,
}

impl SupervisionMetrics {
    /// Handles of one stage, or of one of its replicas where it has several.
    pub fn new(stage: StageName, replica: Option<usize>) -> SupervisionMetrics {
        install();
        let labels = labels(stage, replica);
        SupervisionMetrics {
            generation: gauge!(c::GENERATION.name, labels.iter()),
            restarts: counter!(c::RESTARTS.name, labels.iter()),
            recovery_seconds: histogram!(c::RECOVERY_SECONDS.name, labels.iter()),
        }
    }
}

impl std::fmt::Debug for SupervisionMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SupervisionMetrics")
    }
}

/// So many faults happened on purpose. Looked up by name: nothing that is measured breaks on purpose.
pub fn fault_injected(stage: Option<StageName>, point: &'static str, kind: &'static str, times: u64) {
    if times > 0 {
        install();
        let stage = stage.map_or("", StageName::as_str);
        counter!(c::FAULTS_INJECTED.name, "stage" => stage, "point" => point, "kind" => kind).increment(times);
    }
}

/// What the edge out of a stage records.
#[derive(Clone)]
pub struct EdgeMetrics {
    payloads: Counter,
    bytes: Counter,
    /// Leases given out and not yet released.
    pub leases: Gauge,
}

impl EdgeMetrics {
    /// Handles of an edge that leaves `stage`, on which payloads of one `kind` travel.
    pub fn new(stage: StageName, kind: PayloadKind) -> EdgeMetrics {
        install();
        let kind = kind.as_str();
        EdgeMetrics {
            payloads: counter!(c::PAYLOADS.name, "stage" => stage.as_str(), "kind" => kind),
            bytes: counter!(c::PAYLOAD_BYTES.name, "stage" => stage.as_str(), "kind" => kind),
            leases: gauge!(c::LEASES_LIVE.name, "stage" => stage.as_str()),
        }
    }

    /// One payload went out.
    pub fn sent(&self, bytes: usize) {
        self.payloads.increment(1);
        self.bytes.increment(bytes as u64);
    }
}

impl std::fmt::Debug for EdgeMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EdgeMetrics")
    }
}

/// What an aligner of sound records.
#[derive(Clone)]
pub struct AlignerMetrics {
    aligned: Counter,
    failed: Counter,
    /// Seconds to align one piece.
    pub seconds: Histogram,
    /// Times that its thread failed.
    pub failures: Counter,
}

impl AlignerMetrics {
    /// Handles of the only aligner.
    pub fn new() -> AlignerMetrics {
        install();
        AlignerMetrics {
            aligned: counter!(c::ALIGNER_PIECES.name, "outcome" => "aligned"),
            failed: counter!(c::ALIGNER_PIECES.name, "outcome" => "failed"),
            seconds: histogram!(c::ALIGNER_SECONDS.name),
            failures: counter!(c::ALIGNER_FAILURES.name),
        }
    }

    /// One piece is answered.
    pub fn answered(&self, aligned: bool) {
        let outcome = if aligned { &self.aligned } else { &self.failed };
        outcome.increment(1);
    }
}

impl Default for AlignerMetrics {
    fn default() -> AlignerMetrics {
        AlignerMetrics::new()
    }
}

impl std::fmt::Debug for AlignerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AlignerMetrics")
    }
}

/// Input of a sequence got lost on the edge behind this stage; `None` for the edge from the client.
pub fn edge_lost(stage: Option<StageName>) {
    install();
    let stage = stage.map_or("", StageName::as_str);
    counter!(c::EDGE_LOST.name, "stage" => stage).increment(1);
}

/// A piece of speech ended for this reason because it did not say its text.
pub fn speech_astray(reason: FinishReason) {
    install();
    let reason = if reason == FinishReason::Runaway { "runaway" } else { "unspoken" };
    counter!(c::SPEECH_ASTRAY.name, "reason" => reason).increment(1);
}

/// It is made anew.
pub fn speech_anew() {
    install();
    counter!(c::SPEECH_ANEW.name).increment(1);
}

/// A request was ended because it brought this stage down each time.
pub fn request_guilty(stage: StageName) {
    install();
    counter!(c::GUILTY.name, "stage" => stage.as_str()).increment(1);
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Direction {
    /// From a device to the host.
    DeviceToHost,
    /// From the host to a device.
    HostToDevice,
    /// On a device, or between two of them.
    DeviceToDevice,
}

impl Direction {
    /// Every direction.
    pub const ALL: [Direction; 3] = [Direction::DeviceToHost, Direction::HostToDevice, Direction::DeviceToDevice];

    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::DeviceToHost => "d2h",
            Direction::HostToDevice => "h2d",
            Direction::DeviceToDevice => "d2d",
        }
    }
}

/// What copies of payload data record. A text-only request makes no copies.
#[derive(Clone)]
pub struct CopyMetrics {
    stage: StageName,
    recorder: Recorder,
    handles: [CopyHandles; Direction::ALL.len()],
}

#[derive(Clone)]
struct CopyHandles {
    copies: Counter,
    bytes: Counter,
    seconds: Histogram,
}

impl CopyMetrics {
    /// Handles of the stage whose output or input is copied; a trace shows the copies too.
    pub fn new(stage: StageName, recorder: Recorder) -> CopyMetrics {
        install();
        let handles = Direction::ALL.map(|direction| {
            let (stage, direction) = (stage.as_str(), direction.as_str());
            CopyHandles {
                copies: counter!(c::COPIES.name, "stage" => stage, "direction" => direction),
                bytes: counter!(c::COPY_BYTES.name, "stage" => stage, "direction" => direction),
                seconds: histogram!(c::COPY_SECONDS.name, "stage" => stage, "direction" => direction),
            }
        });
        CopyMetrics { stage, recorder, handles }
    }

    /// One copy is over; `took` is its time on its stream, where that is known.
    pub fn copied(&self, direction: Direction, bytes: usize, took: Option<Duration>) {
        self.recorder.copied(self.stage, direction, bytes, took);
        let handles = &self.handles[direction as usize];
        handles.copies.increment(1);
        handles.bytes.increment(bytes as u64);
        if let Some(took) = took {
            handles.seconds.record(took);
        }
    }
}

impl std::fmt::Debug for CopyMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CopyMetrics")
    }
}

/// Who uses device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// What this process allocated.
    Allocated,
    /// What all processes use on the device, code and graphs included, as the driver counts.
    Used,
}

/// What a GPU records.
#[derive(Clone)]
pub struct DeviceMetrics {
    /// Calls that waited for the device.
    pub blocking: Counter,
    /// Operands of the vocoder that were clipped.
    pub clipped: Counter,
    memory: [Gauge; 2],
}

impl DeviceMetrics {
    /// Handles of the GPU of this number.
    pub fn new(index: usize) -> DeviceMetrics {
        install();
        let memory = ["allocated", "used"];
        DeviceMetrics {
            blocking: counter!(c::DEVICE_BLOCKING.name),
            clipped: counter!(c::VOCODER_CLIPPED.name),
            memory: memory.map(|what| gauge!(c::DEVICE_MEMORY.name, "device" => index.to_string(), "use" => what)),
        }
    }

    /// Tells how many bytes one use takes now.
    pub fn memory(&self, what: MemoryUse, bytes: u64) {
        self.memory[what as usize].set(bytes as f64);
    }

    /// The device time of frames captured for so many sequences.
    pub fn frame_seconds(sequences: usize) -> Histogram {
        install();
        histogram!(c::FRAME_SECONDS.name, "bucket" => sequences.to_string())
    }
}

impl std::fmt::Debug for DeviceMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceMetrics")
    }
}

/// What a stage records of the prompts that it keeps. Its bytes count until it is dropped.
pub struct PromptCacheMetrics {
    hits: Counter,
    misses: Counter,
    /// Positions that were not computed again.
    pub positions: Counter,
    /// Those of them that were copied from the host's memory.
    pub restored: Counter,
    bytes: [Gauge; 2],
    /// On the device, or all on a CPU; and copies in the host's memory.
    held: [usize; 2],
}

impl PromptCacheMetrics {
    /// Of a stage that keeps nothing yet.
    pub fn new(stage: StageName) -> PromptCacheMetrics {
        install();
        let stage = stage.as_str();
        let prompts = |outcome| counter!(c::PROMPT_CACHE.name, "stage" => stage, "outcome" => outcome);
        let gauge = |metric: Metric| gauge!(metric.name, "stage" => stage);
        PromptCacheMetrics {
            hits: prompts("hit"),
            misses: prompts("miss"),
            positions: counter!(c::PROMPT_CACHE_POSITIONS.name, "stage" => stage),
            restored: counter!(c::PROMPT_CACHE_RESTORED.name, "stage" => stage),
            bytes: [gauge(c::PROMPT_CACHE_BYTES), gauge(c::PROMPT_CACHE_HOST_BYTES)],
            held: [0; 2],
        }
    }

    /// A beginning of a prompt was there or not.
    pub fn looked_up(&self, there: bool) {
        if there { self.hits.increment(1) } else { self.misses.increment(1) }
    }

    /// So many bytes are kept now, and so many bytes of copies in the host's memory.
    pub fn holds(&mut self, bytes: usize, copied: usize) {
        for ((gauge, held), bytes) in self.bytes.iter().zip(&mut self.held).zip([bytes, copied]) {
            if bytes != *held {
                gauge.increment(bytes as f64 - *held as f64);
                *held = bytes;
            }
        }
    }
}

impl Drop for PromptCacheMetrics {
    fn drop(&mut self) {
        self.holds(0, 0);
    }
}

/// A launch thread called something that may wait for its device. It has no handle, because it must not happen.
pub fn launch_waited() {
    install();
    counter!(c::LAUNCH_WAITS.name).increment(1);
}
