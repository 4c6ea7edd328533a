//! The state that the Go templates of a tree share: fuel, depth, regular expressions, the session.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use super::value::CostMeter;
use crate::model::EvaluationBudget;
use crate::template::files::session::RenderSession;
use crate::template::functions::gotime::Time;
use crate::template::functions::regexes::Pattern;
use crate::template::text::ScopeState;

/// The fuel of one file: about one step for each value in use.
const FUEL: u64 = 10_000_000;
/// The deepest nesting at run time: blocks, parentheses, templates within templates.
const MAX_DEPTH: usize = 150;
/// The state that the templates of a tree share.
pub(super) struct GoContext<'a> {
    session: &'a RenderSession,
    fuel: Cell<u64>,
    depth: Cell<usize>,
    /// The current depth of files within files.
    nesting: Cell<usize>,
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

impl<'a> GoContext<'a> {
    pub(super) fn new(session: &'a RenderSession) -> Self {
        Self { session, fuel: Cell::new(0), depth: Cell::new(0), nesting: Cell::new(0), regexes: RefCell::default() }
    }

    /// Begins a file with its own fuel.
    pub(super) fn begin_file(&self) {
        self.fuel.set(FUEL);
        self.depth.set(0);
    }

    /// Enters a file within a file.
    pub(super) fn enter_file(&self) {
        self.nesting.set(self.nesting.get() + 1);
    }

    pub(super) fn leave_file(&self) {
        self.nesting.set(self.nesting.get().saturating_sub(1));
    }

    pub(super) fn session(&self) -> &'a RenderSession {
        self.session
    }

    /// Enters the next level, within [`MAX_DEPTH`].
    pub(super) fn enter(&self) -> Result<(), String> {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > MAX_DEPTH { Err(format!("templates are nested more than {MAX_DEPTH} deep")) } else { Ok(()) }
    }

    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// Consumes the steps for work on `bytes`.
    pub(super) fn consume_for(&self, bytes: usize) -> Result<(), String> {
        self.consume_steps(bytes / 16)
    }

    pub(super) fn scope(&self) -> &Arc<ScopeState> {
        &self.session.scope
    }

    pub(super) fn now(&self) -> &Time {
        &self.session.now
    }

    pub(super) fn nesting(&self) -> usize {
        self.nesting.get()
    }

    pub(super) fn budget(&self) -> &EvaluationBudget {
        &self.scope().parts.budget
    }

    pub(super) fn environ(&self, name: &str) -> Result<String, String> {
        self.scope().environ_variable(name)
    }

    pub(super) fn regex(&self, pattern: &str) -> Result<Pattern, String> {
        if let Some(known) = self.regexes.borrow().get(pattern) {
            return Ok(known.clone());
        }
        self.consume_steps(1000)?;
        let built = Pattern::compile_charged(pattern, self.budget())?;
        self.regexes.borrow_mut().insert(pattern.to_owned(), built.clone());
        Ok(built)
    }

    pub(super) fn write(&self, path: &str, content: &str) -> Result<(), String> {
        self.session.write(path, content)
    }
}
