//! Join tokens: a short-lived user of the server with the terms of the token, and the trust that hosts pin.

use crate::fleet::account::{FleetAccountError, JoinSigner, TokenTerms};
use crate::model::Secret;
use crate::transport::TransportError;
use crate::transport::nkey::UserKey;
use crate::trust::TrustedBundle;
use crate::wire::join::{JoinToken, PinnedTrust};

/// The content of a new join token.
#[derive(Debug)]
pub struct TokenRequest<'a> {
    /// The terms.
    pub terms: &'a TokenTerms,
    /// Addresses of the servers for hosts.
    pub servers: Vec<String>,
    /// Certificates of the trusted authorities of the servers, as PEM.
    pub ca: Option<String>,
    /// The JetStream domain of the streams of the fleet.
    pub domain: Option<String>,
    /// The trust bundle in force.
    pub trust: &'a TrustedBundle,
}

/// A token that can't be made.
#[derive(Debug, thiserror::Error)]
pub enum TokenMakeError {
    /// The user of the token can't be made.
    #[error("cannot make the user of the join token")]
    Key(#[source] TransportError),
    /// The user of the token can't be signed.
    #[error("cannot sign the join token")]
    Sign(#[source] FleetAccountError),
}

/// Makes a join token with a user of its own.
///
/// # Errors
/// When the system has no randomness, or a term is invalid.
pub fn make_token(signer: &JoinSigner, request: TokenRequest<'_>) -> Result<JoinToken, TokenMakeError> {
    let user = UserKey::generate().map_err(TokenMakeError::Key)?;
    let jwt = signer.join_user(request.terms, &user.public).map_err(TokenMakeError::Sign)?;
    Ok(JoinToken {
        fleet: request.trust.fleet().to_owned(),
        servers: request.servers,
        ca: request.ca,
        domain: request.domain,
        trust: PinnedTrust { roots: request.trust.roots_digest(), version: request.trust.version() },
        jwt: Secret::new(jwt),
        seed: user.seed,
    })
}
