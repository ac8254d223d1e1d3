//! A socket that fails when its peer takes nothing for too long, or too little, so that a stuck or slow client does not
//! hold its connection.

use super::connection::{Activity, Busy};
use omni_telemetry::HttpMetrics;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Wraps a socket: watches writes.
pub(super) struct StallGuard<T> {
    inner: T,
    limit: Duration,
    /// Bytes that the peer has to take while bytes wait for it for as long as `limit`; 0 is no limit.
    least: u64,
    /// Runs while a write waits for the peer.
    deadline: Pin<Box<Sleep>>,
    /// Since when a write waits.
    waiting: Option<Instant>,
    pace: Pace,
    /// A connection with bytes that wait for its client is in use.
    activity: Option<Arc<Activity>>,
    busy: Option<Busy>,
}

/// What the peer has taken since a while.
#[derive(Debug)]
struct Pace {
    begun: Instant,
    /// How long writes have waited for the peer.
    waited: Duration,
    bytes: u64,
}

impl Pace {
    fn new() -> Pace {
        Pace { begun: Instant::now(), waited: Duration::ZERO, bytes: 0 }
    }
}

impl<T> StallGuard<T> {
    pub fn new(inner: T, limit: Duration) -> StallGuard<T> {
        let deadline = Box::pin(tokio::time::sleep(limit));
        let (pace, least, waiting) = (Pace::new(), 0, None);
        StallGuard { inner, limit, least, deadline, waiting, pace, activity: None, busy: None }
    }

    /// Gives up a peer that takes fewer bytes per second although more wait for it.
    pub fn paced(self, bytes_per_second: u64) -> StallGuard<T> {
        let least = (self.limit.as_secs_f64() * bytes_per_second as f64) as u64;
        StallGuard { least, ..self }
    }

    /// Says that the connection is in use while bytes wait for its client.
    pub fn shown(self, activity: Arc<Activity>) -> StallGuard<T> {
        StallGuard { activity: Some(activity), ..self }
    }

    fn watch(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        if let Poll::Ready(written) = result {
            self.busy = None;
            if let Some(since) = self.waiting.take() {
                self.pace.waited += now - since;
            }
            self.pace.bytes += *written.as_ref().unwrap_or(&0) as u64;
            let passed = now - self.pace.begun;
            if passed < self.limit {
                return Poll::Ready(written);
            }
            let pace = std::mem::replace(&mut self.pace, Pace::new());
            // Where writes did not wait most of the time there was little to send.
            if pace.waited >= passed.mul_f64(0.9) && pace.bytes < self.least {
                HttpMetrics::evicted("slow");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
            }
            return Poll::Ready(written);
        }
        if self.waiting.is_none() {
            self.waiting = Some(now);
            self.busy = self.activity.as_ref().map(Activity::busy);
            let until = now + self.limit;
            self.deadline.as_mut().reset(until);
        }
        ready!(self.deadline.as_mut().poll(cx));
        self.waiting = None;
        HttpMetrics::evicted("slow");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallGuard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (near, far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(30));
        let error = guarded.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }

    /// Reads four bytes every 20 s and tells how many there were.
    async fn reads_slowly(mut far: DuplexStream) -> usize {
        let mut total = 0;
        let mut buffer = [0; 4];
        while let Ok(count @ 1..) = far.read(&mut buffer).await {
            total += count;
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        total
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_waited_for_and_silence_is_no_stall() {
        let (near, far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(30));
        let reader = tokio::spawn(reads_slowly(far));
        guarded.write_all(&[0; 40]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(300)).await; // nothing to send
        guarded.write_all(&[0; 24]).await.unwrap();
        drop(guarded);
        assert_eq!(reader.await.unwrap(), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_below_the_least_pace_is_given_up_and_one_at_it_is_not() {
        let (near, far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(100)).paced(1);
        let reader = tokio::spawn(reads_slowly(far));
        let error = guarded.write_all(&[0; 400]).await.unwrap_err();
        assert!(error.to_string().contains("too slowly"), "{error}");
        drop(guarded);
        assert!(reader.await.unwrap() < 60);

        let (near, mut far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, Duration::from_secs(100)).paced(1);
        let reader = tokio::spawn(async move {
            let mut buffer = [0; 4];
            while far.read_exact(&mut buffer).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(4)).await;
            }
        });
        guarded.write_all(&[0; 400]).await.unwrap();
        drop(guarded);
        reader.await.unwrap();
    }
}
