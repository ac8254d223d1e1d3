//! Brings the weights of a checkpoint to the device, or makes random ones there.

use super::buffer::{Buffer, Pinned};
use super::device::{Gpu, Priority};
use super::error::{CudaError, check};
use super::kernel::{Shape, kernel_args};
use super::stream::{Event, Stream};
use candle_core::{CpuStorage, DType, Storage, Tensor};
use cudarc::driver::sys;
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::weights::random::{Fill, RandomTensor};
use omni_model::weights::{RawTensor, Scope};
use std::cell::RefCell;

/// Threads of the kernels that fill and convert.
const THREADS: u32 = 256;
/// Their blocks: threads advance in strides of the grid.
const BLOCKS: usize = 1024;
/// Rows of gate and up that stand together in a layer that has both: `gate_row` of `kernels/linear.cuh`.
pub(super) const GATE_ROWS: usize = 8;

/// Turns of gate rows and up rows of one length, as a 2D copy takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turns {
    /// The first row of gate, and of up, that they hold.
    from: usize,
    /// Rows of gate in a turn, and of up behind them.
    rows: usize,
    /// How many turns there are.
    count: usize,
}

/// How gate and up of `inner` rows each are laid out: turns of eight rows and, where the width is no multiple of 8, a
/// shorter one. The fast kernels take whole turns only ([`super::linear`] and [`super::moe`] choose); the plain ones
/// take any width.
fn turns(inner: usize) -> [Turns; 2] {
    let (whole, rest) = (inner / GATE_ROWS, inner % GATE_ROWS);
    [
        Turns { from: 0, rows: GATE_ROWS, count: whole },
        Turns { from: whole * GATE_ROWS, rows: rest, count: usize::from(rest > 0) },
    ]
}

/// Numbers on the device, all of the engine's element type.
pub struct Weight {
    bytes: Buffer<u8>,
    elements: usize,
}

impl Weight {
    /// Where it is.
    pub fn address(&self) -> u64 {
        self.bytes.address()
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// No elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// The bytes.
    pub fn buffer(&self) -> &Buffer<u8> {
        &self.bytes
    }
}

/// Puts tensors on the device, one after the other.
pub struct Uploader {
    gpu: Gpu,
    stream: Stream,
    precision: Precision,
    staging: RefCell<Staging>,
}

/// Page-locked memory that files are read into: while one half is copied to the device, the other is filled.
struct Staging {
    halves: [(Pinned<u8>, Event); 2],
    next: usize,
}

/// Bytes of one half.
const STAGED: usize = 32 << 20;

/// Bytes of one element.
pub fn element_size(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    }
}

impl Uploader {
    /// For one engine's element type.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, precision: Precision) -> Result<Uploader, CudaError> {
        let half = || Ok::<_, CudaError>((gpu.pinned(STAGED)?, Event::new(gpu)?));
        let staging = RefCell::new(Staging { halves: [half()?, half()?], next: 0 });
        Ok(Uploader { gpu: gpu.clone(), stream: gpu.stream(Priority::Normal)?, precision, staging })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream of all copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Element type of all weights.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Memory for so many elements, with undefined contents.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn room(&self, elements: usize) -> Result<Weight, CudaError> {
        let bytes = self.gpu.alloc("the weights", elements * element_size(self.precision))?;
        Ok(Weight { bytes, elements })
    }

    /// One tensor.
    ///
    /// # Errors
    /// What the scope and the device say; a tensor that does not fit is reported by the loader.
    pub fn tensor(&self, scope: &Scope<'_>, name: &str, shape: &[usize]) -> Result<Weight, LoadError> {
        self.stacked(&[(scope, name)], shape)
    }

    /// Tensors of one shape `[rows, ..]` one behind the other.
    ///
    /// # Errors
    /// Those of [`Uploader::tensor`].
    pub fn stacked(&self, parts: &[(&Scope<'_>, &str)], shape: &[usize]) -> Result<Weight, LoadError> {
        let each: usize = shape.iter().product();
        let all = self.room(each * parts.len())?;
        for (i, (scope, name)) in parts.iter().enumerate() {
            self.put(&all, i * each, scope, name, shape)?;
        }
        Ok(all)
    }

    /// Writes a tensor into a part of a weight from [`Uploader::room`].
    ///
    /// # Errors
    /// What the scope and the device say; a tensor that does not fit is reported by the loader.
    pub fn put(&self, to: &Weight, at: usize, scope: &Scope<'_>, name: &str, shape: &[usize]) -> Result<(), LoadError> {
        let count = shape.iter().product();
        match scope.random(name, shape) {
            Some(random) => Ok(self.make(to, at, count, &random)?),
            None => match scope.raw(name, shape, self.dtype()) {
                Some(raw) => self.stream_in(to, at, &raw),
                None => self.copy(to, at, &scope.get_stored(name, shape)?),
            },
        }
    }

    /// Gate and up `[inner, inputs]` in turns of eight rows, as the fused kernels want them.
    ///
    /// # Errors
    /// Those of [`Uploader::tensor`].
    pub fn gate_up(
        &self,
        [gate, up]: [&Scope<'_>; 2],
        name: &str,
        inner: usize,
        inputs: usize,
    ) -> Result<Weight, LoadError> {
        let all = self.room(2 * inner * inputs)?;
        self.put_gate_up(&all, 0, [gate, up], name, inner, inputs)?;
        Ok(all)
    }

    /// [`Uploader::gate_up`] into a part of a weight.
    ///
    /// # Errors
    /// Those of [`Uploader::gate_up`].
    pub fn put_gate_up(
        &self,
        to: &Weight,
        at: usize,
        parts: [&Scope<'_>; 2],
        name: &str,
        inner: usize,
        inputs: usize,
    ) -> Result<(), LoadError> {
        let row = inputs * element_size(self.precision);
        let to = to.address() + (at * element_size(self.precision)) as u64;
        for (half, scope) in parts.into_iter().enumerate() {
            let part = self.tensor(scope, name, &[inner, inputs])?;
            for Turns { from, rows, count } in turns(inner).into_iter().filter(|turns| turns.count > 0) {
                let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
                let copy = sys::CUDA_MEMCPY2D {
                    srcXInBytes: 0,
                    srcY: 0,
                    srcMemoryType: device,
                    srcHost: std::ptr::null(),
                    srcDevice: part.address() + (from * row) as u64,
                    srcArray: std::ptr::null_mut(),
                    srcPitch: rows * row,
                    dstXInBytes: 0,
                    dstY: 0,
                    dstMemoryType: device,
                    dstHost: std::ptr::null_mut(),
                    dstDevice: to + ((2 * from + half * rows) * row) as u64,
                    dstArray: std::ptr::null_mut(),
                    dstPitch: 2 * rows * row,
                    WidthInBytes: rows * row,
                    Height: count,
                };
                // SAFETY: the turns of each side lie inside their buffers, `inner` rows in all; `part` lives until the
                // stream has come so far.
                check("cuMemcpy2DAsync", unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream.raw()) })?;
            }
            self.stream.synchronize()?;
        }
        Ok(())
    }

    /// A tensor that is on the host already.
    ///
    /// # Errors
    /// What the device says.
    pub fn host(&self, tensor: &Tensor) -> Result<Weight, LoadError> {
        let all = self.room(tensor.elem_count())?;
        self.copy(&all, 0, tensor)?;
        Ok(all)
    }

    /// Waits until everything is there.
    ///
    /// # Errors
    /// An error of the device.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }

    fn make(&self, to: &Weight, at: usize, count: usize, random: &RandomTensor) -> Result<(), CudaError> {
        let (kernel, constant) = match self.precision {
            Precision::F32 => ("fill_random_f32", "fill_f32"),
            Precision::Bf16 => ("fill_random_bf16", "fill_bf16"),
        };
        let address = to.address() + (at * element_size(self.precision)) as u64;
        let shape = Shape::new(BLOCKS, THREADS);
        // SAFETY: the arguments are those of kernels/random.cu; `count` elements lie behind `address`.
        unsafe {
            match random.fill {
                Fill::Uniform(bound) => self.gpu.kernel(kernel)?.launch(
                    &self.stream,
                    shape,
                    kernel_args![address, count as u64, random.seed, random.name, bound],
                ),
                Fill::Constant(value) => {
                    self.gpu.kernel(constant)?.launch(&self.stream, shape, kernel_args![address, count as u64, value])
                }
            }
        }
    }

    fn dtype(&self) -> DType {
        match self.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }

    /// A tensor of a file, as it is.
    fn stream_in(&self, to: &Weight, at: usize, raw: &RawTensor<'_>) -> Result<(), LoadError> {
        let (begin, bytes) = (at * element_size(self.precision), raw.bytes() as usize);
        let mut staging = self.staging.borrow_mut();
        for from in (0..bytes).step_by(STAGED) {
            let (count, half) = (STAGED.min(bytes - from), staging.next);
            staging.next = 1 - half;
            let (memory, copied) = &mut staging.halves[half];
            // An event that was never recorded has passed.
            copied.wait()?;
            memory.fill(count, |out| raw.read(from as u64, out))?;
            to.bytes.upload_async(&self.stream, begin + from, memory, 0, count)?;
            copied.record(&self.stream)?;
        }
        Ok(())
    }

    /// A tensor of the host.
    fn copy(&self, to: &Weight, at: usize, tensor: &Tensor) -> Result<(), LoadError> {
        let tensor = tensor.to_dtype(self.dtype())?.contiguous()?;
        let write = |bytes: &[u8]| to.bytes.write(at * element_size(self.precision), bytes);
        match with_bytes(&tensor, write) {
            Some(written) => Ok(written?),
            None => Err(candle_core::Error::Msg("weights are read on the host".into()).into()),
        }
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        // Copies may still read the page-locked memory that is dropped here.
        let _ = self.stream.synchronize();
    }
}

/// Reads the bytes of a contiguous tensor where they are; `None` for one that is not of f32 or bf16 on the host.
pub(super) fn with_bytes<T>(tensor: &Tensor, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let (storage, layout) = tensor.storage_and_layout();
    let (from, to) = layout.contiguous_offsets()?;
    match &*storage {
        Storage::Cpu(CpuStorage::F32(data)) => Some(read(plain(&data[from..to]))),
        Storage::Cpu(CpuStorage::BF16(data)) => Some(read(plain(&data[from..to]))),
        _ => None,
    }
}

/// The bytes of numbers.
pub(super) fn plain<T: Copy>(numbers: &[T]) -> &[u8] {
    // SAFETY: called for f32 and bf16 only: every byte of them is initialized, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The numbers of f32 that these bytes are, copied at once: also without optimization a row of media is not taken apart.
pub(super) fn numbers(bytes: &[u8]) -> Vec<f32> {
    let mut numbers = vec![0f32; bytes.len() / size_of::<f32>()];
    // SAFETY: the vector has room for as many bytes as are copied, and any four of them are an f32 of this machine, whose
    // order of bytes is the GPU's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), numbers.as_mut_ptr().cast(), size_of_val(&*numbers)) };
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_their_bytes_say() {
        let wanted = [1.5f32, -0.0, f32::MIN_POSITIVE, 3e38];
        let got: Vec<u32> = numbers(plain(&wanted)).into_iter().map(f32::to_bits).collect();
        assert_eq!(got, wanted.map(f32::to_bits));
    }

    #[test]
    fn gate_and_up_stand_where_the_kernels_look_for_them_whatever_the_width() {
        for inner in [1, 7, 8, 12, 16, 100] {
            let mut found = vec![None; 2 * inner];
            for (half, turns) in [0, 1].into_iter().flat_map(|half| turns(inner).map(|turns| (half, turns))) {
                let rows = (0..turns.count).flat_map(|turn| (0..turns.rows).map(move |row| (turn, row)));
                for (turn, row) in rows {
                    let at = 2 * turns.from + half * turns.rows + turn * 2 * turns.rows + row;
                    assert_eq!(found[at].replace((half, turns.from + turn * turns.rows + row)), None);
                }
            }
            for i in 0..inner {
                // `gate_row` and `up_row` of kernels/linear.cuh.
                let gate = i / 8 * 16 + i % 8;
                assert_eq!(found[gate], Some((0, i)), "{inner}");
                assert_eq!(found[gate + (inner - i / 8 * 8).min(8)], Some((1, i)), "{inner}");
            }
        }
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn random_weights_have_the_bits_of_the_cpu() {
        let gpu = Gpu::open(0).unwrap();
        // No multiple of four: the last block is not used up.
        let shape = [1001, 1003];
        let count = shape[0] * shape[1];
        for name in ["talker.model.layers.0.self_attn.q_proj.weight", "talker.model.layers.0.mlp.gate_proj.bias"] {
            let tensor = RandomTensor::new((3 << 40) + 42, name, &shape);
            let mut wanted = vec![0u16; count];
            tensor.bits(0, &mut wanted);
            for precision in [Precision::Bf16, Precision::F32] {
                let uploader = Uploader::new(&gpu, precision).unwrap();
                let weight = uploader.room(count).unwrap();
                uploader.make(&weight, 0, count, &tensor).unwrap();
                let bytes = weight.buffer().read(uploader.stream()).unwrap();
                let made: Vec<u16> = match precision {
                    Precision::Bf16 => bytes.chunks_exact(2).map(|x| u16::from_le_bytes([x[0], x[1]])).collect(),
                    // Rounded to bf16, so the lower half is empty.
                    Precision::F32 => {
                        assert!(bytes.chunks_exact(4).all(|x| x[..2] == [0, 0]), "{name}");
                        bytes.chunks_exact(4).map(|x| u16::from_le_bytes([x[2], x[3]])).collect()
                    }
                };
                assert!(made == wanted, "{name} in {}", precision.as_str());
            }
        }
    }
}
