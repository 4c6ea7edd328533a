//! Metrics of an agent in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::{Display, Write};

use crate::diag::clean;
use crate::wire::AgentStatus;
use crate::wire::agent_status::REPAIR_LATENCY_BOUNDS;

/// The most values of a metric. Labels have names of channels and alarms, and a scraper keeps a series for each.
const MAX_SAMPLES: usize = 256;
/// The longest value of a label, in characters.
const MAX_LABEL_CHARS: usize = 128;

/// The type of a metric.
#[derive(Clone, Copy)]
enum MetricKind {
    /// Only grows while the agent runs.
    Counter,
    /// Grows and shrinks.
    Gauge,
    /// Counts of values up to bounds, with their sum.
    Histogram,
}

/// The text of the page, built metric by metric.
struct MetricsText(String);

impl MetricsText {
    /// Begins a metric with its help text.
    fn family(&mut self, name: &'static str, kind: MetricKind, help: &str) -> MetricFamily<'_> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        // Writing to a String does not fail.
        let _written = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n").is_ok();
        MetricFamily { page: &mut self.0, name, samples: 0 }
    }

    /// Adds a metric with a single value and no labels.
    fn single_value(&mut self, name: &'static str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }
}

struct MetricFamily<'a> {
    page: &'a mut String,
    name: &'static str,
    samples: usize,
}

impl MetricFamily<'_> {
    /// Adds a value; values beyond the bound of a metric are left out.
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed_sample("", labels, value);
    }

    fn suffixed_sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.samples += 1;
        if self.samples > MAX_SAMPLES {
            return;
        }
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _written = writeln!(self.page, "{}{suffix}{labels} {value}", self.name).is_ok();
    }
}

/// Returns the value of a label, cleaned, with escaped backslashes and quotes. Cleaning leaves no line feed.
fn escaped(value: &str) -> String {
    clean::cell_with_limit(value, MAX_LABEL_CHARS).replace('\\', r"\\").replace('"', "\\\"")
}

/// Returns the whole page.
pub(super) fn text(status: &AgentStatus) -> String {
    let mut page = MetricsText(String::with_capacity(8 * 1024));
    agent_metrics(status, &mut page);
    connection_metrics(status, &mut page);
    command_metrics(status, &mut page);
    last_run_metrics(status, &mut page);
    watch_metrics(status, &mut page);
    page.0
}

fn agent_metrics(status: &AgentStatus, page: &mut MetricsText) {
    let labels = [("version", status.version.as_str()), ("node", status.node.as_str()), ("fleet", status.fleet.as_str())];
    page.family("ensign_build_info", MetricKind::Gauge, "Version, node and fleet of the agent; always 1.").sample(&labels, 1);
    page.single_value(
        "ensign_start_time_seconds",
        MetricKind::Gauge,
        "Start time of the agent, as Unix time.",
        seconds(status.started),
    );
    page.single_value(
        "ensign_healthy",
        MetricKind::Gauge,
        "1 while the agent can do its work, as /healthz.",
        u8::from(status.active_alarms().is_empty()),
    );
    let mut alarms = page.family("ensign_alarm", MetricKind::Gauge, "1 for each alarm of the agent itself, by topic.");
    status.alarms.keys().for_each(|topic| alarms.sample(&[("topic", topic)], 1));
    page.single_value("ensign_trust_version", MetricKind::Gauge, "The version of the active trust bundle.", status.trust.version);
    let help = "Expiry of the trust bundle, as Unix time.";
    page.single_value("ensign_trust_expires_time_seconds", MetricKind::Gauge, help, seconds(status.trust.expires));
    let mut epochs = page.family("ensign_channel_epoch", MetricKind::Gauge, "The epoch of a channel.");
    status.channels.iter().for_each(|(channel, state)| epochs.sample(&[("channel", channel)], state.epoch));
    let mut serials = page.family("ensign_channel_serial", MetricKind::Gauge, "The latest serial of a channel.");
    status.channels.iter().for_each(|(channel, state)| serials.sample(&[("channel", channel)], state.serial));
    page.single_value("ensign_config_reloads_total", MetricKind::Counter, "Reloads of the configuration.", status.counts.reloads);
    let help = "Changed keys of the configuration that need a restart.";
    page.single_value("ensign_config_pending", MetricKind::Gauge, help, status.pending.len());
}

fn connection_metrics(status: &AgentStatus, page: &mut MetricsText) {
    let link = &status.connection;
    page.single_value(
        "ensign_nats_connected",
        MetricKind::Gauge,
        "1 while there is a connection to a NATS server.",
        u8::from(link.connected),
    );
    page.single_value("ensign_nats_connects_total", MetricKind::Counter, "Connections that were made.", link.connects);
    page.single_value("ensign_nats_disconnects_total", MetricKind::Counter, "Connections that were lost.", link.disconnects);
    let help = "Times that messages were lost because they arrived faster than the agent read them.";
    page.single_value("ensign_nats_slow_consumers_total", MetricKind::Counter, help, link.slow_consumers);
    page.single_value(
        "ensign_nats_auth_errors_total",
        MetricKind::Counter,
        "Times that the server did not accept the credentials.",
        link.auth_errors,
    );
    page.single_value(
        "ensign_nats_denied_total",
        MetricKind::Counter,
        "Times that the server did not allow a subject.",
        link.denied,
    );
    page.single_value("ensign_outbox_messages", MetricKind::Gauge, "Messages that wait on disk for the server.", status.outbox);
    let help = "Messages that had to be dropped because the outbox was full, ever.";
    page.single_value("ensign_outbox_dropped_total", MetricKind::Counter, help, status.dropped);
    let mut published = page.family("ensign_published_total", MetricKind::Counter, "Messages that the server stored, by kind.");
    status.counts.published.iter().for_each(|(kind, count)| published.sample(&[("kind", kind)], count));
}

fn command_metrics(status: &AgentStatus, page: &mut MetricsText) {
    let counts = &status.counts;
    let mut taken = page.family("ensign_commands_total", MetricKind::Counter, "Commands that arrived, by decision.");
    let refused: u64 = counts.refused.values().sum();
    for (result, count) in [
        ("accepted", counts.accepted),
        ("repeated", counts.repeated),
        ("not_selected", counts.not_selected),
        ("refused", refused),
    ] {
        taken.sample(&[("result", result)], count);
    }
    let mut refusals = page.family("ensign_commands_refused_total", MetricKind::Counter, "Rejected commands, by code.");
    counts.refused.iter().for_each(|(code, count)| refusals.sample(&[("code", code)], count));
    let help = "Seconds spent on verifying commands.";
    page.single_value("ensign_intake_seconds_total", MetricKind::Counter, help, counts.intake_seconds);
    let mut ended =
        page.family("ensign_commands_ended_total", MetricKind::Counter, "Accepted commands that ended, by terminal state.");
    counts.ended.iter().for_each(|(state, count)| ended.sample(&[("state", state)], count));
    page.single_value("ensign_run_seconds_total", MetricKind::Counter, "Seconds spent on running commands.", counts.run_seconds);
    page.single_value("ensign_running", MetricKind::Gauge, "1 while a command runs.", u8::from(status.running.is_some()));
    page.single_value("ensign_queue_length", MetricKind::Gauge, "Commands that wait for the running one.", status.queued);
    page.single_value("ensign_queue_max", MetricKind::Gauge, "The most commands that may wait.", status.queue);
}

/// The last run since the agent started; nothing before the first.
fn last_run_metrics(status: &AgentStatus, page: &mut MetricsText) {
    let Some(run) = &status.last_run else { return };
    page.single_value(
        "ensign_last_run_time_seconds",
        MetricKind::Gauge,
        "End of the last run, as Unix time.",
        seconds(run.timestamp),
    );
    let took = std::time::Duration::from_nanos(run.summary.total_duration).as_secs_f64();
    page.single_value("ensign_last_run_duration_seconds", MetricKind::Gauge, "Duration of the last run.", took);
    let outcome = serde_json::to_value(run.outcome).ok().and_then(|value| value.as_str().map(str::to_owned));
    let labels = [("outcome", outcome.as_deref().unwrap_or_default()), ("noop", if run.noop { "true" } else { "false" })];
    page.family("ensign_last_run_info", MetricKind::Gauge, "Outcome of the last run; always 1.").sample(&labels, 1);
    let summary = &run.summary;
    let mut resources = page.family("ensign_last_run_resources", MetricKind::Gauge, "Resources of the last run, by state.");
    for (state, count) in [
        ("stable", summary.stable_resources),
        ("changed", summary.changed_resources),
        ("failed", summary.failed_resources),
        ("skipped", summary.skipped_resources),
    ] {
        resources.sample(&[("state", state)], count);
    }
    let mut health = page.family("ensign_last_run_health_checks", MetricKind::Gauge, "Health checks of the last run, by status.");
    for (status, count) in [
        ("ok", summary.health_check_ok_count),
        ("warning", summary.health_check_warning_count),
        ("critical", summary.health_check_critical_count),
        ("unknown", summary.health_check_unknown_count),
    ] {
        health.sample(&[("status", status)], count);
    }
}

/// The watched channels, and the checks that follow from changes of the host.
fn watch_metrics(status: &AgentStatus, page: &mut MetricsText) {
    let repairs = &status.counts.repairs;
    let help = "Checks of resources after changes of the host.";
    page.single_value("ensign_repair_checks_total", MetricKind::Counter, help, repairs.checks);
    page.single_value("ensign_repair_changes_total", MetricKind::Counter, "Checks that changed something.", repairs.changes);
    let mut failures = page.family("ensign_repair_failures_total", MetricKind::Counter, "Failed checks, by what follows.");
    failures.sample(&[("next", "retry")], repairs.failures_retried);
    failures.sample(&[("next", "none")], repairs.failures_final);
    let help = "Time from the first report of a change to the end of the repair.";
    let mut latency = page.family("ensign_repair_latency_seconds", MetricKind::Histogram, help);
    let mut total = 0;
    let bounds = REPAIR_LATENCY_BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(repairs.latency) {
        total += count;
        latency.suffixed_sample("_bucket", &[("le", &bound)], total);
    }
    latency.suffixed_sample("_sum", &[], repairs.latency_seconds);
    latency.suffixed_sample("_count", &[], total);
    let help = "Refreshes that subscribers have not received yet.";
    page.single_value("ensign_refreshes_pending", MetricKind::Gauge, help, status.pending_refreshes);
    let mut resources = page.family("ensign_watched_resources", MetricKind::Gauge, "Resources of a watched channel, by state.");
    for (channel, watch) in &status.watches {
        for (state, count) in [
            ("all", watch.resources),
            ("polled", watch.polled),
            ("clean", watch.clean),
            ("failed", watch.failed),
            ("flapping", watch.flapping),
        ] {
            resources.sample(&[("channel", channel), ("state", state)], count);
        }
    }
    let mut converged = page.family("ensign_converged", MetricKind::Gauge, "1 while a watched channel is as wanted for a while.");
    status.watches.iter().for_each(|(channel, watch)| converged.sample(&[("channel", channel)], u8::from(watch.converged)));
    let help = "Time of the last change of ensign_converged, as Unix time.";
    let mut since = page.family("ensign_converged_change_time_seconds", MetricKind::Gauge, help);
    status.watches.iter().for_each(|(channel, watch)| since.sample(&[("channel", channel)], seconds(watch.since)));
}

fn seconds(time: jiff::Timestamp) -> i64 {
    time.as_second()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::wire::agent_status::{AgentCounters, ConnectionStatus, LimitsStatus, STATUS, TrustStatus};

    fn status() -> AgentStatus {
        AgentStatus {
            protocol: STATUS.into(),
            node: "web1".parse().unwrap(),
            fleet: "prod".into(),
            hostname: "web1".into(),
            groups: vec![],
            version: "0.1.0".into(),
            boot: uuid::Uuid::nil(),
            started: jiff::Timestamp::UNIX_EPOCH,
            at: jiff::Timestamp::UNIX_EPOCH,
            connection: ConnectionStatus::default(),
            trust: TrustStatus { version: 3, expires: jiff::Timestamp::UNIX_EPOCH },
            confinement: None,
            limits: LimitsStatus::default(),
            channels: BTreeMap::new(),
            running: None,
            watches: BTreeMap::new(),
            pending_refreshes: 0,
            queued: 0,
            queue: 16,
            last_run: None,
            outbox: 0,
            dropped: 0,
            counts: AgentCounters::default(),
            alarms: BTreeMap::new(),
            pending: vec![],
        }
    }

    #[test]
    fn labels_are_clean_and_few() {
        let mut status = status();
        let hostile = "x\"} 1\nforged{a=\"\x1b[2J\u{202e}";
        status.alarms = (0..5000).map(|n| (format!("{n:05}{hostile}{}", "y".repeat(5000)), String::new())).collect();
        let text = text(&status);
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("ensign_alarm{")).collect();
        assert_eq!(found.len(), MAX_SAMPLES);
        assert!(found.iter().all(|line| line.len() < 300 && line.ends_with("\"} 1")), "{}", found[0]);
        assert!(found[0].starts_with(r#"ensign_alarm{topic="00000x\"} 1\\nforged{a=\"\\x1b[2J\\u{202e}yyy"#), "{}", found[0]);
        assert!(text.lines().all(|line| !line.starts_with("forged")));
    }

    #[test]
    fn samples_follow_their_family() {
        let mut status = status();
        status.counts.refused = BTreeMap::from([("expired".to_owned(), 2), ("not_allowed".to_owned(), 1)]);
        status.alarms.insert("a\"b\\c\nd".to_owned(), "x".to_owned());
        (status.counts.repairs.latency[1], status.counts.repairs.latency[9]) = (3, 1);
        let text = text(&status);
        for line in [
            "ensign_build_info{version=\"0.1.0\",node=\"web1\",fleet=\"prod\"} 1",
            "ensign_trust_version 3",
            "ensign_healthy 0",
            "ensign_nats_connected 0",
            "ensign_commands_total{result=\"refused\"} 3",
            "ensign_commands_refused_total{code=\"expired\"} 2",
            r#"ensign_alarm{topic="a\"b\\c\\nd"} 1"#,
            "ensign_repair_latency_seconds_bucket{le=\"0.005\"} 0",
            "ensign_repair_latency_seconds_bucket{le=\"0.01\"} 3",
            "ensign_repair_latency_seconds_bucket{le=\"+Inf\"} 4",
            "ensign_repair_latency_seconds_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let mut once: Vec<_> = families.iter().map(|line| line.split(' ').next().unwrap()).collect();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), families.len());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(once.contains(&name), "{line}");
        }
        assert!(text.ends_with('\n') && !text.contains("ensign_last_run"));
    }
}
