//! Turns at the encoder: one recording after the other, requests that speak before uploads, tenants in turn.

use crate::api::TenantId;
use crate::voice::VoiceError;
use omni_core::turns::{Line, TurnLimits};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Recordings of requests that may wait: more than there are places by default.
const REQUESTS: TurnLimits = TurnLimits { all: 64, each: 32 };
/// Uploads that may wait. A client that uploads one after the other never has more than one.
const UPLOADS: TurnLimits = TurnLimits { all: 16, each: 4 };

/// What a recording is encoded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A listener waits.
    Request,
    /// A voice is to be kept.
    Upload,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Turns(Arc<Mutex<Lines>>);

struct Lines {
    requests: Line<TenantId, oneshot::Sender<Turn>>,
    uploads: Line<TenantId, oneshot::Sender<Turn>>,
    /// Whether one has its turn.
    taken: bool,
}

/// The right to use the encoder, until it is dropped.
pub(super) struct Turn {
    turns: Turns,
    /// Whether it is given on when it is dropped.
    gives: bool,
}

impl Turns {
    pub fn new() -> Turns {
        let lines = Lines { requests: Line::new(REQUESTS), uploads: Line::new(UPLOADS), taken: false };
        Turns(Arc::new(Mutex::new(lines)))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// [`VoiceError::Busy`] where too many wait.
    pub async fn take(&self, tenant: TenantId, purpose: Purpose) -> Result<Turn, VoiceError> {
        let turn = {
            let mut lines = self.lock();
            if !lines.taken {
                lines.taken = true;
                return Ok(self.turn());
            }
            let line = match purpose {
                Purpose::Request => &mut lines.requests,
                Purpose::Upload => &mut lines.uploads,
            };
            // Clients that left meanwhile wait no more.
            line.retain(|waiting| !waiting.is_closed());
            let (give, turn) = oneshot::channel();
            line.push(tenant, give).map_err(|_| VoiceError::Busy)?;
            turn
        };
        turn.await.map_err(|_| VoiceError::Busy)
    }

    fn turn(&self) -> Turn {
        Turn { turns: self.clone(), gives: true }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.gives {
            return;
        }
        loop {
            let next = {
                let mut lines = self.turns.lock();
                // A client that left costs its tenant no turn.
                lines.requests.retain(|waiting| !waiting.is_closed());
                lines.uploads.retain(|waiting| !waiting.is_closed());
                let next = lines.requests.pop().or_else(|| lines.uploads.pop());
                lines.taken = next.is_some();
                next
            };
            let Some(next) = next else { return };
            match next.send(self.turns.turn()) {
                Ok(()) => return,
                // Its client left. The turn that it did not take must not be given on twice.
                Err(mut turn) => turn.gives = false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Turn, VoiceError>> + 'a>>;

    fn look(waiting: &mut Waiting<'_>) -> Poll<Result<Turn, VoiceError>> {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn requests_go_before_uploads_and_an_upload_in_a_loop_keeps_no_other_out() {
        let turns = Turns::new();
        let wait = |number, purpose| -> Waiting<'_> { Box::pin(turns.take(TenantId::Key(number), purpose)) };
        let Poll::Ready(Ok(first)) = look(&mut wait(1, Purpose::Upload)) else { panic!("it is free") };
        let mut loud: Vec<_> = (0..5).map(|_| wait(1, Purpose::Upload)).collect();
        let busy: Vec<_> = loud.iter_mut().map(|one| matches!(look(one), Poll::Ready(Err(VoiceError::Busy)))).collect();
        assert_eq!(busy, [false, false, false, false, true]);
        let (mut quiet, mut request) = (wait(2, Purpose::Upload), wait(3, Purpose::Request));
        assert!(look(&mut quiet).is_pending() && look(&mut request).is_pending());
        drop(first);
        assert!(look(&mut loud[0]).is_pending() && look(&mut quiet).is_pending());
        let Poll::Ready(Ok(turn)) = look(&mut request) else { panic!("a listener waits") };
        // One that leaves is passed over.
        drop(loud.remove(0));
        drop(turn);
        let Poll::Ready(Ok(turn)) = look(&mut loud[0]) else { panic!("the first line that is left") };
        drop(turn);
        let Poll::Ready(Ok(turn)) = look(&mut quiet) else { panic!("tenants take turns") };
        drop((turn, loud));
        assert!(matches!(look(&mut wait(9, Purpose::Upload)), Poll::Ready(Ok(_))));
    }
}
