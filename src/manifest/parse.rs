//! Parser of a manifest: its sections, and its resources in order, each with its place in the text.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::diag::{Diagnostic, did_you_mean};
use crate::yaml::{KeyOrIndex, YamlDocument};

use super::{ManifestText, Ordering};

const SECTIONS: &[&str] = &["data", "hierarchy", "overrides", "ccm"];
const CCM_KEYS: &[&str] = &["resources", "resources_jet_file", "fail_on_error", "ordering", "pre_message", "post_message"];

/// A manifest as written; templates are not resolved.
#[derive(Debug)]
pub struct Manifest {
    /// The text with its positions.
    pub document: YamlDocument,
    /// The resources.
    pub resources: Resources,
    /// True to stop after the first failed resource.
    pub fail_on_error: bool,
    /// The order of its resources.
    pub ordering: Ordering,
    /// Printed before the run.
    pub pre_message: Option<String>,
    /// Printed after a run without errors.
    pub post_message: Option<String>,
}

/// The place of a manifest's resources.
#[derive(Debug)]
pub enum Resources {
    /// In the manifest itself.
    Inline(Vec<Declaration>),
    /// In the output of this Jet template, which is in the directory of the manifest.
    JetFile(String),
}

/// A resource as written.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    /// Its position in the flat list, from 1.
    pub number: usize,
    /// The type, as written.
    pub kind: String,
    /// The author's properties; without `name` where the key above them is the name.
    own: Map<String, Value>,
    /// True where the key above the properties is the name.
    named: bool,
    /// The defaults of its block.
    defaults: Option<Arc<Map<String, Value>>>,
    /// The position.
    pub at: DeclarationPosition,
    /// The path of the defaults of its block.
    pub defaults_at: Option<Arc<[KeyOrIndex]>>,
}

/// The position of a declaration: the path of its list, and the path below. All declarations of a list share the first path.
/// Paths are built on demand.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclarationPosition {
    list: Arc<[KeyOrIndex]>,
    index: usize,
    key: String,
}

impl DeclarationPosition {
    /// Returns the path of the properties in the document.
    pub fn path(&self) -> Vec<KeyOrIndex> {
        [&self.list, [KeyOrIndex::Index(self.index), KeyOrIndex::Key(self.key.clone())].as_slice()].concat()
    }
}

impl Declaration {
    /// Takes the properties, with defaults and `name`. Only here are both merged, so that a large manifest does not repeat
    /// the defaults of its blocks in memory.
    pub fn take_properties(&mut self) -> Map<String, Value> {
        let own = std::mem::take(&mut self.own);
        if !self.named {
            return own;
        }
        let defaults = self.defaults.take();
        let mut merged = Map::with_capacity(defaults.as_ref().map_or(0, |defaults| defaults.len()) + own.len() + 1);
        merged.extend(defaults.iter().flat_map(|defaults| defaults.iter()).map(|(key, value)| (key.clone(), value.clone())));
        merged.extend(own);
        merged.insert("name".to_owned(), Value::String(self.at.key.clone()));
        merged
    }

    /// Returns the properties as written: its own first, then those of its block.
    pub fn written_properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.own.iter().chain(self.defaults.iter().flat_map(|defaults| defaults.iter()))
    }

    /// Creates a diagnostic about this resource, or about one of its properties.
    pub fn diagnose(&self, document: &YamlDocument, property: Option<&str>, message: impl Into<String>) -> Diagnostic {
        self.diagnose_at(document, property.map(KeyOrIndex::from).as_slice(), message)
    }

    /// Creates a diagnostic about a path below the properties, or about its nearest written part.
    pub fn diagnose_at(&self, document: &YamlDocument, path: &[KeyOrIndex], message: impl Into<String>) -> Diagnostic {
        let at = self.at.path();
        let below = |base: &[KeyOrIndex]| {
            let ends = (1..=path.len()).rev();
            ends.filter_map(|end| path.get(..end)).find_map(|path| document.key_place(&[base, path].concat()))
        };
        let place = below(&at)
            .or_else(|| self.defaults_at.as_deref().and_then(below))
            .or_else(|| document.key_place(&at))
            .or_else(|| document.place(&at));
        Diagnostic::new(message).at(place)
    }
}

/// Parses a manifest.
///
/// # Errors
/// All errors of its form.
pub fn parse(source: &ManifestText) -> Result<Manifest, Vec<Diagnostic>> {
    let mut document = YamlDocument::parse(&source.text, &source.name).map_err(|error| vec![error])?;
    let mut errors = Vec::new();
    let Some(top) = document.value().as_object() else {
        return Err(vec![Diagnostic::new(format!("{}: a manifest is a map with the keys {}", source.name, SECTIONS.join(", ")))]);
    };
    unknown_keys(&document, top, &[], SECTIONS, "manifest", &mut errors);
    let empty = Map::new();
    let ccm = match top.get("ccm") {
        Some(Value::Object(ccm)) => ccm,
        None => {
            errors.push(Diagnostic::new(format!("{}: manifest must contain resources: it has no \"ccm\" section", source.name)));
            &empty
        }
        Some(_) => {
            errors.push(at(&document, &["ccm"], "\"ccm\" must be a map with a list of resources"));
            &empty
        }
    };
    unknown_keys(&document, ccm, &["ccm"], CCM_KEYS, "ccm section", &mut errors);
    let fail_on_error = flag(&document, ccm, &mut errors);
    let ordering = Ordering::read(ccm.get("ordering"), &document).map_err(|error| errors.push(error)).unwrap_or_default();
    let [pre_message, post_message] = ["pre_message", "post_message"].map(|key| message(&document, ccm, key, &mut errors));
    let form = form(&document, ccm, errors.is_empty(), &mut errors);
    let resources = form.and_then(|form| match form {
        Form::JetFile(file) => Some(Resources::JetFile(file)),
        Form::List => declarations(&mut document, &steps(&["ccm", "resources"]))
            .map_err(|more| errors.extend(more))
            .ok()
            .filter(|found| {
                let message = "manifest must contain resources: the list has only defaults";
                let none = found.is_empty();
                errors.extend(none.then(|| at(&document, &["ccm", "resources"], message)));
                !none
            })
            .map(Resources::Inline),
    });
    match resources {
        Some(resources) if errors.is_empty() => {
            Ok(Manifest { document, resources, fail_on_error, ordering, pre_message, post_message })
        }
        _ => Err(errors),
    }
}

/// The form in which a manifest lists its resources.
enum Form {
    List,
    JetFile(String),
}

fn form(document: &YamlDocument, ccm: &Map<String, Value>, complain: bool, errors: &mut Vec<Diagnostic>) -> Option<Form> {
    let (key, message) = match (ccm.get("resources"), ccm.get("resources_jet_file")) {
        (None, Some(Value::String(file))) => return Some(Form::JetFile(file.clone())),
        (Some(Value::Array(list)), None) if !list.is_empty() => return Some(Form::List),
        (Some(Value::Null) | None, None) if !complain => return None,
        (Some(_), Some(_)) => ("resources_jet_file", "jet_file and resources cannot be used together"),
        (None, Some(_)) => ("resources_jet_file", "resources_jet_file must be the name of a file"),
        (Some(Value::Array(_)), None) => ("resources", "manifest must contain resources: the list is empty"),
        (Some(Value::Null) | None, None) => ("", "manifest must contain resources: \"resources\" is missing"),
        (Some(_), None) => ("resources", "\"resources\" must be a list"),
    };
    let path = if key.is_empty() { vec!["ccm"] } else { vec!["ccm", key] };
    errors.push(at(document, &path, message));
    None
}

/// Takes the resources out of the list at `path`, and flattens blocks in place.
///
/// # Errors
/// All elements that do not have the form of a resource.
pub fn declarations(document: &mut YamlDocument, path: &[KeyOrIndex]) -> Result<Vec<Declaration>, Vec<Diagnostic>> {
    let Some(Value::Array(list)) = document.take_value(path) else {
        return Err(vec![Diagnostic::new("resources must be a list").at(document.place(path))]);
    };
    let mut reading = DeclarationReader { document, found: Vec::with_capacity(list.len()), errors: Vec::new() };
    let path: Arc<[KeyOrIndex]> = path.into();
    for (index, element) in list.into_iter().enumerate() {
        reading.element(&path, index, element);
    }
    if reading.errors.is_empty() { Ok(reading.found) } else { Err(reading.errors) }
}

/// The path of the defaults of a block, and their values.
type Defaults = (Arc<[KeyOrIndex]>, Arc<Map<String, Value>>);

/// The state of the reader of a list of resources.
struct DeclarationReader<'a> {
    document: &'a YamlDocument,
    found: Vec<Declaration>,
    errors: Vec<Diagnostic>,
}

impl DeclarationReader<'_> {
    fn element(&mut self, list: &Arc<[KeyOrIndex]>, index: usize, element: Value) {
        let here = |document: &YamlDocument| document.place(&[list, [KeyOrIndex::Index(index)].as_slice()].concat());
        let Some((kind, value)) = single(element) else {
            let message = "a resource is a map with one key, its type: \"- file:\" and its properties below";
            self.errors.push(Diagnostic::new(message).at(here(self.document)));
            return;
        };
        let at = DeclarationPosition { list: Arc::clone(list), index, key: kind.clone() };
        match value {
            Value::Array(elements) => self.block(&kind, elements, &at.path()),
            Value::Object(own) => {
                let number = self.next();
                self.found.push(Declaration { number, kind, own, named: false, defaults: None, at, defaults_at: None });
            }
            _ => {
                let message = format!("{kind} must be followed by its properties, or by a list of names with theirs");
                self.errors.push(Diagnostic::new(message).at(here(self.document)));
            }
        }
    }

    /// Returns the number of the next resource.
    fn next(&self) -> usize {
        self.found.len() + 1
    }

    /// Reads the list form: `- NAME: {properties}`, and at most one `- defaults: {properties}` for the others of the list.
    fn block(&mut self, kind: &str, mut elements: Vec<Value>, path: &[KeyOrIndex]) {
        let list: Arc<[KeyOrIndex]> = path.into();
        let defaults = self.defaults(kind, &mut elements, &list);
        for (index, element) in elements.into_iter().enumerate() {
            let Some((name, value)) = single(element) else {
                let message = format!(
                    "multiple resource names found in {kind} resource: each element of the list is \"- NAME:\" with its properties"
                );
                let place = self.document.place(&[path, &[KeyOrIndex::Index(index)]].concat());
                self.errors.push(Diagnostic::new(message).at(place));
                continue;
            };
            let at = DeclarationPosition { list: Arc::clone(&list), index, key: name };
            let (own, taken) = match (at.key.as_str(), value) {
                ("defaults", _) => continue,
                // A name without properties takes no defaults, as in the Go system; `{}` does.
                (_, Value::Null) => (Map::new(), None),
                (_, Value::Object(own)) => (own, defaults.as_ref().map(|(_, defaults)| Arc::clone(defaults))),
                _ => {
                    let message = format!("the properties of {kind}#{} must be a map", at.key);
                    self.errors.push(Diagnostic::new(message).at(self.document.key_place(&at.path())));
                    continue;
                }
            };
            let defaults_at = defaults.as_ref().map(|(at, _)| Arc::clone(at));
            self.found.push(Declaration {
                number: self.next(),
                kind: kind.to_owned(),
                own,
                named: true,
                defaults: taken,
                at,
                defaults_at,
            });
        }
    }

    /// Takes the defaults out of a block.
    fn defaults(&mut self, kind: &str, elements: &mut [Value], list: &Arc<[KeyOrIndex]>) -> Option<Defaults> {
        let mut defaults = None;
        for (index, element) in elements.iter_mut().enumerate() {
            let Value::Object(map) = element else { continue };
            let (1, Some(value)) = (map.len(), map.get_mut("defaults")) else { continue };
            let at = DeclarationPosition { list: Arc::clone(list), index, key: "defaults".to_owned() }.path();
            if defaults.is_some() {
                let message = format!("multiple defaults found in {kind} resource");
                self.errors.push(Diagnostic::new(message).at(self.document.key_place(&at)));
            }
            match value.take() {
                Value::Object(map) => defaults = Some((at.into(), Arc::new(map))),
                _ => {
                    let message = "defaults must be a map of properties";
                    self.errors.push(Diagnostic::new(message).at(self.document.key_place(&at)));
                }
            }
        }
        defaults
    }
}

/// Returns the only entry of a map.
fn single(element: Value) -> Option<(String, Value)> {
    let Value::Object(map) = element else { return None };
    let mut entries = map.into_iter();
    match (entries.next(), entries.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

fn unknown_keys(
    document: &YamlDocument,
    map: &Map<String, Value>,
    path: &[&str],
    known: &[&'static str],
    what: &str,
    errors: &mut Vec<Diagnostic>,
) {
    // At the top level, an author can keep anchors under a name of their own: `x-common`.
    let is_own = |key: &str| path.is_empty() && key.starts_with("x-");
    for key in map.keys().filter(|key| !known.contains(&key.as_str()) && !is_own(key)) {
        let place = document.key_place(&steps(&[path, &[key.as_str()]].concat()));
        let hint = did_you_mean(key, known.iter().copied())
            .map_or_else(|| format!("known keys are {}", known.join(", ")), |near| format!("did you mean \"{near}\"?"));
        errors.push(Diagnostic::new(format!("unknown key \"{key}\" in the {what}")).at(place).hint(hint));
    }
}

fn flag(document: &YamlDocument, ccm: &Map<String, Value>, errors: &mut Vec<Diagnostic>) -> bool {
    match ccm.get("fail_on_error") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(_) => {
            errors.push(at(document, &["ccm", "fail_on_error"], "fail_on_error must be true or false"));
            false
        }
    }
}

fn message(document: &YamlDocument, ccm: &Map<String, Value>, key: &'static str, errors: &mut Vec<Diagnostic>) -> Option<String> {
    match ccm.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(_) | Value::Object(_) => {
            errors.push(at(document, &["ccm", key], &format!("{key} must be text")));
            None
        }
    }
}

fn steps(path: &[&str]) -> Vec<KeyOrIndex> {
    path.iter().map(|key| KeyOrIndex::Key((*key).to_owned())).collect()
}

fn at(document: &YamlDocument, path: &[&str], message: &str) -> Diagnostic {
    Diagnostic::new(message).at(document.key_place(&steps(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Manifest, Vec<Diagnostic>> {
        parse(&ManifestText { text: text.to_owned(), name: "m.yaml".to_owned(), directory: None, digest: None })
    }

    fn list(text: &str) -> Vec<(String, Value)> {
        match read(text).unwrap().resources {
            Resources::Inline(list) => {
                list.into_iter().map(|mut one| (one.kind.clone(), Value::Object(one.take_properties()))).collect()
            }
            Resources::JetFile(_) => panic!("inline resources"),
        }
    }

    #[test]
    fn both_forms_flatten_in_order() {
        let text = "ccm:\n  resources:\n  - exec: {name: one}\n  - file:\n    - defaults: {mode: '0644', owner: root}\n    - /a: {}\n    - /b: {mode: '0600'}\n    - /c:\n  - exec:\n    - two: {}\n";
        let found = list(text);
        let expected = serde_json::json!([
            ["exec", {"name": "one"}],
            ["file", {"mode": "0644", "owner": "root", "name": "/a"}],
            ["file", {"mode": "0600", "owner": "root", "name": "/b"}],
            ["file", {"name": "/c"}],
            ["exec", {"name": "two"}],
        ]);
        assert_eq!(serde_json::to_value(found).unwrap(), expected);
    }

    #[test]
    fn every_error_has_its_place() {
        for (text, message, line) in [
            ("ccm:\n  resources: []\n", "manifest must contain resources", 2),
            ("ccm:\n  resources:\n  - exec: [defaults: {}]\n", "manifest must contain resources", 2),
            ("extra: 1\nccm:\n  resources: [{exec: {name: a}}]\n", "unknown key \"extra\"", 1),
            ("ccm:\n  fial_on_error: true\n  resources: [{exec: {name: a}}]\n", "unknown key \"fial_on_error\"", 2),
            ("ccm:\n  resources:\n  - exec:\n    - a: {}\n      b: {}\n", "multiple resource names found", 4),
            ("ccm:\n  resources:\n  - exec:\n    - defaults: {}\n    - defaults: {}\n", "multiple defaults found", 5),
            ("ccm:\n  resources:\n  - exec: 5\n", "must be followed by its properties", 3),
            ("ccm:\n  fail_on_error: maybe\n  resources: [{exec: {name: a}}]\n", "true or false", 2),
            ("ccm:\n  ordering: grahp\n  resources: [{exec: {name: a}}]\n", "must be \"list\" or \"graph\", not \"grahp\"", 2),
            ("ccm:\n  ordering: true\n  resources: [{exec: {name: a}}]\n", "not \"true\"", 2),
        ] {
            let errors = read(text).unwrap_err();
            assert!(errors[0].message.contains(message), "{text}: {errors:?}");
            assert_eq!(errors[0].place.as_ref().map(|place| place.line), Some(line), "{text}: {errors:?}");
        }
        assert!(read("data: {a: 1}\n").unwrap_err()[0].message.contains("no \"ccm\" section"));
        assert!(read("- 1\n").is_err());
        assert_eq!(read("extra: 1\nccm:\n  fial_on_error: true\n  resources: []\n").unwrap_err().len(), 3);
    }
}
