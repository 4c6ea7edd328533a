//! Calls from expressions: the functions of a scope, and templates within templates.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::scope::ScopeState;
use crate::template::expr::{Env, Member, Root, ValuePath};
use crate::template::files::jet;
use crate::template::functions::bus_functions;

/// The deepest nesting of templates within templates.
const MAX_DEPTH: usize = 16;

impl Env for Arc<ScopeState> {
    fn root(&self, root: Root) -> &Value {
        ScopeState::root(self, root)
    }

    fn record_lookup(&self, path: &ValuePath) -> Result<(), String> {
        let keys = path.steps.iter().map(|step| match &step.to {
            Member::Key(key) => Some(key.as_str()),
            Member::Index(_) => None,
        });
        match (path.root, path.steps.first().map(|step| &step.to)) {
            (Root::Data, _) => self.note_data(keys),
            (Root::Resources, _) => self.record_output(path)?,
            (Root::Environ, Some(Member::Key(name))) => self.check_environ(name)?,
            (root, _) => self.note_root(root),
        }
        Ok(())
    }

    fn record_all_roots(&self) {
        self.note_root(Root::Data);
        self.note_root(Root::Environ);
    }

    fn call(&self, name: &str, args: &[Value], depth: usize) -> Result<Value, String> {
        match name {
            "lookup" => self.call_lookup(args),
            "readFile" | "file" => self.call_read_file(args),
            "template" => self.call_template(args, depth),
            "jet" => self.call_jet(args, depth),
            "kvGet" | "registrations" => self.call_bus_function(name, args),
            "secret" => self.call_secret(args),
            bus_functions::PROMETHEUS => bus_functions::prometheus_targets(args),
            _ => Err(format!("unknown function {name}")),
        }
    }
}

impl ScopeState {
    pub(in crate::template) fn call_template(self: &Arc<Self>, args: &[Value], depth: usize) -> Result<Value, String> {
        let [Value::String(text)] = args else { return Err("template requires a string argument".to_owned()) };
        if text.ends_with(".jet") {
            return self.call_jet(args, depth);
        }
        let depth = next_depth(depth)?;
        let body = if text.ends_with(".templ") { Cow::Owned(self.load_file(text)?) } else { Cow::Borrowed(text.as_str()) };
        self.resolve_value(&body, depth).map_err(|error| error.to_string())
    }

    pub(in crate::template) fn call_jet(self: &Arc<Self>, args: &[Value], depth: usize) -> Result<Value, String> {
        let wanted = |value: &Value, what: &str| {
            value.as_str().map(str::to_owned).ok_or_else(|| format!("jet requires a string argument for {what}"))
        };
        let (body, left, right) = match args {
            [body] => (wanted(body, "template body")?, "[[".to_owned(), "]]".to_owned()),
            [body, left, right] => {
                (wanted(body, "template body")?, wanted(left, "left delimiter")?, wanted(right, "right delimiter")?)
            }
            _ => return Err("jet requires 1 or 3 arguments".to_owned()),
        };
        let depth = next_depth(depth)?;
        let (name, body) = if body.ends_with(".jet") { (body.clone(), self.load_file(&body)?) } else { ("jet".to_owned(), body) };
        jet::render(self, &name, &body, (&left, &right), depth).map(Value::String)
    }
}

/// Returns the depth one level down, or an error beyond the limit.
fn next_depth(depth: usize) -> Result<usize, String> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(format!("templates are nested more than {MAX_DEPTH} deep")) }
}
