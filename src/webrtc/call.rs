//! A call from its answer to its end.

use crate::bounds::{Channels, Pace, Source};
use crate::crypto::provider;
use crate::offer::{OfferError, read};
use crate::sound::{CLOCK, Ear, FRAME, Mouth};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use str0m::channel::ChannelId;
use str0m::format::Codec;
use str0m::media::{Frequency, MediaTime, Mid};
use str0m::net::{Protocol, Receive};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};

/// The data channel that has the events: OpenAI's name.
const EVENTS: &str = "oai-events";
/// Bytes of messages that wait to be acknowledged.
const UNACKNOWLEDGED: usize = 512 << 10;
/// Packets of sound that wait for one that is missing, and for how long.
const REORDERED: usize = 4;
const MISSING: Duration = Duration::from_millis(80);
/// A peer that has sent no sound for so long sends none: it is silent.
const MUTE: Duration = Duration::from_millis(200);
/// Of a packet of sound.
const PACKET: Duration = Duration::from_millis(20);

/// What happened in a call.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// The peer is who it says, and the data channel is open: events may be told.
    Open,
    /// An event of the peer.
    Told(Vec<u8>),
    /// The peer's sound, [`RATE`](crate::RATE) samples a second.
    Heard(Vec<i16>),
    /// The peer has hung up, or the call broke.
    Over,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Step {
    /// Send this packet there.
    Send(SocketAddr, Vec<u8>),
    /// Take note.
    News(News),
    /// Nothing before this moment, unless a packet comes.
    Wait(Instant),
}

/// See the module.
pub struct Call {
    rtc: Rtc,
    /// Where packets arrive, as the answer says.
    addresses: Vec<SocketAddr>,
    name: String,
    sound: Option<Mid>,
    channel: Option<ChannelId>,
    /// Bytes that the peer takes as one message.
    largest: usize,
    ear: Ear,
    mouth: Mouth,
    source: Source,
    pace: Pace,
    others: Channels,
    /// When sound of the peer came last, or silence was taken for it.
    heard: Option<Instant>,
    news: VecDeque<News>,
    over: bool,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Call {
    /// Answers an offer with the addresses at which the call can be reached. `message`: bytes that the peer may send as
    /// one message.
    ///
    /// # Errors
    /// What is wrong with the offer.
    pub fn answer(
        offer: &str,
        addresses: &[SocketAddr],
        message: usize,
        now: Instant,
    ) -> Result<(Call, String), OfferError> {
        let (offer, largest) = read(offer)?;
        let internal = |error: &str| OfferError::Internal(error.to_owned());
        let mut config = RtcConfig::new()
            .set_crypto_provider(provider())
            .set_ice_lite(true)
            .clear_codecs()
            .enable_opus(true, false)
            .set_reordering_size_audio(REORDERED)
            .set_reordering_timeout_audio(Some(MISSING))
            .set_sctp_max_buffered_amount(UNACKNOWLEDGED);
        config = config.set_sctp_max_message_size(u32::try_from(message).unwrap_or(u32::MAX));
        let mut rtc = config.build(now);
        for address in addresses {
            let candidate = Candidate::host(*address, "udp").map_err(|error| internal(&error.to_string()))?;
            rtc.add_local_candidate(candidate);
        }
        let answer = rtc.sdp_api().accept_offer(offer)?.to_sdp_string();
        let name = rtc.direct_api().local_ice_credentials().ufrag;
        let call = Call {
            rtc,
            addresses: addresses.to_vec(),
            name,
            sound: sound_of(&answer),
            channel: None,
            largest,
            ear: Ear::new().map_err(internal)?,
            mouth: Mouth::new().map_err(internal)?,
            source: Source::default(),
            pace: Pace::default(),
            others: Channels::default(),
            heard: None,
            news: VecDeque::new(),
            over: false,
        };
        match call.sound {
            Some(_) => Ok((call, answer)),
            None => Err(OfferError::NoSound),
        }
    }

    /// By which checks of the peer call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes a packet; false if it is none of this call, which then has done nothing with it.
    pub fn receive(&mut self, from: SocketAddr, packet: &[u8], now: Instant) -> bool {
        let Some(to) = self.addresses.iter().find(|address| address.is_ipv4() == from.is_ipv4()) else { return false };
        let Ok(receive) = Receive::new(Protocol::Udp, from, *to, packet) else { return false };
        let input = Input::Receive(now, receive);
        if self.over || !self.rtc.accepts(&input) || !self.source.admits(packet) {
            return false;
        }
        // A packet that is wrong is one that did not come, unless the call ended with it.
        let _ = self.rtc.handle_input(input);
        true
    }

    /// The time has come for which [`Step::Wait`] asked, or any other.
    pub fn pass(&mut self, now: Instant) {
        if let Some(heard) = self.heard
            && now.saturating_duration_since(heard) >= MUTE
        {
            // The next one is due a packet later.
            self.heard = Some(heard + PACKET);
            self.news.push_back(News::Heard(self.ear.silence()));
        }
        if !self.over && self.rtc.handle_input(Input::Timeout(now)).is_err() {
            self.end();
        }
    }

    /// What to do next. After [`News::Over`] there are packets left at most.
    pub fn step(&mut self) -> Step {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Step::News(news);
            }
            match self.rtc.poll_output() {
                Ok(Output::Transmit(packet)) => return Step::Send(packet.destination, packet.contents.to_vec()),
                Ok(Output::Event(event)) => self.happened(event),
                Ok(Output::Timeout(until)) if self.over || self.rtc.is_alive() => {
                    let mute = self.heard.map(|heard| heard + MUTE);
                    return Step::Wait(mute.map_or(until, |mute| until.min(mute)));
                }
                Ok(Output::Timeout(_)) | Err(_) if !self.over => self.end(),
                Ok(Output::Timeout(until)) => return Step::Wait(until),
                // It is over, and nothing comes of it any more.
                Err(_) => return Step::News(News::Over),
            }
        }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.news.push_back(News::Over);
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::ChannelOpen(id, label) if label == EVENTS && self.channel.is_none() => {
                self.channel = Some(id);
                self.news.push_back(News::Open);
            }
            Event::ChannelOpen(id, _) => match self.others.closes_another() {
                true => self.rtc.direct_api().close_data_channel(id),
                false => self.end(),
            },
            Event::ChannelData(message) if Some(message.id) == self.channel => {
                self.news.push_back(News::Told(message.data));
            }
            Event::ChannelClose(id) if Some(id) == self.channel => self.end(),
            Event::MediaData(media) if Some(media.mid) == self.sound => {
                self.heard = Some(media.network_time);
                if let Some(stream) = self.rtc.direct_api().stream_rx_by_mid(media.mid, None) {
                    self.source.is(*stream.ssrc());
                }
                let begins = media.time.rebase(Frequency::FORTY_EIGHT_KHZ).numer();
                let samples = self.ear.hear(begins, &media.data);
                let sound = Duration::from_secs(1) * samples.len() as u32 / crate::sound::RATE;
                if self.pace.takes(sound, media.network_time) {
                    self.news.push_back(News::Heard(samples));
                }
            }
            Event::Closed => self.end(),
            _ => {}
        }
    }

    /// Whether a message of so many bytes may be told now; never, if the peer takes none as long.
    pub fn takes(&mut self, bytes: usize) -> bool {
        let Some(mut channel) = self.channel.and_then(|id| self.rtc.channel(id)) else { return false };
        channel.buffered_amount() + bytes <= UNACKNOWLEDGED
    }

    /// Whether the peer has all that it was told.
    pub fn is_drained(&mut self) -> bool {
        let Some(mut channel) = self.channel.and_then(|id| self.rtc.channel(id)) else { return true };
        channel.buffered_amount() == 0
    }

    /// Bytes that the peer takes as one message.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Tells an event; false if there was no room for it.
    pub fn tell(&mut self, event: &str) -> bool {
        let Some(mut channel) = self.channel.and_then(|id| self.rtc.channel(id)) else { return false };
        channel.write(false, event.as_bytes()).unwrap_or(false)
    }

    /// Says 20 ms, which [`Call::step`] then has to send. `begins`: nothing was said before it.
    pub fn say(&mut self, samples: &[i16; FRAME], begins: bool, now: Instant) {
        let time = MediaTime::new(self.mouth.time, Frequency::FORTY_EIGHT_KHZ);
        self.mouth.pass();
        let Ok(packet) = self.mouth.packet(samples) else { return };
        let Some(writer) = self.sound.and_then(|sound| self.rtc.writer(sound)) else { return };
        let opus = writer.payload_params().find(|format| format.spec().codec == Codec::Opus);
        let Some(format) = opus.map(|format| format.pt()) else { return };
        // Refused before the call is open, where no channel would carry it.
        if writer.start_of_talkspurt(begins).write(format, now, time, packet).is_ok() {
            // The packet is made when time passes. If that were left to the next moment for which `step` waits, an event
            // that is told before then, as that all is said, would leave before the sound.
            self.pass(now);
        }
    }

    /// Says nothing for 20 ms.
    pub fn rest(&mut self) {
        self.mouth.pass();
    }

    /// Hangs up. What [`Call::step`] then has to send tells the peer.
    pub fn hang_up(&mut self) {
        self.over = true;
        let _ = self.rtc.close();
    }
}

/// The first section of sound that an answer accepts: the one codec that it may have is Opus.
fn sound_of(answer: &str) -> Option<Mid> {
    let mut sections = answer.split("\nm=").skip(1);
    let accepted = |section: &&str| {
        let mut words = section.split_ascii_whitespace();
        words.next() == Some("audio") && words.next() != Some("0") && section.contains("opus/48000")
    };
    let name = sections.find(accepted)?.lines().find_map(|line| line.strip_prefix("a=mid:"))?;
    Some(Mid::from(name.trim_end()))
}

// Samples of the wire's clock come in whole packets.
const _: () = assert!(CLOCK.is_multiple_of(crate::sound::RATE));
