//! Turns that are encoded and prefilled while they are spoken, against servers of their own: by their counters, and by
//! the tokens and samples of answers that nothing was prepared for. A window of the small checkpoint is 2 s.

use super::*;
use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving};
use crate::support::wait;
use std::path::Path;

const WITHOUT: &str = "[realtime]\nprepare = false\n";
/// Windows of 2 s, 26 tokens each.
const WINDOW_TOKENS: u64 = 26;

fn server(more: &str) -> Serving {
    let omni = Omni::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
    let config = omni.file("config.toml", &format!("[model]\ncheckpoint = {fixture:?}\n{more}"));
    omni.arguments(&["run", &config, "--listen", "127.0.0.1:0"]).serve().ready()
}

/// A series of this server; 0 where there is none yet.
fn counted(serving: &Serving, series: &str) -> f64 {
    let text = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(&serving.url).body).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

fn prepared(serving: &Serving, outcome: &str) -> f64 {
    counted(serving, &format!("omni_realtime_preparations_total{{outcome=\"{outcome}\"}}"))
}

/// Noise at 24 kHz: no bin of its spectrum is far below another, so more of it changes nothing of what was there.
fn noise(seed: u32, ms: u32, loud: f64) -> Vec<u8> {
    let mut state = seed;
    let sample = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((f64::from(state >> 8) / f64::from(1u32 << 24) - 0.5) * loud) as i16
    };
    (0..24 * ms).map(sample).flat_map(i16::to_le_bytes).collect()
}

/// Text, sound, and the tokens of the prompt that were not computed.
type Turn = (String, Vec<u8>, u64);

/// A conversation: something written, then turns in pieces of sound. Where turns are prepared, each piece but the last of
/// a turn makes one more window whole, which is waited for.
async fn talk(serving: &Serving, turns: &[Vec<Vec<u8>>], prepares: bool) -> Vec<Turn> {
    let mut talk = Talk::at(serving.url.trim_start_matches("http://"), "?seed=11").await;
    talk.say("Please listen to what I have to say, and tell me then what you have heard.").await;
    let mut answers = vec![turn(&talk.answer("text").await)];
    let mut windows = 0.0;
    for pieces in turns {
        for (at, piece) in pieces.iter().enumerate() {
            talk.append(piece).await;
            if prepares && at + 1 < pieces.len() {
                windows += 1.0;
                wait::comes("a window", || prepared(serving, "finished") >= windows).await;
            }
        }
        talk.send(json!({"type": "input_audio_buffer.commit"})).await;
        talk.until("conversation.item.done").await;
        answers.push(turn(&talk.answer("audio").await));
    }
    answers
}

fn turn(answer: &Answer) -> Turn {
    let cached = answer.response()["usage"]["input_token_details"]["cached_tokens"].as_u64().unwrap();
    (answer.text(), answer.sound(), cached)
}

/// Two turns, of two windows and a half and of one and a half.
fn turns() -> [Vec<Vec<u8>>; 2] {
    let turn = |seed, ms: &[u32]| (seed..).zip(ms).map(|(seed, ms)| noise(seed, *ms, 8_000.0)).collect();
    [turn(1, &[2_500, 2_000, 700]), turn(9, &[2_100, 900])]
}

fn same(answers: &[Turn], expected: &[Turn], case: &str) {
    assert_eq!(answers.len(), expected.len(), "{case}");
    for (at, ((text, sound, _), (other_text, other_sound, _))) in answers.iter().zip(expected).enumerate() {
        assert_eq!(text, other_text, "{case}, turn {at}");
        assert!(sound == other_sound && (at == 0 || !sound.is_empty()), "{case}, turn {at}: other samples");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_prepared_has_the_tokens_and_samples_of_one_that_was_not() {
    let serving = server(WITHOUT);
    let expected = talk(&serving, &turns(), false).await;
    let hits = |serving: &Serving| counted(serving, "omni_media_cache_total{outcome=\"hit\"}");
    // Of the second turn the first sound, three windows, is known either way.
    assert_eq!((prepared(&serving, "finished"), hits(&serving)), (0.0, 3.0));
    let seconds = |serving: &Serving| {
        ["hit", "miss"].map(|outcome| counted(serving, &format!("omni_media_spectra_total{{outcome=\"{outcome}\"}}")))
    };
    // 5.2 s, and those again with 3 s behind them.
    assert_eq!(seconds(&serving), [5.0, 5.0 + 3.0]);
    drop(serving);

    let serving = server("");
    let answers = talk(&serving, &turns(), true).await;
    same(&answers, &expected, "in threads");
    // 1 window when the second is prepared, 2 when the turn ends; 3 when the first of the next turn is, 4 at its end.
    assert_eq!((prepared(&serving, "finished"), hits(&serving)), (3.0, 1.0 + 2.0 + 3.0 + 4.0));
    // Each second of sound is transformed once.
    assert_eq!(seconds(&serving), [2.0 + 4.0 + 5.0 + 7.0, 5.0 + 3.0]);
    let more = |turn: usize| answers[turn].2 - expected[turn].2;
    // Up to the last block of 16 positions that is whole.
    assert!((2 * WINDOW_TOKENS - 16..=2 * WINDOW_TOKENS + 16).contains(&more(1)), "{answers:?}, without {expected:?}");
    assert!((WINDOW_TOKENS - 16..=WINDOW_TOKENS + 16).contains(&more(2)));
    // What nobody waited for is no chat turn: one in text, two in sound.
    assert_eq!(counted(&serving, "omni_requests_total{kind=\"chat\",outcome=\"finished\"}"), 3.0);
    drop(serving);

    for (stage, point, nth) in
        [("encoder", "runner", 2), ("encoder", "runner", 4), ("thinker", "runner", 12), ("thinker", "sampler", 14)]
    {
        let case = format!("{stage} dies at {point} {nth}");
        let fault = format!("[[faults]]\nstage = \"{stage}\"\npoint = \"{point}\"\nkind = \"panic\"\nnth = {nth}\n");
        let serving = server(&fault);
        same(&talk(&serving, &turns(), true).await, &expected, &case);
        assert!(
            counted(&serving, &format!("omni_stage_restarts_total{{stage=\"{stage}\"}}")) > 0.0,
            "{case}: it is not struck"
        );
    }
    let serving = server("[stages.thinker]\nplacement = \"process\"\n[stages.encoder]\nplacement = \"process\"\n");
    same(&talk(&serving, &turns(), true).await, &expected, "in processes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loud_end_changes_the_windows_before_it_and_they_are_encoded_again() {
    // Silence has the floor of the spectrum, which rises with the loudest bin of the turn.
    let quiet = [noise(3, 500, 20.0), silence(2_000)].concat();
    let turns = [vec![quiet, noise(4, 1_000, 60_000.0)]];
    let serving = server(WITHOUT);
    let expected = talk(&serving, &turns, false).await;
    drop(serving);
    let serving = server("");
    same(&talk(&serving, &turns, true).await, &expected, "a loud end");
    assert_eq!(counted(&serving, "omni_media_cache_total{outcome=\"hit\"}"), 0.0);
}

/// The answer to a turn that the server finds, with less silence behind it than ends a turn until all of it is prepared.
async fn found(serving: &Serving, speech: &[u8], prepares: bool) -> Turn {
    let mut talk = Talk::at(serving.url.trim_start_matches("http://"), "?seed=11").await;
    let detection = json!({"type": "server_vad", "silence_duration_ms": 600});
    talk.update(json!({"audio": {"input": {"turn_detection": detection}}})).await;
    talk.append(&[&silence(800), speech, &silence(400)].concat()).await;
    if prepares {
        wait::comes("the turn", || prepared(serving, "finished") == 1.0).await;
    }
    talk.append(&silence(1_000)).await;
    turn(&Answer::of(talk.until("response.done").await))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_turn_that_is_found_is_encoded_and_prefilled_before_it_is_over() {
    let speech = speech::recording("Good morning.").await;
    let serving = server(WITHOUT);
    let expected = found(&serving, &speech, false).await;
    assert_eq!((prepared(&serving, "finished"), expected.2), (0.0, 0));
    drop(serving);
    let died = |stage: &str, nth: u64| {
        format!("[[faults]]\nstage = \"{stage}\"\npoint = \"runner\"\nkind = \"panic\"\nnth = {nth}\n")
    };
    for (case, config) in
        [("in threads", String::new()), ("encoder", died("encoder", 1)), ("thinker", died("thinker", 2))]
    {
        let serving = server(&config);
        let answer = found(&serving, &speech, true).await;
        assert!(answer.0 == expected.0 && answer.1 == expected.1 && !answer.1.is_empty(), "{case}: another answer");
        // Nothing of it is encoded again, and only what follows its last whole block of 16 positions is computed.
        assert_eq!(counted(&serving, "omni_media_cache_total{outcome=\"hit\"}"), 1.0, "{case}");
        assert!(answer.2 >= 16, "{case}: {} tokens were kept", answer.2);
        let restarts = counted(&serving, &format!("omni_stage_restarts_total{{stage=\"{case}\"}}"));
        assert_eq!(restarts > 0.0, !config.is_empty(), "{case}");
    }
}

/// A server whose encoder comes to the end of no step while a test waits, with more of a config in front.
fn stuck(more: &str) -> Serving {
    let fault = "[[faults]]\nstage = \"encoder\"\npoint = \"runner\"\nkind = \"delay\"\ndelay = \"5m\"\n";
    server(&format!("{more}[supervision]\nwatchdog = \"10m\"\n{fault}"))
}

/// Waits until something is prepared, and nothing else is made.
async fn is_preparing(serving: &Serving) {
    wait::comes("the request", || counted(serving, "omni_requests_in_flight") == 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_prepared_gives_its_place_to_a_request() {
    let serving = stuck("[limits]\nmax_requests = 1\n");
    let mut talk = Talk::at(serving.url.trim_start_matches("http://"), "?seed=11").await;
    talk.append(&noise(1, 2_500, 8_000.0)).await;
    is_preparing(&serving).await;
    let body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4});
    let reply = Ask::json(CHAT, &body).send(&serving.url);
    assert_eq!(reply.status, 200, "{}", reply.json());
    wait::comes("its end", || prepared(&serving, "refused") == 1.0).await;
    // The session goes on: its next window is asked for again.
    talk.append(&noise(2, 2_500, 8_000.0)).await;
    is_preparing(&serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_turn_ends_what_is_prepared_of_it_and_text_prepares_nothing() {
    let serving = stuck("");
    let mut talk = Talk::at(serving.url.trim_start_matches("http://"), "?seed=11").await;
    talk.say("Hello").await;
    talk.answer("text").await;
    for (number, end) in [(1.0, "input_audio_buffer.commit"), (2.0, "input_audio_buffer.clear")] {
        talk.append(&noise(1, 2_500, 8_000.0)).await;
        is_preparing(&serving).await;
        talk.send(json!({"type": end})).await;
        wait::comes("its end", || prepared(&serving, "cut_off") == number).await;
        wait::comes("all of it", || counted(&serving, "omni_requests_in_flight") == 0.0).await;
    }
    talk.append(&noise(1, 2_500, 8_000.0)).await;
    is_preparing(&serving).await;
    drop(talk);
    wait::comes("the end of the session", || counted(&serving, "omni_requests_in_flight") == 0.0).await;
    assert_eq!(["finished", "refused"].map(|outcome| prepared(&serving, outcome)), [0.0, 0.0]);
}

fn silence(ms: usize) -> Vec<u8> {
    vec![0; 48 * ms]
}
