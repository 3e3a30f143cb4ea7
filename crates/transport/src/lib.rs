//! Protocol engines, sans-IO: they take packets, work requests and the time, and give packets, completions and the
//! next deadline. No socket, no clock, no thread, no lock.
//!
//! At the centre stands the operation ([`op`]); around it the ways it travels. [`rc`] is the reliable connection over
//! RoCEv2.
#![forbid(unsafe_code)]

pub mod batch;
pub mod op;
pub mod rc;
pub mod window;

pub use batch::TxBatch;
pub use op::{Context, Fault, Memory, Remote, Sge};
pub use rc::Rc;
pub use window::Window;
