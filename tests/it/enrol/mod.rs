//! Enrolment: fleets that `ensign fleet create` makes, and the nodes that join them.

mod attacks;
mod create;
mod first_fleet;
mod hosts;
mod inputs;
mod join;
mod many;
