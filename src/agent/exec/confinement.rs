//! The confinement of runs: which of `[limits]` the kernel enforces, which not, and the two threads of a run.
//!
//! In: the limits, and the directory of a bundle. Out: a confined thread for the run. The calling thread does the work that must
//! stay outside. This work is the agent's own state, facts, the bus, and resources that change the system itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::config::{AgentSettings, ConfinePolicy, Limits};
use crate::diag::error_chain;
use crate::engine::UnconfinedThread;
use crate::host::confine;
use crate::host::confine::{AccessibleFiles, ConfineError, Confined, Confinement, ConfinementPart, KernelFeatures, Worker};
use crate::model::registration::RegistrationFilter;
use crate::model::{BusValue, DiscoveryClient, Effect, Registration};
use crate::resource::{self, ParsedResource, RunPlace};
use crate::wire::ConfinementState;

/// Returns the confinement that the limits require. `bundle` is the directory of the manifest.
pub(in crate::agent) fn from_settings(settings: &AgentSettings, bundle: Option<&Path>) -> Confinement {
    let limits = &settings.limits;
    if limits.confine == ConfinePolicy::Off {
        return Confinement::default();
    }
    let list = |paths: &Option<Vec<String>>| paths.iter().flatten().map(PathBuf::from).collect::<Vec<_>>();
    let programs = external_types(settings);
    let files = limits.paths.is_some().then(|| {
        let others = [bundle, programs].into_iter().flatten().map(Path::to_owned);
        AccessibleFiles { write: list(&limits.paths), read: list(&limits.read_paths).into_iter().chain(others).collect() }
    });
    Confinement {
        files,
        no_programs: !limits.exec && programs.is_none(),
        no_network: limits.fetch_hosts.as_ref().is_some_and(Vec::is_empty),
        local_sockets: limits.unix_sockets,
    }
}

/// Returns the directory of external types, when the limits allow one of them. Their programs run in the confinement.
fn external_types(settings: &AgentSettings) -> Option<&Path> {
    let is_external = |kind: &String| resource::find(kind).is_none();
    let is_allowed = settings.limits.types.as_ref().is_none_or(|types| types.iter().any(is_external));
    settings.types.dir.as_deref().filter(|_| is_allowed)
}

/// A bound that the kernel enforces or not: its name in node states, and its description.
type Bound = (&'static str, &'static str);

const FILES: Bound = (
    "files",
    "a run changes files only below `paths`, and reads only there, below `read_paths` and in the directories of programs",
);
const TRUNCATE: Bound = ("truncate", "a run truncates no file outside of `paths`");
const PROGRAMS: Bound = ("programs", "a run starts no program, or only readable ones");
const NETWORK: Bound = ("network", "a run makes no TCP connection and opens no port");
const DEVICES: Bound = ("devices", "a run controls no device");
const SIGNALS: Bound = ("signals", "a run signals no process outside of itself");
const SOCKETS: Bound = ("sockets", "a run uses no socket of this host, as those of systemd or a container engine");
const ALL: Bound = ("all", "`confine` is off: only the agent enforces the limits");
const ANY_FILE: Bound = ("files", "`paths` is not set: a run changes and reads every file that the agent can");
const READS: Bound = ("reads", "`read_paths` without `paths`: only the agent limits reads");
const COMMANDS: Bound = ("programs", "`exec` without `paths`: a command has all rights of the agent's user");
const ATTRIBUTES: Bound = ("attributes", "modes, owners, times and existence of files: Landlock does not restrict them");
const ANY_CONNECTION: Bound =
    ("network", "connections: Landlock restricts ports, not hosts; only `fetch_hosts = []` forbids them");
const DATAGRAMS: Bound = ("datagrams", "UDP and raw packets of commands: Landlock restricts TCP only");
const STATE: Bound = ("state", "the agent's state directory: files are not limited, or the limits allow a path that contains it");
const ANY_SOCKET: Bound = ("sockets", "`unix_sockets`: a local service acts for a run without confinement");
const TYPES: Bound = ("programs", "`[types]`: the programs of external types, and what they start");
const SYSTEM: Bound = (
    "system",
    "packages, services, accounts, sysctl and mounts work outside of the confinement: only `types` and the agent limit them",
);

fn bound_of(part: ConfinementPart) -> Bound {
    match part {
        ConfinementPart::Files => FILES,
        ConfinementPart::Truncate => TRUNCATE,
        ConfinementPart::Programs => PROGRAMS,
        ConfinementPart::Network => NETWORK,
        ConfinementPart::Devices => DEVICES,
        ConfinementPart::Signals => SIGNALS,
        ConfinementPart::Sockets => SOCKETS,
    }
}

/// The limits that a kernel enforces, and those that it does not.
pub struct ConfinementReport {
    kernel: KernelFeatures,
    enforced: Vec<Bound>,
    /// The limits that only a newer kernel enforces.
    missing: Vec<Bound>,
    unrestricted: Vec<Bound>,
}

impl ConfinementReport {
    /// Returns the report for this kernel.
    pub fn new(settings: &AgentSettings, kernel: KernelFeatures) -> Self {
        let (limits, confinement) = (&settings.limits, from_settings(settings, None));
        let (held, missing): (Vec<ConfinementPart>, Vec<ConfinementPart>) =
            confinement.parts().into_iter().partition(|part| kernel.enforces(*part));
        let off = limits.confine == ConfinePolicy::Off;
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
            (!off && !limits.exec && external_types(settings).is_some(), TYPES),
            (!off && manages_system(limits), SYSTEM),
        ];
        Self {
            kernel,
            enforced: held.into_iter().map(bound_of).collect(),
            missing: missing.into_iter().map(bound_of).collect(),
            unrestricted: unrestricted.into_iter().filter_map(|(so, what)| so.then_some(what)).collect(),
        }
    }

    /// Returns the report for a node state: names only.
    pub fn state(&self) -> ConfinementState {
        let names = |bounds: &mut dyn Iterator<Item = &Bound>| {
            let mut names: Vec<String> = bounds.map(|(name, _)| (*name).to_owned()).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        ConfinementState {
            landlock: self.kernel.landlock,
            held: names(&mut self.enforced.iter()),
            unrestricted: names(&mut self.missing.iter().chain(&self.unrestricted)),
        }
    }

    /// Returns the descriptions of the enforced bounds.
    pub fn enforced(&self) -> impl Iterator<Item = &'static str> {
        self.enforced.iter().map(|(_, about)| *about)
    }

    /// Returns the descriptions of the unenforced bounds.
    pub fn unrestricted(&self) -> impl Iterator<Item = String> {
        let missing = self.missing.iter().map(|(_, about)| format!("this kernel does not enforce: {about}"));
        missing.chain(self.unrestricted.iter().map(|(_, about)| (*about).to_owned()))
    }

    /// Returns the version of Landlock as text.
    pub fn kernel(&self) -> String {
        match self.kernel.landlock {
            0 => "no Landlock: the kernel has none, `lsm=` of its command line leaves it out, or a container hides it".to_owned(),
            version => format!("Landlock {version}"),
        }
    }
}

/// Returns the abilities of the kernel of this host; none when the kernel cannot be asked.
pub fn detect_kernel() -> KernelFeatures {
    confine::kernel_features().unwrap_or_else(|error| {
        tracing::warn!("cannot query Landlock: {}", error_chain(&error));
        KernelFeatures { landlock: 0 }
    })
}

/// Logs at the start which limits the kernel enforces.
///
/// # Errors
/// When `confine = "required"` and the kernel cannot enforce a limit, with its name.
pub(in crate::agent) fn check_kernel(settings: &AgentSettings, kernel: KernelFeatures) -> Result<(), String> {
    let report = ConfinementReport::new(settings, kernel);
    tracing::info!("the kernel enforces these limits: {} ({})", report.state().held.join(", "), report.kernel());
    for (name, about) in &report.unrestricted {
        tracing::info!("not enforced by the kernel: {name}: {about}");
    }
    if report.missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> = report.missing.iter().map(|(name, _)| *name).collect();
    let missing = format!("the kernel does not enforce: {} ({})", missing.join(", "), report.kernel());
    if settings.limits.confine == ConfinePolicy::Required {
        return Err(missing);
    }
    tracing::warn!("{missing}");
    Ok(())
}

/// Returns true when the limits allow a type that works outside of the confinement.
fn manages_system(limits: &Limits) -> bool {
    let allowed = |kind: &str| limits.types.as_ref().is_none_or(|types| types.iter().any(|known| known == kind));
    resource::TYPES.iter().any(|kind| kind.changes_system() && allowed(kind.name()))
}

/// Returns true when no path that a run may change contains the state of the agent.
fn state_is_out_of_reach(settings: &AgentSettings) -> bool {
    let Limits { paths: Some(paths), read_paths, .. } = &settings.limits else { return false };
    // Paths as written: each heartbeat asks, and must not wait for a disk.
    let holds = |path: &String| settings.state_dir.starts_with(path);
    !paths.iter().chain(read_paths.iter().flatten()).any(holds)
}

/// Runs `inside` on a confined thread of its own, while this thread does the work that `inside` hands over. Returns
/// none when `inside` panics.
///
/// A thread cannot leave its confinement: the thread ends with the run, and belongs to no pool.
pub(in crate::agent) fn run_confined<T: Send>(
    confinement: &Confinement,
    inside: impl FnOnce(Result<Confined, ConfineError>, Worker) -> T + Send,
) -> Option<T> {
    let (worker, work) = Worker::new();
    thread::scope(|scope| {
        let confined = thread::Builder::new().name("run".to_owned());
        let confined = confined.spawn_scoped(scope, move || inside(confinement.apply(), worker));
        for one in work {
            // The receiver of the result sees that the sender was dropped.
            let _broke = catch_unwind(AssertUnwindSafe(one));
        }
        confined.ok()?.join().ok()
    })
}

/// Decides which resources are managed outside of the confinement.
pub(in crate::agent) struct Placement {
    pub(in crate::agent) worker: Worker,
    /// The directories of `paths` below which the run's thread may change files; everywhere when none.
    pub(in crate::agent) write: Option<Vec<PathBuf>>,
    /// True when `paths` is set and `types` is not. The limits then never allowed a type without paths.
    pub(in crate::agent) unnamed_types: bool,
}

impl UnconfinedThread for Placement {
    fn is_needed(&self, decoded: &dyn ParsedResource) -> bool {
        match decoded.run_place() {
            RunPlace::Confined => return false,
            RunPlace::Unconfined => return true,
            RunPlace::ByEffects => {}
        }
        let effects = decoded.effects();
        if effects.affect_system() {
            return true;
        }
        // A resource that runs programs of its author always stays inside.
        let runs = effects.iter().any(|effect| matches!(effect, Effect::Run { .. }));
        let Some(held) = self.write.as_ref().filter(|_| !runs) else { return false };
        // Creating and removing a directory of `paths` itself changes the directory above, which the kernel protects.
        let removed = decoded.ensure() == "absent";
        let is_held = |path: &Path| held.iter().any(|held| path.starts_with(held) && !(removed && path == held));
        effects.iter().any(|effect| match effect {
            Effect::Write { place, .. } => !is_held(Path::new(&place.path)),
            _ => false,
        })
    }

    fn permit(&self, kind: &str, decoded: &dyn ParsedResource) -> Result<(), String> {
        let changes_system = match decoded.run_place() {
            RunPlace::Confined => false,
            RunPlace::Unconfined => true,
            RunPlace::ByEffects => decoded.effects().affect_system(),
        };
        if self.unnamed_types && changes_system {
            return Err(format!(
                "this node limits paths, and paths cannot limit the type {kind}: allow the type by name in `types` of [limits]"
            ));
        }
        Ok(())
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }
}

/// The bus, used from outside of the confinement: connections and threads of the bus must not be confined.
pub(in crate::agent) struct UnconfinedBus {
    pub(in crate::agent) inner: Arc<dyn DiscoveryClient>,
    pub(in crate::agent) worker: Worker,
}

impl UnconfinedBus {
    fn run_outside<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn DiscoveryClient) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let inner = Arc::clone(&self.inner);
        self.worker.run(move || question(inner.as_ref())).unwrap_or_else(|gone| Err(gone.to_string()))
    }
}

impl DiscoveryClient for UnconfinedBus {
    fn value(&self, bucket: &str, key: &str) -> Result<BusValue<String>, String> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.run_outside(move |exchange| exchange.value(&bucket, &key))
    }

    fn registrations(&self, filter: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
        let filter = filter.clone();
        self.run_outside(move |exchange| exchange.registrations(&filter))
    }

    fn register(&self, registration: &Registration) -> Result<(), String> {
        let registration = registration.clone();
        self.run_outside(move |exchange| exchange.register(&registration))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::HostDefaults;
    use crate::resource;
    use crate::template::Scope;

    fn settings(limits: &str) -> AgentSettings {
        let text = format!(
            "fleet = \"prod\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n[limits]\n{limits}"
        );
        let around =
            HostDefaults { hostname: "web1".into(), state_dir: "/var/lib/ensign".into(), directory: "/etc/ensign".into() };
        AgentSettings::read(&text, "agent.toml", &around).unwrap()
    }

    #[test]
    fn limits_become_a_confinement() {
        let of = |limits: &str| from_settings(&settings(limits), Some(Path::new("/bundle")));
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
    fn types_open_the_way_for_their_programs() {
        let of = |limits: &str| from_settings(&settings(&format!("{limits}\n[types]\ndir = \"/types\"")), None);
        assert!(of("").is_empty());
        assert!(of("types = [\"file\"]").no_programs && !of("types = [\"file\", \"mine\"]").no_programs);
        let files = of("paths = [\"/srv\"]");
        assert!(!files.no_programs && files.files.unwrap().read == [PathBuf::from("/types")]);
    }

    #[test]
    fn what_is_not_held_is_told() {
        let report = |limits: &str, landlock: i32| ConfinementReport::new(&settings(limits), KernelFeatures { landlock }).state();
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
        assert!(check_kernel(&required, KernelFeatures { landlock: 7 }).is_ok());
        assert!(check_kernel(&required, KernelFeatures { landlock: 3 }).unwrap_err().contains("network"));
        assert!(check_kernel(&settings("fetch_hosts = []"), KernelFeatures { landlock: 0 }).is_ok());
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
