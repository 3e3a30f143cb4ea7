//! Queue pairs (ibv_create_qp(3), ibv_modify_qp(3), ibv_query_qp(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use abi::verbs::{
    ibv_context, ibv_cq, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_rwq_ind_table, ibv_xrcd,
};
use nic::{QpAttr, QpCap, QpInit, QpState, QpType, mask};
use wire::{Mtu, Psn, Qkey, Qpn};

use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::ah;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::event::Unacked;
use crate::verbs::live::Live;
use crate::verbs::memory::Pd;
use crate::verbs::qp_ex::{self, Builder};
use crate::verbs::srq::Srq;
use crate::verbs::wq::Table;
use crate::verbs::xrc::Xrcd;

/// A queue pair as C sees it, and the adapter's. The plain queue pair is the first part of the extended one.
#[repr(C)]
pub(crate) struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    pub nic: Arc<nic::Qp>,
    /// For the calls that build one request at a time, where it was made for them.
    pub builder: Option<Box<Builder>>,
    pub async_events: Unacked,
    /// Of an XRC target; it has no protection domain and no completion queues.
    xrcd: *mut ibv_xrcd,
    pub instance: Arc<Instance>,
    /// What it spreads its frames over, or NULL. It has no completion queues then.
    table: *mut ibv_rwq_ind_table,
    /// What must not be freed before it.
    kept: Mutex<Vec<Arc<dyn Send + Sync>>>,
    context: Arc<Context>,
}

/// The queue pairs there are.
static QPS: Live = Live::new();

/// The adapter's queue pair behind one that a program names; `None` where it is destroyed, or none of this process.
pub(crate) fn find(qp: *mut ibv_qp) -> Option<Arc<nic::Qp>> {
    // SAFETY: it is in the table, and stays while it is looked at.
    QPS.with(qp, |qp| unsafe { Qp::of(qp) }.nic.clone())
}

/// Whether it is there and not destroyed.
pub(crate) fn exists(qp: *mut ibv_qp) -> bool {
    QPS.has(qp)
}

/// Keeps something until the queue pair is destroyed; nothing where it is.
pub(crate) fn keep(qp: *mut ibv_qp, what: Arc<dyn Send + Sync>) {
    QPS.with(qp, |qp| {
        // SAFETY: as in `find`.
        unsafe { Qp::of(qp) }.kept.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    });
}

/// Brings the state that C sees up to date; of one that is destroyed there is none.
pub(crate) fn show_state(qp: *mut ibv_qp) {
    // SAFETY: as in `find`.
    QPS.with(qp, |qp| unsafe { (*qp).state = Qp::of(qp).nic.state() as u32 });
}

/// Ends what a context's queue pairs do, as its file is closing; their C objects stay.
pub(crate) fn end_all(context: &Context) {
    let mut ended = Vec::new();
    QPS.each(|qp: *mut ibv_qp| {
        // SAFETY: as in `find`.
        let ours = unsafe { Qp::of(qp) };
        if std::ptr::eq(Arc::as_ptr(&ours.context), context) {
            ended.push((qp, ours.nic.clone()));
        }
    });
    ended.iter().for_each(|(qp, nic)| give_back(*qp, nic, context));
}

impl Qp {
    /// # Safety
    ///
    /// `qp` came from [`ibv_create_qp`] and lives.
    pub unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Qp {
        // SAFETY: the C part is the first field.
        unsafe { &*qp.cast::<Qp>() }
    }

    /// The C object of an adapter's queue pair.
    pub fn c_of(qp: &dyn nic::Subject) -> *mut ibv_qp {
        std::ptr::with_exposed_provenance_mut(qp.cookie() as usize)
    }
}

/// Inline bytes of a queue pair: as many as its elements take room in a request, if more were not asked for. Programs count on it, because
/// adapters and the kernel's rxe give that much unasked (rdma_xclient).
fn granted_inline(cap: &ibv_qp_cap) -> u32 {
    let room = cap.max_send_sge.saturating_mul(size_of::<abi::verbs::ibv_sge>() as u32);
    cap.max_inline_data.max(room.min(nic::limits::MAX_INLINE))
}

/// Makes a queue pair; its packets need the device's UDP port, which is opened here.
///
/// Of a scatter/gather element in an adapter's queue entry.
const SGE_BYTES: u32 = 16;

/// # Safety
///
/// Objects of ours that live, as ibv_create_qp(3) asks.
pub(crate) unsafe fn create(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    unsafe { create_with(pd, attr, None) }
}

/// The same with what an extended one has.
///
/// # Safety
///
/// As for [`create`].
pub(crate) unsafe fn create_with(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    builder: Option<Box<Builder>>,
) -> Result<*mut ibv_qp, Errno> {
    if pd.is_null() || attr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let (domain, init) = unsafe { (Pd::of(pd), &mut *attr) };
    let kind = QpType::from_code(init.qp_type).ok_or(Errno(libc::EOPNOTSUPP))?;
    // An XRC initiator receives nothing.
    let recv_cq = if kind == QpType::XrcSend { init.send_cq } else { init.recv_cq };
    if init.send_cq.is_null() || recv_cq.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let srq = (!init.srq.is_null()).then(|| unsafe { Srq::of(init.srq) });
    // SAFETY: as the caller says.
    let (context, send_cq, recv_cq) = unsafe {
        (Context::usable((*pd).context)?, Cq::of(init.send_cq).nic.clone(), Cq::of(recv_cq).nic.clone())
    };
    if kind != QpType::RawPacket {
        context.instance.attach(&context.nic)?;
    }
    // As adapters whose queue entries hold elements or bytes; rdma_xclient sends 16 bytes inline and asked for none.
    init.cap.max_inline_data =
        init.cap.max_inline_data.max(init.cap.max_send_sge.min(nic::limits::MAX_SGE) * SGE_BYTES);
    let cap = QpCap {
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_send_sge: init.cap.max_send_sge,
        max_recv_sge: init.cap.max_recv_sge,
        max_inline_data: granted_inline(&init.cap),
    };
    let nic = nic::Qp::create(
        &context.nic,
        &domain.nic,
        QpInit {
            kind,
            send_cq,
            recv_cq,
            srq: srq.map(|s| s.nic.clone()),
            cap,
            sq_sig_all: init.sq_sig_all != 0,
            events: context.events.clone(),
        },
    )?;
    init.cap.max_inline_data = cap.max_inline_data;
    // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
    let mut ex: ibv_qp_ex = unsafe { std::mem::zeroed() };
    if builder.is_some() {
        qp_ex::set_functions(&mut ex);
    }
    let c = &mut ex.qp_base;
    // SAFETY: as the caller says.
    c.context = unsafe { (*pd).context };
    c.qp_context = init.qp_context;
    c.pd = pd;
    c.send_cq = init.send_cq;
    c.recv_cq = init.recv_cq;
    c.srq = init.srq;
    c.handle = nic.qpn().get();
    c.qp_num = nic.qpn().get();
    c.qp_type = init.qp_type;
    // SAFETY: as the caller says.
    unsafe { uses(init.send_cq, init.recv_cq, pd, |n| _ = n.fetch_add(1, Ordering::AcqRel)) };
    if let Some(srq) = srq {
        srq.users.fetch_add(1, Ordering::AcqRel);
    }
    let instance = context.instance.clone();
    let qp = Box::into_raw(Box::new(Qp {
        c: ex.into(),
        nic: nic.clone(),
        builder,
        async_events: Unacked::default(),
        xrcd: std::ptr::null_mut(),
        instance,
        table: std::ptr::null_mut(),
        kept: Mutex::default(),
        // SAFETY: as the caller says.
        context: unsafe { Context::share((*pd).context) },
    }));
    QPS.enter(qp);
    nic.cookie.store(qp.expose_provenance() as u64, Ordering::Release);
    Ok(qp.cast())
}

/// Makes a raw packet queue pair that spreads what it receives over the work queues of a table; it sends nothing, and has
/// no completion queues. EOPNOTSUPP for other types, EINVAL for a shared receive queue.
///
/// # Safety
///
/// A context of ours and objects of ours that live, with an indirection table and a hash, as ibv_create_qp_ex(3) asks.
pub(crate) unsafe fn create_over_table(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    let (context_of_it, init, domain) = unsafe { (Context::usable(context)?, &*attr, Pd::of((*attr).pd)) };
    if init.qp_type != QpType::RawPacket as u32 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if init.rwq_ind_tbl.is_null() || !init.srq.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let (table, spread) = unsafe {
        let table = Table::of(init.rwq_ind_tbl);
        (table, table.spread(&init.rx_hash_conf)?)
    };
    let events = context_of_it.events.clone();
    // Nothing completes to it.
    let cq = nic::Cq::new(1, None, events.clone())?;
    let init_of_it = QpInit {
        kind: QpType::RawPacket,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
        events,
    };
    let nic = nic::Qp::create(&context_of_it.nic, &domain.nic, init_of_it)?;
    nic.spread_over(spread)?;
    // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
    let mut ex: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let c = &mut ex.qp_base;
    c.context = context;
    c.qp_context = init.qp_context;
    c.pd = init.pd;
    c.handle = nic.qpn().get();
    c.qp_num = nic.qpn().get();
    c.qp_type = init.qp_type;
    domain.users.fetch_add(1, Ordering::AcqRel);
    table.users.fetch_add(1, Ordering::AcqRel);
    let qp = Box::into_raw(Box::new(Qp {
        c: ex.into(),
        nic: nic.clone(),
        builder: None,
        async_events: Unacked::default(),
        xrcd: std::ptr::null_mut(),
        instance: context_of_it.instance.clone(),
        table: init.rwq_ind_tbl,
        kept: Mutex::default(),
        // SAFETY: as the caller says.
        context: unsafe { Context::share(context) },
    }));
    QPS.enter(qp);
    nic.cookie.store(qp.expose_provenance() as u64, Ordering::Release);
    Ok(qp.cast())
}

/// A handle of an XRC target, counted already.
///
/// # Safety
///
/// A context and a domain of ours that live.
pub(crate) unsafe fn make_target(
    context: *mut ibv_context,
    nic: Arc<nic::Qp>,
    xrcd: *mut ibv_xrcd,
    qp_context: *mut c_void,
) -> *mut ibv_qp {
    // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
    let mut ex: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let c = &mut ex.qp_base;
    c.context = context;
    c.qp_context = qp_context;
    c.handle = nic.qpn().get();
    c.qp_num = nic.qpn().get();
    c.state = nic.state() as u32;
    c.qp_type = QpType::XrcRecv as u32;
    // SAFETY: as the caller says.
    let context = unsafe {
        Xrcd::of(xrcd).users.fetch_add(1, Ordering::AcqRel);
        Context::share(context)
    };
    let qp = Box::into_raw(Box::new(Qp {
        c: ex.into(),
        nic,
        builder: None,
        async_events: Unacked::default(),
        xrcd,
        instance: context.instance.clone(),
        table: std::ptr::null_mut(),
        kept: Mutex::default(),
        context,
    }));
    QPS.enter(qp);
    qp.cast()
}

/// Counts a queue pair in or out at what it uses: what it has not is NULL.
///
/// # Safety
///
/// Objects of ours that live, or NULL.
unsafe fn uses(send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, pd: *mut ibv_pd, count: impl Fn(&AtomicU32)) {
    // SAFETY: as the caller says.
    unsafe {
        for cq in [send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
            count(&Cq::of(cq).users);
        }
        if !pd.is_null() {
            count(&Pd::of(pd).users);
        }
    }
}

/// `ibv_create_qp`. errno: EINVAL for NULL or sizes out of range, ENOMEM at the limit, EOPNOTSUPP for types not built, EADDRINUSE
/// where the UDP port belongs to another.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the man page's contract.
    ffi_guard::or_null(|| unsafe { create(pd, attr) })
}

/// Gives a handle back, and the queue pair with the last.
fn give_back(handle: *mut ibv_qp, nic: &Arc<nic::Qp>, context: &Context) {
    let last = nic.handles.fetch_sub(1, Ordering::AcqRel) == 1;
    {
        let _handing_out = context.handing_out.begin();
        // Events are told of the handle that made it; the others go on without.
        if Qp::c_of(&**nic) == handle {
            nic.cookie.store(0, Ordering::Release);
        }
    }
    if last {
        nic.destroy();
    }
}

/// `ibv_destroy_qp`: EBUSY while it is attached to a multicast group or a flow rule leads to it; waits until its
/// asynchronous events are acknowledged.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        // SAFETY: what a queue pair uses lives as long as it, by their EBUSY.
        let (send_cq, recv_cq, pd) = unsafe { ((*qp).send_cq, (*qp).recv_cq, (*qp).pd) };
        let table = ours.table;
        // What its context's end has left of it is the C object.
        if ours.instance.is_ours() && !ours.context.is_closed() {
            if ours.nic.is_attached() || ours.nic.is_steered_to() {
                return Err(Errno(libc::EBUSY));
            }
            give_back(qp, &ours.nic, &ours.context);
            // Its last messages, or ACKs, are repeated by nobody, and the program may end now.
            ours.instance.host.drain_all();
        }
        if ours.instance.is_ours() {
            ours.async_events.wait();
        }
        QPS.leave(qp);
        // SAFETY: as above.
        unsafe {
            uses(send_cq, recv_cq, pd, |n| _ = n.fetch_sub(1, Ordering::AcqRel));
            if !table.is_null() {
                Table::of(table).users.fetch_sub(1, Ordering::AcqRel);
            }
            if !(*qp).srq.is_null() {
                Srq::of((*qp).srq).users.fetch_sub(1, Ordering::AcqRel);
            }
            if !ours.xrcd.is_null() {
                Xrcd::of(ours.xrcd).users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        // SAFETY: made by `Box::into_raw` in `create`; the adapter forgot it.
        drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
        Ok(())
    })
}

/// `ibv_modify_qp`: EINVAL for a transition, mask or value that IBA 1.4 §10.3 does not allow; ENODEV for a parent's
/// queue pair in a forked child.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours and attributes, by the man page's contract.
        let (ours, attr) = unsafe { (Qp::of(qp), &*attr) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let bits = attr_mask.cast_unsigned();
        ours.nic.modify(Instant::now(), &from_c(attr, bits)?, bits)?;
        if bits & mask::STATE != 0 {
            // SAFETY: as above.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(())
    })
}

/// The attributes that `bits` name, checked for being values at all.
fn from_c(a: &ibv_qp_attr, bits: u32) -> Result<QpAttr, Errno> {
    let invalid = Errno(libc::EINVAL);
    let has = |bit| bits & bit != 0;
    let mut attr = QpAttr::default();
    if has(mask::STATE) {
        attr.state = QpState::from_code(a.qp_state).ok_or(invalid)?;
    }
    if has(mask::CUR_STATE) {
        attr.cur_state = QpState::from_code(a.cur_qp_state).ok_or(invalid)?;
    }
    if has(mask::PATH_MTU) {
        attr.path_mtu = u8::try_from(a.path_mtu).ok().and_then(Mtu::from_code).ok_or(invalid)?;
    }
    if has(mask::AV) {
        attr.av = ah::from_c(&a.ah_attr);
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

/// `ibv_query_qp`: everything, whatever the mask. ENODEV for a parent's queue pair in a forked child.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let init = ours.nic.init();
        let now = ours.nic.query();
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
            (*qp).state = (*attr).qp_state;
        }
        Ok(())
    })
}

/// `ibv_query_ece`: EOPNOTSUPP. Enhanced connection establishment lets two adapters of one vendor agree on options; a
/// software adapter has none, and neither have the kernel's.
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    ffi_guard::or_errno(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// `ibv_set_ece`: EOPNOTSUPP, as [`ibv_query_ece`].
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    ffi_guard::or_errno(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// `ibv_query_qp_data_in_order`: 0, whatever is asked. The last word of a message is written last, but the processor
/// copies what lies before it in any order.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}
