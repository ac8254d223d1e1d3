//! What is asked: the stages of the tiny checkpoints, and random requests to them.

use super::run::alone;
use candle_core::Device;
use omni_actors::core::ids::StageName;
use omni_actors::core::scheduler::{Pace, SequenceParams};
use omni_actors::model::Checkpoint;
use omni_actors::model::sampling::{SamplingParams, philox};
use omni_actors::model::stage::{SequenceSpec, StageFactory, TalkerSpec, ThinkerMode, ThinkerSpec};
use omni_actors::model::stages::{talker::TalkerFactory, thinker::ThinkerFactory};
use omni_actors::model::talker::{CodecSide, Talker, TalkerPrompt, TextSide, Trailing};
use omni_actors::model::thinker::Thinker;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
/// Random numbers out of a seed.
pub struct Dice {
    seed: u64,
    thrown: u32,
}

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice { seed, thrown: 0 }
    }

    pub fn word(&mut self) -> u32 {
        self.thrown += 1;
        philox::block([self.thrown, 0, 77, 0], [self.seed as u32, (self.seed >> 32) as u32])[0]
    }

    /// One of `from..=to`.
    pub fn int(&mut self, from: u32, to: u32) -> u32 {
        from + ((u64::from(self.word()) * u64::from(to - from + 1)) >> 32) as u32
    }

    pub fn one_in(&mut self, count: u32) -> bool {
        self.int(1, count) == 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.int(0, from.len() as u32 - 1) as usize]
    }

    pub fn sampling(&mut self) -> SamplingParams {
        let penalized = !self.one_in(3);
        let mut penalty = |off: f32, choices: &[f32]| if penalized { self.pick(choices) } else { off };
        let (repetition_penalty, frequency_penalty, presence_penalty) = (
            penalty(1.0, &[0.8, 1.0, 1.05, 1.3, 3.0]),
            penalty(0.0, &[0.0, 0.1, 0.7, -0.3]),
            penalty(0.0, &[0.0, 0.2, 1.5, -0.4]),
        );
        SamplingParams {
            temperature: self.pick(&[0.0, 0.3, 0.7, 0.9, 1.0, 1.6]),
            top_k: self.pick(&[0, 1, 3, 20, 50, 400]),
            top_p: self.pick(&[0.3, 0.8, 0.95, 1.0, 1.0]),
            min_p: self.pick(&[0.0, 0.0, 0.05, 0.3]),
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
        }
    }
}

/// A request to one stage, and what it is fed.
#[derive(Clone)]
pub struct Ask {
    pub spec: SequenceSpec,
    pub params: SequenceParams,
    pub text: Vec<u32>,
}

/// A stage, and what may be asked of it.
pub struct Stage {
    pub name: StageName,
    pub factory: Box<dyn StageFactory>,
    pub ask: Box<dyn Fn(&mut Dice) -> Ask>,
}

pub fn on_cuda() -> bool {
    std::env::var("OMNI_TEST_DEVICE").as_deref() == Ok("cuda")
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn talker_factory(checkpoint: &Checkpoint) -> Box<dyn StageFactory> {
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    if on_cuda() {
        return cuda::talker(&loader, checkpoint);
    }
    Box::new(TalkerFactory::new(Arc::new(Talker::load(&loader, checkpoint.family()).unwrap())))
}

fn thinker_factory(checkpoint: &Checkpoint) -> Box<dyn StageFactory> {
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let config = &checkpoint.omni().unwrap().thinker;
    if on_cuda() {
        return cuda::thinker(&loader, config);
    }
    Box::new(ThinkerFactory::new(Arc::new(Thinker::load(&loader, config).unwrap())))
}

#[cfg(feature = "cuda")]
mod cuda {
    use crate::run_ahead::{CHUNK, RUN_AHEAD, SLOTS};
    use omni_actors::config::Precision;
    use omni_actors::cuda::Gpu;
    use omni_actors::cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
    use omni_actors::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
    use omni_actors::model::Checkpoint;
    use omni_actors::model::hf::ThinkerConfig;
    use omni_actors::model::stage::StageFactory;
    use omni_actors::model::weights::Loader;
    use std::sync::Arc;

    pub fn talker(loader: &Loader, checkpoint: &Checkpoint) -> Box<dyn StageFactory> {
        let gpu = Gpu::open(0).unwrap();
        let net = TalkerNet::load(&gpu, Precision::F32, loader, checkpoint.family()).unwrap();
        let options = TalkerOptions {
            async_h2d: true,
            slots: SLOTS as usize,
            buckets: vec![1, 2, 4, 8, 16],
            prefill_chunk: 64.max(CHUNK as usize),
            run_ahead: RUN_AHEAD as usize,
            kv_memory: None,
            text_embeddings: 4096,
            persistent: Some(TalkerOptions::PERSISTENT),
        };
        Box::new(CudaTalkerFactory::new(Arc::new(net), options))
    }

    pub fn thinker(loader: &Loader, config: &ThinkerConfig) -> Box<dyn StageFactory> {
        let gpu = Gpu::open(0).unwrap();
        let net = ThinkerNet::load(&gpu, Precision::F32, loader, config).unwrap();
        let options = ThinkerOptions {
            embeddings_in_step: false,
            slots: SLOTS as usize,
            batch: SLOTS as usize,
            prefill_chunk: CHUNK as usize,
            run_ahead: RUN_AHEAD as usize,
            kv_memory: None,
            persistent: Some(ThinkerOptions::PERSISTENT),
        };
        Box::new(CudaThinkerFactory::new(Arc::new(net), options))
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use omni_actors::model::Checkpoint;
    use omni_actors::model::hf::ThinkerConfig;
    use omni_actors::model::stage::StageFactory;
    use omni_actors::model::weights::Loader;

    pub fn talker(_: &Loader, _: &Checkpoint) -> Box<dyn StageFactory> {
        panic!("OMNI_TEST_DEVICE=cuda needs --features cuda")
    }

    pub fn thinker(_: &Loader, _: &ThinkerConfig) -> Box<dyn StageFactory> {
        panic!("OMNI_TEST_DEVICE=cuda needs --features cuda")
    }
}

/// A talker whose end is the code that it says most often: sequences end early, late and never.
pub fn talker() -> Stage {
    let open = |overrides: &serde_json::Value| {
        let folder = fixture("qwen3_tts/base");
        let checkpoint = Checkpoint::open_with(&folder, overrides.as_object().unwrap()).unwrap();
        let tokens = checkpoint.family().talker().tokens;
        (talker_factory(&checkpoint), tokens.eos, tokens)
    };
    let (factory, ..) = open(&serde_json::json!({}));
    let (_, _, tokens) = open(&serde_json::json!({}));
    let mut model = factory.build().unwrap();
    let mut said = HashMap::<u32, u32>::new();
    let mut dice = Dice::new(1);
    for _ in 0..40 {
        let ask = talker_ask(&mut dice, &tokens, 0);
        alone(&mut *model, &ask).frames.iter().for_each(|frame| *said.entry(frame[0]).or_default() += 1);
    }
    let (end, _) = said.into_iter().max_by_key(|(code, count)| (*count, *code)).unwrap();
    drop(model);
    let (factory, eos, tokens) = open(&serde_json::json!({ "talker_config.codec_eos_token_id": end }));
    assert_eq!(eos, end);
    Stage { name: StageName::Talker, factory, ask: Box::new(move |dice| talker_ask(dice, &tokens, end)) }
}

type CodecTokens = omni_actors::model::hf::CodecTokens;

fn talker_ask(dice: &mut Dice, tokens: &CodecTokens, end: u32) -> Ask {
    const GROUPS: u32 = 8;
    const HIDDEN: u32 = 64;
    const TEXT: u32 = 512;
    let plain = dice.int(0, 8);
    let mut coded =
        vec![(TextSide::Pad, CodecSide::Token(tokens.nothink)), (TextSide::Pad, CodecSide::Token(tokens.think_bos))];
    let (x_vector, reference) = (dice.one_in(2), if dice.one_in(4) { dice.int(1, 20) } else { 0 });
    coded.extend(x_vector.then_some((TextSide::Pad, CodecSide::XVector)));
    coded.extend((0..reference).map(|frame| (TextSide::Pad, CodecSide::Frame(frame))));
    coded.push((TextSide::Bos, CodecSide::Token(tokens.pad)));
    coded.push((TextSide::Input(plain), CodecSide::Token(tokens.bos)));
    let mut prompt = TalkerPrompt::new(plain, coded, dice.pick(&[Trailing::Text, Trailing::Text, Trailing::Pad]));
    if x_vector {
        prompt = prompt.with_x_vector((0..HIDDEN).map(|_| dice.int(0, 100) as f32 * 0.01 - 0.5).collect());
    }
    if reference > 0 {
        prompt = prompt.with_reference((0..reference * GROUPS).map(|_| dice.int(0, 63)).collect());
    }
    let inputs = prompt.inputs();
    // Now and then the text is too short for the prompt: there is nothing to say.
    let len = if dice.one_in(40) { inputs - 1 } else { dice.int(inputs, inputs + 12) };
    let sampling = dice.sampling();
    let forced = dice.one_in(6).then(|| {
        let frames = dice.int(1, 8) * GROUPS;
        (0..frames).map(|at| if at % GROUPS == 0 && dice.one_in(12) { end } else { dice.int(0, 63) }).collect()
    });
    let sequence = TalkerSpec {
        generated_len: 0,
        prompt: Arc::new(prompt),
        sampling,
        predictor: SamplingParams {
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            ..dice.sampling()
        },
        max_tokens: dice.int(1, 16),
        min_tokens: dice.pick(&[0, 0, 2, 6, 30]),
        ignore_eos: dice.one_in(3),
        seed: u64::from(dice.word()) << 32 | u64::from(dice.word()),
        forced,
        owner: None,
    };
    let params = SequenceParams {
        prompt: sequence.prefill_positions(),
        prompt_input: sequence.prefill_embeddings(),
        ..SequenceParams::unprompted(Pace::OnePerStep)
    };
    Ask { spec: SequenceSpec::Talker(sequence), params, text: (0..len).map(|_| dice.int(0, TEXT - 1)).collect() }
}

pub fn thinker() -> Stage {
    let checkpoint = Checkpoint::open(&fixture("qwen3_omni")).unwrap();
    let ask = |dice: &mut Dice| {
        const TOKENS: u32 = 512;
        let len = dice.int(1, 50);
        let emit: Option<Arc<[_]>> = dice.one_in(2).then(|| vec![0..len / 2, len / 2 + len / 4..len].into());
        let prompt_emits = emit.iter().flat_map(|ranges| ranges.iter()).map(|range| range.end - range.start).sum();
        let sequence = ThinkerSpec {
            generated_len: 0,
            prompt: (0..len).map(|_| dice.int(0, TOKENS - 1)).collect(),
            mode: ThinkerMode::Sample,
            emit,
            sampling: dice.sampling(),
            // From none to so many that hardly an answer gets far; a GPU takes up to 12.
            eos: (0..dice.pick(if on_cuda() { &[0, 1, 8, 12] } else { &[0, 1, 20, 100] }))
                .map(|_| dice.int(0, TOKENS - 1))
                .collect(),
            max_tokens: dice.int(1, 24),
            seed: u64::from(dice.word()) << 32 | u64::from(dice.word()),
            media: None,
            reuse: None,
        };
        let params = SequenceParams { prompt: len, prompt_emits, ..SequenceParams::unprompted(Pace::Free) };
        Ask { spec: SequenceSpec::Thinker(sequence), params, text: Vec::new() }
    };
    Stage { name: StageName::Thinker, factory: thinker_factory(&checkpoint), ask: Box::new(ask) }
}
