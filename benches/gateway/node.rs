//! A node whose stages compute nothing: it speaks what a node speaks, from the offer to the last sample, and makes a frame
//! of each sequence every 80 ms. So a gateway cannot tell it from a node, and the machine has room for the gateway.

use crate::support::engine::root;
use bytes::Bytes;
use omni_actors::actors::process::message::{FromStage, Pulse, ToStage};
use omni_actors::actors::{StageState, StageStatus};
use omni_actors::cluster::{Duplex, Node, Settings, Tls};
use omni_actors::core::ids::{Attempt, FinishReason, Generation, RequestId, Seq, StageName};
use omni_actors::core::nodes::{Ask, Offer, PROTOCOL, Terms};
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::model::stage::SequenceSpec;
use omni_actors::transfer::link::{
    FrameReader, FrameWriter, Outbox, Received, Sink, Source, append, outbox, receive, take,
};
use omni_actors::transfer::payload::{Header, Kind, Part, Payload};
use omni_actors::transfer::transport::Delivery;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A frame of the checkpoint's tokenizer.
pub const FRAME: Duration = Duration::from_millis(80);
/// How many times longer than it sounds a frame takes to be made, if not as long.
pub const SLOWER: &str = "OMNI_SLOWER";
/// Sequences make their frames in so many groups, one after the other.
const PHASES: u64 = 16;
/// How long a frame takes to be made.
pub fn pace() -> Duration {
    FRAME * std::env::var(SLOWER).map_or(1, |times| times.parse().unwrap())
}

/// How long the longest chunk takes to be made.
pub fn chunk() -> Duration {
    pace() * RAMP[RAMP.len() - 1]
}

/// Frames of the chunks in which a vocoder gives sound, as the default config has them.
const RAMP: [u32; 4] = [1, 2, 4, 8];
/// How often a node says that it lives.
const PULSE: Duration = Duration::from_millis(400);
const GROUPS: usize = 16;
const SAMPLES: usize = 1920;

/// Serves until it is killed. `what`: the gateway's address, and files of certificates.
pub async fn serve(what: &str) {
    let words: Vec<&str> = what.split(' ').collect();
    let file = |at: usize| PathBuf::from(words[at]);
    let tls = Tls { ca: file(1), certificate: file(2), key: file(3) };
    let settings =
        Settings { listen: None, join: vec![words[0].to_owned()], tls: Some(tls), silence: Duration::from_secs(20) };
    let checkpoint = Checkpoint::open(&root().join(crate::CHECKPOINT)).unwrap();
    let terms = Terms {
        protocol: PROTOCOL,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        checkpoint: checkpoint.fingerprint().unwrap(),
    };
    let stages = vec![StageName::Talker, StageName::Vocoder];
    let (name, host, arithmetic) = ("played".to_owned(), "here".to_owned(), "none".to_owned());
    let offer = Offer { name, host, pid: std::process::id(), terms, arithmetic, stages, slots: 16_384, gateways: 1 };
    let mut encoded = Vec::new();
    append(&offer, &mut encoded).unwrap();
    let node = Node::start(&settings, Bytes::from(encoded)).await.unwrap();
    loop {
        let asked = node.asked().await;
        let ask: Ask = take(&mut &asked.request()[..]).unwrap();
        tokio::spawn(run(ask, node.accept(asked).await.unwrap()));
    }
}

struct Sequence {
    phase: u64,
    made: u32,
    units: u32,
    /// Of a vocoder: frames that have come, and whether they were the last.
    input: u32,
    ended: bool,
}

async fn run(ask: Ask, Duplex { send, receive: from, line }: Duplex) {
    let (out, queue) = outbox(1 << 20);
    let mut to = FrameWriter::new(Sink::Queue(send), None);
    tokio::spawn(async move { queue.send_all(&mut to, |_, reason| panic!("{reason}")).await });
    let generation = Generation(ask.last.0 + 1);
    let status = StageStatus { state: StageState::Running, generation, restarts: 0, last_reason: None };
    out.tell(FromStage::Status(status));
    let mut from = FrameReader::new(Source::Queue(from), None, true);
    let mut sequences = BTreeMap::<RequestId, Sequence>::new();
    let mut beat = tokio::time::interval(pace() / PHASES as u32);
    let (mut beats, mut told) = (0u64, Instant::now());
    loop {
        tokio::select! {
            received = receive::<ToStage>(&mut from) => match received {
                Err(_) => break,
                Ok(Received::Control(words)) => {
                    for word in words {
                        match word {
                            ToStage::Admit(admission) => {
                                let units = match &admission.spec {
                                    // The last token gets no frame.
                                    SequenceSpec::Talker(spec) => spec.max_tokens - 1,
                                    _ => 0,
                                };
                                let phase = (beats + 1) % PHASES;
                                let made = admission.from.deliver_from;
                                let its = Sequence { phase, made, units, input: made, ended: false };
                                sequences.insert(admission.request, its);
                            }
                            ToStage::Abort(request) => _ = sequences.remove(&request),
                            ToStage::Stop => return,
                            _ => {}
                        }
                    }
                }
                Ok(Received::Delivery(Delivery::Payload(payload))) => {
                    let Header { request, seq, units, end, .. } = payload.header;
                    // A talker needs no text to compute nothing.
                    if ask.stage == StageName::Vocoder
                        && let Some(its) = sequences.get_mut(&request)
                    {
                        its.input = seq.0 + units;
                        its.ended = end.is_some();
                        if sound(&out, generation, request, its) {
                            sequences.remove(&request);
                        }
                    }
                }
                Ok(Received::Delivery(_)) => {}
            },
            _ = beat.tick() => {
                beats += 1;
                if told.elapsed() >= PULSE {
                    told = Instant::now();
                    out.tell(FromStage::Pulse(Pulse::default()));
                }
                if ask.stage == StageName::Talker {
                    let mut ended = Vec::new();
                    for (request, its) in sequences.iter_mut().filter(|(_, its)| its.phase == beats % PHASES) {
                        if codes(&out, generation, *request, its) {
                            ended.push(*request);
                        }
                    }
                    ended.into_iter().for_each(|request| _ = sequences.remove(&request));
                }
            }
        }
    }
    eprintln!("a played node's link ended: {:?}", line.reason());
}

/// Sends the next frame of a talker's sequence; whether that was the last.
fn codes(out: &Outbox<FromStage>, generation: Generation, request: RequestId, its: &mut Sequence) -> bool {
    // Codes that repeat themselves would be taken for speech without end.
    let code = |group: usize| (request.0 as u32).wrapping_mul(31).wrapping_add(its.made * 17 + group as u32 * 7) % 32;
    let part = Part::U32((0..GROUPS).map(code).collect());
    its.made += 1;
    let end = (its.made == its.units).then_some(FinishReason::Length);
    put(out, generation, (request, its.made - 1, 1, end), Kind::Codes, part);
    end.is_some()
}

/// Sends the sound of a chunk, if all of its frames are here; whether it was the last.
fn sound(out: &Outbox<FromStage>, generation: Generation, request: RequestId, its: &mut Sequence) -> bool {
    let (mut from, mut number) = (0, 0);
    // Where the chunk ends that the next frame is in.
    while from <= its.made {
        from += RAMP.get(number).or(RAMP.last()).copied().unwrap_or(1);
        number += 1;
    }
    if its.input < from && !its.ended {
        return false;
    }
    out.tell(FromStage::Acked(request, its.input));
    let units = its.input - its.made;
    let end = its.ended.then_some(FinishReason::Length);
    let part = Part::F32(vec![0.1; units as usize * SAMPLES]);
    put(out, generation, (request, its.made, units, end), Kind::Audio, part);
    its.made = its.input;
    end.is_some()
}

fn put(
    out: &Outbox<FromStage>,
    generation: Generation,
    (request, seq, units, end): (RequestId, u32, u32, Option<FinishReason>),
    kind: Kind,
    part: Part,
) {
    let attempt = Attempt(0);
    let header = Header { request, generation, attempt, seq: Seq(seq), kind, units, end, sent: 0, cached: 0 };
    out.put(Payload { header, parts: vec![part], leases: Vec::new() }).unwrap();
}
