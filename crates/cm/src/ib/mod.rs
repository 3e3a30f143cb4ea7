//! The InfiniBand connection manager's protocol (IBA 1.4 chapter 12, annex A11).
//!
//! One [`Cm`] serves one process: here live the states, the repetition of what may be lost, the
//! recognition of what comes twice, and time wait. A message goes in by [`Cm::input`] and a call by
//! its name; what comes of both lies ready at [`Cm::poll`].
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
//! | `numbered`, `timers` | tables by numbers of our own; when connections have something to do |
//! | `connection` | one connection: state, attributes |
//! | `messages` | MADs made and read: the only place that knows where a field stands |
//! | `active` | the side that connects: REQ, REP, MRA, RTU |
//! | `passive` | the side that is asked |
//! | `teardown` | DREQ, DREP, REJ, destroy, time wait, peers that are gone |
//! | `probe` | whether the processes at the far ends still live |
//! | `stale` | whether a peer still knows a connection that another message calls stale |
//! | `address` | how much is sent to addresses that have not shown that they hear us |
//! | `sidr` | service id resolution for datagrams |
//! | `routing` | which process a message is for, and what to say where no process has it |
//! | [`timing`] | durations and repetition |
//! | `config` | what a [`Cm`] is made from and hands out |
//!
//! Any host that can send a packet can write any message. So a connection has a transaction id of
//! 64 random bits, drawn by the side that connects. Every message about it must bear that, and must
//! come from the peer's address; what does not is counted ([`Cm::unmatched`]) and dropped. A DREQ
//! begins a transaction of its own with Linux's ib_cm. So there the two communication ids and the
//! queue pair must fit; our own bears the connection's.
//!
//! Differences from Linux's ib_cm, all of them invisible to a kernel peer: repetition starts after
//! 250 ms instead of 4.9 s, and goes on once a second while a peer has asked for more time; a
//! message about an unknown connection is refused (invalid communication id) where Linux is silent;
//! a LAP is declined by an APR where Linux drops it on RoCE; a DREQ is answered at once instead of
//! when the consumer calls rdma_disconnect; a refusal is remembered and repeated; DREQ of a
//! destroyed connection is repeated; an end that gives up says so by REJ (time out); transaction
//! ids are random, and compared; a connection that a REQ or REP makes stale ends when its old peer
//! says so; a queue pair is stale only where connected (§12.9.8.3.1): one in time wait is not, as
//! our own number in it is not given out again before that ends, and of two requests that name it
//! the one that gets its RTU has it.

mod active;
mod address;
mod config;
mod connection;
mod messages;
mod numbered;
mod passive;
mod private_data;
mod probe;
mod protocol;
mod routing;
mod sidr;
mod stale;
mod table;
mod teardown;
mod timers;
pub mod timing;

pub use config::Config;
pub use messages::is_question;
pub(crate) use protocol::{PRIVATE_DATA, start};
pub use routing::{
    Destination, Undelivered, asked_ip, destination, refuse, refuse_unknown_service, undelivered,
};
pub use table::Cm;
pub use timing::Timing;

pub use crate::mads::Origin;
pub use crate::protocol::Output;
