//! Owners and groups that properties name.

use crate::diag::chain;
use crate::host::Host;
use crate::model::effects::AccountKind;

/// Why something can't be given to this owner and group, either of them empty where it is left; unless an earlier resource of
/// a dry run would make them.
pub(super) fn obstacle(owner: &str, group: &str, host: &Host) -> Option<String> {
    let accounts = host.accounts();
    let user = (!owner.is_empty() && !host.foresees_account(AccountKind::User, owner)).then(|| accounts.uid(owner).err());
    let group = (!group.is_empty() && !host.foresees_account(AccountKind::Group, group)).then(|| accounts.gid(group).err());
    user.flatten().or(group.flatten()).map(|error| chain(&error))
}
