//! The terminal of the user: its width, and prompts for secrets.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

use crate::diag::clean;
use crate::model::Secret;

/// Returns the width of the terminal of standard error; none when it is no terminal, or has no width.
pub fn columns() -> Option<usize> {
    let size = tcgetwinsize(rustix::stdio::stderr()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Prompts on the terminal itself, even if standard input and output are redirected. Reads a line without echo.
///
/// # Errors
/// When there is no terminal, or it can't be read.
pub fn ask_secret(prompt: &str) -> io::Result<Secret> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO;
    silent.local_modes |= LocalModes::ECHONL;
    write!(terminal, "{}", clean::line(prompt))?;
    terminal.flush()?;
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let mut line = String::new();
    let read = BufReader::new(&terminal).read_line(&mut line);
    // The echo is restored also after a failed read.
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    let secret = Secret::new(line.trim_end_matches(['\r', '\n']));
    zeroize::Zeroize::zeroize(&mut line);
    read.map(|_| secret)
}

/// Prompts with a program of the user's choice (ssh(1), `SSH_ASKPASS`). The program gets the prompt as its argument, and prints
/// the secret on its standard output.
///
/// # Errors
/// When it can't be started, or ends with an error, as after an empty input.
pub fn ask_program(program: &OsStr, prompt: &str) -> io::Result<Secret> {
    let mut child = Command::new(program).arg(&*clean::line(prompt)).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut said));
    let secret = Secret::new(said.trim_end_matches(['\r', '\n']));
    zeroize::Zeroize::zeroize(&mut said);
    let status = child.wait()?;
    read?;
    if status.success() { Ok(secret) } else { Err(io::Error::other(format!("{}: {status}", program.display()))) }
}
