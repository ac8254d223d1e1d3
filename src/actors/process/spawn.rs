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
/// A child that the kernel has not ended after this long (it waits for a disk or a driver that does not answer) is left
/// behind. Giving the memory of a large model back takes a few seconds.
const BURIAL: Duration = Duration::from_secs(10);
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
            match spawned {
                Ok(child) => {
                    let _ = told.send(Ok(child.id()));
                    look_after(child, &received, &tell_end);
                }
                Err(error) => _ = told.send(Err(error)),
            }
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
        match tokio::time::timeout(BURIAL, self.ended.wait_for(Option::is_some)).await {
            Ok(Ok(how)) => how.clone().unwrap_or_default(),
            Ok(Err(_)) => "the thread that looks after it ended".to_owned(),
            // The thread waits on, and nothing waits for the thread.
            Err(_) => "the kernel does not end its process, which is left behind".to_owned(),
        }
    }
}

/// What can be done with a child.
trait Mortal {
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>>;
    fn kill_and_wait(&mut self) -> io::Result<ExitStatus>;
}

impl Mortal for Child {
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        Child::try_wait(self)
    }

    fn kill_and_wait(&mut self) -> io::Result<ExitStatus> {
        self.kill()?;
        self.wait()
    }
}

/// Carries out the orders for a child, until it has ended.
fn look_after(mut child: impl Mortal, orders: &flume::Receiver<Order>, tell_end: &watch::Sender<Option<String>>) {
    let status = match orders.recv() {
        Ok(Order::Reap) => last_moments(&mut child, orders),
        Ok(Order::Kill) | Err(_) => None,
    };
    let _ = tell_end.send(Some(described(status.map_or_else(|| child.kill_and_wait(), Ok))));
}

fn last_moments(child: &mut impl Mortal, orders: &flume::Receiver<Order>) -> Option<ExitStatus> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A child in a system call that never returns: no signal ends it until the test lets it go.
    struct Uninterruptible(flume::Receiver<()>);

    impl Mortal for Uninterruptible {
        fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
            Ok(None)
        }

        fn kill_and_wait(&mut self) -> io::Result<ExitStatus> {
            let _ = self.0.recv();
            Ok(ExitStatus::from_raw(9))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_that_the_kernel_does_not_end_is_left_behind() {
        let (let_go, held) = flume::bounded(1);
        let (orders, received) = flume::bounded(8);
        let (tell_end, ended) = watch::channel(None);
        let thread = std::thread::spawn(move || look_after(Uninterruptible(held), &received, &tell_end));
        let mut process = Process { pid: 1, orders, ended };
        let begun = tokio::time::Instant::now();
        assert!(process.kill().await.contains("left behind"));
        assert_eq!(begun.elapsed(), BURIAL);
        // The system call returns after all: the child is reaped and leaves no zombie.
        let_go.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(process.kill().await, "its process was killed by signal 9");
    }
}
