//! Confinement: upper limits for a thread and everything that it starts. The kernel enforces them, so that a wrong check or a
//! race ends in "permission denied".
//!
//! Three parts of the kernel take part. Landlock limits files, programs, TCP and signals. A filter of system calls denies local
//! sockets, as Landlock can't. Capabilities that files do not need are dropped. No part can be undone: a confined thread does its
//! work and ends. Through a [`Worker`], an unconfined thread does work for a confined one.
//!
//! Neighbour: `agent::confinement` derives the confinement from `[limits]`.

mod capabilities;
mod system_calls;
mod worker;

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

pub use worker::{Work, Worker, WorkerGone};

/// The newest Landlock version that this code supports. An older kernel enforces a part of the rights.
const KNOWN: ABI = ABI::V6;

/// Files that programs and the C library read, beside those that the owner of a host allows. Users other than root may read all
/// of them.
const SYSTEM_FILES: &[&str] = &[
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/share",
    "/usr/local/lib",
    "/usr/local/share",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ca-certificates.conf",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/mime.types",
    "/etc/networks",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust/extracted/pem",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/profile",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/shells",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// The directories of the system's programs.
const PROGRAMS: &[&str] = &["/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"];

/// Objects that programs read beside files: information about themselves and the machine. The memory and environment of processes
/// outside stay closed to confined processes.
const MACHINE: &[&str] = &["/proc", "/sys/block", "/sys/bus", "/sys/class", "/sys/devices", "/sys/fs/cgroup"];

/// Devices without hardware.
const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];

/// The limits of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    /// The accessible files; every file when none.
    pub files: Option<AccessibleFiles>,
    /// No program may be started.
    pub no_programs: bool,
    /// No TCP connection may be made, and no port be opened.
    pub no_network: bool,
    /// Local sockets may be used although files are limited.
    pub local_sockets: bool,
}

/// Accessible files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessibleFiles {
    /// Paths that may be changed, including all below.
    pub write: Vec<PathBuf>,
    /// Paths that may be read, including all below.
    pub read: Vec<PathBuf>,
}

/// A part of a confinement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfinementPart {
    /// Files are changed and read only in the allowed paths.
    Files,
    /// A file is truncated only where it may be written.
    Truncate,
    /// No program is started, or only accessible programs.
    Programs,
    /// No TCP connection or listening port.
    Network,
    /// No `ioctl` on devices.
    Devices,
    /// No signal to a process outside.
    Signals,
    /// No connection to a local socket.
    Sockets,
}

/// The features that the kernel of this host supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFeatures {
    /// The version of Landlock; 0 where there is none.
    pub landlock: i32,
}

impl KernelFeatures {
    /// True when this kernel enforces a part.
    pub fn enforces(self, part: ConfinementPart) -> bool {
        let since = match part {
            // Before version 2, Landlock denied moving a file between directories, which runs need.
            ConfinementPart::Files | ConfinementPart::Programs => 1,
            ConfinementPart::Truncate => 3,
            ConfinementPart::Network => 4,
            ConfinementPart::Devices => 5,
            ConfinementPart::Signals => 6,
            ConfinementPart::Sockets => return system_calls::can_refuse(),
        };
        self.landlock >= since
    }
}

/// A confinement that could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Landlock failed.
    #[error("Landlock failed")]
    Landlock(#[from] RulesetError),
    /// The filter of system calls failed.
    #[error("the filter of system calls failed")]
    Calls(#[from] seccompiler::Error),
    /// A capability could not be dropped.
    #[error("could not drop capabilities")]
    Capabilities(#[source] std::io::Error),
    /// No thread for querying the kernel could be started.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
}

/// An active confinement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confined {
    /// The existing writable directories, as they were given; none where files are not limited.
    pub write: Option<Vec<PathBuf>>,
}

impl Confinement {
    /// True when the confinement limits nothing.
    pub fn is_empty(&self) -> bool {
        self.files.is_none() && !self.no_programs && !self.no_network
    }

    /// The parts of this confinement.
    pub fn parts(&self) -> Vec<ConfinementPart> {
        let files = self.files.is_some();
        [
            (ConfinementPart::Files, files),
            (ConfinementPart::Truncate, files),
            (ConfinementPart::Programs, files || self.no_programs),
            (ConfinementPart::Network, self.no_network),
            (ConfinementPart::Devices, files),
            (ConfinementPart::Signals, true),
            (ConfinementPart::Sockets, files && !self.local_sockets),
        ]
        .into_iter()
        .filter_map(|(part, wanted)| (wanted && !self.is_empty()).then_some(part))
        .collect()
    }

    /// Confines the calling thread, and everything that it starts from now on, for ever. Limits that this kernel does not support
    /// are left out.
    ///
    /// # Errors
    /// When a supported feature of the kernel fails. The thread may be confined in part, and must not work.
    pub fn apply(&self) -> Result<Confined, ConfineError> {
        if self.is_empty() {
            return Ok(Confined::default());
        }
        let confined = self.landlock()?;
        if self.files.is_some() {
            system_calls::refuse(!self.local_sockets)?;
            capabilities::drop_all_but_files().map_err(|errno| ConfineError::Capabilities(errno.into()))?;
        }
        Ok(confined)
    }

    fn landlock(&self) -> Result<Confined, ConfineError> {
        let mut handled = BitFlags::empty();
        if self.files.is_some() {
            handled |= AccessFs::from_all(KNOWN);
        }
        if self.no_programs {
            handled |= AccessFs::Execute;
        }
        let mut ruleset = Ruleset::default().scope(Scope::from_all(KNOWN))?;
        if !handled.is_empty() {
            ruleset = ruleset.handle_access(handled)?;
        }
        if self.no_network {
            ruleset = ruleset.handle_access(AccessNet::from_all(KNOWN))?;
        }
        let mut created = ruleset.create()?;
        let mut confined = Confined::default();
        if let Some(files) = &self.files {
            let mut write = Vec::new();
            for path in &files.write {
                if let Some(next) = allow(&mut created, path, self.write_rights())? {
                    write.extend(next.is_directory.then(|| path.clone()));
                }
            }
            confined.write = Some(write);
            for path in &files.read {
                allow(&mut created, path, self.read_rights())?;
            }
            self.allow_system(&mut created)?;
        }
        created.restrict_self()?;
        Ok(confined)
    }

    fn allow_system(&self, ruleset: &mut RulesetCreated) -> Result<(), ConfineError> {
        let programs: &[&[&str]] = if self.no_programs { &[] } else { &[PROGRAMS] };
        for path in [SYSTEM_FILES].iter().chain(programs).flat_map(|list| list.iter()) {
            allow(ruleset, Path::new(path), self.read_rights())?;
        }
        if !self.no_programs {
            for path in MACHINE {
                allow(ruleset, Path::new(path), AccessFs::ReadFile | AccessFs::ReadDir)?;
            }
        }
        for path in DEVICES {
            allow(ruleset, Path::new(path), AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev)?;
        }
        Ok(())
    }

    fn read_rights(&self) -> BitFlags<AccessFs> {
        let all = AccessFs::from_read(KNOWN);
        if self.no_programs { all & !AccessFs::Execute } else { all }
    }

    /// All rights except those on devices: a device file is a way around every limit of files.
    fn write_rights(&self) -> BitFlags<AccessFs> {
        let never = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
        (AccessFs::from_write(KNOWN) & !never) | self.read_rights()
    }
}

/// A path with a rule.
struct Allowed {
    is_directory: bool,
}

/// Adds a rule for `path` and everything below. A missing path needs no rule: nothing can be opened there.
fn allow(ruleset: &mut RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<Option<Allowed>, ConfineError> {
    let Ok(opened) = PathFd::new(path) else { return Ok(None) };
    let is_directory = path.is_dir();
    let access = if is_directory { access } else { access & AccessFs::from_file(KNOWN) };
    ruleset.add_rule(PathBeneath::new(opened, access))?;
    Ok(Some(Allowed { is_directory }))
}

/// Queries the features of the kernel, on a thread of its own.
///
/// # Errors
/// When no thread can be started, or Landlock is there and fails.
pub fn kernel_features() -> Result<KernelFeatures, ConfineError> {
    let ask = || -> Result<RestrictionStatus, RulesetError> {
        Ruleset::default().handle_access(AccessFs::Execute)?.create()?.restrict_self()
    };
    let asked = std::thread::Builder::new().name("landlock".to_owned()).spawn(ask).map_err(ConfineError::Thread)?;
    let status = asked.join().map_err(|_| ConfineError::Thread(std::io::Error::other("the thread panicked")))??;
    Ok(KernelFeatures {
        landlock: match status.landlock {
            LandlockStatus::Available { effective_abi, kernel_abi } => kernel_abi.unwrap_or(effective_abi as i32),
            LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
        },
    })
}

#[cfg(test)]
mod tests;
