//! The only place that prints: stdout is data, stderr is talk. Colour only on a terminal, never
//! without `NO_COLOR` being honoured, and nothing that matters is said by colour alone.

use std::fmt::Display;
use std::io::{BufWriter, IsTerminal, Stderr, Stdout, Write};
use std::sync::Arc;

use serde::Serialize;

use crate::host::{Audience, News, Progress};

/// To the beginning of the line, and away with what is on it.
const AFRESH: &str = "\r\x1b[K";

/// How something stands, and so its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Changed, or worth a look.
    Notable,
    /// Wrong.
    Bad,
    /// Of little interest.
    Dim,
}

/// Standard output and standard error of a command.
#[derive(Debug)]
pub struct Ui {
    out: BufWriter<Stdout>,
    err: Stderr,
    color_out: bool,
    color_err: bool,
    terminal_err: bool,
    gone: bool,
}

impl Default for Ui {
    fn default() -> Self {
        Self::new()
    }
}

impl Ui {
    /// The streams of this process.
    pub fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let (out, err) = (std::io::stdout(), std::io::stderr());
        let (color_out, terminal_err) = (wanted && out.is_terminal(), err.is_terminal());
        Self {
            out: BufWriter::with_capacity(1 << 16, out),
            err,
            color_out,
            color_err: wanted && terminal_err,
            terminal_err,
            gone: false,
        }
    }

    /// A line of data.
    pub fn line(&mut self, text: impl Display) {
        // A reader that went away (as `head` does) is no reason to fail.
        let _gone = writeln!(self.out, "{text}");
    }

    /// Data as it is, without a line end of ours.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _gone = self.out.write_all(bytes);
    }

    /// A document, indented.
    pub fn json(&mut self, value: &impl Serialize) {
        let _gone = serde_json::to_writer_pretty(&mut self.out, value);
        self.line("");
    }

    /// A document on one line.
    pub fn jsonl(&mut self, value: &impl Serialize) {
        let _gone = serde_json::to_writer(&mut self.out, value);
        self.line("");
    }

    /// A line of talk.
    pub fn say(&mut self, text: impl Display) {
        self.flush();
        let _gone = writeln!(self.err, "{text}");
    }

    /// A line of talk that the next one replaces; only on a terminal.
    pub fn progress(&mut self, text: impl Display) {
        if self.terminal_err {
            // A line that is too long for the terminal is cut, not wrapped: what is wrapped could not be replaced.
            let _gone = write!(self.err, "{AFRESH}\x1b[?7l{text}\x1b[?7h").and_then(|()| self.err.flush());
        }
    }

    /// Ends the replaced line.
    pub fn end_progress(&mut self) {
        if self.terminal_err {
            let _gone = write!(self.err, "{AFRESH}").and_then(|()| self.err.flush());
        }
    }

    /// True when a person may be reading the talk.
    pub fn is_watched(&self) -> bool {
        self.terminal_err
    }

    /// An error.
    pub fn error(&mut self, error: impl Display) {
        let label = paint(self.color_err, Tone::Bad, "error:");
        self.say(format_args!("{label} {error}"));
    }

    /// A warning.
    pub fn warn(&mut self, warning: impl Display) {
        let label = paint(self.color_err, Tone::Notable, "warning:");
        self.say(format_args!("{label} {warning}"));
    }

    /// A text in the colour of its tone, for standard output.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        paint(self.color_out, tone, text)
    }

    /// True when the reader of standard output went away, as `head` does when it has enough.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Everything written so far reaches its reader.
    pub fn flush(&mut self) {
        self.gone |= self.out.flush().is_err();
    }
}

/// The person who hears what is said in the middle of a run, where nothing else is being printed; and who `watches` how far
/// things are, on a line of the terminal that is written over.
pub fn listener(watches: bool) -> Audience {
    Arc::new(move |news: News<'_>| {
        let mut err = std::io::stderr().lock();
        let _gone = match news {
            News::Said(what) => writeln!(err, "{what}"),
            News::At(progress) if watches => write!(err, "{AFRESH}{}", how_far(&progress)).and_then(|()| err.flush()),
            News::Over if watches => write!(err, "{AFRESH}").and_then(|()| err.flush()),
            News::At(_) | News::Over => Ok(()),
        };
    })
}

fn paint(color: bool, tone: Tone, text: &str) -> String {
    if !color {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Good => "32",
        Tone::Notable => "33",
        Tone::Bad => "31",
        Tone::Dim => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// "downloading app.tar.gz: 12.0 of 48.0 MiB (25%)".
fn how_far(progress: &Progress<'_>) -> String {
    let Progress { what, done, total } = progress;
    let mib = |bytes: u64| format!("{}.{}", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
    match total {
        Some(total) if *total > 0 => {
            format!("{what}: {} of {} MiB ({}%)", mib(*done), mib(*total), done.saturating_mul(100) / total)
        }
        _ => format!("{what}: {} MiB", mib(*done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_said_in_mebibytes() {
        for (done, total, said) in [
            (12 << 20, Some(48 << 20), "x: 12.0 of 48.0 MiB (25%)"),
            (3 << 19, None, "x: 1.5 MiB"),
            (0, Some(0), "x: 0.0 MiB"),
            (1 << 20, Some(1 << 20), "x: 1.0 of 1.0 MiB (100%)"),
        ] {
            assert_eq!(how_far(&Progress { what: "x", done, total }), said);
        }
    }
}
