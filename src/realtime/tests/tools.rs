//! Functions that the model calls.

use super::*;

fn weather() -> Value {
    json!({"type": "function", "name": "weather", "description": "d", "parameters": {}})
}

/// A session in which the user has asked something, and the job that answers.
fn asked(modality: &str) -> (Played, JobId) {
    let mut played = Played::new();
    let session = json!({"tools": [weather()], "output_modalities": [modality]});
    let updated = played.send(&json!({"type": "session.update", "session": session}));
    assert_eq!(
        (&updated[0]["session"]["tools"][0]["name"], &updated[0]["session"]["tool_choice"]),
        (&json!("weather"), &json!("auto"))
    );
    played.send(&message("user", "input_text", "How is it?"));
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    (played, job)
}

fn call(place: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {{\"at\": \"{place}\"}}}}\n</tool_call>")
}

fn write(played: &mut Played, job: JobId, texts: &[&str]) -> Vec<Value> {
    let before = played.events.len();
    played.answer(job, AnswerPart::Started);
    for text in texts {
        played.answer(job, AnswerPart::Text((*text).to_owned()));
    }
    played.events[before..].to_vec()
}

#[test]
fn the_model_reads_what_it_may_call_in_the_order_of_its_training() {
    let (played, _) = asked("text");
    let expected = "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \
        \"d\", \"parameters\": {}}}";
    assert_eq!(*played.begun[0].tools, [expected.to_owned()]);
}

#[test]
fn calls_are_items_of_their_own_and_are_answered_with_their_results() {
    let (mut played, job) = asked("text");
    let (one, two) = (call("Oslo"), call("Rome"));
    let mut events = write(&mut played, job, &["\n", &one, "\n", &two]);
    events.extend(played.finish(job));
    let of_call = [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
    ];
    let expected: Vec<&str> = of_call.into_iter().chain(of_call).chain(["response.done"]).collect();
    assert_eq!(types(&events), expected);
    assert_eq!(events[0]["item"]["arguments"], "");
    assert_eq!((&events[3]["name"], &events[3]["arguments"]), (&json!("weather"), &json!("{\"at\": \"Oslo\"}")));
    assert_eq!((&events[3]["output_index"], &events[9]["output_index"]), (&json!(0), &json!(1)));
    let output = events[12]["response"]["output"].as_array().unwrap();
    assert_eq!(output.len(), 2);
    assert_eq!((&output[1]["type"], &output[1]["status"]), (&json!("function_call"), &json!("completed")));
    assert!(output[1].get("role").is_none() && output[1].get("content").is_none());
    for item in output {
        let result = json!({"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"});
        let told = played.send(&json!({"type": "conversation.item.create", "item": result}));
        assert_eq!(types(&told), ["conversation.item.added", "conversation.item.done"]);
        assert_eq!(told[0]["item"]["output"], "sunny");
    }
    played.send(&json!({"type": "response.create"}));
    let turns = &played.begun[1].turns;
    let roles: Vec<&str> = turns.iter().map(|turn| turn.role).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
    let arguments: Vec<&str> = turns[1].calls.iter().map(|call| call.arguments.as_str()).collect();
    assert_eq!(arguments, ["{\"at\": \"Oslo\"}", "{\"at\": \"Rome\"}"]);
    check(&played);
}

#[test]
fn what_is_said_before_a_call_is_a_message_and_nothing_of_the_call_is_in_it() {
    let (mut played, job) = asked("audio");
    let one = call("Oslo");
    played.speak(job, &["Let me", " see.", "<tool_call>"], 2);
    let sounds = played.events.iter().filter(|event| event["type"] == "response.output_audio.delta");
    assert_eq!(sounds.count(), 2, "sound comes behind its text");
    played.answer(job, AnswerPart::Text(one["<tool_call>".len()..].to_owned()));
    let done = played.finish(job);
    let output = done.last().unwrap()["response"]["output"].clone();
    assert_eq!((&output[0]["type"], &output[1]["type"]), (&json!("message"), &json!("function_call")));
    assert_eq!(output[0]["content"][0]["transcript"], "Let me see.");
    let said: String = played
        .events
        .iter()
        .filter(|event| event["type"] == "response.output_audio_transcript.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(said, "Let me see.");
    played.send(&json!({"type": "conversation.item.create", "item": {
        "type": "function_call_output", "call_id": output[1]["call_id"], "output": "sunny",
    }}));
    played.send(&json!({"type": "response.create"}));
    let turn = &played.begun[1].turns[1];
    assert_eq!((turn.parts.len(), turn.calls.len()), (1, 1));
    check(&played);
}

#[test]
fn a_call_that_cannot_be_read_fails_its_response_and_one_that_a_limit_cuts_off_does_not() {
    let (mut played, job) = asked("text");
    let told = write(&mut played, job, &["<tool_call>weather()</tool_call>"]);
    assert_eq!(types(&told), ["response.done"]);
    let error = &told[0]["response"]["status_details"]["error"];
    assert_eq!(error["code"], "invalid_function_call");
    assert!(played.cancelled.contains(&job), "the rest of the answer is of no use");
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    write(&mut played, job, &["<tool_call>{\"name\""]);
    let told = played.answer(job, AnswerPart::Finished { ending: Ending::Length, usage: Usage::default() });
    assert_eq!(told.last().unwrap()["response"]["status"], "incomplete");
    assert_eq!(told.last().unwrap()["response"]["output"], json!([]));
    check(&played);
}

#[test]
fn speech_of_the_user_ends_a_response_between_its_calls() {
    let (mut played, job) = asked("audio");
    played.speak(job, &["Well."], 1);
    played.answer(job, AnswerPart::Text(call("Oslo")));
    let events = played.send(&json!({"type": "response.cancel"}));
    assert_eq!(types(&events), ["response.done"]);
    assert_eq!(events[0]["response"]["output"].as_array().unwrap().len(), 2);
    assert_eq!(events[0]["response"]["status"], "cancelled");
    check(&played);
}

#[test]
fn a_choice_of_none_tells_the_model_of_no_function_and_text_is_text() {
    let (mut played, job) = asked("text");
    played.finish(job);
    played.send(&json!({"type": "response.create", "response": {"tool_choice": "none"}}));
    let job = played.last_job();
    assert!(played.begun[1].tools.is_empty());
    let told = write(&mut played, job, &["<tool_call>x"]);
    assert_eq!(told.last().unwrap()["delta"], "<tool_call>x");
    check(&played);
}
