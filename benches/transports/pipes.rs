//! The transports, behind one way to send and to receive.

use crate::PEER;
use crate::support::nodes::{Authority, free_address};
use bytes::Bytes;
use omni_actors::cluster::{Change, Gateway, Line, Node, Settings, Tls};
use omni_actors::config::ClusterTls;
use omni_actors::transfer::link::{FrameReader, FrameWriter, Sink, Source};
use omni_actors::transfer::shm::{RingHandle, ring};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ring,
    Tcp,
    LineTcp,
    LineQuic,
    Nats,
}

pub const KINDS: [Kind; 5] = [Kind::Ring, Kind::Tcp, Kind::LineTcp, Kind::LineQuic, Kind::Nats];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ring => "ring",
            Kind::Tcp => "TCP",
            Kind::LineTcp => "line, TCP",
            Kind::LineQuic => "line, QUIC",
            Kind::Nats => "NATS",
        }
    }
}

/// Both directions.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Pipe {
    /// As stage processes and nodes have them; what is kept open with it.
    Frames(FrameWriter, FrameReader, #[expect(dead_code, reason = "kept open")] Option<(Line, Session)>),
    Tcp(BufReader<OwnedReadHalf>, OwnedWriteHalf),
    Nats(BufReader<OwnedReadHalf>, OwnedWriteHalf, &'static str),
}

/// Of either side.
pub enum Session {
    Gateway(#[expect(dead_code, reason = "kept open")] Gateway),
    Node(#[expect(dead_code, reason = "kept open")] Node),
}

impl Pipe {
    pub async fn send(&mut self, frame: Bytes) {
        match self {
            Pipe::Frames(to, ..) => to.send(&frame).await.unwrap(),
            Pipe::Tcp(_, to) => {
                let whole = [&(frame.len() as u32).to_le_bytes()[..], &frame].concat();
                to.write_all(&whole).await.unwrap();
            }
            Pipe::Nats(_, to, subject) => {
                let head = format!("PUB {subject} {}\r\n", frame.len());
                to.write_all(&[head.as_bytes(), &frame, b"\r\n"].concat()).await.unwrap();
            }
        }
    }

    pub async fn receive(&mut self) -> Bytes {
        match self {
            Pipe::Frames(_, from, _) => from.next().await.unwrap(),
            Pipe::Tcp(from, _) => {
                let length = from.read_u32_le().await.unwrap();
                let mut frame = vec![0; length as usize];
                from.read_exact(&mut frame).await.unwrap();
                frame.into()
            }
            Pipe::Nats(from, to, _) => loop {
                let mut line = String::new();
                from.read_line(&mut line).await.unwrap();
                if line.starts_with("PING") {
                    to.write_all(b"PONG\r\n").await.unwrap();
                } else if line.starts_with("MSG") {
                    let length: usize = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
                    let mut frame = vec![0; length + 2];
                    from.read_exact(&mut frame).await.unwrap();
                    frame.truncate(length);
                    return frame.into();
                }
            },
        }
    }
}

/// Processes besides this one. Dropped, they are killed.
pub struct Peers(Vec<Child>);

impl Peers {
    /// Processor time of this process and of them.
    pub fn cpu(&self) -> Duration {
        let pids = self.0.iter().map(Child::id).chain([std::process::id()]);
        pids.map(cpu).sum()
    }

    /// The first one ends by itself.
    pub fn end(mut self) {
        self.0[0].wait().unwrap();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processor time of a process so far.
pub fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name, which may have spaces.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn peer(give: impl FnOnce(&mut Command) -> String) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let told = give(&mut command);
    command.env(PEER, told).spawn().unwrap()
}

/// This end of a transport, and the process at the other; `None` where a program is missing.
pub async fn connected(kind: Kind) -> Option<(Pipe, Peers)> {
    match kind {
        Kind::Ring => {
            let ((to, their_in), (their_out, from)) = (ring(16 << 20).unwrap(), ring(16 << 20).unwrap());
            let child = peer(|command| {
                let (there, back) = (their_in.into_handle().unwrap(), their_out.into_handle().unwrap());
                format!("ring {} {}", there.inherit(command), back.inherit(command))
            });
            let (to, from) = (FrameWriter::new(to, None), FrameReader::new(from, None, true));
            Some((Pipe::Frames(to, from, None), Peers(vec![child])))
        }
        Kind::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let child = peer(|_| format!("tcp {address}"));
            let (stream, _) = listener.accept().await.unwrap();
            Some((tcp(stream), Peers(vec![child])))
        }
        Kind::Nats => {
            let address = free_address();
            let mut server = Command::new("nats-server");
            server.args(["-a", "127.0.0.1", "-p", &address.port().to_string()]);
            let Ok(server) = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
                eprintln!("NATS is left out: install nats-server (Debian: apt-get install nats-server)");
                return None;
            };
            let pipe = nats(address, "here", "there").await;
            let child = peer(|_| format!("nats {address}"));
            let mut pipe = pipe;
            // What is published before the peer listens is lost: it says when it does.
            pipe.receive().await;
            Some((pipe, Peers(vec![child, server])))
        }
        Kind::LineTcp | Kind::LineQuic => {
            let address = free_address();
            let authority = Authority::new();
            let own = (kind == Kind::LineQuic).then(|| authority.certify("gateway"));
            let theirs = (kind == Kind::LineQuic).then(|| authority.certify("node"));
            let gateway = Gateway::start(&settings(Some(address), Vec::new(), own)).await.unwrap();
            let child = peer(|_| match theirs {
                Some(ClusterTls { ca, certificate, key }) => {
                    format!("line {address} {} {} {}", ca.display(), certificate.display(), key.display())
                }
                None => format!("line {address}"),
            });
            let Change::Joined(node, _) = gateway.changed().await else { panic!("no node joined") };
            let duplex = gateway.open(&node, Bytes::new()).await.unwrap();
            let (to, from) = (Sink::Queue(duplex.send), Source::Queue(duplex.receive));
            let (to, from) = (FrameWriter::new(to, None), FrameReader::new(from, None, true));
            Some((Pipe::Frames(to, from, Some((duplex.line, Session::Gateway(gateway)))), Peers(vec![child])))
        }
    }
}

/// The other end.
pub async fn peer_pipe(what: &str) -> Pipe {
    let words: Vec<&str> = what.split(' ').collect();
    match words[0] {
        "ring" => {
            let end = |at: usize| RingHandle::from_inherited(words[at]).unwrap();
            let (from, to) = (end(1).into_consumer().unwrap(), end(2).into_producer().unwrap());
            Pipe::Frames(FrameWriter::new(to, None), FrameReader::new(from, None, true), None)
        }
        "tcp" => tcp(TcpStream::connect(words[1]).await.unwrap()),
        "nats" => {
            let mut pipe = nats(words[1].parse().unwrap(), "there", "here").await;
            pipe.send(Bytes::from_static(b"here")).await;
            pipe
        }
        _ => {
            let file = |at: usize| PathBuf::from(words[at]);
            let tls = (words.len() > 2).then(|| ClusterTls { ca: file(2), certificate: file(3), key: file(4) });
            let node = Node::start(&settings(None, vec![words[1].to_owned()], tls), Bytes::new()).await.unwrap();
            let duplex = node.accept(node.asked().await).await.unwrap();
            let (to, from) = (Sink::Queue(duplex.send), Source::Queue(duplex.receive));
            let (to, from) = (FrameWriter::new(to, None), FrameReader::new(from, None, true));
            Pipe::Frames(to, from, Some((duplex.line, Session::Node(node))))
        }
    }
}

fn settings(listen: Option<SocketAddr>, join: Vec<String>, tls: Option<ClusterTls>) -> Settings {
    let tls = tls.map(|ClusterTls { ca, certificate, key }| Tls { ca, certificate, key });
    Settings { listen: listen.map(|address| address.to_string()), join, tls, silence: Duration::from_secs(10) }
}

fn tcp(stream: TcpStream) -> Pipe {
    stream.set_nodelay(true).unwrap();
    let (from, to) = stream.into_split();
    Pipe::Tcp(BufReader::with_capacity(64 << 10, from), to)
}

/// Speaks the text protocol of NATS.
async fn nats(address: SocketAddr, hears: &str, speaks: &'static str) -> Pipe {
    let stream = loop {
        match TcpStream::connect(address).await {
            Ok(stream) => break stream,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    stream.set_nodelay(true).unwrap();
    let (from, mut to) = stream.into_split();
    let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB {hears} 1\r\nPING\r\n");
    to.write_all(hello.as_bytes()).await.unwrap();
    let mut from = BufReader::with_capacity(64 << 10, from);
    let mut line = String::new();
    // Behind the pong the server knows the subscription.
    while !line.starts_with("PONG") {
        line.clear();
        from.read_line(&mut line).await.unwrap();
    }
    Pipe::Nats(from, to, speaks)
}
