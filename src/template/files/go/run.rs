//! Execution of Go templates: nodes to text, pipelines to values.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::context::GoContext;
use super::functions::{self, CallShape};
use super::parse::{GoCommand, GoNode, GoOperand, GoTemplate, Pipeline, Primary};
use super::value::{CostMeter, GoMap, GoValue};

/// The largest rendered file, in bytes.
const MAX_OUTPUT: usize = 16 << 20;

/// The reason for the early end of a part of a template.
pub(super) enum EarlyEnd {
    Break,
    Continue,
    Failed(GoError),
}

/// An error with its place in the template, in bytes.
pub(super) struct GoError {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) message: String,
}

type GoResult<T> = Result<T, EarlyEnd>;

/// The files of a tree in execution, each parsed once.
pub(super) struct GoRenderer<'a> {
    pub(super) context: GoContext<'a>,
    pub(super) parsed: RefCell<HashMap<String, Rc<GoTemplate>>>,
}

/// A template in execution.
pub(super) struct GoRun<'a> {
    pub(super) renderer: &'a GoRenderer<'a>,
    pub(super) context: &'a GoContext<'a>,
    pub(super) template: &'a GoTemplate,
    pub(super) source: &'a str,
    /// The name of the file, by which the template may call itself.
    pub(super) name: &'a str,
    pub(super) variables: Vec<(Rc<str>, GoValue)>,
    pub(super) out: String,
}

/// Adds a place to an error.
fn with_place<T>(result: Result<T, String>, at: usize, end: usize) -> GoResult<T> {
    result.map_err(|message| EarlyEnd::Failed(GoError { at, end, message }))
}

fn fail_at<T>(place: &GoOperand, message: impl Into<String>) -> GoResult<T> {
    with_place(Err(message.into()), place.at, place.end)
}

impl GoRun<'_> {
    /// Executes nodes; `dot` is the value of `.`.
    pub(super) fn run_nodes(&mut self, nodes: &[GoNode], dot: &GoValue) -> GoResult<()> {
        let mark = self.variables.len();
        for node in nodes {
            self.node(node, dot)?;
        }
        self.variables.truncate(mark);
        Ok(())
    }

    fn node(&mut self, node: &GoNode, dot: &GoValue) -> GoResult<()> {
        match node {
            GoNode::Text(text) => {
                with_place(self.context.consume_steps(1 + text.len() / 16), 0, 0)?;
                with_place(self.context.charge_memory(text.len()), 0, 0)?;
                self.out.push_str(text);
                self.check_output_size(0, 0)
            }
            GoNode::Print(pipe) => self.print(pipe, dot),
            GoNode::If { arms, otherwise } => self.run_branches(arms, otherwise, dot, false),
            GoNode::With { arms, otherwise } => self.run_branches(arms, otherwise, dot, true),
            GoNode::Range { pipe, body, otherwise } => self.range(pipe, body, otherwise, dot),
            GoNode::Call { at: place, name, pipe } => {
                let dot = match pipe {
                    Some(pipe) => self.pipe(pipe, dot)?,
                    None => GoValue::Nil,
                };
                self.call_template(*place, name, &dot)
            }
            GoNode::Break => Err(EarlyEnd::Break),
            GoNode::Continue => Err(EarlyEnd::Continue),
        }
    }

    fn print(&mut self, pipe: &Pipeline, dot: &GoValue) -> GoResult<()> {
        let value = self.pipe(pipe, dot)?;
        if !pipe.variables.is_empty() {
            return Ok(());
        }
        if matches!(value, GoValue::Nil) {
            let shown = self.source.get(pipe.at..pipe.end).unwrap_or_default().trim();
            let message = format!("{shown} has no value; give it one with default, or ask for it with if");
            return with_place(Err(message), pipe.at, pipe.end);
        }
        with_place(value.push_text(&mut self.out, self.context), pipe.at, pipe.end)?;
        self.check_output_size(pipe.at, pipe.end)
    }

    fn check_output_size(&self, from: usize, to: usize) -> GoResult<()> {
        let fits = self.out.len() <= MAX_OUTPUT;
        with_place(if fits { Ok(()) } else { Err(format!("the file would be larger than {MAX_OUTPUT} bytes")) }, from, to)
    }

    fn run_branches(
        &mut self,
        arms: &[(Pipeline, Vec<GoNode>)],
        otherwise: &[GoNode],
        dot: &GoValue,
        with: bool,
    ) -> GoResult<()> {
        let mark = self.variables.len();
        for (pipe, body) in arms {
            let value = self.pipe(pipe, dot)?;
            if value.is_truthy() {
                self.run_nested(pipe.at, |run| run.run_nodes(body, if with { &value } else { dot }))?;
                self.variables.truncate(mark);
                return Ok(());
            }
        }
        let place = arms.first().map_or(0, |(pipe, _)| pipe.at);
        self.run_nested(place, |run| run.run_nodes(otherwise, dot))?;
        self.variables.truncate(mark);
        Ok(())
    }

    fn run_nested(&mut self, place: usize, run: impl FnOnce(&mut Self) -> GoResult<()>) -> GoResult<()> {
        with_place(self.context.enter(), place, place)?;
        let result = run(self);
        self.context.leave();
        result
    }

    fn call_template(&mut self, place: usize, name: &str, dot: &GoValue) -> GoResult<()> {
        let template = self.template;
        let defined = template.defined.get(name).map(|body| body.as_slice());
        let Some(body) = defined.or_else(|| (name == self.name).then_some(template.body.as_slice())) else {
            return with_place(Err(format!("template \"{name}\" not defined")), place, place);
        };
        // A called template does not see the variables of its caller.
        let outer = std::mem::replace(&mut self.variables, vec![(Rc::from("$"), dot.clone())]);
        let result = self.run_nested(place, |run| run.run_nodes(body, dot));
        self.variables = outer;
        result
    }

    fn range(&mut self, pipe: &Pipeline, body: &[GoNode], otherwise: &[GoNode], dot: &GoValue) -> GoResult<()> {
        let mark = self.variables.len();
        let over = self.commands(pipe, dot)?;
        let place = |result| with_place(result, pipe.at, pipe.end);
        let pairs: Box<dyn Iterator<Item = (GoValue, GoValue)>> = match &over {
            GoValue::Nil => Box::new(std::iter::empty()),
            GoValue::List(list) => {
                Box::new(list.items.iter().enumerate().map(|(at, item)| (functions::count_value(at), item.clone())))
            }
            // A copy: the body may change the map.
            GoValue::Map(map) => Box::new(map.pairs().into_iter().map(|(key, item)| (GoValue::Text(key), item))),
            GoValue::Int(most) if pipe.variables.len() < 2 => Box::new((0..*most).map(|at| (GoValue::Int(at), GoValue::Int(at)))),
            other => return place(Err(format!("range can't iterate over {}", other.type_name()))),
        };
        let mut any = false;
        for (key, item) in pairs {
            any = true;
            place(self.context.consume_steps(1))?;
            match pipe.variables.as_slice() {
                [value] => self.set_variable(value, &item, pipe.assigns),
                [index, value] => {
                    self.set_variable(index, &key, pipe.assigns);
                    self.set_variable(value, &item, pipe.assigns);
                }
                _ => {}
            }
            let ended = self.run_nested(pipe.at, |run| run.run_nodes(body, &item));
            self.variables.truncate(mark);
            match ended {
                Ok(()) | Err(EarlyEnd::Continue) => {}
                Err(EarlyEnd::Break) => break,
                failed => return failed,
            }
        }
        if any { Ok(()) } else { self.run_nested(pipe.at, |run| run.run_nodes(otherwise, dot)) }
    }

    fn set_variable(&mut self, name: &Rc<str>, value: &GoValue, assigns: bool) {
        match self.variables.iter_mut().rev().find(|(known, _)| assigns && known == name) {
            Some((_, place)) => *place = value.clone(),
            None => self.variables.push((Rc::clone(name), value.clone())),
        }
    }

    fn pipe(&mut self, pipe: &Pipeline, dot: &GoValue) -> GoResult<GoValue> {
        let value = self.commands(pipe, dot)?;
        if let [name] = pipe.variables.as_slice() {
            self.set_variable(name, &value, pipe.assigns);
        }
        Ok(value)
    }

    fn commands(&mut self, pipe: &Pipeline, dot: &GoValue) -> GoResult<GoValue> {
        with_place(self.context.enter(), pipe.at, pipe.end)?;
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(command, dot, value)?);
        }
        self.context.leave();
        Ok(value.unwrap_or(GoValue::Nil))
    }

    fn command(&mut self, command: &GoCommand, dot: &GoValue, piped: Option<GoValue>) -> GoResult<GoValue> {
        let GoCommand { first, rest } = command;
        with_place(self.context.consume_steps(1), first.at, first.end)?;
        if matches!(first.value, Primary::Nil) {
            return fail_at(first, "nil is not a command");
        }
        if let Primary::Function(function) = first.value
            && first.fields.is_empty()
        {
            return match function.shape {
                CallShape::And | CallShape::Or => self.evaluate_and_or(function.shape, first, rest, dot, piped),
                CallShape::Plain(..) | CallShape::Render => {
                    let mut args = self.operands(rest, dot)?;
                    args.extend(piped);
                    self.call_function(function, first, &args)
                }
            };
        }
        let mut args = self.operands(rest, dot)?;
        args.extend(piped);
        let base = self.operand_base(first, dot)?;
        self.fields(base, first, &args)
    }

    fn operands(&mut self, operands: &[GoOperand], dot: &GoValue) -> GoResult<Vec<GoValue>> {
        operands.iter().map(|operand| self.operand(operand, dot)).collect()
    }

    fn operand(&mut self, operand: &GoOperand, dot: &GoValue) -> GoResult<GoValue> {
        let base = self.operand_base(operand, dot)?;
        self.fields(base, operand, &[])
    }

    /// Evaluates an operand without its fields.
    fn operand_base(&mut self, operand: &GoOperand, dot: &GoValue) -> GoResult<GoValue> {
        Ok(match &operand.value {
            Primary::Dot => dot.clone(),
            Primary::Nil => GoValue::Nil,
            Primary::Bool(value) => GoValue::Bool(*value),
            Primary::Int(value) => GoValue::Int(*value),
            Primary::Float(value) => GoValue::Float(*value),
            Primary::Text(text) => GoValue::Text(Rc::clone(text)),
            Primary::Variable(name) => match self.variables.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => value.clone(),
                None => return fail_at(operand, format!("undefined variable {name}")),
            },
            Primary::Function(function) => self.call_function(function, operand, &[])?,
            Primary::Pipe(pipe) => self.commands(pipe, dot)?,
        })
    }

    fn call_function(&self, function: &functions::GoFunction, place: &GoOperand, args: &[GoValue]) -> GoResult<GoValue> {
        with_place(self.context.consume_steps(1), place.at, place.end)?;
        let result = match function.shape {
            CallShape::Render => functions::call_with(function, 2, 2, args, |args| self.render(args)),
            _ => functions::call(function, self.context, args),
        };
        let weight = match &result {
            Ok(GoValue::Text(text)) => text.len() / 16,
            Ok(GoValue::List(list)) => list.items.len(),
            Ok(GoValue::Map(map)) => map.len(),
            _ => 0,
        };
        with_place(self.context.consume_steps(weight), place.at, place.end)?;
        // A list or map allocates slots only; its items are shared.
        let bytes = if let Ok(GoValue::Text(text)) = &result { text.len() } else { weight.saturating_mul(16) };
        with_place(self.context.charge_memory(bytes), place.at, place.end)?;
        with_place(result, place.at, place.end)
    }

    /// Implements `render`: another file of the tree, with its own `.`.
    fn render(&self, args: &[GoValue]) -> Result<GoValue, String> {
        let (file, dot) = functions::two_arguments(args)?;
        let rendered = self.renderer.render_nested(&functions::as_text(self.context, file)?, dot);
        rendered.map(GoValue::text).map_err(|error| error.to_string())
    }

    /// Evaluates `and` and `or`, with only as many arguments as necessary.
    fn evaluate_and_or(
        &mut self,
        shape: CallShape,
        first: &GoOperand,
        rest: &[GoOperand],
        dot: &GoValue,
        piped: Option<GoValue>,
    ) -> GoResult<GoValue> {
        let decided = |value: &GoValue| value.is_truthy() == matches!(shape, CallShape::Or);
        let mut last = None;
        for operand in rest {
            let value = self.operand(operand, dot)?;
            if decided(&value) {
                return Ok(value);
            }
            last = Some(value);
        }
        match piped.or(last) {
            Some(value) => Ok(value),
            None => fail_at(first, "wrong number of arguments: at least 1 is needed"),
        }
    }

    fn fields(&self, mut value: GoValue, operand: &GoOperand, args: &[GoValue]) -> GoResult<GoValue> {
        let count = operand.fields.len();
        for (index, name) in operand.fields.iter().enumerate() {
            let args = if index + 1 == count { args } else { &[] };
            value = match &value {
                GoValue::Map(map) if args.is_empty() => field(map, name),
                GoValue::Time(time) => with_place(functions::time_method(time, name, args), operand.at, operand.end)?,
                GoValue::Map(_) => return fail_at(operand, format!("{name} has arguments but is not a function")),
                GoValue::Nil => {
                    let before: String = operand.fields.iter().take(index).map(|name| format!(".{name}")).collect();
                    let message = format!("{before} has no value, and so no field {name}; ask for it first with if or with");
                    return fail_at(operand, message);
                }
                other => return fail_at(operand, format!("can't evaluate field {name} in type {}", other.type_name())),
            };
        }
        if count == 0 && !args.is_empty() {
            return fail_at(operand, "can't give arguments to a value that is not a function");
        }
        Ok(value)
    }
}

fn field(map: &Rc<GoMap>, name: &str) -> GoValue {
    map.get(name).unwrap_or(GoValue::Nil)
}
