//! The readers behind a scope: facts, files, secrets.

use std::sync::Arc;

use serde_json::Value;

/// Returns the facts; called at most once in a scope.
pub type FactsSource = Arc<dyn Fn() -> Value + Send + Sync>;

/// A text that a [`TemplateFileReader`] returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFile {
    /// The text.
    pub text: String,
    /// True for a file of the manifest, which has the signature of the manifest.
    pub is_in_manifest: bool,
}

/// Returns the file that `readFile`, `template` or `jet` names, after the check of the path and the access.
///
/// The error is the reason of the refusal or failure.
pub type TemplateFileReader = Arc<dyn Fn(&str) -> Result<TemplateFile, String> + Send + Sync>;

/// Returns the secret of a name. The error is the reason of the failure.
pub type SecretReader = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;
