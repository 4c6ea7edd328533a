//! `ensign fleet admit`: the hosts that ask to join, and the decisions about them.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::diag::error_chain;
use crate::fleet::admission::decide::JoinVerdict;
use crate::fleet::admission::{AdmissionDesk, AnswerOutcome, DeskError, JoinCandidate};
use crate::host::fs;
use crate::model::{NodeId, check_name};
use crate::transport::{Message, StartAt};

use super::session::{FleetSession, OperatorArgs, configured_trust, connection_failure, signer_refs, signers};
use super::token::{open_account, operator_trust};
use crate::cli::error::{CliError, Exit};
use crate::cli::key::NamedKey;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::ui::{Ui, text};

/// Most waiting hosts that are shown or asked about in one go.
const MAX_WAITING: usize = 1000;
/// Largest list of hosts in bytes.
const MAX_LIST: u64 = 4 << 20;

#[derive(Debug, Args)]
pub(super) struct AdmitArgs {
    /// Id of the host to admit.
    #[arg(requires = "fingerprint", conflicts_with_all = ["by_token", "list", "refuse"])]
    node: Option<NodeId>,
    /// Fingerprint of its node key, as `ensign agent join` prints it there.
    #[arg(long, value_name = "SHA256:...", requires = "node")]
    fingerprint: Option<String>,
    /// Admit every host that its token covers, without a question.
    #[arg(long, conflicts_with_all = ["list", "refuse"])]
    by_token: bool,
    /// Go on with hosts that ask later.
    #[arg(long, requires = "by_token")]
    follow: bool,
    /// Admit the hosts of a file: `node fingerprint [groups]` on each line, groups with commas.
    #[arg(long, value_name = "FILE", conflicts_with = "refuse")]
    list: Option<PathBuf>,
    /// Refuse every request of this host.
    #[arg(long, value_name = "NODE")]
    refuse: Option<NodeId>,
}

/// Runs `ensign fleet admit`.
///
/// # Errors
/// When the keys of the fleet can't be read, or the server does not answer.
pub(super) async fn run(args: AdmitArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    session.warn_of_clock(ui);
    let trust = operator_trust(configured_trust(&session.operator)?)?;
    let account = open_account(context)?;
    let known_nodes = session.operator.known_nodes.clone();
    let desk = AdmissionDesk::open(session.bus.clone(), session.subjects.clone(), &account, known_nodes, trust).await;
    let mut office =
        Office { desk: desk.map_err(|error| desk_failure(&error))?, session, signers: None, unusable: BTreeMap::new() };
    if args.by_token {
        return office.admit_by_token(args.follow, ui).await;
    }
    let waiting = office.waiting(ui).await?;
    if let (Some(node), Some(fingerprint)) = (&args.node, &args.fingerprint) {
        let entry = ListEntry { node: node.clone(), fingerprint: fingerprint.clone(), groups: None };
        return office.admit_listed(&waiting, &[entry], ui).await;
    }
    if let Some(path) = &args.list {
        return office.admit_listed(&waiting, &read_list(path)?, ui).await;
    }
    match &args.refuse {
        Some(node) => office.refuse(&waiting, node, ui).await,
        None => office.review(&waiting, ui).await,
    }
}

/// A line of a list of hosts.
struct ListEntry {
    node: NodeId,
    fingerprint: String,
    groups: Option<Vec<String>>,
}

fn read_list(path: &Path) -> Result<Vec<ListEntry>, CliError> {
    let text = fs::read_named_text(path, MAX_LIST).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            parse_entry(line).ok_or_else(|| {
                CliError::usage(format!("{}:{number} is not `node fingerprint [groups]`", path.display()))
                    .hint("ensign agent join prints node and fingerprint: web1 SHA256:... web,berlin")
            })
        })
        .collect()
}

fn parse_entry(line: &str) -> Option<ListEntry> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (node, fingerprint, groups) = match words.as_slice() {
        [node, fingerprint] => (node, fingerprint, None),
        [node, fingerprint, groups] => (node, fingerprint, Some(groups.split(',').map(str::to_owned).collect::<Vec<_>>())),
        _ => return None,
    };
    let is_valid = fingerprint.starts_with("SHA256:") && groups.iter().flatten().all(|group| check_name("group", group).is_ok());
    let node = node.parse().ok()?;
    is_valid.then(|| ListEntry { node, fingerprint: (*fingerprint).to_owned(), groups })
}

/// The desk with the keys of the operator, and the counts of unusable requests.
struct Office {
    desk: AdmissionDesk,
    session: FleetSession,
    signers: Option<Vec<NamedKey>>,
    unusable: BTreeMap<&'static str, usize>,
}

impl Office {
    /// Reads the requests that wait for a decision.
    async fn waiting(&mut self, ui: &mut Ui) -> Result<Vec<JoinCandidate>, CliError> {
        let mut reader = self.follow(StartAt::Latest).await?;
        let (mut waiting, mut more) = (Vec::new(), 0);
        for _ in 0..reader.backlog() {
            let Some(message) = reader.next().await else { break };
            let message = message.map_err(|error| connection_failure(&error))?;
            let Some(candidate) = self.examine(&message) else { continue };
            self.desk.look_up_removal(&candidate).await.map_err(|error| connection_failure(&error))?;
            let is_answered = self.desk.is_answered(&candidate, self.session.now()).await;
            if is_answered.map_err(|error| connection_failure(&error))? {
                continue;
            }
            if waiting.len() < MAX_WAITING { waiting.push(candidate) } else { more += 1 }
        }
        if more > 0 {
            ui.warn(text!("{} more hosts wait", more));
        }
        self.warn_unusable(ui);
        Ok(waiting)
    }

    async fn follow(&self, from: StartAt) -> Result<crate::transport::StreamReader, CliError> {
        let (stream, filter) = (self.session.subjects.stream("JOIN"), self.session.subjects.join_requests());
        self.session.bus.follow(&stream, filter.as_str(), from).await.map_err(|error| connection_failure(&error))
    }

    /// Examines a message, and counts a message that is no usable request.
    fn examine(&mut self, message: &Message) -> Option<JoinCandidate> {
        match self.desk.examine(message, self.session.now()) {
            Ok(candidate) => Some(candidate),
            Err(error) => {
                *self.unusable.entry(error.kind()).or_default() += 1;
                None
            }
        }
    }

    fn warn_unusable(&mut self, ui: &mut Ui) {
        for (kind, count) in std::mem::take(&mut self.unusable) {
            ui.warn(text!("left out {} join requests {}", count, kind));
        }
    }

    fn load_signers(&mut self) -> Result<(), CliError> {
        if self.signers.is_none() {
            self.signers = Some(signers(&self.session.operator)?);
        }
        Ok(())
    }

    async fn admit(&mut self, candidate: &JoinCandidate, groups: Option<&[String]>) -> Result<AnswerOutcome, CliError> {
        self.load_signers()?;
        let keys = signer_refs(self.signers.as_deref().unwrap_or_default());
        let now = self.session.now();
        self.desk.admit(candidate, groups, &keys, now).await.map_err(|error| desk_failure(&error))
    }

    async fn refuse_one(&mut self, candidate: &JoinCandidate, reason: &str) -> Result<AnswerOutcome, CliError> {
        self.load_signers()?;
        let keys = signer_refs(self.signers.as_deref().unwrap_or_default());
        let now = self.session.now();
        self.desk.refuse(candidate, reason, &keys, now).await.map_err(|error| desk_failure(&error))
    }

    /// Admits what tokens cover, refuses what they do not cover, and leaves the rest for the operator.
    async fn admit_by_token(&mut self, follow: bool, ui: &mut Ui) -> Result<Exit, CliError> {
        // Before the first request: a passphrase is asked for once.
        self.load_signers()?;
        let mut reader = self.follow(StartAt::Latest).await?;
        let (mut left, mut exit) = (reader.backlog(), Exit::Success);
        while follow || left > 0 {
            left = left.saturating_sub(1);
            let Some(message) = reader.next().await else { break };
            let message = message.map_err(|error| connection_failure(&error))?;
            let Some(candidate) = self.examine(&message) else { continue };
            match self.decide_by_token(&candidate, ui).await {
                Ok(Exit::Success) => {}
                Ok(other) => exit = other,
                Err(error) if matches!(error.exit, Exit::Refused | Exit::Partial) => {
                    exit = ui.report(&error);
                }
                Err(error) => return Err(error),
            }
            ui.flush();
        }
        self.warn_unusable(ui);
        Ok(exit)
    }

    async fn decide_by_token(&mut self, candidate: &JoinCandidate, ui: &mut Ui) -> Result<Exit, CliError> {
        self.desk.look_up_removal(candidate).await.map_err(|error| connection_failure(&error))?;
        let verdict = self.desk.verdict(candidate);
        let (word, outcome) = match verdict {
            JoinVerdict::Admit | JoinVerdict::Repeat => ("admitted", self.admit(candidate, None).await?),
            JoinVerdict::Refuse(reason) => ("refused", self.refuse_one(candidate, &reason.to_string()).await?),
            JoinVerdict::Ask(_) => {
                self.print("waits", candidate, Some(verdict), ui);
                return Ok(Exit::Partial);
            }
        };
        if outcome == AnswerOutcome::Published {
            self.print(word, candidate, Some(verdict), ui);
        }
        Ok(Exit::Success)
    }

    /// Admits the waiting hosts of a list. Each entry needs its host, with this fingerprint.
    async fn admit_listed(&mut self, waiting: &[JoinCandidate], list: &[ListEntry], ui: &mut Ui) -> Result<Exit, CliError> {
        let mut exit = Exit::Success;
        for entry in list {
            let named: Vec<&JoinCandidate> = waiting.iter().filter(|candidate| *candidate.node() == entry.node).collect();
            let Some(candidate) = named.iter().find(|candidate| candidate.fingerprint() == entry.fingerprint) else {
                let others: Vec<String> = named.iter().map(|candidate| candidate.fingerprint()).collect();
                let why = if others.is_empty() {
                    "no host with this name waits".to_owned()
                } else {
                    format!("the waiting hosts of this name have other keys: {}", others.join(", "))
                };
                ui.error(text!("cannot admit {}: {}", entry.node, why));
                exit = Exit::Partial;
                continue;
            };
            exit = self.admit_by_hand(candidate, entry.groups.as_deref(), exit, ui).await?;
        }
        Ok(exit)
    }

    /// Admits a host that the operator chose. The terms of the token hold nevertheless.
    async fn admit_by_hand(
        &mut self,
        candidate: &JoinCandidate,
        groups: Option<&[String]>,
        exit: Exit,
        ui: &mut Ui,
    ) -> Result<Exit, CliError> {
        if let JoinVerdict::Refuse(reason) = self.desk.verdict(candidate) {
            let hint = "`ensign fleet node remove` frees the name of a rebuilt host; `ensign fleet token` makes another token";
            let failure = CliError::from_error(Exit::Refused, &reason).hint(hint);
            return Ok(ui.report(&failure));
        }
        self.admit(candidate, groups).await?;
        self.print("admitted", candidate, None, ui);
        Ok(exit)
    }

    async fn refuse(&mut self, waiting: &[JoinCandidate], node: &NodeId, ui: &mut Ui) -> Result<Exit, CliError> {
        let mut exit = Exit::Partial;
        for candidate in waiting.iter().filter(|candidate| candidate.node() == node) {
            self.refuse_one(candidate, "an operator refused the request").await?;
            self.print("refused", candidate, None, ui);
            exit = Exit::Success;
        }
        if exit == Exit::Partial {
            ui.error(text!("no host with the name {} waits", node));
        }
        Ok(exit)
    }

    /// Shows the waiting hosts, and asks about each on a terminal.
    async fn review(&mut self, waiting: &[JoinCandidate], ui: &mut Ui) -> Result<Exit, CliError> {
        if self.session.output == OutputFormat::Json {
            ui.json(&waiting.iter().map(|candidate| self.document("waits", candidate, None)).collect::<Vec<_>>());
            return Ok(Exit::Success);
        }
        let is_asking = self.session.output == OutputFormat::Text && ui.is_watched() && std::io::stdin().is_terminal();
        for candidate in waiting {
            let verdict = self.desk.verdict(candidate);
            self.print("waits", candidate, Some(verdict), ui);
            if !is_asking || matches!(verdict, JoinVerdict::Refuse(_)) {
                continue;
            }
            ui.flush();
            let question = text!("admit {} with the key {}? [y/N]", candidate.node(), candidate.fingerprint());
            let is_confirmed = ui.confirm(question).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
            if is_confirmed {
                self.admit_by_hand(candidate, None, Exit::Success, ui).await?;
            }
        }
        if waiting.is_empty() {
            ui.message(text!("no host waits"));
        }
        Ok(Exit::Success)
    }

    fn document(&self, word: &str, candidate: &JoinCandidate, verdict: Option<JoinVerdict>) -> Value {
        let request = &candidate.opened.request;
        json!({
            "result": word, "node": request.node, "groups": candidate.terms.groups, "fingerprint": candidate.fingerprint(),
            "token": candidate.terms.name, "hostname": request.hostname, "os": request.os, "issued": request.issued,
            "stored": candidate.stored, "reason": reason(verdict),
        })
    }

    fn print(&self, word: &'static str, candidate: &JoinCandidate, verdict: Option<JoinVerdict>, ui: &mut Ui) {
        if self.session.output != OutputFormat::Text {
            ui.jsonl(&self.document(word, candidate, verdict));
            return;
        }
        let request = &candidate.opened.request;
        let groups = if candidate.terms.groups.is_empty() { "-".to_owned() } else { candidate.terms.groups.join(",") };
        let seconds = candidate.stored.map_or(0, |stored| self.session.server_now().duration_since(stored).as_secs().max(0));
        let why = reason(verdict).map(|why| format!(" ({why})")).unwrap_or_default();
        ui.line(text!(
            "{:<8} {:<20} {:<16} {} token {} {}s {} {}{}",
            word,
            request.node,
            groups,
            candidate.fingerprint(),
            candidate.terms.name,
            seconds,
            request.hostname,
            request.os,
            why
        ));
    }
}

fn reason(verdict: Option<JoinVerdict>) -> Option<String> {
    match verdict? {
        JoinVerdict::Refuse(reason) => Some(reason.to_string()),
        JoinVerdict::Ask(reason) => Some(reason.to_string()),
        JoinVerdict::Admit | JoinVerdict::Repeat => None,
    }
}

fn desk_failure(error: &DeskError) -> CliError {
    match error {
        DeskError::Bus(error) => connection_failure(error),
        DeskError::Rejected(_) => CliError::from_error(Exit::Refused, error)
            .hint("a rule of the trust bundle must allow the action `admit` to your key, for these groups and nodes"),
        DeskError::NoChain => CliError::from_error(Exit::Refused, error)
            .hint("publish all versions of the trust bundle with `ensign trust publish`, or make another token"),
        DeskError::Answered(_) => CliError::new(Exit::Partial, crate::diag::Diagnostic::new(error_chain(error)))
            .hint("nothing of yours was stored in the stream"),
        DeskError::Lock(_) => CliError::from_error(Exit::Usage, error).hint("another `ensign fleet admit` runs on this machine"),
        DeskError::Account(_) | DeskError::Record(_) | DeskError::Pinned(_) | DeskError::Sign(_) | DeskError::OtherBundle(_) => {
            CliError::from_error(Exit::Usage, error)
        }
    }
}
