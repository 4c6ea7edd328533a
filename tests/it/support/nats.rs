//! A real nats-server, as a child, for as long as the value lives.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use tempfile::TempDir;

use super::port::Port;
use super::single_node::PATIENCE;

/// The options of a server.
#[derive(Default)]
pub struct Options {
    /// With JetStream, in a directory of its own.
    pub jetstream: bool,
    /// More lines of configuration: `authorization {...}`, `accounts {...}`.
    pub config: String,
}

/// A server that ends with this value. Its stored data stay until then, across [`NatsServer::restart`].
pub struct NatsServer {
    binary: PathBuf,
    config: PathBuf,
    dir: TempDir,
    /// Reserved also while the server is down: it comes back on the same port.
    port: Port,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts the server that the environment names; see [`binaries`].
    pub fn start(options: &Options) -> Self {
        Self::start_binary(&binaries()[0], options)
    }

    /// Starts this binary.
    pub fn start_binary(binary: &Path, options: &Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = Port::new();
        let jetstream = if options.jetstream {
            format!("jetstream {{ store_dir: \"{}\" }}\n", dir.path().join("store").display())
        } else {
            String::new()
        };
        let text = format!("host: 127.0.0.1\nport: {}\nserver_name: test\n{jetstream}{}", port.number(), options.config);
        std::fs::write(dir.path().join("nats.conf"), text).unwrap();
        Self::start_file(binary, &dir.path().join("nats.conf"), dir, port)
    }

    /// Starts a server with a configuration of `deploy/nats`: these users, and each text of `changes` replaced.
    pub fn start_deployed(binary: &Path, file: &str, users: &str, changes: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = Port::new();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/nats").join(file);
        let (own, store) = (format!("127.0.0.1:{}", port.number()), dir.path().join("store").display().to_string());
        let mut text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [("0.0.0.0:4222", own.as_str()), ("/var/lib/nats", &store)].iter().chain(changes) {
            text = text.replace(from, to);
        }
        std::fs::write(dir.path().join("nats.conf"), text).unwrap();
        std::fs::write(dir.path().join("users.conf"), users).unwrap();
        Self::start_file(binary, &dir.path().join("nats.conf"), dir, port)
    }

    /// Starts a server with this configuration, which listens on this port of loopback. `dir` lives as long as the server.
    pub fn start_file(binary: &Path, config: &Path, dir: TempDir, port: Port) -> Self {
        let mut server = Self { binary: binary.to_owned(), config: config.to_owned(), dir, port, child: None };
        server.start_again();
        server
    }

    /// The program.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port.number())
    }

    /// Kills the server as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the server again after [`NatsServer::kill`], on the same port, with its stored data.
    pub fn start_again(&mut self) {
        let mut child = Command::new(&self.binary)
            .arg("-c")
            .arg(&self.config)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("could not start {}: {error}", self.binary.display()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        self.child = Some(child);
        let (said, heard) = mpsc::channel();
        // Reads until the server ends, so that its pipe never fills.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _tested = said.send(line);
            }
        });
        let mut seen = Vec::new();
        loop {
            match heard.recv_timeout(PATIENCE) {
                Ok(line) if line.contains("Server is ready") => return,
                Ok(line) => seen.push(line),
                Err(_) => panic!("{} did not get ready:\n{}", self.binary.display(), seen.join("\n")),
            }
        }
    }

    /// Removes the stored data; the server must not run.
    pub fn wipe(&self) {
        std::fs::remove_dir_all(self.dir.path().join("store")).unwrap();
    }

    /// Sets the configuration from the next start on, on the same port.
    pub fn reconfigure(&self, jetstream: &str) {
        let store = self.dir.path().join("store").display().to_string();
        let jetstream = jetstream.replace("STORE", &store);
        let text = format!("host: 127.0.0.1\nport: {}\nserver_name: test\n{jetstream}\n", self.port.number());
        std::fs::write(self.dir.path().join("nats.conf"), text).unwrap();
    }

    /// Changes the configuration from the next start on.
    pub fn edit(&self, change: impl FnOnce(String) -> String) {
        let path = self.dir.path().join("nats.conf");
        std::fs::write(&path, change(std::fs::read_to_string(&path).unwrap())).unwrap();
    }

    /// Kills the server and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.start_again();
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}

/// The servers of the tests: `NATS_SERVERS` (paths with colons), else `NATS_SERVER`. Without both, a new enough server on
/// `PATH`, else the one that `tests/tools/get-nats-server.sh` got.
pub fn binaries() -> Vec<PathBuf> {
    if let Some(list) = std::env::var_os("NATS_SERVERS").filter(|list| !list.is_empty()) {
        return std::env::split_paths(&list).collect();
    }
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/trixie/usr/sbin/nats-server");
    let named = std::env::var_os("NATS_SERVER").filter(|path| !path.is_empty()).map(PathBuf::from);
    let on_path = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|dir| dir.join("nats-server")).find(|file| file.is_file()))
        .filter(|file| is_new_enough(file));
    match named.or(on_path).or(Some(fetched).filter(|file| file.is_file())) {
        Some(binary) => vec![binary],
        None => panic!(
            "these tests need a nats-server of 2.10 or later: run tests/tools/get-nats-server.sh target/tools, or set NATS_SERVER"
        ),
    }
}

/// Runs a test on every server, on all of them at once: for tests that mostly wait.
pub fn on_each(test: impl Fn(&Path) + Sync) {
    std::thread::scope(|scope| {
        for binary in binaries() {
            let test = &test;
            scope.spawn(move || test(&binary));
        }
    });
}

/// True from the oldest supported version on. The server prints `nats-server: v2.10.27`.
fn is_new_enough(binary: &Path) -> bool {
    let Ok(output) = Command::new(binary).arg("--version").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.trim().rsplit(['v', ' ']).next().unwrap_or_default().split('.').map(|part| part.parse::<u64>().ok());
    (numbers.next().flatten(), numbers.next().flatten()) >= (Some(2), Some(10))
}
