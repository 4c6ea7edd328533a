//! Virtualization facts: container, virtual machine, or host of virtual machines.
//!
//! Only traces in files are read; no processor instruction is used.

use std::path::Path;

use super::source::{field, text_or_empty};
use crate::host::fs;

/// Texts of files that identify a virtualization; empty where a file is missing or unreadable.
#[derive(Debug, Default)]
struct Traces {
    /// `/proc/1/environ`: for root only.
    init_environment: String,
    /// `/run/systemd/container`: readable by all users, where systemd is the first process.
    systemd_container: String,
    docker_file: bool,
    podman_file: bool,
    kernel_release: String,
    cpuinfo: String,
    /// The maker of the machine, a line end, and its name.
    dmi: String,
    hypervisor: String,
    xen_capabilities: String,
    clock_sources: String,
    modules: String,
}

/// Returns the system (`docker`, `kvm`, ...; "" for none or unknown) and the role in it: `guest`, `host`, or "".
pub(super) fn detect(kernel_release: &str) -> (String, &'static str) {
    let exists = |path: &str| fs::stat(Path::new(path), false).is_ok_and(|look| look.is_some());
    let dmi = |name: &str| text_or_empty(&format!("/sys/class/dmi/id/{name}"));
    classify(&Traces {
        init_environment: text_or_empty("/proc/1/environ"),
        systemd_container: text_or_empty("/run/systemd/container"),
        docker_file: exists("/.dockerenv"),
        podman_file: exists("/run/.containerenv"),
        kernel_release: kernel_release.to_owned(),
        cpuinfo: text_or_empty("/proc/cpuinfo"),
        dmi: ["sys_vendor", "product_name"].map(dmi).join("\n"),
        hypervisor: text_or_empty("/sys/hypervisor/type"),
        xen_capabilities: text_or_empty("/proc/xen/capabilities"),
        clock_sources: text_or_empty("/sys/devices/system/clocksource/clocksource0/available_clocksource"),
        modules: text_or_empty("/proc/modules"),
    })
}

fn classify(traces: &Traces) -> (String, &'static str) {
    // A container in a virtual machine counts as a container.
    if let Some(container) = container(traces) {
        return (container.to_owned(), "guest");
    }
    if traces.hypervisor.trim() == "xen" {
        return ("xen".to_owned(), if traces.xen_capabilities.contains("control_d") { "host" } else { "guest" });
    }
    if let Some(machine) = virtual_machine(traces) {
        return (machine.to_owned(), "guest");
    }
    let loaded = |name: &str| traces.modules.lines().any(|line| line.split(' ').next() == Some(name));
    if loaded("kvm") {
        ("kvm".to_owned(), "host")
    } else if loaded("vboxdrv") {
        ("vbox".to_owned(), "host")
    } else {
        (String::new(), "")
    }
}

fn container(traces: &Traces) -> Option<&str> {
    let told = traces.init_environment.split('\0').find_map(|variable| variable.strip_prefix("container="));
    let told = told.unwrap_or(&traces.systemd_container).trim();
    if traces.podman_file {
        Some("podman")
    } else if traces.docker_file {
        Some("docker")
    } else if !told.is_empty() {
        Some(told)
    } else if traces.kernel_release.to_lowercase().contains("microsoft") {
        Some("wsl")
    } else {
        None
    }
}

/// Returns the kind of virtual machine; "" for an unknown kind.
fn virtual_machine(traces: &Traces) -> Option<&'static str> {
    let flags = field(&traces.cpuinfo, "flags");
    let flagged = flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    // On x86 the flag decides: a rented physical machine may have the name of its cloud.
    if flags.is_some() && !flagged {
        return None;
    }
    let named = VENDORS.iter().find(|(mark, _)| traces.dmi.contains(mark)).map(|(_, system)| *system);
    let clock = || CLOCK_SOURCES.iter().find(|(mark, _)| traces.clock_sources.contains(mark)).map(|(_, system)| *system);
    named.or_else(clock).or(flagged.then_some(""))
}

/// Words of vendors of virtual machines in the DMI tables.
const VENDORS: [(&str, &str); 16] = [
    ("VMware", "vmware"),
    ("VirtualBox", "vbox"),
    ("innotek", "vbox"),
    ("Xen", "xen"),
    ("Virtual Machine", "hyperv"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Apple Virtualization", "apple"),
    ("QEMU", "kvm"),
    ("KVM", "kvm"),
    ("Google Compute Engine", "kvm"),
    ("Amazon EC2", "kvm"),
    ("OpenStack", "kvm"),
    ("DigitalOcean", "kvm"),
    ("Hetzner", "kvm"),
    ("Bochs", "kvm"),
];

/// Clocks of hypervisors, for machines without DMI tables.
const CLOCK_SOURCES: [(&str, &str); 3] = [("kvm-clock", "kvm"), ("hyperv_clocksource", "hyperv"), ("xen", "xen")];

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = "processor\t: 0\nflags\t\t: fpu sse2 hypervisor lahf_lm\n";
    const REAL: &str = "processor\t: 0\nflags\t\t: fpu sse2 vmx\n";
    const ARM: &str = "processor\t: 0\nFeatures\t: fp asimd\n";

    fn machine(cpuinfo: &str, dmi: &str) -> Traces {
        Traces { cpuinfo: cpuinfo.into(), dmi: dmi.into(), ..Traces::default() }
    }

    #[test]
    fn traces_identify_the_virtualization() {
        let init = |text: &str| Traces { init_environment: text.into(), ..machine(GUEST, "QEMU\n") };
        let xen = |capabilities: &str| Traces {
            hypervisor: "xen\n".into(),
            xen_capabilities: capabilities.into(),
            ..Traces::default()
        };
        let clock = |text: &str| Traces { clock_sources: text.into(), ..machine(GUEST, "") };
        let modules = |text: &str| Traces { modules: text.into(), ..machine(REAL, "LENOVO\n20XW\n") };
        let cases = [
            (init("PATH=/bin\0container=lxc\0TERM=linux\0"), "lxc", "guest"),
            (init("PATH=/bin\0mycontainer=lxc\0"), "kvm", "guest"),
            (Traces { systemd_container: "systemd-nspawn\n".into(), ..Traces::default() }, "systemd-nspawn", "guest"),
            (Traces { docker_file: true, ..machine(GUEST, "QEMU\n") }, "docker", "guest"),
            (Traces { podman_file: true, ..init("container=oci\0") }, "podman", "guest"),
            (Traces { kernel_release: "5.15.90.1-microsoft-standard-WSL2".into(), ..machine(GUEST, "") }, "wsl", "guest"),
            (xen("control_d\n"), "xen", "host"),
            (xen(""), "xen", "guest"),
            (machine(GUEST, "QEMU\nStandard PC (Q35 + ICH9, 2009)\n"), "kvm", "guest"),
            (machine(GUEST, "VMware, Inc.\nVMware Virtual Platform\n"), "vmware", "guest"),
            (machine(GUEST, "innotek GmbH\nVirtualBox\n"), "vbox", "guest"),
            (machine(GUEST, "Microsoft Corporation\nVirtual Machine\n"), "hyperv", "guest"),
            (machine(GUEST, "Amazon EC2\nm5.large\n"), "kvm", "guest"),
            (machine(REAL, "Amazon EC2\nm5.metal\n"), "", ""),
            (machine(ARM, "Amazon EC2\nm6g.large\n"), "kvm", "guest"),
            (machine(ARM, ""), "", ""),
            (clock("kvm-clock tsc acpi_pm \n"), "kvm", "guest"),
            (clock("tsc \n"), "", "guest"),
            (modules("kvm_intel 368640 0 - Live 0x0\nkvm 1028096 1 kvm_intel, Live 0x0\n"), "kvm", "host"),
            (modules("vboxdrv 614400 2 - Live 0x0\n"), "vbox", "host"),
            (modules("ext4 1 1 - Live 0x0\n"), "", ""),
        ];
        for (traces, system, role) in cases {
            assert_eq!(classify(&traces), (system.to_owned(), role), "{traces:?}");
        }
    }
}
