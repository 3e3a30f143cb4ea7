//! What processes of one host share: rings of records, memory that others map or copy, and which
//! thread looks there. A host without this crate sends everything by its sockets.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what |
//! |---|---|
//! | [`ring`] | a ring of records in memory that two processes share; nothing of RDMA |
//! | [`record`] | what the records are |
//! | [`rings`] | the rings of a process: which there are, their two ends, and which thread reads them |
//! | `peer_memory` | memory of other processes of this host, without them |
//! | `exportable` | which regions of this process others reach by themselves: none that may keep them waiting |
//! | [`arena`] | memory of this process that the others map, too |
//! | `same_host` | what is to be expected of all that, before a process sends |
//! | [`lease`] | whether threads that poll serve a ring or a socket, or the engine |
//! | [`mod@env`] | what rings ask of the host around them, and what they bring it |
//! | `memory`, `shared_words` | shared memory; words of it for others than rings |
//! | `counters` | what passed, in numbers |
//!
//! Unsafe code is in `memory`, `arena`, `exportable` and `peer_memory` only.
//!
//! # Between this crate and the host
//!
//! The host makes one [`Rings`], and tells it what other processes say over their names' sockets:
//! who offers a ring, who has taken one, who is gone. The rings ask the host by [`Env`], and
//! speak to a process by its [`NameOwner`] or [`Connection`]; no message asks one of those
//! anything. What comes by a ring goes to a [`PacketHandler`], which is a type parameter: so no
//! message costs a dynamic call.
//!
//! Which thread reads the rings is decided here ([`lease`], [`rings::driver_slot`],
//! [`rings::adaptive_spin`]). Each of them stores what the two ends of a ring look at in its
//! memory, between two steps of theirs. The host says only when a thread polls, waits or leaves.
//! Sockets have leases as well, and the host takes them from here.

pub mod arena;
mod counters;
pub mod env;
mod exportable;
pub mod lease;
mod memory;
mod peer_memory;
pub mod record;
pub mod ring;
pub mod rings;
mod same_host;
#[cfg(not(loom))]
mod shared_words;

pub use counters::Counters;
pub use env::{Connection, Delivery, Drained, Env, Known, NameOwner, PacketHandler};
#[doc(hidden)]
pub use peer_memory::fuzzed;
pub use rings::Rings;
pub use same_host::{SameHost, Wish, same_host, wish};
#[cfg(not(loom))]
pub use shared_words::SharedWords;
