//! The arguments of the kernels, as `kernels/vocoder*` declare them.

/// Where a causal layer finds its past.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Past {
    pub arena: u64,
    pub rows: u64,
    pub slot_floats: i64,
    pub half_floats: i32,
    pub offset: i32,
    pub positions_per_frame: i32,
    pub drop: i32,
}

#[repr(C)]
pub(super) struct ConvArgs {
    pub x: u64,
    pub weight: u64,
    pub bias: u64,
    pub residual: u64,
    pub snake_a: u64,
    pub snake_b: u64,
    pub y: u64,
    pub z: u64,
    pub clipped: u64,
    pub past: Past,
    pub rows: i32,
    pub positions: i32,
    pub channels: i32,
    pub taps: i32,
    pub dilation: i32,
    pub outputs: i32,
    pub activation: i32,
    pub snake_period: i32,
    pub column_tiles: i32,
    pub tiles: i32,
}

#[repr(C)]
pub(super) struct EmbedArgs {
    pub codes: u64,
    pub table: u64,
    pub y: u64,
    pub z: u64,
    pub clipped: u64,
    pub scale: f32,
    pub groups: i32,
    pub codebook: i32,
    pub channels: i32,
}

#[repr(C)]
pub(super) struct NormArgs {
    pub x: u64,
    pub weight: u64,
    pub z: u64,
    pub clipped: u64,
    pub eps: f32,
    pub channels: i32,
}

#[repr(C)]
pub(super) struct AttentionArgs {
    pub qkv: u64,
    pub z: u64,
    pub clipped: u64,
    pub frequencies: u64,
    pub arena: u64,
    pub rows: u64,
    pub slot_floats: i64,
    pub keys: i64,
    pub frames: i32,
    pub heads: i32,
    pub kv_heads: i32,
    pub width: i32,
    pub window: i32,
    pub ring: i32,
    pub scale: f32,
}

#[repr(C)]
pub(super) struct DepthwiseArgs {
    pub x: u64,
    pub weight: u64,
    pub bias: u64,
    pub norm_weight: u64,
    pub norm_bias: u64,
    pub z: u64,
    pub clipped: u64,
    pub past: Past,
    pub eps: f32,
    pub rows: i32,
    pub positions: i32,
    pub channels: i32,
    pub taps: i32,
}

#[repr(C)]
pub(super) struct LastArgs {
    pub x: u64,
    pub weight: u64,
    pub bias: u64,
    pub samples: u64,
    pub clipped: u64,
    pub told: u64,
    pub past: Past,
    pub rows: i32,
    pub positions: i32,
    pub channels: i32,
    pub taps: i32,
}

// The sizes that the sources assert.
const _: () = assert!(size_of::<Past>() == 40 && size_of::<ConvArgs>() == 152 && size_of::<EmbedArgs>() == 56);
const _: () = assert!(size_of::<NormArgs>() == 40 && size_of::<AttentionArgs>() == 96);
const _: () = assert!(size_of::<DepthwiseArgs>() == 120 && size_of::<LastArgs>() == 104);
