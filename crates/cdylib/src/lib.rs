//! The shared object that programs load as libibverbs.so.1 and librdmacm.so.1, two links to one
//! file: every symbol of the two with its version node, each a jump into `capi`; and `sigaction`,
//! `signal` and `ioctl` with the C library's node, so that they stand in front of its own
//! (`capi::signals`, `capi::ioctl`).
//!
//! | file | what |
//! |---|---|
//! | `symbols/ibverbs.txt`, `rdmacm.txt`, `signals.txt` | what is exported: symbol and version node |
//! | `symbols/built.txt` | the symbols that are built, each with the module of `capi` that has its function |
//! | `symbols/unsupported.txt` | the others, each with the function of `capi::unsupported` that answers for it |
//! | `symbols/hot.txt` | the functions that programs run again and again, which lie together in the object; `symbols/hot` writes it |
//! | `build.rs` | makes the trampolines below, the version script and the order of the functions of these |
//!
//! A program's call of `ibv_create_qp` reaches `ibv_create_qp@@IBVERBS_1.1`, the label of a
//! trampoline: one jump, which touches no register and no stack, to
//! `capi::verbs::qp::ibv_create_qp`. A symbol of two versions has two trampolines
//! and two functions. A `.symver` must stand in the codegen unit of the symbol it names, hence one
//! `global_asm!` for all.

/// What is allocated in here: `exit` may be called while the C library's heap is locked.
#[global_allocator]
static HEAP: capi::ExitHeap = capi::ExitHeap;

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
