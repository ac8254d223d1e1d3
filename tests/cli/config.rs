//! The config file: what it says, what it refuses, and that its documentation is true.

use omni_actors::config::{
    self, CheckpointSource, Config, ConfigError, DeviceKind, LogFormat, Override, Scope, WeightsKind,
};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLE: &str = include_str!("../../configs/example.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    config::parse(text, Path::new("/etc/omni"), &[])
}

fn problems(text: &str) -> Vec<String> {
    parse(text).unwrap_err().problems().iter().map(ToString::to_string).collect()
}

#[test]
fn an_empty_file_is_the_default() {
    let config = parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.model.checkpoint, CheckpointSource::Embedded);
    assert!(config.server.listen.ip().is_loopback());
    assert!(config.faults.is_empty());
}

#[test]
fn the_example_is_the_default_written_out() {
    assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
    // Uncommenting the fault rule makes it one.
    let with_fault = EXAMPLE.split("# [[faults]]").last().unwrap();
    let rule: String = with_fault
        .lines()
        .filter_map(|line| line.strip_prefix("# ").filter(|line| line.split_whitespace().nth(1) == Some("=")))
        .fold("[[faults]]\n".to_owned(), |text, line| text + line + "\n");
    let expected = FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic);
    assert_eq!(parse(&rule).unwrap().faults, [expected]);
}

#[test]
fn the_example_explains_every_key_with_what_is_allowed() {
    let prose = |text: &str| text.replace("\n# ", " ").replace("# ", "");
    let mut section = String::new();
    let mut seen = Vec::new();
    let mut comment = String::new();
    for line in EXAMPLE.lines() {
        let code = line.strip_prefix("# ").filter(|_| section.ends_with("[0]") || line.contains("[[")).unwrap_or(line);
        if let Some(name) = code.strip_prefix("[[").and_then(|code| code.strip_suffix("]]")) {
            section = format!("{name}[0]");
        } else if let Some(name) = code.strip_prefix('[').and_then(|code| code.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else if let Some((key, _)) = code.split_once(" = ").filter(|(key, _)| !key.contains([' ', '#'])) {
            seen.push((format!("{section}.{key}"), prose(&comment)));
            comment.clear();
        } else {
            comment = format!("{comment}\n{line}");
        }
    }
    for key in config::declared() {
        let (_, comment) =
            seen.iter().find(|(name, _)| *name == key.key).unwrap_or_else(|| panic!("{} is missing", key.key));
        assert!(comment.contains(&key.allowed), "{}: {:?} does not say {:?}", key.key, comment, key.allowed);
    }
    assert_eq!(seen.len(), config::declared().len());
}

#[test]
fn everything_wrong_is_told_at_once_with_line_key_value_and_what_is_allowed() {
    let text = "
[stages.talker]
run_ahead = 0
widow = 3

[sever]
listen = \"127.0.0.1:1\"

[server]
listen = \"localhost\"
read_timeout = 5

[speech]
prompt = \"no place\"

[transfer]
transport = \"carrier pigeon\"
";
    assert_eq!(
        problems(text),
        [
            "line 3: stages.talker.run_ahead = 0: must be \"auto\" or a whole number from 1 to 8",
            "line 4: stages.talker.widow: unknown key; did you mean `stages.talker.window`?",
            "line 6: sever: unknown section; did you mean `server`?",
            "line 10: server.listen = \"localhost\": must be an address and a port, such as \"127.0.0.1:8080\"",
            "line 11: server.read_timeout = 5: must be a duration in quotes from 100ms to 10m, such as \"10s\"",
            "line 14: speech.prompt = \"no place\": must be text with {text} in it once",
            "line 17: transfer.transport = \"carrier pigeon\": must be \"inproc\" or \"wire\" or \"shm\"",
        ]
    );
}

#[test]
fn sections_and_values_are_not_taken_for_each_other() {
    assert_eq!(problems("server = 5"), ["line 1: server = 5: must be a section, [server]"]);
    assert_eq!(
        problems("[limits.max_requests]\nx = 1"),
        ["line 1: limits.max_requests: is a section here; must be a whole number from 1 to 4096"]
    );
    assert_eq!(problems("[faults]\nstage = \"talker\""), ["line 1: faults: must be written [[faults]], once per rule"]);
}

#[test]
fn aliases_are_names_that_the_user_chooses() {
    let aliases = |text: &str| parse(text).unwrap().server.aliases;
    let empty = aliases("");
    assert!(empty.openai && empty.models.is_empty() && empty.voices.is_empty());
    let text = "[aliases]\nopenai = false\nmodels = [\"kokoro\", \"team/Voice\"]\n[aliases.voices]\nAF_Heart = \"Heart\"\n\"a.b\" = \"c\"";
    let read = aliases(text);
    assert_eq!((read.openai, read.models), (false, vec!["kokoro".to_owned(), "team/Voice".to_owned()]));
    let expected = [("af_heart", "heart"), ("a.b", "c")].map(|(alias, voice)| (alias.to_owned(), voice.to_owned()));
    assert_eq!(read.voices, expected.into());
    let allowed = "must be a table of names of 1 to 128 bytes, such as { narrator = \"ryan\" }";
    for (text, problem) in [
        ("[aliases]\nvoices = 5", format!("line 2: aliases.voices = 5: {allowed}")),
        ("[aliases.voices]\na = 5", format!("line 2: aliases.voices = a = 5: {allowed}")),
        ("[aliases.voices]\na = \"\"", format!("line 2: aliases.voices = a = \"\": {allowed}")),
        (
            "[aliases.voices]\na = \"b\"\nA = \"c\"",
            "line 2: aliases.voices.a: is there twice, in upper and lower case".to_owned(),
        ),
        (
            "[aliases]\nmodels = [\"\"]",
            "line 2: aliases.models = [\"\"]: must be a list of names of 1 to 128 bytes, such as [\"kokoro\"]"
                .to_owned(),
        ),
        ("[aliases]\nvoice = {}", "line 2: aliases.voice: unknown section".to_owned()),
        ("[aliases.voices.a]\nb = \"c\"", "line 1: aliases.voices.a: unknown section".to_owned()),
    ] {
        assert_eq!(problems(text), [problem], "{text}");
    }
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    let problems = problems("[model]\nname = ");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("line 2: not TOML"), "{problems:?}");
}

#[test]
fn numbers_too_large_for_the_machine_are_refused() {
    let told = problems("[limits]\nmax_requests = 99999999999999999999");
    assert!(told[0].ends_with("must be a whole number from 1 to 4096"), "{told:?}");
}

#[test]
fn keys_that_contradict_each_other_are_told() {
    let told = problems("[supervision]\nbackoff = \"5s\"");
    assert_eq!(told, ["supervision.max_backoff: must not be shorter than supervision.backoff"]);
}

#[test]
fn a_checkpoint_path_starts_at_the_files_folder() {
    let config = parse("[model]\ncheckpoint = \"voices/big\"").unwrap();
    assert_eq!(config.model.checkpoint, CheckpointSource::Folder(PathBuf::from("/etc/omni/voices/big")));
    assert_eq!(config.model.name, "big");
}

#[test]
fn values_mean_what_they_say() {
    let text = "
model = { name = \"bob\", default_voice = \"Alto\" }
stages.vocoder.chunk_ramp = [1, 12]
limits.request_timeout = \"1.5s\"
telemetry = { log = \"warn,omni_engine=debug\", log_format = \"json\" }
";
    let config = parse(text).unwrap();
    assert_eq!(config.model.name, "bob");
    assert_eq!(config.model.default_voice.as_deref(), Some("alto"));
    assert_eq!(config.stage(StageName::Vocoder).chunk_ramp, [Frames(1), Frames(12)]);
    assert_eq!(config.stage(StageName::Vocoder).prefill_chunk, Some(12));
    assert_eq!(config.limits.request_timeout, Duration::from_millis(1500));
    assert_eq!(config.telemetry.log_format, LogFormat::Json);
}

#[test]
fn fault_rules_need_a_place_and_a_kind() {
    let rules = parse(
        "[[faults]]\nstage = \"vocoder\"\npoint = \"packager\"\nkind = \"delay\"\ndelay = \"50ms\"\ntimes = \"all\"",
    );
    let expected =
        FaultRule::new(StageName::Vocoder, FaultPoint::Packager, FaultKind::Delay(Duration::from_millis(50)));
    let expected = expected.times(u64::MAX);
    assert_eq!(rules.unwrap().faults, [expected]);
    let told = problems("[[faults]]\nstage = \"talker\"\nkind = \"explode\"");
    assert!(
        told[0].starts_with("line 3: faults[0].kind = \"explode\": must be \"panic\" or \"error\" or \"delay\" or")
    );
    assert_eq!(told[1], "faults[0]: needs `point` and `kind`, and `stage` for a point inside a stage");
    for (point, kind) in [("edge", "panic"), ("edge", "error"), ("runner", "drop"), ("connector", "corrupt")] {
        let told = problems(&format!("[[faults]]\nstage = \"talker\"\npoint = \"{point}\"\nkind = \"{kind}\""));
        let expected = format!("faults[0].kind: with point = \"{point}\" must be \"");
        assert!(told[0].starts_with(&expected), "{told:?}");
    }
}

#[test]
fn keys_are_kept_as_hashes_and_say_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "a key of one's own, or not\n").unwrap();
    std::fs::write(folder.path().join("good"), "sk-0123456789abcdef\n").unwrap();
    let parse = |text: &str| config::parse(text, folder.path(), &[]);
    let hash = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
    let text = format!(
        "[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\nweight = 3\nmax_requests = 2\n[[keys]]\nname = \"b\"\nfile = \"good\""
    );
    let keys = parse(&text).unwrap().server.keys;
    assert_eq!(keys[0].sha256, config::hash_key("password"));
    assert_eq!((keys[0].weight, keys[0].max_requests, keys[0].requests_per_minute), (3, Some(2), None));
    assert_eq!(keys[1].sha256, config::hash_key("sk-0123456789abcdef"));
    for (text, told) in [
        ("[[keys]]\nname = \"a\"".to_owned(), "needs either `sha256` or `file`"),
        (format!("[[keys]]\nsha256 = \"{hash}\""), "needs `name`"),
        ("[[keys]]\nname = \"a\"\nsha256 = \"12\"".to_owned(), "must be the 64 hexadecimal digits"),
        ("[[keys]]\nname = \"a\"\nfile = \"key\"".to_owned(), "printable ASCII without spaces"),
        ("[[keys]]\nname = \"a\"\nfile = \"gone\"".to_owned(), "cannot read"),
        (format!("{text}\n[[keys]]\nname = \"a\"\nsha256 = \"{hash}\""), "the name of two keys"),
        ("[keys]\nname = \"a\"".to_owned(), "must be written [[keys]]"),
    ] {
        let told_of = parse(&text).unwrap_err().to_string();
        assert!(told_of.contains(told), "{text}: {told_of}");
    }
}

#[test]
fn a_key_says_what_it_is_for_and_how_much_it_may_have() {
    let hash = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
    let key = |more: &str| parse(&format!("[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\n{more}"));
    let usual = &key("").unwrap().server.keys[0];
    assert_eq!(usual.scopes, Scope::USUAL);
    assert!(!usual.scopes.contains(&Scope::Drill) && !usual.scopes.contains(&Scope::AllVoices));
    let text = "scopes = [\"drill\", \"voices:all\"]\nspeech_seconds_per_hour = 60\nbytes_per_minute = 2048\nmax_connections = 3";
    let limited = &key(text).unwrap().server.keys[0];
    assert_eq!(limited.scopes, [Scope::Drill, Scope::AllVoices]);
    let limits = (limited.speech_seconds_per_hour, limited.bytes_per_minute, limited.max_connections);
    assert_eq!(limits, (Some(60), Some(2048), Some(3)));
    let told = key("scopes = [\"everything\"]").unwrap_err().to_string();
    assert!(told.contains("must be a list of \"speak\", \"chat\", \"voices\""), "{told}");
}

#[test]
fn names_pages_and_certificates_are_checked() {
    let server = |text: &str| parse(&format!("[server]\n{text}"));
    let access =
        server("hosts = [\"Voice.Example.\"]\norigins = [\"https://app.example:443/\"]").unwrap().server.access;
    assert_eq!(
        (access.hosts, access.origins),
        (vec!["voice.example".to_owned()], vec!["https://app.example".to_owned()])
    );
    let tls = server("tls = { certificate = \"a.pem\", key = \"/b.pem\" }").unwrap().server.access.tls.unwrap();
    assert_eq!((tls.certificate.to_str(), tls.key.to_str()), (Some("/etc/omni/a.pem"), Some("/b.pem")));
    for (text, told) in [
        ("hosts = [\"http://a\"]", "server.hosts"),
        ("origins = [\"*\"]", "server.origins"),
        ("admin_listen = \"localhost\"", "server.admin_listen"),
        ("admin_listen = \"0.0.0.0:9090\"", "server.admin_listen: can be reached from other machines"),
        ("tls = { certificate = \"a.pem\" }", "server.tls: needs both `certificate` and `key`"),
    ] {
        let problems = server(text).unwrap_err().to_string();
        assert!(problems.contains(told), "{text}: {problems}");
    }
}

#[test]
fn listening_beyond_loopback_needs_keys_or_allow_anonymous() {
    let told = problems("[server]\nlisten = \"0.0.0.0:8080\"");
    assert!(told.len() == 1 && told[0].starts_with("server.listen: can be reached from other machines"), "{told:?}");
    assert!(parse("[server]\nlisten = \"0.0.0.0:8080\"\nallow_anonymous = true").is_ok());
    let key = "[[keys]]\nname = \"a\"\nsha256 = \"5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8\"";
    assert!(parse(&format!("[server]\nlisten = \"[::]:8080\"\n{key}")).is_ok());
}

#[test]
fn unset_keys_depend_on_the_device() {
    let config = parse("[device]\nkind = \"cuda\"\nkv_memory = \"8GiB\"\n[stages.thinker]\nmax_batch = 5").unwrap();
    assert_eq!(config.device.kind, Some(DeviceKind::Cuda));
    assert_eq!(config.device.kv_memory, Some(8 << 30));
    assert_eq!(config.max_batch(StageName::Vocoder, DeviceKind::Cpu), 1);
    assert_eq!(config.max_batch(StageName::Vocoder, DeviceKind::Cuda), 32);
    assert_eq!([StageName::Talker, StageName::Vocoder].map(|stage| config.run_ahead(stage, DeviceKind::Cpu)), [2, 1]);
    assert_eq!(config.max_batch(StageName::Talker, DeviceKind::Cuda), 128);
    assert_eq!(config.max_batch(StageName::Thinker, DeviceKind::Cuda), 5);
}

#[test]
fn a_device_that_makes_no_sense_is_refused() {
    for (text, told) in [
        ("[device]\nkv_memory = \"8\"", "must be \"auto\" or a size in quotes of at least 16MiB"),
        ("[device]\nkind = \"cpu\"\ndtype = \"bf16\"", "must be \"auto\" or \"f32\" on a CPU"),
        ("[stages.talker]\nbuckets = [2, 1]", "must be a list of 1 to 16 ascending whole numbers"),
        ("[stages.talker]\nmax_batch = 200", "must end with at least stages.talker.max_batch, 200"),
        ("[model]\nload_format = \"random\"", "needs model.checkpoint"),
    ] {
        let problems = problems(text);
        assert!(problems.len() == 1 && problems[0].contains(told), "{text}: {problems:?}");
    }
    let random = parse("[model]\ncheckpoint = \"x\"\nload_format = \"random\"\nseed = 7").unwrap();
    assert_eq!(random.model.weights, WeightsKind::Random { seed: 7 });
}

#[test]
fn an_override_wins_over_the_file() {
    let overrides: Vec<Override> =
        ["server.listen=127.0.0.1:0", "stages.talker.run_ahead=1"].iter().map(|text| text.parse().unwrap()).collect();
    let config = config::parse("[stages.talker]\nrun_ahead = 3", Path::new(""), &overrides).unwrap();
    assert_eq!(config.server.listen, "127.0.0.1:0".parse::<SocketAddr>().unwrap());
    assert_eq!(config.stage(StageName::Talker).run_ahead, Some(1));
    let wrong: Override = "stages.talker.run_ahead=99".parse().unwrap();
    let told = config::parse("", Path::new(""), &[wrong]).unwrap_err().to_string();
    assert_eq!(told, "stages.talker.run_ahead = 99: must be \"auto\" or a whole number from 1 to 8");
}

#[test]
fn a_missing_file_is_told_by_name() {
    let told = config::load(Path::new("nowhere/omni.toml"), &[]).unwrap_err().to_string();
    assert!(told.starts_with("cannot read nowhere/omni.toml: "), "{told}");
}
