//! Receive queues that several connections share (rpma_srq_new(3)).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use rdma_core_abi::verbs::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use crate::codes::{Result, answer, errno_of, made, require};
use crate::cq::{self, Cq};
use crate::mr::MrLocal;
use crate::object::{end, make, of, put, take};
use crate::op;
use crate::peer::Peer;
use crate::srq_cfg::SrqCfg;
use crate::stack::Calls;

/// `struct rpma_srq`.
pub struct Srq {
    calls: &'static Calls,
    /// The queue.
    pub srq: *mut ibv_srq,
    /// Where its completions come, or NULL.
    pub rcq: *mut Cq,
}

/// rpma_srq_new(3).
pub unsafe extern "C" fn rpma_srq_new(peer: *mut Peer, cfg: *mut SrqCfg, srq: *mut *mut Srq) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { new(peer, cfg, srq) })
}

/// # Safety
///
/// That of the function above.
unsafe fn new(peer: *const Peer, cfg: *const SrqCfg, out: *mut *mut Srq) -> Result<()> {
    const NEW: &CStr = c"rpma_srq_new";
    // SAFETY: as the caller says.
    let peer = unsafe { of(peer) }?;
    require(!out.is_null())?;
    // SAFETY: likewise.
    let (rq_size, rcq_size) = unsafe { SrqCfg::sizes(cfg) };
    let new = make(Srq { calls: peer.calls, srq: null_mut(), rcq: null_mut() })?;
    let attr = ibv_srq_attr { max_wr: rq_size, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
    // SAFETY: the domain lives, and what is made of it; `new` is no other thread's until it is
    // handed over.
    unsafe {
        let done = made(NEW, "ibv_create_srq", (peer.calls.ibv_create_srq)(peer.pd, &raw mut init)).and_then(
            |srq| {
                (*new).srq = srq;
                if rcq_size > 0 {
                    (*new).rcq = cq::new(peer.calls, NEW, (*peer.pd).context, rcq_size, null_mut())?;
                }
                put(out, new)
            },
        );
        if done.is_err() {
            if !(*new).srq.is_null() {
                (peer.calls.ibv_destroy_srq)((*new).srq);
            }
            end(new);
        }
        done
    }
}

/// rpma_srq_delete(3).
pub unsafe extern "C" fn rpma_srq_delete(srq: *mut *mut Srq) -> c_int {
    const DELETE: &CStr = c"rpma_srq_delete";
    // SAFETY: the crate's contract.
    answer(unsafe { take(srq) }.and_then(|srq| {
        if srq.is_null() {
            return Ok(());
        }
        // SAFETY: likewise: no thread uses it any more.
        unsafe {
            let rcq = cq::delete(DELETE, (*srq).rcq);
            let result = errno_of(DELETE, "ibv_destroy_srq", ((*srq).calls.ibv_destroy_srq)((*srq).srq));
            end(srq);
            rcq.and(result)
        }
    }))
}

/// rpma_srq_get_rcq(3).
pub unsafe extern "C" fn rpma_srq_get_rcq(srq: *const Srq, rcq: *mut *mut Cq) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(srq).and_then(|srq| put(rcq, srq.rcq)) })
}

/// rpma_srq_recv(3).
pub unsafe extern "C" fn rpma_srq_recv(
    srq: *mut Srq,
    dst: *mut MrLocal,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(srq) }.and_then(|srq| {
        // SAFETY: the queue, and so its context, live.
        let post = unsafe { (*(*srq.srq).context).ops.post_srq_recv };
        // SAFETY: likewise; verbs.h calls this function.
        unsafe {
            op::receive(c"rpma_srq_recv", "ibv_post_srq_recv", dst, offset, len, op_context, |wr, bad| {
                post.map_or(libc::EOPNOTSUPP, |post| post(srq.srq, wr, bad))
            })
        }
    }))
}
