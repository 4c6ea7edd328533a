//! The template language of Go: `text/template` with the functions of Sprig.
//!
//! - `lex` and `parse` read a template, `run` executes the tree over the values of `value`.
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
mod lex;
mod parse;
mod run;
mod value;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ScopeState;
use super::expr::Root;
use super::gotime::Time;
use super::regexes::Pattern;
use super::tree::{FileError, RenderSession};
use crate::model::EvaluationBudget;

use self::parse::GoTemplate;
use self::run::{EarlyEnd, GoRun};
use self::value::{CostMeter, GoValue, MapOrigin, Pairs};

/// The fuel of one file: about one step for each value in use.
const FUEL: u64 = 10_000_000;
/// The deepest nesting at run time: blocks, parentheses, templates within templates.
const MAX_DEPTH: usize = 150;
/// The largest rendered file, in bytes.
const MAX_OUTPUT: usize = 16 << 20;

/// Renders every file of a tree.
pub(super) fn render(session: &RenderSession) -> Result<(), FileError> {
    let context = GoContext {
        session,
        fuel: Cell::new(0),
        depth: Cell::new(0),
        nesting: Cell::new(0),
        parsed: RefCell::default(),
        regexes: RefCell::default(),
    };
    let dot = context.roots().map_err(|message| FileError::without_place("", message))?;
    for file in session.top_level_files() {
        session.check_not_over().map_err(|message| FileError::without_place(file, message))?;
        context.fuel.set(FUEL);
        context.depth.set(0);
        let taken = session.begin().map_err(|message| FileError::without_place(file, message))?;
        let text = context.render_file(file, &dot)?;
        session.end(taken, text.len());
        session.store_rendered(file, text)?;
    }
    Ok(())
}

/// The state that the templates of a tree share.
pub(super) struct GoContext<'a> {
    session: &'a RenderSession,
    fuel: Cell<u64>,
    depth: Cell<usize>,
    /// The current depth of files within files.
    nesting: Cell<usize>,
    parsed: RefCell<HashMap<String, Rc<GoTemplate>>>,
    regexes: RefCell<HashMap<String, Pattern>>,
}

impl CostMeter for GoContext<'_> {
    fn consume_steps(&self, steps: usize) -> Result<(), String> {
        let left = self.fuel.get().checked_sub(steps as u64);
        self.fuel.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| "the template takes too many steps, or does not end".to_owned())
    }

    fn charge_memory(&self, bytes: usize) -> Result<(), String> {
        self.budget().charge(bytes).map_err(|spent| spent.to_string())
    }
}

impl GoContext<'_> {
    /// Enters the next level, within [`MAX_DEPTH`].
    fn enter(&self) -> Result<(), String> {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > MAX_DEPTH { Err(format!("templates are nested more than {MAX_DEPTH} deep")) } else { Ok(()) }
    }

    fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// Consumes the steps for work on `bytes`.
    fn consume_for(&self, bytes: usize) -> Result<(), String> {
        self.consume_steps(bytes / 16)
    }

    fn scope(&self) -> &Arc<ScopeState> {
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
        self.scope().environ_variable(name)
    }

    fn regex(&self, pattern: &str) -> Result<Pattern, String> {
        if let Some(known) = self.regexes.borrow().get(pattern) {
            return Ok(known.clone());
        }
        self.consume_steps(1000)?;
        let built = Pattern::compile_charged(pattern, self.budget())?;
        self.regexes.borrow_mut().insert(pattern.to_owned(), built.clone());
        Ok(built)
    }

    fn write(&self, path: &str, content: &str) -> Result<(), String> {
        self.session.write(path, content)
    }

    /// Returns `.` at the top: facts, data and environ, in both spellings.
    fn roots(&self) -> Result<GoValue, String> {
        let mut pairs = Pairs::new();
        for (names, root, nature) in [
            (["facts", "Facts"], Root::Facts, MapOrigin::Given),
            (["data", "Data"], Root::Data, MapOrigin::Given),
            (["environ", "Environ"], Root::Environ, MapOrigin::Environ),
        ] {
            // Gathering facts is expensive, and most templates use none.
            if root == Root::Facts && !self.session.mentions("acts") {
                continue;
            }
            let part = if root == Root::Data { "ata" } else { "nviron" };
            if self.session.mentions(part) {
                self.scope().note_root(root);
            }
            let item = GoValue::from_json(self.scope().root(root), nature)?;
            for name in names {
                pairs.insert(Rc::from(name), item.clone());
            }
        }
        GoValue::map_of(pairs, MapOrigin::Given)
    }

    /// Implements `render`: another file of the tree, with its own `.`.
    fn render_nested(&self, file: &str, dot: &GoValue) -> Result<String, FileError> {
        let path =
            self.session.check_render(file, self.nesting.get()).map_err(|message| FileError::without_place("", message))?;
        self.nesting.set(self.nesting.get() + 1);
        let rendered = self.render_file(&path, dot);
        self.nesting.set(self.nesting.get().saturating_sub(1));
        rendered
    }

    fn parse_file(&self, file: &str, source: &str) -> Result<Rc<GoTemplate>, FileError> {
        if let Some(known) = self.parsed.borrow().get(file) {
            return Ok(Rc::clone(known));
        }
        let parsed = parse::parse(source, self.session.delimiters());
        let parsed = Rc::new(parsed.map_err(|wrong| FileError::at(file, source, wrong.at, wrong.message))?);
        self.parsed.borrow_mut().insert(file.to_owned(), Rc::clone(&parsed));
        Ok(parsed)
    }

    fn render_file(&self, file: &str, dot: &GoValue) -> Result<String, FileError> {
        let Some(source) = self.session.source(file) else {
            return Err(FileError::without_place(file, "there is no such template".to_owned()));
        };
        let template = self.parse_file(file, source)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let variables = vec![(Rc::from("$"), dot.clone())];
        let mut run = GoRun { context: self, template: &template, source, name, variables, out: String::new() };
        match run.run_nodes(&template.body, dot) {
            Ok(()) => Ok(run.out),
            Err(EarlyEnd::Failed(failed)) => {
                let shown =
                    source.get(failed.at..failed.end).filter(|text| !text.is_empty() && !failed.message.starts_with(text));
                let message = shown.map_or(failed.message.clone(), |text| format!("<{}>: {}", text.trim(), failed.message));
                Err(FileError::at(file, source, failed.at, message))
            }
            Err(EarlyEnd::Break | EarlyEnd::Continue) => Ok(run.out),
        }
    }
}

#[cfg(test)]
mod tests;
