//! MPA: two ends joined by streams that a test cuts, and peers that a test plays.

mod golden;
mod handshake;
mod hostile;
mod negotiation;
mod support;
mod teardown;
mod time;
