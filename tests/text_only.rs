//! A request that wants text only takes none of the ways of speech: nothing is handed to the speech stages, copied or
//! launched for it. Counted by the engine's own metrics, which are of the whole process: this file is one test.
#![allow(clippy::unwrap_used)]

#[path = "support/engine.rs"]
mod support;

use omni_actors::config::Placement;
use omni_actors::core::ids::Frames;
use omni_actors::engine::{Engine, Output, Service};
use std::collections::BTreeMap;
use std::time::Duration;
use support::{chat, collect, engine, idle, tiny};

type Counts = BTreeMap<String, f64>;

/// What speech is made of, by series, over all processes.
async fn counted(engine: &Engine) -> Counts {
    const KEPT: [&str; 6] = [
        "omni_payloads_total",
        "omni_payload_bytes_total",
        "omni_copies_total",
        "omni_copy_bytes_total",
        "omni_stage_steps_total",
        "omni_stage_units_total",
    ];
    let text = engine.metrics().await;
    let series = text.lines().filter(|line| KEPT.iter().any(|name| line.starts_with(name)));
    let series = series.filter_map(|line| line.rsplit_once(' '));
    series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// What of it has grown and is none of a text's: all but the steps of the thinker and the tokens that it sends to the client.
fn grown(before: &Counts, now: &Counts) -> Vec<String> {
    let of_text = |name: &str| {
        name.contains("stage=\"thinker\"") && (name.contains("kind=\"tokens\"") || name.starts_with("omni_stage_"))
    };
    let more = |name: &String, value: f64| value > before.get(name).copied().unwrap_or(0.0);
    now.iter().filter(|(name, value)| more(name, **value) && !of_text(name)).map(|(name, _)| name.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_only_request_takes_none_of_the_ways_of_speech() {
    // Processes first: what this process counts itself hides what others count under the same name.
    for placement in [Placement::Process, Placement::Thread] {
        let engine = engine(&tiny(), |config| {
            config.stages.iter_mut().for_each(|stage| stage.placement = placement);
        })
        .await;
        let before = counted(&engine).await;
        for words in ["hello there", "and again", "once more"] {
            let mut request = chat(words, Output::Text);
            request.max_text_tokens = Some(20);
            let answer = collect(engine.submit(request).await.unwrap()).await;
            assert!(!answer.text.is_empty() && answer.end.unwrap().is_ok());
        }
        idle(&engine).await;
        let after = counted(&engine).await;
        assert_eq!(grown(&before, &after), Vec::<String>::new(), "{placement:?}");
        let thinks = "omni_stage_steps_total{stage=\"thinker\"}";
        assert!(after[thinks] > before.get(thinks).copied().unwrap_or(0.0), "{placement:?}: the counters count");

        // The same counters, when the same is spoken.
        let mut spoken = chat("hello there", Output::TextAndAudio);
        (spoken.max_text_tokens, spoken.max_frames) = (Some(20), Some(Frames(5)));
        assert!(collect(engine.submit(spoken).await.unwrap()).await.end.unwrap().is_ok());
        let grown = grown(&before, &counted(&engine).await);
        for series in [
            "payloads_total{stage=\"thinker\",kind=\"sequences\"}",
            "payloads_total{stage=\"talker\",kind=\"codes\"}",
            "steps_total{stage=\"vocoder\"}",
        ] {
            assert!(grown.iter().any(|name| name.ends_with(series)), "{placement:?}: {series} is not among {grown:?}");
        }
        engine.drain(Duration::from_secs(5)).await;
    }
}
