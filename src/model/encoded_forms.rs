//! The encoded forms of a secret that programs print: hexadecimal and base64.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Minimum length, in bytes, of a secret with encoded forms: forms of a shorter one occur by chance.
const MIN_ENCODED: usize = 8;

/// Returns the hexadecimal and base64 forms of a text, the latter at each place of a longer text, as `user:password`. A short text
/// has none.
pub(super) fn encoded_forms(text: &str) -> Vec<String> {
    if text.len() < MIN_ENCODED {
        return Vec::new();
    }
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![hex.to_uppercase(), hex];
    for before in 0..3 {
        let padded = [vec![0; before], text.as_bytes().to_vec()].concat();
        // Characters at the ends also depend on the bytes beside the text.
        let own = (before * 8).div_ceil(6)..padded.len() * 8 / 6;
        let encoded = [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)];
        forms.extend(encoded.iter().filter_map(|form| form.get(own.clone()).map(str::to_owned)));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Secrets;

    #[test]
    fn encoded_secrets_are_redacted() {
        let secrets = Secrets::default();
        let password = "correct>horse?battery";
        secrets.add(password);
        let hex: String = password.bytes().map(|byte| format!("{byte:02X}")).collect();
        let mut texts = vec![hex.to_lowercase(), hex];
        for user in ["", "a:", "ab:", "abc:", "abcd:"] {
            let pair = format!("{user}{password}\n");
            texts.extend([STANDARD_NO_PAD.encode(&pair), URL_SAFE_NO_PAD.encode(&pair)]);
        }
        for text in &texts {
            let shown = secrets.redact(text);
            assert!(shown.contains("***") && shown.len() < 16, "{text}: {shown}");
        }
        assert!(encoded_forms("abcdefg").is_empty());
    }
}
