//! The `service` type on a real systemd: units that the tests write, over D-Bus and without a bus.

use serde_json::Value;

use crate::support::node::{Node, Output};

/// A node in which every start and reload of a unit appends a line to `/var/log/UNIT`.
struct Host(Node);

const LOG: &str = "ExecStartPre=/bin/sh -c 'echo start >>/var/log/%n'\nExecReload=/bin/sh -c 'echo reload >>/var/log/%n'\n";
const INSTALL: &str = "[Install]\nWantedBy=multi-user.target\n";

impl Host {
    fn start() -> Option<Self> {
        Node::start().map(Self)
    }

    /// Writes a unit, without a reload of systemd.
    fn unit(&self, name: &str, service: &str, install: &str) {
        let service =
            if service.contains("ExecStart=") { service.to_owned() } else { format!("{service}ExecStart=sleep infinity\n") };
        let text = format!("[Service]\n{LOG}{service}{install}");
        self.0.write(&format!("/etc/systemd/system/{name}"), &text);
    }

    fn apply(&self, resources: &str) -> Run {
        let indented: String = resources.lines().map(|line| format!("    {line}\n")).collect();
        self.0.write("/root/manifest.yaml", &format!("ccm:\n  resources:\n{indented}"));
        Run(self.0.ensign(&["apply", "/root/manifest.yaml", "--output", "json"]))
    }

    /// Starts a service that ends right away, and returns the run that noticed. On a busy machine the service may outlive the
    /// check, but not repeatedly.
    fn fails(&self, service: &str) -> Run {
        let run = || self.apply(&format!("- service: {{name: {service}}}"));
        (0..10).map(|_| run()).find(|run| run.outcomes() == ["failed"]).unwrap()
    }

    /// The state of a unit in systemd: active, enabled.
    fn unit_state(&self, unit: &str) -> String {
        let ask = |what: &str| self.0.exec(&["systemctl", what, unit]).stdout.trim().to_owned();
        format!("{} {}", ask("is-active"), ask("is-enabled"))
    }

    /// The number of its starts and reloads.
    fn log(&self, unit: &str) -> (usize, usize) {
        let text = self.0.exec(&["cat", &format!("/var/log/{unit}")]).stdout;
        let count = |word| text.lines().filter(|line| *line == word).count();
        (count("start"), count("reload"))
    }

    /// The number of times that systemd has read its unit files since the boot.
    fn reloads(&self) -> usize {
        self.0.sh("journalctl --sync; journalctl -q -o cat _PID=1").lines().filter(|line| line.starts_with("Reloading")).count()
    }
}

/// The output of a run.
struct Run(Output);

impl Run {
    fn events(&self) -> Vec<Value> {
        let document: Value = serde_json::from_str(&self.0.stdout).unwrap_or_else(|_| panic!("{:?}", self.0));
        document["events"].as_array().unwrap().clone()
    }

    /// Outcome of each resource, in order.
    fn outcomes(&self) -> Vec<String> {
        let outcome = |event: &Value| {
            let event: ensign::model::TransactionEvent = serde_json::from_value(event.clone()).unwrap();
            serde_json::to_value(event.outcome()).unwrap().as_str().unwrap().to_owned()
        };
        self.events().iter().map(outcome).collect()
    }

    fn error(&self, at: usize) -> String {
        self.events()[at]["error"][0].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn is(&self, outcomes: &[&str]) {
        assert_eq!(self.outcomes(), outcomes, "{:?}", self.0);
    }
}

/// Runs a test over both interfaces of systemd, which must do the same.
fn over_bus_and_command(test: impl Fn(&Host, &str)) {
    let Some(host) = Host::start() else { return };
    test(&host, "systemd");
    let Some(host) = Host::start() else { return };
    // Without a bus, the type uses the command, which has its own connection.
    host.0.sh("systemctl stop dbus.socket dbus.service; rm -f /run/dbus/system_bus_socket");
    test(&host, "systemctl");
}

#[test]
fn services_are_started_stopped_enabled_and_disabled() {
    over_bus_and_command(|host, provider| {
        host.unit("web.service", "", INSTALL);
        host.unit("worker@.service", "", INSTALL);
        let manifest = "- service:\n    - web: {enable: true}\n    - worker@a: {enable: true}\n";
        let run = host.apply(manifest);
        run.is(&["changed", "changed"]);
        assert_eq!(run.events()[0]["provider"], "systemd");
        assert_eq!(run.events()[0]["status"]["metadata"]["provider"], provider);
        assert_eq!(run.events()[0]["changes"][0], "service is stopped, expected running");
        host.apply(manifest).is(&["stable", "stable"]);
        assert_eq!((host.unit_state("web"), host.log("web.service")), ("active enabled".into(), (1, 0)));
        assert_eq!((host.unit_state("worker@a"), host.log("worker@a.service")), ("active enabled".into(), (1, 0)));

        let manifest = "- service:\n    - web: {ensure: stopped, enable: false}\n    - worker@a: {ensure: stopped}\n";
        host.apply(manifest).is(&["changed", "changed"]);
        host.apply(manifest).is(&["stable", "stable"]);
        assert_eq!(
            (host.unit_state("web").as_str(), host.unit_state("worker@a").as_str()),
            ("inactive disabled", "inactive enabled")
        );

        // The type restores links that were removed without systemd.
        let manifest = "- service: {name: web, ensure: stopped, enable: true}\n";
        host.apply(manifest).is(&["changed"]);
        host.0.sh("systemctl show -p UnitFileState web; rm /etc/systemd/system/multi-user.target.wants/web.service");
        host.apply(manifest).is(&["changed"]);
        host.apply(manifest).is(&["stable"]);

        let look = host.0.ensign(&["status", "service", "web", "--output", "json"]);
        assert!(look.stdout.contains("\"inactive\""), "{look:?}");
    });
}

#[test]
fn a_service_that_does_not_start_shows_its_journal() {
    over_bus_and_command(|host, _| {
        host.unit("early.service", "ExecStartPre=/bin/sh -c 'echo the disk is full >&2; exit 7'\n", INSTALL);
        host.unit("again.service", "Restart=always\nRestartSec=60\nExecStart=/bin/sh -c 'echo lost it; exit 4'\n", INSTALL);
        host.unit("never.service", "Type=notify\nTimeoutStartSec=1\n", INSTALL);
        host.unit("once.service", "Type=oneshot\nExecStart=true\n", INSTALL);
        host.unit("masked.service", "", INSTALL);
        host.0.sh("mv /etc/systemd/system/masked.service /usr/lib/systemd/system; systemctl mask -q masked");
        let run = host.apply(
            "- service:\n    - early: {enable: true}\n    - never: {}\n    - once: {}\n    \
             - masked: {}\n    - absent: {}\n    - absent2: {ensure: stopped}\n",
        );
        run.is(&["failed"; 6]);
        for (at, phrases) in [
            vec!["service is stopped, expected running", "\n    the disk is full"],
            vec!["timeout"],
            vec!["Type=oneshot", "RemainAfterExit=yes"],
            vec!["is masked", "`systemctl unmask masked.service`"],
            vec!["service absent not found: there is no unit absent.service"],
            vec!["service absent2 not found"],
        ]
        .iter()
        .enumerate()
        {
            for phrase in phrases {
                assert!(run.error(at).contains(phrase), "{phrase:?} is not in {:?}", run.error(at));
            }
        }
        let again = host.fails("again");
        for phrase in ["it failed (exit-code), and systemd will try again", "\n    lost it"] {
            assert!(again.error(0).contains(phrase), "{phrase:?} is not in {:?}", again.error(0));
        }
        // The unit waits for its next automatic start in a minute; the type starts it at once.
        let began = std::time::Instant::now();
        assert!(host.fails("again").error(0).contains("it failed (exit-code), and systemd will try again"));
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
        // The journal has the reason of a stopped unit, if no other place has.
        host.0.write("/etc/systemd/system/if.service", "[Unit]\nConditionPathExists=/no/such\n[Service]\nExecStart=sleep 9\n");
        let run = host.apply("- service: {name: if}");
        assert!(run.error(0).contains("ConditionPathExists=/no/such"), "{}", run.error(0));
        // The start at boot is independent of this.
        assert_eq!(host.unit_state("early"), "failed enabled");
        // A unit that waits for its next attempt is not stopped.
        assert_eq!(host.unit_state("again"), "activating disabled");
        host.apply("- service: {name: again, ensure: stopped}").is(&["changed"]);
        assert_eq!(host.unit_state("again"), "inactive disabled");
    });
}

/// A process alone is no successful start, even if systemd says so.
#[test]
fn a_service_that_ends_right_after_its_start_has_not_started() {
    over_bus_and_command(|host, _| {
        host.unit("late.service", "ExecStart=/bin/sh -c 'echo no such port; exit 3'\n", INSTALL);
        let failed = host.fails("late");
        for phrase in ["it failed (exit-code)", "\n    no such port"] {
            assert!(failed.error(0).contains(phrase), "{}", failed.error(0));
        }
    });
}

#[test]
fn masked_and_static_units_are_not_enabled() {
    over_bus_and_command(|host, _| {
        host.unit("plain.service", "", "");
        host.0.sh("systemctl mask -q never-seen.service");
        let run = host.apply(
            "- service:\n    - plain: {enable: true}\n    - never-seen: {ensure: stopped, enable: false}\n    \
             - never-seen.service: {ensure: stopped, enable: true}\n    - plain.service: {enable: false}\n",
        );
        run.is(&["changed", "stable", "failed", "failed"]);
        assert!(run.error(3).contains("the unit is static"), "{}", run.error(3));
        assert_eq!(host.unit_state("plain"), "active static");
    });
}

#[test]
fn subscribers_restart_or_reload() {
    over_bus_and_command(|host, _| {
        for unit in ["a", "b", "c", "d", "e"] {
            host.unit(&format!("{unit}.service"), "", INSTALL);
        }
        host.unit("f.service", "ExecReload=\n", INSTALL);
        host.0.sh("systemctl daemon-reload; systemctl start a b c e f");
        let manifest = |content: &str| {
            format!(
                "- file: {{name: /etc/conf, ensure: present, content: {content}, owner: root, group: root, mode: '0644'}}\n\
                 - service:\n    - defaults: {{subscribe: [file#/etc/conf]}}\n    - a: {{}}\n    - b: {{refresh: reload}}\n    \
                 - c: {{refresh: reload-or-restart}}\n    - d: {{}}\n    - e: {{ensure: stopped}}\n    \
                 - f: {{refresh: reload-or-restart}}\n"
            )
        };
        host.apply(&manifest("one")).is(&["changed", "refreshed", "refreshed", "refreshed", "changed", "changed", "refreshed"]);
        host.apply(&manifest("one")).is(&["stable"; 7]);
        let logs = ["a", "b", "c", "d", "e", "f"].map(|unit| host.log(&format!("{unit}.service")));
        assert_eq!(logs, [(2, 0), (1, 1), (1, 1), (1, 0), (1, 0), (2, 0)]);

        let cannot = manifest("two").replace("f: {refresh: reload-or-restart}", "f: {refresh: reload}");
        let run = host.apply(&cannot);
        run.is(&["changed", "refreshed", "refreshed", "refreshed", "refreshed", "stable", "failed"]);
        assert!(run.error(6).contains("`refresh: reload-or-restart`"), "{}", run.error(6));
    });
}

#[test]
fn changed_unit_files_are_read_once_a_run() {
    over_bus_and_command(|host, _| {
        let manifest = |word: &str| {
            let file = |path: &str, text: &str| {
                format!(
                    "- file: {{name: {path}, ensure: present, content: \"{text}\", owner: root, group: root, mode: '0644'}}\n"
                )
            };
            let unit = |name: &str| {
                let text = format!("[Service]\\nEnvironment=WORD={word}\\nExecStart=sleep infinity\\n");
                file(&format!("/etc/systemd/system/{name}.service"), &text)
            };
            let drop_in =
                file("/etc/systemd/system/three.service.d/word.conf", &format!("[Service]\\nEnvironment=WORD={word}\\n"));
            let services =
                "- service:\n    - one: {subscribe: [file#/etc/systemd/system/one.service]}\n    - two: {}\n    - three: {}\n";
            format!("{}{}{drop_in}{services}", unit("one"), unit("two"))
        };
        host.0.write("/usr/lib/systemd/system/three.service", "[Service]\nExecStart=sleep infinity\n");
        host.0.sh("mkdir /etc/systemd/system/three.service.d; systemctl daemon-reload; systemctl start three");
        let word = |unit: &str| host.0.sh(&format!("tr '\\0' '\\n' </proc/$(systemctl show -p MainPID --value {unit})/environ"));

        let before = host.reloads();
        host.apply(&manifest("first")).is(&["changed", "changed", "changed", "changed", "changed", "stable"]);
        assert_eq!(host.reloads() - before, 1);
        assert!(word("one").contains("WORD=first"));
        host.apply(&manifest("first")).is(&["stable"; 6]);
        assert_eq!(host.reloads() - before, 1, "nothing has changed");

        host.apply(&manifest("second")).is(&["changed", "changed", "changed", "refreshed", "stable", "stable"]);
        assert_eq!(host.reloads() - before, 2);
        assert!(word("one").contains("WORD=second") && word("two").contains("WORD=first"));
        for unit in ["one", "two", "three"] {
            assert_eq!(host.0.sh(&format!("systemctl show -p NeedDaemonReload --value {unit}")), "no\n");
        }

        // A unit of the administrator overrides that of the package. Systemd does not notice this by itself.
        host.unit("three.service", "Environment=WORD=own\n", "");
        host.apply("- exec: {name: 'true'}\n- service: {name: three, subscribe: ['exec#true']}\n").is(&["changed", "refreshed"]);
        assert_eq!(host.log("three.service"), (1, 0));

        // The same for the first drop-in of a running unit: the directory did not exist at the last reload.
        let drop_in = "- file: {name: /etc/systemd/system/two.service.d/word.conf, ensure: present, content: \"[Service]\\nEnvironment=WORD=late\\n\", \
                       owner: root, group: root, mode: '0644'}\n\
                       - service: {name: two, subscribe: ['file#/etc/systemd/system/two.service.d/word.conf']}\n";
        host.0.sh("mkdir /etc/systemd/system/two.service.d");
        host.apply(drop_in).is(&["changed", "refreshed"]);
        assert!(word("two").contains("WORD=late"), "{}", word("two"));
        let reloads = host.reloads();
        host.apply(drop_in).is(&["stable", "stable"]);
        assert_eq!(host.reloads(), reloads, "systemd has read the unit");
    });
}

#[test]
fn a_dry_run_changes_nothing_on_the_nodes() {
    over_bus_and_command(|host, _| {
        host.unit("down.service", "", INSTALL);
        host.unit("up.service", "", INSTALL);
        host.0.sh("systemctl daemon-reload; systemctl start up");
        host.unit("up.service", "Environment=A=b\n", INSTALL);
        let before = host.reloads();
        host.0.write(
            "/root/manifest.yaml",
            "ccm:\n  resources:\n    - exec: {name: 'true'}\n    - service:\n        - down: {enable: true}\n        \
             - up: {enable: true, refresh: reload, subscribe: ['exec#true']}\n",
        );
        let run = Run(host.0.ensign(&["apply", "/root/manifest.yaml", "--noop", "--output", "json"]));
        let said: Vec<Value> = run.events().iter().map(|event| event["noop_message"].clone()).collect();
        let wanted = [
            "Would have executed",
            "Would have started, would have enabled",
            "Would have reloaded via subscribe, would have enabled",
        ];
        assert_eq!(said, wanted);
        assert_eq!(
            (host.unit_state("down"), host.unit_state("up"), host.log("up.service")),
            ("inactive disabled".into(), "active disabled".into(), (1, 0))
        );
        assert_eq!(host.reloads(), before);

        // A plan expects a unit file that an earlier resource of the same run would write.
        host.0.write(
            "/root/fresh.yaml",
            "ccm:\n  resources:\n    - service: {name: ghost}\n    \
             - file: {name: /etc/systemd/system/fresh.service, ensure: present, content: x, owner: root, group: root, mode: '0644'}\n    \
             - service:\n        - fresh: {enable: true}\n        - ghost: {}\n",
        );
        let run = Run(host.0.ensign(&["plan", "/root/fresh.yaml", "--output", "json"]));
        run.is(&["failed", "changed", "changed", "failed"]);
        assert_eq!(run.events()[2]["noop_message"], "Would have started, would have enabled");
        assert!(run.error(3).contains("service ghost not found"), "{}", run.error(3));
    });
}

#[test]
fn starting_units_are_waited_for() {
    over_bus_and_command(|host, _| {
        let ready =
            "Type=notify\nNotifyAccess=all\nExecStart=/bin/sh -c 'sleep 1; systemd-notify --ready; exec sleep infinity'\n";
        host.unit("slow.service", ready, INSTALL);
        host.unit("slow2.service", ready, INSTALL);
        host.unit("going.service", "ExecStop=sleep 1\n", INSTALL);
        host.unit("stuck.service", "Type=notify\nTimeoutStartSec=infinity\n", INSTALL);
        host.0.sh(
            "systemctl daemon-reload; systemctl start going; systemctl start --no-block slow; systemctl stop --no-block going",
        );
        let run = host.apply(
            "- service:\n    - slow: {}\n    - slow2: {}\n    - going: {ensure: stopped}\n    - stuck: {timeout: 1s}\n    \
             - stuck.service: {ensure: stopped}\n",
        );
        // The first and the third unit are starting before the run.
        run.is(&["stable", "changed", "stable", "failed", "changed"]);
        assert_eq!(["slow", "slow2", "going"].map(|unit| host.log(&format!("{unit}.service")).0), [1, 1, 1]);
        assert_eq!(host.unit_state("stuck"), "inactive disabled");
    });
}

#[test]
fn the_bus_may_be_restarted_by_a_run() {
    let Some(host) = Host::start() else { return };
    host.unit("after.service", "", INSTALL);
    let manifest = "- exec: {name: 'true'}\n- service:\n    - dbus: {subscribe: ['exec#true']}\n    - after: {enable: true}\n";
    host.apply(manifest).is(&["changed", "refreshed", "changed"]);
    assert_eq!(host.unit_state("after"), "active enabled");
}

/// Each ended job is a signal to every subscriber. The reply to the own request waits behind all of them.
#[test]
fn a_service_starts_while_many_other_jobs_end() {
    let Some(host) = Host::start() else { return };
    host.unit("site.service", "", INSTALL);
    host.0.write("/etc/systemd/system/burst@.service", "[Service]\nType=oneshot\nExecStart=true\n");
    host.0.sh("systemctl daemon-reload");
    let burst = "while [ ! -e /root/over ]; do systemctl start --no-block $(seq -f burst@%g.service 200); done";
    host.0.sh(&format!("systemd-run -q --unit load /bin/sh -c '{burst}'"));
    for number in 0..4 {
        let ensure = if number % 2 == 0 { "running" } else { "stopped" };
        let run = host.apply(&format!("- service: {{name: site, ensure: {ensure}}}"));
        assert_eq!(run.outcomes(), ["changed"], "{ensure}: {:?}", run.0);
    }
    host.0.sh("touch /root/over");
}
