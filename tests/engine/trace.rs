//! A trace of a real engine: it is complete, holds nothing of other engines, and makes a file that viewers open.

use crate::support::engine::{collect, engine, frames, idle, say, tiny};
use crate::support::wait;
use omni_actors::config::Config;
use omni_actors::core::ids::{Generation, PayloadKind, RequestId, Seq, StageName, StepId};
use omni_actors::engine::{Engine, Service};
use omni_actors::server::Server;
use omni_actors::telemetry::trace::{
    self, Chunk, Component, Recorder, Session, StepTimes, Summary, Trace, Track, What,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Two requests side by side, traced from before the first until the engine is idle.
async fn traced() -> Trace {
    let engine = engine(&tiny(), |_| {}).await;
    let session = Session::begin(&engine.recorder());
    let (first, second) = (engine.speak(frames(12, 1)).await.unwrap(), engine.speak(frames(7, 2)).await.unwrap());
    let answers = tokio::join!(collect(first), collect(second));
    assert!(answers.0.end.unwrap().is_ok() && answers.1.end.unwrap().is_ok());
    idle(&engine).await;
    session.end()
}

fn file(trace: &Trace) -> Value {
    let mut bytes = Vec::new();
    trace::write(trace, &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn number(event: &Value, field: &str) -> f64 {
    event[field].as_f64().unwrap_or_else(|| panic!("{field}: {event}"))
}

fn events<'a>(file: &'a Value, kind: &str) -> Vec<&'a Value> {
    file["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_is_there_with_all_its_times_in_order() {
    let trace = traced().await;
    assert_eq!(trace.missing, 0);
    let steps = trace.steps();
    for stage in StageName::OF_TEXT {
        let own: Vec<(&StepId, &StepTimes)> =
            steps.iter().filter(|((of, ..), _)| of.stage == stage).map(|((_, _, step), times)| (step, times)).collect();
        assert!(own.len() > 5 || stage == StageName::Thinker, "{stage}: {} steps", own.len());
        for (at, (step, times)) in own.iter().enumerate() {
            assert_eq!(step.0, at as u64, "{stage}: none is left out");
            let (launched, ran) = (times.launched.unwrap(), times.ran.unwrap());
            let order = [times.planned.unwrap(), launched.0, launched.1, ran.1, times.seen.unwrap()];
            // The scheduler notes that it has planned when the runner may have begun already.
            assert!(order[1..].is_sorted(), "{stage} {step}: {order:?}");
            assert!(times.after.is_none_or(|after| after < **step), "{stage} {step} after {:?}", times.after);
            assert!(
                times.sequences >= 1 && times.sequences <= 2 && times.prompt <= times.units,
                "{stage} {step}: {times:?}"
            );
        }
        assert!(own.iter().any(|(_, times)| times.sent.is_some()), "{stage}: payloads were sent");
    }
    let summary = Summary::of(&steps);
    assert_eq!(summary.iter().map(|stage| stage.stage).collect::<Vec<_>>(), StageName::OF_TEXT);
    assert!(summary.iter().all(|stage| stage.steps > 0 && stage.ahead.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_what_viewers_of_chrome_traces_open() {
    let trace = traced().await;
    let file = file(&trace);
    assert_eq!(file["otherData"]["records_missing"], 0);
    let length = number(&file["otherData"], "length_us");

    // Every track has a name.
    let mut names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut stages: BTreeMap<u64, String> = BTreeMap::new();
    for event in events(&file, "M") {
        let (pid, name) = (event["pid"].as_u64().unwrap(), event["args"]["name"].as_str());
        match event["name"].as_str().unwrap() {
            "process_name" => drop(stages.insert(pid, name.unwrap().to_owned())),
            "thread_name" => drop(names.insert((pid, event["tid"].as_u64().unwrap()), name.unwrap().to_owned())),
            "process_sort_index" | "thread_sort_index" | "process_labels" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(stages.values().collect::<Vec<_>>(), ["requests", "thinker", "talker", "vocoder"]);
    for (pid, _) in stages.iter().skip(1) {
        let own: Vec<_> = names.range((*pid, 0)..(pid + 1, 0)).map(|(_, name)| name.as_str()).collect();
        assert_eq!(own, Component::ALL.map(Component::as_str));
    }

    // Slices of a track nest or follow each other.
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut categories = BTreeSet::new();
    for event in events(&file, "X") {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        assert!(names.contains_key(&track), "a track without a name: {event}");
        let (began, took) = (number(event, "ts"), number(event, "dur"));
        assert!(began >= 0.0 && took >= 0.0 && began <= length, "{event}");
        tracks.entry(track).or_default().push((began, began + took));
        categories.insert(event["cat"].as_str().unwrap());
        let known = [
            "seen",
            "plan",
            "launch",
            "open",
            "feed",
            "prefill",
            "step",
            "read",
            "tokens",
            "packaging",
            "pack",
            "put",
            "take",
            "speech",
            "to",
            "chunks",
            "preprocess",
            "backbone",
            "code_predictor",
            "sampling",
            "postprocess",
            "vocoder",
        ];
        let name = event["name"].as_str().unwrap();
        assert!(known.contains(&name.split(' ').next().unwrap()), "{name}");
    }
    for (track, slices) in &mut tracks {
        slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (began, ended) in slices {
            // Written with nanoseconds, as floating-point microseconds.
            open.retain(|end| *began < end - 5e-4);
            assert!(open.iter().all(|end| *ended <= end + 5e-4), "{}: a slice sticks out", names[track]);
            open.push(*ended);
        }
    }
    for category in
        ["scheduler", "launch", "device", "completion", "sampler", "packager", "connector", "request", "phase"]
    {
        assert!(categories.contains(category), "no slice of {category}");
    }

    // Arrows begin in a slice, end in a slice, and lead forward in time.
    let mut arrows: BTreeMap<u64, Vec<(&str, f64)>> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in ["s", "t", "f"] {
        for event in events(&file, kind) {
            let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
            let at = number(event, "ts");
            let inside = |(began, ended): &(f64, f64)| at >= began - 5e-4 && at <= ended + 5e-4;
            assert!(tracks[&track].iter().any(inside), "an arrow that holds on to nothing: {event}");
            arrows.entry(event["id"].as_u64().unwrap()).or_default().push((kind, at));
            *kinds.entry(event["name"].as_str().unwrap()).or_default() += usize::from(kind == "s");
        }
    }
    for (id, points) in &arrows {
        let ends: Vec<_> = points.iter().filter(|(kind, _)| *kind != "t").map(|(kind, _)| *kind).collect();
        assert_eq!(ends, ["s", "f"], "arrow {id}");
        let mut times: Vec<f64> = points.iter().filter(|(kind, _)| *kind != "f").map(|(_, at)| *at).collect();
        times.push(points.iter().find(|(kind, _)| *kind == "f").unwrap().1);
        assert!(times.is_sorted(), "arrow {id} leads back in time: {points:?}");
    }
    // One to each step that was planned when another one returned, and one for each payload. How many these are depends
    // on how many steps return before their stage looks: a packager that is late makes one payload of several.
    let steps = trace.steps();
    let after = steps.values().filter(|times| times.after.is_some()).count();
    let packed: Vec<_> =
        events(&file, "X").into_iter().filter(|event| event["name"].as_str().unwrap().starts_with("pack ")).collect();
    assert_eq!((kinds["token"], kinds["payload"]), (after, packed.len()), "of {} steps", steps.len());
    let mut units: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for event in &packed {
        let args = &event["args"];
        let of = (event["name"].as_str().unwrap(), args["request"].as_u64().unwrap());
        *units.entry(of).or_default() += args["units"].as_u64().unwrap();
    }
    for (request, frames) in [(1, 12), (2, 7)] {
        assert_eq!((units[&("pack codes", request)], units[&("pack audio", request)]), (frames, frames), "{units:?}");
    }

    // What the requests waited for, and counters.
    let chunks = events(&file, "i").iter().filter(|event| event["name"] == "chunk").count();
    let sounds = |event: &&&Value| event["name"] == "pack audio" && event["args"]["units"] != 0;
    assert_eq!(chunks, packed.iter().filter(sounds).count());
    let counters: BTreeSet<_> = events(&file, "C").iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert!(counters.is_superset(&BTreeSet::from(["sequences", "run-ahead", "queue: packager"])), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_one_process_are_traced_apart() {
    let (one, other) = (engine(&tiny(), |_| {}).await, engine(&tiny(), |_| {}).await);
    let sessions = (Session::begin(&one.recorder()), Session::begin(&other.recorder()));
    let spoken = tokio::join!(say(&one, frames(6, 1)), async {
        say(&other, frames(6, 1)).await;
        say(&other, frames(3, 2)).await
    });
    assert!(spoken.0.end.unwrap().is_ok() && spoken.1.end.unwrap().is_ok());
    idle(&one).await;
    idle(&other).await;
    // Both engines call their first request r1.
    let requests = |trace: &Trace| -> Vec<u64> {
        let accepted = trace.records.iter().filter(|record| matches!(record.what, What::Accepted(_)));
        accepted.map(|record| if let Track::Request(request) = record.track { request.0 } else { 0 }).collect()
    };
    let frames = |trace: &Trace| -> u32 {
        let of_vocoder =
            |record: &&trace::Record| matches!(record.track, Track::Stage { stage: StageName::Vocoder, .. });
        let ran = trace.records.iter().filter(of_vocoder);
        ran.map(|record| if let What::Ran(ran) = &record.what { ran.units() } else { 0 }).sum()
    };
    let (one, other) = (sessions.0.end(), sessions.1.end());
    assert_eq!((requests(&one), frames(&one)), (vec![1], 6));
    assert_eq!((requests(&other), frames(&other)), (vec![1, 2], 9));
}

#[test]
fn nothing_is_recorded_while_no_session_listens() {
    let (recorder, other) = (Recorder::default(), Recorder::default());
    let _elsewhere = Session::begin(&other);
    assert!(!recorder.on());
    recorder.request(RequestId(1), || panic!("no session asked for this"));
    let to = recorder.writer(Track::Request(RequestId(1)));
    trace::since(trace::now(), to, || panic!("no session asked for this"));
    assert_eq!((recorder.drain(), other.drain()), (Vec::new(), Vec::new()));
}

fn put(recorder: &Recorder, request: u64) {
    let track = Track::of(StageName::Talker, Generation(1), Component::ConnectorOut);
    let chunk = Chunk {
        request: RequestId(request),
        kind: PayloadKind::Codes,
        seq: Seq(0),
        units: 1,
        bytes: 64,
        step: Some(StepId(1)),
    };
    let now = Instant::now();
    trace::span(recorder.writer(track), now, now, || What::Put(chunk));
}

#[test]
fn sessions_see_what_went_on_while_they_listened_and_nothing_is_kept_afterwards() {
    let recorder = Recorder::default();
    let mut switched = recorder.switched();
    let outer = Session::begin(&recorder);
    assert!(*switched.borrow_and_update());
    put(&recorder, 1);
    let inner = Session::begin(&recorder);
    put(&recorder, 2);
    let seen = |trace: Trace| -> Vec<u64> {
        let requests = trace.records.iter();
        requests.map(|record| if let What::Put(chunk) = &record.what { chunk.request.0 } else { 0 }).collect()
    };
    assert_eq!(seen(inner.end()), [2]);
    std::thread::scope(|scope| _ = scope.spawn(|| put(&recorder, 3)));
    assert_eq!(seen(outer.end()), [1, 2, 3]);
    assert!(!*switched.borrow_and_update() && !recorder.on());
    assert_eq!(recorder.drain(), []);
    drop(Session::begin(&recorder));
    assert!(!recorder.on());
}

#[test]
fn records_of_another_process_take_their_place_by_time() {
    let recorder = Recorder::default();
    let session = Session::begin(&recorder);
    put(&recorder, 1);
    let elsewhere = recorder.drain();
    put(&recorder, 2);
    let bytes = bincode::encode_to_vec(&elsewhere, bincode::config::standard()).unwrap();
    let (mut arrived, _): (Vec<trace::Record>, _) =
        bincode::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
    assert_eq!(arrived, elsewhere);
    arrived.push(trace::Record { process: 1, what: What::Missing(5), ..arrived[0].clone() });
    recorder.absorb(arrived);
    let trace = session.end();
    assert_eq!((trace.records.len(), trace.missing), (2, 5));
    assert!(trace.records[0].began <= trace.records[1].began);
    recorder.absorb(elsewhere);
    assert_eq!(recorder.drain(), [], "no session listens any more");
}

#[test]
fn what_does_not_fit_is_counted() {
    let (recorder, neighbour) = (Recorder::default(), Recorder::default());
    let (session, other) = (Session::begin(&recorder), Session::begin(&neighbour));
    for request in 0..trace::CAPACITY as u64 + 10 {
        put(&recorder, request);
    }
    put(&neighbour, 1);
    let (trace, other) = (session.end(), other.end());
    assert_eq!((trace.records.len(), trace.missing), (trace::CAPACITY, 10));
    assert_eq!((other.records.len(), other.missing), (1, 0), "a full recorder takes no room from another one");
    let session = Session::begin(&recorder);
    put(&recorder, 1);
    assert_eq!(session.end().records.len(), 1, "there is room again");
}

/// A server on a free port, whose clients may trace it or not.
struct Site {
    url: String,
    client: reqwest::Client,
    serving: tokio::task::JoinHandle<()>,
    engine: Engine,
}

impl Site {
    async fn new(traces: bool) -> Site {
        let mut config = Config::default();
        config.telemetry.trace = traces;
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let engine = engine(&tiny(), |_| {}).await;
        let service = Arc::new(engine.clone());
        let server = Server::bind(&config.server).unwrap().with_telemetry(&config.telemetry);
        let url = format!("http://{}", server.local_addr());
        let serving = tokio::spawn(async move { server.serve(service, &config.limits, std::future::pending()).await });
        Site { url, client: reqwest::Client::new(), serving, engine }
    }

    async fn close(self) {
        self.serving.abort();
        self.engine.drain(Duration::ZERO).await;
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap()
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

fn steps_of(file: &Value) -> usize {
    events(file, "X").iter().filter(|event| event["cat"] == "device").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_asks_for_it_is_traced_from_acceptance_to_end() {
    let site = Site::new(true).await;
    let speech = json!({"input": "one two", "max_new_tokens": 5, "ignore_eos": true, "trace": true});
    let chat = json!({"messages": [{"role": "user", "content": "one"}], "max_tokens": 5, "trace": true});
    for (path, body) in [("/v1/audio/speech", &speech), ("/v1/chat/completions", &chat)] {
        let answer = site.post(path, body).await;
        assert_eq!(answer.status(), 200);
        let at = answer.headers()["x-trace"].to_str().unwrap().to_owned();
        let request =
            answer.headers()["x-request-id"].to_str().unwrap().trim_start_matches('r').parse::<u64>().unwrap();
        answer.bytes().await.unwrap();
        let (status, file) = site.get(&at).await;
        assert_eq!(status, 200, "{file}");
        assert!(steps_of(&file) > 3, "{path}: {file}");
        let slices = events(&file, "X");
        let whole = slices.iter().find(|event| event["args"]["request"] == json!(request) && event["cat"] == "request");
        assert_eq!(whole.unwrap()["args"]["outcome"], "finished", "{path}");
    }
    let plain = site.post("/v1/audio/speech", &json!({"input": "one", "max_new_tokens": 2})).await;
    assert!(!plain.headers().contains_key("x-trace"));
    plain.bytes().await.unwrap();
    assert!(!site.engine.recorder().on(), "nothing is recorded any more");
    assert_eq!(site.get("/debug/trace/99").await.0, 404);
    assert_eq!(site.get("/debug/trace/x").await.0, 404);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_traced_for_as_long_as_asked() {
    let site = Site::new(true).await;
    let speech = json!({"input": "one two", "max_new_tokens": 5, "ignore_eos": true});
    let speaking = async {
        wait::comes("the trace begins", || site.engine.recorder().on()).await;
        assert_eq!(site.get("/debug/trace?seconds=1").await.0, 409, "one at a time");
        site.post("/v1/audio/speech", &speech).await.bytes().await.unwrap();
    };
    let ((status, file), ()) = tokio::join!(site.get("/debug/trace?seconds=1"), speaking);
    assert_eq!(status, 200);
    assert!(steps_of(&file) > 3);
    assert!(number(&file["otherData"], "length_us") >= 1e6);
    for wrong in ["0", "-1", "61", "NaN", "x"] {
        let (status, error) = site.get(&format!("/debug/trace?seconds={wrong}")).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("seconds")), "{wrong}");
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_not_be_traced_says_which_key_allows_it() {
    let site = Site::new(false).await;
    assert_eq!(site.get("/debug/trace?seconds=1").await.0, 404);
    for (path, body) in [
        ("/v1/audio/speech", json!({"input": "one", "trace": true})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "one"}], "trace": true})),
    ] {
        let answer = site.post(path, &body).await;
        assert_eq!(answer.status(), 400);
        let error: Value = answer.json().await.unwrap();
        assert_eq!(error["error"]["param"], "trace");
        assert!(error["error"]["message"].as_str().unwrap().contains("telemetry.trace"), "{error}");
    }
    let fine = site.post("/v1/audio/speech", &json!({"input": "one", "max_new_tokens": 2, "trace": false})).await;
    assert_eq!(fine.status(), 200);
    fine.bytes().await.unwrap();
    site.close().await;
}
