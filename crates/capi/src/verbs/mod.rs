//! libibverbs: its functions, in folders by the objects that they are about.
//!
//! | module | what |
//! |---|---|
//! | `device` | devices listed, opened, asked; asynchronous events |
//! | `memory` | protection domains, regions, windows, device memory |
//! | `cq` | completion queues, channels and events |
//! | `qp` | queue pairs: made, connected, posted to |
//! | `srq` | shared receive queues |
//! | `xrcd` | XRC domains |
//! | `ah` | address handles |
//! | `steering` | flow rules, work queues, multicast groups |
//! | `abi_1_0` | the same for programs linked with libibverbs 1.0, before 2007 |
//! | `live` | which C objects exist |
//! | `unacked` | events that the program has not acknowledged |
//! | `marshall`, `rate`, `strings` | conversions without an object |
//!
//! In a folder, `object` is the structure that C sees with what stands behind it; the other modules
//! are the calls. A module knows those of the objects it is made from, never those that are made
//! from it: only `device::open`, which fills the function tables of a context, knows all calls.

pub mod abi_1_0;
pub mod ah;
pub mod cq;
pub mod device;
mod live;
pub mod marshall;
pub mod memory;
pub mod qp;
pub mod rate;
pub mod srq;
pub mod steering;
pub mod strings;
pub(crate) mod unacked;
pub(crate) mod xrcd;
