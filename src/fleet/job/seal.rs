//! Signed commands.

use crate::trust::{SignError, Signer, sign_envelope_with};
use crate::wire::command::MalformedCommand;
use crate::wire::{COMMAND_TYPE, Command, Envelope, MAX_ENVELOPE, Signature};

/// Size of an ed25519 signature in bytes.
const SIGNATURE_BYTES: usize = 64;

/// A command, signed.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedCommand {
    /// For assignments and withdrawals: sequence number of the last message of the channel, 0 for none. The number was read
    /// when the serial was chosen, and the stream stores the command only directly after that message.
    pub last_sequence: u64,
    /// The command.
    pub command: Command,
    /// SHA-256 of the signed bytes.
    pub digest: String,
    /// The encoded envelope.
    pub envelope: Vec<u8>,
}

/// Errors of signing a command.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Nodes would reject the form of the command.
    #[error(transparent)]
    Malformed(#[from] MalformedCommand),
    /// A key did not sign.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// The signed command is larger than nodes accept.
    #[error("the signed command has {0} bytes, and nodes accept at most {MAX_ENVELOPE}")]
    TooLarge(usize),
}

/// Signs a command with each key. The id beside a key is only a hint for verifiers.
///
/// # Errors
/// When the command can't be written as JSON or is larger than nodes accept. When the holder of a key does not sign.
pub fn sign(command: Command, keys: &[(&str, &dyn Signer)]) -> Result<SealedCommand, SealError> {
    let payload = serde_json::to_vec(&command).map_err(SignError::from)?;
    // The size is checked before a holder of a key, such as an ssh-agent, is asked to sign.
    let placeholder = |(id, _): &(&str, &dyn Signer)| Signature { keyid: (*id).to_owned(), sig: vec![0; SIGNATURE_BYTES] };
    let signatures = keys.iter().map(placeholder).collect();
    let unsigned = Envelope { payload_type: COMMAND_TYPE.to_owned(), payload, signatures };
    let size = unsigned.encode().len();
    if size > MAX_ENVELOPE {
        return Err(SealError::TooLarge(size));
    }
    let envelope = sign_envelope_with(COMMAND_TYPE, unsigned.payload, keys)?;
    Ok(SealedCommand { last_sequence: 0, command, digest: envelope.digest(), envelope: envelope.encode() })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::super::draft::tests::draft;
    use super::*;
    use crate::trust::SigningKey;
    use crate::wire::Target;

    #[test]
    fn the_signed_bytes_are_sent() {
        let (key, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let command = draft(Target::all()).command("f", Uuid::nil(), Timestamp::UNIX_EPOCH);
        let signed = sign(command.clone(), &[("a", &key), ("b", &other)]).unwrap();
        let envelope = crate::wire::envelope::Envelope::parse(&signed.envelope).unwrap();
        assert_eq!(envelope.signatures.len(), 2);
        assert_eq!((envelope.digest(), crate::wire::json::read::<Command>(&envelope.payload).unwrap()), (signed.digest, command));
    }

    #[test]
    fn a_too_large_command_is_not_signed() {
        let key = SigningKey::from_seed(&[1; 32]);
        let signed_with_reason = |length: usize| {
            let mut draft = draft(Target::all());
            draft.reason = Some("x".repeat(length));
            sign(draft.command("f", Uuid::nil(), Timestamp::UNIX_EPOCH), &[("a", &key)])
        };
        let fits = signed_with_reason(48_000).unwrap();
        let size = match signed_with_reason(49_000) {
            Err(SealError::TooLarge(size)) => size,
            other => panic!("{other:?}"),
        };
        assert!(fits.envelope.len() <= MAX_ENVELOPE && size > MAX_ENVELOPE);
        // The size of the signed command, without signing.
        let more = signed_with_reason(48_300).unwrap();
        assert_eq!(more.envelope.len(), fits.envelope.len() + 400);
        assert!(size.abs_diff(fits.envelope.len() + 1000 * 4 / 3) <= 4, "{size}");
    }
}
