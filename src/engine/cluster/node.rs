//! The node's side: the stages of its config, once for each gateway that uses it.

use super::NodeError;
use super::terms::{
    DRAINED, ENDS, MOST_ASKING, MOST_LEAVE, arithmetic, decoded, encoded, name, settings, terms, unusable,
};
use crate::process::ChildError;
use crate::process::seat::Seat;
use crate::setup::{StageMaker, edge_capacity};
use crate::{Kept, StartError};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use omni_cluster::{Asked, Duplex, Node, Question};
use omni_config::{Config, Placement, Replicas};
use omni_core::ids::{Replica, StageName};
use omni_core::nodes::{Ask, DrainOrder, Leave, Offer, Shares, Terms};
use omni_model::checkpoint::Checkpoint;
use omni_stage::process::message::FromStage;
use omni_stage::{StageState, StageStatus};
use omni_telemetry::trace::Recorder;
use omni_transfer::link::{FrameReader, FrameWriter, Sink, Source, outbox};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// How long what a stage has still to say may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The end of a link: of which gateway, for which stage, and how.
type Ended = (String, StageName, Result<(), ChildError>);

pub(super) async fn serve(
    checkpoint: &Checkpoint,
    config: &Config,
    stopped: BoxFuture<'_, ()>,
) -> Result<(), NodeError> {
    if !config.cluster.is_set() {
        let told = "cluster.join: say where gateways listen, here or with --join";
        return Err(StartError::Config(told.to_owned()).into());
    }
    let stages = offered(checkpoint.stages(), config)?;
    let config = &share(config);
    let maker = StageMaker::new(checkpoint, config, &stages, Kept::new(config))?;
    let terms = terms(checkpoint).await?;
    let arithmetic = arithmetic(&maker.device);
    let slots = u32::try_from(config.limits.max_requests).unwrap_or(u32::MAX);
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pid = std::process::id();
    let name = name(config);
    let offer = Offer {
        name: name.clone(),
        host: machine,
        pid,
        terms: terms.clone(),
        arithmetic,
        stages: stages.clone(),
        slots,
        gateways: config.cluster.gateways,
    };
    let offer = encoded(&offer)?;
    let mut host = Host {
        maker: &maker,
        terms,
        stages: &stages,
        gateways: config.cluster.gateways,
        shares: Shares::new(config.cluster.gateways),
        links: JoinSet::new(),
        began: Instant::now(),
        drained: false,
        ends: Ends::default(),
    };
    let how = settings(&config.cluster);
    let stages = stages.iter().map(|stage| stage.as_str()).collect::<Vec<_>>().join(", ");
    tokio::pin!(stopped);
    // What is wrong with the config shows in the first session, and so does an address in use.
    let mut node = Some(Node::start(&how, offer.clone()).await.map_err(unusable)?);
    loop {
        if let Some(node) = node.take() {
            tracing::info!(node = name, session = node.name(), stages, "stages are offered to gateways");
            let ended = tokio::select! {
                () = &mut stopped => None,
                ended = host.attends(&node) => Some(ended?),
            };
            if ended.is_none() {
                host.says_that_it_ends(&node).await;
            }
            // Gateways see that it leaves, and go on elsewhere.
            node.leave().await;
            host.loses_links().await;
            let Some(Alone) = ended else { return Ok(()) };
            tracing::warn!("no gateway is seen; the node joins anew");
        }
        match Node::start(&how, offer.clone()).await {
            Ok(anew) => node = Some(anew),
            Err(error) => {
                tracing::warn!(%error, "the node cannot join anew yet");
                tokio::select! {
                    () = &mut stopped => return Ok(()),
                    () = tokio::time::sleep(how.silence) => {}
                }
            }
        }
    }
}

/// A session of a node sees no gateway.
struct Alone;

/// What of a node outlives its sessions.
struct Host<'a> {
    maker: &'a StageMaker<'a>,
    terms: Terms,
    stages: &'a [StageName],
    /// How many may have a share.
    gateways: usize,
    shares: Shares,
    links: JoinSet<Ended>,
    /// The moment that times of `shares` count from.
    began: Instant,
    drained: bool,
    /// Of the links that are open; those that are opened behind a drain have another one.
    ends: Ends,
}

/// Ends links, and says why.
type Ends = watch::Sender<Option<&'static str>>;

impl Host<'_> {
    /// Does what gateways ask for, until a stage is given up or no gateway is seen.
    async fn attends(&mut self, node: &Node) -> Result<Alone, NodeError> {
        let mut service = InService { drained: self.drained, ..InService::default() };
        // Gateways are asked whether they can do without this node.
        let mut asking = FuturesUnordered::new();
        let alone = node.alone();
        tokio::pin!(alone);
        loop {
            self.drained = service.drained;
            tokio::select! {
                () = &mut alone => return Ok(Alone),
                asked = node.asked() => match asked.question() {
                    Question::Open => self.opens(&service, node, asked).await,
                    Question::Keep => match self.keeps(&service, &asked.gateway()) {
                        Ok(()) => asked.confirm(),
                        Err(reason) => asked.refuse(&reason),
                    },
                    Question::Leave => asked.refuse("it is no gateway"),
                    Question::Drain => match decoded::<DrainOrder>(&asked.request()) {
                        None => asked.refuse("it speaks another protocol"),
                        Some(order) if order.with.len() > MOST_LEAVE || asking.len() >= MOST_ASKING => {
                            asked.refuse("it is asked for too much at once");
                        }
                        Some(order) => asking.push(async move { (asked, decide(node, order).await) }),
                    },
                },
                Some((asked, decision)) = asking.next() => match decision {
                    Decision::Leave => {
                        std::mem::take(&mut self.ends).send_replace(Some(DRAINED));
                        service.end(asked, self.links.len());
                    }
                    Decision::Back => {
                        service.begin();
                        asked.confirm();
                    }
                    Decision::Stay(reason) => asked.refuse(&reason),
                },
                Some(ended) = self.links.join_next(), if !self.links.is_empty() => {
                    self.link_ended(ended)?;
                    service.ended(self.links.len());
                }
            }
        }
    }

    /// Opens a link, if the gateway may have one.
    async fn opens(&mut self, service: &InService, node: &Node, asked: Asked) {
        let gateway = asked.gateway();
        match self.grants(service, &asked) {
            Err(reason) => asked.refuse(&reason),
            Ok(ask) => match node.accept(asked).await {
                Ok(duplex) => _ = self.links.spawn(run(self.maker, gateway, ask, duplex, self.ends.subscribe())),
                Err(error) => {
                    tracing::warn!(gateway, %error, "a gateway asked for a link that cannot be opened");
                    self.shares.give_back(&gateway, ask.stage);
                }
            },
        }
    }

    /// What a gateway asks for, if it may have it.
    fn grants(&mut self, service: &InService, asked: &Asked) -> Result<Ask, String> {
        service.is_there()?;
        let ask: Ask = decoded(&asked.request()).ok_or("it speaks another protocol")?;
        if let Some(reason) = ask.terms.differ(&self.terms) {
            return Err(reason);
        }
        if !self.stages.contains(&ask.stage) {
            return Err(format!("it runs no {}", ask.stage));
        }
        self.shares.grant(&asked.gateway(), ask.stage, ask.beside, self.began.elapsed())?;
        Ok(ask)
    }

    /// Keeps a share for a gateway, if there is one.
    fn keeps(&mut self, service: &InService, gateway: &str) -> Result<(), String> {
        service.is_there()?;
        self.shares.keep(gateway, self.began.elapsed())
    }

    fn link_ended(&mut self, ended: Result<Ended, JoinError>) -> Result<(), NodeError> {
        // A link whose task panicked has taken its stage with it.
        let (gateway, stage, outcome) =
            ended.map_err(|error| NodeError::Start(StartError::Failed(format!("cluster: a link ended: {error}"))))?;
        self.shares.give_back(&gateway, stage);
        match outcome {
            Err(ChildError::Failed(stage, reason)) => return Err(NodeError::GivenUp(stage, reason)),
            Ok(()) => tracing::info!(gateway, %stage, "a gateway needs the stage no more"),
            Err(error) => tracing::warn!(gateway, %stage, %error, "the link to a gateway ended"),
        }
        Ok(())
    }

    /// Ends the links, so that gateways do not take this node for one that has failed.
    async fn says_that_it_ends(&mut self, node: &Node) {
        self.ends.send_replace(Some(ENDS));
        let links = &mut self.links;
        let ended = async {
            while !links.is_empty() {
                tokio::select! {
                    _ = links.join_next() => {}
                    asked = node.asked() => asked.refuse(ENDS),
                }
            }
        };
        // A stage that does not end has no more to say: its gateway hears it from the session.
        let _ = tokio::time::timeout(LAST_WORDS, ended).await;
    }

    /// The session is closed, and with it all links are.
    async fn loses_links(&mut self) {
        self.links.shutdown().await;
        self.shares = Shares::new(self.gateways);
    }
}

/// The stages that the config names, if they are among those of the checkpoint.
pub(super) fn offered(known: &[StageName], config: &Config) -> Result<Vec<StageName>, StartError> {
    let wrong = |reason: String| Err(StartError::Config(format!("cluster.stages: {reason}")));
    if config.cluster.stages.is_empty() {
        return wrong(format!(
            "name the stages that this node runs, of {}",
            known.iter().map(|stage| stage.as_str()).collect::<Vec<_>>().join(", ")
        ));
    }
    match config.cluster.stages.iter().find(|stage| !known.contains(stage)) {
        Some(stage) => wrong(format!("the checkpoint has no {stage}")),
        None => Ok(config.cluster.stages.clone()),
    }
}

/// The config of the stages of one gateway: one replica of each here, with its part of the slots. How often a stage may
/// fail is for the gateway to say, which knows whose request it was.
fn share(config: &Config) -> Config {
    let mut config = config.clone();
    config.limits.max_requests = (config.limits.max_requests / config.cluster.gateways).max(1);
    config.supervision.max_restarts = usize::MAX;
    for stage in &mut config.stages {
        stage.placement = Placement::Thread;
        stage.replicas = Replicas::Count(1);
    }
    config
}

/// What becomes of an order to leave, or to come back.
enum Decision {
    Leave,
    Back,
    /// And why.
    Stay(String),
}

/// Asks the gateways whether they can do without the nodes of an order, if it is not to be forced.
async fn decide(node: &Node, DrainOrder { undo, force, with }: DrainOrder) -> Decision {
    let ask = async |question: Leave| {
        let question = encoded(&question).map_err(|error| error.to_string())?;
        node.may_leave(question).await.map_err(|error| error.to_string())
    };
    let allowed = match (undo, force) {
        (false, true) => return Decision::Leave,
        (false, false) => ask(Leave::May(with.clone())).await,
        (true, _) => Ok(()),
    };
    if undo || allowed.is_err() {
        // Gateways that do not hear it forget soon that these were to leave.
        let _ = ask(Leave::Stay(with)).await;
    }
    match allowed {
        Ok(()) if undo => Decision::Back,
        Ok(()) => Decision::Leave,
        Err(reason) => Decision::Stay(reason),
    }
}

/// Whether gateways may use this node.
#[derive(Default)]
struct InService {
    drained: bool,
    /// Those that asked for it, until no link is left.
    waiting: Vec<Asked>,
}

impl InService {
    fn is_there(&self) -> Result<(), String> {
        if self.drained { Err(DRAINED.to_owned()) } else { Ok(()) }
    }

    /// All links end, and none is opened. `asked` has its answer when none is left.
    fn end(&mut self, asked: Asked, links: usize) {
        tracing::info!(links, "the node is drained");
        self.drained = true;
        self.waiting.push(asked);
        self.ended(links);
    }

    /// Opens links again.
    fn begin(&mut self) {
        tracing::info!("the node is in service");
        self.drained = false;
        for asked in self.waiting.drain(..) {
            asked.refuse("the node was put back into service before its links had ended");
        }
    }

    /// So many links are left.
    fn ended(&mut self, links: usize) {
        if links == 0 {
            self.waiting.drain(..).for_each(Asked::confirm);
        }
    }
}

/// Runs a stage at the end of a link, until `ends`. The stage is made before this returns.
fn run(
    maker: &StageMaker<'_>,
    gateway: String,
    ask: Ask,
    duplex: Duplex,
    mut ends: watch::Receiver<Option<&'static str>>,
) -> BoxFuture<'static, Ended> {
    let Duplex { send, receive, line } = duplex;
    let Ask { stage, replica, last, .. } = ask;
    let from = FrameReader::new(Source::Queue(receive), None, maker.config().transfer.zero_copy);
    let mut to = FrameWriter::new(Sink::Queue(send), None);
    // Samples and tokens, or sequences and tokens.
    let (out, queue) = outbox(2 * edge_capacity(maker.config(), stage));
    let told = out.clone();
    let speaking = tokio::spawn(async move {
        let lost = |request, reason| _ = told.tell(FromStage::SequenceFailed(request, reason));
        queue.send_all(&mut to, lost).await
    });
    tracing::info!(gateway, %stage, "a gateway uses the stage");
    let place = Replica { stage, number: replica };
    // Several gateways may take traces, each of its own requests.
    let recorder = Recorder::default();
    let seat = Seat { place, several: true, last, notes: None, obeys: false, recorder };
    let mut serving = seat.serve(maker, from, out.clone());
    Box::pin(async move {
        let outcome = tokio::select! {
            outcome = &mut serving => outcome,
            reason = told_to_end(&mut ends) => {
                // The gateway takes what it had elsewhere at once; then the stage sees that its link has ended.
                line.end(reason);
                serving.await
            }
        };
        if let Err(ChildError::Failed(_, reason)) = &outcome {
            let last_reason = Some(reason.clone());
            out.tell(FromStage::Status(StageStatus {
                state: StageState::Failed,
                generation: last,
                restarts: 0,
                last_reason,
            }));
        }
        out.finish();
        let _ = tokio::time::timeout(LAST_WORDS, speaking).await;
        drop(line);
        (gateway, stage, outcome)
    })
}

/// Waits until a link is to end: why.
async fn told_to_end(ends: &mut watch::Receiver<Option<&'static str>>) -> &'static str {
    match ends.wait_for(Option::is_some).await.map(|reason| *reason) {
        Ok(Some(reason)) => reason,
        // The node ends the link with its session.
        Ok(None) | Err(_) => std::future::pending().await,
    }
}
