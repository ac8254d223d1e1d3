//! The PayloadPackager actor: turns what steps made into payloads for the next stage. However slow it is, the launch
//! thread does not notice: it packs what waits when its turn comes together, one payload per request.

use crate::failure::ActorFailure;
use crate::generation::Life;
use crate::messages::{Output, Ready};
use crate::pulse::Role;
use crate::queue::{QueueReceiver, QueueSender};
use crate::setup::StageReports;
use candle_core::Tensor;
use omni_core::ids::{Attempt, StageName};
use omni_fault::{FaultEvent, FaultPoint, FaultSite};
use omni_model::ModelError;
use omni_model::embeddings::Embeddings;
use omni_model::stage::StageData;
use omni_telemetry::Queue;
use omni_telemetry::trace::{self, Component, What};
use omni_transfer::payload::{Header, Kind, Part, Payload};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Instant;

/// What the packager has of its stage.
pub(super) struct PackagerEnds {
    pub life: Arc<Life>,
    pub outputs: QueueReceiver<Output>,
    pub payloads: QueueSender<Payload>,
    pub reports: Arc<dyn StageReports>,
    /// Whether embeddings stay on the device.
    pub handles: bool,
}

pub(super) struct Packager;

pub(super) struct PackagerState {
    ends: PackagerEnds,
    fault: FaultSite,
}

impl Actor for Packager {
    type Msg = Ready;
    type State = PackagerState;
    type Arguments = PackagerEnds;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, ends: PackagerEnds) -> Result<PackagerState, ActorProcessingErr> {
        Ok(PackagerState::new(ends))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        Ready: Ready,
        state: &mut PackagerState,
    ) -> Result<(), ActorProcessingErr> {
        Packager::turn(state).await
    }
}

impl Packager {
    /// Packs what waits.
    pub async fn turn(state: &mut PackagerState) -> Result<(), ActorProcessingErr> {
        state.ends.outputs.heard();
        while let Some(outputs) = state.take()? {
            let _at_work = state.ends.life.pulse.at_work(Role::Packager);
            let (began, requests) = (trace::now(), outputs.len() as u32);
            state.pack(outputs).await?;
            trace::since(began, state.ends.life.track(Component::Packager), || What::Packaging { requests });
            state.ends.payloads.ring();
        }
        Ok(())
    }
}

/// What the outputs of one request are.
fn event(outputs: &[Output]) -> FaultEvent {
    let last = outputs.iter().any(|output| output.end.is_some());
    FaultEvent::units(outputs[0].request, outputs[0].seq, last)
}

impl PackagerState {
    pub fn new(ends: PackagerEnds) -> PackagerState {
        let fault = ends.life.site(FaultPoint::Packager);
        PackagerState { ends, fault }
    }

    /// The outputs that wait, by request and in order.
    fn take(&mut self) -> Result<Option<Vec<Vec<Output>>>, ActorFailure> {
        let Some(first) = self.ends.outputs.next()? else { return Ok(None) };
        let mut batch = vec![vec![first]];
        while let Some(output) = self.ends.outputs.more() {
            let sequence = (output.request, output.attempt);
            match batch.iter_mut().find(|outputs| (outputs[0].request, outputs[0].attempt) == sequence) {
                Some(outputs) => outputs.push(output),
                None => batch.push(vec![output]),
            }
        }
        Ok(Some(batch))
    }

    async fn pack(&self, batch: Vec<Vec<Output>>) -> Result<(), ActorFailure> {
        let started = Instant::now();
        let in_hand = &self.ends.life.in_hand;
        for outputs in batch {
            let request = outputs[0].request;
            in_hand.take_at(Role::Packager, request, outputs[0].seq.0);
            self.fault.inject_async(|| [event(&outputs)]).await?;
            let (began, step) = (trace::now(), outputs.last().map(|output| output.step));
            match self.payloads_of(outputs).await {
                Ok(payloads) => {
                    for payload in payloads {
                        let chunk = || What::Packed(payload.header.chunk(payload.bytes(), step));
                        trace::since(began, self.ends.life.track(Component::Packager), chunk);
                        self.ends.payloads.put(payload)?;
                    }
                }
                Err(error) => self.ends.reports.sequence_failed(request, self.ends.life.stage, error.to_string()),
            }
        }
        in_hand.rest(Role::Packager);
        self.ends.life.metrics.queue_depth(Queue::Output, self.ends.payloads.len());
        self.ends.life.metrics.package_seconds.record(started.elapsed());
        Ok(())
    }

    /// What one request's outputs become. An encoder's stay apart: their widths differ, and each is as large as a frame
    /// should be.
    async fn payloads_of(&self, outputs: Vec<Output>) -> Result<Vec<Payload>, ModelError> {
        if self.ends.life.stage != StageName::Encoder {
            return self.payloads(outputs).await;
        }
        let mut payloads = Vec::with_capacity(outputs.len());
        for output in outputs {
            payloads.extend(self.payloads(vec![output]).await?);
        }
        Ok(payloads)
    }

    /// What one request's outputs become: at most one payload for the next stage and one for the client.
    async fn payloads(&self, outputs: Vec<Output>) -> Result<Vec<Payload>, ModelError> {
        let (stage, generation) = (self.ends.life.stage, self.ends.life.generation);
        let Some(first) = outputs.first() else { return Ok(Vec::new()) };
        let (request, deliver, seq) = (first.request, first.deliver, first.seq);
        let cached = outputs.iter().map(|output| output.cached).sum();
        let token_seq = outputs.iter().find_map(|output| output.token).map(|(seq, _)| seq);
        let end = outputs.iter().find_map(|output| output.end);
        let units = outputs.iter().map(|output| output.units).sum();
        let (mut tokens, mut embeddings, mut codes, mut samples) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut leases = Vec::with_capacity(outputs.len());
        for output in outputs {
            tokens.extend(output.token.map(|(_, token)| token));
            match output.emit {
                None | Some(StageData::Features(_)) => {}
                Some(StageData::Embeddings(some)) => embeddings.push(some),
                Some(StageData::Tokens(more)) => tokens.extend(more),
                Some(StageData::Codes(frame)) => codes.extend(frame),
                Some(StageData::Audio(chunk)) => samples.extend(chunk),
            }
            leases.push(output.lease);
        }
        // The ledger knows which attempt of the next stage this is for.
        let attempt = Attempt(0);
        let header = |kind, seq, units| Header { request, generation, attempt, seq, kind, units, end, sent: 0, cached };
        let mut payloads = Vec::new();
        if deliver.tokens && (token_seq.is_some() || end.is_some()) {
            let header = header(Kind::Tokens, token_seq.unwrap_or_default(), tokens.len() as u32);
            payloads.push(Payload { header, parts: vec![Part::U32(tokens)], leases: Vec::new() });
        }
        if deliver.speech && (units > 0 || end.is_some()) {
            let (kind, parts) = match stage {
                StageName::Encoder => (Kind::Media, self.embeddings(embeddings).await?),
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
        if self.ends.handles {
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
