//! RDMA for Rust: safe, sync and async, with no adapter, no kernel module and no root.
//!
//! Verbena speaks RoCE v2 over UDP sockets, as the kernel's rdma_rxe and ConnectX adapters do: the far end may be any of them, or a C program
//! on Verbena's libibverbs. One's own protocol is tested on simulated hosts with a clock, losses and crashes of their own:
//!
//! ```
//! use verbena::prelude::*;
//! use verbena::sim::Host;
//!
//! #[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us, reorder=2%")]
//! async fn what_is_said_comes_back(left: Host, right: Host) {
//!     right.spawn(async {
//!         let conn = verbena::listen("0.0.0.0:7000").await?.accept().await?;
//!         while let Some(message) = conn.recv().await? {
//!             conn.send(message).await.buf()?;
//!         }
//!         verbena::Result::Ok(())
//!     });
//!     let said = left.spawn(async {
//!         let conn = verbena::connect("right:7000").await?;
//!         conn.send_inline(b"hello").await?;
//!         conn.recv().await
//!     });
//!     assert_eq!(&said.await.unwrap().unwrap()[..], b"hello");
//! }
//! ```
//!
//! The same code runs in production, over sockets, in whatever runtime, or in none:
//!
//! ```no_run
//! fn main() -> verbena::Result<()> {
//!     let conn = verbena::connect("10.0.0.2:7471").private_data(b"hello").wait()?;
//!     conn.send_inline(b"a message").wait()?;
//!     println!("{:?}", conn.recv_wait()?);
//!     conn.close_wait()
//! }
//! ```
//!
//! # RDMA in ten minutes
//!
//! **Connections.** [`listen`], [`connect`]: addresses and ports as with TCP, but both sides may say something with the handshake itself (private
//! data), and a [`Request`] can be looked at before it is accepted or rejected. A [`Connection`] is a handle: clones are the same one, the last
//! one dropped tells the peer.
//!
//! **Messages.** A SEND is one message, not bytes of a stream. It needs a receive that the peer has posted, with a buffer large enough; the crate keeps
//! some posted ([`QueueConfig`]), and posts a buffer again when its [`Message`] is dropped. Who sends faster than the peer takes waits (RNR).
//!
//! **One-sided operations.** WRITE, READ and atomics reach the peer's memory without its program: it has registered the memory ([`Memory`], [`Mr`]) and told
//! where it is ([`RemoteMemory`], 20 bytes that fit any private data). Operations of one connection are executed in order; a WRITE with immediate data
//! also says that it has come. FLUSH says that what was written lies where it shall: in
//! memory of [`Memory::open`] it outlives the process, and [`sim`] has hosts whose power fails.
//!
//! **Completions.** An operation is complete when the peer's adapter has acknowledged it: only then may its buffer be used again. So the buffer goes into the
//! operation, and comes back with the result: `let buf = conn.send(buf).await.buf()?`. An operation that is dropped, or forgotten, goes on; its buffer
//! returns to its pool when it is complete. See [`op`].
//!
//! **Memory.** Adapters work on registered memory: a [`Pool`] registers once and hands out [`RegBuf`]s. Memory that peers may write is never seen as `&[u8]`, but
//! copied and loaded ([`SharedSlice`]). The table is in [`RegBuf`] and its like; who may touch what when is in their documentation.
//!
//! **Errors.** The first request that fails moves the queue pair to the error state; all others complete as [`Flushed`](WcStatus::Flushed).
//! [`QueuePair::failure`] has the cause. Every [`Error`] has a kind, the call, and the value that was wrong.
//!
//! # Concept, type, C
//!
//! | concept | here | librdmacm, libibverbs |
//! |---|---|---|
//! | connect | [`connect`], or [`resolve`] and [`Route::connect`] | `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_create_qp`, `rdma_connect` |
//! | accept | [`listen`], [`Listener::request`], [`Request::accept`], [`Request::reject`] | `rdma_bind_addr`, `rdma_listen`, `rdma_get_cm_event`, `rdma_accept`, `rdma_reject` |
//! | send, receive | [`QueuePair::send`], [`QueuePair::recv`] | `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` |
//! | datagrams | [`UdSocket`]: [`bind`](UdSocket::bind), [`lookup`](UdSocket::lookup), [`join`](UdSocket::join), [`send_to`](UdSocket::send_to), [`recv_from`](UdSocket::recv_from) | `rdma_connect` in `RDMA_PS_UDP`, `rdma_join_multicast`, `ibv_create_ah`, `ibv_post_send` |
//! | one-sided | [`QueuePair::write`], [`read`](QueuePair::read), [`fetch_add`](QueuePair::fetch_add), [`compare_swap`](QueuePair::compare_swap), [`atomic_write`](QueuePair::atomic_write), [`flush`](QueuePair::flush) | `ibv_post_send` |
//! | several with one doorbell | [`QueuePair::post_all`] | a list of `struct ibv_send_wr` |
//! | registration | [`Pool`], [`Memory`] | `ibv_reg_mr` |
//! | memory of a device, dma-bufs | [`Device::alloc_memory`], [`Memory::dmabuf`] | `ibv_alloc_dm`, `ibv_memcpy_to_dm`, `ibv_reg_dm_mr`, `ibv_reg_dmabuf_mr` |
//! | a right that ends, for one peer | [`RegBuf::expose`], [`Exposed::revoke`] | `ibv_alloc_mw`, `ibv_post_send` with `IBV_WR_BIND_MW`, `ibv_dealloc_mw` |
//! | bytes of the caller's own | [`QueuePair::scope`], [`QueuePair::send_inline`], [`QueuePair::send_copy`] | `ibv_reg_mr` for the one request, `IBV_SEND_INLINE` |
//! | lowest latency | [`Connection::into_polled`] | a loop of `ibv_poll_cq` |
//! | a stream of bytes | [`RdmaStream`] | rsockets, with a wire format of its own |
//! | queues that many share | [`Srq`], [`Cq`] in [`QueueConfig`] | `ibv_create_srq`, `ibv_create_cq` |
//! | by hand | [`verbs::Unconnected`] | `ibv_create_qp`, `ibv_modify_qp` |
//! | XRC | [`verbs::XrcDomain`], [`XrcSend`], [`XrcSrq`] | `ibv_open_xrcd`, `ibv_create_srq_ex`, `ibv_wr_set_xrc_srqn` |
//! | identifiers and events | [`cm::raw`] | `rdma_create_id`, `rdma_get_cm_event`, `rdma_init_qp_attr`, `rdma_establish`, `rdma_migrate_id` |
//! | limits, port | [`Device::attr`], [`Device::port`] | `ibv_query_device`, `ibv_query_port`, `ibv_query_gid` |
//! | device, domain | [`Provider`], [`Device`], [`Pd`] | `ibv_open_device`, `ibv_alloc_pd` |
//!
//! # How it works
//!
//! There is no thread for a connection, and none of this crate's. Completions that somebody waits for are put where futures look by whoever brings them: a thread that
//! blocks in [`block_on`] or `wait` polls the sockets itself for 50 to 200 us before it sleeps; else the process's one engine thread brings them, and wakes
//! tasks with no lock held. A future leaves its waker under the lock under which it looks, so no wake-up is lost. A process that was forked finds its
//! parent's objects `Forked`.
//!
//! The program's code is called by whichever thread brings something: wakers, and destructors of
//! values whose owner has gone. Where it panics the panic hook tells of it, everything else goes on,
//! and [`caught_panics`] counts it. Nothing unwinds through the engine thread, another task's poll
//! or a [`scope`](QueuePair::scope). A waker's `clone` is called in the poll of its own future, and
//! unwinds there.
//!
//! # Features
//!
//! `software` (default): the stack, linked in. `sim` (default): [`sim`] and `#[verbena::test]`. `system`: `Provider::system`, this machine's
//! rdma-core and with it its adapters, opened while the program runs. `serde`: descriptors of memory and addresses of datagrams travel in any format.
//! `tokio`: [`RdmaStream`] is `tokio::io::{AsyncRead, AsyncWrite}`; nothing of tokio runs.
#![warn(missing_docs)]
#![deny(unsafe_code)]

#[cfg(not(any(feature = "software", feature = "sim")))]
compile_error!("verbena has no provider: enable the feature `software` or `sim`");

extern crate self as verbena;

pub mod cm;
mod error;
mod exec;
#[allow(unsafe_code)]
mod mem;
pub mod op;
mod polled;
#[cfg(all(test, feature = "sim"))]
mod proof;
mod provider;
mod qp;
mod remote;
mod scope;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "software")]
mod sleepers;
mod spawn;
mod stack;
mod stream;
#[allow(unsafe_code)]
mod thread_safe;
pub mod time;
pub mod ud;
pub mod verbs;

pub use cm::{
    Accept, ConnParam, Connect, Connection, Listen, Listener, Request, Resolve, RnrRetry, Route, connect,
    listen, resolve,
};
pub use error::{Error, ErrorKind, RejectReason, Rejection, Result, Value, WcStatus};
pub use exec::block_on;
pub use mem::*;
pub use op::{Completion, InFlight, Op, Ops};
pub use polled::{PolledConnection, Prepared};
pub use provider::{Device, Pd, Provider};
pub use qp::{
    Connected, Cq, HasPeer, Message, QpState, QueueConfig, QueuePair, Rc, Reliable, Srq, ToSrq, Transport,
    Uc, Ud, XrcSend, XrcSrq,
};
pub use remote::RemoteMemory;
pub use scope::{Scope, ScopedOp};
#[cfg(feature = "sim")]
pub use sim::test;
pub use spawn::spawn;
pub use stream::{RdmaListener, RdmaStream, ReadHalf, StreamConfig, WriteHalf};
pub use ud::{Datagram, Membership, UdAddress, UdSocket};
pub use zerocopy;

/// How many panics of the program's wakers and destructors this process has caught, as
/// [`How it works`](crate#how-it-works) says: in a simulation, too.
pub fn caught_panics() -> u64 {
    nic::program::caught()
}

/// `use verbena::prelude::*`: the one trait that calls need.
pub mod prelude {
    pub use crate::op::WithBuf;
}
