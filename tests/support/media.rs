//! Chat turns with sound and pictures: the reference's cases, from their features on.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses its own part")]

use super::engine::{Answer, GREEDY, collect, root};
use crate::support::wait::PATIENCE;
use candle_core::{Device, Tensor};
use omni_actors::core::ids::Frames;
use omni_actors::engine::{ChatMessage, Content, Engine, GenerateRequest, Output, Part, RequestOptions};
use omni_actors::media::Medium;
use omni_actors::media::patches::{PatchConfig, Patches};
use omni_actors::media::picture::Picture;
use omni_actors::media::size::{Size, SizeRule};
use omni_actors::media::spectrum::Spectrum;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

const PATCH: usize = 16;
const MERGE: usize = 2;

/// A case of the reference: what is asked, and what is heard.
pub struct Golden {
    pub messages: Vec<ChatMessage>,
    pub media: Vec<Arc<Medium>>,
    pub voice: String,
    pub text_tokens: u32,
    pub frames: u32,
    pub samples: Vec<f32>,
    pub prompt_tokens: u32,
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn parts(role: &str, parts: Vec<Part>) -> ChatMessage {
    ChatMessage { role: role.into(), content: Content::Parts(parts), calls: Vec::new() }
}

impl Golden {
    /// The cases that a front end could have made: pictures of whole levels.
    pub const CASES: [&str; 6] = [
        "audio_ethan",
        "mm_audio_image_ethan",
        "mm_long_audio_ethan",
        "mm_two_audios_two_turns_aiden",
        "mm_three_images_chelsie",
        "mm_image_avvideo_chelsie",
    ];

    pub fn read(case: &str) -> Golden {
        let folder = root().join("tests/fixtures/qwen3_omni/golden");
        let file = |ending: &str| folder.join(format!("{case}.{ending}"));
        let manifest: Value = serde_json::from_slice(&std::fs::read(file("json")).unwrap()).unwrap();
        let tensors = candle_core::safetensors::load(file("safetensors"), &Device::Cpu).unwrap();
        let mut clips = clips(&tensors).into_iter();
        let pictures = |name: &str, grid: &str| match tensors.get(name) {
            Some(rows) => patches(rows, &tensors[grid]),
            None => Vec::new(),
        };
        let images = pictures("in.pixel_values", "in.image_grid_thw").into_iter().map(Medium::Image);
        let mut images: Vec<_> = images.collect();
        let mut videos = pictures("in.pixel_values_videos", "in.video_grid_thw");
        let mut audio = || Medium::Audio(clips.next().unwrap());
        let hear = "What do you hear in this audio?";
        let (user, media) = match case {
            "audio_ethan" | "mm_long_audio_ethan" => (vec![Part::Audio, text(hear)], vec![audio()]),
            "mm_audio_image_ethan" => (vec![Part::Audio, Part::Image, text(hear)], vec![audio(), images.remove(0)]),
            "mm_two_audios_two_turns_aiden" => (vec![text("What do you hear?"), Part::Audio], vec![audio(), audio()]),
            "mm_three_images_chelsie" => {
                let asked = vec![Part::Image, text("One"), Part::Image, Part::Image, text("What is in the image?")];
                (asked, images)
            }
            "mm_image_avvideo_chelsie" => {
                let seconds = tensors["in.video_second_per_grid"].to_vec1::<f32>().unwrap()[0];
                let sound = clips.next();
                let (frames, second_per_grid) = (videos.remove(0), f64::from(seconds));
                let video = Medium::Video { frames, second_per_grid, sound };
                (vec![Part::Image, Part::Video, text("Describe the video.")], vec![images.remove(0), video])
            }
            other => panic!("{other} is not told here"),
        };
        let mut messages = vec![ChatMessage::text("system", "You are a helpful assistant.")];
        if case == "mm_two_audios_two_turns_aiden" {
            messages.push(parts("user", vec![Part::Audio, text("Good morning!")]));
            messages.push(ChatMessage::text("assistant", "Hello, I am a model."));
        }
        messages.push(parts("user", user));
        let number = |key: &str| manifest["meta"][key].as_u64().unwrap() as u32;
        Golden {
            messages,
            media: media.into_iter().map(Arc::new).collect(),
            voice: manifest["meta"]["speaker"].as_str().unwrap().into(),
            text_tokens: number("n_text"),
            // The last token has no frame.
            frames: number("n_frames_limit") - 1,
            samples: tensors["wav"].flatten_all().unwrap().to_vec1().unwrap(),
            prompt_tokens: tensors["input_ids"].elem_count() as u32,
        }
    }

    pub fn request(&self) -> GenerateRequest {
        GenerateRequest {
            messages: self.messages.clone(),
            media: Vec::new(),
            tools: Vec::new(),
            until_call: false,
            output: Output::TextAndAudio,
            voice: Some(self.voice.clone()),
            text: GREEDY,
            speech: GREEDY,
            max_text_tokens: Some(self.text_tokens),
            max_frames: Some(Frames(self.frames)),
            ignore_eos: false,
            seed: Some(1),
            options: RequestOptions::default(),
        }
    }

    pub async fn ask(&self, engine: &Engine, case: &str) -> Answer {
        let asked = engine.submit_decoded(self.request(), self.media.clone()).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, collect(asked)).await;
        answer.unwrap_or_else(|_| panic!("{case}: the request hangs: {:?}", engine.load()))
    }

    /// Whether an answer is the reference's.
    pub fn check(&self, answer: &Answer, case: &str) {
        let (_, usage) = answer.end.clone().unwrap().unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!((usage.prompt_tokens, usage.frames.0), (self.prompt_tokens, self.frames), "{case}");
        assert_eq!(answer.samples.len(), self.samples.len(), "{case}");
        let worst = answer.samples.iter().zip(&self.samples).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-4, "{case}: differs by {worst}");
    }
}

/// `[clips, bands, frames]`, the shorter clips padded, as a mask tells.
fn clips(tensors: &HashMap<String, Tensor>) -> Vec<Spectrum> {
    let Some(features) = tensors.get("in.input_features") else { return Vec::new() };
    let (count, bands, _) = features.dims3().unwrap();
    let mask = tensors["in.feature_attention_mask"].to_dtype(candle_core::DType::F32).unwrap();
    let frames = mask.sum(1).unwrap().to_vec1::<f32>().unwrap();
    let clip = |i: usize| {
        let own = features.get(i).unwrap().narrow(1, 0, frames[i] as usize).unwrap();
        Spectrum::from_features(&own.contiguous().unwrap().flatten_all().unwrap().to_vec1().unwrap(), bands).unwrap()
    };
    (0..count).map(clip).collect()
}

/// The pictures that rows of patches were cut from.
fn patches(rows: &Tensor, grids: &Tensor) -> Vec<Patches> {
    let grids = grids.to_dtype(candle_core::DType::F32).unwrap().to_vec2::<f32>().unwrap();
    let rows = rows.to_vec2::<f32>().unwrap();
    let mut first = 0;
    let mut all = Vec::new();
    for grid in grids {
        let [t, h, w] = [grid[0] as usize, grid[1] as usize, grid[2] as usize];
        let (height, width) = (h * PATCH, w * PATCH);
        let mut frames = vec![vec![0u8; height * width * 3]; 2 * t];
        for (at, row) in rows[first..first + t * h * w].iter().enumerate() {
            let (step, place) = (at / (h * w), at % (h * w));
            let (block, inside) = (place / (MERGE * MERGE), place % (MERGE * MERGE));
            let y = (block / (w / MERGE) * MERGE + inside / MERGE) * PATCH;
            let x = (block % (w / MERGE) * MERGE + inside % MERGE) * PATCH;
            for (i, value) in row.iter().enumerate() {
                let (channel, frame) = (i / (2 * PATCH * PATCH), i / (PATCH * PATCH) % 2);
                let (dy, dx) = (i / PATCH % PATCH, i % PATCH);
                let level = (value * 127.5 + 127.5).round();
                frames[2 * step + frame][((y + dy) * width + x + dx) * 3 + channel] = level as u8;
            }
        }
        first += t * h * w;
        let config =
            PatchConfig { patch_size: PATCH, merge_size: MERGE, temporal_patch_size: 2, mean: [0.5; 3], std: [0.5; 3] };
        let rule = SizeRule { factor: PATCH * MERGE, min_pixels: 1, max_pixels: 1 << 30 };
        let frames = frames.into_iter().map(|rgb| Picture::new(Size { height, width }, rgb)).collect();
        let cut = Patches::new(frames, &rule, &config).unwrap();
        assert_eq!((cut.grid().t, cut.grid().h, cut.grid().w), (t, h, w));
        all.push(cut);
    }
    all
}
