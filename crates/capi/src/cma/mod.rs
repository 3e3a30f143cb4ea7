//! librdmacm.

pub mod addrinfo;
pub mod channel;
mod cm_id;
pub mod connect;
pub mod devices;
pub mod ece;
pub mod endpoint;
pub mod id;
pub mod multicast;
pub mod option;
pub mod qp;
mod sockaddr;
pub mod srq;
pub mod strings;
