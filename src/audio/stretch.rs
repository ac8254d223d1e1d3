//! Faster or slower speech at the same pitch: WSOLA (waveform similarity overlap-add).
//!
//! Output is made in blocks of 15 ms. Each one fades from the sound that would have followed the block before to sound
//! from the place in the input where this block should be, give or take 10 ms: wherever the two waves are most alike,
//! so that periods of a voice line up. All arithmetic is in a fixed order and each block depends on the input alone,
//! not on the pieces in which it came.

/// Slowest speed.
pub const MIN_SPEED: f32 = 0.25;
/// Fastest speed.
pub const MAX_SPEED: f32 = 4.0;

/// Candidates are tried this many samples apart first, then one by one around the best.
const COARSE: usize = 4;
/// Independent sums of a dot product, added up in one fixed order.
const LANES: usize = 8;

/// A stream of samples being stretched.
#[derive(Debug)]
pub struct TimeStretch {
    speed: f64,
    /// Samples of a block of output.
    block: usize,
    /// How far a block may be from where it should be.
    reach: usize,
    /// Weights of the sound that fades in over one block.
    fade: Vec<f32>,
    /// The input from `base` on.
    input: Vec<f32>,
    base: usize,
    /// Blocks made.
    blocks: usize,
    /// Input position from which the last block would go on.
    natural: usize,
}

impl TimeStretch {
    /// For samples of `sample_rate` Hz, `speed` times as fast; speeds outside [`MIN_SPEED`] to [`MAX_SPEED`] are
    /// clamped.
    pub fn new(sample_rate: u32, speed: f32) -> TimeStretch {
        let block = (sample_rate as usize * 15 / 1000).max(1);
        let angle = std::f64::consts::PI / block as f64;
        TimeStretch {
            speed: f64::from(speed.clamp(MIN_SPEED, MAX_SPEED)),
            block,
            reach: sample_rate as usize / 100,
            fade: (0..block).map(|i| (0.5 - 0.5 * ((i as f64 + 0.5) * angle).cos()) as f32).collect(),
            input: Vec::new(),
            base: 0,
            blocks: 0,
            natural: 0,
        }
    }

    /// The output that these samples complete, up to 40 ms behind.
    pub fn push(&mut self, samples: &[f32]) -> Vec<f32> {
        self.input.extend_from_slice(samples);
        let end = self.base + self.input.len();
        let mut out = Vec::new();
        while self.needs() <= end {
            self.make_block(&mut out);
        }
        out
    }

    /// The rest: all output together is as long as all input divided by the speed, to the nearest sample.
    pub fn finish(mut self) -> Vec<f32> {
        let end = self.base + self.input.len();
        let total = (end as f64 / self.speed).round() as usize;
        let made = self.blocks * self.block;
        let mut out = Vec::new();
        while made + out.len() < total {
            let missing = (self.needs() - self.base).saturating_sub(self.input.len());
            self.input.resize(self.input.len() + missing, 0.0);
            self.make_block(&mut out);
        }
        // `push` never makes more than the input so far allows.
        out.truncate(total - made);
        out
    }

    /// Input position where block `number` should begin.
    fn ideal(&self, number: usize) -> usize {
        (number as f64 * self.block as f64 * self.speed).round() as usize
    }

    /// How much input the next block needs. It is never less than the input that its end stands for, so that the output
    /// does not run ahead.
    fn needs(&self) -> usize {
        let searched = self.ideal(self.blocks) + self.reach + self.block;
        searched.max(self.natural + self.block).max(self.ideal(self.blocks + 1) + 1)
    }

    fn make_block(&mut self, out: &mut Vec<f32>) {
        let old = self.natural - self.base;
        let new = if self.blocks == 0 { old } else { self.most_alike(old) };
        let (old_sound, new_sound) = (&self.input[old..old + self.block], &self.input[new..new + self.block]);
        out.extend(old_sound.iter().zip(new_sound).zip(&self.fade).map(|((old, new), fade)| old + (new - old) * fade));
        self.blocks += 1;
        self.natural = self.base + new + self.block;
        // The next block looks back no further than this.
        let keep = self.natural.min(self.ideal(self.blocks).saturating_sub(self.reach)) - self.base;
        // Moving the rest to the front each time would cost more than the block.
        if keep > 16 * self.block {
            self.input.drain(..keep);
            self.base += keep;
        }
    }

    /// The place, as an index into `input`, that goes on most like `old`.
    fn most_alike(&self, old: usize) -> usize {
        let ideal = self.ideal(self.blocks) - self.base;
        let (first, last) = (ideal.saturating_sub(self.reach), ideal + self.reach);
        let wanted = &self.input[old..old + self.block];
        let mut best = (ideal, self.likeness(wanted, ideal));
        let mut consider = |candidates: &mut dyn Iterator<Item = usize>| {
            for place in candidates {
                let likeness = self.likeness(wanted, place);
                if likeness > best.1 {
                    best = (place, likeness);
                }
            }
            best.0
        };
        let near = consider(&mut (first..=last).step_by(COARSE));
        consider(&mut (near.saturating_sub(COARSE - 1).max(first)..=(near + COARSE - 1).min(last)))
    }

    /// How much the sound at `place` is like `wanted`: their correlation, loudness aside.
    fn likeness(&self, wanted: &[f32], place: usize) -> f32 {
        let sound = &self.input[place..place + self.block];
        dot(wanted, sound) / (dot(sound, sound) + f32::EPSILON).sqrt()
    }
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (left, right) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (left, right) in left.zip(right) {
        for (sum, (a, b)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 24_000;

    fn sine(frequency: f64, samples: usize) -> Vec<f32> {
        let step = frequency / f64::from(RATE) * std::f64::consts::TAU;
        (0..samples).map(|i| (i as f64 * step).sin() as f32 * 0.5).collect()
    }

    fn stretched(input: &[f32], speed: f32, pieces: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let mut stretch = TimeStretch::new(RATE, speed);
        let (mut out, mut rest) = (Vec::new(), input);
        for piece in pieces {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            out.extend(stretch.push(now));
            rest = later;
        }
        out.extend(stretch.push(rest));
        out.extend(stretch.finish());
        out
    }

    /// The pitch of the middle of a sound, Hz, from the times between its upward crossings of zero.
    fn frequency(sound: &[f32]) -> f64 {
        let middle = &sound[sound.len() / 8..sound.len() * 7 / 8];
        let crossings: Vec<f64> = middle
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair[0] < 0.0 && pair[1] >= 0.0)
            .map(|(i, pair)| i as f64 + f64::from(-pair[0]) / f64::from(pair[1] - pair[0]))
            .collect();
        let (first, last) = (crossings[0], crossings[crossings.len() - 1]);
        (crossings.len() - 1) as f64 / (last - first) * f64::from(RATE)
    }

    #[test]
    fn length_follows_the_speed_to_the_sample() {
        for speed in [0.25, 0.5, 0.77, 0.99, 1.01, 1.25, 1.5, 2.0, 3.3, 4.0] {
            for samples in [0, 1, 100, 359, 1920, 24_000, 41_685] {
                let out = stretched(&sine(200.0, samples), speed, []);
                let wanted = (samples as f64 / f64::from(speed)).round() as usize;
                assert_eq!(out.len(), wanted, "{samples} samples at {speed}");
            }
        }
    }

    #[test]
    fn pitch_and_loudness_stay() {
        for speed in [0.25, 0.5, 0.8, 1.25, 1.7, 2.0, 4.0] {
            for pitch in [90.0, 220.0, 440.0, 1234.5] {
                let out = stretched(&sine(pitch, 48_000), speed, []);
                let found = frequency(&out);
                assert!((found / pitch - 1.0).abs() < 0.01, "{pitch} Hz at {speed} became {found}");
                let loud = out[out.len() / 8..out.len() * 7 / 8].iter().fold(0.0f32, |loud, sample| loud.max(*sample));
                assert!((0.45..0.51).contains(&loud), "{pitch} Hz at {speed} is {loud} loud");
            }
        }
    }

    #[test]
    fn blocks_join_without_clicks() {
        for speed in [0.3, 0.9, 1.1, 2.5] {
            let out = stretched(&sine(300.0, 48_000), speed, []);
            let steepest = out.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(0.0, f32::max);
            // A sine of 300 Hz and 0.5 climbs 0.039 from one sample to the next.
            assert!(steepest < 0.05, "{steepest} at {speed}");
        }
    }

    #[test]
    fn silence_stays_silent_and_other_speeds_than_allowed_are_clamped() {
        assert!(stretched(&[0.0; 9600], 1.5, []).iter().all(|sample| *sample == 0.0));
        assert_eq!(stretched(&[0.0; 1000], 100.0, []).len(), 250);
    }

    #[test]
    fn memory_does_not_grow_with_the_speech() {
        let mut stretch = TimeStretch::new(RATE, 0.5);
        for _ in 0..200 {
            stretch.push(&[0.1; 1920]);
        }
        assert!(stretch.input.len() < 20 * stretch.block, "{} samples are kept", stretch.input.len());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn the_pieces_change_nothing(
            speed in 0.25f32..4.0,
            pieces in proptest::collection::vec(0usize..3000, 0..12),
            noise in proptest::collection::vec(-0.3f32..0.3, 12_000),
        ) {
            let voice = sine(140.0, noise.len());
            let input: Vec<f32> = voice.iter().zip(&noise).map(|(a, b)| a + b).collect();
            proptest::prop_assert_eq!(stretched(&input, speed, pieces), stretched(&input, speed, []));
        }
    }
}
