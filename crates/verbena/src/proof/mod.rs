//! What the crate promises of its ends, shown on simulated hosts: any future may be dropped at any
//! poll, anything may be dropped in any order, and nothing is left of it.
//!
//! | file | what |
//! |---|---|
//! | `cut` | a future that is dropped at its n-th poll |
//! | `cancel` | all futures of the crate, dropped at each of their polls |
//! | `shared` | those of datagram sockets, and of connections that share queues |
//! | `by_hand` | those of identifiers, of events and of streams of requests |
//! | `streams` | those of byte streams |
//! | `windows` | buffers under memory windows |
//! | `panics` | wakers, destructors and buffers that panic at each of their calls |
//! | `drops` | the objects of a connection, dropped in every order |
//! | `setting` | the other side: it echoes and lends memory; what is left on a host |

mod by_hand;
mod cancel;
mod cut;
mod drops;
mod panics;
mod setting;
mod shared;
mod streams;
mod windows;
