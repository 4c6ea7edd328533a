//! The template language of Go: `text/template` with the functions of Sprig.
//!
//! - `lex` and `parse` read a template, `run` executes the tree over the values of `item`.
//! - `functions` has the functions for templates, `format` prints.
//!
//! The module is our own: available crates accept unclosed blocks, or report errors without a place.
//!
//! Deliberate differences from Go:
//! - Printing a missing value is an error (Go prints `<no value>`).
//! - Numbers of different types compare by value.
//! - Every step counts: each file has [`FUEL`], so rendering ends.

mod format;
mod functions;
mod item;
mod lex;
mod parse;
mod run;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::Inner;
use super::expr::Root;
use super::gotime::Time;
use super::regexes::Pattern;
use super::tree::{FileError, Session};
use crate::model::EvaluationBudget;

use self::item::{Fuel, Item, Nature, Pairs};
use self::parse::Template;
use self::run::{Run, Stop};

/// The fuel of one file: about one step for each value in use.
const FUEL: u64 = 10_000_000;
/// The deepest nesting at run time: blocks, parentheses, templates within templates.
const MAX_DEPTH: usize = 150;
/// The largest rendered file, in bytes.
const MAX_OUTPUT: usize = 16 << 20;

/// Renders every file of a tree.
pub(super) fn render(session: &Session) -> Result<(), FileError> {
    let context = Context {
        session,
        fuel: Cell::new(0),
        depth: Cell::new(0),
        nesting: Cell::new(0),
        parsed: RefCell::default(),
        regexes: RefCell::default(),
    };
    let dot = context.roots().map_err(|message| FileError::of("", message))?;
    for file in session.rendered() {
        session.check().map_err(|message| FileError::of(file, message))?;
        context.fuel.set(FUEL);
        context.depth.set(0);
        let taken = session.begin().map_err(|message| FileError::of(file, message))?;
        let text = context.file(file, &dot)?;
        session.ended(taken, text.len());
        session.keep(file, text)?;
    }
    Ok(())
}

/// The state that the templates of a tree share.
pub(super) struct Context<'a> {
    session: &'a Session,
    fuel: Cell<u64>,
    depth: Cell<usize>,
    /// The current depth of files within files.
    nesting: Cell<usize>,
    parsed: RefCell<HashMap<String, Rc<Template>>>,
    regexes: RefCell<HashMap<String, Pattern>>,
}

impl Fuel for Context<'_> {
    fn tick(&self, steps: usize) -> Result<(), String> {
        let left = self.fuel.get().checked_sub(steps as u64);
        self.fuel.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| "the template takes too many steps, or does not end".to_owned())
    }

    fn make(&self, bytes: usize) -> Result<(), String> {
        self.budget().charge(bytes).map_err(|spent| spent.to_string())
    }
}

impl Context<'_> {
    /// Enters the next level, within [`MAX_DEPTH`].
    fn enter(&self) -> Result<(), String> {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > MAX_DEPTH { Err(format!("templates are nested more than {MAX_DEPTH} deep")) } else { Ok(()) }
    }

    fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// Consumes the steps for work on `bytes`.
    fn afford(&self, bytes: usize) -> Result<(), String> {
        self.tick(bytes / 16)
    }

    fn scope(&self) -> &Arc<Inner> {
        &self.session.scope
    }

    fn now(&self) -> &Time {
        &self.session.now
    }

    fn nesting(&self) -> usize {
        self.nesting.get()
    }

    fn budget(&self) -> &EvaluationBudget {
        &self.scope().parts.budget
    }

    fn environ(&self, name: &str) -> Result<String, String> {
        self.scope().variable(name)
    }

    fn regex(&self, pattern: &str) -> Result<Pattern, String> {
        if let Some(known) = self.regexes.borrow().get(pattern) {
            return Ok(known.clone());
        }
        self.tick(1000)?;
        let built = Pattern::made(pattern, self.budget())?;
        self.regexes.borrow_mut().insert(pattern.to_owned(), built.clone());
        Ok(built)
    }

    fn write(&self, path: &str, content: &str) -> Result<(), String> {
        self.session.write(path, content)
    }

    /// Returns `.` at the top: facts, data and environ, in both spellings.
    fn roots(&self) -> Result<Item, String> {
        let mut pairs = Pairs::new();
        for (names, root, nature) in [
            (["facts", "Facts"], Root::Facts, Nature::Given),
            (["data", "Data"], Root::Data, Nature::Given),
            (["environ", "Environ"], Root::Environ, Nature::Environ),
        ] {
            // Gathering facts is expensive, and most templates use none.
            if root == Root::Facts && !self.session.mentions("acts") {
                continue;
            }
            let part = if root == Root::Data { "ata" } else { "nviron" };
            if self.session.mentions(part) {
                self.scope().uses_root(root);
            }
            let item = Item::of(self.scope().root(root), nature)?;
            for name in names {
                pairs.insert(Rc::from(name), item.clone());
            }
        }
        Item::map_of(pairs, Nature::Given)
    }

    /// Implements `render`: another file of the tree, with its own `.`.
    fn render(&self, file: &str, dot: &Item) -> Result<String, FileError> {
        let path = self.session.enter(file, self.nesting.get()).map_err(|message| FileError::of("", message))?;
        self.nesting.set(self.nesting.get() + 1);
        let rendered = self.file(&path, dot);
        self.nesting.set(self.nesting.get().saturating_sub(1));
        rendered
    }

    fn parsed(&self, file: &str, source: &str) -> Result<Rc<Template>, FileError> {
        if let Some(known) = self.parsed.borrow().get(file) {
            return Ok(Rc::clone(known));
        }
        let parsed = parse::parse(source, self.session.delimiters());
        let parsed = Rc::new(parsed.map_err(|wrong| FileError::at(file, source, wrong.at, wrong.message))?);
        self.parsed.borrow_mut().insert(file.to_owned(), Rc::clone(&parsed));
        Ok(parsed)
    }

    fn file(&self, file: &str, dot: &Item) -> Result<String, FileError> {
        let Some(source) = self.session.source(file) else {
            return Err(FileError::of(file, "there is no such template".to_owned()));
        };
        let template = self.parsed(file, source)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let variables = vec![(Rc::from("$"), dot.clone())];
        let mut run = Run { context: self, template: &template, source, name, variables, out: String::new() };
        match run.walk(&template.body, dot) {
            Ok(()) => Ok(run.out),
            Err(Stop::Failed(failed)) => {
                let shown =
                    source.get(failed.at..failed.end).filter(|text| !text.is_empty() && !failed.message.starts_with(text));
                let message = shown.map_or(failed.message.clone(), |text| format!("<{}>: {}", text.trim(), failed.message));
                Err(FileError::at(file, source, failed.at, message))
            }
            Err(Stop::Break | Stop::Continue) => Ok(run.out),
        }
    }
}

#[cfg(test)]
mod tests;
