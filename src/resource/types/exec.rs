//! `exec`: commands, with guards that make them idempotent.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::host::command::{OUTPUT_CAP, is_executable};
use crate::host::{Host, ProcessCommand, fs};
use crate::model::effects::{PathScope, RUN_GRANT};
use crate::model::secret::REDACTED;
use crate::model::{Effect, Effects, HumanDuration, Identity, Need, RedactedProperty};

use crate::resource::core::{path_order, text};
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

/// Maximum length of a failed command's output in its error, in characters from the end.
const TAIL: usize = 400;

/// Maximum length of the output that `logoutput` keeps in the event, in characters from the end.
const LOGGED: usize = 8192;

/// Commands.
pub struct ExecType;

/// Properties of an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// Name of the resource; the command itself when `command` is left out.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Always `present`, for uniformity with other types.
    #[serde(default)]
    pub ensure: ExecEnsure,
    /// The command. `posix` splits it into words as a shell would and runs no shell; `shell` gives it to `/bin/sh -c`.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The working directory; `/` when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// Variables as `NAME=value`, added to a clean environment with a fixed `PATH`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Directories, separated by colons, in which a bare command name is searched.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Exit codes of success.
    #[serde(default = "zero", deserialize_with = "codes")]
    pub returns: Vec<i32>,
    /// Time after which the command and all its processes are killed; unlimited when left out, or zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// A path that exists when there is nothing to do. If the command creates it, the exit code does not matter.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub creates: String,
    /// Run only while this command exits with 0.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub onlyif: String,
    /// Do not run while this command exits with 0.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub unless: String,
    /// Run only when a resource in `subscribe` has changed.
    #[serde(default, alias = "refresh_only", skip_serializing_if = "std::ops::Not::not")]
    pub refreshonly: bool,
    /// Keep the output in the event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub logoutput: bool,
}

/// The only state of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecEnsure {
    /// Run, if the guards require a run.
    #[default]
    Present,
}

fn zero() -> Vec<i32> {
    vec![0]
}

/// Reads exit codes. An empty list means the default.
fn codes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
    let codes = Vec::deserialize(deserializer)?;
    Ok(if codes.is_empty() { zero() } else { codes })
}

impl Properties {
    fn command_line(&self) -> &str {
        if self.command.is_empty() { &self.name } else { &self.command }
    }

    /// Creates the command of a line, with the working directory, variables and search path of this resource.
    fn prepare(&self, line: &str, provider: &dyn Interpreter) -> Result<ProcessCommand, ResourceError> {
        let mut command = provider.command(line)?;
        command.cwd = (!self.cwd.is_empty()).then(|| PathBuf::from(&self.cwd));
        command.env =
            self.environment.iter().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        command.search = self.path.split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect();
        command.timeout = self.timeout.and_then(HumanDuration::limit);
        Ok(command)
    }
}

/// The state before, and after, a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ExecState {
    #[serde(skip_serializing_if = "Option::is_none")]
    exitcode: Option<i32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    creates_satisfied: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    onlyif_satisfied: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unless_satisfied: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    output: String,
    /// The output for templates; none when the command did not run, or wrote too much.
    #[serde(skip)]
    stdout: Option<String>,
    #[serde(skip)]
    stderr: Option<String>,
}

impl State for ExecState {
    fn ensure(&self) -> &str {
        "present"
    }

    fn output(&self) -> &str {
        &self.output
    }
}

/// A run of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecChange {
    /// The guards require a run.
    Run,
    /// A resource that this one subscribes to has changed.
    Refresh,
}

impl fmt::Display for ExecChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "executed",
            Self::Refresh => "executed via subscribe",
        })
    }
}

impl Change for ExecChange {}

/// Parses a command line.
pub trait Interpreter: Send + Sync {
    /// Returns the command of a line.
    ///
    /// # Errors
    /// When the line can't be parsed.
    fn command(&self, line: &str) -> Result<ProcessCommand, ResourceError>;
}

/// Splits words, without a shell.
struct Posix;

impl Interpreter for Posix {
    fn command(&self, line: &str) -> Result<ProcessCommand, ResourceError> {
        let words = text::words(line).map_err(|error| ResourceError::State(format!("invalid command \"{line}\": {error}")))?;
        let mut words = words.into_iter();
        let program = words.next().ok_or_else(|| ResourceError::State("no command specified".to_owned()))?;
        Ok(ProcessCommand::new(program, words))
    }
}

/// `/bin/sh -c`.
struct Shell;

const SHELL: &str = "/bin/sh";

impl Interpreter for Shell {
    fn command(&self, line: &str) -> Result<ProcessCommand, ResourceError> {
        if line.trim().is_empty() {
            return Err(ResourceError::State("no command to execute".to_owned()));
        }
        Ok(ProcessCommand::new(SHELL, ["-c", line]))
    }
}

impl Resource for ExecType {
    const TYPE: &'static str = RUN_GRANT;
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Commands, run when their guards or a subscription say so.";
    const RUNTIME_TEMPLATES: &'static [&'static str] = &["command", "cwd", "environment", "creates", "onlyif", "unless"];
    const CONVERGES: bool = false;
    const REFRESHES: bool = true;
    const CCM_SUBSCRIBE_SYNTAX: bool = true;
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "always present"),
        ("returns", "which exit codes are fine"),
        ("timeout", "limit of a wait"),
        ("refreshonly", "when it runs"),
        ("logoutput", "what the event shows"),
    ];
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::text(
            "stdout",
            "The standard output, without the line end at its end; none beyond a mebibyte, and none when the command did not run.",
        ),
        ResourceOutput::text("stderr", "The standard error, in the same way."),
        ResourceOutput::number("exitcode", "The exit code; none when the command did not run."),
    ];
    const PROVIDERS: &'static [ProviderEntry<dyn Interpreter>] = &[
        ProviderEntry::everywhere("posix", |_| Box::new(Posix)),
        ProviderEntry::on_request("shell", |_| is_executable(Path::new(SHELL)), |_| Box::new(Shell)),
    ];

    type Properties = Properties;
    type State = ExecState;
    type Change = ExecChange;
    type Provider = dyn Interpreter;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        if p.name.trim().is_empty() {
            return Err(Invalid::new("name", "name is required"));
        }
        if let Err(error) = text::words(&p.name) {
            return Err(Invalid::new("name", format!("invalid command \"{}\": {error}", p.name)));
        }
        p.environment.iter().try_for_each(|pair| check_variable(pair))?;
        if p.path.is_empty() { Ok(()) } else { p.path.split(':').try_for_each(check_directory) }
    }

    fn command_lines<'p>(p: &'p Properties, provider: &str) -> Vec<(&'static str, &'p str)> {
        // A shell parses the line itself.
        if provider == "shell" {
            return Vec::new();
        }
        vec![("command", &p.command), ("onlyif", &p.onlyif), ("unless", &p.unless)]
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(_: &Properties) -> &str {
        "present"
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        // A label is checked as a command too: rules name the commands that may run.
        effects.push(Effect::run(&p.name));
        let given = |text: &&String| !text.is_empty();
        effects.extend([&p.command].into_iter().filter(given).map(Effect::run));
        effects.extend([&p.onlyif, &p.unless].into_iter().filter(given).map(Effect::run_always));
        effects.extend(p.environment.iter().map(|pair| Effect::variable_pair(pair)));
        let named = [("PATH", &p.path), ("PWD", &p.cwd)];
        effects.extend(named.into_iter().filter(|(_, value)| given(value)).map(|(name, value)| Effect::variable(name, value)));
        effects.extend([&p.creates].into_iter().filter(given).map(|path| Effect::Look(PathScope::single(path))));
        effects
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.creates.starts_with('/'), &p.creates)
    }

    fn needs(p: &Properties) -> Vec<Need> {
        let commands = [p.command_line(), &p.onlyif, &p.unless];
        let mut needs: Vec<Need> = commands.into_iter().flat_map(path_order::command_needs).collect();
        needs.extend(path_order::existing_path_needs(&p.cwd));
        needs.extend(p.creates.starts_with('/').then(|| Need::above(&p.creates)));
        needs
    }

    fn observe(p: &Properties, provider: &dyn Interpreter, host: &Host) -> Result<ExecState, ResourceError> {
        let mut state = ExecState { creates_satisfied: exists(&p.creates)?, ..ExecState::default() };
        if state.creates_satisfied {
            // `creates` decides alone; guards may be expensive.
            return Ok(state);
        }
        state.onlyif_satisfied = !p.onlyif.is_empty() && guard(&p.onlyif, p, provider, host)?;
        state.unless_satisfied = !p.unless.is_empty() && guard(&p.unless, p, provider, host)?;
        Ok(state)
    }

    fn outputs(_: &Properties, state: &ExecState) -> Vec<(&'static str, Value)> {
        vec![("stdout", json!(state.stdout)), ("stderr", json!(state.stderr)), ("exitcode", json!(state.exitcode))]
    }

    fn diff(p: &Properties, state: &ExecState) -> Result<Vec<ExecChange>, ResourceError> {
        let satisfied = state.creates_satisfied
            || (!p.onlyif.is_empty() && !state.onlyif_satisfied)
            || (!p.unless.is_empty() && state.unless_satisfied)
            || p.refreshonly;
        Ok(if satisfied { vec![] } else { vec![ExecChange::Run] })
    }

    fn apply(
        _: &ExecChange,
        p: &Properties,
        state: &mut ExecState,
        provider: &dyn Interpreter,
        host: &Host,
    ) -> Result<(), ResourceError> {
        let output = host.run(&p.prepare(p.command_line(), provider)?)?;
        state.exitcode = Some(output.code);
        state.creates_satisfied = exists(&p.creates)?;
        (state.stdout, state.stderr) = (output_text(&output.stdout), output_text(&output.stderr));
        if p.logoutput {
            state.output = host.output_excerpt(&output, LOGGED);
        }
        if state.creates_satisfied || p.returns.contains(&output.code) {
            return Ok(());
        }
        let code = output.code;
        let mut message = format!("failed to reach desired state: exit code {code} not in allowed returns {:?}", p.returns);
        let said = host.output_excerpt(&output, TAIL);
        if !said.is_empty() {
            message = format!("{message}: {said:?}");
        }
        Err(ResourceError::State(message))
    }

    fn on_refresh(_: &Properties, _: &ExecState) -> Vec<ExecChange> {
        vec![ExecChange::Refresh]
    }

    fn redacted(p: &Properties) -> Value {
        let mut shown = serde_json::to_value(p).unwrap_or_default();
        if let Some(variables) = shown.get_mut("environment").and_then(Value::as_array_mut) {
            // Variables often contain secrets.
            for variable in variables {
                let name = variable.as_str().and_then(|pair| pair.split_once('=')).map_or("", |(name, _)| name);
                *variable = Value::String(format!("{name}={REDACTED}"));
            }
        }
        shown
    }

    fn report_secrets(p: &Properties, note: &mut dyn FnMut(RedactedProperty<'_>)) {
        p.environment.iter().for_each(|pair| note(RedactedProperty::Variable(pair)));
    }
}

fn exists(path: &str) -> Result<bool, ResourceError> {
    if path.is_empty() { Ok(false) } else { Ok(fs::stat(Path::new(path), false)?.is_some()) }
}

/// Returns an output as text, as a shell does in `$(...)`; none for an output that may be cut.
fn output_text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    (bytes.len() < OUTPUT_CAP).then(|| text.trim_end_matches(['\r', '\n']).to_owned())
}

fn guard(line: &str, p: &Properties, provider: &dyn Interpreter, host: &Host) -> Result<bool, ResourceError> {
    Ok(host.run(&p.prepare(line, provider)?)?.code == 0)
}

fn check_variable(pair: &str) -> Result<(), Invalid> {
    // The value may be a secret, even with an invalid name.
    let shown = match pair.split_once('=') {
        Some((name, value)) if !value.is_empty() => format!("{name}={REDACTED}"),
        _ => pair.to_owned(),
    };
    let invalid = |why: &str| Err(Invalid::new("environment", format!("invalid environment variable \"{shown}\": {why}")));
    match pair.split_once('=') {
        None => invalid("missing '='"),
        Some(("", _)) => invalid("empty key"),
        Some((_, "")) => invalid("empty value"),
        // A name with an expression is known only later.
        Some((name, _)) if name.contains("{{") || name.contains("${") || is_variable(name) => Ok(()),
        Some(_) => invalid("its name has other characters than letters, digits and _, or begins with a digit"),
    }
}

/// True for a name that every shell and program accepts: POSIX, Base Definitions, 8.1.
fn is_variable(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

fn check_directory(directory: &str) -> Result<(), Invalid> {
    if directory.is_empty() {
        return Err(Invalid::new("path", "invalid path: empty directory in path"));
    }
    if !directory.starts_with('/') {
        return Err(Invalid::new("path", format!("invalid path: \"{directory}\" is not an absolute path")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeRunner, host};

    fn properties(extra: &str) -> Properties {
        let mut all: Value = serde_json::json!({"name": "x", "command": "/bin/cmd a 'b c'"});
        all.as_object_mut().unwrap().extend(serde_json::from_str::<Value>(extra).unwrap().as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    /// The decision table: properties, results of the guards, whether the command runs.
    #[test]
    fn decisions() {
        let state = |creates, onlyif, unless| ExecState {
            creates_satisfied: creates,
            onlyif_satisfied: onlyif,
            unless_satisfied: unless,
            ..ExecState::default()
        };
        for (extra, state, runs) in [
            ("{}", state(false, false, false), true),
            (r#"{"creates":"/x"}"#, state(true, false, false), false),
            (r#"{"creates":"/x"}"#, state(false, false, false), true),
            (r#"{"creates":"/x","onlyif":"t"}"#, state(true, true, false), false),
            (r#"{"onlyif":"t"}"#, state(false, true, false), true),
            (r#"{"onlyif":"t"}"#, state(false, false, false), false),
            (r#"{"unless":"t"}"#, state(false, false, true), false),
            (r#"{"unless":"t"}"#, state(false, false, false), true),
            (r#"{"onlyif":"t","unless":"u"}"#, state(false, true, true), false),
            (r#"{"refreshonly":true}"#, state(false, false, false), false),
            (r#"{"refresh_only":true}"#, state(false, false, false), false),
        ] {
            let p = properties(extra);
            assert_eq!(!ExecType::diff(&p, &state).unwrap().is_empty(), runs, "{extra}");
            assert_eq!(ExecType::on_refresh(&p, &state), [ExecChange::Refresh], "{extra}");
        }
    }

    /// Properties, exit code, the expected error.
    #[test]
    fn exit_codes() {
        for (extra, code, expected) in [
            ("{}", 0, None),
            ("{}", 1, Some("failed to reach desired state: exit code 1 not in allowed returns [0]")),
            (r#"{"returns":[0,2]}"#, 2, None),
            (r#"{"returns":[]}"#, 0, None),
            (r#"{"returns":[1]}"#, 0, Some("exit code 0 not in allowed returns [1]")),
            (r#"{"creates":"/"}"#, 7, None),
        ] {
            let runner = FakeRunner::exiting(&[code]);
            let mut state = ExecState::default();
            let result = ExecType::apply(&ExecChange::Run, &properties(extra), &mut state, &Posix, &host(runner.clone()));
            match expected {
                None => assert!(result.is_ok(), "{extra} {code}"),
                Some(text) => assert!(result.unwrap_err().to_string().contains(text), "{extra} {code}"),
            }
            assert_eq!(state.exitcode, Some(code));
            assert_eq!(runner.ran(), [["/bin/cmd", "a", "b c"]]);
        }
    }

    #[test]
    fn guards_run_only_when_they_can_matter() {
        let runner = FakeRunner::exiting(&[0, 1]);
        let p = properties(r#"{"onlyif":"guard one","unless":"guard two"}"#);
        let state = ExecType::observe(&p, &Posix, &host(runner.clone())).unwrap();
        assert_eq!((state.onlyif_satisfied, state.unless_satisfied), (true, false));
        assert_eq!(runner.ran(), [["guard", "one"], ["guard", "two"]]);

        let runner = FakeRunner::exiting(&[]);
        let p = properties(r#"{"onlyif":"guard","creates":"/"}"#);
        assert!(ExecType::observe(&p, &Posix, &host(runner.clone())).unwrap().creates_satisfied);
        assert!(runner.ran().is_empty());
    }

    #[test]
    fn validation() {
        for (extra, message) in [
            (r#"{"environment":["FOO"]}"#, "missing '='"),
            (r#"{"environment":["=x"]}"#, "empty key"),
            (r#"{"environment":["FOO="]}"#, "empty value"),
            (r#"{"environment":["1X=y"]}"#, "begins with a digit"),
            (r#"{"environment":["A-B=y"]}"#, "has other characters"),
            (r#"{"environment":["A B=y"]}"#, "has other characters"),
            (r#"{"environment":["export A=y"]}"#, "has other characters"),
            (r#"{"environment":["\u00c4=y"]}"#, "has other characters"),
            (r#"{"path":"usr/bin"}"#, "is not an absolute path"),
            (r#"{"path":"/bin::/sbin"}"#, "empty directory in path"),
            (r#"{"path":":"}"#, "empty directory in path"),
            (r#"{"name":"echo 'open"}"#, "invalid command"),
            (r#"{"name":" "}"#, "name is required"),
        ] {
            assert!(ExecType::validate(&properties(extra)).unwrap_err().message.contains(message), "{extra}");
        }
        assert!(
            ExecType::validate(&properties(r#"{"environment":["_=1","a_1=x","{{ Data.name }}=x","A_${ Data.x }=y"]}"#)).is_ok()
        );
        assert!(ExecType::validate(&properties(r#"{"environment":["A=b=c","B=x y"],"path":"/usr/my bin:/bin"}"#)).is_ok());
        assert!(
            serde_json::from_str::<Properties>(r#"{"name":"x","timeout":"soon"}"#)
                .unwrap_err()
                .to_string()
                .contains("invalid duration")
        );
    }

    #[test]
    fn values_of_variables_are_not_shown() {
        let shown = ExecType::redacted(&properties(r#"{"environment":["TOKEN=hunter2"]}"#));
        assert_eq!(shown["environment"], serde_json::json!(["TOKEN=***"]));
    }
}

#[cfg(test)]
mod fixture {
    use crate::resource::properties_test::prelude::*;

    use super::ExecType;

    impl TypeFixture for ExecType {
        fn host(_: &Path) -> Host {
            Host::system(None)
        }

        fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
            let root = root.to_owned();
            let commands = prop::sample::select(vec!["/bin/true", "/bin/false", "/usr/bin/touch made"]);
            let guards = prop::sample::select(vec!["", "/bin/true", "/bin/false", "/usr/bin/test -f a"]);
            (commands, guards.clone(), guards, any::<bool>(), any::<bool>())
                .prop_map(move |(command, onlyif, unless, creates, refreshonly)| {
                    let creates = if creates { root.join("a").display().to_string() } else { String::new() };
                    let properties = json!({
                        "name": "x", "command": command, "cwd": root, "onlyif": onlyif, "unless": unless, "creates": creates,
                        "refreshonly": refreshonly,
                    });
                    serde_json::from_value(properties).unwrap()
                })
                .boxed()
        }

        fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
            prop::sample::subsequence(vec![Preexisting::File("a", "x", 0o644)], 0..=1).boxed()
        }

        fn samples() -> (Value, Value) {
            (
                json!({"name": "a", "ensure": "present", "command": "c", "cwd": "/w", "environment": ["A=b"], "path": "/p",
                    "returns": [0], "timeout": "1m", "creates": "/x", "onlyif": "o", "unless": "u", "refreshonly": false,
                    "logoutput": false}),
                json!({"name": "b", "ensure": "present", "command": "d", "cwd": "/v", "environment": ["A=c"], "path": "/q",
                    "returns": [1], "timeout": "2m", "creates": "/y", "onlyif": "p", "unless": "v", "refreshonly": true,
                    "logoutput": true}),
            )
        }

        fn canary() -> Option<Value> {
            Some(json!({"name": "true", "environment": ["TOKEN=CANARY", "OTHER=a=CANARY"]}))
        }
    }

    #[test]
    fn keeps_the_laws() {
        check_type::<ExecType>();
    }
}
