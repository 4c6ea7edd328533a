//! Output of the program; no other module prints. stdout has data, stderr has messages.
//!
//! Colour is used only on a terminal and without `NO_COLOR`, and never carries meaning alone.
//!
//! The streams take [`Text`], in which every value was cleaned (`text`). Values of nodes, servers and files cannot move the
//! cursor, begin a line or forge a column. Bytes go out unchanged only where there is no terminal ([`Ui::data`]).

mod progress;
mod text;

pub use progress::listener;
pub(crate) use text::text;
pub use text::{CleanFormat, Painted, Text, TextPart, Tone, Whole, has_no_names};

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{BufWriter, IsTerminal, Stderr, Stdout, Write};
use std::panic::PanicHookInfo;

use serde::Serialize;

use crate::diag::clean;

use super::error::{CliError, Exit};

/// Most lines of a document for people: more than the facts of any host.
const MAX_DOCUMENT_LINES: usize = 5000;

/// Standard output and standard error of a command.
#[derive(Debug)]
pub struct Ui {
    out: BufWriter<Stdout>,
    err: Stderr,
    color_out: bool,
    color_err: bool,
    terminal_out: bool,
    terminal_err: bool,
    gone: bool,
    /// The progress on the last line of the terminal.
    progress: Option<Text>,
}

impl Default for Ui {
    fn default() -> Self {
        Self::new()
    }
}

impl Ui {
    /// Creates the output on the streams of this process.
    pub fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let (out, err) = (std::io::stdout(), std::io::stderr());
        let (terminal_out, terminal_err) = (out.is_terminal(), err.is_terminal());
        Self {
            out: BufWriter::with_capacity(1 << 16, out),
            err,
            color_out: wanted && terminal_out,
            color_err: wanted && terminal_err,
            terminal_out,
            terminal_err,
            gone: false,
            progress: None,
        }
    }

    /// Prints a line of data.
    pub fn line(&mut self, text: impl Into<Text>) {
        // A reader that closes the pipe (as `head` does) is no reason to fail.
        let _gone = writeln!(self.out, "{}", text.into().as_str());
    }

    /// Prints a foreign text of many lines as a document: each line is cleaned.
    pub fn lines(&mut self, text: &str) {
        self.line(Text::lines("", text));
    }

    /// Writes bytes for programs as they are (docs/operations/local.md lists the commands). On a terminal each line is cleaned.
    pub fn data(&mut self, bytes: &[u8]) {
        if self.terminal_out {
            return self.lines(&String::from_utf8_lossy(bytes));
        }
        let _gone = self.out.write_all(bytes);
    }

    /// Prints a document, indented.
    pub fn json(&mut self, value: &impl Serialize) {
        if let Ok(text) = serde_json::to_string_pretty(value) {
            let _gone = writeln!(self.out, "{}", clean::json(&text));
        }
    }

    /// Prints a document on one line.
    pub fn jsonl(&mut self, value: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(value) {
            let _gone = writeln!(self.out, "{}", clean::json(&text));
        }
    }

    /// Prints a document for people: as [`Ui::json`], with bounded lines and a bounded number of lines.
    pub fn document(&mut self, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        for line in text.lines().take(MAX_DOCUMENT_LINES) {
            self.line(text!("{}", Whole(line)));
        }
        let more = text.lines().skip(MAX_DOCUMENT_LINES).count();
        if more > 0 {
            self.line(text!("… ({} more lines; --output json has all)", more));
        }
    }

    /// Prints a message.
    pub fn message(&mut self, text: impl Into<Text>) {
        self.flush();
        let text = text.into();
        self.above_progress(|ui| {
            let _gone = writeln!(ui.err, "{}", text.as_str());
        });
    }

    /// Shows a text on the last line of the terminal until the next text or [`Ui::end_progress`]; only on a terminal.
    pub fn progress(&mut self, text: impl Into<Text>) {
        if self.terminal_err {
            let text = text.into();
            progress::rewrite(Some(&text));
            self.progress = Some(text);
        }
    }

    /// Clears the last line.
    pub fn end_progress(&mut self) {
        if self.progress.take().is_some() {
            progress::rewrite(None);
        }
    }

    /// Prints above the progress, which stays on the last line.
    fn above_progress(&mut self, print: impl FnOnce(&mut Self)) {
        let progress = self.progress.take();
        if progress.is_some() {
            progress::rewrite(None);
        }
        print(self);
        if let Some(progress) = &progress {
            progress::rewrite(Some(progress));
        }
        self.progress = progress;
    }

    /// Asks the user at the terminal; any answer but `y` or `yes` is no.
    ///
    /// # Errors
    /// When there is no answer to read.
    pub fn confirm(&mut self, question: impl Into<Text>) -> std::io::Result<bool> {
        self.message(question);
        read_answer()
    }

    /// True when a user may be reading the messages.
    pub fn is_watched(&self) -> bool {
        self.terminal_err
    }

    /// Prints an error.
    pub fn error(&mut self, error: impl Into<Text>) {
        let label = Painted::new(self.color_err.then_some(Tone::Error), "error:".into());
        self.message(text!("{} {}", label, error.into()));
    }

    /// Prints the messages of a failure, and returns its exit code.
    pub fn report(&mut self, failure: &CliError) -> Exit {
        // The work that it was about is over.
        self.end_progress();
        for diagnostic in &failure.diagnostics {
            self.error(diagnostic);
        }
        failure.exit
    }

    /// Prints a warning.
    pub fn warn(&mut self, warning: impl Into<Text>) {
        let label = Painted::new(self.color_err.then_some(Tone::Changed), "warning:".into());
        self.message(text!("{} {}", label, warning.into()));
    }

    /// Prints the result of the parser: help and version are data, wrong usage is a message.
    pub fn print_parser_result(&mut self, error: &clap::Error) -> Exit {
        if error.use_stderr() {
            self.message(Text::lines("", error.render().to_string().trim_end()));
            return Exit::Usage;
        }
        // The text is our own. A closed pipe is no error.
        let _printed = error.print();
        Exit::Success
    }

    /// Paints a value in the colour of its tone, for standard output.
    #[expect(clippy::needless_pass_by_value, reason = "values are made for the call")]
    pub fn paint(&self, tone: Tone, value: impl TextPart) -> Painted {
        Painted::new(self.color_out.then_some(tone), text!("{}", value))
    }

    /// True when the reader of standard output has closed it, as `head` does.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Flushes standard output.
    pub fn flush(&mut self) {
        if self.terminal_out && !self.out.buffer().is_empty() {
            return self.above_progress(|ui| ui.gone |= ui.out.flush().is_err());
        }
        self.gone |= self.out.flush().is_err();
    }
}

/// Reads the answer to a question; any answer but `y` or `yes` is no, also the end of the input.
///
/// # Errors
/// When standard input can't be read.
pub fn read_answer() -> std::io::Result<bool> {
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints a panic, whose text may have foreign parts.
pub fn print_panic(panic: &PanicHookInfo<'_>) {
    let trace = Backtrace::capture();
    let trace = if trace.status() == BacktraceStatus::Captured { trace.to_string() } else { String::new() };
    let text = format!("{panic}\n{trace}");
    let _gone = writeln!(std::io::stderr(), "{}", Text::lines("", &text).as_str());
}
