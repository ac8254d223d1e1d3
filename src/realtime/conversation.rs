//! The items of a conversation, in their order, within limits on their number and bytes.

use crate::item::{Content, Item, MediaRoom};
use crate::job::PromptTurn;
use crate::refusal::Refusal;
use crate::session::Limits;
use crate::sound::UserSound;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    items: Vec<Item>,
    bytes: usize,
}

impl Conversation {
    /// Bytes that its items take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The id of the last item.
    pub fn last(&self) -> Option<&str> {
        self.items.last().map(|item| item.id.as_str())
    }

    /// Where an item of this id is.
    pub fn find(&self, id: &str) -> Option<usize> {
        self.items.iter().position(|item| item.id == id)
    }

    /// The item of this id.
    pub fn get(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    /// The id of the item in front of this one.
    pub fn before(&self, id: &str) -> Option<String> {
        let at = self.find(id)?.checked_sub(1)?;
        Some(self.items[at].id.clone())
    }

    /// Whether an item of so many bytes has room.
    pub fn check_room(&self, bytes: usize, limits: &Limits) -> Result<(), Refusal> {
        if self.items.len() >= limits.items {
            return Err(self.full(limits));
        }
        if self.bytes.saturating_add(bytes) > limits.bytes {
            let message = format!(
                "the conversation would take more than {} bytes (realtime.max_conversation_bytes); delete items",
                limits.bytes
            );
            return Err(Refusal::new("conversation_full", None, message));
        }
        Ok(())
    }

    /// Whether an answer has room: that to the last item that has any is one more.
    pub fn check_answer(&self, limits: &Limits) -> Result<(), Refusal> {
        if self.items.len() > limits.items { Err(self.full(limits)) } else { Ok(()) }
    }

    fn full(&self, limits: &Limits) -> Refusal {
        let message = format!(
            "the conversation has {} items, and the limit is {} (realtime.max_items); delete some",
            self.items.len(),
            limits.items
        );
        Refusal::new("conversation_full", None, message)
    }

    /// Puts an item at a place; what is in it is counted whether there is room or not.
    pub fn insert(&mut self, at: usize, item: Item) {
        self.bytes += item.bytes();
        self.items.insert(at.min(self.items.len()), item);
    }

    /// Puts an item at the end.
    pub fn push(&mut self, item: Item) {
        self.insert(self.items.len(), item);
    }

    /// Takes an item out.
    pub fn remove(&mut self, id: &str) -> Option<Item> {
        let item = self.items.remove(self.find(id)?);
        self.bytes -= item.bytes();
        Some(item)
    }

    /// Changes an item.
    pub fn change(&mut self, id: &str, change: impl FnOnce(&mut Item)) {
        if let Some(item) = self.items.iter_mut().find(|item| item.id == id) {
            self.bytes -= item.bytes();
            change(item);
            self.bytes += item.bytes();
        }
    }

    /// What the model reads, with an item behind all others that is none yet.
    pub fn prompt_with(&self, last: Option<&Item>, limits: &Limits) -> Vec<PromptTurn> {
        let items = || self.items.iter().chain(last);
        let media: Vec<(u64, u64)> = items().flat_map(Item::media).collect();
        let mut room = MediaRoom::of(limits, &media);
        let mut turns: Vec<_> =
            last.into_iter().chain(self.items.iter().rev()).filter_map(|item| item.prompt(&mut room)).collect();
        turns.reverse();
        PromptTurn::joined(turns)
    }

    /// The sound of an item of the user.
    pub fn sound(&self, id: &str) -> Option<UserSound> {
        self.get(id)?.content.iter().find_map(|content| match content {
            Content::InputAudio { sound: Some(sound), .. } => Some(sound.clone()),
            _ => None,
        })
    }

    #[cfg(test)]
    pub fn ids(&self) -> Vec<&str> {
        self.items.iter().map(|item| item.id.as_str()).collect()
    }

    #[cfg(test)]
    pub fn counted(&self) -> usize {
        self.items.iter().map(Item::bytes).sum()
    }
}
