//! A body that reports what passes through it, and keeps what belongs to it until it has gone.

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// What a watched body tells, and keeps. It is dropped with the body.
pub(super) trait Watch: Send + Unpin + 'static {
    /// So many bytes have passed.
    fn passed(&self, _bytes: usize) {}
    /// The body has come to its end. May be told more than once.
    fn ended(&self) {}
}

/// The same body, watched.
pub(super) fn watched(body: Body, watch: impl Watch) -> Body {
    Body::new(Watched { body, watch })
}

struct Watched<W: Watch> {
    body: Body,
    watch: W,
}

impl<W: Watch> HttpBody for Watched<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.watch.passed(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) => {}
            None => self.watch.ended(),
        }
        if self.body.is_end_stream() && !matches!(frame, Some(Err(_))) {
            self.watch.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<W: Watch> Drop for Watched<W> {
    fn drop(&mut self) {
        // hyper does not ask for the end of an empty body.
        if self.body.is_end_stream() {
            self.watch.ended();
        }
    }
}
