//! Properties of the machine from system calls: its names, interfaces, file systems.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use nix::sys::statvfs::statvfs;
use nix::sys::utsname::uname;

use super::fs::FsError;

/// The names of the machine and its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNames {
    /// The name of the host.
    pub hostname: String,
    /// The release of the kernel.
    pub release: String,
    /// The architecture, as `x86_64`.
    pub machine: String,
}

/// The names of the machine and its kernel.
///
/// # Errors
/// When the system call fails.
pub fn names() -> io::Result<KernelNames> {
    let names = uname()?;
    let text = |name: &OsStr| name.to_string_lossy().into_owned();
    Ok(KernelNames { hostname: text(names.nodename()), release: text(names.release()), machine: text(names.machine()) })
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The flags: `up`, `broadcast`, `loopback`, `pointtopoint`, `multicast`, `running`.
    pub flags: Vec<&'static str>,
    /// The hardware address; empty when the interface has none.
    pub hardware: String,
    /// The addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u32)>,
}

const FLAGS: &[(InterfaceFlags, &str)] = &[
    (InterfaceFlags::IFF_UP, "up"),
    (InterfaceFlags::IFF_BROADCAST, "broadcast"),
    (InterfaceFlags::IFF_LOOPBACK, "loopback"),
    (InterfaceFlags::IFF_POINTOPOINT, "pointtopoint"),
    (InterfaceFlags::IFF_MULTICAST, "multicast"),
    (InterfaceFlags::IFF_RUNNING, "running"),
];

/// The network interfaces, in the order of the kernel.
///
/// # Errors
/// When the system call fails.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut interfaces: Vec<Interface> = Vec::new();
    for entry in getifaddrs()? {
        let name = without_label(&entry.interface_name);
        let known = interfaces.iter().position(|interface| interface.name == name);
        let index = known.unwrap_or_else(|| {
            let flags = FLAGS.iter().filter(|(flag, _)| entry.flags.contains(*flag)).map(|(_, name)| *name).collect();
            interfaces.push(Interface { name: name.to_owned(), flags, hardware: String::new(), addresses: Vec::new() });
            interfaces.len() - 1
        });
        let (Some(interface), Some(address)) = (interfaces.get_mut(index), entry.address) else { continue };
        if let Some(ip) = ip(&address) {
            let bits = |ip| match ip {
                IpAddr::V4(mask) => mask.to_bits().count_ones(),
                IpAddr::V6(mask) => mask.to_bits().count_ones(),
            };
            let mask = entry.netmask.as_ref().and_then(self::ip);
            interface.addresses.push((ip, mask.map_or(0, bits)));
        } else if let Some(link) = address.as_link_addr()
            && let Some(bytes) = link.addr()
            // For tunnels this is the address of the remote end, which is shorter.
            && link.halen() == bytes.len()
            && bytes != [0; 6]
        {
            let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            interface.hardware = bytes.join(":");
        }
    }
    Ok(interfaces)
}

/// Returns the name of the interface. A label follows a colon, as in `eth0:1`; no name of an interface has a colon.
fn without_label(name: &str) -> &str {
    name.split_once(':').map_or(name, |(interface, _)| interface)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
}

/// The capacity of a file system, in bytes and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// All bytes.
    pub total: u64,
    /// Bytes that any user may still write.
    pub free: u64,
    /// Used bytes.
    pub used: u64,
    /// All inodes.
    pub inodes_total: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// The capacity of the file system that holds `path`.
///
/// # Errors
/// When the path can't be reached.
pub fn space(path: &Path) -> Result<FileSystemSpace, FsError> {
    let room = statvfs(path).map_err(|errno| FsError::io("examine the file system of", path, errno.into()))?;
    let unit = room.fragment_size();
    let bytes = |blocks: u64| blocks.saturating_mul(unit);
    Ok(FileSystemSpace {
        total: bytes(room.blocks()),
        free: bytes(room.blocks_available()),
        used: bytes(room.blocks().saturating_sub(room.blocks_free())),
        inodes_total: room.files(),
        inodes_free: room.files_free(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells() {
        assert!(!names().unwrap().machine.is_empty());
        let space = space(Path::new("/")).unwrap();
        assert!(space.total >= space.free && space.total > 0);
        assert!(super::space(Path::new("/nowhere/at/all")).is_err());
        let interfaces = interfaces().unwrap();
        let lo = interfaces.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.flags.contains(&"loopback"));
        if let Some((_, prefix)) = lo.addresses.iter().find(|(ip, _)| ip.is_ipv4()) {
            assert_eq!(*prefix, 8);
        }
        assert!(lo.hardware.is_empty());
    }

    #[test]
    fn labels_are_no_interfaces() {
        for (name, expected) in [("eth0", "eth0"), ("eth0:1", "eth0"), ("br0:web:1", "br0"), ("eth0.7", "eth0.7")] {
            assert_eq!(without_label(name), expected);
        }
    }
}
