use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::host::account::{effective_gid, effective_uid};
use crate::http::testing::{Asked, Cut, Reply, Web};
use crate::model::ResourceLimits;
use crate::unpack::testing::{Raw, Zipped, file, gzip, other, tar_of, zip_of};

use super::*;

fn properties(extra: &Value) -> Properties {
    let mut all = json!({"name": "/a.tar.gz", "ensure": "present", "url": "http://h/a.tar.gz", "owner": "0", "group": "0"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

/// The host: the digest and owner of the archive, whether the path in `creates` exists, whether an extraction was interrupted.
struct There(Option<(&'static str, u32)>, bool, bool);

impl There {
    fn state(&self) -> ArchiveState {
        let found = self.0.map(|(sha256, uid)| FileInfo {
            kind: fs::FileKind::File,
            uid,
            gid: 0,
            mode: MODE,
            size: 1,
            mtime: jiff::Timestamp::UNIX_EPOCH,
            sha256: Some(sha256.to_owned()),
        });
        let metadata =
            Metadata { creates_exists: self.1, archive_exists: found.is_some(), owner: "x".into(), ..Metadata::default() };
        ArchiveState { found, interrupted: self.2, remains: self.2, downloaded: None, wanted: (Some(0), Some(0)), metadata }
    }
}

/// The decision table: properties, host, steps.
#[test]
fn decisions() {
    let plain = json!({});
    let sum = json!({"checksum": "AA"});
    let unpacked = json!({"extract_parent": "/d"});
    let creates = json!({"extract_parent": "/d", "creates": "/d/c"});
    let both = json!({"extract_parent": "/d", "creates": "/d/c", "checksum": "aa"});
    let cleanup = json!({"extract_parent": "/d", "creates": "/d/c", "cleanup": true});
    let clean_sum = json!({"extract_parent": "/d", "creates": "/d/c", "cleanup": true, "checksum": "aa"});
    let absent = json!({"ensure": "absent"});
    for (extra, there, wanted) in [
        (&plain, There(None, false, false), "downloaded"),
        (&plain, There(Some(("aa", 0)), false, false), ""),
        (&plain, There(Some(("aa", 1)), false, false), "set owner and group"),
        (&sum, There(Some(("aa", 0)), false, false), ""),
        (&sum, There(Some(("aa", 1)), false, false), "set owner and group"),
        (&sum, There(Some(("bb", 0)), false, false), "downloaded"),
        (&sum, There(Some(("bb", 1)), false, false), "downloaded"),
        (&unpacked, There(None, false, false), "downloaded, extracted"),
        (&unpacked, There(Some(("aa", 0)), false, false), ""),
        (&unpacked, There(Some(("aa", 0)), false, true), "downloaded, extracted"),
        (&creates, There(None, false, false), "downloaded, extracted"),
        (&creates, There(None, true, false), "downloaded, extracted"),
        (&creates, There(Some(("aa", 0)), true, false), ""),
        (&creates, There(Some(("aa", 1)), true, false), "set owner and group"),
        // Without a checksum, the content is unknown.
        (&creates, There(Some(("aa", 0)), false, false), "downloaded, extracted"),
        (&both, There(Some(("aa", 0)), false, false), "extracted"),
        (&both, There(Some(("aa", 1)), false, false), "set owner and group, extracted"),
        (&both, There(Some(("bb", 0)), true, false), "downloaded, extracted"),
        (&both, There(Some(("aa", 0)), true, true), "extracted"),
        (&both, There(None, true, true), "downloaded, extracted"),
        (&cleanup, There(None, false, false), "downloaded, extracted, cleaned up"),
        (&cleanup, There(None, true, false), ""),
        (&cleanup, There(None, true, true), "downloaded, extracted, cleaned up"),
        // As in the Go system: the leftover archive stays.
        (&cleanup, There(Some(("aa", 0)), true, false), ""),
        (&cleanup, There(Some(("aa", 0)), false, false), "downloaded, extracted, cleaned up"),
        (&clean_sum, There(Some(("aa", 0)), false, false), "extracted, cleaned up"),
        (&clean_sum, There(Some(("bb", 0)), true, false), "downloaded, extracted, cleaned up"),
        (&absent, There(None, false, false), ""),
        (&absent, There(None, false, true), "removed"),
        (&absent, There(Some(("aa", 1)), true, false), "removed"),
    ] {
        let steps = ArchiveType::diff(&properties(extra), &there.state()).unwrap();
        let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
        let There(found, creates, interrupted) = there;
        assert_eq!(steps.join(", "), wanted, "{extra} {found:?} {creates} {interrupted}");
    }
    // No step leads there.
    let never = properties(&json!({"creates": "/d/c", "checksum": "aa"}));
    let error = ArchiveType::diff(&never, &There(Some(("aa", 1)), false, false).state()).unwrap_err().to_string();
    assert!(error.contains("creates path missing: /d/c"), "{error}");
}

#[test]
fn each_difference_is_listed_once() {
    let details = |extra: &Value, there: There| {
        ArchiveType::diff(&properties(extra), &there.state()).unwrap().iter().flat_map(Change::details).collect::<Vec<_>>()
    };
    let creates = json!({"extract_parent": "/d", "creates": "/d/c", "cleanup": true});
    assert_eq!(details(&creates, There(Some(("aa", 0)), false, false)), ["creates path missing: /d/c"]);
    assert_eq!(details(&creates, There(None, false, false)), ["archive file missing", "creates path missing: /d/c"]);
    let sum = json!({"checksum": "aa", "extract_parent": "/d"});
    assert_eq!(details(&sum, There(Some(("bb", 0)), false, false)), ["checksum mismatch: bb → aa", "unpacked in /d"]);
    assert_eq!(details(&sum, There(Some(("aa", 7)), false, false)), ["owner x → 0"]);
}

#[test]
fn validation() {
    for (extra, message) in [
        (json!({"name": "a.tar.gz"}), "file path must be absolute"),
        (json!({"name": "/x/../a.tar.gz"}), "file path must be canonical"),
        (json!({"name": "/a.rar"}), "name must end in .zip, .tar.gz, .tgz, or .tar"),
        (json!({"url": ""}), "url cannot be empty"),
        (json!({"url": "h/a.tar.gz"}), "url must be absolute (include scheme like http:// or https://)"),
        (json!({"url": "http://u:hunter2@h:x/a.tar.gz"}), "invalid url: \"http://h:x/a.tar.gz\""),
        (json!({"url": "https://example.com/"}), "url must have a filename in the path"),
        (json!({"url": "http://h/a.exe"}), "url filename must end in .zip, .tar.gz, .tgz, or .tar"),
        (json!({"url": "http://h/a?x=.tar.gz"}), "url filename must end in"),
        (json!({"url": "http://h/a.zip"}), "url and name must have the same archive type: url is zip, name is tar.gz"),
        (json!({"url": "http://h/a.tar"}), "url is tar, name is tar.gz"),
        (json!({"extract_parent": "d"}), "extract_parent path must be absolute"),
        (json!({"creates": "d"}), "creates path must be absolute"),
        (json!({"creates": "/d/../c"}), "creates path must be canonical"),
        (json!({"cleanup": true, "creates": "/c"}), "cleanup requires extract_parent to be set"),
        (json!({"cleanup": true, "extract_parent": "/c"}), "cleanup requires creates to be set"),
        (json!({"owner": ""}), "owner cannot be empty"),
        (json!({"group": ""}), "group cannot be empty"),
    ] {
        let error = ArchiveType::validate(&properties(&extra)).unwrap_err().message;
        assert!(error.contains(message) && !error.contains("hunter2"), "{extra}: {error}");
    }
    for extra in [
        json!({"url": "https://u:p@h:8443/x/a.TAR.GZ?token=1#x"}),
        json!({"name": "/a.tgz"}),
        json!({"name": "/a.tar.xz", "url": "http://h/b.tar.xz"}),
        json!({"owner": 0, "password": 12345, "headers": {"X": 1}, "checksum": null}),
    ] {
        ArchiveType::validate(&properties(&extra)).unwrap();
    }
    for (ensure, message) in [("", "ensure is required"), ("gone", "invalid ensure value: must be one of")] {
        let written = json!({"name": "/a.zip", "ensure": ensure, "url": "http://h/a.zip", "owner": "0", "group": "0"});
        assert!(serde_json::from_value::<Properties>(written).unwrap_err().to_string().contains(message));
    }
    let ftp = properties(&json!({"url": "ftp://h/a.tar.gz"}));
    ArchiveType::validate(&ftp).unwrap();
    let error = ArchiveType::observe(&ftp, &Http, &Host::system(None)).unwrap_err().to_string();
    assert!(error.contains("no suitable provider found"), "{error}");
}

#[test]
fn secrets_are_not_shown() {
    let p = properties(&json!({
        "url": "http://joe:hunter2@h/a.tar.gz?token=hunter2", "username": "joe", "password": "hunter2",
        "headers": {"Authorization": "Bearer hunter2"},
    }));
    let shown = ArchiveType::redacted(&p);
    assert_eq!((&shown["url"], &shown["headers"]), (&json!("http://h/a.tar.gz"), &json!({"Authorization": "***"})));
    assert!(!shown.to_string().contains("hunter2") && !format!("{:?} {:?}", p.password, p.headers).contains("hunter2"));
}

/// A directory with a partial archive, and a server for the archive.
struct Desk {
    dir: tempfile::TempDir,
    web: Web,
    host: Host,
}

impl Desk {
    fn new(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), web: Web::new(answer), host: Host::system(None) }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn properties(&self, extra: &Value) -> Properties {
        let mut all = json!({
            "name": self.path("a.tar.gz"), "url": self.web.url("/a.tar.gz"),
            "owner": effective_uid().to_string(), "group": effective_gid().to_string(),
        });
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        properties(&all)
    }

    fn download(&self, p: &Properties) -> Result<(), String> {
        Http.download(p, &self.host).map(drop).map_err(|error| error.to_string())
    }

    /// Unpacks an archive with this name into `out`.
    fn unpack(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        std::fs::write(self.path(name), bytes).unwrap();
        let url = format!("http://h/{name}");
        let p = self.properties(&json!({"name": self.path(name), "url": url, "extract_parent": self.path("out")}));
        Http.extract(&p, None, &self.host).map_err(|error| error.to_string())
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn sha256(bytes: &[u8]) -> String {
    fs::sha256(bytes)
}

const CONTENT: &[u8] = b"0123456789abcdef";

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let count = AtomicUsize::new(0);
    let desk = Desk::new(move |asked: &Asked| {
        let whole = Reply::file(asked, CONTENT, "v1");
        // The first two requests break; the second one resumes the first.
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => whole.cut(6, Cut::Close),
            1 => whole.cut(4, Cut::Close),
            _ => whole,
        }
    });
    desk.download(&desk.properties(&json!({"checksum": sha256(CONTENT)}))).unwrap();
    let ranges: Vec<String> = desk.web.asked().iter().map(|asked| asked.header("range").to_owned()).collect();
    assert_eq!(ranges, ["", "bytes=6-", "bytes=10-"]);
    assert!(desk.web.asked()[1..].iter().all(|asked| asked.header("if-range") == "\"v1\""));
    assert_eq!(std::fs::read(desk.path("a.tar.gz")).unwrap(), CONTENT);
    assert_eq!(std::fs::metadata(desk.path("a.tar.gz")).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(desk.names(), ["a.tar.gz"]);
}

/// Leaves the bytes of an earlier run, and their note.
fn leave(p: &Properties, bytes: &[u8], validator: &str) {
    let mut partial = ResumableFile::open(Host::system(None).managed_paths(false).existing_place(p.path()).unwrap()).unwrap();
    partial.begin(Some(&format!("{} {validator}", sha256(p.url.as_bytes())))).unwrap();
    partial.append(bytes).unwrap();
}

#[test]
fn a_partial_download_is_used_only_if_it_matches() {
    for (left, validator, checksum, ranges) in [
        (&CONTENT[..7], "\"v1\"", true, &["bytes=7-"][..]),
        (&CONTENT[..7], "\"v1\"", false, &["bytes=7-"]),
        // The server has another file by now.
        (b"another", "\"v0\"", false, &["bytes=7-"]),
        // The bytes are wrong: the checksum detects this, and the server when there are too many.
        (b"another", "\"v1\"", true, &["bytes=7-", ""]),
        (b"much more than there is", "\"v1\"", true, &["bytes=23-", ""]),
        (CONTENT, "\"v1\"", true, &["bytes=16-", ""]),
        (b"", "\"v1\"", true, &[""]),
    ] {
        let desk = Desk::new(|asked: &Asked| Reply::file(asked, CONTENT, "v1"));
        let extra = if checksum { json!({"checksum": sha256(CONTENT)}) } else { json!({}) };
        let p = desk.properties(&extra);
        leave(&p, left, validator);
        desk.download(&p).unwrap();
        let asked: Vec<String> = desk.web.asked().iter().map(|asked| asked.header("range").to_owned()).collect();
        assert_eq!(asked, ranges, "{validator} {checksum}");
        assert_eq!(std::fs::read(desk.path("a.tar.gz")).unwrap(), CONTENT);
        assert_eq!(desk.names(), ["a.tar.gz"]);
    }
    // A partial download of another URL.
    let desk = Desk::new(|asked: &Asked| Reply::file(asked, CONTENT, "v1"));
    let p = desk.properties(&json!({}));
    leave(&Properties { url: format!("{}?other", p.url), ..p.clone() }, b"another", "\"v1\"");
    desk.download(&p).unwrap();
    assert_eq!(desk.web.asked()[0].header("range"), "");
}

#[test]
fn a_failed_download_keeps_the_old_archive() {
    let desk = Desk::new(|asked: &Asked| match asked.path.as_str() {
        "/none.tar.gz" => Reply::status("404 Not Found"),
        "/cut.tar.gz" => Reply::ok(CONTENT).cut(3, Cut::Close),
        "/timed.tar.gz" => Reply::ok(CONTENT).with("Last-Modified", "Fri, 20 Nov 2026 10:00:00 GMT").cut(3, Cut::Close),
        _ => Reply::ok(CONTENT),
    });
    std::fs::write(desk.path("a.tar.gz"), "old").unwrap();
    let small = Host::system(None).with_limits(ResourceLimits { archive_size: 15, ..ResourceLimits::default() });
    let inside = Host::system(None).with_limits(ResourceLimits { internal: false, ..ResourceLimits::default() });
    let elsewhere =
        Host::system(None).with_limits(ResourceLimits { fetch_hosts: Some(vec!["h".into()]), ..ResourceLimits::default() });
    let at = |name: &str| json!({"url": desk.web.url(&format!("/{name}.tar.gz"))});
    let system = Host::system(None);
    for (host, extra, why) in [
        (&system, at("none"), "404 Not Found"),
        (&system, at("cut"), "could not fetch"),
        // Without a checksum, a change within the second is not detected.
        (&system, at("timed"), "could not fetch"),
        (&system, json!({"checksum": "0".repeat(64)}), "checksum mismatch, expected \"0000"),
        (&system, json!({"headers": {"X Y": "z"}}), "the header \"X Y\" can't be sent"),
        (&system, json!({"owner": "nosuchuser"}), "no such user"),
        (&small, json!({}), "more than the 15 bytes"),
        (&inside, json!({}), "internal to this machine"),
        (&elsewhere, json!({}), "not among the `fetch_hosts`"),
    ] {
        let error = Http.download(&desk.properties(&extra), host).unwrap_err().to_string();
        assert!(error.contains(why), "{extra}: {error}");
        assert_eq!(desk.names(), ["a.tar.gz"], "{extra}");
        assert_eq!(std::fs::read(desk.path("a.tar.gz")).unwrap(), b"old");
    }
    // A second process downloads the same archive.
    let p = desk.properties(&json!({}));
    let _other = ResumableFile::open(Host::system(None).managed_paths(false).existing_place(p.path()).unwrap()).unwrap();
    assert!(desk.download(&p).unwrap_err().contains("is being made by another process"));
}

#[test]
fn an_archive_comes_out_as_it_was_packed() {
    let desk = Desk::new(|_: &Asked| Reply::ok(b""));
    let run = Raw { mode: 0o4751, ..file("./d/run", "#!/bin/sh\n") };
    let closed = Raw { mode: 0o550, ..other(b'5', "d/closed/", "") };
    let entries = [
        other(b'5', "./", ""),
        other(b'5', "./d/", ""),
        run,
        closed,
        file("d/closed/in", "x"),
        other(b'2', "d/link", "run"),
        other(b'1', "hard", "d/run"),
        file("f", "first"),
        file("f", "second"),
    ];
    for _ in 0..2 {
        desk.unpack("a.tar.gz", &gzip(&tar_of(&entries))).unwrap();
        let mode = |name: &str| std::fs::metadata(desk.path("out").join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("d/run"), mode("d/closed"), mode("d/closed/in"), mode("d")), (0o751, 0o550, 0o644, 0o755));
        assert_eq!(std::fs::read_link(desk.path("out/d/link")).unwrap(), Path::new("run"));
        let inode = |name: &str| std::fs::metadata(desk.path("out").join(name)).unwrap().ino();
        assert_eq!(inode("hard"), inode("d/run"));
        assert_eq!(std::fs::read(desk.path("out/f")).unwrap(), b"second");
    }
    // `apply` removes the mark at the end of the extraction.
    assert_eq!(desk.names(), [".a.tar.gz.ensign-unpacking", "a.tar.gz", "out"]);
    let tree: Vec<_> = std::fs::read_dir(desk.path("out")).unwrap().collect();
    assert_eq!(tree.len(), 3);
    if effective_uid() == 0 {
        // Owners by number, as the names are unknown.
        let mut owned = tar_of(&[file("o", "x")]);
        let mut header = tar::Header::from_byte_slice(&owned[..512]).clone();
        header.set_uid(1234);
        header.set_gid(4321);
        header.set_username("nosuchuser").unwrap();
        header.set_groupname("daemon").unwrap();
        header.set_cksum();
        owned[..512].copy_from_slice(header.as_bytes());
        desk.unpack("a.tar", &owned).unwrap();
        let meta = std::fs::metadata(desk.path("out/o")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, desk.host.accounts().gid("daemon").unwrap()));
    }
    desk.unpack("a.zip", &zip_of(&[Zipped("z/f", 0o100_640, "zipped"), Zipped("z/l", 0o120_777, "f")])).unwrap();
    assert_eq!(std::fs::read(desk.path("out/z/l")).unwrap(), b"zipped");
}

#[test]
fn a_hostile_or_broken_archive_changes_nothing() {
    let desk = Desk::new(|_: &Asked| Reply::ok(b""));
    let good = || file("good", "x");
    let cut = gzip(&tar_of(&[good()]));
    for (name, bytes) in [
        ("a.tar.gz", gzip(&tar_of(&[good(), file("../evil", "x")]))),
        ("a.tar.gz", gzip(&tar_of(&[good(), other(b'2', "l", "../.."), file("l/evil", "x")]))),
        ("a.tar.gz", gzip(&tar_of(&[good(), other(b'1', "h", "/etc/passwd")]))),
        ("a.tar.gz", cut[..cut.len() - 3].to_vec()),
        ("a.tar.gz", b"not an archive".to_vec()),
        ("a.tar", tar_of(&[good(), other(b'3', "null", "")])),
        ("a.zip", zip_of(&[Zipped("good", 0, "x"), Zipped("/evil", 0, "x")])),
    ] {
        let error = desk.unpack(name, &bytes).unwrap_err();
        assert!(error.contains("could not extract"), "{error}");
        // The archive does not stay either, so that the next run fetches it again.
        assert!(desk.names().is_empty(), "{name}: {:?}", desk.names());
    }
    // Through a link of the archive that stays within.
    let through = tar_of(&[other(b'5', "d", ""), other(b'2', "l", "d"), file("l/f", "x")]);
    assert!(desk.unpack("a.tar", &through).unwrap_err().contains("is in the way"));
    assert!(!desk.path("out/d/f").exists());
    // Through a link of another user that leads out.
    let outside = desk.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, desk.path("out/s")).unwrap();
    assert!(desk.unpack("a.tar", &tar_of(&[file("s/f", "x")])).unwrap_err().contains("is in the way"));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    // The existing file has another checksum.
    let p = desk.properties(&json!({
        "name": desk.path("a.tar"), "url": "http://h/a.tar", "extract_parent": desk.path("other"), "checksum": "00",
    }));
    assert!(Http.extract(&p, None, &desk.host).unwrap_err().to_string().contains("checksum mismatch"));
    let small = ResourceLimits { archive_entries: 1, ..ResourceLimits::default() };
    std::fs::write(desk.path("a.tar"), tar_of(&[file("a", ""), file("b", "")])).unwrap();
    let p = Properties { checksum: String::new(), ..p };
    let error = Http.extract(&p, None, &Host::system(None).with_limits(small)).unwrap_err().to_string();
    assert!(error.contains("the number of its entries is more than 1"), "{error}");
    std::fs::write(desk.path("a.tar"), tar_of(&[file("a", "")])).unwrap();
    let over = Host::system(None);
    over.cancel().cancel();
    assert!(Http.extract(&p, None, &over).unwrap_err().to_string().ends_with("the run was ended before it was complete"));
    assert!(!desk.path("other").exists());
}

#[test]
fn an_interrupted_extraction_is_done_again() {
    let archive = gzip(&tar_of(&[file("app/run", "new"), file("app/lib", "new")]));
    let sum = sha256(&archive);
    let desk = Desk::new(move |_: &Asked| Reply::ok(&archive));
    let p = desk.properties(&json!({
        "checksum": sum, "extract_parent": desk.path("out"), "creates": desk.path("out/app/run"),
    }));
    let steps = || {
        let state = ArchiveType::observe(&p, &Http, &desk.host).unwrap();
        let steps = ArchiveType::diff(&p, &state).unwrap();
        (steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "), steps, state)
    };
    // The archive and the path in `creates` exist, but the run ended during the extraction.
    desk.download(&p).unwrap();
    std::fs::create_dir_all(desk.path("out/app")).unwrap();
    std::fs::write(desk.path("out/app/run"), "new").unwrap();
    std::fs::write(desk.path("out/app/.lib.ensign-new"), "half").unwrap();
    let (said, changes, mut state) = steps();
    assert_eq!(said, "extracted");
    for change in &changes {
        ArchiveType::apply(change, &p, &mut state, &Http, &desk.host).unwrap();
    }
    assert_eq!(steps().0, "");
    assert_eq!(std::fs::read(desk.path("out/app/lib")).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(desk.path("out/app")).unwrap().count(), 2, "the half is gone");
    assert_eq!(desk.names(), ["a.tar.gz", "out"]);
}
