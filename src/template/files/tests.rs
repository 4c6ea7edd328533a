use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::template::tests::scope;

/// Renders files in a language. Returns the rendered files, or the error.
pub(super) fn render(engine: Engine, files: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
    rendered(engine, files, ("", ""), false)
}

fn rendered(
    engine: Engine,
    files: &[(&str, &str)],
    delimiters: (&str, &str),
    skip_empty: bool,
) -> Result<Vec<(String, String)>, String> {
    let options = TreeOptions {
        engine,
        left: delimiters.0.to_owned(),
        right: delimiters.1.to_owned(),
        skip_empty,
        now: "2026-11-20T10:00:00+00:00[UTC]".parse().unwrap(),
        is_over: Arc::new(|| false),
    };
    let files: TemplateFiles = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let made: BTreeMap<String, RenderedFile> = render_tree(&scope(), files, options).map_err(|error| error.to_string())?;
    Ok(made.into_iter().map(|(path, made)| (path, made.text)).collect())
}

fn one(engine: Engine, text: &str) -> Result<String, String> {
    render(engine, &[("f", text)]).map(|mut made| made.remove(0).1)
}

const ALL: [Engine; 3] = [Engine::Jinja, Engine::Jet, Engine::Go];

#[test]
fn all_languages_have_the_same_roots() {
    for (engine, text) in [
        (
            Engine::Jinja,
            "{{ data.name }} {{ Data.port }} {{ facts.role }} {{ Facts.role }} {{ environ.ZONE }}{{ environ.NOPE }}\n",
        ),
        (Engine::Jet, "[[ data.name ]] [[ Data.port ]] [[ facts.role ]] [[ Facts.role ]] [[ environ.ZONE ]][[ environ.NOPE ]]\n"),
        (
            Engine::Jet,
            "[[ .data.name ]] [[ .Data.port ]] [[ .facts.role ]] [[ .Facts.role ]] [[ .environ.ZONE ]][[ .environ.NOPE ]]\n",
        ),
        (
            Engine::Go,
            "{{ .data.name }} {{ .Data.port }} {{ .facts.role }} {{ .Facts.role }} {{ .environ.ZONE }}{{ .environ.NOPE }}\n",
        ),
    ] {
        assert_eq!(one(engine, text).unwrap(), "shop 8080 web web dmz\n", "{engine:?}");
    }
}

#[test]
fn all_languages_have_the_functions_of_the_scope() {
    for (engine, text) in [
        (Engine::Jinja, "{{ lookup('data.m.k') }} {{ lookup('data.no', 'd') }} {{ file('x.txt') }}{{ jet('[[ data.name ]]') }}"),
        (Engine::Jet, "[[ lookup(\"data.m.k\") ]] [[ lookup(\"data.no\", \"d\") ]] [[ file(\"x.txt\") ]][[ data.name ]]"),
        (
            Engine::Go,
            "{{ lookup \"data.m.k\" }} {{ lookup \"data.no\" \"d\" }} {{ file \"x.txt\" }}{{ jet \"[[ data.name ]]\" }}",
        ),
    ] {
        assert_eq!(one(engine, text).unwrap(), "v d plain {{ Data.no }}\nshop", "{engine:?}");
    }
}

#[test]
fn parts_are_rendered_by_name_and_not_by_themselves() {
    for (engine, part, main, other) in [
        (Engine::Jinja, "head of {{ name }}\n", "{{ render('_partials/head', data) }}body", "{{ render('_partials/all', {}) }}"),
        (
            Engine::Jet,
            "head of [[ .name ]]\n",
            "[[ render(\"_partials/head\", data) ]]body",
            "[[ render(\"./x/../_partials/all\", .) ]]",
        ),
        (
            Engine::Jet,
            "head of [[ name ]]\n",
            "[[ render(\"_partials/head\", .Data) ]]body",
            "[[ render(\"_partials/all\", .) ]]",
        ),
        (Engine::Go, "head of {{ .name }}\n", "{{ render \"_partials/head\" .data }}body", "{{ render \"_partials/all\" . }}"),
    ] {
        let (left, right) = engine.delimiters();
        let all = match engine {
            Engine::Go => "{{ .data.port }}".to_owned(),
            _ => format!("{left} data.port {right}"),
        };
        let files = [
            ("_partials/head", part),
            ("_partials/all", all.as_str()),
            ("main", main),
            ("sub/_partials/x", "never"),
            ("sub/y", other),
        ];
        let made = render(engine, &files).unwrap();
        let made: Vec<(&str, &str)> = made.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(made, [("main", "head of shop\nbody"), ("sub/y", "8080")], "{engine:?}");
    }
}

#[test]
fn files_are_written_below_the_target_only() {
    for (engine, write) in [
        (Engine::Jinja, "{% for x in data.list %}{{ write('d/' ~ x, x) }}{% endfor %}end"),
        (Engine::Jet, "[[ range _, x := data.list ]][[ write(\"d/\" + x, x) ]][[ end ]]end"),
        (Engine::Go, "{{ range .data.list }}{{ write (print \"d/\" .) . }}{{ end }}end"),
    ] {
        let made = render(engine, &[("f", write)]).unwrap();
        let made: Vec<String> = made.into_iter().map(|(path, text)| format!("{path}={text}")).collect();
        assert_eq!(made, ["d/a=a", "d/b=b", "d/c=c", "f=end"], "{engine:?}");
    }
    for path in ["../x", "a/../../x", "", "/", ".."] {
        let error = one(Engine::Go, &format!("{{{{ write \"{path}\" \"\" }}}}")).unwrap_err();
        assert!(error.contains("is not in the target directory"), "{path}: {error}");
    }
    assert!(one(Engine::Go, "{{ render \"../x\" . }}").unwrap_err().contains("is not in the source directory"));
    assert!(one(Engine::Go, "{{ render \"nope\" . }}").unwrap_err().contains("there is no template nope"));
}

#[test]
fn delimiters_can_be_changed() {
    for (engine, text) in [
        (Engine::Jinja, "<< data.name >> {{ y }} [[ x ]]"),
        (Engine::Jet, "<< data.name >> {{ y }} [[ x ]]"),
        (Engine::Go, "<< .data.name >> {{ y }} [[ x ]]"),
    ] {
        assert_eq!(rendered(engine, &[("f", text)], ("<<", ">>"), false).unwrap()[0].1, "shop {{ y }} [[ x ]]", "{engine:?}");
    }
}

#[test]
fn empty_files_can_be_left_out() {
    for engine in ALL {
        assert_eq!(rendered(engine, &[("a", " \n\t"), ("b", "x")], ("", ""), true).unwrap(), [("b".into(), "x".into())]);
        // Jet leaves out the blanks at the beginning of a file.
        let blanks = if engine == Engine::Jet { "" } else { " \n\t" };
        assert_eq!(rendered(engine, &[("a", " \n\t")], ("", ""), false).unwrap(), [("a".into(), blanks.into())]);
    }
}

#[test]
fn no_file_name_enables_escaping() {
    for engine in ALL {
        let (left, right) = engine.delimiters();
        let call = if engine == Engine::Go { "lookup \"data.m\" | toRawJson" } else { "jet(\"<&>\")" };
        let call = if engine == Engine::Jet { "\"<&>\"" } else { call };
        for name in ["a.html", "a.json", "a.xml"] {
            let made = render(engine, &[(name, &format!("{left} {call} {right}"))]).unwrap();
            assert!(["<&>", "{\"k\":\"v\",\"n\":{\"x\":1}}"].contains(&made[0].1.as_str()), "{engine:?} {name} {made:?}");
        }
    }
}

#[test]
fn jinja_features_work() {
    let files = [
        ("a.conf.j2", "{% include '_partials/h' %}{% import '_partials/m' as m %}{{ m.twice(data.name) }}"),
        ("_partials/h", "# {{ data.name }}\n"),
        ("_partials/m", "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}"),
        ("b", "{%- for u in data.users if u.uid > 1 %}{{ loop.index }}{{ u.name | upper }}{% else %}none{% endfor %}"),
        ("c", "{{ data.nope | default('d') }}{% if data.nope is defined %}x{% endif %}{{ data.m | tojson }}\n"),
        ("sub/.j2", "kept"),
    ];
    let made = render(Engine::Jinja, &files).unwrap();
    let made: Vec<(&str, &str)> = made.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let expected =
        [("a.conf", "# shop\nshopshop"), ("b", "1YY"), ("c", "d{\"k\": \"v\", \"n\": {\"x\": 1}}\n"), ("sub/.j2", "kept")];
    assert_eq!(made, expected);
}

#[test]
fn errors_name_file_line_and_column() {
    type Case<'a> = (Engine, &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 14] = [
        (Engine::Go, &[("a/f", "x\n  {{ .data.nope }}")], "a/f:2:6: .data.nope has no value; give it one with default"),
        (Engine::Go, &[("f", "{{ if }}")], "f:1:9: a value is missing, in \"{{ if }}\""),
        (Engine::Go, &[("f", "{{ .data.name.x }}")], "f:1:4: <.data.name.x>: can't evaluate field x in type string"),
        (Engine::Go, &[("f", "{{ render \"_partials/p\" . }}"), ("_partials/p", "\n{{ .nope }}")], "_partials/p:2:4: "),
        (Engine::Go, &[("f", "{{ 1 | uper }}")], "f:1:8: function \"uper\" not defined; did you mean \"upper\"?"),
        (Engine::Go, &[("f", "{{ randAlpha 3 }}")], "put the value into the data"),
        (
            Engine::Jinja,
            &[("f", "x\n {{ data.nope }}")],
            "f:2:5: `data.nope` is undefined; give it a value with the filter default",
        ),
        (Engine::Jinja, &[("f", "a\n{% if %}")], "f:2:"),
        (Engine::Jinja, &[("f", "{{ nope() }}")], "f:1:4: nope is unknown"),
        (Engine::Jinja, &[("f", "{% include 'p' %}"), ("p", "\n\n{{ x.y }}")], "p:3:4: `x` is undefined"),
        (Engine::Jet, &[("f", "x\n [[ data.nope ]]")], "f:2:2: missing key 'data.nope' in environment, in \"[[ data.nope ]]\""),
        (Engine::Jet, &[("f", "x [[- data.name ]]\n\n[[ data.name | nosuchfunc ]]")], "f:3:1: unknown name nosuchfunc"),
        (Engine::Jet, &[("f", "[[ if data.on\n ]]\n[[ data.no ]][[ end ]]")], "f:3:1: missing key 'data.no'"),
        (Engine::Jet, &[("f", "[[ nosuch(1) ]]")], "f:1:1: unknown name nosuch"),
    ];
    for (engine, files, expected) in cases {
        let error = render(engine, files).unwrap_err();
        assert!(error.contains(expected), "{engine:?} {files:?}: {error}");
    }
}

#[test]
fn endless_templates_fail() {
    let forever = [
        (Engine::Jinja, "{{ render('f', {}) }}"),
        (Engine::Jet, "[[ render(\"f\", .) ]]"),
        (Engine::Go, "{{ render \"f\" . }}"),
        (Engine::Jinja, "{% include 'f' %}"),
        (Engine::Jinja, "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}"),
        (Engine::Go, "{{ template \"f\" . }}"),
        (Engine::Go, "{{ define \"x\" }}{{ template \"x\" . }}{{ end }}{{ template \"x\" . }}"),
        (Engine::Go, "{{ range 1000000000 }}{{ end }}"),
        (Engine::Go, "{{ range 100000 }}{{ range 100000 }}x{{ end }}{{ end }}"),
        (Engine::Go, "{{ $x := \"ab\" }}{{ range 100 }}{{ $x = print $x $x }}{{ end }}"),
        (Engine::Go, "{{ $x := list 1 }}{{ range 100 }}{{ $x = list $x $x }}{{ end }}{{ $x }}"),
        (Engine::Go, "{{ $x := list 1 }}{{ range 60 }}{{ $x = list $x $x }}{{ end }}{{ $x }}"),
        (Engine::Go, "{{ $x := list 1 }}{{ range 60 }}{{ $x = list $x $x }}{{ end }}{{ deepEqual $x $x }}"),
        (Engine::Go, "{{ $x := list 1 }}{{ range 40 }}{{ $x = concat $x $x }}{{ end }}"),
        (Engine::Go, "{{ $x := dict }}{{ $_ := set $x \"x\" $x }}{{ $x }}"),
        (Engine::Go, "{{ $x := dict }}{{ range 200 }}{{ $x = dict \"x\" $x }}{{ end }}{{ $x }}"),
        (Engine::Go, "{{ printf \"%1000000000d\" 1 }}"),
        (Engine::Go, "{{ until 1000000000 }}"),
        (Engine::Go, "{{ repeat 1000000000 \"x\" }}"),
        (Engine::Go, "{{ indent 1000000 (repeat 1000000 \"\\n\") }}"),
        (Engine::Go, "{{ regexMatch \"((a{100}){100}){100}\" \"a\" }}"),
    ];
    for (engine, text) in forever {
        let started = std::time::Instant::now();
        let error = one(engine, text).unwrap_err();
        assert!(started.elapsed().as_secs() < 30, "{text}");
        assert!(error.starts_with("f:1:"), "{text}: {error}");
    }
    let options = TreeOptions {
        engine: Engine::Go,
        left: String::new(),
        right: String::new(),
        skip_empty: false,
        now: "2026-11-20T10:00:00+00:00[UTC]".parse().unwrap(),
        is_over: Arc::new(|| true),
    };
    let error = render_tree(&scope(), TemplateFiles::from([("f".into(), "x".into())]), options).unwrap_err();
    assert_eq!(error.to_string(), "f: the run is over");
}

#[test]
fn data_is_not_changed_by_templates() {
    let error = one(Engine::Go, "{{ $_ := set .data \"name\" \"x\" }}").unwrap_err();
    assert!(error.contains("deepCopy"), "{error}");
    assert_eq!(
        one(Engine::Go, "{{ $d := deepCopy .data }}{{ $_ := set $d \"name\" \"x\" }}{{ $d.name }}{{ .data.name }}").unwrap(),
        "xshop"
    );
    assert_eq!(scope().resolve_value("{{ Data.name }}").unwrap(), json!("shop"));
}

#[test]
fn rendered_output_is_bounded() {
    let long = "x".repeat(4000);
    let cases: Vec<(Engine, String)> = [
        (Engine::Jinja, "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
        (Engine::Jinja, "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
        (Engine::Jinja, "{{ 'a' * 99999999 }}"),
        (Engine::Jinja, "{{ ('a' * 9999999) * 99 }}"),
        (Engine::Jinja, "{% set a = [1] * 9999999 %}"),
        (
            Engine::Jinja,
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        ),
        (
            Engine::Jinja,
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
        ),
        (Engine::Jinja, "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
        (Engine::Jinja, "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"),
        (Engine::Jinja, "{{ ('a,' * 100000)|replace(',', 'b' * 100000) }}"),
        (Engine::Jinja, "{{ ('a\n' * 100000)|indent(99999) }}"),
        (Engine::Jinja, "{{ (range(9999)|list)|join('b' * 99999) }}"),
        (Engine::Jinja, "{{ [1]|tojson(indent=999999999) }}"),
        (Engine::Jinja, "{{ '%999999999d'|format(1) }}"),
        (Engine::Jinja, "{{ [1]|batch(999999999, 'x')|list }}"),
        (Engine::Jinja, "{% macro m() %}{% for i in range(90000) %}LONG{% endfor %}{% endmacro %}{% set x = m() %}"),
        (Engine::Jinja, "{% set x %}{% for i in range(90000) %}LONG{% endfor %}{% endset %}"),
        (Engine::Jet, "[[ x := \"aaaaaaaa\" ]][[ range ints(0, 40) ]][[ x = x + x ]][[ end ]]"),
        (Engine::Jet, "[[ x := slice(1) ]][[ range ints(0, 40) ]][[ x = slice(x, x) ]][[ end ]]"),
        (Engine::Jet, "[[ x := repeat(\"a\", 1000000) ]][[ replace(x, \"a\", x) ]]"),
        (Engine::Jet, "[[ block b() ]][[ range ints(0, 90000) ]]LONG[[ end ]][[ end ]]"),
        (Engine::Go, "{{ $x := \"aaaaaaaa\" }}{{ range until 40 }}{{ $x = print $x $x }}{{ end }}"),
        (Engine::Go, "{{ $x := list 1 }}{{ range until 40 }}{{ $x = list $x $x }}{{ end }}{{ $x | toJson | len }}"),
        (Engine::Go, "{{ $x := repeat 1000000 \"a\" }}{{ regexReplaceAll \"a\" $x (repeat 1000 \"$0$0\") }}"),
        (Engine::Go, "{{ $x := repeat 1000000 \"a\" }}{{ join $x (until 1000000) }}"),
        (Engine::Go, "{{ printf (repeat 100000 \"%4000[1]d\") 1 | len }}"),
        (Engine::Go, "{{ range until 900000 }}LONG{{ end }}"),
    ]
    .into_iter()
    .map(|(engine, text)| (engine, text.replace("LONG", &long)))
    .collect();
    for (engine, text) in cases {
        let shown: String = text.chars().take(120).collect();
        let error = one(engine, &text).err().unwrap_or_else(|| panic!("{shown}"));
        let expected = ["64 MiB", "too much", "nested", "does not end", "larger than", "out of range", "invalid"];
        assert!(expected.iter().any(|part| error.contains(part)), "{shown}: {error}");
    }
    // The peak memory of this process, from its status.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 400 << 10, "{peak} KiB");
}

#[test]
fn jinja_expressions_have_their_values() {
    for (text, expected) in [
        ("{% for a, b in data.m|items %}{{ a }};{% endfor %}", "k;n;"),
        ("{% for x in data.nums if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}", "1:3 2:2 "),
        ("{% if data.no is defined %}a{% elif data.on and not data.off %}b{% else %}c{% endif %}", "b"),
        (
            "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller is defined else '' }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}",
            "1x12",
        ),
        ("{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(v) m(3) %}v{{ v }}{% endcall %}", "[v3]"),
        ("{% set a, b = 1, 2 %}{{ a + b * 2 }}{{ 2 ** 3 }}{{ 7 // 2 }}{{ 7 % 2 }}{{ -a }}{{ 1.5 * 2 }}", "5831-13.0"),
        ("{% set x | upper %}ab{% endset %}{{ x }}{% filter lower | trim %} CD {% endfilter %}", "ABcd"),
        ("{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ data.list[0] }}{{ data.list[1:]|join('-') }}", "12ab-c"),
        (
            "{{ data.nope|default('d') }}{{ 'x' in data.m }}{{ 'k' in data.m }}{{ 1 < 2 < 3 }}{{ 'a' * 3 }}{{ [1] * 2 }}",
            "dFalseTrueTrueaaa[1, 1]",
        ),
        (
            "{{ 'a' ~ 1 ~ 'b' }}{{ [1] + [2] }}{{ {'a': 1}.a }}{{ (1, 2)[1] }}{{ 3 is divisibleby(3) }}{{ 4 is odd }}",
            "a1b[1, 2]12TrueFalse",
        ),
        (
            "{{ data.list|map('upper')|join(',') }}{{ data.users|map(attribute='name')|list }}{{ data.list|length }}",
            "A,B,C['x', 'yy']3",
        ),
        ("{% raw %}{{ x }}{% endraw %}{# no #} -\n{%- if true %} y {%- endif %}{{ '{{' }}", "{{ x }} - y{{"),
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        (
            "{% for x in [[1, [2]], 3] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
            "(1(2))3",
        ),
        (
            "{{ 'yes' if data.on else 'no' }}{{ 'yes' if data.off }}{{ data.port|string|replace('8', '9') }}{{ 'é' ~ '\\n\"' }}",
            "yes9090é\n\"",
        ),
        (
            "{{ [3,1,2]|sort(reverse=true)|first }}{{ 'a-b'|split('-')|last }}{{ data.m|dictsort|length }}{{ 1.5|round|int }}",
            "3b22",
        ),
    ] {
        assert_eq!(one(Engine::Jinja, text).as_deref(), Ok(expected), "{text}");
    }
    let files = [
        ("_partials/base", "<{% block a %}base{% endblock %}|{% block b %}b{% endblock %}>"),
        ("_partials/lib", "{% macro hi(x) %}hi {{ x }}{% endmacro %}{% set v = 7 %}"),
        ("_partials/part", "part of {{ data.name }}"),
        ("one", "{% extends '_partials/base' %}{% block a %}own {{ super() }}{% endblock %}"),
        ("two", "{% import '_partials/lib' as lib %}{{ lib.hi(1) }}{% from '_partials/lib' import hi as h, v %}{{ h(v) }}"),
        ("three", "{% include '_partials/part' %}{% include ['nope', '_partials/part'] %}{% include 'nope' ignore missing %}"),
    ];
    let made = render(Engine::Jinja, &files).unwrap();
    let made: Vec<&str> = made.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(made, ["<own base|b>", "part of shoppart of shop", "hi 1hi 7"]);
}
