//! Packages, services, processes, and the commands of the author.

use std::path::Path;

use super::local::proc;
use super::matcher::Found;
use super::{Attributes, Look, value};
use crate::diag::chain;
use crate::host::{Command, Host, Output, fs};

/// How long a command may take when nothing is said, in milliseconds.
const COMMAND_TIMEOUT: u64 = 10_000;
/// The longest name that the kernel keeps of a program.
const COMM: usize = 15;
/// Where dpkg keeps what is installed.
const DPKG: &str = "/var/lib/dpkg/status";

fn run(host: &Host, program: &str, args: &[&str]) -> Result<Output, String> {
    host.run(&Command::new(program, args.iter().copied())).map_err(|error| chain(&error))
}

/// An installed package, by dpkg where it has a database, else by rpm.
pub(super) fn package(look: &Look<'_>) -> Result<Attributes, String> {
    let name = look.name("name");
    if name.starts_with('-') {
        return Err(format!("\"{name}\" is no name of a package"));
    }
    let by_dpkg = Path::new(DPKG).exists();
    let output = if by_dpkg {
        run(look.host, "dpkg-query", &["-W", "-f", "${Status} ${Version}\\n", "--", &name])?
    } else {
        run(look.host, "rpm", &["-q", "--qf", "%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\n", "--", &name])?
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let versions: Vec<String> = match (output.code, by_dpkg) {
        (0, true) => text.lines().filter_map(|line| line.strip_prefix("install ok installed ")).map(str::to_owned).collect(),
        (0, false) => text.lines().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    Ok(Attributes::from([("installed", value(!versions.is_empty())), ("versions", value(versions))]))
}

/// A unit of systemd.
pub(super) fn service(look: &Look<'_>) -> Result<Attributes, String> {
    let name = look.name("name");
    if name.starts_with('-') {
        return Err(format!("\"{name}\" is no name of a service"));
    }
    let unit = if name.contains('.') { name } else { format!("{name}.service") };
    let mut found = Attributes::new();
    for (attribute, verb) in [("enabled", "is-enabled"), ("running", "is-active")] {
        if look.wants(attribute) {
            let answer = run(look.host, "systemctl", &["--quiet", verb, "--", &unit]);
            found.insert(attribute, answer.and_then(|output| value(output.code == 0)));
        }
    }
    Ok(found)
}

/// Processes by the name of their program.
pub(super) fn process(look: &Look<'_>) -> Result<Attributes, String> {
    let name = look.name("comm");
    let entries = fs::list(Path::new("/proc")).map_err(|error| chain(&error))?;
    let is_process = |path: &&std::path::PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let count = entries.iter().filter(is_process).filter(|path| is_program(path, &name)).count();
    Ok(Attributes::from([("running", value(count > 0)), ("count", value(count))]))
}

/// Whether a process (its directory) runs a program. The kernel keeps the beginning of a long name only; then the first
/// word of the command line decides.
fn is_program(process: &Path, name: &str) -> bool {
    let read = |file: &str| process.join(file).to_str().and_then(|path| proc(path).ok()).unwrap_or_default();
    let comm = read("comm");
    let comm = comm.trim_end_matches('\n');
    if comm == name {
        return true;
    }
    let starts = comm.len() == COMM && name.starts_with(comm);
    starts && read("cmdline").split('\0').next().is_some_and(|program| program.rsplit('/').next() == Some(name))
}

/// A command, given to a shell.
pub(super) fn command(look: &Look<'_>) -> Result<Attributes, String> {
    let line = look.name("exec");
    (look.allow)(&line)?;
    let mut command = Command::new("/bin/sh", ["-c", &line]);
    command.timeout = Some(look.timeout(COMMAND_TIMEOUT));
    let output = look.host.run(&command).map_err(|error| chain(&error))?;
    let text = |bytes: &[u8]| Ok(Found::Text { text: String::from_utf8_lossy(bytes).into_owned(), shown: true });
    Ok(Attributes::from([
        ("exit-status", value(output.code)),
        ("stdout", text(&output.stdout)),
        ("stderr", text(&output.stderr)),
    ]))
}
