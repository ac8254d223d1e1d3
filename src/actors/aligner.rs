//! The aligner: an actor that starts the thread on which a [`ForcedAligner`] works, notices when it dies or takes too
//! long, and starts the next one. Weights outlive threads. No stage and no stream waits for it: a job goes into a
//! bounded queue, and its answer comes, or an error does.
//!
//! A job is a function of its samples and words: one whose thread died is tried once more, and a client sees nothing of
//! the death.

use crate::handle::{StageState, StageStatus};
use futures::future::BoxFuture;
use omni_core::ids::Generation;
use omni_core::restart::{RestartLimits, RestartPolicy, Verdict};
use omni_core::suspects::Attribution;
use omni_fault::FaultSite;
use omni_model::forced_aligner::{ForcedAligner, UnitTime};
use omni_telemetry::AlignerMetrics;
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Jobs that may wait: more than there are places by default.
const WAITING: usize = 64;
/// How often a job is begun at most.
const TRIES: u32 = 2;
/// How often the actor looks how long a job takes, at least.
const LOOK: Duration = Duration::from_secs(1);

/// Calls its argument once, on the threads that compute.
pub type Run = dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync;

/// Everything about an aligner that outlives its threads.
pub struct AlignerSetup {
    /// The net.
    pub aligner: ForcedAligner,
    /// When to start again, and when to give up.
    pub restart: RestartLimits,
    /// A job that takes longer is given up, and its thread is left behind.
    pub timeout: Duration,
    /// How a job is computed.
    pub run: Box<Run>,
    /// Where a fault plan can inject faults.
    pub fault: FaultSite,
    /// The metrics of the aligner.
    pub metrics: AlignerMetrics,
}

/// A piece of speech whose words are to be found.
#[derive(Debug)]
pub struct AlignJob {
    /// What is said, as [`omni_model::forced_aligner::units`] reads it.
    pub units: Vec<String>,
    /// Mono samples.
    pub pcm: Vec<f32>,
    /// Samples per second.
    pub rate: u32,
}

/// A time for each unit, or why there are none.
pub type Aligned = Result<Vec<UnitTime>, String>;

/// Where jobs go in, while the aligner is not given up. Under a lock, so that no job goes in behind the last look.
type Entrance = Mutex<Option<flume::Sender<Waiting>>>;

/// The queue of an aligner. When the last clone is dropped, the aligner ends.
#[derive(Clone, Debug)]
pub struct AlignerHandle {
    jobs: Arc<Entrance>,
    status: watch::Receiver<StageStatus>,
}

#[derive(Debug)]
struct Waiting {
    job: Arc<AlignJob>,
    reply: oneshot::Sender<Aligned>,
    tries: u32,
}

impl AlignerHandle {
    /// Asks for the times of a piece. What is asked for and not waited for any more is not computed.
    ///
    /// # Errors
    /// The receiver gets why there are no times. It gets nothing when the aligner ends.
    pub fn align(&self, job: AlignJob) -> oneshot::Receiver<Aligned> {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { job: Arc::new(job), reply, tries: 0 };
        let asked = match &*lock(&self.jobs) {
            Some(jobs) => jobs.try_send(waiting),
            None => Err(flume::TrySendError::Disconnected(waiting)),
        };
        if let Err(refused) = asked {
            let reason = match &refused {
                flume::TrySendError::Full(_) => format!("{WAITING} pieces of speech wait for the aligner already"),
                flume::TrySendError::Disconnected(_) => "the aligner failed too often and was given up".to_owned(),
            };
            let _ = refused.into_inner().reply.send(Err(reason));
        }
        answer
    }

    /// What the aligner does now.
    pub fn status(&self) -> StageStatus {
        self.status.borrow().clone()
    }
}

/// Starts an aligner.
///
/// # Errors
/// When the actor system refuses.
pub fn start(setup: AlignerSetup) -> BoxFuture<'static, Result<AlignerHandle, SpawnErr>> {
    Box::pin(async move {
        let (send, jobs) = flume::bounded(WAITING);
        let status =
            StageStatus { state: StageState::Starting, generation: Generation(0), restarts: 0, last_reason: None };
        let (tell, status) = watch::channel(status);
        let entrance = Arc::new(Mutex::new(Some(send)));
        let ends = (Arc::downgrade(&entrance), jobs);
        Actor::spawn(None, AlignerSupervisor, (Arc::new(setup), ends, tell)).await?;
        Ok(AlignerHandle { jobs: entrance, status })
    })
}

enum Message {
    Start,
    /// The thread of a generation panicked.
    Died(u64, String),
    /// The thread of a generation has no more to do: its clients are gone.
    Over(u64),
    Watch,
}

struct AlignerSupervisor;

/// What a thread works on; a thread that was left behind has one that is not read.
type Hand = Arc<Mutex<Option<(Waiting, Instant)>>>;

struct State {
    setup: Arc<AlignerSetup>,
    /// Closed when the aligner is given up: threads that were left behind keep the queue itself open.
    entrance: Weak<Entrance>,
    /// `None` where the aligner was given up.
    jobs: Option<flume::Receiver<Waiting>>,
    policy: RestartPolicy,
    born: Instant,
    generation: u64,
    status: watch::Sender<StageStatus>,
    hand: Hand,
    /// A job to try again.
    again: Option<Waiting>,
}

impl Actor for AlignerSupervisor {
    type Msg = Message;
    type State = State;
    type Arguments = (Arc<AlignerSetup>, (Weak<Entrance>, flume::Receiver<Waiting>), watch::Sender<StageStatus>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (setup, (entrance, jobs), status): Self::Arguments,
    ) -> Result<State, ActorProcessingErr> {
        myself.cast(Message::Start)?;
        myself.send_interval(LOOK.min(setup.timeout / 2), || Message::Watch);
        let policy = RestartPolicy::new(setup.restart);
        let (born, hand) = (Instant::now(), Hand::default());
        Ok(State { setup, entrance, jobs: Some(jobs), policy, born, generation: 0, status, hand, again: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Start => {
                if let Err(error) = state.start(&myself) {
                    state.failed(&myself, format!("no thread: {error}"));
                }
            }
            Message::Died(generation, reason) if generation == state.generation => state.failed(&myself, reason),
            Message::Over(generation) if generation == state.generation => myself.stop(None),
            Message::Watch => {
                let begun = lock(&state.hand).as_ref().map(|(_, begun)| *begun);
                if begun.is_some_and(|begun| begun.elapsed() > state.setup.timeout) {
                    let limit = state.setup.timeout.as_secs_f32();
                    state.failed(&myself, format!("aligning took longer than {limit} s (aligner.timeout)"));
                }
            }
            // Of a thread that was left behind.
            Message::Died(..) | Message::Over(_) => {}
        }
        Ok(())
    }
}

impl State {
    fn start(&mut self, myself: &ActorRef<Message>) -> std::io::Result<()> {
        let Some(jobs) = self.jobs.clone() else { return Ok(()) };
        let (setup, generation, myself) = (Arc::clone(&self.setup), self.generation, myself.clone());
        // A closure that gets no thread is dropped: the job stays out of it.
        let first = Arc::new(Mutex::new(self.again.take()));
        let (hand, slot) = (Arc::clone(&self.hand), Arc::clone(&first));
        let named = std::thread::Builder::new().name("aligner".to_owned());
        let spawned = named.spawn(move || {
            let first = lock(&slot).take();
            let working = std::panic::catch_unwind(AssertUnwindSafe(|| work(&setup, &jobs, &hand, first)));
            let told = match working {
                Ok(()) => Message::Over(generation),
                Err(panic) => Message::Died(generation, text(panic.as_ref())),
            };
            // An actor that ended needs no news.
            let _ = myself.cast(told);
        });
        if let Err(error) = spawned {
            self.again = lock(&first).take();
            return Err(error);
        }
        self.status.send_modify(|status| {
            let again = status.state == StageState::Restarting;
            (status.state, status.restarts) = (StageState::Running, status.restarts + u32::from(again));
            status.generation = Generation(status.generation.0 + 1);
        });
        Ok(())
    }

    /// The thread of this generation is of no use any more.
    fn failed(&mut self, myself: &ActorRef<Message>, reason: String) {
        let hand: Hand = std::mem::take(&mut self.hand);
        let lost = lock(&hand).take();
        self.generation += 1;
        if let Some((waiting, _)) = lost {
            match waiting.tries < TRIES {
                true => self.again = Some(waiting),
                false => answer(&self.setup, waiting.reply, Err(reason.clone())),
            }
        }
        let verdict = self.policy.failed(self.born.elapsed(), &Attribution::default());
        self.setup.metrics.failures.increment(1);
        self.status.send_modify(|status| {
            status.state = if verdict == Verdict::GiveUp { StageState::Failed } else { StageState::Restarting };
            status.last_reason = Some(reason.clone());
        });
        match verdict {
            Verdict::Restart(pause) => {
                tracing::warn!(reason, generation = self.generation, "the aligner failed and is started again");
                myself.send_after(pause, || Message::Start);
            }
            Verdict::GiveUp => {
                tracing::error!(reason, "the aligner failed too often and was given up");
                if let Some(entrance) = self.entrance.upgrade() {
                    lock(&entrance).take();
                }
                let waiting = self.jobs.take().into_iter().flat_map(|jobs| jobs.drain().collect::<Vec<_>>());
                for waiting in self.again.take().into_iter().chain(waiting) {
                    let given_up = format!("the aligner failed too often and was given up: {reason}");
                    answer(&self.setup, waiting.reply, Err(given_up));
                }
            }
        }
    }
}

/// Job after job, until nothing can come any more.
fn work(setup: &AlignerSetup, jobs: &flume::Receiver<Waiting>, hand: &Hand, mut first: Option<Waiting>) {
    while let Some(mut waiting) = first.take().or_else(|| jobs.recv().ok()) {
        if waiting.reply.is_closed() {
            continue;
        }
        waiting.tries += 1;
        let job = Arc::clone(&waiting.job);
        *lock(hand) = Some((waiting, Instant::now()));
        // A panic is the only fault that can be planned here.
        let _ = setup.fault.inject(|| None, || false);
        let mut aligned = None;
        (setup.run)(&mut || aligned = Some(setup.aligner.align(&job.units, &job.pcm, job.rate)));
        let aligned = aligned.map_or_else(
            || Err("the aligner did not run".to_owned()),
            |aligned| aligned.map_err(|error: omni_model::ModelError| error.to_string()),
        );
        // A thread that was left behind finds the hand of its own generation empty.
        match lock(hand).take() {
            Some((waiting, begun)) => {
                setup.metrics.seconds.record(begun.elapsed());
                answer(setup, waiting.reply, aligned);
            }
            None => return,
        }
    }
}

/// Answers a job, and counts it.
fn answer(setup: &AlignerSetup, reply: oneshot::Sender<Aligned>, aligned: Aligned) {
    setup.metrics.answered(aligned.is_ok());
    // Its client may have left.
    let _ = reply.send(aligned);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic says.
fn text(panic: &(dyn Any + Send)) -> String {
    let known = panic.downcast_ref::<&str>().copied();
    let known = known.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    known.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Far beyond what it takes on the slowest machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn aligner(max_restarts: usize, timeout: Duration, run: Box<Run>) -> AlignerHandle {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_forced_aligner");
        let (backoff, window) = (Duration::from_millis(1), Duration::from_secs(600));
        let setup = AlignerSetup {
            aligner: ForcedAligner::load(&folder).unwrap(),
            restart: RestartLimits { backoff, max_backoff: backoff, max_restarts, window },
            timeout,
            run,
            fault: FaultSite::default(),
            metrics: AlignerMetrics::new(),
        };
        start(setup).await.unwrap()
    }

    fn job(words: &[&str]) -> AlignJob {
        let pcm = (0..24_000).map(|i| 0.3 * (i as f32 * 0.03).sin()).collect();
        AlignJob { units: words.iter().map(|word| (*word).to_owned()).collect(), pcm, rate: 24_000 }
    }

    async fn answer(asked: oneshot::Receiver<Aligned>) -> Aligned {
        tokio::time::timeout(PATIENCE, asked).await.expect("the aligner hangs").expect("the aligner has ended")
    }

    /// Hangs in the calls with these numbers, counted from 1, until the test ends; computes in the others.
    fn hanging(in_calls: &'static [usize]) -> (Box<Run>, flume::Sender<()>) {
        let (hold, held) = flume::bounded::<()>(0);
        let calls = AtomicUsize::new(0);
        let run = move |work: &mut (dyn FnMut() + Send)| match in_calls
            .contains(&(calls.fetch_add(1, Ordering::SeqCst) + 1))
        {
            true => drop(held.recv()),
            false => work(),
        };
        (Box::new(run), hold)
    }

    #[tokio::test]
    async fn a_piece_that_hangs_once_is_aligned_by_the_next_thread_and_one_that_hangs_twice_fails_alone() {
        let truth = answer(aligner(5, PATIENCE, Box::new(|work| work())).await.align(job(&["one", "two"]))).await;
        assert_eq!(truth.as_ref().map(Vec::len), Ok(2));
        let (run, _hold) = hanging(&[1, 3, 4]);
        let aligner = aligner(5, Duration::from_secs(2), run).await;
        assert_eq!(answer(aligner.align(job(&["one", "two"]))).await, truth, "tried once more");
        let status = aligner.status();
        assert_eq!((status.state, status.restarts), (StageState::Running, 1), "{status:?}");
        assert!(status.last_reason.unwrap().contains("aligner.timeout"));
        let failed = answer(aligner.align(job(&["one", "two"]))).await.unwrap_err();
        assert_eq!(failed, "aligning took longer than 2 s (aligner.timeout)");
        assert_eq!(answer(aligner.align(job(&["one", "two"]))).await, truth, "the next one");
    }

    #[tokio::test]
    async fn an_aligner_that_is_given_up_while_its_thread_hangs_answers_who_comes() {
        let (let_go, hanging) = flume::bounded::<()>(0);
        let hang = move |_: &mut (dyn FnMut() + Send)| _ = hanging.recv();
        let aligner = aligner(0, Duration::from_millis(20), Box::new(hang)).await;
        let reason = answer(aligner.align(job(&["one"]))).await.unwrap_err();
        assert!(reason.contains("was given up"), "{reason}");
        let reason = answer(aligner.align(job(&["two"]))).await.unwrap_err();
        assert_eq!(reason, "the aligner failed too often and was given up");
        drop(let_go);
    }

    #[tokio::test]
    async fn an_aligner_that_is_given_up_answers_all_who_wait_and_all_who_come() {
        let aligner = aligner(0, PATIENCE, Box::new(|_| panic!("broken"))).await;
        let waiting = [aligner.align(job(&["one"])), aligner.align(job(&["two"]))];
        for asked in waiting {
            let reason = answer(asked).await.unwrap_err();
            assert!(reason.starts_with("the aligner failed too often and was given up"), "{reason}");
        }
        let mut status = aligner.status.clone();
        let failed = status.wait_for(|status| status.state == StageState::Failed);
        assert_eq!(failed.await.unwrap().last_reason.as_deref(), Some("broken"));
        let reason = answer(aligner.align(job(&["three"]))).await.unwrap_err();
        assert_eq!(reason, "the aligner failed too often and was given up");
    }
}
