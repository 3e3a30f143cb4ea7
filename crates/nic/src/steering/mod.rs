//! Which queue pair gets a packet that names none: flow rules for whole frames, the hash that
//! spreads them over work queues, multicast groups.

pub mod flow;
pub(crate) mod frame;
pub(crate) mod multicast;
pub mod rss;
pub mod spec;
