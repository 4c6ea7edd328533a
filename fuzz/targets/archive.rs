//! Any bytes as an archive of each kind: no path leads out, no cap is passed.

#![no_main]

use std::io::{Cursor, Read};
use std::path::{Component, Path};

use ensign::unpack::{Caps, Format, Item, Sink, walk};
use libfuzzer_sys::fuzz_target;

const CAPS: Caps = Caps { total: 1 << 22, entries: 1000, ratio: 1000 };

type Taken = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Looks at what it is given.
struct Strict {
    entries: u64,
    bytes: u64,
}

impl Strict {
    fn item(&mut self, item: &Item) {
        self.entries += 1;
        assert!(self.entries <= CAPS.entries, "more entries than the cap");
        plain(&item.path);
        assert_eq!(item.mode & !0o1777, 0, "setuid or setgid");
    }
}

/// Nothing but names: not empty, no `..`, not absolute.
fn plain(path: &Path) {
    assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
}

impl Sink for Strict {
    fn directory(&mut self, item: &Item) -> Taken {
        self.item(item);
        Ok(())
    }

    fn file(&mut self, item: &Item, content: &mut dyn Read) -> Taken {
        self.item(item);
        self.bytes += std::io::copy(content, &mut std::io::sink())?;
        assert!(self.bytes <= CAPS.total, "more bytes than the cap");
        Ok(())
    }

    fn symlink(&mut self, item: &Item, target: &Path) -> Taken {
        self.item(item);
        // From the directory of the link, no more steps up than there are above it.
        let up = target.components().take_while(|part| matches!(part, Component::ParentDir)).count();
        assert!(!target.is_absolute() && up < item.path.components().count().max(1), "{:?} -> {target:?}", item.path);
        Ok(())
    }

    fn hard_link(&mut self, item: &Item, target: &Path) -> Taken {
        self.item(item);
        plain(target);
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, archive)) = bytes.split_first() else { return };
    const FORMATS: [Format; 6] = [Format::Tar, Format::TarGz, Format::TarXz, Format::TarZst, Format::TarBz2, Format::Zip];
    let format = FORMATS[usize::from(*kind) % FORMATS.len()];
    let mut strict = Strict { entries: 0, bytes: 0 };
    let _walked = walk(format, Cursor::new(archive), archive.len() as u64, &CAPS, &mut strict);
});
