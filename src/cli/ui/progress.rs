//! Progress of a run on the last line of a terminal: downloads, and the resource in progress.

use std::io::Write;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::host::{Progress, ProgressEvent, ProgressListener, terminal};
use crate::model::lock;

use super::text::{Text, text};

/// Returns to the beginning of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";
/// Time after which a resource in progress is shown.
const SHOW_AFTER: Duration = Duration::from_secs(1);
/// Time between two updates of the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// The progress on the last line of the terminal.
#[derive(Debug, Clone, Default)]
struct ProgressLine(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The resource in progress, and its start.
    now: Option<(String, Instant)>,
    /// True while the line is on the screen.
    shown: bool,
    /// True while a download shows its progress instead.
    download_shown: bool,
    /// True while a thread updates the elapsed time.
    ticking: bool,
}

impl ProgressLine {
    /// Records progress, and clears the line before any other message.
    fn record(&self, news: &ProgressEvent<'_>) {
        let mut state = lock(&self.0);
        match news {
            ProgressEvent::ResourceStarted { kind, name, others } => {
                let others = if *others > 0 { format!(" and {others} more") } else { String::new() };
                state.now = Some((format!("{kind}#{name}{others}"), Instant::now()));
                if !state.ticking {
                    state.ticking = true;
                    let watched = Arc::downgrade(&self.0);
                    std::thread::spawn(move || update_line(&watched));
                }
                return;
            }
            ProgressEvent::ResourceEnded => state.now = None,
            ProgressEvent::Progress(_) => state.download_shown = true,
            ProgressEvent::ProgressEnded => state.download_shown = false,
            ProgressEvent::Message(_) => {}
        }
        if std::mem::take(&mut state.shown) {
            rewrite(None);
        }
    }
}

/// Updates the line while there is a run.
fn update_line(watched: &Weak<Mutex<State>>) {
    loop {
        std::thread::sleep(UPDATE_INTERVAL);
        let Some(state) = watched.upgrade() else { return };
        let mut state = lock(&state);
        if let (Some((what, since)), false) = (&state.now, state.download_shown)
            && since.elapsed() >= SHOW_AFTER
        {
            let seconds = since.elapsed().as_secs();
            rewrite(Some(&text!("… {}, {} s", what, seconds)));
            state.shown = true;
        }
    }
}

/// Returns the listener for messages in the middle of a run, while nothing else is printed. With `watches`, progress overwrites
/// one line of the terminal.
pub fn listener(watches: bool) -> ProgressListener {
    let watch = watches.then(ProgressLine::default);
    Arc::new(move |news: ProgressEvent<'_>| {
        if let Some(watch) = &watch {
            watch.record(&news);
        }
        let mut err = std::io::stderr().lock();
        let _gone = match news {
            ProgressEvent::Message(what) => writeln!(err, "{}", Text::lines("", what).as_str()),
            ProgressEvent::Progress(progress) if watches => {
                let how_far = Text::from(progress_text(&progress));
                write!(err, "{CLEAR_LINE}{}", how_far.as_str()).and_then(|()| err.flush())
            }
            ProgressEvent::ProgressEnded if watches => write!(err, "{CLEAR_LINE}").and_then(|()| err.flush()),
            ProgressEvent::Progress(_)
            | ProgressEvent::ProgressEnded
            | ProgressEvent::ResourceStarted { .. }
            | ProgressEvent::ResourceEnded => Ok(()),
        };
    })
}

/// Rewrites the last line of the terminal; `None` clears it.
pub(super) fn rewrite(line: Option<&Text>) {
    let mut err = std::io::stderr().lock();
    let _gone = match line {
        None => write!(err, "{CLEAR_LINE}"),
        // A long line is cut, as a wrapped line could not be replaced. One write, so that the line does not flicker.
        Some(line) => {
            let columns = terminal::columns().unwrap_or(usize::MAX).saturating_sub(1);
            let line: String = line.as_str().chars().take(columns).collect();
            err.write_all(format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h").as_bytes()).and_then(|()| err.flush())
        }
    };
}

/// "downloading app.tar.gz: 12.0 of 48.0 MiB (25%)".
fn progress_text(progress: &Progress<'_>) -> String {
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
            assert_eq!(progress_text(&Progress { what: "x", done, total }), said);
        }
    }
}
