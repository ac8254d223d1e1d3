//! Nodes that are taken out of service, and gateways and nodes that are restarted one after the other, under load.

use super::nodes::{alone, begun, both_run, goes_on, omni, running, serving};
use crate::support::engine::{becomes, collect, frames, idle, say};
use crate::support::http::{Ask, Reply};
use crate::support::nodes::{Cluster, Node, free_address, lines};
use crate::support::omni::{Omni, Serving, omni as command};
use crate::support::wait::{self, PATIENCE};
use omni_actors::core::ids::StageName;
use omni_actors::core::nodes::DrainError;
use omni_actors::engine::{Engine, EngineHealth, Service};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A gateway whose stages wait for their readers, so that answers are in the middle when something happens.
async fn patient(cluster: &Cluster) -> Engine {
    cluster.gateway(|config| config.stages[StageName::Vocoder as usize].window = 1).await
}

async fn drain(gateway: &Engine, node: &str) -> Result<(), DrainError> {
    let drained = gateway.drain_node(node.to_owned(), false, false);
    tokio::time::timeout(PATIENCE, drained).await.expect("it hangs").map(|_| ())
}

fn reasons(health: &EngineHealth, node: &str) -> Vec<String> {
    let its = health.nodes.iter().filter(|listed| listed.name == node);
    its.flat_map(|node| &node.stages).filter_map(|stage| stage.reason.clone()).collect()
}

/// A node that leaves is no stage that failed: an alert on restarts stays silent.
fn nothing_failed(health: &EngineHealth) {
    assert!(health.stages.iter().all(|stage| stage.restarts == 0), "{health:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_node_that_is_drained_go_on_in_another_until_it_is_put_back() {
    let cluster = Cluster::of(&omni());
    let truth = alone(&cluster, frames(40, 5)).await;
    let _first = cluster.node("first", "");
    let gateway = patient(&cluster).await;
    becomes(&gateway, "the first runs both", |health| both_run(health, "first")).await;
    let streams = [begun(&gateway).await, begun(&gateway).await];
    let _second = cluster.node("second", "");
    becomes(&gateway, "the second joins", |health| both_run(health, "second")).await;
    drain(&gateway, "first").await.unwrap();
    // It is out of service as soon as that is answered, and still there.
    let health = gateway.health();
    assert_eq!([running(&health, StageName::Talker, "first"), running(&health, StageName::Vocoder, "first")], [0, 0]);
    assert_eq!(health.nodes.len(), 2, "{health:?}");
    let metrics = gateway.metrics().await;
    assert!(metrics.contains("omni_nodes 2\n") && metrics.contains("omni_node_sequences{node=\"second\""), "{metrics}");
    assert!(!metrics.contains("omni_node_sequences{node=\"first\""), "{metrics}");
    nothing_failed(&health);
    for (stream, heard) in streams {
        let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("a request hangs");
        goes_on(&rest, heard, &truth, "drained");
    }
    becomes(&gateway, "the reason is listed", |health| {
        let told = reasons(health, "first");
        told.len() == 2 && told.iter().all(|reason| reason.contains("the node is drained"))
    })
    .await;
    assert!(say(&gateway, frames(40, 5)).await.samples == truth.samples);
    gateway.drain_node("first".to_owned(), false, true).await.unwrap();
    becomes(&gateway, "it is back", |health| both_run(health, "first") && both_run(health, "second")).await;
    for answer in [say(&gateway, frames(40, 5)).await, say(&gateway, frames(40, 5)).await] {
        assert!(answer.samples == truth.samples && answer.end == truth.end);
    }
    // What was started again there was not because of a failure.
    nothing_failed(&gateway.health());
    // Now the other one may leave.
    drain(&gateway, "second").await.unwrap();
    assert!(say(&gateway, frames(40, 5)).await.samples == truth.samples);
    idle(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_node_of_a_stage_stays_unless_it_is_forced() {
    let cluster = Cluster::of(&omni());
    let truth = alone(&cluster, frames(40, 5)).await;
    let _first = cluster.node("first", "");
    let gateway = patient(&cluster).await;
    becomes(&gateway, "it runs both", |health| both_run(health, "first")).await;
    let (stream, heard) = begun(&gateway).await;
    let refused = drain(&gateway, "first").await.unwrap_err().to_string();
    assert!(refused.contains("has no other node for the talker: start one first"), "{refused}");
    let unknown = drain(&gateway, "frist").await.unwrap_err();
    assert_eq!(unknown.to_string(), "no node \"frist\" has joined this gateway, which has first");
    assert!(both_run(&gateway.health(), "first"));
    gateway.drain_node("first".to_owned(), true, false).await.unwrap();
    becomes(&gateway, "none is left", |health| !health.ready).await;
    let _second = cluster.node("second", "");
    let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("the request hangs");
    goes_on(&rest, heard, &truth, "forced");
    idle(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_that_are_drained_at_the_same_time_one_stays() {
    let cluster = Cluster::of(&omni());
    let _nodes = [cluster.node("one", ""), cluster.node("two", "")];
    let gateway = cluster.gateway(|_| {}).await;
    becomes(&gateway, "both run both", |health| both_run(health, "one") && both_run(health, "two")).await;
    let (one, two) = tokio::join!(drain(&gateway, "one"), drain(&gateway, "two"));
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    assert!(say(&gateway, frames(4, 1)).await.end.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_one_name_leave_together() {
    let cluster = Cluster::of(&omni());
    let _rack = [cluster.node("rack", ""), cluster.node("rack", "")];
    let gateway = cluster.gateway(|_| {}).await;
    let all = |health: &EngineHealth, count| running(health, StageName::Vocoder, "rack") == count;
    becomes(&gateway, "both run both", |health| all(health, 2) && running(health, StageName::Talker, "rack") == 2)
        .await;
    assert!(matches!(drain(&gateway, "rack").await, Err(DrainError::Refused(_))));
    let _other = cluster.node("other", "");
    becomes(&gateway, "another one joins", |health| both_run(health, "other")).await;
    drain(&gateway, "rack").await.unwrap();
    assert!(all(&gateway.health(), 0));
    assert!(say(&gateway, frames(4, 1)).await.end.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stays_where_another_gateway_has_no_other() {
    let cluster = Cluster::of(&omni());
    let elsewhere = free_address();
    let shown = format!("{}\ngateways = 2", lines(&cluster.authority.certify("shared")));
    let _shared = Node::start(&[cluster.address, elsewhere], &cluster.checkpoint, "shared", &shown);
    let _own = cluster.node("own", "");
    let gateway = cluster.gateway(|_| {}).await;
    let other = cluster.gateway(|config| {
        config.cluster.listen = Some(elsewhere);
        config.cluster.name = Some("the-other".to_owned());
    });
    let other = other.await;
    becomes(&gateway, "both run both", |health| both_run(health, "shared") && both_run(health, "own")).await;
    becomes(&other, "it has one", |health| both_run(health, "shared")).await;
    let refused = drain(&gateway, "shared").await.unwrap_err().to_string();
    assert!(refused.contains("the gateway on the-other has no other node for the talker"), "{refused}");
    assert!(both_run(&other.health(), "shared") && both_run(&gateway.health(), "shared"));
    drain(&gateway, "own").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stays_where_others_have_all_shares_of_the_rest() {
    let cluster = Cluster::of(&omni());
    let elsewhere = free_address();
    let node = |name: &str| {
        let shown = lines(&cluster.authority.certify(name));
        Node::start(&[cluster.address, elsewhere], &cluster.checkpoint, name, &shown)
    };
    let names = ["one", "two", "three"];
    let _nodes = [node(names[0]), node(names[1])];
    // A node works for one of them.
    let gateway = cluster.gateway(|config| config.cluster.max_nodes = 1).await;
    let other =
        cluster.gateway(|config| (config.cluster.max_nodes, config.cluster.listen) = (1, Some(elsewhere))).await;
    let has = |health: &EngineHealth| names.into_iter().find(|name| both_run(health, name));
    for gateway in [&gateway, &other] {
        becomes(gateway, "each has one of them", |health| health.nodes.len() == 2 && has(health).is_some()).await;
    }
    let (own, others) = (has(&gateway.health()).unwrap(), has(&other.health()).unwrap());
    assert_ne!(own, others);
    let refused = drain(&gateway, own).await.unwrap_err().to_string();
    assert!(refused.contains("has no other node for the talker"), "{refused}");
    assert_eq!(has(&gateway.health()), Some(own));

    let _spare = node(names[2]);
    for gateway in [&gateway, &other] {
        becomes(gateway, "a third joins", |health| health.nodes.len() == 3).await;
    }
    drain(&gateway, own).await.unwrap();
    becomes(&gateway, "it has moved there", |health| has(health) == Some(names[2])).await;
    let refused = drain(&other, others).await.unwrap_err().to_string();
    assert!(refused.contains("has no other node for the talker"), "{refused}");
    gateway.drain_node(own.to_owned(), false, true).await.unwrap();
    drain(&other, others).await.unwrap();
    becomes(&other, "it has moved too", |health| has(health) == Some(own)).await;
    for gateway in [&gateway, &other] {
        assert!(say(gateway, frames(4, 1)).await.end.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_node_that_is_asked_to_end_go_on_in_another_with_the_same_samples() {
    let cluster = Cluster::of(&omni());
    let truth = alone(&cluster, frames(40, 5)).await;
    let mut first = cluster.node("first", "");
    let gateway = patient(&cluster).await;
    becomes(&gateway, "the first runs both", |health| both_run(health, "first")).await;
    let streams = [begun(&gateway).await, begun(&gateway).await];
    let _second = cluster.node("second", "");
    becomes(&gateway, "the second joins", |health| both_run(health, "second")).await;
    first.terminate();
    for (stream, heard) in streams {
        let rest = tokio::time::timeout(PATIENCE, collect(stream)).await.expect("a request hangs");
        goes_on(&rest, heard, &truth, "terminated");
    }
    assert_eq!(first.exit_code(), Some(0));
    nothing_failed(&gateway.health());
    idle(&gateway).await;
}

/// Clients that ask one of the gateways again and again, and take a refusal before an answer has begun to the next one.
struct Load {
    gateways: Arc<Mutex<Vec<String>>>,
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Load {
    /// What is asked for, and what is said then.
    fn begin(gateways: &[&Serving], requests: Vec<(Value, Vec<u8>)>) -> Load {
        let gateways = Arc::new(Mutex::new(gateways.iter().map(|gateway| gateway.url.clone()).collect::<Vec<_>>()));
        let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let clients = requests.into_iter().enumerate().map(|(number, (body, truth))| {
            let (gateways, answered, stop) = (Arc::clone(&gateways), Arc::clone(&answered), Arc::clone(&stop));
            thread::spawn(move || {
                let mut turn = number;
                while !stop.load(Ordering::SeqCst) {
                    turn += 1;
                    let url = gateways.lock().unwrap()[turn % 2].clone();
                    // No server listens there, or it went before it has read the request.
                    let Some(bytes) = Ask::json("/v1/audio/speech", &body).bytes(&url).filter(|it| !it.is_empty())
                    else {
                        wait::pause();
                        continue;
                    };
                    let reply = Reply::read(&bytes).unwrap_or_else(|| panic!("client {number}: the answer was cut"));
                    if reply.status == 503 {
                        wait::pause();
                        continue;
                    }
                    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
                    assert!(reply.body == truth, "client {number}: other samples");
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        let clients = clients.collect();
        Load { gateways, answered, stop, clients }
    }

    /// Waits until so many more are answered.
    fn answers(&self, more: u64, when: &str) {
        let from = self.answered.load(Ordering::SeqCst);
        wait::until(when, || {
            assert!(self.clients.iter().all(|client| !client.is_finished()), "{when}: a client has failed");
            self.answered.load(Ordering::SeqCst) >= from + more
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.clients.into_iter().for_each(|client| client.join().expect("a client failed"));
    }
}

/// Waits until each gateway uses these nodes for both stages.
fn all_use(gateways: &[&Serving], names: &[&str]) {
    for gateway in gateways {
        wait::answer(|| {
            let cluster = Ask::new("GET", "/cluster", &[], "").send(&gateway.url).json();
            let serves = |name: &&str| {
                let nodes = cluster["nodes"].as_array().unwrap().iter().filter(|node| node["name"] == **name);
                let stages: Vec<_> = nodes.flat_map(|node| node["stages"].as_array().unwrap()).collect();
                stages.iter().filter(|stage| stage["state"] == "running").count() == 2
            };
            if names.iter().all(serves) { Ok(()) } else { Err(format!("{names:?} are not used: {cluster}")) }
        });
    }
}

#[test]
fn every_node_and_every_gateway_is_restarted_under_load_and_nothing_is_lost() {
    let cluster = Cluster::of(&omni());
    let addresses = [cluster.address, free_address()];
    let node = |name: &str| {
        let shown = lines(&cluster.authority.certify(name));
        Node::start(&addresses, &cluster.checkpoint, name, &format!("{shown}\ngateways = 2"))
    };
    // A machine that is too slow for real time loses nothing either.
    let places = "[limits]\nadmission = \"places\"\n";
    let gateway = |name: &str, listen: SocketAddr| serving(&cluster, name, listen, places).ready();
    let (mut one, mut two) = (node("one"), node("two"));
    let (mut first, mut second) = (gateway("first", addresses[0]), gateway("second", addresses[1]));
    all_use(&[&first, &second], &["one", "two"]);
    let nobody = "http://127.0.0.1:1";
    let page = command(["top", "--once", "--url", &first.url, "--url", nobody]).run();
    page.succeeds().shows("one ").shows("two ").shows("talker vocoder").shows("http://127.0.0.1:1  down: ");

    let requests = (0..4).map(|seed| {
        let body = json!({"input": "one two three", "seed": seed, "max_new_tokens": 10 + seed, "ignore_eos": true,
            "response_format": "pcm"});
        let truth = Ask::json("/v1/audio/speech", &body).send(&first.url).body;
        (body, truth)
    });
    let requests: Vec<_> = requests.collect();
    let load = Load::begin(&[&first, &second], requests);
    load.answers(4, "at first");

    // A node is told to end: what a supervisor does.
    one.terminate();
    assert_eq!(one.exit_code(), Some(0));
    load.answers(4, "without the first node");
    one = node("one");
    all_use(&[&first, &second], &["one", "two"]);

    // A node is drained, and then ended: what an operator does.
    command(["drain", "two", "--url", &first.url]).run().succeeds().shows("drained");
    load.answers(4, "without the second node");
    let last = command(["drain", "one", "--url", &second.url]).run();
    last.exits(1).tells("has no other node for the talker");
    two.terminate();
    assert_eq!(two.exit_code(), Some(0));
    two = node("two");
    all_use(&[&first, &second], &["one", "two"]);

    for (at, name) in ["first", "second"].into_iter().enumerate() {
        let old = if at == 0 { &mut first } else { &mut second };
        old.signal("TERM");
        assert_eq!(old.wait(), Some(0));
        load.answers(4, "without a gateway");
        *old = gateway(name, addresses[at]);
        load.gateways.lock().unwrap()[at] = old.url.clone();
        all_use(&[&first, &second], &["one", "two"]);
        load.answers(4, "with the gateway again");
    }
    load.end();
    drop((one, two));
}

#[test]
fn a_server_without_nodes_says_so_and_shows_its_stages() {
    let server = Omni::new().args(["run", "--set", "server.listen=127.0.0.1:0"]).serve().ready();
    let reply = Ask::new("GET", "/cluster", &[], "").send(&server.url);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("not_found")));
    command(["top", "--once", "--url", &server.url]).run().succeeds().shows("vocoder").shows("here");
    let refused = command(["drain", "any", "--url", &server.url]).run();
    refused.exits(1).tells("no stage of this server is on nodes");
    command(["top", "--url", &server.url]).run().exits(2).tells("--once prints one");
}
