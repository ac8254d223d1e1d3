//! The embedded voice hears: questions spoken by programs whose voices its ears were not trained on (tests/data/asked).

use crate::media::sound;
use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving};
use crate::support::recording::PCM;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What is said, and what is answered.
const ASKED: [(&str, &str, &str); 7] = [
    ("capital", "What is the capital of France?", "The capital of France is Paris."),
    ("color", "What color is the sky?", "The sky is blue."),
    ("count", "Count from one to five.", "One, two, three, four, five."),
    ("opposite", "What is the opposite of hot?", "The opposite of hot is cold."),
    ("say", "Say: The weather is lovely today.", "The weather is lovely today."),
    ("spell", "How do you spell house?", "H, O, U, S, E."),
    ("sum", "What is seven plus eight?", "Seven plus eight is fifteen."),
];
const SORRY: &str = "Sorry, I did not understand that.";

fn asked(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/asked");
    std::fs::read(folder.join(name).with_extension("wav")).unwrap()
}

fn embedded() -> Serving {
    Omni::new().arguments(&["run", "--listen", "127.0.0.1:0"]).serve().ready()
}

/// The answer's text, and its samples where it is spoken.
fn answer(serving: &Serving, content: &Value, spoken: bool) -> (String, Vec<u8>) {
    let modalities = if spoken { json!(["text", "audio"]) } else { json!(["text"]) };
    let body = json!({
        "messages": [{"role": "user", "content": content}], "modalities": modalities, "temperature": 0, "seed": 3,
        "audio": {"format": "pcm16"},
    });
    let reply = Ask::json("/v1/chat/completions", &body).send(&serving.url);
    assert_eq!(reply.status, 200, "{}", reply.json());
    let message = &reply.json()["choices"][0]["message"];
    let text = match spoken {
        true => &message["audio"]["transcript"],
        false => &message["content"],
    };
    let samples = BASE64_STANDARD.decode(message["audio"]["data"].as_str().unwrap_or_default()).unwrap();
    (text.as_str().unwrap_or_default().to_owned(), samples)
}

#[test]
fn spoken_questions_are_answered_as_typed_ones_and_most_are_written_down_exactly() {
    let (serving, mut exact) = (embedded(), 0);
    for (name, said, wanted) in ASKED {
        let recording = sound(&asked(name));
        assert_eq!(answer(&serving, &json!([recording]), false).0, wanted, "{name}");
        assert_eq!(answer(&serving, &json!(said), false).0, wanted, "{said}, typed");
        let text = json!({"type": "text", "text": "Transcribe the audio into text."});
        exact += usize::from(answer(&serving, &json!([recording, text]), false).0 == said);
    }
    assert!(exact >= 5, "{exact} of {} written down exactly", ASKED.len());
}

#[test]
fn an_answer_to_a_question_that_was_heard_is_spoken_as_long_as_one_to_a_typed_one() {
    let serving = embedded();
    let (name, said, wanted) = ASKED[0];
    let (heard, to_sound) = answer(&serving, &json!([sound(&asked(name))]), true);
    let (typed, to_text) = answer(&serving, &json!(said), true);
    assert_eq!((heard.as_str(), typed.as_str()), (wanted, wanted));
    let apart = to_sound.len().abs_diff(to_text.len());
    assert!(apart * 4 < to_text.len(), "{} and {} bytes of speech", to_sound.len(), to_text.len());
}

#[test]
fn silence_and_noise_are_not_answered() {
    let serving = embedded();
    let mut state = 1u32;
    let mut noise = |loud: i32| {
        let bytes = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (((state >> 16) as i32 - 32_768) * loud / 32_768) as i16
        };
        (0..32_000).map(bytes).flat_map(i16::to_le_bytes).collect::<Vec<u8>>()
    };
    for (what, samples) in [("silence", vec![0; 64_000]), ("a little noise", noise(300)), ("noise", noise(8_000))] {
        assert_eq!(answer(&serving, &json!([sound(&PCM.with(&samples))]), false).0, SORRY, "{what}");
    }
}

#[test]
fn say_takes_a_question_from_a_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/asked");
    let question = folder.join("capital.wav").display().to_string();
    let omni = Omni::new();
    let out: PathBuf = omni.path("answer.wav").into();
    let arguments = ["say", "--audio", &question, "-o", out.to_str().unwrap(), "--seed", "3"];
    let omni = omni.arguments(&arguments);
    omni.run().succeeds();
    assert!(std::fs::metadata(&out).unwrap().len() > 40_000, "a second of speech, or more");
}
