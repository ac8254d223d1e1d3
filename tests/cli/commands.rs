//! The command line as a user meets it: what it prints, what it writes, how it exits.

use crate::support::omni::{Omni, omni};

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let done = omni(["--help"]).run();
    done.succeeds();
    for word in ["run", "say", "check", "bench", "Exit codes"] {
        assert!(done.stdout.contains(word), "{word} is not in\n{}", done.stdout);
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    omni(["sing"]).run().exits(2).tells("unrecognized subcommand 'sing'");
    omni(["say"]).run().exits(2);
    omni(["run", "--listen", "here"]).run().exits(2).tells("--listen");
    omni(["run", "--set", "listen"]).run().exits(2).tells("write KEY=VALUE");
}

#[test]
fn a_reader_that_has_read_enough_ends_a_command_quietly() {
    for args in [&["check", "configs/example.toml"][..], &["simulate", "--seeds", "1"]] {
        let done = Omni::new().arguments(args).run_unread();
        assert_eq!((done.code, done.stderr.as_str()), (Some(141), ""), "{args:?}");
    }
}

#[test]
fn check_says_what_the_example_means() {
    let done = omni(["check", "configs/example.toml"]).run();
    done.succeeds();
    for line in ["configs/example.toml: ok", "127.0.0.1:8080 (this machine only)", "heart, alto, tenor; default heart"]
    {
        assert!(done.stdout.contains(line), "{line} is not in\n{}", done.stdout);
    }
    let apart = omni(["check", "configs/example.toml", "--set", "stages.talker.placement=process"]).run();
    apart.succeeds().shows("talker    a process of its own, batch 8");
}

#[test]
fn check_lists_the_encoder_and_what_it_takes_where_the_checkpoint_has_one() {
    let folder = |name: &str| format!("model.checkpoint={}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let check = |checkpoint: &str, more: &[&str]| {
        let omni = Omni::new();
        let config = omni.file("empty.toml", "");
        let checkpoint = folder(checkpoint);
        let mut args = vec!["check", &config, "--set", "device.kind=cpu", "--set", &checkpoint];
        more.iter().for_each(|set| args.extend(["--set", set]));
        omni.arguments(&args).run()
    };
    let seen = check("qwen3_omni", &["stages.encoder.placement=process", "media.ffmpeg=/no/such/ffmpeg"]);
    seen.succeeds()
        .shows("encoder   a process of its own, batch 1, run-ahead 1")
        .shows("pictures seen at 4.2 megapixels");
    seen.shows("no films: /no/such/ffmpeg is not there").shows("1024 MiB of embeddings");
    check("qwen3_omni", &["media.ffmpeg=/bin/sh"]).succeeds().shows("films by /bin/sh");
    omni(["check", "configs/example.toml"]).run().succeeds().shows("media     hears; pictures are refused");
    let deaf = check("qwen3_tts/base", &[]);
    deaf.succeeds().shows("talker    batch 8");
    assert!(!deaf.stdout.contains("encoder") && !deaf.stdout.contains("media  "), "{}", deaf.stdout);
}

#[test]
fn check_lists_everything_that_is_wrong() {
    let omni = Omni::new();
    let config = omni.file("bad.toml", "[server]\nlisten = 1\nport = 2\n[limits]\nmax_requests = 0\n");
    let done = omni.args(["check", &config]).run();
    done.exits(2).tells("3 problems");
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", done.stdout);
    assert_eq!(lines[2], format!("{config}: line 5: limits.max_requests = 0: must be a whole number from 1 to 4096"));
}

#[test]
fn check_tells_what_each_alias_stands_for_and_refuses_one_that_leads_nowhere() {
    let run = |command: &str, aliases: &str| {
        let omni = Omni::new();
        let config = omni.file("aliases.toml", &format!("[aliases]\n{aliases}"));
        omni.args([command, &config]).run()
    };
    let fine = run("check", "models = [\"kokoro\"]\n[aliases.voices]\nNarrator = \"alto\"\n");
    fine.succeeds()
        .shows("of the model: kokoro, gpt-4o-mini-tts, tts-1,")
        .shows("narrator = alto, alloy = heart, ash = alto,");
    run("check", "openai = false").succeeds().shows("aliases   none");
    let wrong = "voices = { narrator = \"bob\" }";
    let said = "aliases.voices.narrator: there is no voice \"bob\"; choose one of: heart, alto";
    run("check", wrong).exits(2).shows(said);
    run("run", wrong).exits(2).tells(said);
}

#[test]
fn check_tells_what_times_words_and_refuses_what_is_no_aligner() {
    let run = |aligner: &str| {
        let omni = Omni::new();
        let folder = |name: &str| format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        let (model, aligner) = (folder("qwen3_tts/custom_voice"), folder(aligner));
        let text = format!("[model]\ncheckpoint = {model:?}\n[aligner]\ncheckpoint = {aligner:?}\n");
        let config = omni.file("aligner.toml", &text);
        omni.args(["check", &config]).run()
    };
    run("qwen3_forced_aligner").succeeds().shows("words     timed by").shows("qwen3_forced_aligner, on the CPU");
    run("qwen3_tts/base").exits(2).shows("aligner.checkpoint").shows("is no aligner");
    omni(["check", "configs/example.toml"]).run().succeeds().shows("words     timed by the aligner beside the weights");
}

#[test]
fn check_opens_the_checkpoint() {
    let omni = Omni::new();
    let nowhere = omni.file("nowhere.toml", "[model]\ncheckpoint = \"gone\"\n");
    omni.args(["check", &nowhere]).run().exits(2).shows("model.checkpoint = ").shows("gone");
    let omni = Omni::new();
    let stranger = omni.file("stranger.toml", "[model]\ndefault_voice = \"bob\"\n");
    omni.args(["check", &stranger]).run().exits(2).shows("model.default_voice = \"bob\": must be one of: heart, alto");
}

#[test]
fn a_gpu_that_is_not_there_is_refused_and_nothing_starts() {
    for command in ["check", "run"] {
        let config = "configs/example.toml";
        let done = omni([command, config, "--set", "device.kind=cuda", "--set", "device.index=63"]).run();
        done.exits(2);
        let told = done.stdout.clone() + &done.stderr;
        assert!(told.contains("device.kind = \"cuda\"") && told.contains("use \"cpu\" or \"auto\""), "{told}");
    }
}

#[test]
fn a_missing_config_is_told_by_name() {
    omni(["check", "no/such.toml"]).run().exits(2).tells("cannot read no/such.toml");
    omni(["run", "no/such.toml"]).run().exits(2).tells("cannot read no/such.toml");
}

#[test]
fn a_broken_fault_plan_starts_nothing() {
    let omni = Omni::new();
    let plan = omni.file("plan.toml", "[[faults]]\nstage = \"mouth\"\n");
    let told = omni.args(["run", "--faults", &plan]).run();
    told.exits(2).tells("faults[0].stage = \"mouth\": must be \"encoder\" or \"thinker\" or \"talker\" or \"vocoder\"");
}

#[test]
fn silence_is_nothing_to_say() {
    omni(["say", "  "]).run().exits(2).tells("nothing to say");
    omni(["say", "-"]).stdin("\n").run().exits(2).tells("nothing to say");
}

#[test]
fn bench_refuses_loads_that_make_no_sense() {
    omni(["bench", "--concurrency", "0"]).run().exits(2).tells("--concurrency");
    omni(["bench", "--rate", "-1"]).run().exits(2);
    omni(["bench", "--rate", "1", "--concurrency", "2"]).run().exits(2).tells("cannot be used with");
    omni(["bench", "--url", "ftp://127.0.0.1"]).run().exits(1).tells("only http:// is supported");
    omni(["bench", "--extra", "[1]"]).run().exits(2).tells("must be a JSON object");
}
