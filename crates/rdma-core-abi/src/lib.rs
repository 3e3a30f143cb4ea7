//! The C ABI of rdma-core as Rust types: what C programs that were compiled against
//! `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>` expect to find in memory. Types and constants
//! only; the functions are elsewhere.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | header |
//! |---|---|
//! | [`verbs`] | `<infiniband/verbs.h>`: one file a subject, under the header's names |
//! | [`cma`] | `<rdma/rdma_cma.h>` |
//! | [`sa`] | `<infiniband/sa.h>`: path records |
//!
//! Crate `capi` reads and writes these structures where a program's pointer leads to one; no other
//! crate knows them.
//!
//! Names are the C names. An `enum` is an integer type with constants, because a C program may put
//! any value there. Anonymous unions have a name here (`ibv_wc::imm`, `rdma_addr::src`); all else
//! is called as in C. A function pointer that C programs may find empty is an `Option`.
//!
//! The layouts are those of rdma-core 65, which programs compiled against 44 (Debian 12) share:
//! structs that grew since did so at the end, and travel with their size; [`verbs::verbs_context`]
//! grew at its front. `tests/layout.rs` asks the C compiler where the headers are installed, and
//! the sizes below are checked everywhere.
#![expect(non_camel_case_types, reason = "the C names")]

pub mod cma;
pub mod sa;
pub mod verbs;

/// A `__be16`: 16 bits in network byte order.
pub type be16 = u16;
/// A `__be32`: 32 bits in network byte order.
pub type be32 = u32;
/// A `__be64`: 64 bits in network byte order.
pub type be64 = u64;

/// Sizes on every 64-bit Linux with glibc whose mutex has 40 bytes and whose condition variable has
/// 48.
#[cfg(all(target_arch = "x86_64", target_env = "gnu", target_pointer_width = "64"))]
mod sizes {
    use crate::{cma::*, verbs::*};
    use std::mem::{offset_of, size_of};

    macro_rules! sizes {
        ($($t:ty = $size:literal),* $(,)?) => { $(const _: () = assert!(size_of::<$t>() == $size);)* };
    }
    sizes! {
        ibv_device = 664,
        ibv_context_ops = 256,
        ibv_context = 328,
        verbs_context = 696,
        ibv_pd = 16,
        ibv_mr = 48,
        ibv_cq = 128,
        ibv_cq_ex = 288,
        ibv_srq = 128,
        ibv_qp = 160,
        ibv_qp_ex = 360,
        ibv_ah = 24,
        ibv_comp_channel = 16,
        ibv_wc = 48,
        ibv_sge = 16,
        ibv_send_wr = 128,
        ibv_recv_wr = 32,
        ibv_qp_attr = 144,
        ibv_qp_init_attr = 64,
        ibv_qp_init_attr_ex = 136,
        ibv_device_attr = 232,
        ibv_device_attr_ex = 400,
        ibv_port_attr = 56,
        ibv_gid_entry = 32,
        ibv_async_event = 16,
        ibv_ah_attr = 32,
        rdma_cm_id = 416,
        rdma_route = 312,
        rdma_addr = 296,
        rdma_cm_event = 80,
        rdma_conn_param = 24,
        rdma_ud_param = 56,
        rdma_addrinfo = 96,
    }

    // The header finds the function table from the context, and `sz` stands directly before it.
    const _: () = assert!(offset_of!(verbs_context, context) - offset_of!(verbs_context, sz) == 8);
    const _: () =
        assert!(size_of::<verbs_context>() == offset_of!(verbs_context, context) + size_of::<ibv_context>());
    // Programs cast between the two kinds of completion queue, and between the two kinds of queue
    // pair.
    const _: () = assert!(offset_of!(ibv_cq_ex, comp_mask) >= offset_of!(ibv_cq, async_events_completed) + 4);
    const _: () = assert!(offset_of!(ibv_qp_ex, qp_base) == 0);
}
