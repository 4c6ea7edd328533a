//! The files of a joined node. `agent.toml` is the last one: without it the host is no node.

use std::fmt::Write;
use std::path::Path;

use crate::host::fs::{self, TempFile, WriteSpec};
use crate::store::state_dir;
use crate::transport::nkey;
use crate::trust::decide::join::VerifiedAdmission;
use crate::wire::join::AdmissionDecision;

use super::error::JoinError;
use super::pending::{MARK, PendingJoin};

/// The credentials of the node's own user on the server.
const CREDENTIALS: &str = "node.creds";
/// The first trust bundle.
const TRUST: &str = "trust.dsse.json";

impl PendingJoin {
    /// Writes credentials and trust bundle, then `agent.toml` in one step.
    ///
    /// # Errors
    /// When a file can't be written, or a configuration appeared meanwhile. The host is then no node.
    pub fn install(&self, verified: &VerifiedAdmission) -> Result<(), JoinError> {
        let AdmissionDecision::Admitted { jwt } = &verified.admission.decision else { return Err(JoinError::NotAdmitted) };
        let credentials = nkey::creds(jwt, &self.user_seed);
        state_dir::write_atomic(&self.path(CREDENTIALS), credentials.reveal().as_bytes())?;
        state_dir::write_atomic(&self.path(TRUST), verified.bundle.envelope())?;
        let config = &self.options.config;
        if let Some(parent) = config.parent().filter(|parent| !parent.as_os_str().is_empty() && !fs::is_directory(parent)) {
            fs::create_directory(parent, 0o755)?;
        }
        let text = self.config_text(verified);
        TempFile::new(config, &mut text.as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o644 })?.persist_new()?;
        Ok(())
    }

    /// Returns the text of `agent.toml`.
    fn config_text(&self, verified: &VerifiedAdmission) -> String {
        let (token, bundle) = (&self.options.token, &verified.bundle);
        let quote = |text: &str| toml::Value::from(text).to_string();
        let quote_path = |path: &Path| quote(&path.to_string_lossy());
        let list = |texts: &[String]| format!("[{}]", texts.iter().map(|text| quote(text)).collect::<Vec<_>>().join(", "));
        let roots: Vec<String> = bundle.roots().iter().map(|key| key.to_openssh("")).collect();
        let mut text = format!("# Made by `ensign agent join`; agent.toml.example shows every key.\n{MARK}{}\n", self.digest);
        let mut line = |key: &str, value: String| {
            // Writing to a String does not fail.
            let _written = writeln!(text, "{key} = {value}").is_ok();
        };
        line("fleet", quote(&token.fleet));
        line("node", quote(self.options.node.as_str()));
        line("groups", list(&verified.admission.groups));
        line("state_dir", quote_path(&self.options.state_dir));
        line("\n[nats]\nservers", list(&token.servers));
        if let Some(domain) = &token.domain {
            line("jetstream_domain", quote(domain));
        }
        line("creds", quote_path(&self.path(CREDENTIALS)));
        line("inbox_prefix", quote(&format!("_INBOX_NODE.{}", self.options.node)));
        if token.ca.is_some() {
            line("tls.ca", quote_path(&self.authority_file()));
        }
        line("\n[trust]\nroot", list(&roots));
        line("threshold", bundle.bundle().root.threshold.to_string());
        line("bundle", quote_path(&self.path(TRUST)));
        // The safest default for programs: a signature alone starts none of the author's choice.
        line(
            "\n[limits]\n# Commands of manifests (exec, health checks) are off until this host allows them.\nexec",
            "false".to_owned(),
        );
        text
    }
}
