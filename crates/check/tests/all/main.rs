//! The checker, told of calls.
//!
//! | file | what |
//! |---|---|
//! | `program` | a program over a checker, with a queue pair and three regions |
//! | `requests` | each rule about requests and objects, broken once and kept once |
//! | `events` | events that no completion queue was asked for |
//! | `xrc` | shared receive queues for XRC |
//! | `reads` | READs and atomics that the peer does not serve |

mod events;
mod program;
mod reads;
mod requests;
mod xrc;
