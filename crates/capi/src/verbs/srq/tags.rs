//! The list of tags of a tag-matching queue (ibv_post_srq_ops(3)), through the context's table.

use std::ffi::c_int;

use nic::{TagOp, TagWr};
use rdma_core_abi::verbs::{self as v, ibv_ops_wr, ibv_srq};
use transport::op::RecvWr;

use crate::ffi_guard::{self, Errno};
use crate::verbs::qp::request;
use crate::verbs::srq::object::Srq;

/// An operation on the list of tags.
///
/// # Safety
///
/// As ibv_post_srq_ops(3) describes it.
unsafe fn tag_wr(wr: &ibv_ops_wr) -> Result<TagWr, Errno> {
    let flags = wr.flags.cast_unsigned();
    if flags & !(v::IBV_OPS_SIGNALED | v::IBV_OPS_TM_SYNC) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let op = match wr.opcode {
        v::IBV_WR_TAG_ADD => {
            let add = &wr.tm.add;
            // SAFETY: as the caller says.
            let sges = request::list(unsafe { request::elements(add.sg_list, add.num_sge)? });
            let receive = RecvWr { wr_id: add.recv_wr_id, sges };
            TagOp::Add { receive, tag: add.tag, mask: add.mask }
        }
        v::IBV_WR_TAG_DEL => TagOp::Delete(wr.tm.handle),
        v::IBV_WR_TAG_SYNC => TagOp::Sync,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let handled = (flags & v::IBV_OPS_TM_SYNC != 0).then_some(wr.tm.unexpected_cnt);
    Ok(TagWr { wr_id: wr.wr_id, op, handled, signaled: flags & v::IBV_OPS_SIGNALED != 0 })
}

/// ibv_post_srq_ops(3), through the context's table: takes the list in order, each operation is
/// done at once; where one is refused, `bad_wr` names it and those before it are done. EINVAL for a
/// queue without tags, an opcode or flag that is not known, too many elements; ENOMEM for a full
/// list; ENODEV for a parent's queue in a forked child.
pub(crate) unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    wr: *mut ibv_ops_wr,
    bad_wr: *mut *mut ibv_ops_wr,
) -> c_int {
    ffi_guard::or_errno(|| {
        let mut at = wr;
        while !at.is_null() {
            // SAFETY: a queue of ours and a list of requests, by the man page's contract.
            let posted = unsafe {
                Srq::usable(srq).and_then(|ours| Ok(ours.nic.post_tag_op(tag_wr(&*at)?)?)).map(|handle| {
                    if let Some(handle) = handle {
                        (*at).tm.handle = handle;
                    }
                })
            };
            if let Err(e) = posted {
                // SAFETY: the caller's variable.
                unsafe { *bad_wr = at };
                return Err(e);
            }
            // SAFETY: as above.
            at = unsafe { (*at).next };
        }
        Ok(())
    })
}
