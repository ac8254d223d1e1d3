//! Conversations: events of realtime sessions and packets of calls.

use crate::fuzz;
#[cfg(feature = "webrtc")]
use crate::{Dice, GROWTH, hostile, memory};
use omni_actors::realtime::{Abilities, AnswerPart, Effect, Limits, Opening, Session};
use serde_json::json;
use std::sync::Arc;
#[cfg(feature = "webrtc")]
use std::time::{Duration, Instant};

#[test]
fn realtime_events_are_followed_or_refused_with_words() {
    let abilities = Abilities {
        model: "m".to_owned(),
        hears: true,
        calls: true,
        sees: true,
        default_voice: None,
        frame_ms: 80.0,
        is_model: Arc::new(|name| name == "m"),
        find_voice: Arc::new(|_| Ok(None)),
    };
    let limits = Limits {
        items: 16,
        bytes: 1 << 20,
        audio_ms: 2_000,
        instruction_chars: 100,
        item_chars: 100,
        parts: 4,
        media: 2,
        media_ms: 4_000,
        jobs: 3,
        window_ms: 200,
    };
    let opening = Opening { id: "sess_1".to_owned(), seed: 1, expires_at: 1, abilities, limits, plays: false };
    let sound = "AAAA".repeat(2_000);
    let item = |content: serde_json::Value| {
        json!({"type": "conversation.item.create", "event_id": "e", "previous_item_id": "item_1",
               "item": {"id": "mine", "type": "message", "role": "user", "content": [content]}})
    };
    let good = [
        json!({"type": "session.update", "session": {"type": "realtime", "instructions": "x", "tools": [{"type": "function", "name": "f"}],
            "output_modalities": ["audio"], "max_output_tokens": 7, "seed": 3, "audio": {
                "input": {"format": {"type": "audio/pcm", "rate": 24_000}, "transcription": {"language": "en"},
                    "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 100}},
                "output": {"format": {"type": "audio/pcma"}, "voice": "v", "speed": 1.5}}}}),
        json!({"type": "input_audio_buffer.append", "audio": sound}),
        json!({"type": "input_audio_buffer.commit"}),
        item(json!({"type": "input_text", "text": "Hello"})),
        item(json!({"type": "input_audio", "audio": sound, "transcript": "Hello"})),
        item(json!({"type": "input_image", "image_url": "data:,", "detail": "low"})),
        json!({"type": "response.create", "response": {"conversation": "none", "instructions": "x", "temperature": 0.5,
            "metadata": {"a": "b"}, "input": [{"type": "item_reference", "id": "item_1"}]}}),
        json!({"type": "conversation.item.create", "item": {
            "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}}),
        json!({"type": "conversation.item.create", "item": {
            "type": "function_call_output", "call_id": "c", "output": "x"}}),
        json!({"type": "response.create"}),
        json!({"type": "response.cancel", "response_id": "resp_1"}),
        json!({"type": "conversation.item.truncate", "item_id": "item_2", "content_index": 0, "audio_end_ms": 10}),
        json!({"type": "conversation.item.retrieve", "item_id": "item_1"}),
        json!({"type": "conversation.item.delete", "item_id": "item_1"}),
        json!({"type": "input_audio_buffer.clear"}),
    ];
    fuzz("realtime events", 0.1, |dice| {
        let (mut session, _) = Session::new(opening.clone());
        let mut jobs = Vec::new();
        for _ in 0..24 {
            let event = good[dice.roll(good.len())].to_string();
            let event = if dice.roll(2) == 0 { event.into_bytes() } else { dice.damaged(event.as_bytes()) };
            let effects = match serde_json::from_slice(&event) {
                Ok(event) => session.client_event(event),
                Err(_) => session.go_on(),
            };
            for effect in effects {
                match effect {
                    Effect::Begin(job) => jobs.push(job.id),
                    Effect::Send(sent) => assert!(serde_json::to_string(&sent).is_ok()),
                    Effect::Cancel(_) => {}
                }
            }
            if !jobs.is_empty() {
                let part = match dice.roll(5) {
                    0 => AnswerPart::Started,
                    1 => AnswerPart::Text("word ".to_owned()),
                    2 => AnswerPart::Text("<tool_call>{\"name\": \"f\"}</tool_call>".to_owned()),
                    3 => AnswerPart::Audio(vec![0; 480]),
                    _ => AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() },
                };
                session.answer(jobs[dice.roll(jobs.len())], part);
            }
            assert!(session.bytes() < 2 << 20, "{} bytes", session.bytes());
        }
    });
}

/// A client of a call, which sends what no client should, in front of and behind the encryption.
#[cfg(feature = "webrtc")]
#[test]
fn packets_of_a_call_are_taken_or_dropped() {
    use crate::support::phone::Peer;
    use omni_actors::webrtc::{Call, News, Step, called, crypto::provider};
    let (server, client) = (([192, 0, 2, 1], 8443).into(), ([198, 51, 100, 7], 4242).into());
    let strangers = [([203, 0, 113, 9], 99).into(), client];
    let one = |dice: &mut Dice, harm: usize| {
        let mut now = Instant::now();
        hostile::behave();
        let (mut peer, offer) = Peer::new(hostile::hostile(provider()), client, now);
        let (mut call, answer) = Call::answer(&offer, &[server], 1 << 16, now).unwrap();
        peer.accept(&answer);
        let mut inner = Dice(dice.0);
        if harm > 0 {
            hostile::change(move |packet| if inner.roll(3) == 0 { inner.damaged(packet) } else { packet.to_vec() });
        }
        let (mut over, mut heard, mut before) = (false, 0, Vec::new());
        for _ in 0..150 {
            now += Duration::from_millis(10);
            call.pass(now);
            peer.pass(now);
            if peer.open {
                let _ = peer.try_tell("{}");
                peer.say(&[500; 480], now);
                peer.pass(now);
            }
            if peer.open && dice.roll(40) < harm {
                peer.opens_another();
            }
            for (_, packet) in std::mem::take(&mut peer.out) {
                let _ = called(&packet);
                if dice.roll(4) < harm {
                    let from = strangers[dice.roll(2)];
                    call.receive(from, &dice.damaged(&packet), now);
                }
                if dice.roll(8) < harm && !before.is_empty() {
                    let again: &Vec<u8> = &before[dice.roll(before.len())];
                    call.receive(client, again, now);
                }
                if dice.roll(10) >= harm {
                    call.receive(client, &packet, now);
                }
                if before.len() < 200 {
                    before.push(packet);
                }
            }
            for packet in 0.. {
                assert!(packet < 10_000, "it goes on sending");
                match call.step() {
                    Step::Send(_, packet) => peer.receive(server, &packet, now),
                    Step::News(News::Over) if over => break,
                    Step::News(News::Over) => over = true,
                    Step::News(News::Heard(samples)) => heard += samples.len(),
                    Step::News(_) => {}
                    Step::Wait(until) => {
                        assert!(until >= now || over || packet < 1_000);
                        break;
                    }
                }
            }
        }
        assert!(heard < 24_000 * 13, "{heard} samples in a second and a half");
        heard
    };
    let before = memory("self");
    fuzz("packets of calls", 0.15, |dice| {
        one(dice, 1);
    });
    assert!(memory("self") < before + GROWTH, "it grows");
    assert!(one(&mut Dice(1), 0) > 10_000, "a client like others is heard");
}
