//! Voices outlive the server, however it ends: what was answered with 200 is there after a SIGKILL and sounds the same,
//! what was not is there whole or not at all, what was deleted stays deleted, and nothing else is left in the folder.

use crate::support::http::Ask;
use crate::support::recording::{data_url, good};
use crate::support::tts::{SPEECH, VOICES, fixture, serve, speaks};
use omni_actors::model::sampling::{Domain, uniform};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 12;
/// Clients that upload and delete at the same time.
const CLIENTS: u32 = 3;

/// What is known of the voices of all servers so far.
#[derive(Default)]
struct Known {
    fates: BTreeMap<u32, Fate>,
    /// What a voice says when its recording comes with the request: what it should say by name, after each start.
    speech: BTreeMap<u32, Vec<u8>>,
}

/// What may be true of a voice after what its client has heard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Kept,
    Gone,
    /// The server died before it answered.
    Either,
}

fn name(number: u32) -> String {
    format!("Voice {number}")
}

/// Every other voice has a transcript, and is cloned in context.
fn transcript(number: u32) -> Option<&'static str> {
    number.is_multiple_of(2).then_some("la la la")
}

fn upload(number: u32) -> Ask {
    let (name, recording) = (name(number), good(number));
    let mut parts = vec![
        ("name", "", name.as_bytes()),
        ("consent", "", b"I agree".as_slice()),
        ("audio_sample", "; filename=\"a.wav\"\r\nContent-Type: audio/wav", &recording),
    ];
    parts.extend(transcript(number).map(|text| ("ref_text", "", text.as_bytes())));
    Ask::form(VOICES, &parts)
}

fn delete(number: u32) -> Ask {
    Ask::new("DELETE", &format!("{VOICES}/voice%20{number}"), &[], "")
}

fn line(voice: Value) -> Value {
    let mut body = json!({"input": "Here I am.", "max_new_tokens": 8, "seed": 11, "response_format": "pcm"});
    body.as_object_mut().unwrap().extend(voice.as_object().unwrap().clone());
    body
}

fn says_with_its_recording(url: &str, number: u32) -> Vec<u8> {
    speaks(url, &line(json!({"ref_audio": data_url(&good(number)), "ref_text": transcript(number)})))
}

fn says_by_name(url: &str, number: u32) -> Vec<u8> {
    speaks(url, &line(json!({"voice": name(number)})))
}

/// One client: uploads, and deletes every third voice again, until the server is gone.
fn busy(url: &str, next: &AtomicU32, heard: &flume::Sender<(u32, Fate)>) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let mut steps = vec![(upload(number), Fate::Kept)];
        if number.is_multiple_of(3) {
            steps.push((delete(number), Fate::Gone));
        }
        for (ask, fate) in steps {
            match ask.try_send(url) {
                Some(reply) if reply.status == 200 => heard.send((number, fate)).unwrap(),
                Some(reply) => panic!("{number}: {}", String::from_utf8_lossy(&reply.body)),
                None => return heard.send((number, Fate::Either)).unwrap(),
            }
        }
    }
}

/// Lets clients be busy until a moment that only the seed knows, and kills the server; what became of the voices.
fn round(voices: &Path, number: u32, next: &AtomicU32, known: &mut Known) {
    let random = |group| uniform(5, Domain::Codes, number, group);
    let serving = serve(&fixture("base"), voices, "");
    check(&serving.url, voices, known);
    let answers = (random(0) * 12.0) as usize;
    let pause = Duration::from_secs_f32(random(1) * 0.1);
    let url = serving.url.clone();
    std::thread::scope(|scope| {
        let (tell, heard) = flume::unbounded();
        for _ in 0..CLIENTS {
            let (tell, url) = (tell.clone(), url.as_str());
            scope.spawn(move || busy(url, next, &tell));
        }
        drop(tell);
        let mut hear = |(number, fate)| _ = known.fates.insert(number, fate);
        heard.iter().take(answers).for_each(&mut hear);
        let event = Instant::now() + pause;
        while let Ok(answer) = heard.recv_deadline(event) {
            hear(answer);
        }
        serving.signal("KILL");
        assert_eq!(serving.exit_code(), None, "it did not end by itself");
        heard.iter().for_each(hear);
    });
}

/// Compares what the server has with what it may have, and what its folder has in it. What was open is known now.
fn check(url: &str, folder: &Path, Known { fates, speech }: &mut Known) {
    let listed = Ask::new("GET", VOICES, &[], "").send(url).json();
    let listed: BTreeSet<&str> =
        listed["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut files = BTreeSet::new();
    // Before the first upload there is no folder.
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "voice", "{}", path.display());
        files.insert(path);
    }
    assert_eq!(files.len(), listed.len(), "one file, one voice");
    for (number, fate) in fates.iter_mut() {
        let there = listed.contains(name(*number).as_str());
        match fate {
            Fate::Kept => assert!(there, "voice {number} was promised and is lost"),
            Fate::Gone => assert!(!there, "voice {number} was deleted and is back"),
            Fate::Either => *fate = if there { Fate::Kept } else { Fate::Gone },
        }
    }
    let kept = fates.iter().filter(|(_, fate)| **fate == Fate::Kept).map(|(number, _)| *number);
    let kept: Vec<u32> = kept.collect();
    assert_eq!(kept.len(), listed.len(), "voices that no client uploaded: {listed:?}");
    for number in kept {
        let truth = speech.entry(number).or_insert_with(|| says_with_its_recording(url, number));
        assert!(says_by_name(url, number) == *truth, "voice {number} speaks otherwise");
    }
    for number in fates.iter().filter(|(_, fate)| **fate == Fate::Gone).map(|(number, _)| *number) {
        let refused = Ask::json(SPEECH, &line(json!({"voice": name(number)}))).send(url);
        assert_eq!(refused.status, 400, "voice {number} is gone");
    }
}

#[test]
fn voices_survive_a_server_that_is_killed_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let voices = folder.path().join("voices");
    let next = AtomicU32::new(0);
    let mut known = Known::default();
    for number in 0..ROUNDS {
        round(&voices, number, &next, &mut known);
    }
    let open = known.fates.values().filter(|fate| **fate == Fate::Either).count();
    let serving = serve(&fixture("base"), &voices, "");
    check(&serving.url, &voices, &mut known);
    let fates = &known.fates;
    let count = |fate| fates.values().filter(|found| **found == fate).count();
    println!("{} voices kept, {} gone, {open} open at the last kill", count(Fate::Kept), count(Fate::Gone));
    assert!(count(Fate::Kept) > 0 && count(Fate::Gone) > 0, "nothing was tested");

    // A stop that is no accident changes nothing either.
    let said: Vec<_> = fates
        .iter()
        .filter(|(_, fate)| **fate == Fate::Kept)
        .map(|(n, _)| (*n, says_by_name(&serving.url, *n)))
        .collect();
    serving.signal("TERM");
    assert_eq!(serving.exit_code(), Some(0));
    let serving = serve(&fixture("base"), &voices, "");
    for (number, before) in said {
        assert_eq!(says_by_name(&serving.url, number), before);
    }
}
