//! `POST /v1/audio/speech`.

use super::scripted::SEED;
use super::{Site, events, json};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt;
use serde_json::json;

const PATH: &str = "/v1/audio/speech";
/// 0.5 as PCM16.
const HALF: [u8; 2] = 16384i16.to_le_bytes();

#[tokio::test]
async fn a_whole_wav_is_the_default() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"model": "team/test-voice", "input": "Hello.", "voice": "ALTO"}));
    let call = site.service.call().await;
    assert_eq!(call.text().await, "Hello.");
    assert_eq!(call.speech().params.voice.name(), Some("alto"));
    call.started().await;
    call.audio(100).await;
    call.audio(50).await;
    call.finish().await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "audio/wav");
    assert_eq!(response.headers()["content-length"], "344");
    assert_eq!(response.headers()["x-sample-rate"], "24000");
    assert_eq!(response.headers()["x-seed"], SEED.to_string().as_str());
    let file = response.bytes().await.unwrap();
    let mut wav = hound::WavReader::new(file.as_ref()).unwrap();
    assert_eq!((wav.spec().sample_rate, wav.spec().channels, wav.duration()), (24_000, 1, 150));
    assert!(wav.samples::<i16>().all(|sample| sample.unwrap() == 16384));
}

#[tokio::test]
async fn pcm_leaves_as_it_is_made() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hello.", "response_format": "pcm"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    // The headers and the first samples are there while the engine still works.
    let response = response.await.unwrap();
    assert_eq!(response.headers()["content-type"], "audio/pcm");
    assert!(!response.headers().contains_key("content-length"));
    let mut body = response.bytes_stream();
    assert_eq!(body.next().await.unwrap().unwrap().as_ref(), [HALF, HALF].concat());
    call.audio(1).await;
    assert_eq!(body.next().await.unwrap().unwrap().as_ref(), HALF);
    call.finish().await;
    assert!(body.next().await.is_none());
}

#[tokio::test]
async fn a_streamed_wav_begins_with_an_open_ended_header() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hello.", "stream": true, "stream_format": "audio"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    call.finish().await;
    let body = response.await.unwrap().bytes().await.unwrap();
    assert_eq!(&body[40..44], [0xff; 4]);
    assert_eq!(body.len(), 44 + 4);
}

#[tokio::test]
async fn events_carry_base64_and_end_with_the_usage() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hello.", "stream": true, "response_format": "pcm"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    call.audio(1).await;
    call.finish().await;
    let events = events(response.await.unwrap()).await;
    let deltas: Vec<u8> = events[..2]
        .iter()
        .map(|event| json(event))
        .inspect(|event| assert_eq!(event["type"], "speech.audio.delta"))
        .flat_map(|event| BASE64_STANDARD.decode(event["audio"].as_str().unwrap()).unwrap())
        .collect();
    assert_eq!(deltas, HALF.repeat(3));
    let done = json(&events[2]);
    assert_eq!(done["type"], "speech.audio.done");
    let usage = json!({"input_tokens": 5, "output_tokens": 2, "total_tokens": 7, "text_tokens": 3,
        "input_token_details": {"text_tokens": 5, "audio_tokens": 0}});
    assert_eq!(done["usage"], usage);
    assert_eq!(events.len(), 3);
}

#[tokio::test]
async fn sampling_limits_and_seed_reach_the_engine() {
    let site = Site::new();
    let body = json!({"input": "Hi", "seed": 7, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.1,
        "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": -0.2, "max_new_tokens": 30,
        "initial_codec_chunk_frames": 2, "ignore_eos": true, "speed": 1.0, "language": "Auto", "task_type": "CustomVoice"});
    let _response = site.post(PATH, &body);
    let call = site.service.call().await;
    let request = &call.speech().params;
    assert_eq!((request.seed, request.max_frames.unwrap().0, request.ignore_eos), (Some(7), 30, true));
    assert_eq!(request.initial_chunk_frames.unwrap().0, 2);
    let sampling = request.speech;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (Some(0.5), Some(20), Some(0.9)));
    assert_eq!((sampling.min_p, sampling.repetition_penalty), (Some(0.1), Some(1.1)));
    assert_eq!((sampling.frequency_penalty, sampling.presence_penalty), (Some(0.2), Some(-0.2)));
}

#[tokio::test]
async fn unknown_fields_are_ignored_and_named() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hi", "resposne_format": "pcm", "user": "me"}));
    let call = site.service.call().await;
    call.started().await;
    call.finish().await;
    assert_eq!(response.await.unwrap().headers()["x-ignored-fields"], "resposne_format");
}

#[tokio::test]
async fn a_failure_before_the_first_byte_is_a_status() {
    let site = Site::new();
    for body in [
        json!({"input": "Hi"}),
        json!({"input": "Hi", "stream": true}),
        json!({"input": "Hi", "response_format": "pcm"}),
    ] {
        let response = site.post(PATH, &body);
        let call = site.service.call().await;
        call.started().await;
        call.fail().await;
        let response = response.await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        let error = response.json::<serde_json::Value>().await.unwrap();
        assert_eq!(error["error"]["type"], "server_error");
        assert_eq!(error["error"]["code"], "stage_failed");
        assert!(error["error"]["message"].as_str().unwrap().contains("talker"));
    }
}

#[tokio::test]
async fn a_failure_half_way_is_never_taken_for_the_end() {
    let site = Site::new();
    // Raw bytes: the connection breaks.
    let response = site.post(PATH, &json!({"input": "Hi", "response_format": "pcm"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    let response = response.await.unwrap();
    call.fail().await;
    assert!(response.bytes().await.is_err());
    // Events: an error event, and no end event.
    let response = site.post(PATH, &json!({"input": "Hi", "stream": true}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    call.fail().await;
    let events = events(response.await.unwrap()).await;
    assert_eq!(json(&events[1])["type"], "error");
    assert_eq!(json(&events[1])["error"]["code"], "stage_failed");
    assert_eq!(events.len(), 2);
    // A whole body: still a status.
    let response = site.post(PATH, &json!({"input": "Hi"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    call.fail().await;
    assert_eq!(response.await.unwrap().status(), 503);
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    let site = Site::new();
    // While it waits for a whole body.
    let response = site.post(PATH, &json!({"input": "Hi"}));
    let call = site.service.call().await;
    call.started().await;
    response.abort();
    call.dropped.await.unwrap();
    // While it reads a stream that has nothing new.
    for body in [json!({"input": "Hi", "stream": true}), json!({"input": "Hi", "response_format": "pcm"})] {
        let response = site.post(PATH, &body);
        let call = site.service.call().await;
        call.started().await;
        call.audio(2).await;
        drop(response.await.unwrap());
        call.dropped.await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_pauses_its_request() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hi", "response_format": "pcm"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(1).await;
    let response = response.await.unwrap();
    // A minute of audio per chunk fills every buffer between us and the client long before the 100th.
    let chunk = omni_actors::engine::AudioChunk {
        samples: vec![0.0; 1_440_000].into(),
        frames: omni_actors::core::ids::Frames(750),
    };
    let event = omni_actors::engine::Event::Audio(chunk);
    let mut taken = 0;
    let pause = std::time::Duration::from_secs(2);
    while tokio::time::timeout(pause, call.events.send_async(event.clone())).await.is_ok() {
        taken += 1;
        assert!(taken < 100, "the server reads on although the client does not");
    }
    // It goes on when the client does.
    let mut body = response.bytes_stream();
    let reader = tokio::spawn(async move { while let Some(Ok(_)) = body.next().await {} });
    call.events.send_async(event).await.unwrap();
    call.finish().await;
    reader.await.unwrap();
}

#[tokio::test]
async fn compressed_formats_are_whole_files_of_their_type() {
    let site = Site::new();
    for (format, content_type, magic) in [
        ("flac", "audio/flac", b"fLaC".as_slice()),
        ("mp3", "audio/mpeg", b"\xff\xf3".as_slice()),
        ("opus", "audio/ogg", b"OggS".as_slice()),
    ] {
        for stream in [json!({"stream": false}), json!({"stream_format": "audio"}), json!({})] {
            let mut body = json!({"input": "Hello.", "response_format": format});
            body.as_object_mut().unwrap().extend(stream.as_object().unwrap().clone());
            let response = site.post(PATH, &body);
            let call = site.service.call().await;
            call.started().await;
            call.audio(1920).await;
            call.audio(1920).await;
            call.finish().await;
            let response = response.await.unwrap();
            assert_eq!(response.headers()["content-type"], content_type, "{body}");
            let name = format!("inline; filename=\"speech.{format}\"");
            assert_eq!(response.headers()["content-disposition"], name.as_str());
            let file = response.bytes().await.unwrap();
            assert_eq!(&file[..magic.len()], magic, "{body}");
            if format == "flac" && stream != json!({"stream_format": "audio"}) {
                assert_eq!(file[21..26], [0xf0, 0, 0, 0x0f, 0x00], "{body}: 3840 samples in the header");
            }
        }
    }
}

#[tokio::test]
async fn mp3_leaves_as_it_is_made() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hello.", "response_format": "mp3"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(1920).await;
    // A tag and three frames of 24 ms at 96 kbit/s are there while the engine still works.
    let mut body = response.await.unwrap().bytes_stream();
    assert_eq!(body.next().await.unwrap().unwrap().len(), 4 * 288);
    call.finish().await;
    assert!(!body.next().await.unwrap().unwrap().is_empty());
    assert!(body.next().await.is_none());
}

#[tokio::test]
async fn the_last_bytes_of_a_file_are_an_event_too() {
    let site = Site::new();
    let response = site.post(PATH, &json!({"input": "Hello.", "stream": true, "response_format": "opus"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(1920).await;
    call.finish().await;
    let events = events(response.await.unwrap()).await;
    let kinds: Vec<_> = events.iter().map(|event| json(event)["type"].clone()).collect();
    assert_eq!(kinds, ["speech.audio.delta", "speech.audio.delta", "speech.audio.done"]);
    let last = BASE64_STANDARD.decode(json(&events[1])["audio"].as_str().unwrap()).unwrap();
    assert_eq!((&last[..4], last[5]), (b"OggS".as_slice(), 4), "the page that ends the stream");
}

#[tokio::test]
async fn speed_shortens_and_lengthens() {
    let site = Site::new();
    for (speed, samples) in [(1.0, 4800), (2.0, 2400), (0.5, 9600), (4.0, 1200)] {
        let body = json!({"input": "Hello.", "response_format": "pcm", "speed": speed});
        let response = site.post(PATH, &body);
        let call = site.service.call().await;
        call.started().await;
        for _ in 0..4 {
            call.audio(1200).await;
        }
        call.finish().await;
        let heard = response.await.unwrap().bytes().await.unwrap();
        assert_eq!(heard.len(), samples * 2, "at {speed}");
    }
}
