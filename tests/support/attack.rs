//! A server under attack: its memory from start to end, an ordinary client beside, and what is left afterwards.
#![allow(dead_code, reason = "each test binary uses its own part")]

use super::figures::Figures;
use super::http::{Ask, Reply};
use super::omni::{Omni, Serving};
use super::tts::fixture;
use crate::support::wait::{self, PATIENCE};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What an attack may cost above the memory of an idle server.
pub const ALLOWANCE: usize = 512 << 20;
const SPEECH: &str = "/v1/audio/speech";
/// An ordinary client asks again for so long: a place that a slow client gives up is free after what it had heard.
const ASKS_AGAIN: Duration = Duration::from_secs(60);

/// A server that runs for one attack.
pub struct Attacked {
    serving: Serving,
    /// Bytes that the idle server had.
    idle: usize,
    /// What the ordinary client asks for.
    ordinary: Value,
    /// What the idle server answered.
    truth: Vec<u8>,
    figures: Option<Figures>,
}

impl Attacked {
    /// The embedded voice, with more lines in its config.
    pub fn embedded(more: &str) -> Attacked {
        Attacked::logging_to(Stdio::inherit(), more)
    }

    /// The same with this as its standard error.
    pub fn logging_to(log: impl Into<Stdio>, more: &str) -> Attacked {
        Attacked::start("", more, json!({"input": "Hello there.", "seed": 1}), log)
    }

    /// The small Base checkpoint, which clones voices. Its speech is noise and does not end by itself.
    pub fn base(more: &str) -> Attacked {
        let model = format!("[model]\ncheckpoint = {:?}\n[voices]\ndirectory = \"memory\"\n", fixture("base"));
        let embedding = vec![0.5; 64];
        let ordinary = json!({
            "input": "Hello there.", "seed": 1, "max_new_tokens": 3, "speaker_embedding": embedding,
        });
        Attacked::start(&model, more, ordinary, Stdio::inherit())
    }

    /// The small Qwen3-Omni checkpoint, which hears and sees. Its speech is noise and does not end by itself.
    pub fn omni(more: &str) -> Attacked {
        let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
        let model = format!("[model]\ncheckpoint = {checkpoint:?}\n");
        let ordinary = json!({"input": "Hello there.", "seed": 1, "max_new_tokens": 3});
        Attacked::start(&model, more, ordinary, Stdio::inherit())
    }

    fn start(model: &str, more: &str, ordinary: Value, log: impl Into<Stdio>) -> Attacked {
        let figures = Figures::wanted();
        let omni = Omni::new();
        let config = omni.file("config.toml", &format!("{model}{more}"));
        // `more` may have these tables, so what is set here comes by key.
        let args = ["run", &config, "--listen", "127.0.0.1:0", "--set", "telemetry.log=warn"];
        let serving = omni.arguments(&args).serve_to(log);
        let mut attacked = Attacked { serving, idle: 0, ordinary, truth: Vec::new(), figures };
        attacked.becomes_ready();
        attacked.truth = attacked.patiently(&Ask::json(SPEECH, &attacked.ordinary)).body;
        assert!(attacked.truth.starts_with(b"RIFF") && attacked.truth.len() > 1000, "nothing was said");
        attacked.waits_for_rest();
        attacked.idle = attacked.memory("VmHWM");
        if let Some(figures) = &attacked.figures {
            figures.watch(attacked.url());
        }
        attacked
    }

    pub fn url(&self) -> &str {
        &self.serving.url
    }

    pub fn pid(&self) -> u32 {
        self.serving.pid()
    }

    /// A connection on which nothing has been sent. Reads and writes fail after [`PATIENCE`].
    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.url().strip_prefix("http://").unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Sends a request and reads nothing of the answer.
    pub fn begin(&self, ask: &Ask) -> TcpStream {
        let mut socket = self.connect();
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", ask.method, ask.path, &self.url()[7..]);
        ask.headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
        head.push_str(&format!("Content-Length: {}\r\n\r\n", ask.body.len()));
        // A server that has seen enough may stop reading.
        let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&ask.body));
        socket
    }

    /// A WebSocket; messages and frames are written by the attack.
    pub fn websocket(&self) -> TcpStream {
        let mut socket = self.connect();
        let head = format!(
            "GET /v1/audio/speech/stream HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            &self.url()[7..]
        );
        // A server that has enough connections may have closed this one.
        let _ = socket.write_all(head.as_bytes());
        socket
    }

    /// Sends the process a signal, such as `HUP`.
    pub fn signal(&self, name: &str) {
        self.serving.signal(name);
    }

    /// An ordinary client on a connection of its own hears that the server lives, and a short text, to the sample as an
    /// idle server speaks it. More often than once where figures are taken.
    pub fn neighbour_is_served(&self) {
        for _ in 0..if self.figures.is_some() { 3 } else { 1 } {
            let (live, speech, refused) = self.neighbour_is_served_once();
            println!("/live after {live:?}, a short speech after {speech:?}, asked again {refused} times");
            if let Some(figures) = &self.figures {
                figures.saw(live, speech, refused);
            }
        }
    }

    fn neighbour_is_served_once(&self) -> (Duration, Duration, usize) {
        let begun = Instant::now();
        let (live, refused) = self.counted(&Ask::new("GET", "/live", &[], ""));
        assert_eq!(live.json(), json!({"live": true}));
        let lived = begun.elapsed();
        let (spoken, again) = self.counted(&Ask::json(SPEECH, &self.ordinary));
        assert!(spoken.body == self.truth, "an ordinary client heard other samples");
        (lived, begun.elapsed() - lived, refused + again)
    }

    /// Asks again where it is told to come later, as clients do. Fails after [`ASKS_AGAIN`].
    pub fn patiently(&self, ask: &Ask) -> Reply {
        self.counted(ask).0
    }

    /// The same where an answer takes much work, so that on a slow machine only the server's own limits end it.
    pub fn very_patiently(&self, ask: &Ask) -> Reply {
        self.counted_by(ask, |ask| Some(ask.send_and_wait(self.url()))).0
    }

    /// The same, and how often it had to ask again.
    fn counted(&self, ask: &Ask) -> (Reply, usize) {
        self.counted_by(ask, |ask| ask.try_send(self.url()))
    }

    fn counted_by(&self, ask: &Ask, send: impl Fn(&Ask) -> Option<Reply>) -> (Reply, usize) {
        let begun = Instant::now();
        for again in 0.. {
            let told = match send(ask) {
                Some(reply) if reply.status == 200 => return (reply, again),
                Some(reply) => format!("{}: {}", reply.status, String::from_utf8_lossy(&reply.body)),
                None => "no answer".to_owned(),
            };
            assert!(begun.elapsed() < ASKS_AGAIN, "{} {}: {told}", ask.method, ask.path);
            // A client that asks without a pause would be an attack of its own.
            #[expect(clippy::disallowed_methods, reason = "the pace of a client that is told to come again")]
            std::thread::sleep(Duration::from_millis(50));
        }
        unreachable!("it asks until it is answered");
    }

    fn becomes_ready(&self) {
        self.patiently(&Ask::new("GET", "/ready", &[], ""));
    }

    /// The value of a metric without labels, or the sum over its labels; 0 if it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let reply = self.patiently(&Ask::new("GET", "/metrics", &[], ""));
        let text = String::from_utf8(reply.body).unwrap();
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        };
        text.lines().filter_map(value).sum()
    }

    /// Waits until no request has a place any more. A place is given up behind the end that metrics tell.
    pub fn waits_for_rest(&self) {
        wait::answer(|| {
            let reply = self.patiently(&Ask::new("GET", "/health", &[], ""));
            let health: Value = serde_json::from_slice(&reply.body).unwrap();
            if health["admission"]["held"] == 0 { Ok(()) } else { Err(health) }
        });
    }

    /// Waits until a metric is as it should be.
    pub fn waits_for(&self, name: &str, fits: impl Fn(f64) -> bool) {
        wait::answer(|| match self.metric(name) {
            value if fits(value) => Ok(()),
            value => Err(format!("{name} stays at {value}")),
        });
    }

    /// Memory of the process in bytes: now (`VmRSS`) or at most so far (`VmHWM`).
    pub fn memory(&self, which: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Memory never went further than this above that of the idle server.
    pub fn memory_within(&self, allowance: usize) {
        let (idle, most) = (self.idle, self.memory("VmHWM"));
        println!("{} MiB idle, {} MiB at most", idle >> 20, most >> 20);
        assert!(most < idle + allowance, "memory grew from {idle} to {most} bytes");
    }

    /// The attack is over and its sockets are dropped: memory stayed within bounds, nothing is left, all is served.
    pub fn is_as_before(&self) {
        if let Some(figures) = &self.figures {
            figures.end();
        }
        let most = self.memory("VmHWM");
        self.memory_within(ALLOWANCE);
        for gauge in ["omni_http_input_bytes", "omni_http_output_bytes", "omni_requests_in_flight", "omni_ledger_bytes"]
        {
            self.waits_for(gauge, |value| value == 0.0);
        }
        // This look at the metrics is one.
        self.waits_for("omni_http_connections", |value| value <= 1.0);
        self.becomes_ready();
        self.neighbour_is_served_once();
        if let Some(figures) = &self.figures {
            figures.report(self.idle, most, self.memory("VmRSS"));
        }
    }
}

/// A frame as clients send it, with a mask of zeros. `first` has FIN and the opcode.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..=125 => bytes.push(0x80 | short as u8),
        middle @ 126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}
