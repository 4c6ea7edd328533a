//! The predicted effects of a dry run so far. No effect is real, and later resources may depend on them.

use std::path::Path;

use crate::model::effects::AccountKind;
use crate::model::{Effect, Effects, lock};

use super::machine::{DryRunEffects, Host};

impl Host {
    /// Returns the same host, for a dry run.
    #[must_use]
    pub fn for_dry_run(mut self) -> Self {
        self.foreseen = Some(DryRunEffects::default());
        self
    }

    /// Records the effects that a resource would have; with `absent`, the removals. Does nothing outside of dry runs.
    pub fn note_effects(&self, effects: Effects, absent: bool) {
        if let Some(DryRunEffects { done, undone }) = &self.foreseen {
            let known = if absent { undone } else { done };
            lock(known).extend(effects);
        }
    }

    /// True where a real run might have removed an object below a directory by now.
    pub fn expects_removal(&self, directory: &Path) -> bool {
        let Some(DryRunEffects { undone, .. }) = &self.foreseen else { return false };
        let undone = lock(undone);
        undone.iter().any(|effect| matches!(effect, Effect::Write { place, .. } if Path::new(&place.path).starts_with(directory)))
            || self.is_predicted(|effect| matches!(effect, Effect::Run { command, dry: false } if names_path(command, directory)))
    }

    /// True where a real run might have created an object at a path by now.
    pub fn expects_path(&self, path: &Path) -> bool {
        self.is_predicted(|effect| match effect {
            Effect::Write { place, .. } => {
                let written = Path::new(&place.path);
                // A directory is made with its parents.
                written.starts_with(path) || (place.below && path.starts_with(written))
            }
            Effect::Mount(mounting) => path.starts_with(&mounting.point),
            other => may_create(other, path.file_name().and_then(|name| name.to_str()).unwrap_or_default()),
        })
    }

    /// True where a real run might have created this user or group by now.
    pub fn expects_account(&self, kind: AccountKind, account: &str) -> bool {
        self.is_predicted(|effect| match effect {
            // Creating a user creates a group of the same name.
            Effect::Account { kind: made, name } => name == account && (*made == kind || *made == AccountKind::User),
            other => may_create(other, account),
        })
    }

    /// True where a real run might have created a unit of systemd by now. Any of these files can define the unit.
    pub fn expects_unit(&self, files: &[String]) -> bool {
        self.is_predicted(|effect| match effect {
            Effect::Write { place, .. } => {
                let path = Path::new(&place.path);
                place.below || path.file_name().is_some_and(|name| files.iter().any(|file| name == file.as_str()))
            }
            other => files.iter().any(|file| may_create(other, file.split(['@', '.']).next().unwrap_or_default())),
        })
    }

    /// True for a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.foreseen.is_some()
    }

    fn is_predicted(&self, is: impl Fn(&Effect) -> bool) -> bool {
        let Some(DryRunEffects { done, .. }) = &self.foreseen else { return false };
        lock(done).iter().any(is)
    }
}

/// True when a command line has the last part of a path.
fn names_path(command: &str, path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| command.contains(name))
}

/// True for effects that create unknown objects: a package any object, a command the objects in its command line.
fn may_create(effect: &Effect, name: &str) -> bool {
    match effect {
        Effect::Package(_) => true,
        Effect::Run { command, dry: false } => !name.is_empty() && command.contains(name),
        Effect::Unknown { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dry_runs_foresee() {
        let (real, dry) = (Host::system(None), Host::system(None).for_dry_run());
        for host in [&real, &dry] {
            host.note_effects([Effect::write("/n/a/b")].into_iter().collect(), false);
            host.note_effects([Effect::write("/d/x")].into_iter().collect(), true);
        }
        assert!(!real.expects_path(Path::new("/n/a")));
        assert!(dry.expects_path(Path::new("/n/a")) && dry.expects_path(Path::new("/n/a/b")));
        assert!(dry.expects_removal(Path::new("/d")) && !real.expects_removal(Path::new("/d")));
        assert!(!dry.expects_path(Path::new("/d/x")) && !dry.expects_removal(Path::new("/n")));
        assert!(!dry.expects_path(Path::new("/n/a/b/c")) && !dry.expects_path(Path::new("/n/b")));
    }

    #[test]
    fn predictions_depend_on_the_effects() {
        let account = |kind, name: &str| Effect::Account { kind, name: name.to_owned() };
        let files = ["web@1.service".to_owned(), "web@.service".to_owned()];
        for (effect, path, unit, user, group) in [
            (Effect::write("/etc/systemd/system/web@.service"), false, true, false, false),
            (Effect::write_below("/srv"), true, true, false, false),
            (Effect::Package("web".into()), true, true, true, true),
            (Effect::run("make -C /srv/x web app"), true, true, true, true),
            (Effect::run("true"), false, false, false, false),
            (account(AccountKind::User, "app"), false, false, true, true),
            (account(AccountKind::Group, "app"), false, false, false, true),
            (Effect::Unit("web@1".into()), false, false, false, false),
        ] {
            let host = Host::system(None).for_dry_run();
            host.note_effects([effect.clone()].into_iter().collect(), false);
            let found = (
                host.expects_path(Path::new("/srv/x")),
                host.expects_unit(&files),
                host.expects_account(AccountKind::User, "app"),
                host.expects_account(AccountKind::Group, "app"),
            );
            assert_eq!(found, (path, unit, user, group), "{effect}");
        }
    }
}
