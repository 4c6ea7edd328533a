//! The terminal of the person who runs the program: asking for what must not be shown.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::model::Secret;

/// Asks on the terminal itself, whatever standard input and output are, and reads a line that is not shown.
///
/// # Errors
/// When there is no terminal, or it can't be read.
pub fn ask_secret(prompt: &str) -> io::Result<Secret> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO;
    silent.local_modes |= LocalModes::ECHONL;
    write!(terminal, "{prompt}")?;
    terminal.flush()?;
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let mut line = String::new();
    let read = BufReader::new(&terminal).read_line(&mut line);
    // Shown again also when reading failed.
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    let secret = Secret::new(line.trim_end_matches(['\r', '\n']));
    zeroize::Zeroize::zeroize(&mut line);
    read.map(|_| secret)
}
