//! The `ensign` program: parses the command line, runs the command, ends with its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ensign::cli::main(std::env::args_os())
}
