//! What a prompt and a token cost the thinker of Qwen3-Omni-30B-A3B at its real size, with random weights, on a GPU.
//!
//! `cargo bench --features cuda --bench prefill`, on a machine with a GPU of 80 GB. Prompts of text in passes of several
//! sizes (`stages.thinker.prefill_chunk`), one at a time: from the first launch to the token that the prompt gives, and
//! the time on the device. Then tokens behind the longest prompt. The first tokens must not depend on the passes.
#![allow(clippy::unwrap_used)]

#[path = "support/omni_30b.rs"]
mod omni_30b;

use omni_actors::config::Precision;
use omni_actors::core::ids::Slot;
use omni_actors::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{SequenceSpec, SequenceWork, StageFactory, StageModel, ThinkerMode, ThinkerSpec};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROMPTS: [u32; 5] = [20, 112, 300, 1024, 3120];
const PASSES: [u32; 4] = [256, 512, 1024, 2048];
const TOKENS: u32 = 40;
const ROUNDS: usize = 5;

fn main() {
    let Some((gpu, checkpoint)) = omni_30b::open() else { return };
    let loader = checkpoint.loader(&["thinker"], &candle_core::Device::Cpu);
    let net = ThinkerNet::load(&gpu, Precision::Bf16, &loader, &checkpoint.omni().unwrap().thinker).unwrap();
    let net = Arc::new(net);
    let mut said: [Option<Vec<u32>>; PROMPTS.len()] = Default::default();
    for pass in PASSES {
        let options = ThinkerOptions {
            slots: 2,
            batch: 2,
            prefill_chunk: pass as usize,
            run_ahead: 1,
            kv_memory: Some(1 << 30),
            embeddings_in_step: false,
            persistent: Some(ThinkerOptions::PERSISTENT),
        };
        let mut model = CudaThinkerFactory::new(Arc::clone(&net), options).build().unwrap();
        for (prompt, before) in PROMPTS.iter().zip(&mut said) {
            let mut runs: Vec<Run> = (0..=ROUNDS).map(|_| run(&mut *model, *prompt, pass)).collect();
            // The first one warms up.
            let first = runs.remove(0);
            let tokens = before.get_or_insert_with(|| first.tokens.clone());
            assert!(runs.iter().chain([&first]).all(|run| run.tokens == *tokens), "the passes change what is said");
            println!(
                "passes of {pass:4}, a prompt of {prompt:4}: {:7.2} ms, on the device {:7.2} ms; a token behind it {:.3} ms, {:.3} ms",
                median(runs.iter().map(|run| run.prompt)),
                median(runs.iter().map(|run| run.device)),
                median(runs.iter().map(|run| run.token)),
                median(runs.iter().map(|run| run.token_device)),
            );
        }
    }
}

fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// One request.
struct Run {
    /// From its first launch to its token.
    prompt: Duration,
    device: Duration,
    /// Of one token, on average.
    token: Duration,
    token_device: Duration,
    tokens: Vec<u32>,
}

fn run(model: &mut dyn StageModel, prompt: u32, pass: u32) -> Run {
    let slot = Slot(0);
    let sequence = ThinkerSpec {
        generated_len: 0,
        prompt: (0..prompt).map(|i| 100 + i * 7919 % 100_000).collect(),
        mode: ThinkerMode::Sample,
        emit: None,
        sampling: SamplingParams::GREEDY,
        eos: Vec::new().into(),
        max_tokens: TOKENS + 2,
        seed: 7,
        media: None,
        reuse: None,
    };
    model.open(slot, SequenceSpec::Thinker(sequence)).unwrap();
    let mut tokens = Vec::new();
    // The time on the device.
    let mut step = |advance: u32| -> Duration {
        let outcome = model.launch(&[SequenceWork { slot, advance }]).unwrap().wait().unwrap();
        tokens.extend(outcome.sequences.into_iter().filter_map(|sequence| sequence.unwrap().sampled));
        outcome.times.total.unwrap_or_default()
    };
    let begun = Instant::now();
    let (mut left, mut device) = (prompt, Duration::ZERO);
    while left > 0 {
        let advance = pass.min(left);
        device += step(advance);
        left -= advance;
    }
    let of_prompt = begun.elapsed();
    let of_tokens: Duration = (0..TOKENS).map(|_| step(1)).sum();
    let all = begun.elapsed();
    model.close(slot);
    Run { prompt: of_prompt, device, token: (all - of_prompt) / TOKENS, token_device: of_tokens / TOKENS, tokens }
}
