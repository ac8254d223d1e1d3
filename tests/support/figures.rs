//! What an ordinary client saw beside an attack, as a row of a table in the file that `OMNI_ATTACKS` names.
#![allow(dead_code, reason = "each test binary uses its own part")]

use super::http::Ask;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The file of the table.
const VARIABLE: &str = "OMNI_ATTACKS";
/// How often the watcher asks whether the server lives.
const PACE: Duration = Duration::from_millis(100);
const HEAD: &str = "| attack | `/live`, worst ms | short speech, worst s | asked again | idle MiB | most MiB | after MiB |\n\
                    | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";

/// One attack at a time where figures are taken.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Default)]
struct Seen {
    live: Duration,
    speech: Duration,
    refused: usize,
}

/// The worst that the ordinary client has seen since the attack began.
pub struct Figures {
    file: PathBuf,
    seen: Arc<Mutex<Seen>>,
    /// Dropping the sender ends the watcher.
    watcher: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
    _alone: MutexGuard<'static, ()>,
}

impl Figures {
    /// `None` where no table is wanted. Waits for attacks in other threads.
    pub fn wanted() -> Option<Figures> {
        let file = PathBuf::from(std::env::var_os(VARIABLE)?);
        // A failed attack harms the figures of no other.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !file.exists() {
            std::fs::write(&file, HEAD).unwrap();
        }
        Some(Figures { file, seen: Arc::default(), watcher: Mutex::default(), _alone: alone })
    }

    /// From now on `/live` is asked all the time, over a connection of its own each time.
    pub fn watch(&self, url: &str) {
        let (over, ended) = channel();
        let (url, seen) = (url.to_owned(), self.seen.clone());
        let watcher = std::thread::spawn(move || {
            let live = Ask::new("GET", "/live", &[], "");
            while ended.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                while live.try_send(&url).is_none_or(|reply| reply.status != 200)
                    && ended.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout)
                {}
                let mut seen = seen.lock().unwrap();
                seen.live = seen.live.max(begun.elapsed());
            }
        });
        *self.watcher.lock().unwrap() = Some((over, watcher));
    }

    /// The ordinary client was answered after these times, and asked so often again.
    pub fn saw(&self, live: Duration, speech: Duration, refused: usize) {
        let mut seen = self.seen.lock().unwrap();
        seen.live = seen.live.max(live);
        seen.speech = seen.speech.max(speech);
        seen.refused += refused;
    }

    /// The attack is over: what is seen from now on does not count.
    pub fn end(&self) {
        if let Some((over, watcher)) = self.watcher.lock().unwrap().take() {
            drop(over);
            watcher.join().unwrap();
        }
    }

    /// Adds the row of this test, memory in bytes.
    pub fn report(&self, idle: usize, most: usize, after: usize) {
        let seen = self.seen.lock().unwrap();
        let thread = std::thread::current();
        let row = format!(
            "| `{}` | {} | {:.2} | {} | {} | {} | {} |\n",
            thread.name().unwrap_or("an attack"),
            seen.live.as_millis(),
            seen.speech.as_secs_f64(),
            seen.refused,
            idle >> 20,
            most >> 20,
            after >> 20
        );
        std::fs::OpenOptions::new().append(true).open(&self.file).unwrap().write_all(row.as_bytes()).unwrap();
    }
}
