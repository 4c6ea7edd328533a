//! Patterns of rules: for names, paths and commands. `model/pattern.rs` has the wildcards.

use crate::model::effects::PathScope;
use crate::model::pattern::matches_where;

pub(in crate::trust) use crate::model::pattern::{covers, matches};

/// A path component that no pattern contains literally.
const ANY_NAME: &str = "/\u{1}";
/// Levels below a directory at which patterns are tested: only `**` matches both the first level and this one.
const DEEP: usize = 40;

/// True when a command matches a pattern. Wildcards match characters without meaning to a shell; a pattern must contain signs
/// such as `;` or `$` literally. The pattern `**` alone matches every command.
pub(in crate::trust) fn matches_command(pattern: &str, command: &str) -> bool {
    pattern == "**" || pattern == command || matches_where(pattern, command, is_plain)
}

/// True for characters without a meaning to a shell.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || " _-./:=,@+%".contains(c)
}

/// True when a pattern of commands contains the program literally, or matches every command.
pub(in crate::trust) fn names_program(pattern: &str) -> bool {
    pattern == "**" || !pattern.split(' ').next().unwrap_or_default().contains(['*', '?'])
}

/// True when some pattern matches a path, after `.` and `..` are resolved. For a scope with everything below the path, a pattern
/// must match all of that.
pub(in crate::trust) fn matches_any_path(patterns: &[String], place: &PathScope) -> bool {
    let path = normalize_path(&place.path);
    let base = path.trim_end_matches('/');
    let below = |pattern: &str| {
        matches(pattern, &format!("{base}{ANY_NAME}")) && matches(pattern, &format!("{base}{}", ANY_NAME.repeat(DEEP)))
    };
    matches_any(patterns, &path) && (!place.below || patterns.iter().any(|pattern| below(pattern)))
}

/// True when a pattern begins with `prefix`, and its rest matches `text`.
pub(in crate::trust) fn matches_after(pattern: &str, prefix: &str, text: &str) -> bool {
    pattern.strip_prefix(prefix).is_some_and(|pattern| matches(pattern, text))
}

/// Returns a pattern of paths with the directories before the first wildcard replaced by `real`.
pub(in crate::trust) fn resolve_links(pattern: &str, real: &impl Fn(&str) -> String) -> String {
    if !pattern.starts_with('/') {
        return pattern.to_owned();
    }
    let plain = pattern.find(['*', '?']).unwrap_or(pattern.len());
    let slash = pattern.get(..plain).and_then(|head| head.rfind('/')).unwrap_or(0);
    let (directory, rest) = pattern.split_at(slash);
    let directory = if directory.is_empty() { String::new() } else { real(directory) };
    format!("{}{rest}", directory.trim_end_matches('/'))
}

/// True when some pattern of the list matches.
pub(in crate::trust) fn matches_any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

/// Returns an absolute path without `.`, `..`, empty parts and a final slash; other texts unchanged.
///
/// Purely lexical: the engine resolves symbolic links at run time.
pub(in crate::trust) fn normalize_path(name: &str) -> String {
    if !name.starts_with('/') {
        return name.to_owned();
    }
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, wanted) in [
            ("nginx", "nginx", true),
            ("nginx", "nginx2", false),
            ("nginx*", "nginx-full", true),
            ("*", "nginx", true),
            ("*", "", true),
            ("*", "/etc", false),
            ("?", "/", false),
            ("we?", "web", true),
            ("we?", "we", false),
            ("/srv/*", "/srv/a", true),
            ("/srv/*", "/srv/a/b", false),
            ("/srv/*", "/srv", false),
            ("/srv/**", "/srv/a/b", true),
            ("/srv/**", "/srvx/a", false),
            ("/srv/*/x", "/srv/a/x", true),
            ("/srv/**/x", "/srv/a/b/x", true),
            ("**", "/any/thing", true),
            ("*.conf", "a.conf", true),
            ("*.conf", "a/b.conf", false),
            ("ä?", "äö", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), wanted, "{pattern} {text}");
        }
        // Patterns with exponential time in a backtracking matcher.
        assert!(!matches(&"*a".repeat(50), &"a".repeat(49)));
        assert!(!matches(&format!("{}b", "**a*".repeat(30)), &"a".repeat(2000)));
    }

    #[test]
    fn wildcards_of_commands_stand_for_no_sign_of_the_shell() {
        for (pattern, command, wanted) in [
            ("/bin/ls *", "/bin/ls -la", true),
            ("/bin/ls **", "/bin/ls -la /srv/www", true),
            ("/bin/ls *", "/bin/ls /srv", false),
            ("/bin/ls **", "/bin/ls; reboot", false),
            ("/bin/ls **", "/bin/ls x\nreboot", false),
            ("/bin/ls **", "/bin/ls `reboot`", false),
            ("/bin/ls **", "/bin/ls $(reboot)", false),
            ("/bin/ls **", "/bin/ls x > /etc/passwd", false),
            ("/bin/ls **", "/bin/ls x & reboot", false),
            ("/bin/ls **", "/bin/ls x | sh", false),
            ("/bin/ls **", "/bin/ls 'x'", false),
            ("/bin/ls **", "/bin/ls \\\nreboot", false),
            ("/bin/ls **", "/bin/ls ~root", false),
            ("/bin/ls ?", "/bin/ls ;", false),
            ("a; b *", "a; b c", true),
            ("a; b *", "a; b c; d", false),
            ("ls *.conf", "ls *.conf", true),
            ("**", "a; b", true),
        ] {
            assert_eq!(matches_command(pattern, command), wanted, "{pattern} {command}");
        }
        for (pattern, wanted) in [("/bin/ls *", true), ("ls", true), ("**", true), ("/srv/**", false), ("?s x", false)] {
            assert_eq!(names_program(pattern), wanted, "{pattern}");
        }
    }

    #[test]
    fn everything_below_needs_a_pattern_that_reaches_it() {
        for (patterns, path, wanted) in [
            (&["/srv/**"][..], "/srv/a", true),
            (&["/srv/a", "/srv/a/**"], "/srv/a", true),
            (&["/srv/a/**"], "/srv/a", false),
            (&["/srv/*"], "/srv/a", false),
            (&["/srv/*", "/srv/*/*", "/srv/*/*/*"], "/srv/a", false),
            (&["**"], "/", true),
            (&["/srv/**"], "/srv/a/../../etc", false),
        ] {
            let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            assert_eq!(matches_any_path(&patterns, &PathScope::below(path)), wanted, "{patterns:?} {path}");
        }
    }

    #[test]
    fn patterns_are_located_before_their_wildcards() {
        let real = |path: &str| path.replace("/var/run", "/run");
        for (pattern, wanted) in [
            ("/var/run/x/*", "/run/x/*"),
            ("/var/run/**", "/run/**"),
            ("/var/*/x", "/var/*/x"),
            ("/x*", "/x*"),
            ("nginx*", "nginx*"),
            ("**", "**"),
        ] {
            assert_eq!(resolve_links(pattern, &real), wanted);
        }
    }

    #[test]
    fn paths_become_normal() {
        for (name, wanted) in [
            ("/srv/www/../../etc/passwd", "/etc/passwd"),
            ("/../../x", "/x"),
            ("//srv/./a//b/", "/srv/a/b"),
            ("/", "/"),
            ("/..", "/"),
            ("/a/...", "/a/..."),
            ("nginx", "nginx"),
            ("a/../b", "a/../b"),
        ] {
            assert_eq!(normalize_path(name), wanted);
        }
    }
}
