//! Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
//! a number is a pure function of key and counter. The key is the request's seed; the counter says what is drawn.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// What a number is drawn for: numbers of different domains are independent under one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Domain {
    /// Answer tokens of the thinker.
    Thinker = 1,
    /// Codes: group 0 by the talker, the others by the code predictor.
    Codes = 2,
}

/// One block of four random words.
pub fn block(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let a = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let b = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

/// The number in [0, 1) for one token: `step` counts the tokens (frames) of the sequence from 0, `group` is the code
/// group (0 for text). A multiple of 2^-24, so that it is exact in f32 on every device.
pub fn uniform(seed: u64, domain: Domain, step: u32, group: u32) -> f32 {
    let word = block([step, group, domain as u32, 0], [seed as u32, (seed >> 32) as u32])[0];
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_equal_the_published_vectors() {
        // kat_vectors of the Random123 library, "philox4x32 10".
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(block(counter, key), expected);
        }
    }

    #[test]
    fn uniform_uses_every_part_of_its_key() {
        let base = uniform(7, Domain::Codes, 3, 5);
        assert_eq!(base, uniform(7, Domain::Codes, 3, 5));
        for other in [
            uniform(8, Domain::Codes, 3, 5),
            uniform(7 + (1 << 32), Domain::Codes, 3, 5),
            uniform(7, Domain::Thinker, 3, 5),
            uniform(7, Domain::Codes, 4, 5),
            uniform(7, Domain::Codes, 3, 6),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn uniform_stays_below_one_and_fills_the_interval_evenly() {
        let mut buckets = [0u32; 16];
        for step in 0..16_000 {
            let u = uniform(42, Domain::Codes, step / 16, step % 16);
            assert!((0.0..1.0).contains(&u));
            buckets[(u * 16.0) as usize] += 1;
        }
        // Chi-square, 15 degrees of freedom: above 37.7 in one of a thousand seeds.
        let chi: f64 = buckets.iter().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 37.7, "{chi}");
        assert!(((u32::MAX >> 8) as f32 * (1.0 / (1u32 << 24) as f32)) < 1.0);
    }
}
