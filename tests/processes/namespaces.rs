//! Nodes and gateways in network namespaces of Linux, whose cables are pulled and whose routes end. Where this process may
//! make none each test says so on standard error, past the harness, and has nothing to fail by.

use super::nodes::{alone, both_run, goes_on, omni};
use crate::support::engine::{becomes, collect, idle, say};
use crate::support::nodes::{Cluster, Node, lines};
use crate::support::omni::Omni;
use crate::support::wait::{self, PATIENCE};
use crate::support::{engine::frames, nodes::free_address};
use omni_actors::core::ids::StageName;
use omni_actors::engine::{Event, Service};
use omni_actors::tools::network::{Host, Namespaces, Passage};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// How long a packet may take that nothing keeps. One that is lost is waited for so long.
const ARRIVES: Duration = Duration::from_millis(300);

/// A network, if one can be made here.
fn network() -> Option<Namespaces> {
    let skipped = |why| {
        let test = thread::current().name().unwrap_or_default().to_owned();
        // The harness keeps what `eprintln` writes to itself.
        let _ = writeln!(std::io::stderr(), "{test}: skipped, no network namespaces can be made here: {why:#}");
    };
    Namespaces::new().map_err(skipped).ok()
}

/// A socket of a host.
fn socket(network: &Namespaces, host: Host) -> UdpSocket {
    let (namespace, address) = (network.file_of(host), SocketAddr::from((network.address_of(host), 0)));
    let opened = thread::spawn(move || {
        let namespace = File::open(namespace).unwrap();
        // This thread alone moves there, and ends.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        UdpSocket::bind(address).unwrap()
    });
    let socket = opened.join().unwrap();
    socket.set_read_timeout(Some(ARRIVES)).unwrap();
    socket
}

/// Whether a packet arrives.
fn arrives(from: &UdpSocket, to: &UdpSocket) -> bool {
    from.send_to(b"x", to.local_addr().unwrap()).unwrap();
    to.recv(&mut [0; 8]).is_ok()
}

#[test]
fn each_way_of_a_host_is_cut_alone_and_all_of_them_open_again() {
    use Passage::{Cut, Open};
    let Some(mut network) = network() else { return };
    let hosts = [network.host().unwrap(), network.host().unwrap(), network.host().unwrap()];
    let [a, b, c] = hosts.map(|host| socket(&network, host));
    for (from, to) in [(Open, Open), (Cut, Open), (Open, Cut), (Cut, Cut)] {
        network.set(hosts[0], from, to).unwrap();
        assert_eq!([arrives(&a, &b), arrives(&b, &a)], [from == Open, to == Open], "{from:?}, {to:?}");
        assert!(arrives(&b, &c) && arrives(&c, &b), "others hear each other: {from:?}, {to:?}");
    }
    network.set(hosts[0], Open, Open).unwrap();
    // A host looks for its router once a second while it does not find it.
    wait::until("the cable is in again", || arrives(&a, &b) && arrives(&b, &a));
    assert!(network.set(hosts[0], Passage::Held, Open).is_err());
}

#[test]
fn nothing_of_a_network_stays_behind_whatever_becomes_of_its_test_or_of_its_process() {
    if network().is_none() {
        return;
    }
    let own = format!("omni-{}-", std::process::id());
    let hosts = || {
        let names = std::fs::read_dir("/run/netns").unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(&own)).collect::<Vec<_>>()
    };
    let (tell, told) = std::sync::mpsc::channel();
    let ended = catch_unwind(move || {
        let mut network = Namespaces::new().unwrap();
        let host = network.host().unwrap();
        tell.send(network.file_of(host)).unwrap();
        panic!("on purpose, with {host:?}");
    });
    assert!(ended.is_err());
    let file = told.recv().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap().replace("host-0", "");
    assert!(hosts().iter().all(|left| !left.to_string_lossy().starts_with(&name)), "{name}: {:?}", hosts());
    // A process that was killed removes nothing; the next one does.
    let mut killed = Command::new("true").spawn().unwrap();
    killed.wait().unwrap();
    let left = format!("omni-{}-0-router", killed.id());
    assert!(Command::new("ip").args(["netns", "add", &left]).status().unwrap().success());
    drop(Namespaces::new().unwrap());
    assert!(!Path::new("/run/netns").join(left).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_wait_for_a_node_whose_cable_is_out_for_two_seconds_and_no_stage_starts_anew() {
    let Some(mut network) = network() else { return };
    let host = network.host().unwrap();
    // The gateway is this process, at its own end of the network.
    let own = network.own_address();
    let cluster = Cluster { address: (own, free_address().port()).into(), ..Cluster::of(&omni()) };
    let truth = alone(&cluster, frames(40, 5)).await;
    // Far more than the cable is out, and the time in which QUIC finds that it is back.
    let silence = Duration::from_secs(15);
    let shown = lines(&cluster.authority.certify_at("node", network.address_of(host)));
    let command = network.command(host, env!("CARGO_BIN_EXE_omni-actors"));
    let more = format!("{shown}\nsilence = \"15s\"");
    let _node = Node::start_by(command, &[cluster.address], &cluster.checkpoint, "node", &more);
    let gateway = cluster.gateway(|config| {
        config.cluster.tls = Some(cluster.authority.certify_at("gateway", own));
        config.cluster.silence = silence;
        config.stages[StageName::Vocoder as usize].window = 1;
    });
    let gateway = gateway.await;
    becomes(&gateway, "it runs both", |health| both_run(health, "node")).await;
    let before = gateway.health();
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = gateway.speak(frames(40, 5)).await.unwrap();
        while !matches!(stream.next().await.unwrap(), Event::Audio(_)) {}
        streams.push(stream);
    }
    network.set(host, Passage::Cut, Passage::Cut).unwrap();
    let rest: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(collect(stream))).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rest.iter().all(|rest| !rest.is_finished()), "a stream ended that nothing reached");
    network.set(host, Passage::Open, Passage::Open).unwrap();
    for rest in rest {
        let rest = tokio::time::timeout(PATIENCE, rest).await.expect("a request hangs").unwrap();
        goes_on(&rest, truth.samples.len() - rest.samples.len(), &truth, "two seconds");
    }
    let after = gateway.health();
    let runs = |health: &omni_actors::engine::EngineHealth| {
        health.stages.iter().map(|stage| (stage.generation, stage.restarts)).collect::<Vec<_>>()
    };
    assert_eq!(runs(&before), runs(&after), "a stage started anew");
    assert!(say(&gateway, frames(40, 5)).await.samples == truth.samples);
    idle(&gateway).await;
}

/// With the limit of liveliness at half a second: each of the faults that the network of this machine can have strikes
/// once, partitions of 2 s among them, one-way ones too.
#[test]
fn hosts_that_die_stop_and_are_cut_off_in_namespaces_of_their_own_change_no_stream() {
    let Some(network) = network() else { return };
    let slows = network.slows();
    let duration = if slows { "11650ms" } else { "10300ms" };
    drop(network);
    let omni = Omni::new();
    let (texts, report) = (omni.file("texts.txt", "one two three\nfour five six\n"), omni.path("report.json"));
    let checkpoint = "model.checkpoint=tests/fixtures/qwen3_tts/custom_voice";
    let omni = omni
        .args(["chaos", "--cluster", "2", "--namespaces", "--set", checkpoint, "--set", "device.kind=cpu"])
        .more(&["--texts", &texts, "--set", "cluster.silence=500ms", "--frames", "60", "--streams", "4"])
        // What all of these take, and the rest between them.
        .more(&["--report", &report, "--every", "100ms", "--duration", duration, "--hang-after", "60s"]);
    let done = omni.run();
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap_or_default()).unwrap_or_default();
    println!("{}", done.stdout);
    done.succeeds().tells("left out, because this network cannot do it: a node's old frames come late");
    let kinds = report["faults_by_kind"].as_array().unwrap();
    let named = |name: &str| kinds.iter().any(|kind| kind["fault"] == name);
    for name in ["kill -9 of a node", "kill -9 of a gateway", "a node is stopped", "a node computes no more"] {
        assert!(named(name), "{name}: {report}");
    }
    for name in ["partition of 2 s", "partition of 2 s, to gateways", "partition of 2 s, to the node"] {
        assert!(named(name), "{name}: {report}");
    }
    assert_eq!(named("50 ms more each way, 1 % lost"), slows, "{report}");
    for kind in kinds {
        assert!(kind["streams"].as_u64().unwrap() > 0 && kind["identical"] == kind["streams"], "{report}");
    }
    assert_eq!(report["streams"]["identical"], report["streams"]["started"]);
}
