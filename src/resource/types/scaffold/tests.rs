use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::host::fake::{FakeRunner, host};

fn properties(extra: &Value) -> Result<Properties, String> {
    let mut all = json!({"name": "/t/out", "ensure": "present", "source": "tpl", "engine": "jet"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    all.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    serde_json::from_value(all).map_err(|error| error.to_string())
}

fn paths(count: usize, name: &str) -> Vec<String> {
    (0..count).map(|at| format!("{name}{at}")).collect()
}

/// Added, updated, stable and extra files.
fn state(p: &Properties, exists: bool, [added, updated, stable, extra]: [usize; 4]) -> ScaffoldState {
    let differences = Differences {
        added: paths(added, "a"),
        updated: paths(updated, "u"),
        stable: paths(stable, "s"),
        extra: paths(extra, "x"),
    };
    let rendered = Rendered { engine: ScaffoldEngine::Jet, directories: Vec::new(), files: BTreeMap::new() };
    ScaffoldState::new(p, exists, Some(Arc::new(rendered)), differences)
}

/// The decision table: ensure, purge, whether the target exists, files, steps.
#[test]
fn decisions() {
    for (ensure, purge, exists, files, expected) in [
        ("absent", false, false, [0, 0, 0, 0], Ok("")),
        ("absent", false, true, [0, 0, 0, 0], Ok("")),
        ("absent", true, true, [0, 0, 0, 2], Ok("")),
        ("absent", false, true, [0, 1, 2, 4], Ok("removed 3 scaffold files")),
        ("absent", true, true, [0, 1, 2, 4], Ok("removed 7 scaffold files")),
        ("present", false, true, [0, 0, 2, 0], Ok("")),
        ("present", false, true, [0, 0, 2, 3], Ok("")),
        ("present", true, true, [0, 0, 2, 3], Ok("changed 3 scaffold files")),
        ("present", true, true, [1, 1, 2, 3], Ok("changed 5 scaffold files")),
        ("present", false, true, [1, 1, 0, 3], Ok("changed 2 scaffold files")),
        ("present", false, false, [2, 0, 0, 0], Ok("changed 2 scaffold files")),
        ("present", false, false, [0, 0, 0, 0], Ok("created the target directory")),
        ("present", false, true, [0, 0, 0, 0], Err("no template of the source makes a file")),
        // A source without files purges nothing: it is probably wrong.
        ("present", true, true, [0, 0, 0, 3], Err("no template of the source makes a file")),
    ] {
        let p = properties(&json!({"ensure": ensure, "purge": purge})).unwrap();
        let changes = ScaffoldType::diff(&p, &state(&p, exists, files));
        let done = changes.map(|changes| changes.iter().map(ToString::to_string).collect::<String>());
        match expected {
            Ok(expected) => assert_eq!(done.unwrap(), expected, "{ensure} {purge} {exists} {files:?}"),
            Err(expected) => assert!(done.unwrap_err().to_string().contains(expected), "{ensure} {purge} {exists} {files:?}"),
        }
    }
    let p = properties(&json!({"purge": true})).unwrap();
    let changes = ScaffoldType::diff(&p, &state(&p, true, [1, 1, 1, 1])).unwrap();
    assert_eq!(changes[0].details(), ["created a0", "updated u0", "removed x0"]);
    let changes = ScaffoldType::diff(&p, &state(&p, true, [150, 0, 0, 0])).unwrap();
    assert_eq!(changes[0].details().last().unwrap(), "and 130 more");
}

#[test]
fn properties_are_checked() {
    for (extra, expected) in [
        (json!({"name": "out"}), "name must be an absolute path"),
        (json!({"name": "/a/../b"}), "name must be a canonical path"),
        (json!({"name": "/a/"}), "name must be a canonical path"),
        (json!({"name": "/"}), "filesystem root"),
        (json!({"name": ""}), "name is required"),
        (json!({"name": "/a\u{0}"}), "NUL"),
        (json!({"source": ""}), "source cannot be empty"),
        (json!({"source": null}), "missing field `source`"),
        (json!({"ensure": null}), "ensure is required"),
        (json!({"ensure": ""}), "ensure is required"),
        (json!({"ensure": "running"}), "must be one of \"present\" or \"absent\""),
        (json!({"engine": "mustache"}), "engine must be one of \"jinja\", \"go\" or \"jet\", not \"mustache\""),
        (json!({"post": [{"": "x"}]}), "post keys cannot be empty"),
        (json!({"post": [{"k": ""}]}), "post value for key \"k\" cannot be empty"),
        (json!({"post": [{"k": " "}]}), "post value for key \"k\" cannot be empty"),
        (json!({"post": [{"[": "x"}]}), "is no pattern"),
        (json!({"post": [{"*": "x 'y"}]}), "invalid post command"),
        (json!({"purged": true}), "unknown field"),
    ] {
        let result = properties(&extra).and_then(|p| ScaffoldType::validate(&p).map_err(|invalid| invalid.message));
        let error = result.expect_err(&extra.to_string());
        assert!(error.contains(expected), "{extra}: {error}");
    }
    for extra in
        [json!({}), json!({"engine": null}), json!({"post": [{"*.go": "go fmt {}", "*.sh": "x"}]}), json!({"data": {"a": [1]}})]
    {
        ScaffoldType::validate(&properties(&extra).unwrap()).unwrap();
    }
}

/// A source in a temporary directory, with its target.
struct Place {
    directory: tempfile::TempDir,
    provider: Choria,
}

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap(), provider: Choria::default() };
        files.iter().for_each(|(path, text)| place.write(&format!("src/{path}"), text));
        place
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    fn properties(&self, extra: &Value) -> Properties {
        let own = json!({"name": self.path("out"), "source": self.path("src"), "engine": null, "data": {"x": "v"}});
        let mut all = own.as_object().unwrap().clone();
        all.extend(extra.as_object().unwrap().clone());
        properties(&Value::Object(all)).unwrap()
    }

    /// Converges a scaffold. Returns the steps or the error.
    fn bring(&self, p: &Properties, host: &Host) -> Result<String, String> {
        let run = || {
            let mut state = ScaffoldType::observe(p, &self.provider, host)?;
            let changes = ScaffoldType::diff(p, &state)?;
            for change in &changes {
                ScaffoldType::apply(change, p, &mut state, &self.provider, host)?;
            }
            Ok::<_, ResourceError>(changes.iter().map(ToString::to_string).collect::<String>())
        };
        run().map_err(|error| crate::diag::error_chain(&error))
    }
}

fn system() -> Host {
    Host::system(None)
}

#[test]
fn the_engine_is_jinja_where_a_name_says_so() {
    let place = Place::new(&[("a.j2", "{{ data.x }} [[ data.x ]]"), ("b", "{{ data.x }}")]);
    assert_eq!(place.bring(&place.properties(&json!({})), &system()).unwrap(), "changed 2 scaffold files");
    assert_eq!((place.read("out/a"), place.read("out/b")), ("v [[ data.x ]]".into(), "v".into()));
    let place = Place::new(&[("a", "{{ data.x }} [[ data.x ]]")]);
    place.bring(&place.properties(&json!({})), &system()).unwrap();
    assert_eq!(place.read("out/a"), "{{ data.x }} v");
}

#[test]
fn modes_are_kept_and_binary_files_are_copied() {
    let place = Place::new(&[("run", "#!/bin/sh [[ data.x ]]\n"), ("secret", "s")]);
    let mode = |path: &str, mode: u32| std::fs::set_permissions(place.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    mode("src/run", 0o755);
    mode("src/secret", 0o600);
    std::fs::write(place.path("src/binary"), b"\xff[[ x").unwrap();
    std::fs::create_dir(place.path("src/empty")).unwrap();
    let p = place.properties(&json!({}));
    place.bring(&p, &system()).unwrap();
    let bits = |path: &str| std::fs::metadata(place.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((bits("out/run"), bits("out/secret"), bits("out/empty")), (0o755, 0o600, 0o755));
    assert_eq!(std::fs::read(place.path("out/binary")).unwrap(), b"\xff[[ x");
    // A mode alone is not managed, as in the Go system.
    mode("out/run", 0o700);
    assert_eq!(place.bring(&p, &system()).unwrap(), "");
    assert_eq!(bits("out/run"), 0o700);
}

#[test]
fn a_template_that_fails_leaves_everything_as_it_is() {
    let place = Place::new(&[("a", "new"), ("z", "[[ data.nope ]]")]);
    place.write("out/a", "old");
    let error = place.bring(&place.properties(&json!({"purge": true})), &system()).unwrap_err();
    assert!(error.starts_with("template z:1:1: missing key 'data.nope'"), "{error}");
    assert_eq!(place.read("out/a"), "old");
}

#[test]
fn an_applied_target_is_observed_without_rendering() {
    let place = Place::new(&[("a", "1")]);
    let (p, host) = (place.properties(&json!({})), system());
    place.bring(&p, &host).unwrap();
    place.write("src/a", "2");
    // Observing right after the change uses the applied result; the next time renders.
    assert_eq!(place.bring(&p, &host).unwrap(), "");
    assert_eq!(place.bring(&p, &host).unwrap(), "changed 1 scaffold files");
    assert_eq!(place.read("out/a"), "2");
}

#[test]
fn links_in_the_target_lead_nowhere() {
    let place = Place::new(&[("sub/a", "new"), ("b", "new")]);
    place.write("other/a", "theirs");
    std::fs::create_dir(place.path("out")).unwrap();
    std::os::unix::fs::symlink(place.path("other"), place.path("out/sub")).unwrap();
    for ensure in ["present", "absent"] {
        let error = place.bring(&place.properties(&json!({"ensure": ensure, "purge": true})), &system()).unwrap_err();
        assert!(error.contains("out/sub is a symbolic link; refusing to write through it"), "{error}");
    }
    assert_eq!(place.read("other/a"), "theirs");
    assert!(!place.path("out/b").exists());
    // A link in the place of a file is replaced; a link that is not of the templates is removed itself.
    std::fs::remove_file(place.path("out/sub")).unwrap();
    std::os::unix::fs::symlink(place.path("other/a"), place.path("out/b")).unwrap();
    std::os::unix::fs::symlink(place.path("other"), place.path("out/extra")).unwrap();
    place.bring(&place.properties(&json!({"purge": true})), &system()).unwrap();
    assert_eq!((place.read("out/b"), place.read("other/a")), ("new".into(), "theirs".into()));
    assert!(!place.path("out/b").is_symlink() && !place.path("out/extra").is_symlink());
}

#[test]
fn objects_in_the_way_are_named() {
    let place = Place::new(&[("sub/a", "new")]);
    let p = place.properties(&json!({}));
    let error = |place: &Place, p: &Properties| place.bring(p, &system()).unwrap_err();
    place.write("out", "a file");
    assert!(error(&place, &p).contains("exists and is not a directory; remove it first"));
    std::fs::remove_file(place.path("out")).unwrap();
    place.write("out/sub", "a file");
    assert!(error(&place, &p).contains("out/sub exists and is not a directory"));
    std::fs::remove_file(place.path("out/sub")).unwrap();
    std::fs::create_dir_all(place.path("out/sub/a")).unwrap();
    assert!(error(&place, &p).contains("out/sub/a is a directory, where the templates make a file"));
    let inside = place.properties(&json!({"name": place.path("src/out")}));
    assert!(error(&place, &inside).contains("the target is in the source directory"));
    let around = place.properties(&json!({"name": place.directory.path(), "purge": true}));
    assert!(error(&place, &around).contains("would be purged"));
    let both = Place::new(&[("a", "[[ write(\"b/c\", \"x\") ]]"), ("b", "x")]);
    assert!(error(&both, &both.properties(&json!({}))).contains("both a file b and a file b/c"));
    std::os::unix::fs::symlink("sub/a", place.path("src/link")).unwrap();
    assert!(error(&place, &p).contains("invalid file in source"));
    let missing = place.properties(&json!({"source": "/no/such", "ensure": "absent"}));
    assert!(error(&place, &missing).contains("cannot read source directory: /no/such"));
}

/// Patterns and the commands that run, for new, equal and different files.
#[test]
fn commands_run_only_for_files_that_differ() {
    let place = Place::new(&[("same.sh", "1"), ("sub/new.sh", "2"), ("sub/other.sh", "3"), ("x.conf", "4")]);
    place.write("out/same.sh", "1");
    place.write("out/sub/other.sh", "old");
    let p = place.properties(&json!({"post": [{"*.sh": "tool --in={} end"}, {"n*": "append"}]}));
    let runner = FakeRunner::exiting(&[0, 0, 0]);
    let state = ScaffoldType::observe(&p, &place.provider, &host(runner.clone())).unwrap();
    let ran: Vec<Vec<String>> = runner.ran();
    assert_eq!(ran.len(), 3);
    assert!(ran[0][0] == "tool" && ran[0][1].ends_with("/new.sh") && ran[0][1].starts_with("--in=/") && ran[0][2] == "end");
    assert!(ran[1][0] == "append" && ran[1][1].ends_with("/new.sh"));
    assert!(ran[2][1].ends_with("/other.sh"));
    assert_eq!(state.differences.stable, ["same.sh"]);
    // The target is unchanged, and files to remove are not processed.
    assert!(!place.path("out/sub/new.sh").exists());
    let absent = place.properties(&json!({"ensure": "absent", "post": [{"*": "never"}]}));
    ScaffoldType::observe(&absent, &place.provider, &host(FakeRunner::exiting(&[]))).unwrap();
}

#[test]
fn results_of_post_commands_are_the_desired_content() {
    let place = Place::new(&[("a.txt", "one\n")]);
    let p = place.properties(&json!({"post": [{"*.txt": "/bin/sed -i s/one/two/"}, {"*.txt": "/bin/chmod 0700 {}"}]}));
    assert_eq!(place.bring(&p, &system()).unwrap(), "changed 1 scaffold files");
    assert_eq!(place.read("out/a.txt"), "two\n");
    assert_eq!(std::fs::metadata(place.path("out/a.txt")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(place.bring(&p, &system()).unwrap(), "");
    assert_eq!(place.bring(&p, &system()).unwrap(), "");
    for (command, expected) in [
        (
            "/bin/sh -c 'echo why >&2; exit 3' {}",
            "failed to post process a.txt: \"/bin/sh -c 'echo why >&2; exit 3' {}\" ended with exit code 3: \"why\"",
        ),
        ("/no/such/tool", "failed to post process a.txt: could not start"),
        ("/bin/rm", "failed to post process a.txt: could not read"),
    ] {
        place.write("out/a.txt", "drifted");
        let p = place.properties(&json!({"post": [{"*": command}]}));
        let error = place.bring(&p, &system()).unwrap_err();
        assert!(error.contains(expected), "{command}: {error}");
        assert_eq!(place.read("out/a.txt"), "drifted");
    }
}

#[test]
fn absent_keeps_files_of_others() {
    let place = Place::new(&[("a", "1"), ("sub/deep/b", "2"), ("sub2/c", "3")]);
    for (path, text) in [("out/a", "other"), ("out/sub/deep/b", "2"), ("out/sub/mine", "x"), ("out/sub2/c", "3")] {
        place.write(path, text);
    }
    let p = place.properties(&json!({"ensure": "absent", "purge": true}));
    assert_eq!(place.bring(&p, &system()).unwrap(), "removed 4 scaffold files");
    assert!(place.path("out/sub/mine").exists() && !place.path("out/sub/deep").exists() && !place.path("out/sub2").exists());
    assert_eq!(place.bring(&p, &system()).unwrap(), "");
    std::fs::remove_file(place.path("out/sub/mine")).unwrap();
    place.write("out/a", "1");
    place.bring(&p, &system()).unwrap();
    // A directory without removed files is unchanged.
    assert!(place.path("out/sub").exists());
    std::fs::remove_dir(place.path("out/sub")).unwrap();
    place.write("out/a", "1");
    place.bring(&p, &system()).unwrap();
    assert!(!place.path("out").exists());
}

#[test]
fn a_preview_has_every_file_that_differs() {
    let place = Place::new(&[("a", "new\n"), ("b", "same")]);
    place.write("out/a", "old\n");
    place.write("out/b", "same");
    place.write("out/x", "extra\n");
    let p = place.properties(&json!({"purge": true}));
    let state = ScaffoldType::observe(&p, &place.provider, &system()).unwrap();
    let preview = ScaffoldType::preview(&p, &state, &system()).unwrap();
    assert_eq!(preview.before, "==> a\nold\n==> x\nextra\n");
    assert_eq!(preview.after, "==> a\nnew\n");
}
