//! Sprig: paths as texts. The `os` variants are the same, as paths have slashes on this system.

use super::arguments::{as_text, one_argument};
use super::function::{GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::GoValue;

pub(super) static TABLE: &[GoFunction] = &[
    function("base", 1, 1, |c, args| map_text(c, args, base)),
    function("osBase", 1, 1, |c, args| map_text(c, args, base)),
    function("dir", 1, 1, |c, args| map_text(c, args, dir)),
    function("osDir", 1, 1, |c, args| map_text(c, args, dir)),
    function("clean", 1, 1, |c, args| map_text(c, args, clean)),
    function("osClean", 1, 1, |c, args| map_text(c, args, clean)),
    function("ext", 1, 1, |c, args| map_text(c, args, ext)),
    function("osExt", 1, 1, |c, args| map_text(c, args, ext)),
    function("isAbs", 1, 1, |c, args| Ok(GoValue::Bool(as_text(c, one_argument(args)?)?.starts_with('/')))),
    function("osIsAbs", 1, 1, |c, args| Ok(GoValue::Bool(as_text(c, one_argument(args)?)?.starts_with('/')))),
];

fn map_text(context: &GoContext<'_>, args: &[GoValue], change: fn(&str) -> String) -> Result<GoValue, String> {
    Ok(GoValue::text(change(&as_text(context, one_argument(args)?)?)))
}

fn base(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" if path.is_empty() => ".".to_owned(),
        "" => "/".to_owned(),
        path => path.rsplit('/').next().unwrap_or_default().to_owned(),
    }
}

fn dir(path: &str) -> String {
    clean(path.rsplit_once('/').map_or("", |(dir, _)| if dir.is_empty() { "/" } else { dir }))
}

fn ext(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rfind('.').and_then(|at| name.get(at..)).unwrap_or_default().to_owned()
}

fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    match (rooted, parts.join("/")) {
        (true, path) => format!("/{path}"),
        (false, path) if path.is_empty() => ".".to_owned(),
        (false, path) => path,
    }
}
