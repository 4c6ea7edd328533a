//! The desk that answers join requests: examines, records, signs, publishes.

use std::collections::HashSet;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};

use crate::fleet::account::{
    AccountDirectory, Admission, AdmissionsError, FleetAccountError, JoinSigner, NodeSigner, TokenError, TokenTerms,
    append_admission, read_admissions,
};
use crate::fleet::job::checked::CheckError;
use crate::fleet::targeting::node_identity::{NodeKeysError, append_pinned_keys, read_pinned_keys, write_pinned_keys};
use crate::fleet::targeting::pinned_keys::{self, PinnedKey, PinnedKeys};
use crate::fleet::targeting::removals::RemovalVerifier;
use crate::fleet::trust::{Published, read_published};
use crate::model::NodeId;
use crate::store::StoreError;
use crate::store::state_dir::{self, DirectoryLock};
use crate::transport::{Bus, EXPECTED_LAST, Message, TransportError};
use crate::trust::decide::join::{AdmissionError, JoinRequestError, OpenedJoinRequest, open_admission};
use crate::trust::{SignError, Signer, TrustedBundle, sign_envelope_with};
use crate::wire::Subjects;
use crate::wire::join::{ADMISSION_TYPE, AdmissionDecision, AdmissionStatement, JoinAnswer, MAX_BUNDLES};

use super::decide::{AdmissionIndex, JoinCircumstances, JoinVerdict, decide};

/// The name of the record of admissions in the directory of the fleet.
const ADMITTED: &str = "admitted";
/// Time for which a host accepts an answer: as long as the stream keeps requests.
const ANSWER_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// A request that is not for an operator to decide.
#[derive(Debug, thiserror::Error)]
pub enum UnusableRequest {
    /// The request proves nothing.
    #[error(transparent)]
    Request(#[from] JoinRequestError),
    /// The request is on the subject of another user.
    #[error("the join request is on the subject of another user")]
    Subject,
    /// The request is for another fleet.
    #[error("the join request is for another fleet")]
    Fleet,
    /// The token is not of this fleet, or has expired.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl UnusableRequest {
    /// Returns the kind of the reason, to count requests by it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request(_) => "not signed by the host and the token, or malformed",
            Self::Subject => "on the subject of another host",
            Self::Fleet => "for another fleet",
            Self::Token(TokenError::Expired { .. }) => "with an expired token",
            Self::Token(_) => "with a token that is not of this fleet",
        }
    }
}

/// A host that asks to join, with verified signatures and token.
#[derive(Debug, Clone)]
pub struct JoinCandidate {
    /// The opened request.
    pub opened: OpenedJoinRequest,
    /// The public user key of the token.
    pub token_user: String,
    /// The terms of the token.
    pub terms: TokenTerms,
    /// Time at which the server stored the request, if known.
    pub stored: Option<Timestamp>,
}

impl JoinCandidate {
    /// Returns the wanted node id.
    pub fn node(&self) -> &NodeId {
        &self.opened.request.node
    }

    /// Returns the fingerprint of the node key, as `ssh-keygen -l` shows it.
    pub fn fingerprint(&self) -> String {
        self.opened.node_key.fingerprint()
    }
}

/// The result of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerOutcome {
    /// The answer is in the stream.
    Published,
    /// The stream had the same decision for this request.
    Unchanged,
}

/// Errors of answering a join request.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The keys of the account can't be used.
    #[error(transparent)]
    Account(#[from] FleetAccountError),
    /// The record of admissions can't be read or written.
    #[error(transparent)]
    Record(#[from] AdmissionsError),
    /// Another process admits nodes with the same directory.
    #[error(transparent)]
    Lock(#[from] StoreError),
    /// The pinned keys can't be read or written.
    #[error(transparent)]
    Pinned(#[from] NodeKeysError),
    /// The trust bundle is for another fleet.
    #[error(transparent)]
    OtherBundle(CheckError),
    /// The server does not answer.
    #[error(transparent)]
    Bus(#[from] TransportError),
    /// A signing key does not sign.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// Hosts would not accept the answer.
    #[error("the host would not accept this admission")]
    Rejected(#[source] AdmissionError),
    /// No trust bundle has the root keys of the token.
    #[error("no trust bundle of the fleet has the root keys of the join token")]
    NoChain,
    /// Another operator answered with another decision.
    #[error("another operator answered {0} differently")]
    Answered(NodeId),
}

/// The desk of one operator, with the lock of the directory of the fleet.
pub struct AdmissionDesk {
    bus: Bus,
    subjects: Subjects,
    node_signer: NodeSigner,
    join_signer: JoinSigner,
    record: PathBuf,
    admitted: AdmissionIndex,
    known_nodes: Option<PathBuf>,
    pinned: PinnedKeys,
    /// The removed nodes among those that asked.
    removed: HashSet<NodeId>,
    removal_verifier: RemovalVerifier,
    /// The latest trust bundle, of the operator or of the stream.
    bundle: TrustedBundle,
    published: Published,
    _lock: DirectoryLock,
}

impl AdmissionDesk {
    /// Opens the desk: keys, record of admissions, pinned keys and trust bundles.
    ///
    /// # Errors
    /// When a file can't be used, the stream of trust bundles can't be read, or another desk is open.
    pub async fn open(
        bus: Bus,
        subjects: Subjects,
        account: &AccountDirectory,
        known_nodes: Option<PathBuf>,
        own: TrustedBundle,
    ) -> Result<Self, DeskError> {
        let lock = state_dir::lock(&account.path(""))?;
        let record = account.path(ADMITTED);
        let published = read_published(&bus, &subjects).await?;
        let bundle = published.latest().filter(|latest| latest.version() > own.version()).cloned().unwrap_or(own);
        Ok(Self {
            node_signer: account.node_signer()?,
            join_signer: account.join_signer()?,
            admitted: AdmissionIndex::new(&read_admissions(&record)?),
            removed: HashSet::new(),
            removal_verifier: RemovalVerifier::new(&subjects, bundle.clone()).map_err(DeskError::OtherBundle)?,
            pinned: known_nodes.as_deref().map(read_pinned_keys).transpose()?.unwrap_or_default(),
            bus,
            subjects,
            record,
            known_nodes,
            bundle,
            published,
            _lock: lock,
        })
    }

    /// Examines a message of the stream: form, subject, fleet, token and all signatures.
    ///
    /// # Errors
    /// When the message is no usable request.
    pub fn examine(&self, message: &Message, now: Timestamp) -> Result<JoinCandidate, UnusableRequest> {
        let opened = OpenedJoinRequest::open(&message.payload)?;
        if self.subjects.join_request(&opened.request.user_key).as_str() != message.subject {
            return Err(UnusableRequest::Subject);
        }
        if opened.request.fleet != self.subjects.fleet() {
            return Err(UnusableRequest::Fleet);
        }
        let (token_user, terms) = self.join_signer.verify(&opened.request.token, now)?;
        opened.check_token(&token_user)?;
        Ok(JoinCandidate { opened, token_user, terms, stored: message.time })
    }

    /// Looks up whether an operator removed the node of a candidate. A key that was pinned before the removal does not count.
    ///
    /// # Errors
    /// When the stream of states can't be read.
    pub async fn look_up_removal(&mut self, candidate: &JoinCandidate) -> Result<(), TransportError> {
        let (fleet, node) = (self.subjects.fleet(), candidate.node());
        let subject = self.subjects.removal(node);
        let Some(message) = self.bus.last(&self.subjects.stream("STATE"), subject.as_str()).await? else { return Ok(()) };
        let Ok(removal) = self.removal_verifier.verify(&message) else { return Ok(()) };
        if self.pinned.get(fleet, node).is_none_or(|key| key.since <= removal.at) {
            self.pinned.forget(fleet, node);
            self.removed.insert(node.clone());
        }
        Ok(())
    }

    /// Decides about a candidate by token, record, pinned key and removal.
    pub fn verdict(&self, candidate: &JoinCandidate) -> JoinVerdict {
        let request = &candidate.opened.request;
        decide(&JoinCircumstances {
            request,
            token_user: &candidate.token_user,
            terms: &candidate.terms,
            admitted: &self.admitted,
            pinned: self.pinned.get(self.subjects.fleet(), &request.node).map(|known| known.key),
            is_removed: self.removed.contains(&request.node),
        })
    }

    /// Admits a candidate: records, pins and answers. The groups are those of the record of the same host, or `groups`, or
    /// those of the token.
    ///
    /// # Errors
    /// When the signers may not admit the node, or a step fails. A recorded host can be admitted again.
    pub async fn admit(
        &mut self,
        candidate: &JoinCandidate,
        groups: Option<&[String]>,
        signers: &[(&str, &dyn Signer)],
        now: Timestamp,
    ) -> Result<AnswerOutcome, DeskError> {
        let request = &candidate.opened.request;
        let is_new = self.verdict(candidate) != JoinVerdict::Repeat;
        let recorded = self.admitted.latest(&request.node).filter(|_| !is_new).map(|record| record.groups.clone());
        let groups = recorded.unwrap_or_else(|| groups.unwrap_or(&candidate.terms.groups).to_vec());
        let groups = groups.as_slice();
        let jwt = self.node_signer.node_user(&request.node, groups, &request.user_key)?;
        let answer = self.sign(candidate, groups, AdmissionDecision::Admitted { jwt }, signers, now)?;
        // Before the record: a recorded node without a pinned key counts as revoked.
        self.pin(candidate, now)?;
        if is_new {
            let record = Admission {
                node: request.node.clone(),
                groups: groups.to_vec(),
                user: request.user_key.clone(),
                key: request.node_key.clone(),
                token: Some(candidate.token_user.clone()),
                at: now,
            };
            append_admission(&self.record, &record)?;
            self.admitted.add(&record);
        }
        self.publish(candidate, answer, true, now).await
    }

    /// Answers a candidate with a signed refusal.
    ///
    /// # Errors
    /// When the signers may not decide about the node, or another operator admitted the host.
    pub async fn refuse(
        &self,
        candidate: &JoinCandidate,
        reason: &str,
        signers: &[(&str, &dyn Signer)],
        now: Timestamp,
    ) -> Result<AnswerOutcome, DeskError> {
        let decision = AdmissionDecision::Refused { reason: reason.to_owned() };
        let answer = self.sign(candidate, &candidate.terms.groups, decision, signers, now)?;
        self.publish(candidate, answer, false, now).await
    }

    /// Signs a decision, and checks the result as hosts do.
    fn sign(
        &self,
        candidate: &JoinCandidate,
        groups: &[String],
        decision: AdmissionDecision,
        signers: &[(&str, &dyn Signer)],
        now: Timestamp,
    ) -> Result<JoinAnswer, DeskError> {
        let request = &candidate.opened.request;
        let admission = AdmissionStatement {
            fleet: request.fleet.clone(),
            node: request.node.clone(),
            node_key: request.node_key.clone(),
            user_key: request.user_key.clone(),
            request: candidate.opened.digest.clone(),
            trust: self.bundle.version(),
            groups: groups.to_vec(),
            decision,
            issued: now,
            expires: now.checked_add(ANSWER_LIFE).unwrap_or(Timestamp::MAX),
        };
        let payload = serde_json::to_vec(&admission).map_err(SignError::from)?;
        let envelope = sign_envelope_with(ADMISSION_TYPE, payload, signers)?.encode();
        open_admission(&envelope, &self.bundle, now).map_err(DeskError::Rejected)?;
        Ok(JoinAnswer { admission: envelope, bundles: self.chain(&request.trust.roots)? })
    }

    /// Returns the consecutive trust bundles from the root keys of a token to the latest bundle.
    fn chain(&self, roots: &str) -> Result<Vec<Vec<u8>>, DeskError> {
        if self.bundle.roots_digest() == roots {
            return Ok(vec![self.bundle.envelope().to_vec()]);
        }
        let chain = &self.published.chain;
        let first = chain.iter().rposition(|bundle| bundle.roots_digest() == roots).ok_or(DeskError::NoChain)?;
        let bundles: Vec<Vec<u8>> = chain.iter().skip(first).map(|bundle| bundle.envelope().to_vec()).collect();
        let is_complete = chain.last().is_some_and(|last| last.version() == self.bundle.version());
        if bundles.len() > MAX_BUNDLES || !is_complete { Err(DeskError::NoChain) } else { Ok(bundles) }
    }

    /// Pins the node key: no first use is trusted.
    fn pin(&mut self, candidate: &JoinCandidate, now: Timestamp) -> Result<(), DeskError> {
        let (fleet, node) = (self.subjects.fleet(), candidate.node());
        let key = PinnedKey { key: candidate.opened.node_key, since: now };
        if self.pinned.get(fleet, node).is_some() {
            return Ok(());
        }
        let is_removed = self.removed.remove(node);
        if let Some(path) = self.known_nodes.as_ref().filter(|_| is_removed) {
            // The file may still have the key from before the removal, and of two lines the first counts.
            let mut known = read_pinned_keys(path)?;
            known.pin(fleet, node, key);
            write_pinned_keys(path, &known)?;
        } else if let Some(path) = &self.known_nodes {
            append_pinned_keys(path, &pinned_keys::format_line(fleet, node, &key))?;
        }
        self.pinned.pin(fleet, node, key);
        Ok(())
    }

    /// Stores an answer, unless the stream has the same decision about this request. Another operator's decision stays.
    async fn publish(
        &self,
        candidate: &JoinCandidate,
        answer: JoinAnswer,
        admits: bool,
        now: Timestamp,
    ) -> Result<AnswerOutcome, DeskError> {
        let subject = self.subjects.join_answer(&candidate.opened.request.user_key);
        let before = self.bus.last(&self.subjects.stream("JOIN"), subject.as_str()).await?;
        if let Some(decided) = before.as_ref().and_then(|before| self.decided(candidate, &before.payload, now)) {
            let is_admitted = matches!(decided.decision, AdmissionDecision::Admitted { .. });
            return match (is_admitted, admits) {
                (true, true) | (false, false) => Ok(AnswerOutcome::Unchanged),
                _ => Err(DeskError::Answered(candidate.node().clone())),
            };
        }
        if admits {
            // The other operators pin the key from it. Before the answer, so that no node lacks it.
            let subject = self.subjects.admitted(candidate.node());
            self.bus.publish_stored(subject.as_str(), &[], answer.admission.clone()).await?;
        }
        let place = before.and_then(|before| before.seq).unwrap_or(0).to_string();
        match self.bus.publish_stored(subject.as_str(), &[(EXPECTED_LAST, &place)], answer.encode()).await {
            Ok(_) => Ok(AnswerOutcome::Published),
            Err(TransportError::Conflict(_)) => Err(DeskError::Answered(candidate.node().clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// True when an operator decided about exactly this request, and the stream has the decision.
    ///
    /// # Errors
    /// When the stream can't be read.
    pub async fn is_answered(&self, candidate: &JoinCandidate, now: Timestamp) -> Result<bool, TransportError> {
        let subject = self.subjects.join_answer(&candidate.opened.request.user_key);
        let answer = self.bus.last(&self.subjects.stream("JOIN"), subject.as_str()).await?;
        Ok(answer.is_some_and(|answer| self.decided(candidate, &answer.payload, now).is_some()))
    }

    /// Returns the decision of an operator about exactly this request, when the stream has one.
    fn decided(&self, candidate: &JoinCandidate, answer: &[u8], now: Timestamp) -> Option<AdmissionStatement> {
        let answer = JoinAnswer::parse(answer).ok()?;
        let admission = open_admission(&answer.admission, &self.bundle, now).ok()?;
        (admission.request == candidate.opened.digest).then_some(admission)
    }
}
