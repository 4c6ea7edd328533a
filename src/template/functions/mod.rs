//! Functions and formats that templates of all kinds share.

pub(super) mod bus_functions;
pub(super) mod escape;
pub(super) mod gotime;
pub(super) mod json;
pub(super) mod limits;
pub(super) mod print;
pub(super) mod regexes;
