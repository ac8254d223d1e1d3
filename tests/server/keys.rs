//! API keys as operators and clients meet them: which requests get in, whose share they take, and that no key ever
//! shows in an answer, a metric or a log.

use crate::support::http::{Ask, Reply};
use crate::support::omni::{Omni, Serving, omni};
use crate::support::wait;
use omni_actors::config::hash_key;
use serde_json::{Value, json};

const LOUD: &str = "sk-loud-4f1c2a7b9d";
const QUIET: &str = "sk-quiet-8e3d5b6a0c";
const WRONG: &str = "sk-wrong-1a2b3c4d5e";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server with two keys, one by its hash and one in a file; it logs all it can.
fn server() -> Serving {
    let omni = Omni::new();
    omni.file("quiet.key", &format!("{QUIET}\n"));
    let config = format!(
        "[model]\ncheckpoint = \"{}/tests/fixtures/qwen3_omni\"\n[limits]\nmax_requests = 4\n\
         [[keys]]\nname = \"loud\"\nsha256 = \"{}\"\n[[keys]]\nname = \"quiet\"\nfile = \"quiet.key\"\nmax_requests = 2\n",
        env!("CARGO_MANIFEST_DIR"),
        hex(&hash_key(LOUD))
    );
    let config = omni.file("keys.toml", &config);
    let log = omni.path("log.txt");
    let omni = omni.arguments(&["run", &config, "--listen", "127.0.0.1:0"]);
    omni.variable("OMNI_LOG", "trace").log_to(&log).serve().ready()
}

fn speech(key: &str, frames: u32) -> Ask {
    let body = json!({
        "input": "one two three", "seed": 5, "response_format": "pcm", "max_new_tokens": frames, "ignore_eos": true,
        "deadline_ms": "none",
    });
    let mut ask = Ask::json("/v1/audio/speech", &body);
    ask.headers.push(format!("Authorization: Bearer {key}"));
    ask
}

fn health(serving: &Serving) -> Value {
    Ask::new("GET", "/health", &[&format!("Authorization: Bearer {QUIET}")], "").send(&serving.url).json()
}

#[test]
fn keys_open_the_server_and_appear_nowhere() {
    let serving = server();
    assert_eq!(speech(LOUD, 3).send(&serving.url).status, 200);
    assert_eq!(speech(QUIET, 3).send(&serving.url).status, 200);
    let answer = speech(LOUD, 3).send(&serving.url);
    let again = |key: &str| {
        let path = answer.header("content-location").unwrap();
        Ask::new("GET", path, &[&format!("Authorization: Bearer {key}")], "").send(&serving.url)
    };
    assert!(again(LOUD).body == answer.body);
    assert_eq!(again(QUIET).status, 404, "the answer of another key");
    let refused = speech(WRONG, 3).send(&serving.url);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    let told = [health(&serving).to_string(), String::from_utf8(refused.body).unwrap()];
    for key in [QUIET, WRONG] {
        // Refused too, for it is no WebSocket; the key has been looked at by then.
        let header = format!("Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{key}");
        let reply = Ask::new("GET", "/v1/audio/speech/stream", &[&header], "").send(&serving.url);
        assert_eq!(reply.status, if key == QUIET { 426 } else { 401 });
    }
    let metrics = Ask::new("GET", "/metrics", &[&format!("Authorization: Bearer {QUIET}")], "").send(&serving.url);
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(metrics.contains("omni_http_unauthorized_total 2"), "{metrics}");
    serving.signal("TERM");
    let (code, log) = serving.log();
    assert_eq!(code, Some(0));
    assert!(log.len() > 1000, "this is no log to look for keys in: {log}");
    for text in told.iter().chain([&log, &metrics]) {
        for key in [LOUD, QUIET, WRONG] {
            assert!(!text.contains(key) && !text.contains(&hex(&hash_key(key))), "a key is told");
        }
    }
}

#[test]
fn a_loud_key_leaves_a_quiet_one_its_share_and_a_limit_is_a_limit() {
    let serving = server();
    // It was here lately, so a place is kept for it.
    assert_eq!(speech(QUIET, 3).send(&serving.url).status, 200);
    std::thread::scope(|scope| {
        let loud: Vec<_> = (0..8).map(|_| scope.spawn(|| speech(LOUD, 600).send(&serving.url).status)).collect();
        wait::until("three requests run", || health(&serving)["requests"].as_u64() >= Some(3));
        let asked: Reply = speech(QUIET, 3).send(&serving.url);
        assert_eq!(asked.status, 200, "{}", String::from_utf8_lossy(&asked.body));
        let statuses: Vec<_> = loud.into_iter().map(|loud| loud.join().unwrap()).collect();
        assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    });
    std::thread::scope(|scope| {
        let own: Vec<_> = (0..2).map(|_| scope.spawn(|| speech(QUIET, 300).send(&serving.url).status)).collect();
        wait::until("two requests run", || health(&serving)["requests"].as_u64() >= Some(2));
        let third = speech(QUIET, 3).send(&serving.url);
        assert_eq!(third.status, 429);
        assert!(third.json()["error"]["message"].as_str().unwrap().contains("which is your limit"));
        own.into_iter().for_each(|own| assert_eq!(own.join().unwrap(), 200));
    });
}

#[test]
fn a_server_does_not_listen_for_strangers_unasked() {
    for command in [vec!["run", "--listen", "0.0.0.0:0"], vec!["run", "--set", "server.listen=[::]:0"]] {
        let done = Omni::new().arguments(&command).run();
        done.exits(2).tells("can be reached from other machines").tells("server.allow_anonymous = true");
    }
    omni(["check", "configs/example.toml", "--set", "server.listen=0.0.0.0:80"]).run().exits(2).shows("server.listen");
    let open =
        ["check", "configs/example.toml", "--set", "server.listen=0.0.0.0:80", "--set", "server.allow_anonymous=true"];
    omni(open).run().succeeds().shows("reachable from outside, without a key");
}

/// Asks until the answer is as expected: the server reads its files when it gets to it.
#[track_caller]
fn until(ask: &Ask, url: &str, status: u16) {
    wait::answer(|| match ask.send(url).status {
        seen if seen == status => Ok(()),
        seen => Err(seen),
    });
}

fn models(key: &str) -> Ask {
    Ask::new("GET", "/v1/models", &[&format!("Authorization: Bearer {key}")], "")
}

#[test]
fn a_config_is_read_again_when_it_changes_or_a_hangup_asks_and_a_wrong_one_is_not_taken() {
    let serving = server();
    let url = serving.url.clone();
    let path = serving.path("keys.toml");
    let first = std::fs::read_to_string(&path).unwrap();
    let with = |key: &str| first.replace(&hex(&hash_key(LOUD)), &hex(&hash_key(key)));
    // A stream that goes on meanwhile.
    let stream = std::thread::spawn({
        let (ask, url) = (speech(QUIET, 600), url.clone());
        move || ask.send(&url)
    });
    wait::until("a request runs", || health(&serving)["requests"].as_u64() >= Some(1));
    // It changes nothing. (SIGUSR2 would start another process.)
    serving.signal("USR1");
    // Nothing but the file says so.
    std::fs::write(&path, with("sk-second-0123456789")).unwrap();
    until(&models("sk-second-0123456789"), &url, 200);
    assert_eq!(models(LOUD).send(&url).status, 401);
    // A file of a key alone.
    std::fs::write(serving.path("quiet.key"), "sk-third-0123456789ab").unwrap();
    until(&models("sk-third-0123456789ab"), &url, 200);
    assert_eq!(models(QUIET).send(&url).status, 401);
    // What is wrong is told and changes nothing.
    std::fs::write(&path, "[server]\nmax_connections = \"many\"\n").unwrap();
    serving.signal("HUP");
    until_logged(&serving, "the new config is wrong; the old one holds");
    assert_eq!(models("sk-second-0123456789").send(&url).status, 200);
    // A file that is named before it is there.
    let late = first.replace(&format!("sha256 = \"{}\"", hex(&hash_key(LOUD))), "file = \"late.key\"");
    assert_ne!(late, first);
    std::fs::write(&path, late).unwrap();
    until_logged(&serving, "late.key");
    std::fs::write(serving.path("late.key"), "sk-late-0123456789ab").unwrap();
    until(&models("sk-late-0123456789ab"), &url, 200);
    // What needs a restart is told too, and the rest holds.
    std::fs::write(&path, with("sk-fourth-0123456789").replace("max_requests = 4", "max_requests = 5")).unwrap();
    serving.signal("HUP");
    until(&models("sk-fourth-0123456789"), &url, 200);
    until_logged(&serving, "these keys of the config hold after a restart only");
    let whole = stream.join().unwrap();
    assert_eq!(whole.status, 200);
    let again = speech("sk-third-0123456789ab", 600).send(&url);
    assert_eq!(again.status, 200, "{}", String::from_utf8_lossy(&again.body));
    let differ = whole.body.iter().zip(&again.body).position(|(one, other)| one != other);
    assert_eq!((whole.body.len(), None), (again.body.len(), differ), "a stream was cut or changed");
    serving.signal("TERM");
    let (code, log) = serving.log();
    assert_eq!(code, Some(0));
    assert!(log.contains("limits.max_requests"), "{log}");
}

fn until_logged(serving: &Serving, text: &str) {
    wait::until(text, || std::fs::read_to_string(serving.path("log.txt")).unwrap().contains(text));
}

#[test]
fn each_request_has_a_line_that_names_its_key_and_its_trace() {
    let omni = Omni::new();
    let config = format!(
        "[model]\ncheckpoint = \"{}/tests/fixtures/qwen3_omni\"\n[drill]\nenabled = true\n\
         [telemetry]\nlog_format = \"json\"\naccess_log = true\n\
         [[keys]]\nname = \"loud\"\nsha256 = \"{}\"\nscopes = [\"speak\", \"drill\"]\n",
        env!("CARGO_MANIFEST_DIR"),
        hex(&hash_key(LOUD))
    );
    let (config, log) = (omni.file("keys.toml", &config), omni.path("log.txt"));
    let serving = omni.arguments(&["run", &config, "--listen", "127.0.0.1:0"]).log_to(&log).serve().ready();
    let mut ask = speech(LOUD, 3);
    ask.headers.push("X-Request-Id: mine-7".to_owned());
    ask.headers.push("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
    let reply = ask.send(&serving.url);
    assert_eq!((reply.status, reply.header("x-request-id")), (200, Some("mine-7")));
    let key = format!("Authorization: Bearer {LOUD}");
    assert_eq!(Ask::new("GET", "/nowhere", &[&key], "").send(&serving.url).status, 404);
    assert_eq!(Ask::new("GET", "/nowhere", &[], "").send(&serving.url).status, 401);
    assert_eq!(
        Ask::new("DELETE", "/debug/faults", &[&key, "X-Request-Id: drill-1"], "").send(&serving.url).status,
        200
    );
    serving.signal("TERM");
    let (_, log) = serving.log();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line = |target: &str, field: &str, value: Value| {
        let found = lines.iter().find(|line| line["target"] == target && line[field] == value);
        found.unwrap_or_else(|| panic!("no line of {target} with {field} = {value}:\n{log}"))
    };
    let speech = line("omni_access", "request_id", json!("mine-7"));
    let expected = json!({"method": "POST", "route": "/v1/audio/speech", "status": 200, "bytes": reply.body.len(),
        "whole": true, "key": "loud", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "address": "127.0.0.1"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(speech[field], *value, "{field}: {speech}");
    }
    assert!(speech["seconds"].as_f64().unwrap() > 0.0);
    // No path that a client sent, only the pattern.
    assert_eq!(line("omni_access", "status", json!(404))["route"], "other");
    assert!(line("omni_access", "status", json!(401))["key"].is_null() && !log.contains("/nowhere"));
    let audit = line("omni_audit", "action", json!("faults_cleared"));
    assert_eq!((&audit["key"], &audit["request_id"]), (&json!("loud"), &json!("drill-1")));
}

#[test]
fn limits_on_requests_are_taken_over_by_a_running_engine() {
    let omni = Omni::new();
    let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_omni");
    let with = |chars: usize| format!("[model]\ncheckpoint = \"{checkpoint}\"\n[limits]\nmax_input_chars = {chars}\n");
    let (config, log) = (omni.file("limits.toml", &with(4)), omni.path("log.txt"));
    let serving = omni.arguments(&["run", &config, "--listen", "127.0.0.1:0"]).log_to(&log).serve().ready();
    let body = r#"{"input": "Hello there.", "max_new_tokens": 2}"#;
    let ask = Ask::new("POST", "/v1/audio/speech", &["Content-Type: application/json"], body);
    assert_eq!(ask.send(&serving.url).status, 400);
    std::fs::write(&config, with(12)).unwrap();
    serving.signal("HUP");
    until(&ask, &serving.url, 200);
    until_logged(&serving, "config reloaded");
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("limits.max_input_chars") && !log.contains("after a restart only"), "{log}");
}
