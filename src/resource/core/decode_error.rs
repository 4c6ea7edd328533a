//! Errors of properties that could not be read, for people.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::diag::did_you_mean;
use crate::resource::{Common, DecodeError};
use crate::wire::value_decode;

/// Parses properties after an error. A `null` counts as left out.
pub(super) fn decode_after_error<P: DeserializeOwned>(properties: &Map<String, Value>) -> Result<P, value_decode::Mismatch> {
    let given = properties.iter().filter(|(_, value)| !value.is_null());
    let given: Map<String, Value> = given.map(|(key, value)| (key.clone(), value.clone())).collect();
    value_decode::read_map(&given)
}

/// Converts a serde error: adds the property at fault and a suggestion.
pub(super) fn explain_mismatch(error: &value_decode::Mismatch) -> DecodeError {
    let path = error.path().to_string();
    let message = error.inner().to_string();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") {
        let (given, known) = quoted.split_first().map_or(("", &[][..]), |(given, known)| (*given, known));
        let hint = did_you_mean(given, known.iter().chain(Common::KEYS).copied())
            .map(|near| format!("did you mean \"{near}\"?"))
            .or_else(|| Some(format!("known properties are {}", known.join(", "))));
        return DecodeError { property: Some(given.to_owned()), message: format!("unknown property \"{given}\""), hint };
    }
    if message.starts_with("missing field") {
        let field = quoted.first().copied().unwrap_or_default();
        return DecodeError { property: None, message: format!("{field} is required"), hint: None };
    }
    if message.starts_with("unknown variant") && path == "ensure" {
        let (given, known) = quoted.split_first().map_or(("", &[][..]), |(given, known)| (*given, known));
        let known: Vec<String> = known.iter().map(|known| format!("\"{known}\"")).collect();
        let message = format!("invalid ensure value: must be {}, not \"{given}\"", known.join(" or "));
        return DecodeError { property: Some(path), message, hint: None };
    }
    let property = (path != ".").then(|| path.split(['.', '[']).next().unwrap_or(&path).to_owned());
    let message = whole_number(&message);
    // Many messages contain their property already.
    let message = if path == "." || message.contains(&path) { message } else { format!("{path}: {message}") };
    DecodeError { property, message, hint: None }
}

/// Replaces Rust's names of number types in a message.
fn whole_number(message: &str) -> String {
    let rust = ["i32", "i64", "u8", "u16", "u32", "u64", "usize"];
    let found = rust.iter().find_map(|name| message.strip_suffix(&format!("expected {name}")));
    found.map_or_else(|| message.to_owned(), |head| format!("{head}expected a whole number"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::resource::core::common::TemplateScope;
    use crate::resource::find;

    #[test]
    fn null_counts_as_left_out() {
        let scope = TemplateScope::default().scope();
        let decode = |kind: &str, properties: serde_json::Value| {
            let decoded = find(kind).unwrap().decode(properties.as_object().unwrap(), &scope);
            decoded.map(|decoded| decoded.redacted()).map_err(|error| error.message)
        };
        let all =
            json!({"name": "a", "ensure": null, "returns": null, "environment": null, "timeout": null, "refreshonly": null});
        assert_eq!(decode("exec", all), decode("exec", json!({"name": "a"})));
        let all = json!({"name": "/a", "ensure": "absent", "owner": null, "mode": null, "force": null, "source": null});
        assert_eq!(decode("file", all), decode("file", json!({"name": "/a", "ensure": "absent"})));
        let wrong = |kind: &str, properties| decode(kind, properties).unwrap_err();
        assert_eq!(wrong("file", json!({"name": "/a", "ensure": null})), "ensure is required");
        assert_eq!(
            wrong("apply", json!({"name": "a", "ensure": "absent"})),
            "invalid ensure value: must be \"present\", not \"absent\""
        );
        assert_eq!(wrong("exec", json!({"name": "a", "nope": 1})), "unknown property \"nope\"");
    }
}
