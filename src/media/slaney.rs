//! Slaney's mel scale: linear up to 1 kHz and logarithmic above.

/// Hertz of one mel, below 1 kHz.
const LINEAR: f64 = 200.0 / 3.0;
const KNEE_HERTZ: f64 = 1000.0;
const KNEE_MEL: f64 = KNEE_HERTZ / LINEAR;

/// Logarithm of the frequency ratio of one mel, above 1 kHz: 27 of them are a factor of 6.4.
fn step() -> f64 {
    6.4f64.ln() / 27.0
}

/// A frequency in mel.
pub fn mel(hertz: f64) -> f64 {
    if hertz < KNEE_HERTZ { hertz / LINEAR } else { KNEE_MEL + (hertz / KNEE_HERTZ).ln() / step() }
}

/// A frequency in Hz.
pub fn hertz(mel: f64) -> f64 {
    if mel < KNEE_MEL { mel * LINEAR } else { KNEE_HERTZ * ((mel - KNEE_MEL) * step()).exp() }
}

/// The middle of each band up to `top` Hz, in Hz, with the edges before the first and behind the last: equally far apart
/// in mel.
pub fn centres(bands: usize, top: f64) -> Vec<f64> {
    let top = mel(top);
    (0..bands + 2).map(|i| hertz(top * i as f64 / (bands + 1) as f64)).collect()
}
