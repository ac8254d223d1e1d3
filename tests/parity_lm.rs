//! Parity of thinker and talker with the reference.
#![allow(clippy::unwrap_used)]
use candle_core::Device;
use omni_actors::model::Checkpoint;
use omni_actors::model::talker::Talker;
use omni_actors::model::thinker::Thinker;
use omni_actors::model::verify::*;
use std::path::Path;

fn run(dir: &str, golden: &str, name: &str) {
    let ck = Checkpoint::open(Path::new(dir)).unwrap();
    let loader = ck.loader(&[], &Device::Cpu);
    let c = ck.config();
    let thinker = Thinker::load(&loader, &c.thinker).unwrap();
    let talker = Talker::load(&loader, c).unwrap();
    loader.finish().unwrap();
    let reference = read_values(&std::fs::read(format!("{golden}/{name}.safetensors")).unwrap()).unwrap();
    let m: serde_json::Value =
        serde_json::from_slice(&std::fs::read(format!("{golden}/{name}.json")).unwrap()).unwrap();
    let m = &m["meta"];
    let prompt = reference["input_ids"].tokens().unwrap();
    let t = &c.tokens;
    let mut spoken = vec![];
    let mut role = 0;
    for (i, id) in prompt.iter().enumerate() {
        if *id == t.im_start {
            role = prompt[i + 1];
        }
        if role == t.user {
            spoken.push(i as u32);
        }
    }
    spoken.extend(prompt.len() as u32 - 3..prompt.len() as u32);
    let n = |k: &str| m[k].as_u64().unwrap();
    let request = Request {
        prompt,
        speaker: c.talker.speaker(m["speaker"].as_str().unwrap()).unwrap(),
        text_tokens: n("n_text") as usize,
        thinker_eos: vec![n("thinker_eos") as u32],
        codec_tokens: n("n_frames_limit") as usize,
        talker_eos: vec![n("talker_eos") as u32],
        repetition_penalty: m["repetition_penalty"].as_f64().unwrap() as f32,
        spoken,
    };
    let t0 = std::time::Instant::now();
    let trace = generate(c, &thinker, &talker, &request).unwrap();
    let found = compare(&reference, &trace.values);
    println!(
        "{name} {:?} {} frames: compared {} largest {:?} worst {:?} diff {:?} misfits {:?} unknown {:?}",
        t0.elapsed(),
        trace.frames.len(),
        found.compared,
        found.largest,
        found.worst,
        found.difference,
        found.misfits,
        found.unknown
    );
    assert!(found.passed());
}

#[test]
fn text_cases_of_the_fixtures_equal_the_reference() {
    for name in ["text_ethan", "text_ethan_eos", "text_ethan_thinker_eos"] {
        run("tests/fixtures/qwen3_omni", "tests/fixtures/qwen3_omni/golden", name);
    }
}
#[test]
fn the_default_voice_equals_the_reference() {
    for name in [
        "voice_heart_0",
        "voice_heart_1",
        "voice_heart_2",
        "voice_heart_3",
        "voice_alto_0",
        "voice_alto_1",
        "voice_alto_2",
        "voice_alto_3",
    ] {
        run("assets/voice/checkpoint", "assets/voice/golden", name);
    }
}
