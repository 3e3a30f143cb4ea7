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
//! | [`streams`] | TCP streams, the transport of the others |
//! | [`ib`] | the InfiniBand connection manager: states, messages, repetition, time wait |
//! | [`iw`] | MPA of iWARP: request, reply, and the hand-over of the stream to the queue pair |
//!
//! ```text
//!                    parameters                  messages
//!   node  ── connect, accept, reject ──▶ Cm ── Output::Transmit ──▶ stack::gsi, QP1
//!         ◀──── Output::Event ──────────    ◀──── Mads::input ───── stack::gsi, QP1
//!
//!                                        Cm ── Output::Stream ────▶ TCP
//!                                           ◀──── Streams ────────
//! ```
//!
//! # What another protocol provides
//!
//! A folder beside [`ib`] and [`iw`], and these:
//!
//! 1. A type that implements [`Cm`]. Its calls return at once; what comes of them are the same
//!    [`Event`]s in the same order, so a node cannot tell protocols apart. It keeps no clock, and
//!    says by [`Cm::deadline`] when it wants to be called.
//! 2. An arm of [`Protocol`], in [`Protocol::start`] and [`Protocol::private_data`].
//! 3. Its transport. One whose messages are MADs implements [`mads::Mads`] and puts out
//!    [`Output::Transmit`]. One whose messages go by streams implements [`streams::Streams`] and
//!    puts out [`Output::Stream`].
//! 4. Datagram services ([`Cm::sidr_request`], [`Cm::sidr_reply`]) if it has them. Without, the
//!    calls say [`Error::NoDatagrams`].
//!
//! `stack::devices` then says which transport of a device speaks it.
#![forbid(unsafe_code)]

pub mod event;
pub mod ib;
pub mod iw;
pub mod mads;
pub mod parameters;
pub mod protocol;
pub mod streams;

pub use event::{ConnId, ECONNREFUSED, ECONNRESET, EINVAL, ETIMEDOUT, Error, Event};
pub use ib::Timing;
pub use mads::Origin;
pub use parameters::{
    Accept, Connect, NO_PROCESS, Parameters, PathRecord, QpAttributes, Refusal, Reply, Request, Service,
    SidrAnswer, SidrAsk, SidrRequest, TransportService,
};
pub use protocol::{Cm, Output, PrivateData, Protocol, Setup};
pub use streams::{
    Accepted, Action, Agreed, Close, HandOver, Open, Rtr, RtrMessage, StreamCounters, StreamId, Streams,
};
pub use wire::mad::{Ece, PortSpace};
