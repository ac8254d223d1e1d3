//! The other side of a call, for tests: what a browser would do, made of str0m too, without a socket.

#![allow(dead_code, reason = "each user of it needs its own part")]

use opus_rs::{Application, OpusDecoder, OpusEncoder};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;
use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::channel::{ChannelConfig, ChannelId};
use str0m::crypto::CryptoProvider;
use str0m::media::{Direction, Frequency, MediaKind, MediaTime, Mid};
use str0m::net::{Protocol, Receive};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};

pub struct Peer {
    rtc: Rtc,
    local: SocketAddr,
    pending: Option<SdpPendingOffer>,
    channel: ChannelId,
    sound: Mid,
    decoder: Box<OpusDecoder>,
    encoder: Box<OpusEncoder>,
    time: u64,
    called: String,
    pub open: bool,
    pub over: bool,
    /// What the data channel said.
    pub told: VecDeque<String>,
    /// What was heard, 24,000 samples a second, without the time between.
    pub heard: Vec<i16>,
    /// The packets of Opus that it was heard from.
    pub packets: Vec<Vec<u8>>,
    /// Packets to be sent.
    pub out: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Peer {
    /// A peer that is reached at `local`, and its offer.
    pub fn new(provider: std::sync::Arc<CryptoProvider>, local: SocketAddr, now: Instant) -> (Peer, String) {
        let config = RtcConfig::new().set_crypto_provider(provider).clear_codecs().enable_opus(true, false);
        let mut rtc = config.build(now);
        rtc.add_local_candidate(Candidate::host(local, "udp").unwrap());
        let mut changes = rtc.sdp_api();
        let sound = changes.add_media(MediaKind::Audio, Direction::SendRecv, None, None, None);
        let channel = changes.add_channel("oai-events".to_owned());
        let (offer, pending) = changes.apply().unwrap();
        let peer = Peer {
            rtc,
            local,
            pending: Some(pending),
            channel,
            sound,
            decoder: Box::new(OpusDecoder::new(24_000, 1).unwrap()),
            encoder: Box::new(OpusEncoder::new(24_000, 1, Application::Audio).unwrap()),
            time: 0,
            called: String::new(),
            open: false,
            over: false,
            told: VecDeque::new(),
            heard: Vec::new(),
            packets: Vec::new(),
            out: VecDeque::new(),
        };
        (peer, offer.to_sdp_string())
    }

    pub fn accept(&mut self, answer: &str) {
        let name = answer.lines().find_map(|line| line.strip_prefix("a=ice-ufrag:"));
        self.called = name.unwrap().trim().to_owned();
        let answer = SdpAnswer::from_sdp_string(answer).unwrap();
        self.rtc.sdp_api().accept_answer(self.pending.take().unwrap(), answer).unwrap();
    }

    pub fn receive(&mut self, from: SocketAddr, packet: &[u8], now: Instant) {
        let Ok(receive) = Receive::new(Protocol::Udp, from, self.local, packet) else { return };
        let _ = self.rtc.handle_input(Input::Receive(now, receive));
    }

    /// Does what is due, and says when it wants to be called again.
    pub fn pass(&mut self, now: Instant) -> Instant {
        let _ = self.rtc.handle_input(Input::Timeout(now));
        loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(until)) => return until,
                Ok(Output::Transmit(packet)) => self.out.push_back((packet.destination, packet.contents.to_vec())),
                Ok(Output::Event(event)) => self.happened(event),
                Err(_) => {
                    self.over = true;
                    return now + std::time::Duration::from_secs(3600);
                }
            }
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::ChannelOpen(id, _) if id == self.channel => self.open = true,
            Event::ChannelData(data) => self.told.push_back(String::from_utf8(data.data).unwrap()),
            Event::ChannelClose(_) | Event::Closed => self.over = true,
            Event::MediaData(media) => {
                self.packets.push(media.data.to_vec());
                let mut samples = [0.0; 2880];
                let count = self.decoder.decode(&media.data, 2880, &mut samples).unwrap();
                self.heard.extend(samples[..count].iter().map(|sample| (sample * 32767.0) as i16));
            }
            _ => {}
        }
    }

    /// Opens a data channel that no call needs.
    pub fn opens_another(&mut self) {
        let config = ChannelConfig { label: "another".to_owned(), ..ChannelConfig::default() };
        self.rtc.direct_api().create_data_channel(config);
    }

    /// Hangs up: the next packets say so.
    pub fn hang_up(&mut self) {
        let _ = self.rtc.close();
    }

    /// The name by which it calls the server.
    pub fn called(&self) -> &str {
        &self.called
    }

    /// Tells an event, if there is room for it.
    pub fn try_tell(&mut self, event: &str) -> bool {
        let Some(mut channel) = self.rtc.channel(self.channel) else { return false };
        channel.write(false, event.as_bytes()).unwrap_or(false)
    }

    pub fn tell(&mut self, event: &str) {
        assert!(self.rtc.channel(self.channel).unwrap().write(false, event.as_bytes()).unwrap());
    }

    /// Says 20 ms.
    pub fn say(&mut self, samples: &[i16], now: Instant) {
        let samples: Vec<f32> = samples.iter().map(|sample| f32::from(*sample) / 32768.0).collect();
        let mut packet = vec![0; 1275];
        let length = self.encoder.encode(&samples, samples.len(), &mut packet).unwrap();
        packet.truncate(length);
        let time = MediaTime::new(self.time, Frequency::FORTY_EIGHT_KHZ);
        self.time += 2 * samples.len() as u64;
        // Of a call that is over nobody would hear it.
        let Some(writer) = self.rtc.writer(self.sound) else { return };
        let format = writer.payload_params().next().unwrap().pt();
        writer.write(format, now, time, packet).unwrap();
    }
}
