//! Qwen3-TTS through every actor: against the reference's goldens, against itself, and voices that clients bring.

use crate::support::engine::{Answer, GREEDY, collect, engine, idle, root, say};
use candle_core::Device;
use omni_actors::config::{Config, TransportKind, VoicesDirectory};
use omni_actors::core::ids::{FinishReason, Frames, StageName};
use omni_actors::core::text::longest_seconds;
use omni_actors::engine::{
    Engine, NewVoice, Recording, SamplingOverrides, Service, SpeechParams, SpeechRequest, SubmitError, TaskType,
    TenantId, TextSource, VoiceChoice, VoiceError, VoiceSource,
};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::Checkpoint;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn fixtures() -> PathBuf {
    root().join("tests/fixtures/qwen3_tts")
}

fn checkpoint(name: &str, changes: &Map<String, Value>) -> Checkpoint {
    Checkpoint::open_with(&fixtures().join(name), changes).unwrap()
}

/// An engine that keeps voices in memory only.
async fn tts(name: &str, change: impl FnOnce(&mut Config)) -> Engine {
    engine(&checkpoint(name, &Map::new()), |config| {
        config.voices.directory = VoicesDirectory::Memory;
        change(config);
    })
    .await
}

fn tensors(case: &str) -> std::collections::HashMap<String, candle_core::Tensor> {
    candle_core::safetensors::load(fixtures().join(format!("golden/{case}.safetensors")), &Device::Cpu).unwrap()
}

fn wav(pcm: &[f32], rate: u32) -> Arc<[u8]> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    pcm.iter().for_each(|sample| writer.write_sample(*sample).unwrap());
    writer.finalize().unwrap();
    bytes.into_inner().into()
}

/// The recording of the goldens.
fn golden_recording() -> Vec<f32> {
    tensors("base_frontend")["pcm24k"].flatten_all().unwrap().to_vec1::<f32>().unwrap()
}

/// Another voice for every number.
fn recording(number: u32) -> Arc<[u8]> {
    let hum = |i: u32| {
        let t = f64::from(i) / 16_000.0;
        let pitch = 90.0 + 17.0 * f64::from(number);
        let tone = |n: f64| (std::f64::consts::TAU * pitch * n * t).sin() / n;
        (0.2 * (tone(1.0) + tone(2.0) + tone(3.0 + f64::from(number % 3)))) as f32
    };
    wav(&(0..16_000).map(hum).collect::<Vec<_>>(), 16_000)
}

fn request(text: &str, params: SpeechParams) -> SpeechRequest {
    SpeechRequest { text: TextSource::Whole(text.into()), params }
}

fn cloned(audio: Arc<[u8]>, text: Option<&str>) -> VoiceChoice {
    VoiceChoice::Clone(Recording { audio, text: text.map(str::to_owned), x_vector_only: false })
}

fn few_frames(voice: VoiceChoice, frames: u32, seed: u64) -> SpeechParams {
    SpeechParams { voice, max_frames: Some(Frames(frames)), seed: Some(seed), ..SpeechParams::default() }
}

/// Speaks a golden case as a client would: names, texts and the recording as a file.
async fn speaks_golden(case: &str) {
    let manifest = std::fs::read(fixtures().join(format!("golden/{case}.json"))).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let (about, meta) = (&manifest["case"], &manifest["meta"]);
    let text = |field: &Value| field.as_str().map(str::to_owned);
    let mut changes = about["config_overrides"].as_object().cloned().unwrap_or_default();
    changes.insert("talker_config.codec_eos_token_id".into(), meta["eos"].clone());
    let checkpoint = checkpoint(about["checkpoint"].as_str().unwrap(), &changes);
    let engine = engine(&checkpoint, |config| config.voices.directory = VoicesDirectory::Memory).await;

    let voice = match text(&meta["speakers"][0]) {
        Some(name) => VoiceChoice::named(Some(name)),
        None if about["checkpoint"] == "base" => cloned(wav(&golden_recording(), 24_000), meta["ref_text"].as_str()),
        None => VoiceChoice::Default,
    };
    let params = SpeechParams {
        voice,
        language: text(&meta["languages"][0]),
        instructions: text(&meta["instruct"]),
        non_streaming: meta["non_streaming_mode"].as_bool(),
        speech: GREEDY,
        max_frames: Some(Frames(meta["n_limit"].as_u64().unwrap() as u32 - 1)),
        ..SpeechParams::default()
    };
    let answer = say(&engine, request(meta["text"].as_str().unwrap(), params)).await;

    let wav = tensors(case)["wav"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(answer.samples.len(), wav.len(), "{case}");
    let worst = answer.samples.iter().zip(&wav).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
    assert!(worst < 2e-4, "{case}: differs by {worst}");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn named_voices_speak_as_the_reference_does_sample_for_sample() {
    for case in ["cv_streaming_auto_vivian", "cv_streaming_auto_vivian_eos", "cv_nonstreaming_english_ryan_instruct"] {
        speaks_golden(case).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_of_three_sentences_is_spoken_in_one_go_as_the_reference_does() {
    speaks_golden("cv_streaming_english_three_sentences").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_ends_where_its_text_cannot_take_longer() {
    let engine = tts("custom_voice", |_| {}).await;
    let text = "We left at dawn. It was cold! Did you sleep?";
    // A model that hardly ever says that it has ended.
    let hot = SamplingOverrides { temperature: Some(2.0), ..SamplingOverrides::default() };
    let spoken = |max_frames, seed| {
        let params = SpeechParams { speech: hot, max_frames, seed: Some(seed), ..SpeechParams::default() };
        say(&engine, request(text, params))
    };
    let most = (longest_seconds(text) * 12.5) as u32;
    let mut ended = 0;
    for seed in 0..8 {
        let (reason, usage) = spoken(None, seed).await.end.unwrap().unwrap();
        assert!(usage.frames.0 <= most, "{} of {most} frames", usage.frames);
        ended += u32::from(reason == FinishReason::Runaway && usage.frames.0 == most);
    }
    assert!(ended > 0, "all of them stopped by themselves");
    let (_, usage) = spoken(Some(Frames(most + 40)), 0).await.end.unwrap().unwrap();
    assert!(usage.frames.0 <= most + 40);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn described_voices_speak_as_the_reference_does_sample_for_sample() {
    speaks_golden("voice_design_english").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_of_a_recording_speak_as_the_reference_does_sample_for_sample() {
    for case in [
        "base_xvector_streaming_auto",
        "base_xvector_nonstreaming_english",
        "base_icl_streaming_english",
        "base_icl_streaming_shorttext",
    ] {
        speaks_golden(case).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_requests_with_twenty_voices_are_each_as_if_alone() {
    let engine = tts("base", |config| config.limits.max_requests = 128).await;
    // Each voice is asked for under the same label: what counts is the sound.
    let params = |number: u32| {
        let transcript = number.is_multiple_of(2).then_some("one two three");
        few_frames(cloned(recording(number % 20), transcript), 4 + number % 5, u64::from(number))
    };
    let mut alone = Vec::new();
    for number in 0..100 {
        alone.push(say(&engine, request("The same words for everybody.", params(number))).await);
    }
    assert!(alone.iter().all(|answer| answer.samples.len() >= 1920 * 4));
    assert!(alone[0].samples[..1920] != alone[1].samples[..1920], "another voice is another sound");
    let together: Vec<Answer> = futures::future::join_all(
        (0..100).map(|number| say(&engine, request("The same words for everybody.", params(number)))),
    )
    .await;
    for (number, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert!(alone.samples == together.samples, "request {number} sounds different in company");
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_ahead_transport_and_chunks_change_nothing_that_is_heard() {
    let mut answers = Vec::new();
    for (run_ahead, transport) in [(1, TransportKind::Inproc), (4, TransportKind::Wire)] {
        let engine = tts("base", |config| {
            config.stages.iter_mut().for_each(|stage| stage.run_ahead = Some(run_ahead));
            config.stages[StageName::Vocoder as usize].chunk_ramp = vec![Frames(run_ahead as u32)];
            config.stages[StageName::Vocoder as usize].prefill_chunk = Some(run_ahead as u32);
            config.stages[StageName::Talker as usize].prefill_chunk = Some(if run_ahead == 1 { 3 } else { 256 });
            config.transfer.transport = transport;
        })
        .await;
        let voice = cloned(recording(3), Some("one two three"));
        answers.push(say(&engine, request("Any way that it comes about.", few_frames(voice, 9, 5))).await);
    }
    assert!(answers[0].samples == answers[1].samples);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uploaded_voice_is_used_by_name_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let kept = |config: &mut Config| config.voices.directory = VoicesDirectory::Folder(folder.path().join("voices"));
    let speak = |voice: VoiceChoice| request("Good morning.", few_frames(voice, 5, 7));
    let first = {
        let engine = tts("base", kept).await;
        let added = engine.add_voice(new_voice("Clara", recording(1), Some("one two three"))).await.unwrap();
        assert_eq!((added.name.as_str(), added.uploaded), ("Clara", true));
        let direct = say(&engine, speak(cloned(recording(1), Some("one two three")))).await;
        let named = say(&engine, speak(VoiceChoice::named(Some("clara".into())))).await;
        assert!(direct.samples == named.samples, "a name stands for what was uploaded");
        engine.drain(Duration::ZERO).await;
        named
    };
    let engine = tts("base", kept).await;
    let names: Vec<_> = engine.voices().iter().map(|voice| voice.name.clone()).collect();
    assert_eq!(names, ["Clara"]);
    assert!(say(&engine, speak(VoiceChoice::named(Some("Clara".into())))).await.samples == first.samples);
    engine.remove_voice("CLARA").await.unwrap();
    assert_eq!(engine.remove_voice("Clara").await, Err(VoiceError::Unknown("Clara".into())));
    assert!(refused(&engine, speak(VoiceChoice::named(Some("Clara".into())))).await.contains("voice"));
    let left = std::fs::read_dir(folder.path().join("voices")).unwrap().count();
    assert_eq!(left, 0, "nothing is left of a voice that was deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_made_for_another_checkpoint_is_encoded_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = |config: &mut Config| config.voices.directory = VoicesDirectory::Folder(folder.path().into());
    let engine = tts("base", kept).await;
    engine.add_voice(new_voice("Clara", recording(1), None)).await.unwrap();
    let speak = || request("Good morning.", few_frames(VoiceChoice::named(Some("Clara".into())), 3, 7));
    let before = say(&engine, speak()).await;
    // As a file of other encoders looks: another fingerprint, which is part of the body, under a valid checksum.
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    rewrite_fingerprint(&file);
    let engine = tts("base", kept).await;
    assert!(say(&engine, speak()).await.samples == before.samples);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_voices_are_refused_with_what_to_do_and_leave_nothing_behind() {
    let engine = tts("base", |config| config.voices.max_count = 1).await;
    let blank = |change: fn(&mut NewVoice)| {
        let mut voice = new_voice("Clara", recording(1), None);
        change(&mut voice);
        voice
    };
    let cases: [(&str, NewVoice); 6] = [
        ("1 to 64 letters", blank(|voice| voice.name = "a/b".into())),
        ("1 to 64 letters", blank(|voice| voice.name = "x".repeat(1 << 20))),
        ("agreed", blank(|voice| voice.consent = " ".into())),
        ("transcript is empty", new_voice("Clara", recording(1), Some(" "))),
        ("numbers", blank(|voice| voice.source = VoiceSource::Embedding([1.0; 3].into()))),
        ("not a finite number", blank(|voice| voice.source = VoiceSource::Embedding([f32::NAN; 64].into()))),
    ];
    for (expected, voice) in cases {
        let said = engine.add_voice(voice).await.unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    assert!(engine.add_voice(new_voice("Noise", b"not audio".as_slice().into(), None)).await.is_err());
    assert_eq!(engine.voices(), []);
    engine.add_voice(new_voice("Clara", recording(1), None)).await.unwrap();
    let again = engine.add_voice(new_voice("clara", recording(2), None)).await;
    assert_eq!(again, Err(VoiceError::Exists("clara".into())));
    let more = engine.add_voice(new_voice("Berta", recording(2), None)).await;
    assert_eq!(more, Err(VoiceError::TooMany(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_checkpoint_cannot_do_is_refused_with_the_reason() {
    let base = tts("base", |_| {}).await;
    let custom = tts("custom_voice", |_| {}).await;
    let small = {
        let change = Map::from_iter([("tts_model_size".to_owned(), json!("0b6"))]);
        engine(&checkpoint("custom_voice", &change), |_| {}).await
    };
    let vivian = || SpeechParams { voice: VoiceChoice::named(Some("Vivian".into())), ..SpeechParams::default() };
    let slowly = || SpeechParams { instructions: Some("slowly".into()), ..vivian() };
    let cases = [
        (&base, vivian(), "recording"),
        (&base, SpeechParams::default(), "recording"),
        (&base, few_frames(cloned(b"RIFF".as_slice().into(), None), 3, 1), ""),
        (&small, slowly(), "does not follow instructions"),
        (&custom, few_frames(cloned(recording(1), None), 3, 1), "cannot clone a voice"),
        (&custom, few_frames(VoiceChoice::named(Some("nobody".into())), 3, 1), "the voices are"),
        (&custom, SpeechParams { language: Some("klingon".into()), ..vivian() }, "the languages are: auto, chinese"),
        (&custom, SpeechParams { language: Some("Beijing_Dialect".into()), ..vivian() }, "is a dialect"),
        (&custom, SpeechParams { task: Some(TaskType::Base), ..vivian() }, "this one is for CustomVoice"),
    ];
    for (engine, params, expected) in cases {
        let said = refused(engine, request("Good morning.", params)).await;
        assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    }
    assert!(refused(&custom, request("  ", vivian())).await.contains("no text"));
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_spoken_while_it_is_being_written() {
    let engine = tts("custom_voice", |_| {}).await;
    let (write, text) = flume::unbounded();
    let params = SpeechParams { ignore_eos: false, ..few_frames(VoiceChoice::Default, 6, 3) };
    let mut stream = engine.speak(SpeechRequest { text: TextSource::Streamed(text), params }).await.unwrap();
    // Three words and not the end of a sentence: enough to begin with.
    write.send("Every word of ".to_owned()).unwrap();
    let mut heard = 0;
    while heard == 0 {
        if let Some(omni_actors::engine::Event::Audio(chunk)) = stream.next().await {
            heard += chunk.samples.len();
        }
    }
    write.send("this is heard. And this as well.".to_owned()).unwrap();
    drop(write);
    let rest = collect(stream).await;
    let (_, usage) = rest.end.unwrap().unwrap();
    assert_eq!((heard + rest.samples.len()) / 1920, usage.frames.0 as usize);
    assert!(usage.frames.0 > 6, "both sentences were spoken");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentence_that_arrives_word_by_word_sounds_as_if_it_had_come_at_once() {
    let engine = tts("custom_voice", |_| {}).await;
    let params =
        || SpeechParams { non_streaming: Some(false), speech: GREEDY, ..few_frames(VoiceChoice::Default, 20, 3) };
    let words = ["Slow", "ly and ", "steadily ", "to the en", "d."];
    let whole = say(&engine, request(&words.concat(), params())).await;
    let (write, text) = flume::unbounded();
    words.iter().for_each(|word| write.send((*word).to_owned()).unwrap());
    drop(write);
    let live = say(&engine, SpeechRequest { text: TextSource::Streamed(text), params: params() }).await;
    assert!(live.samples == whole.samples);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chapter_is_one_stream() {
    let engine = tts("custom_voice", |config| config.speech.max_segment_chars = Some(80)).await;
    let chapter: String = (0..150).map(|i| format!("This is sentence number {i} of a long chapter. ")).collect();
    let answer = say(&engine, request(&chapter, few_frames(VoiceChoice::Default, 2, 9))).await;
    let (_, usage) = answer.end.unwrap().unwrap();
    assert_eq!(answer.samples.len(), usage.frames.0 as usize * 1920);
    assert!(usage.frames.0 >= 150, "{usage:?}");
    let steepest = answer.samples.chunks(1920).collect::<Vec<_>>();
    assert!(steepest.len() as u32 == usage.frames.0);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_described_voice_stays_the_same_over_a_long_text() {
    let change = Map::from_iter([("tts_model_type".to_owned(), json!("voice_design"))]);
    let checkpoint = checkpoint("custom_voice", &change);
    let engine = engine(&checkpoint, |config| config.speech.max_segment_chars = Some(40)).await;
    let said = |text: &str| {
        let instructions = Some("A calm warm voice.".to_owned());
        request(text, SpeechParams { instructions, ..few_frames(VoiceChoice::Default, 6, 11) })
    };
    let (first, second) = ("This is how it all began.", "And this is how it went on.");
    let alone = say(&engine, said(first)).await;
    let both = say(&engine, said(&format!("{first} {second}"))).await;
    let piece = 6 * 1920;
    assert_eq!((alone.samples.len(), both.samples.len()), (piece, 2 * piece));
    assert!(alone.samples[..piece - 120] == both.samples[..piece - 120], "the first piece is as if alone");
    let fresh = say(&engine, {
        let mut request = said(second);
        request.params.seed = Some(12);
        request
    })
    .await;
    assert!(fresh.samples[120..] != both.samples[piece + 120..], "the second goes on from the first");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pieces_of_a_long_text_go_on_from_the_first_unless_the_voice_has_a_transcript() {
    let shorten = |config: &mut Config| config.speech.max_segment_chars = Some(40);
    let (custom, base) = (tts("custom_voice", shorten).await, tts("base", shorten).await);
    let vivian = || VoiceChoice::named(Some("Vivian".into()));
    let (first, second) = ("This is how it all began.", "And this is how it went on.");
    // Of 3.2 s and of half a second, which is too short to go on from.
    let cases = [
        (&custom, vivian(), 40, true),
        (&custom, vivian(), 6, false),
        (&base, cloned(recording(2), None), 40, true),
        (&base, cloned(recording(2), None), 6, false),
        (&base, cloned(recording(2), Some("one two three")), 40, false),
    ];
    for (engine, voice, frames, goes_on) in cases {
        let params = |seed| SpeechParams { speech: GREEDY, ..few_frames(voice.clone(), frames, seed) };
        let piece = frames as usize * 1920;
        let both = say(engine, request(&format!("{first} {second}"), params(11))).await;
        let alone = say(engine, request(first, params(11))).await;
        let fresh = say(engine, request(second, params(12))).await;
        assert_eq!((alone.samples.len(), both.samples.len()), (piece, 2 * piece), "{voice:?}");
        assert!(alone.samples[..piece - 120] == both.samples[..piece - 120], "{voice:?}: the first is as if alone");
        assert_eq!(fresh.samples[120..] != both.samples[piece + 120..], goes_on, "{voice:?}, {frames} frames");
    }
    idle(&custom).await;
    idle(&base).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_goes_on_is_the_same_when_a_stage_is_killed_in_it() {
    let text = "This is how it all began. And this is how it went on.";
    let params = || few_frames(VoiceChoice::Default, 40, 11);
    let broken = async |rule: Option<FaultRule>| {
        let change = |config: &mut Config| {
            config.speech.max_segment_chars = Some(40);
            config.faults = rule.into_iter().collect();
            config.supervision.backoff = Duration::from_millis(1);
        };
        let engine = tts("custom_voice", change).await;
        let answer = say(&engine, request(text, params())).await;
        (answer, engine.health().stages.iter().map(|stage| stage.restarts).sum::<u32>())
    };
    let (undisturbed, _) = broken(None).await;
    assert!(undisturbed.samples.len() > 50 * 1920, "the second piece was spoken");
    // A talker makes a frame a step, a vocoder several.
    for (stage, nth) in [(StageName::Talker, 50), (StageName::Vocoder, 9)] {
        let rule = FaultRule::new(stage, FaultPoint::Runner, FaultKind::Panic).nth(nth).times(1);
        let (answer, restarts) = broken(Some(rule)).await;
        assert_eq!(restarts, 1, "{stage}");
        assert!(answer.samples == undisturbed.samples, "{stage}");
    }
}

fn new_voice(name: &str, audio: Arc<[u8]>, text: Option<&str>) -> NewVoice {
    let recording = Recording { audio, text: text.map(str::to_owned), x_vector_only: false };
    NewVoice {
        name: name.into(),
        source: VoiceSource::Recording { recording, mime_type: Some("audio/wav".into()) },
        consent: "for this test".into(),
        description: None,
        owner: None,
        tenant: TenantId::default(),
    }
}

async fn refused(engine: &Engine, request: SpeechRequest) -> String {
    match engine.speak(request).await {
        Err(SubmitError::Invalid { message, .. }) => message,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was accepted"),
    }
}

/// Changes the fingerprint in a kept voice: 32 bytes in front of the x-vector, which has 64 numbers here.
fn rewrite_fingerprint(file: &Path) {
    const HEADER: usize = 18;
    let mut bytes = std::fs::read(file).unwrap();
    let body = &mut bytes[HEADER..];
    // Without a transcript the body ends with the x-vector's length and numbers and an empty list.
    let fingerprint = body.len() - 1 - 64 * 4 - 1 - 32;
    body[fingerprint] ^= 1;
    let checksum = crc32fast::hash(body);
    bytes[HEADER - 4..HEADER].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(file, bytes).unwrap();
}
