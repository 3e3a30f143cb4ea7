//! Memory: what may look at it, and when.
//!
//! | type | peers may | we see | operations |
//! |---|---|---|---|
//! | [`RegBuf`] | nothing | `&mut [u8]`, exclusively | send, write, read into, receive into |
//! | [`RegBytes`] | nothing | `&[u8]`, shared | send, write; many at once |
//! | [`RegBox<T>`] | nothing | `&mut T` | as `RegBuf` |
//! | [`Exposed`] | what the window grants, the peer of one connection | [`SharedSlice`] | none |
//! | [`Memory<RemoteRead>`] | READ | `&[u8]`, frozen | send, write |
//! | [`Memory<RemoteWrite>`] | READ, WRITE, atomics, FLUSH | [`SharedSlice`]: copies, atomics | all |
//! | [`Memory<Opaque>`] | the same, not FLUSH to persistence | nothing; copies of a device's | all |
//!
//! All memory is initialised before it is seen: zeros, a copy, or a file.
//!
//! # Why each access is sound
//!
//! The adapter copies between packets and registered memory in threads of its own, by raw pointers.
//! A key says where, and what it may do there: it reads what a work request or a peer with the
//! right to READ names, it writes where a receive, a READ or a peer with the right to WRITE says.
//! So for each kind of memory: what names it, and what references are there meanwhile?
//!
//! - **Pools.** No peer has a right. Work requests are made of an [`IoBuf`] by value, and the queue
//!   pair keeps the value until the adapter is done (the completion was polled, or the queue pair
//!   is gone); both go through locks, so what either side did is before what the other does next.
//!   - A [`RegBuf`] is the only handle that names its bytes: `split_to` cuts its range in two,
//!     `unsplit` joins neighbours, each by value or `&mut`. Code that can make a `&mut [u8]` of it
//!     has it, so no operation does.
//!   - [`RegBytes`] share their bytes, and nothing writes: they are no [`IoBufMut`], and a `RegBuf`
//!     comes back out of one only where the count of pieces says that it is the last of its whole
//!     buffer.
//!   - A buffer is given again when that count is 0; the count goes down with Release and is read
//!     with Acquire, as that of an `Arc`.
//! - **Exposed.** A buffer under a window is no [`RegBuf`] meanwhile; it becomes one again when
//!   the window is gone, and is never given again where that fails.
//! - **Frozen.** Each registration of a `Memory<RemoteRead>` is without a right to write, whatever
//!   names it; after it was filled, before other code had it, none has a pointer to write by.
//!   `&[u8]` and reading adapters go together.
//! - **Shared.** Of a `Memory<RemoteWrite>` there is never a reference but to atomics of eight
//!   bytes, and no access of this process of another size: see `shared`. Any side may write at any
//!   time. A simulated host's files are atomics of its simulation.
//! - **Opaque.** Memory of a device, and dma-bufs, have no place that this process knows, but over
//!   Verbena's own stack, where they are the process's: then as shared, and copied by words.
//! - **Borrowed.** A [`scope`](crate::QueuePair::scope) registers what it borrows for one
//!   operation, without a right to write where the borrow is shared, and does not end before the
//!   operation is complete.
//! - **Freed.** A registration keeps its chunk and ends first: its key is taken back, copies under
//!   way are waited for, then the chunk is freed. Where the system does not take the key back the
//!   chunk is never freed. In a forked child nothing is taken back or freed: the registrations are
//!   the parent's, and a lock may be held by a thread that is not there.
//! - **Leaks.** A forgotten handle keeps its count, so its bytes are never given again.
//!
//! | file | story |
//! |---|---|
//! | `chunk`, `region` | where bytes are; their registration in a domain, under an address of our choice |
//! | `pool`, `buf`, `reg_box` | memory that is ours alone |
//! | `memory`, `shared`, `access` | memory that peers reach; looking at it; rights |
//! | `opaque` | memory that is not the processor's |
//! | `persist` | memory that outlives its process |
//! | `io_buf` | what operations take |
//! | `window` | a buffer that one peer reaches for a while |
//! | `borrowed` | bytes that a scope has borrowed |

mod access;
mod borrowed;
mod buf;
mod chunk;
mod io_buf;
mod memory;
mod opaque;
mod persist;
mod pool;
mod reg_box;
mod region;
mod shared;
#[cfg(all(test, feature = "sim"))]
mod tests;
mod window;

pub use access::{Access, Opaque, Plain, RemoteRead, RemoteWrite, Rights};
pub(crate) use borrowed::Borrowed;
pub use buf::{RegBuf, RegBytes};
pub use io_buf::{IoBuf, IoBufMut, SgeList};
pub use memory::{Memory, Mr, Part};
pub use pool::Pool;
pub use reg_box::RegBox;
pub(crate) use region::FIRST_IOVA;
pub use shared::SharedSlice;
pub use window::Exposed;
