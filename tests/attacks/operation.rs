//! What comes again and again in operation: a request that crashes its stage, a log that is not read, signals.

use crate::support::attack::Attacked;
use crate::support::http::Ask;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::json;
use std::io::{Write, pipe};
use std::time::Duration;

const SPEECH: &str = "/v1/audio/speech";
/// One request in eight crashes the talker each time that it is tried. The ordinary client's does not, with this seed.
const GUILTY: &str = "[drill]\nseed = 3\n[[faults]]\nstage = \"talker\"\npoint = \"runner\"\nkind = \"panic\"\none_in = 8\n\
                      times = \"all\"\n";

/// A request that is one of them.
fn guilty(attacked: &Attacked) -> Ask {
    let asks = (0..1000).map(|number| Ask::json(SPEECH, &json!({"input": format!("This is number {number}.")})));
    let mut guilty = asks.into_iter().filter(|ask| ask.send(attacked.url()).status == 500);
    guilty.next().expect("one request in eight")
}

#[test]
fn a_request_that_crashes_its_stage_each_time_is_ended_alone() {
    let attacked = Attacked::embedded(GUILTY);
    let guilty = guilty(&attacked);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let told = guilty.send(attacked.url());
                    assert_eq!((told.status, &told.json()["error"]["code"]), (500, &json!("stage_crashed")));
                }
            });
        }
        attacked.neighbour_is_served();
    });
    attacked.is_as_before();
}

#[test]
fn a_log_that_is_not_read_while_a_stage_crashes_stops_nothing() {
    let (_reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    let attacked = Attacked::logging_to(writer, GUILTY);
    let guilty = guilty(&attacked);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..5).for_each(|_| assert_eq!(guilty.send(attacked.url()).status, 500)));
        attacked.neighbour_is_served();
    });
    attacked.is_as_before();
}

#[test]
fn signals_that_mean_nothing_cut_no_stream() {
    let attacked = Attacked::embedded("");
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20).for_each(|_| ["HUP", "USR1"].iter().for_each(|name| attacked.signal(name))));
        attacked.neighbour_is_served();
    });
    attacked.is_as_before();
}

#[test]
fn a_server_that_is_stopped_for_longer_than_its_watchdog_goes_on_as_if_nothing_had_been() {
    let attacked = Attacked::embedded("[supervision]\nwatchdog = \"1s\"\n");
    let text = "This is one sentence of a long text. ".repeat(8);
    let ask = Ask::json(SPEECH, &json!({"input": text, "seed": 1, "stream_format": "audio", "response_format": "pcm"}));
    let whole = attacked.patiently(&ask).body;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| attacked.patiently(&ask).body);
        attacked.waits_for("omni_requests_in_flight", |requests| requests > 0.0);
        attacked.signal("STOP");
        // A stopped process raises no event to wait for: only the clock makes this stop six times the watchdog.
        #[expect(clippy::disallowed_methods, reason = "the length of the stop is the attack")]
        std::thread::sleep(Duration::from_secs(6));
        attacked.signal("CONT");
        assert!(asking.join().unwrap() == whole, "a client heard other samples");
    });
    for nothing in ["omni_stage_guilty_requests_total", "omni_requests_ended_total"] {
        assert_eq!(attacked.metric(nothing), 0.0, "{nothing}");
    }
    attacked.is_as_before();
}
