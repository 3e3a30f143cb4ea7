//! The state and the attributes of queue pairs (ibv_modify_qp(3), ibv_query_qp(3)).

use std::ffi::c_int;
use std::time::Instant;

use nic::{QpAttr, QpCap, QpState, Transport, mask};
use rdma_core_abi::verbs::{ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};
use wire::{Mtu, Psn, Qkey, Qpn};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::ah;
use crate::verbs::qp::object::Qp;

/// ibv_modify_qp(3): EINVAL for a transition, mask or value that IBA 1.4 §10.3 does not allow;
/// ENODATA for a `sgid_index` without a GID; EOPNOTSUPP for bits from IBV_QP_RATE_LIMIT on; ENODEV
/// for a parent's queue pair in a forked child. As in uverbs, an XRC queue pair ignores what only
/// the other half of its connection has ([`nic::QpType::ignores`]).
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(qp)?;
        // SAFETY: a queue pair of ours and attributes, by the man page's contract.
        let (ours, attr) = unsafe { (Qp::of(qp), &*attr) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let bits = standard(attr_mask)? & !ours.nic.init().kind.ignores();
        let modified = from_c(attr, bits).and_then(|attr| ours.nic.modify(Instant::now(), &attr, bits));
        modified.inspect_err(|why| checked::refusals::modify_refused(qp, why))?;
        if bits & mask::STATE != 0 {
            // SAFETY: as above.
            unsafe { (*qp).state = attr.qp_state };
            if attr.qp_state == QpState::Reset as u32 {
                checked::objects::pair_reset(qp);
            }
        }
        Ok(())
    })
}

/// The bits of a mask: EOPNOTSUPP for those that libibverbs hands to the extended command only,
/// which needs packet pacing.
fn standard(attr_mask: c_int) -> Result<u32, Errno> {
    let bits = attr_mask.cast_unsigned();
    if bits >= mask::RATE_LIMIT { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(bits) }
}

/// The attributes that `bits` name, checked for being values at all.
fn from_c(a: &ibv_qp_attr, bits: u32) -> Result<QpAttr, nic::Error> {
    use nic::Error::Invalid;
    let has = |bit| bits & bit != 0;
    let mut attr = QpAttr::default();
    if has(mask::STATE) {
        attr.state = QpState::from_code(a.qp_state).ok_or(Invalid("qp_state"))?;
    }
    if has(mask::CUR_STATE) {
        attr.cur_state = QpState::from_code(a.cur_qp_state).ok_or(Invalid("cur_qp_state"))?;
    }
    if has(mask::PATH_MTU) {
        attr.path_mtu = u8::try_from(a.path_mtu).ok().and_then(Mtu::from_code).ok_or(Invalid("path_mtu"))?;
    }
    if has(mask::AV) {
        attr.av = ah::from_c(&a.ah_attr);
        if attr.av.port != 1 {
            return Err(Invalid("ah_attr.port_num is not 1"));
        }
    }
    Ok(QpAttr {
        qkey: Qkey(a.qkey),
        rq_psn: Psn::new(a.rq_psn),
        sq_psn: Psn::new(a.sq_psn),
        dest_qpn: Qpn::new(a.dest_qp_num),
        access: a.qp_access_flags,
        pkey_index: a.pkey_index,
        max_rd_atomic: a.max_rd_atomic,
        max_dest_rd_atomic: a.max_dest_rd_atomic,
        min_rnr_timer: a.min_rnr_timer,
        port: a.port_num,
        timeout: a.timeout,
        retry_cnt: a.retry_cnt,
        rnr_retry: a.rnr_retry,
        path_mig_state: a.path_mig_state,
        en_sqd_async_notify: a.en_sqd_async_notify != 0,
        ..attr
    })
}

/// The attributes as C has them.
pub(crate) fn to_c(q: &QpAttr, cap: &QpCap) -> ibv_qp_attr {
    // SAFETY: integers and unions of bytes only.
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    a.qp_state = q.state as u32;
    a.cur_qp_state = q.cur_state as u32;
    a.path_mtu = q.path_mtu.code().into();
    a.path_mig_state = q.path_mig_state as _;
    a.qkey = q.qkey.0;
    a.rq_psn = q.rq_psn.get();
    a.sq_psn = q.sq_psn.get();
    a.dest_qp_num = q.dest_qpn.get();
    a.qp_access_flags = q.access;
    a.cap = cap_to_c(cap);
    a.ah_attr = ah::to_c(&q.av);
    a.pkey_index = q.pkey_index;
    a.max_rd_atomic = q.max_rd_atomic;
    a.max_dest_rd_atomic = q.max_dest_rd_atomic;
    a.min_rnr_timer = q.min_rnr_timer;
    a.port_num = q.port;
    a.timeout = q.timeout;
    a.retry_cnt = q.retry_cnt;
    a.rnr_retry = q.rnr_retry;
    a.sq_draining = q.sq_draining.into();
    a
}

fn cap_to_c(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// ibv_query_qp(3): everything, whatever the mask, which is a hint. EOPNOTSUPP for bits from
/// IBV_QP_RATE_LIMIT on; ENODEV for a parent's queue pair in a forked child.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let bits = standard(attr_mask)?;
        let init = ours.nic.init();
        let mut now = ours.nic.query();
        // A queue pair of iWARP begins idle: the kernel's siw names that state so.
        if now.state == QpState::Reset && ours.nic.device().config.transport == Transport::Iwarp {
            (now.state, now.cur_state) = (QpState::Init, QpState::Init);
        }
        // SAFETY: the caller's structures, and the queue pair as above.
        unsafe {
            *attr = to_c(&now, &init.cap);
            *init_attr = ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: cap_to_c(&init.cap),
                qp_type: (*qp).qp_type,
                sq_sig_all: init.sq_sig_all.into(),
            };
            if bits & mask::STATE != 0 {
                (*qp).state = (*attr).qp_state;
            }
        }
        Ok(())
    })
}
