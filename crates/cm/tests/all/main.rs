//! The tests of `cm`. One binary, so that what they share is compiled once.

mod front;
mod golden;
mod handshake;
mod historic;
mod hostile;
mod iwarp;
mod lossy;
mod probe;
mod sidr;
mod support;
mod teardown;
mod unsolicited;
