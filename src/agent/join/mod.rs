//! Joining a fleet: a host asks with a token, waits for its admission, and becomes a node.
//!
//! ```text
//! JoinToken ──> PendingJoin (pending.rs: keys and request on disk) ──> publish ──> wait for a verified answer
//!                                                     install.rs: credentials, trust bundle, agent.toml last <──┘
//! ```
//!
//! Both private keys stay on the host. Nothing outside of the state directory exists before the verified answer, and
//! `agent.toml` appears last and complete. A killed join continues with the same keys and the same request.

mod error;
mod install;
mod pending;

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::transport::{Bus, BusSettings, Credentials, Tls, TransportError};
use crate::trust::decide::join::{AdmissionContext, VerifiedAdmission, open_answer};
use crate::wire::Subjects;
use crate::wire::join::AdmissionDecision;

use super::jitter;

pub use error::JoinError;
pub use pending::{JoinOptions, PendingJoin};

/// Pause between two reads of the answer. As much again comes on top at random, for a thousand hosts at once.
const POLL: Duration = Duration::from_secs(1);
/// Time after which the request is stored again. The stream may have lost it, or another host with the token replaced it.
const RESEND: Duration = Duration::from_secs(60);

impl PendingJoin {
    /// Returns the settings of the connection as the user of the token.
    fn bus_settings(&self) -> BusSettings {
        let token = &self.options.token;
        let ca = token.ca.as_ref().map(|_| self.authority_file());
        BusSettings {
            servers: token.servers.clone(),
            name: format!("ensign-join {}", self.options.node),
            credentials: Some(Credentials::Jwt { jwt: token.jwt.clone(), seed: token.seed.clone() }),
            tls: ca.map(|ca| Tls { ca: Some(ca), ..Tls::default() }),
            // The server lets each user of a token read below this prefix only.
            inbox_prefix: Some(format!("_INBOX_JOIN.{}", self.token_user)),
            jetstream_domain: token.domain.clone(),
            ..BusSettings::default()
        }
    }

    /// Sends the request and waits for a verified answer. `now` reads the clock of the host.
    ///
    /// An answer that does not verify counts as none: the server may withhold an answer, but can't make one.
    ///
    /// # Errors
    /// When the server rejects the token, an operator refuses the host, or the time is over.
    pub async fn wait_for_admission(&self, limit: Duration, now: impl Fn() -> Timestamp) -> Result<VerifiedAdmission, JoinError> {
        let deadline = Instant::now() + limit;
        let bus = Bus::connect(&self.bus_settings()).await.map_err(JoinError::Connect)?;
        let mut attempt = Attempt { bus, resend_at: Instant::now(), ignored: None };
        loop {
            let answer = self.exchange(&mut attempt).await?;
            if let Some(answer) = answer {
                match open_answer(&answer, &self.admission_context(now())) {
                    Ok(verified) => return self.accept(verified),
                    Err(error) => attempt.ignored = Some(error),
                }
            }
            let pause = POLL + jitter::random_delay(POLL);
            if Instant::now() + pause >= deadline {
                return Err(JoinError::NoAnswer(limit, attempt.ignored));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Stores the request when due, and reads the answer, if any. A lost connection counts as no answer.
    async fn exchange(&self, attempt: &mut Attempt) -> Result<Option<Vec<u8>>, JoinError> {
        let subjects = Subjects::new(&self.options.token.fleet);
        let user = &self.request.user_key;
        if Instant::now() >= attempt.resend_at {
            let request = subjects.join_request(user);
            match attempt.bus.publish_stored(request.as_str(), &[], self.envelope.clone()).await {
                Ok(_) => attempt.resend_at = Instant::now() + RESEND,
                Err(TransportError::Disconnected | TransportError::TimedOut(_)) => return Ok(None),
                Err(error) => return Err(JoinError::Send(error)),
            }
        }
        match attempt.bus.last(&subjects.stream("JOIN"), subjects.join_answer(user).as_str()).await {
            Ok(answer) => Ok(answer.map(|answer| answer.payload)),
            Err(TransportError::Disconnected | TransportError::TimedOut(_)) => Ok(None),
            Err(error) => Err(JoinError::Send(error)),
        }
    }

    fn admission_context(&self, now: Timestamp) -> AdmissionContext<'_> {
        AdmissionContext { request: &self.request, digest: &self.digest, trust: &self.options.token.trust, now }
    }

    fn accept(&self, verified: VerifiedAdmission) -> Result<VerifiedAdmission, JoinError> {
        match &verified.admission.decision {
            AdmissionDecision::Admitted { .. } => Ok(verified),
            AdmissionDecision::Refused { reason } => {
                self.forget_request()?;
                Err(JoinError::Refused(reason.clone()))
            }
        }
    }
}

/// The connection of a join, and its progress.
struct Attempt {
    bus: Bus,
    /// The time at which the request is stored again.
    resend_at: Instant,
    /// The reason for which the latest answer did not count.
    ignored: Option<crate::trust::decide::join::AdmissionError>,
}
