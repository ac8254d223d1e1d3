//! A socket that tells when its peer has hung up, also where no task reads from it.
//!
//! While a request is answered the HTTP layer reads ahead to notice that its client leaves. It stops as soon as there is
//! something to read, such as a byte behind the request; then it would make the whole answer for no client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How often the system is asked. A client that has sent all and waits for what is wrong with it gets its answer before.
const EVERY: Duration = Duration::from_millis(500);

/// Bytes that may wait in the kernel because the peer's own buffer is full: 0.7 s of PCM. The next write waits, so that it
/// is soon seen who does not read.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 32 << 10;

/// A TCP socket of which another task may ask whether its peer has hung up.
#[derive(Clone)]
pub(super) struct Socket(Arc<TcpStream>);

impl Socket {
    pub fn new(socket: TcpStream) -> Socket {
        // Only a dead socket refuses the option.
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
        Socket(Arc::new(socket))
    }

    /// Resolves when the peer has closed its side for a while, whatever it has sent before.
    pub async fn hung_up(&self) {
        let mut looks = tokio::time::interval(EVERY);
        let mut before = false;
        loop {
            looks.tick().await;
            let now = has_hung_up(&self.0);
            if now && before {
                return;
            }
            before = now;
        }
    }
}

#[cfg(target_os = "linux")]
fn has_hung_up(socket: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Elsewhere the HTTP layer's own look has to do.
#[cfg(not(target_os = "linux"))]
fn has_hung_up(_: &TcpStream) -> bool {
    false
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Socket {
    /// Tries to write until the socket takes something or has to be waited for.
    fn poll_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |socket| socket.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A peer that is gone has shut down too.
        let _ = rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, Socket::new(listener.accept().await.unwrap().0))
    }

    #[tokio::test]
    async fn a_peer_that_left_bytes_behind_has_hung_up() {
        let (mut client, server) = pair().await;
        client.write_all(b"x").await.unwrap();
        assert!(!has_hung_up(&server.0));
        drop(client);
        server.hung_up().await;
    }

    #[tokio::test]
    async fn it_reads_and_writes_as_a_socket_does() {
        let (mut client, mut server) = pair().await;
        let sent: Vec<u8> = (0..1_000_000_u32).map(|at| at as u8).collect();
        let writing = sent.clone();
        let writer = tokio::spawn(async move {
            server.write_all(&writing).await.unwrap();
            let mut word = [0; 5];
            server.read_exact(&mut word).await.unwrap();
            server.shutdown().await.unwrap();
            word
        });
        let mut got = vec![0; sent.len()];
        client.read_exact(&mut got).await.unwrap();
        assert!(got == sent);
        client.write_all(b"hello").await.unwrap();
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(&writer.await.unwrap(), b"hello");
    }
}
