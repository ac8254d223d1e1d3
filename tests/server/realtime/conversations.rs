//! What is answered: exactly what chat answers to the same conversation.

use super::*;
use crate::support::engine::idle;
use crate::support::http::stage_of;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_text_answers_each_turn_as_chat_does_and_repeats_itself() {
    let site = site().await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut talk = Talk::new(&site).await;
        talk.update(json!({"instructions": "Be brief."})).await;
        let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
        for question in ["Hello there", "And who are you?", "Why?"] {
            talk.say(question).await;
            messages.push(json!({"role": "user", "content": question}));
            let answer = talk.answer("text").await;
            let (expected, _) = chat(&site, &json!(messages), answer.seed(), false).await;
            assert_eq!(answer.text(), expected);
            assert_eq!(answer.response()["output"][0]["content"][0]["text"], expected);
            messages.push(json!({"role": "assistant", "content": expected}));
            answers.push((answer.seed(), answer.text()));
        }
    }
    let (first, second) = answers.split_at(3);
    assert_eq!(first, second);
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoken_answer_has_the_samples_of_chat_in_any_format() {
    let site = site().await;
    let mut talk = Talk::new(&site).await;
    talk.say("Say something").await;
    let answer = talk.answer("audio").await;
    let messages = json!([{"role": "user", "content": "Say something"}]);
    let (text, samples) = chat(&site, &messages, answer.seed(), true).await;
    assert_eq!(answer.text(), text);
    assert!(samples.len() > 2_000 && answer.sound() == samples, "{} bytes", samples.len());
    let response = answer.response();
    // The small checkpoint ends at its limit.
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["status_details"]["reason"], "max_output_tokens");
    let details = &response["usage"]["output_token_details"];
    assert_eq!((&details["text_tokens"], &details["audio_tokens"]), (&json!(TOKENS), &json!(TOKENS)));
    // A frame of sound at a time.
    let frames = answer.events.iter().filter(|event| event["type"] == "response.output_audio.delta");
    assert!(frames.count() >= TOKENS as usize);
    talk.update(json!({"audio": {"output": {"format": {"type": "audio/pcmu"}}}})).await;
    talk.say("Say more").await;
    let telephone = talk.answer("audio").await;
    assert_eq!(telephone.sound().len(), samples.len() / 2 / 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_dies_in_an_answer_changes_no_sample() {
    let rule = |stage| FaultRule::new(stage, FaultPoint::Runner, FaultKind::Panic).nth(4);
    let site = with(|config| {
        config.faults = vec![rule(StageName::Talker), rule(StageName::Thinker)];
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    let mut sounds = Vec::new();
    for _ in 0..2 {
        let mut talk = Talk::new(&site).await;
        talk.say("Say something").await;
        let answer = talk.answer("audio").await;
        sounds.push((answer.text(), answer.sound()));
    }
    assert!(sounds[0] == sounds[1] && !sounds[0].1.is_empty());
    let health = site.client.get(format!("http://{}/health", site.address)).send().await.unwrap();
    let health: Value = health.json().await.unwrap();
    for stage in ["thinker", "talker"] {
        assert_eq!(stage_of(&health, stage)["restarts"], 1, "{stage}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cancelled_stops_and_the_next_turn_goes_on_from_what_was_kept() {
    let site = slow_site().await;
    let mut talk = Talk::new(&site).await;
    talk.update(json!({"max_output_tokens": 400})).await;
    talk.say("Tell me a story").await;
    talk.send(json!({"type": "response.create"})).await;
    talk.until("response.output_audio.delta").await;
    talk.send(json!({"type": "response.cancel"})).await;
    let answer = Answer::of(talk.until("response.done").await);
    assert_eq!(answer.response()["status"], "cancelled");
    // Every stage is done with it.
    idle(&site.engine).await;
    let item_id = answer.item();
    let truncate = json!({
        "type": "conversation.item.truncate", "item_id": item_id, "content_index": 0, "audio_end_ms": 40,
    });
    talk.send(truncate).await;
    talk.until("conversation.item.truncated").await;
    talk.send(json!({"type": "conversation.item.retrieve", "item_id": item_id})).await;
    let kept = talk.until("conversation.item.retrieved").await.pop().unwrap();
    let kept = kept["item"]["content"][0]["transcript"].as_str().unwrap().to_owned();
    assert!(!kept.is_empty());
    talk.update(json!({"max_output_tokens": TOKENS})).await;
    talk.say("Go on").await;
    let next = talk.answer("text").await;
    let messages = json!([
        {"role": "user", "content": "Tell me a story"},
        {"role": "assistant", "content": kept},
        {"role": "user", "content": "Go on"},
    ]);
    assert_eq!(next.text(), chat(&site, &messages, next.seed(), false).await.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_beside_the_conversation_runs_while_another_speaks() {
    let site = site().await;
    let mut talk = Talk::new(&site).await;
    talk.say("Hello").await;
    talk.send(json!({"type": "response.create"})).await;
    let beside = json!({
        "conversation": "none", "output_modalities": ["text"], "metadata": {"topic": "mood"},
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The mood?"}]}],
    });
    talk.send(json!({"type": "response.create", "response": beside})).await;
    let mut events = talk.until("response.done").await;
    events.extend(talk.until("response.done").await);
    let done: Vec<&Value> = events.iter().filter(|event| event["type"] == "response.done").collect();
    let of_topic = done.iter().find(|event| event["response"]["metadata"]["topic"] == "mood").unwrap();
    let response = &of_topic["response"];
    let messages = json!([{"role": "user", "content": "The mood?"}]);
    let (expected, _) = chat(&site, &messages, response["seed"].as_u64().unwrap(), false).await;
    assert_eq!(response["output"][0]["content"][0]["text"], expected);
}
