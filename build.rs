//! Packs the weights of the embedded voice, so that a binary that carries them is a fifth smaller. Without the feature
//! `embedded-voice` there is nothing to do.

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "embedded-voice")]
    if let Err(told) = pack("assets/voice/checkpoint", "model.safetensors") {
        eprintln!("\nfeature `embedded-voice`: {told}\n");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Writes `FILE.planes`, which `src/main.rs` includes.
#[cfg(feature = "embedded-voice")]
fn pack(folder: &str, file: &str) -> Result<(), String> {
    let source = format!("{folder}/{file}");
    println!("cargo::rerun-if-changed={source}");
    let out = std::env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}: run this through cargo"))?;
    let bytes = std::fs::read(&source).map_err(|e| format!("cannot read {source}: {e}"))?;
    let packed = format!("{out}/{file}.planes");
    std::fs::write(&packed, omni_planes::pack(&bytes)).map_err(|e| format!("cannot write {packed}: {e}"))
}
