//! Supervisors act first and log second. In a process of its own: who hears log lines is decided once in a process.
#![allow(clippy::unwrap_used)]

mod support;

use omni_actors::config::Placement;
use omni_actors::core::ids::StageName;
use omni_actors::engine::{Engine, Service, StageState};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::sync::{Arc, Mutex, OnceLock};
use support::engine::{engine, frames, say, tiny};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Notes what the talker's state is while the line about its failure is being written.
#[derive(Clone, Default)]
struct Looks {
    engine: Arc<OnceLock<Engine>>,
    seen: Arc<Mutex<Vec<StageState>>>,
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber> Layer<S> for Looks {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        if let (true, Some(engine)) = (message.0 == "stage failed", self.engine.get()) {
            self.seen.lock().unwrap().push(engine.health()[StageName::Talker].state);
        }
    }
}

/// On one thread, so that the subscriber of this test hears the supervisor.
#[tokio::test]
async fn a_stage_is_closed_and_its_loss_reported_before_its_failure_is_logged() {
    for placement in [Placement::Thread, Placement::Process] {
        let looks = Looks::default();
        let _hearing = tracing::subscriber::set_default(tracing_subscriber::registry().with(looks.clone()));
        let rule = FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).nth(5);
        let engine = engine(&tiny(), |config| {
            config.faults = vec![rule];
            config.stages[StageName::Talker as usize].placement = placement;
        })
        .await;
        assert!(looks.engine.set(engine.clone()).is_ok());
        assert!(say(&engine, frames(12, 5)).await.end.unwrap().is_ok());
        assert_eq!(*looks.seen.lock().unwrap(), [StageState::Restarting], "{placement:?}");
    }
}
