//! A child process, and the thread that looks after it: the thread that starts a child lives as long as the child does,
//! for the kernel ends children with the *thread* that started them; it is also the only one that ends and reaps it, so
//! no signal can reach another process that has the same number by then.

use omni_core::ids::StageName;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// A child that has closed its link is about to end; one that takes longer than this is ended.
const LAST_MOMENTS: Duration = Duration::from_millis(200);
/// How often the thread looks whether it has ended.
const GLANCE: Duration = Duration::from_millis(2);

enum Order {
    /// It ends by itself, or nearly.
    Reap,
    /// End it.
    Kill,
}

/// A running child. Dropped, the child is ended.
pub(super) struct Process {
    /// As the system counts it.
    pub pid: u32,
    orders: flume::Sender<Order>,
    ended: watch::Receiver<Option<String>>,
}

impl Process {
    /// Starts a child in a process group of its own: what a terminal tells the parent, the parent tells its children.
    pub async fn spawn(mut command: Command, stage: StageName) -> io::Result<Process> {
        command.process_group(0);
        let (told, started) = oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "a process is given two orders in its life")]
        let (orders, received) = flume::unbounded();
        let (tell_end, ended) = watch::channel(None);
        std::thread::Builder::new().name(format!("{stage}-process")).spawn(move || {
            let spawned = command.spawn();
            // With it the parent's copy of the child's end of the link: only then does the link end with the child.
            drop(command);
            let mut child = match spawned {
                Ok(child) => child,
                Err(error) => return drop(told.send(Err(error))),
            };
            let _ = told.send(Ok(child.id()));
            let status = match received.recv() {
                Ok(Order::Reap) => last_moments(&mut child, &received),
                Ok(Order::Kill) | Err(_) => None,
            };
            let _ = tell_end.send(Some(described(status.map_or_else(|| killed(&mut child), Ok))));
        })?;
        let pid = started.await.map_err(|_| io::Error::other("the thread that starts it ended"))??;
        Ok(Process { pid, orders, ended })
    }

    /// Waits for a child that has closed its link. How it ended.
    pub async fn reap(&mut self) -> String {
        let _ = self.orders.send(Order::Reap);
        self.ended().await
    }

    /// Ends it. How it ended.
    pub async fn kill(&mut self) -> String {
        let _ = self.orders.send(Order::Kill);
        self.ended().await
    }

    async fn ended(&mut self) -> String {
        match self.ended.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => "the thread that looks after it ended".to_owned(),
        }
    }
}

fn last_moments(child: &mut Child, orders: &flume::Receiver<Order>) -> Option<ExitStatus> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < LAST_MOMENTS {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if let Ok(Order::Kill) = orders.recv_timeout(GLANCE) {
            break;
        }
    }
    None
}

fn killed(child: &mut Child) -> io::Result<ExitStatus> {
    child.kill()?;
    child.wait()
}

fn described(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("its process exited with code {code}"),
            (None, Some(signal)) => format!("its process was killed by signal {signal}"),
            (None, None) => "its process ended".to_owned(),
        },
        Err(error) => format!("its process cannot be ended: {error}"),
    }
}
