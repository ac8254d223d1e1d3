//! The vision tower (spec section 4): patches of pictures through a transformer in which the patches of one temporal
//! slice see each other; blocks of patches are then merged to embeddings of the thinker.

use super::parts::{Layer, Loaded, Norm, linear};
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
    /// The residual stream, in pieces while patches still come.
    x: Vec<Tensor>,
    /// Patches that have come.
    patches: usize,
    /// Layers done.
    layer: usize,
    deepstack: Vec<Tensor>,
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
            while self.advance(&mut slice)? {}
            self.finish(slice)
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
        let (down, right) = (self.between(rows), self.between(columns));
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

    /// Where the places of a side of `len` patches lie in the table: the place below and the one above, with weights.
    fn between(&self, len: usize) -> Vec<[(usize, f32); 2]> {
        let last = self.config.grid_side - 1;
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
        Slice { layout, x: Vec::new(), patches: 0, layer: 0, deepstack: vec![] }
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

    /// Runs the next layer of a slice; `false` when there is none.
    ///
    /// # Errors
    /// What the device says, and for a slice whose patches have not all come.
    pub fn advance<L: Deref<Target = SliceLayout>>(&self, slice: &mut Slice<L>) -> Result<bool> {
        let Some(layer) = self.layers.get(slice.layer) else { return Ok(false) };
        if slice.patches < slice.layout.patches {
            candle_core::bail!("{} of {} patches of a slice have come", slice.patches, slice.layout.patches);
        }
        let pieces = std::mem::take(&mut slice.x);
        let x = match &pieces[..] {
            [whole] => whole.clone(),
            pieces => Tensor::cat(pieces, 0)?,
        };
        drop(pieces);
        let x = layer.forward(&x, Some(&slice.layout.angles))?;
        if let Some(level) = self.config.deepstack_visual_indexes.iter().position(|taken| *taken == slice.layer) {
            slice.deepstack.push(self.deepstack[level].forward(&x)?);
        }
        slice.x.push(x);
        slice.layer += 1;
        Ok(true)
    }

    /// The embeddings of a slice that has been through all layers.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] while layers are left.
    pub fn finish<L>(&self, slice: Slice<L>) -> std::result::Result<MediaRows, ModelError> {
        let [x] = &slice.x[..] else { return refused("a slice was finished before its layers began") };
        if slice.layer < self.layers.len() {
            return refused(format!("a slice was finished after {} of {} layers", slice.layer, self.layers.len()));
        }
        Ok(MediaRows { rows: self.merger.forward(x)?, deepstack: slice.deepstack })
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
