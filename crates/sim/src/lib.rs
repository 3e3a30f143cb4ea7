//! A simulated environment of RDMA hosts: the shipped [`stack::Node`] on a virtual clock, in one
//! thread, over a network that loses, repeats, reorders, delays, corrupts and cuts off, all of it
//! from one seed.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what lives there |
//! |---|---|
//! | `sim` | [`Sim`]: hosts, their processes, and the loop that moves time; a packet's way; the trace |
//! | [`faults`] | [`Faults`]: what may happen to a packet, and how often |
//! | [`mod@env`] | [`SimEnv`]: what a node sees of it; names, routes, neighbours of a host |
//! | `same_host`, `peer_memory` | processes of one host: channels between them, and memory that they reach by themselves |
//! | `streams` | ordered streams of bytes between processes, as TCP's: cut, delayed, half closed, reset |
//! | `by_lid` | packets of an InfiniBand subnet; [`Sim::add_ib_host`] is a host on one, [`Sim::add_fabric_host`] on one with switches |
//! | `network` | links between hosts, and the fate of each packet |
//! | [`storage`] | files of hosts, which outlive processes, and what a loss of power leaves of them |
//! | [`dice`] | [`Dice`]: seeded randomness |
//! | [`seeds`] | running a test on many seeds, and saying how to repeat the one that failed |
//!
//! The same seed and the same calls give the same run, packet for packet ([`Sim::trace`] is equal).
//! Two things keep it so: memory is registered under addresses of the simulation's own choice, and
//! a node is never entered from inside one of its own calls: what it sends waits in an outbox until
//! the call is over.
//!
//! ```
//! use std::time::Duration;
//! use nic::rdma_cm::EventKind;
//! use stack::EventChannel;
//! use sim::{Faults, Mark, Sim};
//! use wire::mad::PortSpace;
//!
//! let mut sim = Sim::new(7, Faults::lossy());
//! let here = sim.add_host(&["10.0.0.1".parse().unwrap()], 1500);
//! let there = sim.add_host(&["10.0.0.2".parse().unwrap()], 1500);
//! let process = sim.start(here, &stack::Config::default());
//! let node = sim.node(process).unwrap();
//!
//! let channel = EventChannel::new(Box::new(Mark::default()));
//! let id = node.create_id(&channel, PortSpace::Tcp);
//! let dest = "10.0.0.2:7471".parse().unwrap();
//! node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
//! sim.run_for(Duration::from_secs(1));
//! assert_eq!(node.next_event(&channel).unwrap().kind, EventKind::AddrResolved);
//! # let _ = there;
//! ```
#![forbid(unsafe_code)]

mod by_lid;
mod clock;
pub mod dice;
pub mod env;
pub mod faults;
mod local_link;
mod network;
mod same_host;
pub mod seeds;
mod sim;
pub mod storage;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use dice::Dice;
pub use env::{HostId, ProcessId, SimEnv};
pub use faults::Faults;
pub use seeds::{each_seed, each_seed_of};
pub use sim::{Counters, Power, Sim};
pub use storage::Mapped;

/// A [`nic::Signal`] that counts: for channels whose owner looks at them after every step anyway.
/// Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Mark(Arc<AtomicU64>);

impl Mark {
    /// How often it was signalled.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl nic::Signal for Mark {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn take_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
