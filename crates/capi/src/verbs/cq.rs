//! Completion queues (ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3), ibv_modify_cq(3)). What the extended ones
//! have beside stands in `cq_ex`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use abi::verbs::{
    IBV_CQ_ATTR_MODERATE, IBV_WC_GRH, IBV_WC_TM_DATA_VALID, IBV_WC_TM_MATCH, IBV_WC_TM_SYNC_REQ,
    IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr,
    ibv_pd, ibv_wc, ibv_wc_imm,
};
use nic::device::CqSlot;
use nic::{Arm, Clock, CqExtras, Moderation, Stamp};
use transport::op::{Completion, NetworkHeader};
use wire::roce::SendTail;

use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::channel::Channel;
use crate::verbs::context::Context;
use crate::verbs::cq_ex::Reader;
use crate::verbs::event::Unacked;
use crate::verbs::memory::Pd;

/// A completion queue as C sees it, and the adapter's. The plain queue is the first part of the extended one.
#[repr(C)]
pub(crate) struct Cq {
    c: UnsafeCell<ibv_cq_ex>,
    pub nic: Arc<nic::Cq>,
    pub completion_events: Unacked,
    pub async_events: Unacked,
    /// Queue pairs that complete to it, a side each.
    pub users: AtomicU32,
    /// For the calls that read one completion at a time.
    pub reader: Reader,
    pub instance: Arc<Instance>,
    context: Arc<Context>,
    /// The parent domain it was made with, or NULL.
    domain: *mut ibv_pd,
    _slot: CqSlot,
}

impl Cq {
    /// # Safety
    ///
    /// `cq` came from [`ibv_create_cq`] and lives.
    pub unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Cq {
        // SAFETY: the C part is the first field.
        unsafe { &*cq.cast::<Cq>() }
    }

    /// Takes its events back; those that another thread is just adding find no object any more.
    fn withdraw(&self, context: &Context, channel: Option<&Channel>) {
        {
            let _completions = channel.map(|c| c.handing_out.begin());
            let _async = context.handing_out.begin();
            self.nic.cookie.store(0, Ordering::Release);
        }
        if let Some(channel) = channel {
            channel.nic.forget(&self.nic);
        }
        context.events.forget(&self.nic);
    }

    /// The C object of an adapter's queue.
    pub fn c_of(cq: &dyn nic::Subject) -> *mut ibv_cq {
        std::ptr::with_exposed_provenance_mut(cq.cookie() as usize)
    }
}

/// What a completion queue is made from.
pub(crate) struct CqInit {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub stamped: bool,
    pub ignore_overrun: bool,
    pub reader: Reader,
    /// A parent domain or NULL.
    pub domain: *mut ibv_pd,
}

/// Makes a completion queue; `complete` adds what an extended one has.
///
/// # Safety
///
/// Objects of ours that live, as ibv_create_cq_ex(3) asks.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    init: CqInit,
    complete: impl FnOnce(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq, Errno> {
    if init.comp_vector != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let (ours, reports_to) =
        unsafe { (Context::usable(context)?, (!init.channel.is_null()).then(|| Channel::of(init.channel))) };
    let slot = ours.nic.take_cq()?;
    let extras = CqExtras {
        stamped: init.stamped,
        ignore_overrun: init.ignore_overrun,
        clock: Some(Arc::new(SystemClock)),
        moderated: Arc::downgrade(ours.nic.moderated()),
    };
    let nic = nic::Cq::with(init.cqe, reports_to.map(|c| c.nic.clone()), ours.events.clone(), extras)?;
    // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    c.context = context;
    c.channel = init.channel;
    c.cq_context = init.cq_context;
    c.cqe = init.cqe as c_int;
    c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    complete(&mut c);
    if let Some(channel) = reports_to {
        channel.users.fetch_add(1, Ordering::AcqRel);
    }
    if !init.domain.is_null() {
        // SAFETY: as the caller says.
        unsafe { Pd::of(init.domain) }.users.fetch_add(1, Ordering::AcqRel);
    }
    let cq = Box::into_raw(Box::new(Cq {
        c: c.into(),
        nic: nic.clone(),
        completion_events: Unacked::default(),
        async_events: Unacked::default(),
        users: AtomicU32::new(0),
        reader: init.reader,
        instance: ours.instance.clone(),
        // SAFETY: as the caller says.
        context: unsafe { Context::share(context) },
        domain: init.domain,
        _slot: slot,
    }));
    nic.cookie.store(cq.expose_provenance() as u64, Ordering::Release);
    Ok(cq.cast())
}

/// The system's clocks.
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
    fn stamp(&self) -> Stamp {
        Stamp { raw_ns: clock_ns(libc::CLOCK_MONOTONIC_RAW), wall_ns: clock_ns(libc::CLOCK_REALTIME) }
    }
}

/// Nanoseconds on a clock of the system.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a variable of our own. The clocks asked for exist on every Linux; else the time is 0.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// `ibv_create_cq`. errno: EINVAL for `cqe` or `comp_vector` out of range, ENOMEM at the limit of queues.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    ffi_guard::or_null(|| {
        let invalid = |_| Errno(libc::EINVAL);
        let init = CqInit {
            cqe: u32::try_from(cqe).map_err(invalid)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(invalid)?,
            stamped: false,
            ignore_overrun: false,
            reader: Reader::default(),
            domain: null_mut(),
        };
        // SAFETY: a context of ours, and a channel of ours or NULL, by the man page's contract.
        unsafe { create(context, init, |_| {}) }
    })
}

/// `ibv_resize_cq`: EINVAL below what the queue holds or above the limit.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        let size = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: a queue of ours, by the man page's contract.
        unsafe {
            let ours = Cq::of(cq);
            ours.instance.check()?;
            ours.nic.resize(size)?;
            (*cq).cqe = cqe;
        }
        Ok(())
    })
}

/// `ibv_modify_cq`, through the context's table: holds completion events back until so many completions came or so
/// many microseconds passed. EINVAL for attributes that are not known.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Cq::of(cq), *attr) };
        ours.instance.check()?;
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
            let (count, period_us) = (attr.moderate.cq_count, attr.moderate.cq_period);
            ours.nic.moderate(Moderation { count, period_us });
        }
        Ok(())
    })
}

/// `ibv_destroy_cq`: EBUSY while queue pairs use it; waits until its events are acknowledged.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        if ours.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the channel outlives its queues, by its EBUSY.
        let channel = unsafe {
            let channel = (*cq).channel;
            (!channel.is_null()).then(|| Channel::of(channel))
        };
        // In a forked child nobody acknowledges what the parent was handed, and locks may be held for ever.
        if ours.instance.is_ours() {
            ours.withdraw(&ours.context, channel);
            ours.completion_events.wait();
            ours.async_events.wait();
        }
        if let Some(channel) = channel {
            channel.users.fetch_sub(1, Ordering::AcqRel);
        }
        if !ours.domain.is_null() {
            // SAFETY: a domain lives as long as what uses it, by its EBUSY.
            unsafe { Pd::of(ours.domain) }.users.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: made by `Box::into_raw` in `create`, and used by nobody.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        Ok(())
    })
}

/// `ibv_poll_cq`, through the context's table. An empty queue first takes what has arrived from the sockets, in this thread.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    ffi_guard::or(-libc::EIO, || {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        let most = usize::try_from(num_entries).map_err(|_| Errno(libc::EINVAL))?;
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let mut at = wc;
        let n = ours.instance.host.poll_cq(&ours.nic, most, |completion| {
            // SAFETY: at most `num_entries` places, which the caller gives.
            unsafe {
                at.write(convert(&completion));
                at = at.add(1);
            }
        })?;
        Ok(n as c_int)
    })
}

pub(crate) fn convert(c: &Completion) -> ibv_wc {
    let (imm, wc_flags) = match c.tail {
        SendTail::None => (ibv_wc_imm { imm_data: 0 }, 0),
        SendTail::Immediate(bytes) => (ibv_wc_imm { imm_data: u32::from_ne_bytes(bytes) }, IBV_WC_WITH_IMM),
        SendTail::Invalidate(key) => (ibv_wc_imm { invalidated_rkey: key.0 }, IBV_WC_WITH_INV),
    };
    ibv_wc {
        wr_id: c.wr_id,
        status: c.status as u32,
        opcode: c.opcode as u32,
        vendor_err: 0,
        byte_len: c.byte_len,
        imm,
        qp_num: c.qpn.get(),
        src_qp: c.source_qp.get(),
        wc_flags: wc_flags | if c.header == NetworkHeader::None { 0 } else { IBV_WC_GRH } | tm_flags(c),
        pkey_index: 0,
        slid: 0,
        sl: packet_type(c.header),
        dlid_path_bits: 0,
    }
}

/// What Mellanox's adapters say of a datagram over Ethernet in place of a service level: bit 3 a UDP header, bits 0 to 2 the network
/// header, 1 for IPv6 and 2 for IPv4. UCX before 1.18 tells by it where the addresses are (uct_ud_iface_check_grh).
fn packet_type(header: NetworkHeader) -> u8 {
    match header {
        NetworkHeader::None | NetworkHeader::Unseen => 0,
        NetworkHeader::V4 => 0b1010,
        NetworkHeader::V6 => 0b1001,
    }
}

fn tm_flags(c: &Completion) -> u32 {
    let flag = |set, bit| if set { bit } else { 0 };
    flag(c.tm.matched, IBV_WC_TM_MATCH)
        | flag(c.tm.data_valid, IBV_WC_TM_DATA_VALID)
        | flag(c.tm.sync_required, IBV_WC_TM_SYNC_REQ)
}

/// `ibv_req_notify_cq`, through the context's table.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        ours.nic.arm(if solicited_only == 0 { Arm::Next } else { Arm::Solicited });
        // Whoever arms is about to wait: the engine takes the sockets over.
        ours.instance.host.end_polling();
        Ok(())
    })
}
