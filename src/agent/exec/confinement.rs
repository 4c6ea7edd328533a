//! The confinement of runs: what of `[limits]` the kernel holds, what it can't, and the two threads of a run.
//!
//! In: the limits, and the directory of a bundle. Out: a thread on which a run is confined, beside the one that it was asked
//! on, which does what must stay outside: the agent's own state, facts, the bus, and resources that reach the system itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::config::{Confine, Limits, Settings};
use crate::diag::chain;
use crate::engine::UnconfinedThread;
use crate::host::confine;
use crate::host::confine::{ConfineError, Confined, Confinement, Files, Kernel, Part, Worker};
use crate::model::registration::RegistrationFilter;
use crate::model::{BusValue, DiscoveryClient, Effect, Registration};
use crate::resource::{self, ParsedResource};
use crate::wire::ConfinementState;

/// The confinement that the limits ask for; `bundle` is the directory of the manifest.
pub(in crate::agent) fn of(limits: &Limits, bundle: Option<&Path>) -> Confinement {
    if limits.confine == Confine::Off {
        return Confinement::default();
    }
    let list = |paths: &Option<Vec<String>>| paths.iter().flatten().map(PathBuf::from).collect::<Vec<_>>();
    let files = limits.paths.is_some().then(|| {
        let bundle = bundle.map(Path::to_owned);
        Files { write: list(&limits.paths), read: list(&limits.read_paths).into_iter().chain(bundle).collect() }
    });
    Confinement {
        files,
        no_programs: !limits.exec,
        no_network: limits.fetch_hosts.as_ref().is_some_and(Vec::is_empty),
        local_sockets: limits.unix_sockets,
    }
}

/// Something that is held, or is not: its name in states, and what it is about.
type Bound = (&'static str, &'static str);

const FILES: Bound =
    ("files", "files are changed only below `paths`, and read only there, below `read_paths` and where programs are");
const TRUNCATE: Bound = ("truncate", "a file outside of `paths` is not cut");
const PROGRAMS: Bound = ("programs", "no program starts, or only where it may be read");
const NETWORK: Bound = ("network", "no TCP connection is made and no port opened");
const DEVICES: Bound = ("devices", "no device is steered");
const SIGNALS: Bound = ("signals", "no process outside of the run gets a signal");
const SOCKETS: Bound = ("sockets", "no socket of this host is used, as those of systemd or a container engine");
const ALL: Bound = ("all", "`confine` is off: only the agent's own checks hold");
const ANY_FILE: Bound = ("files", "`paths` is not set: a run changes and reads every file that the agent can");
const READS: Bound = ("reads", "`read_paths` without `paths`: only the agent's own checks hold reads");
const COMMANDS: Bound = ("programs", "`exec` without `paths`: a command does whatever the agent's user can");
const ATTRIBUTES: Bound =
    ("attributes", "modes, owners and times of files, and whether a file is there: Landlock does not know them");
const ANY_CONNECTION: Bound = ("network", "connections: Landlock knows ports, no hosts; only `fetch_hosts = []` ends them");
const DATAGRAMS: Bound = ("datagrams", "UDP and raw packets of commands: Landlock knows TCP only");
const STATE: Bound = ("state", "the agent's state directory: nothing bounds files, or a path of the limits holds it");
const ANY_SOCKET: Bound = ("sockets", "`unix_sockets`: what a run asks of a local service happens outside");
const SYSTEM: Bound = (
    "system",
    "packages, services, accounts, sysctl and mounts work outside of the confinement: only `types` and the agent's own checks hold them",
);

fn about(part: Part) -> Bound {
    match part {
        Part::Files => FILES,
        Part::Truncate => TRUNCATE,
        Part::Programs => PROGRAMS,
        Part::Network => NETWORK,
        Part::Devices => DEVICES,
        Part::Signals => SIGNALS,
        Part::Sockets => SOCKETS,
    }
}

/// What a kernel holds of the limits, and what it does not.
pub struct Report {
    kernel: Kernel,
    held: Vec<Bound>,
    /// What the limits ask for and a newer kernel would hold.
    missing: Vec<Bound>,
    unrestricted: Vec<Bound>,
}

impl Report {
    /// The report for this kernel.
    pub fn of(settings: &Settings, kernel: Kernel) -> Self {
        let (limits, confinement) = (&settings.limits, of(&settings.limits, None));
        let (held, missing): (Vec<Part>, Vec<Part>) = confinement.parts().into_iter().partition(|part| kernel.holds(*part));
        let off = limits.confine == Confine::Off;
        let files = confinement.files.is_some();
        let unrestricted = [
            (off, ALL),
            (!off && !files, ANY_FILE),
            (!off && !files && limits.read_paths.is_some(), READS),
            (!off && !files && limits.exec, COMMANDS),
            (files, ATTRIBUTES),
            (!off && !confinement.no_network, ANY_CONNECTION),
            (confinement.no_network && limits.exec, DATAGRAMS),
            (!off && !state_is_out_of_reach(settings), STATE),
            (files && limits.unix_sockets, ANY_SOCKET),
            (!off && manages_system(limits), SYSTEM),
        ];
        Self {
            kernel,
            held: held.into_iter().map(about).collect(),
            missing: missing.into_iter().map(about).collect(),
            unrestricted: unrestricted.into_iter().filter_map(|(so, what)| so.then_some(what)).collect(),
        }
    }

    /// The report in a state: names alone.
    pub fn state(&self) -> ConfinementState {
        let names = |bounds: &mut dyn Iterator<Item = &Bound>| {
            let mut names: Vec<String> = bounds.map(|(name, _)| (*name).to_owned()).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        ConfinementState {
            landlock: self.kernel.landlock,
            held: names(&mut self.held.iter()),
            unrestricted: names(&mut self.missing.iter().chain(&self.unrestricted)),
        }
    }

    /// What is held, in words.
    pub fn held(&self) -> impl Iterator<Item = &'static str> {
        self.held.iter().map(|(_, about)| *about)
    }

    /// What is not, in words.
    pub fn unrestricted(&self) -> impl Iterator<Item = String> {
        let missing = self.missing.iter().map(|(_, about)| format!("this kernel does not hold that {about}"));
        missing.chain(self.unrestricted.iter().map(|(_, about)| (*about).to_owned()))
    }

    /// The version of Landlock, in words.
    pub fn kernel(&self) -> String {
        match self.kernel.landlock {
            0 => "no Landlock: the kernel has none, `lsm=` of its command line leaves it out, or a container hides it".to_owned(),
            version => format!("Landlock {version}"),
        }
    }
}

/// What the kernel of this host can hold; one that can't be asked holds nothing.
pub fn kernel() -> Kernel {
    confine::kernel().unwrap_or_else(|error| {
        tracing::warn!("Landlock can't be asked: {}", chain(&error));
        Kernel { landlock: 0 }
    })
}

/// Logs at the start what the kernel holds.
///
/// # Errors
/// When it must hold more than it can, with what that is.
pub(in crate::agent) fn begin(settings: &Settings, kernel: Kernel) -> Result<(), String> {
    let report = Report::of(settings, kernel);
    tracing::info!("the kernel holds of the limits: {} ({})", report.state().held.join(", "), report.kernel());
    for (name, about) in &report.unrestricted {
        tracing::info!("not held by the kernel: {name}: {about}");
    }
    if report.missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> = report.missing.iter().map(|(name, _)| *name).collect();
    let missing = format!("the kernel does not hold: {} ({})", missing.join(", "), report.kernel());
    if settings.limits.confine == Confine::Required {
        return Err(missing);
    }
    tracing::warn!("{missing}");
    Ok(())
}

/// True when some type that works outside may be managed.
fn manages_system(limits: &Limits) -> bool {
    let allowed = |kind: &str| limits.types.as_ref().is_none_or(|types| types.iter().any(|known| known == kind));
    resource::TYPES.iter().any(|kind| kind.reaches_system() && allowed(kind.name()))
}

/// True when nothing that a run may touch holds the state of the agent.
fn state_is_out_of_reach(settings: &Settings) -> bool {
    let Limits { paths: Some(paths), read_paths, .. } = &settings.limits else { return false };
    // As they are written: this is said with every heartbeat, which must not wait for a disk.
    let holds = |path: &String| settings.state_dir.starts_with(path);
    !paths.iter().chain(read_paths.iter().flatten()).any(holds)
}

/// Has `inside` work on a confined thread of its own, while this thread does what it hands over. Nothing comes of it when it
/// panics.
///
/// The confinement can't be taken back: the thread ends with the run, and is none of a pool.
pub(in crate::agent) fn run<T: Send>(
    confinement: &Confinement,
    inside: impl FnOnce(Result<Confined, ConfineError>, Worker) -> T + Send,
) -> Option<T> {
    let (worker, work) = Worker::new();
    thread::scope(|scope| {
        let confined = thread::Builder::new().name("run".to_owned());
        let confined = confined.spawn_scoped(scope, move || inside(confinement.apply(), worker));
        for one in work {
            // Who waits for it hears that it broke.
            let _broke = catch_unwind(AssertUnwindSafe(one));
        }
        confined.ok()?.join().ok()
    })
}

/// Decides which resources are managed outside.
pub(in crate::agent) struct Placement {
    pub(in crate::agent) worker: Worker,
    /// The directories of `paths` below which the kernel lets the thread of the run change files; everywhere when none.
    pub(in crate::agent) write: Option<Vec<PathBuf>>,
    /// True when `paths` is set and `types` is not: then what no path holds was never allowed.
    pub(in crate::agent) unnamed_types: bool,
}

impl UnconfinedThread for Placement {
    fn is_needed(&self, decoded: &dyn ParsedResource) -> bool {
        let effects = decoded.effects();
        if effects.reach_system() {
            return true;
        }
        // What runs programs of its author never gets out, whatever else it does.
        let runs = effects.iter().any(|effect| matches!(effect, Effect::Run { .. }));
        let Some(held) = self.write.as_ref().filter(|_| !runs) else { return false };
        // A directory of `paths` itself is made and removed in the one above it, where nothing else may be changed.
        let removed = decoded.ensure() == "absent";
        let is_held = |path: &Path| held.iter().any(|held| path.starts_with(held) && !(removed && path == held));
        effects.iter().any(|effect| match effect {
            Effect::Write { place, .. } => !is_held(Path::new(&place.path)),
            _ => false,
        })
    }

    fn permit(&self, kind: &str, decoded: &dyn ParsedResource) -> Result<(), String> {
        if self.unnamed_types && decoded.effects().reach_system() {
            return Err(format!(
                "this node limits paths, which can't hold the type {kind}: its owner allows it by name, in `types` of [limits]"
            ));
        }
        Ok(())
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }
}

/// The bus, asked from outside: what it starts must not be confined.
pub(in crate::agent) struct ExchangeOutside {
    pub(in crate::agent) inner: Arc<dyn DiscoveryClient>,
    pub(in crate::agent) worker: Worker,
}

impl ExchangeOutside {
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn DiscoveryClient) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let inner = Arc::clone(&self.inner);
        self.worker.run(move || question(inner.as_ref())).unwrap_or_else(|gone| Err(gone.to_string()))
    }
}

impl DiscoveryClient for ExchangeOutside {
    fn value(&self, bucket: &str, key: &str) -> Result<BusValue<String>, String> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.ask(move |exchange| exchange.value(&bucket, &key))
    }

    fn registrations(&self, filter: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
        let filter = filter.clone();
        self.ask(move |exchange| exchange.registrations(&filter))
    }

    fn register(&self, registration: &Registration) -> Result<(), String> {
        let registration = registration.clone();
        self.ask(move |exchange| exchange.register(&registration))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Surroundings;
    use crate::resource;
    use crate::template::Scope;

    fn settings(limits: &str) -> Settings {
        let text = format!(
            "fleet = \"prod\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n[limits]\n{limits}"
        );
        let around =
            Surroundings { hostname: "web1".into(), state_dir: "/var/lib/ensign".into(), directory: "/etc/ensign".into() };
        Settings::read(&text, "agent.toml", &around).unwrap()
    }

    #[test]
    fn limits_become_a_confinement() {
        let of = |limits: &str| of(&settings(limits).limits, Some(Path::new("/bundle")));
        assert_eq!(of(""), Confinement { no_programs: true, ..Confinement::default() });
        assert!(of("exec = true").is_empty());
        assert!(of("confine = \"off\"\npaths = [\"/srv\"]").is_empty());
        assert!(of("fetch_hosts = []").no_network && !of("fetch_hosts = [\"a.example\"]").no_network);
        let files = of("paths = [\"/srv\"]\nread_paths = [\"/opt\"]\nunix_sockets = true");
        assert!(files.no_programs && files.local_sockets);
        let files = files.files.unwrap();
        assert_eq!((files.write, files.read), (vec!["/srv".into()], vec!["/opt".into(), "/bundle".into()]));
        assert!(of("read_paths = [\"/opt\"]").files.is_none());
    }

    #[test]
    fn what_is_not_held_is_told() {
        let report = |limits: &str, landlock: i32| Report::of(&settings(limits), Kernel { landlock }).state();
        for (limits, landlock, held, unrestricted) in [
            ("", 7, vec!["programs", "signals"], vec!["files", "network", "state", "system"]),
            ("exec = true", 7, vec![], vec!["files", "network", "programs", "state", "system"]),
            (
                "paths = [\"/srv\"]\ntypes = [\"file\"]\nfetch_hosts = []",
                7,
                vec!["devices", "files", "network", "programs", "signals", "sockets", "truncate"],
                vec!["attributes"],
            ),
            (
                "paths = [\"/srv\"]\ntypes = [\"file\"]\nfetch_hosts = []",
                3,
                vec!["files", "programs", "sockets", "truncate"],
                vec!["attributes", "devices", "network", "signals"],
            ),
            (
                "paths = [\"/var/lib\"]\ntypes = [\"file\", \"user\"]\nunix_sockets = true\nexec = true",
                7,
                vec!["devices", "files", "programs", "signals", "truncate"],
                vec!["attributes", "network", "sockets", "state", "system"],
            ),
            ("confine = \"off\"\npaths = [\"/srv\"]", 7, vec![], vec!["all"]),
        ] {
            let state = report(limits, landlock);
            assert_eq!((state.held, state.unrestricted), (strings(&held), strings(&unrestricted)), "{limits}");
        }
        let required = settings("confine = \"required\"\nfetch_hosts = []");
        assert!(begin(&required, Kernel { landlock: 7 }).is_ok());
        assert!(begin(&required, Kernel { landlock: 3 }).unwrap_err().contains("network"));
        assert!(begin(&settings("fetch_hosts = []"), Kernel { landlock: 0 }).is_ok());
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn only_what_must_gets_outside() {
        let (worker, _work) = Worker::new();
        let placement = Placement { worker, write: Some(vec!["/srv/www".into()]), unnamed_types: true };
        let scope = Scope::new(Arc::new(|| json!({})), json!({}), std::collections::BTreeMap::new());
        let outside = |kind: &str, properties: Value| {
            let decoded = resource::find(kind).unwrap().decode(properties.as_object().unwrap(), &scope);
            placement.is_needed(decoded.unwrap().as_ref())
        };
        let file = |name: &str, ensure: &str| json!({"name": name, "ensure": ensure, "owner": "0", "group": "0", "mode": "0644"});
        assert!(!outside("file", file("/srv/www/a", "present")));
        assert!(!outside("file", file("/srv/www", "directory")));
        assert!(outside("file", file("/srv/www", "absent")));
        assert!(outside("file", file("/srv/new", "directory")));
        let mut validated = file("/srv/new", "present");
        validated["validate"] = "id %s".into();
        validated["content"] = "x".into();
        assert!(!outside("file", validated), "a program of the author stays inside");
        assert!(!outside("exec", json!({"name": "id"})));
        assert!(outside("service", json!({"name": "nginx", "ensure": "running"})));
        assert!(outside("group", json!({"name": "www", "ensure": "present"})));
        assert!(outside("sysctl", json!({"name": "vm.swappiness", "value": "1"})));
        let unit = json!({"name": "nginx", "ensure": "running"});
        let unit = resource::find("service").unwrap().decode(unit.as_object().unwrap(), &scope).unwrap();
        assert!(placement.permit("service", unit.as_ref()).unwrap_err().contains("by name"));
        assert!(Placement { unnamed_types: false, ..placement }.permit("service", unit.as_ref()).is_ok());
    }
}
