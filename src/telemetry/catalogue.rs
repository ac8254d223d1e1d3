//! Every metric: its name, kind, labels and meaning. `docs/operations.md` lists the series; a test compares the two.

/// What kind of series a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution; the upper bounds of its buckets, in the metric's unit.
    Histogram(&'static [f64]),
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// As Prometheus sees it; the unit is its suffix.
    pub name: &'static str,
    /// What kind of series.
    pub kind: Kind,
    /// Label names.
    pub labels: &'static [&'static str],
    /// One sentence for the `# HELP` line.
    pub help: &'static str,
}

/// From a gap between two launches on a GPU (microseconds) to a long prefill on a CPU, finest where a GPU's frames are.
const STEP_SECONDS: &[f64] = &[
    2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 250e-6, 500e-6, 750e-6, 1e-3, 1.25e-3, 1.5e-3, 2e-3, 2.5e-3, 3e-3, 4e-3,
    5e-3, 7.5e-3, 10e-3, 15e-3, 20e-3, 40e-3, 80e-3, 160e-3, 320e-3, 1.0, 2.5,
];
/// Around 300 ms, the longest wait that still feels like an answer.
const WAIT_SECONDS: &[f64] =
    &[5e-3, 10e-3, 20e-3, 40e-3, 60e-3, 80e-3, 120e-3, 160e-3, 240e-3, 300e-3, 400e-3, 600e-3, 1.0, 2.0, 5.0, 10.0];
/// From one word to a whole reading.
const LONG_SECONDS: &[f64] = &[0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// Speech is made as fast as a player plays it at 1; above 1 the player runs dry.
const FACTOR: &[f64] = &[0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 5.0];
/// Powers of two up to the largest batch the config allows.
const SEQUENCES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// Every value that the config allows has a bucket of its own.
const RUN_AHEAD: &[f64] = &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];

macro_rules! catalogue {
    ($($id:ident = $kind:expr, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Metric = Metric { name: $name, kind: $kind, labels: &[$($label),*], help: $help };
        )*
        /// All of them.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

use Kind::{Counter, Gauge, Histogram};

catalogue! {
    BUILD_INFO = Gauge, "omni_build_info", ["version"], "Always 1; the label tells which build runs.";
    READY = Gauge, "omni_ready", [], "1 while every stage can serve and no shutdown has begun.";

    MODEL_LOADED = Gauge, "omni_model_loaded", ["model"], "1 while this one of several models is in memory.";
    MODEL_LOADS = Counter, "omni_model_loads_total", ["model", "outcome"], "Loads of one of several models that ended.";

    REQUESTS = Counter, "omni_requests_total", ["kind", "outcome"], "Requests that ended, by what they were and how they ended.";
    LEDGER_BYTES = Gauge, "omni_ledger_bytes", [], "Memory of the ledger, from which stages get their sequences again.";
    REQUESTS_IN_FLIGHT = Gauge, "omni_requests_in_flight", [], "Accepted requests that have not ended.";
    REQUEST_SECONDS = Histogram(LONG_SECONDS), "omni_request_seconds", ["kind"], "From acceptance to the last event of a request.";
    TTFA_SECONDS = Histogram(WAIT_SECONDS), "omni_ttfa_seconds", ["kind"], "Time to first audio, from acceptance.";
    TTFT_SECONDS = Histogram(WAIT_SECONDS), "omni_ttft_seconds", [], "Time to first text, from acceptance.";
    CHUNK_GAP_SECONDS = Histogram(WAIT_SECONDS), "omni_chunk_gap_seconds", [], "Time between consecutive audio chunks of one request.";
    AUDIO_SECONDS = Histogram(LONG_SECONDS), "omni_audio_seconds", [], "Length of the speech of one request.";
    REAL_TIME_FACTOR = Histogram(FACTOR), "omni_real_time_factor", [], "Time that a request took per second of its speech.";
    UNDERRUNS = Counter, "omni_underruns_total", [], "Chunks more than 20 ms late for a player that began with the first one.";

    ADMISSION_CAPACITY = Gauge, "omni_admission_capacity", [], "Streams that the server can carry in real time, as admission learned.";
    REFUSALS = Counter, "omni_refusals_total", ["reason"], "Requests that were told to come later, by why.";
    ENDED = Counter, "omni_requests_ended_total", ["reason"], "Requests that lost their place: slow_client, yielded (too many paused), or lifetime.";
    PAUSED = Counter, "omni_requests_paused_total", [], "Times that a request gave its place up because its client kept it waiting.";
    DEADLINES = Counter, "omni_deadlines_total", ["deadline", "outcome"], "Deadlines met and missed: the first sound, and the rest in real time.";

    STEPS = Counter, "omni_stage_steps_total", ["stage"], "Steps launched.";
    STEP_SECONDS_M = Histogram(STEP_SECONDS), "omni_stage_step_seconds", ["stage"], "Device time of one step.";
    PHASE_SECONDS = Histogram(STEP_SECONDS), "omni_stage_phase_seconds", ["stage", "phase"], "Time of one phase of a step, where the device measures it.";
    BATCH_SEQUENCES = Histogram(SEQUENCES), "omni_stage_batch_sequences", ["stage"], "Sequences that advanced together in one step.";
    BUBBLE_SECONDS = Histogram(STEP_SECONDS), "omni_stage_launch_bubble_seconds", ["stage"], "Device idle time between two steps while there was work.";
    RUN_AHEAD_STEPS = Histogram(RUN_AHEAD), "omni_stage_run_ahead_steps", ["stage"], "Steps in flight when the next one was launched.";
    UNITS = Counter, "omni_stage_units_total", ["stage"], "Units computed: prompt positions, tokens, frames.";
    STALE_OUTCOMES = Counter, "omni_stage_stale_outcomes_total", ["stage"], "Sequences computed in vain, after their end.";
    SAMPLE_SECONDS = Histogram(STEP_SECONDS), "omni_stage_sample_seconds", ["stage"], "From the end of a step to its tokens being with the scheduler.";
    PACKAGE_SECONDS = Histogram(STEP_SECONDS), "omni_stage_package_seconds", ["stage"], "Time to package one step's payloads.";
    CONNECTOR_SECONDS = Histogram(STEP_SECONDS), "omni_stage_connector_seconds", ["stage"], "Time of a payload on the edge into this stage.";
    SEQUENCES_LIVE = Gauge, "omni_stage_sequences", ["stage"], "Sequences that hold a slot.";
    QUEUE_DEPTH = Gauge, "omni_stage_queue_depth", ["stage", "queue"], "Messages waiting in a bounded queue of a stage.";
    GENERATION = Gauge, "omni_stage_generation", ["stage"], "How often the stage has been started.";
    RESTARTS = Counter, "omni_stage_restarts_total", ["stage"], "Restarts after a failure.";
    GUILTY = Counter, "omni_stage_guilty_requests_total", ["stage"], "Requests ended because they brought the stage down each time, at last alone.";
    RECOVERY_SECONDS = Histogram(WAIT_SECONDS), "omni_stage_recovery_seconds", ["stage"], "From a failure seen to the stage serving again.";

    FAULTS_INJECTED = Counter, "omni_faults_injected_total", ["stage", "point", "kind"], "Faults that were injected; the stage is empty for points outside of stages.";

    PAYLOADS = Counter, "omni_payloads_total", ["stage", "kind"], "Payloads that left a stage, by what they carry.";
    PAYLOAD_BYTES = Counter, "omni_payload_bytes_total", ["stage", "kind"], "Bytes of those payloads.";
    SPEECH_ASTRAY = Counter, "omni_speech_astray_total", ["reason"], "Pieces of speech that did not say their text: without end (runaway), or ended at once (unspoken).";
    SPEECH_ANEW = Counter, "omni_speech_anew_total", [], "Pieces that were made anew because of that.";
    EDGE_LOST = Counter, "omni_edge_lost_total", ["stage"], "Times that input of a sequence got lost on the edge behind the stage.";
    LEASES_LIVE = Gauge, "omni_leases_live", ["stage"], "Payload leases of a stage that are not yet released.";

    LINK_FRAMES = Counter, "omni_link_frames_total", ["stage", "direction"], "Frames between this process and that of a stage, down or up.";
    LINK_BYTES = Counter, "omni_link_bytes_total", ["stage", "direction"], "Bytes of those frames.";

    NODES = Gauge, "omni_nodes", [], "Nodes that have joined this gateway.";
    NODE_ROUND_TRIP = Gauge, "omni_node_round_trip_seconds", ["node"], "Time of a question to a node and its answer, measured every two seconds.";
    NODE_SEQUENCES = Gauge, "omni_node_sequences", ["node", "stage", "replica"], "Sequences of a replica on a node that hold a slot.";
    NODE_RESTARTS = Counter, "omni_node_restarts_total", ["node", "stage", "replica"], "Restarts of that replica after a failure, on whichever node.";
    NODE_LINK_FRAMES = Counter, "omni_node_link_frames_total", ["node", "stage", "replica", "direction"], "Frames between this gateway and a replica on a node since the link was opened, down or up.";
    NODE_LINK_BYTES = Counter, "omni_node_link_bytes_total", ["node", "stage", "replica", "direction"], "Bytes of those frames.";

    COPIES = Counter, "omni_copies_total", ["stage", "direction"], "Copies of payload data off the device (d2h), onto it (h2d), or on it (d2d).";
    COPY_BYTES = Counter, "omni_copy_bytes_total", ["stage", "direction"], "Bytes of those copies.";
    COPY_SECONDS = Histogram(STEP_SECONDS), "omni_copy_seconds", ["stage", "direction"], "Time of one of those copies, where it is measured.";

    DEVICE_MEMORY = Gauge, "omni_device_memory_bytes", ["device", "use"], "Memory of a GPU: allocated by this process, and used by all.";
    DEVICE_BLOCKING = Counter, "omni_device_blocking_calls_total", [], "Calls to the GPU's driver that waited for the GPU.";
    VOCODER_CLIPPED = Counter, "omni_vocoder_clipped_total", [], "Operands of the vocoder's products beyond 65,504, the largest number of their 16 bits, which they were set to.";
    LAUNCH_WAITS = Counter, "omni_launch_blocking_calls_total", [], "Calls in a launch that may wait for the GPU; anything but 0 is a bug.";
    FRAME_SECONDS = Histogram(STEP_SECONDS), "omni_frame_seconds", ["bucket"], "Device time of a captured frame of the talker, by its sequences.";

    LOG_LINES_LOST = Counter, "omni_log_lines_lost_total", [], "Log lines that were lost.";

    HTTP_RESPONSES = Counter, "omni_http_responses_total", ["route", "status"], "Responses begun, by route and status.";
    HTTP_RESUMED = Counter, "omni_http_resumed_total", ["by"], "Answers that went on at a position, given as a sample, a byte or an event.";
    HTTP_CONNECTIONS = Gauge, "omni_http_connections", [], "Connections open.";
    HTTP_INPUT_BYTES = Gauge, "omni_http_input_bytes", [], "Bytes of clients that are still held, at most server.max_input_bytes.";
    HTTP_OUTPUT_BYTES = Gauge, "omni_http_output_bytes", [], "Bytes of answers in one piece that are being made or read, at most server.max_output_bytes.";
    HTTP_EVICTED = Counter, "omni_http_evicted_total", ["what"], "Connections closed for their place (idle), their memory (unread) or slow reading (slow).";
    HTTP_UNAUTHORIZED = Counter, "omni_http_unauthorized_total", [], "Requests without a key that is in the config.";
    DECODES = Counter, "omni_decodes_total", ["kind", "outcome"], "Files given to a decoder: decoded, refused, ended with their decoder, or no_worker was there.";
    ALIGNER_PIECES = Counter, "omni_aligner_pieces_total", ["outcome"], "Pieces of speech that the aligner of the config took: aligned or failed.";
    ALIGNER_SECONDS = Histogram(WAIT_SECONDS), "omni_aligner_seconds", [], "Time to find the words of one piece.";
    ALIGNER_FAILURES = Counter, "omni_aligner_failures_total", [], "Times that the aligner's thread died or took too long.";
    MEDIA = Counter, "omni_media_total", ["kind", "outcome"], "Media of chat turns: prepared, refused, without room in time (busy), or dropped with another of their request.";
    MEDIA_SECONDS = Histogram(WAIT_SECONDS), "omni_media_seconds", ["kind"], "Time to prepare one of them.";
    MEDIA_BYTES = Gauge, "omni_media_bytes", [], "Decoded sound and pictures of requests, counted before they are decoded, at most media.max_memory.";

    MEDIA_CACHE = Counter, "omni_media_cache_total", ["outcome"], "Windows of sound, pictures and videos looked for among the kept embeddings: hit or miss.";
    MEDIA_CACHE_BYTES = Gauge, "omni_media_cache_bytes", [], "Bytes of embeddings that are kept for media that come again, at most media.max_cached_embeddings.";
    MEDIA_SPECTRA = Counter, "omni_media_spectra_total", ["outcome"], "Seconds of speech of sessions whose spectrum was looked for among the kept ones: hit or miss.";
    MEDIA_SPECTRA_BYTES = Gauge, "omni_media_spectra_bytes", [], "Bytes of spectra that are kept of the speech of sessions, at most media.max_cached_spectra.";

    PROMPT_CACHE = Counter, "omni_prompt_cache_total", ["stage", "outcome"], "Prompts whose beginning was looked for among those that the stage keeps: hit or miss.";
    PROMPT_CACHE_POSITIONS = Counter, "omni_prompt_cache_positions_total", ["stage"], "Positions of prompts that were kept and not computed again.";
    PROMPT_CACHE_RESTORED = Counter, "omni_prompt_cache_restored_positions_total", ["stage"], "Those of them that had left a GPU and were copied back from the host's memory.";
    PROMPT_CACHE_BYTES = Gauge, "omni_prompt_cache_bytes", ["stage"], "Bytes of prompts, and of a thinker's answers, that are kept, at most stages.STAGE.kept_prompts for each replica.";
    PROMPT_CACHE_HOST_BYTES = Gauge, "omni_prompt_cache_host_bytes", ["stage"], "Bytes of copies of them in the host's memory, at most stages.thinker.kept_prompts_host for each replica on a GPU.";

    REALTIME_SESSIONS = Gauge, "omni_realtime_sessions", [], "Sessions of the realtime protocol that are open, at most realtime.max_sessions.";
    REALTIME_CALLS = Gauge, "omni_realtime_calls", [], "Calls over WebRTC that are open, at most realtime.webrtc.max_calls.";
    REALTIME_DROPPED = Counter, "omni_realtime_dropped_packets_total", ["why"], "Packets at the port of calls that were dropped: of no call (unknown), or more than a call takes (full).";
    REALTIME_TURNS = Counter, "omni_realtime_turns_total", [], "Turns of sound that users or the detector committed.";
    REALTIME_INTERRUPTIONS = Counter, "omni_realtime_interruptions_total", [], "Answers that their user's speech cut off.";
    REALTIME_PREPARATIONS = Counter, "omni_realtime_preparations_total", ["outcome"], "Requests for turns that were still spoken: finished, refused (without room, or failed), or cut_off by the end of the turn.";
    REALTIME_FIRST_SOUND_SECONDS = Histogram(WAIT_SECONDS), "omni_realtime_first_sound_seconds", [], "Time from the end of a turn to the first sound of its answer.";

    KEY_REQUESTS = Counter, "omni_key_requests_total", ["key", "status"], "Requests with a key, by its name and the status.";
    KEY_REFUSALS = Counter, "omni_key_refusals_total", ["key", "reason"], "Requests and utterances that a limit or a scope of their key refused.";
    KEY_SPEECH_SECONDS = Counter, "omni_key_speech_seconds_total", ["key"], "Seconds of speech made for a key.";
    KEY_INPUT_BYTES = Counter, "omni_key_input_bytes_total", ["key"], "Bytes of bodies and WebSocket messages that came with a key.";
    KEY_CONNECTIONS = Gauge, "omni_key_connections", ["key"], "Requests and WebSockets with a key that are being answered.";

    SPANS = Counter, "omni_trace_spans_total", ["outcome"], "Spans for the collector: exported, or dropped because it was slow or gone.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_carry_their_unit() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(metric.name.starts_with("omni_"), "{}", metric.name);
            assert_eq!(metric.kind == Counter, metric.name.ends_with("_total"), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn buckets_grow() {
        for metric in ALL {
            if let Histogram(bounds) = metric.kind {
                assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
            }
        }
    }
}
