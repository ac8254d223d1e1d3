//! Change of the sample rate as near to the reference's resampler (libsoxr "HQ") as the band's edge allows.
//!
//! Why not `resample`, or the library below it: a spectrum is compared with the reference's up to the band's edge, and
//! the library's filters either pass more of that edge than libsoxr does (those by Fourier transform), or delay by parts
//! of a sample (those by sinc). This is the sum itself: output `i` is at input `c = i * down / up`, and
//! `y_i = b * sum_j x_j * sinc(t) * kaiser(t / WIDTH)` with `t = (j - c) * b`, `b = ROLLOFF * min(1, up / down)`.

use std::ops::Range;

/// Zeros of the filter on either side.
const WIDTH: f64 = 64.0;
/// Where the filter begins to fall, as a share of the lower Nyquist frequency, and the shape of its window: those of
/// resampy's "kaiser_best", which libsoxr's filter is nearest to.
const ROLLOFF: f64 = 0.947_593_716_739_959_6;
const BETA: f64 = 14.769_656_459_379_492;
/// Different positions of an output between two inputs, at most: the rates of recorders have 640 or fewer. Each costs a
/// table of weights.
const MOST_PHASES: u64 = 640;
/// Sums that run side by side, which the compiler turns into one instruction. Their order is fixed, so results do not
/// depend on the machine.
const LANES: usize = 8;

/// The filter from one rate to another.
pub(crate) struct Polyphase {
    up: u64,
    down: u64,
    /// Inputs on either side that an output is made of.
    reach: usize,
    taps: usize,
    /// Of each phase, `[up, taps]`.
    weights: Vec<f32>,
}

impl Polyphase {
    /// `None` for rates with more phases than are tabulated.
    pub fn new(from: u32, to: u32) -> Option<Polyphase> {
        let divisor = gcd(from, to);
        let (up, down) = (u64::from(to / divisor), u64::from(from / divisor));
        if up > MOST_PHASES {
            return None;
        }
        let band = ROLLOFF * (up as f64 / down as f64).min(1.0);
        let reach = (WIDTH / band).ceil() as usize;
        let taps = (2 * reach + 1).next_multiple_of(LANES);
        let mut weights = Vec::with_capacity(up as usize * taps);
        for phase in 0..up {
            let beside = phase as f64 / up as f64;
            weights.extend((0..taps).map(|k| weight(k as f64 - reach as f64 - beside, band)));
        }
        Some(Polyphase { up, down, reach, taps, weights })
    }

    /// The inputs that these outputs are made of, which may lie in front of the clip and behind it.
    pub fn reach(&self, outputs: &Range<u64>) -> Range<i64> {
        let first = |output: u64| (output * self.down / self.up) as i64 - self.reach as i64;
        first(outputs.start)..first(outputs.end.saturating_sub(1)) + self.taps as i64
    }

    /// Which of the table's filters an output is made with: with equal inputs and phases, outputs are equal.
    pub fn phase(&self, output: u64) -> u64 {
        output * self.down % self.up
    }

    /// These outputs of a clip that is silent but for `pcm`, of which the first is number `first`.
    pub fn outputs(&self, pcm: &[f32], first: i64, outputs: Range<u64>) -> Vec<f32> {
        let mut window = vec![0f32; self.taps];
        let one = |output: u64| {
            let phase = self.phase(output) as usize;
            let weights = &self.weights[phase * self.taps..(phase + 1) * self.taps];
            let from = self.reach(&(output..output + 1)).start - first;
            match usize::try_from(from).ok().and_then(|from| pcm.get(from..from + self.taps)) {
                Some(inside) => dot(inside, weights),
                None => {
                    for (at, sample) in (from..).zip(&mut window) {
                        *sample = usize::try_from(at).ok().and_then(|at| pcm.get(at)).copied().unwrap_or(0.0);
                    }
                    dot(&window, weights)
                }
            }
        };
        outputs.map(one).collect()
    }
}

/// `len` samples of `pcm` at rate `to`, and silence beyond its ends; `None` for rates with more phases than are
/// tabulated.
pub(crate) fn resample(pcm: &[f32], from: u32, to: u32, len: usize) -> Option<Vec<f32>> {
    Some(Polyphase::new(from, to)?.outputs(pcm, 0, 0..len as u64))
}

fn dot(samples: &[f32], weights: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    for (x, w) in samples.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        sums.iter_mut().zip(x).zip(w).for_each(|((sum, x), w)| *sum += x * w);
    }
    sums.iter().sum()
}

fn weight(distance: f64, band: f64) -> f32 {
    let t = distance * band;
    if t.abs() >= WIDTH {
        return 0.0;
    }
    let sinc = if t == 0.0 { 1.0 } else { (std::f64::consts::PI * t).sin() / (std::f64::consts::PI * t) };
    let window = bessel(BETA * (1.0 - (t / WIDTH).powi(2)).sqrt()) / bessel(BETA);
    (band * sinc * window) as f32
}

/// The modified Bessel function of the first kind and order 0, by its series.
fn bessel(x: f64) -> f64 {
    let (quarter, mut term, mut sum) = (x * x / 4.0, 1.0, 1.0);
    for k in 1..60 {
        term *= quarter / f64::from(k * k);
        sum += term;
    }
    sum
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn sine(hz: f64, rate: u32) -> Vec<f32> {
        (0..rate).map(|i| (0.5 * (TAU * hz * f64::from(i) / f64::from(rate)).sin()) as f32).collect()
    }

    #[test]
    fn what_both_rates_carry_keeps_its_level_and_its_time() {
        for from in [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000] {
            let hz = 0.8 * f64::from(from.min(16_000)) / 2.0;
            let got = resample(&sine(hz, from), from, 16_000, 16_000).unwrap();
            let want = sine(hz, 16_000);
            let errors = got.iter().zip(&want).skip(2_000).take(12_000).map(|(a, b)| (a - b).abs());
            let error = errors.fold(0.0, f32::max);
            assert!(error < 2e-5, "{from}: {error:e}");
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_carry_is_gone() {
        for from in [22_050, 44_100, 48_000] {
            let got = resample(&sine(8_500.0, from), from, 16_000, 16_000).unwrap();
            let left = got[2_000..14_000].iter().fold(0.0, |max: f32, x| max.max(x.abs()));
            assert!(left < 1e-4, "{from}: {left:e}");
        }
    }

    #[test]
    fn rates_of_too_many_phases_are_left_to_another_filter() {
        assert!(resample(&[0.0; 9], 44_101, 16_000, 3).is_none());
    }
}
