//! Joins one piece of speech to the next.
//!
//! Pieces are made independently, so the last sample of one and the first of the next do not meet, which would click.
//! The last milliseconds before a border fade out and the first behind it fade in. Which samples change depends on
//! their place in the piece alone, not on how the piece came in chunks.

/// Samples that fade, on either side of a border: 5 ms at 24 kHz.
const FADE: usize = 120;

/// Pieces in, one continuous stream out.
#[derive(Clone, Debug, Default)]
pub struct Crossfade {
    /// The last samples, which fade out if another piece follows.
    held: Vec<f32>,
    /// Samples since the last border, and over how many the piece behind it fades in; `None` before the first.
    since: Option<(usize, usize)>,
}

impl Crossfade {
    /// More samples of the piece; returns those that are final.
    pub fn push(&mut self, samples: &[f32]) -> Vec<f32> {
        let start = self.held.len();
        self.held.extend_from_slice(samples);
        if let Some((since, fade)) = &mut self.since {
            for sample in &mut self.held[start..] {
                if *since >= *fade {
                    break;
                }
                *sample *= gain(*since, *fade);
                *since += 1;
            }
        }
        let ready = self.held.len().saturating_sub(FADE);
        self.held.drain(..ready).collect()
    }

    /// The piece is over and another follows; returns its end.
    pub fn border(&mut self) -> Vec<f32> {
        self.end(FADE)
    }

    /// The same where silence follows, behind which the next piece fades in over `fade` samples, or over 5 ms if that is
    /// longer: behind silence an ear hears more.
    pub fn silence(&mut self, fade: usize) -> Vec<f32> {
        self.end(fade.max(FADE))
    }

    fn end(&mut self, fade: usize) -> Vec<f32> {
        let length = self.held.len();
        for (i, sample) in self.held.iter_mut().enumerate() {
            *sample *= gain(length - 1 - i, FADE);
        }
        self.since = Some((0, fade));
        std::mem::take(&mut self.held)
    }

    /// The last piece is over; returns its end as it is.
    pub fn finish(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.held)
    }
}

/// The gain of the sample that is so many away from the border, of those that fade: a raised cosine.
fn gain(distance: usize, fade: usize) -> f32 {
    let x = (distance.min(fade) as f32 + 0.5) / (fade as f32 + 0.5);
    0.5 - 0.5 * (std::f32::consts::PI * x.min(1.0)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&[f32]], chunk: usize) -> Vec<f32> {
        let mut joint = Crossfade::default();
        let mut out = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            if i > 0 {
                out.extend(joint.border());
            }
            piece.chunks(chunk).for_each(|samples| out.extend(joint.push(samples)));
        }
        out.extend(joint.finish());
        out
    }

    #[test]
    fn borders_are_smooth_and_the_ends_are_left_alone() {
        let (up, down) = (vec![0.5; 1000], vec![-0.5; 1000]);
        let out = joined(&[&up, &down], 333);
        assert_eq!(out.len(), 2000);
        assert_eq!((out[0], out[1999], out[500], out[1500]), (0.5, -0.5, 0.5, -0.5));
        let steepest = out.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(0.0, f32::max);
        assert!(steepest < 0.01, "{steepest}");
    }

    #[test]
    fn silence_is_met_by_fades_and_the_piece_behind_it_fades_in_for_longer() {
        let wave = vec![0.5; 1000];
        let mut joint = Crossfade::default();
        // A pause before the first piece, too.
        assert_eq!(joint.silence(240), []);
        let mut out = joint.push(&wave);
        out.extend(joint.silence(0));
        assert_eq!(out.len(), 1000);
        assert!(out[0] < 1e-4 && out[120] < 0.3 && out[240..880].iter().all(|sample| *sample == 0.5));
        assert!(out[999] < 1e-4 && out.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 0.01));
    }

    #[test]
    fn chunks_change_nothing() {
        let wave: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.1).sin()).collect();
        let whole = joined(&[&wave, &wave[..50], &wave], 5000);
        for chunk in [1, 7, 119, 120, 121] {
            assert_eq!(joined(&[&wave, &wave[..50], &wave], chunk), whole);
        }
    }

    #[test]
    fn one_piece_is_as_it_was() {
        let wave: Vec<f32> = (0..300).map(|i| i as f32).collect();
        assert_eq!(joined(&[&wave], 64), wave);
    }
}
