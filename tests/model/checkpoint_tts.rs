//! Qwen3-TTS checkpoints: what the configs say, and what is refused.

use candle_core::{DType, Device};
use omni_actors::core::ids::StageName;
use omni_actors::model::Checkpoint;
use omni_actors::model::hf::{Family, TtsConfig, Variant};
use serde_json::{Map, Value, json};
use std::path::Path;

const BASE: &str = "tests/fixtures/qwen3_tts/base";
const CUSTOM: &str = "tests/fixtures/qwen3_tts/custom_voice";

fn read(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tiny(folder: &str) -> [Value; 2] {
    [read(&format!("{folder}/config.json")), read(&format!("{folder}/speech_tokenizer/config.json"))]
}

#[test]
fn a_folder_tells_family_variant_and_size() {
    let custom = Checkpoint::open(Path::new(CUSTOM)).unwrap();
    assert_eq!(custom.family().stages(), [StageName::Talker, StageName::Vocoder]);
    let config = custom.tts().unwrap();
    assert_eq!(config.variant, Variant::CustomVoice);
    assert!(config.follows_instructions);
    assert_eq!((config.talker.text.hidden_size, config.talker.predictor.hidden_size), (64, 48));
    assert_eq!((config.languages["english"], config.dialects["dylan"]), (130, 154));
    assert!(!config.languages.contains_key("beijing_dialect"));
    let base = Checkpoint::open(Path::new(BASE)).unwrap();
    let config = base.tts().unwrap();
    assert_eq!((config.variant, config.speaker_encoder.is_some()), (Variant::Base, true));
    assert!(base.omni().unwrap_err().to_string().contains("is a Qwen3-TTS model"));
    assert_eq!((base.generation().talker_min_tokens, base.generation().talker_max_tokens), (2, 8192));
}

#[test]
fn the_configs_of_the_real_models_are_understood() {
    let parse = |name: &str| {
        let folder = format!("configs/models/Qwen3-TTS-12Hz-{name}");
        let [config, codec] =
            ["config.json", "speech_tokenizer/config.json"].map(|file| read(&format!("{folder}/{file}")));
        TtsConfig::parse(&config, &codec).unwrap()
    };
    let small = parse("0.6B-CustomVoice");
    assert_eq!((small.talker.text.hidden_size, small.follows_instructions), (1024, false));
    let large = parse("1.7B-CustomVoice");
    assert_eq!((large.talker.text.hidden_size, large.follows_instructions), (2048, true));
    assert_eq!((large.talker.speakers["vivian"], large.talker.tokens.think), (3065, Some(2154)));
    assert_eq!(parse("1.7B-VoiceDesign").variant, Variant::VoiceDesign);
    for base in ["0.6B-Base", "1.7B-Base"] {
        assert_eq!(parse(base).speaker_encoder.unwrap().enc_dim, parse(base).talker.text.hidden_size);
    }
}

#[test]
fn a_config_that_does_not_add_up_is_refused_with_the_field() {
    let cases = [
        (0, "/tokenizer_type", json!("qwen3_tts_tokenizer_25hz"), "use one of the 12Hz checkpoints"),
        (0, "/tts_model_type", json!("karaoke"), "tts_model_type = \"karaoke\": expected \"custom_voice\""),
        (0, "/talker_config/text_hidden_size", Value::Null, "talker_config.text_hidden_size is missing"),
        (0, "/talker_config/codec_think_id", Value::Null, "codec_think_id is missing"),
        (0, "/talker_config/spk_id", json!({}), "spk_id is empty"),
        (0, "/talker_config/spk_is_dialect/dylan", json!("martian"), "\"martian\" is not in codec_language_id"),
        (0, "/talker_config/codec_language_id/english", json!(9999), "(english) = 9999 is outside the talker's"),
        (0, "/tts_eos_token_id", json!(100_000), "outside the vocabulary of text"),
        (1, "/decoder_config/num_quantizers", json!(4), "differs from speech_tokenizer decoder_config.num_quantizers"),
        (1, "/decoder_config/latent_dim", Value::Null, "speech_tokenizer/config.json: decoder_config.latent_dim"),
        (1, "/encoder_config/codebook_size", json!(129), "codebook_size = 129 is more than 128 of decoder_config"),
        (1, "/decoder_config/num_quantizers", json!(1), "num_quantizers = 1: expected at least 2"),
        (1, "/decoder_config/num_semantic_quantizers", json!(2), "num_semantic_quantizers = 2 is not served"),
        (1, "/output_sample_rate", json!(48_000), "output_sample_rate = 48000: expected 24000"),
        (1, "/decode_upsample_rate", json!(960), "decode_upsample_rate = 960: expected 1920"),
    ];
    for (file, pointer, value, expected) in cases {
        let mut configs = tiny(CUSTOM);
        *configs[file].pointer_mut(pointer).unwrap() = value;
        let said = TtsConfig::parse(&configs[0], &configs[1]).unwrap_err().join("\n");
        assert!(said.contains(expected), "{pointer}: {said}");
    }
}

#[test]
fn a_speaker_encoder_of_another_width_is_refused() {
    let mut configs = tiny(BASE);
    configs[0]["speaker_encoder_config"]["enc_dim"] = json!(65);
    let said = TtsConfig::parse(&configs[0], &configs[1]).unwrap_err().join("\n");
    assert!(said.contains("enc_dim = 65 differs from talker_config.hidden_size = 64"), "{said}");
}

#[test]
fn a_folder_without_its_codec_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(Path::new(BASE).join(file), folder.path().join(file)).unwrap();
    }
    let said = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(said.contains("speech_tokenizer") && said.contains("was the download interrupted?"), "{said}");
}

#[test]
fn the_variant_can_be_overridden_as_the_goldens_do() {
    let change = Map::from_iter([("tts_model_type".to_owned(), json!("voice_design"))]);
    let checkpoint = Checkpoint::open_with(Path::new(CUSTOM), &change).unwrap();
    assert_eq!(checkpoint.tts().unwrap().variant, Variant::VoiceDesign);
    assert!(matches!(checkpoint.family(), Family::Tts(_)));
}

#[test]
fn the_bytes_of_a_stored_tensor_can_be_read_piece_by_piece_and_only_as_what_they_are() {
    let checkpoint = Checkpoint::open(Path::new(BASE)).unwrap();
    let text = &checkpoint.family().talker().text;
    let shape = [text.vocab_size, text.hidden_size];
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let scope = loader.scope("talker.model.codec_embedding");
    let raw = scope.raw("weight", &shape, DType::BF16).unwrap();
    assert_eq!(raw.bytes() as usize, shape[0] * shape[1] * 2);
    let mut bytes = vec![0; raw.bytes() as usize];
    for (i, piece) in bytes.chunks_mut(1000).enumerate() {
        raw.read(i as u64 * 1000, piece).unwrap();
    }
    let read: Vec<f32> =
        bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect();
    let want = scope.get("weight", &shape).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(read, want);
    assert!(raw.read(raw.bytes() - 1, &mut [0; 2]).is_err(), "beyond the tensor's end");
    assert!(scope.raw("weight", &shape, DType::F32).is_none(), "stored as bf16");
    assert!(scope.raw("weight", &[1, 2], DType::BF16).is_none(), "of another shape");
    loader.finish().unwrap();
}
