//! Capabilities: drops from root those that lead around limits of files.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// Capabilities for managing files, for becoming another user, and for the usual commands of checks. Missing are, among others,
/// kernel modules, raw devices, mounts, foreign processes, the clock and network settings.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_NICE);

/// Drops all other capabilities from this thread, and from everything that it starts.
pub(super) fn drop_all_but_files() -> Result<(), Errno> {
    let now = capabilities(None)?;
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            if !KEPT.intersects(one) {
                match remove_capability_from_bounding_set(one) {
                    // This kernel does not know the capability.
                    Ok(()) | Err(Errno::INVAL) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
    }
    set_capabilities(
        None,
        CapabilitySets { effective: now.effective & KEPT, permitted: now.permitted & KEPT, inheritable: CapabilitySet::empty() },
    )
}
