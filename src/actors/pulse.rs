//! Signs of life of a generation's actors and threads: the supervisor's watchdog reads them.

use omni_telemetry::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Who of a stage can hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    // Ahead of the runner: on the launch thread both are busy while the sampler is.
    Sampler,
    Runner,
    Scheduler,
    Packager,
    Inbound,
    Outbound,
}

impl Role {
    pub const ALL: [Role; 6] =
        [Role::Sampler, Role::Runner, Role::Scheduler, Role::Packager, Role::Inbound, Role::Outbound];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Sampler => "sampler",
            Role::Runner => "runner",
            Role::Scheduler => "scheduler",
            Role::Packager => "packager",
            Role::Inbound => "inbound connector",
            Role::Outbound => "outbound connector",
        }
    }

    /// The part of its actor's name.
    pub fn actor(self) -> &'static str {
        match self {
            Role::Inbound => "connector-in",
            Role::Outbound => "connector-out",
            other => other.as_str(),
        }
    }

    /// Whether it has a thread, which nothing can end from outside.
    pub fn is_thread(self) -> bool {
        matches!(self, Role::Sampler | Role::Runner)
    }
}

/// See the module.
pub(super) struct Pulse {
    clock: Clock,
    born: Duration,
    /// Since when each role has been at one thing: milliseconds after birth, plus one; 0 while it waits for work.
    busy: [AtomicU64; Role::ALL.len()],
    stopping: AtomicBool,
    gone: tokio::sync::watch::Sender<bool>,
}

/// A role is busy for as long as this lives.
pub(super) struct AtWork(Arc<Pulse>, Role);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.rest(self.1);
    }
}

impl Pulse {
    pub fn new(clock: Clock) -> Arc<Pulse> {
        let (born, gone) = (clock.now(), tokio::sync::watch::Sender::new(false));
        Arc::new(Pulse { clock, born, busy: Default::default(), stopping: AtomicBool::new(false), gone })
    }

    /// Time since the generation began, the clock of its cores.
    pub fn now(&self) -> Duration {
        self.clock.now().saturating_sub(self.born)
    }

    /// A role takes something up.
    pub fn take(&self, role: Role) {
        self.busy[role as usize].store(self.now().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    /// A role is done with it.
    pub fn rest(&self, role: Role) {
        self.busy[role as usize].store(0, Ordering::Relaxed);
    }

    /// [`Pulse::take`], and [`Pulse::rest`] when the returned value is dropped.
    pub fn at_work(self: &Arc<Self>, role: Role) -> AtWork {
        self.take(role);
        AtWork(Arc::clone(self), role)
    }

    /// Since when each role has been at one thing, by [`Pulse::now`]; `None` while it waits for work.
    pub fn busy_since(&self) -> [Option<Duration>; Role::ALL.len()] {
        Role::ALL.map(|role| match self.busy[role as usize].load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_millis(since - 1)),
        })
    }

    /// Asks the launch thread to end before its next command, and the sampler to read nothing more of the steps that it
    /// waits for.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The threads have ended and the device state is gone.
    pub fn set_gone(&self) {
        self.rest(Role::Runner);
        self.gone.send_replace(true);
    }

    /// Resolves when the threads have ended and the device state is gone.
    pub async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::Watchdog;

    #[test]
    fn what_the_sampler_does_on_the_launch_thread_is_not_blamed_on_the_runner() {
        let pulse = Pulse::new(Clock::system());
        // Whom the watchdog blames, after silence that is a hang on any machine.
        let blamed = || {
            let mut watchdog = Watchdog::new(Duration::from_secs(1));
            let later = |look: u64| Duration::from_secs(60 + look);
            let strike = (0..16).find_map(|look| watchdog.look(later(look), Duration::ZERO, &pulse.busy_since()));
            strike.map(|(at, _)| Role::ALL[at])
        };
        pulse.take(Role::Runner);
        pulse.take(Role::Sampler);
        assert_eq!(blamed(), Some(Role::Sampler));
        pulse.rest(Role::Sampler);
        assert_eq!(blamed(), Some(Role::Runner));
        pulse.rest(Role::Runner);
        assert_eq!(blamed(), None);
    }
}
