//! The way of streamed text into the engine.

use flume::r#async::SendFut;

/// Gives the engine one piece of text after the other.
pub(super) struct Feed {
    pieces: flume::Sender<String>,
    /// The piece that waits for room. The channel may take it in before its future is asked again, so the future is
    /// kept: who stops waiting for it and begins anew gives the piece once.
    waiting: Option<SendFut<'static, String>>,
}

impl Feed {
    /// Into the channel from which the engine reads.
    pub fn new(pieces: flume::Sender<String>) -> Feed {
        Feed { pieces, waiting: None }
    }

    /// Gives the engine a piece: true once it has it, false if it takes none any more. It may be dropped and called
    /// again, with the same piece until it has said what became of it.
    pub async fn give(&mut self, piece: &str) -> bool {
        let waiting = self.waiting.get_or_insert_with(|| self.pieces.clone().into_send_async(piece.to_owned()));
        let taken = waiting.await.is_ok();
        self.waiting = None;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, poll};

    #[tokio::test]
    async fn a_piece_is_given_once_though_its_giver_turned_to_something_else() {
        let (sender, engine) = flume::bounded(1);
        let mut feed = Feed::new(sender);
        assert!(feed.give("one ").await);
        let mut giving = Box::pin(feed.give("two "));
        assert!(poll!(&mut giving).is_pending(), "there is no room");
        // The channel takes the second piece in, and who gives it turns to something else before it hears so.
        assert_eq!(engine.recv_async().await.as_deref(), Ok("one "));
        drop(giving);
        assert_eq!(feed.give("two ").now_or_never(), Some(true));
        assert_eq!(engine.recv_async().await.as_deref(), Ok("two "));
        assert!(feed.give("three").await);
        drop(feed);
        assert_eq!(engine.drain().collect::<String>(), "three");
        assert!(engine.is_disconnected());
    }

    #[tokio::test]
    async fn an_engine_that_has_stopped_takes_no_piece_that_waits() {
        let (sender, engine) = flume::bounded(1);
        let mut feed = Feed::new(sender);
        assert!(feed.give("one ").await);
        assert!(feed.give("two ").now_or_never().is_none());
        drop(engine);
        assert!(!feed.give("two ").await);
        assert!(!feed.give("three").await);
    }
}
