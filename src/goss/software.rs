//! The probes of packages, services and processes, and the commands of the author.

use std::path::Path;

use super::probe::{Attributes, ProbeContext, ProbedValue, found_value, read_system_file};
use crate::diag::error_chain;
use crate::host::dpkg::{DpkgDatabase, DpkgRecord};
use crate::host::{Host, ProcessCommand, Systemd, SystemdError, fs};

/// The longest duration of a command without the option `timeout`, in milliseconds.
const DEFAULT_COMMAND_TIMEOUT_MS: u64 = 10_000;
/// The longest program name that the kernel keeps, in bytes.
const MAX_COMM_BYTES: usize = 15;
/// The states for which `systemctl is-active` exits with 0.
const ACTIVE: [&str; 3] = ["active", "reloading", "refreshing"];
/// The states for which `systemctl is-enabled` exits with 0.
const ENABLED: [&str; 6] = ["enabled", "enabled-runtime", "static", "alias", "indirect", "transient"];
/// The state of a unit that was generated from an init script. Only `systemctl` reads the links of init scripts.
const GENERATED: &str = "generated";

/// An installed package, from dpkg when dpkg has a database, else from rpm. The run shares a cache of packages with its
/// resources.
pub(super) fn package(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("name");
    if name.starts_with('-') {
        return Err(format!("\"{name}\" is no name of a package"));
    }
    let versions = match look.host.dpkg().database() {
        // Only dpkg-query(1) takes patterns.
        Ok(_) if name.contains(['*', '?', '[']) => packages_matching(look.host, &name)?,
        Ok((_, database)) => dpkg_versions(&database, &name),
        Err(error) if error.is_not_found() => {
            let packages = look.host.rpm().packages(look.host.scope()).map_err(|error| error_chain(&error))?;
            packages.by_name(&name).into_iter().map(|package| package.version).collect()
        }
        Err(error) => return Err(error_chain(&error)),
    };
    Ok(Attributes::from([("installed", found_value(!versions.is_empty())), ("versions", found_value(versions))]))
}

fn packages_matching(host: &Host, pattern: &str) -> Result<Vec<String>, String> {
    let query = ProcessCommand::new("dpkg-query", ["-W", "-f", "${db:Status-Status} ${Version}\\n", "--", pattern]);
    let output = host.run(&query).map_err(|error| error_chain(&error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_prefix("installed ")).map(str::to_owned).collect())
}

/// The installed versions of a package. The name may have the architecture, as `libc6:i386`.
fn dpkg_versions(database: &DpkgDatabase, name: &str) -> Vec<String> {
    let (name, architecture) = name.split_once(':').map_or((name, None), |(name, architecture)| (name, Some(architecture)));
    let is_meant = |record: &&DpkgRecord| {
        let fits = architecture.is_none_or(|wanted| record.architecture == wanted);
        fits && record.status == "installed" && !record.reinstall
    };
    database.records(name).iter().filter(is_meant).map(|record| record.version.clone()).collect()
}

/// A unit of systemd.
pub(super) fn service(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("name");
    if name.starts_with('-') {
        return Err(format!("\"{name}\" is no name of a service"));
    }
    let unit = if name.contains('.') { name } else { format!("{name}.service") };
    let systemd = look.host.systemd();
    let mut found = Attributes::new();
    for (attribute, verb) in [("enabled", "is-enabled"), ("running", "is-active")] {
        if look.is_wanted(attribute) {
            let is_so = match &systemd {
                Some(systemd) => query_systemd(systemd, verb, &unit, look.host),
                None => systemctl(look.host, verb, &unit),
            };
            found.insert(attribute, is_so.and_then(found_value));
        }
    }
    Ok(found)
}

/// The result of `systemctl VERB` for a unit, over D-Bus.
fn query_systemd(systemd: &Systemd, verb: &str, unit: &str, host: &Host) -> Result<bool, String> {
    let now = match systemd.unit(unit) {
        Ok(now) => now,
        // systemd refuses the name, so no such unit exists.
        Err(SystemdError::Refused(_)) => return Ok(false),
        Err(error) => return Err(error_chain(&error)),
    };
    if verb == "is-active" {
        return Ok(ACTIVE.contains(&now.active.as_str()));
    }
    // A unit without a file, as a transient unit, has only its own state.
    let word = systemd.unit_file_state(unit).map_err(|error| error_chain(&error))?.unwrap_or(now.file_state);
    if word == GENERATED {
        return systemctl(host, verb, unit);
    }
    Ok(ENABLED.contains(&word.as_str()))
}

/// The result of `systemctl VERB` for a unit, by the command. The command works without a bus.
fn systemctl(host: &Host, verb: &str, unit: &str) -> Result<bool, String> {
    let output =
        host.run(&ProcessCommand::new("systemctl", ["--quiet", verb, "--", unit])).map_err(|error| error_chain(&error))?;
    Ok(output.code == 0)
}

/// Processes by the name of their program.
pub(super) fn process(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("comm");
    let entries = fs::list(Path::new("/proc")).map_err(|error| error_chain(&error))?;
    let is_process = |path: &&std::path::PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let count = entries.iter().filter(is_process).filter(|path| is_program(path, &name)).count();
    Ok(Attributes::from([("running", found_value(count > 0)), ("count", found_value(count))]))
}

/// True when a process (its directory) runs a program. The kernel keeps only the beginning of a long name. For a long name,
/// the first word of the command line decides.
fn is_program(process: &Path, name: &str) -> bool {
    let read = |file: &str| process.join(file).to_str().and_then(|path| read_system_file(path).ok()).unwrap_or_default();
    let comm = read("comm");
    let comm = comm.trim_end_matches('\n');
    if comm == name {
        return true;
    }
    let starts = comm.len() == MAX_COMM_BYTES && name.starts_with(comm);
    starts && read("cmdline").split('\0').next().is_some_and(|program| program.rsplit('/').next() == Some(name))
}

/// A command, run by a shell.
pub(super) fn command(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let line = look.name("exec");
    let mut command = ProcessCommand::new("/bin/sh", ["-c", &line]);
    command.timeout = Some(look.timeout(DEFAULT_COMMAND_TIMEOUT_MS));
    let output = look.host.run(&command).map_err(|error| error_chain(&error))?;
    let text = |bytes: &[u8]| Ok(ProbedValue::Text { text: String::from_utf8_lossy(bytes).into_owned(), shown: true });
    Ok(Attributes::from([
        ("exit-status", found_value(output.code)),
        ("stdout", text(&output.stdout)),
        ("stderr", text(&output.stderr)),
    ]))
}
