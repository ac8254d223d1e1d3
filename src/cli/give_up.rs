//! A server that has given up one of its stages cannot do its work, and a new process may: it ends, in order, and its
//! exit code tells the service manager why.

use super::served::Served;
use omni_tools::exit::GivenUp;
use omni_tools::signals::Signals;
use std::sync::OnceLock;

/// Resolves when the server is to stop taking requests: by a signal, or because a stage that served was given up, which
/// `lost` tells then. From the second signal on the process ends at once, in either case.
pub async fn asked_to_end(signals: Signals, engine: &Served, lost: &OnceLock<GivenUp>) {
    let asked = tokio::spawn(signals.first_asks_second_ends());
    let given_up = async {
        // A stage that never came up ends the start.
        if engine.settled().await.is_err() {
            std::future::pending::<()>().await;
        }
        let (stage, reason) = engine.given_up().await;
        let _ = lost.set(GivenUp { stage, reason });
    };
    tokio::select! {
        _ = asked => {}
        () = given_up => {}
    }
}
