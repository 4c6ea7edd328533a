//! The pipe API: one request about one resource, one response.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event::TransactionEvent;

/// Protocol of an [`EnsureRequest`].
pub const REQUEST: &str = "io.choria.ccm.v1.resource.ensure.request";
/// Protocol of an [`EnsureResponse`].
const RESPONSE: &str = "io.choria.ccm.v1.resource.ensure.response";

/// A request to bring one resource to its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnsureRequest {
    /// Always `io.choria.ccm.v1.resource.ensure.request`.
    #[serde(default)]
    pub protocol: String,
    /// The resource type.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Its properties with `name`, or a list of one `NAME: {properties}`.
    #[serde(default)]
    pub properties: Value,
}

impl EnsureRequest {
    /// Checks everything that does not depend on the type.
    ///
    /// # Errors
    /// The missing or wrong part.
    pub fn check(&self) -> Result<(), String> {
        if self.protocol != REQUEST {
            return Err(format!("invalid protocol \"{}\": expected {REQUEST}", self.protocol));
        }
        if self.kind.is_empty() {
            return Err("missing type in request".to_owned());
        }
        if self.properties.is_null() {
            return Err("missing properties in request".to_owned());
        }
        Ok(())
    }
}

/// The answer: the event, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnsureResponse {
    /// Always `io.choria.ccm.v1.resource.ensure.response`.
    pub protocol: String,
    /// The event of the resource. A resource that failed has `failed: true` here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TransactionEvent>,
    /// The reason for which nothing was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl EnsureResponse {
    /// Creates a response with an event.
    pub fn state(event: TransactionEvent) -> Self {
        Self { protocol: RESPONSE.to_owned(), state: Some(event), error: None }
    }

    /// Creates a response with the reason for which nothing ran.
    pub fn error(why: impl Into<String>) -> Self {
        Self { protocol: RESPONSE.to_owned(), state: None, error: Some(why.into()) }
    }
}
