//! The checks that fuzzing and the replay of the corpus share: one function for each target.
//!
//! A check panics where a promise is broken. An error that refuses the input is fine.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ensign::engine::{RunInputs, plan_manifest};
use ensign::host::Host;
use ensign::manifest::ManifestText;
use ensign::template::{Engine, Scope, TreeOptions, render_tree};
use ensign::unpack::{ArchiveEntry, ArchiveLimits, Format, Sink, walk};
use ensign::wire::{Command, Envelope};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;

/// Takes any text as a manifest. The result is a plan or an error; nothing runs.
pub fn manifest(text: &str) {
    let facts = || json!({"host": {"info": {"hostname": "web1", "platformFamily": "debian"}}, "role": "web"});
    let inputs = RunInputs::new(facts, BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]), None);
    let source = ManifestText { text: text.to_owned(), name: "fuzz.yaml".to_owned(), directory: None, digest: None };
    let _planned = plan_manifest(&source, &inputs, &Host::system(None));
}

/// The longest time for one input, in each language of template files.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Takes any text as a template: in the texts of manifests, and as a file in each of the three languages.
pub fn template(text: &str) {
    let data = json!({
        "name": "shop", "port": 8080, "on": true, "none": null, "list": ["a", "b", "c"], "nums": [1, 2.5, -3],
        "users": [{"name": "x", "uid": 1}, {"name": "y", "uid": 2}], "m": {"k": "v", "n": {"x": 1}},
    });
    let scope = Scope::new(Arc::new(|| json!({"role": "web"})), data, BTreeMap::from([("ZONE".to_owned(), "dmz".to_owned())]));
    let _text = scope.resolve_text(text);
    let _value = scope.resolve_value(text);
    let _condition = scope.evaluate_condition(text);
    for engine in [Engine::Jinja, Engine::Jet, Engine::Go] {
        let until = Instant::now() + TIMEOUT;
        let options = TreeOptions {
            engine,
            left: String::new(),
            right: String::new(),
            skip_empty: false,
            now: Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC),
            is_over: Arc::new(move || Instant::now() > until),
        };
        let _made = render_tree(&scope, BTreeMap::from([("a".to_owned(), text.to_owned())]), options);
    }
}

/// Limits of an archive.
const LIMITS: ArchiveLimits = ArchiveLimits { total: 1 << 22, entries: 1000, ratio: 1000 };

type Taken = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A sink that checks every entry.
struct CheckingSink {
    entries: u64,
    bytes: u64,
}

impl CheckingSink {
    fn item(&mut self, item: &ArchiveEntry) {
        self.entries += 1;
        assert!(self.entries <= LIMITS.entries, "more entries than the cap");
        plain(&item.path);
        assert_eq!(item.mode & !0o1777, 0, "setuid or setgid");
    }
}

/// Panics unless the path has names only: not empty, no `..`, not absolute.
fn plain(path: &Path) {
    assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
}

impl Sink for CheckingSink {
    fn directory(&mut self, item: &ArchiveEntry) -> Taken {
        self.item(item);
        Ok(())
    }

    fn file(&mut self, item: &ArchiveEntry, content: &mut dyn Read) -> Taken {
        self.item(item);
        self.bytes += std::io::copy(content, &mut std::io::sink())?;
        assert!(self.bytes <= LIMITS.total, "more bytes than the cap");
        Ok(())
    }

    fn symlink(&mut self, item: &ArchiveEntry, target: &Path) -> Taken {
        self.item(item);
        // From the directory of the link, the target has at most as many steps up as there are directories above.
        let up = target.components().take_while(|part| matches!(part, Component::ParentDir)).count();
        assert!(!target.is_absolute() && up < item.path.components().count().max(1), "{:?} -> {target:?}", item.path);
        Ok(())
    }

    fn hard_link(&mut self, item: &ArchiveEntry, target: &Path) -> Taken {
        self.item(item);
        plain(target);
        Ok(())
    }
}

/// Takes any bytes as an archive; the first byte chooses the kind. No path leads out, and no limit is exceeded.
pub fn archive(bytes: &[u8]) {
    let Some((kind, archive)) = bytes.split_first() else { return };
    const FORMATS: [Format; 6] = [Format::Tar, Format::TarGz, Format::TarXz, Format::TarZst, Format::TarBz2, Format::Zip];
    let format = FORMATS[usize::from(*kind) % FORMATS.len()];
    let mut strict = CheckingSink { entries: 0, bytes: 0 };
    let _walked = walk(format, Cursor::new(archive), archive.len() as u64, &LIMITS, &mut strict);
}

/// Takes any bytes as an envelope with a command. A second read of the written envelope gives the same value.
pub fn message(bytes: &[u8]) {
    let Ok(envelope) = Envelope::parse(bytes) else { return };
    let Ok(command) = serde_json::from_slice::<Command>(&envelope.payload) else { return };
    let _checked = command.check();
    let written = serde_json::to_vec(&command).expect("a command is written");
    assert_eq!(serde_json::from_slice::<Command>(&written).expect("and read again"), command);
}
