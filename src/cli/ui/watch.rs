//! Shows the resource in progress at a terminal, once it takes a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::host::ProgressEvent;

use super::{rewrite, text};

/// Time after which a resource in progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two updates of the line.
const PAUSE: Duration = Duration::from_millis(250);

/// The progress on the last line of the terminal.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The resource in progress, and its start.
    now: Option<(String, Instant)>,
    /// True while the line is on the screen.
    shown: bool,
    /// True while a download shows its progress instead.
    other: bool,
    /// True while a thread updates the elapsed time.
    ticking: bool,
}

impl Watch {
    /// Records progress, and clears the line before any other message.
    pub(super) fn record(&self, news: &ProgressEvent<'_>) {
        let mut state = lock_state(&self.0);
        match news {
            ProgressEvent::Begins { kind, name, others } => {
                let others = if *others > 0 { format!(" and {others} more") } else { String::new() };
                state.now = Some((format!("{kind}#{name}{others}"), Instant::now()));
                if !state.ticking {
                    state.ticking = true;
                    let watched = Arc::downgrade(&self.0);
                    std::thread::spawn(move || tick(&watched));
                }
                return;
            }
            ProgressEvent::Ends => state.now = None,
            ProgressEvent::At(_) => state.other = true,
            ProgressEvent::Over => state.other = false,
            ProgressEvent::Said(_) => {}
        }
        if std::mem::take(&mut state.shown) {
            rewrite(None);
        }
    }
}

fn lock_state(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Updates the line while there is a run.
fn tick(watched: &Weak<Mutex<State>>) {
    loop {
        std::thread::sleep(PAUSE);
        let Some(state) = watched.upgrade() else { return };
        let mut state = lock_state(&state);
        if let (Some((what, since)), false) = (&state.now, state.other)
            && since.elapsed() >= PATIENCE
        {
            let seconds = since.elapsed().as_secs();
            rewrite(Some(&text!("… {}, {} s", what, seconds)));
            state.shown = true;
        }
    }
}
