//! Names and patterns: `?` one character, `*` any number, neither across a `/`; `**` across.

/// True when the whole of `text` matches `pattern`. Takes time of pattern × text at most.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    // reach[i]: what was read of the pattern so far matches the first i characters.
    let mut reach = vec![false; text.len() + 1];
    if let Some(start) = reach.first_mut() {
        *start = true;
    }
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        reach = match c {
            '*' => {
                let across = rest.next_if_eq(&'*').is_some();
                spread(&reach, &text, across)
            }
            c => step(&reach, &text, c),
        };
    }
    reach.last() == Some(&true)
}

/// Any number of further characters.
fn spread(reach: &[bool], text: &[char], across: bool) -> Vec<bool> {
    let mut on = false;
    let mut before = None;
    reach
        .iter()
        .enumerate()
        .map(|(i, here)| {
            let crossed = before.is_some_and(|c: &char| *c == '/' && !across);
            on = *here || (on && !crossed);
            before = text.get(i);
            on
        })
        .collect()
}

/// One further character.
fn step(reach: &[bool], text: &[char], wanted: char) -> Vec<bool> {
    let fits = |c: &char| if wanted == '?' { *c != '/' } else { *c == wanted };
    std::iter::once(false).chain(reach.iter().zip(text).map(|(here, c)| *here && fits(c))).collect()
}

/// True when some pattern of the list matches.
pub(super) fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

/// An absolute path without `.`, `..`, empty parts and a slash at its end; other texts as they are.
///
/// Lexical: what a symbolic link does to a path is for the engine to ask when it runs.
pub(super) fn normal(name: &str) -> String {
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

/// True when the node would still replace parts of this text: what it will say can't be told from here.
pub(super) fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("${")
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
        // Patterns that make a backtracking matcher hang.
        assert!(!matches(&"*a".repeat(50), &"a".repeat(49)));
        assert!(!matches(&format!("{}b", "**a*".repeat(30)), &"a".repeat(2000)));
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
            assert_eq!(normal(name), wanted);
        }
    }
}
