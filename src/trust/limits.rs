//! Local limits: what a node does not do, whoever signs it. From its own configuration, never from the wire.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Map, Value};
use url::Url;

use crate::wire::command::{Action, Command, Ensure};

use super::glob;
use super::reach::{EXEC, Reach, further_paths, health, reaches, system_paths, urls};

/// Types that are about paths: those that their names say, unless [`reach::path`](super::path) says another.
pub const PATH_TYPES: &[&str] = &["file", "line", "symlink", "mount", "archive", "scaffold"];

/// What a node may be asked to do. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Resource types that may be managed.
    pub types: Option<Vec<String>>,
    /// Directories (absolute) below which files may be managed.
    pub paths: Option<Vec<String>>,
    /// Whether commands may be run: `exec`, and the health checks and post commands of other types.
    pub exec: bool,
    /// Hosts that may be fetched from, as `repo.example.org` or `*.example.org`.
    pub fetch_hosts: Option<Vec<String>>,
    /// Whether manifests may be applied.
    pub apply: bool,
    /// Channels whose standing desired state is kept to.
    pub channels: Option<Vec<String>>,
}

impl Default for Limits {
    /// Everything but commands.
    fn default() -> Self {
        Self { types: None, paths: None, exec: false, fetch_hosts: None, apply: true, channels: None }
    }
}

impl Limits {
    /// Whether a command is within the limits, as far as its signed bytes tell.
    ///
    /// What a manifest holds, where links lead and where servers redirect to is known only at run
    /// time: the engine asks again, with [`Self::type_allowed`], [`Self::path_allowed`] and
    /// [`Self::host_allowed`].
    ///
    /// # Errors
    /// What is over a limit, in words.
    pub fn check(&self, command: &Command) -> Result<(), String> {
        match &command.action {
            Action::Ensure(ensure) => self.check_resource(ensure),
            Action::Apply(_) | Action::Assign(_) if !self.apply => {
                Err("this node applies no manifests from the network".to_owned())
            }
            Action::Apply(apply) => self.check_url(&apply.url),
            Action::Assign(assign) => {
                self.check_channel(command)?;
                self.check_url(&assign.manifest.url)
            }
            Action::Withdraw(_)
            | Action::Healthcheck(_)
            | Action::Facts(_)
            | Action::Status(_)
            | Action::Halt(_)
            | Action::Resume(_) => Ok(()),
        }
    }

    fn check_channel(&self, command: &Command) -> Result<(), String> {
        let name = command.channel.as_ref().map(|channel| channel.name.as_str()).unwrap_or_default();
        match &self.channels {
            Some(channels) if !channels.iter().any(|known| known == name) => {
                Err(format!("this node does not follow the channel {name}"))
            }
            _ => Ok(()),
        }
    }

    fn check_resource(&self, ensure: &Ensure) -> Result<(), String> {
        self.check_reaches(reaches(ensure))?;
        self.check_system(&ensure.kind, &ensure.properties)?;
        urls(ensure).into_iter().try_for_each(|url| self.check_url(url))?;
        self.check_asked(&ensure.properties)
    }

    /// Whether the health checks among the properties of a resource are within the limits: what they run, whom they
    /// ask, and whose content they look at.
    ///
    /// # Errors
    /// What is over a limit, in words.
    pub fn check_health(&self, properties: &Map<String, Value>) -> Result<(), String> {
        self.check_reaches(health::reaches(properties))?;
        self.check_asked(properties)
    }

    fn check_asked(&self, properties: &Map<String, Value>) -> Result<(), String> {
        health::urls(properties).into_iter().try_for_each(|url| self.check_url(url))?;
        let over = |host: &&str| self.fetch_hosts.is_some() && (glob::is_template(host) || !self.host_allowed(host));
        match health::hosts(properties).into_iter().find(over) {
            Some(host) => Err(format!("this node does not fetch from \"{host}\"")),
            None => Ok(()),
        }
    }

    fn check_reaches(&self, reaches: Vec<Reach<'_>>) -> Result<(), String> {
        for reach in reaches {
            if !self.type_allowed(reach.kind) {
                return Err(match reach.kind {
                    EXEC if !self.exec => "this node runs no commands from the network".to_owned(),
                    kind => format!("this node does not manage the type {kind}"),
                });
            }
            let by_path = self.paths.is_some() && PATH_TYPES.contains(&reach.kind);
            if by_path && (glob::is_template(&reach.name) || !self.path_allowed(Path::new(reach.name.as_ref()))) {
                return Err(format!("this node does not manage the path \"{}\"", reach.name));
            }
        }
        Ok(())
    }

    /// Whether a resource may write what its type brings with it: the system's own files, and a user's home.
    ///
    /// # Errors
    /// With the first path that it may not, in words.
    pub fn check_system(&self, kind: &str, properties: &Map<String, Value>) -> Result<(), String> {
        if self.paths.is_none() {
            return Ok(());
        }
        let home = if kind == "user" { further_paths(kind, properties) } else { Vec::new() };
        let paths = system_paths(kind, properties).into_iter().chain(home.into_iter().map(Cow::into_owned));
        match paths.into_iter().find(|path| glob::is_template(path) || !self.path_allowed(Path::new(path))) {
            Some(path) => Err(format!("this node does not manage the path \"{path}\"")),
            None => Ok(()),
        }
    }

    fn check_url(&self, text: &str) -> Result<(), String> {
        if self.fetch_hosts.is_none() {
            return Ok(());
        }
        let no = || format!("this node does not fetch from \"{}\"", without_user(text));
        if glob::is_template(text) {
            return Err(no());
        }
        let url = Url::parse(text).map_err(|_| no())?;
        match (url.scheme(), url.host_str()) {
            // The node itself, and the server that the command came from.
            ("file" | "obj", _) => Ok(()),
            (_, Some(host)) if self.host_allowed(host) => Ok(()),
            _ => Err(no()),
        }
    }

    /// Whether resources of this type may be managed; `exec` is also asked for every command that another type runs.
    pub fn type_allowed(&self, kind: &str) -> bool {
        let listed = self.types.as_ref().is_none_or(|types| types.iter().any(|t| t == kind));
        listed && (self.exec || kind != EXEC) && (self.apply || kind != "apply")
    }

    /// Whether this path may be managed, compared part by part after `.` and `..` are resolved.
    pub fn path_allowed(&self, path: &Path) -> bool {
        let Some(allowed) = &self.paths else { return true };
        let Some(path) = path.to_str().filter(|path| path.starts_with('/')) else { return false };
        let path = glob::normal(path);
        allowed.iter().filter(|prefix| prefix.starts_with('/')).any(|prefix| Path::new(&path).starts_with(glob::normal(prefix)))
    }

    /// Whether this host may be fetched from.
    pub fn host_allowed(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let Some(allowed) = &self.fetch_hosts else { return true };
        allowed.iter().any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), &host))
    }
}

/// A URL without user and password, for messages.
fn without_user(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return "(not a URL)".to_owned() };
    if url.username().is_empty() && url.password().is_none() {
        return text.to_owned();
    }
    match (url.set_username(""), url.set_password(None)) {
        (Ok(()), Ok(())) => url.into(),
        _ => "(not a URL)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ensure(kind: &str, properties: &Value) -> Ensure {
        Ensure { kind: kind.into(), properties: properties.as_object().unwrap().clone() }
    }

    #[test]
    fn paths_are_compared_part_by_part() {
        let limits = Limits { paths: Some(vec!["/srv/www".into(), "/opt/".into()]), ..Limits::default() };
        for (path, wanted) in [
            ("/srv/www", true),
            ("/srv/www/a/b", true),
            ("/srv/www/./a", true),
            ("/opt/x", true),
            ("/srv/www2", false),
            ("/srv/www/../../etc/passwd", false),
            ("/srv/www/..", false),
            ("/srv", false),
            ("srv/www/a", false),
            ("", false),
        ] {
            assert_eq!(limits.path_allowed(Path::new(path)), wanted, "{path}");
            let file = ensure("file", &json!({"name": path}));
            assert_eq!(limits.check_resource(&file).is_ok(), wanted, "{path}");
        }
        for properties in [
            json!({"name": "/srv/www/{{ Facts.x }}"}),
            json!({"name": "/srv/www/a", "source": "/etc/shadow"}),
            json!({"name": "/srv/www/a", "source": 7}),
            json!({"name": "/srv/www/a", "backup": "/etc"}),
        ] {
            assert!(limits.check_resource(&ensure("file", &properties)).is_err(), "{properties}");
        }
        assert!(limits.check_resource(&ensure("archive", &json!({"name": "/opt/a.tgz", "extract_parent": "/etc"}))).is_err());
        for (kind, properties, wanted) in [
            ("line", json!({"name": "/srv/www/a"}), true),
            ("line", json!({"name": "any name", "path": "/srv/www/a"}), true),
            ("line", json!({"name": "/srv/www/a", "path": "/etc/a"}), false),
            ("symlink", json!({"name": "/srv/www/a", "target": "../www/b"}), true),
            ("symlink", json!({"name": "/srv/www/a", "target": "../../etc"}), false),
            ("symlink", json!({"name": "/srv/www/a", "target": "/etc"}), false),
            ("mount", json!({"name": "/srv/www/a", "device": "/opt/b", "options": "bind"}), true),
            ("mount", json!({"name": "/srv/www/a", "device": "/etc", "options": "bind"}), false),
            ("mount", json!({"name": "/srv/www/a", "device": "overlay", "options": "upperdir=/etc"}), false),
            ("mount", json!({"name": "/srv/www/a", "device": "LABEL=root"}), false),
            ("mount", json!({"name": "/srv/www/a", "device": "tmpfs", "fstype": "tmpfs"}), true),
            ("file", json!({"name": "/srv/www", "recurse": true, "backup": "/opt/kept"}), true),
        ] {
            assert_eq!(limits.check_resource(&ensure(kind, &properties)).is_ok(), wanted, "{kind} {properties}");
        }
        assert!(limits.check_resource(&ensure("service", &json!({"name": "nginx"}))).is_ok());
        assert!(Limits::default().path_allowed(Path::new("/etc/passwd")));
    }

    #[test]
    fn what_types_write_by_themselves_is_limited() {
        let limits =
            |paths: &[&str]| Limits { paths: Some(paths.iter().map(|&p| p.into()).collect()), exec: true, ..Limits::default() };
        let etc = limits(&["/etc", "/proc/sys/net", "/home"]);
        for (kind, properties, wanted) in [
            ("user", json!({"name": "a"}), true),
            ("user", json!({"name": "a", "home": "/srv/a"}), true),
            ("user", json!({"name": "a", "home": "/home/a", "manage_home": true}), true),
            ("user", json!({"name": "a", "home": "/srv/a", "manage_home": true}), false),
            ("user", json!({"name": "a", "home": "/home/{{ x }}", "manage_home": true}), false),
            ("user", json!({"name": "a", "manage_home": true}), false),
            ("group", json!({"name": "a"}), true),
            ("cron", json!({"name": "a", "command": "c"}), true),
            ("cron", json!({"name": "../../srv/a", "command": "c"}), false),
            ("sysctl", json!({"name": "net.ipv4.ip_forward", "value": 1}), true),
            ("sysctl", json!({"name": "net/ipv4/ip_forward", "value": 1}), true),
            ("sysctl", json!({"name": "vm.swappiness", "value": 1}), false),
            ("sysctl", json!({"name": "net.{{ x }}", "value": 1}), false),
        ] {
            assert_eq!(etc.check_resource(&ensure(kind, &properties)).is_ok(), wanted, "{kind} {properties}");
            let elsewhere = limits(&["/srv"]).check_resource(&ensure(kind, &properties));
            assert!(elsewhere.unwrap_err().starts_with("this node does not manage the path"), "{kind} {properties}");
        }
        assert!(limits(&["/etc/cron.d"]).check_resource(&ensure("user", &json!({"name": "a"}))).is_err());
    }

    #[test]
    fn commands_are_off_by_default_in_every_form() {
        let limits = Limits::default();
        for (kind, properties) in [
            ("exec", json!({"name": "id"})),
            ("file", json!({"name": "/a", "health_checks": [{"command": "id"}]})),
            ("file", json!({"name": "/a", "health_checks": [{"goss_rules": "{{ x }}"}]})),
            ("file", json!({"name": "/a", "health_checks": [{"goss_rules": {"command": {"id": {"exit-status": 0}}}}]})),
            ("file", json!({"name": "/a", "health_checks": [{"goss_rules": {"command": {"x": {"exec": "id"}}}}]})),
            ("scaffold", json!({"name": "/a", "post": [{"*": "id"}]})),
            ("cron", json!({"name": "a", "command": "id"})),
            ("sysctl", json!({"name": "kernel.core_pattern", "value": "|/x"})),
            ("file", json!({"name": "/a", "validate": "id %s"})),
            ("line", json!({"name": "/a", "validate": "id %s"})),
        ] {
            let resource = ensure(kind, &properties);
            assert_eq!(limits.check_resource(&resource).unwrap_err(), "this node runs no commands from the network");
            assert!(Limits { exec: true, ..Limits::default() }.check_resource(&resource).is_ok());
        }
        let files = Limits { types: Some(vec!["file".into()]), exec: true, ..Limits::default() };
        assert!(files.check_resource(&ensure("exec", &json!({"name": "id"}))).is_err());
        assert!(!Limits { apply: false, ..Limits::default() }.type_allowed("apply"));
    }

    #[test]
    fn of_the_host_itself_a_status_may_be_asked_and_no_more() {
        let limits = Limits { fetch_hosts: Some(vec!["good.example".into()]), ..Limits::default() };
        let allowed = |url: &str, thing: &Value| {
            let checks = json!({"name": "/a", "health_checks": [{"goss_rules": {"http": {url: thing}}}]});
            limits.check_resource(&ensure("file", &checks)).is_ok()
        };
        let own = "http://localhost:8080/health";
        assert!(allowed(own, &json!({"status": 200, "method": "head", "timeout": 50, "no-follow-redirects": true})));
        assert!(allowed("x", &json!({"status": 200, "url": "https://[::1]/"})));
        for (url, thing) in [
            (own, json!({"status": 200, "body": ["x"]})),
            (own, json!({"status": 200, "headers": ["x"]})),
            (own, json!({"status": 200, "method": "POST"})),
            (own, json!({"status": 200, "method": ["GET"]})),
            (own, json!({"status": 200, "request-headers": ["X: y"]})),
            (own, json!({"status": 200, "request-body": "x"})),
            (own, json!({"status": 200, "username": "u", "password": "p"})),
            (own, json!({"status": 200, "url": "http://evil.example/"})),
            (own, json!(null)),
            ("http://u:p@localhost/", json!({"status": 200})),
            ("http://169.254.169.254/latest", json!({"status": 200})),
            ("http://{{ x }}@localhost/", json!({"status": 200})),
            ("http://localhost.evil.example/", json!({"status": 200})),
        ] {
            assert!(!allowed(url, &thing), "{url} {thing}");
        }
    }

    #[test]
    fn hosts_are_those_of_the_url() {
        let limits = Limits { fetch_hosts: Some(vec!["good.example".into(), "*.cdn.example".into()]), ..Limits::default() };
        for (url, wanted) in [
            ("https://good.example/m.tgz", true),
            ("https://GOOD.example:8443/m.tgz", true),
            ("https://a.cdn.example/m.tgz", true),
            ("https://cdn.example/m.tgz", false),
            ("https://good.example@evil.example/m.tgz", false),
            ("https://good.example.evil.example/m.tgz", false),
            ("https://evil.example/?good.example", false),
            ("https://127.0.0.1/m.tgz", false),
            ("https://{{ x }}/m.tgz", false),
            ("good.example/m.tgz", false),
            ("obj://bucket/key", true),
            ("file:///srv/m.tgz", true),
        ] {
            assert_eq!(limits.check_url(url).is_ok(), wanted, "{url}");
        }
        for (section, key, wanted) in [
            ("http", "https://good.example/x", true),
            ("http", "https://evil.example/x", false),
            ("http", "https://{{ x }}/x", false),
            ("addr", "tcp://good.example:80", true),
            ("addr", "tcp://127.0.0.1:80", true),
            ("addr", "tcp://169.254.169.254:80", false),
            ("addr", "evil.example:80", false),
            ("addr", "good.example:80", true),
            ("dns", "evil.example", false),
            ("dns", "good.example", true),
            ("port", "tcp:22", true),
        ] {
            let checks = json!({"name": "/a", "health_checks": [{"goss_rules": {section: {key: {}}}}]});
            assert_eq!(limits.check_resource(&ensure("file", &checks)).is_ok(), wanted, "{section} {key}");
        }
        let named = json!({"name": "/a", "health_checks": [{"goss_rules": {"http": {"x": {"url": "https://evil.example"}}}}]});
        assert!(limits.check_resource(&ensure("file", &named)).is_err());
        let archive = ensure("archive", &json!({"name": "/a.tgz", "url": "https://u:pw@evil.example/a.tgz"}));
        let message = limits.check_resource(&archive).unwrap_err();
        assert_eq!(message, "this node does not fetch from \"https://evil.example/a.tgz\"");
    }
}
