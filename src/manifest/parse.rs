//! Reading a manifest: its sections, and its resources in order, each with its place in the text.

use serde_json::{Map, Value};

use crate::diag::{Diagnostic, did_you_mean};
use crate::yaml::{Document, Step};

use super::Source;

const SECTIONS: &[&str] = &["data", "hierarchy", "overrides", "ccm"];
const CCM_KEYS: &[&str] = &["resources", "resources_jet_file", "fail_on_error", "pre_message", "post_message"];

/// A manifest as written; templates are not resolved.
#[derive(Debug)]
pub struct Manifest {
    /// The text with its positions.
    pub document: Document,
    /// The resources.
    pub resources: Resources,
    /// Stop after the first resource that fails.
    pub fail_on_error: bool,
    /// Printed before the run.
    pub pre_message: Option<String>,
    /// Printed after a run without errors.
    pub post_message: Option<String>,
}

/// Where the resources of a manifest are.
#[derive(Debug)]
pub enum Resources {
    /// In the manifest itself.
    Inline(Vec<Declaration>),
    /// In what this Jet template, beside the manifest, renders to.
    JetFile(String),
}

/// One resource as written.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    /// Its position in the flat list, from 1.
    pub number: usize,
    /// The type, as written.
    pub kind: String,
    /// Its properties, defaults included, `name` too.
    pub properties: Map<String, Value>,
    /// The path of its properties in the document.
    pub at: Vec<Step>,
    /// The path of the defaults that it took.
    pub defaults_at: Option<Vec<Step>>,
}

impl Declaration {
    /// A diagnostic about this resource, or about one of its properties.
    pub fn diagnose(&self, document: &Document, property: Option<&str>, message: impl Into<String>) -> Diagnostic {
        let child = |base: &Vec<Step>| property.map(|key| [base.as_slice(), &[Step::Key(key.to_owned())]].concat());
        let place = child(&self.at)
            .and_then(|path| document.key_place(&path))
            .or_else(|| self.defaults_at.as_ref().and_then(child).and_then(|path| document.key_place(&path)))
            .or_else(|| document.key_place(&self.at))
            .or_else(|| document.place(&self.at));
        Diagnostic::new(message).at(place)
    }
}

/// Reads a manifest.
///
/// # Errors
/// With everything that is wrong with its form.
pub fn parse(source: &Source) -> Result<Manifest, Vec<Diagnostic>> {
    let document = Document::parse(&source.text, &source.name).map_err(|error| vec![error])?;
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
    let [pre_message, post_message] = ["pre_message", "post_message"].map(|key| message(&document, ccm, key, &mut errors));
    let resources = resources(&document, ccm, errors.is_empty(), &mut errors);
    match resources {
        Some(resources) if errors.is_empty() => Ok(Manifest { document, resources, fail_on_error, pre_message, post_message }),
        _ => Err(errors),
    }
}

fn resources(document: &Document, ccm: &Map<String, Value>, complain: bool, errors: &mut Vec<Diagnostic>) -> Option<Resources> {
    let path = [Step::Key("ccm".to_owned()), Step::Key("resources".to_owned())];
    match (ccm.get("resources"), ccm.get("resources_jet_file")) {
        (Some(_), Some(_)) => {
            errors.push(at(document, &["ccm", "resources_jet_file"], "jet_file and resources cannot be used together"));
            None
        }
        (None, Some(Value::String(file))) => Some(Resources::JetFile(file.clone())),
        (None, Some(_)) => {
            errors.push(at(document, &["ccm", "resources_jet_file"], "resources_jet_file must be the name of a file"));
            None
        }
        (Some(Value::Array(_)), None) => match declarations(document, &path) {
            Ok(list) if list.is_empty() => {
                errors.push(at(document, &["ccm", "resources"], "manifest must contain resources: the list is empty"));
                None
            }
            Ok(list) => Some(Resources::Inline(list)),
            Err(more) => {
                errors.extend(more);
                None
            }
        },
        (Some(Value::Null) | None, None) => {
            if complain {
                errors.push(at(document, &["ccm"], "manifest must contain resources: \"resources\" is missing"));
            }
            None
        }
        (Some(_), None) => {
            errors.push(at(document, &["ccm", "resources"], "\"resources\" must be a list"));
            None
        }
    }
}

/// The resources in the list at `path`, blocks flattened in place.
///
/// # Errors
/// With every element that has not the form of a resource.
pub fn declarations(document: &Document, path: &[Step]) -> Result<Vec<Declaration>, Vec<Diagnostic>> {
    let list = path.iter().try_fold(document.value(), |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    });
    let Some(Value::Array(list)) = list else {
        return Err(vec![Diagnostic::new("resources must be a list").at(document.place(path))]);
    };
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for (index, element) in list.iter().enumerate() {
        let here = [path, &[Step::Index(index)]].concat();
        let Some((kind, value)) = single(element) else {
            let message = "a resource is a map with one key, its type: \"- file:\" and its properties below";
            errors.push(Diagnostic::new(message).at(document.place(&here)));
            continue;
        };
        let below = [here.as_slice(), &[Step::Key(kind.clone())]].concat();
        match value {
            Value::Array(elements) => block(document, kind, elements, &below, &mut found, &mut errors),
            Value::Object(properties) => found.push(Declaration {
                number: found.len() + 1,
                kind: kind.clone(),
                properties: properties.clone(),
                at: below,
                defaults_at: None,
            }),
            _ => {
                let message = format!("{kind} must be followed by its properties, or by a list of names with theirs");
                errors.push(Diagnostic::new(message).at(document.place(&here)));
            }
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The list form: `- NAME: {properties}`, and at most one `- defaults: {properties}` for its siblings.
fn block(
    document: &Document,
    kind: &str,
    elements: &[Value],
    path: &[Step],
    found: &mut Vec<Declaration>,
    errors: &mut Vec<Diagnostic>,
) {
    let step = |index: usize, key: &str| [path, &[Step::Index(index), Step::Key(key.to_owned())]].concat();
    let mut defaults: Option<(Vec<Step>, &Map<String, Value>)> = None;
    for (index, element) in elements.iter().enumerate() {
        if let Some((name, value)) = single(element)
            && name == "defaults"
        {
            if defaults.is_some() {
                let message = format!("multiple defaults found in {kind} resource");
                errors.push(Diagnostic::new(message).at(document.key_place(&step(index, name))));
            }
            match value {
                Value::Object(map) => defaults = Some((step(index, name), map)),
                _ => errors
                    .push(Diagnostic::new("defaults must be a map of properties").at(document.key_place(&step(index, name)))),
            }
        }
    }
    for (index, element) in elements.iter().enumerate() {
        let Some((name, value)) = single(element) else {
            let message = format!(
                "multiple resource names found in {kind} resource: each element of the list is \"- NAME:\" with its properties"
            );
            errors.push(Diagnostic::new(message).at(document.place(&[path, &[Step::Index(index)]].concat())));
            continue;
        };
        let mut properties = match (name.as_str(), value, &defaults) {
            ("defaults", _, _) => continue,
            // A name without anything takes nothing from the defaults, as in the Go system; `{}` does.
            (_, Value::Null, _) => Map::new(),
            (_, Value::Object(own), Some((_, defaults))) => {
                let mut merged = (*defaults).clone();
                merged.extend(own.clone());
                merged
            }
            (_, Value::Object(own), None) => own.clone(),
            _ => {
                let message = format!("the properties of {kind}#{name} must be a map");
                errors.push(Diagnostic::new(message).at(document.key_place(&step(index, name))));
                continue;
            }
        };
        properties.insert("name".to_owned(), Value::String(name.clone()));
        let defaults_at = defaults.as_ref().map(|(at, _)| at.clone());
        found.push(Declaration {
            number: found.len() + 1,
            kind: kind.to_owned(),
            properties,
            at: step(index, name),
            defaults_at,
        });
    }
}

fn single(element: &Value) -> Option<(&String, &Value)> {
    let map = element.as_object()?;
    let mut entries = map.iter();
    match (entries.next(), entries.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

fn unknown_keys(
    document: &Document,
    map: &Map<String, Value>,
    path: &[&str],
    known: &[&'static str],
    what: &str,
    errors: &mut Vec<Diagnostic>,
) {
    for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
        let place = document.key_place(&steps(&[path, &[key.as_str()]].concat()));
        let hint = did_you_mean(key, known.iter().copied())
            .map_or_else(|| format!("known keys are {}", known.join(", ")), |near| format!("did you mean \"{near}\"?"));
        errors.push(Diagnostic::new(format!("unknown key \"{key}\" in the {what}")).at(place).hint(hint));
    }
}

fn flag(document: &Document, ccm: &Map<String, Value>, errors: &mut Vec<Diagnostic>) -> bool {
    match ccm.get("fail_on_error") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(_) => {
            errors.push(at(document, &["ccm", "fail_on_error"], "fail_on_error must be true or false"));
            false
        }
    }
}

fn message(document: &Document, ccm: &Map<String, Value>, key: &'static str, errors: &mut Vec<Diagnostic>) -> Option<String> {
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

fn steps(path: &[&str]) -> Vec<Step> {
    path.iter().map(|key| Step::Key((*key).to_owned())).collect()
}

fn at(document: &Document, path: &[&str], message: &str) -> Diagnostic {
    Diagnostic::new(message).at(document.key_place(&steps(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Manifest, Vec<Diagnostic>> {
        parse(&Source { text: text.to_owned(), name: "m.yaml".to_owned(), directory: None, digest: None })
    }

    fn list(text: &str) -> Vec<(String, Value)> {
        match read(text).unwrap().resources {
            Resources::Inline(list) => list.into_iter().map(|one| (one.kind, Value::Object(one.properties))).collect(),
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
    fn every_error_says_where() {
        for (text, message, line) in [
            ("ccm:\n  resources: []\n", "manifest must contain resources", 2),
            ("extra: 1\nccm:\n  resources: [{exec: {name: a}}]\n", "unknown key \"extra\"", 1),
            ("ccm:\n  fial_on_error: true\n  resources: [{exec: {name: a}}]\n", "unknown key \"fial_on_error\"", 2),
            ("ccm:\n  resources:\n  - exec:\n    - a: {}\n      b: {}\n", "multiple resource names found", 4),
            ("ccm:\n  resources:\n  - exec:\n    - defaults: {}\n    - defaults: {}\n", "multiple defaults found", 5),
            ("ccm:\n  resources:\n  - exec: 5\n", "must be followed by its properties", 3),
            ("ccm:\n  fail_on_error: maybe\n  resources: [{exec: {name: a}}]\n", "true or false", 2),
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
