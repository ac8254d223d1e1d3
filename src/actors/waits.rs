//! For how long threads of a process waited for a processor although they had work, as Linux counts it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// One process. Where its files cannot be read, as on a kernel that does not count, it waited for nothing.
#[derive(Debug)]
pub(super) struct Waits {
    process: PathBuf,
    /// Of each thread, all that it has waited.
    threads: HashMap<OsString, Duration>,
    first: bool,
}

impl Waits {
    /// Of this process.
    pub fn own() -> Waits {
        Waits::of(std::process::id())
    }

    /// Of another one.
    pub fn of(pid: u32) -> Waits {
        Waits { process: format!("/proc/{pid}").into(), threads: HashMap::new(), first: true }
    }

    /// The longest time for which one of its threads has waited since the last call; zero with the first one.
    pub fn since_last(&mut self) -> Duration {
        let before = std::mem::take(&mut self.threads);
        for thread in fs::read_dir(self.process.join("task")).into_iter().flatten().flatten() {
            let waited = fs::read_to_string(thread.path().join("schedstat"));
            if let Some(waited) = waited.ok().and_then(|told| run_delay(&told)) {
                self.threads.insert(thread.file_name(), waited);
            }
        }
        let first = std::mem::take(&mut self.first);
        let more =
            |(thread, all): (&OsString, &Duration)| all.saturating_sub(before.get(thread).copied().unwrap_or_default());
        self.threads.iter().map(more).max().filter(|_| !first).unwrap_or_default()
    }

    /// Whether a signal or a debugger has stopped it.
    pub fn is_stopped(&self) -> bool {
        let told = fs::read_to_string(self.process.join("stat"));
        told.is_ok_and(|told| state(&told).is_some_and(|state| "tT".contains(state)))
    }
}

/// The second number of `schedstat`: nanoseconds on run queues (kernel documentation, scheduler/sched-stats).
fn run_delay(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// The state in `stat`, which follows the name of the program in brackets.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    #[test]
    fn the_files_of_linux_are_read() {
        assert_eq!(run_delay("75976735 183281339 159\n"), Some(Duration::from_nanos(183_281_339)));
        assert_eq!(run_delay("0 0"), Some(Duration::ZERO));
        assert_eq!((run_delay(""), run_delay("1 -2 3")), (None, None));
        assert_eq!(state("21547 (a) R (b) T 21516 21547"), Some('T'));
        assert_eq!((state("21547"), state("")), (None, None));
    }

    #[test]
    fn nothing_is_told_of_a_process_that_is_gone() {
        let mut waits = Waits::of(u32::MAX);
        assert_eq!(
            (waits.since_last(), waits.since_last(), waits.is_stopped()),
            (Duration::ZERO, Duration::ZERO, false)
        );
    }

    #[test]
    fn two_programs_that_compute_on_one_processor_wait_for_each_other() {
        let spin = || {
            let mut command = Command::new("taskset");
            command.args(["-c", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null()).spawn()
        };
        // Where there is no `taskset`, or no files of this kind, nothing can be seen.
        let (Ok(mut one), true) = (spin(), fs::exists("/proc/self/schedstat").unwrap()) else { return };
        let mut other = spin().unwrap();
        let mut waits = Waits::of(one.id());
        let (mut waited, begun) = (waits.since_last(), Instant::now());
        while waited < Duration::from_millis(50) && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
            waited += waits.since_last();
        }
        for child in [&mut one, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(waited >= Duration::from_millis(50), "{waited:?}");
    }
}
