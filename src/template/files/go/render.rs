//! Rendering of the files of a tree.

use std::cell::RefCell;
use std::rc::Rc;

use super::context::GoContext;
use super::parse::{self, GoTemplate};
use super::run::{EarlyEnd, GoRenderer, GoRun};
use super::value::{GoValue, MapOrigin, Pairs};
use crate::template::expr::Root;
use crate::template::files::error::FileError;
use crate::template::files::session::RenderSession;

/// Renders every file of a tree.
pub(in crate::template::files) fn render(session: &RenderSession) -> Result<(), FileError> {
    let renderer = GoRenderer { context: GoContext::new(session), parsed: RefCell::default() };
    let dot = renderer.roots().map_err(|message| FileError::without_place("", message))?;
    for file in session.top_level_files() {
        session.check_not_over().map_err(|message| FileError::without_place(file, message))?;
        renderer.context.begin_file();
        let taken = session.begin().map_err(|message| FileError::without_place(file, message))?;
        let text = renderer.render_file(file, &dot)?;
        session.end(taken, text.len());
        session.store_rendered(file, text)?;
    }
    Ok(())
}

impl GoRenderer<'_> {
    /// Returns `.` at the top: facts, data and environ, in both spellings.
    fn roots(&self) -> Result<GoValue, String> {
        let mut pairs = Pairs::new();
        for (names, root, nature) in [
            (["facts", "Facts"], Root::Facts, MapOrigin::Given),
            (["data", "Data"], Root::Data, MapOrigin::Given),
            (["environ", "Environ"], Root::Environ, MapOrigin::Environ),
        ] {
            let Some(value) = self.context.session().root(root) else { continue };
            let item = GoValue::from_json(value, nature)?;
            for name in names {
                pairs.insert(Rc::from(name), item.clone());
            }
        }
        GoValue::map_of(pairs, MapOrigin::Given)
    }

    /// Implements `render`: another file of the tree, with its own `.`.
    pub(super) fn render_nested(&self, file: &str, dot: &GoValue) -> Result<String, FileError> {
        let path = self.context.session().check_render(file, self.context.nesting());
        let path = path.map_err(|message| FileError::without_place("", message))?;
        self.context.enter_file();
        let rendered = self.render_file(&path, dot);
        self.context.leave_file();
        rendered
    }

    fn parse_file(&self, file: &str, source: &str) -> Result<Rc<GoTemplate>, FileError> {
        if let Some(known) = self.parsed.borrow().get(file) {
            return Ok(Rc::clone(known));
        }
        let parsed = parse::parse(source, self.context.session().delimiters());
        let parsed = Rc::new(parsed.map_err(|wrong| FileError::at(file, source, wrong.at, wrong.message))?);
        self.parsed.borrow_mut().insert(file.to_owned(), Rc::clone(&parsed));
        Ok(parsed)
    }

    fn render_file(&self, file: &str, dot: &GoValue) -> Result<String, FileError> {
        let Some(source) = self.context.session().source(file) else {
            return Err(FileError::without_place(file, "there is no such template".to_owned()));
        };
        let template = self.parse_file(file, source)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let variables = vec![(Rc::from("$"), dot.clone())];
        let mut run =
            GoRun { renderer: self, context: &self.context, template: &template, source, name, variables, out: String::new() };
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
