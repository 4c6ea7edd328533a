//! Jet files that include, extend and import each other.

use super::Engine;
use super::tests::render;

type Tree<'a> = &'a [(&'a str, &'a str)];

/// Renders the file `f` with other files as parts.
fn one(files: Tree<'_>) -> Result<String, String> {
    let made = render(Engine::Jet, files)?;
    Ok(made.into_iter().find(|(path, _)| path == "f").map(|(_, text)| text).unwrap_or_default())
}

#[test]
fn files_include_extend_and_import() {
    let layout = "<[[ yield title() ]]|[[ block body() ]]default[[ end ]]>";
    let blocks = "[[ block twice(x) ]][[ x ]][[ x ]][[ end ]]never";
    let cases: &[(Tree<'_>, &str)] = &[
        (&[("f", "a[[ include \"_partials/p\" ]]c"), ("_partials/p", "b")], "abc"),
        (&[("f", "[[ include \"_partials/p\" data ]]"), ("_partials/p", "[[ name ]][[ .port ]]")], "shop8080"),
        (&[("f", "[[ range data.list ]][[ include \"/_partials/p\" . ]][[ end ]]"), ("_partials/p", "<[[ . ]]>")], "<a><b><c>"),
        (&[("f", "[[ range data.list ]][[ include \"_partials/p\" ]][[ end ]]"), ("_partials/p", "<[[ . ]]>")], "<a><b><c>"),
        // An included file sees all variables. Its own variables stay local.
        (
            &[
                ("f", "[[ x := 1 ]][[ range i, v := data.list ]][[ include \"_partials/p\" ]][[ end ]][[ x ]]"),
                ("_partials/p", "[[ x ]][[ v ]][[ x := 2 ]]"),
            ],
            "1a1b1c1",
        ),
        // A path beside the file, from the source directory on, and with the usual endings.
        (
            &[
                ("f", "[[ include \"_partials/a/p\" ]]"),
                ("_partials/a/p.jet", "[[ include \"./q\" ]][[ include \"../r\" ]][[ include \"_partials/r\" ]]"),
                ("_partials/a/q.jet.html", "q"),
                ("_partials/r", "r"),
            ],
            "qrr",
        ),
        (&[("f", "[[ includeIfExists(\"nope\") ]][[ includeIfExists(\"_partials/p\", 7) ]]"), ("_partials/p", "[[ . ]]")], "7"),
        (&[("f", "[[ p := \"p\" ]][[ include \"_partials/\" + p ]]"), ("_partials/p", "b")], "b"),
        (&[("f", "[[ try ]][[ include \"nope\" ]][[ catch ]]none[[ end ]]")], "none"),
        // `extends`, with and without the blocks of the layout.
        (
            &[
                ("f", "[[ extends \"_partials/layout\" ]]never[[ block title() ]]T[[ data.name ]][[ end ]]"),
                ("_partials/layout", layout),
            ],
            "<Tshop|default>",
        ),
        (
            &[
                ("f", "[[ extends \"_partials/layout\" ]]\n[[ block title() ]]T[[ end ]][[ block body() ]]B[[ end ]]"),
                ("_partials/layout", layout),
            ],
            "<T|B>",
        ),
        (
            &[
                ("f", "[[ extends \"_partials/mid\" ]][[ block title() ]]T[[ end ]]"),
                ("_partials/mid", "[[ extends \"./layout\" ]][[ block title() ]]no[[ end ]][[ block body() ]]M[[ end ]]"),
                ("_partials/layout", layout),
            ],
            "<T|M>",
        ),
        // `import` brings blocks and no text.
        (&[("f", "[[ import \"_partials/b\" ]][[ yield twice(x=3) ]]"), ("_partials/b", blocks)], "33"),
        (
            &[
                (
                    "f",
                    "[[ extends \"_partials/layout\" ]][[ import \"_partials/b\" ]][[ block title() ]][[ yield twice(x=\"T\") ]][[ end ]]",
                ),
                ("_partials/b", blocks),
                ("_partials/layout", layout),
            ],
            "<TT|default>",
        ),
        // An own block wins over an imported block. Files may import each other.
        (
            &[
                ("f", "[[ import \"_partials/b\" ]][[ block twice(x=\"-\") ]]own[[ x ]][[ end ]]"),
                ("_partials/b", "[[ import \"/f\" ]][[ block twice(x) ]]no[[ end ]]"),
            ],
            "own-",
        ),
        // An included file sees its own blocks.
        (&[("f", "[[ block b() ]]1[[ end ]][[ include \"_partials/p\" ]]"), ("_partials/p", "[[ block b() ]]2[[ end ]]")], "12"),
    ];
    let mut wrong = Vec::new();
    for (files, expected) in cases {
        match one(files) {
            Ok(found) if found.trim() == *expected => {}
            found => wrong.push(format!("{files:?}: expected {expected:?}, got {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn errors_have_their_place() {
    let cases: &[(Tree<'_>, &str)] = &[
        (&[("f", "x\n [[ include \"nope\" ]]")], "f:2:2: there is no template nope in the source directory"),
        (
            &[("f", "[[ include \"_partials/p\" ]]"), ("_partials/p", "\n[[ data.nope ]]")],
            "_partials/p:2:1: missing key 'data.nope'",
        ),
        (&[("f", "[[ include \"_partials/p\" ]]"), ("_partials/p", "\n[[ if ]]")], "_partials/p:2:1: "),
        (&[("f", "[[ include \"../x\" ]]")], "there is no template ../x"),
        (&[("f", "[[ include \"f\" ]]")], "f:1:1: "),
        (&[("f", "[[ extends \"nope\" ]]")], "f:1:1: there is no template nope"),
        (
            &[("f", "x\n[[ import \"_partials/p\" ]]"), ("_partials/p", "[[ block b ]]")],
            "f:2:1: _partials/p:1:1: block without end",
        ),
        (
            &[
                ("f", "[[ import \"_partials/p\" ]]\n[[ yield b() ]]"),
                ("_partials/p", "\n\n [[ block b() ]]\n[[ data.no ]][[ end ]]"),
            ],
            "_partials/p:4:1: missing key 'data.no'",
        ),
        (
            &[("f", "[[ extends \"_partials/l\" ]]"), ("_partials/l", "\n  [[ yield body() ]]")],
            "_partials/l:2:3: there is no block body",
        ),
        (
            &[("f", "[[ extends \"_partials/a\" ]]"), ("_partials/a", "[[ extends \"/f\" ]]")],
            "f:1:1: extends is nested more than 16 deep",
        ),
        (
            &[("f", "[[ data.name ]][[ extends \"_partials/a\" ]]"), ("_partials/a", "")],
            "f:1:16: extends must be at the top of a file",
        ),
        (
            &[("f", "[[ import \"_partials/a\" ]][[ extends \"_partials/a\" ]]"), ("_partials/a", "")],
            "a file has at most one extends, before all imports",
        ),
        (&[("f", "[[ import data.name ]]")], "f:1:1: import takes the path of a file in quotes"),
        (&[("f", "[[ block b() ]][[ yield b() ]][[ end ]]")], "f:1:"),
        (&[("f", "[[ include 1 ]]")], "include takes the path of a file"),
        (
            &[("f", "[[ try ]][[ range 1000 ]][[ range 1000 ]][[ range 1000 ]][[ end ]][[ end ]][[ end ]][[ catch ]]x[[ end ]]")],
            "take more than 64 MiB",
        ),
    ];
    let mut wrong = Vec::new();
    for (files, expected) in cases {
        match one(files) {
            Err(found) if found.contains(expected) => {}
            found => wrong.push(format!("{files:?}: expected {expected:?}, got {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
