//! What a conversation costs as it grows: the time to the first token of each turn, with the prompts that the thinker
//! keeps and without.
//!
//! `cargo bench --bench turns` talks for 20 turns with the thinker of the default voice through the whole engine, without
//! HTTP: some 70 characters of the user and an answer of 24 tokens each. It prints positions of the prompt and the median
//! of the times of several conversations, of which none begins like another.
#![allow(clippy::unwrap_used)]

#[path = "support/tests.rs"]
mod support;

use omni_actors::core::ids::StageName::Thinker;
use omni_actors::engine::{ChatMessage, Engine, Event, GenerateRequest, Output, Service};
use std::time::{Duration, Instant};
use support::engine::{chat, engine, voice};

const TURNS: usize = 20;
const CONVERSATIONS: usize = 5;

#[tokio::main]
async fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("thinker of the default voice, f32, {cores} cores, median of {CONVERSATIONS} conversations\n");
    println!("{:>6}{:>11}{:>16}{:>16}{:>9}", "turn", "positions", "nothing kept", "kept", "times");
    let nothing = measure(0).await;
    let kept = measure(256 << 20).await;
    for (turn, ((positions, without), (_, with))) in nothing.iter().zip(&kept).enumerate() {
        if turn % 5 == 4 || turn == 0 {
            let ms = |time: &Duration| time.as_secs_f64() * 1e3;
            let times = ms(without) / ms(with);
            println!("{:>6}{positions:>11}{:>13.2} ms{:>13.2} ms{times:>9.1}", turn + 1, ms(without), ms(with));
        }
    }
}

/// Of each turn the positions of its prompt, and the median time to its first token.
async fn measure(kept_prompts: usize) -> Vec<(u32, Duration)> {
    let engine = engine(&voice(), |config| config.stages[Thinker as usize].kept_prompts = kept_prompts).await;
    let mut conversations = Vec::new();
    // The first one warms up.
    for number in 0..=CONVERSATIONS {
        conversations.push(talk(&engine, number).await);
    }
    let of = |turn: usize| {
        let mut times: Vec<_> = conversations[1..].iter().map(|turns: &Vec<_>| turns[turn]).collect();
        times.sort_unstable_by_key(|(_, time)| *time);
        times[times.len() / 2]
    };
    (0..TURNS).map(of).collect()
}

async fn talk(engine: &Engine, number: usize) -> Vec<(u32, Duration)> {
    let (mut messages, mut turns) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let text = format!("{number}. In turn {turn} of our talk I ask about a thing that you have not told.");
        messages.push(ChatMessage::text("user", text));
        let request = GenerateRequest {
            messages: messages.clone(),
            max_text_tokens: Some(24),
            ignore_eos: true,
            ..chat("", Output::Text)
        };
        let began = Instant::now();
        let mut stream = engine.submit(request).await.unwrap();
        let (mut first, mut answer, mut positions) = (None, String::new(), 0);
        while let Some(event) = stream.next().await {
            match event {
                Event::Text(text) => {
                    first.get_or_insert(began.elapsed());
                    answer.push_str(&text);
                }
                Event::Finished { usage, .. } => positions = usage.prompt_tokens,
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        turns.push((positions, first.unwrap_or_else(|| began.elapsed())));
        messages.push(ChatMessage::text("assistant", answer));
    }
    turns
}
