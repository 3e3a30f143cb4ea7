//! libibverbs.

pub mod ah;
pub mod channel;
pub mod context;
pub mod cq;
mod cq_ex;
pub mod device;
mod dm;
pub mod event;
mod flow;
pub mod fork;
pub mod import;
pub mod mcast;
pub mod memory;
pub mod post;
pub mod provider;
pub mod qp;
pub mod qp_ex;
pub mod query;
pub mod rate;
pub mod srq;
pub mod strings;
mod window;
mod wq;
pub(crate) mod xrc;
