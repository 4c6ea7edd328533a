//! Reading the configuration again, on SIGHUP: as a whole, or not at all.

use std::sync::Arc;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::state::DurableState;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::counters::Counters;
use crate::agent::status::facts_cache::FactsCache;
use crate::config::Log;
use crate::config::Settings;
use crate::diag::Diagnostic;

use crate::agent::endpoints::systemd;
use crate::agent::status::board::AlarmKind;

/// Reads the configuration again, from where it was read first.
pub type Reread = Arc<dyn Fn() -> Result<Settings, Vec<Diagnostic>> + Send + Sync>;
/// Sets how much is logged.
pub type SetLog = Arc<dyn Fn(&Log) + Send + Sync>;

/// What a reload needs from the edge of the program.
#[derive(Clone)]
pub struct Reload {
    /// Reads the configuration again.
    pub reread: Reread,
    /// Sets how much is logged.
    pub log: SetLog,
}

/// The handles of a reload.
#[derive(Clone)]
pub(in crate::agent) struct ReloadHandles {
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<Counters>,
    pub(in crate::agent) facts: Arc<FactsCache>,
}

/// Reads the configuration again. A wrong one changes nothing and is a trouble until a good one comes.
pub(in crate::agent) async fn reload(node: &ReloadHandles, reload: &Reload) {
    systemd::reloading();
    node.counters.reloaded();
    let reread = Arc::clone(&reload.reread);
    // It reads files: on a thread where a slow disk keeps nobody waiting.
    let read = tokio::task::spawn_blocking(move || reread()).await;
    match read {
        Ok(Ok(settings)) => take(node, settings, reload),
        Ok(Err(wrong)) => {
            for diagnostic in &wrong {
                tracing::error!("the configuration is wrong, and nothing is changed: {diagnostic}");
            }
            node.status.raise(AlarmKind::Config, in_short(&wrong));
        }
        Err(_) => node.status.raise(AlarmKind::Config, "the configuration could not be read: the program has an error"),
    }
    systemd::reloaded();
}

fn take(node: &ReloadHandles, settings: Settings, reload: &Reload) {
    let before = node.settings.now();
    (reload.log)(&settings.log);
    let pending = node.settings.replace(settings);
    let after = node.settings.now();
    if before.facts_dirs != after.facts_dirs {
        node.facts.forget();
    }
    if before.outbox_max != after.outbox_max {
        node.status.report_storage_error(node.durable.resize_outbox(after.outbox_max));
    }
    node.status.change(|standing| standing.pending = pending.iter().map(|key| (*key).to_owned()).collect());
    node.status.clear(AlarmKind::Config);
    match pending.as_slice() {
        [] => tracing::info!("the configuration was read again"),
        keys => tracing::warn!("the configuration was read again; what changed in {} needs a restart", keys.join(", ")),
    }
}

/// What is wrong, on one line: the first of it with its place and what to do about it.
fn in_short(wrong: &[Diagnostic]) -> String {
    let Some(first) = wrong.first() else { return "the configuration is wrong".to_owned() };
    let place = first.place.as_ref().map(|place| format!("{}:{}:{}: ", place.file, place.line, place.column));
    let hint = first.hint.as_ref().map(|hint| format!(" ({hint})"));
    let more = if wrong.len() > 1 { format!(", and {} more", wrong.len() - 1) } else { String::new() };
    let (place, hint) = (place.unwrap_or_default(), hint.unwrap_or_default());
    format!("the configuration is wrong and was not taken: {place}{}{hint}{more}", first.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Place;

    #[test]
    fn a_wrong_file_is_told_on_one_line() {
        let place = Place { file: "agent.toml".into(), line: 6, column: 1, text: "queu = 2".into() };
        let wrong = Diagnostic::new("unknown key `queu`").at(Some(place)).hint("did you mean `queue`?");
        let said = in_short(&[wrong, Diagnostic::new("x")]);
        let wanted = "the configuration is wrong and was not taken: agent.toml:6:1: unknown key `queu` (did you mean `queue`?), and 1 more";
        assert_eq!(said, wanted);
    }
}
