//! Requests for speech that were answered not long ago, by the name of the answer, so that a client that lost its
//! connection asks for the rest with that name alone.
//!
//! What is kept is the request with its seed, not the samples: they are made again, as for a client that repeats its
//! request (see `resume`), and a text is a thousandth of its speech.

use omni_core::admission::TenantId;
use serde_json::{Map, Value};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an entry costs beside the bytes of its request.
const OVERHEAD: usize = 256;
/// A request may take this part of all that is kept, so that a few recordings do not displace every text.
const SHARE: usize = 16;

/// The name of an answer. It cannot be guessed, so that who knows it may have the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AnswerId(u128);

impl AnswerId {
    /// One that no client knows yet.
    pub fn fresh() -> AnswerId {
        // SipHash with keys from the system.
        let half = || u128::from(RandomState::new().build_hasher().finish());
        AnswerId(half() << 64 | half())
    }
}

impl fmt::Display for AnswerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for AnswerId {
    type Err = ();

    fn from_str(text: &str) -> Result<AnswerId, ()> {
        let plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if plain { u128::from_str_radix(text, 16).map(AnswerId).map_err(|_| ()) } else { Err(()) }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Kept {
    lifetime: Duration,
    most_bytes: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<AnswerId, Entry>,
    /// Those of answers that have ended, in the order in which they are dropped. An entry whose answer was asked for
    /// again meanwhile is here more than once, and only the last counts.
    ended: VecDeque<Ended>,
    bytes: usize,
}

/// A place among those that have ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    id: AnswerId,
    /// How often its answers had ended by then.
    ends: u64,
    /// Until when it is kept.
    until: Instant,
}

#[derive(Debug)]
struct Entry {
    /// Whose it is, on a server with keys.
    owner: Option<TenantId>,
    /// JSON.
    request: Vec<u8>,
    /// How many answers to it are being made.
    running: usize,
    /// How often the last of them has ended.
    ends: u64,
}

impl Entry {
    fn cost(&self) -> usize {
        self.request.len() + OVERHEAD
    }

    /// Whether a place among those that have ended is still this one's.
    fn is_over(&self, ended: Ended) -> bool {
        self.running == 0 && self.ends == ended.ends
    }
}

/// JSON of at most so many bytes: what is longer is not written to its end.
struct AtMost {
    json: Vec<u8>,
    most: usize,
}

impl Write for AtMost {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.json.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.json.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An answer that is being made: its request is kept for the whole of its lifetime from when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    kept: Arc<Kept>,
    pub id: AnswerId,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kept.ended(Instant::now(), self.id);
    }
}

impl Kept {
    /// Keeps requests for so long, and so many bytes of them.
    pub fn new(lifetime: Duration, most_bytes: usize) -> Arc<Kept> {
        Arc::new(Kept { lifetime, most_bytes, entries: Mutex::default() })
    }

    /// Keeps a request that has its seed; what ended first gives way. `None`: it is too large, or nothing is kept.
    pub fn keep(self: &Arc<Kept>, owner: Option<TenantId>, request: &Map<String, Value>) -> Option<Running> {
        let id = AnswerId::fresh();
        self.insert(Instant::now(), id, owner, request).then(|| Running { kept: Arc::clone(self), id })
    }

    /// The request of an answer, JSON with its seed, and what keeps it while it is answered again. `None`: there is none,
    /// it has been dropped, or it is another's.
    pub fn find(self: &Arc<Kept>, id: AnswerId, asker: Option<TenantId>) -> Option<(Vec<u8>, Running)> {
        let request = self.begin(Instant::now(), id, asker)?;
        Some((request, Running { kept: Arc::clone(self), id }))
    }

    /// For how long a request is kept after its answer.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    fn insert(&self, now: Instant, id: AnswerId, owner: Option<TenantId>, request: &Map<String, Value>) -> bool {
        if self.lifetime.is_zero() {
            return false;
        }
        let Some(most) = (self.most_bytes / SHARE).checked_sub(OVERHEAD) else { return false };
        let mut written = AtMost { json: Vec::new(), most };
        if serde_json::to_writer(&mut written, request).is_err() {
            return false;
        }
        let entry = Entry { owner, request: written.json, running: 1, ends: 0 };
        let mut entries = self.entries(now);
        while entries.bytes + entry.cost() > self.most_bytes {
            // Those of answers that are being made stay.
            if !entries.drop_first() {
                return false;
            }
        }
        entries.bytes += entry.cost();
        entries.by_id.insert(id, entry);
        true
    }

    fn begin(&self, now: Instant, id: AnswerId, asker: Option<TenantId>) -> Option<Vec<u8>> {
        let mut entries = self.entries(now);
        let entry = entries.by_id.get_mut(&id).filter(|entry| entry.owner == asker)?;
        entry.running += 1;
        Some(entry.request.clone())
    }

    fn ended(&self, now: Instant, id: AnswerId) {
        let mut entries = self.entries(now);
        let Some(entry) = entries.by_id.get_mut(&id) else { return };
        entry.running -= 1;
        if entry.running == 0 {
            entry.ends += 1;
            let ended = Ended { id, ends: entry.ends, until: now + self.lifetime };
            entries.ended.push_back(ended);
        }
        if entries.ended.len() > 2 * entries.by_id.len() + 64 {
            let Entries { by_id, ended, .. } = &mut *entries;
            ended.retain(|ended| by_id.get(&ended.id).is_some_and(|entry| entry.is_over(*ended)));
        }
    }

    /// What has not been dropped.
    fn entries(&self, now: Instant) -> MutexGuard<'_, Entries> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        while entries.ended.front().is_some_and(|ended| ended.until <= now) {
            entries.drop_first();
        }
        entries
    }
}

impl Entries {
    /// Drops the request that ended first, or a place that is no longer one's. False: there is none.
    fn drop_first(&mut self) -> bool {
        let Some(ended) = self.ended.pop_front() else { return false };
        if self.by_id.get(&ended.id).is_some_and(|entry| entry.is_over(ended))
            && let Some(entry) = self.by_id.remove(&ended.id)
        {
            self.bytes -= entry.cost();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::{IpAddr, Ipv4Addr};

    const MINUTE: Duration = Duration::from_secs(60);

    fn request(bytes: usize) -> Map<String, Value> {
        json!({"input": "x".repeat(bytes), "seed": 5}).as_object().unwrap().clone()
    }

    fn somebody() -> TenantId {
        TenantId::Address(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Whether it is there; the answer ends at once.
    fn there(kept: &Kept, now: Instant, id: AnswerId) -> bool {
        kept.entries(now).by_id.contains_key(&id)
    }

    #[test]
    fn names_are_read_as_they_are_written_and_each_is_another() {
        let (one, other) = (AnswerId::fresh(), AnswerId::fresh());
        assert_ne!(one, other);
        assert_eq!(one.to_string().parse(), Ok(one));
        for wrong in ["", "r1", "+0000000000000000000000000000001", &"0".repeat(33), &"A".repeat(32)] {
            assert_eq!(wrong.parse::<AnswerId>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_request_is_kept_while_it_is_answered_and_for_its_time_after_that() {
        let (kept, start, id) = (Kept::new(MINUTE, 1 << 20), Instant::now(), AnswerId::fresh());
        assert!(kept.insert(start, id, None, &request(10)));
        assert!(there(&kept, start + 100 * MINUTE, id), "its answer is being made");
        let end = start + 100 * MINUTE;
        kept.ended(end, id);
        let found = kept.begin(end + MINUTE / 2, id, None).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&found).unwrap(), Value::Object(request(10)));
        assert!(there(&kept, end + 2 * MINUTE, id), "it is made again");
        kept.ended(end + 2 * MINUTE, id);
        assert!(there(&kept, end + 2 * MINUTE + MINUTE / 2, id));
        assert!(!there(&kept, end + 3 * MINUTE, id));
        let entries = kept.entries(end);
        assert_eq!((entries.bytes, entries.ended.len(), entries.by_id.len()), (0, 0, 0));
    }

    #[test]
    fn what_ended_first_gives_way_and_no_request_takes_most_of_it() {
        let (kept, now) = (Kept::new(MINUTE, 64 << 10), Instant::now());
        let ids: Vec<AnswerId> = (0..100).map(|_| AnswerId::fresh()).collect();
        for id in &ids {
            assert!(kept.insert(now, *id, None, &request(1000)));
            kept.ended(now, *id);
        }
        let first = ids.iter().position(|id| there(&kept, now, *id)).unwrap();
        assert!(first > 0 && ids[first..].iter().all(|id| there(&kept, now, *id)), "the last are there");
        assert!(kept.entries(now).bytes <= 64 << 10);
        assert!(!kept.insert(now, AnswerId::fresh(), None, &request(5000)), "more than its share");
        let running = (0..100).take_while(|_| kept.insert(now, AnswerId::fresh(), None, &request(1000))).count();
        assert!((1..100).contains(&running), "no room is left where all are being answered");
    }

    #[test]
    fn an_answer_that_is_asked_for_again_and_again_takes_no_more_room() {
        let (kept, now, id) = (Kept::new(MINUTE, 1 << 20), Instant::now(), AnswerId::fresh());
        assert!(kept.insert(now, id, None, &request(10)));
        kept.ended(now, id);
        for _ in 0..1000 {
            assert!(kept.begin(now, id, None).is_some());
            kept.ended(now, id);
        }
        assert!(kept.entries(now).ended.len() < 100);
        assert!(there(&kept, now, id));
    }

    #[test]
    fn an_answer_belongs_to_its_key_and_nothing_is_kept_without_time() {
        let (kept, now, id) = (Kept::new(MINUTE, 1 << 20), Instant::now(), AnswerId::fresh());
        assert!(kept.insert(now, id, Some(somebody()), &request(10)));
        assert!(kept.begin(now, id, None).is_none());
        assert!(kept.begin(now, id, Some(somebody())).is_some());
        assert!(!Kept::new(Duration::ZERO, 1 << 20).insert(now, id, None, &request(10)));
    }
}
