//! The front ends of a cloned voice against the reference's goldens, and what they refuse.

use candle_core::Device;
use omni_actors::model::Checkpoint;
use omni_actors::model::frontend::{AudioLimits, Clip, VoiceEncoder, decode_audio};
use omni_actors::tools::verify::{Verdict, verify};
use serde_json::json;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn base() -> Checkpoint {
    Checkpoint::open(&fixtures().join("qwen3_tts/base")).unwrap()
}

/// The frontend case of a golden folder, which must pass; what was said about it.
fn passes(golden: &Path) -> String {
    let mut said = String::new();
    verify(golden, None, |report| {
        if report.name.ends_with("frontend") {
            let Verdict::Compared { comparison, .. } = &report.verdict else { panic!("{report}") };
            assert!(comparison.passed() && comparison.unknown.is_empty(), "{report}");
            assert_eq!(comparison.compared, 4, "{report}");
            said = report.to_string();
        }
    })
    .unwrap();
    assert!(!said.is_empty(), "no frontend case in {}", golden.display());
    said
}

#[test]
fn spectrum_x_vector_and_codes_are_those_of_the_reference() {
    passes(&fixtures().join("qwen3_tts/golden"));
}

#[test]
fn encoders_of_other_sizes_agree_with_the_reference_too() {
    passes(&fixtures().join("other_sizes/clone_front_ends/golden"));
}

#[test]
fn a_recording_becomes_an_x_vector_and_frames() {
    let encoder = VoiceEncoder::load(&base(), &Device::Cpu).unwrap().unwrap();
    let file = std::fs::read(fixtures().join("audio/stereo44.mp3")).unwrap();
    let clip = decode_audio(&file, &AudioLimits::default()).unwrap();
    let samples = VoiceEncoder::samples(&clip).unwrap();
    assert_eq!(samples.len(), 14_401);
    assert_eq!(encoder.speaker.encode(&samples).unwrap().len(), 64);
    let codes = encoder.codec.encode(&samples).unwrap();
    assert_eq!(codes.len(), encoder.codec.frames(samples.len()) * 8);
    assert!(codes.iter().all(|code| *code < 128));
}

#[test]
fn the_window_changes_nothing_before_it_is_full_and_something_after() {
    let encoder = VoiceEncoder::load(&base(), &Device::Cpu).unwrap().unwrap();
    let pcm: Vec<f32> =
        (0..40 * 960u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 2f32.powi(24) - 0.5).collect();
    let all = encoder.codec.encode_seeing(&pcm, None).unwrap();
    assert_eq!(encoder.codec.encode(&pcm).unwrap(), all, "40 positions are within the window of 250");
    let few = encoder.codec.encode_seeing(&pcm, Some(10)).unwrap();
    assert_eq!(few[..5 * 8], all[..5 * 8]);
    assert_ne!(few, all);
}

#[test]
fn a_checkpoint_that_clones_no_voices_has_no_encoder() {
    let checkpoint = Checkpoint::open(&fixtures().join("qwen3_tts/custom_voice")).unwrap();
    assert!(VoiceEncoder::load(&checkpoint, &Device::Cpu).unwrap().is_none());
}

#[test]
fn too_few_samples_are_an_error() {
    let encoder = VoiceEncoder::load(&base(), &Device::Cpu).unwrap().unwrap();
    assert!(encoder.codec.encode(&[]).is_err());
    for samples in [0, 1, 384, 385, 1_000] {
        assert!(encoder.speaker.encode(&vec![0.1; samples]).is_err(), "{samples}");
    }
    assert_eq!(encoder.codec.encode(&[0.1]).unwrap().len(), 8);
}

#[test]
fn a_clip_of_another_rate_is_resampled() {
    let clip = Clip { pcm: vec![0.1; 8_000], rate: 8_000 };
    assert_eq!(VoiceEncoder::samples(&clip).unwrap().len(), 24_000);
}

/// A copy of the checkpoint whose codec says something else.
fn with_encoder_config(change: serde_json::Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join("qwen3_tts/base");
    for name in ["", "speech_tokenizer"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
        for entry in std::fs::read_dir(from.join(name)).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_file() {
                std::fs::copy(entry.path(), folder.path().join(name).join(entry.file_name())).unwrap();
            }
        }
    }
    let path = folder.path().join("speech_tokenizer/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in change.as_object().unwrap() {
        config["encoder_config"][key] = value.clone();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    let encoder = Checkpoint::open(folder.path()).and_then(|c| VoiceEncoder::load(&c, &Device::Cpu).map(|_| ()));
    encoder.unwrap_err().to_string()
}

#[test]
fn a_codec_that_is_not_served_or_does_not_fit_its_weights_is_refused_with_what_is_wrong() {
    for (change, says) in [
        (json!({"use_causal_conv": false}), "encoder_config.use_causal_conv = false is not served: expected true"),
        (json!({"num_filters": null}), "encoder_config.num_filters is missing"),
        (json!({"upsampling_ratios": [8, 6, 5, 5]}), "samples per frame = 2400 differs from 1920"),
        (json!({"num_quantizers": 4}), "extra   encoder.quantizer.acoustic_residual_vector_quantizer.layers.3."),
        (json!({"num_hidden_layers": 3}), "missing encoder.encoder_transformer.layers.2.self_attn.q_proj.weight"),
        (json!({"num_hidden_layers": 1}), "extra   encoder.encoder_transformer.layers.1."),
        (json!({"intermediate_size": 65}), "shape   encoder.encoder_transformer.layers.0.mlp.fc1.weight"),
        (json!({"num_quantizers": 15}), "extra   encoder.quantizer.acoustic_residual_vector_quantizer.layers.14."),
        (json!({"num_filters": 8}), "shape   encoder.encoder.layers.0.conv.weight is [4, 1, 7]"),
    ] {
        let text = with_encoder_config(change.clone());
        assert!(text.contains(says), "{change}: {text}");
    }
}

#[test]
fn a_speaker_encoder_that_does_not_fit_its_weights_is_refused_with_what_is_wrong() {
    for (change, says) in [
        (json!({"enc_channels": [32, 32, 32, 96]}), "the last must be the sum of all but the first"),
        (json!({"enc_channels": [32, 32, 32, 32, 96, 96]}), "has 6 entries"),
        (json!({"enc_res2net_scale": 5}), "enc_res2net_scale = 5 does not divide"),
        (json!({"enc_res2net_scale": 4}), "shape   speaker_encoder.blocks.1.res2net_block.blocks.0.conv.weight"),
        (json!({"enc_se_channels": 17}), "shape   speaker_encoder.blocks.1.se_block.conv1.weight"),
        (json!({"sample_rate": 16_000}), "sample_rate = 16000: expected 24000"),
        (json!({"mel_dim": 80}), "shape   speaker_encoder.blocks.0.conv.weight"),
    ] {
        let mut overrides = serde_json::Map::new();
        overrides.insert("speaker_encoder_config".into(), change.clone());
        let opened = Checkpoint::open_with(&fixtures().join("qwen3_tts/base"), &overrides);
        let text = opened.and_then(|c| VoiceEncoder::load(&c, &Device::Cpu).map(|_| ())).unwrap_err().to_string();
        assert!(text.contains(says), "{change}: {text}");
    }
}
