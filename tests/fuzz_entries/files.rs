//! What an operator gives or a stage sends: configs, fault plans, texts with markup, frames of an edge, checkpoints.

use crate::{GROWTH, fuzz, memory, root};
use bytes::Bytes;
use omni_actors::config;
use omni_actors::core::ids::{Attempt, Generation, RequestId, Seq};
use omni_actors::core::text::Pronunciations;
use omni_actors::core::text::markup::{Markup, MarkupReader, marks};
use omni_actors::model::Checkpoint;
use omni_actors::transfer::payload::{Header, Kind, Part, Payload};
use omni_actors::transfer::wire;
use std::path::{Path, PathBuf};

#[test]
fn configs_and_plans_are_taken_or_refused_with_words() {
    let files = ["configs/example.toml", "configs/qwen3-tts.toml", "configs/random-tts-1.7b.toml"];
    let good: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(root(file)).unwrap()).collect();
    // The commented rules of the example are a plan.
    let plan = b"seed = 7\n[[faults]]\nstage = \"talker\"\npoint = \"runner\"\nkind = \"delay\"\ndelay = \"50ms\"\nnth = 3\ntimes = \"all\"\nphase = \"first\"\nafter = \"2s\"\nchance = 0.5\n";
    let before = memory("self");
    fuzz("configs and plans", 0.15, |dice| {
        let text = dice.damaged(&good[dice.0 as usize % good.len()]);
        if let Err(error) = config::parse(&String::from_utf8_lossy(&text), &root("configs"), &[]) {
            assert!(!error.to_string().is_empty());
        }
        let text = dice.damaged(plan);
        match config::parse_faults(&String::from_utf8_lossy(&text)) {
            // What was taken can be written and read again.
            Ok(file) => assert!(config::parse_faults(&file.to_string()).is_ok(), "{file}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
    assert!(memory("self") < before + GROWTH, "it grows");
}

#[test]
fn texts_with_markup_are_read_or_refused_with_words() {
    let good: [&[u8]; 2] = [
        b"Hello. [pause: 0.5s] [voice: heart]So [[this] is [rate: 80%]slow[voice: default]. Bye.",
        b"<?xml version=\"1.0\"?><speak version=\"1.1\"><p><s>Hi &amp; <sub alias=\"jif\">GIF</sub></s></p><break \
          time=\"500ms\"/><voice name=\"heart\"><prosody rate=\"80%\">so <say-as interpret-as=\"digits\">12</say-as>\
          </prosody></voice><![CDATA[x]]></speak>",
    ];
    let before = memory("self");
    fuzz("marked texts", 0.1, |dice| {
        let text = dice.damaged(good[dice.0 as usize % 2]);
        let text = String::from_utf8_lossy(&text);
        for markup in Markup::ALL {
            let whole = marks(markup, &text);
            let mut reader = MarkupReader::new(markup);
            let pieces: Result<Vec<_>, _> =
                text.split_inclusive([' ', ']', '"']).map(|piece| reader.push(piece)).collect();
            let pieced = pieces.and_then(|_| reader.finish());
            assert_eq!(whole.is_ok(), pieced.is_ok());
            let Err(error) = whole else { continue };
            assert!(!error.message.is_empty() && error.place.line > 0 && error.place.column > 0);
        }
        let mut list = Pronunciations::default();
        for word in text.split(' ') {
            let _ = list.insert(word, "so");
        }
        if let Some(said) = list.apply(&text, 300) {
            assert!(said.len() <= 300.max(text.len()));
        }
    });
    assert!(memory("self") < before + GROWTH, "it grows");
}

#[test]
fn frames_are_taken_or_refused_with_words() {
    let header = Header {
        request: RequestId(300),
        generation: Generation(2),
        attempt: Attempt(5),
        seq: Seq(7),
        kind: Kind::Codes,
        units: 3,
        end: None,
        sent: 0,
        cached: 0,
    };
    let payload = Payload { header, parts: vec![Part::U32(vec![7; 48]), Part::F32(vec![0.5; 9])], leases: Vec::new() };
    let good = wire::encode(&payload).unwrap();
    fuzz("frames", 0.1, |dice| {
        let frame = Bytes::from(dice.damaged(&good));
        for zero_copy in [true, false] {
            if let Err(error) = wire::decode(&frame, zero_copy) {
                assert!(!error.to_string().is_empty());
            }
        }
    });
}

#[test]
fn checkpoints_are_opened_or_refused_with_words() {
    let from = root("tests/fixtures/qwen3_tts/custom_voice");
    let folder = tempfile::tempdir().unwrap();
    copy(&from, folder.path());
    let files: Vec<PathBuf> =
        files(&from).into_iter().filter(|file| file.file_name() != Some("README.md".as_ref())).collect();
    fuzz("checkpoint files", 0.3, |dice| {
        let file = &files[dice.roll(files.len())];
        let good = std::fs::read(from.join(file)).unwrap();
        // The header is what a safetensors file can lie with.
        let head = good.len().min(if file.extension() == Some("safetensors".as_ref()) { 6000 } else { usize::MAX });
        let bad = [dice.damaged(&good[..head]), good[head..].to_vec()].concat();
        std::fs::write(folder.path().join(file), bad).unwrap();
        let loaded = Checkpoint::open(folder.path()).and_then(|checkpoint| {
            let loader = checkpoint.loader(&["talker"], &candle_core::Device::Cpu);
            omni_actors::model::talker::Talker::load(&loader, checkpoint.family())?;
            loader.finish()?;
            checkpoint.tts_prompter().map(drop)
        });
        if let Err(error) = loaded {
            assert!(!error.to_string().is_empty());
        }
        std::fs::write(folder.path().join(file), good).unwrap();
    });
}

/// Files of a folder and those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|file| name.join(file)));
        } else {
            found.push(name);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        std::fs::create_dir_all(to.join(&file).parent().unwrap()).unwrap();
        std::fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}
