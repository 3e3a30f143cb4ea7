//! The machine's own libibverbs.so.1 and librdmacm.so.1, opened by dlopen(3) while the program
//! runs, as safe objects that speak the types of `transport` and `nic`. Crate `verbena` runs over
//! it (`Provider::system`) on a real adapter, on the kernel's rdma_rxe, and over Verbena's own
//! shared object alike.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what lives there |
//! |---|---|
//! | [`libraries`] | which files, and whether they are Verbena itself; the table of functions |
//! | [`instance`] | [`System`]: what one pair of libraries has in this process |
//! | [`reactor`] | the thread that waits for completion channels and the event channel |
//! | [`device`] | [`Device`], [`Pd`] |
//! | [`device_memory`] | [`DeviceMemory`]; registrations of that and of dma-bufs |
//! | [`memory`] | [`Mr`], [`Words`](memory::Words) |
//! | [`cq`], [`srq`] | [`Cq`], with a completion channel of its own; [`Srq`] |
//! | [`qp`] | [`Qp`] |
//! | [`handle`] | [`Datagram`](handle::Datagram): where datagrams go |
//! | [`window`] | [`Mw`]: memory windows |
//! | [`posting`] | requests on their way into its queues |
//! | `extended` | FLUSH and ATOMIC WRITE, where library and device have them |
//! | `wr` | work requests and completions, between Rust and C |
//! | [`id`] | [`Id`]: an identifier of the connection manager |
//! | [`events`] | [`Event`], [`Inbox`]: what is told of identifiers |
//! | `multicast`, `options` | groups and options of an identifier |
//! | `sockaddr` | addresses between Rust and C |
//!
//! # What keeps what, and until when
//!
//! An object keeps what it was made from. Each C object lies under a lock, and is taken out to be
//! destroyed, so no thread uses one that is gone. What the libraries refuse to destroy stays, and
//! is counted ([`System::leaked`]). In a forked child nothing is called at all.
//!
//! Queue pairs are made by ibv_create_qp(3), not by rdma_create_qp(3), and moved by
//! rdma_init_qp_attr and ibv_modify_qp(3), as rdma_establish(3) describes it: so a queue pair
//! outlives its identifier, and its attributes are the crate's to say.
#![warn(missing_docs)]

pub mod cq;
pub mod device;
pub mod device_memory;
pub mod events;
mod extended;
pub mod handle;
pub mod id;
pub mod instance;
pub mod libraries;
pub mod memory;
mod multicast;
mod options;
pub mod posting;
pub mod qp;
pub mod reactor;
mod sockaddr;
pub mod srq;
pub mod window;
mod wr;

pub use cq::Cq;
pub use device::{Device, Pd};
pub use device_memory::DeviceMemory;
pub use events::{Event, Inbox};
pub use id::Id;
pub use instance::System;
pub use libraries::{Files, OpenError};
pub use memory::Mr;
pub use posting::Refusal;
pub use qp::{Qp, Sizes};
pub use srq::Srq;
pub use window::Mw;

/// What the connection manager says: 0, or -1 and errno.
fn minus_one(result: std::ffi::c_int) -> Result<(), nic::Error> {
    if result == 0 { Ok(()) } else { Err(nic::Error::System(nic::Errno::last())) }
}

/// What verbs say: 0 or an errno; some say -1 and errno.
fn number(result: std::ffi::c_int) -> Result<(), nic::Error> {
    match result {
        0 => Ok(()),
        errno if errno > 0 => Err(nic::Error::System(nic::Errno(errno))),
        _ => Err(nic::Error::System(nic::Errno::last())),
    }
}

/// A C object, or why there is none.
fn object<T>(made: *mut T) -> Result<std::ptr::NonNull<T>, nic::Error> {
    std::ptr::NonNull::new(made).ok_or_else(|| nic::Error::System(nic::Errno::last()))
}
