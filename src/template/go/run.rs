//! Execution of Go templates: nodes to text, pipelines to values.

use std::rc::Rc;

use super::functions::{self, Shape};
use super::item::{Dict, Fuel, Item};
use super::parse::{Command, Node, Operand, Pipe, Primary, Template};
use super::{Context, MAX_OUTPUT};

/// The reason for the early end of a part of a template.
pub(super) enum Stop {
    Break,
    Continue,
    Failed(Failed),
}

/// An error with its place in the template, in bytes.
pub(super) struct Failed {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) message: String,
}

type Ran<T> = Result<T, Stop>;

/// A template in execution.
pub(super) struct Run<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) template: &'a Template,
    pub(super) source: &'a str,
    /// The name of the file, by which the template may call itself.
    pub(super) name: &'a str,
    pub(super) variables: Vec<(Rc<str>, Item)>,
    pub(super) out: String,
}

/// Adds a place to an error.
fn at<T>(result: Result<T, String>, at: usize, end: usize) -> Ran<T> {
    result.map_err(|message| Stop::Failed(Failed { at, end, message }))
}

fn fail<T>(place: &Operand, message: impl Into<String>) -> Ran<T> {
    at(Err(message.into()), place.at, place.end)
}

impl Run<'_> {
    /// Executes nodes; `dot` is the value of `.`.
    pub(super) fn walk(&mut self, nodes: &[Node], dot: &Item) -> Ran<()> {
        let mark = self.variables.len();
        for node in nodes {
            self.node(node, dot)?;
        }
        self.variables.truncate(mark);
        Ok(())
    }

    fn node(&mut self, node: &Node, dot: &Item) -> Ran<()> {
        match node {
            Node::Text(text) => {
                at(self.context.tick(1 + text.len() / 16), 0, 0)?;
                at(self.context.make(text.len()), 0, 0)?;
                self.out.push_str(text);
                self.fits(0, 0)
            }
            Node::Print(pipe) => self.print(pipe, dot),
            Node::If { arms, otherwise } => self.choose(arms, otherwise, dot, false),
            Node::With { arms, otherwise } => self.choose(arms, otherwise, dot, true),
            Node::Range { pipe, body, otherwise } => self.range(pipe, body, otherwise, dot),
            Node::Call { at: place, name, pipe } => {
                let dot = match pipe {
                    Some(pipe) => self.pipe(pipe, dot)?,
                    None => Item::Nil,
                };
                self.call(*place, name, &dot)
            }
            Node::Break => Err(Stop::Break),
            Node::Continue => Err(Stop::Continue),
        }
    }

    fn print(&mut self, pipe: &Pipe, dot: &Item) -> Ran<()> {
        let value = self.pipe(pipe, dot)?;
        if !pipe.variables.is_empty() {
            return Ok(());
        }
        if matches!(value, Item::Nil) {
            let shown = self.source.get(pipe.at..pipe.end).unwrap_or_default().trim();
            let message = format!("{shown} has no value; give it one with default, or ask for it with if");
            return at(Err(message), pipe.at, pipe.end);
        }
        at(value.push(&mut self.out, self.context), pipe.at, pipe.end)?;
        self.fits(pipe.at, pipe.end)
    }

    fn fits(&self, from: usize, to: usize) -> Ran<()> {
        let fits = self.out.len() <= MAX_OUTPUT;
        at(if fits { Ok(()) } else { Err(format!("the file would be larger than {MAX_OUTPUT} bytes")) }, from, to)
    }

    fn choose(&mut self, arms: &[(Pipe, Vec<Node>)], otherwise: &[Node], dot: &Item, with: bool) -> Ran<()> {
        let mark = self.variables.len();
        for (pipe, body) in arms {
            let value = self.pipe(pipe, dot)?;
            if value.truth() {
                self.deeper(pipe.at, |run| run.walk(body, if with { &value } else { dot }))?;
                self.variables.truncate(mark);
                return Ok(());
            }
        }
        let place = arms.first().map_or(0, |(pipe, _)| pipe.at);
        self.deeper(place, |run| run.walk(otherwise, dot))?;
        self.variables.truncate(mark);
        Ok(())
    }

    fn deeper(&mut self, place: usize, run: impl FnOnce(&mut Self) -> Ran<()>) -> Ran<()> {
        at(self.context.enter(), place, place)?;
        let result = run(self);
        self.context.leave();
        result
    }

    fn call(&mut self, place: usize, name: &str, dot: &Item) -> Ran<()> {
        let template = self.template;
        let defined = template.defined.get(name).map(|body| body.as_slice());
        let Some(body) = defined.or_else(|| (name == self.name).then_some(template.body.as_slice())) else {
            return at(Err(format!("template \"{name}\" not defined")), place, place);
        };
        // A called template does not see the variables of its caller.
        let outer = std::mem::replace(&mut self.variables, vec![(Rc::from("$"), dot.clone())]);
        let result = self.deeper(place, |run| run.walk(body, dot));
        self.variables = outer;
        result
    }

    fn range(&mut self, pipe: &Pipe, body: &[Node], otherwise: &[Node], dot: &Item) -> Ran<()> {
        let mark = self.variables.len();
        let over = self.commands(pipe, dot)?;
        let place = |result| at(result, pipe.at, pipe.end);
        let pairs: Box<dyn Iterator<Item = (Item, Item)>> = match &over {
            Item::Nil => Box::new(std::iter::empty()),
            Item::List(list) => Box::new(list.items.iter().enumerate().map(|(at, item)| (functions::count(at), item.clone()))),
            // A copy: the body may change the map.
            Item::Map(map) => Box::new(map.pairs().into_iter().map(|(key, item)| (Item::Text(key), item))),
            Item::Int(most) if pipe.variables.len() < 2 => Box::new((0..*most).map(|at| (Item::Int(at), Item::Int(at)))),
            other => return place(Err(format!("range can't iterate over {}", other.type_name()))),
        };
        let mut any = false;
        for (key, item) in pairs {
            any = true;
            place(self.context.tick(1))?;
            match pipe.variables.as_slice() {
                [value] => self.bind(value, &item, pipe.assigns),
                [index, value] => {
                    self.bind(index, &key, pipe.assigns);
                    self.bind(value, &item, pipe.assigns);
                }
                _ => {}
            }
            let ended = self.deeper(pipe.at, |run| run.walk(body, &item));
            self.variables.truncate(mark);
            match ended {
                Ok(()) | Err(Stop::Continue) => {}
                Err(Stop::Break) => break,
                failed => return failed,
            }
        }
        if any { Ok(()) } else { self.deeper(pipe.at, |run| run.walk(otherwise, dot)) }
    }

    fn bind(&mut self, name: &Rc<str>, value: &Item, assigns: bool) {
        match self.variables.iter_mut().rev().find(|(known, _)| assigns && known == name) {
            Some((_, place)) => *place = value.clone(),
            None => self.variables.push((Rc::clone(name), value.clone())),
        }
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Item) -> Ran<Item> {
        let value = self.commands(pipe, dot)?;
        if let [name] = pipe.variables.as_slice() {
            self.bind(name, &value, pipe.assigns);
        }
        Ok(value)
    }

    fn commands(&mut self, pipe: &Pipe, dot: &Item) -> Ran<Item> {
        at(self.context.enter(), pipe.at, pipe.end)?;
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(command, dot, value)?);
        }
        self.context.leave();
        Ok(value.unwrap_or(Item::Nil))
    }

    fn command(&mut self, command: &Command, dot: &Item, piped: Option<Item>) -> Ran<Item> {
        let Command { first, rest } = command;
        at(self.context.tick(1), first.at, first.end)?;
        if matches!(first.value, Primary::Nil) {
            return fail(first, "nil is not a command");
        }
        if let Primary::Function(function) = first.value
            && first.fields.is_empty()
        {
            return match function.shape {
                Shape::And | Shape::Or => self.logic(function.shape, first, rest, dot, piped),
                Shape::Plain(..) => {
                    let mut args = self.operands(rest, dot)?;
                    args.extend(piped);
                    self.apply(function, first, &args)
                }
            };
        }
        let mut args = self.operands(rest, dot)?;
        args.extend(piped);
        let base = self.base(first, dot)?;
        self.fields(base, first, &args)
    }

    fn operands(&mut self, operands: &[Operand], dot: &Item) -> Ran<Vec<Item>> {
        operands.iter().map(|operand| self.operand(operand, dot)).collect()
    }

    fn operand(&mut self, operand: &Operand, dot: &Item) -> Ran<Item> {
        let base = self.base(operand, dot)?;
        self.fields(base, operand, &[])
    }

    /// Evaluates an operand without its fields.
    fn base(&mut self, operand: &Operand, dot: &Item) -> Ran<Item> {
        Ok(match &operand.value {
            Primary::Dot => dot.clone(),
            Primary::Nil => Item::Nil,
            Primary::Bool(value) => Item::Bool(*value),
            Primary::Int(value) => Item::Int(*value),
            Primary::Float(value) => Item::Float(*value),
            Primary::Text(text) => Item::Text(Rc::clone(text)),
            Primary::Variable(name) => match self.variables.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => value.clone(),
                None => return fail(operand, format!("undefined variable {name}")),
            },
            Primary::Function(function) => self.apply(function, operand, &[])?,
            Primary::Pipe(pipe) => self.commands(pipe, dot)?,
        })
    }

    fn apply(&self, function: &functions::Function, place: &Operand, args: &[Item]) -> Ran<Item> {
        at(self.context.tick(1), place.at, place.end)?;
        let result = functions::call(function, self.context, args);
        let weight = match &result {
            Ok(Item::Text(text)) => text.len() / 16,
            Ok(Item::List(list)) => list.items.len(),
            Ok(Item::Map(map)) => map.len(),
            _ => 0,
        };
        at(self.context.tick(weight), place.at, place.end)?;
        // A list or map allocates slots only; its items are shared.
        let bytes = if let Ok(Item::Text(text)) = &result { text.len() } else { weight.saturating_mul(16) };
        at(self.context.make(bytes), place.at, place.end)?;
        at(result, place.at, place.end)
    }

    /// Evaluates `and` and `or`, with only as many arguments as necessary.
    fn logic(&mut self, shape: Shape, first: &Operand, rest: &[Operand], dot: &Item, piped: Option<Item>) -> Ran<Item> {
        let decided = |value: &Item| value.truth() == matches!(shape, Shape::Or);
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
            None => fail(first, "wrong number of arguments: at least 1 is needed"),
        }
    }

    fn fields(&self, mut value: Item, operand: &Operand, args: &[Item]) -> Ran<Item> {
        let count = operand.fields.len();
        for (index, name) in operand.fields.iter().enumerate() {
            let args = if index + 1 == count { args } else { &[] };
            value = match &value {
                Item::Map(map) if args.is_empty() => field(map, name),
                Item::Time(time) => at(functions::time_method(time, name, args), operand.at, operand.end)?,
                Item::Map(_) => return fail(operand, format!("{name} has arguments but is not a function")),
                Item::Nil => {
                    let before: String = operand.fields.iter().take(index).map(|name| format!(".{name}")).collect();
                    let message = format!("{before} has no value, and so no field {name}; ask for it first with if or with");
                    return fail(operand, message);
                }
                other => return fail(operand, format!("can't evaluate field {name} in type {}", other.type_name())),
            };
        }
        if count == 0 && !args.is_empty() {
            return fail(operand, "can't give arguments to a value that is not a function");
        }
        Ok(value)
    }
}

fn field(map: &Rc<Dict>, name: &str) -> Item {
    map.get(name).unwrap_or(Item::Nil)
}
