//! Certificates for one test, made by `openssl`: an authority, servers called `localhost` and
//! `elsewhere.example`, a client.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The configuration of `openssl req`: extensions by purpose.
const CONFIG: &str = "\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
[elsewhere]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:elsewhere.example
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectAltName = DNS:client
";

/// `ca`, `server`, `elsewhere` and `client`, each with a certificate (`.pem`) and a key (`.key`); removed with this value.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("openssl.cnf"), CONFIG).unwrap();
        let made = Self(dir);
        made.make("ca", "authority", &[]);
        for name in ["server", "elsewhere", "client"] {
            made.make(name, name, &["-CA", "ca.pem", "-CAkey", "ca.key"]);
        }
        made
    }

    fn make(&self, name: &str, purpose: &str, signer: &[&str]) {
        // Each authority has a name of its own.
        let (subject, key, certificate) =
            (format!("/CN={name} {}", uuid::Uuid::now_v7()), format!("{name}.key"), format!("{name}.pem"));
        let output = Command::new("openssl")
            .args(["req", "-x509", "-config", "openssl.cnf", "-extensions", purpose, "-days", "2", "-nodes"])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-subj", &subject, "-keyout", &key, "-out", &certificate])
            .args(signer)
            .current_dir(self.0.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// `ca.pem`, `server.key` and so on.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        self.0.path()
    }
}
