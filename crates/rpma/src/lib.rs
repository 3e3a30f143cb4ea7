//! librpma's remote persistent memory access in safe Rust: its objects over `verbena`, sync and
//! async, over software, rdma-core's adapters or a simulated network. Buffers belong to their
//! operations, and objects may be dropped in any order. A session is in [`op`] and [`ep`].
//!
//! The example `kv_log` is a log of keys and values in a peer's persistent memory: remote append,
//! flush, crash, recover, on real files, and the same code on simulated hosts whose power fails
//! between any two of its steps (`cargo test -p verbena-rpma --example kv_log`).
//!
//! | module | what | librpma |
//! |---|---|---|
//! | [`peer`] | [`Peer`] | `rpma_peer_new`, `rpma_utils_get_ibv_context` |
//! | [`peer_cfg`] | [`PeerCfg`] and its descriptor | `rpma_peer_cfg_*` |
//! | [`conn_cfg`] | [`ConnCfg`] | `rpma_conn_cfg_*` |
//! | [`ep`] | [`Ep`] | `rpma_ep_*` |
//! | [`conn_req`] | [`ConnReq`] | `rpma_conn_req_*` |
//! | [`conn`] | [`Conn`], [`ConnEvent`] | `rpma_conn_*`, `rpma_recv` |
//! | [`mr`] | [`MrLocal`], [`MrRemote`] and its descriptor, [`Usage`], [`FlushType`] | `rpma_mr_*` |
//! | [`op`] | reading, writing, flushing, sending | `rpma_read`, `rpma_write`, `rpma_write_with_imm`, `rpma_atomic_write`, `rpma_flush`, `rpma_send`, `rpma_send_with_imm` |
//! | [`cq`] | [`Cq`]: completions by a queue, in place of futures | `rpma_cq_*`, `rpma_conn_get_cq`, `rpma_conn_wait` |
//! | [`srq`] | [`Srq`], [`SrqCfg`] | `rpma_srq_*` |
//! | [`error`] | [`Error`] | `RPMA_E_*`, `rpma_err_2str` |
//! | [`log`] | thresholds, the program's function | `rpma_log_*` |
//!
//! Threads: all objects are `Send` and `Sync`, but for a [`Cq`], which is one thread's at a time;
//! upstream's rules which of them two threads may use at once need not be known.
#![forbid(unsafe_code)]

pub mod conn;
pub mod conn_cfg;
pub mod conn_req;
pub mod cq;
pub mod ep;
pub mod error;
pub mod log;
pub mod mr;
pub mod op;
pub mod peer;
pub mod peer_cfg;
pub mod srq;

pub use conn::{Conn, ConnEvent};
pub use conn_cfg::ConnCfg;
pub use conn_req::ConnReq;
pub use cq::Cq;
pub use ep::Ep;
pub use error::{Error, PostError, Result};
pub use mr::{FlushType, MrLocal, MrRemote, Usage};
pub use op::{Op, Ordered};
pub use peer::Peer;
pub use peer_cfg::PeerCfg;
pub use srq::{Srq, SrqCfg};
