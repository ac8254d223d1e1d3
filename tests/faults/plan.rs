//! Fault plans on a running pipeline: every kind of fault happens where and when its rule says, and no stream changes.

use crate::support::engine::{Answer, collect, engine, frames, idle, root, say, tiny};
use crate::support::wait::PATIENCE;
use omni_actors::config::{self, Config, Placement, TransportKind};
use omni_actors::core::ids::StageName::{self, Talker, Thinker, Vocoder};
use omni_actors::engine::{Engine, NewVoice, Service, StageState, TenantId, VoiceSource};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule, Phase, PlanError};
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::server::Server;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The tiny pipeline, which takes rules while it runs and never gives up.
async fn drill(change: impl FnOnce(&mut Config)) -> Engine {
    engine(&tiny(), |config| {
        config.stages.iter_mut().for_each(|stage| stage.placement = Placement::Thread);
        config.supervision.backoff = Duration::from_millis(1);
        config.supervision.max_backoff = Duration::from_millis(2);
        config.supervision.max_restarts = 1000;
        config.drill.enabled = true;
        change(config);
    })
    .await
}

async fn heard(engine: &Engine, case: &str) -> Answer {
    let said = tokio::time::timeout(PATIENCE, say(engine, frames(12, 5))).await;
    said.unwrap_or_else(|_| panic!("{case}: the stream hangs; {:?}", engine.health()))
}

/// How often any rule has struck.
fn hits(engine: &Engine) -> u64 {
    engine.faults().counts().iter().map(|count| count.hits).sum()
}

/// Plans one rule, and hears that it strikes once and changes nothing.
async fn survives(engine: &Engine, rule: FaultRule, undisturbed: &Answer) {
    let case = format!("{rule:?}");
    engine.faults().add(&[rule]).unwrap_or_else(|error| panic!("{case}: {error}"));
    for _ in 0..10 {
        let answer = heard(engine, &case).await;
        assert_eq!(answer.end, undisturbed.end, "{case}");
        assert!(answer.samples == undisturbed.samples, "{case}: other samples");
        if hits(engine) > 0 {
            break;
        }
    }
    assert_eq!(hits(engine), 1, "{case}");
    engine.faults().clear();
    engine.settled().await.unwrap();
}

const IN_A_STAGE: [FaultPoint; 8] = [
    FaultPoint::Scheduler,
    FaultPoint::Open,
    FaultPoint::Runner,
    FaultPoint::Completion,
    FaultPoint::Sampler,
    FaultPoint::Packager,
    FaultPoint::Outbound,
    FaultPoint::Connector,
];

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_stage_meets_at_whatever_point_every_stream_is_as_it_would_have_been() {
    let engine = drill(|_| {}).await;
    let undisturbed = heard(&engine, "undisturbed").await;
    for stage in StageName::OF_TEXT {
        for point in IN_A_STAGE {
            let kinds = [FaultKind::Panic, FaultKind::Error, FaultKind::Oom, FaultKind::Nan];
            for kind in kinds.into_iter().filter(|kind| kind.suits(point)) {
                survives(&engine, FaultRule::new(stage, point, kind), &undisturbed).await;
            }
        }
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_hangs_is_noticed_and_replaced() {
    let engine = drill(|config| config.supervision.watchdog = Duration::from_millis(300)).await;
    let undisturbed = heard(&engine, "undisturbed").await;
    for (stage, point) in IN_A_STAGE.into_iter().enumerate().map(|(at, point)| (StageName::OF_TEXT[at % 3], point)) {
        let before = engine.health()[stage].restarts;
        survives(&engine, FaultRule::new(stage, point, FaultKind::Hang), &undisturbed).await;
        let health = &engine.health()[stage];
        assert!(health.restarts > before, "{stage} {point:?}");
        let reason = health.last_reason.as_deref().unwrap();
        assert!(reason.contains("has not turned"), "{stage} {point:?}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_is_when_a_sequence_is_at_it() {
    let engine = drill(|_| {}).await;
    let undisturbed = heard(&engine, "undisturbed").await;
    for (stage, point) in
        [(Talker, FaultPoint::Completion), (Talker, FaultPoint::Sampler), (Vocoder, FaultPoint::Packager)]
    {
        // A short prompt is one step, which makes the first output: who comes behind sees that alone.
        let here = |phase: &&Phase| match phase {
            Phase::Drain => false,
            Phase::Prefill => point == FaultPoint::Completion,
            _ => true,
        };
        for phase in Phase::ALL.iter().filter(here) {
            survives(&engine, FaultRule::new(stage, point, FaultKind::Panic).phase(*phase), &undisturbed).await;
        }
    }
    let nothing = FaultKind::Delay(Duration::from_millis(1));
    let count = async |phase| {
        let all = FaultRule::new(Talker, FaultPoint::Sampler, nothing).times(u64::MAX);
        engine.faults().clear();
        engine.faults().add(&[all.phase(phase)]).unwrap();
        heard(&engine, "counted").await;
        idle(&engine).await;
        hits(&engine)
    };
    assert_eq!((count(Phase::First).await, count(Phase::Last).await), (1, 1), "one sequence has one of each");
    assert_eq!(count(Phase::Stream).await, 11, "between the first frame and the token after the twelfth");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_of_a_request_counts_from_when_it_was_made() {
    let engine = drill(|_| {}).await;
    let undisturbed = heard(&engine, "before the rule").await;
    let rule = FaultRule::new(Talker, FaultPoint::Runner, FaultKind::Panic).request(2);
    engine.faults().add(&[rule]).unwrap();
    for expected in [0, 1, 1] {
        assert!(heard(&engine, "counted").await.samples == undisturbed.samples);
        assert_eq!(hits(&engine), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_draining_waits_until_the_engine_drains() {
    let slow = FaultKind::Delay(Duration::from_millis(5));
    let rule = FaultRule::new(Vocoder, FaultPoint::Packager, slow).phase(Phase::Drain).times(u64::MAX);
    let engine = drill(|config| config.faults = vec![rule]).await;
    let undisturbed = say(&engine, frames(200, 5)).await;
    assert_eq!(hits(&engine), 0);
    let mut stream = engine.speak(frames(200, 5)).await.unwrap();
    stream.next().await.unwrap();
    let (answer, ()) = tokio::join!(rest(stream), engine.drain(PATIENCE));
    assert!(answer == undisturbed.samples && hits(&engine) > 0);
}

/// What is still to be heard.
async fn rest(stream: omni_actors::engine::ResponseStream) -> Vec<f32> {
    collect(stream).await.samples
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_is_cut_is_made_anew() {
    let over = |transport| move |config: &mut Config| config.transfer.transport = transport;
    let processes =
        |config: &mut Config| config.stages.iter_mut().for_each(|stage| stage.placement = Placement::Process);
    type Way = Box<dyn FnOnce(&mut Config)>;
    let ways: [Way; 3] = [Box::new(over(TransportKind::Wire)), Box::new(over(TransportKind::Shm)), Box::new(processes)];
    for way in ways {
        let engine = drill(way).await;
        let undisturbed = heard(&engine, "undisturbed").await;
        for (stage, phase) in
            [(Thinker, Phase::First), (Talker, Phase::First), (Talker, Phase::Stream), (Talker, Phase::Last)]
        {
            let rule = FaultRule::new(stage, FaultPoint::Edge, FaultKind::Cut).phase(phase);
            survives(&engine, rule, &undisturbed).await;
        }
        let health = engine.health();
        let restarts = StageName::OF_TEXT.map(|stage| health[stage].restarts);
        assert_eq!(restarts, [0, 1, 3], "the stage that reads it goes down, and no other");
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_without_memory_for_a_new_generation_is_tried_again() {
    let rule = FaultRule::new(Talker, FaultPoint::Build, FaultKind::Oom).times(2);
    let engine = drill(|config| config.faults = vec![rule]).await;
    assert!(heard(&engine, "after two failed starts").await.end.unwrap().is_ok());
    let talker = &engine.health()[Talker];
    assert_eq!((talker.state, talker.generation, hits(&engine)), (StageState::Running, 3, 2));
    assert!(talker.last_reason.as_deref().unwrap().contains("out of memory"), "{talker:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_process_can_be_killed_at_every_point() {
    let engine = drill(|config| config.stages[Talker as usize].placement = Placement::Process).await;
    let undisturbed = heard(&engine, "undisturbed").await;
    for point in [FaultPoint::Runner, FaultPoint::Completion, FaultPoint::Sampler, FaultPoint::Connector] {
        let before = engine.health()[Talker].pid;
        survives(&engine, FaultRule::new(Talker, point, FaultKind::Kill), &undisturbed).await;
        let talker = &engine.health()[Talker];
        let reason = talker.last_reason.as_deref().unwrap();
        assert!(reason.contains("killed by signal 9") && talker.pid != before, "{point:?}: {talker:?}");
    }
    let metrics = engine.metrics().await;
    let counted = "omni_faults_injected_total{stage=\"talker\",point=\"sampler\",kind=\"kill\"} 1";
    assert!(metrics.contains(counted), "the process that counted it is gone, its count is not");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_end_the_server_is_refused() {
    let kill = FaultRule::new(Talker, FaultPoint::Runner, FaultKind::Kill);
    let config = Config { faults: vec![kill.clone()], ..Config::default() };
    let error = Engine::start(&tiny(), &config).await.err().expect("it starts").to_string();
    assert!(error.contains("faults[0].kind: needs stages.talker.placement = \"process\""), "{error}");
    let engine = drill(|_| {}).await;
    let error = engine.faults().add(&[FaultRule::new(Thinker, FaultPoint::Runner, FaultKind::Panic), kill]);
    assert!(matches!(error, Err(PlanError::Unsuited { rule: 1, key: "kind", .. })), "{error:?}");
    assert!(engine.faults().rules().is_empty(), "all or none");
    let closed = drill(|config| config.drill.enabled = false).await;
    let rule = FaultRule::new(Talker, FaultPoint::Runner, FaultKind::Panic);
    assert_eq!(closed.faults().add(&[rule]), Err(PlanError::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_is_alone_with_that() {
    let engine = drill(|_| {}).await;
    let undisturbed = heard(&engine, "undisturbed").await;
    let slow = |pause| FaultRule::new(None, FaultPoint::Client, FaultKind::Slow(pause)).request(1).times(u64::MAX);
    engine.faults().add(&[slow(Duration::from_secs(600))]).unwrap();
    let slowed = engine.speak(frames(12, 5)).await.unwrap();
    let other = heard(&engine, "beside a client that reads nothing").await;
    assert!(other.samples == undisturbed.samples);
    drop(slowed);
    engine.faults().clear();
    engine.faults().add(&[slow(Duration::from_millis(5))]).unwrap();
    assert!(heard(&engine, "slow").await.samples == undisturbed.samples);
    assert!(hits(&engine) > 3);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_no_half_of_a_voice() {
    let kept = tempfile::tempdir().unwrap();
    let base = Checkpoint::open(&root().join("tests/fixtures/qwen3_tts/base")).unwrap();
    let full = FaultRule::new(None, FaultPoint::Voices, FaultKind::Full);
    let engine = engine(&base, |config| {
        config.voices.directory = config::VoicesDirectory::Folder(kept.path().into());
        config.faults = vec![full];
    })
    .await;
    let width = support_width(&engine).await;
    let voice = || NewVoice {
        name: "Clara".into(),
        consent: "yes".into(),
        description: None,
        owner: None,
        source: VoiceSource::Embedding(vec![0.1; width].into()),
        tenant: TenantId::default(),
    };
    let error = engine.add_voice(voice()).await.unwrap_err().to_string();
    assert!(error.contains("no storage space") || error.contains("full"), "{error}");
    assert_eq!(std::fs::read_dir(kept.path()).unwrap().count(), 0, "something is left of it");
    assert!(engine.voices().is_empty());
    engine.add_voice(voice()).await.unwrap();
    assert_eq!((std::fs::read_dir(kept.path()).unwrap().count(), engine.voices().len()), (1, 1));
}

/// Numbers of a speaker embedding of this checkpoint, as its refusal of another number tells.
async fn support_width(engine: &Engine) -> usize {
    let source = VoiceSource::Embedding(vec![0.1].into());
    let tenant = TenantId::default();
    let wrong = NewVoice { name: "x".into(), consent: "yes".into(), description: None, owner: None, source, tenant };
    let error = engine.add_voice(wrong).await.unwrap_err().to_string();
    let numbers = error.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    numbers.max().unwrap_or_else(|| panic!("{error}"))
}

/// A server of the tiny pipeline.
async fn site(enabled: bool) -> (String, reqwest::Client, tokio::task::JoinHandle<()>) {
    let mut config = Config::default();
    config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let service = Arc::new(drill(|config| config.drill.enabled = enabled).await);
    let server = Server::bind(&config.server).unwrap();
    let url = format!("http://{}", server.local_addr());
    let serving = tokio::spawn(async move { server.serve(service, &config.limits, std::future::pending()).await });
    (url, reqwest::Client::new(), serving)
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_planned_over_http_where_that_is_allowed() {
    let (url, client, serving) = site(true).await;
    let at = format!("{url}/debug/faults");
    assert_eq!(answer(client.get(&at)).await, (200, json!({"seed": 0, "faults": []})));
    let rule = json!({"stage": "talker", "point": "runner", "kind": "panic", "nth": 3});
    let (status, told) = answer(client.post(&at).json(&json!({"faults": [rule]}))).await;
    let listed = json!({"stage": "talker", "point": "runner", "kind": "panic", "nth": 3, "seen": 0, "hits": 0});
    assert_eq!((status, &told["faults"]), (200, &json!([listed])));
    let speech = json!({"input": "one two", "max_new_tokens": 8, "ignore_eos": true, "response_format": "pcm"});
    let said = client.post(format!("{url}/v1/audio/speech")).json(&speech).send().await.unwrap();
    assert!(said.status() == 200 && !said.bytes().await.unwrap().is_empty());
    assert_eq!(answer(client.get(&at)).await.1["faults"][0]["hits"], 1);
    for (bad, param, says) in [
        (
            json!({"faults": [{"stage": "talker", "point": "runner", "kind": "explode"}]}),
            "faults[0].kind",
            "must be \"panic\"",
        ),
        (json!({"faults": [{"stage": "talker", "point": "runner", "kind": "kill"}]}), "faults[0].kind", "placement"),
        (json!({"faults": [null]}), "faults", "must be"),
        (json!({"faults": 1}), "faults", "[[faults]]"),
        (json!({"rules": []}), "rules", "unknown"),
        (json!({"seed": 3, "faults": []}), "seed", "drill.seed"),
    ] {
        let (status, told) = answer(client.post(&at).json(&bad)).await;
        let (at, message) = (told["error"]["param"].as_str(), told["error"]["message"].as_str().unwrap());
        assert!(status == 400 && at == Some(param) && message.contains(says), "{bad}: {status} {told}");
    }
    assert_eq!(answer(client.delete(&at)).await, (200, json!({"seed": 0, "faults": []})));
    serving.abort();

    let (url, client, serving) = site(false).await;
    assert_eq!(answer(client.get(format!("{url}/debug/faults"))).await.0, 404);
    serving.abort();
}

#[test]
fn every_example_is_a_plan() {
    let mut read = 0;
    for entry in std::fs::read_dir(root().join("configs/faults")).unwrap() {
        let path = entry.unwrap().path();
        let file = config::load_faults(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!file.rules.is_empty(), "{}", path.display());
        assert_eq!(config::parse_faults(&file.to_string()).unwrap(), file, "{}", path.display());
        read += 1;
    }
    assert!(read >= 3);
}
