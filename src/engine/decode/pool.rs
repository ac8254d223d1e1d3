//! The workers: some are kept ready, because starting one takes longer than decoding a short recording; each has one job.
//! So many work at once, so many callers wait, and further ones are refused.

use super::DecodeError;
use super::job::{Answer, Job};
use super::worker::{Expected, Worker, WorkerLimits};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Callers that wait for one, those that are served included.
const WAITING: usize = 64;
/// Workers besides those that were kept ready that may be found dead in a row before a caller is told: an operator or the
/// kernel ended those that were.
const TRIES: usize = 2;

/// See the module.
pub(super) struct Pool {
    /// The workers that are kept ready. The channel holds one less: the thread that starts workers waits in it with one.
    ready: flume::Receiver<io::Result<Worker>>,
    tries: usize,
    /// A place for each that may work.
    places: (flume::Sender<()>, flume::Receiver<()>),
    /// To the thread that waits for the end of those that have answered.
    answered: flume::Sender<Worker>,
    at_once: usize,
    waiting: AtomicUsize,
    limits: WorkerLimits,
    /// The section of the config that has the limits.
    section: &'static str,
}

impl Pool {
    /// Starts the thread that starts workers, of which so many are kept ready, and so many decode at once.
    ///
    /// # Errors
    /// When there can be no such thread.
    pub fn start(
        binary: PathBuf,
        limits: WorkerLimits,
        section: &'static str,
        [kept, at_once]: [usize; 2],
    ) -> io::Result<Pool> {
        let (give, ready) = flume::bounded(kept.saturating_sub(1));
        // It lives as long as the pool: the kernel ends children with the thread that started them.
        std::thread::Builder::new()
            .name("decoders".into())
            .spawn(move || while give.send(Worker::start(&binary, limits)).is_ok() {})?;
        let (answered, ending) = flume::unbounded();
        std::thread::Builder::new().name("decoders-end".into()).spawn(move || ending.into_iter().for_each(drop))?;
        let places = flume::bounded(at_once);
        (0..at_once).for_each(|_| _ = places.0.try_send(()));
        Ok(Pool {
            ready,
            tries: kept + TRIES,
            places,
            answered,
            at_once,
            waiting: AtomicUsize::new(0),
            limits,
            section,
        })
    }

    /// Has a worker do this with these files, and hands its answers to `take`, until that wants no further one. Blocks.
    pub fn run(
        &self,
        job: &Job,
        files: &[&[u8]],
        expected: Expected,
        take: &mut dyn FnMut(Answer) -> bool,
    ) -> Result<(), DecodeError> {
        let _place = self.place()?;
        if let Some(worker) = self.worker()?.run(job, files, expected, self.section, take)? {
            // Without that thread it ends here.
            let _ = self.answered.send(worker);
        }
        Ok(())
    }

    fn place(&self) -> Result<Place<'_>, DecodeError> {
        // Counted first: the place is given back however this ends.
        let mut place = Place { pool: self, taken: false };
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING {
            return Err(DecodeError::Busy);
        }
        // Those before it take so long at most.
        let patience = self.limits.time * WAITING.div_ceil(self.at_once) as u32;
        self.places.1.recv_timeout(patience).map_err(|_| DecodeError::Busy)?;
        place.taken = true;
        Ok(place)
    }

    fn worker(&self) -> Result<Worker, DecodeError> {
        let mut why = String::new();
        for _ in 0..self.tries {
            match self.ready.recv() {
                Ok(Ok(mut worker)) => match worker.is_gone() {
                    true => why = "it ended at once".to_owned(),
                    false => return Ok(worker),
                },
                // It may have failed long ago: the next try is made now.
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => why = "the thread that starts it ended".to_owned(),
            }
        }
        tracing::warn!(reason = why, "no decoder can be started");
        Err(DecodeError::Unavailable(why))
    }
}

struct Place<'a> {
    pool: &'a Pool,
    /// Whether it is one of those that may work, or still waits.
    taken: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.taken {
            let _ = self.pool.places.0.try_send(());
        }
    }
}
