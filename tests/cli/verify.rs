//! `omni-actors verify`: one line per case, whatever is wrong with the others.

use candle_core::{Device, Tensor};
use omni_actors::model::Checkpoint;
use omni_actors::model::prompt::ChatPrompt;
use omni_actors::model::talker::Talker;
use omni_actors::model::thinker::Thinker;
use omni_actors::model::vocoder::Vocoder;
use omni_actors::tools::verify::{Request, generate, read_values};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const TINY: &str = "tests/fixtures/qwen3_omni";

struct Run {
    code: i32,
    out: String,
    err: String,
}

fn verify(golden: &Path, checkpoint: Option<&Path>) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_omni-actors"));
    command.arg("verify").arg("--golden").arg(golden);
    if let Some(checkpoint) = checkpoint {
        command.arg("--checkpoint").arg(checkpoint);
    }
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Run {
    /// The line of a case.
    fn line(&self, case: &str) -> &str {
        let of_case = |line: &&str| line.split_whitespace().nth(1) == Some(case);
        self.out.lines().find(of_case).unwrap_or_else(|| panic!("no line for {case} in\n{}{}", self.out, self.err))
    }
}

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// A folder `golden` for cases to be put into, beside the tiny checkpoint under the name `tiny`.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("golden")).unwrap();
        std::fs::create_dir(dir.path().join("tiny")).unwrap();
        for entry in std::fs::read_dir(path(TINY)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), dir.path().join("tiny").join(entry.file_name())).unwrap();
            }
        }
        Folder(dir)
    }

    fn golden(&self) -> PathBuf {
        self.0.path().join("golden")
    }

    /// A copy of a case of the fixtures under another name, its manifest and the numbers of its tensors changed.
    fn case(&self, from: &str, name: &str, manifest: impl FnOnce(&mut Value), data: impl FnOnce(&mut Vec<u8>)) {
        let source = path(TINY).join("golden");
        let mut json: Value =
            serde_json::from_slice(&std::fs::read(source.join(format!("{from}.json"))).unwrap()).unwrap();
        json["case"]["checkpoint"] = json!("tiny");
        manifest(&mut json);
        std::fs::write(self.golden().join(format!("{name}.json")), json.to_string()).unwrap();
        let mut bytes = std::fs::read(source.join(format!("{from}.safetensors"))).unwrap();
        data(&mut bytes);
        std::fs::write(self.golden().join(format!("{name}.safetensors")), bytes).unwrap();
    }

    fn verify(&self) -> Run {
        verify(&self.golden(), None)
    }
}

/// Changes one 4-byte element of a tensor inside a safetensors file.
fn change(bytes: &mut [u8], tensor: &str, element: usize, to: [u8; 4]) {
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = json[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let at = 8 + header + start + 4 * element;
    bytes[at..at + 4].copy_from_slice(&to);
}

#[test]
fn the_fixtures_pass() {
    let run = verify(&path(TINY).join("golden"), None);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    for case in ["text_ethan", "code2wav", "audio_ethan", "video_ethan", "mm_image_avvideo_chelsie", "vision_tower"] {
        assert!(run.line(case).starts_with("PASS"), "{}", run.line(case));
        assert!(run.line(case).contains("max error"));
    }
    assert!(run.out.contains("15 passed, 0 failed, 0 skipped"), "{}", run.out);
}

#[test]
fn a_checkpoint_takes_its_own_cases_and_those_of_no_name() {
    let folder = Folder::new();
    folder.case("text_ethan", "mine", |_| {}, |_| {});
    folder.case("text_ethan", "dot", |json| json["case"]["checkpoint"] = json!("."), |_| {});
    folder.case("text_ethan", "stranger", |json| json["case"]["checkpoint"] = json!("elsewhere"), |_| {});
    let run = verify(&folder.golden(), Some(&folder.0.path().join("tiny")));
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert!(run.line("mine").starts_with("PASS"));
    assert!(run.line("dot").starts_with("PASS"));
    assert!(run.line("stranger").starts_with("OTHER"));
    assert!(run.line("stranger").contains("elsewhere"));
}

#[test]
fn a_wrong_token_a_wrong_float_and_a_wrong_setting_are_told() {
    let folder = Folder::new();
    folder.case("text_ethan", "code", |_| {}, |bytes| change(bytes, "codes", 30, 7i32.to_le_bytes()));
    folder.case("text_ethan", "wav", |_| {}, |bytes| change(bytes, "wav", 100, 0.9f32.to_le_bytes()));
    folder.case("text_ethan", "nan", |_| {}, |bytes| change(bytes, "wav", 100, f32::NAN.to_le_bytes()));
    folder.case("text_ethan", "speaker", |json| json["meta"]["speaker"] = json!("Chelsie"), |_| {});
    let run = folder.verify();
    assert_eq!(run.code, 1);
    assert!(run.line("code").starts_with("FAIL"));
    // 23 frames: element 30 is group 1 of frame 7.
    assert!(run.line("code").contains("codes[0, 1, 7]: expected 7, got"), "{}", run.line("code"));
    assert!(run.line("wav").contains("in wav, allowed 2.0e-4"), "{}", run.line("wav"));
    assert!(run.line("wav").contains("all tokens equal"));
    assert!(run.line("nan").contains("not finite"));
    assert!(run.line("speaker").contains("talker.codec0_sequence["), "{}", run.line("speaker"));
    assert!(run.out.contains("0 passed, 4 failed"));
    assert!(run.err.contains("4 cases failed"));
}

#[test]
fn broken_cases_fail_with_a_reason_and_the_others_run() {
    let folder = Folder::new();
    let golden = folder.golden();
    std::fs::write(golden.join("a_no_json.json"), "{\"case\": ").unwrap();
    std::fs::write(golden.join("b_no_case.json"), "{\"tensors\": {}}").unwrap();
    folder.case("text_ethan", "c_kind", |json| json["case"]["kind"] = json!("sing"), |_| {});
    folder.case("text_ethan", "d_tensors", |_| {}, |bytes| bytes.truncate(5000));
    folder.case("text_ethan", "e_no_tensors", |_| {}, |_| {});
    std::fs::remove_file(golden.join("e_no_tensors.safetensors")).unwrap();
    folder.case("text_ethan", "f_no_checkpoint", |json| json["case"]["checkpoint"] = json!("gone"), |_| {});
    folder.case("text_ethan", "g_outside", |json| json["case"]["checkpoint"] = json!("../tiny"), |_| {});
    folder.case("text_ethan", "h_meta", |json| json["meta"]["n_text"] = json!("ten"), |_| {});
    folder.case("text_ethan", "i_speaker", |json| json["meta"]["speaker"] = json!("nobody"), |_| {});
    let layers = json!({"thinker_config": {"text_config": {"num_hidden_layers": 7}}});
    folder.case("text_ethan", "j_overrides", |json| json["case"]["config_overrides"] = layers, |_| {});
    folder.case("text_ethan", "k_lists", |json| json["tensors"]["more"] = json!({}), |_| {});
    folder.case("text_ethan", "l_ids", |_| {}, |bytes| change(bytes, "input_ids", 5, 99_999i32.to_le_bytes()));
    folder.case("code2wav", "m_codes", |_| {}, |bytes| change(bytes, "codes", 5, (-4i32).to_le_bytes()));
    folder.case("text_ethan", "n_prompt", |json| json["meta"]["prompt"] = json!("something else"), |_| {});
    folder.case("text_ethan", "z_good", |_| {}, |_| {});
    let run = folder.verify();
    for (case, reason) in [
        ("a_no_json", "is not a manifest"),
        ("b_no_case", "missing field `case`"),
        ("c_kind", "unknown kind \"sing\": expected omni_generate, tts_generate, code2wav"),
        ("d_tensors", "d_tensors.safetensors: "),
        ("e_no_tensors", "cannot read e_no_tensors.safetensors"),
        ("f_no_checkpoint", "gone"),
        ("g_outside", "expected \".\" or a folder beside the golden folder"),
        ("h_meta", "meta.n_text = \"ten\": expected a whole number"),
        ("i_speaker", "no voice \"nobody\""),
        ("j_overrides", "thinker.model.layers.6"),
        ("k_lists", "k_lists.safetensors lacks more"),
        ("l_ids", "99999, which is outside the vocabulary of 512"),
        ("m_codes", "-4"),
        ("n_prompt", "first difference input_ids["),
    ] {
        let line = run.line(case);
        assert!(line.starts_with("FAIL") && line.contains(reason), "{line}");
    }
    assert!(run.line("z_good").starts_with("PASS"));
    assert_eq!(run.out.lines().count(), 16, "one line per case and one for all:\n{}", run.out);
    assert_eq!(run.code, 1);
}

#[test]
fn config_overrides_reach_the_nets() {
    let folder = Folder::new();
    let theta = json!({"talker_config": {"text_config": {"rope_theta": 10_000}}});
    folder.case("text_ethan", "rope", |json| json["case"]["config_overrides"] = theta, |_| {});
    let same = json!({"talker_config": {"text_config": {"rope_theta": 1_000_000}}});
    folder.case("text_ethan", "same", |json| json["case"]["config_overrides"] = same, |_| {});
    let run = folder.verify();
    assert!(run.line("rope").starts_with("FAIL") && run.line("rope").contains("talker."), "{}", run.line("rope"));
    assert!(run.line("same").starts_with("PASS"));
}

#[test]
fn a_waveform_is_compared_up_to_where_the_reference_cuts_it() {
    // Speech of 320 frames. The reference decodes 300 at a time, each piece afresh, and loses samples in between.
    let folder = Folder::new();
    let checkpoint = Checkpoint::open(&path(TINY)).unwrap();
    let (config, loader) = (checkpoint.omni().unwrap(), checkpoint.loader(&[], &Device::Cpu));
    let thinker = Thinker::load(&loader, &config.thinker).unwrap();
    let talker = Talker::load(&loader, checkpoint.family()).unwrap();
    let net = Vocoder::load(&checkpoint, &Device::Cpu).unwrap();
    let ids = read_values(&std::fs::read(path(TINY).join("golden/text_ethan.safetensors")).unwrap()).unwrap();
    let request = Request {
        prompt: ChatPrompt::from_ids(ids["input_ids"].tokens().unwrap(), &config.tokens).unwrap(),
        speaker: config.talker.speaker("ethan").unwrap(),
        text_tokens: 10,
        thinker_eos: vec![333],
        codec_tokens: 321,
        talker_eos: vec![230],
        // Rewards repetition: the talker goes in circles and never stops.
        repetition_penalty: 0.5,
    };
    let frames = generate(config, &thinker, &talker, &request, None).unwrap().frames;
    assert_eq!(frames.len(), 320);
    let decode = |frames: &[Vec<u32>]| net.decode(&mut net.stream().unwrap(), &frames.concat()).unwrap();
    let pieces = [decode(&frames[..300]), decode(&frames[275..])[25 * 1920..].to_vec()].concat();
    let write = |name: &str, wave: Vec<f32>| {
        folder.case(
            "text_ethan",
            name,
            |json| {
                json["meta"]["n_frames_limit"] = json!(321);
                json["meta"]["repetition_penalty"] = json!(0.5);
                json["tensors"] = json!({"wav": {}});
            },
            |bytes| {
                let wave = Tensor::from_vec(wave, (1, 1, pieces.len()), &Device::Cpu).unwrap();
                let file = folder.0.path().join("wave");
                wave.save_safetensors("wav", &file).unwrap();
                *bytes = std::fs::read(file).unwrap();
            },
        );
    };
    write("long", pieces.clone());
    let mut wrong = pieces.clone();
    wrong[500_000] += 0.01;
    write("wrong", wrong);
    let run = folder.verify();
    assert!(
        run.line("long").starts_with("PASS") && run.line("long").contains("up to frame 300"),
        "{}",
        run.line("long")
    );
    assert!(run.line("wrong").starts_with("FAIL"), "{}", run.line("wrong"));
}

#[test]
fn a_folder_without_cases_is_an_error() {
    let folder = Folder::new();
    let run = folder.verify();
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("has no cases"), "{}", run.err);
    let gone = verify(&folder.0.path().join("gone"), None);
    assert_eq!(gone.code, 2);
    assert!(gone.err.contains("cannot read"), "{}", gone.err);
}

#[test]
fn a_device_that_is_not_there_is_told_before_any_case_is_run() {
    let verify = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_omni-actors"));
        // No GPU that may be there.
        command.env("CUDA_VISIBLE_DEVICES", "").args(["verify", "--golden"]).arg(path(TINY).join("golden"));
        let output = command.args(arguments).output().unwrap();
        assert!(output.stdout.is_empty(), "{output:?}");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = verify(&["--device", "cuda"]);
    assert!(told.contains("verify on the CPU (--device cpu)"), "{told}");
    let told = verify(&["--dtype", "bf16"]);
    assert!(told.contains("--dtype bf16 needs --device cuda"), "{told}");
}
