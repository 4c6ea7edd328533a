//! Packages, with real apt and real dnf: in their own hosts, with repositories of `tests/tools/repos.sh`.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::node::{Node, Output};

/// The repositories; made once per machine.
fn repositories() -> &'static Path {
    static MADE: OnceLock<std::path::PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("repos");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/repos.sh");
        assert!(Command::new(script).arg(&directory).status().unwrap().success());
        directory
    })
}

/// A host with one of the two package managers to use.
struct Host {
    node: Node,
    provider: &'static str,
}

/// The end of a resource.
#[derive(Debug, PartialEq)]
struct Outcome {
    word: String,
    text: String,
}

impl Host {
    fn start(provider: &'static str) -> Option<Self> {
        // A host without nodes may lack the tools for repositories, too.
        let node = Node::start_with(&[format!(
            "--bind-ro={}:/srv/repo",
            if can_run() { repositories() } else { Path::new("/srv") }.display()
        )])?;
        let host = Self { node, provider };
        match provider {
            "apt" => {
                host.node.write("/etc/apt/sources.list", "deb [trusted=yes] copy:/srv/series ./\n");
                host.publish_series("new");
                host.node.sh("apt-get update -qq");
            }
            _ => {
                host.node.write("/etc/rpm/macros", "%_dbpath /var/lib/rpm\n");
                host.node.write("/etc/dnf/dnf.conf", "[main]\nbest=True\nmetadata_expire=1h\n");
                host.node.write("/etc/yum.repos.d/try.repo", "[try]\nname=try\nbaseurl=file:///srv/series\ngpgcheck=0\n");
                host.publish_series("new");
            }
        }
        Some(host)
    }

    /// Publishes the old or the new packages. The host does not notice this by itself.
    fn publish_series(&self, name: &str) {
        let kind = self.provider;
        self.node.sh(&format!("ln -sfn /srv/repo/{kind}/{name} /srv/series"));
    }

    /// Installs packages beforehand, without the program.
    fn install_before(&self, packages: &str) {
        match self.provider {
            "apt" => self.node.sh(&format!("apt-get install -y -qq --allow-downgrades {packages} 2>&1")),
            _ => self.node.sh(&format!("dnf install -y -q {packages} 2>&1")),
        };
    }

    /// Applies a list of `name: {properties}`, and returns the outcome of each.
    fn apply(&self, resources: &[&str], args: &[&str]) -> Vec<Outcome> {
        let (outcomes, _) = self.apply_with_stderr(resources, args);
        outcomes
    }

    fn apply_with_stderr(&self, resources: &[&str], args: &[&str]) -> (Vec<Outcome>, String) {
        let mut manifest = format!("ccm:\n  resources:\n    - package:\n        - defaults: {{provider: {}}}\n", self.provider);
        for resource in resources {
            manifest = format!("{manifest}        - {resource}\n");
        }
        self.node.write("/root/manifest.yaml", &manifest);
        let Output { stdout, stderr, .. } =
            self.node.ensign(&[&["apply", "/root/manifest.yaml", "--output", "json"], args].concat());
        let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
        let events = document["events"].as_array().unwrap();
        assert_eq!(events.len(), resources.len());
        (events.iter().map(outcome).collect(), stderr)
    }

    /// The installed version; `-` for none.
    fn version(&self, name: &str) -> String {
        let script = match self.provider {
            "apt" => format!("dpkg-query -W -f '${{db:Status-Status}} ${{Version}}' {name} | sed -n 's/^installed //p'"),
            _ => format!("rpm -q --qf '%|EPOCH?{{%{{EPOCH}}:}}|%{{VERSION}}-%{{RELEASE}}' {name} || true"),
        };
        let found = self.node.sh(&format!("({script}) 2>/dev/null || true"));
        if found.is_empty() || found.contains("not installed") { "-".to_owned() } else { found }
    }

    /// Data of the package database that a query without changes returns.
    fn fingerprint(&self) -> String {
        match self.provider {
            "apt" => {
                self.node.sh("cksum </var/lib/dpkg/status; ls -l --time-style=full-iso /var/lib/apt/lists /var/lib/apt/periodic")
            }
            _ => self.node.sh("rpm -qa | sort"),
        }
    }

    /// The number of transactions so far.
    fn transactions(&self) -> usize {
        match self.provider {
            "apt" => self.node.sh("cat /var/log/apt/history.log 2>/dev/null | grep -c ^Start-Date || true"),
            _ => self.node.sh("dnf -q history list | grep -c '^ *[0-9]' || true"),
        }
        .trim()
        .parse()
        .unwrap()
    }
}

fn can_run() -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/node.sh");
    Command::new(script).arg("why").output().unwrap().status.success()
}

fn outcome(event: &Value) -> Outcome {
    let parsed: ensign::model::TransactionEvent = serde_json::from_value(event.clone()).unwrap();
    let word = serde_json::to_value(parsed.outcome()).unwrap().as_str().unwrap().to_owned();
    let list = |key: &str| event[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join("\n");
    let text = match word.as_str() {
        "failed" => list("error"),
        "changed" if event["noop"] == true => event["noop_message"].as_str().unwrap().to_owned(),
        _ => list("changes"),
    };
    Outcome { word, text }
}

fn is(word: &str, text: &str) -> Outcome {
    Outcome { word: word.to_owned(), text: text.to_owned() }
}

/// From every state to every other: a dry run predicts the change and touches nothing. Then the run makes the change, and a
/// second run none.
fn every_state_change(provider: &'static str) {
    let Some(host) = Host::start(provider) else { return };
    for before in ["-", "1.0-1", "2.0-1"] {
        for (ensure, after) in
            [("present", "2.0-1"), ("absent", "-"), ("latest", "2.0-1"), ("1.0-1", "1.0-1"), ("2.0-1", "2.0-1")]
        {
            let way = format!("{provider}: from {before} to {ensure}");
            let _gone = host.apply(&["try-plain: {ensure: absent}"], &[]);
            if before != "-" {
                let spec = if provider == "apt" { format!("try-plain={before}") } else { format!("try-plain-{before}") };
                host.install_before(&spec);
            }
            let after = if ensure == "present" && before != "-" { before } else { after };
            let resource = format!("try-plain: {{ensure: {ensure}}}");
            let untouched = host.fingerprint();
            let foretold = host.apply(&[&resource], &["--noop"]);
            assert_eq!(host.fingerprint(), untouched, "{way}");
            let message = match (before, ensure) {
                ("-", "present") => "Would have installed".to_owned(),
                ("-", "latest") => "Would have installed latest".to_owned(),
                ("-", version) => format!("Would have installed version {version}"),
                (_, "absent") => "Would have uninstalled".to_owned(),
                ("1.0-1", to) => format!("Would have upgraded to {to}"),
                (_, to) => format!("Would have downgraded to {to}"),
            };
            let done = host.apply(&[&resource], &[]);
            if before == after {
                assert_eq!((&foretold[0], &done[0]), (&is("stable", ""), &is("stable", "")), "{way}");
            } else {
                assert_eq!(foretold, [is("changed", &message)], "{way}");
                let from_to = format!("{before} → {after}").replace("- →", "absent →").replace("→ -", "→ absent");
                assert_eq!(done, [is("changed", &from_to)], "{way}");
            }
            assert_eq!(host.version("try-plain"), after, "{way}");
            assert_eq!(host.apply(&[&resource], &[]), [is("stable", "")], "{way}");
        }
    }
}

#[test]
fn every_state_change_with_apt() {
    every_state_change("apt");
}

#[test]
fn every_state_change_with_dnf() {
    every_state_change("dnf");
}

/// Twenty packages, and two that do not exist.
fn many_packages(provider: &'static str, refuses: &str) {
    let Some(host) = Host::start(provider) else { return };
    let numbered: Vec<String> = (1..=20).map(|n| format!("try-{n:02}: {{ensure: present}}")).collect();
    let mut all: Vec<&str> = numbered.iter().map(String::as_str).collect();
    let before = host.transactions();
    assert!(host.apply(&all, &[]).iter().all(|one| *one == is("changed", "absent → 1.0-1")));
    assert_eq!(host.transactions() - before, 1, "one transaction");
    assert!(host.apply(&all, &[]).iter().all(|one| one.word == "stable"));
    let gone: Vec<String> = numbered.iter().map(|one| one.replace("present", "absent")).collect();
    let removed = host.apply(&gone.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    assert!(removed.iter().all(|one| *one == is("changed", "1.0-1 → absent")), "{removed:?}");
    assert_eq!(host.transactions() - before, 2, "one transaction");

    all.insert(3, "try-post: {ensure: present}");
    all.insert(9, "try-nobody: {ensure: latest}");
    all.insert(12, "try-unmet: {ensure: present}");
    let outcomes = host.apply(&all, &[]);
    let failed: Vec<usize> = (0..all.len()).filter(|at| outcomes[*at].word == "failed").collect();
    assert_eq!(failed, [3, 9, 12], "{outcomes:?}");
    assert!(outcomes[3].text.contains(refuses), "{}", outcomes[3].text);
    assert!(outcomes[9].text.contains("no package index has a package of the name \"try-nobody\""), "{}", outcomes[9].text);
    assert!(outcomes[12].text.contains("try-nowhere"), "{}", outcomes[12].text);
    for n in 1..=20 {
        assert_eq!(host.version(&format!("try-{n:02}")), "1.0-1");
    }
}

#[test]
fn many_packages_with_apt() {
    many_packages("apt", "try-post refuses");
}

#[test]
fn many_packages_with_dnf() {
    many_packages("dnf", "try-post refuses");
}

/// Dependencies, upgrades, and packages that can't be removed.
fn dependencies_and_upgrades(provider: &'static str) {
    let Some(host) = Host::start(provider) else { return };
    let outcomes =
        host.apply(&["try-needs: {ensure: present}", "try-plain: {ensure: present}", "try-stay: {ensure: latest}"], &[]);
    assert_eq!(outcomes, [is("changed", "absent → 1.0-1"), is("stable", ""), is("changed", "absent → 1.0-1")]);
    let outcomes = host.apply(&["try-stay: {ensure: absent}", "try-plain: {ensure: absent}"], &[]);
    assert_eq!((outcomes[0].word.as_str(), &outcomes[1]), ("failed", &is("changed", "2.0-1 → absent")));
    assert!(outcomes[0].text.contains("try-stay stays"), "{}", outcomes[0].text);
    assert_eq!((host.version("try-needs"), host.version("try-stay")), ("-".to_owned(), "1.0-1".to_owned()));

    let older = if provider == "apt" { "try-tilde=2.0~rc1-1 try-epoch=2.0-1" } else { "try-tilde-2.0~rc1-1 try-epoch-0:2.0-1" };
    host.install_before(older);
    let all = ["try-tilde: {ensure: latest}", "try-epoch: {ensure: latest}"];
    assert_eq!(host.apply(&all, &[]), [is("changed", "2.0~rc1-1 → 2.0-1"), is("changed", "2.0-1 → 1:1.0-1")]);
    assert_eq!(host.apply(&all, &[]), [is("stable", ""), is("stable", "")]);
}

#[test]
fn dependencies_and_upgrades_with_apt() {
    dependencies_and_upgrades("apt");
}

#[test]
fn dependencies_and_upgrades_with_dnf() {
    dependencies_and_upgrades("dnf");
}

/// An index without the new packages.
fn a_stale_index(provider: &'static str) {
    let Some(host) = Host::start(provider) else { return };
    host.publish_series("old");
    match provider {
        "apt" => host.node.sh("apt-get update -qq"),
        _ => host.node.sh("dnf -q clean all; dnf -q makecache"),
    };
    let outcomes = host.apply(&["try-plain: {ensure: latest}"], &[]);
    assert_eq!(outcomes, [is("changed", "absent → 1.0-1")]);
    host.publish_series("new");
    for ensure in ["latest", "latest, cache_valid: 2h", "present, cache_valid: 0s"] {
        assert_eq!(host.apply(&[&format!("try-plain: {{ensure: {ensure}}}")], &[]), [is("stable", "")], "{ensure}");
    }
    let fresh = ["try-plain: {ensure: latest, cache_valid: 0s}"];
    assert_eq!(host.apply(&fresh, &["--noop"]), [is("stable", "")]);
    assert_eq!(host.apply(&fresh, &[]), [is("changed", "1.0-1 → 2.0-1")]);
    host.node.sh("rm /srv/series");
    let outcomes = host.apply(&fresh, &[]);
    assert!(outcomes[0].text.contains("could not read the package index again"), "{outcomes:?}");
}

#[test]
fn a_stale_index_with_apt() {
    a_stale_index("apt");
}

#[test]
fn a_stale_index_with_dnf() {
    a_stale_index("dnf");
}

/// Another program holds the lock.
fn a_held_lock(provider: &'static str, lock: &str) {
    let Some(host) = Host::start(provider) else { return };
    host.install_before("try-01");
    let hold = |seconds: &str| {
        let script = format!(
            "import fcntl,time\nf=open('{lock}','r+')\nfcntl.lockf(f,fcntl.LOCK_EX)\nprint('held',flush=True)\ntime.sleep({seconds})"
        );
        host.node.write("/root/hold.py", &script);
        host.node.sh(
            "rm -f /root/held; (python3 /root/hold.py >/root/held 2>&1 &) ; until grep -q held /root/held; do sleep 0.05; done",
        );
    };
    hold("3");
    let (outcomes, said) = host.apply_with_stderr(&["try-plain: {ensure: present}", "try-02: {ensure: present}"], &[]);
    assert!(outcomes.iter().all(|one| one.word == "changed"), "{outcomes:?}");
    assert_eq!(said.matches("waiting up to 2m for python3 (process ").count(), 1, "{said}");
    assert!(said.contains(lock), "{said}");

    hold("600");
    let all = ["try-03: {ensure: present, lock_timeout: 300ms}", "try-04: {ensure: present, lock_timeout: 300ms}"];
    let (outcomes, _) = host.apply_with_stderr(&all, &[]);
    assert!(outcomes.iter().all(|one| one.text.contains(&format!("still holds {lock}"))), "{outcomes:?}");
    // A resource without a change needs no lock.
    assert_eq!(host.apply(&["try-plain: {ensure: present}"], &[]), [is("stable", "")]);
}

#[test]
fn a_held_lock_with_apt() {
    a_held_lock("apt", "/var/lib/dpkg/lock-frontend");
}

#[test]
fn a_held_lock_with_dnf() {
    a_held_lock("dnf", "/var/lib/rpm/.rpm.lock");
}

#[test]
fn configuration_files_of_removed_packages_count_as_absent() {
    let Some(host) = Host::start("apt") else { return };
    host.install_before("try-conf=1.0-1");
    host.node.write("/etc/try.conf", "edited\n");
    assert_eq!(host.apply(&["try-conf: {ensure: latest}"], &[]), [is("changed", "1.0-1 → 2.0-1")]);
    assert_eq!(host.node.sh("cat /etc/try.conf /etc/try.conf.dpkg-dist"), "edited\nas of 2.0-1\n");
    assert_eq!(host.apply(&["try-conf: {ensure: absent}"], &[]), [is("changed", "2.0-1 → absent")]);
    assert_eq!(host.node.sh("cat /etc/try.conf"), "edited\n");
    assert_eq!(host.apply(&["try-conf: {ensure: absent}"], &[]), [is("stable", "")]);
    assert_eq!(host.apply(&["try-conf: {ensure: 1.0-1}"], &[]), [is("changed", "absent → 1.0-1")]);
    assert_eq!(host.node.sh("cat /etc/try.conf"), "edited\n");
}

#[test]
fn an_interrupted_dpkg_is_completed() {
    let Some(host) = Host::start("apt") else { return };
    host.install_before("try-01 try-02 try-03");
    let put = |name: &str, status: &str| {
        host.node.sh(&format!("sed -i '/^Package: {name}$/,/^$/s/^Status: .*/Status: {status}/' /var/lib/dpkg/status"));
    };
    put("try-01", "install reinstreq half-installed");
    put("try-02", "install ok unpacked");
    put("try-03", "install ok half-configured");
    let all = ["try-01: {ensure: present}", "try-02: {ensure: latest}", "try-03: {ensure: 1.0-1}"];
    let words = ["half-installed", "unpacked", "half-configured"];
    assert_eq!(host.apply(&all, &[]), words.map(|word| is("changed", &format!("{word} → installed"))));
    assert!(host.apply(&all, &[]).iter().all(|one| one.word == "stable"));
    put("try-02", "install ok unpacked");
    assert_eq!(host.apply(&["try-02: {ensure: absent}"], &[]), [is("changed", "unpacked → absent")]);

    // Killed in the middle: dpkg refuses everything until `dpkg --configure`.
    let entry =
        "Package: try-03\nStatus: install ok half-configured\nMaintainer: x\nArchitecture: all\nVersion: 1.0-1\nDescription: x\n";
    host.node.write("/var/lib/dpkg/updates/0000", entry);
    let (outcomes, said) = host.apply_with_stderr(&["try-05: {ensure: present}", "try-03: {ensure: present}"], &[]);
    assert_eq!(outcomes, [is("changed", "absent → 1.0-1"), is("changed", "half-configured → installed")]);
    assert!(said.contains("dpkg was interrupted"), "{said}");
}

#[test]
fn a_package_whose_script_fails_does_not_fail_the_others() {
    let Some(host) = Host::start("apt") else { return };
    for _ in 0..2 {
        let outcomes = host.apply(&["try-post: {ensure: 1.0-1}"], &[]);
        assert!(outcomes[0].text.contains("apt-get exited 100") && outcomes[0].text.contains("try-post refuses"), "{outcomes:?}");
    }
    assert_eq!(host.apply(&["try-01: {ensure: present}"], &[]), [is("changed", "absent → 1.0-1")]);
    assert_eq!(host.apply(&["try-post: {ensure: absent}"], &[]), [is("changed", "half-configured → absent")]);
}

#[test]
fn a_held_package_stays() {
    let Some(host) = Host::start("apt") else { return };
    host.install_before("try-plain=1.0-1");
    host.node.sh("apt-mark hold try-plain");
    for (ensure, word) in
        [("present", "stable"), ("1.0-1", "stable"), ("latest", "failed"), ("2.0-1", "failed"), ("absent", "failed")]
    {
        let outcomes = host.apply(&[&format!("try-plain: {{ensure: {ensure}}}"), "try-01: {ensure: present}"], &[]);
        assert_eq!(outcomes[0].word, word, "{ensure}: {outcomes:?}");
        assert!(word == "stable" || outcomes[0].text.contains("apt-mark unhold try-plain"), "{outcomes:?}");
        assert_ne!(outcomes[1].word, "failed", "{outcomes:?}");
    }
    assert_eq!(host.version("try-plain"), "1.0-1");
}

#[test]
fn two_architectures_are_one_package() {
    let Some(host) = Host::start("apt") else { return };
    host.node.sh("dpkg --add-architecture i386; apt-get update -qq");
    host.install_before("try-multi=1.0-1 try-multi:i386=1.0-1");
    let both = |host: &Host| host.node.sh("dpkg-query -W -f '${binary:Package} ${Version};' 'try-multi*' 2>/dev/null || true");
    for (resource, wanted, left) in [
        ("try-multi: {ensure: present}", is("stable", ""), "try-multi:amd64 1.0-1;try-multi:i386 1.0-1;"),
        ("try-multi: {ensure: latest}", is("changed", "1.0-1 → 2.0-1"), "try-multi:amd64 2.0-1;try-multi:i386 2.0-1;"),
        ("try-multi: {ensure: 1.0-1}", is("changed", "2.0-1 → 1.0-1"), "try-multi:amd64 1.0-1;try-multi:i386 1.0-1;"),
        ("try-multi:i386: {ensure: absent}", is("changed", "1.0-1 → absent"), "try-multi:amd64 1.0-1;"),
        ("try-multi:amd64: {ensure: latest}", is("changed", "1.0-1 → 2.0-1"), "try-multi:amd64 2.0-1;"),
        ("try-multi:i386: {ensure: present}", is("changed", "absent → 2.0-1"), "try-multi:amd64 2.0-1;try-multi:i386 2.0-1;"),
        ("try-multi: {ensure: absent}", is("changed", "2.0-1 → absent"), ""),
    ] {
        let native = host.node.sh("dpkg --print-architecture");
        let name = resource.replace("amd64", native.trim());
        assert_eq!(host.apply(&[&format!("\"{}", name.replacen(": {", "\": {", 1))], &[]), [wanted], "{resource}");
        assert_eq!(both(&host), left.replace("amd64", native.trim()), "{resource}");
    }
}

/// Names that apt and dnf would read as something other than a name.
fn options_as_package_names(provider: &'static str) {
    let Some(host) = Host::start(provider) else { return };
    host.install_before("try-plain");
    let untouched = host.fingerprint();
    for name in ["try.01", "try-01+", "try-plain+", "try-plain~x", "try-01-1.0", "try-01-1.0-1.noarch", "nothing", "try_01"] {
        let outcomes = host.apply(&[&format!("{name}: {{ensure: present}}")], &[]);
        assert!(outcomes[0].text.contains("no package index has a package of the name"), "{name}: {outcomes:?}");
        assert_eq!(host.apply(&[&format!("{name}: {{ensure: absent}}")], &[]), [is("stable", "")], "{name}");
        assert_eq!(host.fingerprint(), untouched, "{name}");
    }
}

#[test]
fn options_as_package_names_with_apt() {
    options_as_package_names("apt");
}

#[test]
fn options_as_package_names_with_dnf() {
    options_as_package_names("dnf");
}

/// The type notices a change between two resources of a run.
#[test]
fn the_database_is_read_again_when_it_has_changed() {
    for (provider, install) in [("apt", "apt-get install -y -qq try-01"), ("dnf", "dnf install -y -q try-01")] {
        let Some(host) = Host::start(provider) else { return };
        host.node.write(
            "/root/m.yaml",
            &format!(
                "ccm:\n  resources:\n    - package: {{name: try-01, ensure: absent, provider: {provider}}}\n    - exec: {{name: install, \
                 command: {install}, environment: [HOME=/root]}}\n    - package: {{name: try-01, ensure: absent, alias: again, provider: {provider}}}\n"
            ),
        );
        let output = host.node.ensign(&["apply", "/root/m.yaml", "--output", "json"]).ok();
        let document: Value = serde_json::from_str(&output).unwrap();
        let words: Vec<String> = document["events"].as_array().unwrap().iter().map(|event| outcome(event).word).collect();
        assert_eq!(words, ["stable", "changed", "changed"], "{provider}");
        assert_eq!(host.version("try-01"), "-");
    }
}
