//! Requests to the monitoring page. `httparse` parses the form, and this module decides about the content.

use std::net::IpAddr;

/// The most headers of a request; browsers send two dozen.
const MAX_HEADERS: usize = 64;

/// The pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// The list of pages.
    Index,
    /// The metrics.
    Metrics,
    /// The health of the agent.
    Health,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PageRequest {
    /// A request for a page.
    Page(Page),
    /// A rejected request: the status and the reason.
    Rejected(&'static str, &'static str),
}

/// True when the head of a request is complete.
pub(super) fn is_complete(head: &[u8]) -> bool {
    head.windows(4).any(|window| window == b"\r\n\r\n") || head.windows(2).any(|window| window == b"\n\n")
}

/// Parses a request. With `only_loopback`, the host must be a name of loopback. So a web page that maps its own name to this
/// machine ("DNS rebinding") reads nothing.
pub(super) fn parse(head: &[u8], only_loopback: bool) -> PageRequest {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if is_complete(head) || head.is_empty() => {
            return PageRequest::Rejected("400 Bad Request", "not an HTTP request");
        }
        Ok(httparse::Status::Partial) => {
            return PageRequest::Rejected("431 Request Header Fields Too Large", "the request is too long");
        }
        Err(httparse::Error::TooManyHeaders) => {
            return PageRequest::Rejected("431 Request Header Fields Too Large", "the request has too many headers");
        }
        Err(_) => return PageRequest::Rejected("400 Bad Request", "not an HTTP request"),
    }
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => std::str::from_utf8(host.value).ok().map(str::trim),
        // HTTP/1.0 has none; no browser uses HTTP/1.0.
        (None, _) if request.version == Some(0) => Some("localhost"),
        _ => None,
    };
    let Some(host) = host else { return PageRequest::Rejected("400 Bad Request", "the request needs one Host header") };
    if only_loopback && !is_loopback_header(host) {
        return PageRequest::Rejected("403 Forbidden", "requests must come from this machine, to localhost");
    }
    if request.method != Some("GET") {
        return PageRequest::Rejected("405 Method Not Allowed", "only GET is allowed");
    }
    match request.path.map(|path| path.split('?').next().unwrap_or_default()) {
        Some("/") => PageRequest::Page(Page::Index),
        Some("/metrics") => PageRequest::Page(Page::Metrics),
        Some("/healthz") => PageRequest::Page(Page::Health),
        _ => PageRequest::Rejected("404 Not Found", "no such page: see /metrics and /healthz"),
    }
}

/// True when a Host header names this machine by a name that no other host can have.
fn is_loopback_header(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _port)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_pages_are_answered() {
        for (head, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: localhost:9769\r\n\r\n", "Metrics"),
            ("GET /metrics?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9769\r\n\r\n", "Metrics"),
            ("GET /healthz HTTP/1.1\r\nhost: [::1]:9769\r\n\r\n", "Health"),
            ("GET / HTTP/1.0\r\n\r\n", "Index"),
            ("GET /metrics HTTP/1.1\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example:9769\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", "403"),
            ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("GET /metrics", "431"),
            ("nonsense\r\n\r\n", "400"),
            ("\0\u{1}\r\n\r\n", "400"),
            ("", "400"),
        ] {
            let shown = match parse(head.as_bytes(), true) {
                PageRequest::Page(page) => format!("{page:?}"),
                PageRequest::Rejected(status, _) => status[..3].to_owned(),
            };
            assert_eq!(shown, wanted, "{head:?}");
        }
        let foreign = b"GET /metrics HTTP/1.1\r\nHost: node.example\r\n\r\n";
        assert_eq!(parse(foreign, false), PageRequest::Page(Page::Metrics), "where it listens for others, it has other names");
        let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(100));
        assert!(matches!(parse(many.as_bytes(), true), PageRequest::Rejected(status, _) if status.starts_with("431")));
    }
}
