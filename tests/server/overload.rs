//! More requests than there is room for: each is answered in full or told at once when to come again, and nothing
//! hangs. The whole test, which also holds the server to its deadlines: `omni-actors bench --overload 4 --requests
//! 1000`.

use crate::support::http::Ask;
use crate::support::omni::Omni;
use crate::support::wait;
use serde_json::{Value, json};

#[test]
fn at_four_times_the_load_every_request_is_answered_or_told_to_come_later() {
    let omni = Omni::new();
    let json = omni.path("figures.json");
    let omni = omni.args([
        "bench",
        "--overload",
        "4",
        "--requests",
        "120",
        "--frames",
        "30",
        "--checkpoint",
        "tests/fixtures/qwen3_omni",
        "--json",
        &json,
    ]);
    let done = omni.run();
    done.shows("times that rate");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let overload = &report["overload"];
    let count = |field: &str| overload[field].as_u64().unwrap();
    assert_eq!(overload["others"], json!({}), "{overload}");
    assert_eq!(count("accepted") + count("refused"), count("requests"));
    assert!(count("accepted") > 0, "{overload}");
}

#[test]
fn a_refused_client_is_told_when_to_come_again_and_requests_without_a_deadline_fill_the_machine() {
    let serving = Omni::new()
        .args([
            "run",
            "--listen",
            "127.0.0.1:0",
            "--set",
            "limits.max_requests=2",
            "--set",
            "model.checkpoint=tests/fixtures/qwen3_omni",
        ])
        .serve()
        .ready();
    let body = |frames: u32, deadline: Value| {
        json!({
            "input": "one two three", "seed": 5, "response_format": "pcm", "max_new_tokens": frames, "ignore_eos": true,
            "deadline_ms": deadline,
        })
    };
    std::thread::scope(|scope| {
        let long = || Ask::json("/v1/audio/speech", &body(400, json!("none"))).send(&serving.url);
        let filling = [scope.spawn(long), scope.spawn(long)];
        wait::until("two requests run", || {
            Ask::new("GET", "/health", &[], "").send(&serving.url).json()["requests"] == 2
        });
        let refused = Ask::json("/v1/audio/speech", &body(5, json!(1000))).send(&serving.url);
        assert_eq!(refused.status, 429);
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
        for filled in filling {
            assert_eq!(filled.join().unwrap().status, 200);
        }
    });
    let metrics = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(&serving.url).body).unwrap();
    assert!(metrics.contains("omni_refusals_total{reason=\"places\"} 1"), "{metrics}");
    assert!(metrics.contains("omni_admission_capacity 2"), "{metrics}");
}
