//! What the inline functions of libibverbs 1.0 call.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_core_abi::verbs::{self as v, ibv_recv_wr, ibv_send_wr, ibv_wc};

use crate::ffi_guard::{self, Errno};
use crate::verbs::abi_1_0::layout::{Ah, Cq, Qp, RecvWr, SendWr, Srq};

/// The call of a context's table, which `verbs::device::open` has filled.
fn built<T>(call: Option<T>) -> Result<T, Errno> {
    call.ok_or(Errno(libc::EOPNOTSUPP))
}

/// ibv_poll_cq(3) as the header of 1.0 calls it.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut Cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: objects of ours, by the man page's contract.
    ffi_guard::or_minus_one(|| unsafe {
        let poll = built((*(*(*cq).context).real).ops.poll_cq)?;
        Ok(poll((*cq).real, n, wc))
    })
}

/// ibv_req_notify_cq(3) as the header of 1.0 calls it.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited: c_int) -> c_int {
    // SAFETY: objects of ours, by the man page's contract.
    ffi_guard::or(libc::EIO, || unsafe {
        let arm = built((*(*(*cq).context).real).ops.req_notify_cq)?;
        Ok(arm((*cq).real, solicited))
    })
}

/// A list of requests in the new form, and the old one of each.
struct List<N, O> {
    new: Vec<N>,
    old: Vec<*mut O>,
}

impl<N, O> List<N, O> {
    /// # Safety
    ///
    /// A list as `next` walks it, ending in NULL.
    unsafe fn of(first: *mut O, next: impl Fn(&O) -> *mut O, convert: impl Fn(&O) -> N) -> Self {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        let mut at = first;
        // SAFETY: as the caller says.
        while let Some(wr) = unsafe { at.as_ref() } {
            new.push(convert(wr));
            old.push(at);
            at = next(wr);
        }
        Self { new, old }
    }

    /// The old request of a new one of this list.
    fn old_of(&self, new: *const N) -> *mut O {
        let at = (new.addr().wrapping_sub(self.new.as_ptr().addr())) / size_of::<N>();
        self.old.get(at).copied().unwrap_or(null_mut())
    }
}

fn receive(wr: &RecvWr) -> ibv_recv_wr {
    ibv_recv_wr { wr_id: wr.wr_id, next: null_mut(), sg_list: wr.sg_list, num_sge: wr.num_sge }
}

/// Posts receives in the new form by `post`, and names the old one that was bad.
///
/// # Safety
///
/// A list of the caller's, ending in NULL, and its variable.
unsafe fn post_receives(
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> c_int {
    // SAFETY: as the caller says.
    let mut list = unsafe { List::of(wr, |wr| wr.next, receive) };
    for i in 1..list.new.len() {
        list.new[i - 1].next = &raw mut list.new[i];
    }
    let mut new_bad = null_mut();
    let code = post(list.new.as_mut_ptr(), &raw mut new_bad);
    if code != 0 {
        // SAFETY: as the caller says.
        unsafe { *bad = list.old_of(new_bad) };
    }
    code
}

/// ibv_post_recv(3) as the header of 1.0 calls it: `bad` names the old request that was refused.
pub(super) unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: objects of ours and the caller's list, by the man page's contract.
    ffi_guard::or(libc::EIO, || unsafe {
        let post = built((*(*(*qp).context).real).ops.post_recv)?;
        Ok(post_receives(wr, bad, |list, new_bad| post((*qp).real, list, new_bad)))
    })
}

/// ibv_post_srq_recv(3) as the header of 1.0 calls it: `bad` names the old request that was
/// refused.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: objects of ours and the caller's list, by the man page's contract.
    ffi_guard::or(libc::EIO, || unsafe {
        let post = built((*(*(*srq).context).real).ops.post_srq_recv)?;
        Ok(post_receives(wr, bad, |list, new_bad| post((*srq).real, list, new_bad)))
    })
}

/// ibv_post_send(3) as the header of 1.0 calls it: `bad` names the old request that was refused.
pub(super) unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    // SAFETY: objects of ours and the caller's list, by the man page's contract.
    ffi_guard::or(libc::EIO, || unsafe {
        let post = built((*(*(*qp).context).real).ops.post_send)?;
        let datagrams = (*qp).qp_type == v::IBV_QPT_UD;
        let convert = |wr: &SendWr| {
            // SAFETY: integers, pointers and unions of them.
            let mut new: ibv_send_wr = std::mem::zeroed();
            (new.wr_id, new.sg_list, new.num_sge) = (wr.wr_id, wr.sg_list, wr.num_sge);
            (new.opcode, new.send_flags) = (wr.opcode, wr.send_flags);
            new.imm.imm_data = wr.imm_data;
            new.wr = wr.wr;
            if datagrams {
                // SAFETY: a datagram's request has an old address handle, by the man page's
                // contract.
                if let Some(ah) = new.wr.ud.ah.cast::<Ah>().as_ref() {
                    new.wr.ud.ah = ah.real;
                }
            }
            new
        };
        let mut list = List::of(wr, |wr| wr.next, convert);
        for i in 1..list.new.len() {
            list.new[i - 1].next = &raw mut list.new[i];
        }
        let mut new_bad = null_mut();
        let code = post((*qp).real, list.new.as_mut_ptr(), &raw mut new_bad);
        if code != 0 {
            *bad = list.old_of(new_bad);
        }
        Ok(code)
    })
}
