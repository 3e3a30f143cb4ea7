//! Which packets and frames a queue pair gets beside its own (ibv_create_flow(3), ibv_create_wq(3),
//! ibv_attach_mcast(3)).
//!
//! | module | what |
//! |---|---|
//! | `flow` | flow rules |
//! | `counters` | counters of flow rules |
//! | `wq` | work queues, and the tables that spread frames over them |
//! | `mcast` | multicast groups |

pub(crate) mod counters;
pub(crate) mod flow;
pub(crate) mod mcast;
pub(crate) mod wq;

pub use mcast::{ibv_attach_mcast, ibv_detach_mcast};
