//! Scheduling for playback: what the policies of a stage and the arbiter of a device do for listeners, on a device that
//! takes as long as a model of its costs says. A policy that gained nothing there is not in the code.

use crate::support::listeners::{Arrivals, Report, Scenario};
use std::time::Duration;

/// Requests of 57 frames, so many a second.
fn open(rate: f64) -> Scenario {
    Scenario::new(Arrivals::Poisson(rate), 1500, 57..=57)
}

/// So many at a time, of any length.
fn closed(count: u32) -> Scenario {
    Scenario::new(Arrivals::Closed(count), 1500, 20..=180)
}

/// So many at a time, all of one length: they stay in step, and come in bursts.
fn in_step(count: u32) -> Scenario {
    Scenario::new(Arrivals::Closed(count), 1500, 100..=100)
}

fn smooth(report: &Report) {
    assert_eq!(report.underruns, 0, "{report}");
    assert!(report.idle < 1.0, "the device stood still for {} ms while a step was held back", report.idle);
}

#[test]
fn a_request_alone_is_heard_after_a_prefill_a_frame_and_a_chunk() {
    let report = closed(1).run();
    smooth(&report);
    assert!(report.percentile(0.99) < 8.0, "{report}");
}

#[test]
fn listeners_at_20_and_40_requests_a_second_hear_soon_and_without_a_gap() {
    for (rate, p95) in [(20.0, 15.0), (40.0, 17.0)] {
        let report = open(rate).run();
        smooth(&report);
        assert!(report.percentile(0.95) < p95, "at {rate} a second: {report}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    assert_eq!(open(40.0).run(), open(40.0).run());
    assert_ne!(open(40.0).run(), Scenario { seed: 2, ..open(40.0) }.run());
}

#[test]
fn in_a_rush_requests_start_in_turn_and_no_started_stream_runs_dry() {
    let report = open(300.0).run();
    smooth(&report);
    assert!(report.percentile(0.5) > 1000.0, "this is more than the device can do: {report}");
    assert!(report.overtaken < 100.0, "a request was overtaken by one that came {} ms later", report.overtaken);
}

#[test]
fn the_arbiter_brings_first_sounds_sooner_and_no_stream_runs_dry() {
    for (name, scenario) in [("40 a second", open(40.0)), ("32 at a time", closed(32)), ("64 at a time", closed(64))] {
        let with = scenario.clone().run();
        let without = Scenario { arbiter: false, ..scenario }.run();
        smooth(&with);
        assert!(with.percentile(0.95) < 0.9 * without.percentile(0.95), "{name}: {with}; without: {without}");
        assert!(with.rate() > 0.95 * without.rate(), "{name}: {with}; without: {without}");
    }
}

#[test]
fn the_arbiter_gets_out_of_the_way_where_slots_are_scarce() {
    for (name, scenario) in [("110 a second", open(110.0)), ("128 at a time", closed(128))] {
        let with = scenario.clone().run();
        let without = Scenario { arbiter: false, ..scenario }.run();
        smooth(&with);
        assert!(with.percentile(0.95) < 1.1 * without.percentile(0.95), "{name}: {with}; without: {without}");
    }
}

#[test]
fn the_lead_cap_brings_first_sounds_sooner_under_load() {
    for (name, scenario) in [("32 at a time", closed(32)), ("64 at a time", closed(64)), ("40 a second", open(40.0))] {
        let (with, without) = (scenario.clone().run(), scenario.lead_cap(None).run());
        smooth(&with);
        assert!(with.percentile(0.95) < 0.97 * without.percentile(0.95), "{name}: {with}; without: {without}");
        assert!(with.rate() > 0.93 * without.rate(), "{name}: {with}; without: {without}");
    }
}

#[test]
fn a_lead_cap_of_next_to_nothing_leaves_no_device_idle() {
    let (capped, free) = (closed(8).lead_cap(Some(Duration::from_millis(1))).run(), closed(8).lead_cap(None).run());
    smooth(&capped);
    assert!(capped.rate() > 0.9 * free.rate(), "{capped}; without: {free}");
}

#[test]
fn parked_sequences_that_fill_a_step_up_keep_the_device_from_falling_behind() {
    let scenario = open(110.0);
    let mut strict = scenario.clone();
    strict.talker.buckets.clear();
    let (filled, strict) = (scenario.run(), strict.run());
    smooth(&filled);
    assert!(filled.percentile(0.95) < 0.8 * strict.percentile(0.95), "{filled}; without: {strict}");
}

#[test]
fn first_chunks_do_not_wait_behind_steps_of_many_long_ones() {
    let scenario = in_step(64);
    let mut unbounded = scenario.clone();
    unbounded.vocoder.max_step_units = None;
    let (bounded, unbounded) = (scenario.run(), unbounded.run());
    smooth(&bounded);
    assert!(bounded.percentile(0.95) < 0.8 * unbounded.percentile(0.95), "{bounded}; without: {unbounded}");
    assert!(bounded.rate() > 0.95 * unbounded.rate(), "{bounded}; without: {unbounded}");
}

#[test]
fn a_vocoder_that_plans_ahead_is_not_heard_sooner() {
    for scenario in [open(40.0), closed(32), closed(64)] {
        let mut ahead = scenario.clone();
        ahead.vocoder.run_ahead = 2;
        let (late, ahead) = (scenario.run(), ahead.run());
        assert!(late.rate() > 0.99 * ahead.rate(), "{late}; ahead: {ahead}");
        assert!(late.percentile(0.5) < 1.01 * ahead.percentile(0.5), "{late}; ahead: {ahead}");
    }
}

#[test]
fn long_prompts_come_in_pieces_between_which_others_go_on() {
    let prompts = |chunk| {
        let mut scenario = Scenario { prompt: 3000, requests: 200, ..open(8.0) };
        scenario.talker.prefill_chunk = chunk;
        scenario.run()
    };
    smooth(&prompts(256));
    assert!(prompts(8192).underruns > 0, "a prompt in one piece is heard by all the others");
}
