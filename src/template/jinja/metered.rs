//! Rewrites Jinja templates, so that everything they do is charged to the budget.
//!
//! minijinja counts instructions, and one instruction may double a text, compare shared lists or write a megabyte.
//! So each template is parsed into a tree and written again. Operators with a new value, comparisons and filters become
//! calls of functions that charge. Text becomes values. The output stays the same.

use std::sync::Arc;

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, Macro, Stmt, UnaryOpKind};
use minijinja::machinery::{Span, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::super::jet::{Linked, Place};

/// The longest text that is not charged to the budget, in bytes: an instruction costs as much.
const MAX_PLAIN: usize = 32;
/// Filters and tests that only check the presence of a value.
const PLAIN: &[&str] = &["default", "d", "defined", "undefined", "none", "safe", "length", "count"];
/// Functions that create maps.
const MAKERS: &[&str] = &["namespace", "dict"];

/// Rewrites a template in the plain syntax.
///
/// # Errors
/// The template can't be parsed.
pub(super) fn metered(file: &str, source: &str, syntax: SyntaxConfig) -> Result<Linked, Error> {
    let tree = parse(source, file, syntax)?;
    let mut writer = Writer { source, file: Arc::from(file), linked: Linked::default() };
    writer.statement(&tree)?;
    Ok(writer.linked)
}

struct Writer<'s> {
    source: &'s str,
    file: Arc<str>,
    linked: Linked,
}

type Written = Result<(), Error>;

impl Writer<'_> {
    fn put(&mut self, code: &str) {
        self.linked.code.push_str(code);
    }

    /// Records the origin of the following code.
    fn at(&mut self, span: Span) {
        let at = usize::try_from(span.start_offset).unwrap_or(0);
        self.linked.places.push(Place { code: self.linked.code.len(), at, file: Arc::clone(&self.file) });
    }

    fn quoted(&mut self, text: &str) {
        self.put(&serde_json::Value::from(text).to_string());
    }

    fn body(&mut self, body: &[Stmt<'_>]) -> Written {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Written {
        match statement {
            Stmt::Template(template) => self.body(&template.children)?,
            Stmt::EmitExpr(emit) => {
                self.at(emit.span());
                self.put("{{ ");
                self.expression(&emit.expr)?;
                self.put(" }}");
            }
            Stmt::EmitRaw(raw) => {
                if raw.raw.len() <= MAX_PLAIN && !raw.raw.contains('{') {
                    self.put(raw.raw);
                } else {
                    self.put("{{ ");
                    self.quoted(raw.raw);
                    self.put(" }}");
                }
            }
            Stmt::ForLoop(each) => {
                self.at(each.span());
                self.put("{% for ");
                self.target(&each.target)?;
                self.put(" in ");
                self.expression(&each.iter)?;
                if let Some(filter) = &each.filter_expr {
                    self.put(" if ");
                    self.expression(filter)?;
                }
                self.put(if each.recursive { " recursive %}" } else { " %}" });
                self.body(&each.body)?;
                if !each.else_body.is_empty() {
                    self.put("{% else %}");
                    self.body(&each.else_body)?;
                }
                self.put("{% endfor %}");
            }
            Stmt::IfCond(condition) => {
                self.at(condition.span());
                self.opening("if ", &condition.expr)?;
                self.body(&condition.true_body)?;
                if !condition.false_body.is_empty() {
                    self.put("{% else %}");
                    self.body(&condition.false_body)?;
                }
                self.put("{% endif %}");
            }
            Stmt::WithBlock(with) => {
                self.at(with.span());
                self.put("{% with ");
                for (index, (target, value)) in with.assignments.iter().enumerate() {
                    self.put(if index > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.put(" = ");
                    self.expression(value)?;
                }
                self.put(" %}");
                self.body(&with.body)?;
                self.put("{% endwith %}");
            }
            Stmt::Set(set) => {
                self.at(set.span());
                self.put("{% set ");
                self.target(&set.target)?;
                self.put(" = ");
                self.expression(&set.expr)?;
                self.put(" %}");
            }
            Stmt::SetBlock(set) => {
                self.at(set.span());
                self.put("{% set ");
                self.target(&set.target)?;
                if let Some(filter) = &set.filter {
                    self.put(" | ");
                    self.chain(filter)?;
                }
                self.put(" %}");
                self.body(&set.body)?;
                self.put("{% endset %}");
            }
            Stmt::AutoEscape(escape) => {
                self.opening("autoescape ", &escape.enabled)?;
                self.body(&escape.body)?;
                self.put("{% endautoescape %}");
            }
            Stmt::FilterBlock(filter) => {
                self.at(filter.span());
                self.put("{% filter ");
                self.chain(&filter.filter)?;
                self.put(" %}");
                self.body(&filter.body)?;
                self.put("{% endfilter %}");
            }
            other => self.part(other)?,
        }
        Ok(())
    }

    /// Writes statements about parts of templates.
    fn part(&mut self, statement: &Stmt<'_>) -> Written {
        match statement {
            Stmt::Block(block) => {
                self.at(block.span());
                self.put("{% block ");
                self.put(block.name);
                // A required block has only white space.
                if block.required {
                    self.put(" required %}");
                } else {
                    self.put(" %}");
                    self.body(&block.body)?;
                }
                self.put("{% endblock %}");
            }
            Stmt::Import(import) => {
                self.at(import.span());
                self.put("{% import ");
                self.expression(&import.expr)?;
                self.put(" as ");
                self.target(&import.name)?;
                self.put(" %}");
            }
            Stmt::FromImport(import) => {
                self.at(import.span());
                self.put("{% from ");
                self.expression(&import.expr)?;
                self.put(" import ");
                for (index, (name, alias)) in import.names.iter().enumerate() {
                    self.put(if index > 0 { ", " } else { "" });
                    self.target(name)?;
                    if let Some(alias) = alias {
                        self.put(" as ");
                        self.target(alias)?;
                    }
                }
                self.put(" %}");
            }
            Stmt::Extends(extends) => {
                self.at(extends.span());
                self.opening("extends ", &extends.name)?;
            }
            Stmt::Include(include) => {
                self.at(include.span());
                self.put("{% include ");
                self.expression(&include.name)?;
                self.put(if include.ignore_missing { " ignore missing %}" } else { " %}" });
            }
            Stmt::Macro(declared) => {
                self.at(declared.span());
                self.put("{% macro ");
                self.put(declared.name);
                self.parameters(declared)?;
                self.put(" %}");
                self.body(&declared.body)?;
                self.put("{% endmacro %}");
            }
            Stmt::CallBlock(block) => {
                self.at(block.span());
                self.put("{% call");
                self.parameters(&block.macro_decl)?;
                self.put(" ");
                self.call(&block.call)?;
                self.put(" %}");
                self.body(&block.macro_decl.body)?;
                self.put("{% endcall %}");
            }
            Stmt::Do(done) => {
                self.at(done.span());
                self.put("{% do ");
                self.call(&done.call)?;
                self.put(" %}");
            }
            Stmt::Continue(_) => self.put("{% continue %}"),
            Stmt::Break(_) => self.put("{% break %}"),
            _ => return Err(Error::new(ErrorKind::SyntaxError, "unknown statement")),
        }
        Ok(())
    }

    fn opening(&mut self, word: &str, expression: &Expr<'_>) -> Written {
        self.put("{% ");
        self.put(word);
        self.expression(expression)?;
        self.put(" %}");
        Ok(())
    }

    fn parameters(&mut self, declared: &Macro<'_>) -> Written {
        self.put("(");
        let plain = declared.args.len().saturating_sub(declared.defaults.len());
        for (index, name) in declared.args.iter().enumerate() {
            self.put(if index > 0 { ", " } else { "" });
            self.target(name)?;
            if let Some(default) = index.checked_sub(plain).and_then(|index| declared.defaults.get(index)) {
                self.put("=");
                self.expression(default)?;
            }
        }
        self.put(")");
        Ok(())
    }

    /// Writes the target of an assignment, unevaluated.
    fn target(&mut self, target: &Expr<'_>) -> Written {
        match target {
            Expr::Var(name) => self.put(name.id),
            Expr::GetAttr(attribute) => {
                self.target(&attribute.expr)?;
                self.put(".");
                self.put(attribute.name);
            }
            Expr::List(list) => self.targets(&list.items)?,
            Expr::Tuple(tuple) => self.targets(&tuple.items)?,
            Expr::Const(_) => self.expression(target)?,
            _ => return Err(Error::new(ErrorKind::SyntaxError, "this expression can't be assigned to")),
        }
        Ok(())
    }

    fn targets(&mut self, targets: &[Expr<'_>]) -> Written {
        self.put("(");
        for target in targets {
            self.target(target)?;
            self.put(", ");
        }
        self.put(")");
        Ok(())
    }

    /// Writes the filters of a filter block: `name(args) | name(args)`.
    fn chain(&mut self, filter: &Expr<'_>) -> Written {
        let Expr::Filter(filter) = filter else {
            return Err(Error::new(ErrorKind::SyntaxError, "a filter is expected here"));
        };
        if let Some(inner) = &filter.expr {
            self.chain(inner)?;
            self.put(" | ");
        }
        self.filter(filter.name, &filter.args)
    }

    fn filter(&mut self, name: &str, args: &[CallArg<'_>]) -> Written {
        if PLAIN.contains(&name) {
            self.put(name);
            return self.arguments("", args);
        }
        self.put("filtered");
        let name = serde_json::Value::from(name).to_string();
        self.arguments(&name, args)
    }

    fn arguments(&mut self, first: &str, args: &[CallArg<'_>]) -> Written {
        self.put("(");
        self.put(first);
        let mut separate = !first.is_empty();
        for arg in args {
            self.put(if separate { ", " } else { "" });
            separate = true;
            match arg {
                CallArg::Pos(value) => self.expression(value)?,
                CallArg::Kwarg(name, value) => {
                    self.put(name);
                    self.put("=");
                    self.expression(value)?;
                }
                CallArg::PosSplat(value) => {
                    self.put("*");
                    self.expression(value)?;
                }
                CallArg::KwargSplat(value) => {
                    self.put("**");
                    self.expression(value)?;
                }
            }
        }
        self.put(")");
        Ok(())
    }

    fn call(&mut self, call: &Call<'_>) -> Written {
        match &call.expr {
            // Parentheses around a name would change the kind of call.
            Expr::Var(name) => self.put(name.id),
            Expr::GetAttr(attribute) => {
                self.expression(&attribute.expr)?;
                self.put(".");
                self.put(attribute.name);
            }
            other => self.expression(other)?,
        }
        self.arguments("", &call.args)
    }

    /// Writes a call of a function with one argument.
    fn of(&mut self, function: &str, expression: &Expr<'_>) -> Written {
        self.put(function);
        self.put("(");
        self.expression(expression)?;
        self.put(")");
        Ok(())
    }

    /// Writes a list of expressions, each followed by a comma.
    fn list(&mut self, items: &[Expr<'_>]) -> Written {
        for item in items {
            self.expression(item)?;
            self.put(", ");
        }
        Ok(())
    }

    fn expression(&mut self, expression: &Expr<'_>) -> Written {
        self.at(expression.span());
        match expression {
            Expr::Var(name) => self.put(name.id),
            Expr::Const(constant) => match constant.value.as_str() {
                Some(text) => self.quoted(text),
                None => {
                    let span = constant.span();
                    let (from, to) = (usize::try_from(span.start_offset).ok(), usize::try_from(span.end_offset).ok());
                    let written = from.zip(to).and_then(|(from, to)| self.source.get(from..to)).unwrap_or_default();
                    let written = written.to_owned();
                    self.put(&written);
                }
            },
            Expr::Slice(slice) => {
                self.of("weighed", &slice.expr)?;
                self.put("[");
                for (index, bound) in [&slice.start, &slice.stop, &slice.step].into_iter().enumerate() {
                    self.put(if index > 0 { ":" } else { "" });
                    bound.iter().try_for_each(|bound| self.expression(bound))?;
                }
                self.put("]");
            }
            Expr::UnaryOp(operation) => {
                self.put(match operation.op {
                    UnaryOpKind::Not => "(not ",
                    UnaryOpKind::Neg => "(-",
                });
                self.expression(&operation.expr)?;
                self.put(")");
            }
            Expr::BinOp(operation) => self.binary(operation.op, &operation.left, &operation.right)?,
            Expr::Compare(compare) => {
                self.put("(");
                self.of("weighed", &compare.expr)?;
                for next in &compare.ops {
                    self.put(match next.op {
                        CompareOpKind::Eq => " == ",
                        CompareOpKind::Ne => " != ",
                        CompareOpKind::Lt => " < ",
                        CompareOpKind::Lte => " <= ",
                        CompareOpKind::Gt => " > ",
                        CompareOpKind::Gte => " >= ",
                        CompareOpKind::In => " in ",
                        CompareOpKind::NotIn => " not in ",
                    });
                    self.of("weighed", &next.expr)?;
                }
                self.put(")");
            }
            Expr::IfExpr(choice) => {
                self.put("(");
                self.expression(&choice.true_expr)?;
                self.put(" if ");
                self.expression(&choice.test_expr)?;
                if let Some(otherwise) = &choice.false_expr {
                    self.put(" else ");
                    self.expression(otherwise)?;
                }
                self.put(")");
            }
            Expr::Filter(filter) => {
                self.put("(");
                filter.expr.iter().try_for_each(|value| self.expression(value))?;
                self.put("|");
                self.filter(filter.name, &filter.args)?;
                self.put(")");
            }
            Expr::Test(test) => {
                self.put("(");
                if PLAIN.contains(&test.name) {
                    self.expression(&test.expr)?;
                } else {
                    self.of("weighed", &test.expr)?;
                }
                self.put(" is ");
                self.put(test.name);
                if !test.args.is_empty() {
                    self.arguments("", &test.args)?;
                }
                self.put(")");
            }
            Expr::GetAttr(attribute) => {
                self.expression(&attribute.expr)?;
                self.put(".");
                self.put(attribute.name);
            }
            Expr::GetItem(item) => {
                self.expression(&item.expr)?;
                self.put("[");
                self.expression(&item.subscript_expr)?;
                self.put("]");
            }
            Expr::Call(call) => {
                let makes = matches!(&call.expr, Expr::Var(name) if MAKERS.contains(&name.id));
                self.put(if makes { "weighed(" } else { "" });
                self.call(call)?;
                self.put(if makes { ")" } else { "" });
            }
            Expr::List(list) => {
                self.put("weighed([");
                self.list(&list.items)?;
                self.put("])");
            }
            Expr::Tuple(tuple) => {
                self.put("weighed((");
                self.list(&tuple.items)?;
                self.put("))");
            }
            Expr::Map(map) => {
                self.put("weighed({");
                for (key, value) in map.keys.iter().zip(&map.values) {
                    self.expression(key)?;
                    self.put(": ");
                    self.expression(value)?;
                    self.put(", ");
                }
                self.put("})");
            }
        }
        Ok(())
    }

    fn binary(&mut self, op: BinOpKind, left: &Expr<'_>, right: &Expr<'_>) -> Written {
        let (function, sign) = match op {
            BinOpKind::ScAnd => ("", " and "),
            BinOpKind::ScOr => ("", " or "),
            BinOpKind::Add => ("paid", " + "),
            BinOpKind::Concat => ("paid", " ~ "),
            BinOpKind::Sub => ("", " - "),
            BinOpKind::Div => ("", " / "),
            BinOpKind::FloorDiv => ("", " // "),
            BinOpKind::Rem => ("", " % "),
            BinOpKind::Pow => ("", " ** "),
            BinOpKind::Eq => ("weighed", " == "),
            BinOpKind::Ne => ("weighed", " != "),
            BinOpKind::Lt => ("weighed", " < "),
            BinOpKind::Lte => ("weighed", " <= "),
            BinOpKind::Gt => ("weighed", " > "),
            BinOpKind::Gte => ("weighed", " >= "),
            BinOpKind::In => ("weighed", " in "),
            BinOpKind::Mul => {
                self.put("product(");
                self.expression(left)?;
                self.put(", ");
                self.expression(right)?;
                self.put(")");
                return Ok(());
            }
        };
        self.put("(");
        self.of(function, left)?;
        self.put(sign);
        self.of(function, right)?;
        self.put(")");
        Ok(())
    }
}
