//! The clients of a simulation: they ask, write, read and leave, and each end must have a cause.

use super::super::edges::lock;
use super::super::listener::{Client, End, Read};
use super::super::model::UNKNOWN;
use super::super::plan::{Planned, plan};
use super::super::scenario::{Manner, RequestKind, Script};
use super::{Event, LIFE, Stage, World};
use crate::admission::Entrant;
use crate::api::{RequestError, RequestOptions, Slo, SubmitError, Tenant, TenantId};
use crate::stream::Expired;
use omni_core::ids::RequestId;
use omni_stage::StageState;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

impl World<'_> {
    pub(super) fn ask(&mut self, at: usize, again: u32) {
        let scenario = self.scenario;
        let script = &scenario.requests[at];
        self.report.asked += 1;
        let state = |stage: &Stage| stage.handle.status().borrow().state;
        let refuses = |stage: &Stage| matches!(state(stage), StageState::Starting | StageState::Failed);
        if self.draining || self.stages.iter().any(refuses) {
            self.report.refused += 1;
            return;
        }
        let options = RequestOptions {
            tenant: Tenant { id: tenant(script), ..Tenant::default() },
            slo: script.deadline.map_or(Slo::BestEffort, Slo::Realtime),
            ..RequestOptions::default()
        };
        let chat = matches!(script.kind, RequestKind::Chat | RequestKind::Text);
        let steady = !matches!(script.kind, RequestKind::Pieces(..));
        let restarts = self.stages.iter().map(|stage| stage.handle.status().borrow().restarts).sum();
        let sounds = script.kind != RequestKind::Text;
        let permit = match self.admissions.enter(Entrant { options: &options, steady, chat, sounds, restarts }) {
            Ok(permit) => permit,
            Err(SubmitError::Full { retry_after, .. } | SubmitError::Later { retry_after, .. }) => {
                self.report.refused += 1;
                if again > 0 {
                    let pause = retry_after + self.random.millis(0, 100);
                    self.after(pause, Event::Ask(at, again - 1));
                }
                return;
            }
            Err(_) => return,
        };
        let Some(planned) = plan(script, &scenario.shape, &self.encodes) else { return };
        let Planned { plan, expected, later, prompts } = planned;
        self.report.media += u64::from(prompts.rows > 0);
        self.report.known += u64::from(prompts.rows > 0 && prompts.known == prompts.rows);
        let kind = if chat { omni_telemetry::RequestKind::Chat } else { omni_telemetry::RequestKind::Speech };
        let (watch, expired) = (permit.watch(), Expired::default());
        let stream = self.ledger.open_request(plan, kind, permit, Arc::clone(&expired)).watched(watch);
        let place = self.clients.len();
        let (now, manner) = (self.now(), script.client);
        let mut client = Client::new(place, at, manner, again, (expected, later), stream, &self.woken);
        (client.accepted, client.expired) = (now, expired);
        // The first event says the name, and is read at once.
        client.scheduled = true;
        self.number += 1;
        let request = RequestId(self.number);
        client.request = request;
        self.clients.push(client);
        lock(&self.windows).prompts.insert(request, prompts);
        self.at(now, Event::Read(place));
        if !self.clients[place].later.is_empty() {
            let pause = self.random.millis(0, 300);
            self.after(pause, Event::Write(place));
        }
        if let Manner::Expires(life) = manner {
            self.after(life, Event::Expire(place));
        }
        self.report.accepted += 1;
    }

    pub(super) fn write(&mut self, place: usize) {
        let client = &mut self.clients[place];
        if !client.holds() || client.end.is_some() {
            return;
        }
        let Some((before, text)) = client.later.pop_front() else { return };
        let request = client.request;
        let more = !client.later.is_empty();
        self.ledger.push_text(request, before, text);
        if more {
            let pause = self.random.millis(0, 300);
            self.after(pause, Event::Write(place));
        }
    }

    pub(super) fn read(&mut self, place: usize) -> Result<(), String> {
        let client = &mut self.clients[place];
        client.scheduled = false;
        if !client.holds() {
            return Ok(());
        }
        let (before, script) = (client.end.clone(), client.script);
        let read = client.read().map_err(|what| format!("{} of script {script}: {what}", client.request))?;
        let (request, units) = (client.request, client.units());
        let new_end = if before.is_none() { client.end.clone() } else { None };
        match read {
            Read::Nothing => {}
            Read::Something(pause, frames) => {
                client.scheduled = true;
                if frames > 0 {
                    lock(&self.windows).heard(request, frames);
                }
                let pause = pause + self.random.micros(200);
                self.after(pause, Event::Read(place));
            }
            Read::Over => {}
        }
        if let Some(end) = new_end {
            self.judge(place, &end)?;
            self.ended(request, units);
            let again = self.clients[place].again;
            if end != End::Finished && again > 0 {
                let pause = self.random.millis(0, 500);
                self.after(pause, Event::Ask(script, again - 1));
            }
        }
        Ok(())
    }

    /// A request has ended for its client.
    pub(super) fn ended(&mut self, request: RequestId, units: u64) {
        self.report.ended += 1;
        self.report.units += units;
        lock(&self.windows).forget(request);
    }

    /// Whether the end of a request has a cause.
    fn judge(&mut self, place: usize, end: &End) -> Result<(), String> {
        let client = &self.clients[place];
        let (request, manner) = (client.request, client.manner());
        let script = &self.scenario.requests[client.script];
        let took = self.now().saturating_sub(client.accepted);
        let unjustified = |error: &RequestError| Err(format!("{request} failed without a cause: {error}"));
        match end {
            End::Finished => self.report.finished += 1,
            End::Left | End::Expired => self.report.left += 1,
            End::Failed(error) => {
                self.report.failed += 1;
                match error {
                    RequestError::StageFailed { stage, .. } if self.stage(*stage).given_up => {}
                    // No other request ends by a prompt that brings its stage down.
                    RequestError::BroughtDown { stage, .. }
                        if script.sick.is_some_and(|sick| sick.kills && sick.stage == *stage) => {}
                    RequestError::SequenceFailed { stage, .. } => {
                        let sick = script.sick.is_some_and(|sick| sick.stage == *stage);
                        let failed = lock(&self.book.failed);
                        let times = |prompt: u32| failed.get(&prompt).copied().unwrap_or(0);
                        let made_to = times(script.seed as u32) + times(UNKNOWN);
                        drop(failed);
                        let lost = self.stage(*stage).wire.struck.get(&request).copied().unwrap_or(0);
                        if !sick && made_to < 4 && lost < 4 {
                            return unjustified(error);
                        }
                    }
                    RequestError::TimedOut(_) if matches!(manner, Manner::Stops(..)) && took < LIFE => {}
                    // Only of those that do not read at once.
                    RequestError::Yielded | RequestError::SlowClient(_)
                        if matches!(manner, Manner::Stops(..) | Manner::Slowly(_)) => {}
                    RequestError::ShuttingDown if self.stopped => {}
                    error => return unjustified(error),
                }
            }
        }
        Ok(())
    }
}

fn tenant(script: &Script) -> TenantId {
    TenantId::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, script.tenant)))
}
