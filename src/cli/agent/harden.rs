//! `ensign agent harden`: a drop-in for the unit of the agent that takes from it what its limits do not need.

use crate::config::{Limits, Settings};
use crate::resource;

/// The drop-in, each line with its reason.
pub(super) fn drop_in(settings: &Settings) -> String {
    let limits = &settings.limits;
    let mut lines = vec![
        "# Made by `ensign agent harden` from [limits]: make it anew when they change.".to_owned(),
        "# Put it into /etc/systemd/system/ensign-agent.service.d/harden.conf, then `systemctl daemon-reload`".to_owned(),
        "# and `systemctl restart ensign-agent`.".to_owned(),
        "[Service]".to_owned(),
    ];
    let mut line = |reason: &str, setting: &str| {
        lines.push(format!("# {reason}"));
        lines.extend(setting.split('\n').map(str::to_owned));
    };
    line("The agent needs no personality, no realtime and no keyring of others.", "RestrictRealtime=yes\nLockPersonality=yes");
    line("Nothing that is managed needs a clock, a module or the log of the kernel.", "ProtectClock=yes\nProtectKernelLogs=yes");
    match only_files(limits) {
        Some(paths) => files(settings, paths, &mut line),
        None => line(
            "Packages, services, accounts, mounts or any path may be managed: what they start inherits every restriction, so \
             no more is taken. Set `types` and `paths` of [limits] to take more.",
            "RestrictNamespaces=no",
        ),
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The paths of a node that manages files below them alone.
fn only_files(limits: &Limits) -> Option<&[String]> {
    let named = limits.types.as_ref()?;
    named.iter().all(|kind| resource::find(kind).is_some_and(|kind| !kind.reaches_system())).then_some(())?;
    limits.paths.as_deref()
}

fn files(settings: &Settings, paths: &[String], line: &mut dyn FnMut(&str, &str)) {
    let limits = &settings.limits;
    let state = settings.state_dir.display().to_string();
    let write: Vec<String> = std::iter::once(&state).chain(paths).map(|path| escaped(&format!("-{path}"))).collect();
    line(
        "All is read-only but the state of the agent and `paths`.",
        &format!("ProtectSystem=strict\nReadWritePaths={}", write.join(" ")),
    );
    let within = |root: &str| paths.iter().chain(limits.read_paths.iter().flatten()).any(|path| path.starts_with(root));
    if within("/home") || within("/root") || within("/run/user") || within("/") && paths.iter().any(|path| path == "/") {
        line("`paths` or `read_paths` has homes.", "ProtectHome=no");
    } else {
        line("No path of the limits is a home.", "ProtectHome=yes");
    }
    let temporary = if within("/tmp") || within("/var/tmp") { "no" } else { "yes" };
    line("Others see nothing of the agent's temporary files, unless /tmp itself is managed.", &format!("PrivateTmp={temporary}"));
    line("Files need no device.", "PrivateDevices=yes\nDevicePolicy=closed");
    let kernel = if within("/proc") || within("/sys") { "no" } else { "yes" };
    line(
        "No setting of the kernel is a path of the limits.",
        &format!("ProtectKernelTunables={kernel}\nProtectControlGroups={kernel}"),
    );
    line("No module, host name or mount is managed.", "ProtectKernelModules=yes\nProtectHostname=yes\nRestrictNamespaces=yes");
    line("Another process is none of its business.", "ProtectProc=invisible\nProcSubset=all");
    line("Setuid programs give nothing.", "NoNewPrivileges=yes\nRestrictSUIDSGID=no");
    let more = if limits.exec { " CAP_KILL CAP_SETUID CAP_SETGID" } else { "" };
    line(
        "Owners and modes of files of any owner are set; SYS_ADMIN is not needed, as no privileges are new.",
        &format!(
            "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID{more}\nAmbientCapabilities="
        ),
    );
    line(
        "System calls of services, with those for owners and for the confinement of runs.",
        "SystemCallArchitectures=native\nSystemCallFilter=@system-service landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp\nSystemCallFilter=~@resources @keyring\n\
         SystemCallErrorNumber=EPERM",
    );
    line(
        "NATS and downloads come over IP; its own socket and the journal are local.",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    );
    if !limits.exec {
        line("No program is started, and the agent makes no code.", "MemoryDenyWriteExecute=yes");
        line("Other users get no file of the agent.", "UMask=0077");
    }
    line("Nothing of it outlives it.", "RemoveIPC=yes\nKeyringMode=private");
}

/// A path as a unit has it.
fn escaped(path: &str) -> String {
    let path = path.replace('%', "%%").replace('\\', "\\\\").replace('"', "\\\"");
    if path.contains(char::is_whitespace) { format!("\"{path}\"") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Surroundings;

    fn made(limits: &str) -> String {
        let text = format!(
            "fleet = \"prod\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n[limits]\n{limits}"
        );
        let around =
            Surroundings { hostname: "web1".into(), state_dir: "/var/lib/ensign".into(), directory: "/etc/ensign".into() };
        drop_in(&Settings::read(&text, "agent.toml", &around).unwrap())
    }

    #[test]
    fn files_alone_need_little() {
        let made = made("types = [\"file\"]\npaths = [\"/srv/a b\", \"/etc\"]");
        for wanted in [
            "ProtectSystem=strict",
            "ReadWritePaths=-/var/lib/ensign \"-/srv/a b\" -/etc",
            "ProtectHome=yes",
            "MemoryDenyWriteExecute=yes",
        ] {
            assert!(made.contains(wanted), "{wanted}: {made}");
        }
        assert!(self::made("types = [\"file\"]\npaths = [\"/home/www\"]").contains("ProtectHome=no"));
    }

    #[test]
    fn whatever_manages_the_system_keeps_what_it_needs() {
        for limits in ["", "types = [\"file\", \"package\"]\npaths = [\"/srv\"]", "paths = [\"/srv\"]", "types = [\"file\"]"] {
            let made = made(limits);
            assert!(!made.contains("ProtectSystem") && !made.contains("NoNewPrivileges=yes"), "{made}");
            assert!(made.lines().all(|line| line.is_empty() || line.starts_with(['#', '[']) || line.contains('=')), "{made}");
        }
    }
}
