//! The policy of a resource: its retries, the bounds of its time, and how often a watched resource is checked.
//!
//! A run uses `retry`, `delay`, `timeout` and `noop`. The other keys have an effect only while the manifest is watched, or while
//! resources run in parallel.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::HumanDuration;

use super::text;

/// The most retries of a resource.
const MAX_RETRIES: u32 = 1000;
/// The longest pause between two attempts. A longer pause would delay the repair after the cause is gone.
const MAX_DELAY: HumanDuration = HumanDuration::seconds(600);
/// The longest duration of all attempts with their pauses. A command to a node has the same limit.
const MAX_TOTAL: HumanDuration = HumanDuration::seconds(86_400);
/// The shortest interval of polls. A shorter interval would keep a processor busy.
const MIN_POLL: Duration = Duration::from_millis(100);

/// The policy of a resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Number of further attempts after a failed one.
    #[serde(deserialize_with = "retries")]
    #[schemars(schema_with = "retries_schema")]
    pub retry: u32,
    /// A success makes all retries available again. Only for a watched manifest.
    #[schemars(schema_with = "flag_schema")]
    pub retry_reset: bool,
    /// Pause before the first retry, at most 10 minutes. Each further pause is twice as long, up to the same limit.
    #[serde(deserialize_with = "duration")]
    pub delay: HumanDuration,
    /// Maximum duration of one attempt, at most 24 hours; unlimited when left out, or zero.
    #[serde(deserialize_with = "optional_duration", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// Interval of checks, at least 100 ms, instead of a watch. Only for a watched manifest.
    #[serde(deserialize_with = "optional_duration", skip_serializing_if = "Option::is_none")]
    pub poll: Option<HumanDuration>,
    /// Maximum number of checks a second. Only for a watched manifest.
    #[serde(deserialize_with = "rate", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rate_schema")]
    pub limit: Option<f64>,
    /// Number of checks that may follow each other at once, beside `limit`; 1 when left out. Only for a watched manifest.
    #[serde(deserialize_with = "text::number", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "burst_schema")]
    pub burst: Option<u32>,
    /// The resource is only observed, as in a dry run. Its subscribers are not notified.
    #[schemars(schema_with = "flag_schema")]
    pub noop: bool,
    /// Semaphores that the resource holds while it runs, as `name` or `name:count`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub semaphore: Vec<Semaphore>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retry: 0,
            retry_reset: true,
            delay: HumanDuration::seconds(1),
            timeout: None,
            poll: None,
            limit: None,
            burst: None,
            noop: false,
            semaphore: Vec::new(),
        }
    }
}

/// A limit of the number of resources that run at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semaphore {
    /// The name. All resources with this name share the semaphore.
    pub name: String,
    /// The number of resources that may run at the same time. None leaves the number to other resources; 1 if none names one.
    pub count: Option<NonZeroU32>,
}

/// A text that is no semaphore.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSemaphore {
    /// The name has a wrong form.
    #[error("invalid semaphore \"{0}\": a name is a letter, then letters, digits, \"_\", \"-\" and \".\", as db or db:2")]
    Name(String),
    /// The count is not a number, or zero.
    #[error("invalid semaphore \"{0}\": the count after \":\" is a whole number, at least 1, as db:2")]
    Count(String),
}

/// A value of a policy that is not allowed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}: {message}", self.path())]
pub struct InvalidPolicy {
    /// The key; none for the whole policy.
    pub key: Option<&'static str>,
    /// The position in the list of the key.
    pub index: Option<usize>,
    /// The reason.
    pub message: String,
    /// The remedy.
    pub hint: &'static str,
}

impl InvalidPolicy {
    fn new(key: &'static str, message: impl Into<String>, hint: &'static str) -> Self {
        Self { key: Some(key), index: None, message: message.into(), hint }
    }

    fn path(&self) -> String {
        let key = self.key.map(|key| format!(".{key}")).unwrap_or_default();
        let index = self.index.map(|index| format!("[{index}]")).unwrap_or_default();
        format!("policy{key}{index}")
    }
}

impl Policy {
    /// Returns true for the policy of a resource that sets none.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the maximum duration of one attempt, if there is one.
    pub fn attempt_limit(&self) -> Option<HumanDuration> {
        self.timeout.filter(|time| time.limit().is_some())
    }

    /// Returns the maximum duration of all attempts with their pauses, if there are several.
    pub fn total_limit(&self) -> Option<Duration> {
        (self.retry > 0).then(|| MAX_TOTAL.as_std())
    }

    /// Returns the pause after this number of failed attempts.
    pub fn pause(&self, failed: u32) -> Duration {
        // A delay has less than 2^40 nanoseconds, so that the product fits.
        let doubled = self.delay.as_std().as_nanos().saturating_mul(1 << failed.saturating_sub(1).min(64));
        u64::try_from(doubled).map_or(MAX_DELAY.as_std(), |nanos| Duration::from_nanos(nanos).min(MAX_DELAY.as_std()))
    }

    /// Checks the values, beside their form.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self) -> Result<(), InvalidPolicy> {
        let wrong = |key, message: String, hint| Err(InvalidPolicy::new(key, message, hint));
        if self.retry > MAX_RETRIES {
            return wrong("retry", format!("{} retries are too many", self.retry), "the maximum is 1000");
        }
        if self.delay > MAX_DELAY {
            return wrong("delay", format!("a pause of {} is too long", self.delay), "the maximum is 10m");
        }
        if let Some(timeout) = self.timeout.filter(|timeout| *timeout > MAX_TOTAL) {
            return wrong("timeout", format!("an attempt of {timeout} is too long"), "the maximum is 24h");
        }
        if self.longest() > MAX_TOTAL.as_std() {
            let message = "all attempts with their pauses may take more than 24h".to_owned();
            return wrong("retry", message, "lower retry, delay or timeout");
        }
        if let Some(poll) = self.poll.filter(|poll| poll.as_std() < MIN_POLL) {
            return wrong("poll", format!("an interval of {poll} is too short"), "the minimum is 100ms");
        }
        if let Some(limit) = self.limit.filter(|limit| !limit.is_finite() || *limit <= 0.0) {
            return wrong("limit", format!("{limit} is no number of checks a second"), "write a number above 0, as 0.5");
        }
        match (self.burst, self.limit) {
            (Some(0), _) => return wrong("burst", "0 would allow no check".to_owned(), "write a whole number, at least 1"),
            (Some(_), None) => {
                return wrong("burst", "burst has no effect without limit".to_owned(), "add limit, or remove burst");
            }
            _ => {}
        }
        for (index, semaphore) in self.semaphore.iter().enumerate() {
            if self.semaphore.iter().take(index).any(|other| other.name == semaphore.name) {
                let twice = format!("semaphore \"{}\" is named twice", semaphore.name);
                return Err(InvalidPolicy {
                    index: Some(index),
                    ..InvalidPolicy::new("semaphore", twice, "remove one of the two")
                });
            }
        }
        Ok(())
    }

    /// Checks the policy of a resource that applies a manifest: only `noop` may be set.
    ///
    /// # Errors
    /// When another key is set.
    pub fn validate_nested(&self) -> Result<(), InvalidPolicy> {
        if (Self { noop: self.noop, ..Self::default() }) == *self {
            return Ok(());
        }
        Err(InvalidPolicy {
            key: None,
            index: None,
            message: "a resource that applies a manifest can have only noop".to_owned(),
            hint: "write the policy at the resources of that manifest",
        })
    }

    /// Returns the longest duration of all attempts with their pauses. Attempts without a timeout count as zero.
    fn longest(&self) -> Duration {
        let pauses: Duration = (1..=self.retry).map(|failed| self.pause(failed)).sum();
        let attempt = self.timeout.map(HumanDuration::as_std).unwrap_or_default();
        attempt.saturating_mul(self.retry.saturating_add(1)).saturating_add(pauses)
    }
}

impl FromStr for Semaphore {
    type Err = InvalidSemaphore;

    fn from_str(text: &str) -> Result<Self, InvalidSemaphore> {
        let (name, count) = text.split_once(':').map_or((text, None), |(name, count)| (name, Some(count)));
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.chars().all(|character| character.is_ascii_alphanumeric() || "_-.".contains(character));
        if !is_name {
            return Err(InvalidSemaphore::Name(text.to_owned()));
        }
        let count = count.map(|count| count.parse().map_err(|_| InvalidSemaphore::Count(text.to_owned()))).transpose()?;
        Ok(Self { name: name.to_owned(), count })
    }
}

impl fmt::Display for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.count.map_or(Ok(()), |count| write!(f, ":{count}"))
    }
}

impl Serialize for Semaphore {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Semaphore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::text(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Semaphore {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Semaphore".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "The name of a semaphore, and how many resources may hold it: `name` or `name:count`."})
    }
}

fn retries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    text::number(deserializer).map(Option::unwrap_or_default)
}

/// Reads a duration. A number without a unit gets the error of the duration, not that of its type.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HumanDuration, D::Error> {
    text::text(deserializer)?.parse().map_err(D::Error::custom)
}

fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HumanDuration>, D::Error> {
    text::optional(deserializer)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

/// Reads a number that may be written as text, as templates do.
fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let parse =
        |text: String| text.trim().parse().map_err(|_| D::Error::custom(format_args!("expected a number, not \"{text}\"")));
    text::optional(deserializer)?.map(parse).transpose()
}

/// Returns a schema that also allows a template.
fn or_template(plain: &Schema) -> Schema {
    json_schema!({"anyOf": [plain, {"type": "string", "pattern": r"\{\{|\$\{"}]})
}

fn retries_schema(_: &mut SchemaGenerator) -> Schema {
    or_template(&json_schema!({"type": "integer", "minimum": 0, "maximum": MAX_RETRIES}))
}

fn flag_schema(_: &mut SchemaGenerator) -> Schema {
    or_template(&json_schema!({"type": "boolean"}))
}

fn rate_schema(_: &mut SchemaGenerator) -> Schema {
    or_template(&json_schema!({"type": "number", "exclusiveMinimum": 0}))
}

fn burst_schema(_: &mut SchemaGenerator) -> Schema {
    or_template(&json_schema!({"type": "integer", "minimum": 1}))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::value_decode;

    fn read(written: &Value) -> Result<Policy, String> {
        let policy: Policy = value_decode::read(written).map_err(|wrong| wrong.to_string())?;
        policy.validate().map(|()| policy).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn a_policy_reads_what_it_prints() {
        for written in [
            json!({}),
            json!({"retry": 3, "delay": "2s", "timeout": "30s", "noop": true}),
            json!({"poll": "1m", "limit": 0.5, "burst": 2, "retry_reset": false, "semaphore": ["db", "disk.io:2"]}),
        ] {
            let policy = read(&written).unwrap();
            let printed = serde_json::to_value(&policy).unwrap();
            assert_eq!(read(&printed).unwrap(), policy);
            for (key, value) in written.as_object().unwrap() {
                assert_eq!(printed[key], *value, "{written}");
            }
        }
        assert!(read(&json!({})).unwrap().is_default());
        // Templates and flags write numbers as text.
        assert_eq!(read(&json!({"retry": "3", "limit": "2", "burst": "1"})).unwrap().retry, 3);
        assert!(read(&json!({"retry": null, "timeout": null, "limit": null})).unwrap().is_default());
    }

    #[test]
    fn wrong_values_are_refused_with_their_place() {
        for (written, expected) in [
            (json!({"retry": -1}), "retry: expected a whole number, not \"-1\""),
            (json!({"retry": 1.5}), "retry: expected a whole number, not \"1.5\""),
            (json!({"retry": 1001, "delay": "0"}), "policy.retry: 1001 retries are too many"),
            (json!({"delay": "11m"}), "policy.delay: a pause of 11m is too long"),
            (json!({"delay": 5}), "delay: invalid duration \"5\": expected a number with a unit"),
            (json!({"timeout": 30}), "timeout: invalid duration \"30\": expected a number with a unit"),
            (json!({"timeout": "25h"}), "policy.timeout: an attempt of 1d1h is too long"),
            (json!({"retry": 1, "timeout": "13h"}), "policy.retry: all attempts with their pauses may take more than 24h"),
            (json!({"retry": 1, "timeout": "12h"}), "policy.retry: all attempts with their pauses may take more than 24h"),
            (json!({"retry": 200}), "policy.retry: all attempts with their pauses may take more than 24h"),
            (json!({"poll": "99ms"}), "policy.poll: an interval of 99ms is too short"),
            (json!({"limit": 0}), "policy.limit: 0 is no number of checks a second"),
            (json!({"limit": -0.5}), "policy.limit: -0.5 is no number of checks a second"),
            (json!({"limit": "inf"}), "policy.limit: inf is no number of checks a second"),
            (json!({"limit": "often"}), "limit: expected a number, not \"often\""),
            (json!({"limit": 1, "burst": 0}), "policy.burst: 0 would allow no check"),
            (json!({"burst": 1}), "policy.burst: burst has no effect without limit"),
            (json!({"noop": "sometimes"}), "noop: invalid type: string"),
            (json!({"semaphore": "db"}), "semaphore: invalid type: string"),
            (json!({"semaphore": ["db", "3"]}), "semaphore[1]: invalid semaphore \"3\": a name is a letter"),
            (json!({"semaphore": [""]}), "semaphore[0]: invalid semaphore \"\": a name is a letter"),
            (json!({"semaphore": ["a:0"]}), "semaphore[0]: invalid semaphore \"a:0\": the count"),
            (json!({"semaphore": ["a:b:2"]}), "semaphore[0]: invalid semaphore \"a:b:2\": the count"),
            (json!({"semaphore": ["db", "db:2"]}), "policy.semaphore[1]: semaphore \"db\" is named twice"),
            (json!({"retrys": 1}), "retrys: unknown field `retrys`"),
        ] {
            let found = read(&written).unwrap_err();
            assert!(found.starts_with(expected), "{written}: {found}");
        }
        for allowed in [json!({"retry": 1000, "delay": "0"}), json!({"retry": 150}), json!({"timeout": "24h"})] {
            assert!(read(&allowed).is_ok(), "{allowed}");
        }
    }

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let seconds = |delay: &str| {
            let policy = read(&json!({ "delay": delay })).unwrap();
            [1, 2, 3, 10, 11, 1000].map(|failed| policy.pause(failed).as_secs())
        };
        assert_eq!(seconds("1s"), [1, 2, 4, 512, 600, 600]);
        assert_eq!(seconds("10m"), [600; 6]);
        assert_eq!(seconds("0"), [0; 6]);
        assert_eq!(seconds("1ns"), [0, 0, 0, 0, 0, 600]);
    }

    #[test]
    fn a_resource_that_applies_a_manifest_has_only_noop() {
        assert_eq!(read(&json!({"noop": true})).unwrap().validate_nested(), Ok(()));
        for other in [json!({"retry": 1}), json!({"timeout": "1s"}), json!({"noop": true, "semaphore": ["a"]})] {
            let wrong = read(&other).unwrap().validate_nested().unwrap_err();
            assert_eq!(wrong.to_string(), "policy: a resource that applies a manifest can have only noop");
        }
    }
}
