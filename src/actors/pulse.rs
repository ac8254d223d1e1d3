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
    const ALL: [Role; 6] =
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

    /// A role that has been at one thing for longer than `limit`, and for how long.
    pub fn hung(&self, limit: Duration) -> Option<(Role, Duration)> {
        let now = self.now();
        let busy_for = |role: Role| match self.busy[role as usize].load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_sub(Duration::from_millis(since - 1)),
        };
        Role::ALL.map(|role| (role, busy_for(role))).into_iter().find(|(_, busy)| *busy > limit)
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

    #[test]
    fn what_the_sampler_does_on_the_launch_thread_is_not_blamed_on_the_runner() {
        let pulse = Pulse::new(Clock::system());
        pulse.take(Role::Runner);
        pulse.take(Role::Sampler);
        std::thread::park_timeout(Duration::from_millis(5));
        assert_eq!(pulse.hung(Duration::ZERO).map(|(role, _)| role), Some(Role::Sampler));
        pulse.rest(Role::Sampler);
        assert_eq!(pulse.hung(Duration::ZERO).map(|(role, _)| role), Some(Role::Runner));
        pulse.rest(Role::Runner);
        assert_eq!(pulse.hung(Duration::ZERO), None);
    }
}
