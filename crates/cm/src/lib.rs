//! Connection management, sans-IO: requests, replies and time go in, messages, events and queue
//! pair attributes come out. No socket, clock, thread or lock.
//!
//! Internal to Verbena: it promises no stability.
//!
//! The room above (`node`) listens, binds ports, moves queue pairs and tells programs. It speaks in
//! the words of [`parameters`] and [`event`]: a service, a path, what either end asks and grants,
//! private data, why not. How that is said to a peer is the affair of a folder of its own for each
//! protocol. There is one, [`ib`]: the InfiniBand connection manager, whose messages are MADs. The
//! handshake of iWARP (MPA) would be a second one with the same events.
//!
//! | file | what lives there |
//! |---|---|
//! | [`parameters`] | what is asked and granted: service, path, queue pair numbers, depths, retries, private data, refusals |
//! | [`event`] | what happened to a connection; why a call is refused |
//! | [`ib`] | the InfiniBand connection manager: states, messages, repetition, time wait |
//!
//! ```text
//!                    parameters                    messages
//!   node  ── connect, accept, reject ──▶ ib::Cm ── Output::Transmit ──▶ node::gsi, QP1
//!         ◀──── Output::Event ──────────        ◀──── Cm::input ─────── node::gsi, QP1
//! ```
#![forbid(unsafe_code)]

pub mod event;
pub mod ib;
pub mod parameters;

pub use event::{ConnId, ETIMEDOUT, Error, Event};
pub use ib::Timing;
pub use parameters::{
    Accept, Connect, Parameters, PathRecord, QpAttributes, Refusal, Reply, Request, Service, SidrAnswer,
    SidrAsk, SidrRequest, TransportService,
};
pub use wire::mad::{Ece, PortSpace};
