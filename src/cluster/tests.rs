//! Sessions of one process, joined over loopback.

use super::line::{OUTGOING, WINDOW};
use super::*;
use bytes::Bytes;
use std::net::TcpListener;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings() -> (Settings, Settings) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let listens = Settings { listen: Some(address.clone()), join: Vec::new(), tls: None, silence: PATIENCE };
    let joins = Settings { listen: None, join: vec![address], ..listens.clone() };
    (listens, joins)
}

/// A gateway, a node that has joined it, and a link between them: the gateway's end and the node's.
async fn linked() -> (Gateway, Node, Duplex, Duplex) {
    let (listens, joins) = settings();
    let gateway = Gateway::start(&listens).await.unwrap();
    let node = Node::start(&joins, Bytes::from_static(b"an offer")).await.unwrap();
    joins_it(&gateway, &node).await;
    let (ours, theirs) = link(&gateway, &node).await;
    (gateway, node, ours, theirs)
}

/// Waits until the node has joined, which is the next thing that the gateway hears.
async fn joins_it(gateway: &Gateway, node: &Node) {
    let joined = tokio::time::timeout(PATIENCE, gateway.changed()).await.unwrap();
    assert_eq!(joined, Change::Joined(node.name().to_owned(), Bytes::from_static(b"an offer")));
}

/// A link between them: the gateway's end and the node's.
async fn link(gateway: &Gateway, node: &Node) -> (Duplex, Duplex) {
    let accepts = async {
        let asked = node.asked().await;
        assert_eq!((asked.request(), asked.gateway()), (Bytes::from_static(b"please"), gateway.name().to_owned()));
        node.accept(asked).await.unwrap()
    };
    let opens = gateway.open(node.name(), Bytes::from_static(b"please"));
    let (ours, theirs) = tokio::time::timeout(PATIENCE, async { tokio::join!(opens, accepts) }).await.expect("no link");
    (ours.unwrap(), theirs)
}

async fn next(from: &Duplex) -> Option<Bytes> {
    tokio::time::timeout(PATIENCE, from.receive.recv_async()).await.expect("nothing comes").ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_any_size_cross_both_ways_in_order() {
    let (_gateway, _node, ours, theirs) = linked().await;
    let frames: Vec<Bytes> =
        (0..100usize).map(|n| vec![n as u8; [0, 64, 4096, 300_000, 2 << 20][n % 5]].into()).collect();
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        let sending = async {
            for frame in &frames {
                from.send.send_async(frame.clone()).await.unwrap();
            }
        };
        let receiving = async {
            for frame in &frames {
                assert!(next(to).await.as_ref() == Some(frame), "another frame");
            }
        };
        tokio::join!(sending, receiving);
    }
}

/// What is between a node and a gateway lets pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passage {
    All,
    /// Nothing: what is sent stays where it is.
    Nothing,
    /// Nothing, and each side reads the end of the connection.
    Over,
}

/// A way to a gateway over which nothing passes when it is told so: as one that was killed looks to its nodes.
struct Way {
    joins: String,
    passes: watch::Sender<Passage>,
}

impl Way {
    fn to(gateway: String) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let joins = listener.local_addr().unwrap().to_string();
        let (passes, told) = watch::channel(Passage::All);
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        tokio::spawn(async move {
            while let Ok((node, _)) = listener.accept().await {
                let Ok(gateway) = TcpStream::connect(&gateway).await else { continue };
                let ((from_node, to_node), (from_gateway, to_gateway)) = (node.into_split(), gateway.into_split());
                tokio::spawn(carry(from_node, to_gateway, told.clone()));
                tokio::spawn(carry(from_gateway, to_node, told.clone()));
            }
        });
        Way { joins, passes }
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passes: watch::Receiver<Passage>) {
    let mut stops = passes.clone();
    tokio::select! {
        _ = tokio::io::copy(&mut from, &mut to) => {}
        _ = stops.wait_for(|passes| *passes != Passage::All) => {}
    }
    let _ = passes.wait_for(|passes| *passes == Passage::Over).await;
    let _ = to.shutdown().await;
    // The other half stays open.
    let _ = passes.wait_for(|_| false).await;
}

/// Bytes of a frame of sound.
const FRAME: usize = 7 << 10;

/// Sends until the link takes no more for a while: how many bytes it took.
async fn fills(link: &Duplex) -> usize {
    let frame = Bytes::from_static(&[7; FRAME]);
    let mut taken = 0;
    while tokio::time::timeout(Duration::from_secs(1), link.send.send_async(frame.clone())).await.is_ok() {
        taken += frame.len();
    }
    taken
}

/// Two gateways that are far more patient than the test, a node of both, and the way to the second.
async fn two_gateways() -> (Gateway, Gateway, Node, Way) {
    let patience = 10 * PATIENCE;
    let ((first, joins), (second, _)) = (settings(), settings());
    let way = Way::to(second.listen.clone().unwrap());
    let joins = Settings { join: [joins.join, vec![way.joins.clone()]].concat(), silence: patience, ..joins };
    let first = Gateway::start(&Settings { silence: patience, ..first }).await.unwrap();
    let second = Gateway::start(&Settings { silence: patience, ..second }).await.unwrap();
    let node = Node::start(&joins, Bytes::from_static(b"an offer")).await.unwrap();
    joins_it(&first, &node).await;
    joins_it(&second, &node).await;
    (first, second, node, way)
}

/// Nothing here takes so long as Zenoh waits for a connection that takes nothing: half of the silence, five minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_takes_nothing_and_then_is_gone_costs_another_one_neither_its_node_nor_a_frame() {
    let (lives, dies, node, way) = two_gateways().await;
    let (ours, theirs) = link(&lives, &node).await;
    let (_talker, talks) = link(&dies, &node).await;
    let (_vocoder, sounds) = link(&dies, &node).await;
    way.passes.send_replace(Passage::Nothing);
    tokio::join!(fills(&talks), fills(&sounds));
    let goes_on = async |when: &str| {
        for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
            from.send.send_async(when.to_owned().into()).await.unwrap();
            assert_eq!(next(to).await.as_deref(), Some(when.as_bytes()), "{when}");
        }
        let (ours, theirs) = link(&lives, &node).await;
        ours.send.send(Bytes::from_static(b"a new one")).unwrap();
        assert_eq!(next(&theirs).await.as_deref(), Some(&b"a new one"[..]), "{when}");
        let asked = tokio::time::timeout(PATIENCE, lives.round_trip(node.name())).await;
        assert!(asked.is_ok_and(|took| took.is_some()), "{when}: the node does not answer");
    };
    goes_on("it takes nothing").await;
    way.passes.send_replace(Passage::Over);
    assert_eq!(next(&talks).await, None, "its end is not told");
    goes_on("it is gone").await;
    let changes = tokio::time::timeout(Duration::ZERO, lives.changed()).await;
    assert!(changes.is_err(), "the node left a gateway that lives: {changes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_side_that_takes_nothing_ends_when_it_is_told_to() {
    let (_lives, dies, node, way) = two_gateways().await;
    let (_ours, theirs) = link(&dies, &node).await;
    way.passes.send_replace(Passage::Nothing);
    // What is on the way, what waits for it, and the frame between them.
    let room = WINDOW as usize + (OUTGOING + 1) * FRAME;
    assert!((WINDOW as usize - FRAME..=room).contains(&fills(&theirs).await), "{room} should fit");
    drop(theirs.line);
    // Its thread has the other end.
    let ends = async {
        while !theirs.send.is_disconnected() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ends).await.expect("its thread waits for the network");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_the_end_of_a_link_arrives_and_the_end_is_told() {
    let (_gateway, _node, ours, theirs) = linked().await;
    ours.send.send(Bytes::from_static(b"the last")).unwrap();
    drop(ours.send);
    assert_eq!(next(&theirs).await.as_deref(), Some(&b"the last"[..]));
    assert_eq!(next(&theirs).await, None);
    assert_eq!(theirs.line.reason().unwrap(), "the other side has closed the link");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_end_with_the_session_of_either_side() {
    let (gateway, node, ours, theirs) = linked().await;
    let name = node.name().to_owned();
    drop(node);
    let left = tokio::time::timeout(PATIENCE, gateway.changed()).await.unwrap();
    assert_eq!((left, next(&ours).await), (Change::Left(name), None));
    assert_eq!(ours.line.reason().unwrap(), "the connection to the other side is gone");
    drop(theirs);

    let (gateway, _node, _ours, theirs) = linked().await;
    drop(gateway);
    assert_eq!(next(&theirs).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_says_why_it_opens_no_link() {
    let (listens, joins) = settings();
    let gateway = Gateway::start(&listens).await.unwrap();
    let node = Node::start(&joins, Bytes::new()).await.unwrap();
    tokio::time::timeout(PATIENCE, gateway.changed()).await.unwrap();
    let refuses = async { node.asked().await.refuse("no share is left") };
    let (opened, ()) = tokio::join!(gateway.open(node.name(), Bytes::new()), refuses);
    assert_eq!(opened.err().unwrap().to_string(), "no share is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_ended_tells_the_other_side_why_and_at_once() {
    // Its threads would wait for a quarter of PATIENCE.
    let (_gateway, _node, ours, theirs) = linked().await;
    let begun = std::time::Instant::now();
    theirs.line.end("the node is drained");
    assert_eq!(next(&ours).await, None);
    assert_eq!(ours.line.reason().unwrap(), "the other side has closed the link: the node is drained");
    assert!(begun.elapsed() < PATIENCE / 4, "it was told by a beat");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_leaves_when_every_gateway_spares_it() {
    let ((first, joins), (second, also)) = (settings(), settings());
    let joins = Settings { join: [joins.join, also.join].concat(), ..joins };
    let spares = Gateway::start(&first).await.unwrap();
    let node = Node::start(&joins, Bytes::new()).await.unwrap();
    tokio::time::timeout(PATIENCE, spares.changed()).await.unwrap();
    let asks = async |gateway: &Gateway| {
        let asked = tokio::time::timeout(PATIENCE, gateway.asked()).await.expect("it is not asked");
        assert_eq!((asked.question(), asked.request()), (Question::Leave, Bytes::from_static(b"these")));
        asked
    };
    let (may, ()) = tokio::join!(node.may_leave("these".into()), async { asks(&spares).await.confirm() });
    may.unwrap();
    let keeps = Gateway::start(&second).await.unwrap();
    tokio::time::timeout(PATIENCE, keeps.changed()).await.unwrap();
    let says = async {
        asks(&spares).await.confirm();
        asks(&keeps).await.refuse("it is the last");
    };
    let (may, ()) = tokio::join!(node.may_leave("these".into()), says);
    assert_eq!(may.unwrap_err().to_string(), "it is the last");

    let shares = async {
        let asked = node.asked().await;
        assert_eq!((asked.question(), asked.gateway()), (Question::Keep, keeps.name().to_owned()));
        asked.refuse("no share is left");
    };
    let (kept, ()) = tokio::join!(keeps.keep(node.name(), PATIENCE), shares);
    assert_eq!(kept.unwrap_err().to_string(), "no share is left");

    let drains = async {
        let asked = node.asked().await;
        assert_eq!((asked.question(), asked.request()), (Question::Drain, Bytes::from_static(b"leave")));
        asked.confirm();
    };
    let (drained, ()) = tokio::join!(keeps.drain(node.name(), "leave".into()), drains);
    drained.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_cannot_be_read_is_named() {
    let missing = |name: &str| std::path::PathBuf::from(format!("/nowhere/{name}"));
    let tls = Tls { ca: missing("ca.pem"), certificate: missing("own.pem"), key: missing("own.key") };
    let error = Gateway::start(&Settings { tls: Some(tls), ..settings().0 }).await.err().unwrap().to_string();
    assert!(error.starts_with("/nowhere/ca.pem: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_say_what_it_offers_is_asked_again() {
    let (listens, joins) = settings();
    let gateway = Gateway::start(&listens).await.unwrap();
    let session = joins.open().await.unwrap();
    let name = session.zid().to_string();
    let (tell, asked) = flume::bounded(64);
    // Its first answer is none.
    let answers = move |query: zenoh::query::Query| tell.send(query).unwrap();
    let _offer = session.declare_queryable(format!("omni/node/{name}/offer")).callback(answers).await.unwrap();
    let _token = session.liveliness().declare_token(format!("omni/node/{name}")).await.unwrap();
    drop(tokio::time::timeout(PATIENCE, asked.recv_async()).await.expect("it is not asked"));
    let query = tokio::time::timeout(PATIENCE, asked.recv_async()).await.expect("it is not asked again").unwrap();
    query.reply(query.key_expr().clone(), "an offer").await.unwrap();
    drop(query);
    let joined = tokio::time::timeout(PATIENCE, gateway.changed()).await.unwrap();
    assert_eq!(joined, Change::Joined(name, Bytes::from_static(b"an offer")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sees_a_gateway_and_is_asked_nothing_knows_that_its_session_is_of_no_use() {
    let (listens, joins) = settings();
    // As a gateway looks to a session that hears no questions.
    let silent = listens.open().await.unwrap();
    let _token = silent.liveliness().declare_token(format!("omni/gateway/{}", silent.zid())).await.unwrap();
    let node = Node::start(&joins, Bytes::from_static(b"an offer")).await.unwrap();
    let after = Duration::from_millis(300);
    tokio::time::timeout(PATIENCE, node.answers_none(after)).await.expect("it does not notice");
    tokio::time::timeout(PATIENCE, node.leave()).await.expect("it does not leave");
}
