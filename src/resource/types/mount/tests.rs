//! The decision table of `mount`, invalid properties, and whole runs over a host in memory.

use std::sync::Mutex;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn properties(extra: &Value) -> Result<Properties, String> {
    let mut all = json!({"name": "/m", "ensure": "mounted", "device": "/dev/a", "fstype": "ext4", "options": "noexec"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let p: Properties = serde_json::from_value(all).map_err(|error| error.to_string())?;
    MountType::validate(&p).map(|()| p).map_err(|invalid| invalid.message)
}

/// A host in memory: fstab, and mounts as (point, fstype, source, options).
#[derive(Default)]
struct Memory {
    table: Mutex<Vec<u8>>,
    mounts: Mutex<Vec<[String; 4]>>,
}

impl Memory {
    fn of(table: &str, mounts: &[[&str; 4]]) -> Self {
        let mounts = mounts.iter().map(|mount| mount.map(str::to_owned)).collect();
        Self { table: Mutex::new(table.into()), mounts: Mutex::new(mounts) }
    }
}

impl MountProvider for Memory {
    fn table(&self) -> Result<Vec<u8>, ResourceError> {
        Ok(self.table.lock().unwrap().clone())
    }

    fn write_table(&self, table: &[u8], _: &Host) -> Result<(), ResourceError> {
        *self.table.lock().unwrap() = table.to_vec();
        Ok(())
    }

    fn mounts(&self) -> Result<Vec<Mounted>, ResourceError> {
        let mounts = self.mounts.lock().unwrap();
        let line = |[point, fstype, source, options]: &[String; 4]| {
            format!("1 1 0:1 / {point} {options} shared:1 - {fstype} {source} rw\n")
        };
        Ok(mountinfo::parse(&mounts.iter().map(line).collect::<String>()))
    }

    fn is_same(&self, device: &str, _: &str, mounted: &Mounted) -> Result<bool, ResourceError> {
        Ok(device == mounted.source)
    }

    fn mount(&self, p: &Properties, _: &Host) -> Result<(), ResourceError> {
        let entry = p.entry();
        self.mounts.lock().unwrap().push([entry.point, entry.fstype, entry.device, entry.options]);
        Ok(())
    }

    fn remount(&self, p: &Properties, _: &Host) -> Result<(), ResourceError> {
        let mut mounts = self.mounts.lock().unwrap();
        let top = mounts.iter_mut().rev().find(|mount| mount[0] == p.name).unwrap();
        top[3].clone_from(&p.options);
        Ok(())
    }

    fn unmount(&self, point: &str, _: &Host) -> Result<(), ResourceError> {
        let mut mounts = self.mounts.lock().unwrap();
        let top = mounts.iter().rposition(|mount| mount[0] == point);
        mounts.remove(top.ok_or_else(|| ResourceError::State("not mounted".into()))?);
        Ok(())
    }
}

fn changes(p: &Properties, memory: &Memory) -> Result<String, String> {
    let state = MountType::observe(p, memory, &Host::system(None)).unwrap();
    let changes = MountType::diff(p, &state).map_err(|error| error.to_string())?;
    Ok(changes.iter().flat_map(Change::details).collect::<Vec<_>>().join("; "))
}

const LINE: &str = "# x\n/dev/a /m ext4 noexec 0 0\n";
const RIGHT: [&str; 4] = ["/m", "ext4", "/dev/a", "rw,noexec"];

/// The decision table: properties, host, description of the dry run.
#[test]
fn decisions() {
    let other = ["/m", "xfs", "/dev/b", "rw"];
    let lax = ["/m", "ext4", "/dev/a", "rw"];
    for (extra, table, mounts, expected) in [
        (json!({}), "", vec![], Ok("mounted the file system; added the entry to fstab")),
        (json!({}), LINE, vec![], Ok("mounted the file system")),
        (json!({}), LINE, vec![RIGHT], Ok("")),
        (json!({}), "", vec![RIGHT], Ok("added the entry to fstab")),
        (json!({}), LINE, vec![lax], Ok("remounted the file system: noexec is not active")),
        (json!({}), LINE, vec![other], Ok("unmounted the file system; mounted the file system")),
        (json!({}), LINE, vec![RIGHT, other], Ok("unmounted the file system; mounted the file system")),
        (json!({}), LINE, vec![["/n", "ext4", "/dev/a", "rw"]], Ok("mounted the file system")),
        (
            json!({"options": "noexec,nofail", "pass": 2}),
            LINE,
            vec![RIGHT],
            Ok("remounted the file system: its options changed; options noexec → noexec,nofail; pass 0 → 2"),
        ),
        (json!({"pass": 2}), LINE, vec![RIGHT], Ok("pass 0 → 2")),
        (json!({"fstype": "auto"}), "/dev/a /m auto noexec", vec![RIGHT], Ok("")),
        (json!({}), "/dev/a /m ext4 noexec\n/dev/b /m ext4\n", vec![], Err("2 lines of fstab are for /m")),
        (json!({"ensure": "present"}), "", vec![], Ok("added the entry to fstab")),
        (json!({"ensure": "present"}), LINE, vec![], Ok("")),
        (json!({"ensure": "present"}), LINE, vec![other], Ok("")),
        (json!({"ensure": "unmounted"}), LINE, vec![], Ok("")),
        (json!({"ensure": "unmounted"}), "", vec![other], Ok("unmounted the file system; added the entry to fstab")),
        (json!({"ensure": "absent"}), "", vec![], Ok("")),
        (
            json!({"ensure": "absent", "device": ""}),
            LINE,
            vec![RIGHT],
            Ok("unmounted the file system; removed the entry from fstab"),
        ),
        (json!({"ensure": "absent"}), "/dev/a /m ext4\n/dev/b /m ext4\n", vec![], Ok("removed the entry from fstab")),
        (
            json!({"options": "noexec,x-systemd.automount"}),
            "/dev/a /m ext4 noexec,x-systemd.automount\n",
            vec![["/m", "autofs", "systemd-1", "rw"]],
            Ok(""),
        ),
        (json!({}), LINE, vec![["/m", "autofs", "systemd-1", "rw"]], Ok("mounted the file system")),
    ] {
        let got = changes(&properties(&extra).unwrap(), &Memory::of(table, &mounts));
        match expected {
            Ok(text) => assert_eq!(got.as_deref(), Ok(text), "{extra} {table} {mounts:?}"),
            Err(text) => assert!(got.as_ref().is_err_and(|error| error.contains(text)), "{extra} {table}: {got:?}"),
        }
    }
}

#[test]
fn a_refresh_remounts_a_mounted_file_system() {
    let refreshed = |extra: Value, table: &str, mounts: &[[&str; 4]]| {
        let p = properties(&extra).unwrap();
        let state = MountType::observe(&p, &Memory::of(table, mounts), &Host::system(None)).unwrap();
        MountType::on_refresh(&p, &state).iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(refreshed(json!({}), LINE, &[RIGHT]), "remounted the file system");
    assert_eq!(refreshed(json!({"pass": 2}), LINE, &[RIGHT]), "remounted the file system, changed the entry in fstab");
    // Then the usual steps are applied.
    assert_eq!(refreshed(json!({}), LINE, &[]), "");
    assert_eq!(refreshed(json!({"ensure": "present"}), LINE, &[RIGHT]), "");
    assert_eq!(refreshed(json!({"ensure": "unmounted"}), LINE, &[]), "");
}

#[test]
fn types_that_call_themselves_otherwise() {
    for (wanted, actual, same) in [
        ("auto", "xfs", true),
        ("none", "ext4", true),
        ("nfs", "nfs4", true),
        ("ntfs-3g", "fuseblk", true),
        ("fuse.sshfs", "fuse.sshfs", true),
        ("sshfs", "fuse.sshfs", true),
        ("ext4", "xfs", false),
        ("sshfs", "fuse.other", false),
    ] {
        assert_eq!(is_type(wanted, actual), same, "{wanted} {actual}");
    }
}

#[test]
fn validation() {
    for good in [
        json!({}),
        json!({"name": "/my disk", "device": "LABEL=my disk"}),
        json!({"ensure": "absent", "device": null}),
        json!({"name": "/", "ensure": "present"}),
    ] {
        assert_eq!(properties(&good).err(), None, "{good}");
    }
    for (bad, message) in [
        (json!({"name": "none", "fstype": "swap"}), "mount point must be absolute"),
        (json!({"fstype": "swap"}), "swap has no mount point"),
        (json!({"name": "/m/"}), "must be canonical"),
        (json!({"name": "-o"}), "must be absolute"),
        (json!({"device": ""}), "device is required"),
        (json!({"device": "a\nb"}), "one line"),
        (json!({"device": "-x"}), "can't begin with a dash"),
        (json!({"fstype": "-x"}), "can't begin with a dash"),
        (json!({"options": ""}), "options cannot be empty"),
        (json!({"name": "/", "ensure": "unmounted"}), "the root can't be unmounted"),
        (json!({"ensure": "there"}), "invalid ensure value"),
        (json!({"dump": -1}), "invalid value"),
    ] {
        let got = properties(&bad).unwrap_err();
        assert!(got.contains(message), "{bad}: {got}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// After a run no step is pending, and other lines and mounts are unchanged.
    #[test]
    fn runs_converge(
        ensure in prop::sample::select(vec!["mounted", "present", "unmounted", "absent"]),
        options in prop::sample::select(vec!["defaults", "ro", "noexec,nofail", "rw,exec"]),
        lines in prop::sample::subsequence(vec!["# /m\n", "/dev/a /m ext4 ro 0 2\n", "/dev/b /n/ xfs\n", "/dev/a /m ext4\n"], 0..=4),
        mounts in prop::sample::subsequence(vec![["/m", "xfs", "/dev/b", "rw"], ["/n", "xfs", "/dev/b", "rw"], ["/m", "ext4", "/dev/a", "rw"]], 0..=3),
    ) {
        let memory = Memory::of(&lines.concat(), &mounts);
        let p = properties(&json!({"ensure": ensure, "options": options})).unwrap();
        let host = Host::system(None);
        let mut state = MountType::observe(&p, &memory, &host).unwrap();
        if let Ok(steps) = MountType::diff(&p, &state) {
            steps.iter().try_for_each(|step| MountType::apply(step, &p, &mut state, &memory, &host)).unwrap();
            prop_assert_eq!(changes(&p, &memory).unwrap(), "");
            let table = String::from_utf8(memory.table().unwrap()).unwrap();
            let others = |table: &str| table.split_inclusive('\n').filter(|line| !line.contains(" /m ")).collect::<String>();
            prop_assert_eq!(others(&table), others(&lines.concat()));
            let near = memory.mounts.lock().unwrap().iter().filter(|mount| mount[0] == "/n").count();
            prop_assert_eq!(near, mounts.iter().filter(|mount| mount[0] == "/n").count());
        }
    }
}
