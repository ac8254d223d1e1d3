//! What the tasks beside a supervisor do for one child or node: speak to it, pass on what it says, tell it of traces and
//! faults. They end with its link, or are aborted.

use super::message::{FromStage, Setup, ToStage};
use super::remote::RemoteStage;
use crate::in_hand::InHand;
use crate::{AckSink, StageReports};
use omni_core::ids::{Replica, StageName};
use omni_core::scheduler::Ack;
use omni_fault::FaultPlan;
use omni_telemetry::clock;
use omni_telemetry::trace::Recorder;
use omni_transfer::link::{self, FrameReader, FrameWriter, LinkError, Queue, Received};
use omni_transfer::payload::{Kind, Payload};
use omni_transfer::transport::{Delivery, PayloadSender};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often a node is asked for its clock while a trace is taken: more often than it sends records.
const CLOCK: Duration = Duration::from_millis(50);

/// What the links to a stage elsewhere lead to on this side.
pub struct Ends {
    /// Which replica.
    pub place: Replica,
    /// Most payloads on their way to it.
    pub capacity: usize,
    /// Where its output goes.
    pub outbound: Vec<(Kind, Arc<dyn PayloadSender>)>,
    /// Told when input was taken over.
    pub acks: Arc<dyn AckSink>,
    /// Told what becomes of requests.
    pub reports: Arc<dyn StageReports>,
    /// What breaks on purpose. The other side counts.
    pub faults: FaultPlan,
    /// The engine's, which takes what the other side has recorded.
    pub recorder: Recorder,
}

/// What a supervisor is told of a link.
pub(super) enum Said {
    /// The other side says what is for the supervisor.
    Heard(FromStage),
    /// The link ended.
    Gone(LinkError),
    /// The task that listens panicked.
    Deaf,
}

/// Both directions of a link, as they are when it is made.
pub(super) struct Link {
    /// What the other side hears first, where it needs that.
    pub setup: Option<Setup>,
    /// What waits for it.
    pub queue: Queue<ToStage>,
    /// To the other side.
    pub to: FrameWriter,
    /// From there.
    pub from: FrameReader,
}

/// The tasks that speak and listen.
pub(super) struct Conversation {
    speaking: JoinHandle<()>,
    listening: JoinHandle<()>,
}

impl Conversation {
    /// Begins it. What comes back passes through `remote` and `in_hand`.
    pub(super) fn begin(
        link: Link,
        ends: &Arc<Ends>,
        remote: &Arc<RemoteStage>,
        in_hand: &Arc<InHand>,
        tell: impl Fn(Said) + Clone + Send + Sync + 'static,
    ) -> Conversation {
        let Link { setup, queue, mut to, from } = link;
        let speaking = {
            let ends = Arc::clone(ends);
            tokio::spawn(async move {
                if let Err(error) = speak_to(setup, queue, &mut to, &ends).await {
                    // The other half of the link tells that it is gone.
                    tracing::debug!(stage = %ends.place.stage, %error, "the link to a stage elsewhere ended");
                }
            })
        };
        let (ends, remote, in_hand) = (Arc::clone(ends), Arc::clone(remote), Arc::clone(in_hand));
        let deaf = tell.clone();
        let mut ear = Ear::new(move || deaf(Said::Deaf));
        let listening = tokio::spawn(async move {
            let Err(error) = listen_to(from, &ends, &remote, &in_hand, |word| tell(Said::Heard(word))).await;
            ear.leaves();
            tell(Said::Gone(error));
        });
        Conversation { speaking, listening }
    }

    /// Whether the other side has ended it within this time.
    pub(super) async fn ends_within(&mut self, grace: Duration) -> bool {
        tokio::time::timeout(grace, &mut self.listening).await.is_ok()
    }

    /// Ends it. A delivery that is under way comes before anything that a successor sends.
    pub(super) async fn end(self) {
        self.listening.abort();
        if !self.listening.is_finished() {
            let _ = self.listening.await;
        }
        self.speaking.abort();
    }
}

/// Sends the setup, where the other side needs one, and then what waits, to the end of the link.
async fn speak_to(
    setup: Option<Setup>,
    queue: Queue<ToStage>,
    to: &mut FrameWriter,
    ends: &Ends,
) -> Result<(), LinkError> {
    if let Some(setup) = setup {
        let mut hello = Vec::new();
        link::append(&setup, &mut hello)?;
        to.send(&hello).await?;
    }
    queue.send_all(to, |request, reason| ends.reports.sequence_failed(request, ends.place.stage, reason)).await
}

/// Passes on what a child says, in its order, until the link ends.
async fn listen_to(
    mut from: FrameReader,
    parent: &Ends,
    remote: &RemoteStage,
    in_hand: &InHand,
    supervisor: impl Fn(FromStage),
) -> Result<std::convert::Infallible, LinkError> {
    let name = parent.place.stage;
    loop {
        match link::receive::<FromStage>(&mut from).await? {
            Received::Delivery(Delivery::Payload(mut payload)) => {
                if remote.node.is_some() {
                    // Its time is by the clock of another host.
                    payload.header.sent = clock::now();
                }
                in_hand.parent_takes(payload.header.request, payload.header.seq.0);
                deliver(payload, parent, name);
                in_hand.parent_rests();
                remote.made();
            }
            // The parent has no input to give again: a child whose output cannot be read is replaced.
            Received::Delivery(Delivery::Broken(error)) => return Err(error.into()),
            // A child does not announce.
            Received::Delivery(Delivery::Sent(_)) => {}
            Received::Control(words) => {
                for word in words {
                    match word {
                        FromStage::Acked(request, upto) => parent.acks.acked(&[Ack { request, upto }]),
                        FromStage::SequenceFailed(request, reason) => {
                            parent.reports.sequence_failed(request, name, reason);
                        }
                        FromStage::InputLost(request, attempt, unit) => {
                            parent.reports.input_lost(request, name, attempt, unit);
                        }
                        FromStage::Trace(records) => remote.recorded(parent.place, records, &parent.recorder),
                        FromStage::Clock(asked, theirs) => remote.told_clock(asked, theirs),
                        FromStage::Metrics(text) => remote.told_metrics(&text),
                        FromStage::Pulse(pulse) => {
                            parent.faults.resume(&pulse.faults);
                            remote.pulsed(pulse);
                        }
                        FromStage::Doomed(counts) => {
                            parent.faults.resume(&counts);
                            supervisor(FromStage::Doomed(counts));
                        }
                        FromStage::StageDown(generation, failure, counts) => {
                            parent.faults.resume(&counts);
                            supervisor(FromStage::StageDown(generation, failure, Vec::new()));
                        }
                        word @ FromStage::Status(_) => supervisor(word),
                    }
                }
            }
        }
        remote.heard();
    }
}

/// Has the other side record what it does for as long as this process takes a trace. A node is asked for its clock first,
/// and then again and again.
pub(super) async fn tell_who_listens(recorder: Recorder, remote: Arc<RemoteStage>) {
    let (mut switched, mut told) = (recorder.switched(), false);
    loop {
        let on = *switched.borrow_and_update();
        let asks = on && remote.node.is_some();
        if asks {
            remote.ask_clock();
        }
        if on != told {
            remote.trace(on);
            told = on;
            if on {
                recorder.others_record();
            }
        }
        let pause = async {
            match asks {
                true => tokio::time::sleep(CLOCK).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = switched.changed() => if changed.is_err() {
                return;
            },
            () = pause => {}
        }
    }
}

/// Sends the fault plan to the child whenever it changes.
pub(super) async fn tell_what_breaks(faults: FaultPlan, mut changes: watch::Receiver<u64>, remote: Arc<RemoteStage>) {
    while changes.changed().await.is_ok() {
        remote.faults(faults.state());
    }
}

fn deliver(payload: Payload, parent: &Ends, name: StageName) {
    let (request, kind) = (payload.header.request, payload.header.kind);
    let Some((_, edge)) = parent.outbound.iter().find(|(carried, _)| *carried == kind) else { return };
    if let Err(error) = edge.put(payload) {
        parent.reports.sequence_failed(request, name, error.to_string());
    }
}

/// What the task that listens holds. One that panics has met a payload that the ledger cannot take: what it listens to is
/// replaced, and its requests go on.
struct Ear<D: Fn()> {
    deaf: D,
    left: bool,
}

impl<D: Fn()> Ear<D> {
    /// `deaf` is called if the task ends without [`Ear::leaves`].
    fn new(deaf: D) -> Ear<D> {
        Ear { deaf, left: false }
    }

    fn leaves(&mut self) {
        self.left = true;
    }
}

impl<D: Fn()> Drop for Ear<D> {
    fn drop(&mut self) {
        // A task that is aborted belongs to a link that is closed, whose messages have an old number.
        if !self.left {
            (self.deaf)();
        }
    }
}
