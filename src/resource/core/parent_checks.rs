//! Preconditions for a new object at a path: its directory, its owner and its group.
//!
//! A dry run checks them too, and considers the predicted effects of its earlier resources.

use std::path::Path;

use crate::diag::error_chain;
use crate::host::fs::FsError;
use crate::host::{Host, PathResolver};
use crate::model::effects::AccountKind;

/// Returns the error of an unknown owner or group. Empty names are not checked.
pub(in crate::resource) fn account_error(owner: &str, group: &str, host: &Host) -> Option<String> {
    let accounts = host.accounts();
    let user = (!owner.is_empty() && !host.expects_account(AccountKind::User, owner)).then(|| accounts.uid(owner).err());
    let group = (!group.is_empty() && !host.expects_account(AccountKind::Group, group)).then(|| accounts.gid(group).err());
    user.flatten().or(group.flatten()).map(|error| error_chain(&error))
}

/// Returns the error of a path whose directory is missing.
///
/// # Errors
/// When the path leads through a link that is not followed, or can't be examined.
pub(in crate::resource) fn parent_error(path: &Path, rules: &PathResolver<'_>, host: &Host) -> Result<Option<String>, FsError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let gone = rules.place(path)?.is_none() && !host.expects_path(parent);
    Ok(gone.then(|| error_chain(&FsError::NoParent(parent.to_owned()))))
}
