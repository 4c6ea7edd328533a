//! The paths of the sources, resolved to files: the uses between files, and the names of these uses.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use super::source::Source;

/// A module: names below the crate.
type Module = Vec<String>;

/// The target of a path.
#[derive(Clone, PartialEq, Eq)]
enum Target {
    Module(Module),
    /// An item of a file, or a name that a macro makes there.
    Item {
        file: usize,
    },
}

/// A name of a `use`.
struct Import {
    path: Vec<String>,
    /// None for a glob.
    name: Option<String>,
    is_reexport: bool,
}

#[derive(Default)]
struct Scope {
    file: usize,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in code, types, macros and attributes.
    paths: Vec<Vec<String>>,
}

/// Every module of the crate, with the paths in it.
pub struct Crate<'a> {
    sources: &'a [Source],
    scopes: BTreeMap<Module, Scope>,
}

/// A use: one file names an item of another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub from: String,
    pub to: String,
    pub name: String,
}

impl<'a> Crate<'a> {
    pub fn new(sources: &'a [Source]) -> Self {
        let mut scopes = BTreeMap::new();
        for (file, source) in sources.iter().enumerate().filter(|(_, source)| source.path != "main.rs") {
            collect(source.module.clone(), file, &source.file.items, &mut scopes);
        }
        Self { sources, scopes }
    }

    /// Returns the paths that begin in each file, as far as the file itself names them: from the crate, or unchanged.
    pub fn absolute(&self) -> Vec<(String, Vec<String>)> {
        let mut all = Vec::new();
        for (module, scope) in &self.scopes {
            let file = &self.sources[scope.file].path;
            let named = scope.imports.iter().map(|import| &import.path).chain(&scope.paths);
            all.extend(named.filter_map(|path| Some((file.clone(), absolute(module, path)?))));
        }
        all
    }

    /// Returns the paths of every `use`, with its file.
    pub fn imports(&self) -> Vec<(String, Vec<String>)> {
        let of = |scope: &Scope| {
            let file = self.sources[scope.file].path.clone();
            scope.imports.iter().map(move |import| (file.clone(), import.path.clone())).collect::<Vec<_>>()
        };
        self.scopes.values().flat_map(of).collect()
    }

    /// Returns the uses between files. A `mod child;` and a `pub use` are none.
    pub fn edges(&self) -> BTreeSet<Edge> {
        let mut edges = BTreeSet::new();
        for (module, scope) in &self.scopes {
            let imports = scope.imports.iter().filter(|import| !import.is_reexport).map(|import| &import.path);
            for path in imports.chain(&scope.paths) {
                let Some(Target::Item { file }) = self.resolve(module, path, 0) else { continue };
                if file != scope.file {
                    let (from, to) = (self.sources[scope.file].path.clone(), self.sources[file].path.clone());
                    edges.insert(Edge { from, to, name: path.last().unwrap().clone() });
                }
            }
        }
        edges
    }

    /// Follows a path, through re-exports, to what it names. None for another crate, the standard library, a local name.
    fn resolve(&self, module: &Module, path: &[String], depth: u8) -> Option<Target> {
        if depth > 20 {
            return None;
        }
        let (mut at, rest) = match absolute(module, path) {
            Some(whole) => (Target::Module(Module::new()), whole),
            None => (Target::Module(module.clone()), path.to_vec()),
        };
        let is_relative = absolute(module, path).is_none();
        for (index, name) in rest.iter().enumerate() {
            let Target::Module(current) = &at else { return Some(at) };
            at = match self.step(current, name, index + 1 == rest.len(), depth) {
                Some(found) => found,
                None if is_relative && index == 0 => return None,
                None => Target::Item { file: self.scopes.get(current)?.file },
            };
        }
        Some(at)
    }

    fn step(&self, module: &Module, name: &String, is_last: bool, depth: u8) -> Option<Target> {
        let scope = self.scopes.get(module)?;
        let item = scope.items.contains(name).then_some(Target::Item { file: scope.file });
        if is_last && item.is_some() {
            return item;
        }
        if scope.children.contains(name) {
            return Some(Target::Module([module.as_slice(), std::slice::from_ref(name)].concat()));
        }
        let named = scope.imports.iter().find(|import| import.name.as_ref() == Some(name));
        if let Some(target) = item.or_else(|| self.resolve(module, &named?.path, depth + 1)) {
            return Some(target);
        }
        scope.imports.iter().filter(|import| import.name.is_none()).find_map(|glob| {
            let Target::Module(from) = self.resolve(module, &glob.path, depth + 1)? else { return None };
            self.step(&from, name, is_last, depth + 1)
        })
    }
}

/// Returns the path from the crate, of one that begins with `crate`, `self` or `super`.
fn absolute(module: &Module, path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        _ => return None,
    };
    let mut rest = path.iter().peekable();
    if matches!(path.first()?.as_str(), "crate" | "self") {
        rest.next();
    }
    while rest.next_if(|name| *name == "super").is_some() {
        base.pop();
    }
    base.extend(rest.cloned());
    Some(base)
}

fn collect(module: Module, file: usize, items: &[syn::Item], scopes: &mut BTreeMap<Module, Scope>) {
    let mut scope = Scope { file, ..Scope::default() };
    for item in items {
        if let syn::Item::Mod(inner) = item {
            let name = inner.ident.to_string();
            if let Some((_, items)) = &inner.content {
                collect([module.as_slice(), std::slice::from_ref(&name)].concat(), file, items, scopes);
            }
            scope.children.insert(name);
        } else {
            scope.items.extend(name(item));
            scope.visit_item(item);
        }
    }
    scopes.insert(module, scope);
}

fn name(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

impl Scope {
    fn import(&mut self, tree: &syn::UseTree, path: &[String], is_reexport: bool) {
        let with = |name: &syn::Ident| [path, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(inner) => self.import(&inner.tree, &with(&inner.ident), is_reexport),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.imports.push(Import { path: path.to_vec(), name: path.last().cloned(), is_reexport });
            }
            syn::UseTree::Name(name) => {
                self.imports.push(Import { path: with(&name.ident), name: Some(name.ident.to_string()), is_reexport });
            }
            syn::UseTree::Rename(name) if name.ident == "self" => {
                self.imports.push(Import { path: path.to_vec(), name: Some(name.rename.to_string()), is_reexport });
            }
            syn::UseTree::Rename(name) => {
                self.imports.push(Import { path: with(&name.ident), name: Some(name.rename.to_string()), is_reexport });
            }
            syn::UseTree::Glob(_) => self.imports.push(Import { path: path.to_vec(), name: None, is_reexport }),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path, is_reexport)),
        }
    }

    /// Finds `a::b` in tokens outside of the syntax tree: those of macros, attributes, and texts in attributes.
    fn tokens(&mut self, tokens: TokenStream, texts: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(ident) => {
                    let mut path = vec![ident.to_string()];
                    while is_colon(at + 1) && is_colon(at + 2) {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    self.paths.push(path);
                }
                TokenTree::Group(group) => self.tokens(group.stream(), texts),
                TokenTree::Literal(literal) if texts => {
                    let text = literal.to_string();
                    let text = text.trim_matches('"');
                    if text.contains("::") && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":_".contains(&byte)) {
                        self.paths.push(text.split("::").map(str::to_owned).collect());
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'a> Visit<'a> for Scope {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'a syn::Macro) {
        self.visit_path(&item.path);
        self.tokens(item.tokens.clone(), false);
    }

    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone(), true);
        }
    }

    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}
}
