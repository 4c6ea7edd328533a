//! Archives in practice: a program that is killed during a download and an extraction, over TLS, and from a shell.
//! `tests/cases/archive/` has the properties.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ensign::wire::{CommandOutcome, CommandResult};
use serde_json::json;

use crate::support::certificates::Certificates;
use crate::support::single_node::{PATIENCE, SingleNodeFleet, ensure_action, on_every_server};
use crate::support::web::{Asked, Cut, Reply, Web};

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ensign"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.0.path()).current_dir(self.0.path());
        command.args(["ensure", "archive"]).arg(self.path("app.tar.gz")).args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Waits for a condition.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A gzipped tar archive with this number of files, each with this content.
fn packed(files: usize, content: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for number in 0..files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("app/{number:05}"), content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

#[test]
fn a_killed_download_is_resumed() {
    let desk = Desk::new();
    let content = packed(1, &vec![7; 300_000]);
    let (half, first) = (content.len() / 2, Arc::new(AtomicBool::new(true)));
    let (served, hang) = (content.clone(), Arc::clone(&first));
    let web = Web::new(move |asked: &Asked| {
        let reply = Reply::file(asked, &served, "v1");
        if hang.swap(false, Ordering::Relaxed) { reply.cut(half, Cut::Hang) } else { reply }
    });
    let url = web.url("/app.tar.gz");
    let args = ["--url", &url, "--extract-parent", desk.0.path().to_str().unwrap()];
    let child = desk.command(&args).spawn().unwrap();
    let part = desk.path(".app.tar.gz.ensign-part");
    until("half of it", || std::fs::metadata(&part).is_ok_and(|meta| meta.len() == half as u64));
    kill(child);
    assert!(!desk.path("app.tar.gz").exists() && part.exists());
    let output = desk.run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let asked = web.asked();
    assert_eq!((asked.len(), asked[1].header("range"), asked[1].header("if-range")), (2, &*format!("bytes={half}-"), "\"v1\""));
    assert_eq!(std::fs::read(desk.path("app.tar.gz")).unwrap(), content);
    assert_eq!(std::fs::metadata(desk.path("app/00000")).unwrap().len(), 300_000);
    assert_eq!(desk.names(), ["app", "app.tar.gz"]);
}

#[test]
fn an_interrupt_ends_a_download_at_once_and_keeps_its_part() {
    let desk = Desk::new();
    let web = Web::new(|asked: &Asked| Reply::file(asked, &[7; 1000], "v1").cut(500, Cut::Hang));
    let child = desk.command(&["--url", &web.url("/app.tar.gz")]).spawn().unwrap();
    let part = desk.path(".app.tar.gz.ensign-part");
    until("half of it", || std::fs::metadata(&part).is_ok_and(|meta| meta.len() == 500));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success() && text(&output).contains("the run was ended"), "{}", text(&output));
    assert_eq!(desk.names(), [".app.tar.gz.ensign-from", ".app.tar.gz.ensign-part"]);
}

#[test]
fn a_killed_extraction_is_done_again() {
    let desk = Desk::new();
    let (files, content) = (20_000, vec![b'x'; 2000]);
    let served = packed(files, &content);
    let web = Web::new(move |asked: &Asked| Reply::file(asked, &served, "v1"));
    // The path in `creates` appears first: its existence alone proves nothing.
    let (out, creates) = (desk.path("out"), desk.path("out/app/00000"));
    let (url, sum) = (web.url("/app.tar.gz"), ensign::host::fs::sha256(&packed(files, &content)));
    let args =
        ["--url", &url, "--checksum", &sum, "--extract-parent", out.to_str().unwrap(), "--creates", creates.to_str().unwrap()];
    let child = desk.command(&args).spawn().unwrap();
    until("the first files", || desk.path("out/app/00010").exists());
    kill(child);
    let whole = |path: &Path| std::fs::read(path).is_ok_and(|found| found == content);
    let count =
        || std::fs::read_dir(desk.path("out/app")).unwrap().map(|entry| entry.unwrap().path()).filter(|path| whole(path)).count();
    assert!(count() < files, "the program ended before the kill");
    // Only temporary files may be incomplete.
    for entry in std::fs::read_dir(desk.path("out/app")).unwrap() {
        let path = entry.unwrap().path();
        assert!(whole(&path) || path.to_str().unwrap().ends_with(".ensign-new"), "{}", path.display());
    }
    let output = desk.run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!((count(), std::fs::read_dir(desk.path("out/app")).unwrap().count()), (files, files));
    assert_eq!(web.asked().len(), 1, "the archive was whole");
    assert_eq!(desk.names(), ["app.tar.gz", "out"]);
}

#[test]
fn over_tls_the_certificate_of_the_server_is_verified() {
    let (desk, certificates, others) = (Desk::new(), Certificates::new(), Certificates::new());
    std::fs::create_dir(desk.path("served")).unwrap();
    std::fs::File::create(desk.path("served/app.tar.gz")).unwrap().write_all(&packed(1, b"over TLS\n")).unwrap();
    let web = crate::tls::Web::new(&certificates, &desk.path("served"));
    let ended = |host: &str, authority: &Certificates| {
        let url = format!("https://{host}:{}/app.tar.gz", web.port());
        let mut command = desk.command(&["--url", &url, "--extract-parent", desk.0.path().to_str().unwrap()]);
        let output = command.env("SSL_CERT_FILE", authority.path("ca.pem")).output().unwrap();
        (output.status.code(), text(&output))
    };
    let (code, said) = ended("localhost", &others);
    assert!(code == Some(1) && said.contains("invalid peer certificate"), "{said}");
    assert_eq!(desk.names(), ["served"]);
    let (code, said) = ended("localhost", &certificates);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(std::fs::read(desk.path("app/00000")).unwrap(), b"over TLS\n");
}

#[test]
fn a_password_may_come_from_the_environment() {
    let desk = Desk::new();
    let web = Web::new(|asked: &Asked| match asked.header("authorization") {
        "Basic am9lOmh1bnRlcjI=" => Reply::ok(b"bytes"),
        _ => Reply::status("401 Unauthorized"),
    });
    let args = ["--url", &web.url("/app.tar.gz"), "--username", "joe", "--output", "json"];
    let output = desk.command(&args).env("HTTP_PASSWORD", "hunter2").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(!text(&output).contains("hunter2"));
    assert_eq!(desk.run(&["absent", "--url", &web.url("/app.tar.gz")]).status.code(), Some(0));
    assert!(desk.names().is_empty());
}

#[test]
fn an_agent_keeps_its_limits_while_it_fetches_and_unpacks() {
    on_every_server(async |binary| {
        let (one, two) = (packed(1, b"x"), packed(2, b"x"));
        let web = Web::new(move |asked: &Asked| match asked.path.as_str() {
            "/one.tar.gz" => Reply::ok(&one),
            "/two.tar.gz" => Reply::ok(&two),
            _ => Reply::redirect(&format!("http://localhost:{}/one.tar.gz", asked.header("host").rsplit(':').next().unwrap())),
        });
        let dir = tempfile::tempdir().unwrap();
        let limits = format!("fetch_hosts = [\"127.0.0.1\"]\npaths = [{:?}]\narchive_entries = 1\n", dir.path());
        let fleet = SingleNodeFleet::new(binary, &limits).await;
        let _agent = fleet.start_agent().await;
        let done = async |name: &str, out: &Path| -> CommandResult {
            let (owner, group) = (nix::unistd::geteuid().to_string(), nix::unistd::getegid().to_string());
            let properties = json!({
                "name": dir.path().join(format!("{name}.tar.gz")), "ensure": "present", "url": web.url(&format!("/{name}.tar.gz")),
                "owner": owner, "group": group, "extract_parent": out,
            });
            let command = fleet.command(ensure_action("archive", &properties));
            fleet.send(&command).await;
            fleet.only_result(command.id).await
        };
        let out = dir.path().join("out");
        let result = done("one", &out).await;
        assert_eq!(result.outcome, CommandOutcome::Changed, "{result:?}");
        assert!(out.join("app/00000").exists());
        for (name, why) in [("two", "the number of its entries is more than 1"), ("elsewhere", "not among the `fetch_hosts`")] {
            let result = done(name, &out).await;
            let errors = result.event.as_ref().map(|event| event.errors.join(" ")).unwrap_or_default();
            assert!(result.outcome == CommandOutcome::Failed && errors.contains(why), "{result:?}");
        }
        let result = done("one", Path::new("/tmp")).await;
        assert_eq!((result.outcome, result.code.as_deref()), (CommandOutcome::Refused, Some("local_limit")), "{result:?}");
    });
}
