//! Completion queues (ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::verbs::{
    IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_comp_channel, ibv_context, ibv_cq, ibv_wc, ibv_wc_imm,
};
use nic::Arm;
use nic::device::CqSlot;
use transport::op::Completion;
use wire::roce::SendTail;

use crate::border::{self, Errno};
use crate::instance::Instance;
use crate::verbs::channel::Channel;
use crate::verbs::context::Context;
use crate::verbs::event::Unacked;

/// A completion queue as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Cq {
    c: UnsafeCell<ibv_cq>,
    pub nic: Arc<nic::Cq>,
    pub completion_events: Unacked,
    pub async_events: Unacked,
    /// Queue pairs that complete to it, a side each.
    pub users: AtomicU32,
    instance: Arc<Instance>,
    context: *mut ibv_context,
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
        context.events.forget_cq(&self.nic);
    }

    /// The C object of an adapter's queue.
    pub fn c_of(cq: &nic::Cq) -> *mut ibv_cq {
        std::ptr::with_exposed_provenance_mut(cq.cookie.load(Ordering::Acquire) as usize)
    }
}

/// `ibv_create_cq`. errno: EINVAL for `cqe` or `comp_vector` out of range, ENOMEM at the limit of queues.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    border::or_null(|| {
        if comp_vector != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let cqe = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: a context of ours, and a channel of ours or NULL, by the man page's contract.
        let (ours, reports_to) =
            unsafe { (Context::usable(context)?, (!channel.is_null()).then(|| Channel::of(channel))) };
        let slot = ours.nic.take_cq()?;
        let nic = nic::Cq::new(cqe, reports_to.map(|c| c.nic.clone()), ours.events.clone())?;
        // SAFETY: integers, pointers, a mutex and a condition of zeroes.
        let mut c: ibv_cq = unsafe { std::mem::zeroed() };
        c.context = context;
        c.channel = channel;
        c.cq_context = cq_context;
        c.cqe = cqe as c_int;
        if let Some(channel) = reports_to {
            channel.users.fetch_add(1, Ordering::AcqRel);
        }
        let cq = Box::into_raw(Box::new(Cq {
            c: c.into(),
            nic: nic.clone(),
            completion_events: Unacked::default(),
            async_events: Unacked::default(),
            users: AtomicU32::new(0),
            instance: ours.instance.clone(),
            context,
            _slot: slot,
        }));
        nic.cookie.store(cq.expose_provenance() as u64, Ordering::Release);
        Ok(cq.cast())
    })
}

/// `ibv_resize_cq`: EINVAL below what the queue holds or above the limit.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    border::or_errno(|| {
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

/// `ibv_destroy_cq`: EBUSY while queue pairs use it; waits until its events are acknowledged.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    border::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        if ours.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the channel outlives its queues, by its EBUSY; so does the context, by the man page's contract.
        let (context, channel) = unsafe {
            let channel = (*cq).channel;
            (Context::of(ours.context), (!channel.is_null()).then(|| Channel::of(channel)))
        };
        // In a forked child nobody acknowledges what the parent was handed, and locks may be held for ever.
        if ours.instance.is_ours() {
            ours.withdraw(context, channel);
            ours.completion_events.wait();
            ours.async_events.wait();
        }
        if let Some(channel) = channel {
            channel.users.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: made by `Box::into_raw` in `ibv_create_cq`, and used by nobody.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        Ok(())
    })
}

/// `ibv_poll_cq`, through the context's table. An empty queue first takes what has arrived from the sockets, in this thread.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    border::or(-libc::EIO, || {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        let most = usize::try_from(num_entries).map_err(|_| Errno(libc::EINVAL))?;
        if ours.nic.is_empty() {
            ours.instance.host.poll();
        }
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let mut at = wc;
        let n = ours.nic.poll(most, |completion| {
            // SAFETY: at most `num_entries` places, which the caller gives.
            unsafe {
                at.write(convert(&completion));
                at = at.add(1);
            }
        })?;
        Ok(n as c_int)
    })
}

fn convert(c: &Completion) -> ibv_wc {
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
        wc_flags: wc_flags | if c.grh { IBV_WC_GRH } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// `ibv_req_notify_cq`, through the context's table.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    border::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        ours.nic.arm(if solicited_only == 0 { Arm::Next } else { Arm::Solicited });
        // Whoever arms is about to wait: the engine takes the sockets over.
        ours.instance.host.rest();
        Ok(())
    })
}
