//! `jet(…)`: the Jet template language, put into that of minijinja and rendered there.
//!
//! `expression` and `translate` do the former; this file gives the functions and renders. Loops
//! end: rendering has fuel. Nothing is escaped for HTML.

mod expression;
mod functions;
mod translate;

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, Value as Item};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde_json::Value;

use super::expr::Root;
use super::expr::Sight;
use super::{Inner, remote, text};

pub(super) use self::translate::translate;

/// What rendering may cost; a step of a loop over a list costs about ten.
pub(super) const FUEL: u64 = 5_000_000;

/// The functions that look at the scope.
const SCOPED: &[&str] = &["lookup", "readFile", "file", "template", "kvGet", "registrations", "secret"];

/// True for the name of a function.
pub(super) fn is_function(name: &str) -> bool {
    SCOPED.contains(&name) || functions::TABLE.iter().any(|(known, _)| *known == name)
}

/// Renders a template; the error says what went wrong.
pub(super) fn render(scope: &Arc<Inner>, body: &str, delimiters: (&str, &str), depth: usize) -> Result<String, String> {
    let translated = translate(body, delimiters, &is_function, None).map_err(|wrong| {
        let line = 1 + body.get(..wrong.at).unwrap_or_default().matches('\n').count();
        format!("line {line}: {}", wrong.message)
    })?;
    let source = translated.code;
    let environment = environment(scope, depth)?;
    let root = |used: bool, root| if used { Item::from(Serde(scope.root(root))) } else { Item::UNDEFINED };
    let context = context! {
        facts => root(source.contains("facts"), Root::Facts),
        data => root(source.contains("data"), Root::Data),
        environ => root(source.contains("environ"), Root::Environ),
    };
    environment.render_str(&source, context).map_err(|error| why(&error))
}

/// What translated templates run in.
pub(super) fn environment<'s>(scope: &Arc<Inner>, depth: usize) -> Result<Environment<'s>, String> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.map_err(|error| why(&error))?);
    environment.set_fuel(Some(FUEL));
    environment.add_function("namespace", minijinja::functions::namespace);
    for (name, function) in functions::TABLE.iter().chain(functions::INTERNAL) {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let args = values(&args)?;
            let made = function(&args);
            made.iter().for_each(|made| scope.derived(&args, made));
            answer(made)
        });
    }
    environment.add_function(remote::PROMETHEUS, |list: Item| answer(remote::prometheus(&[value(&list)?])));
    // The name of what is shown comes along, for the error when there is nothing.
    environment.add_function("show", |item: Item, name: String| match value(&item)? {
        Value::Null => Err(failure(format!("missing key '{name}' in environment"))),
        shown => Ok(text::to_text(&shown)),
    });
    environment.add_function("at", |item: Item, key: Item, name: String| {
        if item.is_undefined() || item.is_none() {
            return Err(failure(format!("missing key '{name}': cannot fetch {key} from <nil>")));
        }
        item.get_item(&key)
    });
    environment.add_function("entries", |item: Item, name: String| {
        if item.is_undefined() {
            return Err(failure(format!("missing key '{name}' in environment")));
        }
        answer(functions::entries(&value(&item)?))
    });
    environment.add_function("has", |item: Item| !item.is_undefined() && !item.is_none());
    add_scoped(&mut environment, scope, SCOPED, depth);
    let environ = Arc::clone(scope);
    // As in expressions: what the environment does not have is empty.
    environment.add_function("environ_of", move |name: String| {
        environ.root(Root::Environ).get(&name).and_then(Value::as_str).unwrap_or_default().to_owned()
    });
    Ok(environment)
}

/// Adds functions that look at the scope.
pub(super) fn add_scoped(environment: &mut Environment<'_>, scope: &Arc<Inner>, names: &'static [&'static str], depth: usize) {
    for name in names {
        let scope = Arc::clone(scope);
        environment.add_function(*name, move |args: Rest<Item>| {
            let args = values(&args)?;
            answer(match *name {
                "lookup" => scope.lookup(&args),
                "template" => scope.template(&args, depth),
                "kvGet" | "registrations" => scope.asked(name, &args),
                "secret" => scope.secret(&args),
                "jet" => scope.jet(&args, depth),
                _ => scope.read_file(&args),
            })
        });
    }
}

fn value(item: &Item) -> Result<Value, Error> {
    serde_json::to_value(item).map_err(|error| failure(error.to_string()))
}

fn values(items: &[Item]) -> Result<Vec<Value>, Error> {
    items.iter().map(value).collect()
}

fn answer(result: Result<Value, String>) -> Result<Item, Error> {
    result.map(|value| Item::from(Serde(value))).map_err(failure)
}

pub(super) fn failure(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The error without the places in what it was put into.
pub(super) fn why(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.kind() {
        ErrorKind::OutOfFuel => "the template does not end".to_owned(),
        _ => detail,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::scope;

    fn render(body: &str) -> Result<String, String> {
        let shown = scope().inner.jet(&[body.into()], 0).map(|value| value.as_str().unwrap_or_default().to_owned());
        shown.map_err(|error| error.trim().to_owned())
    }

    #[test]
    fn templates_render() {
        let cases = [
            ("", ""),
            ("plain { {{ }} {% x %} {# #}\n", "plain { {{ }} {% x %} {# #}\n"),
            ("J [[ data.name ]] [[ Data.port ]] [[ if data.on ]]on[[ end ]]\n", "J shop 8080 on\n"),
            ("[[ .Data.name ]] [[ facts.role ]] [[ Facts.role ]] [[ environ.ZONE ]][[ environ.NOPE ]]", "shop web web dmz"),
            ("[[ if data.off ]]a[[ else if data.port == 8080 ]]b[[ else ]]c[[ end ]]", "b"),
            ("[[ if data.off || !data.on ]]a[[ else ]]c[[ end ]]", "c"),
            ("[[ range data.list ]]<[[ . ]]>[[ end ]]", "<a><b><c>"),
            ("[[ range i := data.list ]][[ i ]]=[[ . ]] [[ end ]]", "0=a 1=b 2=c "),
            ("[[ range i, v := data.list ]][[ i ]]:[[ v ]] [[ end ]]", "0:a 1:b 2:c "),
            ("[[ range k, v := data.m.n ]][[ k ]]=[[ v ]][[ end ]]", "x=1"),
            ("[[ range data.users ]][[ .name ]][[ if .uid > 1 ]]![[ end ]][[ end ]]", "xyy!"),
            ("[[ range i, v := data.users ]][[ .Data.name ]][[ end ]]", "shopshop"),
            ("[[ range data.none ]]x[[ else ]]none[[ end ]]", "none"),
            ("[[ x := data.port + 1 ]][[ x ]][[ x = x * 2 ]] [[ x ]]", "8081 16162"),
            ("[[ n := 0 ]][[ range data.nums ]][[ n = n + . ]][[ end ]][[ n ]]", "6"),
            ("[[ x := 1 ]][[ if true ]][[ x := 2 ]][[ x ]][[ end ]][[ x ]]", "21"),
            ("a{* gone [[ x ]] *}b", "ab"),
            ("a  [[- data.name -]]  b", "ashopb"),
            ("[[ len(data.list) ]] [[ len: data.name ]] [[ data.name | upper | len ]]", "3 4 4"),
            ("[[ isset(data.nope.deeper) ]] [[ isset(data.name, data.m.k) ]] [[ isset(data.none) ]]", "false true false"),
            ("[[ data.on ? \"yes\" : \"no\" ]] [[ data.nope == nil ? 1 : 2 ]]", "yes 1"),
            (
                "[[ data.list[1] ]] [[ data.m[\"k\"] ]] [[ data.list[1:] ]] [[ data.list ]] [[ data.m ]]",
                "b v [b c] [a b c] map[k:v n:map[x:1]]",
            ),
            (
                "[[ 10 / 4 ]] [[ 10 / 4.0 ]] [[ 7 % 4 ]] [[ (1 + 2) * 3 ]] [[ -1 + 2 ]] [[ \"p\" + data.port ]]",
                "2 2.5 3 9 1 p8080",
            ),
            ("[[ if data.nope ]]x[[ end ]][[ if data.port >= 80 && data.name != \"x\" ]]y[[ end ]]", "y"),
            (
                "[[ lookup(\"data.m.k\") ]] [[ lookup(\"data.no\", \"d\") ]] [[ file(\"x.txt\") | trimSpace ]]",
                "v d plain {{ Data.no }}",
            ),
            (
                "[[ replace(data.name, \"s\", \"<&>\", -1) ]] [[ \"a,b\" | split: \",\" ]] [[ 2 | repeat(\"ab\", _) ]]",
                "<&>hop [a b] abab",
            ),
            (
                "[[ range i := ints(0, 3) ]][[ i ]][[ end ]] [[ slice(1, \"x\") ]] [[ map(\"a\", 1).a ]] [[ json(data.m) ]]",
                "012 [1 x] 1 {\"k\":\"v\",\"n\":{\"x\":1}}",
            ),
            ("[[ template(\"{{ Data.port + 1 }}\") ]] [[ data.evil ]] [[ `[[ raw ]]` ]]", "8081 {{ Data.name }} [[ raw ]]"),
        ];
        for (body, expected) in cases {
            assert_eq!(render(body).as_deref(), Ok(expected), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases = [
            ("[[ data.nope ]]", "missing key 'data.nope' in environment"),
            ("[[ data.nope.deeper ]]", "missing key 'data.nope': cannot fetch deeper from <nil>"),
            ("[[ range data.users ]][[ .no.way ]][[ end ]]", "missing key '.no': cannot fetch way"),
            ("[[ range data.nope ]][[ end ]]", "missing key 'data.nope' in environment"),
            ("[[ range data.port ]][[ end ]]", "nothing to range over"),
            ("a\n[[ nosuch ]]", "line 2: unknown name nosuch"),
            ("[[ nosuch(1) ]]", "line 1: unknown name nosuch"),
            ("[[ kvGet(\"a\", \"b\") ]]", "kvGet function not available"),
            ("[[ if data.on ]]x", "line 1: if without end"),
            ("x[[ end ]]", "line 1: end without a beginning"),
            ("[[ else ]]", "else without if or range"),
            ("[[ data.x", "line 1: [[ without ]]"),
            ("{* open", "the comment does not end"),
            ("[[ include \"x\" ]]", "line 1: include is not supported"),
            ("[[ x = 1 ]]", "x is not declared"),
            ("[[ 1 + ]]", "line 1: unexpected end"),
            ("[[ 1 2 ]]", "line 1: unexpected 2"),
            ("[[ lookup(\"data.nope\") ]]", "missing key 'data.nope' in environment"),
            ("[[ file(\"nope\") ]]", "failed to read file \"nope\""),
            (
                "[[ range ints(0, 1000) ]][[ range ints(0, 1000) ]][[ range ints(0, 1000) ]]x[[ end ]][[ end ]][[ end ]]",
                "does not end",
            ),
        ];
        for (body, expected) in cases {
            let error = render(body).expect_err(body);
            assert!(error.contains(expected), "{body}: {error}");
        }
    }

    #[test]
    fn nothing_panics() {
        use proptest::prelude::*;
        let words = prop::sample::select(vec![
            "[[", "]]", "if", "else", "end", "range", "x", ":=", "=", "data", ".", "name", "list", "(", ")", "[", "]", "+", "-",
            "|", "len", "\"a\"", "1", "{*", "*}", "{{", "?", ":", ",", "_", "!", "\n", "nil", "&&", "==",
        ]);
        proptest!(|(words in prop::collection::vec(words, 0..14))| {
            drop(render(&words.join(" ")));
            drop(render(&format!("[[ {} ]]", words.join(" "))));
        });
    }
}
