//! Speech that does not say its text: it ends with the reason, or is made anew before any of it is sent.

use crate::support::engine::{Answer, GREEDY, engine, idle, root, say};
use candle_core::Device;
use omni_actors::config::{Config, VoicesDirectory};
use omni_actors::core::ids::{FinishReason, StageName};
use omni_actors::core::text::{longest_seconds, shortest_seconds};
use omni_actors::engine::{Engine, SamplingOverrides, SpeechParams, SpeechRequest, TextSource};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::Checkpoint;
use serde_json::json;
use std::path::Path;

const FRAMES_PER_SECOND: f64 = 12.5;
/// A checkpoint with random weights may end before anybody can have said it.
const TEXT: &str = "We left at dawn. It was cold! Did you sleep?";

fn folder() -> std::path::PathBuf {
    root().join("tests/fixtures/qwen3_tts/custom_voice")
}

async fn of(checkpoint: &Checkpoint, change: impl FnOnce(&mut Config)) -> Engine {
    engine(checkpoint, |config| {
        config.voices.directory = VoicesDirectory::Memory;
        change(config);
    })
    .await
}

async fn spoken(engine: &Engine, text: &str, speech: SamplingOverrides, (seed, whole): (u64, bool)) -> Answer {
    let params = SpeechParams { speech, seed: Some(seed), whole, ..SpeechParams::default() };
    say(engine, SpeechRequest { text: TextSource::Whole(text.into()), params }).await
}

/// Why it ended, and of how many frames it is.
fn end(answer: &Answer) -> (FinishReason, u32) {
    let (reason, usage) = answer.end.clone().unwrap().unwrap();
    assert_eq!(answer.samples.len(), usage.frames.0 as usize * 1920, "every frame is heard, and nothing else");
    (reason, usage.frames.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_that_ends_before_it_can_have_said_its_text_says_so_or_is_made_anew() {
    let least = (shortest_seconds(TEXT) * FRAMES_PER_SECOND) as u32;
    // With another code for the end, which these weights say sooner.
    let changes = json!({"talker_config": {"codec_eos_token_id": 1000}});
    let checkpoint = Checkpoint::open_with(&folder(), changes.as_object().unwrap()).unwrap();
    let cool = SamplingOverrides { temperature: Some(0.2), repetition_penalty: Some(1.0), ..Default::default() };
    let steady = of(&checkpoint, |config| config.speech.retries = 0).await;
    let engine = of(&checkpoint, |_| {}).await;
    let (mut unspoken, mut mended) = (0, 0);
    for seed in [0, 1, 2, 12] {
        let sent = spoken(&engine, TEXT, cool, (seed, false)).await;
        let whole = spoken(&engine, TEXT, cool, (seed, true)).await;
        let (reason, frames) = end(&sent);
        assert_eq!(reason == FinishReason::Unspoken, frames < least, "{reason:?} after {frames} of {least}");
        assert_eq!(end(&whole).0 == FinishReason::Unspoken, end(&whole).1 < least);
        if reason == FinishReason::Unspoken {
            unspoken += 1;
            assert!(whole.samples != sent.samples, "other numbers are drawn");
            mended += u32::from(end(&whole).0 == FinishReason::Stop);
            let again = spoken(&engine, TEXT, cool, (seed, true)).await;
            assert!(again.samples == whole.samples && again.end == whole.end, "the same again");
            assert!(spoken(&steady, TEXT, cool, (seed, true)).await.samples == sent.samples, "where none is");
        } else {
            assert!(whole.samples == sent.samples, "what says its text is left alone");
        }
    }
    assert!(unspoken > 0 && mended > 0, "{unspoken} ended at once, {mended} were mended");
    idle(&engine).await;
}

/// A checkpoint whose talker says the same code for ever: what it has computed last is multiplied by nothing, so all
/// codes are as likely as each other, and the first is taken.
fn stuck() -> (tempfile::TempDir, Checkpoint) {
    let copy = tempfile::tempdir().unwrap();
    let copied = |from: &Path, to: &Path| {
        std::fs::create_dir_all(to).unwrap();
        for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
            }
        }
    };
    copied(&folder(), copy.path());
    copied(&folder().join("speech_tokenizer"), &copy.path().join("speech_tokenizer"));
    let weights = copy.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&weights, &Device::Cpu).unwrap();
    let norm = tensors.get_mut("talker.model.norm.weight").unwrap();
    *norm = norm.zeros_like().unwrap();
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    let checkpoint = Checkpoint::open(copy.path()).unwrap();
    (copy, checkpoint)
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_without_end_ends_at_the_same_frame_whatever_dies() {
    let text = "The weather is lovely today.";
    let (_folder, checkpoint) = stuck();
    let calm = of(&checkpoint, |_| {}).await;
    let expected = spoken(&calm, text, GREEDY, (1, false)).await;
    let (reason, frames) = end(&expected);
    assert_eq!(reason, FinishReason::Runaway);
    let most = (longest_seconds(text) * FRAMES_PER_SECOND) as u32;
    assert!((most / 2..most).contains(&frames), "{frames} of {most} frames");
    idle(&calm).await;
    // Greedy speech is the same each time, so making it anew does not help.
    let whole = spoken(&calm, text, GREEDY, (1, true)).await;
    assert!(whole.samples == expected.samples && whole.end == expected.end);
    for (stage, after) in [(StageName::Talker, 40), (StageName::Talker, frames as usize), (StageName::Vocoder, 6)] {
        let engine = of(&checkpoint, |config| {
            let rule = FaultRule::new(stage, FaultPoint::Runner, FaultKind::Panic).nth(after as _);
            config.faults = vec![rule];
        })
        .await;
        let answer = spoken(&engine, text, GREEDY, (1, false)).await;
        assert!(answer.samples == expected.samples && answer.end == expected.end, "{stage} after {after}");
        idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_was_asked_for_is_kept() {
    let (_folder, checkpoint) = stuck();
    let engine = of(&checkpoint, |_| {}).await;
    let mut request = crate::support::engine::frames(200, 1);
    request.params.speech = GREEDY;
    assert_eq!(end(&say(&engine, request).await), (FinishReason::Length, 200));
    idle(&engine).await;
}
