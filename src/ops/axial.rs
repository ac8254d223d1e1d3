//! Rotary position embedding over several axes: each frequency turns with the position on one of them.

use super::rope::{Angles, frequencies};
use candle_core::{Device, Result, Tensor};

/// Frequencies, and the axis that each turns with.
#[derive(Clone, Debug)]
pub struct AxialRope {
    /// Frequency and axis of each pair of a head.
    turns: Vec<(f32, usize)>,
    axes: usize,
    device: Device,
}

/// The axis (0 time, 1 height, 2 width) that frequency `j` turns with in the interleaved M-RoPE: height
/// if `j % 3 == 1` and `j < 3 * section[1]`, width if `j % 3 == 2` and `j < 3 * section[2]`, otherwise time.
pub fn interleaved_axis(j: usize, section: [usize; 3]) -> usize {
    match j % 3 {
        axis @ 1.. if j < 3 * section[axis] => axis,
        _ => 0,
    }
}

impl AxialRope {
    /// The interleaved M-RoPE of time, height and width: [`interleaved_axis`].
    ///
    /// # Errors
    /// When `head_dim` is odd.
    pub fn interleaved(head_dim: usize, theta: f64, section: [usize; 3], device: &Device) -> Result<AxialRope> {
        let all = frequencies(head_dim, theta)?.into_iter().enumerate();
        let turns = all.map(|(j, w)| (w, interleaved_axis(j, section))).collect();
        Ok(AxialRope { turns, axes: 3, device: device.clone() })
    }

    /// Rows and columns of a picture: the first half of the pairs turns with the row, the second, at the same
    /// frequencies, with the column.
    ///
    /// # Errors
    /// When `head_dim` is no multiple of 4.
    pub fn grid(head_dim: usize, theta: f64, device: &Device) -> Result<AxialRope> {
        let half = frequencies(head_dim / 2, theta)?;
        if half.len() * 4 != head_dim {
            candle_core::bail!("rotary embedding of a grid needs heads of a multiple of 4, got {head_dim}");
        }
        let turns = (0..2).flat_map(|axis| half.iter().map(move |w| (*w, axis))).collect();
        Ok(AxialRope { turns, axes: 2, device: device.clone() })
    }

    /// The frequency of each pair of a head.
    pub fn frequencies(&self) -> impl Iterator<Item = f32> {
        self.turns.iter().map(|(frequency, _)| *frequency)
    }

    /// The turns of some positions: `positions[axis][i]` is position `i` on an axis.
    ///
    /// # Errors
    /// When the axes are not as many as the embedding has, or have different lengths.
    pub fn at(&self, positions: &[&[f32]]) -> Result<Angles> {
        let len = positions.first().map_or(0, |axis| axis.len());
        if positions.len() != self.axes || positions.iter().any(|axis| axis.len() != len) {
            let lens: Vec<_> = positions.iter().map(|axis| axis.len()).collect();
            candle_core::bail!("rotary embedding over {} axes got positions {lens:?}", self.axes);
        }
        let turns = |f: fn(f32) -> f32| -> Vec<f32> {
            (0..len).flat_map(|i| self.turns.iter().map(move |(w, axis)| f(positions[*axis][i] * w))).collect()
        };
        let half = self.turns.len();
        if matches!(self.device, Device::Cpu) {
            return Ok(Angles::Cpu { cos: turns(f32::cos), sin: turns(f32::sin), half });
        }
        let table = |f| Tensor::from_vec(turns(f), (len, half), &self.device);
        Ok(Angles::Device { cos: table(f32::cos)?, sin: table(f32::sin)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rope;
    use super::*;

    fn cos(angles: &Angles) -> Vec<f32> {
        let Angles::Cpu { cos, .. } = angles else { unreachable!() };
        cos.clone()
    }

    #[test]
    fn equal_positions_on_all_axes_turn_as_plain_positions_do() {
        let axial = AxialRope::interleaved(32, 1e6, [6, 5, 5], &Device::Cpu).unwrap();
        let plain = Rope::new(32, 1e6, &Device::Cpu).unwrap();
        let axis = [0.0, 7.0, 60_000.0];
        assert_eq!(cos(&axial.at(&[&axis[..]; 3]).unwrap()), cos(&plain.at(&[0, 7, 60_000]).unwrap()));
    }

    #[test]
    fn frequencies_alternate_between_the_axes_until_a_section_is_used_up() {
        let rope = AxialRope::interleaved(32, 1e6, [7, 5, 4], &Device::Cpu).unwrap();
        let axes: Vec<usize> = rope.turns.iter().map(|(_, axis)| *axis).collect();
        assert_eq!(axes, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 0]);
        let axes: Vec<usize> =
            AxialRope::grid(8, 1e4, &Device::Cpu).unwrap().turns.iter().map(|(_, axis)| *axis).collect();
        assert_eq!(axes, [0, 0, 1, 1]);
    }

    #[test]
    fn axes_that_do_not_fit_are_refused() {
        let rope = AxialRope::grid(8, 1e4, &Device::Cpu).unwrap();
        assert!(rope.at(&[&[1.0]]).is_err());
        assert!(rope.at(&[&[1.0], &[1.0, 2.0]]).is_err());
        assert!(AxialRope::grid(6, 1e4, &Device::Cpu).is_err());
    }
}
