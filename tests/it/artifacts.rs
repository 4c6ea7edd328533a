//! Attacks on the download of an `apply`: a hostile server, or the wrong artifact signed. Each attack has its own answer and
//! leaves nothing behind.

use std::path::Path;
use std::time::Instant;

use ensign::model::HumanDuration;
use ensign::wire::command::{Action, Apply};
use ensign::wire::{CommandOutcome, CommandResult};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use crate::support::node_dir::{NodeDir, NodeSettings};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, on_every_server};
use crate::support::web::{Cut, Reply, Web};

/// A bundle whose manifest writes a file, with further entries.
fn bundle(more: impl FnOnce(&mut Builder<GzEncoder<Vec<u8>>>)) -> Vec<u8> {
    let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let manifest = b"ccm:\n  resources:\n    - exec:\n        - x:\n            command: touch /tmp/ensign-hostile\n";
    append(&mut tar, "manifest.yaml", EntryType::Regular, None, manifest);
    more(&mut tar);
    tar.into_inner().unwrap().finish().unwrap()
}

/// Appends an entry that no honest program makes: the name is taken unchanged.
fn append(tar: &mut Builder<GzEncoder<Vec<u8>>>, name: &str, kind: EntryType, link: Option<&str>, content: &[u8]) {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    if let Some(link) = link {
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    }
    header.set_cksum();
    tar.append(&header, content).unwrap();
}

/// A PAX header that gives the next entry another name than its own.
fn pax(tar: &mut Builder<GzEncoder<Vec<u8>>>, name: &str) {
    let record = format!(" path={name}\n");
    let length = (1..).find(|length: &usize| length.to_string().len() + record.len() == *length).unwrap();
    append(tar, "pax", EntryType::XHeader, None, format!("{length}{record}").as_bytes());
    append(tar, "harmless", EntryType::Regular, None, b"x");
}

fn bomb() -> Vec<u8> {
    bundle(|tar| append(tar, "zeros", EntryType::Regular, None, &vec![0; 64 << 20]))
}

fn signed(web: &Web, path: &str, bytes: &[u8]) -> Apply {
    Apply {
        url: web.url(path),
        sha256: ensign::host::fs::sha256(bytes),
        size: bytes.len() as u64,
        data: std::collections::BTreeMap::new(),
    }
}

async fn apply_result(fleet: &SingleNodeFleet, place: &NodeDir, apply: Apply, timeout: u64) -> CommandResult {
    let mut command = place.command(fleet, Action::Apply(apply));
    command.options.timeout = HumanDuration::seconds(timeout);
    fleet.send(&command).await;
    place.only_result(&fleet.bus, command.id).await
}

#[test]
fn hostile_artifacts_are_refused_each_with_its_own_message() {
    on_every_server(async |binary| {
        let cases: Vec<(&'static str, Vec<u8>, &'static str)> = vec![
            ("bomb", bomb(), "too large: its size unpacked"),
            ("dotdot", bundle(|tar| append(tar, "../../evil", EntryType::Regular, None, b"x")), "../../evil"),
            ("absolute", bundle(|tar| append(tar, "/tmp/ensign-hostile", EntryType::Regular, None, b"x")), "/tmp/ensign-hostile"),
            ("symlink", bundle(|tar| append(tar, "link", EntryType::Symlink, Some("/etc"), b"")), "link"),
            ("hardlink", bundle(|tar| append(tar, "hard", EntryType::Link, Some("manifest.yaml"), b"")), "hard"),
            ("device", bundle(|tar| append(tar, "null", EntryType::Char, None, b"")), "null"),
            ("fifo", bundle(|tar| append(tar, "pipe", EntryType::Fifo, None, b"")), "pipe"),
            ("pax", bundle(|tar| pax(tar, "../../evil")), "of kind 'x'"),
            ("case", bundle(|tar| append(tar, "MANIFEST.yaml", EntryType::Regular, None, b"x")), "MANIFEST.yaml"),
            ("twice", bundle(|tar| append(tar, "manifest.yaml", EntryType::Regular, None, b"x")), "manifest.yaml"),
            (
                "garbage",
                {
                    let mut bytes = vec![0x1f, 0x8b];
                    bytes.extend([7; 500]);
                    bytes
                },
                "garbage",
            ),
        ];
        let served: Vec<_> = cases.iter().map(|(name, bytes, _)| (format!("/{name}"), bytes.clone())).collect();
        let good = bundle(|_| {});
        let mut swapped = good.clone();
        *swapped.last_mut().unwrap() ^= 1;
        let other = swapped.clone();
        let web = Web::new(move |asked| match asked.path.as_str() {
            "/swapped" => Reply::ok(&other),
            "/metadata" => Reply::redirect("http://169.254.169.254/latest/meta-data/"),
            "/loopback" => Reply::redirect("http://[::1]:1/"),
            "/scheme" => Reply::redirect("file:///etc/shadow"),
            "/loop" => Reply::redirect("/loop"),
            "/slow" => Reply::ok(&[7; 5000]).cut(100, Cut::Hang),
            "/short" => Reply::ok(&[7; 5000]).cut(100, Cut::Close),
            path => {
                served.iter().find(|(at, _)| at == path).map_or(Reply::status("404 Not Found"), |(_, bytes)| Reply::ok(bytes))
            }
        });
        let fleet = SingleNodeFleet::new(binary, "").await;
        let wishes = NodeSettings {
            head: "max_bundle = \"1MiB\"".to_owned(),
            limits: "fetch_hosts = [\"127.0.0.1\"]".to_owned(),
            ..NodeSettings::default()
        };
        let place = NodeDir::new(&fleet, "web1", &fleet.server.url(), &wishes);
        let _agent = place.start(&fleet.bus, &mut place.process()).await;
        let refused = async |apply: Apply, code: &str, words: &str| {
            let url = apply.url.clone();
            let done = apply_result(&fleet, &place, apply, 30).await;
            let said = done.message.clone().unwrap_or_default();
            assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some(code)), "{url}: {done:?}");
            assert!(said.contains(words), "{url}: {said}");
        };
        for (name, bytes, words) in &cases {
            refused(signed(&web, &format!("/{name}"), bytes), "bad_artifact", words).await;
        }
        refused(signed(&web, "/swapped", &good), "bad_artifact", "SHA-256").await;
        refused(Apply { size: good.len() as u64 + 1, ..signed(&web, "/swapped", &good) }, "bad_artifact", "bytes instead of")
            .await;
        refused(Apply { size: 2 << 20, ..signed(&web, "/swapped", &good) }, "local_limit", "more than the 1048576").await;
        refused(signed(&web, "/metadata", &good), "local_limit", "169.254.169.254").await;
        refused(signed(&web, "/loopback", &good), "local_limit", "::1").await;
        // A server that sends little or nothing costs no more than the time limit of the command.
        let start = Instant::now();
        let slow = Apply { size: 5000, ..signed(&web, "/slow", &good) };
        let slow = apply_result(&fleet, &place, slow, 2).await;
        assert_eq!(slow.outcome, CommandOutcome::Failed, "{slow:?}");
        assert!(slow.message.unwrap().contains("/slow within ") && start.elapsed() < PATIENCE);
        for path in ["/scheme", "/loop", "/short", "/none"] {
            let done = apply_result(&fleet, &place, Apply { size: 5000, ..signed(&web, path, &good) }, 30).await;
            assert!(matches!(done.outcome, CommandOutcome::Failed | CommandOutcome::Refused), "{path}: {done:?}");
            assert!(done.message.unwrap().contains(path), "{path}");
        }
        // The object store is hostile as well.
        let bucket = fleet.subjects.bucket();
        fleet.bus.ensure_bucket(&bucket, 1).await.unwrap();
        fleet.bus.object_put(&bucket, "swapped", &swapped).await.unwrap();
        let stored = |key: &str| Apply { url: format!("obj://{bucket}/{key}"), ..signed(&web, "", &good) };
        refused(stored("swapped"), "bad_artifact", "SHA-256").await;
        let none = apply_result(&fleet, &place, stored("none"), 30).await;
        assert!(none.outcome == CommandOutcome::Failed && none.message.as_ref().unwrap().contains("does not exist"), "{none:?}");

        assert!(!Path::new("/tmp/ensign-hostile").exists());
        // A message may be on its way to the disk.
        fleet.until("nothing is left", || place.leftovers().is_empty()).await;
        // The node works as before.
        let command = place.append_command(&fleet, "effect");
        fleet.send(&command).await;
        assert_eq!(place.only_result(&fleet.bus, command.id).await.outcome, CommandOutcome::Changed);
    });
}
