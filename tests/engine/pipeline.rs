//! The whole pipeline, through every actor, against the reference's goldens and against itself.

use crate::support::engine::{Answer, GREEDY, chat, collect, engine, frames, idle, root, say, speech, voice};
use candle_core::Device;
use omni_actors::config::TransportKind;
use omni_actors::core::ids::StageName;
use omni_actors::engine::{Event, FinishReason, Output, Service, SpeechRequest, TextSource};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_through_all_actors_is_the_references_token_for_token_and_sample_for_sample() {
    let engine = engine(&voice(), |_| {}).await;
    for case in ["voice_heart_0", "voice_alto_1", "voice_heart_3"] {
        let golden = root().join("assets/voice/golden");
        let manifest = std::fs::read(golden.join(format!("{case}.json"))).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let meta = |key: &str| manifest["meta"][key].as_str().unwrap().to_owned();
        let tensors = candle_core::safetensors::load(golden.join(format!("{case}.safetensors")), &Device::Cpu).unwrap();
        let wav = tensors["wav"].flatten_all().unwrap().to_vec1::<f32>().unwrap();

        let prompt = meta("prompt");
        let user = prompt.split("user\n").nth(1).unwrap().split("<|im_end|>").next().unwrap();
        let mut request = chat(user, Output::TextAndAudio);
        request.voice = Some(meta("speaker"));
        let answer = collect(engine.submit(request).await.unwrap()).await;

        assert_eq!(format!("{}<|im_end|>", answer.text), meta("generated_text"), "{case}");
        assert_eq!(answer.samples.len(), wav.len(), "{case}");
        let worst = answer.samples.iter().zip(&wav).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-4, "{case}: differs by {worst}");
        assert!(answer.came_in_chunks(), "{case}: {:?}", answer.chunks);
        let (reason, usage) = answer.end.unwrap().unwrap();
        assert_eq!(reason, FinishReason::Stop);
        assert_eq!(usage.frames.0 as usize, tensors["codes"].dims()[2], "{case}");
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_spoken_verbatim_as_if_the_thinker_had_said_it() {
    let engine = engine(&voice(), |_| {}).await;
    let mut spoken = speech("The weather is lovely today.", 1);
    spoken.params.speech = GREEDY;
    let spoken = say(&engine, spoken).await;
    let answered =
        collect(engine.submit(chat("Say: The weather is lovely today.", Output::TextAndAudio)).await.unwrap()).await;
    assert_eq!(spoken.samples, answered.samples);
    assert_eq!(spoken.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_reproduces_a_request_whatever_runs_beside_it() {
    let engine = engine(&voice(), |_| {}).await;
    let texts =
        ["Two cups of tea.", "He wore a red ribbon.", "She is alone much of the time.", "One, two, three, four."];
    let mut alone = Vec::new();
    for (seed, text) in (10..).zip(texts) {
        alone.push(say(&engine, speech(text, seed)).await);
    }
    let together: Vec<Answer> =
        futures::future::join_all((10..).zip(texts).map(|(seed, text)| say(&engine, speech(text, seed)))).await;
    for (alone, together) in alone.iter().zip(&together) {
        assert!(alone.samples == together.samples, "other requests changed the samples of this one");
        assert_eq!(alone.end, together.end);
    }
    let other = say(&engine, speech(texts[0], 11)).await;
    assert!(other.samples != alone[0].samples, "another seed is another reading");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_ahead_and_transport_change_nothing_that_is_heard() {
    let mut answers = Vec::new();
    use TransportKind::{Inproc, Shm, Wire};
    for (run_ahead, transport, zero_copy) in
        [(1, Inproc, true), (3, Inproc, true), (2, Wire, true), (2, Shm, true), (1, Shm, false)]
    {
        let engine = engine(&voice(), |config| {
            config.transfer.transport = transport;
            config.transfer.zero_copy = zero_copy;
            config.stages.iter_mut().for_each(|stage| stage.run_ahead = Some(run_ahead));
        })
        .await;
        answers.push(say(&engine, speech("Please bring two cups of coffee.", 5)).await);
        idle(&engine).await;
    }
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!((&answer.end, &answer.text), (&answers[0].end, &answers[0].text), "case {n}");
        assert!(answer.came_in_chunks(), "case {n}: {:?}", answer.chunks);
        assert!(answer.samples == answers[0].samples, "case {n}: other samples");
    }
    assert!(answers[0].end.as_ref().is_some_and(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_frames_can_be_asked_for() {
    let engine = engine(&voice(), |_| {}).await;
    let answer = say(&engine, frames(30, 3)).await;
    assert!(answer.chunks.len() > 1 && answer.came_in_chunks(), "{:?}", answer.chunks);
    let (reason, usage) = answer.end.unwrap().unwrap();
    assert_eq!((reason, usage.frames.0), (FinishReason::Length, 30));
    assert_eq!(answer.samples.len(), 30 * 1920 - 555);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_is_read_sentence_after_sentence_as_one_stream() {
    let engine = engine(&voice(), |_| {}).await;
    let (first, second) = ("He wore a red ribbon.", "The news of her death saddened me.");
    let (one, two) = (say(&engine, speech(first, 7)).await, say(&engine, speech(second, 8)).await);
    let both = say(&engine, speech(&format!("{first} {second}"), 7)).await;
    assert_eq!(both.samples.len(), one.samples.len() + two.samples.len());
    // Where they meet, 5 ms of each fade; everything else is as if alone.
    let (border, fade) = (one.samples.len(), 120);
    assert!(both.samples[..border - fade] == one.samples[..border - fade]);
    assert!(both.samples[border + fade..] == two.samples[fade..]);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_talker_speaks_while_the_thinker_still_thinks() {
    let engine = engine(&voice(), |config| {
        // A thinker that needs half a second for each token.
        config.faults = vec![
            FaultRule::new(StageName::Thinker, FaultPoint::Runner, FaultKind::Delay(Duration::from_millis(500)))
                .times(u64::MAX),
        ];
    })
    .await;
    let mut stream = engine.submit(chat("Say: The weather is lovely today.", Output::TextAndAudio)).await.unwrap();
    let mut order = Vec::new();
    while let Some(event) = stream.next().await {
        order.push(match event {
            Event::Text(_) => 't',
            Event::Audio(_) => 'a',
            Event::Failed(error) => panic!("{error}"),
            _ => '-',
        });
    }
    let (first_audio, last_text) = (order.iter().position(|e| *e == 'a'), order.iter().rposition(|e| *e == 't'));
    assert!(first_audio < last_text, "{order:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_still_being_written_is_spoken_already() {
    let engine = engine(&voice(), |config| config.speech.flush_after = Duration::from_millis(50)).await;
    for written in ["Two cups of tea. And th", "two cups of tea and th"] {
        let (writer, text) = flume::bounded(4);
        let request = SpeechRequest { text: TextSource::Streamed(text), ..speech("", 1) };
        let mut stream = engine.speak(request).await.unwrap();
        writer.send_async(written.into()).await.unwrap();
        let mut heard = 0;
        while heard == 0 {
            match stream.next().await.unwrap() {
                Event::Audio(chunk) => heard += chunk.samples.len(),
                Event::Finished { .. } => panic!("the text has not ended"),
                _ => {}
            }
        }
        writer.send_async("en some.".into()).await.unwrap();
        drop(writer);
        let rest = collect(stream).await;
        assert!(rest.samples.len() > heard && rest.end.unwrap().is_ok());
    }
}
