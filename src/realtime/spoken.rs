//! What is known of the sound of an answer, and how much of its text was heard.

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spoken {
    /// Milliseconds that were sent.
    pub ms: u64,
    /// How many times as fast as it was made.
    pub speed: f32,
    /// Where each piece of the transcript ends, bytes. The talker takes one with each frame.
    pub marks: Vec<u32>,
    /// Of a frame at speed 1.
    pub frame_ms: f64,
    /// Whether all of it was sent.
    pub complete: bool,
}

impl Spoken {
    /// How many bytes of a transcript, at the end of a piece, were heard within so many milliseconds. Of a whole answer
    /// the share that was heard; of one that was cut off, whose length is not known, the pieces that the talker had
    /// taken, which is never less than what was heard.
    pub fn heard(&self, transcript: &str, ms: u64) -> usize {
        if ms == 0 || self.marks.is_empty() {
            return 0;
        }
        if self.complete {
            let share = transcript.len() as u64 * ms.min(self.ms) / self.ms.max(1);
            let ends = self.marks.iter().map(|end| *end as usize);
            return ends.take_while(|end| *end as u64 <= share).last().unwrap_or(0);
        }
        let frames = (ms as f64 * f64::from(self.speed) / self.frame_ms.max(1.0)).ceil() as usize;
        self.marks.get(frames.saturating_sub(1)).map_or(transcript.len(), |end| *end as usize)
    }
}
