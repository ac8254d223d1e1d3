//! What a command prints on standard output. A reader that has read enough (`| head`) ends the program, as it ends others.

use crate::exit::{FAILED, READ_ENOUGH};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// For [`crate::out!`].
#[expect(clippy::disallowed_methods, reason = "what is under way is for the reader who is gone")]
pub fn print(text: Arguments<'_>) {
    let Err(error) = std::io::stdout().write_fmt(text) else { return };
    let code = match error.kind() {
        ErrorKind::BrokenPipe => READ_ENOUGH,
        _ => {
            omni_telemetry::complain(&format!("error: cannot write to standard output: {error}"));
            FAILED
        }
    };
    omni_telemetry::flush_logs();
    std::process::exit(code.into())
}

/// `print!` for a reader that may go.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::out::print(format_args!($($text)*)) };
}

/// `println!` for a reader that may go.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}
