//! The tokens that penalties look at.

/// The tokens that a sequence has sampled, and how often. Placeholders are not counted: a token enters when it is
/// known.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Sorted by token. A prompt token that was never sampled has count 0.
    counts: Vec<(u32, u32)>,
}

impl History {
    /// Empty, with room for `tokens` different tokens, so that sampling does not allocate.
    pub fn with_capacity(tokens: usize) -> History {
        History { counts: Vec::with_capacity(tokens) }
    }

    /// Adds a sampled token.
    pub fn push(&mut self, token: u32) {
        match self.counts.binary_search_by_key(&token, |c| c.0) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (token, 1)),
        }
    }

    /// Adds prompt tokens, to which only the repetition penalty applies. The reference does so for the thinker; the
    /// talker's prompt is not made of tokens.
    pub fn push_prompt(&mut self, tokens: &[u32]) {
        for &token in tokens {
            if let Err(at) = self.counts.binary_search_by_key(&token, |c| c.0) {
                self.counts.insert(at, (token, 0));
            }
        }
    }

    /// Forgets everything and keeps the room.
    pub fn clear(&mut self) {
        self.counts.clear();
    }

    /// Each token once, with the number of times it was sampled.
    pub fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_listed_once_with_its_count() {
        let mut history = History::with_capacity(4);
        history.push_prompt(&[9, 2, 9]);
        for token in [5, 2, 5, 5] {
            history.push(token);
        }
        assert_eq!(history.counts(), [(2, 1), (5, 3), (9, 0)]);
        history.clear();
        assert!(history.counts().is_empty());
    }
}
