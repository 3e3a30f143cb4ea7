//! The memory types over real devices, without sockets: hosts of a simulation. Where it matters
//! that an adapter copies, two of them do.

mod adapter;
mod buffers;
mod pieces;
mod remote;
mod support;
