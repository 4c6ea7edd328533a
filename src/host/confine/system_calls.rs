//! System calls that lead around Landlock. The filter refuses them to confined threads.

use nix::libc;
use seccompiler::{
    Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The bit of the x32 calls of x86-64, which have numbers of their own.
const X32: i64 = 0x4000_0000;

/// Refuses the calls to this thread and to everything that it starts, with "operation not permitted".
///
/// - `socket` of the local family: Landlock does not see who connects to a socket in the file system. The service manager,
///   containers and this agent listen on local sockets, and would act unconfined on request. `socketpair` stays.
/// - `io_uring_setup`: makes sockets by itself.
/// - `open_by_handle_at`: opens files without a path.
pub(super) fn refuse(local_sockets: bool) -> Result<(), Error> {
    let local = u64::try_from(libc::AF_UNIX).unwrap_or_default();
    let is_local = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, local)?;
    let is_local = vec![SeccompRule::new(vec![is_local])?];
    let mut refused = vec![(libc::SYS_io_uring_setup, vec![]), (libc::SYS_open_by_handle_at, vec![])];
    if local_sockets {
        refused.push((libc::SYS_socket, is_local));
    }
    if cfg!(target_arch = "x86_64") {
        let again: Vec<_> = refused.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        refused.extend(again);
    }
    let errno = u32::try_from(libc::EPERM).unwrap_or(1);
    let rules = refused.into_iter().collect();
    let Some(architecture) = architecture() else { return Ok(()) };
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), architecture)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)
}

/// True when this machine can filter system calls.
pub(super) fn can_refuse() -> bool {
    architecture().is_some()
}

fn architecture() -> Option<TargetArch> {
    if cfg!(target_arch = "x86_64") {
        Some(TargetArch::x86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(TargetArch::aarch64)
    } else if cfg!(target_arch = "riscv64") {
        Some(TargetArch::riscv64)
    } else {
        None
    }
}
