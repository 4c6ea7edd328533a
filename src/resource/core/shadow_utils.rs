//! Rules for account names, and the tools of the shadow suite (useradd(8) and others) for changes. `user` and `group` share them.

use std::path::Path;

use crate::host::command::is_executable;
use crate::host::{Host, ProcessCommand};

use crate::resource::{Invalid, ResourceError};

/// Directories of the tools. The search path of the run is not used: ordinary users lack these directories.
const DIRECTORIES: &[&str] = &["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The longest name that the tools accept, in characters.
const NAME_MAX: usize = 32;

/// The highest number of an account: the next number means "none" in chown(2).
pub(in crate::resource) const ID_MAX: u32 = u32::MAX - 1;

/// The tools of the shadow suite, as a provider.
pub struct ShadowTools(());

impl ShadowTools {
    /// Returns true where the tools are installed.
    pub(in crate::resource) fn are_installed(_: &Host) -> bool {
        DIRECTORIES.iter().any(|directory| is_executable(&Path::new(directory).join("useradd")))
    }

    /// Opens the provider.
    pub(in crate::resource) fn open(_: &Host) -> Box<Self> {
        Box::new(Self(()))
    }

    /// Runs a tool, and then drops the cached accounts for every resource of the run.
    ///
    /// # Errors
    /// When it can't be run or does not exit with 0.
    pub(in crate::resource) fn run(&self, mut command: ProcessCommand, host: &Host) -> Result<(), ResourceError> {
        command.search = DIRECTORIES.iter().map(Into::into).collect();
        let result = host.run(&command);
        host.accounts().clear_cache();
        let output = result?;
        if output.code == 0 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let message = format!("{} failed with exit code {}: {}", command.program, output.code, said.join("; "));
        Err(ResourceError::State(message))
    }
}

/// Checks the name of a new account, by the rules of useradd(8), which hold on every distribution.
///
/// # Errors
/// When the name violates a rule.
pub(in crate::resource) fn check_new_name(name: &str) -> Result<(), Invalid> {
    let wrong = |why: String| Err(Invalid::new("name", why));
    let bare = name.strip_suffix('$').unwrap_or(name);
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.is_empty() {
        return wrong("name is required".to_owned());
    }
    if bare.is_empty() || bare.starts_with('-') || !bare.chars().all(fine) || matches!(bare, "." | "..") {
        let rule = "letters, digits, \"_\", \".\" and \"-\", not first \"-\", and possibly \"$\" as the last";
        return wrong(format!("{name:?} can't be the name of an account: it takes {rule}"));
    }
    if bare.chars().all(|c| c.is_ascii_digit()) {
        return wrong(format!("\"{name}\" can't be the name of an account: digits alone are a number"));
    }
    if name.len() > NAME_MAX {
        return wrong(format!("\"{name}\" can't be the name of an account: it is longer than {NAME_MAX} characters"));
    }
    Ok(())
}

/// Checks the name of an existing account, which may come from any directory service. Refuses only names that a tool would
/// misread.
///
/// # Errors
/// When it can't be a name.
pub(in crate::resource) fn check_reference(property: &'static str, name: &str) -> Result<(), Invalid> {
    let bad = |c: char| matches!(c, ':' | ',') || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.starts_with(['-', '+', '~']) || name.chars().any(bad) {
        return Err(Invalid::new(property, format!("{property}: {name:?} can't be the name of an account")));
    }
    Ok(())
}

/// Checks the number of a new account.
///
/// # Errors
/// When the number means "none".
pub(in crate::resource) fn check_id(property: &'static str, id: Option<u32>) -> Result<(), Invalid> {
    match id {
        Some(id) if id > ID_MAX => Err(Invalid::new(property, format!("{property} {id} means \"none\" to the system"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["alice", "a", "_x", "Bob.x", "web-1", "host$", "1a", "a".repeat(32).as_str()] {
            assert!(check_new_name(name).is_ok(), "{name}");
        }
        let long = "a".repeat(33);
        for name in
            ["", "-x", "--root=/x", "a:b", "a b", "a\nb", "a,b", "1000", ".", "..", "$", "1$", "a/b", "ünï", "+x", "~x", &long]
        {
            assert!(check_new_name(name).is_err(), "{name:?}");
        }
        for name in ["alice", "alice@example.com", "EXAMPLE\\alice", "ünï"] {
            assert!(check_reference("members", name).is_ok(), "{name}");
        }
        for name in ["", "-x", "a:b", "a,b", "a b", "a\n", "+x"] {
            assert!(check_reference("members", name).is_err(), "{name:?}");
        }
        assert!(check_id("uid", Some(u32::MAX)).is_err());
        assert!(check_id("uid", Some(ID_MAX)).is_ok());
    }
}
