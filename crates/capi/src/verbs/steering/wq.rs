//! Work queues and the tables that spread frames over them (ibv_create_wq(3), ibv_modify_wq(3),
//! ibv_create_rwq_ind_table(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use nic::limits;
use nic::steering::rss::{KEY_LEN, Spread, WqState};
use rdma_core_abi::verbs::{
    self as v, ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};

use crate::checked::{self, work_queues};
use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::cq::object::Cq;
use crate::verbs::device::context::Context;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::request;

/// A work queue as C sees it, and the adapter's.
#[repr(C)]
struct Wq {
    c: UnsafeCell<ibv_wq>,
    nic: Arc<nic::Wq>,
    /// Entries of tables that name it.
    users: AtomicU32,
    instance: Arc<Instance>,
}

impl Wq {
    /// # Safety
    ///
    /// `wq` came from [`create_wq`] and lives.
    unsafe fn of<'a>(wq: *mut ibv_wq) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*wq.cast::<Self>() }
    }
}

/// A table of work queues as C sees it, and what it stands for.
#[repr(C)]
pub(crate) struct Table {
    c: UnsafeCell<ibv_rwq_ind_table>,
    /// As the program gave them.
    entries: Vec<*mut ibv_wq>,
    queues: Arc<[Arc<nic::Wq>]>,
    /// Queue pairs made over it.
    pub users: AtomicU32,
}

impl Table {
    /// # Safety
    ///
    /// `table` came from [`create_rwq_ind_table`] and lives.
    pub(crate) unsafe fn of<'a>(table: *mut ibv_rwq_ind_table) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*table.cast::<Self>() }
    }

    /// How a queue pair made over it spreads its frames. EINVAL for a key of another length than
    /// 40, EOPNOTSUPP for other functions than Toeplitz and other fields than addresses and
    /// ports.
    ///
    /// # Safety
    ///
    /// A hash configuration as ibv_create_qp_ex(3) describes it.
    pub(crate) unsafe fn spread(&self, hash: &ibv_rx_hash_conf) -> Result<Arc<Spread>, Errno> {
        if u32::from(hash.rx_hash_function) != v::IBV_RX_HASH_FUNC_TOEPLITZ {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if usize::from(hash.rx_hash_key_len) != KEY_LEN || hash.rx_hash_key.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: so many bytes, as the caller says.
        let key = unsafe { hash.rx_hash_key.cast::<[u8; KEY_LEN]>().read_unaligned() };
        Ok(Spread::new(self.queues.clone(), key, hash.rx_hash_fields_mask)?)
    }
}

/// ibv_create_wq(3), through the context's table; what was asked for is granted as asked. errno:
/// EINVAL for sizes out of range and another type than a receive queue, EOPNOTSUPP for creation
/// flags, ENOMEM at the limit. No privilege is needed before a queue pair is made over it.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let (ours, init) = unsafe { (Context::usable(context)?, &*attr) };
        let flags = init.comp_mask & v::IBV_WQ_INIT_ATTR_FLAGS != 0;
        if init.comp_mask & !v::IBV_WQ_INIT_ATTR_FLAGS != 0
            || init.wq_type != v::IBV_WQT_RQ
            || init.pd.is_null()
            || init.cq.is_null()
        {
            return Err(Errno(libc::EINVAL));
        }
        if flags && init.create_flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: objects of ours that live, by the man page's contract.
        let (pd, cq) = unsafe { (Pd::of(init.pd), Cq::of(init.cq)) };
        let nic = nic::Wq::create(&pd.nic, cq.nic.clone(), init.max_wr, init.max_sge)?;
        // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
        let mut c: ibv_wq = unsafe { std::mem::zeroed() };
        c.context = context;
        c.wq_context = init.wq_context;
        c.pd = init.pd;
        c.cq = init.cq;
        c.wq_num = nic.number().get();
        c.handle = c.wq_num;
        c.state = v::IBV_WQS_RESET;
        c.wq_type = init.wq_type;
        c.post_recv = Some(if checked::is_on() { work_queues::post_wq_recv } else { post_wq_recv });
        pd.users.fetch_add(1, Ordering::AcqRel);
        cq.users.fetch_add(1, Ordering::AcqRel);
        let instance = ours.instance.clone();
        let wq = Wq { c: c.into(), nic, users: AtomicU32::new(0), instance };
        let wq = Box::into_raw(Box::new(wq)).cast();
        // SAFETY: just made.
        unsafe { work_queues::made(wq) };
        Ok(wq)
    })
}

/// ibv_modify_wq(3), through the context's table: EINVAL for what ibv_modify_wq(3) does not allow
/// and for an empty mask, EOPNOTSUPP for flags, ENODEV for a parent's queue in a forked child.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Wq::of(wq), *attr) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let given = |bit| attr.attr_mask & bit != 0;
        if attr.attr_mask == 0 || attr.attr_mask >= v::IBV_WQ_ATTR_RESERVED {
            return Err(Errno(libc::EINVAL));
        }
        if given(v::IBV_WQ_ATTR_FLAGS) && attr.flags_mask != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let state = |code| WqState::from_code(code).ok_or(Errno(libc::EINVAL));
        let from = given(v::IBV_WQ_ATTR_CURR_STATE).then(|| state(attr.curr_wq_state)).transpose()?;
        if given(v::IBV_WQ_ATTR_STATE) {
            ours.nic.modify(from, state(attr.wq_state)?)?;
        }
        // SAFETY: as above.
        unsafe { (*wq).state = ours.nic.state() as u32 };
        work_queues::modified(wq, ours.nic.state() as u32);
        Ok(())
    })
}

/// `ibv_destroy_wq`, ibv_create_wq(3), through the context's table: EBUSY while a table names it.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Wq::of(wq) };
        if ours.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: what it uses lives as long as it, by its EBUSY; made by `Box::into_raw` in
        // `create_wq`, and no thread uses it.
        unsafe {
            Pd::of((*wq).pd).users.fetch_sub(1, Ordering::AcqRel);
            Cq::of((*wq).cq).users.fetch_sub(1, Ordering::AcqRel);
            drop(Box::from_raw(wq.cast::<Wq>()));
        }
        work_queues::gone(wq);
        Ok(())
    })
}

/// `ibv_post_wq_recv`, ibv_create_wq(3): takes the list in order; where one is refused, `bad_wr`
/// names it and those before it stay posted. EINVAL in state RESET and for too many elements,
/// ENOMEM for a full queue, ENODEV for a parent's queue in a forked child.
pub(crate) unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Wq::of(wq) };
        let posted = if ours.instance.is_ours() {
            // SAFETY: a list of requests, by the man page's contract.
            unsafe { request::each_receive(wr, |wr| Ok(ours.nic.post(wr)?)) }
        } else {
            Err((wr, Errno(libc::ENODEV)))
        };
        posted.map_err(|(at, e)| {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = at };
            e
        })
    })
}

/// ibv_create_rwq_ind_table(3), through the context's table. errno: EINVAL for a size beyond the
/// device's or a missing queue.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    /// Numbers tables in this process.
    static NEXT: AtomicI32 = AtomicI32::new(1);
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let init = unsafe {
            Context::usable(context)?;
            &*attr
        };
        if init.comp_mask != 0 || init.log_ind_tbl_size > limits::MAX_LOG_TABLE || init.ind_tbl.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: so many pointers, by the man page's contract.
        let entries =
            unsafe { std::slice::from_raw_parts(init.ind_tbl, 1 << init.log_ind_tbl_size) }.to_vec();
        if entries.iter().any(|wq| wq.is_null()) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: queues of ours that live, by the man page's contract.
        let ours = || entries.iter().map(|wq| unsafe { Wq::of(*wq) });
        let queues = ours().map(|wq| wq.nic.clone()).collect();
        ours().for_each(|wq| _ = wq.users.fetch_add(1, Ordering::AcqRel));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let c = ibv_rwq_ind_table { context, ind_tbl_handle: number, ind_tbl_num: number, comp_mask: 0 };
        let table = Table { c: c.into(), entries, queues, users: AtomicU32::new(0) };
        Ok(Box::into_raw(Box::new(table)).cast())
    })
}

/// `ibv_destroy_rwq_ind_table`, ibv_create_rwq_ind_table(3), through the context's table: EBUSY
/// while a queue pair uses it.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a table of ours, by the man page's contract.
        if unsafe { Table::of(table) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `create_rwq_ind_table`, and no thread uses it; its
        // queues live by their EBUSY.
        unsafe {
            let table = Box::from_raw(table.cast::<Table>());
            table.entries.iter().for_each(|wq| _ = Wq::of(*wq).users.fetch_sub(1, Ordering::AcqRel));
        }
        Ok(())
    })
}
