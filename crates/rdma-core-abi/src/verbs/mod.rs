//! `<infiniband/verbs.h>`: one file a subject, all of it exported here under the header's names.

mod context;
mod counter;
mod cq;
mod device;
mod event;
mod flow;
mod gid;
mod memory;
mod pd;
mod port;
mod qp;
mod qp_ex;
mod srq;
mod tm;
mod wc;
mod wq;
mod wr;

pub use context::*;
pub use counter::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use flow::*;
pub use gid::*;
pub use memory::*;
pub use pd::*;
pub use port::*;
pub use qp::*;
pub use qp_ex::*;
pub use srq::*;
pub use tm::*;
pub use wc::*;
pub use wq::*;
pub use wr::*;
