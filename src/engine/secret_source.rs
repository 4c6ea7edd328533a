//! Sources of `secret()` in templates: a credential of systemd, a file, an environment variable.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::diag::error_chain;
use crate::host::{Host, fs};
use crate::model::{ReadAccess, TemplateRead};
use crate::template::SecretReader;

use super::template_files::GuardedFiles;

/// The largest secret, in bytes.
const MAX_SECRET: u64 = 64 << 10;
/// The variable with the directory of a unit's credentials (systemd.exec(5), `LoadCredential=`).
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Returns the source of secrets by name: `credential:NAME`, `file:PATH`, `env:NAME`. A name without a scheme is a file
/// when it has a `/`, and a credential otherwise. Relative paths are beside the manifest. A final line end is removed.
pub(super) fn open(environ: BTreeMap<String, String>, host: &Host, access: Arc<dyn ReadAccess>) -> SecretReader {
    let files = GuardedFiles { host: host.clone(), access: Arc::clone(&access) };
    Arc::new(move |name| {
        let credential = |name: &str| credential_of(&environ, access.as_ref(), name);
        let secret = match name.split_once(':') {
            Some(("env", variable)) => variable_of(&environ, access.as_ref(), variable),
            Some(("file", path)) => file(&files, path),
            Some(("credential", name)) => credential(name),
            Some((scheme, _)) if !name.contains('/') => {
                Err(format!("there is no \"{scheme}:\": a secret is credential:NAME, file:PATH or env:NAME"))
            }
            _ if name.contains('/') => file(&files, name),
            _ => credential(name),
        };
        let secret = secret.map_err(|why| format!("secret \"{name}\": {why}"))?;
        if secret.is_empty() { Err(format!("secret \"{name}\": the value is empty")) } else { Ok(secret) }
    })
}

fn variable_of(environ: &BTreeMap<String, String>, access: &dyn ReadAccess, name: &str) -> Result<String, String> {
    access.may_read(&TemplateRead::Environ(name))?;
    environ.get(name).cloned().ok_or_else(|| format!("the environment variable {name} is not set"))
}

fn credential_of(environ: &BTreeMap<String, String>, access: &dyn ReadAccess, name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err("a credential has a plain name".to_owned());
    }
    access.may_read(&TemplateRead::Credential(name))?;
    let directory = environ.get(CREDENTIALS).filter(|directory| directory.starts_with('/')).ok_or_else(|| {
        format!("{CREDENTIALS} is not set: give the unit LoadCredential={name}:PATH, or write secret(\"file:PATH\") or secret(\"env:NAME\")")
    })?;
    let text = fs::read_text(&Path::new(directory).join(name), MAX_SECRET).map_err(|error| error_chain(&error))?;
    Ok(without_line_end(&text))
}

fn file(files: &GuardedFiles, path: &str) -> Result<String, String> {
    files.read(path, MAX_SECRET).map(|found| without_line_end(&found.text))
}

fn without_line_end(text: &str) -> String {
    let line = text.strip_suffix('\n').unwrap_or(text);
    line.strip_suffix('\r').unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UnrestrictedAccess;

    #[test]
    fn secrets_come_from_three_places() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("db"), "hunter2\n").unwrap();
        std::fs::write(at("empty"), "\n").unwrap();
        std::fs::write(at("two"), "a\nb\r\n").unwrap();
        let environ = [(CREDENTIALS, dir.path().to_str().unwrap()), ("PW", "from env")];
        let environ = environ.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let host = Host::system(None).with_directory(dir.path());
        let vault = open(environ.into(), &host, Arc::new(UnrestrictedAccess));
        for (name, expected) in [
            ("db", Ok("hunter2")),
            ("credential:db", Ok("hunter2")),
            ("file:db", Ok("hunter2")),
            ("./two", Ok("a\nb")),
            (at("db").to_str().unwrap(), Ok("hunter2")),
            ("env:PW", Ok("from env")),
            ("env:NO", Err("NO is not set")),
            ("file:no", Err("could not read")),
            ("empty", Err("the value is empty")),
            ("credential:../db", Err("a plain name")),
            ("vault:x", Err("there is no \"vault:\"")),
            ("", Err("a plain name")),
        ] {
            match (vault(name), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{name}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{name}: {found}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path().join("db"), elsewhere.path().join("link")).unwrap();
        std::fs::write(elsewhere.path().join("own"), "own").unwrap();
        let bounded = |allowed: &[&Path]| {
            let read_paths = Some(allowed.iter().map(|path| path.display().to_string()).collect());
            let bounds = crate::model::ResourceLimits { read_paths, ..Default::default() };
            open(
                BTreeMap::new(),
                &Host::system(None).with_limits(bounds).with_directory(elsewhere.path()),
                Arc::new(UnrestrictedAccess),
            )
        };
        let db = format!("file:{}", at("db").display());
        for (allowed, name, is_read) in [
            (&[][..], "file:own", true),
            (&[], db.as_str(), false),
            (&[], "file:link", false),
            (&[], "file:../../etc/hostname", false),
            (&[], "file:no/../../../etc/hostname", false),
            (&[dir.path()], db.as_str(), true),
            (&[dir.path()], "file:link", true),
            (&[&dir.path().join("d")], db.as_str(), false),
        ] {
            let found = bounded(allowed)(name);
            assert_eq!(found.is_ok(), is_read, "{name} {allowed:?}: {found:?}");
            assert!(is_read || found.is_err_and(|why| why.contains("may not read")), "{name}");
        }
        assert!(open(BTreeMap::new(), &host, Arc::new(UnrestrictedAccess))("db").unwrap_err().contains("LoadCredential=db:PATH"));
    }
}
