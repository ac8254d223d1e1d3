//! The metrics that `/metrics` shows, and that their documentation is complete.
#![allow(clippy::unwrap_used)]

use omni_core::ids::{PayloadKind, RequestId, StageName};
use omni_telemetry::catalogue;
use omni_telemetry::trace::Recorder;
use omni_telemetry::{
    self as telemetry, AdmissionMetrics, AlignerMetrics, CallMetrics, CopyMetrics, DecodeMetrics, DeviceMetrics,
    Direction, EdgeMetrics, HttpMetrics, KeyMetrics, KeyRefusal, LinkMetrics, LinkTraffic, MediaMetrics, MemoryUse,
    Outcome, Phase, Phases, PromptCacheMetrics, Queue, RealtimeMetrics, ReplicaOnNode, RequestKind, RequestMetrics,
    SpanMetrics, StageMetrics,
};
use std::time::{Duration, Instant};

const OPERATIONS: &str = include_str!("../../../docs/operations.md");

fn record_one_of_each() {
    telemetry::process_started();
    telemetry::set_ready(true);
    telemetry::launch_waited();
    telemetry::ModelMetrics::new("a").load_ended("loaded");
    let device = DeviceMetrics::new(0);
    device.blocking.increment(1);
    device.memory(MemoryUse::Used, 1 << 30);
    DeviceMetrics::frame_seconds(8).record(Duration::from_millis(2));
    let http = HttpMetrics::new();
    http.connections.set(1.0);
    http.response("/v1/audio/speech", 200);
    http.input_bytes.set(1.0);
    http.output_bytes.set(1.0);
    HttpMetrics::evicted("idle");
    DecodeMetrics::ended("recording", "decoded");
    MediaMetrics::looked_up(true);
    MediaMetrics::cached(1);
    MediaMetrics::spectrum_looked_up(true);
    MediaMetrics::spectra_kept(1);
    MediaMetrics::ended("image", "prepared");
    MediaMetrics::took("image", Duration::from_millis(20));
    MediaMetrics::holds(1.0);
    let mut prompts = PromptCacheMetrics::new(StageName::Thinker);
    prompts.looked_up(true);
    prompts.positions.increment(16);
    prompts.holds(1, 1);
    HttpMetrics::resumed("sample");
    http.unauthorized.increment(1);
    let key = KeyMetrics::new("alice");
    key.answered(200);
    key.refused(KeyRefusal::Speech);
    key.speech_seconds.increment(1);
    key.input_bytes.increment(1);
    key.connections.set(1.0);
    SpanMetrics::new().dropped.increment(1);
    let admission = AdmissionMetrics::new();
    admission.capacity(16);
    admission.refused("places");
    admission.deadline("playback", true);
    admission.ended("yielded");
    admission.paused(1);
    for name in StageName::ALL {
        let stage = StageMetrics::new(name, None, Recorder::default());
        stage.steps.increment(1);
        stage.units.increment(1);
        stage.stale_outcomes.increment(1);
        stage.restarts.increment(1);
        stage.sequences.set(1.0);
        stage.generation.set(1.0);
        stage.queue_depth(Queue::Output, 3);
        for histogram in [&stage.step_seconds, &stage.bubble_seconds, &stage.sample_seconds] {
            histogram.record(Duration::from_millis(1));
        }
        stage.package_seconds.record(Duration::from_millis(1));
        stage.recovery_seconds.record(Duration::from_millis(1));
        stage.batch_sequences.record(4.0);
        stage.run_ahead.record(1.0);
        let edge = EdgeMetrics::new(name, PayloadKind::Codes);
        stage.phases(&Phases::only(Phase::Backbone, Duration::from_millis(2)));
        stage.connector_seconds.record(Duration::from_micros(30));
        CopyMetrics::new(name, Recorder::default()).copied(
            Direction::DeviceToHost,
            4096,
            Some(Duration::from_micros(20)),
        );
        edge.sent(100);
        telemetry::edge_lost(Some(name));
        telemetry::speech_astray(omni_core::ids::FinishReason::Runaway);
        telemetry::speech_anew();
        let aligner = AlignerMetrics::new();
        aligner.answered(true);
        aligner.seconds.record(Duration::from_millis(3));
        aligner.failures.increment(1);
        let calls = CallMetrics::new();
        calls.open.increment(1.0);
        calls.unknown.increment(1);
        calls.full.increment(1);
        let session = RealtimeMetrics::open();
        session.turns.increment(1);
        session.interruptions.increment(1);
        session.prepared("finished");
        session.first_sound.record(Duration::from_millis(300));
        telemetry::request_guilty(name);
        edge.leases.set(1.0);
        let (down, _) = LinkMetrics::pair(name);
        down.passed(64);
        telemetry::fault_injected(Some(name), "runner", "panic", 1);
    }
}

#[test]
fn a_recorded_metric_is_rendered_and_every_one_is_documented() {
    record_one_of_each();
    let requests = RequestMetrics::new(Recorder::default());
    let began = Instant::now();
    let at = |ms: u64| began + Duration::from_millis(ms);
    let length = Duration::from_millis(80);
    let mut request = requests.accepted(RequestId(1), RequestKind::Speech, began);
    request.text(at(10));
    request.audio(at(50), length);
    request.audio(at(250), length);
    request.end(at(260), Outcome::Finished);
    drop(requests.accepted(RequestId(2), RequestKind::Chat, began));
    requests.refused(RequestKind::Chat);

    let link = [LinkTraffic::new(), LinkTraffic::new()];
    let (node, stage) = ("far".to_owned(), StageName::Talker);
    let on_node = ReplicaOnNode { node, stage, replica: 0, sequences: 1, restarts: 0, link };
    let text = telemetry::render() + &telemetry::render_nodes(&[on_node], &[("far", None)]);
    for metric in catalogue::ALL {
        assert!(
            text.contains(&format!("# HELP {} {}", metric.name, metric.help)),
            "{} is not rendered:\n{text}",
            metric.name
        );
        let labels = match metric.labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        let series = format!("`{}{labels}`", metric.name);
        assert!(OPERATIONS.contains(&series), "docs/operations.md lacks {series}");
    }
    for line in [
        "omni_requests_total{kind=\"speech\",outcome=\"finished\"} 1",
        "omni_requests_total{kind=\"chat\",outcome=\"aborted\"} 1",
        "omni_requests_total{kind=\"chat\",outcome=\"refused\"} 1",
        "omni_requests_in_flight 0",
        "omni_underruns_total 1",
        "omni_ttfa_seconds_bucket{kind=\"speech\",le=\"0.04\"} 0",
        "omni_ttfa_seconds_bucket{kind=\"speech\",le=\"0.06\"} 1",
        "omni_audio_seconds_sum 0.16",
        "omni_stage_queue_depth{stage=\"talker\",queue=\"output\"} 3",
        "omni_stage_phase_seconds_sum{stage=\"talker\",phase=\"backbone\"} 0.002",
        "omni_copy_bytes_total{stage=\"vocoder\",direction=\"d2h\"} 4096",
        "omni_payload_bytes_total{stage=\"talker\",kind=\"codes\"} 100",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is missing:\n{text}");
    }
}
