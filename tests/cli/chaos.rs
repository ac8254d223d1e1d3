//! `chaos` from its command line: what it reports, what it writes, and which exit codes it has.

use crate::support::omni::{Done, Omni};
use serde_json::Value;

const TEXTS: &str = "one two three\nfour five six\nseven eight nine\nten\n";

/// A drill of the tiny checkpoint: four texts of eight frames, twelve requests by three listeners.
fn chaos(plan: &str, more: &[&str]) -> (Done, Value, Omni) {
    drill(Some(plan), more)
}

/// The same with faults that are drawn.
fn drawn_chaos(more: &[&str]) -> (Done, Value, Omni) {
    drill(None, more)
}

fn drill(plan: Option<&str>, more: &[&str]) -> (Done, Value, Omni) {
    let omni = Omni::new();
    let texts = omni.file("texts.txt", TEXTS);
    let plan = plan.map(|plan| omni.file("plan.toml", plan));
    let (report, out) = (omni.path("report.json"), omni.folder().display().to_string());
    let checkpoint = "model.checkpoint=tests/fixtures/qwen3_omni";
    let mut args = vec!["chaos", "--set", checkpoint, "--set", "device.kind=cpu", "--texts", &texts];
    args.extend(plan.iter().flat_map(|plan| ["--plan", plan]));
    args.extend(["--frames", "8", "--streams", "3", "--report", &report, "--out", &out]);
    if !more.contains(&"--duration") {
        args.extend(["--requests", "12"]);
    }
    args.extend(more);
    let omni = omni.arguments(&args);
    let done = omni.run();
    let report = std::fs::read(omni.path("report.json")).unwrap_or_default();
    (done, serde_json::from_slice(&report).unwrap_or_default(), omni)
}

fn rule(stage: &str, point: &str, kind: &str, more: &str) -> String {
    format!("[[faults]]\nstage = \"{stage}\"\npoint = \"{point}\"\nkind = \"{kind}\"\n{more}\n")
}

#[test]
fn slow_actors_change_no_stream() {
    let plan =
        ["thinker", "talker", "vocoder"].map(|stage| rule(stage, "sampler", "delay", "delay = \"5ms\"\ntimes = 20"));
    let (done, report, _) = chaos(&plan.concat(), &[]);
    done.succeeds().shows("  disturbed |").tells("set for the drill: supervision.backoff=");
    assert_eq!(report["streams"]["started"], 12);
    assert_eq!(report["streams"]["identical"], 12);
    assert_eq!(report["bad"].as_array().unwrap().len(), 0);
    assert_eq!(report["faults"]["injected"], 3);
}

#[test]
fn conversations_are_the_same_when_every_stage_dies_meanwhile() {
    let stages = ["encoder", "thinker", "talker", "vocoder"];
    // Each way twice for a stage at most: a request that one way hits three times in the same place is taken for guilty.
    let ways = [("runner", "panic"), ("sampler", "error"), ("packager", "panic"), ("scheduler", "panic")];
    let death = |i: usize| move |stage| rule(stage, ways[i % 4].0, ways[i % 4].1, &format!("nth = {}", 15 * i));
    let deaths = (1..8).flat_map(|i| stages.map(death(i)));
    let (done, report, _) = chaos(&deaths.collect::<String>(), &[]);
    done.succeeds().shows("conversations: 3 of 3 identical");
    assert!(report["faults"]["hit"].as_u64().unwrap() > 8, "{report}");
    assert_eq!(report["streams"]["identical"], 12);
}

#[test]
fn requests_of_one_kind_reach_the_stages_of_that_kind_alone() {
    let plan = ["thinker", "talker"].map(|stage| rule(stage, "runner", "panic", "nth = 2")).concat();
    let (done, report, _) = chaos(&plan, &["--ask", "text"]);
    done.succeeds();
    assert_eq!((&report["faults"]["injected"], &report["faults"]["hit"]), (&2.into(), &1.into()), "{report}");
    assert_eq!(report["streams"]["identical"], 12);
    let (done, ..) = chaos(&plan, &["--ask", "speech,talk", "--guilty", "2"]);
    done.exits(2).tells("--ask talk: not with --guilty");
    let (done, ..) =
        chaos(&plan, &["--ask", "text", "--set", "model.checkpoint=tests/fixtures/qwen3_tts/custom_voice"]);
    done.exits(2).tells("--ask text: the model has no stage for it");
}

#[test]
fn frames_that_are_lost_or_damaged_on_an_edge_change_no_stream() {
    let plan: String = ["drop", "corrupt", "duplicate", "reorder"]
        .iter()
        .enumerate()
        .map(|(i, kind)| rule("talker", "edge", kind, &format!("nth = {}", 3 + 4 * i)))
        .collect();
    let (done, report, _) = chaos(&plan, &["--set", "transfer.transport=wire"]);
    done.succeeds();
    assert_eq!(report["streams"]["identical"], 12);
}

#[test]
fn a_stage_that_stays_down_ends_the_drill_with_an_error_and_what_was_not_heard() {
    let plan = rule("talker", "runner", "error", "nth = 40\ntimes = \"all\"");
    let (done, report, _) =
        chaos(&plan, &["--set", "supervision.max_restarts=2", "--set", "supervision.meltdown_window=30s"]);
    done.exits(1).tells("a stage stayed down: talker").shows("bad: ");
    assert!(report["given_up"].as_str().unwrap().contains("injected fault"), "{report}");
    let bad = &report["bad"][0];
    assert!(
        bad["seed"].is_u64() && bad["text"].is_string() && bad["error"].as_str().unwrap().contains("talker"),
        "{bad}"
    );
}

#[test]
fn the_one_fault_of_many_that_is_to_blame_is_found_and_can_be_run_again() {
    let harmless = (1..6).map(|i| rule("talker", "packager", "delay", &format!("delay = \"1ms\"\nnth = {i}")));
    let culprit = rule("vocoder", "sampler", "error", "nth = 20\ntimes = \"all\"");
    let plan: String = harmless.clone().chain([culprit]).chain(harmless).collect();
    let limits = ["--set", "supervision.max_restarts=2", "--set", "supervision.meltdown_window=30s"];
    let (done, _, omni) = chaos(&plan, &[&limits[..], &["--shrink", "--ask", "speech"]].concat());
    done.exits(1).shows("1 faults are in").shows("--plan").shows("--ask speech");
    let smallest = std::fs::read_to_string(omni.path("chaos-smallest.toml")).unwrap();
    assert_eq!(smallest.matches("[[faults]]").count(), 1, "{smallest}");
    assert!(smallest.contains("point = \"sampler\"") && smallest.contains("vocoder"), "{smallest}");
    let (again, ..) = chaos(&smallest, &limits);
    again.exits(1);
}

#[test]
fn actors_that_die_change_no_stream() {
    let mut plan = String::new();
    let deaths =
        [("runner", "panic"), ("open", "oom"), ("sampler", "error"), ("packager", "panic"), ("connector", "error")];
    let everywhere = deaths.iter().flat_map(|death| ["thinker", "talker", "vocoder"].map(|stage| (stage, *death)));
    for ((stage, (point, kind)), number) in everywhere.zip(1..) {
        plan += &rule(stage, point, kind, &format!("after = \"{}ms\"", 100 * number));
    }
    let (done, report, _) = chaos(&plan, &["--duration", "3s"]);
    done.succeeds();
    assert_eq!(report["faults"]["injected"], 15);
    assert_eq!(report["streams"]["identical"], report["streams"]["started"]);
    assert!(report["streams"]["recovered"].as_u64().unwrap() > 0, "{report}");
    let outages = |stage: &str| report["stages"][stage]["outages"].as_u64().unwrap();
    assert!(outages("thinker") > 0 && outages("talker") > 0 && outages("vocoder") > 0, "{report}");
}

#[test]
fn whatever_is_drawn_strikes_and_no_listener_hears_it() {
    let drawn = ["--duration", "4s", "--every", "100ms", "--set", "transfer.transport=wire"];
    let (done, report, _) = drawn_chaos(&drawn);
    let kinds = report["faults_by_kind"].as_object().unwrap();
    let drawn =
        ["panic", "error", "delay", "hang", "oom", "nan", "drop", "duplicate", "reorder", "corrupt", "cut", "slow"];
    assert!(drawn.iter().all(|kind| kinds.contains_key(*kind)) && kinds.len() == drawn.len(), "{report}");
    assert_eq!(report["faults"]["injected"], 39);
    assert!(report["faults"]["hit"].as_u64().unwrap() > 0, "{report}");
    done.succeeds();
    assert_eq!(report["streams"]["identical"], report["streams"]["started"]);
    assert!(report["streams"]["recovered"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn requests_that_bring_a_stage_down_each_time_are_ended_and_all_others_are_heard() {
    for placement in ["thread", "process"] {
        let drawn = ["--guilty", "2", "--duration", "3s", "--every", "500ms", "--placement", placement];
        let (done, report, _) = drawn_chaos(&drawn);
        done.succeeds();
        let count = |what: &str| report["streams"][what].as_u64().unwrap();
        assert!(count("ended") > 0 && count("identical") > 0, "{report}");
        assert_eq!(count("ended") + count("identical"), count("started"), "{report}");
    }
}

/// A small cluster, each of whose faults strikes once but the long ones.
#[cfg(feature = "cluster")]
#[test]
fn hosts_that_die_and_networks_that_break_change_no_stream() {
    let omni = Omni::new();
    let (texts, report) = (omni.file("texts.txt", TEXTS), omni.path("report.json"));
    let checkpoint = "model.checkpoint=tests/fixtures/qwen3_tts/custom_voice";
    let omni = omni
        .args(["chaos", "--cluster", "2", "--set", checkpoint, "--set", "device.kind=cpu", "--texts", &texts])
        .more(&["--set", "cluster.silence=500ms", "--frames", "60", "--streams", "6", "--report", &report])
        // What all kinds but the long ones take, and the rest between them.
        .more(&["--every", "100ms", "--duration", "12750ms", "--hang-after", "60s"]);
    let done = omni.run();
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap_or_default()).unwrap_or_default();
    done.succeeds().shows("kill -9 of a gateway |");
    let kinds = report["faults_by_kind"].as_array().unwrap();
    assert_eq!(kinds.len(), 9, "{report}");
    for kind in kinds {
        assert_eq!(kind["times"], 1, "{report}");
        assert!(kind["streams"].as_u64().unwrap() > 0 && kind["identical"] == kind["streams"], "{report}");
    }
    // Whether a listener had to move depends on how fast the machine is: a gateway may have said all that it had to say.
    // `nodes::*` has one that is killed in the middle.
    assert_eq!(report["streams"]["identical"], report["streams"]["started"]);
}

#[cfg(not(feature = "cluster"))]
#[test]
fn a_program_without_clusters_drills_none() {
    Omni::new().args(["chaos", "--cluster", "2"]).run().exits(2).tells("without the feature `cluster`");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let fine = rule("talker", "runner", "panic", "");
    let (done, ..) = chaos(&fine, &["--set", "limits.max_requests=2"]);
    done.exits(2).tells("limits.max_requests lets in no more than 2");
    let (done, ..) = chaos("[[faults]]\nstage = \"talker\"\n", &[]);
    done.exits(2).tells("faults[0]");
    let kill = rule("talker", "runner", "kill", "");
    let (done, ..) = chaos(&kill, &["--placement", "thread"]);
    done.exits(2).tells("placement = \"process\"");
    let (done, ..) = chaos(&fine, &["--duration", "0s"]);
    done.exits(2).tells("write a duration above 0");
}
