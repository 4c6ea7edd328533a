//! Endpoints of an agent on its host: the socket, the micro service of NATS, the service manager.

pub(super) mod micro_service;
pub(super) mod socket;
pub mod socket_client;
pub(super) mod systemd;
