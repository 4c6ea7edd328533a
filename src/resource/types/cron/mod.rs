//! `cron`: entries of the system's crontab, each in a file of its own in `/etc/cron.d` (`core/owned_file.rs`).
//!
//! Each file is replaced in one step and removed as a whole. The crontabs of other owners are never edited. The syntax of
//! crontab(5) is checked before the write: cron(8) reports errors only in its log.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host::{Host, PathResolver, fs};
use crate::model::effects::EffectKind;
use crate::model::secret::REDACTED;
use crate::model::{Effect, Effects, Identity, Need, OnRemoval, RedactedProperty};

use crate::resource::core::ensure::Presence;
use crate::resource::core::owned_file;
use crate::resource::core::owned_file::OwnedFile;
use crate::resource::core::{path_order, shadow_utils, text};
use crate::resource::{Change, Invalid, Preview, ProviderEntry, Resource, ResourceError, State};

/// The directory of crontabs for cron(8).
const DIRECTORY: &str = "/etc/cron.d";
/// The first line of every file.
const HEADER: &str = "# Managed by Ensign: changes are lost.\n";
/// The longest command that every cron accepts, in bytes.
const COMMAND_MAX: usize = 998;
/// Macros that replace the five fields.
const MACROS: &[&str] = &["@reboot", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Variables that do not change the meaning of a command: the address for mail, and the time zone.
const HARMLESS_VARIABLES: &[&str] = &["MAILTO", "MAILFROM", "CRON_TZ"];

/// Cron entries.
pub struct CronType;

/// Properties of a cron entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The name of the file in `/etc/cron.d`: letters, digits, `_` and `-`; cron ignores files with others.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the entry.
    #[serde(default)]
    pub ensure: Presence,
    /// The command, which cron passes to a shell. A `%` is literal: the file escapes it. Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The user that runs the command; `root` when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Schedule in one text: five fields as in crontab(5), or `@reboot`, `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// Minutes, 0 to 59, as `0`, `*/15` or `5,35`. Needed where there is no `schedule`.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub minute: String,
    /// Hours, 0 to 23; all when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub hour: String,
    /// Days of the month, 1 to 31; all when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub day: String,
    /// Months, 1 to 12 or `jan` to `dec`; all when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub month: String,
    /// Days of the week: 0 to 7 (0 and 7 are Sunday) or `sun` to `sat`; all when left out. With `day` too, either is enough.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub weekday: String,
    /// Variables as `NAME=value`, as `MAILTO=ops@example.com`. cron sets `SHELL`, `HOME` and `LOGNAME` itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
}

impl Properties {
    fn user(&self) -> &str {
        if self.user.is_empty() { "root" } else { &self.user }
    }

    /// Returns the path of the file of a valid name.
    fn path(&self) -> String {
        format!("{DIRECTORY}/{}", self.name)
    }

    fn field_values(&self) -> [&str; 5] {
        [&self.minute, &self.hour, &self.day, &self.month, &self.weekday]
    }

    /// Returns the schedule in the form of crontab(5): numbers instead of names, one space between the fields.
    fn schedule_text(&self) -> Result<String, Invalid> {
        if !self.schedule.is_empty() {
            if let Some((field, _)) = FIELDS.iter().zip(self.field_values()).find(|(_, given)| !given.is_empty()) {
                return Err(Invalid::new("schedule", format!("schedule and {} are mutually exclusive", field.name)));
            }
            return parse_schedule(&self.schedule);
        }
        if self.minute.is_empty() {
            let message = match self.field_values().iter().all(|given| given.is_empty()) {
                true => "schedule or minute is required",
                false => "minute is required: write \"*\" to run in every minute of the other fields",
            };
            return Err(Invalid::new("minute", message));
        }
        let given = FIELDS.iter().zip(self.field_values());
        let fields: Result<Vec<String>, Invalid> =
            given.map(|(field, given)| field.normalize(if given.is_empty() { "*" } else { given }, field.name)).collect();
        Ok(fields?.join(" "))
    }

    /// Returns the lines of the variables.
    fn variables(&self) -> Result<Vec<String>, Invalid> {
        self.environment.iter().map(|pair| variable(pair)).collect()
    }

    /// Returns the desired content of the file.
    fn file_text(&self) -> Result<String, Invalid> {
        let variables: String = self.variables()?.iter().map(|line| format!("{line}\n")).collect();
        Ok(format!("{HEADER}{variables}{} {} {}\n", self.schedule_text()?, self.user(), escape_percent(self.command.trim())))
    }

    fn known_text(&self) -> Result<String, ResourceError> {
        self.file_text().map_err(|invalid| ResourceError::State(invalid.message))
    }
}

/// A field of crontab(5).
struct Field {
    name: &'static str,
    low: u32,
    high: u32,
    /// The names of values; the first has the lowest number.
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", low: 0, high: 59, names: &[] },
    Field { name: "hour", low: 0, high: 23, names: &[] },
    Field { name: "day", low: 1, high: 31, names: &[] },
    Field {
        name: "month",
        low: 1,
        high: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Field { name: "weekday", low: 0, high: 7, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];

impl Field {
    /// Returns the field with numbers for names, which crontab(5) does not allow in lists and ranges.
    fn normalize(&self, text: &str, property: &'static str) -> Result<String, Invalid> {
        let items: Result<Vec<String>, String> = text.split(',').map(|item| self.normalize_item(item)).collect();
        match items {
            Ok(items) => Ok(items.join(",")),
            Err(why) => Err(Invalid::new(property, format!("the {} {text:?} is not valid: {why}", self.name))),
        }
    }

    fn normalize_item(&self, item: &str) -> Result<String, String> {
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let range = match range.split_once('-') {
            None if range == "*" => range.to_owned(),
            None if step.is_some() => return Err("a step needs a range or \"*\" before it".to_owned()),
            None => self.number(range)?.to_string(),
            Some((from, to)) => {
                let (from, mut to) = (self.number(from)?, self.number(to)?);
                // A week that ends on Sunday.
                if to == 0 && from > 0 && self.high == 7 {
                    to = 7;
                }
                if from > to {
                    return Err(format!("{from}-{to} ends before it begins"));
                }
                format!("{from}-{to}")
            }
        };
        let Some(step) = step else { return Ok(range) };
        match digits(step) {
            Some(step) if (1..=self.high).contains(&step) => Ok(format!("{range}/{step}")),
            _ => Err(format!("a step is a number from 1 to {}", self.high)),
        }
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let named = || (self.low..).zip(self.names).find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(number, _)| number);
        digits(text)
            .filter(|number| (self.low..=self.high).contains(number))
            .or_else(named)
            .ok_or_else(|| format!("{text:?} is not from {} to {}", self.low, self.high))
    }
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Returns a schedule in a single text, in the form of crontab(5).
fn parse_schedule(schedule: &str) -> Result<String, Invalid> {
    if schedule.starts_with('@') {
        let known = MACROS.iter().find(|name| name.eq_ignore_ascii_case(schedule));
        let message = || Invalid::new("schedule", format!("the schedule {schedule:?} is none of {}", MACROS.join(", ")));
        return known.map(|name| (*name).to_owned()).ok_or_else(message);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let message = format!("the schedule {schedule:?} has {} fields, not five: minute hour day month weekday", fields.len());
        return Err(Invalid::new("schedule", message));
    }
    let fields: Result<Vec<String>, Invalid> =
        FIELDS.iter().zip(fields).map(|(field, text)| field.normalize(text, "schedule")).collect();
    Ok(fields?.join(" "))
}

/// Returns the command as in the file: an unescaped `%` would end it.
fn escape_percent(command: &str) -> String {
    command.replace('%', "\\%")
}

fn check_command(command: &str) -> Result<(), Invalid> {
    let wrong = |why: &str| Err(Invalid::new("command", why));
    if command.trim().is_empty() {
        return wrong("command is required");
    }
    if command.contains(['\n', '\r', '\0']) {
        return wrong("command must be one line: put more into a script");
    }
    // cron would consume the last of an odd number of backslashes.
    let odd = |before: &str| before.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
    if command.match_indices('%').any(|(at, _)| command.get(..at).is_some_and(odd)) {
        return wrong("command has \"\\%\": write \"%\" alone, it is escaped in the file");
    }
    if escape_percent(command.trim()).len() > COMMAND_MAX {
        return wrong("command is longer than cron takes: put it into a script");
    }
    Ok(())
}

/// Returns the line of a variable, with its value in quotes.
fn variable(pair: &str) -> Result<String, Invalid> {
    let name_of = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let wrong = |why: &str| Err(Invalid::new("environment", format!("the variable {:?} is not valid: {why}", name_of(pair))));
    let Some((name, value)) = pair.split_once('=') else { return wrong("there is no \"=\"") };
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(fine) {
        return wrong("its name takes letters, digits and \"_\", and no digit first");
    }
    if name == "LOGNAME" {
        return wrong("cron sets it itself");
    }
    if value.contains(['\n', '\r', '\0']) {
        return wrong("its value must be one line");
    }
    match ['"', '\''].into_iter().find(|quote| !value.contains(*quote)) {
        Some(quote) => Ok(format!("{name}={quote}{value}{quote}")),
        None => wrong("its value has both kinds of quotes, which cron can't read"),
    }
}

/// The content of a file in `/etc/cron.d`: its variables, and its first entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Parsed<'a> {
    variables: Vec<&'a str>,
    when: String,
    user: &'a str,
    command: &'a str,
}

fn parse(text: &str) -> Parsed<'_> {
    let mut parsed = Parsed::default();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        if is_variable(line) {
            parsed.variables.push(line);
            continue;
        }
        let mut rest = line;
        let count = if line.starts_with('@') { 1 } else { FIELDS.len() };
        let when: Vec<&str> = (0..count).map(|_| take_word(&mut rest)).collect();
        parsed.when = when.join(" ");
        parsed.user = take_word(&mut rest);
        parsed.command = rest;
        break;
    }
    parsed
}

fn is_variable(line: &str) -> bool {
    let name = line.split('=').next().unwrap_or_default().trim_end();
    line.contains('=') && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !name.contains(char::is_whitespace)
}

/// Splits off the first word.
fn take_word<'a>(rest: &mut &'a str) -> &'a str {
    let (first, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    *rest = after.trim_start();
    first
}

/// The observed state of a cron entry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CronState {
    #[serde(skip)]
    file: Option<OwnedFile>,
    #[serde(skip_serializing_if = "String::is_empty")]
    schedule: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    command: String,
}

impl State for CronState {
    fn ensure(&self) -> &str {
        Presence::from_exists(self.file.is_some()).as_str()
    }
}

/// A step towards the desired entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CronChange {
    /// Write the missing file.
    Create,
    /// Rewrite the file.
    Update {
        /// The differences.
        details: Vec<String>,
    },
    /// Remove the file.
    Remove,
}

impl fmt::Display for CronChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "created the entry",
            Self::Update { .. } => "updated the entry",
            Self::Remove => "removed the entry",
        })
    }
}

impl Change for CronChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::Update { details } => details.clone(),
            Self::Create | Self::Remove => vec![self.to_string()],
        }
    }
}

impl Resource for CronType {
    const TYPE: &'static str = "cron";
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Cron entries, each in a file of its own in /etc/cron.d.";
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes the same entry"),
        ("schedule", "when it runs"),
        ("minute", "when it runs"),
        ("hour", "when it runs"),
        ("day", "when it runs"),
        ("month", "when it runs"),
        ("weekday", "when it runs"),
    ];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<()>] = &[ProviderEntry::only("cron.d")];

    type Properties = Properties;
    type State = CronState;
    type Change = CronChange;
    type Provider = ();

    fn validate(p: &Properties) -> Result<(), Invalid> {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if p.name.is_empty() || p.name.len() > 128 || !p.name.chars().all(fine) {
            let message = format!("{:?} can't be the name of a cron entry: cron takes letters, digits, \"_\" and \"-\"", p.name);
            return Err(Invalid::new("name", message));
        }
        if p.ensure == Presence::Present {
            shadow_utils::check_reference("user", p.user())?;
            check_command(&p.command)?;
            p.file_text()?;
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        effects.push(Effect::Schedule(p.name.clone()));
        effects.push(match p.name.contains('/') {
            // An invalid name must not be used as a path.
            true => Effect::unknown(Some(EffectKind::Write), &p.name),
            false => Effect::implied(p.path()),
        });
        if !p.command.is_empty() {
            effects.push(Effect::run(&p.command));
        }
        if p.user() != "root" {
            effects.push(Effect::user(p.user()));
        }
        let decides = |pair: &&String| !HARMLESS_VARIABLES.contains(&pair.split('=').next().unwrap_or_default());
        effects.extend(p.environment.iter().filter(decides).map(|pair| Effect::variable_pair(pair)));
        effects
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure == Presence::Present, &p.path())
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure == Presence::Absent, &p.path())
    }

    fn needs(p: &Properties) -> Vec<Need> {
        if p.ensure == Presence::Absent {
            return Vec::new();
        }
        let mut needs = path_order::path_needs(&p.path(), p.user(), "");
        needs.extend(path_order::command_needs(&p.command));
        needs
    }

    fn query(name: &str) -> Option<Properties> {
        serde_json::from_value(serde_json::json!({"name": name, "ensure": "absent"})).ok()
    }

    fn observe(p: &Properties, (): &(), host: &Host) -> Result<CronState, ResourceError> {
        let Some(file) = owned_file::observe(&path(p, host))? else { return Ok(CronState::default()) };
        let parsed = parse(if file.is_public { &file.text } else { "" });
        let command = parsed.command.replace("\\%", "%");
        let (schedule, user) = (parsed.when.clone(), parsed.user.to_owned());
        Ok(CronState { schedule, user, command, file: Some(file) })
    }

    fn restoring(p: &Properties, state: &CronState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        let absent = Self::removing(p, state);
        let (Some(file), Some(base)) = (&state.file, absent.clone()) else { return Ok(absent) };
        let variables = parse(&file.text).variables.into_iter().filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            Some(format!("{name}={}", value.strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])?))
        });
        let (command, user, schedule) = (state.command.clone(), state.user.clone(), state.schedule.clone());
        let environment = variables.collect();
        let restored = Properties { ensure: Presence::Present, command, user, schedule, environment, ..base };
        // Other programs write files with comments and several entries.
        if Self::validate(&restored).is_err() || restored.file_text().ok().as_ref() != Some(&file.text) {
            let message = format!("{DIRECTORY}/{} is not in the form of Ensign, and can't be brought back", p.name);
            return Err(ResourceError::State(message));
        }
        Ok(Some(restored))
    }

    fn removing(p: &Properties, _: &CronState) -> Option<Properties> {
        Self::query(&p.name)
    }

    fn comparable(_: &Properties, state: &CronState, _: &Host, _: bool) -> Result<Value, ResourceError> {
        Ok(Value::from(state.file.as_ref().map(|file| file.text.as_str())))
    }

    fn diff(p: &Properties, state: &CronState) -> Result<Vec<CronChange>, ResourceError> {
        let file = match (p.ensure, &state.file) {
            (Presence::Absent, None) => return Ok(vec![]),
            (Presence::Absent, Some(_)) => return Ok(vec![CronChange::Remove]),
            (Presence::Present, None) => return Ok(vec![CronChange::Create]),
            (Presence::Present, Some(file)) => file,
        };
        let wanted = p.known_text()?;
        let details = differences(&file.text, &wanted, file.is_public);
        Ok(match (file.has_right_attributes, details.is_empty()) {
            (true, true) => vec![],
            (false, true) => vec![CronChange::Update { details: vec!["owner or mode of the file".to_owned()] }],
            (_, false) => vec![CronChange::Update { details }],
        })
    }

    fn apply(change: &CronChange, p: &Properties, _: &mut CronState, (): &(), host: &Host) -> Result<(), ResourceError> {
        if *change == CronChange::Remove {
            return owned_file::remove(&path(p, host));
        }
        // cron ignores the whole file for an unknown user, and reports this only in its log.
        host.accounts().uid(p.user())?;
        if !PathResolver::system().exists(&host.system_path(DIRECTORY))? {
            return Err(ResourceError::State(format!("there is no {DIRECTORY}: install cron first")));
        }
        owned_file::write(&path(p, host), &p.known_text()?)
    }

    fn preview(p: &Properties, state: &CronState, host: &Host) -> Option<Preview> {
        let before = state.file.as_ref().map_or("", |file| &file.text);
        let after = if p.ensure == Presence::Present { p.file_text().ok()? } else { String::new() };
        let is_public = state.file.as_ref().is_none_or(|file| file.has_right_attributes) && fs::is_reachable(&path(p, host));
        Some(Preview { before: blanked(before), after: blanked(&after), is_public })
    }

    fn redacted(p: &Properties) -> Value {
        let mut shown = serde_json::to_value(p).unwrap_or_default();
        if let Some(variables) = shown.get_mut("environment").and_then(Value::as_array_mut) {
            for variable in variables {
                *variable = Value::String(variable.as_str().map(redact_variable).unwrap_or_default());
            }
        }
        shown
    }

    fn report_secrets(p: &Properties, note: &mut dyn FnMut(RedactedProperty<'_>)) {
        p.environment.iter().for_each(|pair| note(RedactedProperty::Variable(pair)));
    }
}

fn path(p: &Properties, host: &Host) -> PathBuf {
    host.system_path(DIRECTORY).join(&p.name)
}

/// Returns the differences between two files, for the user. A file that not all users may read gives no old values.
fn differences(before: &str, after: &str, is_public: bool) -> Vec<String> {
    if before == after {
        return vec![];
    }
    let (old, new) = (parse(before), parse(after));
    let mut details = Vec::new();
    for (what, old, new) in
        [("schedule", old.when.as_str(), new.when.as_str()), ("user", old.user, new.user), ("command", old.command, new.command)]
    {
        if old != new {
            details.push(if old.is_empty() || !is_public { format!("{what} {new}") } else { format!("{what} {old} → {new}") });
        }
    }
    if old.variables != new.variables {
        details.push("environment".to_owned());
    }
    if details.is_empty() {
        details.push("the form of the file".to_owned());
    }
    details
}

/// Redacts the value of a variable, which may be a secret.
fn redact_variable(pair: &str) -> String {
    format!("{}={REDACTED}", pair.split('=').next().unwrap_or_default().trim_end())
}

fn blanked(text: &str) -> String {
    let lines = text.lines().map(|line| if is_variable(line.trim()) { redact_variable(line.trim()) } else { line.to_owned() });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
