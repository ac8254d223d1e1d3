//! G.711: 8 bits for each sample, on a scale that is finer where it is quiet. Telephones take it at 8 kHz.

/// Which of the two laws of ITU-T G.711.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// North America and Japan; also called PCMU, `ulaw`, `mulaw`.
    Mu,
    /// Everywhere else; also called PCMA, `alaw`.
    A,
}

impl Law {
    /// Encodes a 16-bit sample.
    pub(super) fn encode(self, sample: i16) -> u8 {
        match self {
            Law::Mu => mu(sample),
            Law::A => a(sample),
        }
    }

    /// The 16-bit sample of a code: the output values of the standard's decoders.
    pub fn decode(self, code: u8) -> i16 {
        let plain = match self {
            Law::Mu => !code,
            Law::A => code ^ 0x55 ^ 0x80,
        };
        let (segment, step) = (i16::from(plain >> 4 & 7), i16::from(plain & 15));
        let magnitude = match self {
            Law::Mu => (((2 * step + 33) << segment) - 33) * 4,
            Law::A if segment == 0 => (2 * step + 1) * 8,
            Law::A => ((2 * step + 33) << (segment - 1)) * 8,
        };
        if plain & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The number of this coding in the header of a wav.
    pub(super) fn wav_tag(self) -> u16 {
        match self {
            Law::A => 6,
            Law::Mu => 7,
        }
    }

    /// The name of its bare format.
    pub(super) fn name(self) -> &'static str {
        match self {
            Law::Mu => "mulaw",
            Law::A => "alaw",
        }
    }
}

/// The magnitude of a sample as one's complement has it, as the standard's tables do: -1 counts as 0.
fn magnitude(sample: i16) -> u16 {
    (if sample < 0 { !sample } else { sample }).unsigned_abs()
}

/// Table 2 of G.711: 14 bits, whose magnitude of 0 to 8158 is raised by 33 so that segments double.
fn mu(sample: i16) -> u8 {
    let raised = ((magnitude(sample) >> 2) + 33).min(0x1fff);
    let segment = (raised >> 6).checked_ilog2().map_or(0, |top| top + 1);
    let code = (segment << 4) as u8 | (raised >> (segment + 1) & 15) as u8;
    // All bits are inverted for transmission; the first one says that the sample is not negative.
    !(code | if sample < 0 { 0x80 } else { 0 })
}

/// Table 1 of G.711: 13 bits, the first two segments of one slope.
fn a(sample: i16) -> u8 {
    let magnitude = magnitude(sample) >> 4;
    let segment = (magnitude >> 4).checked_ilog2().map_or(0, |top| top + 1);
    let code = (segment << 4) as u8 | (magnitude >> segment.saturating_sub(1) & 15) as u8;
    // Every other bit is inverted for transmission.
    (code | if sample < 0 { 0 } else { 0x80 }) ^ 0x55
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first value of each positive segment and the code of it before bits are inverted, from tables 1 and 2 of the
    /// standard. The columns of "decision value" are of 13 (A) and 14 (mu) bits; samples have 16.
    #[test]
    fn segments_begin_where_the_tables_of_the_standard_say() {
        for (segment, decision) in [0i16, 31, 95, 223, 479, 991, 2015, 4063].into_iter().enumerate() {
            let code = (segment as u8) << 4;
            assert_eq!(Law::Mu.encode(decision * 4), !code, "mu, +{decision}");
            assert_eq!(Law::Mu.encode(!(decision * 4)), !(code | 0x80), "mu, -{decision}");
            if segment > 0 {
                assert_eq!(Law::Mu.encode(decision * 4 - 1), !(code - 1), "mu, below +{decision}");
            }
        }
        for (segment, decision) in [0i16, 32, 64, 128, 256, 512, 1024, 2048].into_iter().enumerate() {
            let code = (segment as u8) << 4;
            assert_eq!(Law::A.encode(decision * 8), (code | 0x80) ^ 0x55, "A, +{decision}");
            assert_eq!(Law::A.encode(!(decision * 8)), code ^ 0x55, "A, -{decision}");
            if segment > 0 {
                assert_eq!(Law::A.encode(decision * 8 - 1), ((code - 1) | 0x80) ^ 0x55, "A, below +{decision}");
            }
        }
    }

    #[test]
    fn silence_and_the_extremes_are_the_well_known_codes() {
        assert_eq!([0, i16::MAX, -1, i16::MIN].map(|sample| Law::Mu.encode(sample)), [0xff, 0x80, 0x7f, 0x00]);
        assert_eq!([0, i16::MAX, -1, i16::MIN].map(|sample| Law::A.encode(sample)), [0xd5, 0xaa, 0x55, 0x2a]);
    }

    #[test]
    fn every_code_but_the_second_zero_is_that_of_the_value_that_it_stands_for() {
        for law in [Law::Mu, Law::A] {
            for code in 0..=u8::MAX {
                let value = law.decode(code);
                // A-law has no 0; mu-law has a -0, which no encoder needs.
                let expected = if (law, code) == (Law::Mu, 0x7f) { 0xff } else { code };
                assert_eq!(law.encode(value), expected, "{law:?} {code:#04x} is {value}");
            }
        }
    }

    #[test]
    fn no_sample_is_further_away_than_half_a_step_of_its_segment() {
        for law in [Law::Mu, Law::A] {
            // Louder samples than the standard's largest value are clipped.
            for sample in -32_635i16..=32_635 {
                let code = law.encode(sample);
                let segment = (if law == Law::Mu { !code } else { code ^ 0x55 }) >> 4 & 7;
                let step = if law == Law::Mu { 8 << segment } else { 16 << segment.saturating_sub(1) };
                let error = (i32::from(law.decode(code)) - i32::from(sample)).abs();
                // Samples have bits that the standard's do not.
                assert!(error <= step / 2 + 1, "{law:?} {sample}: {error} of {step}");
            }
        }
    }
}
