//! The PayloadPackager actor: turns what steps left behind into payloads for the next stage. However slow it is, the
//! launch thread does not notice: what waits here is packed together when its turn comes, one payload per request.

use super::connector::OutboundMessage;
use super::scheduler::SchedulerMessage;
use super::stage::{ActorFailure, Outputs, Queued, Role, StageGeneration};
use candle_core::Tensor;
use omni_core::ids::{Attempt, FinishReason, RequestId, Seq, StageName, StepId};
use omni_fault::{FaultEvent, FaultPoint, FaultSite};
use omni_model::ModelError;
use omni_model::embeddings::Embeddings;
use omni_model::stage::StageData;
use omni_telemetry::Queue;
use omni_telemetry::trace::{self, Component, What};
use omni_transfer::lease::Lease;
use omni_transfer::payload::{Header, Kind, Part, Payload};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Instant;

/// What one step left behind for one sequence.
pub(super) struct Output {
    pub request: RequestId,
    /// Which of the request's sequences made it.
    pub attempt: Attempt,
    /// The step that left it behind.
    pub step: StepId,
    pub deliver: Outputs,
    /// Position and number of the units of `emit`.
    pub seq: Seq,
    pub units: u32,
    pub emit: Option<StageData>,
    /// The sampled token and its position, for the client.
    pub token: Option<(Seq, u32)>,
    pub end: Option<FinishReason>,
    /// For as long as this is in use.
    pub lease: Lease,
}

/// What the packager is told.
#[derive(Debug)]
pub(super) enum PackagerMessage {
    /// There are outputs.
    Ready,
}

pub(super) struct Packager;

pub(super) struct PackagerState {
    stage: Arc<StageGeneration>,
    fault: FaultSite,
}

impl Actor for Packager {
    type Msg = PackagerMessage;
    type State = PackagerState;
    type Arguments = Arc<StageGeneration>;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        stage: Arc<StageGeneration>,
    ) -> Result<PackagerState, ActorProcessingErr> {
        let fault = stage.setup.faults.site(stage.setup.name, FaultPoint::Packager);
        Ok(PackagerState { stage, fault })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        PackagerMessage::Ready: PackagerMessage,
        state: &mut PackagerState,
    ) -> Result<(), ActorProcessingErr> {
        while let Some(Batch { outputs, news }) = state.take() {
            let _at_work = state.stage.at_work(Role::Packager);
            if !outputs.is_empty() {
                let (began, requests) = (trace::now(), outputs.len() as u32);
                state.fault.inject_async(|| events(&outputs)).await?;
                state.pack(outputs).await?;
                trace::since(began, state.stage.track(Component::Packager), || What::Packaging { requests });
            }
            state.pass_on(news)?;
        }
        Ok(())
    }
}

/// What is packaged in one turn.
struct Batch {
    /// By request, in order.
    outputs: Vec<Vec<Output>>,
    /// What the scheduler hears when all of it has been sent.
    news: Option<SchedulerMessage>,
}

/// What the outputs of each request are.
fn events(outputs: &[Vec<Output>]) -> Vec<FaultEvent> {
    let last = |outputs: &[Output]| outputs.iter().any(|output| output.end.is_some());
    outputs.iter().map(|outputs| FaultEvent::units(outputs[0].request, outputs[0].seq, last(outputs))).collect()
}

impl PackagerState {
    /// Everything that waits, up to the end of a step that the scheduler has not heard of.
    fn take(&self) -> Option<Batch> {
        let mut batch = Batch { outputs: Vec::new(), news: None };
        while let Ok(queued) = self.stage.outputs.recv.try_recv() {
            match queued {
                Queued::Item(output) => {
                    let sequence = (output.request, output.attempt);
                    match batch.outputs.iter_mut().find(|outputs| (outputs[0].request, outputs[0].attempt) == sequence)
                    {
                        Some(outputs) => outputs.push(output),
                        None => batch.outputs.push(vec![output]),
                    }
                }
                Queued::News(news) => {
                    batch.news = Some(news);
                    break;
                }
            }
        }
        (!batch.outputs.is_empty() || batch.news.is_some()).then_some(batch)
    }

    /// Tells the outbound connector that there is something for it, and passes the news on with it.
    fn pass_on(&self, news: Option<SchedulerMessage>) -> Result<(), ActorFailure> {
        if let Some(news) = news {
            self.stage.payloads.send.try_send(Queued::News(news)).map_err(|_| ActorFailure::Queue("payload"))?;
        }
        if let Some(outbound) = self.stage.outbound.get() {
            let _ = outbound.cast(OutboundMessage::Ready);
        }
        Ok(())
    }

    async fn pack(&self, batch: Vec<Vec<Output>>) -> Result<(), ActorFailure> {
        let started = Instant::now();
        let setup = &self.stage.setup;
        for outputs in batch {
            let request = outputs[0].request;
            let (began, step) = (trace::now(), outputs.last().map(|output| output.step));
            match self.payloads(outputs).await {
                Ok(payloads) => {
                    for payload in payloads {
                        let chunk = || What::Packed(payload.header.chunk(payload.bytes(), step));
                        trace::since(began, self.stage.track(Component::Packager), chunk);
                        let queued = Queued::Item(payload);
                        self.stage.payloads.send.try_send(queued).map_err(|_| ActorFailure::Queue("payload"))?;
                    }
                }
                Err(error) => setup.reports.sequence_failed(request, setup.name, error.to_string()),
            }
        }
        setup.metrics.queue_depth(Queue::Output, self.stage.payloads.recv.len());
        setup.metrics.package_seconds.record(started.elapsed());
        Ok(())
    }

    /// What one request's outputs become: at most one payload for the next stage and one for the client.
    async fn payloads(&self, outputs: Vec<Output>) -> Result<Vec<Payload>, ModelError> {
        let (stage, generation) = (self.stage.setup.name, self.stage.generation);
        let Some(first) = outputs.first() else { return Ok(Vec::new()) };
        let (request, deliver, seq) = (first.request, first.deliver, first.seq);
        let token_seq = outputs.iter().find_map(|output| output.token).map(|(seq, _)| seq);
        let end = outputs.iter().find_map(|output| output.end);
        let units = outputs.iter().map(|output| output.units).sum();
        let (mut tokens, mut embeddings, mut codes, mut samples) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut leases = Vec::with_capacity(outputs.len());
        for output in outputs {
            tokens.extend(output.token.map(|(_, token)| token));
            match output.emit {
                None => {}
                Some(StageData::Embeddings(some)) => embeddings.push(some),
                Some(StageData::Tokens(more)) => tokens.extend(more),
                Some(StageData::Codes(frame)) => codes.extend(frame),
                Some(StageData::Audio(chunk)) => samples.extend(chunk),
            }
            leases.push(output.lease);
        }
        // Whoever keeps the books of the edge knows which sequence this is for.
        let attempt = Attempt(0);
        let header = |kind, seq, units| Header { request, generation, attempt, seq, kind, units, end, sent: 0 };
        let mut payloads = Vec::new();
        if deliver.tokens && (token_seq.is_some() || end.is_some()) {
            let header = header(Kind::Tokens, token_seq.unwrap_or_default(), tokens.len() as u32);
            payloads.push(Payload { header, parts: vec![Part::U32(tokens)], leases: Vec::new() });
        }
        if deliver.speech && (units > 0 || end.is_some()) {
            let (kind, parts) = match stage {
                StageName::Thinker => (Kind::Embeddings, self.embeddings(embeddings).await?),
                StageName::Talker => (Kind::Codes, vec![Part::U32(codes)]),
                StageName::Vocoder => (Kind::Audio, vec![Part::F32(samples)]),
            };
            payloads.push(Payload { header: header(kind, seq, units), parts, leases });
        }
        Ok(payloads)
    }

    /// Embeddings as the next stage can take them: where they are, or in the host's memory and in one piece.
    async fn embeddings(&self, embeddings: Vec<Embeddings>) -> Result<Vec<Part>, ModelError> {
        if self.stage.setup.outbound.iter().any(|edge| edge.kind == Kind::Embeddings && edge.handles) {
            return Ok(embeddings.into_iter().map(Part::Embeddings).collect());
        }
        let mut here = Vec::with_capacity(embeddings.len());
        for some in embeddings {
            here.push(some.fetched().await?);
        }
        if here.len() > 1 {
            let tensors = here.iter().map(Embeddings::tensor).collect::<Result<Vec<_>, _>>()?;
            here = vec![Tensor::cat(&tensors, 0)?.into()];
        }
        Ok(here.into_iter().map(Part::Embeddings).collect())
    }
}
