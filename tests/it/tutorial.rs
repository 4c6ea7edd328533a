//! The tutorial, as a reader pastes it: all its blocks, one after the other, in one shell.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::local::Desk;
use crate::support::nats::binaries;
use crate::support::port::Port;

/// Commands of the tutorial that fail, as its text says. The exit code, and the beginning of the command; `DIR` is the
/// directory of the test.
const FAILING: [&str; 3] = [
    "2 ensign check DIR/tutorial/wrong.yaml",
    "3 ensign fleet ensure --key mallory.key --node web1 file",
    "3 ensign fleet ensure --key ops-alice.key --node web1 exec",
];

/// Output that shows the effects of the commands.
const PRINTED: [&str; 6] = [
    "+good morning",
    "hint: did you mean \"mode\"?",
    "out/hello: created the file",
    "demo  1 node, 1 alive",
    "unknown_key",
    "local_limit",
];

/// Waits until the agent is connected, as a reader does between two blocks; one minute at most.
const READ_ON: &str =
    "until ensign agent status --config agent.toml >/dev/null 2>&1 || [ $((tries += 1)) -gt 300 ]; do sleep 0.2; done\n";

/// The fenced blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            found.extend(fenced.then(String::new));
        } else if fenced {
            found.last_mut().unwrap().extend([line, "\n"]);
        }
    }
    found
}

/// A directory with links to the programs that the tutorial calls.
fn programs(desk: &Desk) -> PathBuf {
    let directory = desk.path("bin");
    std::fs::create_dir(&directory).unwrap();
    for (name, program) in [("ensign", Path::new(env!("CARGO_BIN_EXE_ensign"))), ("nats-server", &*binaries()[0])] {
        std::os::unix::fs::symlink(program, directory.join(name)).unwrap();
    }
    directory
}

#[test]
fn the_tutorial_works_when_its_blocks_are_pasted() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorial.md")).unwrap();
    let desk = Desk::new();
    let directory = desk.path("tmp").display().to_string();
    std::fs::create_dir_all(desk.path("tmp/home")).unwrap();
    let (nats, web) = (Port::new(), Port::new());
    // Each failing command leaves a line; `$tries` is the wait of `READ_ON`.
    let mut script = String::from("trap 'echo \"@@ $? $BASH_COMMAND\"' ERR\n");
    for block in blocks(&page) {
        let block = block.replace("/tmp/", &format!("{directory}/")).replace("4333", &nats.number().to_string());
        // The port of the monitoring page is fixed by default: the agent of another test may have it.
        let block = block.replace("[nats]\nservers", "[http]\nlisten = \"off\"\n[nats]\nservers");
        script.push_str(&block.replace("4380", &web.number().to_string()));
        script.push_str(if block.contains("ensign agent run") { READ_ON } else { "" });
    }
    // The server and the agent end within ten seconds; a failing script leaves neither.
    script.push_str("for i in $(seq 50); do [ -z \"$(jobs -pr)\" ] && break; sleep 0.2; done\n");
    script.push_str("[ -z \"$(jobs -pr)\" ] || { echo '@@ left running'; kill $(jobs -pr); }\n");

    let output = desk.path("output");
    let file = std::fs::File::create(&output).unwrap();
    let path = format!("{}:/usr/bin:/bin", programs(&desk).display());
    let mut command = Command::new("/bin/bash");
    command.env_clear().env("PATH", path).env("HOME", desk.path("tmp/home")).env("TMPDIR", desk.path("tmp"));
    command.env("ENSIGN_HISTORY", "off").env("ENSIGN_RUNTIME", desk.path("runtime"));
    // The owner of the files in the manifest.
    let user = Command::new("id").arg("-un").output().unwrap();
    command.env("USER", String::from_utf8(user.stdout).unwrap().trim()).current_dir(desk.path("tmp"));
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    command.status().unwrap();

    let printed = std::fs::read_to_string(&output).unwrap();
    let failed: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("@@ ")).collect();
    let expected = FAILING.map(|command| command.replace("DIR", &directory));
    let is_as_expected =
        failed.len() == expected.len() && failed.iter().zip(&expected).all(|(found, wanted)| found.starts_with(wanted));
    assert!(is_as_expected, "failed: {failed:#?}\nexpected: {expected:#?}\n{printed}");
    for text in PRINTED {
        assert!(printed.contains(text), "\"{text}\" is missing:\n{printed}");
    }
}
