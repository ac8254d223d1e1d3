//! The aligner: an actor that starts the thread on which a [`ForcedAligner`] works, notices when it dies or takes too
//! long, and starts the next one. Weights outlive threads. No stage and no stream waits for it: a job goes into a
//! bounded queue, and its answer comes, or an error does.
//!
//! A job is a function of its samples and words: one whose thread died is tried once more, and a client sees nothing of
//! the death.

use futures::future::BoxFuture;
use omni_core::restart::{RestartLimits, RestartPolicy, Verdict};
use omni_core::suspects::Attribution;
use omni_fault::FaultSite;
use omni_model::forced_aligner::{ForcedAligner, UnitTime};
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

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
    /// Where a fault plan can strike.
    pub fault: FaultSite,
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

/// The queue of an aligner. When the last clone is dropped, the aligner ends.
#[derive(Clone, Debug)]
pub struct AlignerHandle(flume::Sender<Waiting>);

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
        let asked = self.0.try_send(Waiting { job: Arc::new(job), reply, tries: 0 });
        if let Err(refused) = asked {
            let reason = match &refused {
                flume::TrySendError::Full(_) => format!("{WAITING} pieces of speech wait for the aligner already"),
                flume::TrySendError::Disconnected(_) => "the aligner failed too often and was given up".to_owned(),
            };
            let _ = refused.into_inner().reply.send(Err(reason));
        }
        answer
    }
}

/// Starts an aligner.
///
/// # Errors
/// When the actor system refuses.
pub fn start(setup: AlignerSetup) -> BoxFuture<'static, Result<AlignerHandle, SpawnErr>> {
    Box::pin(async move {
        let (send, jobs) = flume::bounded(WAITING);
        Actor::spawn(None, AlignerSupervisor, (Arc::new(setup), jobs)).await?;
        Ok(AlignerHandle(send))
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

/// What a thread works on; a thread that was left behind has one that nobody reads.
type Hand = Arc<Mutex<Option<(Waiting, Instant)>>>;

struct State {
    setup: Arc<AlignerSetup>,
    /// `None` where the aligner was given up.
    jobs: Option<flume::Receiver<Waiting>>,
    policy: RestartPolicy,
    born: Instant,
    generation: u64,
    hand: Hand,
    /// A job to try again.
    again: Option<Waiting>,
}

impl Actor for AlignerSupervisor {
    type Msg = Message;
    type State = State;
    type Arguments = (Arc<AlignerSetup>, flume::Receiver<Waiting>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (setup, jobs): Self::Arguments,
    ) -> Result<State, ActorProcessingErr> {
        myself.cast(Message::Start)?;
        myself.send_interval(LOOK.min(setup.timeout / 2), || Message::Watch);
        let policy = RestartPolicy::new(setup.restart);
        let (born, hand) = (Instant::now(), Hand::default());
        Ok(State { setup, jobs: Some(jobs), policy, born, generation: 0, hand, again: None })
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
        let (hand, first) = (Arc::clone(&self.hand), self.again.take());
        let named = std::thread::Builder::new().name("aligner".to_owned());
        named.spawn(move || {
            let working = std::panic::catch_unwind(AssertUnwindSafe(|| work(&setup, &jobs, &hand, first)));
            let told = match working {
                Ok(()) => Message::Over(generation),
                Err(panic) => Message::Died(generation, text(panic.as_ref())),
            };
            // An actor that ended needs no news.
            let _ = myself.cast(told);
        })?;
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
                false => drop(waiting.reply.send(Err(reason.clone()))),
            }
        }
        match self.policy.failed(self.born.elapsed(), &Attribution::default()) {
            Verdict::Restart(pause) => {
                tracing::warn!(reason, generation = self.generation, "the aligner failed and is started again");
                myself.send_after(pause, || Message::Start);
            }
            Verdict::GiveUp => {
                tracing::error!(reason, "the aligner failed too often and was given up");
                let waiting = self.jobs.take().into_iter().flat_map(|jobs| jobs.drain().collect::<Vec<_>>());
                for waiting in self.again.take().into_iter().chain(waiting) {
                    let _ = waiting.reply.send(Err(format!("the aligner failed too often and was given up: {reason}")));
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
            Some((waiting, _)) => drop(waiting.reply.send(aligned)),
            None => return,
        }
    }
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
