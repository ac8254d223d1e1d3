//! Random numbers of a simulation: SplitMix64, whose whole state is one number.

use std::time::Duration;

/// See the module.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Mixes a number into a state.
pub fn mix(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random(mix(0x5EED, seed))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, 0)
    }

    /// `0..below`; 0 for an empty range.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    /// `from..to`.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these, which are not none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A time of up to `most` microseconds.
    pub fn micros(&mut self, most: u64) -> Duration {
        Duration::from_nanos(self.below(most * 1000))
    }

    /// A time between two numbers of milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.within(from * 1000, to * 1000))
    }
}
