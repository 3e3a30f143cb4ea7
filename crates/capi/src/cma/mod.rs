//! librdmacm: its functions, each a conversion to the call of [`stack`] that does the work.
//!
//! | module | what |
//! |---|---|
//! | `cm_id` | what stands behind an identifier, and which there are |
//! | `id` | identifiers made, moved and destroyed; calls that wait for their event |
//! | `connect` | bound, resolved, connected, accepted, ended |
//! | `endpoint` | `rdma_create_ep` |
//! | `event_channel` | what stands behind a channel, and which there are |
//! | `channel` | channels and events as C has them |
//! | `qp`, `srq` | the queue pair and the shared receive queue of an identifier |
//! | `devices` | the devices that identifiers use |
//! | `shared` | what the identifiers of a device share |
//! | `multicast` | groups joined and left |
//! | `option`, `ece` | options of identifiers; vendor options of connections |
//! | `addrinfo`, `resolve_addrinfo` | names to addresses, at once or by an event |
//! | `sockaddr` | addresses converted |
//! | `strings` | names of events |

pub mod addrinfo;
pub mod channel;
mod cm_id;
pub mod connect;
pub mod devices;
pub mod ece;
pub mod endpoint;
mod event_channel;
pub mod id;
pub mod multicast;
pub mod option;
pub mod qp;
pub mod resolve_addrinfo;
mod shared;
pub(crate) mod sockaddr;
pub mod srq;
pub mod strings;
