//! The way of log lines to stderr: a bounded queue, and a thread that writes.
//!
//! Putting a line in never waits and never fails, whatever stderr is: a pipe that is not read, one whose reader is
//! gone, a file on a full disk. A line that finds no room or cannot be written is lost and counted, and nothing else
//! happens. Only the thread waits, and no other code waits for it but the end of the program, for a bounded time.

use super::catalogue as c;
use super::exposition::install;
use metrics::{Counter, counter};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes of the lines that may wait: some thousand lines, a burst that a terminal needs a second for.
const CAPACITY: usize = 1 << 20;
/// How often a stderr that another program made non-blocking is tried again.
const PAUSE: Duration = Duration::from_millis(10);
/// The end of the program waits for as long as lines leave, and this long for a line that does not.
const LAST_LINE: Duration = Duration::from_secs(1);

/// Lines on their way to stderr.
pub(super) struct LogQueue {
    state: Mutex<State>,
    arrived: Condvar,
    left: Condvar,
    lost: Counter,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of the lines that wait and the one that is being written.
    bytes: usize,
    /// Lines that were written or lost by the thread.
    done: u64,
}

/// The queue of this process. The first call starts its thread.
pub(super) fn log_queue() -> &'static LogQueue {
    static QUEUE: OnceLock<LogQueue> = OnceLock::new();
    static THREAD: OnceLock<()> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        install();
        LogQueue::new(counter!(c::LOG_LINES_LOST.name))
    });
    THREAD.get_or_init(|| {
        // A descriptor of its own: a write that hangs must not hold the lock of the standard library's stderr.
        let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        // Without a thread the queue fills up, and what comes then is counted as lost.
        let _ = std::thread::Builder::new().name("log-writer".to_owned()).spawn(move || match stderr {
            Ok(mut file) => queue.write_all_to(&mut file),
            Err(_) => queue.write_all_to(&mut io::stderr()),
        });
    });
    queue
}

impl LogQueue {
    fn new(lost: Counter) -> LogQueue {
        LogQueue { state: Mutex::default(), arrived: Condvar::new(), left: Condvar::new(), lost }
    }

    /// Takes a line, with its line feed, or counts it as lost.
    pub fn put(&self, line: Vec<u8>) {
        let mut state = self.lock();
        if state.bytes + line.len() > CAPACITY {
            drop(state);
            self.lost.increment(1);
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits until all lines are written or lost, unless none leaves for a while.
    pub fn flush(&self) {
        let mut state = self.lock();
        while state.bytes > 0 {
            let before = state.done;
            let waited = self.left.wait_timeout(state, LAST_LINE);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if timeout.timed_out() && state.done == before {
                return;
            }
        }
    }

    fn write_all_to(&self, stderr: &mut dyn Write) {
        loop {
            let line = {
                let mut state = self.lock();
                loop {
                    match state.lines.pop_front() {
                        Some(line) => break line,
                        None => state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                    }
                }
            };
            // One call for a line: processes that share a stderr must not cut the lines of others.
            if write_line(stderr, &line).is_err() {
                self.lost.increment(1);
            }
            let mut state = self.lock();
            state.bytes -= line.len();
            state.done += 1;
            drop(state);
            self.left.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counts and lines are changed together, by code that does not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_line(stderr: &mut dyn Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match stderr.write(line) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => line = line.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            #[expect(clippy::disallowed_methods, reason = "this thread does nothing else")]
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A stderr that takes a line when the test says what becomes of it.
    struct Gate {
        verdicts: Receiver<io::Result<()>>,
        written: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // The test has ended: so does its stderr.
            self.verdicts.recv().unwrap_or_else(|_| Err(ErrorKind::BrokenPipe.into()))?;
            let _ = self.written.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (Arc<LogQueue>, Sender<io::Result<()>>, Receiver<String>) {
        let queue = Arc::new(LogQueue::new(Counter::noop()));
        let (verdict, verdicts) = channel();
        let (written, lines) = channel();
        let writing = Arc::clone(&queue);
        std::thread::spawn(move || writing.write_all_to(&mut Gate { verdicts, written }));
        (queue, verdict, lines)
    }

    #[test]
    fn lines_leave_in_order_and_a_failed_one_costs_itself() {
        let (queue, verdict, lines) = gated();
        for line in ["one\n", "two\n", "three\n"] {
            queue.put(line.into());
        }
        for said in [Ok(()), Err(ErrorKind::StorageFull.into()), Err(ErrorKind::Interrupted.into()), Ok(())] {
            verdict.send(said).unwrap();
        }
        queue.flush();
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["one\n", "three\n"]);
    }

    #[test]
    fn a_stderr_that_hangs_delays_no_line_and_the_end_by_a_bounded_time() {
        let (queue, verdict, lines) = gated();
        let line = vec![b'x'; 1000];
        for _ in 0..2 * CAPACITY / line.len() {
            queue.put(line.clone());
        }
        assert!(queue.lock().bytes <= CAPACITY);
        queue.flush();
        assert_eq!(lines.try_iter().count(), 0);
        // The thread still waits for its first line.
        verdict.send(Ok(())).unwrap();
        assert_eq!(lines.recv().unwrap().len(), 1000);
    }
}
