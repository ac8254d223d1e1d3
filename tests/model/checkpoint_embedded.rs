//! Checkpoints whose files are in the binary, plain or packed: they read like the folder that they were made of.

use candle_core::{DType, Device};
use omni_actors::model::Checkpoint;
use omni_actors::model::weights::{Content, Files, Weights};
use omni_actors::planes;
use std::path::Path;

const TINY: &str = "tests/fixtures/qwen3_omni";
#[cfg(feature = "embedded-voice")]
const VOICE: &str = "assets/voice/checkpoint";

#[test]
fn embedded_bytes_read_like_a_folder() {
    let read = |name: &str| std::fs::read(format!("{TINY}/{name}")).unwrap();
    let files = ["config.json", "model.safetensors"].map(|name| (name, Content::Plain(read(name).leak())));
    let embedded = Checkpoint::embedded(Box::leak(Box::new(files))).unwrap();
    let folder = Checkpoint::open(Path::new(TINY)).unwrap();
    assert_eq!(embedded.omni().unwrap(), folder.omni().unwrap());
    let read = |c: &Checkpoint| -> Vec<f32> {
        let loader = c.loader(&[], &Device::Cpu);
        loader.scope("thinker.model").get("norm.weight", &[64]).unwrap().to_vec1().unwrap()
    };
    assert_eq!(read(&embedded), read(&folder));
    // No generation_config.json: the family's defaults.
    assert_eq!(embedded.generation().thinker_eos, [333]);
    assert_eq!(embedded.generation().talker.top_k, 50);
    assert_eq!(embedded.generation().predictor.top_p, 0.8);
}

/// A checkpoint whose weights are packed as the voice in the binary is, and the same as a folder.
fn packed_and_plain(folder: &str, packed: Vec<u8>) -> (Checkpoint, Checkpoint) {
    let mut files: Vec<(&'static str, Content)> = vec![("model.safetensors", Content::Packed(packed.leak()))];
    for name in ["config.json", "generation_config.json"] {
        files.push((name, Content::Plain(std::fs::read(format!("{folder}/{name}")).unwrap().leak())));
    }
    (Checkpoint::embedded(files.leak()).unwrap(), Checkpoint::open(Path::new(folder)).unwrap())
}

/// Names, shapes and bytes of all tensors are the same, and what is made of them is.
fn same(packed: &Checkpoint, plain: &Checkpoint) {
    let [its, theirs] = [packed, plain].map(|checkpoint| Weights::open(checkpoint.files()).unwrap());
    assert!(its.names().eq(theirs.names()));
    for name in theirs.names() {
        let bytes = |weights: &Weights| {
            let entry = weights.entry(name).unwrap();
            let mut bytes = vec![0; entry.bytes() as usize];
            weights.read(name, 0, &mut bytes).unwrap();
            (entry.dtype, entry.shape.clone(), bytes)
        };
        assert!(bytes(&its) == bytes(&theirs), "{name}");
    }
    let whole = |checkpoint: &Checkpoint| checkpoint.files().read("model.safetensors").unwrap().unwrap();
    assert!(whole(packed) == whole(plain));
    assert_eq!(packed.fingerprint().unwrap(), plain.fingerprint().unwrap());
}

#[test]
fn packed_weights_are_those_of_the_folder() {
    let bytes = std::fs::read(format!("{TINY}/model.safetensors")).unwrap();
    let (packed, plain) = packed_and_plain(TINY, planes::pack(&bytes));
    same(&packed, &plain);
    let [its, theirs] = [&packed, &plain].map(|checkpoint| Weights::open(checkpoint.files()).unwrap());
    for name in theirs.names().filter(|name| theirs.entry(name).unwrap().shape.len() == 2) {
        let last = theirs.entry(name).unwrap().shape[0] as u32 - 1;
        let rows = |weights: &Weights| -> Vec<Vec<f32>> {
            weights.rows(name, &[last, 0], DType::F32, &Device::Cpu).unwrap().to_vec2().unwrap()
        };
        assert_eq!(rows(&its), rows(&theirs), "{name}");
    }
}

#[cfg(feature = "embedded-voice")]
#[test]
fn the_voice_in_the_binary_is_that_of_the_folder() {
    let packed = std::fs::read(concat!(env!("OUT_DIR"), "/model.safetensors.planes")).unwrap();
    let (packed, plain) = packed_and_plain(VOICE, packed);
    same(&packed, &plain);
}

#[test]
fn a_damaged_voice_in_the_binary_is_refused() {
    let bytes = std::fs::read(format!("{TINY}/model.safetensors")).unwrap();
    let files = |packed: Vec<u8>| Files::Embedded(vec![("model.safetensors", Content::Packed(packed.leak()))].leak());
    let mut packed = planes::pack(&bytes);
    let lower = packed.len() - 12_000;
    packed[lower] ^= 1;
    let damaged = files(packed);
    let error = damaged.read("model.safetensors").unwrap_err().to_string();
    assert!(error.starts_with("embedded model.safetensors: is damaged between bytes "), "{error}");
    assert!(error.ends_with("; install omni-actors again"), "{error}");
    // A tensor in the damaged piece is refused, and others are read.
    let weights = Weights::open(&damaged).unwrap();
    let read = |name| weights.stored(name, &Device::Cpu).map_err(|e| e.to_string());
    let (there, refused): (Vec<_>, Vec<_>) = weights.names().map(read).partition(Result::is_ok);
    assert!(!there.is_empty());
    assert!(!refused.is_empty() && refused.into_iter().all(|tensor| tensor.unwrap_err() == error));

    let mut short = planes::pack(&bytes);
    short.pop();
    let error = Weights::open(&files(short)).unwrap_err().to_string();
    assert!(error.contains("is damaged or cut short"), "{error}");
}
