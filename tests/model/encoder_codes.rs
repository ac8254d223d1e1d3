//! Checkpoints whose encoder of recordings has fewer codes than the decoder: the reference runs them.

use candle_core::{Device, Tensor};
use omni_actors::model::Checkpoint;
use omni_actors::model::frontend::VoiceEncoder;
use omni_actors::model::prompt::{Reference, Speaker, TtsPromptError, TtsRequest};
use omni_actors::tools::verify::{Data, Values, read_values};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

const BASE: &str = "tests/fixtures/qwen3_tts/base";

/// What qwen-tts 0.1.1 makes of the golden recording with the first 64 vectors of each codebook, frame after frame.
#[rustfmt::skip]
const CODES_OF_64: [[u32; 8]; 16] = [
    [26, 27, 54, 24, 11, 14, 10, 61], [26, 44, 40, 24, 0, 19, 51, 27], [9, 6, 1, 7, 25, 36, 51, 52],
    [26, 58, 62, 19, 20, 56, 10, 25], [26, 44, 12, 7, 59, 42, 38, 20], [49, 53, 61, 13, 42, 14, 0, 53],
    [23, 53, 61, 7, 6, 42, 40, 56], [18, 44, 62, 45, 23, 42, 44, 5], [26, 3, 53, 50, 59, 42, 40, 56],
    [26, 12, 31, 24, 41, 42, 31, 61], [18, 62, 19, 42, 0, 22, 21, 34], [60, 29, 31, 53, 0, 32, 51, 27],
    [44, 44, 12, 45, 0, 8, 40, 27], [12, 62, 61, 7, 11, 19, 9, 34], [10, 5, 62, 56, 29, 7, 40, 27],
    [13, 27, 55, 7, 20, 22, 40, 5],
];

/// A copy of the tiny Base checkpoint with another codec.
fn with_codec(
    config: impl FnOnce(&mut Value),
    weights: impl FnOnce(&mut HashMap<String, Tensor>),
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("speech_tokenizer")).unwrap();
    for entry in std::fs::read_dir(BASE).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let (from, to) = (Path::new(BASE).join("speech_tokenizer"), folder.path().join("speech_tokenizer"));
    let mut json: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config(&mut json);
    std::fs::write(to.join("config.json"), json.to_string()).unwrap();
    let mut tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    weights(&mut tensors);
    candle_core::safetensors::save(&tensors, to.join("model.safetensors")).unwrap();
    folder
}

fn golden() -> Values {
    read_values(&std::fs::read("tests/fixtures/qwen3_tts/golden/base_frontend.safetensors").unwrap()).unwrap()
}

fn codes(checkpoint: &Checkpoint) -> Vec<u32> {
    let Data::Floats(pcm) = &golden()["pcm24k"].data else { panic!("samples are floats") };
    VoiceEncoder::load(checkpoint, &Device::Cpu).unwrap().unwrap().codec.encode(pcm).unwrap()
}

/// Asks for speech in a cloned voice, with a transcript if there are codes.
fn prompt(checkpoint: &Checkpoint, codes: Option<Vec<u32>>) -> Result<(), TtsPromptError> {
    let reference = codes.map(|codes| Reference { text: "One".into(), codes: codes.into() });
    let speaker = Speaker::Cloned { x_vector: vec![0.5; 64].into(), reference };
    let request = TtsRequest { text: "Hi", language: None, speaker, instruct: None, non_streaming: None };
    checkpoint.tts_prompter().unwrap().prompt(&request).map(drop)
}

#[test]
fn codebooks_of_fewer_codes_than_the_decoders_give_the_references_codes() {
    let folder = with_codec(
        |json| json["encoder_config"]["codebook_size"] = 64.into(),
        |tensors| {
            let ours = |name: &str| name.starts_with("encoder.quantizer.");
            for (_, book) in tensors
                .iter_mut()
                .filter(|(name, _)| ours(name) && (name.ends_with("embed_sum") || name.ends_with("cluster_usage")))
            {
                *book = book.narrow(0, 0, 64).unwrap().contiguous().unwrap();
            }
        },
    );
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let codes = codes(&checkpoint);
    assert_eq!(codes, CODES_OF_64.as_flattened());
    prompt(&checkpoint, Some(codes)).unwrap();
}

/// The reference speaks with the x-vector of such a voice, and fails where a transcript makes it join the codes.
#[test]
fn an_encoder_with_fewer_codebooks_clones_by_sound_and_refuses_a_transcript_with_the_reason() {
    let of_layer = |name: &str| {
        let layers = name.strip_prefix("encoder.quantizer.acoustic_residual_vector_quantizer.layers.");
        layers.and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok())
    };
    let fewer_books = with_codec(
        |json| json["encoder_config"]["num_quantizers"] = 4.into(),
        |tensors| tensors.retain(|name, _| of_layer(name).is_none_or(|layer| layer < 3)),
    );
    let fewer_used = with_codec(|json| json["encoder_valid_num_quantizers"] = 4.into(), |_| {});
    let want = golden()["ref_code"].tokens().unwrap();
    let want: Vec<u32> = want.chunks(8).flat_map(|frame| frame[..4].to_vec()).collect();
    for folder in [fewer_books, fewer_used] {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let codes = codes(&checkpoint);
        assert_eq!(codes, want, "each codebook quantizes what those before it left");
        prompt(&checkpoint, None).unwrap();
        let refused = prompt(&checkpoint, Some(codes)).unwrap_err();
        assert_eq!(refused.field(), "ref_text");
        assert!(refused.to_string().contains("4 codes per frame and its talker reads 8"), "{refused}");
    }
}
