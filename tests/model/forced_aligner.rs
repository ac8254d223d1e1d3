//! Qwen3-ForcedAligner: what it computes is what the reference computes, and what is no aligner is refused.

use candle_core::{Device, Tensor};
use omni_actors::model::forced_aligner::{ForcedAligner, Unit, repaired, units};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const CASES: [&str; 5] = ["english", "chinese", "mixed", "german", "one_word"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_forced_aligner")
}

struct Case {
    tensors: HashMap<String, Tensor>,
    meta: Value,
    /// Its text, as the aligner reads it.
    read: Vec<String>,
}

fn case(name: &str) -> Case {
    let golden = folder().join("golden");
    let tensors = candle_core::safetensors::load(golden.join(format!("{name}.safetensors")), &Device::Cpu).unwrap();
    let manifest: Value = serde_json::from_slice(&std::fs::read(golden.join(format!("{name}.json"))).unwrap()).unwrap();
    let meta = manifest["meta"].clone();
    let read = units(meta["text"].as_str().unwrap()).into_iter().map(|unit| unit.read);
    let read = read.filter(|read| !read.is_empty()).collect();
    Case { tensors, meta, read }
}

fn largest_error(got: &Tensor, wanted: &Tensor) -> f32 {
    assert_eq!(got.dims(), wanted.dims());
    let apart = (got - wanted).unwrap().abs().unwrap().max_all().unwrap();
    apart.to_scalar().unwrap()
}

#[test]
fn each_case_has_the_tower_the_logits_and_the_times_of_the_reference() {
    let aligner = ForcedAligner::load(&folder()).unwrap();
    for name in CASES {
        let Case { tensors, meta, read } = case(name);
        assert_eq!(json!(read), meta["units"], "{name}");
        let pcm: Vec<f32> = tensors["pcm"].to_vec1().unwrap();
        let features = aligner.features(&pcm).unwrap();
        if let Some(wanted) = tensors.get("features") {
            assert!(largest_error(&features, wanted) < 1e-4, "{name}: {}", largest_error(&features, wanted));
        }
        let ids: Vec<i32> = tensors["input_ids"].to_vec1().unwrap();
        let prompt = aligner.prompt(&read, features.dims()[1]).unwrap();
        assert_eq!(prompt.into_iter().map(|id| id as i32).collect::<Vec<_>>(), ids, "{name}");
        let error = largest_error(&aligner.hear(&features).unwrap(), &tensors["tower"]);
        assert!(error < 1e-3, "{name}: the tower is {error} off");
        let error = largest_error(&aligner.logits(&read, &features).unwrap(), &tensors["logits"]);
        // A tenth of the smallest distance between a best logit and the next.
        assert!(error < 3e-3, "{name}: the logits are {error} off");
        let times = aligner.align(&read, &pcm, 16_000).unwrap();
        let seconds: Vec<[f64; 2]> =
            times.iter().map(|time| [time.start as f64 / 1000.0, time.end as f64 / 1000.0]).collect();
        assert_eq!(json!(seconds), meta["seconds"], "{name}");
    }
}

#[test]
fn times_are_mended_as_the_reference_mends_them() {
    let lists: Vec<Value> =
        serde_json::from_slice(&std::fs::read(folder().join("golden/repair.json")).unwrap()).unwrap();
    assert!(lists.len() > 30);
    for list in lists {
        let given: Vec<f64> = list["given"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
        assert_eq!(json!(repaired(&given)), list["repaired"], "{given:?}");
    }
}

#[test]
fn units_are_the_text_without_white_space() {
    for name in CASES {
        let text = case(name).meta["text"].as_str().unwrap().to_owned();
        let joined: String = units(&text).into_iter().map(|Unit { written, .. }| written).collect();
        assert_eq!(joined, text.split_whitespace().collect::<String>(), "{name}");
    }
}

type Change = fn(&mut Value);

/// A folder with one of the fixture's files changed.
fn changed(file: &str, change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let path = copy.path().join(file);
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(&path, value.to_string()).unwrap();
    copy
}

#[test]
fn what_is_no_aligner_is_refused_with_the_file_and_the_field() {
    let refused = |dir: &Path| ForcedAligner::load(dir).err().unwrap().to_string();
    let fixtures = folder().parent().unwrap().join("qwen3_tts/custom_voice");
    assert!(refused(&fixtures).contains("is no aligner: model_type is \"qwen3_tts\""), "{}", refused(&fixtures));
    assert!(refused(Path::new("/nonexistent")).contains("cannot read"));
    let cases: [(&str, Change, &str); 6] = [
        ("config.json", |c| c["thinker_config"]["model_type"] = json!("qwen3_asr_thinker"), "is no aligner"),
        ("config.json", |c| c["thinker_config"]["classify_num"] = json!(0), "thinker_config.classify_num"),
        ("config.json", |c| c["thinker_config"]["classify_num"] = json!(65), "thinker.lm_head.weight"),
        ("config.json", |c| c["timestamp_token_id"] = json!(7), "<timestamp>"),
        ("config.json", |c| c["thinker_config"]["audio_config"]["output_dim"] = json!(32), "output_dim = 32 differs"),
        ("preprocessor_config.json", |c| c["feature_size"] = json!(80), "feature_size = 80 differs"),
    ];
    for (file, change, says) in cases {
        let dir = changed(file, change);
        assert!(refused(dir.path()).contains(says), "{}", refused(dir.path()));
    }
}

#[test]
fn sound_that_the_aligner_cannot_take_is_refused() {
    let aligner = ForcedAligner::load(&folder()).unwrap();
    let words = ["so".to_owned()];
    let says = |pcm: &[f32]| aligner.align(&words, pcm, 16_000).unwrap_err().to_string();
    assert_eq!(says(&vec![0.0; 16_000 * 300 + 1]), "a piece of speech is longer than the 300 s that the aligner takes");
    assert!(says(&[0.0; 100]).contains("at least 201 are needed"), "{}", says(&[0.0; 100]));
    assert_eq!(aligner.align(&[], &[0.0; 100], 16_000).unwrap(), []);
}
