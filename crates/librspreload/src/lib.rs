//! The shared object that `verbena run --rsockets` preloads: functions of sockets(7) that stand in
//! front of the C library's and take byte streams over IP to rsockets (rsocket(7)), the functions
//! of librdmacm.so.1.
//!
//! A descriptor of the program is an ordinary TCP socket, with an rsocket beside it. A connection
//! goes by RDMA where the peer has an rsocket there, else by TCP. A listener takes both.
//!
//! | module | what |
//! |---|---|
//! | [`real`] | the C library's functions, found behind this object |
//! | [`rdma`] | librdmacm's functions, found when the first socket is made |
//! | [`table`] | which descriptor has an rsocket |
//! | [`rules`] | which sockets get one |
//! | [`sockets`], [`closing`] | from socket(2) to close(2) |
//! | [`connecting`], [`connector`] | connect(2): by RDMA, else by TCP; one that does not wait |
//! | [`forks`] | fork(2): what a child has of its parent's |
//! | [`lending`], [`relay`] | streams that another process uses by an ordinary socket |
//! | [`passing`] | descriptors that go to other processes, or past this object |
//! | [`bytes`] | the families of read(2), write(2), recv(2), send(2) |
//! | [`waits`] | poll(2), select(2) |
//! | [`sets`] | epoll(7) |
//! | [`copies`] | dup(2) and fcntl(2), ioctl(2) |
//!
//! Each function is the manual page's of its name, with the page's contract for pointers, which is
//! the safety contract of all of them. What concerns no rsocket goes to the C library unchanged.
//! `extern "C-unwind"`: a thread may be cancelled in the C library's function, which unwinds
//! through these.
#![expect(clippy::missing_safety_doc, reason = "one contract for all, above")]

pub mod bytes;
pub mod closing;
pub mod connecting;
pub mod connector;
pub mod copies;
pub mod forks;
pub mod lending;
pub mod passing;
pub mod rdma;
pub mod real;
pub mod relay;
pub mod rules;
pub mod sets;
pub mod sockets;
pub mod table;
pub mod waits;

use std::ffi::c_int;

/// Writes an errno where C looks for it; -1.
pub(crate) fn failed(errno: c_int) -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
