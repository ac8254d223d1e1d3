//! `WS /v1/realtime`, with an engine that does as a test says.

use super::{Site, json};
use futures::{SinkExt, StreamExt};
use omni_actors::engine::{Content, MediaSource, Output, Part, SubmitError};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn connect(site: &Site) -> Client {
        let (socket, _) = connect_async(format!("ws://{}/v1/realtime?seed=5", site.address)).await.unwrap();
        let mut client = Client(socket);
        client.until("session.created").await;
        client
    }

    async fn send(&mut self, event: &Value) {
        self.0.send(Message::text(event.to_string())).await.unwrap();
    }

    async fn next(&mut self) -> Message {
        loop {
            match self.0.next().await.unwrap().unwrap() {
                Message::Ping(_) => {}
                message => return message,
            }
        }
    }

    /// The events up to one of this type.
    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = json(self.next().await.to_text().unwrap());
            let found = event["type"] == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }

    async fn ask(&mut self, content: Value, response: Value) {
        let item = json!({"type": "message", "role": "user", "content": content});
        self.send(&json!({"type": "conversation.item.create", "item": item})).await;
        self.send(&json!({"type": "response.create", "response": response})).await;
        self.until("response.created").await;
    }
}

fn hello() -> Value {
    json!([{"type": "input_text", "text": "Hello"}])
}

#[tokio::test]
async fn the_engine_is_asked_for_what_the_session_says_and_sound_leaves_frame_by_frame() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    let audio = json!({"output": {"voice": "ash"}});
    client.send(&json!({"type": "session.update", "session": {"instructions": "Be kind", "audio": audio}})).await;
    let updated = client.until("session.updated").await.pop().unwrap();
    assert_eq!(updated["session"]["audio"]["output"]["voice"], "alto");
    let picture = json!({"type": "input_image", "image_url": "data:image/png;base64,aaaa", "detail": "low"});
    let content = json!([{"type": "input_text", "text": "Look"}, picture]);
    client.ask(content, json!({"max_output_tokens": 9, "temperature": 0.5})).await;
    let call = site.service.call().await;
    let request = call.chat();
    assert_eq!((request.output, request.voice.as_deref()), (Output::TextAndAudio, Some("alto")));
    assert_eq!((request.max_text_tokens, request.text.temperature), (Some(9), Some(0.5)));
    assert_eq!(request.messages[0].content, Content::Text("Be kind".to_owned()));
    assert_eq!(request.messages[1].content, Content::Parts(vec![Part::Text("Look".to_owned()), Part::Image]));
    assert!(matches!(request.media[..], [MediaSource::Image { .. }]), "{:?}", request.media);
    call.started().await;
    call.text_delta("A face.").await;
    call.audio(3 * 1920 + 5).await;
    call.finish().await;
    let events = client.until("response.done").await;
    let deltas: Vec<usize> = events
        .iter()
        .filter(|event| event["type"] == "response.output_audio.delta")
        .map(|event| event["delta"].as_str().unwrap().len())
        .collect();
    assert_eq!(deltas, [5120, 5120, 5120, 16]);
    assert_eq!(events.last().unwrap()["response"]["seed"].as_u64(), request.seed);
}

#[tokio::test]
async fn an_answer_that_is_cancelled_is_let_go_of_at_once() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.ask(hello(), json!({})).await;
    let call = site.service.call().await;
    call.started().await;
    call.audio(1920).await;
    client.until("response.output_audio.delta").await;
    client.send(&json!({"type": "response.cancel", "response_id": "resp_1"})).await;
    let done = client.until("response.done").await.pop().unwrap();
    assert_eq!(done["response"]["status"], "cancelled");
    call.dropped.await.unwrap();
}

#[tokio::test]
async fn answers_that_the_engine_refuses_or_fails_say_why_and_the_session_goes_on() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    site.service.refuse_next(SubmitError::Busy("the decoder's queue is full".to_owned()));
    client.ask(hello(), json!({})).await;
    let done = client.until("response.done").await.pop().unwrap();
    let error = &done["response"]["status_details"]["error"];
    assert_eq!(
        (&done["response"]["status"], &error["message"]),
        (&json!("failed"), &json!("the decoder's queue is full"))
    );
    client.ask(hello(), json!({"output_modalities": ["text"]})).await;
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Good").await;
    call.fail().await;
    let done = client.until("response.done").await.pop().unwrap();
    let response = &done["response"];
    assert_eq!((&response["status"], &response["output"][0]["status"]), (&json!("failed"), &json!("incomplete")));
    assert_eq!(response["status_details"]["error"]["code"], "stage_failed");
    client.ask(hello(), json!({})).await;
    // What had been said is part of the conversation.
    let turns: Vec<String> = site.service.call().await.chat().messages.iter().map(|turn| turn.role.clone()).collect();
    assert_eq!(turns, ["user", "user", "assistant", "user"]);
}

#[tokio::test]
async fn at_shutdown_the_answer_that_is_being_made_ends_and_then_the_session() {
    let mut site = Site::new();
    let (mut talking, mut idle) = (Client::connect(&site).await, Client::connect(&site).await);
    talking.ask(hello(), json!({})).await;
    let call = site.service.call().await;
    call.started().await;
    drop(site.shutdown.take());
    let Message::Close(Some(frame)) = idle.next().await else { panic!("not closed") };
    assert_eq!(frame.code, CloseCode::Away);
    call.text_delta("Bye").await;
    call.finish().await;
    let done = talking.until("response.done").await.pop().unwrap();
    assert_eq!(done["response"]["status"], "completed");
    let Message::Close(Some(frame)) = talking.next().await else { panic!("not closed") };
    assert_eq!(frame.code, CloseCode::Away);
}

fn weather() -> Value {
    json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}])
}

#[tokio::test]
async fn a_spoken_answer_ends_before_a_call_and_the_call_is_read_from_the_same_request_in_text() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.ask(hello(), json!({"tools": weather()})).await;
    let spoken = site.service.call().await;
    let request = spoken.chat();
    assert!(request.until_call && request.tools[0].contains("\"weather\""), "{:?}", request.tools);
    let (seed, asked) = (request.seed, request.messages.clone());
    spoken.started().await;
    spoken.text_delta("Let me see.").await;
    spoken.text_delta("<tool_call>").await;
    spoken.audio(1920).await;
    spoken.finish().await;
    let written = site.service.call().await;
    let request = written.chat();
    assert_eq!((request.output, request.seed, request.until_call), (Output::Text, seed, false));
    assert_eq!((&request.messages, request.tools.len()), (&asked, 1));
    written.started().await;
    // However it comes: the beginning is known.
    written.text_delta("Let me").await;
    written.text_delta(" see.<tool_call>").await;
    written.text_delta("{\"name\": \"weather\", \"arguments\": {\"at\": \"Oslo\"}}</tool_call>").await;
    written.finish().await;
    let events = client.until("response.done").await;
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!(of("response.output_audio.delta").len(), 1);
    assert_eq!(of("response.output_audio_transcript.done")[0]["transcript"], "Let me see.");
    assert_eq!(of("response.function_call_arguments.done")[0]["arguments"], "{\"at\": \"Oslo\"}");
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["status"], "completed");
    assert_eq!(response["usage"]["output_token_details"], json!({"text_tokens": 3, "audio_tokens": 2}));
    let call = response["output"][1].clone();
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"});
    client.send(&json!({"type": "conversation.item.create", "item": result})).await;
    client.send(&json!({"type": "response.create"})).await;
    let answer = site.service.call().await;
    let messages = &answer.chat().messages;
    assert_eq!(messages[1].calls[0].arguments, "{\"at\": \"Oslo\"}");
    assert_eq!(messages[1].content, Content::Text("Let me see.".to_owned()));
    assert_eq!((messages[2].role.as_str(), &messages[2].content), ("tool", &Content::Text("sunny".to_owned())));
}

/// `tests/clients/realtime_functions.py` has the clients read these events.
#[tokio::test]
async fn what_a_client_is_told_of_a_call_is_what_the_tests_of_clients_have() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    let item = json!({"type": "message", "role": "user", "content": hello()});
    client.send(&json!({"type": "conversation.item.create", "item": item})).await;
    let response = json!({"tools": weather(), "output_modalities": ["text"]});
    client.send(&json!({"type": "response.create", "response": response})).await;
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Let me see.<tool_call>{\"name\": \"weather\", \"arguments\": {\"at\": \"Oslo\"}}</tool_call>")
        .await;
    call.finish().await;
    let events = client.until("response.done").await;
    // The name of the conversation is the session's, and random.
    let name = events.last().unwrap()["response"]["conversation_id"].as_str().unwrap();
    let told: Vec<String> = events.iter().map(|event| event.to_string().replace(name, "conv_1")).collect();
    let known = include_str!("../../clients/function_events.jsonl");
    assert!(told.iter().eq(known.lines()), "this is told:\n{}", told.join("\n"));
}

#[tokio::test]
async fn an_answer_without_a_call_is_asked_for_once() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.ask(hello(), json!({"tools": weather()})).await;
    let spoken = site.service.call().await;
    spoken.started().await;
    spoken.text_delta("Hello.").await;
    spoken.audio(1920).await;
    spoken.finish().await;
    let done = client.until("response.done").await.pop().unwrap();
    assert_eq!(done["response"]["output"][0]["content"][0]["transcript"], "Hello.");
    client.send(&json!({"type": "response.create", "response": {"instructions": "Go on"}})).await;
    assert!(!site.service.call().await.chat().until_call);
}
