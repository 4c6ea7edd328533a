//! `ensign bundle`: the same bytes everywhere, `show`, and the upload to the place where nodes find it.

use serde_json::json;

use crate::local::Desk;
use crate::support::fleet::{Fleet, ensign, owner};
use crate::support::nats::binaries;

const SITE: &str = "\
ccm:
  resources:
  - file: {name: \"@D@/note\", ensure: present, source: note, @ME@, mode: \"0644\"}
  - exec: {name: 'true'}
";

fn site() -> Desk {
    let desk = Desk::new();
    ["site", "site/bin", "again"].iter().for_each(|name| std::fs::create_dir(desk.path(name)).unwrap());
    desk.write("site/manifest.yaml", SITE);
    desk.write("site/note", "a note\n");
    desk.write("site/bin/tool", "#!/bin/sh\n");
    desk
}

#[test]
fn a_directory_gives_the_same_bundle_each_time() {
    let desk = site();
    let made = desk.run(&["bundle", "create", "site", "one.tar.gz", "--output", "json"]).ends(0).json();
    let bytes = std::fs::read(desk.path("one.tar.gz")).unwrap();
    let digest = ensign::wire::digest(&bytes);
    assert_eq!(made, json!({"source": "one.tar.gz", "sha256": digest, "size": bytes.len()}));
    // Later, under another name of the directory, over an existing bundle.
    desk.write("site/note", "a note\n");
    let line = format!("one.tar.gz --sha256 {digest} --size {}", bytes.len());
    desk.run(&["bundle", "create", "./site/", "one.tar.gz"]).ends(0).prints(&[&line]);
    assert_eq!(std::fs::read(desk.path("one.tar.gz")).unwrap(), bytes);

    let shown = desk.run(&["bundle", "show", "one.tar.gz", "--output", "json"]).ends(0).json();
    assert_eq!(shown["sha256"], json!(digest));
    let note = json!({"path": "note", "size": 7, "mode": "0644"});
    assert!(shown["files"].as_array().unwrap().contains(&note) && shown["files"].as_array().unwrap().len() == 3, "{shown}");
    assert_eq!(shown["resources"], json!([format!("file#{}", desk.path("note").display()), "exec#true"]));
    desk.run(&["bundle", "show", "one.tar.gz"]).ends(0).prints(&[&digest, "0644   7  note", "bin/tool", "exec#true"]);
    desk.run(&["apply", "one.tar.gz"]).ends(0);
    assert_eq!(std::fs::read_to_string(desk.path("note")).unwrap(), "a note\n");
}

#[test]
fn an_invalid_bundle_directory_is_reported_and_nothing_is_written() {
    let desk = site();
    desk.write("again/manifest.yaml", "ccm:\n  resuorces: []\n");
    std::os::unix::fs::symlink("/etc/passwd", desk.path("site/link")).unwrap();
    for (args, said) in [
        (&["create", "nowhere", "b.tar.gz"][..], &["nowhere is not a directory", "hint: "][..]),
        (&["create", "again", "b.tar.gz"], &["again/manifest.yaml:2:3", "resuorces"]),
        (&["create", "site/bin", "b.tar.gz"], &["site/bin", "manifest.yaml"]),
        (&["create", "site", "b.tar.gz"], &["link", "it is a symbolic link"]),
        (&["create", "site", "site/bin/b.tar.gz"], &["is inside site", "hint: "]),
        (&["show", "site/manifest.yaml"], &["is not a bundle", "ensign check"]),
        (&["show", "nowhere.tar.gz"], &["nowhere.tar.gz", "hint: "]),
    ] {
        desk.run(&[&["bundle"], args].concat()).ends(2).says(said);
        assert!(!desk.path("b.tar.gz").exists() && !desk.path("site/bin/b.tar.gz").exists(), "{args:?}");
    }
}

#[test]
fn a_bundle_that_was_pushed_is_applied_by_its_digest() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &[("web1", "web")]);
        fleet.start("web1", "web");
        let [uid, gid] = owner();
        let (site, wanted) = (fleet.path("bundle"), fleet.path("web1/site/note"));
        std::fs::create_dir(&site).unwrap();
        std::fs::write(site.join("note"), "pushed\n").unwrap();
        let manifest = format!(
            "ccm:\n  resources:\n  - file: {{name: {}, ensure: present, source: note, owner: \"{uid}\", group: \"{gid}\", mode: \"0640\"}}\n",
            wanted.display()
        );
        std::fs::write(site.join("manifest.yaml"), manifest).unwrap();
        let operator = fleet.path("operator.toml").display().to_string();
        let push = ["bundle", "push", site.to_str().unwrap(), "--operator", &operator, "--output", "json"];
        let pushed = ensign(&push);
        assert_eq!(pushed.code, 0, "{}", pushed.stderr);
        let pinned = pushed.json();
        let [url, sha256] = ["source", "sha256"].map(|key| pinned[key].as_str().unwrap().to_owned());
        assert!(url.starts_with("obj://") && !wanted.exists(), "{pinned}");
        assert_eq!(ensign(&push).json(), pinned, "no second upload of a stored bundle");
        let size = pinned["size"].to_string();
        let ran = fleet.run(&["apply", &url, "--sha256", &sha256, "--size", &size, "--node", "web1"]);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert_eq!(std::fs::read_to_string(&wanted).unwrap(), "pushed\n");
    }
}

#[test]
fn only_unused_bundles_are_pruned() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &[("web1", "web")]);
        fleet.start("web1", "web");
        let operator = fleet.path("operator.toml").display().to_string();
        let [uid, gid] = owner();
        let target = fleet.path("web1/site/note").display().to_string();
        let file =
            format!("{{file: {{name: {target}, ensure: present, content: x, owner: '{uid}', group: '{gid}', mode: '0640'}}}}");
        let directory = |content: &str| {
            let path = fleet.path(&format!("bundle-{content}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("manifest.yaml"), format!("# {content}\nccm: {{resources: [{file}]}}\n")).unwrap();
            path.display().to_string()
        };
        let (used, earlier, unused) = (directory("used"), directory("earlier"), directory("unused"));
        for path in [&earlier, &used] {
            let ran = fleet.run(&["assign", "base", path, "--all"]);
            assert_eq!(ran.code, 0, "{}", ran.stderr);
        }
        let pushed = ensign(&["bundle", "push", &unused, "--operator", &operator, "--output", "json"]);
        let url = pushed.json()["source"].as_str().unwrap().to_owned();
        let key = url.rsplit('/').next().unwrap().to_owned();
        let prune = |more: &[&str]| ensign(&[&["bundle", "prune", "--operator", &operator, "--output", "json"], more].concat());
        let listed = |ran: &crate::support::fleet::Ran| -> Vec<(String, Option<String>)> {
            let field = |row: &serde_json::Value, name: &str| row[name].as_str().map(str::to_owned);
            ran.json().as_array().unwrap().iter().map(|row| (field(row, "key").unwrap(), field(row, "kept_for"))).collect()
        };
        // Too young by default.
        let young = prune(&["--yes"]);
        assert_eq!((young.code, listed(&young).len()), (0, 3), "{}", young.stderr);
        assert!(listed(&young).contains(&(key.clone(), Some("too young".to_owned()))), "{}", young.stdout);
        let dry = prune(&["--dry-run", "--older-than", "0s"]);
        let kept: Vec<_> = listed(&dry).into_iter().filter_map(|(_, kept)| kept).collect();
        assert_eq!((dry.code, kept.len()), (0, 2), "{}", dry.stdout);
        assert!(kept.contains(&"channel base".to_owned()) && kept.iter().any(|user| user.starts_with("job ")), "{kept:?}");
        let asked = prune(&["--older-than", "0s"]);
        assert!(asked.code == 2 && asked.stderr.contains("--yes"), "{}", asked.stderr);
        assert_eq!(listed(&prune(&["--yes", "--older-than", "0s"])).len(), 3);
        let left = prune(&["--dry-run", "--older-than", "0s"]);
        assert!(listed(&left).len() == 2 && !left.stdout.contains(&key), "{}", left.stdout);
        let shown = ensign(&["bundle", "show", &url, "--operator", &operator]);
        assert_ne!(shown.code, 0);
    }
}
