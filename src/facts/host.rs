//! Host facts: `host.info` with names, operating system, kernel and virtualization.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::{Value, json};

use super::platform::{Platform, platform};
use super::source::{FactError, text, text_or_empty};
use super::virtualization;
use crate::host::{Host, fs, kernel};

/// Gathers host facts.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let names = kernel::names()?;
    let platform = host_platform();
    let (system, role) = virtualization::detect(&names.release);
    let processes = fs::list(Path::new("/proc"))?.iter().filter(|path| is_process(path)).count();
    let id =
        host_id(&["/etc/machine-id", "/sys/class/dmi/id/product_uuid", "/proc/sys/kernel/random/boot_id"].map(text_or_empty));
    Ok(json!({"info": {
        "hostname": names.hostname,
        "uptime": uptime(&text("/proc/uptime")?),
        "bootTime": boot_time(&text_or_empty("/proc/stat")),
        "procs": processes,
        "os": "linux",
        "platform": platform.name,
        "platformFamily": platform.family,
        "platformVersion": platform.version,
        "kernelVersion": names.release,
        "kernelArch": names.machine,
        "virtualizationSystem": system,
        "virtualizationRole": role,
        "hostId": id,
    }}))
}

/// Returns the distribution of this host.
pub(super) fn host_platform() -> Platform {
    let os_release = text("/etc/os-release").or_else(|_| text("/usr/lib/os-release")).unwrap_or_default();
    platform(&os_release, &text_or_empty("/etc/debian_version"), &text_or_empty("/etc/redhat-release"))
}

fn is_process(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
    !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

/// Parses the whole seconds since boot from `/proc/uptime`.
fn uptime(text: &str) -> u64 {
    text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// Parses the boot time from `/proc/stat`, in seconds since 1970.
fn boot_time(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|time| time.trim().parse().ok()).unwrap_or(0)
}

/// Returns the first UUID, in its usual form. The order is: installation, hardware, this boot.
///
/// All users may read the first file and only root the second, so the id is the same for both.
fn host_id(ids: &[String; 3]) -> String {
    let found = ids.iter().find_map(|id| uuid::Uuid::try_parse(id).ok());
    found.map(|id| id.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds() {
        assert_eq!(uptime("2554.60 4092.03\n"), 2554);
        assert_eq!(uptime(""), 0);
        assert_eq!(boot_time("cpu  83663 0\nintr 654737 0\nbtime 1795169574\nprocesses 33181\n"), 1_795_169_574);
        assert_eq!(boot_time(""), 0);
    }

    #[test]
    fn the_id_is_a_uuid() {
        let product = "4C4C4544-0042-3510-8052-B4C04F4D4D32";
        let boot = "5a0e1c5e-6f0b-4a2e-9d3c-0f6a7c1b2d3e";
        let cases = [
            (["3d1219c7c4c5404aaa1f6d2a48adfda4", product, boot], "3d1219c7-c4c5-404a-aa1f-6d2a48adfda4"),
            (["", product, boot], "4c4c4544-0042-3510-8052-b4c04f4d4d32"),
            // The content in an image before its first start.
            (["uninitialized", product, boot], "4c4c4544-0042-3510-8052-b4c04f4d4d32"),
            (["", "Not Settable", boot], boot),
            (["", "", ""], ""),
        ];
        for (ids, expected) in cases {
            assert_eq!(host_id(&ids.map(str::to_owned)), expected, "{ids:?}");
        }
    }

    #[test]
    fn processes_are_numbers() {
        for (path, expected) in [("/proc/1", true), ("/proc/4242", true), ("/proc/self", false), ("/proc/1a", false)] {
            assert_eq!(is_process(Path::new(path)), expected, "{path}");
        }
    }
}
