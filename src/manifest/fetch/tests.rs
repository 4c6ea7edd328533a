use super::*;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

/// A real HTTP server on loopback that answers each path with these raw responses.
fn serve(answers: Vec<(&'static str, String)>) -> (u16, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let mut heads = Vec::new();
        for (path, answer) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while reader.read_line(&mut head).unwrap() > 2 {}
            assert!(head.starts_with(&format!("GET {path} ")), "{head}");
            heads.push(head);
            stream.write_all(answer.as_bytes()).unwrap();
        }
        heads
    });
    (port, server)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

fn pin(content: &str) -> ContentPin {
    ContentPin { sha256: fs::sha256(content.as_bytes()), size: content.len() as u64 }
}

fn limits(hosts: &[&str]) -> FetchLimits {
    let hosts = (!hosts.is_empty()).then(|| hosts.iter().map(|&host| host.to_owned()).collect());
    FetchLimits { max: 1000, hosts, timeout: Duration::from_secs(5) }
}

/// The content, or the error with its causes.
fn get(url: &str, pin: &ContentPin, limits: &FetchLimits) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut content = Vec::new();
    let result = runtime.block_on(fetch(url, pin, limits, &NoObjectReader, &mut content));
    result.map(|()| String::from_utf8(content).unwrap()).map_err(|error| crate::diag::error_chain(&error))
}

#[test]
fn a_listed_host_gives_the_pinned_bytes() {
    let (port, server) = serve(vec![("/m", ok("hello")), ("/m", ok("hello"))]);
    let url = format!("http://user:hunter2@127.0.0.1:{port}/m?token=x");
    assert_eq!(get(&url.replace("?token=x", ""), &pin("hello"), &limits(&["127.0.0.1"])).unwrap(), "hello");
    assert_eq!(get(&format!("http://localhost:{port}/m"), &pin("hello"), &limits(&["LOCALHOST"])).unwrap(), "hello");
    let heads = server.join().unwrap();
    assert!(heads[0].to_lowercase().contains("authorization: basic dxnlcjpodw50zxiy"), "{}", heads[0]);
    assert_eq!(redact_url(&url), format!("http://127.0.0.1:{port}/m"));
}

#[test]
fn other_bytes_are_a_bad_artifact() {
    for (body, message) in [
        ("hullo".to_owned(), "SHA-256 "),
        ("hell".to_owned(), "4 bytes instead of 5"),
        ("x".repeat(600), "600 bytes instead of 5"),
    ] {
        let (port, server) = serve(vec![("/m", ok(&body))]);
        let url = format!("http://u:hunter2@127.0.0.1:{port}/m");
        let error = get(&url, &pin("hello"), &limits(&["127.0.0.1"])).unwrap_err();
        assert!(error.contains("not what was signed") && error.contains(message), "{error}");
        assert!(!error.contains("hunter2"));
        server.join().unwrap();
    }
    // Without an announced length, reading ends where the pinned size does.
    let endless = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "x".repeat(600));
    let (port, server) = serve(vec![("/m", endless)]);
    let error = get(&format!("http://127.0.0.1:{port}/m"), &pin("hello"), &limits(&["127.0.0.1"])).unwrap_err();
    assert!(error.contains("more than 5 bytes"), "{error}");
    server.join().unwrap();
}

#[test]
fn internal_addresses_must_be_named() {
    for url in [
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://[::1]:1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:127.0.0.1]:1/",
        "http://0.0.0.0:1/",
        "http://2130706433:1/",
        "http://0x7f.1:1/",
    ] {
        let error = get(url, &pin("x"), &limits(&[])).unwrap_err();
        assert!(error.contains("internal to this machine"), "{url}: {error}");
    }
    let error = get("http://127.0.0.1:1/", &pin("x"), &limits(&["other"])).unwrap_err();
    assert!(error.contains("not among the `fetch_hosts`"), "{error}");
}

#[test]
fn redirects_are_few_and_checked_at_each_hop() {
    let (port, server) = serve(vec![("/a", redirect("/b")), ("/b", ok("hello"))]);
    assert_eq!(get(&format!("http://127.0.0.1:{port}/a"), &pin("hello"), &limits(&["127.0.0.1"])).unwrap(), "hello");
    server.join().unwrap();
    for (to, why) in [
        ("http://169.254.169.254/x", "not among the `fetch_hosts`"),
        ("file:///etc/passwd", "another kind of URL"),
        ("ftp://127.0.0.1/x", "another kind of URL"),
    ] {
        let (port, server) = serve(vec![("/a", redirect(to))]);
        let error = get(&format!("http://127.0.0.1:{port}/a"), &pin("hello"), &limits(&["127.0.0.1"])).unwrap_err();
        assert!(error.contains(why), "{to}: {error}");
        server.join().unwrap();
    }
    let (port, server) = serve((0..6).map(|_| ("/a", redirect("/a"))).collect());
    let error = get(&format!("http://127.0.0.1:{port}/a"), &pin("hello"), &limits(&["127.0.0.1"])).unwrap_err();
    assert!(error.contains("more than 5 redirects"), "{error}");
    server.join().unwrap();
}

#[test]
fn error_statuses_are_reported() {
    let (port, server) = serve(vec![("/a", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into())]);
    let error = get(&format!("http://127.0.0.1:{port}/a"), &pin("x"), &limits(&["127.0.0.1"])).unwrap_err();
    assert!(error.ends_with("the server answered 404 Not Found"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_silent_server_times_out() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let patient = FetchLimits { timeout: Duration::from_millis(100), ..limits(&["127.0.0.1"]) };
    assert!(get(&url, &pin("x"), &patient).unwrap_err().contains("within 100ms"));
}

#[test]
fn files_and_odd_urls() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, "hello").unwrap();
    let url = format!("file://{}", path.display());
    assert_eq!(get(&url, &pin("hello"), &limits(&[])).unwrap(), "hello");
    assert!(get(&url, &pin("hullo"), &limits(&[])).unwrap_err().contains("not what was signed"));
    assert!(get("file:///nonesuch", &pin("x"), &limits(&[])).unwrap_err().contains("could not read /nonesuch"));
    for url in ["file://", "file:///dev/zero", "ftp://x/y", "manifest.yaml", "obj://bucket", "obj:///key", "data:x"] {
        assert!(get(url, &pin("x"), &limits(&[])).unwrap_err().contains("can be fetched"), "{url}");
    }
    let large = ContentPin { size: 1001, ..pin("x") };
    assert!(get(&url, &large, &limits(&[])).unwrap_err().contains("more than the 1000"));
    assert!(get("obj://bucket/key", &pin("x"), &limits(&[])).unwrap_err().contains("no connection"));
}

/// What is behind a URL, or the error with its causes.
fn seen(url: &str, max: u64) -> Result<ContentPin, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut content = Vec::new();
    let result = runtime.block_on(measure(url, max, Duration::from_secs(5), &NoObjectReader, &mut content));
    result.map_err(|error| crate::diag::error_chain(&error))
}

#[test]
fn measure_returns_digest_and_size_within_the_limit() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned();
    let (port, server) =
        serve(vec![("/r", redirect("/m")), ("/m", ok("hello")), ("/m", ok("hello")), ("/c", chunked.clone()), ("/c", chunked)]);
    let url = |path: &str| format!("http://127.0.0.1:{port}/{path}");
    assert_eq!(seen(&url("r"), 5).unwrap(), pin("hello"));
    assert!(seen(&url("m"), 4).unwrap_err().contains("has 5 bytes, more than the 4"));
    assert_eq!(seen(&url("c"), 5).unwrap(), pin("hello"));
    assert!(seen(&url("c"), 4).unwrap_err().contains("gives more than 4 bytes"));
    server.join().unwrap();
    for wrong in ["ftp://h/x", "obj://bucket", "https://", "x"] {
        assert!(seen(wrong, 9).unwrap_err().contains("is not a URL that can be fetched"), "{wrong}");
    }
}
