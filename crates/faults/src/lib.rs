//! Faults on purpose: rules that say what happens and to what, a seed that decides, and a link that
//! does it. Packets are lost, damaged, repeated, late or slow; work requests, connection requests
//! and calls fail; ports and devices go; the engine stands still.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what |
//! |---|---|
//! | [`spec`] | the rules, as a user writes them |
//! | `decide` | which rule acts |
//! | `link` | [`FaultLink`]: decorates a [`nic::Link`] |
//! | `frames` | whole Ethernet frames, on which faults happen |
//! | `judged` | what becomes of a packet or a frame |
//! | `shared` | what the link, its streams and its frames share |
//! | `stream` | a stream on which faults happen |
//! | `framing`, `lane`, `passage` | of a stream: its parts, the bytes of a direction that wait, what becomes of a part |
//! | `held` | what is held until it is due |
//! | `requests`, `connections` | work requests and connection requests, as their packets show them |
//!
//! Faults act below the engines, so all that follows is what a real network would bring about:
//! retransmissions, NAKs, errors after the last retry.
#![forbid(unsafe_code)]

mod connections;
mod decide;
mod frames;
mod framing;
mod held;
mod judged;
mod lane;
mod link;
mod passage;
mod requests;
mod shared;
pub mod spec;
mod stream;

pub use link::{FaultLink, Surroundings};
pub use spec::{Spec, SpecError};
