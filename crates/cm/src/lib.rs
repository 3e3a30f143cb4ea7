//! The InfiniBand connection manager's protocol (IBA 1.4 chapter 12, annex A11), sans-IO: messages and time go in,
//! messages, events and queue pair attributes come out. No socket, clock, thread or lock.
//!
//! One [`Cm`] serves one process. The room above listens, binds ports and moves queue pairs; here live the states, the
//! repetition of what may be lost, the recognition of what comes twice, and time wait.
//!
//! ```text
//!   active                                 passive
//!   connect      ── REQ ──────────────▶    Event::Request
//!   Event::Reply ◀────────────── REP ──    accept
//!   established  ── RTU ──────────────▶    Event::Established
//!   disconnect   ── DREQ ─────────────▶    Event::Disconnected
//!   Event::Disconnected ◀─────── DREP ──
//! ```
//!
//! | file | what lives there |
//! |---|---|
//! | `table` | [`Cm`]: the tables, what comes in, what goes out, time |
//! | `connection` | one connection: state, attributes, messages made from it |
//! | `active` | the side that connects: REQ, REP, MRA, RTU |
//! | `passive` | the side that is asked |
//! | `teardown` | DREQ, DREP, REJ, destroy, time wait, peers that are gone |
//! | `probe` | whether the processes at the far ends still live |
//! | `sidr` | service id resolution for datagrams |
//! | `timing` | durations and repetition |
//! | `params` | parameters and events |
//!
//! Differences from Linux's ib_cm, all of them invisible to a kernel peer: repetition starts after 250 ms instead of 4.9
//! s, and goes on once a second while a peer has asked for patience; a message about a connection that nobody knows is
//! refused (invalid communication id) where Linux is silent; a LAP is declined by an APR where Linux drops it on RoCE; a
//! DREQ is answered at once instead of when the consumer calls rdma_disconnect; a refusal is remembered and repeated;
//! DREQ of a destroyed connection is repeated; whoever gives up says so by REJ (time out); a queue pair whose last
//! connection is in time wait on our side is not stale, because only connected ones are (§12.9.8.3.1) and because our own
//! number in it is not given out again before the time wait ends.
#![forbid(unsafe_code)]

mod active;
mod connection;
mod params;
mod passive;
mod probe;
mod sidr;
mod table;
mod teardown;
pub mod timing;

pub use active::answering_qpn;
pub use params::{
    Accept, Config, ConnId, Connect, ETIMEDOUT, Error, Event, Origin, Output, Path, QpAttributes, Request,
    TransportService,
};
pub use sidr::{SidrAnswer, SidrAsk};
pub use table::Cm;
pub use timing::Timing;
