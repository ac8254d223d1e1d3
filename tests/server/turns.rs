//! Turns of a spoken conversation, against the real binary: that its stages keep them shows in the metrics and in no
//! sample.

use crate::media::{counted, server};
use crate::support::http::Ask;
use crate::support::omni::Serving;
use serde_json::{Value, json};

const TURNS: usize = 3;
const STAGES: [&str; 2] = ["thinker", "talker"];

/// The answers of a conversation, their text and samples, and behind each turn the positions that each stage has found.
fn talk(serving: &Serving) -> (Vec<(Value, Value)>, Vec<[f64; 2]>) {
    let (mut messages, mut answers, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let text = format!("This is turn {turn}, and I would like to know more about it than you have said so far.");
        messages.push(json!({"role": "user", "content": text}));
        let body = json!({
            "messages": messages, "modalities": ["text", "audio"], "seed": 7, "max_tokens": 12,
            "audio": {"format": "pcm16", "max_new_tokens": 6},
        });
        let reply = Ask::json("/v1/chat/completions", &body).send(&serving.url);
        assert_eq!(reply.status, 200, "{}", reply.json());
        let audio = reply.json()["choices"][0]["message"]["audio"].clone();
        assert!(audio["data"].as_str().unwrap().len() > 1000, "turn {turn}");
        messages.push(json!({"role": "assistant", "content": audio["transcript"]}));
        answers.push((audio["transcript"].clone(), audio["data"].clone()));
        let positions = |stage| counted(serving, &format!("omni_prompt_cache_positions_total{{stage=\"{stage}\"}}"));
        found.push(STAGES.map(positions));
    }
    (answers, found)
}

#[test]
fn thinker_and_talker_find_the_turns_before_and_say_what_they_say_without() {
    let (expected, nothing) = talk(&server("[stages.thinker]\nkept_prompts = 0\n[stages.talker]\nkept_prompts = 0\n"));
    assert_eq!(nothing, [[0.0; 2]; TURNS]);
    let (answers, found) = talk(&server(""));
    assert!(answers == expected, "other answers");
    for (stage, name) in STAGES.into_iter().enumerate() {
        let positions: Vec<f64> = found.iter().map(|found| found[stage]).collect();
        assert!(positions[0] == 0.0 && positions[1] > 0.0, "{name}: {positions:?}");
        assert!(positions[2] - positions[1] > positions[1], "{name}: {positions:?}");
    }
}
