//! Attacks by expressions: reads in disguise, and evaluations that never end or take all memory.

use serde_json::{Map, Value, json};

use super::arena::Arena;
use super::cases::{AttackRequest, Case, ensure, file, harmless, with};

/// Ways to a forbidden value within an expression, and properties that render one.
pub fn reads() -> Vec<Case> {
    let mut cases = Vec::new();
    for expression in [
        "Environ['AGENT_SECRET']",
        "get(Environ, 'AGENT_SECRET')",
        "toJSON(Environ)",
        "values(Environ)",
        "toPairs(Environ)",
        "string(Environ)",
        "map(keys(Environ), Environ[#])",
        "filter(values(Environ), # startsWith 'correct')",
        "$env.Environ.AGENT_SECRET",
        "$env['Environ']['AGENT_SECRET']",
        "let e = Environ; e.AGENT_SECRET",
        "let f = 'W/secret'; readFile(f)",
        "'W/secret' | readFile()",
        "map(['W/secret'], readFile(#))[0]",
        "toJSON({'a': readFile('W/secret')})",
        "reverse(split(readFile('W/secret'), ''))",
        "readFile('W/www/chain0')",
        "readFile('W/www/./leak')",
        "readFile('//' + 'W/secret')",
        "readFile('/proc/self/cwd/../..W/secret')",
        "file('/proc/self/fd/0')",
        "readFile('/proc/self/root/etc/shadow')",
        "readFile('W/secret\\0')",
        "template('{{ readFile(\"W/secret\") }}')",
        "template('{{ Environ.AGENT_SECRET }}')",
        "jet('[[ readFile(\"W/secret\") ]]')",
        "jet('[[ include \"W/secret\" ]]')",
        "jet('[[ environ.AGENT_SECRET ]]')",
        "jet('<< secret(\"env:AGENT_SECRET\") >>', '<<', '>>')",
        "lookup('environ')",
        "lookup('environ.@tostr')",
        "lookup('environ.AGENT*')",
        "lookup('@this')",
        "lookup('[environ,facts]')",
        "lookup('@this|@tostr')",
        "secret('credential:../../W/secret')",
        "secret('credential:node')",
        "secret('file:W/www/leak')",
        "secret('file:/proc/self/environ')",
        "secret('env:PATH')",
        "kvGet('conf', 'x')",
        "registrations('*', '*', '*', '*')",
        "readFile('W/secret') ?? 'x'",
        "readFile('W/secret') == '' ? 'a' : 'b'",
        "readFile('W/secret') matches '^c' ? readFile('W/x') : 'b'",
        "1 / len(readFile('W/secret'))",
        "fromJSON(readFile('W/secret'))",
        "int(readFile('W/secret'))",
        "date(readFile('W/secret'))",
        "duration(secret('env:AGENT_SECRET'))",
        "fromBase64(Environ.AGENT_SECRET)",
        "repeat(Environ.AGENT_SECRET, 2)",
    ] {
        for (key, base, slot) in [
            ("files", file(), "content"),
            ("names", file(), "content"),
            ("exact", with(&file(), &json!({"name": "W/www/plain"})), "alias"),
            ("any-file", file(), "content"),
            ("any-file", file(), "mode"),
            ("any-file", file(), "name"),
        ] {
            let case = ensure(key, "file", with(&base, &json!({slot: format!("{{{{ {expression} }}}}")})));
            // A variable outside of the scope is empty, and a condition may end without a read. A secret in the file counts.
            cases.push(harmless(case));
        }
    }
    for more in [
        json!({"require": ["file#{{ readFile('W/secret') }}"]}),
        json!({"subscribe": ["file#{{ Environ.AGENT_SECRET }}"]}),
        json!({"control": {"if": "readFile('W/secret') startsWith 'c'"}}),
        json!({"control": {"unless": "Environ.AGENT_SECRET startsWith 'c'"}}),
        json!({"provider": "{{ readFile('W/secret') }}"}),
        json!({"health_checks": [{"name": "{{ readFile('W/secret') }}", "goss_rules": {"matching": {"x": {"content": 1, "matches": 2}}}}]}),
        json!({"health_checks": [{"goss_rules": {"matching": {"{{ readFile('W/secret') }}": {"content": 1, "matches": 2}}}}]}),
        json!({"health_checks": [{"goss_rules": {"matching": {"x": {"content": "{{ Environ.AGENT_SECRET }}", "matches": "x"}}}}]}),
        json!({"health_checks": [{"goss_rules": {"{{ readFile('W/secret') }}": {}}}]}),
        json!({"health_checks": [{"goss_rules": {"port": {"{{ readFile('W/secret') }}": {"listening": true}}}}]}),
        json!({"health_checks": [{"goss_rules": {"file": {"/x{{ readFile('W/secret') }}": {"exists": true}}}}]}),
        json!({"health_checks": [{"tries": "{{ len(readFile('W/secret')) }}", "goss_rules": {}}]}),
        json!({"register_when_stable": [{"cluster": "c", "service": "s", "protocol": "tcp", "address": "{{ readFile('W/secret') }}", "priority": 1}]}),
        json!({"register_when_stable": [{"cluster": "c", "service": "s", "protocol": "tcp", "address": "10.0.0.1", "priority": 1, "annotations": {"x": "{{ Environ.AGENT_SECRET }}"}}]}),
        json!({"content": {"a": "{{ readFile('W/secret') }}"}}),
        json!({"{{ readFile('W/secret') }}": 1}),
        json!({"mode": "{{ readFile('W/secret') }}"}),
        json!({"owner": "{{ Environ.AGENT_SECRET }}"}),
    ] {
        for key in ["files", "names", "any-file"] {
            cases.push(ensure(key, "file", with(&file(), &more)));
        }
    }
    cases
}

/// Evaluations without an end. Each ends in time, and the agent answers the next one.
pub fn bombs(_: &Arena) -> Vec<Case> {
    let deep = |open: &str, close: &str, times: usize| format!("{}1{}", open.repeat(times), close.repeat(times));
    let expressions = [
        "repeat('a', 1000000000)".to_owned(),
        "repeat(repeat('a', 1000000), 1000000)".to_owned(),
        "1..1000000000".to_owned(),
        "len(1..1000000000)".to_owned(),
        "len(map(1..1000000, map(1..1000000, #)))".to_owned(),
        "reduce(1..1000000, #acc + #acc, 1.5)".to_owned(),
        "reduce(1..64, [#acc, #acc], 1)".to_owned(),
        "reduce(1..64, {'a': #acc, 'b': #acc}, 1)".to_owned(),
        "reduce(1..100000, [#acc], 1)".to_owned(),
        "reduce(1..64, #acc + ',' + #acc, 'a') | split(',')".to_owned(),
        "join(map(1..100000, repeat('x', 1000)), '')".to_owned(),
        "replace(repeat('a', 100000), 'a', repeat('b', 100000))".to_owned(),
        "toJSON(toJSON(toJSON(toJSON(map(1..100000, '\"')))))".to_owned(),
        "reduce(1..30, toJSON(#acc), '\"')".to_owned(),
        "sort(map(1..1000000, repeat('x', 100)))".to_owned(),
        "repeat('a', 50000) matches '(a*)*b'".to_owned(),
        "'a' matches '((a{100}){100}){100}'".to_owned(),
        "any(1..100000, string(#) matches '(a{99}){' + string(# % 90) + '}')".to_owned(),
        "lookup('facts|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]|[@this,@this]')".to_owned(),
        format!("lookup('{}')", "[@this,@this]|".repeat(290)),
        format!("lookup('{}')", "@this|@tostr|".repeat(300)),
        format!("lookup('{}')", "[".repeat(4000)),
        format!("lookup('facts.{}')", "#(".repeat(2000)),
        format!("lookup('facts.{}', 'x')", "#.".repeat(2000)),
        "fromJSON(repeat('[', 1000000))".to_owned(),
        "2 ** 1e300 ** 2".to_owned(),
        "-9223372036854775807 - 2".to_owned(),
        "int(-9223372036854775808 / -1)".to_owned(),
        "1 % 0".to_owned(),
        "bitshl(1, 1000000)".to_owned(),
        "now().AddDate(1000000000, 0, 0).Format('2006')".to_owned(),
        "duration('1e300h')".to_owned(),
        "date('9999999999-01-01')".to_owned(),
        "round(1e308 * 10)".to_owned(),
        deep("(", ")", 3000),
        deep("[", "]", 3000),
        deep("{'a':", "}", 3000),
        deep("!", "", 5000),
        deep("-", "", 5000),
        deep("true ? ", " : 1", 2000),
        deep("map([1], ", ")", 300),
        deep("let a = ", "; a", 500),
        deep("toJSON(", ")", 2000),
        vec!["1"; 5000].join(" + "),
        vec!["1"; 5000].join(" ** "),
        vec!["nil"; 5000].join(" ?? "),
        vec!["'a'"; 5000].join(" | "),
        format!("\"{}\"", "\\u{10ffff}".repeat(2000)),
        "jet('[[ range ints(0, 1000000000) ]]x[[ end ]]')".to_owned(),
        "jet('[[ x := \"a\" ]][[ range ints(0, 100) ]][[ x = x + x ]][[ end ]]')".to_owned(),
        format!("jet('{}')", "[[ if true ]]".repeat(2000)),
        format!("template('{}')", "{{ template(\"".repeat(200)),
    ];
    let mut cases = Vec::new();
    for expression in &expressions {
        cases.push(harmless(ensure(
            "any-file",
            "file",
            with(&file(), &json!({"content": format!("{{{{ len(string({expression})) }}}}")})),
        )));
        let mut case = harmless(ensure("ops", "file", file()));
        let about: String = expression.chars().take(60).collect();
        case.about = format!("where {about}");
        case.only_where = Some(format!("string({expression}) != 'x'"));
        cases.push(case);
    }
    let long = "a".repeat(40_000);
    for goss in [
        json!({"matching": {"x": {"content": format!("{{\"l\":[{{\"s\":\"{long}\"}}]}}"), "matches": {"gjson": {"l.#(s%\"*a*a*a*b\")": "x"}}}}}),
        json!({"matching": {"x": {"content": format!("{{\"{long}\":1}}"), "matches": {"gjson": {"*a*a*a*b": "x"}}}}}),
        json!({"matching": {"x": {"content": "[1]", "matches": {"gjson": {"[@this,@this]|".repeat(200): "x"}}}}}),
        json!({"matching": {"x": {"content": long, "matches": {"match-regexp": "(a*)*(a*)*b"}}}}),
        json!({"matching": {"x": {"content": long, "matches": {"match-regexp": "((a{100}){100}){100}"}}}}),
        json!({"matching": {"x": {"content": 1, "matches": serde_json::from_str::<Value>(&format!("{}1{}", "{\"not\":".repeat(50), "}".repeat(50))).unwrap()}}}),
    ] {
        let check = json!({"health_checks": [{"goss_rules": goss, "tries": 1}]});
        cases.push(harmless(ensure("any-file", "file", with(&file(), &check))));
    }
    for pattern in ["(a{1000}){1000}", "(a*)*b", "((((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9}){9}", "(?i)\\p{L}{1000}"] {
        cases.push(harmless(ensure("any-file", "line", json!({"name": "W/www/plain", "match": pattern, "line": "x"}))));
    }
    let wide: Map<String, Value> = (0..5000).map(|number| (format!("k{number}"), json!(1))).collect();
    cases.push(harmless(ensure("any-file", "file", with(&file(), &Value::Object(wide)))));
    let facts = |query: String| Case {
        about: format!("facts {}", query.chars().take(40).collect::<String>()),
        key: "noop",
        ask: AttackRequest::Action(json!({"facts": {"query": query}}), false),
        only_where: None,
        may_end_well: true,
    };
    for query in
        ["[@this,@this]|".repeat(280), "@this|@tostr|".repeat(300), "#(".repeat(2000), "[".repeat(4000), "*?*?*?*?*".to_owned()]
    {
        cases.push(facts(query));
    }
    cases
}
