//! How a net gets its tensors, and how every one that does not fit is reported at once.

use super::weights::Weights;
use crate::model::LoadError;
use candle_core::{DType, Device, Tensor};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// More lines than this help nobody.
const MAX_LISTED: usize = 60;

/// Hands out tensors by name and remembers what was wrong and what was used.
///
/// A net asks for all its tensors, carrying on with placeholders where one is missing or has another shape;
/// [`Loader::finish`] then refuses the checkpoint with the whole list. Nothing is read any more once something is wrong.
#[derive(Debug)]
pub struct Loader {
    weights: Arc<Weights>,
    device: Device,
    dtype: DType,
    /// Families that must be used completely, such as `talker`.
    owned: Vec<String>,
    problems: RefCell<Vec<String>>,
    used: RefCell<BTreeSet<String>>,
    ignored: RefCell<Vec<String>>,
}

impl Loader {
    pub(super) fn new(weights: Arc<Weights>, device: &Device, owned: &[&str]) -> Loader {
        Loader {
            weights,
            device: device.clone(),
            dtype: DType::F32,
            owned: owned.iter().map(|s| (*s).to_owned()).collect(),
            problems: RefCell::default(),
            used: RefCell::default(),
            ignored: RefCell::new(vec!["thinker.audio_tower".into(), "thinker.visual".into()]),
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
        let extra = self.weights.names().filter(|name| {
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

    /// Notes whether `name` has `shape`. `false`: the caller gets a placeholder.
    fn check(&self, name: &str, shape: &[usize]) -> bool {
        self.used.borrow_mut().insert(name.to_owned());
        let mut problems = self.problems.borrow_mut();
        match self.weights.entry(name) {
            Some(entry) if entry.shape == shape => {}
            Some(entry) => problems.push(format!("shape   {name} is {:?}, config.json says {shape:?}", entry.shape)),
            None => problems.push(format!("missing {name} {shape:?}")),
        }
        problems.is_empty()
    }

    /// Zeros of any shape that take no memory.
    fn placeholder(&self, shape: &[usize]) -> Result<Tensor, LoadError> {
        Ok(Tensor::zeros((), self.dtype, &self.device)?.broadcast_as(shape)?)
    }
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
        let name = self.join(name);
        if self.loader.check(&name, shape) {
            self.loader.weights.tensor(&name, self.loader.dtype, &self.loader.device)
        } else {
            self.loader.placeholder(shape)
        }
    }

    /// [`Scope::get`] in the element type of the file: for what is large and used a little at a time.
    ///
    /// # Errors
    /// Those of [`Scope::get`].
    pub fn get_stored(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let name = self.join(name);
        if self.loader.check(&name, shape) {
            self.loader.weights.stored(&name, &self.loader.device)
        } else {
            self.loader.placeholder(shape)
        }
    }

    /// Rows `[rows.len(), width]` of an embedding table `[count, width]`, without reading the others. The table counts
    /// as used.
    ///
    /// # Errors
    /// Those of [`Scope::get`], and [`LoadError::Invalid`] for a row that is not there.
    pub fn rows(&self, name: &str, shape: &[usize; 2], rows: &[u32]) -> Result<Tensor, LoadError> {
        let name = self.join(name);
        if self.loader.check(&name, shape) {
            self.loader.weights.rows(&name, rows, self.loader.dtype, &self.loader.device)
        } else {
            self.loader.placeholder(&[rows.len(), shape[1]])
        }
    }

    /// Whether the checkpoint has this tensor: for optional ones.
    pub fn has(&self, name: &str) -> bool {
        self.loader.weights.entry(&self.join(name)).is_some()
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

fn under(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Tables that some exporters store although every implementation computes them.
fn harmless_buffer(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name.ends_with("rotary_emb.original_inv_freq")
}
