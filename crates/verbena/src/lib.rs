//! RDMA for Rust, with no adapter, no kernel module and no root.
//!
//! Programs connect, exchange messages, and read and write each other's memory. The same code runs
//! over UDP sockets, on the machine's rdma-core, and on simulated hosts in tests.
//!
//! A server that echoes messages, and a client, in one process:
//!
//! ```
//! use verbena::prelude::*;
//!
//! fn main() -> verbena::Result<()> {
//!     verbena::block_on(async {
//!         let listener = verbena::listen("127.0.0.1:0").await?;
//!         let address = listener.local_addr();
//!         verbena::spawn(async move {
//!             let conn = listener.accept().await?;
//!             while let Some(message) = conn.recv().await? {
//!                 conn.send(message).await.buf()?;
//!             }
//!             conn.close().await
//!         })?;
//!
//!         let conn = verbena::connect(address).await?;
//!         conn.send_inline(b"hello").await?;
//!         let answer = conn.recv().await?.expect("an answer");
//!         assert_eq!(&answer[..], b"hello");
//!         conn.close().await
//!     })
//! }
//! ```
//!
//! The wire protocol is RoCEv2 (RDMA over Converged Ethernet, version 2). The peer can be another
//! program on this crate, a C program on Verbena's libibverbs, or the Linux kernel's `rdma_rxe`. No
//! hardware adapter was ever tried as a peer.
//!
//! The [guide](../guide/index.html) has a [quick start](../guide/quick-start-rust.html), the
//! [counterparts of C calls](../guide/from-other-crates.html) and a page on [simulated
//! networks](../guide/simulation.html).
//!
//! # How to depend on it
//!
//! The package is `verbena-rdma`, the library is `verbena`. The package is not published yet. The
//! package called `verbena` in the registry is another project. Depend on a clone by its path, or
//! on the repository:
//!
//! ```toml
//! [dependencies]
//! verbena = { package = "verbena-rdma", path = "../verbena/crates/verbena" }
//! # or
//! verbena = { package = "verbena-rdma", git = "URL-OF-VERBENA" }
//! ```
//!
//! Linux only.
//!
//! # Connections
//!
//! [`listen`] and [`connect`] take addresses and ports, as TCP does. Both sides can send some bytes
//! with the handshake, called private data. A server can look at a [`Request`] before it accepts or
//! rejects it.
//!
//! ```no_run
//! # async fn f() -> verbena::Result<()> {
//! let listener = verbena::listen("0.0.0.0:7471").await?;
//! let request = listener.request().await?;
//! if request.private_data().starts_with(b"v1") {
//!     let conn = request.accept().private_data(b"welcome").await?;
//! #   drop(conn);
//! } else {
//!     request.reject(b"unknown version")?;
//! }
//! # Ok(()) }
//! ```
//!
//! A [`Connection`] is a handle: its clones are the same connection. Dropping the last handle
//! disconnects and tells the peer. [`Connection::close`] first waits for sends that are under way.
//! [`Connect::uc`] and [`Listen::uc`] make connections that are unreliable.
//!
//! # Messages
//!
//! A SEND transfers one message, not bytes of a stream. It uses up a receive that the peer has
//! posted, with a buffer that is large enough. The crate keeps receives posted
//! ([`QueueConfig::recv_depth`]), and posts a buffer again when its [`Message`] is dropped. A
//! sender that is faster than its peer waits (RNR, receiver not ready).
//!
//! ```no_run
//! # use verbena::prelude::*;
//! # async fn f(conn: verbena::Connection) -> verbena::Result<()> {
//! while let Some(message) = conn.recv().await? {
//!     println!("{} bytes", message.len());
//!     conn.send_copy(b"received")?.await?;
//! }
//! # Ok(()) }
//! ```
//!
//! [`RdmaStream`] is a byte stream over a connection. [`UdSocket`] sends and receives datagrams,
//! and joins multicast groups.
//!
//! # One-sided operations
//!
//! READ, WRITE and atomics reach the peer's memory, and the peer's program does nothing for it. The
//! peer registers the memory ([`Memory::mr`]) and sends a descriptor, [`RemoteMemory`]. Its 20
//! bytes fit into private data.
//!
//! ```no_run
//! # use verbena::prelude::*;
//! # async fn f() -> verbena::Result<()> {
//! use verbena::RemoteMemory;
//!
//! let conn = verbena::connect("10.0.0.2:7471").await?;
//! let table = RemoteMemory::from_bytes(conn.private_data())?;
//! let row = conn.read(conn.buffer()?, table.slice(..64)?).await.buf()?;
//! let before = conn.fetch_add(table.word(0)?, 1).await?;
//! # _ = (row, before); Ok(()) }
//! ```
//!
//! The peer executes the operations of a connection in order. A WRITE with immediate data
//! ([`Op::imm`](op::Op::imm)) also tells the peer's program that it arrived.
//! [`flush`](QueuePair::flush) completes when earlier WRITEs are visible, or persistent.
//! [`post_all`](QueuePair::post_all) posts several operations at once.
//!
//! # Completions and buffers
//!
//! An operation is complete when the peer's side has acknowledged it. Until then its buffer must
//! not change. So the buffer moves into the operation, and comes back with the result:
//!
//! ```no_run
//! # use verbena::prelude::*;
//! # async fn f(conn: verbena::Connection) -> verbena::Result<()> {
//! let mut buf = conn.buffer()?;
//! buf.extend_from_slice(b"first")?;
//! let (result, buf) = conn.send(buf).await; // with `.buf()`: a Result of the buffer
//! result?;
//! # drop(buf); Ok(()) }
//! ```
//!
//! A dropped or forgotten future does not cancel an operation that was posted. The buffer returns
//! to its pool when the operation completes. The module [`op`] has the details.
//!
//! # Memory
//!
//! RDMA works on registered memory. A [`Pool`] registers its memory once and gives out buffers
//! ([`RegBuf`]). A [`Memory`] is what peers reach. Rust code sees memory that peers can write by
//! copies and atomics only ([`SharedSlice`]), never as `&[u8]`.
//!
//! ```no_run
//! # async fn f(request: verbena::Request) -> verbena::Result<()> {
//! use verbena::{Memory, RemoteWrite};
//!
//! let table = Memory::<RemoteWrite>::zeroed(4096)?;
//! let mr = table.mr(request.pd())?;
//! let conn = request.accept().private_data(mr.remote().to_bytes()).await?;
//! let counter: u64 = table.shared().load(0)?;
//! # _ = (conn, counter); Ok(()) }
//! ```
//!
//! [`Memory::open`] maps a file, so its bytes outlive the process. [`RegBuf::expose`] gives one
//! peer a right that can be taken back. [`QueuePair::scope`] borrows bytes of the program for
//! operations.
//!
//! # Errors
//!
//! Every [`Error`] has a kind, the call that failed, and the value that was wrong if there was one.
//! The first request that fails moves its queue pair to the error state. All others then complete
//! as [`Flushed`](WcStatus::Flushed), and [`QueuePair::failure`] has the cause.
//!
//! ```no_run
//! # async fn f() -> verbena::Result<()> {
//! use verbena::ErrorKind;
//!
//! match verbena::connect("10.0.0.2:7471").await {
//!     Err(e) if e.kind() == ErrorKind::Rejected => println!("{:?}", e.rejection()),
//!     other => drop(other?),
//! }
//! # Ok(()) }
//! ```
//!
//! # Providers
//!
//! A [`Provider`] carries out the operations. [`Provider::current`] is the default: the simulated
//! host of the running task, or else [`Provider::software`], which is the stack linked into the
//! program. `Provider::system` (feature `system`) opens the machine's libibverbs and librdmacm, and
//! with them its adapters. Builders take another provider:
//!
//! ```no_run
//! # fn f() -> verbena::Result<()> {
//! let provider = verbena::Provider::software()?;
//! for device in provider.devices()? {
//!     println!("{}", device.name());
//! }
//! let listener = verbena::listen("0.0.0.0:7471").provider(&provider).wait()?;
//! # drop(listener); Ok(()) }
//! ```
//!
//! Tests ran `Provider::system` over `rdma_rxe` and over Verbena's own object, never over an
//! adapter.
//!
//! # Blocking and async
//!
//! Futures of this crate run in any runtime, or in [`block_on`] without one. Operations,
//! connections and listeners also have `wait`, which blocks the thread. Calls such as `recv` and
//! `close` have a blocking form with the prefix `blocking_`.
//!
//! ```no_run
//! fn main() -> verbena::Result<()> {
//!     let conn = verbena::connect("10.0.0.2:7471").wait()?;
//!     conn.send_inline(b"a message").wait()?;
//!     println!("{:?}", conn.blocking_recv()?);
//!     conn.blocking_close()
//! }
//! ```
//!
//! [`Connection::into_polled`] gives a connection to one polling thread, for latency.
//!
//! # Testing
//!
//! `#[verbena::test]` runs an async function on simulated hosts, with a virtual clock and faults
//! that a seed decides. The code under test is the code that ships. The module [`sim`] has all
//! arguments and faults.
//!
//! ```
//! # macro_rules! run {
//! #     (#[verbena::test($($args:tt)*)]
//! #     async fn $name:ident($a:ident: Host, $b:ident: Host) $body:block) => {
//! #         async fn $name($a: Host, $b: Host) $body
//! #         let (args, hosts) = (stringify!($($args)*), [stringify!($a), stringify!($b)]);
//! #         verbena::sim::run_seeds("", stringify!($name), args, &hosts, |hosts| {
//! #             Box::pin($name(hosts[0].clone(), hosts[1].clone()))
//! #         });
//! #     };
//! # }
//! use verbena::sim::Host;
//!
//! # run! {
//! #[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us, reorder=2%")]
//! async fn a_message_arrives_through_losses(left: Host, right: Host) {
//!     let receiver = right.spawn(async {
//!         let conn = verbena::listen("0.0.0.0:7000").await?.accept().await?;
//!         conn.recv().await
//!     });
//!     left.spawn(async {
//!         let conn = verbena::connect("right:7000").await?;
//!         conn.send_inline(b"hello").await?;
//!         conn.close().await
//!     });
//!     assert_eq!(&receiver.await.unwrap().unwrap()[..], b"hello");
//! }
//! # }
//! ```
//!
//! # How it works
//!
//! The crate has no thread for a connection. A thread that blocks in [`block_on`] or `wait` first
//! polls the sockets itself, for 50 to 200 us. Then it sleeps. While no thread polls, the process's
//! one engine thread receives packets and wakes tasks, with no lock held. A future leaves its waker
//! under the lock under which it looks, so no wake-up is lost. After a fork, the child's calls on
//! objects of its parent fail as [`Forked`](ErrorKind::Forked).
//!
//! The thread that brings a completion calls wakers, and the destructors of values of abandoned
//! operations. If one panics, the panic hook reports it, [`caught_panics`] counts it, and
//! everything else goes on. Nothing unwinds through the engine thread, another task's poll or a
//! [`scope`](QueuePair::scope). A waker's `clone` is called in the poll of its own future, and
//! unwinds there.
//!
//! # Feature flags
//!
//! - `software` (default): the stack linked in, [`Provider::software`].
//! - `sim` (default): the module [`sim`] and `#[verbena::test]`.
//! - `system`: `Provider::system`. The libraries are opened while the program runs. Alone
//!   (`default-features = false`), it compiles neither Verbena's host nor its connection manager.
//!   It does compile `verbena-nic` and `verbena-transport`, whose types this crate uses for work
//!   requests, completions and attributes. [`Provider::current`] then fails, and the module
//!   [`cm::raw`] is left out.
//! - `serde`: `Serialize` and `Deserialize` for [`RemoteMemory`] and [`UdAddress`].
//! - `tokio`: `AsyncRead`, `AsyncBufRead` and `AsyncWrite` of tokio for [`RdmaStream`]. The crate
//!   starts no runtime of tokio.
#![warn(missing_docs)]
#![deny(unsafe_code)]
#![cfg_attr(
    not(any(feature = "software", feature = "sim")),
    allow(dead_code, unused_variables, reason = "code of Verbena's own stack, which is not there")
)]

#[cfg(not(any(feature = "software", feature = "sim", feature = "system")))]
compile_error!("verbena has no provider: enable the feature `software`, `sim` or `system`");

extern crate self as verbena;

pub mod cm;
mod error;
mod exec;
#[expect(unsafe_code, reason = "buffers that requests read and write are lent to the stack here")]
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
#[cfg(any(feature = "software", feature = "system"))]
mod sleepers;
mod spawn;
mod stack;
mod stream;
#[expect(unsafe_code, reason = "Send and Sync that were proved are claimed here")]
mod thread_safe;
pub mod time;
pub mod ud;
pub mod verbs;

pub use cm::{
    Accept, ConnParam, Connect, Connection, FlowControl, Listen, Listener, Request, Resolve, RnrRetry, Route,
    connect, listen, resolve,
};
pub use error::{
    Error, ErrorKind, ExposeError, IntoPolledError, PostError, RejectReason, Rejection, Result, ReuniteError,
    RevokeError, UnsplitError, Value, WcStatus,
};
pub use exec::block_on;
pub use mem::*;
pub use op::{Completion, InFlight, Op, Ops, Placement};
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
/// zerocopy 0.8, whose traits [`Plain`] asks for.
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
