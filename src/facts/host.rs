//! `host.info`: names, operating system, kernel, and what the machine runs on.

use std::path::Path;

use serde_json::{Value, json};

use super::{FactError, text, text_or_empty};
use crate::host::{Host, fs, kernel};

/// Families of operating systems, by the names in os-release.
const FAMILIES: &[(&str, &[&str])] = &[
    ("debian", &["debian", "ubuntu", "linuxmint", "raspbian", "kali", "pop", "devuan"]),
    ("fedora", &["fedora"]),
    ("rhel", &["redhat", "oracle", "centos", "scientific", "amazon", "xenserver", "cloudlinux", "rocky", "almalinux"]),
    ("suse", &["suse", "opensuse", "opensuse-leap", "opensuse-tumbleweed", "sles", "sled"]),
    ("gentoo", &["gentoo"]),
    ("slackware", &["slackware"]),
    ("arch", &["arch", "manjaro", "endeavouros"]),
    ("alpine", &["alpine"]),
    ("coreos", &["coreos", "flatcar"]),
    ("solus", &["solus"]),
];

/// Names in os-release that are called otherwise among the facts.
const RENAMED: &[(&str, &str)] = &[("rhel", "redhat"), ("ol", "oracle"), ("amzn", "amazon"), ("xs", "xenserver")];

/// Gathers them.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let names = kernel::names()?;
    let uptime = text("/proc/uptime")?.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
    let stat = text_or_empty("/proc/stat");
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|time| time.trim().parse::<u64>().ok());
    let is_process =
        |path: &&std::path::PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let processes = fs::list(Path::new("/proc"))?.iter().filter(is_process).count();
    let release = Release::read();
    let (system, role) = virtualization();
    Ok(json!({"info": {
        "hostname": names.hostname,
        "uptime": uptime.unwrap_or(0),
        "bootTime": boot.unwrap_or(0),
        "procs": processes,
        "os": "linux",
        "platform": release.platform,
        "platformFamily": release.family,
        "platformVersion": release.version,
        "kernelVersion": names.release,
        "kernelArch": names.machine,
        "virtualizationSystem": system,
        "virtualizationRole": role,
        "hostId": host_id(),
    }}))
}

#[derive(Debug, PartialEq, Eq)]
struct Release {
    platform: String,
    family: &'static str,
    version: String,
}

impl Release {
    fn read() -> Self {
        let os_release = text("/etc/os-release").or_else(|_| text("/usr/lib/os-release")).unwrap_or_default();
        Self::of(&os_release, &text_or_empty("/etc/debian_version"), &text_or_empty("/etc/redhat-release"))
    }

    fn of(os_release: &str, debian: &str, redhat: &str) -> Self {
        let field = |name: &str| {
            let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
        };
        let id = field("ID").to_lowercase();
        let renamed = RENAMED.iter().find(|(name, _)| *name == id);
        let platform = renamed.map_or(id, |(_, name)| (*name).to_owned());
        let family = FAMILIES.iter().find(|(_, members)| members.contains(&platform.as_str())).map_or("", |(name, _)| *name);
        // The major version alone is in os-release of these.
        let exact = match family {
            "debian" if platform == "debian" => Some(debian),
            "rhel" | "fedora" => redhat.split(" release ").nth(1).and_then(|rest| rest.split_whitespace().next()),
            _ => None,
        };
        let version = exact.filter(|version| !version.is_empty()).map_or_else(|| field("VERSION_ID"), str::to_owned);
        Self { platform, family, version }
    }
}

/// The id of the hardware, else of the installation, else of this boot.
fn host_id() -> String {
    let hardware = text_or_empty("/sys/class/dmi/id/product_uuid").to_lowercase();
    if !hardware.is_empty() {
        return hardware;
    }
    let machine = text_or_empty("/etc/machine-id");
    if let Ok(id) = uuid::Uuid::parse_str(&machine) {
        return id.to_string();
    }
    text_or_empty("/proc/sys/kernel/random/boot_id")
}

/// What the machine runs on, and whether it is the guest or the host of it.
fn virtualization() -> (String, &'static str) {
    let container = text_or_empty("/run/systemd/container");
    if !container.is_empty() {
        return (container, "guest");
    }
    for (path, system) in [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")] {
        if Path::new(path).exists() {
            return (system.to_owned(), "guest");
        }
    }
    let hardware = ["sys_vendor", "product_name", "bios_vendor"].map(|name| text_or_empty(&format!("/sys/class/dmi/id/{name}")));
    if let Some(system) = hypervisor(&hardware.join(" ")) {
        return (system.to_owned(), "guest");
    }
    if text_or_empty("/proc/xen/capabilities").contains("control_d") {
        return ("xen".to_owned(), "host");
    }
    let modules = text_or_empty("/proc/modules");
    let loaded = |name: &str| modules.lines().any(|line| line.split(' ').next() == Some(name));
    if loaded("kvm") {
        return ("kvm".to_owned(), "host");
    }
    if loaded("vboxdrv") {
        return ("vbox".to_owned(), "host");
    }
    (String::new(), "")
}

fn hypervisor(hardware: &str) -> Option<&'static str> {
    let known = [
        ("KVM", "kvm"),
        ("QEMU", "kvm"),
        ("Amazon EC2", "kvm"),
        ("Google Compute Engine", "kvm"),
        ("OpenStack", "kvm"),
        ("VMware", "vmware"),
        ("VirtualBox", "vbox"),
        ("innotek", "vbox"),
        ("Xen", "xen"),
        ("Virtual Machine", "hyperv"),
        ("Parallels", "parallels"),
        ("Bochs", "bochs"),
    ];
    known.iter().find(|(mark, _)| hardware.contains(mark)).map(|(_, system)| *system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_told_apart() {
        let cases = [
            ("ID=debian\nVERSION_ID=\"12\"\n", "12.5", "", ("debian", "debian", "12.5")),
            ("NAME=x\nID=ubuntu\nVERSION_ID=\"24.04\"\n", "trixie/sid", "", ("ubuntu", "debian", "24.04")),
            ("ID=\"rhel\"\nVERSION_ID=\"9.4\"\n", "", "Red Hat Enterprise Linux release 9.4 (Plow)", ("redhat", "rhel", "9.4")),
            ("ID=centos\nVERSION_ID=7\n", "", "CentOS Linux release 7.9.2009 (Core)", ("centos", "rhel", "7.9.2009")),
            ("ID=fedora\nVERSION_ID=41\n", "", "", ("fedora", "fedora", "41")),
            ("ID=alpine\nVERSION_ID=3.20.1\n", "", "", ("alpine", "alpine", "3.20.1")),
            ("ID=nixos\n", "", "", ("nixos", "", "")),
            ("", "", "", ("", "", "")),
        ];
        for (os_release, debian, redhat, (platform, family, version)) in cases {
            let found = Release::of(os_release, debian, redhat);
            assert_eq!((found.platform.as_str(), found.family, found.version.as_str()), (platform, family, version));
        }
    }

    #[test]
    fn hypervisors_are_told_apart() {
        let cases =
            [("QEMU Standard PC", Some("kvm")), ("Microsoft Corporation Virtual Machine", Some("hyperv")), ("Dell Inc.", None)];
        for (hardware, system) in cases {
            assert_eq!(hypervisor(hardware), system, "{hardware}");
        }
    }
}
