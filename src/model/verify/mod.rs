//! Checks a checkpoint against what a reference implementation computed from it.

mod compare;
mod generate;
mod value;

pub use compare::{Comparison, Difference, FloatError, compare};
pub use generate::{Request, Trace, generate};
pub use value::{Data, Value, Values, read_values};
