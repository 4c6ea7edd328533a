//! The file `admitted`: a record of every node that was admitted to the fleet, with its keys.
//!
//! Each line is the JSON of an [`Admission`]. Lines are only appended: the latest line of a node has its current keys.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::host::fs::{self, FsError};
use crate::model::NodeId;
use crate::trust::{KeyError, PublicKey};
use crate::wire::json::{self, JsonError};

/// Largest file in bytes: some 200 000 admissions.
const MAX_FILE: u64 = 64 << 20;

/// A node that was admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admission {
    /// The node.
    pub node: NodeId,
    /// Its groups on the server.
    pub groups: Vec<String>,
    /// The public key of its NATS user, `U...`.
    pub user: String,
    /// The public key that verifies its messages, as `ed25519:...`.
    pub key: String,
    /// The public user key of the join token; none for a node that was admitted by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Time of the admission.
    pub at: Timestamp,
}

impl Admission {
    /// Returns the key that verifies the messages of the node.
    ///
    /// # Errors
    /// When the key is no public key.
    pub fn public_key(&self) -> Result<PublicKey, KeyError> {
        self.key.parse()
    }
}

/// A file of admissions that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionsError {
    /// The file can't be read or written.
    #[error(transparent)]
    File(#[from] FsError),
    /// A line that is no admission.
    #[error("{}:{line} is not the admission of a node", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        #[source]
        source: JsonError,
    },
    /// An admission that can't be written as JSON.
    #[error("could not write the admission of a node")]
    Encode(#[source] serde_json::Error),
}

/// Reads all admissions, the oldest first. A missing file has none.
///
/// # Errors
/// When the file can't be read, others could have changed it, or a line is no admission. A skipped line would hide a user.
pub fn read_admissions(path: &Path) -> Result<Vec<Admission>, AdmissionsError> {
    let text = match fs::read_trusted_text(path, MAX_FILE) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        text => text?,
    };
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| {
            json::read(text.as_bytes()).map_err(|source| AdmissionsError::Line { path: path.to_owned(), line, source })
        })
        .collect()
}

/// Appends an admission, and waits until the disk has it.
///
/// # Errors
/// When the file can't be written.
pub fn append_admission(path: &Path, admission: &Admission) -> Result<(), AdmissionsError> {
    let line = serde_json::to_string(admission).map_err(AdmissionsError::Encode)?;
    Ok(fs::append_durably(path, &format!("{line}\n"), 0o600)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::SigningKey;

    #[test]
    fn admissions_are_read_back_and_a_damaged_line_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admitted");
        assert_eq!(read_admissions(&path).unwrap(), []);
        let key = SigningKey::generate().unwrap().public();
        let first = Admission {
            node: "web1".parse().unwrap(),
            groups: vec!["web".into()],
            user: "UA".into(),
            key: key.to_short(),
            token: None,
            at: "2026-11-23T10:00:00Z".parse().unwrap(),
        };
        let second = Admission { node: "web2".parse().unwrap(), token: Some("UB".into()), ..first.clone() };
        append_admission(&path, &first).unwrap();
        append_admission(&path, &second).unwrap();
        assert_eq!(read_admissions(&path).unwrap(), [first.clone(), second]);
        assert_eq!(first.public_key().unwrap(), key);
        let good = std::fs::read_to_string(&path).unwrap();
        for wrong in ["{\"node\":\"web3\"", "{}", "x", &good.trim().replace("\"groups\"", "\"group\"")] {
            std::fs::write(&path, format!("{good}{wrong}\n")).unwrap();
            let error = read_admissions(&path).unwrap_err().to_string();
            assert!(error.contains(":3 is not"), "{error}");
        }
    }
}
