//! The C functions of libibverbs and librdmacm: they convert, call, and set errno.
//!
//! Each is a `pub unsafe extern "C" fn` without `no_mangle`: the shared object of `verbena-lib` gives them their names
//! and versions through trampolines, and this crate stays linkable into programs that link rdma-core. What a function
//! does, and what it asks of its caller, is its man page's; that the pointers are what the man page says is the safety
//! contract of all of them.
//!
//! To build a function: write it in the module of its subject, and move its name from
//! `crates/lib/symbols/unbuilt.txt` to `built.txt` beside it.
#![allow(clippy::missing_safety_doc)] // one contract for all, above

pub mod cma;
pub mod ffi_guard;
pub mod signals;
pub mod unsupported;
pub mod verbs;

// The process's one instance and its descriptors are `host`'s, so that Rust code in the same program uses them too.
use host::{eventfd, per_process, process as instance};
