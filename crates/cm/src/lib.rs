//! Connection management, sans-IO: requests, replies and time go in, messages, events and queue
//! pair attributes come out. No socket, clock, thread or lock.
//!
//! Internal to Verbena: it promises no stability.
//!
//! The room above (`node`) listens, binds ports, moves queue pairs and tells programs. It speaks in
//! the words of [`parameters`] and [`event`]: a service, a path, what either end asks and grants,
//! private data, why not. How that is said to a peer is the affair of a folder of its own for each
//! protocol, of which the node names none: it has a [`Cm`] for each device, and only what chooses a
//! device's [`Protocol`] knows which one speaks there.
//!
//! | file | what lives there |
//! |---|---|
//! | [`protocol`] | what a node calls and fetches, whatever the protocol; the list of protocols |
//! | [`parameters`] | what is asked and granted: service, path, queue pair numbers, depths, retries, private data, refusals |
//! | [`event`] | what happened to a connection; why a call is refused |
//! | [`mads`] | QP1, the transport of protocols whose messages are MADs |
//! | [`ib`] | the InfiniBand connection manager: states, messages, repetition, time wait |
//!
//! ```text
//!                    parameters                  messages
//!   node  ── connect, accept, reject ──▶ Cm ── Output::Transmit ──▶ stack::gsi, QP1
//!         ◀──── Output::Event ──────────    ◀──── Mads::input ───── stack::gsi, QP1
//! ```
//!
//! # What a second protocol provides
//!
//! The handshake of iWARP (MPA) would be one. It has a folder beside [`ib`], and these:
//!
//! 1. A type that implements [`Cm`]. Its calls return at once; what comes of them are the same
//!    [`Event`]s in the same order, so a node cannot tell protocols apart. It keeps no clock, and
//!    says by [`Cm::deadline`] when it wants to be called.
//! 2. An arm of [`Protocol`], in [`Protocol::start`] and [`Protocol::private_data`].
//! 3. Its transport. One whose messages are MADs implements [`mads::Mads`], puts out
//!    [`Output::Transmit`], and is done. One whose messages go by streams gets a trait beside
//!    [`mads`], an output that opens, writes to and closes a stream, and a file in `node` beside
//!    `gsi` that hands it streams.
//! 4. Datagram services ([`Cm::sidr_request`], [`Cm::sidr_reply`]) if it has them. Without, the
//!    calls say [`Error::NoDatagrams`].
//!
//! `stack::devices` then says which transport of a device speaks it.
#![forbid(unsafe_code)]

pub mod event;
pub mod ib;
pub mod mads;
pub mod parameters;
pub mod protocol;

pub use event::{ConnId, ETIMEDOUT, Error, Event};
pub use ib::Timing;
pub use mads::Origin;
pub use parameters::{
    Accept, Connect, Parameters, PathRecord, QpAttributes, Refusal, Reply, Request, Service, SidrAnswer,
    SidrAsk, SidrRequest, TransportService,
};
pub use protocol::{Cm, Output, PrivateData, Protocol, Setup};
pub use wire::mad::{Ece, PortSpace};
