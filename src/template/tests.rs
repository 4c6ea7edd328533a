use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::Secrets;

fn data() -> Value {
    json!({
        "port": 8080, "name": "shop", "on": true, "off": false, "ratio": 3.25159, "list": ["a", "b", "c"],
        "nums": [3, 1, 2], "m": {"k": "v", "n": {"x": 1}}, "empty": "", "zero": 0, "el": [], "em": {}, "neg": -42, "big": 1_000_000,
        "none": null, "users": [{"name": "x", "uid": 1}, {"name": "yy", "uid": 2}],
        "app_name": "myapp", "evil": "{{ Data.name }}",
    })
}

fn facts() -> Value {
    json!({
        "host": {"info": {"os": "linux", "platformFamily": "debian"}}, "role": "web", "n": "5", "a.b": "1", "e": "",
        "eq": "x=y:z", "x": "{{ Data.name }}",
        "network": {"interfaces": [{"name": "lo"}, {"name": "eth0"}]},
    })
}

pub(super) fn scope() -> Scope {
    let environ = BTreeMap::from([("ZONE".to_owned(), "dmz".to_owned())]);
    let reader: TemplateFileReader = Arc::new(|path| {
        let text = match path {
            "x.txt" => "plain {{ Data.no }}\n",
            "t.templ" => "T {{ Data.name }} ${ Data.port }\n",
            "self.templ" => "{{ template('self.templ') }}",
            "broken.jet" => "x [[ else ]]",
            "broken.templ" => "{{ 1 + }}",
            "j.jet" => "J [[ data.name ]] [[ Data.port ]] [[ if data.on ]]on[[ end ]]\n",
            _ => return Err("no such file".to_owned()),
        };
        Ok(TemplateFile { text: text.to_owned(), is_in_manifest: path != "x.txt" })
    });
    Scope::new(Arc::new(facts), data(), environ).with_reader(reader)
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    let scope = scope();
    for (text, expected) in cases {
        assert_eq!(scope.resolve_text(text).as_deref().map_err(ToString::to_string), Ok(*expected), "{text}");
    }
}

#[track_caller]
fn check_errors(cases: &[(&str, &str)]) {
    let scope = scope();
    for (text, expected) in cases {
        let error = scope.resolve_text(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn delimiters() {
    check(&[
        ("", ""),
        ("plain text", "plain text"),
        ("{{ Data.name }}", "shop"),
        ("${ Data.name }", "shop"),
        ("{{Data.name}}-${Data.port}-{{   Data.name   }}", "shop-8080-shop"),
        ("{{ Data.name }}{{ Data.port }}", "shop8080"),
        ("pre ${ Data.name } post", "pre shop post"),
        ("$5 and $name and $(cmd)", "$5 and $name and $(cmd)"),
        ("{ x } and } and {", "{ x } and } and {"),
        ("{{ unterminated", "{{ unterminated"),
        ("${ unterminated", "${ unterminated"),
        ("${{ Data.name }}", "$shop"),
    ]);
}

#[test]
fn functions_of_the_language() {
    check(&[
        ("{{ upper(Data.name) }} {{ Data.name | upper() }} {{ lower('ABC') }} {{ trim('  x ') }}", "SHOP SHOP abc x"),
        ("{{ join(Data.list, \"-\") }} {{ Data.list | join(\",\") }}", "a-b-c a,b,c"),
        ("{{ split(\"a,b,c\", \",\") | last() }} {{ len(Data.list) }} {{ first(Data.list) }}", "c 3 a"),
        ("{{ replace(Data.name, \"s\", \"S\") }} {{ repeat(\"ab\", 2) }}", "Shop abab"),
        ("{{ int('42') + 1 }} {{ string(42) + 'x' }} {{ float('1.5') * 2 }}", "43 42x 3"),
        ("{{ Data.list[0] }} {{ Data.list[-1] }} {{ Data.m['k'] }} {{ Data.m.n.x }}", "a c v 1"),
        ("{{ Facts.n + '1' }} {{ int(Facts.n) + 1 }} {{ Facts['a.b'] }}", "51 6 1"),
        ("${ map(Data.nums, { # + 1 }) } {{ filter(Data.nums, # > 1) }}", "[4 2 3] [3 2]"),
        ("{{ filter(Data.users, .uid > 1)[0].name }} {{ map(Data.users, {.name + '!'}) }}", "yy [x! yy!]"),
        ("{{ {'a': Data.port, b: [1, Data.name]}.b[1] }} {{ toJSON({a: 1}) }}", "shop {\n  \"a\": 1\n}"),
        ("{{ 1..Data.zero + 3 }} {{ sum(1..10) }} {{ 2 in 1..3 }}", "[1 2 3] 55 true"),
        ("{{ 'it\\'s' + \"\\u00e9\\n\" + `a\\b` + \"`\" }}", "it's\u{e9}\na\\b`"),
        ("{{ let p = Data.port; p + 1 }}", "8081"),
        ("{{ duration('1h').Minutes() }}", "60"),
        ("{{ now().Year() > 2000 }}", "true"),
    ]);
}

#[test]
fn operators() {
    check(&[
        ("{{ Data.port + 1 }} {{ Data.port - 80 }} {{ Data.port * 2 }} {{ Data.port % 1000 }}", "8081 8000 16160 80"),
        ("{{ Data.on && !Data.off }} {{ Data.on || Data.off }} {{ Data.on and not Data.off }}", "true true true"),
        ("{{ \"b\" in Data.list }} {{ \"z\" not in Data.list }} {{ \"k\" in Data.m }}", "true true true"),
        ("{{ Data.name != \"x\" }} {{ Data.port >= 8080 }} {{ 1 < 2 }}", "true true true"),
        (
            "{{ Data.name contains \"ho\" }} {{ Data.name startsWith \"sh\" }} {{ Data.name matches \"^s.+p$\" }}",
            "true true true",
        ),
        ("{{ Data.on ? 'yes' : 'no' }} {{ Data.off ? 'yes' : 'no' }} {{ !Data.on ? 1 : 2 }}", "yes no 2"),
        ("{{ Data.port > 8000 ? (Data.port > 9000 ? 'huge' : 'big') : 'small' }}", "big"),
        ("{{ Data.name == \"shop\" ? Data.port : 0 }}", "8080"),
    ]);
}

#[test]
fn values_print() {
    check(&[
        ("{{ Data.port }} {{ Data.big }} {{ Data.zero }} {{ Data.neg }}", "8080 1000000 0 -42"),
        ("{{ Data.on }} {{ Data.off }} [{{ Data.empty }}]", "true false []"),
        ("{{ Data.ratio }} {{ 0.5 }} {{ 10 / 4 }} {{ 8080.0 }} {{ 1000000.0 }}", "3.25159 0.5 2.5 8080 1e+06"),
        ("{{ Data.list }} {{ Data.m }}", "[a b c] map[k:v n:map[x:1]]"),
        ("{{ Facts.x }} [{{ Data.evil }}]", "{{ Data.name }} [{{ Data.name }}]"),
    ]);
}

#[test]
fn missing_keys_are_errors() {
    check(&[
        ("[{{ Data.nope ?? \"dflt\" }}]", "[dflt]"),
        ("[{{ Data.nope?.deeper ?? \"none\" }}]", "[none]"),
        ("[{{ Environ.NOPE }}]", "[]"),
        ("{{ Environ.ZONE }} {{ Environ.ZONE == 'dmz' ? 'in' : 'out' }}", "dmz in"),
        ("{{ Data.nope == nil }}", "true"),
        ("{{ Data.nope != nil ? Data.nope.deeper : 'no' }}", "no"),
    ]);
    check_errors(&[
        ("[{{ Data.nope }}]", "missing key 'Data.nope' in environment"),
        ("[{{ Facts.nope }}]", "missing key 'Facts.nope' in environment"),
        ("{{ Data.none }}", "missing key 'Data.none'"),
        ("{{ nil }}", "no value"),
        ("{{ Data.nope.deeper }}", "missing key 'Data.nope': cannot fetch deeper from <nil>"),
        ("{{ Data.list[9] }}", "index out of range: 9 (Data.list has 3 elements)"),
        ("{{ Data.port.x }}", "cannot fetch x from Data.port: it is a number"),
        ("{{ Data.nope + 1 }}", "(missing key 'Data.nope')"),
    ]);
}

#[test]
fn errors_show_the_expression_and_its_place() {
    check_errors(&[
        ("{{ nosuchthing }}", "expr compile error for 'nosuchthing': unknown name nosuchthing"),
        ("{{ invalid syntax }}", "expr compile error for 'invalid syntax': unknown name invalid"),
        ("{{ 1 + }}", "expr compile error for '1 +': unexpected end"),
        ("{{ upper( }}", "expr compile error for 'upper(': the ( is not closed"),
        ("{{ 1 2 }}", "unexpected '2'"),
        ("{{ }}", "expr compile error for '': the expression is empty"),
        ("{{ kvGet('a', 'b') }}", "kvGet function not available"),
        ("{{ Data.name + 1 }}", "in 'Data.name + 1'"),
        ("{{ 1..99999999999 }}", "longer than"),
    ]);
    let error = scope().resolve_text("one\n\u{e9} {{ 1 + nosuch }}").unwrap_err();
    assert_eq!((error.offset, error.line, error.column), (14, 2, 10));
    let error = scope().resolve_tree(&json!({"a": ["x", {"b": "{{ no }}"}]})).unwrap_err();
    assert_eq!(error.path, ["a", "1", "b"]);
}

#[test]
fn lookups() {
    check(&[
        ("{{ lookup(\"data.name\") }} {{ lookup(\"data.m.n.x\") }}", "shop 1"),
        ("{{ lookup(\"data.list.1\") }} {{ lookup(\"data.list.#\") }}", "b 3"),
        ("{{ lookup(\"data.nope\", \"dflt\") }} {{ lookup(\"data.nope\", 42) }}", "dflt 42"),
        ("{{ lookup(\"facts.role\") }} {{ lookup('environ.ZONE') }} {{ lookup('env.ZONE') }}", "web dmz dmz"),
        ("{{ lookup('environ.NOPE', 'dflt') }} {{ lookup('facts.a.b', 'none') }}", "dflt none"),
        ("{{ lookup('data.empty', 'not used') }}|{{ lookup('data.off', true) }}", "|false"),
        ("{{ lookup('facts.host.info.os') }} {{ Facts.host.info.os }} {{ Facts.host.info.OS }}", "linux linux linux"),
        ("{{ Facts.host.info.PlatformFamily }} {{ lookup('data.big') }}", "debian 1000000"),
    ]);
    check_errors(&[
        ("{{ lookup(\"data.nope\") }}", "missing key 'data.nope' in environment"),
        ("{{ lookup(\"data.nope\", nil) }}", "missing key 'data.nope' in environment"),
        ("{{ lookup() }}", "lookup requires 1 or 2 arguments"),
        ("{{ lookup(1) }}", "lookup requires a string argument"),
    ]);
}

#[test]
fn types_are_kept() {
    let scope = scope();
    let cases = [
        ("{{ Data.port }}", json!(8080)),
        ("${  Data.port  }", json!(8080)),
        ("Port: {{ Data.port }}", json!("Port: 8080")),
        ("{{ Data.on }}", json!(true)),
        ("{{ Data.m }}", json!({"k": "v", "n": {"x": 1}})),
        ("{{ Data.nope }}", json!(null)),
        ("{{ Data.a }}{{ Data.b }}", json!("")),
        ("plain", json!("plain")),
        ("{{ template('{{ Data.port }}') }}", json!(8080)),
    ];
    for (text, expected) in cases {
        let value = scope.resolve_value(text).or_else(|error| if text.contains("Data.a") { Ok(json!("")) } else { Err(error) });
        assert_eq!(value, Ok(expected), "{text}");
    }
    let tree = scope.resolve_tree(&json!({"{{ k }}": ["{{ Data.port }}", 1, "x{{ Data.zero }}"]})).unwrap();
    assert_eq!(tree, json!({"{{ k }}": [8080, 1, "x0"]}));
}

#[test]
fn files_and_templates() {
    check(&[
        ("{{ readFile('x.txt') }}", "plain {{ Data.no }}\n"),
        ("{{ file('x.txt') | trim() | upper() }}", "PLAIN {{ DATA.NO }}"),
        ("{{ template('t.templ') }}", "T shop 8080\n"),
        ("{{ template(\"x-\" + Data.name) }}", "x-shop"),
        ("{{ template('j.jet') }}", "J shop 8080 on\n"),
        ("{{ jet('j.jet') }}", "J shop 8080 on\n"),
        ("{{ jet('[[ data.name ]]!') }}", "shop!"),
        ("{{ jet('<< data.name >>', '<<', '>>') }}", "shop"),
    ]);
    check_errors(&[
        ("{{ file('nope') }}", "failed to read file \"nope\": no such file"),
        ("{{ template('nope.templ') }}", "failed to read file"),
        ("{{ template() }}", "template requires a string argument"),
        ("{{ template(123) }}", "template requires a string argument"),
        ("{{ file(1) }}", "readFile requires a string argument"),
        ("{{ template('self.templ') }}", "nested more than"),
        ("{{ jet() }}", "jet requires 1 or 3 arguments"),
        ("{{ jet('a', 'b') }}", "jet requires 1 or 3 arguments"),
        ("{{ jet(1) }}", "jet requires a string argument for template body"),
        ("{{ jet('a', 1, 'b') }}", "jet requires a string argument for left delimiter"),
        ("{{ jet('a', 'b', 1) }}", "jet requires a string argument for right delimiter"),
        ("{{ jet('[[ data.nope ]]') }}", "missing key 'data.nope' in environment"),
    ]);
}

#[test]
fn conditions() {
    let scope = scope();
    assert_eq!(scope.evaluate_condition("Facts.host.info.os == \"linux\""), Ok(true));
    assert_eq!(scope.evaluate_condition("Data.off"), Ok(false));
    assert!(scope.evaluate_condition("Data.port").unwrap_err().to_string().contains("must be true or false, this is '8080'"));
    assert!(scope.evaluate_condition("Data.nope").unwrap_err().to_string().contains("<nil>"));
    assert!(scope.evaluate_condition("nosuch").unwrap_err().to_string().contains("expr compile error"));
}

#[test]
fn a_restricted_scope_sees_facts_only() {
    let scope = Scope::restricted(Arc::new(facts));
    assert_eq!(
        scope.resolve_text("{{ lookup('facts.nope') }}|{{ lookup('facts.nope', 'd') }}|{{ Facts.role }}").unwrap(),
        "|d|web"
    );
    assert_eq!(scope.resolve_value("{{ lookup('facts.role') == 'web' }}"), Ok(json!(true)));
    for text in ["{{ Data.x }}", "{{ Environ.HOME }}", "{{ readFile('x') }}", "{{ file('x') }}", "{{ template('x') }}"] {
        assert!(scope.resolve_text(text).unwrap_err().kind != TemplateErrorKind::Evaluation, "{text}");
    }
    let cases = [
        ("role:{{ lookup('facts.role') }}", ("role:web", true)),
        ("host:{{ lookup('facts.nope') }}", ("host:", false)),
        ("host:{{ Facts.nope }}", ("host:", false)),
        ("{{ lookup('facts.nope') }}{{ 1 == 2 }}", ("false", true)),
        ("global", ("global", true)),
        ("", ("", false)),
    ];
    for (text, (expected, holds)) in cases {
        assert_eq!(scope.match_text(text), Ok((expected.to_owned(), holds)), "{text}");
    }
}

#[test]
fn secrets_are_given_and_noted() {
    let secrets = Arc::new(Secrets::default());
    let vault: SecretReader = Arc::new(|name| match name {
        "pw" => Ok("hunter2".to_owned()),
        _ => Err(format!("there is no secret \"{name}\"")),
    });
    let data = json!({"pw": "hunter2", "deep": {"list": ["a hunter2"]}, "plain": "plain"});
    let scope = Scope::new(Arc::new(facts), data, BTreeMap::new()).with_secrets(vault.clone(), Arc::clone(&secrets));
    assert_eq!(scope.resolve_text("-p {{ secret('pw') }}").unwrap(), "-p hunter2");
    assert_eq!(scope.resolve_text("{{ jet('[[ secret(\"pw\") ]]') }}").unwrap(), "hunter2");
    // Values derived from a secret, by any path, are secrets too.
    for (text, made) in [
        ("{{ upper(secret('pw')) }}", "HUNTER2"),
        ("{{ toBase64(Data.pw) }}", "aHVudGVyMg=="),
        ("{{ Data.deep.list[0][2:7] }}", "hunte"),
        ("{{ replace(lookup('data.pw'), 'h', 'H') }}", "Hunter2"),
        ("{{ jet('[[ data.pw | replace: \"2\", \"3\" ]]') }}", "hunter3"),
        ("{{ let x = Data.deep; trimPrefix(x.list[0], 'a hun') }}", "ter2"),
    ] {
        assert_eq!(scope.resolve_text(text).unwrap(), made, "{text}");
        assert!(secrets.contains_secret(made), "{text}");
    }
    assert_eq!(scope.resolve_text("{{ upper(Data.plain) }}").unwrap(), "PLAIN");
    assert!(!secrets.contains_secret("PLAIN"));
    for (text, why) in [
        ("{{ secret('no') }}", "there is no secret \"no\""),
        ("{{ secret() }}", "secret requires a string argument"),
        ("{{ secret('pw') | int() }}", "***"),
    ] {
        let error = scope.resolve_text(text).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
    }
    let restricted = Scope::restricted(Arc::new(facts)).with_secrets(vault, secrets);
    assert_eq!(restricted.resolve_value("{{ secret('pw') }}"), Ok(json!("hunter2")));
    assert!(super::tests::scope().resolve_text("{{ secret('pw') }}").unwrap_err().detail.contains("no access to secrets"));
}

#[test]
fn facts_are_gathered_once_on_first_use() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let gather: FactsSource = Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        facts()
    });
    let scope = Scope::new(gather, data(), BTreeMap::new());
    scope.resolve_text("{{ Data.name }} {{ lookup('data.port') }}").unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    scope.resolve_text("{{ Facts.role }} {{ lookup('facts.n') }}").unwrap();
    scope.with_reader(Arc::new(|_| Err(String::new()))).resolve_text("{{ Facts.role }}").unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_scope_crosses_threads() {
    fn crosses<T: Send + Sync + 'static>(_: &T) {}
    crosses(&scope());
    assert!(is_template("a {{ b }}") && is_template("${x}") && !is_template("{{ a") && !is_template("$x"));
}

#[test]
fn the_worst_expressions_end() {
    let deep = |open: &str, close: &str, count: usize| format!("{}1{}", open.repeat(count), close.repeat(count));
    let cases = [
        format!("1{}", "+1".repeat(200)),
        format!("true{}", " ? true : true".repeat(200)),
        format!("true{}", " ? true".repeat(200) + &" : true".repeat(200)),
        format!("nil{}", " ?? nil".repeat(200)),
        format!("1{}", " | max(1)".repeat(200)),
        deep("(", ")", 31),
        deep("[", "]", 31),
        format!("{}true{}", "!(".repeat(30), ")".repeat(30)),
        format!("{}1{}", "Data.list[Data.m.n.x + ".repeat(6), "]".repeat(6)),
        format!("{}1", "Data.list[Data.m.n.x + ".repeat(6)),
        format!("{}1{}", "map([1], {# + len(string(".repeat(7), "))})".repeat(7)),
        format!("{}1", "{a: {b: ".repeat(15)),
        format!("{}1{}", "{a: ".repeat(31), "}".repeat(31)),
        format!("{}1{}", "if true {".repeat(30), "} else {1}".repeat(30)),
        format!("{}1{}", "int(".repeat(31), ")".repeat(31)),
        format!("{}1", "not ".repeat(200)),
        format!("{}1", "-".repeat(200)),
        format!("let x = Data; x{}", ".m".repeat(200)),
        format!("let x = Data; x{}", "['m']".repeat(200)),
        format!("[{}]", "1, ".repeat(5000)),
        format!("{}1", "let x = 1;".repeat(200)),
    ];
    // The stack of a worker thread; unoptimised builds need more for the same depth.
    let stack = if cfg!(debug_assertions) { 16 << 20 } else { 2 << 20 };
    let run = move || {
        for source in cases {
            let started = std::time::Instant::now();
            drop(scope().resolve_value(&format!("{{{{ {source} }}}}")));
            assert!(started.elapsed().as_secs() < 60, "{source}");
        }
    };
    std::thread::Builder::new().stack_size(stack).spawn(run).unwrap().join().unwrap();
}

#[test]
fn times_in_zones() {
    check(&[
        (
            "{{ date('2026-07-01T12:00:00Z').In(timezone('Europe/Berlin')).Format('2006-01-02 15:04 MST -0700') }}",
            "2026-07-01 14:00 CEST +0200",
        ),
        ("{{ date('2026-01-01T12:00:00Z').In(timezone('Europe/Berlin')).IsDST() }}", "false"),
        ("{{ date('2026-07-01T12:00:00Z').In(timezone('Europe/Berlin')).IsDST() }}", "true"),
        ("{{ date('2026-07-01T12:00:00Z').In(timezone('US/Eastern')).String() }}", "2026-07-01 08:00:00 -0400 EDT"),
        ("{{ date('2026-07-01T12:00:00Z').In(timezone('America/Sao_Paulo')).String() }}", "2026-07-01 09:00:00 -0300 -03"),
        // A local time that occurs twice is the earlier of the two.
        (
            "{{ date('2026-10-25 02:30:00', '2006-01-02 15:04:05', 'Europe/Berlin').UTC().String() }}",
            "2026-10-25 00:30:00 +0000 UTC",
        ),
        (
            "{{ date('2026-10-25 02:30:00', '2006-01-02 15:04:05', 'Europe/Berlin').Add(duration('1h')).String() }}",
            "2026-10-25 02:30:00 +0100 CET",
        ),
        (
            "{{ date('1850-01-01 00:00:00', '2006-01-02 15:04:05', 'Europe/Berlin').UTC().String() }}",
            "1849-12-31 23:06:32 +0000 UTC",
        ),
        (
            "{{ string(timezone('Asia/Kolkata')) }} {{ string(timezone('Etc/GMT+5')) }} {{ string(timezone('UTC')) }}",
            "Asia/Kolkata Etc/GMT+5 UTC",
        ),
        ("{{ now().Location().String() }}", "UTC"),
    ]);
    check_errors(&[
        ("{{ timezone('Europe/Nowhere') }}", "unknown time zone Europe/Nowhere"),
        ("{{ timezone('europe/berlin') }}", "unknown time zone europe/berlin"),
        (
            "{{ date('2026-03-29 02:30:00', '2006-01-02 15:04:05', 'Europe/Berlin') }}",
            "the clocks of Europe/Berlin skip 2026-03-29 02:30:00",
        ),
    ]);
}

proptest! {
    #[test]
    fn no_expression_panics(
        words in prop::collection::vec(prop::sample::select(vec![
            "Data", ".port", ".list", ".m", "Facts", "1", "2.5", "'a'", "\"b\"", "`c`", "+", "-", "*", "/", "%", "**", "..",
            "==", "<", "&&", "||", "!", "not", "in", "matches", "?", ":", "??", "?.", "|", ",", "(", ")", "[", "]", "{", "}",
            "#", "map", "filter", "len", "lookup", "nil", "true", "let", "x", "=", ";", "if", "else", "a:", "$env", "b'x'",
            "upper()", "sum(1..3)", "now()", "reduce", "get", "split", "0x1F", "join(", "repeat('a', ", "[0]", "[-1]", "[1:]",
        ]), 0..12),
    ) {
        drop(scope().resolve_value(&format!("{{{{ {} }}}}", words.join(" "))));
    }

    #[test]
    fn text_without_openers_stays(text in "[^{]{0,40}") {
        prop_assert_eq!(scope().resolve_text(&text).unwrap(), text.as_str());
    }
}

#[test]
fn syntax_errors_are_found_before_resolving() {
    for (text, expected) in [
        ("plain {{ Data.nope }} ${ lookup('data.nope') }", ""),
        ("{{ jet('[[ data.name ]]') }} {{ template('{{ Data.port }}') }}", ""),
        ("{{ jet('j.jet') }} {{ template('t.templ') }} {{ template('self.templ') }} {{ jet('nope.jet') }}", ""),
        ("{{ 1 + 'a' }}", "invalid operation: int + string"),
        ("a {{ upper( }}", "the ( is not closed"),
        ("{{ jet('[[ if data.on ]]x') }}", "jet:1:1: if without end"),
        ("{{ Data.off ? jet('a\n [[ nosuch ]]') : '' }}", "jet:2:2: unknown name nosuch"),
        ("{{ jet('<< data.name', '<<', '>>') }}", "jet:1:1: << without >>"),
        ("{{ template('a {{ nosuch }}') }}", "'nosuch': unknown name nosuch"),
        ("{{ template('{{ jet(\"[[ end ]]\") }}') }}", "jet:1:1: end without an open statement"),
        ("{{ jet('broken.jet') }}", "broken.jet:1:3: else without if"),
        ("{{ template('broken.templ') }}", "'1 +': unexpected end"),
    ] {
        let found = scope().check_text(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(if expected.is_empty() { found.is_empty() } else { found.contains(expected) }, "{text}: {found}");
    }
    assert!(scope().check_condition("Data.on and Data.port > 1").is_ok());
    for (text, expected) in
        [("1 + 1", "expected true or false, got int"), ("'x'", "got string"), ("Data.x ==", "unexpected end"), ("", "empty")]
    {
        let found = scope().check_condition(text).unwrap_err().to_string();
        assert!(found.contains(expected), "{text}: {found}");
    }
    assert!(scope().is_constant("false", false) && scope().is_constant("not true and Data.x", false));
    assert!(!scope().is_constant("Data.off", false));
    assert_eq!(mask_expressions("a {{ Data.x }} b"), "a x b");
    assert_eq!(unclosed("a {{ Data.x"), Some(2));
}
