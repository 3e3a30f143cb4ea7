//! Extended completion queues (ibv_create_cq_ex(3)): completions are read one at a time, each field
//! by a call of its own. Between `start_poll` and `end_poll` a queue belongs to one thread.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use rdma_core_abi::verbs::{
    self as v, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info,
};
use transport::op::TagInfo;

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::create::{self, CqInit};
use crate::verbs::cq::object::Cq;
use crate::verbs::cq::poll;
use crate::verbs::cq::reader::Reader;

/// The fields that a queue may be asked to report. There are no VLAN tags or flow tags here.
const KNOWN_FIELDS: u64 = (v::IBV_WC_STANDARD_FLAGS
    | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
    | v::IBV_WC_EX_WITH_TM_INFO) as u64;
const STAMPS: u64 =
    (v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// ibv_create_cq_ex(3), through the context's table. errno: EINVAL for `cqe` or `comp_vector` out
/// of range or masks that are not known; EOPNOTSUPP for `wc_flags` beyond the standard ones, the
/// two timestamps and the tag; ENOMEM at the limit.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    ffi_guard::or_null(|| {
        // SAFETY: the caller's structure, by the man page's contract.
        let attr = unsafe { &*attr };
        if attr.comp_mask & !(v::IBV_CQ_INIT_ATTR_MASK_FLAGS | v::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let given = |bit| attr.comp_mask & bit != 0;
        let flags = if given(v::IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        if flags & !(v::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | v::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr.wc_flags & !KNOWN_FIELDS != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let domain =
            if given(v::IBV_CQ_INIT_ATTR_MASK_PD) { attr.parent_domain } else { std::ptr::null_mut() };
        if given(v::IBV_CQ_INIT_ATTR_MASK_PD) && domain.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let init = CqInit {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            stamped: attr.wc_flags & STAMPS != 0,
            ignore_overrun: flags & v::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            tells_tags: attr.wc_flags & u64::from(v::IBV_WC_EX_WITH_TM_INFO) != 0,
            reader: Reader::new(flags & v::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0),
            domain,
        };
        // SAFETY: objects of ours, by the man page's contract.
        unsafe { create::create(context, init, set_functions) }.map(|cq| cq.cast())
    })
}

/// Fills the table. A field that was not asked for reads as zero, where a program asks for it all
/// the same.
fn set_functions(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_dlid_path_bits);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    c.read_cvlan = Some(read_cvlan);
    c.read_flow_tag = Some(read_flow_tag);
    c.read_tm_info = Some(read_tm_info);
    if checked::is_on() {
        checked::steps::set_poll_functions(c);
    }
}

/// Makes the oldest completion the current one: 0, ENOENT where there is none, ENODEV in a forked
/// child, EINVAL for a queue that was overrun.
///
/// # Safety
///
/// A queue of ours, taken by this thread.
unsafe fn advance(current: *mut ibv_cq_ex, ours: &Cq) -> Result<(), Errno> {
    let (completion, stamp) = ours.instance.host.poll_cq_one(&ours.nic)?.ok_or(Errno(libc::ENOENT))?;
    // SAFETY: as the caller says.
    unsafe {
        (*current).wr_id = completion.wr_id;
        (*current).status = completion.status as u32;
    }
    ours.reader.current.set(poll::convert(&completion, ours.connection_flags));
    ours.reader.stamp.set(stamp);
    let TagInfo { tag, app_ctx, .. } = completion.tm;
    ours.reader.tm.set(ibv_wc_tm_info { tag, priv_: app_ctx });
    Ok(())
}

/// `ibv_start_poll`, ibv_create_cq_ex(3): on success the queue belongs to this thread until
/// `ibv_end_poll`.
pub(crate) unsafe extern "C" fn start_poll(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    quietly(|| {
        // SAFETY: a queue of ours and the caller's structure or NULL, by the man page's contract.
        let (ours, mask) =
            unsafe { (Cq::of(current.cast()), if attr.is_null() { 0 } else { (*attr).comp_mask }) };
        if mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        if !ours.reader.single_threaded {
            // SAFETY: the queue's own mutex, initialized with it.
            unsafe { libc::pthread_mutex_lock(&raw mut (*current).mutex) };
        }
        ours.reader.polling.store(true, Ordering::Relaxed);
        // SAFETY: taken just now.
        let found = unsafe { advance(current, ours) };
        if found.is_err() {
            // SAFETY: as above.
            unsafe { give_back(current, ours) };
        }
        found
    })
}

/// `ibv_next_poll`, ibv_create_cq_ex(3): ENOENT where there is no more; the queue stays taken.
pub(crate) unsafe extern "C" fn next_poll(current: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a queue of ours, taken by this thread, by the man page's contract.
    quietly(|| unsafe { advance(current, Cq::of(current.cast())) })
}

/// `ibv_end_poll`, ibv_create_cq_ex(3): nothing where no poll has begun.
unsafe extern "C" fn end_poll(current: *mut ibv_cq_ex) {
    // SAFETY: a queue of ours, by the man page's contract.
    ffi_guard::nothing(|| unsafe { give_back(current, Cq::of(current.cast())) });
}

/// # Safety
///
/// A queue of ours.
unsafe fn give_back(current: *mut ibv_cq_ex, ours: &Cq) {
    if ours.reader.polling.swap(false, Ordering::Relaxed) && !ours.reader.single_threaded {
        // SAFETY: as the caller says; `start_poll` of this thread locked it.
        unsafe { libc::pthread_mutex_unlock(&raw mut (*current).mutex) };
    }
}

/// Like [`ffi_guard::or_errno`], but an empty queue, which is no failure, leaves errno alone.
fn quietly(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    let mut empty = false;
    let code = ffi_guard::or_errno(|| match f() {
        Err(Errno(libc::ENOENT)) => {
            empty = true;
            Ok(())
        }
        other => other,
    });
    if empty { libc::ENOENT } else { code }
}

/// The completion being read.
///
/// # Safety
///
/// A queue of ours, taken by this thread.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Reader {
    // SAFETY: as the caller says.
    unsafe { &Cq::of(cq.cast()).reader }
}

macro_rules! read {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty: |$wc:ident| $value:expr;)*) => {
        $($(#[$doc])* unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: a queue of ours, taken by this thread, by the man page's contract.
            let $wc = unsafe { current(cq) }.current.get();
            $value
        })*
    };
}

read! {
    /// `ibv_wc_read_opcode`, ibv_create_cq_ex(3).
    read_opcode -> u32: |wc| wc.opcode;
    /// `ibv_wc_read_vendor_err`, ibv_create_cq_ex(3).
    read_vendor_err -> u32: |wc| wc.vendor_err;
    /// `ibv_wc_read_byte_len`, ibv_create_cq_ex(3).
    read_byte_len -> u32: |wc| wc.byte_len;
    // SAFETY: both members are 32 bits.
    /// `ibv_wc_read_imm_data` and `ibv_wc_read_invalidated_rkey`, ibv_create_cq_ex(3), which reads
    /// the same place.
    read_imm_data -> u32: |wc| unsafe { wc.imm.imm_data };
    /// `ibv_wc_read_qp_num`, ibv_create_cq_ex(3).
    read_qp_num -> u32: |wc| wc.qp_num;
    /// `ibv_wc_read_src_qp`, ibv_create_cq_ex(3).
    read_src_qp -> u32: |wc| wc.src_qp;
    /// `ibv_wc_read_wc_flags`, ibv_create_cq_ex(3).
    read_wc_flags -> c_uint: |wc| wc.wc_flags;
    /// `ibv_wc_read_slid`, ibv_create_cq_ex(3).
    read_slid -> u32: |wc| wc.slid.into();
    /// `ibv_wc_read_sl`, ibv_create_cq_ex(3).
    read_sl -> u8: |wc| wc.sl;
    /// `ibv_wc_read_dlid_path_bits`, ibv_create_cq_ex(3).
    read_dlid_path_bits -> u8: |wc| wc.dlid_path_bits;
    /// `ibv_wc_read_cvlan`, ibv_create_cq_ex(3): none.
    read_cvlan -> u16: |_wc| 0;
    /// `ibv_wc_read_flow_tag`, ibv_create_cq_ex(3): none.
    read_flow_tag -> u32: |_wc| 0;
}

/// `ibv_wc_read_completion_ts`, ibv_create_cq_ex(3): ticks of a nanosecond, see `hca_core_clock`.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: a queue of ours, taken by this thread, by the man page's contract.
    unsafe { current(cq) }.stamp.get().raw_ns
}

/// `ibv_wc_read_completion_wallclock_ns`, ibv_create_cq_ex(3).
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe { current(cq) }.stamp.get().wall_ns
}

/// `ibv_wc_read_tm_info`, ibv_create_cq_ex(3): of a match; zeroes of any other completion.
unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: a queue of ours, taken by this thread, and the caller's structure, by the man page's
    // contract.
    unsafe { *info = current(cq).tm.get() };
}
