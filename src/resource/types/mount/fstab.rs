//! The table `/etc/fstab`, as in `fstab(5)`: six fields a line, with octal escapes. Edits change only the lines of one mount
//! point. All other lines, and comments, keep their bytes.

use crate::host::mountinfo::decode;

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FstabEntry {
    /// The device: a device file, `UUID=…`, `host:/path`, a directory.
    pub(super) device: String,
    /// The mount point, without a slash at its end.
    pub(super) point: String,
    /// The type of file system.
    pub(super) fstype: String,
    /// Options, with commas.
    pub(super) options: String,
    /// The field for `dump`.
    pub(super) dump: u32,
    /// The pass in which it is checked at boot; 0 for never.
    pub(super) pass: u32,
}

impl FstabEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_matches([' ', '\t', '\n', '\r']);
        if line.starts_with('#') {
            return None;
        }
        let mut fields = line.split([' ', '\t']).filter(|field| !field.is_empty());
        let (device, point, fstype) = (fields.next()?, fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or("defaults");
        let mut number = || fields.next().and_then(|field| field.parse().ok()).unwrap_or(0);
        let (dump, pass) = (number(), number());
        let point = decode(point);
        let trimmed = point.trim_end_matches('/');
        let point = if trimmed.is_empty() { point } else { trimmed.to_owned() };
        Some(Self { device: decode(device), point, fstype: decode(fstype), options: decode(options), dump, pass })
    }

    fn line(&self) -> String {
        let fields = [&self.device, &self.point, &self.fstype, &self.options].map(|field| encode(field));
        format!("{} {} {}\n", fields.join(" "), self.dump, self.pass)
    }
}

/// The entries of a mount point.
pub(super) fn entries(table: &[u8], point: &str) -> Vec<FstabEntry> {
    lines(table).filter_map(FstabEntry::parse).filter(|entry| entry.point == point).collect()
}

/// Returns the table with this entry in place of the old one of its mount point, or at its end.
pub(super) fn with(table: &[u8], entry: &FstabEntry) -> Vec<u8> {
    let mut new = Vec::with_capacity(table.len() + 80);
    let mut put = false;
    for line in lines(table) {
        if !is_of(line, &entry.point) {
            new.extend_from_slice(line);
        } else if !put {
            new.extend_from_slice(entry.line().as_bytes());
            put = true;
        }
    }
    if !put {
        if new.last().is_some_and(|last| *last != b'\n') {
            new.push(b'\n');
        }
        new.extend_from_slice(entry.line().as_bytes());
    }
    new
}

/// Returns the table without the entries of a mount point.
pub(super) fn without(table: &[u8], point: &str) -> Vec<u8> {
    lines(table).filter(|line| !is_of(line, point)).flatten().copied().collect()
}

fn lines(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.split_inclusive(|byte| *byte == b'\n')
}

fn is_of(line: &[u8], point: &str) -> bool {
    FstabEntry::parse(line).is_some_and(|entry| entry.point == point)
}

/// Encodes a field: characters that would end the field, or begin a comment, in octal.
fn encode(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    for (at, c) in field.chars().enumerate() {
        match c {
            ' ' | '\t' | '\n' | '\r' | '\\' => text.extend(['\\', digit(c, 6), digit(c, 3), digit(c, 0)]),
            '#' if at == 0 => text.push_str("\\043"),
            c => text.push(c),
        }
    }
    text
}

/// Returns the octal digit of the three bits of a character from this bit on.
fn digit(c: char, bit: u32) -> char {
    char::from_digit((u32::from(c) >> bit) & 7, 8).unwrap_or('0')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(device: &str, point: &str) -> FstabEntry {
        let (device, point) = (device.to_owned(), point.to_owned());
        FstabEntry { device, point, fstype: "ext4".into(), options: "defaults".into(), dump: 0, pass: 2 }
    }

    const TABLE: &str = "# a comment\n\nUUID=1  /      ext4   errors=remount-ro 0 1\n# /srv ext4\n\t/dev/b\t/my\\040disk/ vfat\n\
                         tmpfs /tmp tmpfs\n/dev/c none swap sw";

    #[test]
    fn lines_are_read() {
        assert_eq!(entries(TABLE.as_bytes(), "/").len(), 1);
        let disk = entries(TABLE.as_bytes(), "/my disk");
        assert_eq!(disk, [FstabEntry { fstype: "vfat".into(), pass: 0, ..entry("/dev/b", "/my disk") }]);
        assert_eq!(entries(TABLE.as_bytes(), "/srv"), []);
        assert_eq!(entries(TABLE.as_bytes(), "none")[0].fstype, "swap");
        assert_eq!(entries(b"# x\n/dev/a\n\n", "/dev/a"), []);
    }

    #[test]
    fn only_the_lines_of_the_mount_point_change() {
        let text = |table: Vec<u8>| String::from_utf8(table).unwrap();
        let new = text(with(TABLE.as_bytes(), &entry("/dev/d", "/my disk")));
        assert_eq!(new, TABLE.replace("\t/dev/b\t/my\\040disk/ vfat\n", "/dev/d /my\\040disk ext4 defaults 0 2\n"));
        let added = text(with(TABLE.as_bytes(), &entry("#x y\\", "/srv")));
        assert_eq!(added, format!("{TABLE}\n\\043x\\040y\\134 /srv ext4 defaults 0 2\n"));
        assert_eq!(text(without(added.as_bytes(), "/srv")), format!("{TABLE}\n"));
        assert_eq!(text(without(TABLE.as_bytes(), "/srv")), TABLE);
        assert_eq!(text(with(b"", &entry("a", "/b"))), "a /b ext4 defaults 0 2\n");
        assert_eq!(with(b"# \xff\n", &entry("a", "/b")), b"# \xff\na /b ext4 defaults 0 2\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_back(device in "[^\u{0}]{1,8}", point in "/[^\u{0}/]{1,8}", table in "([#/a \t\\\\0-7]{0,9}\n?){0,4}") {
            let wanted = FstabEntry { device, ..entry("", &point) };
            let table = with(&without(table.as_bytes(), &point), &wanted);
            prop_assert_eq!(&entries(&table, &point), std::slice::from_ref(&wanted));
            prop_assert_eq!(&with(&table, &wanted), &table);
            prop_assert_eq!(entries(&without(&table, &point), &point), []);
        }
    }
}
