//! The `omni-actors` command. Everything is in the library; this file only brings the embedded voice along.

fn main() {}
