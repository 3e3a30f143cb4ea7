//! The sanitizer of verbs: what a program does with work requests, memory and queues, against what
//! the manual pages of rdma-core allow. It finds what works by luck, and what an adapter punishes.
//!
//! | module | what |
//! |---|---|
//! | [`checker`] | [`Checker`]: objects and outstanding work requests, and what is wrong with them |
//! | [`calls`] | what a caller tells of a call |
//! | [`finding`] | [`Finding`]: the rule, the calls, a paragraph and JSON |
//! | [`objects`] | what a checker knows of each object |
//! | `ranges` | the memory under outstanding work requests |
//! | [`reads`] | READs and atomics that the peer does not serve |
//! | `refusals` | calls that were refused, and why |
//! | `rules` | what is wrong with a request that is posted or completed |
//! | `events` | what is wrong about events and their acknowledgement |
//! | `name` | what a finding calls a request |
//! | `gone` | the use of objects that were destroyed |
//! | `identifiers` | identifiers and event channels of rdma_cm |
//! | `leaks` | objects that are left at the end, as a tree |
//! | [`ends`] | attributes of the two ends of a connection that do not fit |
//! | [`suppressions`] | findings that are not told |
//!
//! A caller tells a [`Checker`] of each call, and prints the findings. The checker touches no
//! memory and makes no call: a [`Program`] reads, and a [`Site`] says where in the program a call
//! is.
#![forbid(unsafe_code)]

pub mod calls;
pub mod checker;
pub mod ends;
mod events;
pub mod finding;
mod gone;
mod identifiers;
mod leaks;
mod name;
pub mod objects;
mod ranges;
pub mod reads;
mod refusals;
mod rules;
pub mod suppressions;

pub use calls::{Completion, Direction, Element, Program, Queue, Refusal, Request};
pub use checker::Checker;
pub use finding::{Finding, Rule, Site};
pub use suppressions::Suppressions;
