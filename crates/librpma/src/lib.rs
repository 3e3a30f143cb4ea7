//! The shared object that programs load as librpma.so.0: the functions of librpma.h, over the C
//! functions of libibverbs.so.1 and librdmacm.so.1, which are the system's or, under `verbena run`,
//! Verbena's.
//!
//! | module | what |
//! |---|---|
//! | [`stack`] | the functions of the two libraries, found when the first is wanted |
//! | [`codes`] | the error codes, their texts, and how a function fails |
//! | [`log`] | thresholds, the program's function, syslog(3) and stderr |
//! | [`object`] | memory of an object's own, which may not be there |
//! | [`utils`] | devices by address |
//! | [`peer`], [`peer_cfg`] | a device with a protection domain; what it says of itself to others |
//! | [`mr`] | regions, and their descriptors |
//! | [`conn_cfg`] | what a connection is to be like |
//! | [`ep`], [`conn_req`], [`conn`] | listening; requests; connections and their events |
//! | [`op`] | reading, writing, flushing, messages |
//! | [`cq`], [`srq`], [`srq_cfg`] | completion queues; shared receive queues |
//!
//! An object of its own, as Debian's is, and no part of libverbena_rdma.so: a program that has that
//! one first among its libraries would get these functions from it, whichever librpma.so.0 it asked
//! for. symbols/rpma.txt lists what is exported; each name is a jump to the function of the
//! same name here.
//!
//! The library is as thin as upstream's. An operation is one call of the queue pair's own function,
//! with a work request on the stack; a completion is what ibv_poll_cq(3) gives. There is no lock,
//! no thread and no allocation on the data path, and what two threads may do at once is what
//! libibverbs allows them (upstream's THREAD_SAFETY.md). What Debian's librpma 1.2.0 answers, this
//! answers: docs/rpma-wire.md has the exceptions.
//!
//! Each function is the manual page's of its name, rpma_*(3), which says what it does, what it asks
//! of its caller, and how it fails: that pointers are what the page says is the safety contract of
//! all of them. NULL is looked for wherever the page does. Nothing in here can panic: there is no
//! indexing, no unwrapping and no arithmetic that overflows, as clippy is told below. `extern
//! "C-unwind"` are those that block: a thread that is cancelled there (pthread_cancel(3)) is
//! unwound through them, so they own nothing that has a destructor.
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

pub mod codes;
pub mod conn;
pub mod conn_cfg;
pub mod conn_req;
pub mod cq;
pub mod ep;
pub mod log;
pub mod mr;
pub mod object;
pub mod op;
pub mod peer;
pub mod peer_cfg;
pub mod srq;
pub mod srq_cfg;
pub mod stack;
pub mod utils;

// A program has no version nodes, so the tests of this crate do without the names.
#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
