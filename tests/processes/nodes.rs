//! Stages on nodes of a cluster: processes joined over loopback, with TLS both ways.

use crate::support::engine::{Answer, becomes, collect, engine, frames, idle, root, say, speech};
use crate::support::http::Ask;
use crate::support::nodes::{Cluster, Cut, Node, free_address, lines};
use crate::support::omni::{Omni, Serving};
use crate::support::process::Watched;
use crate::support::wait::{self, PATIENCE};
use omni_actors::config::Config;
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, EngineHealth, Event, ResponseStream, Service, SpeechRequest, StageState};
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::telemetry::trace::{self, Record, Session, Track, What};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(super) fn omni() -> PathBuf {
    root().join("tests/fixtures/qwen3_omni")
}

fn tts() -> PathBuf {
    root().join("tests/fixtures/qwen3_tts/custom_voice")
}

/// Requests that no two replicas can mistake for each other.
pub(super) fn asked(number: u64) -> SpeechRequest {
    let mut request = speech(&format!("this is number {number}"), number);
    request.params.max_frames = Some(Frames(12 + number as u32));
    request.params.ignore_eos = true;
    request
}

/// What is said where all stages are in one process.
pub(super) async fn alone(cluster: &Cluster, request: SpeechRequest) -> Answer {
    say(&engine(&Checkpoint::open(&cluster.checkpoint).unwrap(), |_| {}).await, request).await
}

/// An answer of 40 frames, up to its first sound, and how many samples that had. Where the vocoder's window is 1 both
/// stages wait for it to be read, so they are in the middle of the answer.
pub(super) async fn begun(gateway: &Engine) -> (ResponseStream, usize) {
    let mut stream = gateway.speak(frames(40, 5)).await.unwrap();
    loop {
        if let Event::Audio(chunk) = stream.next().await.unwrap() {
            return (stream, chunk.samples.len());
        }
    }
}

/// The rest of an answer that began elsewhere, of which so many samples were heard, is what is missing of it.
pub(super) fn goes_on(rest: &Answer, heard: usize, truth: &Answer, case: &str) {
    assert_eq!(rest.end, truth.end, "{case}");
    assert!(
        heard + rest.samples.len() == truth.samples.len() && truth.samples.ends_with(&rest.samples),
        "{case}: other samples"
    );
}

/// How many replicas of a stage run, on nodes of this name.
pub(super) fn running(health: &EngineHealth, stage: StageName, node: &str) -> usize {
    let its = |replica: &&omni_actors::engine::StageHealth| {
        replica.name == stage && replica.state == StageState::Running && replica.node.as_deref() == Some(node)
    };
    health.stages.iter().filter(its).count()
}

/// How many sequences each stage of a node has.
fn sequences(health: &EngineHealth, node: &str) -> Vec<usize> {
    let its = health.stages.iter().filter(|replica| replica.node.as_deref() == Some(node));
    its.map(|replica| replica.sequences).collect()
}

pub(super) fn both_run(health: &EngineHealth, node: &str) -> bool {
    [StageName::Talker, StageName::Vocoder].iter().all(|stage| running(health, *stage, node) == 1)
}

/// A gateway that is a process of its own, with more lines behind `[cluster]`.
pub(super) fn serving(cluster: &Cluster, name: &str, listen: SocketAddr, more: &str) -> Serving {
    let shown = lines(&cluster.authority.certify(name));
    let on_nodes = "placement = \"nodes\"";
    let omni = Omni::new();
    let config = omni.file(
        "gateway.toml",
        &format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[model]\ncheckpoint = {:?}\n[stages.talker]\n{on_nodes}\n\
             [stages.vocoder]\n{on_nodes}\n[cluster]\nlisten = \"{listen}\"\n{shown}\n{more}",
            cluster.checkpoint
        ),
    );
    omni.args(["run", &config]).serve()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_through_nodes_are_those_of_one_process() {
    for checkpoint in [omni(), tts()] {
        let cluster = Cluster::of(&checkpoint);
        let _nodes = [cluster.node("one", ""), cluster.node("two", "")];
        let gateway = cluster.gateway(|_| {}).await;
        becomes(&gateway, "both nodes run both stages", |health| both_run(health, "one") && both_run(health, "two"))
            .await;
        let six = futures::future::join_all((0..6).map(|number| say(&gateway, asked(number))));
        let answers = tokio::time::timeout(PATIENCE, six).await.expect("a request hangs");
        for (number, answer) in (0..).zip(&answers) {
            let truth = alone(&cluster, asked(number)).await;
            assert_eq!(answer.end, truth.end, "{checkpoint:?}, request {number}");
            assert!(answer.samples == truth.samples, "{checkpoint:?}, request {number}: other samples");
        }
        idle(&gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_node_that_is_killed_go_on_in_another_with_the_same_samples() {
    let cluster = Cluster::of(&omni());
    let truth = alone(&cluster, frames(40, 5)).await;
    let first = cluster.node("first", "");
    let gateway = cluster.gateway(|config| config.stages[StageName::Vocoder as usize].window = 1).await;
    becomes(&gateway, "the first runs both", |health| both_run(health, "first")).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(begun(&gateway).await);
    }
    // A node that joins later.
    let _second = cluster.node("second", "");
    becomes(&gateway, "the second joins", |health| both_run(health, "second")).await;
    first.kill();
    for (stream, heard) in streams {
        let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("a request hangs");
        goes_on(&rest, heard, &truth, "killed");
    }
    let health = gateway.health();
    assert_eq!(health.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["second"], "{health:?}");
    idle(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_for_a_while_is_gone_and_comes_back_as_another() {
    let cluster = Cluster::of(&omni());
    let truth = alone(&cluster, frames(40, 5)).await;
    let first = cluster.node("first", "silence = \"500ms\"");
    let gateway = cluster.gateway(|config| {
        config.stages[StageName::Vocoder as usize].window = 1;
        config.cluster.silence = Duration::from_millis(500);
    });
    let gateway = gateway.await;
    let (stream, heard) = begun(&gateway).await;
    first.stop();
    let _second = cluster.node("second", "");
    let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the request hangs");
    goes_on(&rest, heard, &truth, "stopped");
    // It goes on with the sequences that it had, for which nobody listens any more.
    first.go_on();
    becomes(&gateway, "the first is back", |health| both_run(health, "first") && both_run(health, "second")).await;
    for answer in [say(&gateway, frames(40, 5)).await, say(&gateway, frames(40, 5)).await] {
        assert!(answer.samples == truth.samples && answer.end == truth.end);
    }
    idle(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_node_that_is_cut_off_go_on_and_what_comes_of_it_later_is_dropped() {
    for (to_gateway, to_node) in [(false, false), (false, true), (true, false)] {
        let case = format!("to the gateway: {to_gateway}, to the node: {to_node}");
        let cluster = Cluster::of(&omni());
        let truth = alone(&cluster, frames(40, 5)).await;
        let cut = Cut::towards(cluster.address).await;
        let _far = cluster.node_through(cut.address, "far", "silence = \"500ms\"");
        let gateway = cluster.gateway(|config| {
            config.stages[StageName::Vocoder as usize].window = 1;
            config.cluster.silence = Duration::from_millis(500);
        });
        let gateway = gateway.await;
        let (stream, heard) = begun(&gateway).await;
        cut.passes(to_gateway, to_node);
        let _near = cluster.node("near", "");
        let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.unwrap_or_else(|_| panic!("{case}: it hangs"));
        goes_on(&rest, heard, &truth, &case);
        // What the node still sends of its sequences arrives now.
        cut.passes(true, true);
        becomes(&gateway, &case, |health| both_run(health, "far") && both_run(health, "near")).await;
        for answer in [say(&gateway, frames(40, 5)).await, say(&gateway, frames(40, 5)).await] {
            assert!(answer.samples == truth.samples && answer.end == truth.end, "{case}");
        }
        idle(&gateway).await;
    }
}

#[test]
fn a_client_of_a_gateway_that_is_killed_hears_the_rest_from_another_one() {
    let cluster = Cluster::of(&omni());
    let addresses = [cluster.address, free_address()];
    let shown = lines(&cluster.authority.certify("node"));
    // One share: the second gateway has it when the node has noticed that the first is gone.
    let _node = Node::start(&addresses, &cluster.checkpoint, "node", &format!("{shown}\ngateways = 1"));
    let first = serving(&cluster, "first", addresses[0], "").ready();
    let second = serving(&cluster, "second", addresses[1], "");
    let mut body = json!({"input": "one two three", "seed": 5, "max_new_tokens": 20, "ignore_eos": true,
        "response_format": "pcm"});
    let whole = Ask::json("/v1/audio/speech", &body).send(&first.url).body;
    Watched::new(first.pid()).kill();
    let second = second.ready();
    let start = whole.len() / 4;
    body["start_sample"] = start.into();
    let rest = Ask::json("/v1/audio/speech", &body).send(&second.url);
    assert_eq!(rest.status, 200, "{}", String::from_utf8_lossy(&rest.body));
    assert!(rest.body == whole[2 * start..], "other samples");
}

/// A node that is listed with the same time of joining has not been lost meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_while_it_hears_much_costs_another_one_neither_its_node_nor_a_stage() {
    let cluster = Cluster::of(&tts());
    let truth = alone(&cluster, frames(40, 5)).await;
    let elsewhere = free_address();
    // Longer than a machine that does much else keeps a node from saying that it is there.
    let patient = "silence = \"6s\"";
    let shown = format!("{}\ngateways = 2\n{patient}", lines(&cluster.authority.certify("node")));
    let node = Node::start(&[cluster.address, elsewhere], &cluster.checkpoint, "node", &shown);
    let gateway = cluster.gateway(|config| {
        config.stages[StageName::Vocoder as usize].window = 1;
        config.cluster.silence = Duration::from_secs(6);
    });
    let gateway = gateway.await;
    let dies = serving(&cluster, "dies", elsewhere, &format!("{patient}\n[limits]\nadmission = \"places\""));
    let dies = dies.ready();
    becomes(&gateway, "it runs both", |health| both_run(health, "node")).await;
    // The node makes more for them, while it takes the gateway for alive, than the network takes.
    let body = json!({"input": "one two three", "max_new_tokens": 2000, "ignore_eos": true, "response_format": "pcm"});
    let listeners = (0..12).map(|_| {
        let (ask, url) = (Ask::json("/v1/audio/speech", &body), dies.url.clone());
        std::thread::spawn(move || ask.bytes(&url))
    });
    let listeners: Vec<_> = listeners.collect();
    wait::comes("all of them are heard", || {
        Ask::new("GET", "/health", &[], "").send(&dies.url).json()["requests"] == listeners.len()
    })
    .await;
    let (stream, heard) = begun(&gateway).await;
    let known = |health: &EngineHealth| {
        let nodes: Vec<_> = health.nodes.iter().map(|node| (node.id.clone(), node.joined)).collect();
        let stages: Vec<_> = health.stages.iter().map(|stage| (stage.generation, stage.restarts)).collect();
        (nodes, stages)
    };
    let before = known(&gateway.health());
    Watched::new(dies.pid()).kill();
    tokio::task::block_in_place(|| [(); 2].map(|()| node.says("the link to a gateway ended")));
    let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the request hangs");
    goes_on(&rest, heard, &truth, "another gateway was killed");
    assert!(say(&gateway, frames(40, 5)).await.samples == truth.samples);
    assert_eq!(known(&gateway.health()), before, "the node was lost, or a stage");
    listeners.into_iter().for_each(|listener| _ = listener.join().unwrap());
    idle(&gateway).await;
}

/// Zenoh's two threads may both wait for a gateway that is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_threads_for_the_gateways_that_live_beside_one_that_is_dead() {
    let cluster = Cluster::of(&omni());
    let node = cluster.node("node", "");
    let gateway = cluster.gateway(|_| {}).await;
    becomes(&gateway, "it runs both", |health| both_run(health, "node")).await;
    let threads = std::fs::read_dir(format!("/proc/{}/task", node.id())).unwrap();
    let names = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap());
    let names: Vec<_> = names.collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("rx-")).count(), 8, "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_a_node_where_none_is_left() {
    let cluster = Cluster::of(&omni());
    let truth = alone(&cluster, frames(20, 5)).await;
    let first = cluster.node("first", "");
    let gateway = cluster.gateway(|_| {}).await;
    first.kill();
    becomes(&gateway, "it is gone", |health| health.nodes.is_empty() && !health.ready).await;
    let waiting = gateway.speak(frames(20, 5)).await.unwrap();
    let _second = cluster.node("second", "");
    let answer = tokio::time::timeout(PATIENCE, collect(waiting)).await.expect("the request hangs");
    assert!(answer.samples == truth.samples && answer.end == truth.end);
    idle(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sees_no_gateway_joins_anew_until_there_is_one() {
    let cluster = Cluster::of(&omni());
    let node = cluster.node("node", "silence = \"500ms\"");
    let first = node.says("stages are offered to gateways");
    node.says("no gateway is seen; the node joins anew");
    let second = node.says("stages are offered to gateways");
    let session = |line: &str| line.split("session=").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
    assert!(session(&first).is_some() && session(&first) != session(&second), "{first}\n{second}");
    let gateway = cluster.gateway(|_| {}).await;
    becomes(&gateway, "it is used", |health| both_run(health, "node")).await;
    assert!(say(&gateway, frames(4, 1)).await.end.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_sequences_go_to_a_node_that_joins_later() {
    let cluster = Cluster::of(&omni());
    let _first = cluster.node("first", "");
    // No client reads, so all sequences stay.
    let gateway = cluster.gateway(|config| {
        for stage in [StageName::Talker, StageName::Vocoder] {
            config.stages[stage as usize].window = 2;
        }
    });
    let gateway = gateway.await;
    let mut streams = vec![gateway.speak(frames(400, 1)).await.unwrap(), gateway.speak(frames(400, 2)).await.unwrap()];
    let _second = cluster.node("second", "");
    becomes(&gateway, "the second joins", |health| both_run(health, "second")).await;
    streams.push(gateway.speak(frames(400, 3)).await.unwrap());
    streams.push(gateway.speak(frames(400, 4)).await.unwrap());
    becomes(&gateway, "two each", |health| {
        sequences(health, "first") == [2, 2] && sequences(health, "second") == [2, 2]
    })
    .await;
    drop(streams);
    idle(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_twice_the_slots_gets_twice_the_sequences() {
    let cluster = Cluster::of(&omni());
    let _nodes =
        [cluster.node("small", "[limits]\nmax_requests = 4"), cluster.node("large", "[limits]\nmax_requests = 8")];
    // No client reads, so all sequences stay.
    let gateway = cluster.gateway(|config| {
        for stage in [StageName::Talker, StageName::Vocoder] {
            config.stages[stage as usize].window = 2;
        }
    });
    let gateway = gateway.await;
    becomes(&gateway, "both run both", |health| both_run(health, "small") && both_run(health, "large")).await;
    let mut streams = Vec::new();
    for seed in 0..6 {
        streams.push(gateway.speak(frames(400, seed)).await.unwrap());
    }
    becomes(&gateway, "two and four", |health| {
        sequences(health, "small") == [2, 2] && sequences(health, "large") == [4, 4]
    })
    .await;
    drop(streams);
    idle(&gateway).await;
}

/// A command that runs this program, with another clock if the system has such: one that is a day ahead.
fn a_day_ahead() -> (Command, bool) {
    let program = env!("CARGO_BIN_EXE_omni-actors");
    let words = ["--time", "--monotonic", "86400"];
    let can = Command::new("unshare").args(words).arg("true").output().is_ok_and(|done| done.status.success());
    if !can {
        return (Command::new(program), false);
    }
    let mut command = Command::new("unshare");
    command.args(words).arg(program);
    (command, true)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_has_what_nodes_did_by_the_clock_of_the_gateway() {
    let cluster = Cluster::of(&omni());
    let shown = lines(&cluster.authority.certify("rack-1"));
    let (command, ahead) = a_day_ahead();
    if !ahead {
        eprintln!("no time namespaces can be made here: the node has the clock of the gateway");
    }
    let _node = Node::start_by(command, &[cluster.address], &cluster.checkpoint, "rack-1", &shown);
    let gateway = cluster.gateway(|_| {}).await;
    becomes(&gateway, "it runs both", |health| both_run(health, "rack-1")).await;
    let mut session = Session::begin(&gateway.recorder());
    assert!(say(&gateway, frames(12, 1)).await.end.unwrap().is_ok());
    let mut records = Vec::new();
    let frames_of = |records: &[Record], of: StageName| {
        let ran = |record: &Record| match (&record.what, record.track) {
            (What::Ran(ran), Track::Stage { stage, .. }) if stage == of => ran.units() - ran.prompt(),
            _ => 0,
        };
        records.iter().map(ran).sum::<u32>()
    };
    wait::comes("the node sends all that it has recorded", || {
        records.extend(session.collect());
        let ended = records.iter().any(|record| matches!(record.what, What::Ended(_)));
        ended && frames_of(&records, StageName::Vocoder) >= 12 && frames_of(&records, StageName::Talker) >= 12
    })
    .await;
    let mut trace = session.end();
    let (talker, nodes) = trace.nodes.iter().find(|(place, _)| place.stage == StageName::Talker).unwrap();
    let (talker, wrong) = (*talker, nodes["rack-1"]);
    assert!(wrong < Duration::from_secs(5), "{wrong:?}");
    // The request is the gateway's, and what the node did for it lies inside.
    let of = |what: fn(&What) -> bool| records.iter().find(|record| what(&record.what)).unwrap();
    let began = of(|what| matches!(what, What::Accepted(_))).began;
    let ended = of(|what| matches!(what, What::Ended(_))).ended;
    let wrong = wrong.as_nanos() as u64;
    let steps = |record: &&Record| matches!(record.what, What::Ran(_)) && record.track.place() == Some(talker);
    for step in records.iter().filter(steps) {
        assert!(began <= step.began + wrong && step.ended <= ended + wrong, "{began} {ended} {wrong}: {step:?}");
    }
    trace.records = records;
    let mut file = Vec::new();
    trace::write(&trace, &mut file).unwrap();
    assert!(String::from_utf8(file).unwrap().contains("node rack-1, clock +-"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_one_share_for_each_gateway_that_it_is_set_up_for() {
    let cluster = Cluster::of(&omni());
    let elsewhere = free_address();
    let lines = format!("{}\ngateways = 1", lines(&cluster.authority.certify("node")));
    let _node = Node::start(&[cluster.address, elsewhere], &cluster.checkpoint, "node", &lines);
    let gateway = cluster.gateway(|_| {}).await;
    becomes(&gateway, "it has the node", |health| both_run(health, "node")).await;
    let checkpoint = Checkpoint::open(&cluster.checkpoint).unwrap();
    let mut config = Config::default();
    cluster.leads(&mut config);
    config.cluster.listen = Some(elsewhere);
    let late = Engine::launch(&checkpoint, &config).await.unwrap();
    becomes(&late, "it is refused with the reason", |health| {
        let reasons = health.nodes.iter().flat_map(|node| &node.stages).filter_map(|stage| stage.reason.as_deref());
        reasons.filter(|reason| reason.contains("no share is left")).count() == 2
    })
    .await;
    drop(gateway);
    becomes(&late, "it has the share that is free", |health| both_run(health, "node")).await;
    assert!(say(&late, frames(4, 1)).await.end.unwrap().is_ok());
}
