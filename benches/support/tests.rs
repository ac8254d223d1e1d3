//! What the tests have.

#[path = "../../tests/support/engine.rs"]
pub mod engine;
#[path = "../../tests/support/stage.rs"]
pub mod stage;
#[path = "../../tests/support/wait.rs"]
pub mod wait;
