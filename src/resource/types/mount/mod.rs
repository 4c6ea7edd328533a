//! `mount`: file systems, in `/etc/fstab` and mounted.
//!
//! `mount/fstab.rs` edits the table, `mount/active_options.rs` compares options, `mount/linux.rs` is the provider. Swap has no
//! mount point and is not managed here.

mod active_options;
mod effects;
mod fstab;
mod linux;
mod properties;
mod provider;

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::host::mountinfo::Mounted;
use crate::host::{Host, mountinfo};
use crate::model::{Effects, Identity, Need};

use crate::resource::core::{path_order, text};
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

use fstab::FstabEntry;
use properties::{auto, defaults};

pub use properties::{MountEnsure, Properties};
pub use provider::MountProvider;

/// The type of file system at a mount point with automount.
const AUTOFS: &str = "autofs";
/// The option for automount.
const AUTOMOUNT: &str = "x-systemd.automount";

/// Mounted file systems.
pub struct MountType;

/// True where a file system of the desired type may report this name.
fn is_type(wanted: &str, actual: &str) -> bool {
    matches!(wanted, "auto" | "none")
        || wanted == actual
        || (wanted, actual) == ("nfs", "nfs4")
        // A program makes the mount, and chooses the name.
        || actual == "fuseblk"
        || (actual.starts_with("fuse.") && (wanted == "fuse" || actual.strip_prefix("fuse.") == Some(wanted)))
}

/// The observed state of the mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountState {
    /// The lines of fstab.
    #[serde(skip)]
    entries: Vec<FstabEntry>,
    /// The mounts, the lowest first.
    #[serde(skip)]
    mounts: Vec<Mounted>,
    /// True when the topmost mount is the desired one, apart from options.
    #[serde(skip)]
    is_desired: bool,
    /// The reason why a missing mount can't be made.
    #[serde(skip)]
    obstacle: Option<String>,
    in_fstab: bool,
    mounted: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    device: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    fstype: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    options: String,
}

impl State for MountState {
    fn ensure(&self) -> &str {
        match (self.in_fstab, self.mounted) {
            (_, true) => "mounted",
            (true, false) => "unmounted",
            (false, false) => "absent",
        }
    }
}

/// A step towards the desired mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountChange {
    /// Add the line to fstab.
    AddEntry,
    /// Change the line in fstab, with the differences.
    ChangeEntry(Vec<String>),
    /// Remove the lines from fstab.
    RemoveEntry,
    /// Mount the file system.
    Mount,
    /// Remount with the options, with the reasons.
    Remount(Vec<String>),
    /// Unmount this number of file systems.
    Unmount(usize),
}

impl fmt::Display for MountChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AddEntry => "added the entry to fstab",
            Self::ChangeEntry(_) => "changed the entry in fstab",
            Self::RemoveEntry => "removed the entry from fstab",
            Self::Mount => "mounted the file system",
            Self::Remount(_) => "remounted the file system",
            Self::Unmount(_) => "unmounted the file system",
        })
    }
}

impl Change for MountChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::ChangeEntry(details) => details.clone(),
            Self::Remount(why) if !why.is_empty() => vec![format!("{self}: {}", why.join(", "))],
            _ => vec![self.to_string()],
        }
    }
}

impl Resource for MountType {
    const TYPE: &'static str = "mount";
    const CHANGES_SYSTEM: bool = true;
    const ABOUT: &'static str = "File systems: in fstab, and mounted.";
    const REFRESHES: bool = true;
    const NO_EFFECTS: &'static [(&'static str, &'static str)] =
        &[("dump", "which program of backups saves it"), ("pass", "when it is checked at boot")];
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::flag("mounted", "True while it is mounted."),
        ResourceOutput::text("device", "The mounted device."),
        ResourceOutput::text("fstype", "The type of the file system."),
        ResourceOutput::text("options", "The active options."),
    ];
    const PROVIDERS: &'static [ProviderEntry<dyn MountProvider>] =
        &[ProviderEntry::new("linux", |_| mountinfo::is_supported(), |_| Box::new(linux::Linux))];

    type Properties = Properties;
    type State = MountState;
    type Change = MountChange;
    type Provider = dyn MountProvider;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        text::check_path("name", "mount point", &p.name)?;
        if p.name == "/" && matches!(p.ensure, MountEnsure::Absent | MountEnsure::Unmounted) {
            return Err(Invalid::new("ensure", format!("the root can't be {}", p.ensure.as_str())));
        }
        if p.fstype == "swap" {
            return Err(Invalid::new("fstype", "swap has no mount point and is not managed by mount"));
        }
        if p.device.is_empty() && p.ensure != MountEnsure::Absent {
            return Err(Invalid::new("device", "device is required"));
        }
        check_field("fstype", &p.fstype)?;
        // mount(8) builds the path of a helper program from the type.
        if p.fstype.contains('/') {
            return Err(Invalid::new("fstype", format!("fstype can't hold a slash: \"{}\"", p.fstype)));
        }
        check_field("options", &p.options)?;
        if p.device.is_empty() { Ok(()) } else { check_field("device", &p.device) }
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn effects(p: &Properties) -> Effects {
        effects::effects(p)
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        p.is_wanted().then(|| Identity::MountPoint(p.name.clone().into())).into_iter().collect()
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        (!p.is_wanted()).then(|| Identity::MountPoint(p.name.clone().into())).into_iter().collect()
    }

    fn needs(p: &Properties) -> Vec<Need> {
        if !p.is_wanted() {
            return vec![Need::below(&p.name), Need::path(&p.name)];
        }
        [&p.name, &p.device].into_iter().flat_map(|path| path_order::existing_path_needs(path)).collect()
    }

    fn query(name: &str) -> Option<Properties> {
        let (device, fstype, options) = ("none".to_owned(), auto(), defaults());
        Some(Properties { name: name.to_owned(), ensure: MountEnsure::Present, device, fstype, options, dump: 0, pass: 0 })
    }

    fn observe(p: &Properties, provider: &dyn MountProvider, host: &Host) -> Result<MountState, ResourceError> {
        let entries = fstab::entries(&provider.table()?, &p.name);
        let at_point = provider.mounts()?.into_iter().filter(|mounted| mounted.point == p.name);
        let (waiting, mounts): (Vec<_>, Vec<_>) = at_point.partition(|mounted| mounted.fstype == AUTOFS);
        let right = match mounts.last() {
            Some(top) => is_type(&p.fstype, &top.fstype) && provider.is_same(&p.device, &p.options, top)?,
            None => false,
        };
        let automatic = !waiting.is_empty() && p.options.split(',').any(|option| option == AUTOMOUNT);
        let shown = mounts.last().or(waiting.last().filter(|_| automatic)).cloned().unwrap_or_default();
        let obstacle = if mounts.is_empty() && !automatic { provider.obstacle(p, host) } else { None };
        Ok(MountState {
            obstacle,
            in_fstab: !entries.is_empty(),
            mounted: automatic || !mounts.is_empty(),
            entries,
            mounts,
            is_desired: right,
            device: shown.source,
            fstype: shown.fstype,
            options: shown.options,
        })
    }

    fn outputs(_: &Properties, state: &MountState) -> Vec<(&'static str, Value)> {
        let active = |text| json!(Some(text).filter(|_| state.mounted));
        vec![
            ("mounted", json!(state.mounted)),
            ("device", active(&state.device)),
            ("fstype", active(&state.fstype)),
            ("options", active(&state.options)),
        ]
    }

    fn diff(p: &Properties, state: &MountState) -> Result<Vec<MountChange>, ResourceError> {
        let unmount = Some(state.mounts.len()).filter(|count| *count > 0).map(MountChange::Unmount);
        if p.ensure == MountEnsure::Absent {
            return Ok(unmount.into_iter().chain(state.in_fstab.then_some(MountChange::RemoveEntry)).collect());
        }
        let listing = fstab_change(p, state)?;
        let remount = remount(p, state);
        let acting: Vec<_> = match p.ensure {
            MountEnsure::Unmounted => unmount.into_iter().collect(),
            MountEnsure::Mounted if !state.mounted => match &state.obstacle {
                Some(why) => return Err(ResourceError::State(why.clone())),
                None => vec![MountChange::Mount],
            },
            MountEnsure::Mounted if !state.mounts.is_empty() && !state.is_desired => {
                unmount.into_iter().chain([MountChange::Mount]).collect()
            }
            MountEnsure::Mounted if !remount.is_empty() => vec![MountChange::Remount(remount)],
            MountEnsure::Mounted | MountEnsure::Present | MountEnsure::Absent => vec![],
        };
        // A failed mount must not be in fstab: the host might not boot again.
        Ok(acting.into_iter().chain(listing).collect())
    }

    fn apply(
        change: &MountChange,
        p: &Properties,
        _: &mut MountState,
        provider: &dyn MountProvider,
        host: &Host,
    ) -> Result<(), ResourceError> {
        match change {
            // Read the table again: changes by others since the observation are kept.
            MountChange::AddEntry | MountChange::ChangeEntry(_) => {
                provider.write_table(&fstab::with(&provider.table()?, &p.entry()), host)
            }
            MountChange::RemoveEntry => provider.write_table(&fstab::without(&provider.table()?, &p.name), host),
            MountChange::Mount => provider.mount(p, host),
            MountChange::Remount(_) => provider.remount(p, host),
            MountChange::Unmount(count) => (0..*count).try_for_each(|_| provider.unmount(&p.name, host)),
        }
    }

    fn on_refresh(p: &Properties, state: &MountState) -> Vec<MountChange> {
        let due = Self::diff(p, state);
        let mounts =
            |changes: &[MountChange]| changes.iter().any(|change| matches!(change, MountChange::Mount | MountChange::Remount(_)));
        match due {
            // A new mount needs no refresh; a wrong mount gets its own steps.
            Ok(changes) if p.ensure == MountEnsure::Mounted && state.is_desired && !mounts(&changes) => {
                std::iter::once(MountChange::Remount(vec![])).chain(changes).collect()
            }
            _ => vec![],
        }
    }
}

fn check_field(property: &'static str, field: &str) -> Result<(), Invalid> {
    if field.is_empty() {
        return Err(Invalid::new(property, format!("{property} cannot be empty")));
    }
    if field.contains(['\0', '\n', '\r']) {
        return Err(Invalid::new(property, format!("{property} must be one line of text")));
    }
    // The field is an argument of programs.
    if field.starts_with('-') {
        return Err(Invalid::new(property, format!("{property} can't begin with a dash: \"{field}\"")));
    }
    Ok(())
}

/// Returns the step for fstab.
fn fstab_change(p: &Properties, state: &MountState) -> Result<Option<MountChange>, ResourceError> {
    let wanted = p.entry();
    match state.entries.as_slice() {
        [] => Ok(Some(MountChange::AddEntry)),
        [entry] if *entry == wanted => Ok(None),
        [entry] => Ok(Some(MountChange::ChangeEntry(differences(entry, &wanted)))),
        several => {
            let message = format!("{} lines of fstab are for {}: keep one of them", several.len(), p.name);
            Err(ResourceError::State(message))
        }
    }
}

fn differences(entry: &FstabEntry, wanted: &FstabEntry) -> Vec<String> {
    let text = |name: &str, is: &str, wanted: &str| (is != wanted).then(|| format!("{name} {is} → {wanted}"));
    [
        text("device", &entry.device, &wanted.device),
        text("fstype", &entry.fstype, &wanted.fstype),
        text("options", &entry.options, &wanted.options),
        text("dump", &entry.dump.to_string(), &wanted.dump.to_string()),
        text("pass", &entry.pass.to_string(), &wanted.pass.to_string()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the reasons for a remount; none when it is not needed.
fn remount(p: &Properties, state: &MountState) -> Vec<String> {
    let Some(top) = state.mounts.last() else { return vec![] };
    let changed = state.entries.iter().any(|entry| entry.options != p.options);
    let mut why: Vec<String> =
        active_options::inactive_options(top, &p.options).into_iter().map(|option| format!("{option} is not active")).collect();
    if changed && why.is_empty() {
        why.push("its options changed".to_owned());
    }
    why
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
