//! `line`: a single line in a text file whose other lines belong to others.
//!
//! `edit.rs` edits the text. `reversal.rs` has the way back. `core/safe_replace.rs` replaces the file, with its present owner and mode.

mod edit;
mod properties;
mod reversal;

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::diag::error_chain;
use crate::host::DirEntryHandle;
use crate::host::account::{effective_gid, effective_uid};
use crate::host::fs::{self, FileInfo};
use crate::host::{Host, WriteSpec};
use crate::model::{Effect, Effects, Identity, Need, OnRemoval};

use super::file::{self, Mode};
use crate::resource::core::safe_replace::ReplaceOptions;
use crate::resource::core::{parent_checks, path_order, text};
use crate::resource::{Change, Invalid, Preview, ProviderEntry, Resource, ResourceError, State};

use edit::{DesiredLine, Edit, End, InsertPosition, LineSelector, Side, edit};
use properties::expression;
pub use properties::{FileEnd, LineEnsure, Properties};

/// The largest file that is edited, in bytes.
const LIMIT: u64 = 16 << 20;
/// The default mode of a new file.
const NEW_MODE: u32 = 0o644;
/// Maximum number of line numbers in a message.
const LISTED: usize = 10;

/// Single lines in text files.
pub struct LineType;

impl Properties {
    /// Returns the path of the file, as written.
    fn file(&self) -> &str {
        if self.path.is_empty() { &self.name } else { &self.path }
    }

    fn path(&self) -> &Path {
        Path::new(self.file())
    }

    fn replace_options(&self) -> ReplaceOptions<'_> {
        ReplaceOptions { validate: &self.validate, backup: &self.backup, keep: self.backup_keep, follow: self.follow }
    }

    /// Returns the edit for this content.
    fn edit(&self, content: &[u8]) -> Result<Edit, ResourceError> {
        let wrong = |invalid: Invalid| ResourceError::State(invalid.message);
        let pattern = expression("match", &self.pattern).map_err(wrong)?;
        let (before, after) =
            (expression("before", &self.before).map_err(wrong)?, expression("after", &self.after).map_err(wrong)?);
        let beside = before.as_ref().map(|regex| (Side::Before, regex)).or(after.as_ref().map(|regex| (Side::After, regex)));
        let or = self.at.map(|at| if at == FileEnd::Start { End::Start } else { End::End });
        let line = self.line.as_bytes();
        let wish = match (self.ensure, &pattern) {
            (LineEnsure::Absent, Some(pattern)) => DesiredLine::Absent(LineSelector::Matching(pattern)),
            (LineEnsure::Absent, None) => DesiredLine::Absent(LineSelector::Equal(line)),
            (LineEnsure::Present, pattern) => DesiredLine::Present {
                line,
                pattern: pattern.as_ref(),
                all: self.all,
                spot: InsertPosition { beside, fallback: or },
            },
        };
        edit(content, &wish).map_err(|error| ResourceError::State(format!("{}: {error}", self.path().display())))
    }
}

/// The observed state of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LineState {
    #[serde(skip)]
    found: FoundText,
    /// True when the line, or a match, is present.
    #[serde(skip)]
    is_present: bool,
    path: String,
    /// The number of lines in the file.
    lines: usize,
    /// The reason why the missing file can't be created.
    #[serde(skip)]
    obstacle: Option<String>,
    /// True when an earlier resource of a dry run would make the file.
    #[serde(skip)]
    is_predicted: bool,
}

/// The object at the path, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FoundText {
    /// No object, or a link to nothing.
    Nothing,
    /// A regular file.
    File {
        content: Vec<u8>,
        look: FileInfo,
        /// True when the path itself is a symbolic link.
        link: bool,
    },
    /// A symbolic link that is not followed, because others than root could have made it.
    ForeignLink,
    /// A directory, device, socket or pipe.
    Other,
}

impl FoundText {
    fn content(&self) -> &[u8] {
        if let Self::File { content, .. } = self { content } else { &[] }
    }
}

impl State for LineState {
    fn ensure(&self) -> &str {
        if self.is_present { "present" } else { "absent" }
    }
}

/// A step towards the desired line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineChange {
    /// Create the file with the line.
    Create,
    /// Add the line, with this number afterwards.
    Add(usize),
    /// Replace the lines of these numbers.
    Replace(Vec<usize>),
    /// Remove the lines of these numbers.
    Remove(Vec<usize>),
}

impl fmt::Display for LineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("created the file with the line"),
            Self::Add(_) => f.write_str("added the line"),
            Self::Replace(numbers) => write!(f, "replaced {}", count(numbers)),
            Self::Remove(numbers) => write!(f, "removed {}", count(numbers)),
        }
    }
}

impl Change for LineChange {
    fn details(&self) -> Vec<String> {
        vec![match self {
            Self::Create => self.to_string(),
            Self::Add(number) => format!("added line {number}"),
            Self::Replace(numbers) => format!("replaced {}", list(numbers)),
            Self::Remove(numbers) => format!("removed {}", list(numbers)),
        }]
    }
}

fn count(numbers: &[usize]) -> String {
    match numbers {
        [_] => "the line".to_owned(),
        _ => format!("{} lines", numbers.len()),
    }
}

fn list(numbers: &[usize]) -> String {
    let listed: Vec<String> = numbers.iter().take(LISTED).map(ToString::to_string).collect();
    let more = if numbers.len() > LISTED { format!(" and {} more", numbers.len() - LISTED) } else { String::new() };
    format!("line{} {}{more}", if numbers.len() == 1 { "" } else { "s" }, listed.join(", "))
}

impl Resource for LineType {
    const TYPE: &'static str = "line";
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Single lines in text files.";
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes from the same file"),
        ("line", "content at the same path"),
        ("match", "which line of the same file"),
        ("all", "which lines of the same file"),
        ("after", "where in the same file"),
        ("before", "where in the same file"),
        ("at", "where in the same file"),
        ("create", "makes the same file"),
        ("owner", "attribute at the same path"),
        ("group", "attribute at the same path"),
        ("mode", "attribute at the same path"),
        ("backup_keep", "how many copies stay where they are written"),
        ("follow", "links on the way are followed before rules and limits are asked again"),
    ];
    const CONTENT: &'static [&'static str] = &["line"];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<()>] = &[ProviderEntry::only("posix")];

    type Properties = Properties;
    type State = LineState;
    type Change = LineChange;
    type Provider = ();

    fn validate(p: &Properties) -> Result<(), Invalid> {
        if p.path.is_empty() {
            text::check_path("name", "the name is the path of the file, which", &p.name)?;
        } else {
            text::check_path("path", "path", &p.path)?;
        }
        if p.name.trim().is_empty() {
            return Err(Invalid::new("name", "name is required"));
        }
        check_line(p)?;
        if !p.before.is_empty() && !p.after.is_empty() {
            return Err(Invalid::new("before", "'before' and 'after' are mutually exclusive"));
        }
        let created = [("owner", !p.owner.is_empty()), ("group", !p.group.is_empty()), ("mode", p.mode.is_some())];
        if let Some((property, _)) = created.iter().find(|(_, given)| *given && !p.create) {
            let message = format!("'{property}' is for a file that is created: it needs 'create: true'");
            return Err(Invalid::new(property, message));
        }
        expression("before", &p.before)?;
        expression("after", &p.after)?;
        p.replace_options().check()
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        match p.ensure {
            LineEnsure::Present => "present",
            LineEnsure::Absent => "absent",
        }
    }

    fn effects(p: &Properties) -> Effects {
        let path = p.file();
        // The result of a pattern reveals content of the file.
        let mut effects: Effects = [Effect::write(path), Effect::read(path)].into_iter().collect();
        effects.extend(p.replace_options().effects(path));
        effects
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        // An absent line leaves the file.
        path_order::path_if(true, p.file())
    }

    fn needs(p: &Properties) -> Vec<Need> {
        let mut needs = path_order::path_needs(p.file(), &p.owner, &p.group);
        needs.push(Need::path(p.file()));
        needs.extend(path_order::command_needs(&p.validate));
        needs
    }

    fn observe(p: &Properties, (): &(), host: &Host) -> Result<LineState, ResourceError> {
        let (_, found) = read(p, host)?;
        let obstacle = if found == FoundText::Nothing { obstacle(p, host) } else { None };
        let pattern = expression("match", &p.pattern).map_err(|invalid| ResourceError::State(invalid.message))?;
        let (mut lines, mut there) = (0, false);
        for line in found.content().split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
            lines += 1;
            there |= pattern.as_ref().map_or(line == p.line.as_bytes(), |pattern| pattern.is_match(line));
        }
        Ok(LineState {
            found,
            is_present: there,
            path: p.path().display().to_string(),
            lines,
            obstacle,
            is_predicted: host.expects_path(p.path()),
        })
    }

    fn diff(p: &Properties, state: &LineState) -> Result<Vec<LineChange>, ResourceError> {
        let (content, link) = match &state.found {
            FoundText::Nothing if p.ensure == LineEnsure::Present => match &state.obstacle {
                Some(why) => return Err(ResourceError::State(why.clone())),
                // An earlier resource of the dry run would make the file, so its lines are unknown.
                None if state.is_predicted => return Ok(vec![LineChange::Create]),
                None => return p.edit(&[]).map(|_| vec![LineChange::Create]),
            },
            FoundText::Nothing => return Ok(vec![]),
            FoundText::File { content, link, .. } => (content, *link),
            FoundText::ForeignLink => return Err(through_a_link(p)),
            FoundText::Other => return Err(fs::FsError::NotAFile(p.path().to_owned()).into()),
        };
        let edit = p.edit(content)?;
        if link && !edit.is_none() {
            return Err(through_a_link(p));
        }
        let replaced = (!edit.replaced.is_empty()).then_some(LineChange::Replace(edit.replaced));
        let removed = (!edit.removed.is_empty()).then_some(LineChange::Remove(edit.removed));
        Ok(edit.added.map(LineChange::Add).into_iter().chain(replaced).chain(removed).collect())
    }

    fn restoring(p: &Properties, state: &LineState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        reversal::restoring(p, state.found.content())
    }

    fn removing(p: &Properties, _: &LineState) -> Option<Properties> {
        reversal::removing(p)
    }

    fn apply(_: &LineChange, p: &Properties, _: &mut LineState, (): &(), host: &Host) -> Result<(), ResourceError> {
        // Read again: changes by others since the observation are kept.
        let (place, found) = read(p, host)?;
        let (content, spec) = match found {
            FoundText::ForeignLink | FoundText::File { link: true, .. } => return Err(through_a_link(p)),
            FoundText::File { content, look, .. } => {
                (p.edit(&content)?.content, WriteSpec { uid: Some(look.uid), gid: Some(look.gid), mode: look.mode })
            }
            FoundText::Other => return Err(fs::FsError::NotAFile(p.path().to_owned()).into()),
            // Another process may have removed the file since.
            FoundText::Nothing => match obstacle(p, host) {
                Some(why) => return Err(ResourceError::State(why)),
                None => (p.edit(&[])?.content, created(p, host)?),
            },
        };
        let place = place.map_or_else(|| host.managed_paths(p.follow).existing_place(p.path()), Ok)?;
        let staged = place.temp_file(&mut content.as_slice(), spec)?;
        p.replace_options().replace(&place, staged, host)
    }

    fn preview(p: &Properties, state: &LineState, _: &Host) -> Option<Preview> {
        let before = state.found.content();
        let after = p.edit(before).ok()?.content;
        if before.len().max(after.len()) as u64 > file::PREVIEW_LIMIT {
            return None;
        }
        let is_public = match &state.found {
            FoundText::File { look, .. } => look.is_public(),
            _ => fs::is_public(p.mode.map_or(NEW_MODE, Mode::bits)),
        };
        let is_public = is_public && fs::is_reachable(p.path());
        Some(Preview { before: String::from_utf8(before.to_vec()).ok()?, after: String::from_utf8(after).ok()?, is_public })
    }

    fn redacted(p: &Properties) -> Value {
        let mut shown = serde_json::to_value(p).unwrap_or_default();
        // A line is content: it may contain a password.
        if let Some(line) = shown.get_mut("line") {
            *line = Value::String(file::digest(p.line.as_bytes()));
        }
        shown
    }
}

fn check_line(p: &Properties) -> Result<(), Invalid> {
    let pattern = expression("match", &p.pattern)?;
    if p.line.is_empty() && (p.ensure == LineEnsure::Present || pattern.is_none()) {
        return Err(Invalid::new("line", "line is required"));
    }
    if p.line.contains(['\n', '\r']) {
        return Err(Invalid::new("line", "line must be one line, without a line end"));
    }
    if p.all && pattern.is_none() {
        return Err(Invalid::new("all", "'all' replaces matching lines: it needs 'match'"));
    }
    // Otherwise every run would add the line.
    if p.ensure == LineEnsure::Present && pattern.is_some_and(|pattern| !pattern.is_match(p.line.as_bytes())) {
        let message = format!("match \"{}\" does not match the line itself, so the line would be added at every run", p.pattern);
        return Err(Invalid::new("match", message));
    }
    Ok(())
}

/// Reads the object at the path with one descriptor, and returns its place too.
fn read(p: &Properties, host: &Host) -> Result<(Option<DirEntryHandle>, FoundText), ResourceError> {
    let rules = host.managed_paths(p.follow);
    let Some(place) = rules.place(p.path())? else { return Ok((None, FoundText::Nothing)) };
    let link = place.is_link()?;
    let followed = if link {
        match rules.target(p.path()) {
            Err(fs::FsError::ForeignLink { .. } | fs::FsError::NotAllowed(_)) => {
                return Ok((Some(place), FoundText::ForeignLink));
            }
            followed => followed?,
        }
    } else {
        None
    };
    let at = if link { followed.as_ref() } else { Some(&place) };
    let found = match at.map(DirEntryHandle::open_regular) {
        None => FoundText::Nothing,
        Some(Err(error)) if error.is_not_found() => FoundText::Nothing,
        Some(Err(fs::FsError::NotAFile(_))) => FoundText::Other,
        Some(opened) => {
            let (file, look) = opened?;
            FoundText::File { content: fs::read_open(file, p.path(), LIMIT)?, look, link }
        }
    };
    Ok((Some(place), found))
}

/// Returns the reason why a missing file can't be created. Ignores reasons that an earlier resource of a dry run would remove.
fn obstacle(p: &Properties, host: &Host) -> Option<String> {
    let path = p.path();
    if host.expects_path(path) {
        return None;
    }
    if !p.create {
        return Some(format!("{} does not exist; set create: true to have it created", path.display()));
    }
    let missing = parent_checks::parent_error(path, &host.managed_paths(p.follow), host).map_err(|error| error_chain(&error));
    missing.unwrap_or_else(Some).or_else(|| parent_checks::account_error(&p.owner, &p.group, host))
}

fn through_a_link(p: &Properties) -> ResourceError {
    let path = p.path().display();
    ResourceError::State(format!("{path} is a symlink; refusing to edit through it: use its target as the path"))
}

fn created(p: &Properties, host: &Host) -> Result<WriteSpec, ResourceError> {
    let accounts = host.accounts();
    Ok(WriteSpec {
        uid: Some(if p.owner.is_empty() { effective_uid() } else { accounts.uid(&p.owner)? }),
        gid: Some(if p.group.is_empty() { effective_gid() } else { accounts.gid(&p.group)? }),
        mode: p.mode.map_or(NEW_MODE, Mode::bits),
    })
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
