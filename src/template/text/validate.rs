//! Conditions over one value, for `@validate` in data. The expression sees the value as the text `value`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use serde_json::Value;

use super::error::TemplateError;
use crate::model::{EvaluationBudget, HumanDuration};
use crate::template::expr::{self, Env, ExprError, NameScope, Root};
use crate::template::functions::print::to_text;
use crate::template::functions::regexes::Pattern;

/// The longest label and the longest name of a host, in bytes (RFC 1123, section 2.1).
const MAX_LABEL: usize = 63;
const MAX_HOSTNAME: usize = 253;
/// Characters with a special meaning in a shell.
const SHELL_SIGNS: &[char] = &['`', '$', ';', '|', '&', '>', '<', '(', ')', '\n'];

/// A test function: takes the value and further arguments.
type Test = fn(&[String]) -> Result<bool, String>;

/// The test functions with all their names.
const TESTS: &[(&[&str], Test)] = &[
    (&["isIP", "is_ip"], |args| one_argument("isIP", args).map(|text| text.parse::<IpAddr>().is_ok())),
    (&["isIPv4", "is_ipv4"], |args| one_argument("isIPv4", args).map(|text| text.parse::<Ipv4Addr>().is_ok())),
    (&["isIPv6", "is_ipv6"], |args| one_argument("isIPv6", args).map(|text| text.parse::<Ipv6Addr>().is_ok())),
    (&["isInt", "is_int"], |args| one_argument("isInt", args).map(|text| text.parse::<i64>().is_ok())),
    (&["isFloat", "is_float"], |args| one_argument("isFloat", args).map(|text| text.parse::<f64>().is_ok())),
    (&["isDuration", "is_duration"], |args| one_argument("isDuration", args).map(|text| text.parse::<HumanDuration>().is_ok())),
    (&["isRegex", "is_regex"], matches_regex),
    (&["isShellSafe", "is_shell_safe", "is_shellsafe"], |args| {
        one_argument("isShellSafe", args).map(|text| !text.contains(SHELL_SIGNS))
    }),
    (&["isHostname", "is_hostname"], |args| one_argument("isHostname", args).map(is_hostname)),
    (&["isFQDN", "is_fqdn"], |args| one_argument("isFQDN", args).map(is_fqdn)),
];

/// The expected values of each function, for error messages.
const EXPECTED_VALUES: &[(&str, &str)] = &[
    ("isIP", "an IP address, as 192.0.2.7 or 2001:db8::7"),
    ("isIPv4", "an IPv4 address, as 192.0.2.7"),
    ("isIPv6", "an IPv6 address, as 2001:db8::7"),
    ("isInt", "a whole number"),
    ("isFloat", "a number"),
    ("isDuration", "a span of time, as 30s, 5m or 1h30m"),
    ("isRegex", "a text that matches the regular expression"),
    ("isShellSafe", "a text without any of ` $ ; | & > < ( ) and line ends"),
    ("isHostname", "a host name, as web01 or web01.example.net"),
    ("isFQDN", "a host name with its domain, as web01.example.net"),
];

fn one_argument<'a>(name: &str, args: &'a [String]) -> Result<&'a str, String> {
    match args {
        [text] => Ok(text),
        _ => Err(format!("{name} takes one argument, as {name}(value)")),
    }
}

fn matches_regex(args: &[String]) -> Result<bool, String> {
    let [text, pattern] = args else {
        return Err("isRegex takes a value and a regular expression, as isRegex(value, \"^a+$\")".to_owned());
    };
    let budget = EvaluationBudget::default();
    Ok(Pattern::compile_charged(pattern, &budget)?.charge(text, &budget)?.is_match(text))
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && label.len() <= MAX_LABEL
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_HOSTNAME && text.split('.').all(is_label)
}

fn is_fqdn(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let top = name.rsplit_once('.').map(|(_, top)| top);
    is_hostname(name) && top.is_some_and(|top| top.starts_with(|c: char| c.is_ascii_alphabetic()))
}

static FUNCTIONS: LazyLock<Vec<&'static str>> = LazyLock::new(|| TESTS.iter().flat_map(|(names, _)| *names).copied().collect());

/// The environment of an expression over one value.
struct SingleValueEnv(Value);

impl Env for SingleValueEnv {
    fn root(&self, _: Root) -> &Value {
        &self.0
    }

    fn call(&self, name: &str, args: &[Value], _: usize) -> Result<Value, String> {
        let test = TESTS.iter().find(|(names, _)| names.contains(&name)).map(|(_, test)| test);
        let test = test.ok_or_else(|| format!("unknown function {name}"))?;
        test(&args.iter().map(to_text).collect::<Vec<_>>()).map(Value::Bool)
    }
}

/// Evaluates a condition over a value, which the expression calls `value`.
///
/// # Errors
/// The expression can't be evaluated, or is neither true nor false.
pub fn validate(expression: &str, value: &Value) -> Result<bool, TemplateError> {
    let failed = |failure: ExprError| failure.at(expression, expression, 0);
    let names = NameScope { functions: &FUNCTIONS, facts_only: true, value_only: true };
    let compiled = expr::compile(expression, &names).map_err(failed)?;
    let subject = SingleValueEnv(Value::String(to_text(value)));
    let wrong = |detail: String| failed(ExprError::evaluation(detail));
    let outcome = expr::evaluate(&compiled, &subject, &EvaluationBudget::default(), 0).map_err(wrong)?;
    outcome.truth().ok_or_else(|| wrong("the result must be true or false".to_owned()))
}

/// Describes the values that the functions of an expression accept; `None` without such functions.
pub fn expected_values(expression: &str) -> Option<String> {
    let plain = expression.replace('_', "").to_lowercase();
    let calls = |name: &str| plain.contains(&format!("{}(", name.to_lowercase()));
    let found: Vec<&str> = EXPECTED_VALUES.iter().filter(|(name, _)| calls(name)).map(|(_, wanted)| *wanted).collect();
    (!found.is_empty()).then(|| found.join(", or "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_functions_check_values() {
        for (function, fine, wrong) in [
            ("isIP", &["192.0.2.7", "::1"][..], &["192.0.2", "x", ""][..]),
            ("is_ipv4", &["192.0.2.7"], &["::1", "192.0.2.256"]),
            ("isIPv6", &["2001:db8::1"], &["192.0.2.7"]),
            ("isInt", &["1", "-5", "+5"], &["1.5", "", "x", "0x1"]),
            ("isFloat", &["1", "1.5", "-2e3"], &["x", ""]),
            ("isDuration", &["30s", "1h30m", "1d"], &["soon", "5"]),
            ("isShellSafe", &["a b", "-x"], &["a;b", "$x", "`x`", "a|b", "(", "a\nb"]),
            ("isHostname", &["web01", "web01.example", "1.2", "a-b"], &["-a", "a-", "a..b", "", "a_b", "a b"]),
            ("is_fqdn", &["web01.example", "web01.example."], &["web01", "192.0.2.7", "web01..example"]),
        ] {
            for (values, expected) in [(fine, true), (wrong, false)] {
                for value in values {
                    assert_eq!(validate(&format!("{function}(value)"), &json!(value)), Ok(expected), "{function} {value}");
                }
            }
        }
        assert!(!is_hostname(&"a".repeat(64)) && !is_hostname(&"a.".repeat(130)));
    }

    #[test]
    fn expressions_over_a_value() {
        for (expression, value, expected) in [
            ("value in [\"red\", \"green\"]", json!("red"), Ok(true)),
            ("Value startsWith 'v'", json!("x"), Ok(false)),
            ("int(value) > 1024 && int(value) < 65536", json!(8080), Ok(true)),
            ("value == 'true'", json!(true), Ok(true)),
            ("isRegex(value, '^[a-z]+$')", json!("abc"), Ok(true)),
            ("isIPv4(value) || isHostname(value)", json!("web01"), Ok(true)),
            ("not isIP(value)", json!("web01"), Ok(true)),
            ("len(value)", json!("x"), Err("the result must be true or false")),
            ("isIP()", json!("x"), Err("isIP takes one argument")),
            ("isRegex(value, '(')", json!("x"), Err("regular expression can't be read")),
            ("isIPV4(value)", json!("x"), Err("did you mean isIPv4")),
            ("Data.x == value", json!("x"), Err("unknown name Data")),
            ("value ==", json!("x"), Err("compile error")),
            ("lookup('facts.x') == value", json!("x"), Err("unknown name lookup")),
        ] {
            match (validate(expression, &value), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{expression}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{expression}: {error}"),
                (found, _) => panic!("{expression}: {found:?}"),
            }
        }
    }

    #[test]
    fn expected_values_are_described() {
        assert_eq!(expected_values("is_ipv4(value)").as_deref(), Some("an IPv4 address, as 192.0.2.7"));
        assert_eq!(expected_values("value == 'x'"), None);
        let named: Vec<&str> = EXPECTED_VALUES.iter().map(|(name, _)| *name).collect();
        assert_eq!(named, TESTS.iter().map(|(names, _)| names[0]).collect::<Vec<_>>());
    }
}
