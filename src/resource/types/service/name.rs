//! Names of units: their rules and their completion.

use crate::resource::Invalid;

/// The kinds of units, as `systemd.unit(5)` lists them.
const SUFFIXES: [&str; 11] =
    ["service", "socket", "device", "mount", "automount", "swap", "target", "path", "timer", "slice", "scope"];

/// Characters that have a meaning to a shell or match several units.
const DANGEROUS: &[char] =
    &[';', '&', '|', '$', '`', '(', ')', '[', ']', '{', '}', '<', '>', '*', '?', '\'', '"', '!', '\n', '\r', '\t'];

/// The longest name of a unit, its suffix included.
const LONGEST: usize = 255;

/// Checks a name.
///
/// # Errors
/// When it can't be the name of a single unit.
pub(super) fn check(name: &str) -> Result<(), Invalid> {
    let invalid = |why: String| Err(Invalid::new("name", why));
    if name.trim().is_empty() {
        return invalid("name is required".to_owned());
    }
    if name.contains(DANGEROUS) || has_unescaped_backslash(name) {
        return invalid(format!("service name contains dangerous characters: \"{name}\""));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+:~@\\-".contains(c);
    if !name.chars().all(allowed) {
        return invalid(format!("service name contains invalid characters: \"{name}\" (allowed: alphanumeric, ._+:~@-)"));
    }
    if name.starts_with('-') {
        return invalid(format!("service name begins with a dash, as an option does: \"{name}\""));
    }
    let unit = unit(name);
    let stem = unit.rsplit_once('.').map_or(unit.as_str(), |(stem, _)| stem);
    if stem.is_empty() || stem.starts_with('@') {
        return invalid(format!("service name is only a suffix: \"{name}\""));
    }
    if stem.ends_with('@') {
        return invalid(format!("service name is that of a template: \"{name}\"; name an instance of it, as {stem}INSTANCE"));
    }
    if unit.len() > LONGEST {
        return invalid(format!("service name is longer than {LONGEST} characters: \"{name}\""));
    }
    Ok(())
}

/// True for a backslash that is not part of `\x2d`, as `systemd-escape(1)` writes it.
fn has_unescaped_backslash(name: &str) -> bool {
    name.split('\\').skip(1).any(|after| {
        let mut characters = after.chars();
        characters.next() != Some('x') || characters.by_ref().take(2).filter(char::is_ascii_hexdigit).count() != 2
    })
}

/// The directories of unit files that manifests manage.
pub(super) const UNIT_DIRECTORIES: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Returns the name without instance and suffix: `getty` for `getty@tty1.service`.
pub(super) fn stem(name: &str) -> &str {
    let known = |(_, suffix): &(&str, &str)| SUFFIXES.contains(suffix);
    let stem = name.rsplit_once('.').filter(known).map_or(name, |(stem, _)| stem);
    stem.split_once('@').map_or(stem, |(template, _)| template)
}

/// Returns the names of the files that make a unit: its own and its template. A timer or socket also needs those of its service.
pub(super) fn unit_files(name: &str) -> Vec<String> {
    let unit = unit(name);
    let (own, suffix) = unit.rsplit_once('.').unwrap_or((&unit, "service"));
    let mut files = Vec::new();
    for suffix in [suffix, "service"] {
        files.push(format!("{own}.{suffix}"));
        files.extend(own.split_once('@').map(|(template, _)| format!("{template}@.{suffix}")));
    }
    files.sort_unstable();
    files.dedup();
    files
}

/// Completes the name of a unit: adds `.service` to a name without a suffix, as `systemctl` does.
pub(super) fn unit(name: &str) -> String {
    let named = name.rsplit_once('.').is_some_and(|(_, suffix)| SUFFIXES.contains(&suffix));
    if named { name.to_owned() } else { format!("{name}.service") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, wanted) in [
            ("nginx", Ok("nginx.service")),
            ("nginx.service", Ok("nginx.service")),
            ("apt-daily.timer", Ok("apt-daily.timer")),
            ("org.example.thing", Ok("org.example.thing.service")),
            ("getty@tty1", Ok("getty@tty1.service")),
            ("backup@srv-data.timer", Ok("backup@srv-data.timer")),
            (r"fsck@dev-disk-by\x2duuid", Ok(r"fsck@dev-disk-by\x2duuid.service")),
            ("service++", Ok("service++.service")),
            ("service:a~b_c", Ok("service:a~b_c.service")),
            ("", Err("name is required")),
            (" ", Err("name is required")),
            ("a;b", Err("dangerous")),
            ("demo-*", Err("dangerous")),
            ("demo-?", Err("dangerous")),
            ("demo-[ab]", Err("dangerous")),
            ("`id`", Err("dangerous")),
            ("a\nb", Err("dangerous")),
            (r"a\b", Err("dangerous")),
            (r"a\x2", Err("dangerous")),
            (r"a\", Err("dangerous")),
            ("a b", Err("invalid characters")),
            ("../a", Err("invalid characters")),
            ("a/b", Err("invalid characters")),
            ("ünit", Err("invalid characters")),
            ("--now", Err("begins with a dash")),
            ("-a", Err("begins with a dash")),
            ("getty@", Err("template")),
            ("getty@.service", Err("template")),
            (".service", Err("only a suffix")),
            ("@tty1", Err("only a suffix")),
        ] {
            match (check(name), wanted) {
                (Ok(()), Ok(wanted)) => assert_eq!(unit(name), wanted),
                (Err(invalid), Err(why)) => assert!(invalid.message.contains(why), "{name:?}: {invalid}"),
                (found, wanted) => panic!("{name:?}: {found:?}, not {wanted:?}"),
            }
        }
        assert!(check(&"a".repeat(247)).is_ok() && check(&"a".repeat(248)).is_err());
    }
}
