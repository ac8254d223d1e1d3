//! What must hold in a simulation after each event, and when all is over.

use super::super::edges::lock;
use super::{MEDIA_MEMORY, World};
use crate::admission::Entrant;
use crate::api::{RequestOptions, Slo};
use omni_stage::StageState;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl World<'_> {
    pub(super) fn check(&mut self) -> Result<(), String> {
        let over = std::mem::take(&mut lock(&self.windows).over);
        if let Some((request, edge, acked, made)) = over.first() {
            return Err(format!("{request}: {acked} units of {made} were taken over on {edge:?}"));
        }
        let ahead = std::mem::take(&mut lock(&self.windows).ahead);
        if let Some((request, edge, made, most)) = ahead.first() {
            return Err(format!("{request} is {made} units far on {edge:?}, beyond its window, which ends at {most}"));
        }
        let again = std::mem::take(&mut lock(&self.windows).again);
        // A stage that dies before its last output has got away takes its input over once more.
        let unbroken = self.report.faults.is_empty() && self.report.poisoned == 0;
        if let Some((request, edge)) = again.first().filter(|_| unbroken) {
            return Err(format!("{request}: more was taken over on {edge:?} after its producer had been let go"));
        }
        // Counting them each time would take longer than all the rest.
        if self.report.events.is_multiple_of(64) {
            let (held, places) =
                (self.clients.iter().filter(|client| client.holds()).count(), self.scenario.shape.places);
            let status = self.admissions.status();
            let (entries, rows, _) = self.ledger.held();
            // A stream whose place another one took is there until its client has heard so.
            // As many as there are places may be paused.
            if !(entries..=held).contains(&status.held) || status.held > 2 * places {
                return Err(format!("{} permits for {entries} of {held} streams, of {places} places", status.held));
            }
            if entries != rows || entries > held {
                return Err(format!("{entries} entries and {rows} journals in the ledger for {held} streams"));
            }
        }
        Ok(())
    }

    /// What must hold when all is over.
    pub(super) fn last(&mut self) -> Result<(), String> {
        if let Some(client) = self.clients.iter().find(|client| client.holds()) {
            return Err(format!("{} never ended; its stream has {:?}", client.request, client.end));
        }
        if self.report.ended != self.report.accepted {
            return Err(format!("{} requests were accepted and {} ended", self.report.accepted, self.report.ended));
        }
        let held = self.ledger.held();
        if held != (0, 0, 0) {
            return Err(format!("the ledger holds {held:?}: entries, journals, bytes"));
        }
        for stage in &self.stages {
            let (load, entries) = (stage.stage.load(), stage.stage.entries());
            let left = load.sequences + load.slots + load.inputs + load.queued + entries;
            if left > 0 {
                return Err(format!("the {} holds {load:?} and {entries} entries", stage.stage.name()));
            }
            let status = stage.handle.status().borrow().state;
            if !self.stopped && !stage.given_up && status != StageState::Running {
                return Err(format!("the {} is {status:?}", stage.stage.name()));
            }
        }
        // A payload that was to be overtaken, and that nothing followed.
        self.stages.iter_mut().for_each(|stage| stage.wire.cut());
        if self.leases.live() > 0 {
            return Err(format!("{} leases", self.leases.live()));
        }
        if self.encodes.memory.take(MEDIA_MEMORY).is_err() {
            return Err("requests that are over hold memory for media".into());
        }
        let status = self.admissions.status();
        if status.held > 0 {
            return Err(format!("admission counts {status:?}"));
        }
        // What was learned under load and faults must not shut an idle server for long.
        let later = self.now() + Duration::from_secs(120);
        self.nanos.store(later.as_nanos() as u64, Ordering::Relaxed);
        let options = RequestOptions { slo: Slo::Realtime(Duration::from_secs(2)), ..RequestOptions::default() };
        let entrant = Entrant { options: &options, steady: true, chat: false, sounds: true, restarts: 0 };
        match self.admissions.enter(entrant) {
            Ok(permit) => drop(permit),
            Err(refused) => return Err(format!("an idle server refuses: {refused}")),
        }
        Ok(())
    }
}
