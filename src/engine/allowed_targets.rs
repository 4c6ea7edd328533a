//! Watch targets within the rights of a run. A watch reveals the times of changes, and a tree may take all watches of the host.

use crate::host::Host;
use crate::model::{Effects, WatchTarget};
use crate::resource::ParsedResource;

use super::plan::PlannedResource;
use super::settings::Authorizer;

/// Returns the watch targets of a planned resource; none for one that the run may not manage.
pub(super) fn of_planned(planned: &PlannedResource, authorizer: Option<&dyn Authorizer>, host: &Host) -> Vec<WatchTarget> {
    of_resource(planned.kind.name(), planned.decoded.as_ref(), &planned.effects(), authorizer, host)
}

/// Returns the watch targets of a resource with these effects; none for one that the run may not manage.
pub(super) fn of_resource(
    kind: &str,
    decoded: &dyn ParsedResource,
    effects: &Effects,
    authorizer: Option<&dyn Authorizer>,
    host: &Host,
) -> Vec<WatchTarget> {
    let is_allowed = authorizer.is_none_or(|authorizer| authorizer.permit(kind, effects, host).is_ok());
    if is_allowed { decoded.watches(host) } else { Vec::new() }
}
