//! Mounted file systems, as the kernel reports them in `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).

use std::path::Path;

use super::fs::{self, FsError};

const PATH: &str = "/proc/self/mountinfo";
/// The largest table that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounted {
    /// The directory of the file system that is mounted: `/` for the whole.
    pub root: String,
    /// The mount point.
    pub point: String,
    /// The type of file system.
    pub fstype: String,
    /// The source, in the format of the file system.
    pub source: String,
    /// Options of this mount, separated by commas.
    pub options: String,
    /// Options of the file system, shared by all its mounts.
    pub super_options: String,
}

/// True where the kernel reports mounts.
pub fn is_supported() -> bool {
    fs::exists(Path::new(PATH))
}

/// Returns the mounts of this process. Of several at one mount point, the last is visible.
///
/// # Errors
/// When the kernel does not report them.
pub fn mounts() -> Result<Vec<Mounted>, FsError> {
    Ok(parse(&String::from_utf8_lossy(&fs::read(Path::new(PATH), MAX_BYTES)?)))
}

/// Parses the table. Skips lines of another form.
pub fn parse(mountinfo: &str) -> Vec<Mounted> {
    mountinfo.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mounted> {
    // Optional fields come before the dash.
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point, options) = (mount.next()?, mount.next()?, mount.next()?);
    let mut system = system.splitn(3, ' ');
    let (fstype, source) = (system.next()?, system.next()?);
    Some(Mounted {
        root: decode(root),
        point: decode(point),
        fstype: decode(fstype),
        source: decode(source),
        options: options.to_owned(),
        super_options: system.next().unwrap_or_default().to_owned(),
    })
}

/// Decodes a field: a backslash with three octal digits is a byte. `/etc/fstab` has the same encoding.
pub fn decode(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| after.get(..3)).flatten().and_then(octal);
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    u8::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a:/b
36 22 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue
40 22 0:30 / /my\\040disk ro,nosuid,nodev,noexec - tmpfs none rw,size=4k
41 40 0:31 /x\\134y /my\\040disk rw - ext4 /dev/mapper/a\\040b ro
not a line
";

    #[test]
    fn lines_are_read() {
        let mounts = parse(MOUNTINFO);
        let points: Vec<_> = mounts.iter().map(|mounted| mounted.point.as_str()).collect();
        assert_eq!(points, ["/", "/mnt2", "/my disk", "/my disk"]);
        let expected = Mounted {
            root: "/x\\y".into(),
            point: "/my disk".into(),
            fstype: "ext4".into(),
            source: "/dev/mapper/a b".into(),
            options: "rw".into(),
            super_options: "ro".into(),
        };
        assert_eq!(mounts[3], expected);
        assert_eq!((mounts[1].options.as_str(), mounts[1].super_options.as_str()), ("rw,noatime", "rw,errors=continue"));
    }

    #[test]
    fn this_host_has_a_root() {
        assert!(super::mounts().unwrap().iter().any(|mounted| mounted.point == "/"));
    }

    #[test]
    fn escapes_are_decoded_once() {
        for (written, meant) in [
            ("/a", "/a"),
            ("a\\040b", "a b"),
            ("\\134040", "\\040"),
            ("/a\\011\\012\\043", "/a\t\n#"),
            ("\\04", "\\04"),
            ("\\400", "\\400"),
            ("\\303\\274", "ü"),
        ] {
            assert_eq!(decode(written), meant);
        }
    }
}
