//! `sysctl`: settings of the kernel, now and after the next boot.
//!
//! Each setting is persisted in a file of its own (`core/owned_file.rs`). sysctl.d(5) reads the file after those of the
//! distribution and `99-sysctl.conf`. The running kernel is changed through `/proc/sys`, written in place.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::host::{FsError, Host, PathResolver, fs};
use crate::model::effects::EffectKind;
use crate::model::{Effect, Effects, OnRemoval, SysctlKey, WatchTarget};

use crate::resource::core::ensure::Presence;
use crate::resource::core::owned_file;
use crate::resource::core::owned_file::OwnedFile;
use crate::resource::core::{text, watch_targets};
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

/// The directory of persisted settings; for administrators, and read at every boot.
const DIRECTORY: &str = "/etc/sysctl.d";
/// The directory of the kernel's settings.
const KERNEL: &str = "/proc/sys";
/// The largest value that is read, in bytes.
const LIMIT: u64 = 1 << 16;

/// Settings with values that are programs for the kernel to run, or that load programs.
const PROGRAM_KEYS: &[&str] =
    &["kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "kernel/poweroff_cmd", "fs/binfmt_misc/"];

/// Settings of the kernel.
pub struct SysctlType;

/// Properties of a sysctl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The key, as `net.ipv4.ip_forward` or `net/ipv4/ip_forward`. If a part contains a dot, as interfaces do, as
    /// `net/ipv4/conf/eth0.100/forwarding`.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// `absent` removes the persisted setting; the running kernel keeps its value until the next boot.
    #[serde(default)]
    pub ensure: Presence,
    /// The value. Between several numbers, all whitespace is equal. Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Keep the setting after the next boot, in a file in `/etc/sysctl.d`; `false` removes that file.
    #[serde(default = "default_true", skip_serializing_if = "Clone::clone")]
    pub persist: bool,
    /// Set the value in the running kernel; `false` leaves the kernel unchanged.
    #[serde(default = "default_true", skip_serializing_if = "Clone::clone")]
    pub runtime: bool,
}

fn default_true() -> bool {
    true
}

impl Properties {
    fn key(&self) -> Result<SysctlKey, Invalid> {
        self.name.parse().map_err(|why| Invalid::new("name", format!("{:?} is no key of a kernel setting: {why}", self.name)))
    }

    /// Returns the key of valid properties.
    fn known_key(&self) -> Result<SysctlKey, ResourceError> {
        self.key().map_err(|invalid| ResourceError::State(invalid.message))
    }

    fn file_text(&self) -> Result<String, ResourceError> {
        Ok(format!("# Managed by Ensign: changes are lost.\n{} = {}\n", self.known_key()?, normalize_whitespace(&self.value)))
    }
}

/// Normalises whitespace in a value to one space: the kernel writes tabs where people write spaces.
fn normalize_whitespace(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The values in the kernel and in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SysctlState {
    /// The value in the running kernel; none for a missing key, and for a value that only root may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The value in the file of the setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    persisted: Option<String>,
    #[serde(skip)]
    file: Option<OwnedFile>,
    /// The value in the running kernel, also where `value` does not show it.
    #[serde(skip)]
    actual: Option<String>,
}

impl State for SysctlState {
    fn ensure(&self) -> &str {
        Presence::from_exists(self.actual.is_some() || self.file.is_some()).as_str()
    }
}

/// A step towards the desired setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SysctlChange {
    /// Set the value in the running kernel.
    Set {
        /// The old value; none for a missing key, and for a value that only root may read.
        from: Option<String>,
        /// The new value.
        to: String,
    },
    /// Write the file.
    Persist {
        /// The difference.
        details: String,
    },
    /// Remove the file.
    Remove,
}

impl fmt::Display for SysctlChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Set { .. } => "set the value",
            Self::Persist { .. } => "persisted the value",
            Self::Remove => "removed the persisted value",
        })
    }
}

impl Change for SysctlChange {
    fn details(&self) -> Vec<String> {
        vec![match self {
            Self::Set { from: Some(from), to } => format!("value {from} → {to}"),
            Self::Set { from: None, to } => format!("value → {to}"),
            Self::Persist { details } => details.clone(),
            Self::Remove => self.to_string(),
        }]
    }
}

impl Resource for SysctlType {
    const TYPE: &'static str = "sysctl";
    const CHANGES_SYSTEM: bool = true;
    const ABOUT: &'static str = "Settings of the kernel, in the running one and after the next boot.";
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes the same file"),
        ("persist", "whether the same file is written"),
        ("runtime", "whether the same key is set"),
    ];
    const OUTPUTS: &'static [ResourceOutput] = &[ResourceOutput::text("value", "The value in the running kernel.")];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<()>] = &[ProviderEntry::only("linux")];

    type Properties = Properties;
    type State = SysctlState;
    type Change = SysctlChange;
    type Provider = ();

    fn validate(p: &Properties) -> Result<(), Invalid> {
        p.key()?;
        if p.value.contains(['\n', '\r', '\0']) {
            return Err(Invalid::new("value", "value must be one line"));
        }
        if p.ensure == Presence::Present {
            if normalize_whitespace(&p.value).is_empty() {
                return Err(Invalid::new("value", "value is required"));
            }
            if !p.persist && !p.runtime {
                return Err(Invalid::new("persist", "persist and runtime can't both be false"));
            }
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        let Ok(key) = p.key() else {
            // An invalid key may turn out as any key.
            effects.push(Effect::unknown(Some(EffectKind::Kernel), &p.name));
            effects.push(Effect::unknown(Some(EffectKind::Write), &p.name));
            effects.push(Effect::run(&p.value));
            return effects;
        };
        effects.push(Effect::Kernel(key.to_string()));
        effects.push(Effect::implied(format!("{KERNEL}/{}", key.path())));
        effects.push(Effect::implied(persisted_path(&key)));
        if !p.value.is_empty() && PROGRAM_KEYS.iter().any(|of| key.path().starts_with(of)) {
            effects.push(Effect::run(&p.value));
        }
        effects
    }

    fn watches(p: &Properties, host: &Host) -> Vec<WatchTarget> {
        let persisted = p.key().ok().map(|key| watch_targets::path(file(&key, host)));
        persisted.into_iter().chain([WatchTarget::Poll(watch_targets::KERNEL_INTERVAL)]).collect()
    }

    fn query(name: &str) -> Option<Properties> {
        let (name, value) = (name.to_owned(), "0".to_owned());
        Some(Properties { name, ensure: Presence::Present, value, persist: true, runtime: true })
    }

    fn observe(p: &Properties, (): &(), host: &Host) -> Result<SysctlState, ResourceError> {
        let key = p.known_key()?;
        let file = owned_file::observe(&file(&key, host))?;
        let needed = p.ensure == Presence::Present && p.runtime;
        let path = kernel_path(&key, host);
        let actual = match read(&path) {
            Err(error) if needed => return Err(error),
            read => read.unwrap_or(None),
        };
        // For absent, the value of the running kernel does not matter.
        let actual = actual.filter(|_| p.ensure == Presence::Present);
        let is_public = fs::stat(&path, false).is_ok_and(|look| look.is_some_and(|look| fs::is_public(look.mode)));
        Ok(SysctlState {
            value: actual.clone().filter(|_| is_public),
            persisted: file.as_ref().filter(|file| file.is_public).and_then(|file| parse_persisted(&file.text)),
            file,
            actual,
        })
    }

    fn outputs(_: &Properties, state: &SysctlState) -> Vec<(&'static str, Value)> {
        vec![("value", json!(state.value))]
    }

    fn restoring(p: &Properties, state: &SysctlState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        let running = state.value.clone().filter(|_| p.runtime);
        let Some(value) = running.or_else(|| state.persisted.clone()) else { return Ok(Self::removing(p, state)) };
        let (name, ensure, persist) = (p.name.clone(), Presence::Present, state.persisted.is_some());
        Ok(Some(Properties { name, ensure, value, persist, runtime: p.runtime && p.ensure == Presence::Present }))
    }

    fn removing(p: &Properties, _: &SysctlState) -> Option<Properties> {
        Some(Properties { ensure: Presence::Absent, value: String::new(), ..p.clone() })
    }

    fn comparable(p: &Properties, state: &SysctlState, _: &Host, removes: bool) -> Result<Value, ResourceError> {
        let running = state.value.as_ref().filter(|_| p.runtime && !removes);
        Ok(json!({"running": running, "persisted": state.file.as_ref().map(|file| &file.text)}))
    }

    fn diff(p: &Properties, state: &SysctlState) -> Result<Vec<SysctlChange>, ResourceError> {
        let present = p.ensure == Presence::Present;
        let to = normalize_whitespace(&p.value);
        let mut changes = Vec::new();
        // The kernel first: a value that it refuses must not be persisted.
        if present && p.runtime && state.actual.as_ref() != Some(&to) {
            changes.push(SysctlChange::Set { from: state.value.clone(), to });
        }
        match &state.file {
            Some(_) if !present || !p.persist => changes.push(SysctlChange::Remove),
            None if present && p.persist => changes.push(SysctlChange::Persist { details: "persisted the value".to_owned() }),
            Some(file) if present => {
                let details = match &state.persisted {
                    Some(from) if *from != normalize_whitespace(&p.value) => {
                        format!("persisted value {from} → {}", normalize_whitespace(&p.value))
                    }
                    _ if file.text != p.file_text()? => "the form of the file".to_owned(),
                    _ if !file.has_right_attributes => "owner or mode of the file".to_owned(),
                    _ => return Ok(changes),
                };
                changes.push(SysctlChange::Persist { details });
            }
            _ => {}
        }
        Ok(changes)
    }

    fn apply(change: &SysctlChange, p: &Properties, _: &mut SysctlState, (): &(), host: &Host) -> Result<(), ResourceError> {
        let key = p.known_key()?;
        match change {
            SysctlChange::Set { to, .. } => set(&kernel_path(&key, host), to),
            SysctlChange::Persist { .. } => {
                PathResolver::system().create_directory(&host.system_path(DIRECTORY), 0o755)?;
                owned_file::write(&file(&key, host), &p.file_text()?)
            }
            SysctlChange::Remove => owned_file::remove(&file(&key, host)),
        }
    }
}

fn kernel_path(key: &SysctlKey, host: &Host) -> PathBuf {
    host.system_path(KERNEL).join(key.path())
}

/// Returns the file of a setting. Its name sorts after others, as the last file counts.
fn file(key: &SysctlKey, host: &Host) -> PathBuf {
    host.system_path(persisted_path(key))
}

fn persisted_path(key: &SysctlKey) -> String {
    format!("{DIRECTORY}/99-zz-ensign-{}.conf", key.file_name())
}

/// Returns the value in the file of a setting.
fn parse_persisted(text: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    lines.filter_map(|line| line.split_once('=')).next_back().map(|(_, value)| normalize_whitespace(value))
}

/// Returns the value in the running kernel; none for a missing key.
fn read(path: &Path) -> Result<Option<String>, ResourceError> {
    match PathResolver::system().read_text(path, LIMIT) {
        Ok(value) => Ok(Some(normalize_whitespace(&value))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(explain(error)),
    }
}

fn set(path: &Path, value: &str) -> Result<(), ResourceError> {
    let place = PathResolver::system().existing_place(path).map_err(explain)?;
    place.write_into(&format!("{value}\n")).map_err(explain)
}

/// Returns the error of the kernel, with a remedy.
fn explain(error: FsError) -> ResourceError {
    let (path, kind) = match &error {
        FsError::Io { path, source, .. } => (path, source.kind()),
        FsError::NotAFile(path) => (path, ErrorKind::IsADirectory),
        FsError::NoParent(path) => (path, ErrorKind::NotFound),
        _ => return error.into(),
    };
    let shown = path.display();
    let message = match kind {
        ErrorKind::NotFound => {
            format!("the kernel has no {shown}: check the key, or load its module; 'runtime: false' only persists")
        }
        ErrorKind::ReadOnlyFilesystem => format!(
            "{shown} can't be written: /proc/sys is read-only, as in most containers; set it on their host, or only persist it \
             with 'runtime: false'"
        ),
        ErrorKind::InvalidInput => format!("the kernel refuses this value for {shown} (invalid argument)"),
        ErrorKind::IsADirectory => format!("{shown} is a directory of settings, not a setting"),
        ErrorKind::PermissionDenied => {
            format!("{shown} may not be accessed: it needs root, or no user can read or write it")
        }
        _ => return error.into(),
    };
    ResourceError::State(message)
}

#[cfg(test)]
mod tests {

    use super::*;

    fn properties(extra: &Value) -> Properties {
        let mut all = json!({"name": "net.ipv4.tcp_rmem", "value": "1 2  3"});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn state(value: Option<&str>, text: Option<&str>, sound: bool) -> SysctlState {
        SysctlState {
            value: value.map(str::to_owned),
            persisted: text.and_then(parse_persisted),
            file: text.map(|text| OwnedFile { text: text.to_owned(), has_right_attributes: sound, is_public: true }),
            actual: value.map(str::to_owned),
        }
    }

    /// The decision table: properties, host, steps.
    #[test]
    fn decisions() {
        let right = "# Managed by Ensign: changes are lost.\nnet.ipv4.tcp_rmem = 1 2 3\n";
        let other = right.replace('3', "4");
        let (right, other) = (Some(right), Some(other.as_str()));
        let kernel = Some("1 2 3");
        for (extra, state, wanted) in [
            (json!({}), state(kernel, right, true), vec![]),
            (json!({}), state(Some("0 2 3"), None, true), vec!["value 0 2 3 → 1 2 3", "persisted the value"]),
            (json!({}), state(None, right, true), vec!["value → 1 2 3"]),
            (json!({}), state(kernel, other, true), vec!["persisted value 1 2 4 → 1 2 3"]),
            (json!({}), state(kernel, right, false), vec!["owner or mode of the file"]),
            (json!({}), state(kernel, Some("net.ipv4.tcp_rmem=1 2 3"), true), vec!["the form of the file"]),
            (json!({}), state(kernel, Some(""), false), vec!["the form of the file"]),
            (json!({"runtime": false}), state(Some("0"), right, true), vec![]),
            (json!({"runtime": false}), state(None, None, true), vec!["persisted the value"]),
            (json!({"persist": false}), state(kernel, None, true), vec![]),
            (json!({"persist": false}), state(Some("0"), right, true), vec!["value 0 → 1 2 3", "removed the persisted value"]),
            (json!({"ensure": "absent"}), state(None, right, false), vec!["removed the persisted value"]),
            (json!({"ensure": "absent", "value": ""}), state(None, None, true), vec![]),
        ] {
            let p = properties(&extra);
            SysctlType::validate(&p).unwrap();
            let changes = SysctlType::diff(&p, &state).unwrap();
            assert_eq!(changes.iter().flat_map(Change::details).collect::<Vec<_>>(), wanted, "{extra} {state:?}");
        }
    }

    #[test]
    fn values_that_only_root_may_read_are_not_shown() {
        let secret = SysctlState { value: None, ..state(Some("hunter2"), None, true) };
        let details = |state: &SysctlState| {
            let changes = SysctlType::diff(&properties(&json!({})), state).unwrap();
            changes.iter().flat_map(Change::details).collect::<Vec<_>>()
        };
        assert_eq!(details(&secret), ["value → 1 2 3", "persisted the value"]);
        assert!(!serde_json::to_string(&secret).unwrap().contains("hunter2"));
        assert_eq!(secret.ensure(), "present");
        let root = tempfile::TempDir::new().unwrap();
        let host = Host::system(None).with_root(root.path());
        let kernel = root.path().join("proc/sys/net/ipv4/tcp_rmem");
        let persisted = root.path().join("etc/sysctl.d/99-zz-ensign-net.ipv4.tcp_rmem.conf");
        for path in [&kernel, &persisted] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "net.ipv4.tcp_rmem = hunter2\n").unwrap();
        }
        for (mode, shown) in [(0o600, false), (0o644, true)] {
            for path in [&kernel, &persisted] {
                std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            }
            let found = SysctlType::observe(&properties(&json!({})), &(), &host).unwrap();
            let text = format!("{} {:?}", serde_json::to_string(&found).unwrap(), details(&found));
            assert_eq!(text.contains("hunter2"), shown, "{text}");
        }
    }

    #[test]
    fn invalid_properties_are_refused() {
        for extra in [
            json!({"name": "net/../../etc/passwd"}),
            json!({"value": ""}),
            json!({"value": " \t"}),
            json!({"value": "1\nkernel.x = 2"}),
            json!({"persist": false, "runtime": false}),
        ] {
            assert!(SysctlType::validate(&properties(&extra)).is_err(), "{extra}");
        }
        assert_eq!(properties(&json!({"value": 1})).value, "1");
    }

    #[test]
    fn kernel_errors_have_a_remedy() {
        let error = |kind: ErrorKind| explain(FsError::io("write", Path::new("/proc/sys/a/b"), kind.into())).to_string();
        assert!(error(ErrorKind::ReadOnlyFilesystem).contains("'runtime: false'"));
        assert!(error(ErrorKind::NotFound).contains("load its module"));
        assert!(error(ErrorKind::InvalidInput).contains("refuses this value"));
        assert!(error(ErrorKind::PermissionDenied).contains("needs root"));
        assert_eq!(read(Path::new("/proc/sys/net/nothing/here")).unwrap(), None);
        assert!(read(Path::new("/proc/sys/net")).unwrap_err().to_string().contains("directory of settings"));
        assert!(read(Path::new("/proc/sys/kernel/ostype")).unwrap().is_some());
    }
}

#[cfg(test)]
mod fixture {
    use crate::resource::properties_test::prelude::*;

    use super::SysctlType;

    impl TypeFixture for SysctlType {
        const ROOT: bool = true;

        fn host(root: &Path) -> Host {
            Host::system(None).with_root(root)
        }

        fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
            let names = prop::sample::select(vec!["net.a", "net/a", "net.b", "net.none", "net.sub"]);
            let values = prop::sample::select(vec!["1", "1  2\t3", "x"]);
            (names, any::<bool>(), values, any::<bool>(), any::<bool>())
                .prop_map(|(name, present, value, persist, runtime)| {
                    let ensure = if present { "present" } else { "absent" };
                    let properties =
                        json!({"name": name, "ensure": ensure, "value": value, "persist": persist, "runtime": runtime});
                    serde_json::from_value(properties).unwrap()
                })
                .boxed()
        }

        fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
            let always = vec![
                Preexisting::Directory("proc/sys/net", 0o755),
                Preexisting::File("proc/sys/net/a", "1\t2\t3\n", 0o644),
                Preexisting::File("proc/sys/net/b", "1234\n", 0o644),
            ];
            prop::sample::subsequence(
                vec![
                    Preexisting::File("etc/sysctl.d/99-zz-ensign-net.a.conf", "net.a = 1\n", 0o644),
                    Preexisting::Link("etc/sysctl.d/99-zz-ensign-net.b.conf", "/dev/null"),
                    Preexisting::File(
                        "etc/sysctl.d/99-zz-ensign-net.none.conf",
                        "# Managed by Ensign: changes are lost.\nnet.none = x\n",
                        0o600,
                    ),
                ],
                0..=3,
            )
            .prop_map(move |made| [always.clone(), vec![Preexisting::Directory("etc/sysctl.d", 0o755)], made].concat())
            .boxed()
        }

        fn samples() -> (Value, Value) {
            (
                json!({"name": "kernel.core_pattern", "ensure": "present", "value": "|/a", "persist": true, "runtime": true}),
                json!({"name": "kernel.modprobe", "ensure": "absent", "value": "/b", "persist": false, "runtime": false}),
            )
        }
    }

    #[test]
    fn keeps_the_laws() {
        check_type::<SysctlType>();
    }
}
