//! The files of local accounts.

/// The account files that contain users.
pub(in crate::resource) const USER_FILES: &[&str] = &["/etc/passwd", "/etc/shadow"];
/// The account files that contain groups and their members.
pub(in crate::resource) const GROUP_FILES: &[&str] = &["/etc/group", "/etc/gshadow"];
