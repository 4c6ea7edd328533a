//! dnf and rpm. A single `rpm -qa` lists the installed packages, again only after a change of the database. A `dnf repoquery` and
//! a `dnf check-update` query the index for all packages of a run. dnf makes the transactions.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::diag::error_chain;
use crate::host::command::is_executable;
use crate::host::rpm::{RPM, Rpm, RpmError, RpmPackage, RpmPackages, RpmStamp, split_architecture};
use crate::host::{Host, Output, ProcessCommand, fs, lock};
use crate::model::{HumanDuration, lock};
use crate::resource::ResourceError;

use super::change::{PackageAction, PackageChange};
use super::manager::{PackageJob, PackageManager, TransactionFailure};
use super::output::describe;
use super::properties::{Properties, RequestedVersion};
use super::state::{Installed, Offer, PackageState, VersionOrder};

const DNF: &str = "/usr/bin/dnf";

/// Files that determine the offers, beside the database. The last is the index of dnf.
const SOURCES: [&str; 4] = ["/etc/dnf/dnf.conf", "/etc/yum.repos.d", "/etc/dnf/vars", "/var/cache/dnf"];

/// Files with the process number of a running dnf.
const LOCKS: [&str; 3] = ["/var/cache/dnf/metadata_lock.pid", "/var/cache/dnf/download_lock.pid", "/var/lib/dnf/rpmdb_lock.pid"];

/// Maximum number of packages of one query: the kept part of the output must contain the whole answer.
const ASK_AT_ONCE: usize = 500;

const AVAILABLE_FORMAT: &str = "%{name}\\t%{epoch}\\t%{version}\\t%{release}\\t%{arch}\\n";

const REQUIRED_FORMAT: &str = "[%{=NAME}\\t%{REQUIRENAME}\\n]";

/// True where dnf and rpm are installed.
pub(super) fn is_installed() -> bool {
    [DNF, RPM].iter().all(|program| is_executable(Path::new(program)))
}

/// The provider for dnf.
pub(super) struct Dnf {
    rpm: Arc<Rpm>,
    prefetched: Mutex<BTreeMap<String, Interest>>,
    index: Mutex<Index>,
    /// The smallest maximum age of the index so far in this run.
    refreshed: Mutex<Option<HumanDuration>>,
}

/// The reasons for a query about a package.
#[derive(Debug, Clone, Copy, Default)]
struct Interest {
    /// True when some resource wants a certain version.
    version: bool,
    /// True when some resource wants the latest version.
    latest: bool,
}

/// The answers, with the stamp of the host at the time.
#[derive(Default)]
struct Index {
    stamp: RpmStamp,
    /// All versions of packages that are not installed, or wanted in another version.
    available: HashMap<String, Offer>,
    /// The newer versions of installed packages; `None` when there is none.
    upgrades: HashMap<String, Option<String>>,
}

fn command<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> ProcessCommand {
    let mut command = ProcessCommand::new(program, args);
    command.env = vec![("HOME".to_owned(), "/root".to_owned())];
    command
}

fn permanent_failure(message: String) -> TransactionFailure {
    TransactionFailure { message, is_permanent: true }
}

/// Parses the new versions in the output of `dnf check-update`: triples of name with architecture, version and repository. Long
/// triples are split over several lines.
fn upgrades(answer: &str) -> Vec<(&str, &str)> {
    let listed = answer.split("Obsoleting Packages").next().unwrap_or_default();
    let words: Vec<&str> = listed.split_whitespace().collect();
    words.chunks_exact(3).filter_map(|triple| Some((*triple.first()?, *triple.get(1)?))).collect()
}

impl Dnf {
    /// Creates the provider over this database of rpm.
    pub(super) fn new(rpm: Arc<Rpm>) -> Self {
        Self { rpm, prefetched: Mutex::default(), index: Mutex::default(), refreshed: Mutex::default() }
    }

    fn packages(&self, host: &Host) -> Result<Arc<RpmPackages>, ResourceError> {
        self.rpm.packages(host.scope()).map_err(|error| match error {
            RpmError::Failed(output) => ResourceError::State(describe("rpm -qa", &output)),
            RpmError::Command(error) => error.into(),
            RpmError::Fs(error) => error.into(),
        })
    }

    fn stamp(&self, host: &Host) -> Result<RpmStamp, ResourceError> {
        self.rpm.stamp(host.scope()).map_err(|error| ResourceError::State(error_chain(&error)))
    }

    /// Returns the stamp of the database and of all files that determine the offers.
    fn offer_stamp(&self, host: &Host) -> Result<RpmStamp, ResourceError> {
        let mut stamp = self.stamp(host)?;
        for path in SOURCES {
            stamp.push(fs::stamp(Path::new(path))?);
        }
        Ok(stamp)
    }

    /// Returns the packages for a query about `name`.
    fn query_names(&self, name: &str, wanted: impl Fn(&str, Interest) -> bool) -> Vec<String> {
        let prefetched = lock(&self.prefetched);
        let others = prefetched.iter().filter(|(other, interest)| *other != name && wanted(other, **interest));
        others.map(|(other, _)| other.clone()).chain([name.to_owned()]).collect()
    }

    fn query_available(&self, name: &str, index: &mut Index, host: &Host) -> Result<(), ResourceError> {
        let packages = self.packages(host)?;
        let names = self.query_names(name, |other, interest| {
            !index.available.contains_key(other) && (interest.version || packages.by_name(other).is_empty())
        });
        for some in names.chunks(ASK_AT_ONCE) {
            let args = ["-q", "repoquery", "--available", "--qf", AVAILABLE_FORMAT];
            let output = host.run(&command(DNF, args.into_iter().chain(some.iter().map(String::as_str))))?;
            if output.code != 0 {
                return Err(ResourceError::State(describe("dnf repoquery", &output)));
            }
            let answer = String::from_utf8_lossy(&output.stdout);
            let offered = RpmPackages::read(&answer).retain(|one| !one.architecture.ends_with("src"));
            index.available.extend(some.iter().map(|name| (name.clone(), offer_of(offered.by_name(name)))));
        }
        Ok(())
    }

    fn query_upgrades(&self, name: &str, index: &mut Index, host: &Host) -> Result<(), ResourceError> {
        let packages = self.packages(host)?;
        let names = self.query_names(name, |other, interest| {
            interest.latest && !index.upgrades.contains_key(other) && !packages.by_name(other).is_empty()
        });
        for some in names.chunks(ASK_AT_ONCE) {
            let output = host.run(&command(DNF, ["-q", "check-update"].into_iter().chain(some.iter().map(String::as_str))))?;
            // 100: upgrades are available; 0: none are.
            if !matches!(output.code, 0 | 100) {
                return Err(ResourceError::State(describe("dnf check-update", &output)));
            }
            let answer = String::from_utf8_lossy(&output.stdout);
            let listed = upgrades(&answer);
            let newer = |name: &String| {
                let of = |full: &str| full == name.as_str() || full.rsplit_once('.').is_some_and(|(plain, _)| plain == name);
                let versions = listed.iter().filter(|(full, _)| of(full)).map(|(_, version)| *version);
                versions.max_by(|a, b| VersionOrder::Rpm.compare(a, b)).map(str::to_owned)
            };
            index.upgrades.extend(some.iter().map(|name| (name.clone(), newer(name))));
        }
        Ok(())
    }

    fn run(&self, verb: &str, specs: &[String], wait: HumanDuration, host: &Host) -> Result<(), TransactionFailure> {
        let failed = |message: String| permanent_failure(message);
        let deadline = Instant::now() + wait.as_std();
        let wait_for = |path: &Path, who: lock::FindOwner| {
            lock::wait_until_free(path, deadline, host, who, &|holder| {
                host.notify(&format!("waiting up to {wait} for {holder}, which holds {}", path.display()));
            })
            .map_err(|error| failed(error_chain(&error)))
        };
        for path in LOCKS {
            wait_for(Path::new(path), lock::pid_file_owner)?;
        }
        let directory = self.rpm.directory(host.scope()).map_err(|error| failed(error_chain(&error)))?;
        wait_for(&directory.join(".rpm.lock"), lock::lock_owner)?;
        let args = ["-y", verb].into_iter().chain(specs.iter().map(String::as_str));
        let output: Output = host.run(&command(DNF, args)).map_err(|error| failed(error_chain(&error)))?;
        if output.code == 0 { Ok(()) } else { Err(TransactionFailure { message: describe("dnf", &output), is_permanent: false }) }
    }
}

/// Returns all versions of a package in the index.
fn offer_of(found: Vec<RpmPackage>) -> Offer {
    let mut versions: Vec<String> = found.into_iter().map(|one| one.version).collect();
    versions.sort_by(|a, b| VersionOrder::Rpm.compare(b, a));
    versions.dedup();
    if versions.is_empty() { Offer::Unknown } else { Offer::Known { candidate: versions.first().cloned(), versions } }
}

impl From<RpmPackage> for Installed {
    fn from(RpmPackage { version, architecture }: RpmPackage) -> Self {
        Self { version, architecture }
    }
}

impl PackageManager for Dnf {
    fn prefetch(&self, all: &[&Properties]) {
        let mut prefetched = lock(&self.prefetched);
        for p in all {
            let interest = prefetched.entry(p.name.clone()).or_default();
            match p.wanted() {
                RequestedVersion::Version(_) => interest.version = true,
                RequestedVersion::Latest => interest.latest = true,
                RequestedVersion::Present | RequestedVersion::Absent => {}
            }
        }
    }

    fn installed_state(&self, name: &str, host: &Host) -> Result<PackageState, ResourceError> {
        Ok(PackageState {
            versions: VersionOrder::Rpm,
            manager: "dnf",
            name: name.to_owned(),
            installed: self.packages(host)?.by_name(name).into_iter().map(Installed::from).collect(),
            unfinished: None,
            broken: false,
            held: false,
            offer: Offer::NotAsked,
        })
    }

    fn offer(&self, p: &Properties, host: &Host) -> Result<Offer, ResourceError> {
        let state = self.installed_state(&p.name, host)?;
        let mut index = lock(&self.index);
        if index.stamp != self.offer_stamp(host)? {
            *index = Index::default();
        }
        let newest = state.newest().filter(|_| p.wanted() == RequestedVersion::Latest);
        let offer = if let Some(newest) = newest {
            if !index.upgrades.contains_key(&p.name) {
                self.query_upgrades(&p.name, &mut index, host)?;
            }
            let newer = index.upgrades.get(&p.name).cloned().flatten();
            Offer::Known { candidate: newer.or_else(|| Some(newest.version.clone())), versions: Vec::new() }
        } else {
            if !index.available.contains_key(&p.name) {
                self.query_available(&p.name, &mut index, host)?;
            }
            index.available.get(&p.name).cloned().unwrap_or(Offer::Unknown)
        };
        // After the queries: dnf touches its own files while it answers.
        index.stamp = self.offer_stamp(host)?;
        Ok(offer)
    }

    fn refresh(&self, p: &Properties, age: HumanDuration, host: &Host) -> Result<(), ResourceError> {
        let mut refreshed = lock(&self.refreshed);
        if refreshed.is_some_and(|known| known <= age) {
            return Ok(());
        }
        let seconds = age.as_std().as_secs();
        let expire = if seconds == 0 { "--refresh".to_owned() } else { format!("--setopt=*.metadata_expire={seconds}") };
        // Every query makes dnf read expired repositories; `makecache` would read all of them.
        let output = host.run(&command(DNF, ["-q", &expire, "repoquery", "--available", &p.name]))?;
        if output.code != 0 {
            let said = describe("dnf repoquery", &output);
            return Err(ResourceError::State(format!("could not read the package index again: {said}")));
        }
        *refreshed = Some(age);
        *lock(&self.index) = Index::default();
        Ok(())
    }

    fn can_combine(&self, one: PackageAction, other: PackageAction) -> bool {
        one == other
    }

    fn transact(&self, jobs: &[PackageJob<'_>], host: &Host) -> Result<(), TransactionFailure> {
        let Some(first) = jobs.first() else { return Ok(()) };
        let wait = jobs.iter().map(|job| job.properties.lock_timeout).max().unwrap_or_default();
        let mut specs = Vec::new();
        for job in jobs {
            specs.extend(specifications(job).map_err(|error| permanent_failure(error_chain(&error)))?);
        }
        let verb = match PackageAction::from_change(first.change) {
            PackageAction::Install => "install",
            PackageAction::Downgrade => "downgrade",
            PackageAction::Remove => "remove",
        };
        self.run(verb, &specs, wait, host)
    }

    /// Returns the requirements between packages by name. Ignores capabilities that are no names of packages.
    fn needs(&self, names: &[&str], host: &Host) -> Result<HashMap<String, Vec<String>>, ResourceError> {
        let output = host.run(&command(RPM, ["-q", "--qf", REQUIRED_FORMAT].into_iter().chain(names.iter().copied())))?;
        let mut needs: HashMap<String, Vec<String>> = HashMap::new();
        for (name, needed) in String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.split_once('\t')) {
            needs.entry(name.to_owned()).or_default().push(needed.to_owned());
        }
        Ok(needs)
    }

    fn records_failures(&self) -> bool {
        false
    }
}

/// Returns the arguments that name a package to dnf. The arguments are complete for a known version:
/// `name-epoch:version-release.architecture`.
fn specifications(job: &PackageJob<'_>) -> Result<Vec<String>, ResourceError> {
    let full = job.properties.name.as_str();
    let (plain, architecture) = split_architecture(full);
    let installed = &job.state.installed;
    match job.change {
        PackageChange::Remove { .. } => {
            let plain =
                if architecture.is_some_and(|a| installed.iter().all(|one| one.architecture == a)) { plain } else { full };
            Ok(installed.iter().map(|one| format!("{plain}-{}.{}", one.version, one.architecture)).collect())
        }
        PackageChange::Install { .. } if !matches!(job.properties.wanted(), RequestedVersion::Version(_)) => {
            Ok(vec![full.to_owned()])
        }
        _ => {
            let version = job.version()?.unwrap_or_default();
            let architectures = job.state.by_architecture();
            Ok(match (architecture, architectures.as_slice()) {
                (Some(architecture), _) => vec![format!("{plain}-{version}.{architecture}")],
                (None, several @ [_, _, ..]) => {
                    several.iter().map(|one| format!("{full}-{version}.{}", one.architecture)).collect()
                }
                (None, _) => vec![format!("{full}-{version}")],
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let answer = "\ndemo-epoch.noarch     1:1.0-1     demo\na-very-long-name-that-does-not-fit.x86_64\n     2.0-1\n  demo\n\
            Obsoleting Packages\nnew.noarch 1 demo\n  old.noarch 1 demo\n";
        assert_eq!(upgrades(answer), [("demo-epoch.noarch", "1:1.0-1"), ("a-very-long-name-that-does-not-fit.x86_64", "2.0-1")]);
        let offer = offer_of(RpmPackages::read("glibc\t0\t2.38\t1\tx86_64\nglibc\t0\t2.38\t1\ti686\n").by_name("glibc"));
        assert_eq!(offer, Offer::Known { candidate: Some("2.38-1".to_owned()), versions: vec!["2.38-1".to_owned()] });
    }
}
