//! Tensors by name, read one at a time.
//!
//! Only the headers are read when a checkpoint opens. A tensor's bytes are fetched with a positioned read when a net
//! asks for them, so that the model is never in memory twice, and a file that is cut short or replaced while the
//! program runs is an error and not a bus fault, as it would be with a memory map.

use super::files::{Content, Files, damaged};
use crate::LoadError;
use candle_core::{DType, Device, Tensor};
use omni_planes::Planes;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The limit of the format's reference implementation: a header is never larger.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a checkpoint, all shards together.
#[derive(Debug)]
pub struct Weights {
    shards: Vec<Shard>,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Shard {
    label: String,
    bytes: ShardBytes,
    /// Where tensor data begins.
    data: u64,
}

#[derive(Debug)]
enum ShardBytes {
    Static(&'static [u8]),
    Packed(Planes<'static>),
    File { path: PathBuf, file: Mutex<File> },
}

/// What a header says about one tensor.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Element type in the file.
    pub dtype: Dtype,
    /// Outermost first.
    pub shape: Vec<usize>,
    shard: usize,
    range: Range<u64>,
}

impl Entry {
    /// Its size in the file.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Weights {
    /// Reads the headers of `model.safetensors`, or of the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] when there are no weights, when the index and the shards disagree, or when a file is
    /// malformed or cut short; [`LoadError::Io`] when the system cannot read one.
    pub fn open(files: &Files) -> Result<Weights, LoadError> {
        let mut weights = Weights { shards: Vec::new(), entries: BTreeMap::new() };
        match files.read_json(INDEX)? {
            Some(index) => weights.open_indexed(files, &index)?,
            None => {
                let Some(shard) = Shard::open(files, SINGLE)? else {
                    return Err(files.invalid(
                        SINGLE,
                        format!("no weights: neither {SINGLE} nor {INDEX} is there; was the download interrupted?"),
                    ));
                };
                weights.add(files, SINGLE, shard)?;
            }
        }
        Ok(weights)
    }

    fn open_indexed(&mut self, files: &Files, index: &serde_json::Value) -> Result<(), LoadError> {
        let Some(map) = index.get("weight_map").and_then(|m| m.as_object()) else {
            return Err(files.invalid(INDEX, "has no object \"weight_map\""));
        };
        let mut placed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in map {
            let Some(shard) = shard.as_str() else {
                return Err(files.invalid(INDEX, format!("weight_map.{tensor} is not a file name")));
            };
            if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
                return Err(files.invalid(INDEX, format!("{shard:?} is not a file of this folder")));
            }
            placed.entry(shard).or_default().push(tensor);
        }
        let absent: Vec<_> = placed.keys().filter(|s| !files.exists(s)).copied().collect();
        if !absent.is_empty() {
            let reason = format!("names shards that are missing: {}; fetch them again", absent.join(", "));
            return Err(files.invalid(INDEX, reason));
        }
        for (name, tensors) in placed {
            let Some(shard) = Shard::open(files, name)? else {
                return Err(files.invalid(INDEX, format!("names the missing shard {name}; fetch it again")));
            };
            self.add(files, name, shard)?;
            if let Some(lost) = tensors.iter().find(|t| !self.entries.contains_key(**t)) {
                return Err(files.invalid(name, format!("lacks {lost}, which {INDEX} places here")));
            }
        }
        Ok(())
    }

    fn add(&mut self, files: &Files, name: &str, (shard, header): (Shard, Metadata)) -> Result<(), LoadError> {
        for (tensor, info) in header.tensors() {
            let range = info.data_offsets.0 as u64..info.data_offsets.1 as u64;
            let entry = Entry { dtype: info.dtype, shape: info.shape.clone(), shard: self.shards.len(), range };
            if let Some(before) = self.entries.insert(tensor.clone(), entry) {
                let other = &self.shards[before.shard].label;
                return Err(files.invalid(name, format!("has {tensor}, which is in {other} too")));
            }
        }
        self.shards.push(shard);
        Ok(())
    }

    /// What the headers say about a tensor.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Names up to the first dot, such as `thinker`.
    pub fn families(&self) -> BTreeSet<&str> {
        self.names().map(|n| n.split_once('.').map_or(n, |(head, _)| head)).collect()
    }

    /// A tensor on `device` as `dtype`. Shape as in the file.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] for a name that is not there or an element type that is not a float;
    /// [`LoadError::Io`] and [`LoadError::Device`] for what the system and the device say.
    pub fn tensor(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor, LoadError> {
        let entry = self.known(name)?;
        self.bytes_to_tensor(name, entry, 0..entry.bytes(), &entry.shape, Some(dtype), device)
    }

    /// [`Weights::tensor`] in the element type of the file.
    ///
    /// # Errors
    /// Those of [`Weights::tensor`].
    pub fn stored(&self, name: &str, device: &Device) -> Result<Tensor, LoadError> {
        let entry = self.known(name)?;
        self.bytes_to_tensor(name, entry, 0..entry.bytes(), &entry.shape, None, device)
    }

    /// Fills `out` with the bytes of a tensor from byte `at` on, as they are in the file.
    ///
    /// # Errors
    /// [`LoadError::Tensors`] for a name that is not there; [`LoadError::Io`] for what the system says.
    pub fn read(&self, name: &str, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let entry = self.known(name)?;
        if at + out.len() as u64 > entry.bytes() {
            return Err(self.bad(name, entry, format!("has {} bytes, not so many as were asked for", entry.bytes())));
        }
        self.shards[entry.shard].read_into(entry.range.start + at, out)
    }

    /// Some rows of a two-dimensional tensor, `[rows.len(), width]`, without reading the others.
    ///
    /// # Errors
    /// Those of [`Weights::tensor`]; [`LoadError::Invalid`] for a row that is not there.
    pub fn rows(&self, name: &str, rows: &[u32], dtype: DType, device: &Device) -> Result<Tensor, LoadError> {
        let entry = self.known(name)?;
        let &[count, width] = entry.shape.as_slice() else {
            return Err(self.bad(name, entry, format!("has {} dimensions instead of 2", entry.shape.len())));
        };
        let stride = entry.bytes().checked_div(count as u64).unwrap_or(0);
        let mut parts = Vec::with_capacity(rows.len());
        for &row in rows {
            if row as usize >= count {
                return Err(self.bad(name, entry, format!("has {count} rows, not a row {row}")));
            }
            let start = u64::from(row) * stride;
            parts.push(self.bytes_to_tensor(name, entry, start..start + stride, &[1, width], Some(dtype), device)?);
        }
        Ok(Tensor::cat(&parts, 0)?)
    }

    fn known(&self, name: &str) -> Result<&Entry, LoadError> {
        self.entry(name).ok_or_else(|| LoadError::Tensors(vec![format!("missing {name}")]))
    }

    fn bad(&self, name: &str, entry: &Entry, what: impl std::fmt::Display) -> LoadError {
        LoadError::Invalid { file: self.shards[entry.shard].label.clone(), reason: format!("{name} {what}") }
    }

    fn bytes_to_tensor(
        &self,
        name: &str,
        entry: &Entry,
        part: Range<u64>,
        shape: &[usize],
        dtype: Option<DType>,
        device: &Device,
    ) -> Result<Tensor, LoadError> {
        let stored = match entry.dtype {
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            other => return Err(self.bad(name, entry, format!("is {other}; served are BF16, F16 and F32"))),
        };
        let bytes = self.shards[entry.shard].read(entry.range.start + part.start..entry.range.start + part.end)?;
        // Converted on the host: 16-bit floats travel to the device at their own size only if it keeps them.
        let host = if (stored, dtype) == (DType::BF16, Some(DType::F32)) {
            Tensor::from_vec(widened(&bytes), shape, &Device::Cpu)?
        } else {
            Tensor::from_raw_buffer(&bytes, stored, shape, &Device::Cpu)?.to_dtype(dtype.unwrap_or(stored))?
        };
        drop(bytes);
        Ok(host.to_device(device)?)
    }
}

/// The numbers of a bf16 tensor, which is what most checkpoints have: the upper halves of f32, little-endian. In one pass,
/// with which a start does not wait for two.
fn widened(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|half| f32::from_le_bytes([0, 0, half[0], half[1]])).collect()
}

impl Shard {
    /// The shard and its header, `None` when there is no such file.
    fn open(files: &Files, name: &str) -> Result<Option<(Shard, Metadata)>, LoadError> {
        let label = files.label(name);
        let io = |path: &PathBuf, source| LoadError::Io { path: path.clone(), source };
        let (bytes, size) = match files {
            Files::Embedded(_) => match files.embedded(name) {
                Some(Content::Plain(bytes)) => (ShardBytes::Static(bytes), bytes.len() as u64),
                Some(Content::Packed(packed)) => {
                    let planes = Planes::open(packed).map_err(|e| damaged(label.clone(), &e))?;
                    (ShardBytes::Packed(planes), planes.length() as u64)
                }
                None => return Ok(None),
            },
            Files::Folder(dir) => {
                let path = dir.join(name);
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(e) => return Err(io(&path, e)),
                };
                let size = file.metadata().map_err(|e| io(&path, e))?.len();
                (ShardBytes::File { path, file: Mutex::new(file) }, size)
            }
        };
        let mut shard = Shard { label, bytes, data: 0 };
        let header = shard.read_header(size).map_err(|e| match e {
            HeaderError::Load(e) => e,
            HeaderError::Reason(reason) => files.invalid(name, reason),
        })?;
        Ok(Some((shard, header)))
    }

    fn read_header(&mut self, size: u64) -> Result<Metadata, HeaderError> {
        if size < 8 {
            return Err(HeaderError::reason(format!("is {size} bytes: not a safetensors file; fetch it again")));
        }
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&self.read(0..8)?);
        let length = u64::from_le_bytes(prefix);
        if length > MAX_HEADER || length > size - 8 {
            return Err(HeaderError::reason(format!(
                "is not a safetensors file or is cut short: it announces a header of {length} bytes and has {size} in all; fetch it again"
            )));
        }
        let text = self.read(8..8 + length)?;
        // Deserializing checks order, overlap, overflow and the size of every tensor.
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|e| HeaderError::reason(format!("has a malformed safetensors header: {e}")))?;
        self.data = 8 + length;
        let (want, have) = (header.data_len() as u64, size - self.data);
        if want != have {
            let how = if have < want { "is cut short" } else { "has trailing bytes" };
            return Err(HeaderError::reason(format!(
                "{how}: the header promises {want} bytes of tensors and {have} are there; fetch it again"
            )));
        }
        Ok(header)
    }

    /// Bytes relative to the start of tensor data (of the file, while the header is being read).
    fn read(&self, range: Range<u64>) -> Result<Cow<'static, [u8]>, LoadError> {
        let (start, length) = (self.data + range.start, (range.end - range.start) as usize);
        match &self.bytes {
            // In bounds: the header was checked against the size.
            ShardBytes::Static(bytes) => Ok(Cow::Borrowed(&bytes[start as usize..start as usize + length])),
            ShardBytes::Packed(_) | ShardBytes::File { .. } => {
                let mut buffer = vec![0; length];
                self.read_into(range.start, &mut buffer)?;
                Ok(Cow::Owned(buffer))
            }
        }
    }

    /// [`Shard::read`] of as many bytes as `out` has.
    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let start = self.data + at;
        match &self.bytes {
            // In bounds: the header was checked against the size.
            ShardBytes::Static(bytes) => out.copy_from_slice(&bytes[start as usize..start as usize + out.len()]),
            ShardBytes::Packed(planes) => {
                planes.read(start as usize, out).map_err(|e| damaged(self.label.clone(), &e))?;
            }
            ShardBytes::File { path, file } => {
                // A poisoned lock only means that another reader panicked: every read seeks first.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(start))
                    .and_then(|_| file.read_exact(out))
                    .map_err(|source| LoadError::Io { path: path.clone(), source })?;
            }
        }
        Ok(())
    }
}

enum HeaderError {
    Load(LoadError),
    Reason(String),
}

impl HeaderError {
    fn reason(text: String) -> HeaderError {
        HeaderError::Reason(text)
    }
}

impl From<LoadError> for HeaderError {
    fn from(e: LoadError) -> HeaderError {
        HeaderError::Load(e)
    }
}
