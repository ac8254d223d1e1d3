//! What a client changes in the conversation.

use super::Session;
use crate::client_event::{CreateFields, TruncateFields};
use crate::item::{Content, Item, Status};
use crate::refusal::{Refusal, short};
use crate::response::Outcome;
use crate::server_event::ServerEvent;

impl Session {
    pub(super) fn create(&mut self, fields: CreateFields) -> Result<(), Refusal> {
        let CreateFields { previous_item_id, item } = fields;
        let mut fresh = None;
        if item.id.is_none() {
            fresh = Some(self.fresh_item());
        }
        let opening = &self.opening;
        let item =
            Item::read(item, || fresh.unwrap_or_default(), self.settings.input, &opening.abilities, &opening.limits)?;
        if self.conversation.get(&item.id).is_some() || self.turn_item.as_ref() == Some(&item.id) {
            let message = format!("there is an item {:?} already", short(&item.id));
            return Err(Refusal::new("item_create_duplicate_item_id", "item.id", message));
        }
        let at = match previous_item_id.as_deref() {
            None => usize::MAX,
            Some("root") => 0,
            Some(id) => self.place_of(id, "item_create_invalid_previous_item_id", "previous_item_id")? + 1,
        };
        self.conversation.check_room(item.bytes(), &opening.limits)?;
        let id = item.id.clone();
        self.conversation.insert(at, item);
        self.tell_item(&id);
        Ok(())
    }

    /// Tells of an item that is complete.
    pub(super) fn tell_item(&mut self, id: &str) {
        let Some(item) = self.conversation.get(id).map(|item| item.object(false)) else { return };
        let previous_item_id = self.conversation.before(id);
        self.tell(ServerEvent::ItemAdded { previous_item_id: previous_item_id.clone(), item: item.clone() });
        self.tell(ServerEvent::ItemDone { previous_item_id, item });
    }

    pub(super) fn place_of(&self, id: &str, code: &str, param: &'static str) -> Result<usize, Refusal> {
        let missing = || Refusal::new(code, param, format!("there is no item {:?} in the conversation", short(id)));
        self.conversation.find(id).ok_or_else(missing)
    }

    pub(super) fn retrieve(&mut self, id: &str) -> Result<(), Refusal> {
        self.place_of(id, "item_retrieve_invalid_item_id", "item_id")?;
        if let Some(item) = self.conversation.get(id).map(|item| item.object(true)) {
            self.tell(ServerEvent::ItemRetrieved { item });
        }
        Ok(())
    }

    /// Ends the answer that is making this item, whose rest the client does not want.
    fn stop_making(&mut self, id: &str) {
        if self.active.as_ref().is_some_and(|active| active.item.as_deref() == Some(id)) {
            self.stop_active("client_cancelled");
        }
        let cut = self.playback.cut_item(id);
        self.tell_cleared(&cut);
    }

    pub(super) fn truncate(&mut self, fields: &TruncateFields) -> Result<(), Refusal> {
        let TruncateFields { item_id, content_index, audio_end_ms } = fields;
        self.place_of(item_id, "item_truncate_invalid_item_id", "item_id")?;
        // What has come of an item that is being made is in its response.
        let making = self.active.as_ref().filter(|active| active.item.as_ref() == Some(item_id));
        let making = making.and_then(|active| active.item(&Outcome::Cancelled("client_cancelled")));
        let item = making.as_ref().or_else(|| self.conversation.get(item_id));
        let part = item.and_then(|item| item.content.get(*content_index as usize));
        let Some(Content::OutputAudio { spoken, .. }) = part else {
            let message = format!("part {content_index} of the item is no sound of the assistant's");
            return Err(Refusal::new("item_truncate_invalid_content", "content_index", message));
        };
        if *audio_end_ms > spoken.ms {
            let have = spoken.ms;
            let message = format!("the item has {have} ms of sound, which is shorter than {audio_end_ms} ms");
            return Err(Refusal::value("audio_end_ms", message));
        }
        self.stop_making(item_id);
        self.cut(item_id, *content_index, *audio_end_ms);
        Ok(())
    }

    /// Keeps the first milliseconds of a spoken part.
    pub(super) fn cut(&mut self, item_id: &str, content_index: u64, audio_end_ms: u64) {
        let mut is_sound = false;
        self.conversation.change(item_id, |item| {
            let Some(Content::OutputAudio { transcript, spoken }) = item.content.get_mut(content_index as usize) else {
                return;
            };
            is_sound = true;
            let kept = spoken.heard(transcript, audio_end_ms);
            transcript.truncate(kept);
            spoken.marks.retain(|end| *end as usize <= kept);
            (spoken.ms, spoken.complete) = (audio_end_ms, false);
            item.status = Status::Incomplete;
        });
        if is_sound {
            self.tell(ServerEvent::ItemTruncated { item_id: item_id.to_owned(), content_index, audio_end_ms });
        }
    }

    pub(super) fn delete(&mut self, id: &str) -> Result<(), Refusal> {
        self.place_of(id, "item_delete_invalid_item_id", "item_id")?;
        self.stop_making(id);
        self.conversation.remove(id);
        self.tell(ServerEvent::ItemDeleted { item_id: id.to_owned() });
        Ok(())
    }
}
