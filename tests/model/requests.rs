//! The golden requests of Qwen3-Omni, text alone or with media, and the nets that they run on.

use crate::support::sequences::step;
use candle_core::{Device, Tensor};
use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::model::Checkpoint;
use omni_actors::model::media::{MediaKind, MediaLayout, MediaRows, Positions, Span};
use omni_actors::model::prompt::ChatPrompt;
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    SequenceOutput, SequenceSpec, StageData, StageFactory, StageModel, TalkerSpec, ThinkerMode, ThinkerSpec,
};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::stages::thinker::ThinkerFactory;
use omni_actors::model::talker::{Talker, TalkerPrompt};
use omni_actors::model::thinker::Thinker;
use omni_actors::model::towers::Towers;
use omni_actors::tools::verify::{Data, Values, read_values};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

pub const FIXTURE: &str = "tests/fixtures/qwen3_omni";

/// The nets of the fixture, with towers.
pub static TINY: LazyLock<Nets> = LazyLock::new(|| Nets::load(FIXTURE, &json!({})));
/// The nets of the embedded voice, which has no towers.
pub static VOICE: LazyLock<Nets> = LazyLock::new(|| Nets::load("assets/voice/checkpoint", &json!({})));

pub struct Nets {
    pub checkpoint: Checkpoint,
    pub thinker: Arc<Thinker>,
    pub talker: Arc<Talker>,
    pub towers: Towers,
}

impl Nets {
    pub fn load(folder: &str, overrides: &Value) -> Nets {
        let checkpoint = Checkpoint::open_with(&path(folder), overrides.as_object().unwrap()).unwrap();
        let config = checkpoint.omni().unwrap();
        let loader = checkpoint.loader(&["thinker", "talker", "thinker.audio_tower", "thinker.visual"], &Device::Cpu);
        let thinker = Arc::new(Thinker::load(&loader, &config.thinker).unwrap());
        let talker = Arc::new(Talker::load(&loader, checkpoint.family()).unwrap());
        let towers = Towers::load(&loader, &config.thinker).unwrap();
        loader.finish().unwrap();
        Nets { thinker, talker, towers, checkpoint }
    }

    pub fn thinker(&self) -> Box<dyn StageModel> {
        ThinkerFactory::new(self.thinker.clone()).build().unwrap()
    }

    pub fn talker(&self) -> Box<dyn StageModel> {
        TalkerFactory::new(self.talker.clone()).build().unwrap()
    }
}

pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// Written requests to the embedded voice, four by each of its speakers.
pub const VOICE_GOLDENS: [&str; 12] = [
    "voice_heart_0",
    "voice_heart_1",
    "voice_heart_2",
    "voice_heart_3",
    "voice_alto_0",
    "voice_alto_1",
    "voice_alto_2",
    "voice_alto_3",
    "voice_tenor_0",
    "voice_tenor_1",
    "voice_tenor_2",
    "voice_tenor_3",
];

/// A golden request with one clip and one picture at most, and what came of it.
pub struct Golden {
    pub nets: &'static Nets,
    pub thinker: ThinkerSpec,
    pub talker: TalkerSpec,
    /// Embeddings of its media, in the order of the prompt.
    pub rows: Vec<MediaRows>,
    pub tensors: Values,
}

impl Golden {
    pub fn read(name: &str) -> Golden {
        let (nets, folder) = if name.starts_with("voice") {
            (&*VOICE, "assets/voice/golden")
        } else {
            (&*TINY, "tests/fixtures/qwen3_omni/golden")
        };
        let file = |ending: &str| std::fs::read(path(&format!("{folder}/{name}.{ending}"))).unwrap();
        let tensors = read_values(&file("safetensors")).unwrap();
        let manifest: Value = serde_json::from_slice(&file("json")).unwrap();
        let number = |key: &str| manifest["meta"][key].as_u64().unwrap() as u32;
        let config = nets.checkpoint.omni().unwrap();
        let prompt = ChatPrompt::from_ids(tensors["input_ids"].tokens().unwrap(), &config.tokens).unwrap();
        let speaker = config.talker.speaker(manifest["meta"]["speaker"].as_str().unwrap()).unwrap();
        let mut talker_prompt = TalkerPrompt::omni(prompt.user_embeddings, speaker, &config.talker.tokens);
        let (spans, rows) = media(nets, &tensors, &prompt.ids);
        let mut layout = None;
        if !spans.is_empty() {
            // Pictures have positions of their own.
            let own = |name: &str| tensors.contains_key("in.pixel_values").then(|| positions(&tensors, name));
            let emitted: Vec<u32> = prompt.emit.iter().cloned().flatten().collect();
            let input = |at: u32| emitted.binary_search(&at).unwrap() as u32;
            let ranges = spans.iter().flat_map(|span| span.at.clone());
            let mut ranges: Vec<_> =
                ranges.map(|range| input(range.start as u32)..input(range.end as u32 - 1) + 1).collect();
            ranges.sort_by_key(|range| range.start);
            talker_prompt = talker_prompt.with_media(ranges.into(), own("talker.prefill.position_ids"));
            layout = Some(MediaLayout { positions: own("thinker.prefill.position_ids"), spans }.into());
        }
        Golden {
            thinker: ThinkerSpec {
                generated_len: 0,
                prompt: prompt.ids,
                mode: ThinkerMode::Sample,
                emit: Some(prompt.emit),
                sampling: SamplingParams::GREEDY,
                eos: vec![number("thinker_eos")].into(),
                max_tokens: number("n_text"),
                seed: 1,
                media: layout,
                reuse: None,
            },
            talker: TalkerSpec {
                generated_len: 0,
                prompt: talker_prompt.into(),
                sampling: SamplingParams { repetition_penalty: 1.05, ..SamplingParams::GREEDY },
                predictor: SamplingParams::GREEDY,
                max_tokens: number("n_frames_limit"),
                min_tokens: 0,
                ignore_eos: false,
                seed: 1,
                forced: None,
                owner: None,
            },
            rows,
            tensors,
            nets,
        }
    }

    pub fn answer(&self) -> Vec<u32> {
        self.tensors["thinker.sequences"].tokens().unwrap().split_off(self.thinker.prompt.len())
    }

    /// Frame after frame.
    pub fn codes(&self) -> Vec<Vec<u32>> {
        let codes = &self.tensors["codes"];
        let (frames, all) = (codes.shape[2], codes.tokens().unwrap());
        (0..frames).map(|f| all.iter().skip(f).step_by(frames).copied().collect()).collect()
    }

    /// The embeddings of media in pieces of `piece`.
    pub fn pieces(&self, piece: usize) -> Vec<StageData> {
        let all = self.rows.iter().map(|rows| rows.joined().unwrap());
        let cut = |rows: Tensor| -> Vec<Tensor> {
            let n = rows.dims()[0];
            (0..n).step_by(piece).map(|at| rows.narrow(0, at, piece.min(n - at)).unwrap()).collect()
        };
        all.flat_map(cut).map(|rows| StageData::Embeddings(rows.into())).collect()
    }

    /// The answer of `spec`, what the talker gets, and why it ended, with the prompt in pieces of `chunk` positions and
    /// media in pieces of `piece` embeddings.
    pub fn think(&self, spec: &ThinkerSpec, chunk: u32, piece: usize) -> (Vec<u32>, Vec<Tensor>, Option<FinishReason>) {
        let mut stage = self.nets.thinker();
        stage.open(Slot(0), SequenceSpec::Thinker(spec.clone())).unwrap();
        for input in self.pieces(piece) {
            stage.push_input(Slot(0), Some(input), false).unwrap();
        }
        if spec.media.is_some() {
            stage.push_input(Slot(0), None, true).unwrap();
        }
        let (mut answer, mut emitted, mut left) = (vec![], vec![], spec.prompt.len() as u32);
        loop {
            let advance = if left > 0 { chunk.min(left) } else { 1 };
            left -= advance.min(left);
            let output = step(&mut *stage, 0, advance);
            emitted.extend(embeddings(&output));
            answer.extend(output.sampled);
            if output.finish.is_some() {
                return (answer, emitted, output.finish);
            }
        }
    }
}

/// Where the media of a prompt stand, and their embeddings.
fn media(nets: &Nets, tensors: &Values, prompt: &[u32]) -> (Vec<Span>, Vec<MediaRows>) {
    let tokens = &nets.checkpoint.omni().unwrap().thinker.media;
    let (mut spans, mut rows) = (Vec::new(), Vec::new());
    let mut add = |kind, token: Option<u32>, encoded: MediaRows| {
        let at: Vec<usize> = (0..prompt.len()).filter(|at| Some(prompt[*at]) == token).collect();
        assert_eq!(at.len(), encoded.rows.dims()[0], "one span of one run");
        spans.push(Span { kind, at: std::iter::once(at[0]..at[at.len() - 1] + 1).collect() });
        rows.push(encoded);
    };
    if let Some(features) = tensor(tensors, "in.input_features") {
        let encoded = nets.towers.audio().unwrap().encode(&features.get(0).unwrap()).unwrap();
        add(MediaKind::Audio, tokens.audio, encoded);
    }
    if let Some(patches) = tensor(tensors, "in.pixel_values") {
        let grid = tensors["in.image_grid_thw"].tokens().unwrap();
        let encoded = nets.towers.vision().unwrap().encode(&patches, [0, 1, 2].map(|i| grid[i] as usize)).unwrap();
        add(MediaKind::Image, tokens.image, encoded);
    }
    (spans, rows)
}

fn positions(tensors: &Values, name: &str) -> Positions {
    let all: Vec<f32> = tensors[name].tokens().unwrap().iter().map(|position| *position as f32).collect();
    let len = all.len() / 3;
    let delta = all.iter().fold(0f32, |max, position| max.max(*position)) + 1.0 - len as f32;
    Positions { axes: [0, 1, 2].map(|axis| all[axis * len..(axis + 1) * len].to_vec()), delta }
}

pub fn tensor(tensors: &Values, name: &str) -> Option<Tensor> {
    let value = tensors.get(name)?;
    let Data::Floats(data) = &value.data else { panic!("{name} has whole numbers") };
    Some(Tensor::from_slice(data, value.shape.as_slice(), &Device::Cpu).unwrap())
}

/// The embeddings that a step hands to the talker: one tensor or none.
pub fn embeddings(output: &SequenceOutput) -> Vec<Tensor> {
    match &output.emit {
        Some(StageData::Embeddings(emitted)) => vec![emitted.tensor().unwrap()],
        None => vec![],
        other => panic!("expected embeddings, got {other:?}"),
    }
}

/// The bits of all numbers of `parts`, one part after the other.
pub fn bits(parts: &[Tensor]) -> Vec<u32> {
    let all = Tensor::cat(parts, 0).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    all.into_iter().map(f32::to_bits).collect()
}
