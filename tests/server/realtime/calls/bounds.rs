//! What strangers and clients send that is no call: it takes nothing from the calls that there are.

use super::*;
use tokio::net::UdpSocket;

/// Packets of every kind that shares a port of WebRTC (RFC 7983), none of them whole.
fn nonsense(name: &str) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..=255u8).flat_map(|first| [vec![first; 3], vec![first; 60]]).collect();
    // A check of the call, without its password.
    let name = format!("{name}:x");
    let mut check = vec![0, 1, 0, (name.len().next_multiple_of(4) + 4) as u8, 0x21, 0x12, 0xa4, 0x42];
    check.extend([7; 12]);
    check.extend([0, 6, 0, name.len() as u8]);
    check.extend(name.bytes());
    check.resize(check.len().next_multiple_of(4), 0);
    all.push(check);
    // Records of DTLS: a fatal alert, a handshake that says that it is long, data of an epoch that is to come.
    all.push(vec![21, 254, 253, 0, 0, 0, 0, 0, 0, 0, 9, 0, 2, 2, 40]);
    all.push([&[22u8, 254, 253, 0, 0, 0, 0, 0, 0, 0, 8, 0, 12, 1, 255, 255, 255][..], &[0; 8]].concat());
    all.push([&[23u8, 254, 253, 0, 1, 0, 0, 0, 0, 0, 9, 0, 40][..], &[1; 40]].concat());
    // Sound and reports, which are not authentic.
    all.push([&[0x90u8, 111, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0xbe, 0xde, 0, 1, 0x10, 0x30, 0, 0][..], &[5; 80]].concat());
    all.push([&[0x80u8, 200, 0, 6][..], &[6; 60]].concat());
    all
}

async fn dropped(site: &Site, why: &str) -> f64 {
    let text = site.client.get(format!("{}/metrics", site.url())).send().await.unwrap().text().await.unwrap();
    let name = format!("omni_realtime_dropped_packets_total{{why=\"{why}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_of_strangers_end_no_call_and_get_no_answer() {
    const FRAMES: u32 = 20;
    let site = with(calls).await;
    let (_, sound) = by_socket(&site, FRAMES).await;
    let mut phone = Phone::call(&site.url(), "?seed=11", brief(FRAMES)).await;
    phone.until("session.created").await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let before = dropped(&site, "unknown").await;
    phone.ask("Tell me a story");
    let packets = nonsense(phone.peer.called());
    // While the answer is played, from an address that nobody knows and from the client's own.
    while phone.peer.packets.len() < 40 {
        for packet in &packets {
            stranger.send_to(packet, phone.server).await.unwrap();
        }
        for packet in packets.iter().rev().take(60) {
            phone.socket.send_to(packet, phone.server).await.unwrap();
        }
        for _ in 0..8 {
            phone.turn().await;
        }
    }
    phone.until("output_audio_buffer.stopped").await;
    is_played(&phone.peer.packets, &sound);
    assert!(dropped(&site, "unknown").await > before + 400.0);
    let mut packet = [0; 2048];
    let answer = stranger.into_std().unwrap().recv(&mut packet);
    assert!(answer.is_err(), "a stranger was answered {answer:?}");
    // It is the same call still.
    phone.ask("And now?");
    phone.until("response.done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offers_by_the_hundred_take_the_places_of_calls_until_they_are_too_late() {
    const PLACES: usize = 4;
    let site = with(|config| {
        calls(config);
        let webrtc = &mut config.server.realtime.webrtc;
        (webrtc.max_calls, webrtc.setup_timeout) = (PLACES, Duration::from_secs(1));
    })
    .await;
    let url = site.url();
    let offers = (0..200).map(|_| Phone::try_call(&url, "", brief(2), None));
    let mut taken = Vec::new();
    for outcome in futures::future::join_all(offers).await {
        match outcome {
            Ok(phone) => taken.push(phone),
            Err((status, error)) => {
                assert!(status == 503 && error["code"] == "too_many_connections", "{status} {error}");
            }
        }
    }
    assert!(taken.len() >= PLACES && taken.len() < 200, "{} offers were answered", taken.len());
    // None of them is set up, and then there is room again.
    let wait = async {
        loop {
            match Phone::try_call(&url, "", brief(2), None).await {
                Ok(phone) => return phone,
                Err((status, _)) => assert_eq!(status, 503),
            }
        }
    };
    let mut phone = timeout(PATIENCE, wait).await.expect("no room");
    phone.until("session.created").await;
    phone.ask("Hello");
    phone.until("response.done").await;
}
