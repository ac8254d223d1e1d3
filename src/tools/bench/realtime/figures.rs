//! From the answers of all conversations to the figures of a level. Pure.

use super::watch::{Interruption, Record};
use crate::bench::stats::Distribution;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The figures of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Turns that the scripts have.
    pub turns: usize,
    /// Answers with sound.
    pub answers: usize,
    /// What went wrong, and how often: answers that failed, conversations that ended early.
    pub errors: BTreeMap<String, usize>,
    /// From the beginning of the first conversation to the end of the last, seconds.
    pub wall_s: f64,
    /// From the end of a turn, as the server tells it or the client asks, to the first sound of the answer, ms.
    pub first_sound_ms: Distribution,
    /// The same of the last answer of each conversation.
    pub last_turn_ms: Distribution,
    /// From the last piece of speech to that: with the silence that ends a turn, ms.
    pub after_speech_ms: Distribution,
    /// Answers that were interrupted while they were made.
    pub interruptions: usize,
    /// From the first piece of the speech that interrupts to `speech_started`, ms.
    pub noticed_ms: Distribution,
    /// From `speech_started`, or the client's cancel, to the last sound, ms; 0 where none came after it.
    pub last_sound_ms: Distribution,
    /// Pieces of sound that came after it, in all.
    pub sounds_after: u32,
    /// From there to `response.done`, ms.
    pub cancelled_ms: Distribution,
    /// From one piece of sound to the next, ms.
    pub gap_ms: Distribution,
    /// Answers with at least one underrun of a player that starts with the first sound.
    pub answers_with_underrun: usize,
    /// Underruns in all.
    pub underruns: u32,
    /// Longest silence of one answer, ms.
    pub worst_silence_ms: f64,
    /// Seconds of sound in all.
    pub audio_s: f64,
}

impl Figures {
    /// Sums a level up: the answers of its conversations, how many turns they were to have, and why some ended early.
    pub fn of(records: &[Record], turns: usize, ended: impl IntoIterator<Item = String>, wall: Duration) -> Figures {
        let sounding: Vec<&Record> = records.iter().filter(|record| record.first_sound.is_some()).collect();
        let interrupted: Vec<Interruption> = records.iter().filter_map(|record| record.interruption).collect();
        let since = |from: Duration, to: Duration| ms(to.saturating_sub(from));
        let mut errors = BTreeMap::new();
        for error in records.iter().filter_map(|record| record.failed.clone()).chain(ended) {
            *errors.entry(error).or_insert(0) += 1;
        }
        let first = |record: &&Record| record.waited().map(ms);
        let after = |record: &&Record| Some(since(record.last_word?, record.first_sound?));
        let noticed = |it: &Interruption| Some(since(it.spoke?, it.decided));
        let last = |it: &Interruption| since(it.decided, it.last_sound.unwrap_or(it.decided));
        let players = || sounding.iter().map(|record| &record.player);
        Figures {
            turns,
            answers: sounding.len(),
            errors,
            wall_s: wall.as_secs_f64(),
            first_sound_ms: Distribution::of(sounding.iter().filter_map(first).collect()),
            last_turn_ms: Distribution::default(),
            after_speech_ms: Distribution::of(sounding.iter().filter_map(after).collect()),
            interruptions: interrupted.len(),
            noticed_ms: Distribution::of(interrupted.iter().filter_map(noticed).collect()),
            last_sound_ms: Distribution::of(interrupted.iter().map(last).collect()),
            sounds_after: interrupted.iter().map(|it| it.sounds).sum(),
            cancelled_ms: Distribution::of(interrupted.iter().map(|it| since(it.decided, it.cancelled)).collect()),
            gap_ms: Distribution::of(sounding.iter().flat_map(|record| &record.gaps).map(|gap| ms(*gap)).collect()),
            answers_with_underrun: players().filter(|player| player.underruns > 0).count(),
            underruns: players().map(|player| player.underruns).sum(),
            worst_silence_ms: players().map(|player| ms(player.silence)).fold(0.0, f64::max),
            audio_s: players().map(|player| player.length().as_secs_f64()).sum(),
        }
    }
}

/// How long users waited for the last answer of their conversation, of those with `turns` turns, ms.
pub fn last_turns<'a>(conversations: impl Iterator<Item = &'a [Record]>, turns: usize) -> Distribution {
    let waited = conversations.filter_map(|records| records.get(turns.checked_sub(1)?)?.waited().map(ms));
    Distribution::of(waited.collect())
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_core::playback::Playback;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn answer(asked: u64, first: u64, chunks: &[u64]) -> Record {
        let mut player = Playback::default();
        chunks.iter().for_each(|chunk| _ = player.chunk(at(*chunk - asked), at(80)));
        let gaps = chunks.windows(2).map(|pair| at(pair[1] - pair[0])).collect();
        Record { asked: at(asked), first_sound: Some(at(first)), player, gaps, ..Record::default() }
    }

    #[test]
    fn latencies_are_those_of_answers_with_sound() {
        let spoken = Record { last_word: Some(at(500)), ..answer(1_000, 1_050, &[1_050, 1_130, 1_400]) };
        let failed = Record { failed: Some("overloaded".to_owned()), ..Record::default() };
        let figures = Figures::of(&[spoken, failed, answer(0, 70, &[70])], 4, ["timed out".to_owned()], at(2_000));
        assert_eq!((figures.turns, figures.answers, figures.wall_s), (4, 2, 2.0));
        assert_eq!((figures.first_sound_ms.p50, figures.first_sound_ms.max), (60.0, 70.0));
        assert_eq!(figures.after_speech_ms.max, 550.0);
        assert_eq!(figures.errors, BTreeMap::from([("overloaded".to_owned(), 1), ("timed out".to_owned(), 1)]));
        // The third piece came 190 ms after the player had run dry.
        assert_eq!((figures.underruns, figures.answers_with_underrun, figures.worst_silence_ms), (1, 1, 190.0));
        assert_eq!((figures.gap_ms.max, figures.audio_s), (270.0, 0.32));
        assert_eq!((figures.interruptions, figures.cancelled_ms), (0, Distribution::default()));
    }

    #[test]
    fn the_last_turns_are_those_of_conversations_that_came_to_their_end() {
        let talk = |waited: u64| vec![answer(0, 900, &[900]), answer(1_000, 1_000 + waited, &[1_000 + waited])];
        let talks = [talk(30), talk(50), vec![answer(0, 700, &[700])]];
        let figures = last_turns(talks.iter().map(Vec::as_slice), 2);
        assert_eq!((figures.p50, figures.max), (40.0, 50.0));
    }

    #[test]
    fn an_interruption_is_measured_from_what_was_said_to_what_was_heard_last() {
        let silent = Interruption { spoke: Some(at(100)), decided: at(180), cancelled: at(181), ..Default::default() };
        let late =
            Interruption { decided: at(500), sounds: 2, last_sound: Some(at(540)), cancelled: at(560), ..silent };
        let cut = |interruption| Record { interruption: Some(interruption), ..answer(0, 10, &[10]) };
        let figures = Figures::of(&[cut(silent), cut(late), answer(0, 10, &[10])], 3, None, at(900));
        assert_eq!((figures.interruptions, figures.sounds_after), (2, 2));
        assert_eq!((figures.noticed_ms.max, figures.last_sound_ms.p50, figures.last_sound_ms.max), (400.0, 20.0, 40.0));
        assert_eq!((figures.cancelled_ms.p50, figures.cancelled_ms.max), (30.5, 60.0));
    }
}
