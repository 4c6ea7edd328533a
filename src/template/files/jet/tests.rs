//! The language by the examples of its documentation, and the error messages.

use crate::template::tests::scope;

fn render(body: &str) -> Result<String, String> {
    let shown = scope().inner.call_jet(&[body.into()], 0).map(|value| value.as_str().unwrap_or_default().to_owned());
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
        ("[[ 10 / 4 ]] [[ 10 / 4.0 ]] [[ 7 % 4 ]] [[ (1 + 2) * 3 ]] [[ -1 + 2 ]] [[ \"p\" + data.port ]]", "2.5 2.5 3 9 1 p8080"),
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
fn errors_name_the_reason() {
    let cases = [
        ("[[ data.nope ]]", "missing key 'data.nope' in environment"),
        ("[[ data.nope.deeper ]]", "missing key 'data.nope': cannot fetch deeper from <nil>"),
        ("[[ range data.users ]][[ .no.way ]][[ end ]]", "missing key '.no': cannot fetch way"),
        ("[[ range data.nope ]][[ end ]]", "missing key 'data.nope' in environment"),
        ("[[ range data.name ]][[ end ]]", "range needs a list, a map or a number"),
        ("a\n[[ nosuch ]]", "jet:2:1: unknown name nosuch"),
        ("[[ nosuch(1) ]]", "jet:1:1: unknown name nosuch"),
        ("[[ kvGet(\"a\", \"b\") ]]", "kvGet function not available"),
        ("[[ if data.on ]]x", "jet:1:1: if without end"),
        ("x[[ end ]]", "jet:1:2: end without an open statement"),
        ("[[ else ]]", "else without if or range"),
        ("[[ data.x", "jet:1:1: [[ without ]]"),
        ("{* open", "the comment is not closed"),
        ("[[ include \"x\" ]]", "jet:1:1: include finds only files of a scaffold"),
        ("[[ x = 1 ]]", "x is not declared"),
        ("[[ 1 + ]]", "jet:1:1: unexpected end"),
        ("[[ 1 2 ]]", "jet:1:1: unexpected 2"),
        ("[[ lookup(\"data.nope\") ]]", "missing key 'data.nope' in environment"),
        ("[[ file(\"nope\") ]]", "failed to read file \"nope\""),
        (
            "[[ range ints(0, 1000) ]][[ range ints(0, 1000) ]][[ range ints(0, 1000) ]]x[[ end ]][[ end ]][[ end ]]",
            "take more than 64 MiB",
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
        "[[", "]]", "if", "else", "end", "range", "x", ":=", "=", "data", ".", "name", "list", "(", ")", "[", "]", "+", "-", "|",
        "len", "\"a\"", "1", "{*", "*}", "{{", "?", ":", ",", "_", "!", "\n", "nil", "&&", "==", "block", "yield", "content",
        "try", "catch", "include", "import", ";", "b()",
    ]);
    proptest!(|(words in prop::collection::vec(words, 0..14))| {
        drop(render(&words.join(" ")));
        drop(render(&format!("[[ {} ]]", words.join(" "))));
    });
}

/// Examples from docs/syntax.md and docs/builtins.md of CloudyKit/jet, section by section.
#[test]
fn documented_examples_render() {
    let cases = [
        // Whitespace trimming, comments.
        ("foo [[ \"bar\" ]] baz", "foo bar baz"),
        ("foo \n\t[[- \"bar\" -]]\r\n baz", "foobarbaz"),
        ("a{*\n [[ asd ]]\n [[ include \"./foo.jet\" ]]\n*}b", "ab"),
        // Variables.
        ("[[ foo := \"bar\" ]][[ foo ]][[ foo = \"asd\" ]][[ foo ]][[ foo = 4711 ]][[ foo ]]", "barasd4711"),
        ("[[ _ := len(\"x\") ]][[ _ = len(\"x\") ]]|", "|"),
        ("[[ a, b := 1, \"x\" ]][[ a ]][[ b ]][[ a, b = b, 2 ]][[ a ]][[ b ]]", "1xx2"),
        ("[[ v, ok := data.m[\"k\"] ]][[ v ]][[ ok ]] [[ v, ok = data.m[\"no\"] ]][[ ok ]]", "vtrue false"),
        ("[[ x := 2; x + 1 ]]", "3"),
        // Indexing, fields, slicing.
        ("[[ s := \"helloworld\" ]][[ s[1] ]]", "101"),
        ("[[ s := slice(\"foo\", \"bar\", \"asd\") ]][[ s[0] ]][[ i := 2 ]][[ s[i] ]]", "fooasd"),
        ("[[ m := map(\"foo\", 123, \"bar\", 456) ]][[ m[\"foo\"] ]][[ bar := \"bar\" ]][[ m[bar] ]][[ m.foo ]]", "123456123"),
        ("[[ m := map(\"foo\", 123) ]][[ range slice(m, map(\"foo\", 4711)) ]][[ .foo ]] [[ end ]]", "123 4711 "),
        ("[[ s := slice(6, 7, 8, 9, 10, 11) ]][[ s[1:4] ]][[ s[:2] ]][[ s[4:] ]] [[ \"hello\"[1:3] ]]", "[7 8 9][6 7][10 11] el"),
        // Arithmetic, texts, logic.
        ("[[ 1 + 2 * 3 - 4 ]] [[ (1 + 2) * 3 - 4.1 ]] [[ \"HELLO\" + \" \" + \"WORLD!\" ]]", "3 4.9 HELLO WORLD!"),
        ("[[ a := true ]][[ a == true || !a && 1 != 2 ]] [[ 5 >= 12.5 || 5 < 6 ]] [[ not a or 1 > 2 ]]", "true true false"),
        ("[[ data.on ? data.name : \"not set\" ]] [[ data.nope ? 1 : data.off ? 2 : 3 ]]", "shop 3"),
        // Calls.
        ("[[ len: slice(\"asd\", \"foo\") ]] [[ isset: data, data.nope ]]", "2 false"),
        ("[[ \"123\" | lower | upper | len ]] [[ \"hello\" | repeat: 2 | len ]] [[ \"hello\" | repeat(2) | len ]]", "3 10 10"),
        (
            "[[ 2 | repeat(\"foo\", _) | repeat(_, 3) ]] [[ 2 | repeat: \"foo\", _ | repeat: _, 3 ]]",
            "foofoofoofoofoofoo foofoofoofoofoofoo",
        ),
        // if with declarations.
        ("[[ if x := data.port; x > 80 ]][[ x ]][[ end ]]", "8080"),
        ("[[ if x := 1; x > 2 ]]a[[ else if y := x + 1; y == 2 ]]b[[ x ]][[ y ]][[ else ]]c[[ end ]]!", "b12!"),
        ("[[ if x := 1; x > 2 ]]a[[ else if y := 9; y == 2 ]]b[[ else if x == 1 ]]d[[ y ]][[ else ]]c[[ end ]]!", "d9!"),
        ("[[ x := 1 ]][[ if x == 2 ]][[ x := 3 ]][[ else ]][[ x ]][[ end ]]", "1"),
        // range.
        ("[[ range i := 3 ]][[ i ]][[ . ]] [[ end ]][[ range 0 ]]x[[ else ]]none[[ end ]]", "00 11 22 none"),
        ("[[ range k := map(\"foo\", \"bar\") ]][[ k ]]: [[ . ]][[ end ]]", "foo: bar"),
        ("[[ range _, v := data.list ]][[ v ]][[ end ]][[ range slice() ]]x[[ else ]] No results[[ end ]]", "abc No results"),
        // try, catch.
        ("a[[ try ]]b[[ data.nope ]]c[[ end ]]d", "ad"),
        ("a[[ try ]]b[[ data.name ]][[ end ]]d", "abshopd"),
        ("[[ try ]]x[[ data.nope ]][[ catch ]]fallback[[ end ]]", "fallback"),
        (
            "[[ try ]][[ data.nope ]][[ catch err ]]oh: [[ err.Error() ]]|[[ err ]][[ end ]]",
            "oh: missing key 'data.nope' in environment|missing key 'data.nope' in environment",
        ),
        ("[[ x := 1 ]][[ try ]][[ x = 2 ]][[ try ]][[ data.no ]][[ catch ]][[ x = x + 1 ]][[ end ]][[ end ]][[ x ]]", "3"),
        ("[[ range v := data.list ]][[ try ]][[ . ]][[ if v == 1 ]][[ data.no ]][[ end ]][[ catch ]]-[[ end ]][[ end ]]", "a-c"),
        // block, yield, content.
        ("[[ block copyright() ]]ACME[[ end ]] [[ yield copyright() ]]", "ACME ACME"),
        (
            "[[ block field(type=\"text\", label, id, required=false) ]]<[[ type ]] [[ label ]] [[ id ]][[ required ? \" r\" : \"\" ]]>[[ end ]][[ yield field(id=\"a\", label=\"A\", required=true) ]]",
            "<text false false><text A a r>",
        ),
        ("[[ block buff() data.name ]]<[[ . ]]>[[ end ]][[ yield buff() \"Batman\" ]]", "<shop><Batman>"),
        (
            "[[ block link(target) ]]<[[ target ]]>[[ yield content ]]</>[[ end ]] [[ yield link(target=\"h\") content ]]Example[[ end ]]",
            "<false></> <h>Example</>",
        ),
        ("[[ name := \"Sarah\" ]][[ block header() ]]<[[ yield content ]]>[[ content ]]Hey [[ name ]]![[ end ]]", "<Hey Sarah!>"),
        (
            "[[ x := \"out\" ]][[ block b(x=\"in\") ]][[ x ]][[ yield content ]][[ end ]][[ yield b() data.name content ]][[ x ]][[ . ]][[ end ]]",
            "ininoutshop",
        ),
        ("[[ block b() ]]([[ yield content 7 ]])[[ content ]][[ . ]][[ end ]]", "(7)"),
        (
            "[[ block b() ]]<[[ yield content ]]>[[ content ]]0[[ end ]][[ yield b() content ]]1[[ yield b() content ]]2[[ end ]][[ end ]]",
            "<0><1<2>>",
        ),
        // A block sees the variables at the place of its use.
        ("[[ block b() ]][[ isset(who) ? who : \"-\" ]][[ end ]][[ who := \"me\" ]][[ yield b() ]]", "-me"),
        ("[[ block b() ]][[ .Data.name ]][[ data.name ]][[ end ]]", "shopshop"),
        ("[[ range data.list ]][[ yield b() ]][[ end ]][[ block b() \"z\" ]]<[[ . ]]>[[ end ]]", "<a><b><c><z>"),
        // Recursion.
        ("[[ block down(n=3) ]][[ n ]][[ if n > 0 ]][[ yield down(n=n - 1) ]][[ end ]][[ n ]][[ end ]]", "32100123"),
        (
            "[[ block menu() slice(map(\"t\", 1, \"c\", slice(map(\"t\", 2, \"c\", slice())))) ]][[ range . ]]<[[ .t ]][[ if len(.c) ]][[ yield menu() .c ]][[ end ]]>[[ end ]][[ end ]]",
            "<1<2>>",
        ),
        // Built-ins.
        (
            "[[ html(\"<a href='x'>&\") ]] [[ \"a b&c\" | url ]] [[ safeJs(\"'<\") ]]",
            "&lt;a href=&#39;x&#39;&gt;&amp; a+b%26c \\'\\u003C",
        ),
        ("[[ raw: \"<&>\" ]][[ \"<&>\" | unsafe ]][[ \"<\" | safeHtml ]]", "<&><&>&lt;"),
        ("[[ json(map(\"a\", \"<\")) ]] [[ writeJson: slice(1) ]]", "{\"a\":\"\\u003c\"} [1]\n"),
        (
            "[[ range ints(1, 4) ]][[ . ]][[ end ]] [[ hasPrefix(\"ab\", \"a\") ]] [[ hasSuffix: \"ab\", \"a\" ]]",
            "123 true false",
        ),
    ];
    let mut wrong = Vec::new();
    for (body, expected) in cases {
        match render(body) {
            Ok(found) if found == expected => {}
            found => wrong.push(format!("{body}: expected {expected:?}, got {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Behaviour of eval.go, parse.go and the printer of CloudyKit/jet 6.
#[test]
fn values_are_as_in_go() {
    let cases = [
        // Literals are floats; whole numbers of data stay whole.
        ("[[ 5/2 ]] [[ data.port / 2 ]] [[ data.port / data.nums[1] ]] [[ 7 % 4 ]] [[ -7 % 4 ]]", "2.5 4040 8080 3 -3"),
        ("[[ data.nums[0] / data.nums[2] ]] [[ data.nums[0] / 2 ]]", "1 1.5"),
        (
            "[[ 7.9 % 4 ]] [[ data.port % 79 ]] [[ 2.5 * 2 ]] [[ 1 - 3 ]] [[ -data.port ]] [[ +3 ]] [[ -(2) ]]",
            "3 22 5 -2 -8080 3 -2",
        ),
        (
            "[[ 2500000 ]] [[ 0.00000001 ]] [[ 1e6 ]] [[ 1e21 ]] [[ 1.50 ]] [[ .5 ]] [[ 5. ]]",
            "2500000 0.00000001 1000000 1000000000000000000000 1.5 0.5 5",
        ),
        ("[[ 0x1F ]] [[ 017 ]] [[ 'a' ]] [[ '\\n' ]]", "31 15 97 10"),
        ("[[ 1 / 0 ]] [[ -1 / 0 ]]", "+Inf -Inf"),
        ("[[ slice(2500000, 1.5) ]] [[ \"x\" + 2500000 ]]", "[2.5e+06 1.5] x2.5e+06"),
        (
            "[[ 1 + \"2\" ]] [[ data.port + \"1\" ]] [[ \"1\" + 2 ]] [[ \"a\" + true ]] [[ \"a\" + data.list ]]",
            "3 8081 12 atrue a[a b c]",
        ),
        // Truth of values.
        ("[[ data.el ? 1 : 2 ]] [[ data.em ? 1 : 2 ]] [[ slice() ? 1 : 2 ]] [[ map() ? 1 : 2 ]]", "1 1 1 1"),
        (
            "[[ 0 ? 1 : 2 ]] [[ -1 ? 1 : 2 ]] [[ \"\" ? 1 : 2 ]] [[ \" \" ? 1 : 2 ]] [[ data.zero ? 1 : 2 ]] [[ nil ? 1 : 2 ]]",
            "2 1 2 1 2 2",
        ),
        (
            "[[ if data.el ]]y[[ else ]]n[[ end ]][[ if !data.el ]]y[[ else ]]n[[ end ]][[ if data.nope ]]y[[ else ]]n[[ end ]]",
            "ynn",
        ),
        (
            "[[ data.name || false ]] [[ data.name && data.port ]] [[ data.nope || 0 ]] [[ \"\" && 5 % 0 ? 1 : 2 ]]",
            "true true false 2",
        ),
        // Precedence of operators.
        (
            "[[ not 1 == 2 ]] [[ !1 == 2 ]] [[ not 1 == 2 && false ]] [[ !(1 == 1) || true ]] [[ !!data.on ]]",
            "true true false true true",
        ),
        ("[[ 1 < 2 == true ]] [[ true == 1 < 2 ]] [[ 1 + 1 == 2 ]] [[ 2 > 1 == 1 < 2 ]]", "true true true true"),
        ("[[ false && true || true ]] [[ true || true && false ]] [[ true or false and false ]]", "true false false"),
        ("[[ data.on ? \"a\" : \"b\" | upper ]] [[ data.off ? 1 : data.on ? 2 : 3 ]]", "A 2"),
        // Comparisons.
        (
            "[[ 1 == 1.0 ]] [[ data.port == 8080 ]] [[ data.port == \"8080\" ]] [[ \"a\" == \"a\" ]] [[ true == 1 ]] [[ data.list == slice(\"a\", \"b\", \"c\") ]]",
            "true true false true false true",
        ),
        (
            "[[ data.nope == nil ]] [[ data.nope != \"x\" ]] [[ data.name != nil ]] [[ 2 < \"10\" ]] [[ data.port >= 8080 ]]",
            "true true true true true",
        ),
        // Indexes and bounds may be floats, as all literals are.
        (
            "[[ data.list[1] ]] [[ x := 4 / 2 ]][[ data.list[x] ]] [[ data.list[0:x] ]] [[ \"abc\"[1] ]] [[ isset(data.list[9]) ]]",
            "b c [a b] 98 false",
        ),
        (
            "[[ repeat(\"ab\", 2) ]] [[ replace(\"aaa\", \"a\", \"b\", 2) ]] [[ range ints(0, 4 / 2) ]][[ . ]][[ end ]] [[ range 2 ]]x[[ end ]]",
            "abab bba 01 xx",
        ),
        // Blanks before the first text or action, and a blank template.
        ("  \n ", ""),
        ("\n  [[ 1 ]]\n", "1\n"),
        (" {* c *} \n{* d *} x", " x"),
        (" x [[ 1 ]]", " x 1"),
        ("[[ upper(\"stra\u{df}e\") ]]", "STRA\u{df}E"),
        // JSON.
        (
            "[[ json(map(\"b\", 1, \"a\", 2.5)) ]]|[[ writeJson(map(\"b\", 1)) ]]|[[ json(data.m) ]]",
            "{\"a\":2.5,\"b\":1}|{\"b\":1}\n|{\"k\":\"v\",\"n\":{\"x\":1}}",
        ),
        // Facts under the field names of the Go system.
        ("[[ facts.host.info.PlatformFamily ]] [[ Facts.Host.Info.OS ]] [[ facts.host.info.os ]]", "debian linux linux"),
        ("[[ range facts.network.interfaces ]][[ .Name ]]=[[ .name ]] [[ end ]]", "lo=lo eth0=eth0 "),
    ];
    let mut wrong = Vec::new();
    for (body, expected) in cases {
        match render(body) {
            Ok(found) if found == expected => {}
            found => wrong.push(format!("{body}: expected {expected:?}, got {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (body, expected) in [
        ("[[ data.port / data.zero ]]", "division by zero"),
        ("[[ 5 % 0 ]]", "division by zero"),
        ("[[ true + 1 ]]", "+ takes numbers, but its left side is not a number"),
        ("[[ 1 + true ]]", "+ takes numbers, but its right side is not a number"),
        ("[[ 1 - \"x\" ]]", "- takes numbers, but its right side is not a number"),
        ("[[ \"a\" - 1 ]]", "- takes numbers, but its left side is not a number"),
        ("[[ \"a\" < \"b\" ]]", "< takes numbers, but its left side is not a number"),
        ("[[ data.nope < 1 ]]", "< takes numbers"),
        ("[[ -\"a\" ]]", "- takes a number"),
        ("[[ ints(2, 2) ]]", "the larger one last"),
        ("[[ 'ab' ]]", "write texts in double quotes"),
        ("[[ 1_000 ]]", "1_000 is not a number"),
        ("[[ 09 ]]", "09 is not a number"),
        ("[[ data.m.K ]]", "missing key 'data.m.K'"),
    ] {
        let error = render(body).expect_err(body);
        assert!(error.contains(expected), "{body}: {error}");
    }
}

#[test]
fn errors_have_line_and_column() {
    let mut wrong = Vec::new();
    for (body, expected) in [
        ("a\n  [[ data.nope ]]", "jet:2:3: missing key 'data.nope' in environment"),
        ("\n[[ block b() ]]\n [[ data.nope ]][[ end ]]", "jet:3:2: missing key 'data.nope'"),
        ("[[ block b() ]]\n\n[[ yield content ]][[ content ]]\n[[ .no ]][[ end ]]", "jet:4:1: missing key '.no'"),
        ("[[ try ]][[ data.no ]][[ catch ]]\n [[ data.nope ]][[ end ]]", "jet:2:2: missing key 'data.nope'"),
        ("x[[ yield b() ]]", "jet:1:2: there is no block b"),
        ("[[ block b() ]]x", "jet:1:1: block without end"),
        ("[[ try ]]x", "jet:1:1: try without end"),
        ("x [[ catch ]]", "jet:1:3: catch without try"),
        ("[[ block b() ]]x[[ catch ]][[ end ]]", "jet:1:17: catch without try"),
        ("[[ content ]]", "jet:1:1: content must be in a block"),
        ("[[ block b() ]][[ if true ]][[ content ]][[ end ]][[ end ]]", "content"),
        ("[[ block b() ]]1[[ end ]][[ block b() ]]2[[ end ]]", "jet:1:42: the block b is defined twice"),
        ("[[ block content() ]][[ end ]]", "a block can't be called content"),
        ("[[ block b(1) ]][[ end ]]", "the parameters of a block have names"),
        ("[[ block b(a ]][[ end ]]", "the ( is not closed"),
        ("[[ yield b(1) ]]", "the parameters of a block have names"),
        ("[[ yield b(a) ]]", "a has no name"),
        ("[[ yield ]]", "yield takes a name"),
        ("[[ block b() ]][[ x = 1 ]][[ end ]]", "x is not declared here"),
        ("[[ x := 1 ]][[ block b() ]][[ x = 2 ]][[ end ]]", "x is not declared here"),
        ("[[ block b() ]][[ nosuch ]][[ end ]]", "jet:1:16: missing key 'nosuch'"),
        ("[[ if x := 1 ]][[ end ]]", "if needs a condition as its last part"),
        ("[[ if true ]][[ x := 1 ]][[ else ]][[ x ]][[ end ]]", "unknown name x"),
        ("[[ a, b := 1, 2, 3 ]]", "2 names for 3 values"),
        ("[[ x := ]]", "a value is missing after ="),
        ("[[ extends \"x\" ]]", "extends finds only files of a scaffold"),
        ("[[ import \"x\" ]]", "import finds only files of a scaffold"),
        ("[[ return 1 ]]", "return is not supported"),
        ("[[ exec(\"x\") ]]", "exec is not supported"),
        ("[[ range a, b, c := data.list ]][[ end ]]", "a key and a value"),
        ("[[ data.name[99] ]]", "index out of range: 99"),
        ("[[ block b() ]][[ yield b() ]][[ end ]]", "jet:1:"),
        ("[[ range 10000000 ]][[ end ]]", "a range over more than"),
    ] {
        match render(body) {
            Err(found) if found.contains(expected) => {}
            found => wrong.push(format!("{body}: expected {expected:?}, got {found:?}")),
        }
    }
    let deep = format!("{}{}", "[[ if true ]]".repeat(100), "[[ end ]]".repeat(100));
    assert!(render(&deep).unwrap_err().contains("nested more than"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
