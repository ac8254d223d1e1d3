//! The `omni-actors` command. Everything is in the library; this file only brings the embedded voice along, so that
//! nothing else that links the library carries 39 MB.

use omni_actors::cli;
use std::process::ExitCode;

#[cfg(feature = "embedded-voice")]
macro_rules! plain {
    ($file:literal) => {
        ($file, cli::Content::Plain(include_bytes!(concat!("../assets/voice/checkpoint/", $file))))
    };
}

#[cfg(feature = "embedded-voice")]
const VOICE: Option<cli::EmbeddedFiles> = Some(&[
    plain!("config.json"),
    plain!("generation_config.json"),
    // Written by build.rs.
    ("model.safetensors", cli::Content::Packed(include_bytes!(concat!(env!("OUT_DIR"), "/model.safetensors.planes")))),
    plain!("aligner.safetensors"),
    plain!("tokenizer.json"),
    plain!("tokenizer_config.json"),
    plain!("chat_template.json"),
    plain!("preprocessor_config.json"),
]);

#[cfg(not(feature = "embedded-voice"))]
const VOICE: Option<cli::EmbeddedFiles> = None;

fn main() -> ExitCode {
    cli::main(VOICE)
}
