//! Opening checkpoints: what fits is read exactly, what does not is refused with a reason.

use candle_core::{DType, Device};
use omni_actors::model::hf::{Family, GenerationDefaults, OmniConfig};
use omni_actors::model::weights::{Files, Weights};
use omni_actors::model::{Checkpoint, LoadError};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const TINY: &str = "tests/fixtures/qwen3_omni";
const VOICE: &str = "assets/voice/checkpoint";

/// A copy of the tiny checkpoint without its tokenizer, to be damaged.
fn copy() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(Path::new(TINY).join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().to_path_buf();
    (dir, path)
}

fn config_of(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Changes one field of the tiny checkpoint's config and returns what is said about it.
fn complaint(pointer: &str, value: Option<Value>) -> String {
    let mut config = config_of("tests/fixtures/qwen3_omni/config.json");
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let fields = config.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => fields.insert(key.into(), value),
        None => fields.remove(key),
    };
    let no_codec = || Err(vec!["no codec".to_owned()]);
    Family::parse(&config, no_codec).unwrap_err().join("\n")
}

/// Rewrites the safetensors header of a file, keeping its data.
fn edit_header(file: &Path, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let bytes = std::fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    edit(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(&bytes[8 + length..]);
    std::fs::write(file, out).unwrap();
}

#[test]
fn both_spellings_of_the_config_are_read() {
    let tiny = Checkpoint::open(Path::new(TINY)).unwrap();
    let text = &tiny.omni().unwrap().thinker.text;
    assert_eq!((text.num_hidden_layers, text.head_dim, text.rope_theta), (6, 32, 1e6));
    assert_eq!(text.mrope_section, Some([6, 5, 5]));
    assert_eq!(text.moe.as_ref().unwrap().num_experts, 8);
    assert_eq!(text.moe.as_ref().unwrap().shared_expert_intermediate_size, None);
    assert_eq!(tiny.omni().unwrap().talker.text.moe.as_ref().unwrap().shared_expert_intermediate_size, Some(40));
    assert_eq!(tiny.omni().unwrap().code2wav.transformer.sliding_window, 8);
    assert_eq!(tiny.omni().unwrap().code2wav.samples_per_frame(), 1920);

    let voice = Checkpoint::open(Path::new(VOICE)).unwrap();
    let text = &voice.omni().unwrap().talker.text;
    assert_eq!((text.num_hidden_layers, text.head_dim, text.rope_theta), (7, 64, 1e6));
    assert_eq!(text.mrope_section, Some([12, 10, 10]));
    assert_eq!(text.moe.as_ref().unwrap().num_experts, 4);
    assert_eq!(voice.omni().unwrap().code2wav.transformer.rope_theta, 1e4);
    assert_eq!(voice.omni().unwrap().talker.speaker_names(), ["heart", "alto", "tenor"]);
    assert_eq!(voice.generation().thinker_eos, [1002]);
    assert_eq!((voice.generation().thinker.temperature, voice.generation().thinker_max_tokens), (0.0, 256));
}

#[test]
fn the_config_of_the_real_model_is_read() {
    let config = OmniConfig::parse(&config_of("configs/models/Qwen3-Omni-30B-A3B-Instruct/config.json")).unwrap();
    assert_eq!((config.thinker.text.hidden_size, config.thinker.text.num_hidden_layers), (2048, 48));
    assert_eq!(config.talker.text.moe.as_ref().unwrap().num_experts_per_tok, 6);
    assert!(config.thinker.text.is_sparse(0) && config.talker.text.is_sparse(19));
    assert_eq!((config.talker.num_code_groups, config.talker.predictor.rope_theta), (16, 1e6));
    assert!(config.talker.predictor.moe.is_none());
    assert_eq!(config.code2wav.transformer.head_dim, 64);
    assert_eq!((config.tokens.im_start, config.talker.tokens.eos), (151_644, 2150));
    assert_eq!(config.talker.default_speaker(), "ethan");
}

#[test]
fn a_voice_is_found_whatever_the_case_and_an_unknown_one_lists_them_all() {
    let config = Checkpoint::open(Path::new(TINY)).unwrap().omni().unwrap().clone();
    assert_eq!(config.talker.speaker("Ethan").unwrap(), 382);
    assert_eq!(config.talker.speaker("AIDEN").unwrap(), 383);
    let error = config.talker.speaker("Serena").unwrap_err().to_string();
    assert_eq!(error, "no voice \"Serena\"; the voices are: chelsie, ethan, aiden");
}

#[test]
fn a_config_that_does_not_add_up_is_refused_with_the_field() {
    let cases = [
        ("/thinker_config/text_config/hidden_size", None, "thinker_config.text_config.hidden_size is missing"),
        ("/thinker_config/text_config/hidden_size", Some(json!("64")), "hidden_size = \"64\": expected a whole number"),
        ("/thinker_config/text_config/num_key_value_heads", Some(json!(3)), "does not divide num_attention_heads = 4"),
        (
            "/thinker_config/text_config/rope_scaling/mrope_section",
            Some(json!([6, 5, 4])),
            "does not sum to head_dim / 2",
        ),
        ("/thinker_config/text_config/rope_scaling/rope_type", Some(json!("yarn")), "\"yarn\" is not served"),
        ("/thinker_config/text_config/hidden_act", Some(json!("gelu")), "hidden_act = \"gelu\" is not served"),
        ("/thinker_config/text_config/num_experts_per_tok", Some(json!(9)), "num_experts_per_tok = 9 is more than"),
        (
            "/talker_config/accept_hidden_layer",
            Some(json!(7)),
            "accept_hidden_layer = 7 is beyond the thinker's 6 layers",
        ),
        ("/talker_config/num_code_groups", Some(json!(4)), "differs from talker_config.num_code_groups = 4"),
        ("/talker_config/codec_eos_token_id", Some(json!(1152)), "codec_eos_token_id = 1152 is outside the talker's"),
        ("/talker_config/speaker_id", Some(json!({})), "speaker_id is empty"),
        ("/talker_config/speaker_id/ethan", Some(json!(5000)), "speaker_id.ethan = 5000 is outside"),
        ("/talker_config/thinker_hidden_size", Some(json!(65)), "thinker_hidden_size = 65 differs from"),
        ("/talker_config/code_predictor_config/vocab_size", Some(json!(129)), "codebook_size = 128"),
        ("/code2wav_config/num_quantizers", Some(json!(9)), "differs from code2wav_config.num_quantizers = 9"),
        ("/code2wav_config/decoder_dim", Some(json!(100)), "cannot be halved 4 times"),
        ("/code2wav_config", None, "code2wav_config is missing: expected an object"),
        ("/im_end_token_id", Some(json!(600)), "im_end_token_id = 600 is outside the thinker's vocabulary of 512"),
        ("/enable_audio_output", Some(json!(false)), "no talker"),
        ("/model_type", Some(json!("llama")), "\"llama\" is not served: expected \"qwen3_omni_moe\""),
        ("/model_type", None, "model_type is missing"),
    ];
    for (pointer, value, expected) in cases {
        let said = complaint(pointer, value);
        assert!(said.contains(expected), "{pointer}: {said}");
    }
}

#[test]
fn all_problems_of_a_config_are_told_at_once() {
    let mut config = config_of("tests/fixtures/qwen3_omni/config.json");
    config["thinker_config"]["text_config"]["head_dim"] = Value::Null;
    config["talker_config"]["codec_bos_id"] = json!(-1);
    config["code2wav_config"]["upsample_rates"] = json!([]);
    assert_eq!(OmniConfig::parse(&config).unwrap_err().len(), 3);
}

#[test]
fn overrides_change_fields_before_the_config_is_read() {
    let overrides = json!({"talker_config": {"codec_eos_token_id": 105}, "code2wav_config.sliding_window": 4});
    let changed = Checkpoint::open_with(Path::new(TINY), overrides.as_object().unwrap()).unwrap();
    assert_eq!(changed.omni().unwrap().talker.tokens.eos, 105);
    assert_eq!(changed.omni().unwrap().talker.tokens.bos, 229);
    assert_eq!(changed.omni().unwrap().code2wav.transformer.sliding_window, 4);

    let overrides = json!({"im_end_token_id.x": 1});
    let error = Checkpoint::open_with(Path::new(TINY), overrides.as_object().unwrap()).unwrap_err();
    assert!(error.to_string().contains("not an object"), "{error}");
}

#[test]
fn tensors_have_the_values_of_the_file() {
    let checkpoint = Checkpoint::open(Path::new(TINY)).unwrap();
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let got = loader.scope("talker").get("codec_head.weight", &[1152, 64]).unwrap();
    let reference = candle_core::safetensors::load(format!("{TINY}/model.safetensors"), &Device::Cpu).unwrap();
    let want = reference["talker.codec_head.weight"].to_dtype(DType::F32).unwrap();
    assert_eq!(got.to_vec2::<f32>().unwrap(), want.to_vec2::<f32>().unwrap());

    let some = loader.scope("talker.model").rows("codec_embedding.weight", &[1152, 64], &[7, 1151, 7]).unwrap();
    let all = loader.scope("talker").at("model").get("codec_embedding.weight", &[1152, 64]).unwrap();
    let (some, all) = (some.to_vec2::<f32>().unwrap(), all.to_vec2::<f32>().unwrap());
    assert_eq!(some, [all[7].clone(), all[1151].clone(), all[7].clone()]);
    loader.finish().unwrap();
}

#[test]
fn every_missing_extra_and_misshaped_tensor_is_listed() {
    let (_dir, path) = copy();
    edit_header(&path.join("model.safetensors"), |header| {
        let norm = header.remove("talker.model.norm.weight").unwrap();
        header.insert("talker.model.nrom.weight".into(), norm);
        let inv = header.remove("talker.hidden_projection.linear_fc1.bias").unwrap();
        header.insert("talker.model.rotary_emb.inv_freq".into(), inv);
    });
    let loader = Checkpoint::open(&path).unwrap().loader(&["talker"], &Device::Cpu);
    let talker = loader.scope("talker");
    assert_eq!(talker.get("codec_head.weight", &[1152, 63]).unwrap().dims(), [1152, 63]);
    let zeros = talker.get("model.norm.weight", &[64]).unwrap();
    assert_eq!(zeros.to_vec1::<f32>().unwrap(), [0.0; 64]);
    for part in ["model.layers", "model.codec_embedding", "text_projection", "hidden_projection", "code_predictor"] {
        talker.ignore(part);
    }
    let Err(LoadError::Tensors(list)) = loader.finish() else { panic!("accepted") };
    assert_eq!(
        list,
        [
            "shape   talker.codec_head.weight is [1152, 64], config.json says [1152, 63]",
            "missing talker.model.norm.weight [64]",
            "extra   talker.model.nrom.weight",
        ]
    );
}

#[test]
fn an_unknown_family_is_refused() {
    let (_dir, path) = copy();
    edit_header(&path.join("model.safetensors"), |header| {
        let norm = header.remove("talker.model.norm.weight").unwrap();
        header.insert("adapter.weight".into(), norm);
    });
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("adapter.*"), "{error}");
}

#[test]
fn what_is_not_a_checkpoint_is_refused_with_a_reason() {
    let error = Checkpoint::open(Path::new("no/such/folder")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read no/such/folder"), "{error}");
    let error = Checkpoint::open(Path::new("Cargo.toml")).unwrap_err().to_string();
    assert!(error.contains("is not a folder"), "{error}");
    let error = Checkpoint::open(Path::new("src")).unwrap_err().to_string();
    assert!(error.contains("src/config.json: does not exist"), "{error}");

    let (_dir, path) = copy();
    std::fs::write(path.join("config.json"), "{").unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("config.json: is not valid JSON"), "{error}");

    let (_dir, path) = copy();
    std::fs::write(path.join("generation_config.json"), r#"{"eos_token_id": [333, 512]}"#).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("end token 512 is outside"), "{error}");

    let (_dir, path) = copy();
    std::fs::remove_file(path.join("model.safetensors")).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("no weights"), "{error}");
}

#[test]
fn damaged_weights_are_refused_with_a_reason() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage); 6] = [
        ("is cut short", |b| b.truncate(b.len() - 1)),
        ("has trailing bytes", |b| b.push(0)),
        ("not a safetensors file", |b| b.truncate(7)),
        ("not a safetensors file", |b| b[..8].copy_from_slice(&u64::MAX.to_le_bytes())),
        ("malformed safetensors header", |b| b[8] = b'x'),
        ("is cut short", |b| b.truncate(5000)),
    ];
    for (expected, damage) in cases {
        let (_dir, path) = copy();
        let mut bytes = std::fs::read(path.join("model.safetensors")).unwrap();
        damage(&mut bytes);
        std::fs::write(path.join("model.safetensors"), bytes).unwrap();
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn an_index_is_followed_and_its_gaps_are_told() {
    let (_dir, path) = copy();
    std::fs::rename(path.join("model.safetensors"), path.join("model-00001-of-00002.safetensors")).unwrap();
    let write = |map: Value| {
        std::fs::write(path.join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    };
    write(json!({"talker.codec_head.weight": "model-00001-of-00002.safetensors"}));
    assert!(Checkpoint::open(&path).is_ok());

    write(json!({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}));
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("shards that are missing: model-00002-of-00002.safetensors"), "{error}");

    write(json!({"talker.lost": "model-00001-of-00002.safetensors"}));
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("lacks talker.lost"), "{error}");

    write(json!({"a": "../model.safetensors"}));
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("not a file of this folder"), "{error}");
}

#[test]
fn weights_name_their_families() {
    let checkpoint = Checkpoint::open(Path::new(TINY)).unwrap();
    let weights = Weights::open(checkpoint.files()).unwrap();
    assert_eq!(weights.families().into_iter().collect::<Vec<_>>(), ["code2wav", "talker", "thinker"]);
}

/// Every path of a JSON document, leaves and inner nodes.
fn pointers(value: &Value, path: &str, out: &mut Vec<String>) {
    out.push(path.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, v)| pointers(v, &format!("{path}/{key}"), out)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| pointers(v, &format!("{path}/{i}"), out)),
        _ => {}
    }
}

fn junk() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!({})),
        Just(json!([])),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..300).prop_map(Value::from),
        Just(json!(u64::MAX)),
        Just(json!(1e308)),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        prop::collection::vec(any::<u32>(), 0..5).prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_damaged_config_is_refused_or_makes_sense_and_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), junk()), 1..4),
        fifth in any::<bool>(),
    ) {
        let file = if fifth { "assets/voice/checkpoint/config.json" } else { "tests/fixtures/qwen3_omni/config.json" };
        let mut config = config_of(file);
        let mut paths = Vec::new();
        pointers(&config, "", &mut paths);
        for (which, value) in changes {
            if let Some(place) = config.pointer_mut(which.get::<String>(&paths)) {
                *place = value;
            }
        }
        match OmniConfig::parse(&config) {
            Err(list) => prop_assert!(!list.is_empty() && list.iter().all(|line| !line.is_empty())),
            Ok(config) => {
                let text = &config.talker.text;
                prop_assert_eq!(text.num_attention_heads % text.num_key_value_heads, 0);
                prop_assert_eq!(config.talker.num_code_groups, config.code2wav.num_quantizers);
                prop_assert!((config.talker.tokens.eos as usize) < text.vocab_size);
                prop_assert!(config.code2wav.samples_per_frame() > 0);
                let _ = text.is_sparse(0);
            }
        }
    }

    #[test]
    fn damaged_generation_defaults_are_refused_or_usable(key in any::<prop::sample::Index>(), value in junk()) {
        let keys = ["do_sample", "temperature", "talker_top_k", "top_p", "thinker_eos_token_id", "eos_token_id",
            "talker_temperature", "talker_repetition_penalty", "talker_max_new_tokens", "thinker_max_new_tokens"];
        let file = json!({ *key.get(&keys): value });
        if let Ok(defaults) = GenerationDefaults::parse(Some(&file), 7) {
            for params in [defaults.thinker, defaults.talker, defaults.predictor] {
                prop_assert_eq!(params.check(), Ok(()));
            }
            prop_assert!(!defaults.thinker_eos.is_empty() && defaults.talker_max_tokens > 0);
        }
    }
}

/// A file of three small tensors, to be mutated.
fn small_file() -> Vec<u8> {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "talker.a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "talker.b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "talker.c": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..40).map(|i| i as u8));
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn damaged_weights_never_panic(
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        digits in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        tail in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        let mut bytes = small_file();
        for (at, byte) in writes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Numbers of the header, which random bytes rarely hit.
        let places: Vec<usize> = (8..bytes.len() - 40).filter(|i| bytes[*i].is_ascii_digit()).collect();
        for (at, digit) in digits {
            if let Some(place) = places.get(at.index(places.len().max(1))) {
                bytes[*place] = digit;
            }
        }
        if let Some(at) = cut {
            bytes.truncate(at.index(bytes.len()));
        }
        bytes.extend(tail);

        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        let Ok(weights) = Weights::open(&Files::folder(dir.path()).unwrap()) else { return Ok(()) };
        for name in weights.names() {
            match weights.tensor(name, DType::F32, &Device::Cpu) {
                Ok(tensor) => prop_assert_eq!(tensor.dims(), &weights.entry(name).unwrap().shape[..]),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
            let _ = weights.rows(name, &[0, 1, 9], DType::F32, &Device::Cpu);
        }
    }
}

#[test]
fn a_tensor_of_whole_numbers_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), small_file()).unwrap();
    let weights = Weights::open(&Files::folder(dir.path()).unwrap()).unwrap();
    let error = weights.tensor("talker.c", DType::F32, &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("talker.c is I64; served are BF16, F16 and F32"), "{error}");
    let error = weights.rows("talker.a", &[2], DType::F32, &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("talker.a has 2 rows, not a row 2"), "{error}");
}

#[test]
fn a_file_that_shrinks_after_it_was_opened_is_an_error() {
    let (_dir, path) = copy();
    let checkpoint = Checkpoint::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(path.join("model.safetensors")).unwrap().set_len(80_000).unwrap();
    let loader = checkpoint.loader(&[], &Device::Cpu);
    let error = loader.scope("thinker").get("lm_head.weight", &[512, 64]).unwrap_err();
    assert!(matches!(error, LoadError::Io { .. }), "{error}");
}
