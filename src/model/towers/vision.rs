//! The vision tower: patches of pictures through a transformer in which the patches of one temporal
//! slice see each other; blocks of patches are then merged to embeddings of the thinker.
//!
//! Patches of `[3, 2, 16, 16]` in blocks of 2 x 2; a learned table of 48 x 48 positions, read bilinearly (48 steps from
//! 0 to 47 inclusive); 2-D rotation with theta 1e4 (heads of 72: 18 frequencies for the row, 18 for the column, then
//! doubled). GELU by tanh in layers, exact in mergers. The merger norms each patch and then joins 4; mergers of
//! deepstack join first and norm over all 4608 numbers.

use super::parts::{Layer, Loaded, Norm, Seen, linear};
use crate::error::refused;
use crate::hf::{VISION_NORM_EPS, VISION_ROPE_THETA, VisionTowerConfig};
use crate::media::MediaRows;
use crate::weights::Scope;
use crate::{LoadError, ModelError};
use candle_core::{Result, Tensor};
use omni_ops::{Angles, AxialRope, Linear};
use std::ops::Deref;

/// Patches to embeddings of the thinker.
pub struct VisionTower {
    config: VisionTowerConfig,
    patch: Linear,
    /// Learned positions of a square grid, `[side * side, hidden]`, row after row.
    positions: Tensor,
    rope: AxialRope,
    layers: Vec<Layer>,
    merger: Merger,
    /// In the order of `deepstack_visual_indexes`.
    deepstack: Vec<Merger>,
}

/// What all slices of a picture or video share: positions and turns of their patches.
pub struct SliceLayout {
    /// `[patches, hidden]`.
    positions: Tensor,
    angles: Angles,
    patches: usize,
}

/// A temporal slice on its way through the layers. It holds its layout, or refers to it.
pub struct Slice<L> {
    layout: L,
    /// The residual stream before the layer that is computed, in pieces while patches still come.
    x: Vec<Tensor>,
    /// Patches that have come.
    patches: usize,
    /// Layers done.
    layer: usize,
    /// Of the layer that is computed, piece after piece: what its patches ask and show, then what they become.
    seen: Vec<Seen>,
    next: Vec<Tensor>,
    /// Keys and values of all patches, once all have shown theirs.
    all: Option<(Tensor, Tensor)>,
    /// Rows of the deepstack levels, level after level, in pieces for the one that is computed.
    deepstack: Vec<Tensor>,
    level: Vec<Tensor>,
}

/// Multiply-adds of a step of a layer, at most: a quarter of a second of one core. What a step does for a block of
/// patches cannot be cut further.
const STEP_MACS: u128 = 1 << 33;
/// What a query's look at one key of a head costs beside its products, in multiply-adds: the exponential of its score, and
/// what heads of 72 lose beside whole registers, up to 4 ns.
const LOOK_MACS: u128 = 128;

/// Multiply-adds of the layers in a coarse unit, about: two or three milliseconds of a large GPU.
const UNIT_MACS: u128 = 1 << 38;

/// What a layer costs for each of `n` patches, in multiply-adds: with its attention to all others, and a level of the
/// deepstack.
fn macs_of_a_patch(config: &VisionTowerConfig, n: usize) -> u128 {
    let (width, inner, unit) = (config.hidden_size as u128, config.intermediate_size as u128, config.merge_unit());
    let merged = width * unit as u128;
    let each = n as u128 * (2 * width + config.num_heads as u128 * LOOK_MACS)
        + 4 * width * width
        + 2 * width * inner
        + merged * (merged + config.out_hidden_size as u128) / unit as u128;
    each.max(1)
}

/// Patches of a slice of `n` that go through a layer in one step: whole merge blocks.
pub(crate) fn patches_in_a_step(config: &VisionTowerConfig, n: usize) -> usize {
    let unit = config.merge_unit();
    let blocks = (STEP_MACS / macs_of_a_patch(config, n)) as usize / unit;
    (blocks.max(1) * unit).min(n)
}

/// Layers of a slice of `n` patches in a coarse unit.
pub(crate) fn layers_in_a_unit(config: &VisionTowerConfig, n: usize) -> usize {
    let layers = UNIT_MACS / (macs_of_a_patch(config, n) * n.max(1) as u128);
    layers.clamp(1, config.depth.max(1) as u128) as usize
}

/// Steps of a layer of a slice of `n` patches of which `piece` go in one: one for all, or two for each piece.
pub fn steps_of_a_layer(n: usize, piece: usize) -> usize {
    match n.div_ceil(piece.max(1)) {
        1 => 1,
        pieces => 2 * pieces,
    }
}

impl VisionTower {
    pub(super) fn load(scope: &Scope<'_>, config: &VisionTowerConfig) -> Loaded<VisionTower> {
        let (hidden, side) = (config.hidden_size, config.grid_side);
        let (frames, pixels) = (config.temporal_patch_size, config.patch_size);
        let patch = scope.at("patch_embed.proj");
        let kernel = patch.get("weight", &[hidden, config.in_channels, frames, pixels, pixels])?;
        let kernel = kernel.contiguous()?.reshape((hidden, config.patch_width()))?;
        let mergers = scope.at("merger_list");
        Ok(VisionTower {
            patch: Linear::new(kernel, Some(patch.get("bias", &[hidden])?))?,
            positions: scope.at("pos_embed").get("weight", &[side * side, hidden])?,
            rope: AxialRope::grid(config.head_dim(), VISION_ROPE_THETA, scope.device())?,
            layers: (0..config.depth).map(|i| layer(&scope.at("blocks").at(i), config)).collect::<Loaded<_>>()?,
            merger: Merger::load(&scope.at("merger"), config, false)?,
            deepstack: (0..config.deepstack_visual_indexes.len())
                .map(|i| Merger::load(&mergers.at(i), config, true))
                .collect::<Loaded<_>>()?,
            config: config.clone(),
        })
    }

    /// Sizes.
    pub fn config(&self) -> &VisionTowerConfig {
        &self.config
    }

    /// Embeddings of a grid of patches `[slices, rows, columns]`.
    pub fn tokens(&self, grid: [usize; 3]) -> usize {
        grid.iter().product::<usize>() / self.config.merge_unit()
    }

    /// Encodes the patches `[n, patch_width]` of one picture or video with the grid `[slices, rows, columns]`, slice
    /// after slice, each in merge blocks: rows of blocks, blocks, rows inside a block, patches.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when patches and grid do not fit.
    pub fn encode(&self, patches: &Tensor, grid: [usize; 3]) -> std::result::Result<MediaRows, ModelError> {
        let [slices, rows, columns] = grid;
        let layout = self.layout(rows, columns)?;
        let (n, wanted) = (layout.patches, slices.checked_mul(layout.patches));
        if slices == 0 || patches.dims().first().copied() != wanted {
            return refused(format!("patches have shape {:?}: expected those of the grid {grid:?}", patches.dims()));
        }
        let encoded = (0..slices).map(|i| {
            let mut slice = self.begin(&patches.narrow(0, i * n, n)?, &layout)?;
            while self.advance(&mut slice, n)? {}
            let rows = n / self.config.merge_unit();
            self.merge(&slice, 0, rows)
        });
        Ok(MediaRows::cat(&encoded.collect::<std::result::Result<Vec<_>, _>>()?)?)
    }

    /// Positions and turns of the patches of a slice.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when the sides are no multiples of a merge block.
    pub fn layout(&self, rows: usize, columns: usize) -> std::result::Result<SliceLayout, ModelError> {
        let merge = self.config.spatial_merge_size;
        let fits = |side: usize| side > 0 && side.is_multiple_of(merge);
        let Some(patches) = rows.checked_mul(columns).filter(|_| fits(rows) && fits(columns)) else {
            return refused(format!("a grid of {rows} x {columns} patches: expected multiples of {merge}"));
        };
        let places = in_blocks(rows, columns, merge);
        let axis = |pick: fn(&(usize, usize)) -> usize| -> Vec<f32> { places.iter().map(|p| pick(p) as f32).collect() };
        let angles = self.rope.at(&[&axis(|place| place.0), &axis(|place| place.1)])?;
        let (down, right) = (side_places(&self.config, rows), side_places(&self.config, columns));
        // Each patch lies between four places of the table: weights and places of all patches, corner by corner.
        let mut positions: Option<Tensor> = None;
        for corner in 0..4 {
            let of = |&(row, column): &(usize, usize)| {
                let ((y, wy), (x, wx)) = (down[row][corner / 2], right[column][corner % 2]);
                ((y * self.config.grid_side + x) as u32, wy * wx)
            };
            let (at, weights): (Vec<u32>, Vec<f32>) = places.iter().map(of).unzip();
            let device = self.positions.device();
            let table = self.positions.index_select(&Tensor::new(at, device)?, 0)?;
            let part = table.broadcast_mul(&Tensor::new(weights, device)?.unsqueeze(1)?)?;
            positions = Some(match positions {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        match positions {
            Some(positions) => Ok(SliceLayout { positions, angles, patches }),
            None => refused("a patch has no corners"),
        }
    }

    /// Begins a slice: its patches `[rows * columns, patch_width]`.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when the patches do not fit the layout.
    pub fn begin<L>(&self, patches: &Tensor, layout: L) -> std::result::Result<Slice<L>, ModelError>
    where
        L: Deref<Target = SliceLayout>,
    {
        let wanted = [layout.patches, self.config.patch_width()];
        if patches.dims() != wanted {
            return refused(format!("patches have shape {:?}: expected {wanted:?}", patches.dims()));
        }
        let mut slice = self.empty(layout);
        self.feed(&mut slice, patches)?;
        Ok(slice)
    }

    /// A slice whose patches come in [pieces](VisionTower::feed).
    pub fn empty<L>(&self, layout: L) -> Slice<L> {
        let (x, seen, next, deepstack, level) = (vec![], vec![], vec![], vec![], vec![]);
        Slice { layout, x, patches: 0, layer: 0, seen, next, all: None, deepstack, level }
    }

    /// Takes the next patches of a slice, `[n, patch_width]`: the same bits in pieces of any size.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for patches of another width, none, or more than are missing.
    pub fn feed<L>(&self, slice: &mut Slice<L>, patches: &Tensor) -> std::result::Result<(), ModelError>
    where
        L: Deref<Target = SliceLayout>,
    {
        let (left, width) = (slice.layout.patches - slice.patches, self.config.patch_width());
        let &[n, found] = patches.dims() else {
            return refused(format!("patches have shape {:?}: expected two dimensions", patches.dims()));
        };
        if n == 0 || n > left || found != width {
            return refused(format!("patches have shape [{n}, {found}]: expected [1..={left}, {width}]"));
        }
        let positions = slice.layout.positions.narrow(0, slice.patches, n)?;
        slice.x.push((self.patch.forward(patches)? + positions)?);
        slice.patches += n;
        Ok(())
    }

    /// Computes a layer of a slice further, `piece` patches at most, the same for each step of a layer and whole merge
    /// blocks; `false` when there is no layer left. A layer takes one step where a piece is the whole, and two for each
    /// piece otherwise; its bits do not depend on the size of the pieces.
    ///
    /// # Errors
    /// What the device says, and for a slice whose patches have not all come.
    pub fn advance<L: Deref<Target = SliceLayout>>(&self, slice: &mut Slice<L>, piece: usize) -> Result<bool> {
        let Some(layer) = self.layers.get(slice.layer) else { return Ok(false) };
        let n = slice.layout.patches;
        if slice.patches < n {
            candle_core::bail!("{} of {n} patches of a slice have come", slice.patches);
        }
        let x = joined(&mut slice.x)?;
        let pieces = n.div_ceil(piece.max(1));
        let of = |number: usize| (number * piece, piece.min(n - number * piece));
        if slice.seen.len() < pieces {
            let (start, len) = of(slice.seen.len());
            let angles = slice.layout.angles.narrow(start, len)?;
            slice.seen.push(layer.look(&x.narrow(0, start, len)?, Some(&angles))?);
            if pieces > 1 {
                return Ok(true);
            }
        }
        if slice.all.is_none() {
            let all = |pick: fn(&Seen) -> &Tensor| Tensor::cat(&slice.seen.iter().map(pick).collect::<Vec<_>>(), 0);
            slice.all = Some((all(|seen| &seen.k)?, all(|seen| &seen.v)?));
        }
        let (Some((k, v)), number) = (&slice.all, slice.next.len()) else { return Ok(true) };
        let (start, len) = of(number);
        let next = layer.attend(&x.narrow(0, start, len)?, &slice.seen[number].q, k, v)?;
        let level = self.config.deepstack_visual_indexes.iter().position(|taken| *taken == slice.layer);
        if let Some(level) = level {
            slice.level.push(self.deepstack[level].forward(&next)?);
        }
        slice.next.push(next);
        if slice.next.len() == pieces {
            slice.x = std::mem::take(&mut slice.next);
            (slice.seen, slice.all) = (Vec::new(), None);
            if level.is_some() {
                let level = joined(&mut slice.level)?;
                slice.deepstack.push(level);
                slice.level = Vec::new();
            }
            slice.layer += 1;
        }
        Ok(true)
    }

    /// `count` embeddings, from the one with the number `start` on, of a slice that has been through all layers: the same
    /// bits in pieces of any size.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] while layers are left, or for embeddings that it does not have.
    pub fn merge<L>(&self, slice: &Slice<L>, start: usize, count: usize) -> std::result::Result<MediaRows, ModelError> {
        if slice.layer < self.layers.len() {
            return refused(format!("a slice was finished after {} of {} layers", slice.layer, self.layers.len()));
        }
        let unit = self.config.merge_unit();
        let (from, until) = (start * unit, (start + count) * unit);
        if until > slice.patches || count == 0 {
            return refused(format!(
                "a slice of {} patches has no embeddings {start}..{}",
                slice.patches,
                start + count
            ));
        }
        // The pieces of the last layer that they lie in.
        let (mut before, mut parts) = (0, Vec::new());
        for x in &slice.x {
            let after = before + x.dim(0)?;
            let (first, end) = (from.max(before), until.min(after));
            if first < end {
                parts.push(x.narrow(0, first - before, end - first)?);
            }
            before = after;
        }
        let deepstack =
            slice.deepstack.iter().map(|level| level.narrow(0, start, count)).collect::<Result<Vec<_>>>()?;
        Ok(MediaRows { rows: self.merger.forward(&joined(&mut parts)?)?, deepstack })
    }
}

/// Where the places of a side of `len` patches lie in the square table of positions: the place below and the one above,
/// each with its weight.
pub fn side_places(config: &VisionTowerConfig, len: usize) -> Vec<[(usize, f32); 2]> {
    let last = config.grid_side - 1;
    let step = if len > 1 { last as f32 / (len - 1) as f32 } else { 0.0 };
    let place = |i: usize| {
        // As torch.linspace: the second half is counted from the end.
        let at = if i < len / 2 || len == 1 { step * i as f32 } else { last as f32 - step * (len - 1 - i) as f32 };
        let below = at as usize;
        let over = at - below as f32;
        [(below, 1.0 - over), ((below + 1).min(last), over)]
    };
    (0..len).map(place).collect()
}

/// The frequency of each pair of a head: of the first half of them for rows of patches, then for columns.
///
/// # Errors
/// When heads are no multiple of 4 wide.
pub fn turn_frequencies(config: &VisionTowerConfig) -> Result<Vec<f32>> {
    let rope = AxialRope::grid(config.head_dim(), VISION_ROPE_THETA, &candle_core::Device::Cpu)?;
    Ok(rope.frequencies().collect())
}

/// Pieces as one tensor, which takes their place.
fn joined(pieces: &mut Vec<Tensor>) -> Result<Tensor> {
    if let [_, _, ..] = &pieces[..] {
        *pieces = vec![Tensor::cat(pieces, 0)?];
    }
    match pieces.first() {
        Some(whole) => Ok(whole.clone()),
        None => candle_core::bail!("there are no pieces to join"),
    }
}

/// Rows and columns of the patches of a slice, block after block.
fn in_blocks(rows: usize, columns: usize, merge: usize) -> Vec<(usize, usize)> {
    let mut places = Vec::with_capacity(rows * columns);
    for (top, left) in (0..rows).step_by(merge).flat_map(|top| (0..columns).step_by(merge).map(move |left| (top, left)))
    {
        places.extend((0..merge).flat_map(|down| (0..merge).map(move |right| (top + down, left + right))));
    }
    places
}

fn layer(scope: &Scope<'_>, config: &VisionTowerConfig) -> Loaded<Layer> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let norm = |name: &str| Norm::load(&scope.at(name), hidden, VISION_NORM_EPS);
    Ok(Layer {
        attention_norm: norm("norm1")?,
        qkv: linear(&scope.at("attn.qkv"), hidden, 3 * hidden)?,
        heads: config.num_heads,
        project: linear(&scope.at("attn.proj"), hidden, hidden)?,
        ffn_norm: norm("norm2")?,
        expand: linear(&scope.at("mlp.linear_fc1"), hidden, inner)?,
        activation: Tensor::gelu,
        shrink: linear(&scope.at("mlp.linear_fc2"), inner, hidden)?,
    })
}

/// Makes one embedding of the patches of a merge block, `[n, hidden]` to `[n / unit, out]`.
struct Merger {
    norm: Norm,
    /// Whether the patches of a block are normed together.
    together: bool,
    inner: Linear,
    output: Linear,
    width: usize,
}

impl Merger {
    fn load(scope: &Scope<'_>, config: &VisionTowerConfig, together: bool) -> Loaded<Merger> {
        let width = config.hidden_size * config.merge_unit();
        let normed = if together { width } else { config.hidden_size };
        Ok::<_, LoadError>(Merger {
            norm: Norm::load(&scope.at("ln_q"), normed, VISION_NORM_EPS)?,
            together,
            inner: linear(&scope.at("mlp.0"), width, width)?,
            output: linear(&scope.at("mlp.2"), width, config.out_hidden_size)?,
            width,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let merged = |x: &Tensor| x.reshape((x.elem_count() / self.width, self.width));
        let x = if self.together { self.norm.forward(&merged(x)?)? } else { merged(&self.norm.forward(x)?)? };
        self.output.forward(&self.inner.forward(&x)?.gelu_erf()?)
    }
}
