//! Annotations: requirements for a key, in the comments of `data`.
//!
//! `# @require` above a key (or behind the key) requires a value. `# @validate EXPRESSION` requires a value for which the
//! expression holds. The check runs on the merged data, so annotations apply to overrides and external data too.

use serde_json::Value;

use crate::diag::{Diagnostic, SourceLocation, did_you_mean, shorten};
use crate::model::Secrets;
use crate::template;
use crate::yaml::{YamlComment, YamlDocument};

/// The annotations.
const ANNOTATION_NAMES: &[&str] = &["@require", "@required", "@validate"];
/// Parts of key names that mark secrets: errors hide the values of such keys.
const SECRET_NAMES: &[&str] = &["password", "passwd", "secret", "token", "private", "credential"];
/// The most characters of a value that an error shows.
const MAX_SHOWN_CHARS: usize = 120;

/// The annotations of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyAnnotations {
    path: Vec<String>,
    required: bool,
    /// The expression of the last `@validate`.
    validate: Option<String>,
    place: SourceLocation,
}

/// The annotations of one or more documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    entries: Vec<KeyAnnotations>,
    /// Annotations without effect.
    pub warnings: Vec<Diagnostic>,
}

impl Annotations {
    /// Reads the annotations in the `data` section of a document.
    ///
    /// # Errors
    /// Fails when the text has annotations, and the parser can't tell their keys.
    pub fn read(document: &YamlDocument) -> Result<Self, Diagnostic> {
        let mut rules = Self::default();
        if !ANNOTATION_NAMES.iter().any(|known| document.may_have_comment(known)) && !document.may_have_comment("@") {
            return Ok(rules);
        }
        let remarks = document.comments("data").map_err(|error| Diagnostic {
            message: format!("the annotations in comments can't be read: {}", error.message),
            hint: error.hint.or_else(|| Some("indent the content of brackets and quotes further than its key".to_owned())),
            ..error
        });
        // A text may only look as if it had annotations. Such a text is valid.
        let remarks = match remarks {
            Err(_) if !ANNOTATION_NAMES.iter().any(|known| document.may_have_comment(known)) => return Ok(rules),
            remarks => remarks?,
        };
        remarks.into_iter().filter(|remark| remark.text.starts_with('@')).for_each(|remark| rules.add(remark));
        Ok(rules)
    }

    fn add(&mut self, remark: YamlComment) {
        let (name, rest) = remark.text.split_once(char::is_whitespace).unwrap_or((&remark.text, ""));
        let Some((path, place)) = remark.key else {
            if ANNOTATION_NAMES.contains(&name) {
                let message = format!("{name} belongs to no key of data, and has no effect");
                let hint = "write the annotation on the line above a key, or behind the key on its line; lists have no keys";
                self.warnings.push(Diagnostic::new(message).at(Some(remark.place)).hint(hint));
            }
            return;
        };
        let known = self.entries.iter().position(|rule| rule.path == path && rule.place == place);
        let new = || KeyAnnotations { path: path.clone(), required: false, validate: None, place };
        let mut rule = known.map_or_else(new, |index| self.entries.remove(index));
        match name {
            "@require" | "@required" => rule.required = true,
            "@validate" if !rest.trim().is_empty() => rule.validate = Some(rest.trim().to_owned()),
            "@validate" => {
                let message = format!("@validate at \"{}\" has no expression, and no effect", path.join("."));
                let warning = Diagnostic::new(message).at(Some(remark.place));
                self.warnings.push(warning.hint("add an expression that must hold, as @validate isInt(value)"));
            }
            _ => {
                let message = format!("unrecognized annotation {name} at \"{}\", without effect", path.join("."));
                let hint = did_you_mean(name, ANNOTATION_NAMES.iter().copied())
                    .map_or_else(|| "annotations are @require and @validate".to_owned(), |near| format!("did you mean {near}?"));
                self.warnings.push(Diagnostic::new(message).at(Some(remark.place)).hint(hint));
            }
        }
        if rule.required || rule.validate.is_some() {
            self.entries.push(rule);
        }
    }

    /// Adds the annotations of another document.
    pub fn extend(&mut self, more: Self) {
        self.entries.extend(more.entries);
        self.warnings.extend(more.warnings);
    }

    /// Checks data against the annotations. Returns an error for each violation, in the order of the annotations.
    pub fn check(&self, data: &Value, secrets: &Secrets) -> Vec<Diagnostic> {
        self.entries.iter().filter_map(|rule| rule.check(data, secrets)).collect()
    }
}

impl KeyAnnotations {
    fn check(&self, data: &Value, secrets: &Secrets) -> Option<Diagnostic> {
        let key = self.path.join(".");
        let value = self.path.iter().try_fold(data, |here, step| here.get(step)).filter(|value| !value.is_null());
        let wrong = |message: String, hint: String| Some(Diagnostic::new(message).at(Some(self.place.clone())).hint(hint));
        let is_empty = value.is_none_or(|value| value.as_str() == Some(""));
        if self.required && is_empty {
            let hint = "set a value here, in an override that matches, or in the external data (--data)";
            return wrong(format!("key \"{key}\" is required but has no value"), hint.to_owned());
        }
        let (expression, value) = (self.validate.as_deref()?, value.filter(|value| !value.is_array() && !value.is_object())?);
        match template::validate(expression, value) {
            Ok(true) => None,
            Ok(false) => {
                let wanted = template::expected_values(expression)
                    .map_or_else(|| "give a value for which the expression holds".to_owned(), |wanted| format!("give {wanted}"));
                let shown = self.value_for_error(value, secrets);
                wrong(
                    format!("key \"{key}\" failed validation {expression:?}: {shown}"),
                    format!(
                        "{wanted}; the value may come from an override or from external data, or the annotation is too strict"
                    ),
                )
            }
            Err(error) => {
                let detail = secrets.redact(&error.detail).into_owned();
                wrong(
                    format!("key \"{key}\" validation {expression:?} failed: {detail}"),
                    "correct the expression of @validate, which tests the text \"value\"".to_owned(),
                )
            }
        }
    }

    /// The value for an error; a note in place of a secret.
    fn value_for_error(&self, value: &Value, secrets: &Secrets) -> String {
        let name = self.path.last().map(|name| name.to_lowercase()).unwrap_or_default();
        let text = template::to_text(value);
        if secrets.contains_secret(&text) || SECRET_NAMES.iter().any(|secret| name.contains(secret)) {
            return "its value is a secret and not shown".to_owned();
        }
        format!("it is \"{}\"", shorten(&text, MAX_SHOWN_CHARS))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Annotations, Diagnostic> {
        Annotations::read(&YamlDocument::parse(text, "m.yaml").unwrap())
    }

    fn errors(text: &str, data: &Value) -> Vec<String> {
        let secrets = Secrets::default();
        secrets.add("hunter2");
        let found = read(text).unwrap().check(data, &secrets);
        found.iter().map(|error| format!("{}: {}", error.place.as_ref().unwrap().line, error.message)).collect()
    }

    #[test]
    fn a_required_key_needs_a_value() {
        let text = "data:\n  # the token\n  # @require\n  a:\n  web:\n    port: 1 # @required\n";
        for (data, expected) in [
            (json!({"a": "x", "web": {"port": 0}}), &[][..]),
            (json!({"a": false, "web": {"port": []}}), &[]),
            (json!({"a": "", "web": {"port": 1}}), &["4: key \"a\" is required but has no value"]),
            (
                json!({"a": null, "web": "text"}),
                &["4: key \"a\" is required but has no value", "6: key \"web.port\" is required but has no value"],
            ),
        ] {
            assert_eq!(errors(text, &data), expected, "{data}");
        }
    }

    #[test]
    fn values_are_validated() {
        let text = "data:\n  # @validate isInt(value)\n  # @validate value in ['1', '2']\n  a: 1\n  # @require\n  # @validate isIPv4(value)\n  password: x\n  # @validate nonsense(value)\n  b: 1\n";
        for (data, expected) in [
            (json!({"a": 2, "password": "192.0.2.1", "b": null}), &[][..]),
            (json!({"a": [3], "password": "192.0.2.1", "b": {"c": 1}}), &[]),
            (
                json!({"a": 3, "password": "pass"}),
                &[
                    "4: key \"a\" failed validation \"value in ['1', '2']\": it is \"3\"",
                    "7: key \"password\" failed validation \"isIPv4(value)\": its value is a secret and not shown",
                ],
            ),
            (
                json!({"a": "hunter2", "b": 1}),
                &[
                    "4: key \"a\" failed validation \"value in ['1', '2']\": its value is a secret and not shown",
                    "7: key \"password\" is required but has no value",
                    "9: key \"b\" validation \"nonsense(value)\" failed: unknown name nonsense",
                ],
            ),
        ] {
            assert_eq!(errors(text, &data), expected, "{data}");
        }
    }

    #[test]
    fn errors_have_hints() {
        let text = "data:\n  # @validate isIPv4(value)\n  a: x\n";
        let found = read(text).unwrap().check(&json!({"a": "x"}), &Secrets::default());
        let expected = "m.yaml:3:3: key \"a\" failed validation \"isIPv4(value)\": it is \"x\"\n  3 |   a: x\n    |   ^\nhint: give an IPv4 address, as 192.0.2.7;";
        assert!(found[0].to_string().starts_with(expected), "{}", found[0]);
    }

    #[test]
    fn annotations_without_effect_are_warnings() {
        let text = "data:\n  # @requiredd\n  a: 1\n  # @validate\n  b: 1\n  # @require\n\n  list:\n    - c: 1 # @require\n    # @someone else\n  d: \"# @require\"\n";
        let rules = read(text).unwrap();
        let shown: Vec<_> =
            rules.warnings.iter().map(|warning| (warning.place.as_ref().unwrap().line, &*warning.message)).collect();
        let expected = [
            (2, "unrecognized annotation @requiredd at \"a\", without effect"),
            (4, "@validate at \"b\" has no expression, and no effect"),
            (6, "@require belongs to no key of data, and has no effect"),
            (9, "@require belongs to no key of data, and has no effect"),
            (10, "unrecognized annotation @someone at \"d\", without effect"),
        ];
        assert_eq!(shown, expected);
        assert_eq!(rules.check(&json!({}), &Secrets::default()), []);
        assert_eq!(read("ccm: {} # @require\n"), Ok(Annotations::default()));
    }

    #[test]
    fn annotations_that_cannot_be_placed_are_refused() {
        let lax = "data:\n  a: [\n1\n]\n";
        assert_eq!(read(lax), Ok(Annotations::default()));
        assert_eq!(read(&format!("{lax}  # @home\n  b: 1\n")), Ok(Annotations::default()));
        let error = read(&format!("{lax}  # @require\n  b: 1\n")).unwrap_err();
        assert!(error.message.starts_with("the annotations in comments can't be read"), "{error}");
    }
}
