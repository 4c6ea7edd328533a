use std::sync::Arc;

use proptest::prelude::*;

use crate::template::files::{Engine, TemplateFiles, TreeOptions, render_tree};
use crate::template::tests::scope;

/// Renders a Go template over the data of the other tests.
fn render(text: &str) -> Result<String, String> {
    let options = TreeOptions {
        engine: Engine::Go,
        left: String::new(),
        right: String::new(),
        skip_empty: false,
        now: "2026-11-20T14:05:09+01:00[Europe/Berlin]".parse().unwrap(),
        is_over: Arc::new(|| false),
    };
    let mut made = render_tree(&scope(), TemplateFiles::from([("f".to_owned(), text.to_owned())]), options)
        .map_err(|error| error.to_string())?;
    Ok(made.remove("f").map(|made| made.text).unwrap_or_default())
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(render(text).as_deref(), Ok(*expected), "{text}");
    }
}

#[track_caller]
fn check_errors(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        let error = render(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Examples from the documentation of text/template.
#[test]
fn documented_language_examples_render() {
    check(&[
        ("", ""),
        ("plain }} { text", "plain }} { text"),
        // Text and spaces.
        ("{{23 -}} < {{- 45}}", "23<45"),
        ("a \n {{- 1 -}} \n b", "a1b"),
        ("a {{/* a comment */}} b", "a  b"),
        ("a {{- /* a comment */ -}} b", "ab"),
        ("{{-3}}", "-3"),
        ("{{ 3 -}}\n x", "3x"),
        // Pipelines, from the examples.
        ("{{\"\\\"output\\\"\"}}", "\"output\""),
        ("{{`\"output\"`}}", "\"output\""),
        ("{{printf \"%q\" \"output\"}}", "\"output\""),
        ("{{\"output\" | printf \"%q\"}}", "\"output\""),
        ("{{printf \"%q\" (print \"out\" \"put\")}}", "\"output\""),
        ("{{\"put\" | printf \"%s%s\" \"out\" | printf \"%q\"}}", "\"output\""),
        ("{{\"output\" | printf \"%s\" | printf \"%q\"}}", "\"output\""),
        ("{{with \"output\"}}{{printf \"%q\" .}}{{end}}", "\"output\""),
        ("{{with $x := \"output\" | printf \"%q\"}}{{$x}}{{end}}", "\"output\""),
        ("{{with $x := \"output\"}}{{printf \"%q\" $x}}{{end}}", "\"output\""),
        ("{{with $x := \"output\"}}{{$x | printf \"%q\"}}{{end}}", "\"output\""),
        // If, with, range.
        ("{{if 1}}a{{end}}{{if 0}}b{{else}}c{{end}}{{if 0}}d{{else if 1}}e{{else}}f{{end}}", "ace"),
        ("{{if .data.off}}1{{else if .data.zero}}2{{else if .data.empty}}3{{else}}4{{end}}", "4"),
        ("{{with .data.m}}{{.k}}{{$.data.name}}{{end}}{{with .data.none}}x{{else}}y{{end}}", "vshopy"),
        ("{{with .data.none}}x{{else with .data.m}}{{.k}}{{else}}z{{end}}", "v"),
        ("{{range .data.list}}<{{.}}>{{end}}", "<a><b><c>"),
        ("{{range $v := .data.list}}{{$v}}{{end}}", "abc"),
        ("{{range $i, $v := .data.list}}{{if $i}}, {{end}}{{$i}}={{$v}}{{end}}", "0=a, 1=b, 2=c"),
        ("{{range $k, $v := dict \"b\" 2 \"a\" 1}}{{$k}}{{$v}}{{end}}", "a1b2"),
        ("{{range .data.none}}x{{else}}none{{end}}{{range list}}x{{else}}empty{{end}}", "noneempty"),
        ("{{range 3}}{{.}}{{end}}{{range $i := 2}}{{$i}}{{end}}", "01201"),
        ("{{range .data.list}}{{if eq . \"b\"}}{{continue}}{{end}}{{.}}{{end}}", "ac"),
        ("{{range .data.list}}{{if eq . \"b\"}}{{break}}{{end}}{{.}}{{end}}", "a"),
        ("{{range .data.users}}{{.name}}:{{$.data.name}} {{end}}", "x:shop yy:shop "),
        ("{{$i := 0}}{{$v := 0}}{{range $i, $v = .data.list}}{{end}}{{$i}}{{$v}}", "2c"),
        // Variables and their scope.
        ("{{$x := 1}}{{if true}}{{$x = 2}}{{end}}{{$x}}", "2"),
        ("{{$x := 1}}{{if true}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21"),
        ("{{$x := .data.m}}{{$x.n.x}}", "1"),
        ("{{if $x := .data.name}}{{$x}}{{else}}{{$x}}{{end}}", "shop"),
        // Templates.
        (
            "{{define \"T1\"}}ONE{{end}}{{define \"T2\"}}TWO{{end}}{{define \"T3\"}}{{template \"T1\"}} {{template \"T2\"}}{{end}}{{template \"T3\"}}",
            "ONE TWO",
        ),
        ("{{define \"l\"}}{{range .}}[{{.}}]{{end}}{{end}}{{template \"l\" .data.list}}", "[a][b][c]"),
        ("{{block \"b\" .data.name}}({{.}}){{end}}", "(shop)"),
        ("{{template \"later\" 1}}{{define \"later\"}}{{$}}{{end}}", "1"),
        // Functions.
        ("{{len .data.list}} {{len \"é\"}} {{len .data.m}}", "3 2 2"),
        ("{{index .data.list 1}} {{index .data.m \"n\" \"x\"}} {{index .data.users 1 \"name\"}}", "b 1 yy"),
        ("{{slice \"hello\" 1 3}} {{slice .data.list 1}} {{slice .data.list 0 1}}", "el [b c] [a]"),
        ("{{print 1 2}}{{print \"a\" \"b\"}}{{print 1 \"a\" 2 3}}{{println \"x\" 1}}", "1 2ab1a2 3x 1\n"),
        ("{{html \"<a href='x'>&\\\"\"}}", "&lt;a href=&#39;x&#39;&gt;&amp;&#34;"),
        ("{{js \"it's <b>\\n\"}}", "it\\'s \\u003Cb\\u003E\\u000A"),
        ("{{urlquery \"a b&c=ü\"}}", "a+b%26c%3D%C3%BC"),
        (
            "{{eq 1 1}} {{eq 1 2 3 1}} {{ne \"a\" \"b\"}} {{lt 1 2}} {{le 2 2}} {{gt \"b\" \"a\"}} {{ge 1.5 2.5}}",
            "true true true true true true false",
        ),
        ("{{eq .data.none nil}} {{eq .data.nope \"x\"}} {{eq 1 1.0}}", "true false true"),
        // Values print as Go prints them.
        (
            "{{true}} {{1.0}} {{1e6}} {{0.000001}} {{.data.list}} {{.data.m}} {{1_000}} {{0x10}} {{'a'}}",
            "true 1 1e+06 1e-06 [a b c] map[k:v n:map[x:1]] 1000 16 97",
        ),
        ("{{(index .data.users 0).name}} {{(dict \"a\" (dict \"b\" 1)).a.b}}", "x 1"),
        ("{{.data.name | len | printf \"%03d\"}}", "004"),
        ("{{ .data.app_name\n| upper\n}}", "MYAPP"),
    ]);
    check(&[("{{and 1 0 2}} {{and 1 2}} {{or 0 \"x\" 1}} {{or 0 \"y\"}} {{not 0}} {{or 1 .data.name.x}}", "0 2 x y true 1")]);
}

#[test]
fn errors_name_the_reason() {
    check_errors(&[
        ("x{{end}}y", "f:1:2: unexpected end"),
        ("x{{else}}y", "unexpected else"),
        ("{{if 1}}a", "f:1:1: if is not closed with end"),
        ("{{range .}}a", "range is not closed with end"),
        ("{{define \"x\"}}a", "define is not closed with end"),
        ("{{if 1}}a{{else}}b{{else}}c{{end}}", "a second else"),
        ("{{if 1}}a{{else with 1}}b{{end}}", "only if may follow else"),
        ("{{range 1}}{{else if 1}}{{end}}", "nothing may follow the else of a range"),
        ("{{if 1}}{{define \"x\"}}{{end}}{{end}}", "define is allowed only at the top"),
        ("{{define \"x\"}}a{{end}}{{define \"x\"}}b{{end}}", "is defined twice"),
        ("{{break}}", "break outside of a range"),
        ("{{range 1}}{{block \"x\" .}}{{continue}}{{end}}{{end}}", "continue outside of a range"),
        ("{{.data.name", "the action is not closed"),
        ("{{/* x", "the comment is not closed"),
        ("{{/* x */ 1}}", "a comment must end its action"),
        ("{{\"x}}", "the text is not closed"),
        ("{{}}", "a value is missing"),
        ("{{1 | }}", "a value is missing after the last |"),
        ("{{1 | 2}}", "only a function may follow |"),
        ("{{(1}}", "the ( is not closed"),
        ("{{1)}}", "unexpected )"),
        ("{{\"a\"\"b\"}}", "a space is missing before"),
        ("{{1.x}}", "bad number"),
        ("{{\"a\".x}}", "a constant has no fields"),
        ("{{..}}", "a space is missing before ."),
        ("{{$x}}", "undefined variable $x"),
        ("{{$x = 1}}", "undefined variable $x; declare it with :="),
        ("{{if 1}}{{$x := 1}}{{end}}{{$x}}", "undefined variable $x"),
        ("{{$a, $b := 1}}", "two variables are declared only by a range"),
        ("{{range $a, $b := 3}}{{end}}", "range can't iterate over int"),
        ("{{range \"x\"}}{{end}}", "range can't iterate over string"),
        ("{{nil}}", "nil is not a command"),
        ("{{1 2}}", "can't give arguments to a value that is not a function"),
        ("{{.data.name 1}}", "name has arguments but is not a function"),
        ("{{template \"nope\"}}", "template \"nope\" not defined"),
        ("{{template nope}}", "takes a name in quotes"),
        ("{{#}}", "unexpected '#'"),
        ("{{.data.nope.deeper}}", ".data.nope has no value, and so no field deeper"),
        ("{{.data.none}}", "has no value"),
        ("{{index .data.list 9}}", "error calling index: index out of range: 9"),
        ("{{index .data.nope 1}}", "index of untyped nil"),
        ("{{len 3}}", "len of type int"),
        ("{{lt 1 \"a\"}}", "incompatible types for comparison"),
        ("{{eq .data.list .data.list}}", "use deepEqual"),
        ("{{upper}}", "wrong number of arguments for upper: it takes 1, not 0"),
        ("{{upper .data.nope}}", "an argument has no value"),
        ("{{fail \"because\"}}", "error calling fail: because"),
        ("{{lookup \"data.nope\"}}", "missing key 'data.nope' in environment"),
        ("{{file \"nope\"}}", "failed to read file \"nope\""),
        ("{{div 1 0}}", "division by zero"),
        ("{{add 9223372036854775807 1}}", "too large"),
        ("{{call 1}}", "no value is a function here"),
        ("{{kvGet \"a\" \"b\"}}", "no NATS server is given"),
        ("{{registrations \"a\"}}", "wrong number of arguments"),
        ("{{toYaml .data}}", "use toJson, as YAML can read JSON"),
    ]);
}

/// Examples from the documentation of fmt.
#[test]
fn documented_format_verbs_print() {
    check(&[
        ("{{printf \"%v %d %5d|%-5d|%05d %+d\" 1 2 3 4 -5 6}}", "1 2     3|4    |-0005 +6"),
        (
            "{{printf \"%s|%10s|%-4s|%.2s|%q|%x|%X\" \"a\" \"b\" \"c\" \"def\" \"q\\\"\\n\" \"hi\" \"hi\"}}",
            "a|         b|c   |de|\"q\\\"\\n\"|6869|6869",
        ),
        ("{{printf \"%x %X %#x %o %b %c %U %q\" 255 255 255 8 5 65 65 65}}", "ff FF 0xff 10 101 A U+0041 'A'"),
        (
            "{{printf \"%f %.2f %8.3f|%e %g %g %v\" 1.5 2.345 3.14159 1500.0 1500.0 1e21 0.1}}",
            "1.500000 2.35    3.142|1.500000e+03 1500 1e+21 0.1",
        ),
        ("{{printf \"%t %v %T %T %T\" true nil 1 \"a\" 1.5}}", "true <nil> int string float64"),
        ("{{printf \"%v %s %d\" (list 1 \"a\") (list \"a\" \"b\") (list 1 2)}}", "[1 a] [a b] [1 2]"),
        ("{{printf \"%d %s\" \"x\" 1}}", "%!d(string=x) %!s(int=1)"),
        ("{{printf \"%d\" 1 2}}{{printf \"%d\"}}{{printf \"%!\" 1}}", "1%!(EXTRA int=2)%!d(MISSING)%!!(int=1)"),
        ("{{printf \"%[2]d %[1]d\" 1 2}} {{printf \"%*d\" 5 42}} {{printf \"100%%\"}}", "2 1    42 100%"),
        ("{{printf \"%6.2f|%-8v|%08.3f|% d\" 3.14159 \"x\" -3.14159 5}}", "  3.14|x       |-003.142| 5"),
        ("{{printf \"%.3g %.10g %G\" 1234.5678 1234.5678 1e-7}}", "1.23e+03 1234.5678 1E-07"),
    ]);
}

/// Examples from the documentation of Sprig.
#[test]
fn documented_sprig_examples_render() {
    check(&[
        (
            "{{trim \"   hello    \"}}|{{trimAll \"$\" \"$5.00\"}}|{{trimSuffix \"-\" \"hello-\"}}|{{trimPrefix \"-\" \"-hello\"}}",
            "hello|5.00|hello|hello",
        ),
        (
            "{{upper \"hello\"}} {{lower \"HELLO\"}} {{title \"hello world\"}} {{untitle \"Hello World\"}}",
            "HELLO hello Hello World hello world",
        ),
        (
            "{{repeat 3 \"hello\"}} {{substr 0 5 \"hello world\"}} {{nospace \"hello w o r l d\"}}",
            "hellohellohello hello helloworld",
        ),
        ("{{trunc 5 \"hello world\"}} {{trunc -5 \"hello world\"}} {{abbrev 5 \"hello world\"}}", "hello world he..."),
        (
            "{{initials \"First Try\"}} {{contains \"cat\" \"catch\"}} {{hasPrefix \"cat\" \"catch\"}} {{hasSuffix \"ch\" \"catch\"}}",
            "FT true true true",
        ),
        ("{{wrap 10 \"the quick brown fox\"}}", "the quick\nbrown fox"),
        ("{{wrapWith 5 \"\\t\" \"Hello World\"}}", "Hello\tWorld"),
        ("{{quote \"a\" 1}} {{squote \"a\"}} {{cat \"hello\" \"beautiful\" \"world\"}}", "\"a\" \"1\" 'a' hello beautiful world"),
        ("{{indent 4 \"a\\nb\"}}{{nindent 2 \"c\"}}", "    a\n    b\n  c"),
        (
            "{{\"I Am Henry VIII\" | replace \" \" \"-\"}} {{len (list 1) | plural \"one anchovy\" \"many anchovies\"}}",
            "I-Am-Henry-VIII one anchovy",
        ),
        (
            "{{snakecase \"FirstName\"}} {{camelcase \"http_server\"}} {{kebabcase \"FirstName\"}} {{swapcase \"This Is A.Test\"}}",
            "first_name HttpServer first-name tHIS iS a.tEST",
        ),
        (
            "{{snakecase \"HTTPServer\"}} {{snakecase \"NoHTTPS\"}} {{snakecase \"GO PATH\"}} {{snakecase \"GO_PATH\"}} {{snakecase \"http2xx\"}}",
            "http_server no_https go_path go_path http_2xx",
        ),
        ("{{regexMatch \"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\\\\.[A-Za-z]{2,}$\" \"test@acme.com\"}}", "true"),
        ("{{regexFindAll \"[2,4,6,8]\" \"123456789\" -1}} {{regexFind \"[a-zA-Z][1-9]\" \"abcd1234\"}}", "[2 4 6 8] d1"),
        (
            "{{regexReplaceAll \"a(x*)b\" \"-ab-axxb-\" \"${1}W\"}} {{regexReplaceAllLiteral \"a(x*)b\" \"-ab-axxb-\" \"${1}\"}}",
            "-W-xxW- -${1}-${1}-",
        ),
        ("{{regexSplit \"z+\" \"pizza\" -1}} {{regexQuoteMeta \"1.2.3\"}}", "[pi a] 1\\.2\\.3"),
        ("{{join \"_\" (list \"hello\" \"world\")}} {{join \"+\" (list 1 2 3)}}", "hello_world 1+2+3"),
        (
            "{{splitList \"$\" \"foo$bar$baz\"}} {{$a := split \"$\" \"foo$bar$baz\"}}{{$a._0}} {{(splitn \"$\" 2 \"foo$bar$baz\")._1}}",
            "[foo bar baz] foo bar$baz",
        ),
        (
            "{{sortAlpha (list \"b\" \"a\")}} {{add 1 2 3}} {{add1 2}} {{sub 5 2}} {{div 7 2}} {{mod 7 2}} {{mul 1 2 3}}",
            "[a b] 6 3 3 3 1 6",
        ),
        ("{{max 1 2 3}} {{min 1 2 3}} {{floor 123.9999}} {{ceil 123.001}} {{round 123.555555 3}}", "3 1 123 124 123.556"),
        (
            "{{addf 1.5 2 2}} {{addf 0.1 0.2}} {{subf 7.5 2 3}} {{divf 10 2 4}} {{mulf 1.5 2 2}} {{maxf 1 2.5 3}} {{minf 1.5 2 3}}",
            "5.5 0.3 2.5 1.25 6 3 1.5",
        ),
        (
            "{{until 5}} {{untilStep 3 6 2}} {{seq 5}} {{seq -3}} {{seq 0 2}} {{seq 2 -2}} {{seq 0 2 10}} {{seq 0 -2 -5}}",
            "[0 1 2 3 4] [3 5] 1 2 3 4 5 1 0 -1 -2 -3 0 1 2 2 1 0 -1 -2 0 2 4 6 8 10 0 -2 -4",
        ),
        (
            "{{atoi \"12\"}} {{int \"3\"}} {{int64 3.9}} {{float64 \"1.5\"}} {{toDecimal \"0777\"}} {{toString 1}} {{toStrings (list 1 2)}}",
            "12 3 3 1.5 511 1 [1 2]",
        ),
        (
            "{{default \"foo\" .data.nope}} {{.data.name | default \"foo\"}} {{empty 0}} {{coalesce 0 1 2}} {{all 0 1 2}} {{any 0 1 2}}",
            "foo shop true 1 false true",
        ),
        ("{{ternary \"foo\" \"bar\" true}} {{false | ternary \"foo\" \"bar\"}}", "foo bar"),
        (
            "{{toJson (dict \"b\" 1 \"a\" \"<x>\")}} {{toRawJson \"<x>\"}} {{(fromJson \"{\\\"a\\\":[1,2]}\").a}}",
            "{\"a\":\"\\u003cx\\u003e\",\"b\":1} \"<x>\" [1 2]",
        ),
        ("{{toPrettyJson (dict \"a\" (list 1))}}", "{\n  \"a\": [\n    1\n  ]\n}"),
        (
            "{{b64enc \"hello\"}} {{b64dec \"aGVsbG8=\"}} {{sha256sum \"\"}}",
            "aGVsbG8= hello e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        ("{{first (list 1 2 3)}} {{rest (list 1 2 3)}} {{last (list 1 2 3)}} {{initial (list 1 2 3)}}", "1 [2 3] 3 [1 2]"),
        (
            "{{append (list 1) 2}} {{prepend (list 1) 0}} {{concat (list 1) (list 2 3)}} {{reverse (list 1 2)}} {{uniq (list 1 1 2)}}",
            "[1 2] [0 1] [1 2 3] [2 1] [1 2]",
        ),
        (
            "{{without (list 1 2 3) 3}} {{has 2 (list 1 2)}} {{compact (list 1 \"a\" \"foo\" \"\")}} {{chunk 2 (list 1 2 3)}} {{slice (list 1 2 3 4) 1 3}}",
            "[1 2] true [1 a foo] [[1 2] [3]] [2 3]",
        ),
        (
            "{{$d := dict \"a\" 1}}{{$_ := set $d \"b\" 2}}{{get $d \"b\"}}{{hasKey $d \"c\"}}{{$_ := unset $d \"a\"}}{{keys $d}}{{get $d \"x\"}}{{values $d}}",
            "2false[b][2]",
        ),
        ("{{$a := dict \"x\" 1}}{{$b := $a}}{{$_ := set $a \"x\" 2}}{{$b.x}}", "2"),
        (
            "{{pluck \"a\" (dict \"a\" 1) (dict \"b\" 2) (dict \"a\" 3)}} {{pick (dict \"a\" 1 \"b\" 2) \"a\"}} {{omit (dict \"a\" 1 \"b\" 2) \"a\"}}",
            "[1 3] map[a:1] map[b:2]",
        ),
        (
            "{{merge (dict \"a\" 1 \"m\" (dict \"x\" 1)) (dict \"a\" 2 \"b\" 3 \"m\" (dict \"x\" 9 \"y\" 2))}}",
            "map[a:1 b:3 m:map[x:1 y:2]]",
        ),
        ("{{mergeOverwrite (dict \"a\" 1 \"m\" (dict \"x\" 1)) (dict \"a\" 2 \"m\" (dict \"y\" 2))}}", "map[a:2 m:map[x:1 y:2]]"),
        ("{{dig \"m\" \"n\" \"x\" 0 .data}} {{dig \"m\" \"no\" \"x\" 7 .data}}", "1 7"),
        (
            "{{typeOf 1}} {{kindOf (list)}} {{kindIs \"map\" .data}} {{typeIs \"string\" \"\"}} {{deepEqual (list 1 2) (list 1 2)}}",
            "int slice true true true",
        ),
        (
            "{{base \"foo/bar/baz\"}} {{dir \"foo/bar/baz\"}} {{clean \"foo/bar/../baz\"}} {{ext \"foo.bar\"}} {{isAbs \"/a\"}}",
            "baz foo/bar foo/baz .bar true",
        ),
        (
            "{{base \"\"}} {{base \"/\"}} {{dir \"x\"}} {{dir \"/x\"}} {{clean \"../../a\"}} {{clean \"/../a\"}} {{clean \"\"}}",
            ". / . / ../../a /a .",
        ),
        ("{{env \"ZONE\"}} {{expandenv \"in $ZONE and ${ZONE}s, 5$\"}}", "dmz in dmz and dmzs, 5$"),
    ]);
}

#[test]
fn further_sprig_functions_render() {
    check(&[
        ("{{sha1sum \"Hello world!\"}}", "d3486ae9136e7856bc42212385ea797094475802"),
        ("{{sha1sum \"\"}}", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("{{adler32sum \"Hello world!\"}} {{adler32sum \"\"}}", "487130206 1"),
        ("{{b32enc \"foobar\"}} {{b32enc \"fooba\"}} {{b32enc \"f\"}}|{{b32enc \"\"}}", "MZXW6YTBOI====== MZXW6YTB MY======|"),
        ("{{b32dec \"MZXW6YTBOI======\"}} {{b32dec \"MZXW6YTB\"}} {{b32dec \"MY======\"}}|{{b32dec \"\"}}", "foobar fooba f|"),
        (
            "{{abbrevboth 5 10 \"1234 5678 9123\"}}|{{abbrevboth 0 8 \"1234 5678 9123\"}}|{{abbrevboth 5 3 \"1234\"}}",
            "...5678...|1234 ...|1234",
        ),
        (
            "{{$u := urlParse \"https://bob:pw@example.com:8443/a/b?x=1&y=2#top\"}}{{$u.scheme}} {{$u.host}} {{$u.hostname}} {{$u.path}} {{$u.query}} {{$u.fragment}} {{$u.userinfo}}",
            "https example.com:8443 example.com /a/b x=1&y=2 top bob:pw",
        ),
        (
            "{{$u := urlParse \"mailto:a@b\"}}{{$u.opaque}}|{{$u.path}}|{{(urlParse \"//[::1]:80/x\").hostname}}|{{(urlParse \"/a/b\").path}}",
            "a@b||::1|/a/b",
        ),
        (
            "{{urlJoin (dict \"scheme\" \"http\" \"host\" \"host:80\" \"path\" \"/p\" \"query\" \"q=1\" \"fragment\" \"f\")}}",
            "http://host:80/p?q=1#f",
        ),
        ("{{urlJoin (urlParse \"https://u@h/x?y#z\")}} {{urlJoin (urlParse \"mailto:a@b\")}}", "https://u@h/x?y#z mailto:a@b"),
        (
            "{{durationRound \"2h10m5s\"}} {{durationRound \"2400h10m5s\"}} {{durationRound \"-90s\"}} {{durationRound 0}}",
            "2h 3mo -1m 0s",
        ),
        ("{{durationRound (dateModify \"-49h\" now)}}", "2d"),
        // The language itself.
        ("{{eq 1 2 1}} {{eq \"a\" \"b\" \"c\"}} {{eq 1 1.0}}", "true false true"),
        ("{{with 0}}a{{else with 2}}b{{.}}{{else}}c{{end}} {{with 0}}a{{else with \"\"}}b{{else}}c{{end}}", "b2 c"),
        (
            "{{range $i, $e := list 1 2 3 4}}{{if eq $e 2}}{{continue}}{{end}}{{if eq $i 3}}{{break}}{{end}}{{$i}}{{$e}} {{end}}",
            "01 23 ",
        ),
        ("{{define \"a\"}}<{{.}}>{{end}}{{template \"a\" 1}}{{block \"b\" 2}}[{{.}}]{{end}}{{template \"b\" 3}}", "<1>[2][3]"),
        ("{{range $e := list 1 2}}{{$e}}{{end}}{{range $k, $v := dict \"b\" 2 \"a\" 1}}{{$k}}{{$v}}{{else}}x{{end}}", "12a1b2"),
        ("{{$x := 1}}{{range list 1 2}}{{$x = add $x .}}{{end}}{{$x}}{{range list}}{{else}} none{{end}}", "4 none"),
    ]);
    check_errors(&[
        ("{{b32dec \"M\"}}", "not base32"),
        ("{{b32dec \"M1======\"}}", "not base32"),
        ("{{semverCompare \"^1.2\" \"1.3\"}}", "is left out: versions are compared where packages are installed"),
        ("{{htpasswd \"a\" \"b\"}}", "is left out: templates make no keys"),
        ("{{durationRound \"x\"}}", "invalid duration \"x\""),
    ]);
}

#[test]
fn dates() {
    check(&[
        ("{{now | date \"2006-01-02 15:04:05 -0700 MST\"}}", "2026-11-20 14:05:09 +0100 CET"),
        (
            "{{date \"Mon Jan _2 3:04PM 06\" now}}|{{now | date \"Monday, January 2\"}}",
            "Fri Nov 20 2:05PM 26|Friday, November 20",
        ),
        ("{{dateInZone \"15:04 Z07:00\" (now) \"UTC\"}} {{now | htmlDate}} {{now | unixEpoch}}", "13:05 Z 2026-11-20 1795179909"),
        ("{{now | dateModify \"-1.5h\" | date \"15:04\"}} {{date \"2006\" 0}}", "12:35 1970"),
        (
            "{{toDate \"2006-01-02\" \"2017-12-31\" | date \"02/01/2006\"}} {{duration 95}} {{duration 3600}}",
            "31/12/2017 1m35s 1h0m0s",
        ),
        ("{{now.Format \"2006\"}} {{now.Year}} {{now.Unix}} {{(now).Weekday}}", "2026 2026 1795179909 Friday"),
    ]);
}

#[test]
fn long_chains_and_deep_blocks_need_no_stack() {
    let chain = format!("{{{{if 0}}}}{}{{{{end}}}}x", "{{else if 0}}".repeat(5000));
    assert_eq!(render(&chain).as_deref(), Ok("x"));
    let nested = |depth: usize| format!("{}x{}", "{{if 1}}".repeat(depth), "{{end}}".repeat(depth));
    assert_eq!(render(&nested(60)).as_deref(), Ok("x"));
    let parentheses = format!("{{{{{}1{}}}}}", "(".repeat(10_000), ")".repeat(10_000));
    check_errors(&[(&nested(10_000), "nested more than"), (&parentheses, "nested more than")]);
    let deep =
        "{{define \"x\"}}{{if .}}{{with .}}{{template \"x\" (slice . 1)}}{{end}}{{end}}{{end}}{{template \"x\" (until 1000)}}";
    check_errors(&[(deep, "nested more than")]);
}

#[test]
fn nothing_panics_and_everything_ends() {
    let words = prop::sample::select(vec![
        "{{",
        "}}",
        "{{-",
        "-}}",
        "if",
        "else",
        "end",
        "range",
        "with",
        "define",
        "template",
        "block",
        "break",
        "continue",
        "\"x\"",
        "$",
        "$x",
        ":=",
        "=",
        ",",
        "|",
        "(",
        ")",
        ".",
        ".data",
        ".data.list",
        ".name",
        "1",
        "-1",
        "2.5",
        "nil",
        "true",
        "'a'",
        "`r`",
        "printf",
        "index",
        "slice",
        "len",
        "list",
        "dict",
        "set",
        "until",
        "repeat",
        "substr",
        "trunc",
        "round",
        "seq",
        "wrap",
        "regexMatch",
        "date",
        "now",
        "toJson",
        "fromJson",
        "merge",
        "render",
        "\"f\"",
        "write",
        "\n",
        " ",
        "/*",
        "*/",
        "9223372036854775807",
        "\"%5.3[2]*d\"",
        "\"é\"",
        "untilStep",
        "dateModify",
        "duration",
        "b64dec",
        "splitn",
        "indent",
        "print",
        "html",
        "js",
    ]);
    proptest!(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() }, |(
        words in prop::collection::vec(words, 0..16), text in "\\PC{0,40}",
    )| {
        drop(render(&words.join(" ")));
        drop(render(&words.concat()));
        drop(render(&format!("{{{{ {} }}}}", words.join(" "))));
        drop(render(&text));
        drop(render(&format!("{{{{{text}}}}}")));
    });
}
