//! librdmacm.

pub mod channel;
pub mod connect;
pub mod endpoint;
pub mod id;
pub mod multicast;
pub mod qp;
mod sockaddr;
pub mod srq;
pub mod strings;
