//! Rules for names and versions of packages: shells and package managers must not misread them.

use crate::resource::Invalid;

/// Characters with a meaning to a shell, or to a package manager's patterns.
const DANGEROUS: &[char] =
    &[';', '&', '|', '$', '`', '(', ')', '[', ']', '{', '}', '<', '>', '*', '?', '\'', '"', '\\', '!', '\n', '\r', '\t'];

/// Checks a name: letters, digits and `._+:~-`, a letter, digit or `_` first, and no dash last.
pub(super) fn check_name(name: &str) -> Result<(), Invalid> {
    let invalid = |message: String| Err(Invalid::new("name", message));
    if name.is_empty() {
        return invalid("name is required".to_owned());
    }
    if name.contains(DANGEROUS) {
        return invalid(format!("package name contains dangerous characters: {name:?}"));
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._+:~-".contains(c)) {
        return invalid(format!("package name contains invalid characters: {name:?} (allowed: alphanumeric, ._+:~-)"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return invalid(format!("package name must begin with a letter or digit: {name:?}"));
    }
    if name.ends_with(['-', ':']) {
        return invalid(format!("package name must not end in '-', which is an instruction to package managers: {name:?}"));
    }
    Ok(())
}

/// Checks a version: letters, digits and `.+~^_:-`, a letter or digit first.
pub(super) fn check_version(version: &str) -> Result<(), Invalid> {
    let invalid = |message: String| Err(Invalid::new("ensure", message));
    if version.is_empty() {
        return invalid("ensure is required".to_owned());
    }
    if version.contains(DANGEROUS) {
        return invalid(format!("package version/ensure contains dangerous characters: {version:?}"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".+~^_:-".contains(c);
    if !version.chars().all(allowed) || !version.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return invalid(format!("ensure is neither present, absent, latest nor a version: {version:?}"));
    }
    if let Some((epoch, _)) = version.split_once(':')
        && !epoch.chars().all(|c| c.is_ascii_digit())
    {
        return invalid(format!("the epoch of a version, before ':', is a number: {version:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, wrong) in [
            ("bash", ""),
            ("g++", ""),
            ("libstdc++6:i386", ""),
            ("glibc.i686", ""),
            ("python3.11", ""),
            ("_x", ""),
            ("", "name is required"),
            ("a; b", "dangerous"),
            ("$(a)", "dangerous"),
            ("a*", "dangerous"),
            ("a?", "dangerous"),
            ("a\n", "dangerous"),
            ("a b", "invalid characters"),
            ("a/now", "invalid characters"),
            ("a=1", "invalid characters"),
            ("@core", "invalid characters"),
            ("a^", "invalid characters"),
            ("ä", "invalid characters"),
            ("-y", "must begin"),
            ("--purge", "must begin"),
            ("~nfoo", "must begin"),
            ("+x", "must begin"),
            ("a-", "must not end"),
            ("a:", "must not end"),
        ] {
            let found = check_name(name).map_or_else(|invalid| invalid.message, |()| String::new());
            assert_eq!(found.contains(wrong) && !found.is_empty(), !wrong.is_empty(), "{name}: {found}");
        }
    }

    #[test]
    fn versions() {
        for (version, wrong) in [
            ("1.0", ""),
            ("1:1.0~rc1-1+b2", ""),
            ("5.8-9.el9_3", ""),
            ("1.0^git1", ""),
            ("v1", ""),
            ("", "ensure is required"),
            ("1.0; x", "dangerous"),
            ("1.0*", "dangerous"),
            ("1.0 -y", "neither present"),
            ("-y", "neither present"),
            ("1.0/stable", "neither present"),
            ("x:1.0", "epoch"),
        ] {
            let found = check_version(version).map_or_else(|invalid| invalid.message, |()| String::new());
            assert_eq!(found.contains(wrong) && !found.is_empty(), !wrong.is_empty(), "{version}: {found}");
        }
    }
}
