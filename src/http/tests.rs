use std::time::Instant;

use super::testing::{Asked, Cut, Reply, Web};
use super::*;

const ANY: HostPolicy = HostPolicy { hosts: None, internal: true, loopback: false };

fn ask(url: &str) -> HttpRequest {
    HttpRequest::new(Url::parse(url).unwrap())
}

/// The answer with its content, or the error with its causes.
fn fetch(ask: &HttpRequest, policy: &HostPolicy) -> Result<(u64, Option<u64>, String), String> {
    let work = async {
        let mut answer = get(ask, policy).await?;
        let mut content = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            content.extend_from_slice(chunk.as_ref());
        }
        Ok::<_, HttpError>((answer.start(), answer.length(), String::from_utf8(content).unwrap()))
    };
    block_on(work, &|| false).map_err(|error| crate::diag::error_chain(&error))
}

fn secret(text: &str) -> Secret {
    Secret::new(text)
}

#[test]
fn credentials_stay_with_their_host() {
    let other = Web::new(|_: &Asked| Reply::ok(b"there"));
    let (there, elsewhere) = (other.url("/b"), other.url("/back"));
    let first = Web::new(move |asked: &Asked| match asked.path.as_str() {
        "/same" => Reply::redirect("/here"),
        "/other" => Reply::redirect(&there),
        "/elsewhere" => Reply::redirect(&elsewhere),
        _ => Reply::ok(b"here"),
    });
    let with = |path: &str| ask(&first.url(path)).user("joe", &secret("s3cret")).header("X-Token", &secret("t0ken")).unwrap();
    assert_eq!(fetch(&with("/same"), &ANY).unwrap().2, "here");
    for asked in first.asked() {
        assert_eq!((asked.header("authorization"), asked.header("x-token")), ("Basic am9lOnMzY3JldA==", "t0ken"), "{asked:?}");
    }
    assert_eq!(fetch(&with("/other"), &ANY).unwrap().2, "there");
    let explicit = ask(&first.url("/elsewhere").replace("//", "//joe:pw@")).header("Authorization", &secret("Bearer x")).unwrap();
    assert_eq!(fetch(&explicit, &ANY).unwrap().2, "there");
    assert_eq!(first.asked().last().unwrap().header("authorization"), "Bearer x");
    for asked in other.asked() {
        assert_eq!((asked.header("authorization"), asked.header("x-token")), ("", ""), "{asked:?}");
    }
    for (name, value) in [("X Y", "a"), ("", "a"), ("X", "a\r\nY: b")] {
        let error = ask("http://h/").header(name, &secret(value)).unwrap_err().to_string();
        assert!(!error.contains("Y: b"), "{error}");
    }
    // A server that gets a secret may not make an error reveal it.
    let error = fetch(&ask("http://joe:s3cret@127.0.0.1:1/x?token=t0ken"), &ANY).unwrap_err();
    assert!(error.contains("http://127.0.0.1:1/x") && !error.contains("s3cret") && !error.contains("t0ken"), "{error}");
}

#[test]
fn the_same_place_is_the_same_origin_or_its_https() {
    for (one, other, wanted) in [
        ("http://h/a", "http://h/b", true),
        ("http://h/a", "http://h:80/b", true),
        ("http://h/a", "https://h/b", true),
        ("http://H/a", "https://h/b", true),
        ("http://h:8080/a", "https://h:8443/b", false),
        ("http://h/a", "http://h:8080/b", false),
        ("https://h/a", "http://h/b", false),
        ("https://h/a", "https://i/b", false),
        ("https://h/a", "https://sub.h/b", false),
    ] {
        let [one, other] = [one, other].map(|url| Url::parse(url).unwrap());
        assert_eq!(may_share_credentials(&one, &other), wanted, "{one} {other}");
    }
}

#[test]
fn an_interrupted_transfer_is_resumed() {
    let web = Web::new(|asked: &Asked| match asked.path.as_str() {
        "/wrong" => Reply::ok(b"56789").with("Content-Range", "bytes 4-9/10").status_of("206 Partial Content"),
        "/unsaid" => Reply::ok(b"56789").status_of("206 Partial Content"),
        _ => Reply::file(asked, b"0123456789", "v2"),
    });
    let part = |from, validator: &str| ResumePoint { from, validator: validator.to_owned() };
    let resumed = |path: &str, part| fetch(&ask(&web.url(path)).resume_from(part), &ANY);
    assert_eq!(resumed("/f", part(5, "\"v2\"")).unwrap(), (5, Some(10), "56789".into()));
    assert_eq!(resumed("/f", part(5, "\"v1\"")).unwrap(), (0, Some(10), "0123456789".into()), "it has changed");
    for (path, from) in [("/f", 10), ("/f", 99), ("/wrong", 5), ("/unsaid", 5)] {
        let error = resumed(path, part(from, "\"v2\"")).unwrap_err();
        assert!(error.contains("does not have the part"), "{path}: {error}");
    }
    // Another range than the requested one.
    assert!(fetch(&ask(&web.url("/wrong")), &ANY).unwrap_err().contains("206"));
    for (text, wanted) in [
        ("bytes 5-9/10", Some((5, Some(10)))),
        ("bytes 5-9/*", Some((5, None))),
        ("bytes */10", None),
        ("items 5-9/10", None),
        ("", None),
    ] {
        assert_eq!(content_range(text), wanted, "{text}");
    }
}

#[test]
fn validators_are_strong_or_times() {
    let web = Web::new(|asked: &Asked| match asked.path.as_str() {
        "/strong" => Reply::ok(b"").with("ETag", "\"x\"").with("Last-Modified", "Fri, 20 Nov 2026 10:00:00 GMT"),
        "/weak" => Reply::ok(b"").with("ETag", "W/\"x\"").with("Last-Modified", "Fri, 20 Nov 2026 10:00:00 GMT"),
        _ => Reply::ok(b""),
    });
    let validator = |path: &str| {
        block_on(async { get(&ask(&web.url(path)), &ANY).await.map(|answer| answer.validator()) }, &|| false).unwrap()
    };
    assert_eq!(validator("/strong"), Some(Validator { text: "\"x\"".into(), strong: true }));
    assert_eq!(validator("/weak"), Some(Validator { text: "Fri, 20 Nov 2026 10:00:00 GMT".into(), strong: false }));
    assert_eq!(validator("/none"), None);
}

#[test]
fn a_cancelled_transfer_ends() {
    let web = Web::new(|_: &Asked| Reply::ok(b"0123456789").cut(5, Cut::Hang));
    let began = Instant::now();
    let work = async {
        let mut answer = get(&ask(&web.url("/")), &ANY).await?;
        while answer.chunk().await?.is_some() {}
        Ok::<_, HttpError>(())
    };
    let asked = || !web.asked().is_empty();
    assert!(matches!(block_on(work, &asked), Err(HttpError::Cancelled)));
    assert!(began.elapsed() < STALL_TIMEOUT);
    let cut = Web::new(|_: &Asked| Reply::ok(b"0123456789").cut(5, Cut::Close));
    assert!(fetch(&ask(&cut.url("/")), &ANY).unwrap_err().contains("could not fetch"));
}

#[test]
fn every_redirect_must_be_allowed() {
    let web = Web::new(|asked: &Asked| match asked.path.as_str() {
        "/out" => Reply::redirect("http://localhost:1/x"),
        _ => Reply::redirect("/loop"),
    });
    let listed = HostPolicy { hosts: Some(vec!["127.0.0.1".to_owned()]), internal: false, loopback: false };
    assert!(fetch(&ask(&web.url("/out")), &listed).unwrap_err().contains("not among the `fetch_hosts`"));
    assert!(fetch(&ask(&web.url("/loop")), &listed).unwrap_err().contains("more than 5 redirects"));
    let outside = HostPolicy { hosts: None, internal: false, loopback: false };
    for url in [web.url("/loop"), format!("http://localhost:{}/", web.port())] {
        assert!(fetch(&ask(&url), &outside).unwrap_err().contains("internal to this machine"), "{url}");
    }
}

#[test]
fn shown_urls_have_no_secrets() {
    for (url, wanted) in [
        ("https://u:p@h:1/a/b?token=x#y", "https://h:1/a/b"),
        ("https://h", "https://h"),
        ("https://u:p@h?x", "https://h"),
        ("not a url", "not a url"),
    ] {
        assert_eq!(redact_url(url), wanted);
    }
    assert_eq!(host_of("https://u@H.example:1/a").as_deref(), Some("h.example"));
}
