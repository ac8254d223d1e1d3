//! Text that a WebSocket client has sent and the engine has not taken yet, cut into utterances. A plain state machine:
//! no sockets, no clock.

use std::collections::VecDeque;

/// What a piece takes besides its bytes: its place in the queue and its allocation.
const PIECE: usize = 48;

/// What the engine gets next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Text(&'a str),
    /// The utterance is complete.
    End,
}

/// What became of the end of an utterance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The engine gets it as [`Next::End`].
    Queued,
    /// The utterance had failed before.
    Dropped,
    /// The utterance had been cancelled before.
    Cancelled,
}

/// Why text or an end was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// More characters are waiting or in this utterance than the limit allows. The utterance is dropped.
    TooLong,
    /// The server has no room for more text. The utterance is dropped.
    Full,
    /// An end without any text before it.
    NoText,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Input {
    pieces: VecDeque<Option<String>>,
    /// Limit on the characters of one utterance, and on all that wait.
    limit: usize,
    /// Characters of the utterance that is being sent, taken or not.
    utterance_chars: usize,
    /// Characters in `pieces`.
    waiting_chars: usize,
    /// What `pieces` take.
    bytes: usize,
    /// The utterance being sent has text.
    open: bool,
    /// Sentences that the client has marked in it.
    committed: u32,
    /// The rest of the utterance being sent is dropped.
    discarding: bool,
    /// The client cancelled before it ended its utterance; an end that it may still send has no effect.
    cancelled: bool,
}

impl Input {
    pub fn new(limit: usize) -> Input {
        let pieces = VecDeque::new();
        Input {
            pieces,
            limit,
            utterance_chars: 0,
            waiting_chars: 0,
            bytes: 0,
            open: false,
            committed: 0,
            discarding: false,
            cancelled: false,
        }
    }

    /// Characters that an utterance, or what waits, may have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The client ended a sentence, but not its utterance. Returns which sentence (0, 1, ...); `None` without any text.
    pub fn commit(&mut self) -> Option<u32> {
        let sentence = self.open.then_some(self.committed)?;
        self.committed = sentence.saturating_add(1);
        Some(sentence)
    }

    /// A piece of text arrived.
    pub fn push_text(&mut self, text: String) -> Result<(), Refused> {
        if self.discarding || text.is_empty() {
            return Ok(());
        }
        let chars = text.chars().count();
        self.cancelled = false;
        if self.utterance_chars + chars > self.limit || self.waiting_chars + chars > self.limit {
            self.open = true;
            self.drop_newest();
            return Err(Refused::TooLong);
        }
        self.open = true;
        self.utterance_chars += chars;
        self.waiting_chars += chars;
        self.bytes += PIECE + text.len();
        self.pieces.push_back(Some(text));
        Ok(())
    }

    /// The client ended its utterance.
    pub fn push_end(&mut self) -> Result<Ended, Refused> {
        let (open, discarding) = (self.open, self.discarding);
        let cancelled = std::mem::take(&mut self.cancelled);
        self.open = false;
        self.committed = 0;
        self.discarding = false;
        self.utterance_chars = 0;
        match (open, discarding) {
            (true, false) => {
                self.bytes += PIECE;
                self.pieces.push_back(None);
                Ok(Ended::Queued)
            }
            (_, true) => Ok(Ended::Dropped),
            (false, false) if cancelled => Ok(Ended::Cancelled),
            (false, false) => Err(Refused::NoText),
        }
    }

    /// What the engine should get next.
    pub fn next(&self) -> Option<Next<'_>> {
        self.pieces.front().map(|piece| piece.as_deref().map_or(Next::End, Next::Text))
    }

    /// The engine took it.
    pub fn advance(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.forget(piece);
        }
    }

    /// Bytes that the text takes which waits.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// There is no room for the piece that came last: drops its utterance.
    pub fn refuse_newest(&mut self) -> Refused {
        self.drop_newest();
        Refused::Full
    }

    /// A piece waits no more. True if it was the end of an utterance.
    fn forget(&mut self, piece: Option<String>) -> bool {
        self.bytes -= PIECE + piece.as_ref().map_or(0, String::len);
        self.waiting_chars -= piece.as_ref().map_or(0, |text| text.chars().count());
        piece.is_none()
    }

    /// The utterance at the front is over before its text: drops the text up to its end, now or when it comes. True if
    /// the end had come already.
    pub fn skip_utterance(&mut self) -> bool {
        while let Some(piece) = self.pieces.pop_front() {
            if self.forget(piece) {
                return true;
            }
        }
        self.discarding = self.open;
        false
    }

    /// Drops everything. What comes next is a new utterance.
    pub fn cancel(&mut self) {
        let limit = self.limit;
        let cancelled = self.open || self.cancelled;
        *self = Input { cancelled, ..Input::new(limit) };
    }

    /// The client is still sending the text of an utterance.
    pub fn is_open(&self) -> bool {
        self.open && !self.discarding
    }

    /// Drops the text of the utterance that is being sent: what waits, and what the client still sends of it.
    fn drop_newest(&mut self) {
        while matches!(self.pieces.back(), Some(Some(_))) {
            if let Some(piece) = self.pieces.pop_back() {
                self.forget(piece);
            }
        }
        self.discarding = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(input: &mut Input) -> String {
        let mut out = String::new();
        while let Some(next) = input.next() {
            match next {
                Next::Text(text) => out.push_str(text),
                Next::End => out.push('|'),
            }
            input.advance();
        }
        out
    }

    #[test]
    fn utterances_come_out_in_order() {
        let mut input = Input::new(100);
        for text in ["Hello ", "there."] {
            input.push_text(text.to_owned()).unwrap();
        }
        input.push_end().unwrap();
        input.push_text("Next".to_owned()).unwrap();
        assert_eq!(drain(&mut input), "Hello there.|Next");
        input.push_end().unwrap();
        assert_eq!(drain(&mut input), "|");
    }

    #[test]
    fn sentences_are_counted_within_their_utterance() {
        let mut input = Input::new(100);
        assert_eq!(input.commit(), None);
        for sentence in 0..2 {
            input.push_text("One. ".to_owned()).unwrap();
            assert_eq!(input.commit(), Some(sentence));
        }
        input.push_end().unwrap();
        assert_eq!(input.commit(), None);
        input.push_text("Another".to_owned()).unwrap();
        assert_eq!(input.commit(), Some(0));
    }

    #[test]
    fn an_end_without_text_is_an_error_except_after_a_cancel() {
        let mut input = Input::new(100);
        assert_eq!(input.push_end(), Err(Refused::NoText));
        input.push_text("Hello".to_owned()).unwrap();
        input.cancel();
        assert_eq!(input.push_end(), Ok(Ended::Cancelled));
        assert_eq!(input.push_end(), Err(Refused::NoText));
        assert_eq!(drain(&mut input), "");
    }

    #[test]
    fn too_long_an_utterance_is_dropped_to_its_end_and_the_next_one_is_not() {
        let mut input = Input::new(8);
        input.push_text("12345".to_owned()).unwrap();
        assert_eq!(input.push_text("6789".to_owned()), Err(Refused::TooLong));
        assert_eq!(input.push_text("more".to_owned()), Ok(()));
        assert_eq!(input.push_end(), Ok(Ended::Dropped));
        input.push_text("fine".to_owned()).unwrap();
        input.push_end().unwrap();
        assert_eq!(drain(&mut input), "fine|");
    }

    #[test]
    fn the_limit_counts_text_that_the_engine_has_taken() {
        let mut input = Input::new(8);
        input.push_text("12345".to_owned()).unwrap();
        input.advance();
        assert_eq!(input.push_text("6789".to_owned()), Err(Refused::TooLong));
        assert!(!input.is_open());
    }

    #[test]
    fn a_failed_utterance_takes_only_its_own_text_along() {
        let mut input = Input::new(100);
        input.push_text("failed".to_owned()).unwrap();
        input.push_end().unwrap();
        input.push_text("fine".to_owned()).unwrap();
        assert!(input.skip_utterance());
        assert_eq!(drain(&mut input), "fine");
        assert!(!input.skip_utterance());
        input.push_text("still the same utterance".to_owned()).unwrap();
        assert_eq!(input.push_end(), Ok(Ended::Dropped));
        assert_eq!(drain(&mut input), "");
    }

    #[test]
    fn cancel_drops_queued_utterances_too() {
        let mut input = Input::new(100);
        input.push_text("one".to_owned()).unwrap();
        input.push_end().unwrap();
        input.push_text("two".to_owned()).unwrap();
        input.cancel();
        assert_eq!(input.next(), None);
        input.push_text("three".to_owned()).unwrap();
        input.push_end().unwrap();
        assert_eq!(drain(&mut input), "three|");
    }

    proptest::proptest! {
        #[test]
        fn whatever_happens_the_counts_are_right_and_the_next_utterance_is_heard(
            steps in proptest::collection::vec((0..6u8, 0..12usize), 0..60)
        ) {
            let mut input = Input::new(20);
            for (step, size) in steps {
                match step {
                    0 | 1 => drop(input.push_text("é".repeat(size))),
                    2 => drop(input.push_end()),
                    3 => input.advance(),
                    4 => drop(input.skip_utterance()),
                    _ => input.cancel(),
                }
                let waiting: usize = input.pieces.iter().flatten().map(|text| text.chars().count()).sum();
                proptest::prop_assert_eq!(waiting, input.waiting_chars);
                let size = |piece: &Option<String>| PIECE + piece.as_ref().map_or(0, String::len);
                proptest::prop_assert_eq!(input.pieces.iter().map(size).sum::<usize>(), input.bytes());
                proptest::prop_assert!(waiting <= 20);
            }
            let _ = input.push_end();
            drain(&mut input);
            input.push_text("fine".to_owned()).unwrap();
            input.push_end().unwrap();
            proptest::prop_assert_eq!(drain(&mut input), "fine|");
        }
    }
}
