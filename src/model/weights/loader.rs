//! Gives nets their tensors by name and reports all that do not fit at once.

use super::random::RandomTensor;
use super::stored::Weights;
use crate::LoadError;
use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Lines of a report: more do not help.
const MAX_LISTED: usize = 60;

/// Where the towers of a thinker are.
pub(crate) const TOWERS: [&str; 2] = ["thinker.audio_tower", "thinker.visual"];

/// Where tensors come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Files.
    Stored(Arc<Weights>),
    /// A seed: tensors of any name and shape can be made.
    Random {
        /// The seed.
        seed: u64,
    },
}

/// Hands out tensors by name and remembers what was wrong and what was used.
///
/// A net asks for all its tensors, carrying on with placeholders where one is missing or has another shape;
/// [`Loader::finish`] then refuses the checkpoint with the whole list. Nothing is read any more once something is
/// wrong.
#[derive(Debug)]
pub struct Loader {
    source: Source,
    device: Device,
    dtype: DType,
    /// Families that must be used completely, such as `talker`.
    owned: Vec<String>,
    problems: RefCell<Vec<String>>,
    used: RefCell<BTreeSet<String>>,
    ignored: RefCell<Vec<String>>,
}

impl Loader {
    pub(crate) fn new(source: Source, device: &Device, owned: &[&str]) -> Loader {
        // The language model of a thinker is complete without its towers, which are loaded for themselves.
        let towers = TOWERS.iter().filter(|tower| !owned.contains(tower));
        Loader {
            source,
            device: device.clone(),
            dtype: DType::F32,
            owned: owned.iter().map(|s| (*s).to_owned()).collect(),
            problems: RefCell::default(),
            used: RefCell::default(),
            ignored: RefCell::new(towers.map(|tower| (*tower).to_owned()).collect()),
        }
    }

    /// The tensors whose names begin with `path` and a dot.
    pub fn scope(&self, path: &str) -> Scope<'_> {
        Scope { loader: self, path: path.to_owned() }
    }

    /// Declares that tensors under `path` are known and deliberately not used.
    pub fn ignore(&self, path: &str) {
        self.ignored.borrow_mut().push(path.to_owned());
    }

    /// Where tensors are put.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Says whether the checkpoint has exactly the tensors that were asked for.
    ///
    /// # Errors
    /// [`LoadError::Tensors`] with every tensor that is missing, has another shape, or was not asked for although it
    /// belongs to a family that this loader owns.
    pub fn finish(self) -> Result<(), LoadError> {
        let mut problems = self.problems.take();
        let (used, ignored) = (self.used.borrow(), self.ignored.borrow());
        let names = match &self.source {
            Source::Stored(weights) => Some(weights.names()),
            Source::Random { .. } => None,
        };
        let extra = names.into_iter().flatten().filter(|name| {
            self.owned.iter().any(|family| under(name, family))
                && !used.contains(*name)
                && !ignored.iter().any(|path| under(name, path))
                && !harmless_buffer(name)
        });
        problems.extend(extra.map(|name| format!("extra   {name}")));
        if problems.is_empty() {
            return Ok(());
        }
        if problems.len() > MAX_LISTED {
            let more = problems.len() - MAX_LISTED;
            problems.truncate(MAX_LISTED);
            problems.push(format!("... and {more} more"));
        }
        Err(LoadError::Tensors(problems))
    }

    /// Notes whether `name` has `shape`.
    fn check(&self, name: &str, shape: &[usize]) -> Found<'_> {
        self.used.borrow_mut().insert(name.to_owned());
        let weights = match &self.source {
            Source::Stored(weights) => weights,
            Source::Random { seed } => return Found::Random(RandomTensor::new(*seed, name, shape)),
        };
        let mut problems = self.problems.borrow_mut();
        match weights.entry(name) {
            Some(entry) if entry.shape == shape => {}
            Some(entry) => problems.push(format!("shape   {name} is {:?}, config.json says {shape:?}", entry.shape)),
            None => problems.push(format!("missing {name} {shape:?}")),
        }
        if problems.is_empty() { Found::Stored(weights) } else { Found::Unfit }
    }

    /// Zeros of any shape that take no memory.
    fn placeholder(&self, shape: &[usize]) -> Result<Tensor, LoadError> {
        Ok(Tensor::zeros((), self.dtype, &self.device)?.broadcast_as(shape)?)
    }
}

/// The outcome of a look-up.
enum Found<'a> {
    /// The tensor is in these files.
    Stored(&'a Weights),
    /// The tensor is made from a seed.
    Random(RandomTensor),
    /// This or another tensor does not fit: the caller gets a placeholder.
    Unfit,
}

/// Tensors below one point of the name tree.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    loader: &'a Loader,
    path: String,
}

impl<'a> Scope<'a> {
    /// One level down: `scope.at("layers").at(3)`.
    #[must_use]
    pub fn at(&self, name: impl std::fmt::Display) -> Scope<'a> {
        Scope { loader: self.loader, path: self.join(&name.to_string()) }
    }

    /// A tensor in f32 on the loader's device; zeros when it is missing or has another shape, which
    /// [`Loader::finish`] reports.
    ///
    /// # Errors
    /// What the system says when the file cannot be read, and what the device says.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let (name, Loader { dtype, device, .. }) = (self.join(name), self.loader);
        match self.loader.check(&name, shape) {
            Found::Stored(weights) => weights.tensor(&name, *dtype, device),
            Found::Random(tensor) => tensor.tensor(0, shape, *dtype, device),
            Found::Unfit => self.loader.placeholder(shape),
        }
    }

    /// How a tensor is made, where weights are random: for devices that make it themselves. `None` where it is stored;
    /// then it does not count as used yet.
    pub fn random(&self, name: &str, shape: &[usize]) -> Option<RandomTensor> {
        match self.loader.source {
            Source::Random { seed } => Some(RandomTensor::new(seed, &self.join(name), shape)),
            Source::Stored(_) => None,
        }
    }

    /// A tensor that lies in a file with the elements of `dtype`: for devices that take its bytes as they are. `None`
    /// where it has to be made or converted, or does not fit: [`Scope::get_stored`] then reports what does not fit.
    pub fn raw(&self, name: &str, shape: &[usize], dtype: DType) -> Option<RawTensor<'a>> {
        let name = self.join(name);
        let Source::Stored(stored) = &self.loader.source else { return None };
        let wanted = match dtype {
            DType::BF16 => Dtype::BF16,
            DType::F32 => Dtype::F32,
            _ => return None,
        };
        // Checked before the tensor counts as used, so that a misfit is reported once.
        let bytes = stored.entry(&name).filter(|entry| entry.dtype == wanted && entry.shape == shape)?.bytes();
        match self.loader.check(&name, shape) {
            Found::Stored(weights) => Some(RawTensor { weights, bytes, name }),
            Found::Random(_) | Found::Unfit => None,
        }
    }

    /// [`Scope::get`] in the element type of the file: for what is large and used a little at a time.
    ///
    /// # Errors
    /// Those of [`Scope::get`].
    pub fn get_stored(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let (name, device) = (self.join(name), &self.loader.device);
        match self.loader.check(&name, shape) {
            Found::Stored(weights) => weights.stored(&name, device),
            Found::Random(tensor) => tensor.tensor(0, shape, DType::BF16, device),
            Found::Unfit => self.loader.placeholder(shape),
        }
    }

    /// Rows `[rows.len(), width]` of an embedding table `[count, width]`, without reading the others. The table counts
    /// as used.
    ///
    /// # Errors
    /// Those of [`Scope::get`], and [`LoadError::Invalid`] for a row that is not there.
    pub fn rows(&self, name: &str, shape: &[usize; 2], rows: &[u32]) -> Result<Tensor, LoadError> {
        let (name, Loader { dtype, device, .. }) = (self.join(name), self.loader);
        match self.loader.check(&name, shape) {
            Found::Stored(weights) => weights.rows(&name, rows, *dtype, device),
            Found::Random(tensor) => {
                let width = shape[1];
                let row = |row: &u32| tensor.tensor(u64::from(*row) * width as u64, &[1, width], *dtype, device);
                Ok(Tensor::cat(&rows.iter().map(row).collect::<Result<Vec<_>, _>>()?, 0)?)
            }
            Found::Unfit => self.loader.placeholder(&[rows.len(), shape[1]]),
        }
    }

    /// Whether the checkpoint has this tensor: for optional ones, which random weights do without.
    pub fn has(&self, name: &str) -> bool {
        match &self.loader.source {
            Source::Stored(weights) => weights.entry(&self.join(name)).is_some(),
            Source::Random { .. } => false,
        }
    }

    /// Whether this tensor is stored, or can be made from a seed.
    pub fn offers(&self, name: &str) -> bool {
        matches!(self.loader.source, Source::Random { .. }) || self.has(name)
    }

    /// Declares that what is under `name` is known and deliberately not used.
    pub fn ignore(&self, name: &str) {
        self.loader.ignore(&self.join(name));
    }

    /// Where tensors are put.
    pub fn device(&self) -> &'a Device {
        &self.loader.device
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// The bytes of a tensor in its file.
#[derive(Debug)]
pub struct RawTensor<'a> {
    weights: &'a Weights,
    name: String,
    bytes: u64,
}

impl RawTensor<'_> {
    /// How many there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out` with those from `at` on.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        self.weights.read(&self.name, at, out)
    }
}

fn under(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Tables that some exporters store although every implementation computes them.
fn harmless_buffer(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name.ends_with("rotary_emb.original_inv_freq")
}
