//! The shared object that programs load as libibverbs.so.1 and librdmacm.so.1, two links to one file:
//! every symbol of the two with its version node, each a jump into `capi`; and `sigaction` and `signal` with the C library's node, so
//! that they stand in front of its own (`capi::signals`).
//!
//! What is exported stands in `symbols/`; `build.rs` makes of it the trampolines below and the version script.
//! A `.symver` must stand in the codegen unit of the symbol it names, hence one `global_asm!` for all.

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
