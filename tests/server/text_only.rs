//! A request that wants text only takes none of the ways of speech: nothing is handed to the speech stages, copied or
//! launched for it. The server's own metrics count that.

use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving};
use crate::support::wait::PATIENCE;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

type Counts = BTreeMap<String, f64>;

/// All series once no stage has a sequence, those of stage processes included.
fn counted(serving: &Serving) -> Counts {
    let began = Instant::now();
    loop {
        let text = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(&serving.url).body).unwrap();
        let series = text.lines().filter(|line| line.starts_with("omni_")).filter_map(|line| line.rsplit_once(' '));
        let counts: Counts = series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect();
        // A process that did not answer in time is not among them.
        let idle = |stage| counts.get(&format!("omni_stage_sequences{{stage=\"{stage}\"}}")) == Some(&0.0);
        if ["thinker", "talker", "vocoder"].into_iter().all(idle) {
            return counts;
        }
        assert!(began.elapsed() < PATIENCE, "the stages are not idle:\n{text}");
    }
}

/// What speech is made of and has grown: all but the steps of the thinker and the tokens that it sends to the client.
fn grown(before: &Counts, now: &Counts) -> Vec<String> {
    const KINDS: [&str; 6] = [
        "omni_payloads_total",
        "omni_payload_bytes_total",
        "omni_copies_total",
        "omni_copy_bytes_total",
        "omni_stage_steps_total",
        "omni_stage_units_total",
    ];
    let of_speech = |name: &str| {
        let of_text =
            name.contains("stage=\"thinker\"") && (name.contains("kind=\"tokens\"") || name.starts_with("omni_stage_"));
        KINDS.iter().any(|kind| name.starts_with(kind)) && !of_text
    };
    let more = |name: &String, value: f64| value > before.get(name).copied().unwrap_or(0.0);
    now.iter().filter(|(name, value)| of_speech(name) && more(name, **value)).map(|(name, _)| name.clone()).collect()
}

fn chat(serving: &Serving, text: &str, wanted: &[&str]) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": text}], "modalities": wanted,
        "audio": {"format": "wav", "max_new_tokens": 5},
        "max_tokens": 20, "temperature": 0, "seed": 1,
    });
    let reply = Ask::json("/v1/chat/completions", &body).send(&serving.url);
    assert_eq!(reply.status, 200, "{}", reply.json());
    reply.json()["choices"][0]["message"].clone()
}

#[test]
fn a_text_only_request_takes_none_of_the_ways_of_speech() {
    for placement in ["thread", "process"] {
        let places = ["thinker", "talker", "vocoder"].map(|stage| format!("stages.{stage}.placement={placement}"));
        let mut args = vec!["run", "--listen", "127.0.0.1:0", "--set", "model.checkpoint=tests/fixtures/qwen3_omni"];
        args.extend(places.iter().flat_map(|place| ["--set", place.as_str()]));
        let serving = Omni::new().arguments(&args).serve().ready();
        let before = counted(&serving);
        for words in ["hello there", "and again", "once more"] {
            let message = chat(&serving, words, &["text"]);
            assert!(!message["content"].as_str().unwrap().is_empty(), "{message}");
        }
        let after = counted(&serving);
        assert_eq!(grown(&before, &after), Vec::<String>::new(), "{placement}");
        let thinks = "omni_stage_steps_total{stage=\"thinker\"}";
        assert!(after[thinks] > before.get(thinks).copied().unwrap_or(0.0), "{placement}: the counters count");

        // The same counters, when the same is spoken.
        chat(&serving, "hello there", &["text", "audio"]);
        let grown = grown(&before, &counted(&serving));
        for series in [
            "payloads_total{stage=\"thinker\",kind=\"embeddings\"}",
            "payloads_total{stage=\"talker\",kind=\"codes\"}",
            "steps_total{stage=\"vocoder\"}",
        ] {
            assert!(grown.iter().any(|name| name.ends_with(series)), "{placement}: {series} is not among {grown:?}");
        }
    }
}
