//! The commands that examine a server or an engine, and what all commands share. The command line (`omni-cli`) parses
//! the arguments of each and calls its `execute`; nothing else of a command is public.
//!
//! | module | what |
//! | --- | --- |
//! | [`mod@bench`] | measures a server as its listeners hear it |
//! | [`chaos`] | injects faults and checks that no listener hears any |
//! | [`simulate`] | plays the whole engine with a simulated clock and everything that can break |
//! | [`verify`] | checks a checkpoint against the results of a reference implementation |
//! | [`trace`] | records which step ran when |
//! | [`cluster`] | takes nodes out of service, and shows them |
//! | [`model`] | the config and the checkpoint that a command works with |
//! | [`local`] | an engine, or a whole server, inside this process |
//! | `network` | with the feature `cluster`: a network of this machine that can be broken, for drills and tests |
//! | `realtime` | a session of `WS /v1/realtime` as its client has it |
//! | [`exit`], [`signals`], [`mod@out`] | exit codes; Ctrl-C and SIGTERM; what is printed |
//!
//! A command's arguments are what the user typed; each command turns them into what they mean before it begins.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod chaos;
pub mod cluster;
pub mod exit;
pub mod local;
pub mod model;
#[cfg(feature = "cluster")]
pub mod network;
pub mod out;
mod realtime;
pub mod signals;
pub mod simulate;
pub mod trace;
pub mod verify;

pub use omni_model::weights::EmbeddedFiles;
