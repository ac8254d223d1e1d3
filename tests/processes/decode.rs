//! Files of clients, decoded in processes: the samples are those of a thread, and whatever happens to such a process
//! happens to one file alone.

use crate::support::pictures::{bmp, gif, two_colours};
use crate::support::process::Watched;
use crate::support::recording::{PCM, good, hum};
use crate::support::wait::{self, PATIENCE};
use omni_actors::audio::{AudioFormat, Sound};
use omni_actors::engine::decode::{DecodeError, Decoders, Sight, WorkerLimits};
use omni_actors::media::MediaLimits;
use omni_actors::media::size::SizeRule;
use omni_actors::model::frontend::{AudioLimits, Clip};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn decoders(memory: u64, time: Duration) -> Decoders {
    Decoders::in_processes(env!("CARGO_BIN_EXE_omni-actors").into(), WorkerLimits { memory, time }, 0).unwrap()
}

/// The workers of this test: children of this process, of which no other test has given one this much memory.
fn workers(memory: u64) -> BTreeSet<u32> {
    let parent = std::process::id().to_string();
    let is_one = |pid: &u32| {
        if field(*pid, "status", "PPid:").as_deref() != Some(&parent) {
            return false;
        }
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.get(1..3) == Some(&[b"decode".as_slice(), memory.to_string().as_bytes()])
    };
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

fn until<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    wait::answer(|| found().ok_or(what))
}

/// The worker that is kept ready, its limits set.
fn ready(memory: u64) -> u32 {
    let is_limited = |pid: &u32| field(*pid, "limits", "Max open files").is_some_and(|most| most.starts_with("3 "));
    until("a worker", || workers(memory).into_iter().find(is_limited))
}

fn field(pid: u32, file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|rest| rest.trim().to_owned())
}

fn stop(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
}

fn bits(clip: &Clip) -> (u32, Vec<u32>) {
    (clip.rate, clip.pcm.iter().map(|sample| sample.to_bits()).collect())
}

fn ended(decoded: Result<Clip, DecodeError>) -> String {
    match decoded {
        Err(DecodeError::Ended(reason)) => reason,
        other => panic!("{:?}", other.map(|clip| clip.seconds())),
    }
}

#[test]
fn samples_and_refusals_are_those_of_a_thread() {
    let (apart, here) = (decoders(300 << 20, PATIENCE), Decoders::in_thread(0));
    let limits = AudioLimits::default();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio");
    let files = fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let mut all: Vec<Vec<u8>> = files.collect();
    // Nothing, half a file, and one that takes the pipe many times.
    all.extend([Vec::new(), good(1)[..4000].to_vec(), PCM.with(&hum(2, 16_000 * 50))]);
    let (mut decoded, mut refused) = (0, 0);
    for file in all {
        match (apart.recording(&file, &limits), here.recording(&file, &limits)) {
            (Ok(there), Ok(clip)) => {
                assert_eq!(bits(&there), bits(&clip));
                decoded += 1;
            }
            (Err(there), Err(error)) => {
                assert_eq!(there, error);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(decoded >= 12 && refused >= 4, "{decoded} decoded, {refused} refused");
}

#[test]
fn pictures_of_one_request_are_those_of_a_thread_however_many_decode_them() {
    let rule = |max_pixels| SizeRule { factor: 32, min_pixels: 1_024, max_pixels };
    let (one, other) = (rule(60_000), rule(20_000));
    let mut files: Vec<Vec<u8>> = (0..19).map(|number| bmp(50 + 9 * number, 70)).collect();
    files.extend([gif(3, 10), include_bytes!("../fixtures/pictures/grey_progressive.jpg").to_vec()]);
    let sights = |files: &[Vec<u8>]| -> Vec<(Vec<u8>, SizeRule)> {
        let ruled = |(number, file): (usize, &Vec<u8>)| (file.clone(), if number % 13 < 11 { one } else { other });
        files.iter().enumerate().map(ruled).collect()
    };
    let (limits, all) = (MediaLimits::default(), |_| true);
    let seen = |decoders: &Decoders, sights: &[(Vec<u8>, SizeRule)]| {
        let sights: Vec<Sight<'_>> = sights.iter().map(|(file, rule)| Sight { file, rule: *rule }).collect();
        decoders.pictures(&sights, &limits, &all)
    };
    let in_processes = |helpers| {
        let limits = WorkerLimits { memory: 300 << 20, time: PATIENCE };
        Decoders::in_processes(env!("CARGO_BIN_EXE_omni-actors").into(), limits, helpers).unwrap()
    };
    let whole = seen(&Decoders::in_thread(0), &sights(&files));
    assert!(whole.len() == 21 && whole.iter().all(Result::is_ok));
    files[17].truncate(100);
    let broken = seen(&Decoders::in_thread(0), &sights(&files));
    assert!(broken.len() == 18 && broken[..17] == whole[..17] && broken[17].is_err());
    for decoders in [Decoders::in_thread(2), in_processes(0), in_processes(3)] {
        let mut good = files.clone();
        good[17] = bmp(50 + 9 * 17, 70);
        assert!(seen(&decoders, &sights(&good)) == whole);
        assert!(seen(&decoders, &sights(&files)) == broken);
        // No further one is wanted: what is there is a beginning.
        let sights: Vec<Sight<'_>> = good.iter().map(|file| Sight { file, rule: one }).collect();
        let taken = AtomicUsize::new(0);
        let few = |pixels: usize| pixels == 0 || taken.fetch_add(1, Ordering::Relaxed) < 4;
        let few = decoders.pictures(&sights, &limits, &few);
        assert!(!few.is_empty() && few.len() < 21 && few.iter().all(Result::is_ok), "{}", few.len());
        assert_eq!(few[0], whole[0]);
    }
}

#[test]
fn a_picture_that_ends_its_worker_is_known_by_its_place() {
    let rule = SizeRule { factor: 32, min_pixels: 1_024, max_pixels: 60_000 };
    let (small, large) = (bmp(50, 50), two_colours(4_096, 4_096));
    let sights = [&small, &small, &large, &small].map(|file| Sight { file, rule });
    let found = decoders(24 << 20, PATIENCE).pictures(&sights, &MediaLimits::default(), &|_| true);
    assert!(found.len() == 3 && found[0] == found[1] && found[0].is_ok());
    let reason = found[2].as_ref().unwrap_err().to_string();
    assert!(reason.contains("takes more than 24 MiB of memory"), "{reason}");
}

#[test]
fn a_worker_can_open_nothing_and_ends_before_the_server() {
    let memory = 77_001_728;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // What another program left open for every child.
    let leaked = rustix::io::dup(&listener).unwrap();
    let _decoders = decoders(memory, Duration::from_secs(7));
    let pid = ready(memory);
    let limit = |name: &str| {
        let both = field(pid, "limits", name).unwrap();
        let mut both = both.split_whitespace().map(str::to_owned);
        (both.next().unwrap(), both.next().unwrap())
    };
    let limited = |most: &str| (most.to_owned(), most.to_owned());
    assert_eq!(limit("Max cpu time"), limited("7"));
    for name in ["Max file size", "Max core file size", "Max processes"] {
        assert_eq!(limit(name), limited("0"), "{name}");
    }
    assert_eq!(limit("Max open files"), limited("3"));
    let (space, hard) = limit("Max address space");
    assert_eq!(space, hard);
    assert!(space.parse::<u64>().unwrap() > memory);
    assert_eq!(field(pid, "status", "NoNewPrivs:").unwrap(), "1");
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "1000");
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: BTreeSet<_> = open.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(open, ["0", "1", "2"].map(str::to_owned).into());
    assert!(fs::read(format!("/proc/{pid}/environ")).unwrap().is_empty());
    drop((leaked, listener));
}

#[test]
fn a_bomb_ends_its_decoder_and_no_other() {
    let mut silence = Sound::from(AudioFormat::Flac).writer(48_000).unwrap();
    // With one loud sample, so that no check of silence is what refuses it.
    let mut bomb = silence.push(&[0.5]).unwrap();
    for _ in 0..600 {
        bomb.extend(silence.push(&[0.0; 48_000]).unwrap());
    }
    bomb.extend(silence.finish().unwrap());
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    let limits = AudioLimits { max_seconds: 36_000.0, ..AudioLimits::default() };
    let apart = decoders(16 << 20, PATIENCE);
    let reason = ended(apart.recording(&bomb, &limits));
    assert_eq!(reason, "decoding it takes more than 16 MiB of memory");
    assert_eq!(apart.recording(&good(1), &limits).unwrap().pcm.len(), 16_000);
}

#[test]
fn a_worker_killed_in_the_middle_fails_one_file() {
    let memory = 88_001_728;
    let apart = decoders(memory, PATIENCE);
    let limits = AudioLimits::default();
    let killed = || {
        let pid = ready(memory);
        stop(pid);
        let worker = Watched::new(pid);
        std::thread::scope(|scope| {
            let decoding = scope.spawn(|| apart.recording(&good(3), &limits));
            // The next one is made ready: this one is about to get its job.
            until("the next worker", || workers(memory).into_iter().find(|other| *other != pid));
            worker.kill();
            decoding.join().unwrap()
        })
    };
    // One that was killed before it had its job is replaced.
    let reason = ended((0..50).map(|_| killed()).find(Result::is_err).unwrap());
    assert!(reason.starts_with("its decoder crashed"), "{reason}");
    assert_eq!(apart.recording(&good(3), &limits).unwrap().pcm.len(), 16_000);
}

#[test]
fn a_ready_worker_that_was_killed_is_replaced_without_an_error() {
    let memory = 99_001_728;
    let apart = decoders(memory, PATIENCE);
    let worker = Watched::new(ready(memory));
    worker.kill();
    worker.ends_within(PATIENCE);
    assert_eq!(apart.recording(&good(4), &AudioLimits::default()).unwrap().pcm.len(), 16_000);
}

#[test]
fn a_decoder_that_takes_too_long_is_ended() {
    let memory = 66_001_728;
    let apart = decoders(memory, Duration::from_secs(1));
    let pid = ready(memory);
    stop(pid);
    let reason = ended(apart.recording(&good(5), &AudioLimits::default()));
    assert_eq!(reason, "decoding it took longer than 1 s (reference_audio.decode_timeout)");
    assert!(!workers(memory).contains(&pid), "it is gone, and reaped");
}

#[test]
fn without_a_program_there_is_no_decoder() {
    let limits = WorkerLimits { memory: 64 << 20, time: PATIENCE };
    let apart = Decoders::in_processes("/no/such/program".into(), limits, 0).unwrap();
    let error = apart.recording(&good(6), &AudioLimits::default()).unwrap_err();
    assert!(matches!(error, DecodeError::Unavailable(_)), "{error}");
}

/// `cargo test --test processes decode::what -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn what_a_process_costs() {
    let (apart, here) = (decoders(300 << 20, PATIENCE), Decoders::in_thread(0));
    let limits = AudioLimits::default();
    for seconds in [3, 30_u64] {
        let samples: Vec<f32> = (0..48_000 * seconds).map(|n| ((n * n % 4801) as f32 / 4801.0 - 0.5) * 0.5).collect();
        for format in [AudioFormat::Wav, AudioFormat::Flac, AudioFormat::Mp3] {
            let mut writer = Sound::from(format).writer(48_000).unwrap();
            let mut file = writer.push(&samples).unwrap();
            file.extend(writer.finish().unwrap());
            writer.complete(&mut file).unwrap();
            let median = |decoders: &Decoders| {
                let mut times: Vec<_> = (0..15)
                    .map(|_| {
                        let begun = Instant::now();
                        decoders.recording(&file, &limits).unwrap();
                        begun.elapsed()
                    })
                    .collect();
                times.sort();
                times[times.len() / 2]
            };
            let (there, thread) = (median(&apart), median(&here));
            println!("{seconds} s of {format:?}, {} bytes: process {there:?}, thread {thread:?}", file.len());
        }
    }
}
