//! Manifests that are no file of this machine: bundles, directories, web servers and object stores. They run like a file, leave
//! nothing behind, and a missing one has a clear error.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ensign::manifest::bundle;
use ensign::transport::{Bus, BusSettings};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::local::{Desk, Ran, finish, start};
use crate::support::certificates::Certificates;
use crate::support::nats::{NatsServer, Options, binaries};
use crate::support::port::Port;
use crate::support::single_node::PATIENCE;
use crate::support::web::{Asked, Cut, Reply, Web};

/// A manifest whose resources need every file beside it.
const SITE: &str = "\
data: {greeting: hello}
ccm:
  resources:
  - file: {name: \"@D@/note\", ensure: present, source: files/note, @ME@, mode: \"0644\"}
  - file: {name: \"@D@/said\", ensure: present, content: \"{{ Data.greeting }} {{ Environ.WHO }} {{ readFile('files/note') }}\", @ME@, mode: \"0644\"}
  - apply: {name: more/nested.yaml}
";

const NESTED: &str = "\
ccm:
  resources:
  - file: {name: \"@D@/nested\", ensure: present, source: own, @ME@, mode: \"0644\"}
";

/// A manifest without files.
const ALONE: &str =
    "ccm:\n  resources:\n  - file: {name: \"@D@/alone\", ensure: present, content: \"x\\n\", @ME@, mode: \"0644\"}\n";

/// A directory `site` with a manifest, and the files that it needs.
fn site() -> Desk {
    let desk = Desk::new();
    ["site", "site/files", "site/more"].iter().for_each(|name| std::fs::create_dir(desk.path(name)).unwrap());
    desk.write("site/manifest.yaml", SITE);
    desk.write("site/.env", "WHO=world\n");
    desk.write("site/files/note", "a note\n");
    desk.write("site/more/nested.yaml", NESTED);
    desk.write("site/more/own", "nested\n");
    desk
}

fn packed(desk: &Desk) -> Vec<u8> {
    bundle::pack(&desk.path("site")).unwrap()
}

/// Panics when a fetched or unpacked file is left.
#[track_caller]
fn is_clean(desk: &Desk) {
    let left: Vec<PathBuf> = std::fs::read_dir(desk.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Panics unless the manifest of the site was applied; removes its files.
#[track_caller]
fn is_applied(desk: &Desk) {
    for (name, content) in [("note", "a note\n"), ("said", "hello world a note\n"), ("nested", "nested\n")] {
        assert_eq!(std::fs::read_to_string(desk.path(name)).unwrap(), content, "{name}");
        std::fs::remove_file(desk.path(name)).unwrap();
    }
    is_clean(desk);
}

/// The latest run on this host.
fn latest_session(desk: &Desk) -> serde_json::Value {
    desk.run(&["session", "show", "--output", "json"]).ends(0).json()
}

/// The run must end with this code and these texts, and leave nothing.
#[track_caller]
fn refused(desk: &Desk, args: &[&str], code: i32, said: &[&str]) -> Ran {
    let ran = desk.run(args);
    ran.ends(code).says(said).says(&["hint: "]);
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
    assert_eq!(ran.out, "", "{ran:?}");
    ["note", "alone"].iter().for_each(|name| assert!(!desk.path(name).exists(), "{args:?}"));
    is_clean(desk);
    ran
}

#[test]
fn bundles_and_directories_are_applied_as_files_are() {
    let desk = site();
    std::fs::write(desk.path("b.tar.gz"), packed(&desk)).unwrap();
    std::fs::write(desk.path("b.odd"), packed(&desk)).unwrap();
    let tar = std::process::Command::new("tar").args(["czf", "hand.tgz", "site"]).current_dir(desk.path("")).status().unwrap();
    assert!(tar.success());
    for manifest in ["site", "site/", "b.tar.gz", "b.odd", "hand.tgz"] {
        desk.run(&["check", manifest]).ends(0).prints(&[manifest, "3 resources, no errors"]);
        let plan = desk.run(&["plan", manifest]);
        plan.ends(0).prints(&["+a note", "would"]);
        desk.run(&["apply", manifest, "--noop", "--diff"]).ends(0).prints(&["+hello world a note"]);
        assert!(!desk.path("note").exists());
        let ran = desk.run(&["apply", manifest]);
        ran.ends(0).prints(&["~ changed", "file#"]);
        assert_eq!(ran.err, "");
        assert!(latest_session(&desk)["what"].as_str().unwrap().starts_with(manifest), "{}", latest_session(&desk));
        desk.run(&["apply", manifest, "--detailed-exitcodes"]).ends(0);
        is_applied(&desk);
    }
    let digest = ensign::wire::digest(&packed(&desk));
    desk.run(&["apply", "b.tar.gz", "--sha256", &digest.to_uppercase()]).ends(0);
    assert_eq!(latest_session(&desk)["digest"], json!(digest));
    is_applied(&desk);
    let events = desk.run(&["apply", "b.tar.gz", "--noop", "--output", "json"]).ends(0).json();
    assert_eq!(events["events"][0]["manifest"], json!({"source": "b.tar.gz", "digest": digest}));
    desk.write("over.yaml", "data: {greeting: bye}\n");
    desk.run(&["apply", "b.tar.gz", "--data", "over.yaml", "--no-read-env"]).ends(0);
    assert_eq!(std::fs::read_to_string(desk.path("said")).unwrap(), "bye  a note\n");
    desk.run(&["apply", "b.tar.gz", "--render"]).ends(0).prints(&["greeting: hello"]);
    is_clean(&desk);
}

#[test]
fn input_that_is_no_manifest_is_refused_with_a_hint() {
    let desk = site();
    std::fs::create_dir(desk.path("empty")).unwrap();
    let bundle = packed(&desk);
    std::fs::write(desk.path("cut.tar.gz"), &bundle[..bundle.len() / 2]).unwrap();
    std::fs::write(desk.path("x.tar"), [0xff, 0xfe, 0]).unwrap();
    std::fs::write(desk.path("large.tar.gz"), [&[0x1f, 0x8b][..], &vec![0; 64 << 20]].concat()).unwrap();
    for name in ["two", "two/a", "two/b"] {
        std::fs::create_dir(desk.path(name)).unwrap();
    }
    desk.write("two/a/manifest.yaml", ALONE);
    desk.write("two/b/manifest.yaml", ALONE);
    let tar = |name: &str, directory: &str| {
        let ran = std::process::Command::new("tar").args(["czf", name, "-C", directory, "."]).current_dir(desk.path("")).status();
        assert!(ran.unwrap().success());
    };
    tar("two.tar.gz", "two");
    tar("none.tar.gz", "empty");
    let other = "0".repeat(64);
    let digest = ensign::wire::digest(&bundle);
    std::fs::write(desk.path("b.tar.gz"), &bundle).unwrap();
    for (args, code, said) in [
        (&["empty"][..], 2, &["could not read ", "empty/manifest.yaml", "a directory needs a manifest.yaml"][..]),
        (&["nowhere.tar.gz"], 2, &["could not read nowhere.tar.gz", "check the path"]),
        (&["cut.tar.gz"], 2, &["cut.tar.gz: the bundle is not a whole gzipped tar archive", "ensign bundle create"]),
        (&["two.tar.gz"], 2, &["two.tar.gz: the bundle has two manifests: ", "a/manifest.yaml", "b/manifest.yaml"]),
        (&["none.tar.gz"], 2, &["none.tar.gz: the bundle has no manifest.yaml"]),
        (&["large.tar.gz"], 2, &["large.tar.gz gives more than 67108864 bytes", "`archive` resources"]),
        (&["x.tar"], 2, &["x.tar is not UTF-8 text", "a bundle is a gzipped tar archive"]),
        (&["b.tar.gz", "--sha256", &other], 3, &["b.tar.gz does not match --sha256", &digest, &other]),
        (&["site/manifest.yaml", "--sha256", &other], 3, &["site/manifest.yaml does not match --sha256", &other]),
        (&["ftp://u:hunter2@h/x"], 2, &["unsupported manifest source: ftp://h/x", "https://host/path", "obj://bucket/key"]),
        (&["file:///x/m.yaml"], 2, &["unsupported manifest source: file:///x/m.yaml", "by its path: /x/m.yaml"]),
        (&["obj://bucket"], 2, &["key is required for object store manifest source"]),
    ] {
        for verb in ["apply", "plan", "check"] {
            refused(&desk, &[&[verb], args].concat(), code, said);
        }
    }
    desk.run(&["apply", "site", "--sha256", &other]).ends(2).says(&["site is a directory"]);
    desk.run(&["apply", "b.tar.gz", "--sha256", "abc"]).ends(2).says(&["64 hex digits"]);
}

#[test]
fn a_manifest_from_a_web_server_is_applied() {
    let desk = site();
    let (bundle, alone) = (packed(&desk), desk.fill(ALONE).into_bytes());
    let (served, single) = (bundle.clone(), alone.clone());
    let web = Web::new(move |asked: &Asked| {
        match asked.path.split('?').next().unwrap() {
        "/moved" => Reply::redirect("/site"),
        // The bytes decide over the format, not the name.
        "/site" | "/b.yaml" => Reply::ok(&served),
        "/m.yaml" | "/m.tar.gz" => Reply::ok(&single),
        "/login" => Reply::ok(b"<html>please log in</html>"),
        "/bytes" => Reply::ok(b"\xff\xfe"),
        "/wrong" => Reply::ok(b"ccm:\n  resuorces: []\n"),
        "/relative" => Reply::ok(b"ccm:\n  resources:\n  - file: {name: /nowhere/x, ensure: present, source: files/note, owner: root, group: root, mode: '0644'}\n"),
        "/secret" if asked.header("authorization") == "Basic dTpodW50ZXIy" => Reply::ok(&single),
        "/secret" => Reply::status("401 Unauthorized"),
        "/broken" => Reply::status("503 Service Unavailable"),
        "/cut" => Reply::ok(b"ccm: {}").cut(3, Cut::Close),
        _ => Reply::status("404 Not Found"),
    }
    });
    for path in ["/site?token=hunter2", "/moved", "/b.yaml"] {
        let url = web.url(path);
        let shown = url.split('?').next().unwrap();
        let ran = desk.run(&["apply", &url]);
        let digest = ensign::wire::digest(&bundle);
        ran.ends(0).says(&[&format!("{shown}: sha256 {digest}, {} bytes", bundle.len())]);
        assert!(!ran.err.contains("hunter2"), "{ran:?}");
        assert_eq!((&latest_session(&desk)["what"], &latest_session(&desk)["digest"]), (&json!(shown), &json!(digest)));
        is_applied(&desk);
        let ran = desk.run(&["plan", &url, "--sha256", &digest]);
        assert_eq!(ran.ends(0).err, "", "what is pinned needs no word");
        is_clean(&desk);
    }
    for path in ["/m.yaml", "/m.tar.gz"] {
        desk.run(&["check", &web.url(path)]).ends(0).prints(&[&web.url(path), "1 resource, no errors"]);
        desk.run(&["apply", &web.url(path)]).ends(0).prints(&["~ changed"]);
        assert_eq!(std::fs::read_to_string(desk.path("alone")).unwrap(), "x\n");
        std::fs::remove_file(desk.path("alone")).unwrap();
        is_clean(&desk);
    }
    let secret = web.url("/secret");
    desk.run(&["apply", &secret.replace("://", "://u:hunter2@"), "--noop"]).ends(0).says(&[&format!("{secret}: sha256")]);
    let other = "0".repeat(64);
    let nobody = Port::new();
    let closed = format!("http://u:hunter2@127.0.0.1:{}/m", nobody.number());
    for (url, more, code, said) in [
        (web.url("/none"), &[][..], 2, &["/none: the server answered 404 Not Found", "check the URL"][..]),
        (secret.replace("://", "://u:wrong@"), &[], 2, &["401 Unauthorized", "https://USER:PASSWORD@HOST/PATH"]),
        (web.url("/broken"), &[], 4, &["503 Service Unavailable", "try again later"]),
        (web.url("/cut"), &[], 4, &["could not fetch http://127.0.0.1"]),
        (web.url("/bytes"), &[], 2, &["/bytes: it is neither a bundle nor text", "a manifest is YAML or JSON"]),
        (web.url("/wrong"), &[], 2, &["/wrong:2:3: unknown key \"resuorces\""]),
        (
            web.url("/m.yaml"),
            &["--sha256", &other],
            3,
            &["/m.yaml does not match --sha256", &ensign::wire::digest(&alone), &other],
        ),
        (closed.clone(), &[], 4, &["could not fetch http://127.0.0.1", "check that the server runs"]),
    ] {
        for verb in ["apply", "check"] {
            refused(&desk, &[&[verb, &*url], more].concat(), code, said);
        }
    }
    let ran = desk.run(&["apply", &web.url("/login")]);
    ran.ends(2).says(&["/login", "a manifest is a map"]);
    let ran = desk.run(&["apply", &web.url("/none"), "--output", "json"]);
    assert!(ran.ends(2).json()["error"].as_str().unwrap().contains("404"), "{ran:?}");
    // The manifest has no files, even if the working directory has one of that name.
    std::fs::create_dir(desk.path("files")).unwrap();
    desk.write("files/note", "not meant\n");
    let ran = desk.run(&["apply", &web.url("/relative"), "--noop", "--diff"]);
    assert!(!ran.out.contains("not meant"), "{ran:?}");
    is_clean(&desk);
}

#[test]
fn over_tls_the_certificate_of_the_server_is_verified() {
    let desk = Desk::new();
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let served = desk.path("served");
    std::fs::create_dir(&served).unwrap();
    desk.write("served/m.yaml", ALONE);
    let web = crate::tls::Web::new(&certificates, &served);
    let url = format!("https://localhost:{}/m.yaml", web.port());
    let run = |authority: &Certificates| {
        finish(desk.command(&["apply", &url]).env("SSL_CERT_FILE", authority.path("ca.pem")).spawn().unwrap())
    };
    run(&others).ends(4).says(&[&format!("could not fetch {url}"), "invalid peer certificate", "SSL_CERT_FILE"]);
    assert!(!desk.path("alone").exists());
    run(&certificates).ends(0).prints(&["~ changed"]);
    is_clean(&desk);
}

/// A server with these objects.
fn store(binary: &Path, objects: &[(&str, &[u8])]) -> NatsServer {
    let server = NatsServer::start_binary(binary, &Options { jetstream: true, ..Options::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bus = Bus::connect(&BusSettings { servers: vec![server.url()], ..BusSettings::default() }).await.unwrap();
        bus.ensure_bucket("sites", 1).await.unwrap();
        for (key, content) in objects {
            bus.object_put("sites", key, content).await.unwrap();
        }
    });
    server
}

#[test]
fn a_manifest_from_an_object_store_is_applied() {
    for binary in binaries() {
        let desk = site();
        let bundle = packed(&desk);
        let digest = ensign::wire::digest(&bundle);
        let alone = "ccm:\n  resources:\n  - exec: {name: 'true'}\n";
        let objects: &[(&str, &[u8])] = &[("base/site.tar.gz", &bundle), ("alone", alone.as_bytes()), ("odd", b"\xff\xfe")];
        let server = store(&binary, objects);
        let nats = server.url();
        let run = |verb: &str, url: &str, more: &[&str]| desk.run(&[&[verb, url, "--nats", &nats], more].concat());
        run("check", "obj://sites/base/site.tar.gz", &[]).ends(0).prints(&["obj://sites/base/site.tar.gz: 3 resources"]);
        let said = format!("obj://sites/base/site.tar.gz: sha256 {digest}, {} bytes", bundle.len());
        run("apply", "obj://sites/base/site.tar.gz", &[]).ends(0).says(&[&said]);
        assert_eq!(latest_session(&desk)["what"], json!("obj://sites/base/site.tar.gz"));
        is_applied(&desk);
        run("plan", "obj://sites/alone", &["--sha256", &ensign::wire::digest(alone.as_bytes())]).ends(0).prints(&["exec#true"]);
        let other = "0".repeat(64);
        for (key, more, code, said) in [
            ("sites/none", &[][..], 2, &["obj://sites/none does not exist", "nats object ls"][..]),
            ("nowhere/x", &[], 2, &["could not fetch obj://nowhere/x", "there is no such bucket"]),
            ("sites/odd", &[], 2, &["obj://sites/odd: it is neither a bundle nor text"]),
            ("sites/alone", &["--sha256", &other], 3, &["obj://sites/alone does not match --sha256", &other]),
        ] {
            refused(&desk, &[&["apply", &format!("obj://{key}"), "--nats", &nats], more].concat(), code, said);
        }
        drop(server);
        refused(
            &desk,
            &["apply", "obj://sites/alone", "--nats", &nats],
            4,
            &["could not connect to NATS", "--nats URL or NATS_URL"],
        );
    }
}

#[test]
fn an_interrupted_command_leaves_nothing() {
    let begun = "ccm:\n  resources:\n  - exec: {name: long, command: \"touch @D@/started; sleep 60\", provider: shell}\n";
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // During the download.
        let desk = site();
        let web = Web::new(|_: &Asked| Reply::ok(&[b'#'; 4096]).cut(100, Cut::Hang));
        let child = desk.command(&["apply", &web.url("/m")]).spawn().unwrap();
        let until = Instant::now() + PATIENCE;
        while web.asked().is_empty() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        finish(child).ends(4).says(&["the command was cancelled; nothing was run"]);
        is_clean(&desk);
        // During the run.
        desk.write("site/manifest.yaml", begun);
        std::fs::write(desk.path("b.tar.gz"), packed(&desk)).unwrap();
        let child = start(&mut desk.command(&["apply", "b.tar.gz"]), &desk.path("started"));
        assert_eq!(std::fs::read_dir(desk.path("tmp")).unwrap().count(), 1);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        finish(child).ends(4).says(&["the run was cancelled"]);
        is_clean(&desk);
    }
}
