//! Stages in processes of their own: the same samples, clear errors when a process dies, and none that outlives its server.
//! `OMNI_TEST_PLACEMENT=process` runs every other test of the whole pipeline so.

use crate::signals::until;
use crate::support::engine::{chat, collect, engine, frames, idle, root, say, speech, tiny, voice};
use crate::support::http::{Ask, stage_of};
use crate::support::omni::{Serving, omni};
use crate::support::process::Watched;
use crate::support::wait::PATIENCE;
use candle_core::Device;
use omni_actors::config::{Config, Placement};
use omni_actors::core::ids::StageName;
use omni_actors::engine::{Engine, Event, Output, Service, StageState, SubmitError};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::telemetry::trace::{Record, Session, Track};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a process may outlive its server, or its stage's generation.
const OUTLIVES: Duration = Duration::from_secs(2);

fn in_processes(config: &mut Config) {
    config.stages.iter_mut().for_each(|stage| stage.placement = Placement::Process);
    config.supervision.backoff = Duration::from_millis(1);
}

async fn apart(change: impl FnOnce(&mut Config)) -> Engine {
    engine(&tiny(), |config| {
        in_processes(config);
        change(config);
    })
    .await
}

fn pid(engine: &Engine, stage: StageName) -> u32 {
    engine.health()[stage].pid.expect("a stage in a process has one")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_through_processes_is_the_references_sample_for_sample() {
    let engine = engine(&voice(), in_processes).await;
    let golden = root().join("assets/voice/golden");
    let manifest = std::fs::read(golden.join("voice_heart_0.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let meta = |key: &str| manifest["meta"][key].as_str().unwrap().to_owned();
    let tensors = candle_core::safetensors::load(golden.join("voice_heart_0.safetensors"), &Device::Cpu).unwrap();
    let wav = tensors["wav"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let prompt = meta("prompt");
    let user = prompt.split("user\n").nth(1).unwrap().split("<|im_end|>").next().unwrap();
    let mut request = chat(user, Output::TextAndAudio);
    request.voice = Some(meta("speaker"));
    let answer = collect(engine.submit(request).await.unwrap()).await;
    assert_eq!(answer.text + "<|im_end|>", meta("generated_text"));
    assert_eq!(answer.samples.len(), wav.len());
    let worst = answer.samples.iter().zip(&wav).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
    assert!(worst < 2e-4, "differs by {worst}");

    let health = engine.health();
    let mut pids: Vec<u32> = health.stages.iter().filter_map(|stage| stage.pid).chain([std::process::id()]).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 1 + StageName::ALL.len(), "each stage has a process of its own: {health:?}");

    let text = engine.metrics().await;
    let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let mut once = families.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), families.len(), "a family comes twice:\n{text}");
    for stage in StageName::OF_TEXT {
        let series = format!("omni_stage_steps_total{{stage=\"{stage}\"}} ");
        let steps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&series)).collect();
        assert!(steps.len() == 1 && steps[0] != "0", "{series}{steps:?}");
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_has_what_the_processes_did_on_one_clock() {
    let engine = apart(|_| {}).await;
    let processes = StageName::OF_TEXT.map(|stage| (stage, pid(&engine, stage)));
    // Until the trace is long enough for the processes to have sent what they recorded.
    for requests in 1.. {
        let session = Session::begin(&engine.recorder());
        for _ in 0..requests {
            assert!(say(&engine, frames(12, 5)).await.end.unwrap().is_ok());
        }
        session.settle().await;
        let trace = session.end();
        let of = |(stage, process): &(StageName, u32)| {
            let theirs = |record: &&Record| record.process == *process;
            let named = |record: &Record| matches!(record.track, Track::Stage { stage: name, .. } if name == *stage);
            let mut records = trace.records.iter().filter(theirs).peekable();
            records.peek().is_some() && records.all(|record| named(record) && record.ended <= trace.ended)
        };
        if processes.iter().all(of) {
            return;
        }
        assert!(requests < 30, "{} records, and not of every process", trace.records.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_requests_at_once_are_each_as_if_alone_in_one_process() {
    let (together, alone) = (apart(|config| config.limits.max_requests = 20).await, engine(&tiny(), |_| {}).await);
    let asked = |seed| frames(6 + seed as u32 % 5, seed);
    let answers = futures::future::join_all((0..20).map(|seed| say(&together, asked(seed)))).await;
    for (seed, answer) in (0..).zip(&answers) {
        let reference = say(&alone, asked(seed)).await;
        assert!(answer.samples == reference.samples && answer.end == reference.end, "request {seed}");
    }
    idle(&together).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_is_replaced_and_its_streams_go_on() {
    let undisturbed = say(&engine(&tiny(), |_| {}).await, frames(40, 5)).await;
    let engine = apart(|config| config.stages[StageName::Vocoder as usize].window = 1).await;
    for (round, stage) in [StageName::Talker, StageName::Vocoder].into_iter().enumerate() {
        let mut stream = engine.speak(frames(40, 5)).await.unwrap();
        // Until the first sound: both stages wait for it to be read, so they are in the middle of the answer.
        let first = loop {
            if let Event::Audio(chunk) = stream.next().await.unwrap() {
                break chunk;
            }
        };
        let process = Watched::new(pid(&engine, stage));
        process.kill();
        let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the request hangs");
        assert_eq!(rest.end, undisturbed.end, "{stage}");
        let heard = first.samples.len() + rest.samples.len();
        assert!(
            heard == undisturbed.samples.len() && undisturbed.samples.ends_with(&rest.samples),
            "{stage}: other samples"
        );
        let health = &engine.health()[stage];
        assert_eq!((health.state, health.restarts, health.generation), (StageState::Running, 1, 2), "round {round}");
        idle(&engine).await;
    }
}

fn rule(stage: StageName, point: FaultPoint, kind: FaultKind, nth: u64, times: u64) -> FaultRule {
    FaultRule::new(stage, point, kind).nth(nth).times(times)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_dies_in_a_process_is_replaced_there() {
    let undisturbed = say(&engine(&tiny(), |_| {}).await, frames(12, 5)).await;
    for (stage, point, kind, nth) in [
        (StageName::Thinker, FaultPoint::Scheduler, FaultKind::Panic, 2),
        (StageName::Talker, FaultPoint::Runner, FaultKind::Error, 3),
        (StageName::Talker, FaultPoint::Sampler, FaultKind::Panic, 1),
        (StageName::Vocoder, FaultPoint::Connector, FaultKind::Panic, 1),
        (StageName::Vocoder, FaultPoint::Packager, FaultKind::Error, 2),
    ] {
        let case = format!("{stage} {point:?} {kind:?}");
        let engine = apart(|config| config.faults = vec![rule(stage, point, kind, nth, 1)]).await;
        let process = pid(&engine, stage);
        for _ in 0..3 {
            let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await.expect(&case);
            assert_eq!(answer.end, undisturbed.end, "{case}");
            assert!(answer.samples == undisturbed.samples, "{case}: other samples");
        }
        let health = engine.health()[stage].clone();
        assert_eq!((health.state, health.restarts, health.generation), (StageState::Running, 1, 2), "{case}");
        assert_eq!(health.pid, Some(process), "{case}: the process goes on");
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_runner_hangs_is_replaced_and_what_broke_is_not_broken_again() {
    let hang = FaultKind::Delay(Duration::from_secs(3600));
    let engine = apart(|config| {
        config.faults = vec![rule(StageName::Vocoder, FaultPoint::Runner, hang, 2, 1)];
        config.supervision.watchdog = Duration::from_millis(400);
        config.supervision.max_restarts = 1000;
    })
    .await;
    let process = Watched::new(pid(&engine, StageName::Vocoder));
    let hung = tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await.expect("the request hangs");
    // It would hang again, had the new process begun to count from 1.
    assert!(hung.end.unwrap().is_ok());
    let reason = engine.health()[StageName::Vocoder].last_reason.clone().unwrap_or_default();
    assert!(reason.contains("has not turned"), "{reason}");
    process.ends_within(OUTLIVES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_stage_does_not_come_up_is_replaced_and_what_broke_is_not_broken_again() {
    let oom = FaultRule::new(StageName::Vocoder, FaultPoint::Build, FaultKind::Oom);
    let engine = apart(|config| config.faults = vec![oom]).await;
    let answer = tokio::time::timeout(PATIENCE, say(&engine, frames(12, 5))).await.expect("the fault came again");
    assert!(answer.end.unwrap().is_ok());
    let health = engine.health()[StageName::Vocoder].clone();
    assert_eq!((health.state, health.restarts), (StageState::Running, 1), "{health:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_fails_again_and_again_is_given_up_and_says_why() {
    let always = rule(StageName::Talker, FaultPoint::Runner, FaultKind::Error, 1, u64::MAX);
    let engine = apart(|config| config.faults = vec![always]).await;
    let process = Watched::new(pid(&engine, StageName::Talker));
    let mut refused = None;
    // One request, sent again and again, would not have it given up: each of these is another.
    for number in 0..20 {
        let request = speech(&format!("number {number}"), 1);
        match tokio::time::timeout(PATIENCE, engine.speak(request)).await.unwrap() {
            Ok(stream) => drop(collect(stream).await),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.expect("a stage that never works is not offered for ever").to_string();
    assert!(refused.contains("talker") && refused.contains("injected fault"), "{refused}");
    process.ends_within(OUTLIVES);
    let health = engine.health();
    assert_eq!(health[StageName::Talker].state, StageState::Failed);
    assert_eq!(health[StageName::Thinker].state, StageState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fits_no_ring_fails_alone_and_says_what_to_turn() {
    let engine = apart(|config| {
        config.transfer.shm_bytes = 1 << 16;
        config.limits.max_input_chars = 1 << 20;
    })
    .await;
    let long = chat(&"all work and no play ".repeat(20_000), Output::Text);
    match engine.submit(long).await {
        Ok(stream) => match collect(stream).await.end.unwrap() {
            Err(omni_actors::engine::RequestError::SequenceFailed { reason, .. }) => {
                assert!(reason.contains("transfer.shm_bytes"), "{reason}");
            }
            other => panic!("{other:?}"),
        },
        // A model with a short context says so itself.
        Err(SubmitError::Invalid { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    assert!(say(&engine, frames(5, 1)).await.end.unwrap().is_ok());
}

/// The real server, its stages in processes.
fn server(checkpoint: &str) -> Serving {
    let mut args = vec!["run", "--listen", "127.0.0.1:0", "--set", "supervision.backoff=1ms"];
    args.extend(["--set", "supervision.max_restarts=1000", "--set", "server.drain_grace=10m"]);
    let placements = StageName::ALL.map(|stage| format!("stages.{stage}.placement=process"));
    placements.iter().for_each(|placement| args.extend(["--set", placement]));
    let place = format!("model.checkpoint={checkpoint}");
    if !checkpoint.is_empty() {
        args.extend(["--set", &place]);
    }
    let serving = omni([]).arguments(&args).serve();
    until(&serving, |health| health["ready"] == true);
    serving
}

fn health(serving: &Serving) -> Value {
    Ask::new("GET", "/health", &[], "").send(&serving.url).json()
}

fn processes(health: &Value) -> Vec<Watched> {
    let pids: Vec<u32> =
        health["stages"].as_array().unwrap().iter().map(|stage| stage["pid"].as_u64().unwrap() as u32).collect();
    assert_eq!(pids.len(), StageName::ALL.len());
    pids.into_iter().map(Watched::new).collect()
}

#[test]
fn a_server_that_is_killed_takes_its_processes_along() {
    let serving = server("tests/fixtures/qwen3_omni");
    let processes = processes(&health(&serving));
    serving.signal("KILL");
    processes.iter().for_each(|process| process.ends_within(OUTLIVES));
}

#[test]
fn a_server_that_is_asked_to_stop_finishes_its_streams_and_leaves_nobody_behind() {
    let serving = server("");
    let processes = processes(&health(&serving));
    let body =
        json!({"input": "He wore a red ribbon, and the weather was lovely.", "seed": 3, "response_format": "pcm"});
    let speech = |url: &str| Ask::json("/v1/audio/speech", &body).send(url);
    let whole = speech(&serving.url);
    assert_eq!(whole.status, 200);
    let cut = std::thread::scope(|scope| {
        let asking = scope.spawn(|| speech(&serving.url));
        until(&serving, |health| health["requests"] == 1);
        serving.signal("TERM");
        asking.join().unwrap()
    });
    assert_eq!((cut.status, cut.body.len()), (200, whole.body.len()), "a stream was cut by the shutdown");
    assert!(cut.body == whole.body);
    assert_eq!(serving.exit_code(), Some(0));
    processes.iter().for_each(|process| process.ends_within(OUTLIVES));
}

#[test]
fn processes_ignore_signals_that_are_for_the_server_and_text_alone_wakes_no_voice() {
    let serving = server("");
    let before = health(&serving);
    for stage in before["stages"].as_array().unwrap() {
        let pid = Pid::from_raw(stage["pid"].as_i64().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        rustix::process::kill_process(pid, Signal::INT).unwrap();
    }
    // Frames to each stage but the questions for metrics themselves. A frame is counted after it was sent, which may be after
    // its answer came: the most of a few looks is what was sent.
    let mut asked = 0;
    let mut sent = || {
        let mut most = [i64::MIN; 4];
        for _ in 0..5 {
            asked += 1;
            let text = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(&serving.url).body).unwrap();
            for (most, stage) in most.iter_mut().zip(["thinker", "encoder", "talker", "vocoder"]) {
                let series = format!("omni_link_frames_total{{stage=\"{stage}\",direction=\"down\"}} ");
                let count: i64 = text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap();
                *most = (count - asked).max(*most);
            }
        }
        most
    };
    let before_text = sent();
    let body = json!({"messages": [{"role": "user", "content": "Say: hello"}], "modalities": ["text"]});
    assert_eq!(Ask::json("/v1/chat/completions", &body).send(&serving.url).status, 200);
    let after = sent();
    assert!(after[0] > before_text[0]);
    assert_eq!(after[1..], before_text[1..], "a text-only request reached a stage of speech");
    let pids =
        |health: &Value| health["stages"].as_array().unwrap().iter().map(|s| s["pid"].clone()).collect::<Vec<_>>();
    assert_eq!(pids(&health(&serving)), pids(&before));
}

#[test]
fn thirty_restarts_leave_no_process_and_no_descriptor_behind() {
    let serving = server("tests/fixtures/qwen3_omni");
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", serving.pid())).unwrap().count();
    let children = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", serving.pid())).unwrap();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok());
        lists.map(|list| list.split_whitespace().count()).sum::<usize>()
    };
    let mut after_three = 0;
    for round in 1..=30 {
        let now = health(&serving);
        let stage = round % StageName::ALL.len();
        Watched::new(now["stages"][stage]["pid"].as_u64().unwrap() as u32).kill();
        until(&serving, |health| {
            health["ready"] == true && health["stages"][stage]["pid"] != now["stages"][stage]["pid"]
        });
        if round == 3 {
            after_three = fds();
        }
    }
    // Connections of this test may still be closing.
    assert!(fds() <= after_three + 4, "{} descriptors where there were {after_three}", fds());
    assert_eq!(children(), StageName::ALL.len(), "a stage process was left behind");
}

#[test]
fn a_stage_is_not_started_by_hand() {
    omni(["stage", "talker"]).run().exits(2).tells("not by hand");
    omni(["stage", "talker", "c:0:1", "p:7:8"]).run().exits(2).tells("not by hand");
}

#[tokio::test(flavor = "multi_thread")]
async fn some_stages_in_processes_and_some_in_threads_speak_alike() {
    let request = || speech("Two cups of tea.", 7);
    let reference = say(&engine(&voice(), |_| {}).await, request()).await;
    for apart in [[true, false, false], [false, true, false], [false, false, true], [true, false, true]] {
        let engine = engine(&voice(), |config| {
            for (stage, apart) in StageName::OF_TEXT.into_iter().zip(apart) {
                config.stages[stage as usize].placement = if apart { Placement::Process } else { Placement::Thread };
            }
        })
        .await;
        let answer = say(&engine, request()).await;
        assert!(answer.samples == reference.samples && answer.end == reference.end, "{apart:?}");
        idle(&engine).await;
    }
}

#[test]
fn the_kernel_ends_a_stage_process_before_its_server() {
    let placement = ["--set", "stages.vocoder.placement=process"];
    let serving = omni(["run", "--listen", "127.0.0.1:0", "--set", "model.checkpoint=tests/fixtures/qwen3_omni"])
        .more(&placement)
        .serve();
    let health = until(&serving, |health| health["ready"] == true);
    let adjusted = |pid: u64| -> i64 {
        std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    let stage = adjusted(stage_of(&health, "vocoder")["pid"].as_u64().unwrap());
    let server = adjusted(serving.pid().into());
    assert_eq!(stage, (server + 500).min(1000));
}
