//! libibverbs.

pub mod ah;
pub mod channel;
pub mod context;
pub mod cq;
pub mod device;
mod dm;
pub mod event;
pub mod fork;
pub mod import;
pub mod mcast;
pub mod memory;
mod parent;
pub mod post;
pub mod provider;
pub mod qp;
pub mod query;
pub mod rate;
pub mod strings;
