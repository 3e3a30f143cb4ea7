//! The shared object that programs on a simulated host load as libibumad.so.3: the functions of
//! infiniband/umad.h over a fabric that `verbena fabric run` has.
//!
//! | module | what |
//! |---|---|
//! | [`abi`] | the structures of umad.h |
//! | `fabric_link` | questions to the process that has the fabric |
//! | [`device`] | devices and ports, as they are now |
//! | [`list`] | lists and pairs of devices |
//! | [`port`] | opening a port, agents |
//! | [`transfer`] | sending, receiving, waiting |
//! | [`message`] | the fields of a message |
//! | [`text`] | names of classes, methods, attributes and status values |
//!
//! An object of its own, as `librpma` is. symbols/umad.txt lists what is exported; each name is a
//! jump to the function of the same name here.
//!
//! A port's descriptor is a socket to the fabric, so that poll(2), select(2), epoll(7), dup(2) and
//! fork(2) do with it what they do with the kernel's. Results and errno are those of rdma-core 44,
//! except where a function says otherwise. When the fabric has ended nothing arrives any more: a
//! program waits, as it would at a dead port, and does not turn in circles.
//!
//! Each function is that of its manual page, umad_*(3), or else of umad.h. That pointers are what
//! these say is the safety contract of all of them. NULL is looked for wherever rdma-core does.
//! Nothing in here can panic: there is no indexing, no unwrapping and no arithmetic that overflows,
//! as clippy is told below. `extern "C-unwind"` are those that wait: a thread that is cancelled
//! there (pthread_cancel(3)) is unwound through them, so they own nothing that has a destructor.
#![expect(clippy::missing_safety_doc, reason = "one contract for all, above")]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

pub mod abi;
pub mod device;
mod fabric_link;
pub mod list;
pub mod message;
pub mod port;
pub mod text;
pub mod transfer;

// A program has no version nodes, so the tests of this crate do without the names.
#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));

/// Sets errno.
fn set_errno(errno: i32) {
    // SAFETY: the C library's errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
}
