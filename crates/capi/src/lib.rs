//! The C functions of libibverbs and librdmacm: they convert, call, and set errno.
//!
//! | module | what |
//! |---|---|
//! | [`verbs`] | libibverbs, in folders by object |
//! | [`cma`] | librdmacm |
//! | `checked` | `verbena run --check`: the calls of a program told to the checker |
//! | [`unsupported`] | the answers of functions that are exported and not built |
//! | [`ioctl`] | `ioctl`, so that peers do not reach memory that is watched |
//! | [`signals`] | `sigaction` and `signal`, so that the handler which guards registered memory stays |
//! | `waiting` | how a thread waits for an event |
//! | [`ffi_guard`] | what every function passes through: a panic becomes its failure |
//!
//! A call comes from a trampoline of the shared object (`verbena-cdylib`), as `ibv_create_qp` does,
//! or through the function tables of a context, which `verbs::device::open` fills, as
//! `ibv_post_send` does: there it is an inline function of the header. It passes `ffi_guard`, finds
//! the object behind the C structure (an `object` module's `of`), which shares the adapter's of
//! crate `nic`, and calls that; librdmacm's calls go to `node` likewise. What they refuse is a
//! [`nic::Errno`], which `ffi_guard` hands to the caller as the man page says: set, returned, or
//! both. The process's one engine, and what belongs to it (`linux::process`), is made at the first
//! call that needs a device, never by loading the library.
//!
//! Each is a `pub unsafe extern "C" fn` without `no_mangle`: the shared object gives them their
//! names and versions, and this crate stays linkable into programs that link rdma-core. What a
//! function does, and what it asks of its caller, is its man page's, which its doc names first;
//! that the pointers are what the man page says is the safety contract of all of them. Where
//! behaviour is known to be another than rdma-core's or the kernel's, the doc says "Unlike"; the
//! whole list is guide/src/deviations.md.
//!
//! To build a function: write it in the module of its object, re-export it from the folder's
//! `mod.rs`, and move its name from `crates/cdylib/symbols/unsupported.txt` to `built.txt` beside
//! it; one of a function table goes into `verbs::device::open` instead.
#![expect(clippy::missing_safety_doc, reason = "one contract for all, above")]

mod checked;
pub mod cma;
pub mod ffi_guard;
pub mod ioctl;
pub mod rsocket;
pub mod signals;
pub mod unsupported;
pub mod verbs;
mod waiting;

pub use linux::process::ExitHeap;
// The process's one instance and its descriptors are `host`'s, so that Rust code in the same
// program uses them too.
use linux::{eventfd, process as instance};
