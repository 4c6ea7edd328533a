//! Enrolment: fleets that `ensign fleet create` makes, and the nodes that join them.

mod attacks;
mod create;
mod hosts;
mod inputs;
mod join;
mod many;
