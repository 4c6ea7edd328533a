//! The decision table of `line`, invalid properties, and edits of real files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::json;

use super::*;

fn properties(extra: &Value) -> Result<Properties, String> {
    let mut all = json!({"name": "/t/x", "line": "x=1"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let p: Properties = serde_json::from_value(all).map_err(|error| error.to_string())?;
    LineType::validate(&p).map(|()| p).map_err(|invalid| invalid.message)
}

fn found(content: &str, link: bool) -> LineState {
    let look = FileInfo {
        kind: fs::FileKind::File,
        uid: 0,
        gid: 0,
        mode: 0o644,
        size: 0,
        mtime: jiff::Timestamp::UNIX_EPOCH,
        sha256: None,
    };
    let found = FoundText::File { content: content.into(), look, link };
    LineState { found, is_present: false, path: "/t/x".into(), lines: 0, obstacle: None, is_predicted: false }
}

/// The decision table: properties, host, description of the dry run.
#[test]
fn decisions() {
    let missing = LineState {
        found: FoundText::Nothing,
        is_present: false,
        path: "/t/x".into(),
        lines: 0,
        obstacle: None,
        is_predicted: false,
    };
    for (extra, state, expected) in [
        (json!({}), missing.clone(), Ok("created the file with the line")),
        (json!({"ensure": "absent"}), missing, Ok("")),
        (json!({}), LineState { found: FoundText::Other, ..found("", false) }, Err("/t/x is not a regular file")),
        (json!({}), found("", false), Ok("added the line: added line 1")),
        (json!({}), found("a\nx=1\n", false), Ok("")),
        (json!({}), found("a\nx=1\n", true), Ok("")),
        (json!({}), found("a\n", true), Err("is a symlink; refusing to edit through it")),
        (json!({"match": "^x="}), found("x=2\n", false), Ok("replaced the line: replaced line 1")),
        (json!({"match": "^x="}), found("x=2\nx=3\n", false), Err("/t/x: 2 lines match")),
        (json!({"match": "^x=", "all": true}), found("x=2\n\nx=3\n", false), Ok("replaced 2 lines: replaced lines 1, 3")),
        (json!({"after": "^b"}), found("a\n", false), Err("no line matches after: \"^b\"")),
        (json!({"ensure": "absent"}), found("x=1\na\nx=1", false), Ok("removed 2 lines: removed lines 1, 3")),
        (
            json!({"ensure": "absent", "match": "^x", "line": null}),
            found("a\nxy\n", false),
            Ok("removed the line: removed line 2"),
        ),
        (json!({"ensure": "absent"}), found("a\n", false), Ok("")),
    ] {
        match (LineType::diff(&properties(&extra).unwrap(), &state), expected) {
            (Ok(changes), Ok(expected)) => {
                let said: Vec<String> =
                    changes.iter().map(|change| format!("{change}: {}", change.details().join(", "))).collect();
                let expected = if expected.contains("created") { format!("{expected}: {expected}") } else { expected.to_owned() };
                assert_eq!(said.join("; "), expected, "{extra}");
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{extra}: {error}"),
            (got, _) => panic!("{extra}: {got:?}"),
        }
    }
}

#[test]
fn many_numbers_are_cut_short() {
    let change = LineChange::Remove((1..=13).collect());
    assert_eq!(change.details(), ["removed lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more"]);
}

#[test]
fn validation() {
    for good in [
        json!({"name": "any name", "path": "/t/x"}),
        json!({"match": "^x=", "all": true, "create": true, "mode": 600, "owner": 0}),
        json!({"after": "^a", "at": "start", "backup": true, "validate": "check %s"}),
        json!({"ensure": "absent", "line": "", "match": "^x"}),
        json!({"line": 5}),
    ] {
        assert_eq!(properties(&good).err(), None, "{good}");
    }
    for (bad, message) in [
        (json!({"name": "t/x"}), "which must be absolute"),
        (json!({"name": "some label"}), "which must be absolute"),
        (json!({"name": "label", "path": "/t/../x"}), "path must be canonical"),
        (json!({"name": " ", "path": "/t/x"}), "name is required"),
        (json!({"line": ""}), "line is required"),
        (json!({"line": "", "ensure": "absent"}), "line is required"),
        (json!({"line": "", "match": "x"}), "line is required"),
        (json!({"line": "a\nb"}), "must be one line"),
        (json!({"line": "a\r"}), "must be one line"),
        (json!({"match": "^y="}), "does not match the line itself"),
        (json!({"match": "("}), "invalid regular expression in match"),
        (json!({"after": "["}), "invalid regular expression in after"),
        (json!({"before": "a", "after": "b"}), "mutually exclusive"),
        (json!({"all": true}), "needs 'match'"),
        (json!({"mode": "0600"}), "needs 'create: true'"),
        (json!({"validate": "visudo -c"}), "it has no \"%s\""),
        (json!({"backup": "x"}), "invalid backup"),
        (json!({"at": "middle"}), "unknown variant"),
        (json!({"ensure": "there"}), "unknown variant"),
    ] {
        let got = properties(&bad).unwrap_err();
        assert!(got.contains(message), "{bad}: {got}");
    }
}

#[test]
fn a_line_is_shown_as_its_digest() {
    let shown = LineType::redacted(&properties(&json!({"line": "password=hunter2"})).unwrap());
    assert!(!shown.to_string().contains("hunter2"), "{shown}");
    assert!(shown["line"].as_str().unwrap().contains("(16 bytes)"));
}

#[test]
fn other_lines_keep_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("conf");
    std::fs::write(&path, "a\r\nx=0\r\n\u{fc}\r\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o2640)).unwrap();
    let p = properties(&json!({"name": path, "match": "^x="})).unwrap();
    let host = Host::system(None);
    let state = LineType::observe(&p, &(), &host).unwrap();
    let preview = LineType::preview(&p, &state, &host).unwrap();
    assert_eq!((preview.before.as_str(), preview.after.as_str()), ("a\r\nx=0\r\n\u{fc}\r\n", "a\r\nx=1\r\n\u{fc}\r\n"));
    // A change between observation and step is kept.
    std::fs::write(&path, "b\r\nx=0\r\n").unwrap();
    for change in LineType::diff(&p, &state).unwrap() {
        LineType::apply(&change, &p, &mut state.clone(), &(), &host).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\r\nx=1\r\n");
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o2640);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_missing_file_is_created_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("conf");
    let host = Host::system(None);
    let run = |extra: Value| {
        let p = properties(&extra).unwrap();
        let mut state = LineType::observe(&p, &(), &host)?;
        LineType::diff(&p, &state)?.iter().try_for_each(|change| LineType::apply(change, &p, &mut state, &(), &host))
    };
    assert!(run(json!({"name": path})).unwrap_err().to_string().contains("set create: true"));
    run(json!({"name": path, "create": true, "mode": "0600"})).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "x=1\n");
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
    assert!(run(json!({"name": dir.path()})).unwrap_err().to_string().contains("is not a regular file"));
    assert!(
        run(json!({"name": dir.path().join("no/file"), "create": true})).unwrap_err().to_string().contains("is not a directory")
    );
    std::fs::File::create(dir.path().join("large")).unwrap().set_len(LIMIT + 1).unwrap();
    assert!(run(json!({"name": dir.path().join("large")})).unwrap_err().to_string().contains("is larger than"));
}
