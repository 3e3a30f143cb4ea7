//! Protocol engines, sans-IO: they take packets, work requests and the time, and give packets, completions and the
//! next deadline. No socket, no clock, no thread, no lock.
//!
//! At the centre stands the operation ([`op`]); around it the ways it travels over RoCEv2: [`rc`], the reliable connection, [`uc`],
//! the unreliable one, and [`ud`], the unreliable datagram.
#![forbid(unsafe_code)]

pub mod batch;
pub mod congestion_window;
pub mod execute;
pub mod op;
pub mod pacing;
pub mod rc;
mod segmentation;
pub mod uc;
pub mod ud;

pub use batch::TxBatch;
pub use congestion_window::CongestionWindow;
pub use op::{Context, Fault, Memory, Remote, Sge};
pub use rc::Rc;
pub use uc::Uc;
pub use ud::Ud;
