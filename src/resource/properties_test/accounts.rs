//! A host with its own accounts: real tools over directories that replace those of the machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::host::{Cancel, CommandError, Host, Output, ProcessCommand, Runner, SystemClock, SystemRunner};

use super::Preexisting;

/// A runner that mounts `/etc` and other directories of a test over those of the machine, in a mount namespace.
struct NamespaceRunner(PathBuf);

impl Runner for NamespaceRunner {
    fn run(&self, command: &ProcessCommand, cancel: &Cancel, deadline: Option<Instant>) -> Result<Output, CommandError> {
        let script = r#"for at in etc home var/log var/mail; do mount --bind "$0/$at" "/$at" || exit 99; done; exec "$@""#;
        let first = ["--mount", "--propagation", "private", "/bin/sh", "-c", script, self.0.to_str().unwrap(), &command.program];
        let mut outer = command.clone();
        outer.program = "unshare".to_owned();
        outer.args = first.into_iter().map(str::to_owned).chain(command.args.clone()).collect();
        let output = SystemRunner::new(None).run(&outer, cancel, deadline)?;
        assert_ne!(output.code, 99, "the namespace can't be made: {output:?}");
        Ok(output)
    }
}

/// Returns a host whose commands see the accounts below `root`.
pub(in crate::resource) fn with_accounts(root: &Path) -> Host {
    Host::new(Arc::new(NamespaceRunner(root.to_owned())), Arc::new(SystemClock)).with_root(root)
}

/// Returns the files of a host with few accounts.
pub(in crate::resource) fn accounts() -> Vec<Preexisting> {
    vec![
        Preexisting::Directory("etc", 0o755),
        Preexisting::Directory("home", 0o755),
        Preexisting::Directory("var/log", 0o755),
        Preexisting::Directory("var/mail", 0o755),
        Preexisting::File("etc/login.defs", "UID_MIN 1000\nGID_MIN 1000\nUSERGROUPS_ENAB yes\nMAIL_DIR /var/mail\n", 0o644),
        Preexisting::File(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\nbob:x:1001:100::/home/bob:\n",
            0o644,
        ),
        Preexisting::File("etc/group", "root:x:0:\nusers:x:100:\nann:x:1000:\ndevs:x:2000:bob,ann\nold:x:2001:gone,bob\n", 0o644),
        Preexisting::File(
            "etc/shadow",
            "root:*:19000:0:99999:7:::\nann:$6$salt$hash:19000:0:99999:7:::\nbob:!:19000:0:99999:7::20000:\n",
            0o640,
        ),
        Preexisting::File("etc/gshadow", "root:*::\nusers:!::\nann:!::\ndevs:!::bob,ann\nold:!::gone,bob\n", 0o640),
    ]
}
