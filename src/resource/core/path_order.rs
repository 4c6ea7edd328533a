//! The automatic order of types that manage paths or run commands: what they provide, and what comes before them.

use std::path::Path;

use crate::model::{Identity, Need};

/// Returns the path as an object, if `is_managed` is true.
pub(in crate::resource) fn path_if(is_managed: bool, path: &str) -> Vec<Identity> {
    is_managed.then(|| Identity::Path(path.into())).into_iter().collect()
}

/// Returns the needs of a path: the nearest directory or mount above, and its owner and group.
///
/// A path in `/etc` also needs the package of its directory.
pub(in crate::resource) fn path_needs(path: &str, owner: &str, group: &str) -> Vec<Need> {
    let mut needs = vec![Need::above(path)];
    needs.extend(Some(owner).filter(|owner| !owner.is_empty()).map(Need::user));
    needs.extend(Some(group).filter(|group| !group.is_empty()).map(Need::group));
    needs.extend(configured_package(path).map(Need::package));
    needs
}

/// Returns the needs of a path that is read or entered: the path itself, and everything above it.
pub(in crate::resource) fn existing_path_needs(path: &str) -> Vec<Need> {
    if path.starts_with('/') { vec![Need::path(path), Need::above(path)] } else { Vec::new() }
}

/// Returns the needs of a command: its program, and the package of that name.
pub(in crate::resource) fn command_needs(line: &str) -> Vec<Need> {
    let Some(program) = line.split_whitespace().next() else { return Vec::new() };
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    existing_path_needs(program).into_iter().chain(name.map(Need::package)).collect()
}

/// Returns the package whose configuration this path is: `N` for `/etc/N/…` and `/etc/default/N`.
fn configured_package(path: &str) -> Option<&str> {
    let below = path.strip_prefix("/etc/")?;
    match below.split_once('/')? {
        ("default", name) => Some(name).filter(|name| !name.contains('/')),
        (name, _) => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_belongs_to_the_package_of_its_name() {
        for (path, package) in [
            ("/etc/nginx/conf.d/site.conf", Some("nginx")),
            ("/etc/default/nginx", Some("nginx")),
            ("/etc/default/a/b", None),
            ("/etc/motd", None),
            ("/srv/etc/nginx/x", None),
        ] {
            assert_eq!(configured_package(path), package, "{path}");
        }
    }

    #[test]
    fn a_command_needs_its_program() {
        assert_eq!(command_needs("nginx -t"), [Need::package("nginx")]);
        assert_eq!(command_needs("/opt/a/run -x"), [Need::path("/opt/a/run"), Need::above("/opt/a/run"), Need::package("run")]);
        assert_eq!(command_needs(" "), []);
        assert_eq!(existing_path_needs("templates"), []);
    }
}
