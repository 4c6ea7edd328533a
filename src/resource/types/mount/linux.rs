//! Mounts on Linux: `/etc/fstab`, `/proc/self/mountinfo`, and the commands of util-linux, which run the helpers of file systems.

use std::path::Path;
use std::time::Duration;

use crate::host::fs::{self, FsError};
use crate::host::mountinfo::{self, Mounted};
use crate::host::{Host, PathInfo, PathResolver, ProcessCommand, WriteSpec, systemd};
use crate::model::MountRequest;
use crate::resource::ResourceError;

use super::properties::{Properties, is_bind};
use super::provider::MountProvider;

const FSTAB: &str = MountRequest::TABLE;
/// The largest file that is read, in bytes.
const LIMIT: u64 = 16 << 20;
/// Maximum duration of a command: mount tries an unresponsive server for two minutes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum length of a failed command's output, in characters.
const OUTPUT_EXCERPT: usize = 2000;

/// The mounts of this host.
pub(super) struct Linux;

impl MountProvider for Linux {
    fn table(&self) -> Result<Vec<u8>, ResourceError> {
        match PathResolver::system().read(Path::new(FSTAB), LIMIT) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            read => Ok(read?),
        }
    }

    fn write_table(&self, table: &[u8], host: &Host) -> Result<(), ResourceError> {
        let path = Path::new(FSTAB);
        let place = PathResolver::system().existing_place(path)?;
        let spec = match place.inspect(false)? {
            PathInfo::Link => return Err(ResourceError::State(format!("{FSTAB} is a symlink; refusing to replace it"))),
            PathInfo::Object { info: look, .. } => WriteSpec { uid: Some(look.uid), gid: Some(look.gid), mode: look.mode },
            _ => WriteSpec { uid: None, gid: None, mode: 0o644 },
        };
        place.temp_file(&mut &*table, spec)?.persist()?;
        // systemd generates units from the lines of fstab.
        if systemd::is_booted() {
            run("systemctl", &["daemon-reload"], host)?;
        }
        Ok(())
    }

    fn mounts(&self) -> Result<Vec<Mounted>, ResourceError> {
        Ok(mountinfo::mounts()?)
    }

    fn is_same(&self, device: &str, options: &str, mounted: &Mounted) -> Result<bool, ResourceError> {
        if is_bind(options) {
            return Ok(fs::is_same(Path::new(device), Path::new(&mounted.point))? == Some(true));
        }
        let source = Path::new(&mounted.source);
        if let Some(by_tag) = device_of_tag(device) {
            // A device that can't be resolved may be the same.
            return Ok(fs::is_same(Path::new(&by_tag), source)? != Some(false));
        }
        if !device.starts_with('/') {
            return Ok(device.trim_end_matches('/') == mounted.source.trim_end_matches('/'));
        }
        if fs::is_same(Path::new(device), source)? == Some(true) {
            return Ok(true);
        }
        let backing = backing_file(&mounted.source)?;
        let same = backing.as_deref().map(|file| fs::is_same(Path::new(device), Path::new(file))).transpose()?.flatten();
        Ok(same == Some(true) || device == mounted.source)
    }

    fn obstacle(&self, p: &Properties, host: &Host) -> Option<String> {
        let is_there = |path: &Path| fs::exists(path) || host.expects_path(path);
        let point = Path::new(&p.name);
        // The message is that of mount(8), which makes the directory itself with this option.
        let makes = p.options.split(',').any(|option| option.starts_with("X-mount.mkdir") || option.starts_with("x-mount.mkdir"));
        if !makes && !is_there(point) {
            return Some(format!("mount point does not exist: {}", p.name));
        }
        let is_path = p.device.starts_with('/') && (is_bind(&p.options) || is_of_device(&p.fstype));
        (is_path && !is_there(Path::new(&p.device))).then(|| format!("special device {} does not exist", p.device))
    }

    fn mount(&self, p: &Properties, host: &Host) -> Result<(), ResourceError> {
        match hold_mount_point(&p.name)? {
            None => run("mount", &["-t", &p.fstype, "-o", &p.options, "--", &p.device, &p.name], host),
            Some(held) => run("mount", &["-c", "-t", &p.fstype, "-o", &p.options, "--", &p.device, &held.path()], host),
        }
    }

    fn remount(&self, p: &Properties, host: &Host) -> Result<(), ResourceError> {
        let options = format!("remount,{}", p.options);
        match hold_mount_point(&p.name)? {
            None => run("mount", &["-o", &options, "--", &p.device, &p.name], host),
            Some(held) => run("mount", &["-c", "-o", &options, "--", &p.device, &held.path()], host),
        }
    }

    fn unmount(&self, point: &str, host: &Host) -> Result<(), ResourceError> {
        // An open descriptor would keep it from being unmounted. No link of others is followed, and a mounted directory can't be
        // moved.
        hold_mount_point(point)?;
        run("umount", &["--", point], host)
    }
}

/// An open directory, for a command that needs a path.
struct HeldDirectory(fs::File);

impl HeldDirectory {
    /// Returns a path to the open directory, independent of its name.
    fn path(&self) -> String {
        fs::descriptor_path(&self.0)
    }
}

/// Opens the mount point if users other than root could replace it.
fn hold_mount_point(point: &str) -> Result<Option<HeldDirectory>, FsError> {
    let (rules, path) = (PathResolver::system(), Path::new(point));
    if rules.is_stable(path)? {
        return Ok(None);
    }
    Ok(Some(HeldDirectory(rules.existing_place(path)?.open_directory()?.into())))
}

/// Returns true for a type of file system with a path as its device. Types that the kernel does not know give false.
fn is_of_device(fstype: &str) -> bool {
    let Ok(known) = fs::read_text(Path::new("/proc/filesystems"), LIMIT) else { return false };
    fstype == "auto" || known.lines().any(|line| line.trim_start() == fstype && !line.starts_with("nodev"))
}

/// Returns the device file that udev made for a tag, as `UUID=…`.
fn device_of_tag(device: &str) -> Option<String> {
    let (tag, value) = device.split_once('=')?;
    let directory = match tag {
        "UUID" => "by-uuid",
        "LABEL" => "by-label",
        "PARTUUID" => "by-partuuid",
        "PARTLABEL" => "by-partlabel",
        "ID" => "by-id",
        _ => return None,
    };
    Some(format!("/dev/disk/{directory}/{}", value.trim_matches('"')))
}

/// Returns the file behind a loop device.
fn backing_file(source: &str) -> Result<Option<String>, FsError> {
    let Some(name) = source.strip_prefix("/dev/").filter(|name| name.starts_with("loop") && !name.contains('/')) else {
        return Ok(None);
    };
    match fs::read_text(&Path::new("/sys/block").join(name).join("loop/backing_file"), LIMIT) {
        Ok(text) => Ok(Some(text.trim_end_matches('\n').to_owned())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn run(program: &str, args: &[&str], host: &Host) -> Result<(), ResourceError> {
    let mut command = ProcessCommand::new(program, args.iter().copied());
    command.timeout = Some(COMMAND_TIMEOUT);
    let output = host.run(&command)?;
    if output.code == 0 {
        return Ok(());
    }
    let said = host.output_excerpt(&output, OUTPUT_EXCERPT);
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let words = args.join(" ");
    Err(ResourceError::State(format!("\"{program} {words}\" failed with exit code {}{said}", output.code)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeRunner, host};

    #[test]
    fn commands_have_the_mount_point_as_one_word() {
        let runner = FakeRunner::exiting(&[0, 0, 0, 32]);
        let host = host(runner.clone());
        let wanted = |name: &str| -> Properties {
            serde_json::from_value(serde_json::json!({"name": name, "ensure": "mounted", "device": "a b", "options": "ro,x=1"}))
                .unwrap()
        };
        Linux.mount(&wanted("/my disk"), &host).unwrap();
        Linux.remount(&wanted("/my disk"), &host).unwrap();
        Linux.unmount("/my disk", &host).unwrap();
        let error = Linux.unmount("/x", &host).unwrap_err().to_string();
        assert_eq!(error, "\"umount -- /x\" failed with exit code 32");
        let words: Vec<String> = runner.ran().iter().map(|words| words.join("|")).collect();
        let wanted = ["mount|-t|auto|-o|ro,x=1|--|a b|/my disk", "mount|-o|remount,ro,x=1|--|a b|/my disk", "umount|--|/my disk"];
        assert_eq!(words[..3], wanted);
    }

    #[test]
    fn devices_are_compared_by_identity() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("disk"), "").unwrap();
        std::os::unix::fs::symlink(at("disk"), at("link")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        for (device, options, source, same) in [
            (at("disk"), "defaults", at("link"), true),
            (at("disk"), "defaults", at("directory"), false),
            (at("none"), "defaults", at("none"), true),
            ("server:/export/".into(), "", "server:/export".into(), true),
            ("server:/export".into(), "", "server:/other".into(), false),
            ("tmpfs".into(), "", "tmpfs".into(), true),
            // The device of the tag is unknown.
            ("UUID=no-such".into(), "", "/dev/null".into(), true),
            (at("directory"), "ro,bind", "/dev/null".into(), true),
            (at("disk"), "bind", "/dev/null".into(), false),
        ] {
            let mounted = Mounted { point: at("directory"), source: source.clone(), ..Mounted::default() };
            assert_eq!(Linux.is_same(&device, options, &mounted).unwrap(), same, "{device} {source}");
        }
    }
}
