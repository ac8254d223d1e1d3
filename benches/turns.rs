//! What a conversation costs as it grows: the time to the first token of each turn, and to its first sound, with the
//! prompts that thinker and talker keep and without.
//!
//! `cargo bench --bench turns` talks for 20 turns with the default voice through the whole engine, without HTTP: some 70
//! characters of the user and an answer of 24 tokens each. It prints positions of the thinker's prompt and the median of
//! the times of several conversations, of which none begins like another.
#![allow(clippy::unwrap_used)]

#[path = "support/tests.rs"]
mod support;

use omni_actors::core::ids::Frames;
use omni_actors::core::ids::StageName::{Talker, Thinker};
use omni_actors::engine::{ChatMessage, Engine, Event, GenerateRequest, Output, Service};
use std::time::{Duration, Instant};
use support::engine::{chat, engine, voice};

const TURNS: usize = 20;
const CONVERSATIONS: usize = 5;
/// Bytes that thinker and talker keep.
const KEPT: [[usize; 2]; 3] = [[0, 0], [256 << 20, 0], [256 << 20, 64 << 20]];

#[tokio::main]
async fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("the default voice, f32, {cores} cores, median of {CONVERSATIONS} conversations");
    for (what, output) in [("token", Output::Text), ("sound", Output::TextAndAudio)] {
        println!("\nms to the first {what}, with what is kept by");
        println!("{:>6}{:>11}{:>9}{:>9}{:>9}", "turn", "positions", "none", "thinker", "both");
        let mut measured = Vec::new();
        for kept in KEPT {
            measured.push(measure(output, kept).await);
        }
        for turn in (0..TURNS).filter(|turn| turn % 5 == 4 || *turn == 0) {
            print!("{:>6}{:>11}", turn + 1, measured[0][turn].0);
            measured.iter().for_each(|turns| print!("{:>9.2}", turns[turn].1.as_secs_f64() * 1e3));
            println!();
        }
    }
}

/// Of each turn the positions of its prompt, and the median time to the first part of its answer.
async fn measure(output: Output, kept: [usize; 2]) -> Vec<(u32, Duration)> {
    let keeping = [Thinker, Talker].into_iter().zip(kept);
    let engine = engine(&voice(), |config| {
        keeping.for_each(|(stage, bytes)| config.stages[stage as usize].kept_prompts = bytes);
    })
    .await;
    let mut conversations = Vec::new();
    // The first one warms up.
    for number in 0..=CONVERSATIONS {
        conversations.push(talk(&engine, output, number).await);
    }
    let of = |turn: usize| {
        let mut times: Vec<_> = conversations[1..].iter().map(|turns: &Vec<_>| turns[turn]).collect();
        times.sort_unstable_by_key(|(_, time)| *time);
        times[times.len() / 2]
    };
    (0..TURNS).map(of).collect()
}

async fn talk(engine: &Engine, output: Output, number: usize) -> Vec<(u32, Duration)> {
    let (mut messages, mut turns) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let text = format!("{number}. In turn {turn} of our talk I ask about a thing that you have not told.");
        messages.push(ChatMessage::text("user", text));
        let request = GenerateRequest {
            messages: messages.clone(),
            max_text_tokens: Some(24),
            max_frames: (output == Output::TextAndAudio).then_some(Frames(4)),
            ignore_eos: true,
            ..chat("", output)
        };
        let began = Instant::now();
        let mut stream = engine.submit(request).await.unwrap();
        let (mut first, mut answer, mut positions) = (None, String::new(), 0);
        while let Some(event) = stream.next().await {
            match event {
                Event::Text(text) => {
                    if output == Output::Text {
                        first.get_or_insert(began.elapsed());
                    }
                    answer.push_str(&text);
                }
                Event::Audio(_) => drop(first.get_or_insert(began.elapsed())),
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
