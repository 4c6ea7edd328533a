//! Enrolment: fleets that `ensign fleet create` makes, and the nodes that join them.

mod create;
mod inputs;
