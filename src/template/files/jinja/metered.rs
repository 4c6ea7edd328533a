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

use crate::template::files::minijinja_env::{CodeOrigin, LinkedTemplate, MAX_PLAIN_TEXT};

/// Filters and tests that only check the presence of a value.
const FREE_FILTERS: &[&str] = &["default", "d", "defined", "undefined", "none", "safe", "length", "count"];
/// Functions that create maps.
const MAP_FUNCTIONS: &[&str] = &["namespace", "dict"];

/// Rewrites a template in the plain syntax.
///
/// # Errors
/// The template can't be parsed.
pub(super) fn add_charges(file: &str, source: &str, syntax: SyntaxConfig) -> Result<LinkedTemplate, Error> {
    let tree = parse(source, file, syntax)?;
    let mut writer = Writer { source, file: Arc::from(file), linked: LinkedTemplate::default() };
    writer.statement(&tree)?;
    Ok(writer.linked)
}

struct Writer<'s> {
    source: &'s str,
    file: Arc<str>,
    linked: LinkedTemplate,
}

type Written = Result<(), Error>;

impl Writer<'_> {
    fn push_code(&mut self, code: &str) {
        self.linked.code.push_str(code);
    }

    /// Records the origin of the following code.
    fn mark_origin(&mut self, span: Span) {
        let at = usize::try_from(span.start_offset).unwrap_or(0);
        self.linked.places.push(CodeOrigin { code: self.linked.code.len(), at, file: Arc::clone(&self.file) });
    }

    fn quoted(&mut self, text: &str) {
        self.push_code(&serde_json::Value::from(text).to_string());
    }

    fn body(&mut self, body: &[Stmt<'_>]) -> Written {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Written {
        match statement {
            Stmt::Template(template) => self.body(&template.children)?,
            Stmt::EmitExpr(emit) => {
                self.mark_origin(emit.span());
                self.push_code("{{ ");
                self.expression(&emit.expr)?;
                self.push_code(" }}");
            }
            Stmt::EmitRaw(raw) => {
                if raw.raw.len() <= MAX_PLAIN_TEXT && !raw.raw.contains('{') {
                    self.push_code(raw.raw);
                } else {
                    self.push_code("{{ ");
                    self.quoted(raw.raw);
                    self.push_code(" }}");
                }
            }
            Stmt::ForLoop(each) => {
                self.mark_origin(each.span());
                self.push_code("{% for ");
                self.target(&each.target)?;
                self.push_code(" in ");
                self.expression(&each.iter)?;
                if let Some(filter) = &each.filter_expr {
                    self.push_code(" if ");
                    self.expression(filter)?;
                }
                self.push_code(if each.recursive { " recursive %}" } else { " %}" });
                self.body(&each.body)?;
                if !each.else_body.is_empty() {
                    self.push_code("{% else %}");
                    self.body(&each.else_body)?;
                }
                self.push_code("{% endfor %}");
            }
            Stmt::IfCond(condition) => {
                self.mark_origin(condition.span());
                self.opening("if ", &condition.expr)?;
                self.body(&condition.true_body)?;
                if !condition.false_body.is_empty() {
                    self.push_code("{% else %}");
                    self.body(&condition.false_body)?;
                }
                self.push_code("{% endif %}");
            }
            Stmt::WithBlock(with) => {
                self.mark_origin(with.span());
                self.push_code("{% with ");
                for (index, (target, value)) in with.assignments.iter().enumerate() {
                    self.push_code(if index > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.push_code(" = ");
                    self.expression(value)?;
                }
                self.push_code(" %}");
                self.body(&with.body)?;
                self.push_code("{% endwith %}");
            }
            Stmt::Set(set) => {
                self.mark_origin(set.span());
                self.push_code("{% set ");
                self.target(&set.target)?;
                self.push_code(" = ");
                self.expression(&set.expr)?;
                self.push_code(" %}");
            }
            Stmt::SetBlock(set) => {
                self.mark_origin(set.span());
                self.push_code("{% set ");
                self.target(&set.target)?;
                if let Some(filter) = &set.filter {
                    self.push_code(" | ");
                    self.write_filter_chain(filter)?;
                }
                self.push_code(" %}");
                self.body(&set.body)?;
                self.push_code("{% endset %}");
            }
            Stmt::AutoEscape(escape) => {
                self.opening("autoescape ", &escape.enabled)?;
                self.body(&escape.body)?;
                self.push_code("{% endautoescape %}");
            }
            Stmt::FilterBlock(filter) => {
                self.mark_origin(filter.span());
                self.push_code("{% filter ");
                self.write_filter_chain(&filter.filter)?;
                self.push_code(" %}");
                self.body(&filter.body)?;
                self.push_code("{% endfilter %}");
            }
            other => self.write_part_statement(other)?,
        }
        Ok(())
    }

    /// Writes statements about parts of templates.
    fn write_part_statement(&mut self, statement: &Stmt<'_>) -> Written {
        match statement {
            Stmt::Block(block) => {
                self.mark_origin(block.span());
                self.push_code("{% block ");
                self.push_code(block.name);
                // A required block has only white space.
                if block.required {
                    self.push_code(" required %}");
                } else {
                    self.push_code(" %}");
                    self.body(&block.body)?;
                }
                self.push_code("{% endblock %}");
            }
            Stmt::Import(import) => {
                self.mark_origin(import.span());
                self.push_code("{% import ");
                self.expression(&import.expr)?;
                self.push_code(" as ");
                self.target(&import.name)?;
                self.push_code(" %}");
            }
            Stmt::FromImport(import) => {
                self.mark_origin(import.span());
                self.push_code("{% from ");
                self.expression(&import.expr)?;
                self.push_code(" import ");
                for (index, (name, alias)) in import.names.iter().enumerate() {
                    self.push_code(if index > 0 { ", " } else { "" });
                    self.target(name)?;
                    if let Some(alias) = alias {
                        self.push_code(" as ");
                        self.target(alias)?;
                    }
                }
                self.push_code(" %}");
            }
            Stmt::Extends(extends) => {
                self.mark_origin(extends.span());
                self.opening("extends ", &extends.name)?;
            }
            Stmt::Include(include) => {
                self.mark_origin(include.span());
                self.push_code("{% include ");
                self.expression(&include.name)?;
                self.push_code(if include.ignore_missing { " ignore missing %}" } else { " %}" });
            }
            Stmt::Macro(declared) => {
                self.mark_origin(declared.span());
                self.push_code("{% macro ");
                self.push_code(declared.name);
                self.parameters(declared)?;
                self.push_code(" %}");
                self.body(&declared.body)?;
                self.push_code("{% endmacro %}");
            }
            Stmt::CallBlock(block) => {
                self.mark_origin(block.span());
                self.push_code("{% call");
                self.parameters(&block.macro_decl)?;
                self.push_code(" ");
                self.call(&block.call)?;
                self.push_code(" %}");
                self.body(&block.macro_decl.body)?;
                self.push_code("{% endcall %}");
            }
            Stmt::Do(done) => {
                self.mark_origin(done.span());
                self.push_code("{% do ");
                self.call(&done.call)?;
                self.push_code(" %}");
            }
            Stmt::Continue(_) => self.push_code("{% continue %}"),
            Stmt::Break(_) => self.push_code("{% break %}"),
            _ => return Err(Error::new(ErrorKind::SyntaxError, "unknown statement")),
        }
        Ok(())
    }

    fn opening(&mut self, word: &str, expression: &Expr<'_>) -> Written {
        self.push_code("{% ");
        self.push_code(word);
        self.expression(expression)?;
        self.push_code(" %}");
        Ok(())
    }

    fn parameters(&mut self, declared: &Macro<'_>) -> Written {
        self.push_code("(");
        let plain = declared.args.len().saturating_sub(declared.defaults.len());
        for (index, name) in declared.args.iter().enumerate() {
            self.push_code(if index > 0 { ", " } else { "" });
            self.target(name)?;
            if let Some(default) = index.checked_sub(plain).and_then(|index| declared.defaults.get(index)) {
                self.push_code("=");
                self.expression(default)?;
            }
        }
        self.push_code(")");
        Ok(())
    }

    /// Writes the target of an assignment, unevaluated.
    fn target(&mut self, target: &Expr<'_>) -> Written {
        match target {
            Expr::Var(name) => self.push_code(name.id),
            Expr::GetAttr(attribute) => {
                self.target(&attribute.expr)?;
                self.push_code(".");
                self.push_code(attribute.name);
            }
            Expr::List(list) => self.targets(&list.items)?,
            Expr::Tuple(tuple) => self.targets(&tuple.items)?,
            Expr::Const(_) => self.expression(target)?,
            _ => return Err(Error::new(ErrorKind::SyntaxError, "this expression can't be assigned to")),
        }
        Ok(())
    }

    fn targets(&mut self, targets: &[Expr<'_>]) -> Written {
        self.push_code("(");
        for target in targets {
            self.target(target)?;
            self.push_code(", ");
        }
        self.push_code(")");
        Ok(())
    }

    /// Writes the filters of a filter block: `name(args) | name(args)`.
    fn write_filter_chain(&mut self, filter: &Expr<'_>) -> Written {
        let Expr::Filter(filter) = filter else {
            return Err(Error::new(ErrorKind::SyntaxError, "a filter is expected here"));
        };
        if let Some(inner) = &filter.expr {
            self.write_filter_chain(inner)?;
            self.push_code(" | ");
        }
        self.filter(filter.name, &filter.args)
    }

    fn filter(&mut self, name: &str, args: &[CallArg<'_>]) -> Written {
        if FREE_FILTERS.contains(&name) {
            self.push_code(name);
            return self.arguments("", args);
        }
        self.push_code("filtered");
        let name = serde_json::Value::from(name).to_string();
        self.arguments(&name, args)
    }

    fn arguments(&mut self, first: &str, args: &[CallArg<'_>]) -> Written {
        self.push_code("(");
        self.push_code(first);
        let mut separate = !first.is_empty();
        for arg in args {
            self.push_code(if separate { ", " } else { "" });
            separate = true;
            match arg {
                CallArg::Pos(value) => self.expression(value)?,
                CallArg::Kwarg(name, value) => {
                    self.push_code(name);
                    self.push_code("=");
                    self.expression(value)?;
                }
                CallArg::PosSplat(value) => {
                    self.push_code("*");
                    self.expression(value)?;
                }
                CallArg::KwargSplat(value) => {
                    self.push_code("**");
                    self.expression(value)?;
                }
            }
        }
        self.push_code(")");
        Ok(())
    }

    fn call(&mut self, call: &Call<'_>) -> Written {
        match &call.expr {
            // Parentheses around a name would change the kind of call.
            Expr::Var(name) => self.push_code(name.id),
            Expr::GetAttr(attribute) => {
                self.expression(&attribute.expr)?;
                self.push_code(".");
                self.push_code(attribute.name);
            }
            other => self.expression(other)?,
        }
        self.arguments("", &call.args)
    }

    /// Writes a call of a function with one argument.
    fn write_call(&mut self, function: &str, expression: &Expr<'_>) -> Written {
        self.push_code(function);
        self.push_code("(");
        self.expression(expression)?;
        self.push_code(")");
        Ok(())
    }

    /// Writes a list of expressions, each followed by a comma.
    fn list(&mut self, items: &[Expr<'_>]) -> Written {
        for item in items {
            self.expression(item)?;
            self.push_code(", ");
        }
        Ok(())
    }

    fn expression(&mut self, expression: &Expr<'_>) -> Written {
        self.mark_origin(expression.span());
        match expression {
            Expr::Var(name) => self.push_code(name.id),
            Expr::Const(constant) => match constant.value.as_str() {
                Some(text) => self.quoted(text),
                None => {
                    let span = constant.span();
                    let (from, to) = (usize::try_from(span.start_offset).ok(), usize::try_from(span.end_offset).ok());
                    let written = from.zip(to).and_then(|(from, to)| self.source.get(from..to)).unwrap_or_default();
                    let written = written.to_owned();
                    self.push_code(&written);
                }
            },
            Expr::Slice(slice) => {
                self.write_call("weighed", &slice.expr)?;
                self.push_code("[");
                for (index, bound) in [&slice.start, &slice.stop, &slice.step].into_iter().enumerate() {
                    self.push_code(if index > 0 { ":" } else { "" });
                    bound.iter().try_for_each(|bound| self.expression(bound))?;
                }
                self.push_code("]");
            }
            Expr::UnaryOp(operation) => {
                self.push_code(match operation.op {
                    UnaryOpKind::Not => "(not ",
                    UnaryOpKind::Neg => "(-",
                });
                self.expression(&operation.expr)?;
                self.push_code(")");
            }
            Expr::BinOp(operation) => self.binary(operation.op, &operation.left, &operation.right)?,
            Expr::Compare(compare) => {
                self.push_code("(");
                self.write_call("weighed", &compare.expr)?;
                for next in &compare.ops {
                    self.push_code(match next.op {
                        CompareOpKind::Eq => " == ",
                        CompareOpKind::Ne => " != ",
                        CompareOpKind::Lt => " < ",
                        CompareOpKind::Lte => " <= ",
                        CompareOpKind::Gt => " > ",
                        CompareOpKind::Gte => " >= ",
                        CompareOpKind::In => " in ",
                        CompareOpKind::NotIn => " not in ",
                    });
                    self.write_call("weighed", &next.expr)?;
                }
                self.push_code(")");
            }
            Expr::IfExpr(choice) => {
                self.push_code("(");
                self.expression(&choice.true_expr)?;
                self.push_code(" if ");
                self.expression(&choice.test_expr)?;
                if let Some(otherwise) = &choice.false_expr {
                    self.push_code(" else ");
                    self.expression(otherwise)?;
                }
                self.push_code(")");
            }
            Expr::Filter(filter) => {
                self.push_code("(");
                filter.expr.iter().try_for_each(|value| self.expression(value))?;
                self.push_code("|");
                self.filter(filter.name, &filter.args)?;
                self.push_code(")");
            }
            Expr::Test(test) => {
                self.push_code("(");
                if FREE_FILTERS.contains(&test.name) {
                    self.expression(&test.expr)?;
                } else {
                    self.write_call("weighed", &test.expr)?;
                }
                self.push_code(" is ");
                self.push_code(test.name);
                if !test.args.is_empty() {
                    self.arguments("", &test.args)?;
                }
                self.push_code(")");
            }
            Expr::GetAttr(attribute) => {
                self.expression(&attribute.expr)?;
                self.push_code(".");
                self.push_code(attribute.name);
            }
            Expr::GetItem(item) => {
                self.expression(&item.expr)?;
                self.push_code("[");
                self.expression(&item.subscript_expr)?;
                self.push_code("]");
            }
            Expr::Call(call) => {
                let makes = matches!(&call.expr, Expr::Var(name) if MAP_FUNCTIONS.contains(&name.id));
                self.push_code(if makes { "weighed(" } else { "" });
                self.call(call)?;
                self.push_code(if makes { ")" } else { "" });
            }
            Expr::List(list) => {
                self.push_code("weighed([");
                self.list(&list.items)?;
                self.push_code("])");
            }
            Expr::Tuple(tuple) => {
                self.push_code("weighed((");
                self.list(&tuple.items)?;
                self.push_code("))");
            }
            Expr::Map(map) => {
                self.push_code("weighed({");
                for (key, value) in map.keys.iter().zip(&map.values) {
                    self.expression(key)?;
                    self.push_code(": ");
                    self.expression(value)?;
                    self.push_code(", ");
                }
                self.push_code("})");
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
                self.push_code("product(");
                self.expression(left)?;
                self.push_code(", ");
                self.expression(right)?;
                self.push_code(")");
                return Ok(());
            }
        };
        self.push_code("(");
        self.write_call(function, left)?;
        self.push_code(sign);
        self.write_call(function, right)?;
        self.push_code(")");
        Ok(())
    }
}
