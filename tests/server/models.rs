//! Several models behind one server: each request gets the one that it names, and none is harmed by another.

use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving, omni};
use crate::support::tts::{SPEECH, VOICES, fixture, speaks};
use crate::support::wait;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A server of these entries, which takes requests.
fn serve(omni: Omni, more: &str, entries: &str) -> Serving {
    let voices = omni.path("voices");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n{more}\n[device]\nkind = \"cpu\"\n[voices]\ndirectory = {voices:?}\n{entries}"
    );
    let config = omni.file("config.toml", &text);
    omni.args(["run", &config]).serve().ready()
}

fn entry(name: &str, checkpoint: &Path, more: &str) -> String {
    format!("[[models]]\nname = {name:?}\ncheckpoint = {checkpoint:?}\n{more}\n")
}

fn speech(model: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": model, "input": "One, two, three.", "seed": 5, "max_new_tokens": 10, "response_format": "pcm",
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn get(serving: &Serving, path: &str) -> Value {
    let reply = Ask::new("GET", path, &[], "").send(&serving.url);
    assert!([200, 503].contains(&reply.status), "{path}: {}", reply.status);
    reply.json()
}

/// What `/ready` tells of a model.
fn status(serving: &Serving, model: &str) -> Value {
    let ready = get(serving, "/ready");
    let models = ready["models"].as_array().unwrap().iter();
    models.into_iter().find(|status| status["name"] == model).unwrap().clone()
}

fn becomes(serving: &Serving, model: &str, state: &str) -> Value {
    wait::answer(|| {
        let status = status(serving, model);
        if status["state"] == state { Ok(status) } else { Err(status) }
    })
}

/// A checkpoint that differs from a fixture in its config.
fn varied(omni: &Omni, of: &str, name: &str, key: &str, value: &str) -> std::path::PathBuf {
    let (from, to) = (fixture(of), omni.folder().join(name));
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(&from).unwrap() {
        let file = file.unwrap();
        if file.file_name() != "config.json" {
            std::os::unix::fs::symlink(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config[key] = json!(value);
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

#[test]
fn each_request_gets_the_model_that_it_names() {
    let entries = entry("speakers", &fixture("custom_voice"), "")
        + &entry("cloner", &fixture("base"), "load = \"first_use\"\naliases = [\"tts-1-hd\"]");
    let serving = serve(Omni::new(), "", &entries);
    assert_eq!(becomes(&serving, "speakers", "loaded")["requests"], 0);
    assert_eq!(status(&serving, "cloner")["state"], "unloaded");
    let of_first = speaks(&serving.url, &speech("speakers", &json!({})));
    for name in ["tts-1", "owner/speakers"] {
        assert!(speaks(&serving.url, &speech(name, &json!({}))) == of_first, "{name} is the first model");
    }

    // The upload goes to the model that clones, and loads it.
    let recording = fs::read(fixture("../audio/mono.flac")).unwrap();
    let parts: [(&str, &str, &[u8]); 3] =
        [("name", "", b"mine"), ("consent", "", b"yes"), ("audio_sample", "; filename=\"mono.flac\"", &recording)];
    let added = Ask::form(VOICES, &parts).send(&serving.url);
    assert_eq!(added.status, 200, "{}", String::from_utf8_lossy(&added.body));
    assert_eq!(status(&serving, "cloner")["state"], "loaded");
    let cloned = speaks(&serving.url, &speech("cloner", &json!({"voice": "mine"})));
    assert!(speaks(&serving.url, &speech("tts-1-hd", &json!({"voice": "mine"}))) == cloned, "an alias of its own");
    let names = |query: &str| get(&serving, &format!("{VOICES}{query}"))["names"].clone();
    assert_eq!(names("?model=cloner"), json!(["mine"]));
    assert!(!names("").as_array().unwrap().contains(&json!("mine")));
    let other = Ask::json(SPEECH, &speech("speakers", &json!({"voice": "mine"}))).send(&serving.url);
    assert_eq!(other.status, 400, "the voice is the other model's");

    let listed = get(&serving, "/v1/models");
    let told: Vec<_> = listed["data"].as_array().unwrap().iter().map(|one| (&one["id"], &one["state"])).collect();
    let (loaded, ids) = (json!("loaded"), [json!("speakers"), json!("cloner"), json!("tts-1-hd")]);
    assert_eq!(told, ids.iter().map(|id| (id, &loaded)).collect::<Vec<_>>());
    let unknown = Ask::json(SPEECH, &speech("another", &json!({}))).send(&serving.url);
    assert_eq!(unknown.status, 404);
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"speakers\", \"cloner\""), "{message}");
}

#[test]
fn a_model_that_gives_up_concerns_no_other() {
    let fault = "load = \"first_use\"\n[models.supervision]\nmax_restarts = 0\n[[models.faults]]\nstage = \"talker\"\n\
        point = \"runner\"\nkind = \"panic\"\ntimes = 1000";
    let entries = entry("sound", &fixture("custom_voice"), "") + &entry("broken", &fixture("custom_voice"), fault);
    let serving = serve(Omni::new(), "", &entries);
    let long = speech("sound", &json!({"max_new_tokens": 120}));
    let undisturbed = speaks(&serving.url, &long);
    let disturbed = std::thread::scope(|scope| {
        let speaking = scope.spawn(|| speaks(&serving.url, &long));
        let refused = Ask::json(SPEECH, &speech("broken", &json!({}))).send(&serving.url);
        assert!(refused.status >= 500, "{}", refused.status);
        speaking.join().unwrap()
    });
    assert!(disturbed == undisturbed, "the other model's stream is sample-exact");
    let reason = becomes(&serving, "broken", "failed")["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("talker stage failed too often"), "{reason}");
    assert_eq!(Ask::new("GET", "/ready", &[], "").send(&serving.url).status, 200);
    assert!(speaks(&serving.url, &long) == undisturbed);
}

#[test]
fn an_idle_model_is_unloaded_and_says_the_same_when_it_is_loaded_again() {
    let entries = entry("only", &fixture("custom_voice"), "load = \"first_use\"\nunload_after = \"50ms\"");
    let serving = serve(Omni::new(), "", &entries);
    let first = speaks(&serving.url, &speech("only", &json!({})));
    becomes(&serving, "only", "unloaded");
    assert!(speaks(&serving.url, &speech("only", &json!({}))) == first);
    let metrics = Ask::new("GET", "/metrics", &[], "").send(&serving.url).body;
    let loads = "omni_model_loads_total{model=\"only\",outcome=\"loaded\"} 2";
    assert!(String::from_utf8(metrics).unwrap().contains(loads), "it was loaded twice");
}

#[test]
fn models_that_do_not_fit_together_take_turns() {
    let memory = |more: &str| format!("memory = \"2MiB\"\n{more}");
    let entries = entry("one", &fixture("custom_voice"), &memory(""))
        + &entry("two", &fixture("custom_voice"), &memory("load = \"first_use\""));
    let serving = serve(Omni::new(), "model_memory = \"3MiB\"", &entries);
    let said = speaks(&serving.url, &speech("one", &json!({})));
    for (model, other) in [("two", "one"), ("one", "two")] {
        assert!(speaks(&serving.url, &speech(model, &json!({}))) == said, "the same checkpoint says the same");
        assert_eq!(status(&serving, other)["state"], "unloaded");
    }
}

#[test]
fn a_model_whose_checkpoint_is_missing_is_told_and_the_others_are_served() {
    let entries = entry("here", &fixture("custom_voice"), "")
        + &entry("gone", Path::new("/nowhere/at/all"), "load = \"first_use\"");
    let serving = serve(Omni::new(), "", &entries);
    let refused = Ask::json(SPEECH, &speech("gone", &json!({}))).send(&serving.url);
    assert_eq!(refused.status, 503);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"gone\"") && message.contains("/nowhere/at/all"), "{message}");
    speaks(&serving.url, &speech("here", &json!({})));
}

#[test]
fn a_described_voice_is_kept_for_the_model_that_clones() {
    let omni = Omni::new();
    let designs = varied(&omni, "custom_voice", "designs", "tts_model_type", "voice_design");
    let entries = entry("clones", &fixture("base"), "") + &entry("designs", &designs, "load = \"first_use\"");
    let serving = serve(omni, "", &entries);
    let describe = |name: &str, more: &[(&str, &str, &[u8])]| {
        let mut parts: Vec<(&str, &str, &[u8])> =
            vec![("name", "", name.as_bytes()), ("instructions", "", b"A calm warm voice.")];
        parts.extend(more);
        Ask::form(VOICES, &parts).send(&serving.url)
    };
    let added = describe("calm", &[]);
    assert_eq!(added.status, 200, "{}", String::from_utf8_lossy(&added.body));
    let voice = &added.json()["voice"];
    assert_eq!(voice["speaker_description"], "A calm warm voice.");
    assert!(voice["seconds"].as_f64().unwrap() > 1.0 && voice["ref_text"].as_str().unwrap().len() > 50, "{voice}");
    let said = speaks(&serving.url, &speech("clones", &json!({"voice": "calm"})));
    assert_eq!(describe("calm too", &[]).status, 200);
    let again = speaks(&serving.url, &speech("clones", &json!({"voice": "calm too"})));
    assert!(again == said, "the same description is the same voice");
    let both = describe("both", &[("ref_text", "", b"words")]);
    assert_eq!((both.status, &both.json()["error"]["param"]), (400, &json!("instructions")));

    let alone = serve(Omni::new(), "", &entry("clones", &fixture("base"), ""));
    let parts: [(&str, &str, &[u8]); 2] = [("name", "", b"calm"), ("instructions", "", b"A calm warm voice.")];
    let refused = Ask::form(VOICES, &parts).send(&alone.url);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("instructions")));
}

#[test]
fn entries_that_cannot_be_served_are_told_before_the_server_runs() {
    omni(["check", "configs/two-models.toml"]).run().succeeds().shows("[[models]] cloner").shows("unloaded after 30m");
    let own = Omni::new();
    let (gone, later) = (Path::new("/nowhere/at/all"), Path::new("/not/yet"));
    let missing = own.file("missing.toml", &(entry("a", gone, "") + &entry("b", later, "load = \"first_use\"")));
    own.args(["check", &missing]).run().exits(2).shows("models[0].checkpoint = \"/nowhere/at/all\"");
    let own = Omni::new();
    let large = entry("large", &fixture("base"), "memory = \"4MiB\"") + &entry("other", &fixture("base"), "");
    let small = own.file("small.toml", &format!("[server]\nmodel_memory = \"3MiB\"\n{large}"));
    let told = "models[0]: takes 4.0 MiB, and server.model_memory is 3.0 MiB";
    own.args(["run", &small, "--listen", "127.0.0.1:0"]).run().exits(2).tells(told);
}
