//! The `omni-actors` command. Everything is in the library; this file only brings the embedded voice along, so that
//! nothing else that links the library carries 57 MB.

use omni_actors::cli;
use std::process::ExitCode;

#[cfg(feature = "embedded-voice")]
macro_rules! voice {
    ($($file:literal),*) => {
        &[$(($file, include_bytes!(concat!("../assets/voice/checkpoint/", $file)))),*]
    };
}

#[cfg(feature = "embedded-voice")]
const VOICE: Option<cli::EmbeddedFiles> = Some(voice![
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "aligner.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
    "preprocessor_config.json"
]);

#[cfg(not(feature = "embedded-voice"))]
const VOICE: Option<cli::EmbeddedFiles> = None;

fn main() -> ExitCode {
    cli::main(VOICE)
}
