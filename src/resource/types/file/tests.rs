//! The decision table of `file`, and invalid properties.

use crate::host::fs::FileInfo;

use super::state::Metadata;
use super::*;
use crate::resource::Change;

fn properties(json: serde_json::Value) -> Properties {
    serde_json::from_value(json).unwrap()
}

fn wanted(ensure: &str, content: Option<&str>) -> Properties {
    properties(
        serde_json::json!({"name": "/t/x", "ensure": ensure, "owner": "root", "group": "root", "mode": "0644", "content": content}),
    )
}

fn look(kind: fs::FileKind, mode: u32, content: Option<&str>) -> FileInfo {
    let sha256 = content.map(|content| fs::sha256(content.as_bytes()));
    FileInfo { kind, uid: 0, gid: 0, mode, size: 1, mtime: jiff::Timestamp::UNIX_EPOCH, sha256 }
}

fn state(p: &Properties, found: FoundFile) -> FileState {
    let sha256 = p.content.as_ref().map(|content| fs::sha256(content.as_bytes()));
    let metadata = Metadata { owner: "root".into(), group: "root".into(), ..Metadata::default() };
    FileState {
        found,
        wanted: DesiredFile { uid: Some(0), gid: Some(0), sha256 },
        below: Ok(vec![]),
        obstacle: None,
        mounted: None,
        metadata,
    }
}

fn is(kind: fs::FileKind, mode: u32, content: Option<&str>) -> FoundFile {
    FoundFile::Something { look: look(kind, mode, content), link: false }
}

fn linked(kind: fs::FileKind, mode: u32, content: Option<&str>) -> FoundFile {
    FoundFile::Something { look: look(kind, mode, content), link: true }
}

/// The decision table: properties, host, description of the dry run.
#[test]
fn decisions() {
    use fs::FileKind::{Directory, File as Regular, Other};
    let some = Some("x");
    for (ensure, content, found, expected) in [
        ("absent", None, FoundFile::Nothing, Ok("")),
        ("absent", None, is(Regular, 0o644, None), Ok("removed the file")),
        ("absent", None, is(Directory, 0o755, None), Ok("removed the directory")),
        ("absent", None, linked(Directory, 0o755, None), Ok("removed the file")),
        ("absent", None, FoundFile::DanglingLink, Ok("removed the file")),
        ("directory", None, FoundFile::Nothing, Ok("created directory")),
        ("directory", None, is(Directory, 0o755, None), Ok("")),
        ("directory", None, is(Directory, 0o700, None), Ok("created directory")),
        ("directory", None, linked(Directory, 0o755, None), Ok("")),
        ("directory", None, linked(Regular, 0o755, None), Ok("created directory")),
        ("directory", None, is(Regular, 0o755, None), Err("is not a directory")),
        ("present", some, FoundFile::Nothing, Ok("created the file")),
        ("present", some, FoundFile::DanglingLink, Ok("created the file")),
        ("present", some, is(Regular, 0o644, some), Ok("")),
        ("present", some, is(Regular, 0o644, Some("y")), Ok("created the file")),
        ("present", some, is(Regular, 0o600, some), Ok("created the file")),
        ("present", some, is(Directory, 0o755, None), Err("exists as a directory; cannot manage it as a file")),
        ("present", some, is(Other, 0o644, None), Err("device, socket or pipe")),
        ("present", Some(""), is(Regular, 0o644, some), Ok("created the file")),
        ("present", None, is(Regular, 0o644, some), Ok("")),
        ("present", None, is(Regular, 0o600, some), Ok("updated attributes")),
        ("present", None, FoundFile::Nothing, Ok("created an empty file with requested attributes")),
    ] {
        let p = wanted(ensure, content);
        let state = state(&p, found.clone());
        let got = FileType::diff(&p, &state);
        match expected {
            Ok(text) => {
                let steps: Vec<String> = got.unwrap().iter().map(ToString::to_string).collect();
                assert_eq!(steps.join(", "), text, "{ensure} {content:?} {found:?}");
            }
            Err(text) => assert!(got.unwrap_err().to_string().contains(text), "{ensure} {content:?} {found:?}"),
        }
    }
}

#[test]
fn details_say_what_differs() {
    let p = wanted("present", Some("x"));
    let mut state = state(&p, is(fs::FileKind::File, 0o600, Some("y")));
    state.wanted.uid = Some(7);
    let changes = FileType::diff(&p, &state).unwrap();
    assert_eq!(changes[0].details(), ["content", "owner root → root", "mode 0600 → 0644"]);
}

#[test]
fn a_managed_file_with_wrong_attributes_is_not_rewritten_but_a_link_is_replaced() {
    let p = wanted("present", Some("x"));
    let changes = |found| FileType::diff(&p, &state(&p, found)).unwrap();
    assert!(matches!(changes(is(fs::FileKind::File, 0o600, Some("x")))[0], FileChange::SetAttributes { managed: true, .. }));
    assert!(matches!(changes(linked(fs::FileKind::File, 0o600, Some("x")))[0], FileChange::Store { .. }));
}

#[test]
fn validation() {
    let full = |extra: serde_json::Value| {
        let mut all =
            serde_json::json!({"name": "/tmp/x", "ensure": "present", "owner": "root", "group": "root", "mode": "0644"});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        match serde_json::from_value::<Properties>(all) {
            Ok(p) => FileType::validate(&p).map_err(|invalid| invalid.message),
            Err(error) => Err(error.to_string()),
        }
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    for good in [
        "{}",
        r#"{"name":"/tmp/a b"}"#,
        r#"{"mode":"644"}"#,
        r#"{"mode":644}"#,
        r#"{"mode":"0O755"}"#,
        r#"{"content":null,"source":"x"}"#,
        r#"{"ensure":"absent","owner":"","group":"","mode":"","force":true}"#,
        r#"{"owner":1000}"#,
        r#"{"content":"x","validate":"check %s","backup":true}"#,
        r#"{"backup":"/var/backups","backup_keep":1}"#,
    ] {
        assert_eq!(full(json(good)), Ok(()), "{good}");
    }
    for (bad, message) in [
        (r#"{"name":""}"#, "name is required"),
        (r#"{"name":"/tmp/../x"}"#, "must be canonical"),
        (r#"{"name":"/tmp/./x"}"#, "must be canonical"),
        (r#"{"name":"/tmp//x"}"#, "must be canonical"),
        (r#"{"name":"/tmp/x/"}"#, "must be canonical"),
        (r#"{"name":"tmp/x"}"#, "must be absolute"),
        (r#"{"ensure":""}"#, "ensure is required"),
        (r#"{"ensure":"latest"}"#, "invalid ensure value"),
        (r#"{"owner":""}"#, "owner cannot be empty"),
        (r#"{"group":null}"#, "group cannot be empty"),
        (r#"{"mode":""}"#, "mode cannot be empty"),
        (r#"{"mode":"invalid"}"#, "not a valid octal number"),
        (r#"{"mode":"0o+7"}"#, "set the permissions of each class with ="),
        (r#"{"mode":"u+x,g=r"}"#, "set the permissions of each class with ="),
        (r#"{"mode":"u=rws"}"#, "setuid is not set"),
        (r#"{"mode":"04755"}"#, "setuid is not set"),
        (r#"{"ensure":"directory","mode":"4755"}"#, "setuid is not set"),
        (r#"{"mode":"x=r"}"#, "the classes are u, g, o and a"),
        (r#"{"mode":"u=q"}"#, "the permissions are r, w, x, s and t"),
        (r#"{"mode":"g=rs"}"#, "are for directories"),
        (r#"{"mode":"1777"}"#, "exceeds maximum value"),
        (r#"{"force":true}"#, "only valid with 'ensure: absent'"),
        (r#"{"name":"/","ensure":"absent","force":true}"#, "filesystem root"),
        (r#"{"content":"x","source":"y"}"#, "mutually exclusive"),
        (r#"{"validate":"check %s"}"#, "it needs 'content' or 'source'"),
        (r#"{"ensure":"absent","content":"x","validate":"check %s"}"#, "it needs 'content' or 'source'"),
        (r#"{"content":"x","validate":"check"}"#, "it has no \"%s\""),
        (r#"{"recurse":true}"#, "only valid with 'ensure: directory'"),
        (r#"{"ensure":"directory","purge":true}"#, "it needs 'recurse: true' and 'source'"),
        (r#"{"ensure":"directory","recurse":true,"purge":true}"#, "it needs 'recurse: true' and 'source'"),
        (r#"{"ensure":"directory","recurse":true,"name":"/"}"#, "filesystem root"),
        (r#"{"ensure":"directory","recurse":true,"backup":true}"#, "for single files"),
        (r#"{"backup":"there"}"#, "invalid backup"),
        (r#"{"backup_keep":0}"#, "at least 1"),
        (r#"{"colour":"red"}"#, "unknown field"),
    ] {
        assert!(full(json(bad)).unwrap_err().contains(message), "{bad}: {:?}", full(json(bad)));
    }
}

#[test]
fn modes_are_written_in_many_ways() {
    let mode = |written: &str, ensure: &str| {
        let properties = serde_json::json!({"name": "/x", "ensure": ensure, "owner": "0", "group": "0", "mode": written});
        serde_json::from_value::<Properties>(properties).unwrap().wanted_mode()
    };
    for (written, file) in [
        ("7", 0o7),
        ("644", 0o644),
        ("00644", 0o644),
        ("0o640", 0o640),
        ("u=rwx,go=rx", 0o755),
        ("a=r,u=rw", 0o644),
        ("=r", 0o444),
        ("u=rw,g=", 0o600),
    ] {
        assert_eq!(mode(written, "present"), file, "{written}");
    }
    for (written, directory) in [("1777", 0o1777), ("02755", 0o2755), ("u=rwx,g=rwxs,o=", 0o2770), ("a=rwx,o=rwxt", 0o1777)] {
        assert_eq!(mode(written, "directory"), directory, "{written}");
    }
}

#[test]
fn users_who_may_read_or_write_may_enter_directories() {
    for (mode, expected) in [
        (0o600, 0o700),
        (0o660, 0o770),
        (0o644, 0o755),
        (0o640, 0o750),
        (0o400, 0o500),
        (0o666, 0o777),
        (0o755, 0o755),
        (0o000, 0o000),
        (0o200, 0o300),
        (0o020, 0o030),
        (0o002, 0o003),
    ] {
        assert_eq!(Mode(mode).for_directory(), expected, "{mode:o}");
    }
}

#[test]
fn content_is_shown_as_its_digest() {
    let shown = FileType::redacted(&wanted("present", Some("hunter2")));
    assert!(!shown.to_string().contains("hunter2"));
    assert_eq!(shown["mode"], "0644");
}
