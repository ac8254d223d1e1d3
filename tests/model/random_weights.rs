//! Weights out of a seed, and the models of real sizes in `configs/models` that they are for.

use crate::support::engine::{engine, frames, say};
use candle_core::Device;
use omni_actors::config::{self, CheckpointSource, WeightsKind};
use omni_actors::model::Checkpoint;
use omni_actors::model::hf::FrameCost;
use omni_actors::model::vocoder::Vocoder;
use std::path::{Path, PathBuf};

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")
}

/// The checkpoint of a config file, as `run` would open it.
fn open(name: &str) -> Checkpoint {
    let config = config::load(&configs().join(name), &[]).unwrap();
    let CheckpointSource::Folder(folder) = &config.model.checkpoint else { panic!("{name} names no folder") };
    assert_eq!(config.model.weights, WeightsKind::Random { seed: 0 }, "{name}");
    Checkpoint::open_as(folder, config.model.weights, config.model.tokenizer.as_deref()).unwrap()
}

fn presets() -> Vec<String> {
    let files = std::fs::read_dir(configs()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = files.filter(|name| name.starts_with("random-")).collect();
    names.sort();
    names
}

#[test]
fn every_model_of_real_size_has_a_config_that_opens_and_a_tokenizer_that_fits() {
    let presets = presets();
    assert_eq!(presets.len(), std::fs::read_dir(configs().join("models")).unwrap().count() - 2, "tokenizer and README");
    for name in presets {
        let checkpoint = open(&name);
        let tokenizer = checkpoint.tokenizer().unwrap();
        let text = "The weather is lovely today.";
        let ids = tokenizer.encode_text(text).unwrap();
        assert!(ids.len() <= 9, "{name}: {ids:?}");
        assert_eq!(tokenizer.decode(&ids), text);
        match checkpoint.omni() {
            Ok(_) => drop(checkpoint.prompter().unwrap()),
            Err(_) => drop(checkpoint.tts_prompter().unwrap()),
        }
    }
}

/// bf16; the figures are those that others published for these models.
#[test]
fn a_frame_of_the_real_models_reads_what_is_known_of_them() {
    let gigabytes = |elements: u64| (elements as f64 * 2.0 / 1e7).round() / 100.0;
    let large = FrameCost::of(open("random-tts-1.7b.toml").family());
    assert_eq!((gigabytes(large.talker), gigabytes(large.predictor)), (2.83, 2.49));
    assert_eq!(gigabytes(large.frame()[0]), 5.32);
    assert_eq!(gigabytes(FrameCost::of(open("random-tts-0.6b.toml").family()).frame()[0]), 3.31);
    let omni = FrameCost::of(open("random-omni-30b.toml").family());
    assert_eq!((gigabytes(omni.thinker), gigabytes(omni.frame()[0])), (6.08, 3.0));
}

/// The pipeline of a folder that holds no weights, end to end.
#[tokio::test]
async fn a_folder_without_weights_speaks_and_a_seed_is_a_voice() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_tts/custom_voice");
    std::fs::create_dir(folder.path().join("speech_tokenizer")).unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "speech_tokenizer/config.json"] {
        std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("no weights"));
    let mut spoken = Vec::new();
    for seed in [1, 1, 2] {
        let checkpoint = Checkpoint::open_as(folder.path(), WeightsKind::Random { seed }, None).unwrap();
        let engine = engine(&checkpoint, |_| {}).await;
        let answer = say(&engine, frames(6, 1)).await;
        assert!(matches!(answer.end, Some(Ok(_))), "{:?}", answer.end);
        spoken.push(answer.samples);
    }
    assert_eq!(spoken[0].len(), 6 * 1920);
    assert_eq!(spoken[0], spoken[1]);
    assert_ne!(spoken[0], spoken[2]);
}

/// Speech at the real sizes: what a server of random weights sends is neither silent nor clipped.
#[test]
fn the_vocoders_of_the_real_models_make_noise_of_a_decent_loudness() {
    for name in ["random-tts-1.7b.toml", "random-omni-30b.toml"] {
        let net = Vocoder::load(&open(name), &Device::Cpu).unwrap();
        let codes: Vec<u32> = (0..6 * 16).map(|i: u32| i.wrapping_mul(2_654_435_761) >> 21).collect();
        let mut stream = net.stream().unwrap();
        let samples = net.decode(&mut stream, &codes).unwrap();
        let power = samples.iter().map(|x| f64::from(x * x)).sum::<f64>() / samples.len() as f64;
        let peak = samples.iter().fold(0f32, |peak, x| peak.max(x.abs()));
        println!("{name}: {} samples, rms {:.3}, peak {peak:.3}", samples.len(), power.sqrt());
        assert!(power.sqrt() > 0.02 && peak < 0.95, "{name}: rms {:.3}, peak {peak:.3}", power.sqrt());
    }
}
