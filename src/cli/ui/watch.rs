//! Shows the resource in progress at a terminal, once it takes a while.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::host::ProgressEvent;
use crate::model::lock;

use super::{rewrite, text};

/// Time after which a resource in progress is shown.
const SHOW_AFTER: Duration = Duration::from_secs(1);
/// Time between two updates of the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// The progress on the last line of the terminal.
#[derive(Debug, Clone, Default)]
pub(super) struct ProgressLine(Arc<Mutex<State>>);

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
    pub(super) fn record(&self, news: &ProgressEvent<'_>) {
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
