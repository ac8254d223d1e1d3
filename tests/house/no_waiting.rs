//! Nothing on a launch thread waits: neither for a device nor for anybody else. What is found in the text of the program,
//! without a GPU:
//!
//! - in `src/cuda`: every call of the driver that is not known to only queue stands in a function that says so to the
//!   launch section ([`omni_actors::model::no_block`]), and every use of such a function has a place and a reason here;
//! - on the actors' launch path: every construct that can wait has a place and a reason here.
//!
//! A new wait has to be added here too, with the reason why it is none of the launch's. What is found while it runs:
//! `pending_steps::a_model_that_waits_for_its_device_in_a_launch_does_not_get_far`, and on a GPU the launch section itself,
//! in every test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The lines of a file that are code, without what stands behind `//` and without its tests.
struct Source {
    file: String,
    lines: Vec<String>,
}

impl Source {
    fn new(file: &str, text: &str) -> Source {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = text.lines().map(|line| line.split("//").next().unwrap().to_owned()).collect();
        Source { file: file.into(), lines }
    }

    fn read(file: &str) -> Source {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        Source::new(file, &fs::read_to_string(path).unwrap())
    }

    fn folder(folder: &str) -> Vec<Source> {
        fn files(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    files(&path, found);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    found.push(path);
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        files(&root.join(folder), &mut found);
        found.sort();
        found.iter().map(|path| Source::read(path.strip_prefix(&root).unwrap().to_str().unwrap())).collect()
    }

    /// The innermost function around a line: its name and its text.
    fn function(&self, line: usize) -> (String, String) {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut inside = indent(&self.lines[line]) + 1;
        for at in (0..=line).rev() {
            let text = &self.lines[at];
            if text.trim().is_empty() || indent(text) >= inside {
                continue;
            }
            let head = text.trim_start();
            // The end of a signature of several lines: its head stands no further left.
            inside = indent(text) + usize::from(head.starts_with([')', '{']) || head.starts_with("where"));
            let declares = |before: &str| {
                before.is_empty() || ["pub", "const", "async", "unsafe"].iter().any(|word| before.starts_with(word))
            };
            if let Some(name) = head.split_once("fn ").filter(|(before, _)| declares(before)) {
                let name = name.1.split(['(', '<']).next().unwrap();
                let closed = |text: &String| text.trim_end() == format!("{}}}", " ".repeat(indent(text)));
                let end = self.lines[at..].iter().position(closed).map_or(self.lines.len(), |length| at + length);
                return (name.to_owned(), self.lines[at..end].join("\n"));
            }
        }
        ("-".into(), String::new())
    }

    /// Places of any of `words`: the function, and the word.
    fn places(&self, words: &[&str]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (at, line) in self.lines.iter().enumerate() {
            for word in words {
                for _ in line.matches(word) {
                    found.push((self.function(at).0, (*word).to_owned()));
                }
            }
        }
        found
    }
}

/// Driver calls that queue, or look, and never wait.
const QUEUES: [&str; 22] = [
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuGraphLaunch",
    "cuLaunchHostFunc",
    "cuLaunchKernelEx",
    "cuMemHostGetDevicePointer",
    "cuModuleGetFunction",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuFuncSetAttribute",
    "cuCtxGetStreamPriorityRange",
    "cuTensorMapEncodeTiled",
];

/// Functions that call what may wait and need not say so, and why.
const BEFORE_OR_AFTER: [(&str, &str, &str); 8] = [
    ("cuda/buffer.rs", "drop", "what a launch frees it has allocated, and that says so"),
    ("cuda/device.rs", "open", "opens the device, before any stage is built"),
    ("cuda/device.rs", "count", "looks for devices, before any is opened"),
    ("cuda/device.rs", "load", "loads kernels while the device is opened"),
    ("cuda/device.rs", "befriend", "lets devices see each other while their stages are loaded"),
    ("cuda/device.rs", "drop", "the last user of the device has gone"),
    ("cuda/stream.rs", "new", "a stream is made with the stage that it belongs to"),
    ("cuda/stream.rs", "drop", "a stream goes with its stage; graphs and events beside it never wait"),
];

fn only_queues(call: &str) -> bool {
    let name = call.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches("_v");
    let copies = name.starts_with("cuMemcpy") || name.starts_with("cuMemset");
    QUEUES.contains(&name) || copies && name.ends_with("Async")
}

/// Calls of the driver, with their lines.
fn driver_calls(source: &Source) -> Vec<(usize, String)> {
    let mut calls = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        for (found, _) in line.match_indices("sys::cu") {
            let name: String =
                line[found + 5..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            if line[found + 5 + name.len()..].starts_with('(') {
                calls.push((at, name));
            }
        }
    }
    calls
}

/// What is wrong with the driver calls of some files.
fn unannounced(sources: &[Source], elsewhere: &[(&str, &str, &str)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for source in sources {
        for (line, call) in driver_calls(source) {
            let (name, text) = source.function(line);
            let says = text.contains("no_block::waits(") || text.contains("count_blocking()");
            let excused = elsewhere.iter().find(|(file, function, _)| *file == source.file && *function == name);
            used.extend(excused.map(|(file, function, _)| (*file, *function)));
            if !only_queues(&call) && !says && excused.is_none() {
                wrong.push(format!("{}, {name}: {call} may wait and does not say so", source.file));
            }
        }
    }
    let stale = elsewhere.iter().filter(|(file, function, _)| !used.contains(&(*file, *function)));
    wrong.extend(stale.map(|(file, function, _)| format!("{file}, {function} is in the list and calls nothing")));
    wrong
}

#[test]
fn every_driver_call_that_may_wait_says_so() {
    let sources = Source::folder("");
    assert!(sources.iter().map(|source| driver_calls(source).len()).sum::<usize>() > 40, "the calls are not found");
    let wrong = unannounced(&sources, &BEFORE_OR_AFTER);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the wrappers of such calls are called.
const WAITING: [&str; 12] = [
    ".synchronize()",
    ".settle()",
    ".wait()",
    ".alloc(",
    ".alloc::<",
    ".zeros(",
    "gpu.pinned(",
    "gpu().pinned(",
    ".pinned_for_upload(",
    ".capture(",
    "gpu.upload(",
    "gpu().upload(",
];

/// Where the wrappers of calls that may wait are used, how often (any number, where nothing but loading is done), and why
/// no launch waits there.
const WAITS_ON_A_DEVICE: &[(&str, &str, Option<usize>, &str)] = &[
    ("cuda/buffer.rs", "read", Some(1), "for tests and loading; told to the section by the call inside"),
    ("cuda/buffer.rs", "write", Some(1), "for loading; told to the section by the call inside"),
    ("cuda/copies/arena.rs", "new", None, "while a stage is built"),
    ("cuda/copies/arena.rs", "take", Some(1), "allowed: sequences wait for so long that the arena is full"),
    ("cuda/copies/fetch.rs", "new", None, "while a stage is built; where the ring grows, that is allowed"),
    ("cuda/copies/fetch.rs", "run", Some(1), "the copying thread, which is there to wait"),
    ("cuda/copies/prefetch.rs", "new", None, "while a stage is built"),
    ("cuda/device.rs", "upload", Some(1), "for loading; told to the section by the call inside"),
    ("cuda/device.rs", "zeros", Some(1), "for loading; told to the section by the call inside"),
    ("cuda/encoder/memory.rs", "pinned", Some(1), "allowed: more copies than ever are on their way, or a larger one"),
    ("cuda/encoder/memory.rs", "room", Some(2), "allowed: a part is larger than any before it"),
    ("cuda/encoder/memory.rs", "take", Some(1), "allowed: more pictures than ever are on their way, or a larger one"),
    ("cuda/encoder/net.rs", "load", Some(2), "loading"),
    ("cuda/encoder/pending.rs", "drop", Some(1), "a step that nobody waited for is dropped"),
    ("cuda/encoder/pending.rs", "wait", Some(1), "the completion thread"),
    ("cuda/encoder/stage.rs", "drop", Some(1), "the stage has ended"),
    ("cuda/decoder.rs", "load", None, "loading"),
    ("cuda/decoder.rs", "cache", None, "while a stage is built"),
    ("cuda/decoder.rs", "new", None, "while a stage is built"),
    ("cuda/linear.rs", "new", None, "while a stage is built"),
    ("cuda/moe.rs", "new", None, "while a stage is built"),
    ("cuda/talker/constants.rs", "new", None, "while a stage is built"),
    ("cuda/talker/frame.rs", "new", None, "while a stage is built: graphs are captured here"),
    ("cuda/talker/net.rs", "load", None, "loading"),
    ("cuda/talker/pending.rs", "wait", Some(1), "the completion thread"),
    ("cuda/talker/persistent/mod.rs", "new", None, "while a stage is built"),
    ("cuda/persistent.rs", "new", None, "while a stage is built"),
    ("cuda/persistent.rs", "stacked", None, "while a stage is built"),
    ("cuda/talker/persistent/layers.rs", "new", None, "while a stage is built"),
    ("cuda/talker/persistent/predictor.rs", "new", None, "while a stage is built"),
    ("cuda/talker/arrivals.rs", "new", None, "while a stage is built"),
    ("cuda/talker/ring.rs", "make", Some(2), "allowed: the ring grows to what is needed"),
    ("cuda/talker/stage.rs", "drop", Some(1), "the stage has ended"),
    ("cuda/thinker/host.rs", "take", Some(1), "once, when the stage is made"),
    ("cuda/thinker/host.rs", "drop", Some(1), "the stage's end"),
    ("cuda/talker/swap.rs", "save", Some(2), "allowed: a sequence makes room when the pages have run out"),
    ("cuda/thinker/pending.rs", "wait", Some(1), "the completion thread"),
    ("cuda/thinker/persistent.rs", "maps", None, "while a stage is built"),
    ("cuda/thinker/persistent.rs", "new", None, "while a stage is built"),
    ("cuda/thinker/stage.rs", "drop", Some(1), "the stage has ended"),
    ("cuda/thinker/steps.rs", "new", None, "while a stage is built: graphs are captured here"),
    ("cuda/vocoder/lease.rs", "make", Some(2), "allowed: the pool grows to what is needed"),
    ("cuda/vocoder/stage.rs", "drop", Some(2), "the stage has ended; a step that nobody waited for is dropped"),
    ("cuda/vocoder/stage.rs", "new", None, "while a stage is built: graphs are captured here"),
    ("cuda/vocoder/stage.rs", "wait", Some(1), "the completion thread"),
    ("cuda/vocoder/weights.rs", "operands", Some(1), "loading"),
    ("cuda/vocoder/weights.rs", "upload", None, "loading"),
    ("cuda/vocoder/workspace.rs", "new", None, "while a stage is built"),
    ("cuda/weights.rs", "new", None, "loading"),
    ("cuda/weights.rs", "put_gate_up", None, "loading"),
    ("cuda/weights.rs", "room", None, "loading"),
    ("cuda/weights.rs", "finish", None, "loading"),
    ("cuda/weights.rs", "stream_in", None, "loading"),
    ("cuda/weights.rs", "drop", None, "loading has ended"),
];

/// Constructs that can wait for another thread.
const BLOCKS: [&str; 19] = [
    ".recv(",
    ".recv_timeout(",
    ".recv_deadline(",
    ".send(",
    ".lock(",
    ".read()",
    ".write()",
    ".join()",
    ".wait()",
    ".wait_for(",
    ".wait_timeout(",
    ".block_on(",
    "sleep(",
    "park(",
    "yield_now(",
    "std::fs",
    "println!",
    "spawn_blocking",
    ".await",
];

/// The files that a launch goes through: from the outcome of a step by way of the sampler and the scheduler to the command
/// and the model, with what either tells others on that way.
const LAUNCH_PATH: [&str; 18] = [
    "actors/model_runner.rs",
    "actors/sampler/mod.rs",
    "actors/sampler/read.rs",
    "actors/sampler/span.rs",
    "actors/scheduler.rs",
    "actors/arbiter.rs",
    "actors/queue.rs",
    "actors/generation.rs",
    "actors/pulse.rs",
    "actors/in_hand.rs",
    "actors/handle.rs",
    "core/scheduler/mod.rs",
    "core/scheduler/sequence.rs",
    "engine/ledger/posts.rs",
    "engine/posted_lock.rs",
    "fault/site.rs",
    "fault/plan.rs",
    "transfer/lease.rs",
];

/// What there may wait: where, what, how often, and why no launch does.
const WAITS_FOR_OTHERS: &[(&str, &str, &str, usize, &str)] = &[
    ("actors/model_runner.rs", "turn", ".recv(", 1, "the one thing that it waits for: the scheduler's next command"),
    ("actors/sampler/mod.rs", "drop", ".join()", 1, "the stage has ended: the model outlives the steps that are out"),
    ("actors/sampler/mod.rs", "run", ".recv(", 1, "the sampler's thread, which is there to wait"),
    ("actors/sampler/mod.rs", "step", ".wait()", 1, "the sampler's thread; a step that a launch has computed is there"),
    ("actors/scheduler.rs", "handle", ".await", 1, "its turn"),
    ("actors/scheduler.rs", "turn", ".await", 2, "a pause that a fault plan asks for"),
    ("actors/arbiter.rs", "join", ".lock(", 1, "once in a generation"),
    (
        "actors/arbiter.rs",
        "plan",
        ".lock(",
        1,
        "a scheduler of the same device plans: microseconds, and no lock inside",
    ),
    ("actors/arbiter.rs", "leave", ".lock(", 1, "the supervisor's, when a generation is gone"),
    ("actors/arbiter.rs", "lock", ".lock(", 1, "for those above"),
    ("actors/pulse.rs", "gone", ".wait_for(", 1, "the supervisor's, which waits for the threads"),
    ("actors/pulse.rs", "gone", ".await", 1, "the supervisor's, which waits for the threads"),
    ("actors/handle.rs", "process_metrics", ".await", 1, "the server's"),
    ("actors/handle.rs", "stop", ".await", 1, "the engine's, when it ends"),
    ("actors/handle.rs", "set_current", ".lock(", 1, "an assignment, by the supervisor"),
    ("actors/handle.rs", "set_remote", ".lock(", 1, "an assignment, by the supervisor"),
    ("actors/handle.rs", "remote", ".lock(", 1, "held for a clone"),
    ("actors/handle.rs", "current", ".lock(", 1, "held for a clone: no holder does more than clone or assign"),
    ("actors/handle.rs", "lock", ".lock(", 1, "for those above"),
    ("engine/ledger/posts.rs", "lock", ".lock(", 1, "those who work in the ledger; actors on this path post instead"),
    ("engine/posted_lock.rs", "lock", ".lock(", 1, "those who work in the state behind it"),
    ("engine/posted_lock.rs", "post", ".lock(", 1, "the list of posts: held for a push or a take, never for work"),
    ("engine/posted_lock.rs", "settle", ".lock(", 1, "the list of posts; the state itself is only tried"),
    ("engine/posted_lock.rs", "taken", ".lock(", 1, "the list of posts"),
    ("engine/posted_lock.rs", "next_arrival", ".lock(", 1, "the list of arrivals: held for a push or a pop"),
    ("engine/posted_lock.rs", "arrive", ".lock(", 3, "those who open requests; no actor does"),
    ("fault/site.rs", "happen", "sleep(", 2, "a pause or a hang that a fault plan asks for"),
    ("fault/site.rs", "inject_async", "sleep(", 1, "a pause that a fault plan asks for"),
    ("fault/site.rs", "inject_async", ".await", 1, "a pause that a fault plan asks for"),
    ("fault/plan.rs", "look", ".read()", 1, "only where there are rules, which are changed in an instant"),
    ("fault/plan.rs", "change", ".write()", 1, "the caller that changes a plan: no launch"),
    ("fault/plan.rs", "asks_for", ".write()", 1, "who accepts a request, and only where there can be rules"),
    ("fault/plan.rs", "content", ".read()", 1, "only where a rule chooses by it; held for a look or a push"),
];

/// Compares what was found with what is allowed: in both directions, so that the list is no longer than it must be.
fn differences(
    found: &BTreeMap<(String, String, String), usize>,
    allowed: impl Iterator<Item = (String, String, String, usize)>,
) -> Vec<String> {
    let mut allowed: BTreeMap<_, _> =
        allowed.map(|(file, function, what, count)| ((file, function, what), count)).collect();
    let mut wrong = Vec::new();
    for (place, count) in found {
        let (file, function, what) = place;
        match allowed.remove(place) {
            Some(expected) if expected == *count => {}
            Some(expected) => wrong.push(format!("{file}, {function}: {count} times {what}, {expected} are explained")),
            None => wrong.push(format!("{file}, {function}: {count} times {what}, which may wait; why may it there?")),
        }
    }
    wrong.extend(allowed.into_keys().map(|(file, function, what)| format!("{file}, {function}: no {what} any more")));
    wrong
}

fn counted<'a>(
    sources: impl IntoIterator<Item = &'a Source>,
    words: &[&str],
) -> BTreeMap<(String, String, String), usize> {
    let mut found = BTreeMap::new();
    for source in sources {
        for (function, what) in source.places(words) {
            *found.entry((source.file.clone(), function, what)).or_default() += 1;
        }
    }
    found
}

#[test]
fn each_wait_for_a_device_is_known() {
    let mut found = BTreeMap::new();
    for ((file, function, _), count) in counted(&Source::folder("cuda"), &WAITING) {
        *found.entry((file, function, "a call that waits".to_owned())).or_default() += count;
    }
    let allowed = WAITS_ON_A_DEVICE.iter().map(|(file, function, count, _)| {
        let place = ((*file).to_owned(), (*function).to_owned(), "a call that waits".to_owned());
        let count = count.or_else(|| found.get(&place).copied()).unwrap_or(1);
        (place.0, place.1, place.2, count)
    });
    let wrong = differences(&found, allowed);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_between_a_command_and_its_step_waits_for_anybody() {
    let sources = LAUNCH_PATH.map(Source::read);
    let allowed = WAITS_FOR_OTHERS.iter();
    let allowed =
        allowed.map(|(file, function, what, count, _)| ((*file).into(), (*function).into(), (*what).into(), *count));
    let wrong = differences(&counted(&sources, &BLOCKS), allowed);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_section_is_where_commands_are_executed() {
    let runner = Source::read("actors/model_runner.rs");
    let at = runner.lines.iter().position(|line| line.contains("self.execute(command)")).unwrap();
    assert!(
        runner.lines[at - 1].contains("let _section = no_block::section();"),
        "commands are executed outside the section"
    );
    // Everything that the model is asked to do is part of executing.
    for (function, _) in
        runner.places(&["self.model.open(", "self.model.push_input(", "self.model.launch(", "self.model.close("])
    {
        assert!(["execute", "launch"].contains(&function.as_str()), "{function} asks the model");
    }
}

#[test]
fn waits_are_found_wherever_they_are_put() {
    let source = Source::new(
        "a.rs",
        "impl A {\n    fn quiet(&self) {\n        // sys::cuCtxSynchronize()\n        unsafe { sys::cuMemcpyHtoDAsync_v2(1) };\n    }\n\n    \
         pub(super) fn launch(&mut self) {\n        let x = || unsafe { sys::cuMemcpyHtoD_v2(1) };\n        self.stream.synchronize()?;\n    }\n\n    \
         fn said(&self) {\n        no_block::waits(\"cuMemFree\");\n        unsafe { sys::cuMemFree_v2(1) };\n    }\n}\n",
    );
    let wrong = unannounced(std::slice::from_ref(&source), &[]);
    assert_eq!(wrong, ["a.rs, launch: cuMemcpyHtoD_v2 may wait and does not say so"]);
    assert_eq!(source.places(&WAITING), [("launch".to_owned(), ".synchronize()".to_owned())]);
    let wrong = unannounced(std::slice::from_ref(&source), &[("a.rs", "launch", ""), ("a.rs", "gone", "")]);
    assert_eq!(wrong, ["a.rs, gone is in the list and calls nothing"]);
    for call in
        ["cuMemAllocAsync", "cuMemcpyDtoH_v2", "cuMemcpy", "cuMemsetD8_v2", "cuStreamSynchronize", "cuMemFreeHost"]
    {
        assert!(!only_queues(call), "{call}");
    }
}
