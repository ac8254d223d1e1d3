//! What the tests have for nodes.

#[path = "../../tests/support/engine.rs"]
pub mod engine;
#[path = "../../tests/support/nodes.rs"]
pub mod nodes;
#[path = "../../tests/support/process.rs"]
pub mod process;
#[path = "../../tests/support/wait.rs"]
pub mod wait;
