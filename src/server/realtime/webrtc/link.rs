//! A call as a link: its packets, its 20 ms, its time. What a client sends beyond what is read is kept up to a limit.

use super::calls::Entry;
use crate::budget::Held;
use crate::realtime::link::{Farewell, Link, Message, News};
use crate::state::App;
use crate::visit::Visit;
use crate::ws_protocol::close_code;
use omni_config::format_duration;
use omni_realtime::PLAYED;
use omni_webrtc::{Call, FRAME, News as Told, Step};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

/// Bytes of an event of a client: what browsers send at most.
pub(super) const LARGEST: usize = 256 << 10;
/// Events, and bytes of them, that wait to be read.
const UNREAD: (usize, usize) = (64, 1 << 20);
/// Of a piece of sound.
const PIECE: Duration = Duration::from_millis(20);
/// A clock that is so late goes on from now.
const LATE: Duration = Duration::from_millis(200);
/// Pieces of silence behind speech, so that all of it leaves the encoder and the listener's player.
const TAIL: u32 = 3;
/// How long the end of a call may take to be sent.
const LAST_WORDS: Duration = Duration::from_secs(1);

const _: () = assert!(FRAME == PLAYED);

/// See the module.
pub(super) struct CallLink {
    app: Arc<App>,
    call: Call,
    entry: Entry,
    visit: Arc<Visit>,
    /// Events that came while none were read.
    unread: VecDeque<String>,
    unread_bytes: usize,
    held: Held,
    /// Bytes of packets since the last sound.
    bytes: usize,
    open: bool,
    begun: Instant,
    /// When the last packet of the client came.
    seen: Instant,
    /// When the call has to be asked again.
    until: Instant,
    /// When the next 20 ms are due.
    due: Instant,
    /// Pieces of silence that are still to be sent; `None` while nothing is said.
    tail: Option<u32>,
}

impl CallLink {
    /// A call that was just answered.
    pub fn new(app: Arc<App>, call: Call, entry: Entry, visit: Arc<Visit>) -> CallLink {
        let (now, held) = (Instant::now(), Held::nothing(&app.budget));
        CallLink {
            app,
            call,
            entry,
            visit,
            unread: VecDeque::new(),
            unread_bytes: 0,
            held,
            bytes: 0,
            open: false,
            begun: now,
            seen: now,
            until: now,
            due: now + PIECE,
            tail: None,
        }
    }

    /// Sends what the call has to send, until it tells something or waits.
    fn go_on(&mut self) -> Option<Told> {
        loop {
            match self.call.step() {
                Step::Send(to, packet) => {
                    self.visit.sent(packet.len());
                    // What the system does not take is lost, as packets are.
                    let _ = self.entry.socket.try_send_to(&packet, self.entry.target(to));
                }
                Step::News(told) => return Some(told),
                Step::Wait(until) => {
                    self.until = until.into();
                    return None;
                }
            }
        }
    }

    /// Keeps an event until it is read; false if there are too many.
    fn keep(&mut self, event: String) -> bool {
        self.unread_bytes += event.len();
        let fits = self.unread.len() < UNREAD.0 && self.unread_bytes <= UNREAD.1 && self.held.take(event.len());
        self.unread.push_back(event);
        fits
    }

    fn unread(&mut self) -> Option<News> {
        let event = self.unread.pop_front()?;
        self.unread_bytes -= event.len();
        let mut held = self.held.another();
        // The part of the others stays.
        self.held.resize(self.unread_bytes);
        match held.take(event.len()) {
            true => Some(News::Event(event, held)),
            false => Some(self.exhausted()),
        }
    }

    fn exhausted(&self) -> News {
        let error = self.app.budget.exhausted();
        let farewell = Farewell { code: close_code::AGAIN, reason: "too much input" };
        News::Broken(Some(Message { code: error.code, text: error.message }), farewell)
    }

    /// What the call has told means for the session.
    fn told(&mut self, told: Told) -> Option<News> {
        match told {
            Told::Open => {
                self.open = true;
                None
            }
            Told::Told(event) => match String::from_utf8(event) {
                Ok(event) => (!self.keep(event)).then(|| self.exhausted()),
                Err(_) => Some(News::NotText),
            },
            Told::Heard(samples) => Some(News::Heard(samples, std::mem::take(&mut self.bytes))),
            Told::Over => Some(News::Gone),
        }
    }

    fn too_late(&self) -> News {
        let webrtc = &self.app.realtime.webrtc;
        if self.open {
            debug!(after = %format_duration(webrtc.lost_timeout), "the client sends nothing any more");
        } else {
            debug!(after = %format_duration(webrtc.setup_timeout), "the call was not set up");
        }
        News::Gone
    }

    /// When the call ends unless something comes.
    fn deadline(&self) -> Instant {
        let webrtc = &self.app.realtime.webrtc;
        if self.open { self.seen + webrtc.lost_timeout } else { self.begun + webrtc.setup_timeout }
    }
}

impl Link for CallLink {
    async fn next(&mut self, reads: bool, waits: Option<usize>) -> News {
        loop {
            while let Some(told) = self.go_on() {
                if let Some(news) = self.told(told) {
                    return news;
                }
            }
            if reads && let Some(news) = self.unread() {
                return news;
            }
            if let Some(length) = waits
                && self.open
                && self.call.takes(length.min(self.call.largest()))
            {
                return News::Room;
            }
            let deadline = self.deadline();
            tokio::select! {
                packet = self.entry.packets.recv() => {
                    let Some((from, packet)) = packet else { return News::Gone };
                    let now = Instant::now();
                    if self.call.receive(from, &packet, now.into_std()) {
                        self.bytes += packet.len();
                        self.seen = now;
                        self.entry.at(from);
                    }
                }
                () = sleep_until(self.until) => self.call.pass(Instant::now().into_std()),
                () = sleep_until(self.due), if self.open => {
                    let now = Instant::now();
                    self.due = if now - self.due > LATE { now } else { self.due } + PIECE;
                    return News::Due;
                }
                () = sleep_until(deadline) => return self.too_late(),
                () = self.entry.hung_up.cancelled() => return News::Ends,
            }
        }
    }

    fn send(&mut self, message: String) {
        let largest = self.call.largest();
        if message.len() <= largest {
            self.call.tell(&message);
            return;
        }
        let message = format!(
            "an event of {} bytes is not sent: the offer says that its client takes {largest} (a=max-message-size)",
            message.len()
        );
        let error = json!({
            "type": "invalid_request_error", "code": "event_too_large", "message": message, "param": null,
            "event_id": null,
        });
        self.call.tell(&json!({"event_id": "event_too_large", "type": "error", "error": error}).to_string());
    }

    fn play(&mut self, samples: Option<&[i16; PLAYED]>, late: bool) {
        let now = Instant::now().into_std();
        match (samples, self.tail) {
            (Some(samples), tail) => {
                self.call.say(samples, tail.is_none(), now);
                self.tail = Some(TAIL);
            }
            (None, Some(tail)) if late || tail > 0 => {
                self.call.say(&[0; PLAYED], false, now);
                self.tail = Some(if late { TAIL } else { tail - 1 });
            }
            (None, _) => {
                self.call.rest();
                self.tail = None;
            }
        }
    }

    async fn end(&mut self, messages: Vec<String>, _: Farewell) {
        let until = Instant::now() + LAST_WORDS;
        for message in messages {
            if self.open && self.call.takes(message.len().min(self.call.largest())) {
                self.send(message);
            }
        }
        // The messages leave before the call does, if the client takes them.
        while self.open && !self.call.is_drained() {
            while let Some(told) = self.go_on() {
                if told == Told::Over {
                    return;
                }
            }
            tokio::select! {
                packet = self.entry.packets.recv() => {
                    let Some((from, packet)) = packet else { return };
                    self.call.receive(from, &packet, Instant::now().into_std());
                }
                () = sleep_until(self.until) => self.call.pass(Instant::now().into_std()),
                () = sleep_until(until) => break,
            }
        }
        self.call.hang_up();
        while self.go_on().is_some_and(|told| told != Told::Over) {}
    }
}
