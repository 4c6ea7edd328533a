//! The account of a fleet on its server: read, and replaced, by a user of the system account.

use std::time::Duration;

use serde::Deserialize;

use crate::transport::{Bus, Message, TransportError};

/// Longest wait for the response of the server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An error between this machine and the account resolver of the server.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The connection failed.
    #[error(transparent)]
    Bus(#[from] TransportError),
    /// No server answers requests for accounts.
    #[error("no server of the system account answers: its configuration has no resolver of type full")]
    NoResolver,
    /// The server refused the account.
    #[error("the server refused the account: {0}")]
    Refused(String),
    /// The response is not the one of an account resolver.
    #[error("unexpected response of the account resolver")]
    Response(#[source] serde_json::Error),
}

/// The response to a claim request of the system account. The server adds fields.
#[derive(Debug, Deserialize)]
struct ClaimResponse {
    #[serde(default)]
    data: Option<ClaimOutcome>,
    #[serde(default)]
    error: Option<ClaimFailure>,
}

#[derive(Debug, Deserialize)]
struct ClaimOutcome {
    #[serde(default)]
    code: u32,
}

#[derive(Debug, Deserialize)]
struct ClaimFailure {
    #[serde(default)]
    description: String,
}

/// Returns the JWT of an account on the server; `None` when the server has none.
///
/// # Errors
/// When no server answers.
pub async fn fetch_account(bus: &Bus, account: &str) -> Result<Option<String>, PushError> {
    let response = request(bus, &format!("$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"), Vec::new()).await?;
    let text = String::from_utf8_lossy(&response.payload).trim().to_owned();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Gives the JWT of an account to the server, which disconnects revoked users at once.
///
/// # Errors
/// When no server answers, or the server refuses the account.
pub async fn push_account(bus: &Bus, jwt: &str) -> Result<(), PushError> {
    let response = request(bus, "$SYS.REQ.CLAIMS.UPDATE", jwt.as_bytes().to_vec()).await?;
    let response: ClaimResponse = serde_json::from_slice(&response.payload).map_err(PushError::Response)?;
    match (response.data, response.error) {
        (_, Some(failure)) => Err(PushError::Refused(failure.description)),
        (Some(outcome), None) if outcome.code == 200 => Ok(()),
        (outcome, None) => Err(PushError::Refused(format!("code {}", outcome.map_or(0, |outcome| outcome.code)))),
    }
}

async fn request(bus: &Bus, subject: &str, payload: Vec<u8>) -> Result<Message, PushError> {
    let (inbox, mut responses) = bus.request_inbox().await?;
    bus.publish_with_reply(subject, &format!("{inbox}.1"), &[], payload).await?;
    match tokio::time::timeout(RESPONSE_TIMEOUT, responses.next()).await {
        Ok(Some(message)) if message.no_responders => Err(PushError::NoResolver),
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(TransportError::Disconnected.into()),
        Err(_) => Err(TransportError::TimedOut(format!("waiting for the response to {subject}")).into()),
    }
}
