//! MPA, the connection set-up of iWARP (RFC 5044 §7, RFC 6581), as Linux's siw does it.
//!
//! One [`Cm`] serves one process. A connection is a TCP stream: each side says one frame on it,
//! then it belongs to the queue pair. TCP repeats what is lost, so nothing is repeated here.
//!
//! ```text
//!   active                                     passive
//!   connect, Action::Open ── TCP ─────────▶    a listener: Streams::accepted
//!   Streams::opened ── MPA request ───────▶    Event::Request
//!   Event::Reply ◀─────────── MPA reply ──     accept, Action::HandOver
//!   established, Action::HandOver
//!                   ── RTR, if agreed on ─▶    established
//!                                              Event::Established; without RTR upon accept
//!   disconnect ── FIN ────────────────────▶    Event::Disconnected
//! ```
//!
//! | file | what lives there |
//! |---|---|
//! | `table` | [`Cm`]: the tables, what goes out, time |
//! | `connection` | one connection: state, attributes |
//! | `frames` | MPA frames made and read from a stream's pieces |
//! | `negotiation` | IRD, ORD and RTR of both ends |
//! | `active` | the side that connects |
//! | `passive` | the side that is asked |
//! | `teardown` | disconnect, reject, destroy, streams that end |
//! | `config` | how much a [`Cm`] holds, what it asks for, durations |
//!
//! Any host that can reach a port can open streams and send what it likes. So a stream without a
//! whole request takes a few hundred bytes, has a bounded time, and is one of a bounded number. The
//! first byte that no MPA frame has ends it.
//!
//! Differences from Linux's siw: a request has 10 s to come instead of 5 s; revision 0 is not
//! accepted; a request that tells no depths offers our limits, where siw offers 0; bytes before the
//! reply end a request's stream at once; a stream that ends before its request is answered is told
//! by [`Event::Rejected`](crate::Event), where siw fails the accept (ECONNRESET); an RTR has 10 s
//! to come, where siw waits for ever; bytes right behind a reply are the queue pair's, where siw
//! gives the stream up; IRD and ORD of 0x3fff are not numbers.

mod active;
mod config;
mod connection;
mod frames;
mod negotiation;
mod passive;
mod protocol;
mod table;
mod teardown;

pub use config::{Config, Timing};
pub(crate) use protocol::{PRIVATE_DATA, start};
pub use table::Cm;
