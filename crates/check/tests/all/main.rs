//! The checker, told of calls.
//!
//! | file | what |
//! |---|---|
//! | `program` | a program over a checker, with a queue pair and three regions |
//! | `requests` | each rule about requests and objects, broken once and kept once |
//! | `events` | events that do not come, and polls in vain |
//! | `xrc` | shared receive queues for XRC |
//! | `work_queues` | receive work queues |
//! | `refusals` | calls that were refused, and why |
//! | `reads` | READs and atomics that the peer does not serve |

mod events;
mod program;
mod reads;
mod refusals;
mod requests;
mod work_queues;
mod xrc;
