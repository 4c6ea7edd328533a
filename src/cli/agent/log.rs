//! The log of the agent: one line per event, on standard error. Values may come from the wire, so each is cleaned: no value can
//! begin a line or control a terminal.

use std::fmt::{Debug, Write};
use std::io::IsTerminal;
use std::sync::Arc;

use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatFields, Writer, debug_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::agent::config::reload::SetLog;
use crate::config::{LogLevel, LogSettings};
use crate::diag::clean::{Cleaner, MAX_LINE_CHARS, MAX_VALUE_CHARS};

/// Starts the log, and returns the function that changes its levels while the program runs.
pub(super) fn start_log(wanted: &LogSettings) -> SetLog {
    let (filter, handle) = reload::Layer::new(log_levels(wanted));
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal).with_target(false);
    let lines = lines.fmt_fields(fields());
    // The journal adds the time of every line itself.
    let lines = if std::env::var_os("JOURNAL_STREAM").is_some() { lines.without_time().boxed() } else { lines.boxed() };
    // Fails when a log exists already, which then serves as well.
    let _there_is_one = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    // Fails only without the filter, which lives as long as the program.
    Arc::new(move |wanted| drop(handle.reload(log_levels(wanted))))
}

/// Starts the log of a command; with `all`, details too. The log of an agent is configured, and then goes first.
pub(in crate::cli) fn start_verbose_log(all: bool) {
    let level = if all { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    let lines = lines.fmt_fields(fields()).with_filter(Targets::new().with_target("ensign", level));
    // Fails when a log exists already, which then serves as well.
    let _there_is_one = tracing_subscriber::registry().with(lines).try_init();
}

/// Writes the fields of an event, `message` as it is and others as `name=value`.
fn fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    debug_fn(|writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let message = field.name() == "message";
        let mut cleaner = if message { Cleaner::line(MAX_LINE_CHARS) } else { Cleaner::cell(MAX_VALUE_CHARS) };
        write!(cleaner, "{value:?}")?;
        if !message {
            write!(writer, "{field}=")?;
        }
        writer.write_str(&cleaner.finish())
    })
    .delimited(" ")
}

/// Returns the levels: ours and those of single modules as configured, those of libraries from warnings on.
fn log_levels(log: &LogSettings) -> Targets {
    let own = level(log.level);
    let targets = Targets::new().with_target("ensign", own).with_default(own.min(LevelFilter::WARN));
    log.modules.iter().fold(targets, |targets, (module, wanted)| targets.with_target(module.clone(), level(*wanted)))
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_value_forges_a_line() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false).without_time();
        let log = tracing_subscriber::registry().with(layer.fmt_fields(fields()));
        let hostile = "x\n INFO forged\r\x1b[2J\u{202e}\u{9b}1m";
        tracing::subscriber::with_default(log, || {
            let span = tracing::info_span!("run", by = %hostile);
            let _entered = span.enter();
            tracing::warn!(node = %hostile, why = hostile, list = ?[hostile], long = %"y".repeat(100_000), "said {hostile}");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(text.trim_end_matches('\n').chars().all(crate::diag::clean::is_shown), "{text}");
        assert!(text.contains(r"node=x\n INFO forged\r\x1b[2J\u{202e}\x9b1m"), "{text}");
        assert!(text.len() < 12_000, "{}", text.len());
    }
}
