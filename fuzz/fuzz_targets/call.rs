//! Packets of a call, each with two bytes of its length in front: an offer, then datagrams of a client that has its
//! address. The first byte says whether they come before the encryption of SCTP, or as they are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_webrtc::crypto::provider;
use omni_webrtc::{Call, Step, called};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[path = "../../src/webrtc/hostile.rs"]
mod hostile;
#[path = "../../src/webrtc/peer.rs"]
#[allow(dead_code)]
mod peer;

/// The packets of an input.
fn packets(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len()).min(1_100);
        packets.push(rest[..length].to_vec());
        bytes = &rest[length..];
    }
    packets
}

/// What the call does until it waits, given to its client.
fn settle(call: &mut Call, peer: &mut peer::Peer, server: SocketAddr, client: SocketAddr, now: Instant) {
    for _ in 0..10_000 {
        peer.pass(now);
        while let Some((_, packet)) = peer.out.pop_front() {
            call.receive(client, &packet, now);
        }
        match call.step() {
            Step::Send(_, packet) => peer.receive(server, &packet, now),
            Step::News(omni_webrtc::News::Over) | Step::Wait(_) => return,
            Step::News(_) => {}
        }
    }
    panic!("it goes on sending");
}

fuzz_target!(|bytes: &[u8]| {
    let Some((inside, rest)) = bytes.split_first() else { return };
    let (server, client) = (([192, 0, 2, 1], 8443).into(), ([198, 51, 100, 7], 4242).into());
    let mut now = Instant::now();
    hostile::behave();
    let (mut peer, offer) = peer::Peer::new(hostile::hostile(provider()), client, now);
    let (mut call, answer) = Call::answer(&offer, &[server], 1 << 16, now).unwrap();
    peer.accept(&answer);
    let mut packets = packets(rest);
    if inside % 2 == 1 {
        for _ in 0..60 {
            now += Duration::from_millis(10);
            call.pass(now);
            settle(&mut call, &mut peer, server, client, now);
        }
        let inner = std::mem::take(&mut packets);
        let mut inner = inner.into_iter();
        hostile::change(move |packet| inner.next().unwrap_or_else(|| packet.to_vec()));
        for _ in 0..20 {
            let _ = peer.try_tell("{}");
            settle(&mut call, &mut peer, server, client, now);
        }
    }
    for packet in packets {
        let _ = called(&packet);
        now += Duration::from_millis(10);
        call.receive(client, &packet, now);
        call.pass(now);
        settle(&mut call, &mut peer, server, client, now);
    }
});
