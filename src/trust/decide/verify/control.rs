//! Overrides of operators for a rollout: a signed `halt`, `resume`, `cancel` or `go`. A stream keeps them for later readers.
//!
//! An override is verified like any other command, except for its time. A command lives for minutes, but a halt must be valid as
//! long as nodes may begin the job. So the verifier uses the time of the signature, which must not be before that of the job. A
//! key that was valid at that time counts, even if it has expired since. A revoked key never counts.

use crate::wire::command::{Action, Command, GoAhead, JobRef};

use super::{
    MAX_CLOCK_SKEW, Reason, Rejection, RejectionCode, SignatureBudget, SignedCommand, Verified, Verifier, open_envelope,
    parse_command, verified,
};

impl Verifier<'_> {
    /// Opens the latest override for the job of the command `about`.
    ///
    /// # Errors
    /// The first reason to reject the override.
    pub fn open_override(&self, bytes: &[u8], about: &Command) -> Result<Verified<Command>, Rejection> {
        let (mut known, envelope) = open_envelope(bytes)?;
        let opened = parse_command(&envelope).and_then(|command| {
            // The signed time decides about the validity of the keys. Nothing else is used before the verification.
            let then = Verifier { now: command.issued, ..*self };
            let (signers, proof) = then.signers(&envelope, &mut SignatureBudget::default())?;
            known.id = Some(command.id);
            let signed = SignedCommand { command, signers, proof };
            self.check_override(&signed.command, about)?;
            self.check_target(&signed.command)?;
            let allowed = then.check_policy(&signed.command, &signed.signers)?;
            Ok((signed, allowed))
        });
        match opened {
            Ok((signed, allowed)) => Ok(verified(signed, known, allowed, bytes)),
            Err(reason) => Err(known.reject(reason)),
        }
    }

    fn check_override(&self, command: &Command, about: &Command) -> Result<(), Reason> {
        let (Action::Halt(JobRef { job })
        | Action::Resume(JobRef { job })
        | Action::Cancel(JobRef { job })
        | Action::Go(GoAhead { job, .. })) = command.action
        else {
            let why = format!("it is no halt, resume, cancel or go, but {}", command.action.name());
            return Err((RejectionCode::SubjectMismatch, why));
        };
        if job != about.id {
            return Err((RejectionCode::SubjectMismatch, format!("it is about the job {job}")));
        }
        if about.issued.duration_since(command.issued) > MAX_CLOCK_SKEW {
            return Err((RejectionCode::Expired, format!("it was signed at {}, before the job", command.issued)));
        }
        if command.issued.duration_since(self.now) > MAX_CLOCK_SKEW {
            let why = format!("it was signed at {}, and here it is {}", command.issued, self.now);
            return Err((RejectionCode::NotYetValid, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{Memory, NOW, changed_trust, signed, trust};
    use super::*;
    use crate::trust::{NodeLimits, TrustedBundle};
    use crate::wire::Subjects;

    const JOB: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405060";

    fn about() -> Command {
        let value = json!({
            "id": JOB, "fleet": "prod", "to": {"groups": ["web"]},
            "issued": "2026-11-20T08:00:00Z", "expires": "2026-11-20T08:05:00Z",
            "action": {"ensure": {"type": "service", "properties": {"name": "nginx"}}},
        });
        serde_json::from_value(value).unwrap()
    }

    fn halt() -> Value {
        json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405061", "fleet": "prod", "to": {"groups": ["web"]},
            "issued": "2026-11-20T09:00:00Z", "expires": "2026-11-20T09:05:00Z",
            "action": {"halt": {"job": JOB}}, "reason": "CHG-1",
        })
    }

    fn verdict(bytes: &[u8]) -> Result<String, &'static str> {
        verdict_by(&trust(), bytes)
    }

    fn verdict_by(trust: &TrustedBundle, bytes: &[u8]) -> Result<String, &'static str> {
        let (subjects, limits) = (Subjects::new("prod"), NodeLimits::default());
        let verifier = Verifier {
            trust,
            node: &"web1".parse().unwrap(),
            groups: &["web".to_owned()],
            limits: &limits,
            subjects: &subjects,
            now: NOW.parse().unwrap(),
            replay_store: &Memory::default(),
            evaluate_filter: &|_| Ok(true),
            effects: &super::super::tests::effects,
        };
        let opened = verifier.open_override(bytes, &about());
        opened.map(|word| word.get().action.name().to_owned()).map_err(|refusal| refusal.code.as_str())
    }

    #[test]
    fn a_halt_counts_after_its_minutes_are_over() {
        assert_eq!(verdict(&signed(&halt(), &[("alice", 2)])).as_deref(), Ok("halt"));
        for name in ["resume", "cancel"] {
            let mut other = halt();
            other["action"] = json!({name: {"job": JOB}});
            assert_eq!(verdict(&signed(&other, &[("alice", 2)])).as_deref(), Ok(name));
        }
    }

    #[test]
    fn an_override_of_another_job_is_rejected() {
        let with = |key: &str, value: Value| {
            let mut halt = halt();
            halt[key] = value;
            signed(&halt, &[("alice", 2)])
        };
        for (bytes, code) in [
            (signed(&halt(), &[("alice", 9)]), "bad_signature"),
            (signed(&halt(), &[("mallory", 9)]), "unknown_key"),
            // Bob may not sign alone.
            (signed(&halt(), &[("bob", 3)]), "not_allowed"),
            (with("fleet", json!("other")), "wrong_fleet"),
            (with("to", json!({"nodes": ["db1"]})), "not_for_me"),
            (with("action", json!({"halt": {"job": "0198c1f2-7a3b-7c4d-8e5f-102030405062"}})), "subject_mismatch"),
            (with("action", json!({"status": {}})), "subject_mismatch"),
            (b"{}".to_vec(), "bad_envelope"),
        ] {
            assert_eq!(verdict(&bytes), Err(code));
        }
        let at = |issued: &str, expires: &str| {
            let mut halt = halt();
            (halt["issued"], halt["expires"]) = (json!(issued), json!(expires));
            verdict(&signed(&halt, &[("alice", 2)]))
        };
        assert_eq!(at("2026-11-20T07:59:00Z", "2026-11-20T08:04:00Z"), Err("expired"), "signed before the job was");
        assert_eq!(at("2026-11-20T10:02:00Z", "2026-11-20T10:04:00Z"), Err("not_yet_valid"), "signed in the future");
        assert_eq!(at("2026-11-20T10:01:20Z", "2026-11-20T10:04:00Z").as_deref(), Ok("halt"), "clocks differ");
        let revoked = changed_trust(&|bundle| bundle["revoked"] = json!(["alice"]));
        assert_eq!(verdict_by(&revoked, &signed(&halt(), &[("alice", 2)])), Err("revoked_key"));
    }
}
