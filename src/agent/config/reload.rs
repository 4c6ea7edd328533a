//! Reload of the configuration on SIGHUP: as a whole, or not at all.

use std::sync::Arc;

use crate::agent::config::external_types::read_types;
use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::state::DurableState;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::counters::SharedCounters;
use crate::agent::status::facts_cache::FactsCache;
use crate::config::AgentSettings;
use crate::config::LogSettings;
use crate::diag::Diagnostic;

use crate::agent::endpoints::systemd;
use crate::agent::status::board::AlarmKind;

/// Reads the configuration again, from its first source.
pub type ReadSettings = Arc<dyn Fn() -> Result<AgentSettings, Vec<Diagnostic>> + Send + Sync>;
/// Sets the log level and format.
pub type SetLog = Arc<dyn Fn(&LogSettings) + Send + Sync>;

/// The parts of a reload that only the edge of the program knows.
#[derive(Clone)]
pub struct Reload {
    /// Reads the configuration again.
    pub read_settings: ReadSettings,
    /// Sets the log level and format.
    pub set_log: SetLog,
}

/// The handles of a reload.
#[derive(Clone)]
pub(in crate::agent) struct ReloadHandles {
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<SharedCounters>,
    pub(in crate::agent) facts: Arc<FactsCache>,
}

/// Reads the configuration again. An invalid configuration changes nothing, and raises an alarm until a valid one is read.
pub(in crate::agent) async fn reload(node: &ReloadHandles, reload: &Reload) {
    systemd::reloading();
    node.counters.reloaded();
    let reread = Arc::clone(&reload.read_settings);
    // Reading files may block: a thread of its own keeps the other tasks running.
    let read = move || {
        let settings = reread()?;
        let types = read_types(&settings);
        Ok::<_, Vec<Diagnostic>>((settings, types))
    };
    let read = tokio::task::spawn_blocking(read).await;
    match read {
        Ok(Ok((settings, (types, invalid)))) => {
            apply_settings(node, settings, reload);
            node.settings.set_types(types);
            node.status.set(AlarmKind::Types, invalid);
        }
        Ok(Err(wrong)) => {
            for diagnostic in &wrong {
                tracing::error!("the configuration is invalid and was not applied: {diagnostic}");
            }
            node.status.raise(AlarmKind::Config, summarize(&wrong));
        }
        Err(_) => node.status.raise(AlarmKind::Config, "cannot read the configuration: the program has an error"),
    }
    systemd::reloaded();
}

fn apply_settings(node: &ReloadHandles, settings: AgentSettings, reload: &Reload) {
    let before = node.settings.now();
    (reload.set_log)(&settings.log);
    let pending = node.settings.replace(settings);
    let after = node.settings.now();
    if before.facts_dirs != after.facts_dirs {
        node.facts.forget();
    }
    if before.outbox_max != after.outbox_max {
        node.status.report_storage_error(node.durable.resize_outbox(after.outbox_max));
    }
    node.status.change(|snapshot| snapshot.pending = pending.iter().map(|key| (*key).to_owned()).collect());
    node.status.clear(AlarmKind::Config);
    match pending.as_slice() {
        [] => tracing::info!("the configuration was reloaded"),
        keys => tracing::warn!("the configuration was reloaded; changes of {} need a restart", keys.join(", ")),
    }
}

/// Returns the problems on one line: the first one with its place and hint, and the number of the others.
fn summarize(wrong: &[Diagnostic]) -> String {
    let Some(first) = wrong.first() else { return "the configuration is invalid".to_owned() };
    let place = first.place.as_ref().map(|place| format!("{}:{}:{}: ", place.file, place.line, place.column));
    let hint = first.hint.as_ref().map(|hint| format!(" ({hint})"));
    let more = if wrong.len() > 1 { format!(", and {} more", wrong.len() - 1) } else { String::new() };
    let (place, hint) = (place.unwrap_or_default(), hint.unwrap_or_default());
    format!("the configuration is invalid and was not applied: {place}{}{hint}{more}", first.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::SourceLocation;

    #[test]
    fn a_wrong_file_is_told_on_one_line() {
        let place = SourceLocation { file: "agent.toml".into(), line: 6, column: 1, text: "queu = 2".into() };
        let wrong = Diagnostic::new("unknown key `queu`").at(Some(place)).hint("did you mean `queue`?");
        let said = summarize(&[wrong, Diagnostic::new("x")]);
        let wanted = "the configuration is invalid and was not applied: agent.toml:6:1: unknown key `queu` (did you mean `queue`?), and 1 more";
        assert_eq!(said, wanted);
    }
}
