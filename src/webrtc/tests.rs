//! Whole calls in a network and a time of their own.

use crate::bounds::is_sound;
use crate::crypto::provider;
use crate::hostile::{behave, change, hostile};
use crate::peer::Peer;
use crate::{Call, FRAME, News, OfferError, Step};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 8443);
const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7)), 4242);

struct Line {
    call: Call,
    peer: Peer,
    now: Instant,
    news: Vec<News>,
    /// Packets that the server sent.
    sent: usize,
    hung_up: bool,
}

fn offer() -> (Peer, String, Instant) {
    #[expect(clippy::disallowed_methods, reason = "a moment to count from")]
    let now = Instant::now();
    let (peer, offer) = Peer::new(provider(), CLIENT, now);
    (peer, offer, now)
}

impl Line {
    fn new() -> Line {
        Line::of(offer())
    }

    /// Whose client computes with what a hostile one does.
    fn hostile() -> Line {
        #[expect(clippy::disallowed_methods, reason = "a moment to count from")]
        let now = Instant::now();
        let (peer, offer) = Peer::new(hostile(provider()), CLIENT, now);
        let mut line = Line::of((peer, offer, now));
        line.opens();
        line
    }

    fn of((mut peer, offer, now): (Peer, String, Instant)) -> Line {
        let (call, answer) = Call::answer(&offer, &[SERVER], 1 << 16, now).unwrap();
        assert!(answer.contains("a=ice-lite") && answer.contains("192.0.2.1 8443"), "{answer}");
        peer.accept(&answer);
        Line { call, peer, now, news: Vec::new(), sent: 0, hung_up: false }
    }

    /// So many steps of 5 ms, in which every packet arrives at once.
    fn pass(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now += Duration::from_millis(5);
            self.call.pass(self.now);
            self.peer.pass(self.now);
            loop {
                let before = self.peer.out.len();
                while let Some((to, packet)) = self.peer.out.pop_front() {
                    assert_eq!(to, SERVER);
                    assert!(self.call.receive(CLIENT, &packet, self.now) || self.hung_up);
                }
                let mut went = false;
                loop {
                    match self.call.step() {
                        Step::Send(to, packet) => {
                            assert_eq!(to, CLIENT);
                            (self.sent, went) = (self.sent + 1, true);
                            self.peer.receive(SERVER, &packet, self.now);
                        }
                        Step::News(News::Over) if self.news.contains(&News::Over) => break,
                        Step::News(news) => self.news.push(news),
                        Step::Wait(_) => break,
                    }
                }
                self.peer.pass(self.now);
                if before == 0 && !went {
                    break;
                }
            }
        }
    }

    fn open() -> Line {
        let mut line = Line::new();
        line.opens();
        line
    }

    fn opens(&mut self) {
        for _ in 0..400 {
            self.pass(1);
            if self.peer.open && self.news.contains(&News::Open) {
                return;
            }
        }
        panic!("{:?}", self.news)
    }
}

fn tone(number: usize) -> [i16; FRAME] {
    std::array::from_fn(|at| {
        let time = (number * FRAME + at) as f32 / 24_000.0;
        (9000.0 * (time * 300.0 * std::f32::consts::TAU).sin()) as i16
    })
}

fn loudness(samples: &[i16]) -> f64 {
    (samples.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / samples.len().max(1) as f64).sqrt()
}

#[test]
fn sound_leaves_before_an_event_that_is_told_after_it() {
    let mut line = Line::open();
    line.call.say(&tone(0), true, line.now);
    let mut leaves = || match line.call.step() {
        Step::Send(_, packet) => Some(packet),
        _ => None,
    };
    assert!(std::iter::from_fn(&mut leaves).any(|packet| is_sound(&packet)), "no time has passed");
}

#[test]
fn events_and_sound_go_both_ways_until_one_side_hangs_up() {
    let mut line = Line::open();
    line.peer.tell("{\"type\":\"hello\"}");
    assert!(line.call.tell("{\"type\":\"welcome\"}"));
    for number in 0..50 {
        line.call.say(&tone(number), number == 0, line.now);
        line.peer.say(&tone(number), line.now);
        line.pass(4);
    }
    line.pass(40);
    assert_eq!(line.peer.told, ["{\"type\":\"welcome\"}"]);
    assert!(line.news.contains(&News::Told(b"{\"type\":\"hello\"}".to_vec())), "{:?}", line.news.len());
    let heard: Vec<i16> = line
        .news
        .iter()
        .filter_map(|news| if let News::Heard(samples) = news { Some(samples.clone()) } else { None })
        .flatten()
        .collect();
    assert!(heard.len() >= 50 * FRAME, "{}", heard.len());
    assert!(loudness(&heard[5 * FRAME..45 * FRAME]) > 5_000.0);
    assert!(line.peer.heard.len() >= 45 * FRAME && loudness(&line.peer.heard[5 * FRAME..]) > 5_000.0);
    assert!(line.call.is_drained());
    line.call.hang_up();
    line.hung_up = true;
    line.pass(400);
    assert!(line.peer.over);
}

#[test]
fn a_long_message_arrives_whole() {
    let mut line = Line::open();
    let long = "x".repeat(50_000);
    assert!(line.call.largest() >= long.len() && line.call.takes(long.len()));
    assert!(line.call.tell(&long));
    line.peer.tell(&long);
    line.pass(400);
    assert_eq!(line.peer.told, std::slice::from_ref(&long));
    assert!(line.news.contains(&News::Told(long.into_bytes())));
}

#[test]
fn a_peer_that_sends_no_sound_is_silent_as_long() {
    let mut line = Line::open();
    line.peer.say(&tone(0), line.now);
    line.pass(4);
    line.news.clear();
    line.pass(400);
    let silent = line.news.iter().filter(|news| **news == News::Heard(vec![0; FRAME])).count();
    assert!((85..=92).contains(&silent), "{silent} of 100 packets, for the first are waited for");
}

#[test]
fn strangers_get_no_answer_and_change_nothing() {
    let mut line = Line::open();
    let stranger = SocketAddr::from(([203, 0, 113, 9], 99));
    let sent = line.sent;
    let mut packets: Vec<Vec<u8>> = (0..=255u8).map(|first| vec![first; 60]).collect();
    // A check that names the call, without its password.
    let name = format!("{}:x", line.call.name());
    let mut check = vec![0, 1, 0, (name.len().next_multiple_of(4) + 4) as u8, 0x21, 0x12, 0xa4, 0x42];
    check.extend([7; 12]);
    check.extend([0, 6, 0, name.len() as u8]);
    check.extend(name.bytes());
    check.resize(check.len().next_multiple_of(4), 0);
    packets.push(check);
    for packet in &packets {
        line.call.receive(stranger, packet, line.now);
        while let Step::Send(to, _) = line.call.step() {
            assert_eq!(to, CLIENT);
        }
        // The same from the address of the client.
        line.call.receive(CLIENT, packet, line.now);
    }
    line.pass(2);
    assert!(line.sent <= sent + 2, "{} packets", line.sent - sent);
    line.peer.tell("still");
    line.pass(40);
    assert!(line.news.contains(&News::Told(b"still".to_vec())));
}

#[test]
fn a_client_that_is_not_who_the_offer_says_is_not_heard() {
    // The offer of another client, whose certificate it is to be, with what the first one sends as its own.
    let (_, other, _) = offer();
    let (peer, offer, now) = offer();
    let print = |offer: &str| {
        offer.lines().find(|line| line.starts_with("a=fingerprint:")).map(|line| line.trim().to_owned()).unwrap()
    };
    let mut line = Line::of((peer, offer.replace(&print(&offer), &print(&other)), now));
    line.hung_up = true;
    line.pass(400);
    assert_eq!(line.news, [News::Over]);
    // A weak hash says nothing of who it is, and no hash less.
    let weak = format!("a=fingerprint:sha-1 {}", ["AB"; 20].join(":"));
    let weak = offer.replace(&print(&offer), &weak);
    for offer in [weak, offer.replace(&print(&offer), "a=x")] {
        assert!(matches!(Call::answer(&offer, &[SERVER], 1 << 16, now), Err(OfferError::NoFingerprint)));
    }
}

#[test]
fn a_packet_that_is_not_authentic_takes_no_streams_place() {
    let mut line = Line::open();
    for number in 0..10 {
        line.peer.say(&tone(number), line.now);
        line.pass(4);
    }
    // Those of a stranger who has the client's address and has seen its packets, whose heads say of which section they
    // are.
    line.peer.say(&tone(10), line.now);
    line.peer.pass(line.now);
    let packets: Vec<Vec<u8>> = line.peer.out.iter().map(|(_, packet)| packet.clone()).collect();
    let sound = packets.iter().find(|packet| packet[0] >> 6 == 2 && !(192..224).contains(&packet[1])).unwrap();
    for stream in 0..100u32 {
        let mut forged = sound.clone();
        forged[8..12].copy_from_slice(&stream.to_be_bytes());
        assert!(!line.call.receive(CLIENT, &forged, line.now));
    }
    line.news.clear();
    for number in 11..40 {
        line.peer.say(&tone(number), line.now);
        line.pass(4);
    }
    line.pass(40);
    let heard = line.news.iter().filter(|news| matches!(news, News::Heard(_))).count();
    assert!((29..=45).contains(&heard), "{heard} pieces");
    // The same packet again is none.
    let again = |line: &mut Line| {
        line.news.clear();
        line.call.receive(CLIENT, sound, line.now);
        while let Step::News(news) = line.call.step() {
            assert!(!matches!(news, News::Heard(_)), "a packet that was heard is heard again");
        }
    };
    again(&mut line);
}

#[test]
fn sound_does_not_come_faster_than_it_sounds() {
    let mut line = Line::open();
    line.news.clear();
    for number in 0..1500 {
        line.peer.say(&tone(number), line.now);
        line.peer.pass(line.now);
        if number % 50 == 0 {
            line.pass(1);
        }
    }
    line.pass(40);
    let heard: usize =
        line.news.iter().map(|news| if let News::Heard(samples) = news { samples.len() } else { 0 }).sum();
    // 30 s came in a third of one.
    assert!(heard <= 11 * 24_000, "{heard}");
}

#[test]
fn streams_and_channels_without_a_meaning_are_not_kept() {
    let mut line = Line::hostile();
    // Data for a stream nobody has opened, thousands of them.
    let mut stream = 256u16;
    change(move |packet| {
        let mut packet = packet.to_vec();
        if packet.get(12) == Some(&0) {
            packet[20..22].copy_from_slice(&stream.to_be_bytes());
            stream = stream.wrapping_add(1).max(256);
        }
        packet
    });
    line.peer.tell("lost");
    line.pass(100);
    behave();
    assert!(!line.news.iter().any(|news| matches!(news, News::Told(_))), "a stream beyond the first was read");
    // What SCTP sends again, unchanged, arrives.
    line.pass(2000);
    assert!(line.news.contains(&News::Told(b"lost".to_vec())), "{:?}", line.news);
    for _ in 0..16 {
        line.peer.opens_another();
        line.pass(40);
    }
    assert!(!line.news.contains(&News::Over));
    line.hung_up = true;
    line.peer.opens_another();
    line.pass(40);
    assert!(line.news.contains(&News::Over), "17 channels that mean nothing");
}

#[test]
fn what_is_no_offer_of_a_call_is_told_so() {
    let (_, good, now) = offer();
    let refused = |text: &str| Call::answer(text, &[SERVER], 1 << 16, now).unwrap_err().to_string();
    assert!(refused("").contains("no SDP offer"));
    assert!(refused("v=0\r\nhello\r\n").contains("no SDP offer"));
    let head = good.split("m=").next().unwrap();
    let data = good.split("m=").find(|section| section.starts_with("application")).unwrap();
    let name = data.lines().find_map(|line| line.strip_prefix("a=mid:")).unwrap();
    let group = |line: &str| match line.starts_with("a=group") {
        true => format!("a=group:BUNDLE {name}\r\n"),
        false => format!("{line}\r\n"),
    };
    let head: String = head.lines().map(group).collect();
    assert!(refused(&format!("{head}m={data}")).contains("Opus"), "{}", refused(&format!("{head}m={data}")));
    let many = format!("{good}{}", "m=video 9 UDP/TLS/RTP/SAVPF 96\r\n".repeat(9));
    assert!(matches!(Call::answer(&many, &[SERVER], 1 << 16, now), Err(OfferError::Sections(11))));
    // Addresses of others are not read, and never written to.
    let aimed = format!("{good}a=candidate:1 1 udp 2130706431 203.0.113.9 7 typ host\r\na=candidate:nonsense\r\n");
    let (mut call, _) = Call::answer(&aimed, &[SERVER], 1 << 16, now).unwrap();
    call.pass(now + Duration::from_secs(1));
    assert!(!matches!(call.step(), Step::Send(..)));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn broken_offers_do_no_harm(at in 0usize..4000, byte: u8, cut in 0usize..4000) {
        let (_, good, now) = offer();
        let mut bytes = good.into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        let cut = cut % bytes.len();
        let _ = Call::answer(&String::from_utf8_lossy(&bytes), &[SERVER], 1 << 16, now);
        bytes.drain(at.min(cut)..at.max(cut));
        let _ = Call::answer(&String::from_utf8_lossy(&bytes), &[SERVER], 1 << 16, now);
    }
}
