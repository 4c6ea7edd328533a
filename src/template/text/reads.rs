//! Reads of templates: facts, data and environment by path, files, secrets and the bus.
//!
//! Every read of every template language passes here. The [`ReadAccess`](crate::model::ReadAccess) of the run decides
//! over each read first; the trace records the read.

use serde_json::Value;

use super::scope::ScopeState;
use super::{lookup, trace};
use crate::model::TemplateRead;
use crate::template::expr::{Root, ValuePath};
use crate::template::functions::bus_functions;

/// The reason to refuse a read after a template has used a value of the bus.
const REFUSED_AFTER_BUS: &str = "this template has used an unsigned value from the bus, which must not decide what is read or \
                          written here; sign the value with \"ensign kv put\", or set bus_data = \"any\" in [limits] of the node";

impl ScopeState {
    /// Records a read of a value that errors must not show.
    fn note_read(&self) {
        if self.parts.access.hides_values() {
            self.parts.trace.count_read();
        }
    }

    /// Records a use of a value of the bus.
    fn note_bus(&self, signed: bool) {
        self.note_read();
        if !signed && self.parts.tracks_unsigned {
            self.parts.trace.count_bus_use();
        }
    }

    /// Refuses the choice of a read or write once an unsigned value of the bus was used.
    pub(in crate::template) fn check_choice(&self, what: &str) -> Result<(), String> {
        if self.parts.trace.has_used_bus() { Err(format!("{what} may not be used: {REFUSED_AFTER_BUS}")) } else { Ok(()) }
    }

    /// Checks the access to an environment variable, and records the read.
    pub(in crate::template) fn check_environ(&self, name: &str) -> Result<(), String> {
        self.parts.access.may_read(&TemplateRead::Environ(name))?;
        self.note_read();
        Ok(())
    }

    /// Returns an environment variable, or the empty text when it is not set.
    pub(in crate::template) fn environ_variable(&self, name: &str) -> Result<String, String> {
        self.check_environ(name)?;
        Ok(self.parts.environ.get(name).and_then(Value::as_str).unwrap_or_default().to_owned())
    }

    /// Records a lookup of a path in the data; `None` is a step by index.
    pub(in crate::template) fn note_data<'a>(&self, steps: impl IntoIterator<Item = Option<&'a str>>) {
        if self.parts.data_was_read {
            self.note_read();
        }
        if trace::is_in_overlay(&self.parts.overlay, steps) {
            self.note_bus(false);
        }
    }

    /// Records that a template sees the whole of a root.
    pub(in crate::template) fn note_root(&self, root: Root) {
        match root {
            Root::Data => self.note_data([]),
            Root::Environ => self.note_read(),
            Root::Facts | Root::Resources | Root::Value => {}
        }
    }

    /// Records the use of an output of a resource.
    pub(in crate::template) fn record_output(&self, path: &ValuePath) -> Result<(), String> {
        let Some((resource, output, optional)) = path.output() else { return Ok(()) };
        let table = self.parts.outputs.as_ref().ok_or(
            "outputs of resources are known only when a resource runs: write resources[...] into a property of the resource \
             itself, or into its control",
        )?;
        let uses = table.check(resource, output, optional)?;
        self.note_read();
        if uses.bus {
            self.note_bus(false);
        }
        if uses.secret {
            self.parts.secrets.note_use();
        }
        Ok(())
    }

    /// Returns the value at a path that begins with facts, data, environ or env.
    fn find_path(&self, path: &str) -> Result<Option<Value>, String> {
        if let Some(steps) = lookup::plain_steps(path) {
            let Some((root, steps)) = steps.split_first() else { return Ok(None) };
            let root = match *root {
                "facts" => Root::Facts,
                "data" => Root::Data,
                "environ" | "env" => Root::Environ,
                _ => return Ok(None),
            };
            match (root, steps.first()) {
                (Root::Environ, Some(name)) => self.check_environ(name)?,
                (Root::Data, _) => self.note_data(steps.iter().map(|step| Some(*step))),
                (root, _) => self.note_root(root),
            }
            let found = lookup::find_plain(self.root(root), steps);
            found.map(|found| self.charge_copy(found)).transpose()?;
            return Ok(found.cloned());
        }
        let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('.'));
        if !below("facts") {
            self.note_root(Root::Data);
            if !below("data") {
                self.note_root(Root::Environ);
            }
        }
        let json = self.json.get_or_init(|| self.to_json());
        // Each modifier may write and read the whole value again.
        let passes = 1 + path.matches(['|', '@', '#', '.']).count();
        self.parts.budget.charge_work(json.len().saturating_mul(passes)).map_err(|spent| spent.to_string())?;
        let found = lookup::find_gjson(json, path, &self.parts.budget)?;
        found.as_ref().map(|found| self.charge_copy(found)).transpose()?;
        Ok(found)
    }

    fn to_json(&self) -> String {
        let root = |root| self.root(root).to_string();
        let (facts, data, environ) = (root(Root::Facts), root(Root::Data), root(Root::Environ));
        format!(r#"{{"facts":{facts},"data":{data},"environ":{environ},"env":{environ}}}"#)
    }

    pub(in crate::template) fn call_lookup(&self, args: &[Value]) -> Result<Value, String> {
        let (key, default) = match args {
            [key] => (key, None),
            [key, default] => (key, Some(default)),
            _ => return Err("lookup requires 1 or 2 arguments".to_owned()),
        };
        let key = key.as_str().ok_or("lookup requires a string argument")?;
        match (self.find_path(key)?, default) {
            (Some(found), _) => {
                self.parts.secrets.note_lookup(&found);
                Ok(found)
            }
            (None, Some(default)) if !default.is_null() => Ok(default.clone()),
            (None, _) if self.parts.restricted => Ok(Value::String(String::new())),
            (None, _) => Err(format!("missing key '{key}' in environment")),
        }
    }

    pub(in crate::template) fn load_file(&self, path: &str) -> Result<String, String> {
        let failed = |why: String| format!("failed to read file \"{path}\": {why}");
        self.check_choice(&format!("file \"{path}\""))?;
        let reader = self.parts.reader.as_ref().ok_or_else(|| failed("this template has no access to files".to_owned()))?;
        let found = reader(path).map_err(failed)?;
        if !found.is_in_manifest {
            self.note_read();
        }
        self.charge(found.text.len())?;
        Ok(found.text)
    }

    pub(in crate::template) fn call_read_file(&self, args: &[Value]) -> Result<Value, String> {
        let [Value::String(path)] = args else { return Err("readFile requires a string argument".to_owned()) };
        self.load_file(path).map(Value::String)
    }

    /// Calls `kvGet` or `registrations`.
    pub(in crate::template) fn call_bus_function(&self, function: &str, args: &[Value]) -> Result<Value, String> {
        let missing = || format!("{function} function not available: no NATS server is given");
        let exchange = self.parts.discovery.as_deref().ok_or_else(missing)?;
        let access = self.parts.access.as_ref();
        let answer = if function == "kvGet" {
            bus_functions::kv_get(exchange, access, args)
        } else {
            bus_functions::registrations(exchange, access, args)
        }?;
        self.note_bus(answer.signed);
        self.charge_copy(&answer.value)?;
        Ok(answer.value)
    }

    pub(in crate::template) fn call_secret(&self, args: &[Value]) -> Result<Value, String> {
        let [Value::String(name)] = args else {
            return Err("secret requires a string argument: the name of a secret".to_owned());
        };
        self.check_choice(&format!("secret \"{name}\""))?;
        let vault = self.parts.secret_source.as_ref().ok_or("this template has no access to secrets")?;
        let secret = vault(name)?;
        self.charge(secret.len())?;
        self.parts.secrets.add(&secret);
        self.note_read();
        Ok(Value::String(secret))
    }
}
