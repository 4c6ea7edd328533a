//! Sprig: parsing and joining of URLs.

use super::arguments::{as_map, as_text, one_argument};
use super::function::{GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::{GoValue, Pairs};
use std::rc::Rc;

pub(super) static TABLE: &[GoFunction] = &[function("urlParse", 1, 1, parse), function("urlJoin", 1, 1, join)];

/// Splits a URL into parts with Go's names: `hostname` is `host` without the port.
fn parse(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let text = as_text(context, one_argument(args)?)?;
    let (rest, fragment) = text.split_once('#').unwrap_or((&text, ""));
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    };
    let (scheme, rest) = rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", rest));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at_checked(rest.find('/').unwrap_or(rest.len())).unwrap_or((rest, "")),
        None => ("", rest),
    };
    let opaque = if scheme.is_empty() || authority.len() + path.len() < rest.len() || path.starts_with('/') { "" } else { path };
    let path = if opaque.is_empty() { path } else { "" };
    let (userinfo, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let port = host.rfind(':').filter(|at| host.get(*at + 1..).is_some_and(|port| port.chars().all(|c| c.is_ascii_digit())));
    let hostname = host.get(..port.unwrap_or(host.len())).unwrap_or(host).trim_matches(['[', ']']);
    let parts = [
        ("scheme", scheme.to_lowercase()),
        ("host", host.to_owned()),
        ("hostname", hostname.to_owned()),
        ("path", path.to_owned()),
        ("query", query.to_owned()),
        ("opaque", opaque.to_owned()),
        ("fragment", fragment.to_owned()),
        ("userinfo", userinfo.to_owned()),
    ];
    GoValue::map(parts.into_iter().map(|(name, part)| (Rc::from(name), GoValue::text(part))).collect::<Pairs>())
}

/// Joins a URL from its parts.
fn join(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let parts = as_map(one_argument(args)?)?;
    let part = |name: &str| match parts.get(name) {
        None | Some(GoValue::Nil) => Ok(Rc::from("")),
        Some(found) => as_text(context, &found),
    };
    let (scheme, host, path, opaque) = (part("scheme")?, part("host")?, part("path")?, part("opaque")?);
    let (userinfo, query, fragment) = (part("userinfo")?, part("query")?, part("fragment")?);
    let mut out = String::new();
    if !scheme.is_empty() {
        out.extend([&*scheme, ":"]);
    }
    if !opaque.is_empty() {
        out.push_str(&opaque);
    } else {
        if !host.is_empty() || !userinfo.is_empty() {
            out.push_str("//");
            if !userinfo.is_empty() {
                out.extend([&*userinfo, "@"]);
            }
            out.push_str(&host);
            if !path.is_empty() && !path.starts_with('/') {
                out.push('/');
            }
        }
        out.push_str(&path);
    }
    if !query.is_empty() {
        out.extend(["?", &*query]);
    }
    if !fragment.is_empty() {
        out.extend(["#", &*fragment]);
    }
    Ok(GoValue::text(out))
}
