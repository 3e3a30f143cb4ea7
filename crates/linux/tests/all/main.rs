//! The tests of `linux`. One binary, so that what they share is compiled once.

mod batches;
mod deputy;
mod descriptors;
mod driver_slot;
mod flows;
mod fragments;
mod frames;
mod hostile;
mod life;
mod mapped;
mod network;
mod peer_memory;
mod rings;
mod sharing;
mod spin;
mod support;
mod tasks;
mod unsolicited;
