//! A socket that fails when its peer takes nothing for too long, so that a stuck client does not hold its connection.

use super::budget::Intake;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Wraps a socket: watches writes, counts reads.
pub(super) struct StallGuard<T> {
    inner: T,
    limit: Duration,
    /// Runs while a write waits for the peer.
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
    /// Counts bytes that are read; `None` counts none.
    intake: Option<Arc<Intake>>,
}

impl<T> StallGuard<T> {
    pub fn new(inner: T, limit: Duration) -> StallGuard<T> {
        StallGuard { inner, limit, deadline: Box::pin(tokio::time::sleep(limit)), waiting: false, intake: None }
    }

    /// Counts bytes that are read.
    pub fn counted(self, intake: Arc<Intake>) -> StallGuard<T> {
        StallGuard { intake: Some(intake), ..self }
    }

    fn watch<R>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.waiting = false;
            return result;
        }
        if !self.waiting {
            self.waiting = true;
            let until = Instant::now() + self.limit;
            self.deadline.as_mut().reset(until);
        }
        ready!(self.deadline.as_mut().poll(cx));
        self.waiting = false;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallGuard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        match &self.intake {
            Some(intake) if !intake.read(read) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, "clients have sent too much together")))
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallGuard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (near, far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(30));
        let error = guarded.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_waited_for_and_silence_is_no_stall() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(30));
        let reader = tokio::spawn(async move {
            let mut total = 0;
            let mut buffer = [0; 4];
            while let Ok(count @ 1..) = far.read(&mut buffer).await {
                total += count;
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
            total
        });
        guarded.write_all(&[0; 40]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(300)).await; // nothing to send
        guarded.write_all(&[0; 24]).await.unwrap();
        drop(guarded);
        assert_eq!(reader.await.unwrap(), 64);
    }
}
