//! Sound and pictures against the reference's goldens, where the whole program is not needed to compare
//! (`omni-actors verify` runs all of them).

use crate::MediaLimits;
use crate::hearing::{audio_tokens, samples, spectra};
use crate::mel::{LogMel, MelConfig};
use crate::patches::{PatchConfig, Patches};
use crate::picture::{Grey16, decode_picture};
use crate::size::SizeRule;
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni/frontend")
}

/// The cases of a kind: name, meta, tensors.
fn cases(kind: &str) -> Vec<(String, Value, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if name.starts_with(kind) && path.extension().is_some_and(|ending| ending == "json") {
            let manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let tensors = std::fs::read(path.with_extension("safetensors")).unwrap();
            found.push((name, manifest["meta"].clone(), tensors));
        }
    }
    assert!(!found.is_empty(), "no {kind} in {}", folder().display());
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn floats(tensors: &[u8], name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(tensors).unwrap();
    file.tensor(name).unwrap().data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn ints(tensors: &[u8], name: &str) -> Vec<i32> {
    let file = SafeTensors::deserialize(tensors).unwrap();
    file.tensor(name).unwrap().data().as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

fn file(name: &Value) -> Vec<u8> {
    std::fs::read(folder().join(name.as_str().unwrap())).unwrap()
}

fn mel() -> LogMel {
    LogMel::new(MelConfig { rate: 16_000, window: 400, hop: 160, bands: 128 }).unwrap()
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn sixteen_kilohertz_are_heard_as_by_the_reference() {
    for (name, meta, tensors) in cases("frontend_audio_a16k") {
        let pcm = samples(&file(&meta["file"]), &MediaLimits::default(), mel().config()).unwrap();
        assert_eq!(pcm, floats(&tensors, "pcm16k"), "{name}");
        let spectrum = &spectra(&[&pcm], &mel()).unwrap()[0];
        assert_eq!(spectrum.frames() as u64, meta["mel_frames"].as_u64().unwrap(), "{name}");
        assert_eq!(audio_tokens(spectrum.frames(), 50) as u64, meta["audio_tokens"].as_u64().unwrap(), "{name}");
        let error = largest(&spectrum.features(), &floats(&tensors, "input_features"));
        assert!(error <= 1e-4, "{name}: {error:e}");
    }
}

#[test]
fn clips_of_one_request_are_padded_as_by_the_reference() {
    let (_, _, tensors) = cases("frontend_audio_batch2").remove(0);
    let media = |name: &str| file(&Value::from(format!("media/{name}")));
    let one = samples(&media("a16k_stereo_pcm16_1s.wav"), &MediaLimits::default(), mel().config()).unwrap();
    let two = samples(&media("a16k_pcm16_2p513s.wav"), &MediaLimits::default(), mel().config()).unwrap();
    let spectra = spectra(&[&one[..15_370], &two], &mel()).unwrap();
    assert_eq!((spectra[0].frames(), spectra[1].frames()), (97, 251));
    let all: Vec<f32> = spectra.iter().flat_map(|spectrum| spectrum.features_of(0..251)).collect();
    let error = largest(&all, &floats(&tensors, "input_features"));
    assert!(error <= 1e-4, "{error:e}");
}

#[test]
fn pictures_of_png_are_seen_bit_for_bit_as_by_the_reference() {
    for (name, meta, tensors) in cases("frontend_image") {
        let path = meta["file"].as_str().unwrap();
        let picture = decode_picture(&file(&meta["file"]), &MediaLimits::default(), Grey16::Clip).unwrap();
        let hash = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
        let pixels = |key: &str| meta[key].as_u64().unwrap() as usize;
        let (min_pixels, max_pixels) = (pixels("min_pixels"), pixels("max_pixels"));
        let rule = SizeRule { factor: 32, min_pixels, max_pixels };
        let config =
            PatchConfig { patch_size: 16, merge_size: 2, temporal_patch_size: 2, mean: [0.5; 3], std: [0.5; 3] };
        let decoded = hash(picture.rgb());
        let patches = Patches::new(vec![picture], &rule, &config).unwrap();
        let grid = patches.grid();
        assert_eq!([grid.t, grid.h, grid.w].map(|n| n as i32), *ints(&tensors, "image_grid_thw"), "{name}");
        assert_eq!(patches.tokens() as u64, meta["image_tokens"].as_u64().unwrap(), "{name}");
        let rows: Vec<f32> = ints(&tensors, "pixel_values.row_index")
            .into_iter()
            .flat_map(|row| patches.rows(row as usize..row as usize + 1))
            .collect();
        let error = largest(&rows, &floats(&tensors, "pixel_values.rows"));
        if path.ends_with(".png") {
            assert_eq!(decoded, meta["decoded_rgb_sha256"].as_str().unwrap(), "{name}");
            assert_eq!(hash(patches.frames()[0].rgb()), meta["resized_rgb_sha256"].as_str().unwrap(), "{name}");
            assert!(error <= 1e-6, "{name}: {error:e}");
        } else {
            // Decoders of jpeg differ by up to 3 levels.
            assert!(error <= 4.0 / 127.5 + 1e-6, "{name}: {error:e}");
        }
    }
}
