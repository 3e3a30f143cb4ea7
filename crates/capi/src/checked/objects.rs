//! Objects made and destroyed. Each function is called behind the making and before the freeing of
//! what it names, and does nothing where calls are not checked.

use check::objects::{CompletionQueue, Domain, Handle, QueuePair, Region, SharedQueue};
use nic::{QpState, QpType};
use rdma_core_abi::verbs::{IBV_ACCESS_LOCAL_WRITE, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_srq, ibv_xrcd};

use check::Queue;
use check::reads::Reads;

use super::calls::Own;
use super::{handle, look, note};
use crate::ffi_guard::Errno;
use crate::verbs::cq::object::Cq;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::object::{Over, Qp};

/// EINVAL, and a finding, for an object that was destroyed. Nothing of the object is read.
pub(crate) fn refuse_gone<T>(object: *mut T) -> Result<(), Errno> {
    if look(|checker| checker.is_gone(handle(object))) != Some(true) {
        return Ok(());
    }
    note(|checker, site| checker.used(handle(object), site));
    Err(Errno(libc::EINVAL))
}

/// A protection domain of the program's.
pub(crate) fn domain_made(pd: *mut ibv_pd) {
    note(|checker, made| {
        checker.domain_made(handle(pd), Domain { kind: "protection domain", made: made.clone() });
        Vec::new()
    });
}

/// An XRC domain of the program's.
pub(crate) fn xrc_domain_made(xrcd: *mut ibv_xrcd) {
    note(|checker, made| {
        checker.domain_made(handle(xrcd), Domain { kind: "XRC domain", made: made.clone() });
        Vec::new()
    });
}

/// A protection domain or an XRC domain is deallocated, or turns out to be the connection
/// manager's, which keeps it.
pub(crate) fn domain_gone<T>(pd: *mut T) {
    note(|checker, _| {
        checker.domain_gone(handle(pd));
        Vec::new()
    });
}

/// A region, of memory that is not the program's as long as [`region_is_at`] does not say so.
///
/// # Safety
///
/// A region of ours that lives.
pub(crate) unsafe fn region_made(mr: *mut ibv_mr, access: u32) {
    note(|checker, made| {
        // SAFETY: as the caller says.
        let c = unsafe { &*mr };
        let region = Region {
            domain: handle(c.pd),
            addr: None,
            named: 0,
            len: c.length as u64,
            is_writable: access & IBV_ACCESS_LOCAL_WRITE != 0,
            made: made.clone(),
        };
        checker.region_made(c.lkey, region);
        Vec::new()
    });
}

/// A region is memory of the program's from `addr` on, which requests call `named`.
pub(crate) fn region_is_at(key: u32, addr: u64, named: u64) {
    note(|checker, _| {
        if let Some(region) = checker.region_mut(key) {
            (region.addr, region.named) = (Some(addr), named);
        }
        Vec::new()
    });
}

/// A region was registered anew: its rights, its domain, and its place where that was named.
///
/// # Safety
///
/// A region of ours that lives.
pub(crate) unsafe fn region_changed(mr: *mut ibv_mr, access: u32, place: Option<(u64, u64, u64)>) {
    note(|checker, _| {
        // SAFETY: as the caller says.
        let c = unsafe { &*mr };
        if let Some(region) = checker.region_mut(c.lkey) {
            (region.domain, region.is_writable) = (handle(c.pd), access & IBV_ACCESS_LOCAL_WRITE != 0);
            if let Some((addr, len, named)) = place {
                (region.addr, region.len, region.named) = (Some(addr), len, named);
            }
        }
        Vec::new()
    });
}

/// A region is about to be deregistered.
pub(crate) fn region_going(key: u32) {
    note(|checker, site| checker.region_going(key, &Own, site));
}

pub(crate) fn region_gone(key: u32) {
    note(|checker, site| {
        checker.region_gone(key, site);
        Vec::new()
    });
}

/// The state of a queue pair that the checker knows, or that a call is about.
fn state(pair: Handle) -> QpState {
    let qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair as usize);
    // SAFETY: the checker, whose lock is held, hears of a queue pair's end before it is freed; and
    // a queue pair lives while a call is about it, by the man page's contract.
    unsafe { Qp::of(qp) }.nic.state()
}

/// Whether a queue pair that the checker knows executes requests.
pub(super) fn executes(pair: Handle) -> bool {
    !matches!(state(pair), QpState::Reset | QpState::Error)
}

/// Whether requests of a queue pair that the checker knows may have completed.
pub(super) fn completes(pair: Handle) -> bool {
    !matches!(state(pair), QpState::Reset | QpState::Init)
}

/// READs and atomics of a queue pair that the checker knows, once it is connected.
pub(super) fn reads(pair: Handle) -> Option<Reads> {
    let qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair as usize);
    // SAFETY: as in `state`.
    let nic = &unsafe { Qp::of(qp) }.nic;
    let is_reliable = matches!(nic.init().kind, QpType::Rc | QpType::XrcSend | QpType::XrcRecv);
    let attr = is_reliable.then(|| nic.query())?;
    let is_connected = matches!(attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
    is_connected.then(|| Reads {
        sent: attr.max_rd_atomic,
        served: attr.max_dest_rd_atomic,
        peer: attr.dest_qpn.get(),
    })
}

/// A connection was accepted with this `initiator_depth`, where the request has that one.
pub(crate) fn accepted(qp: *mut ibv_qp, asked: u8, offered: u8) {
    note(|checker, site| {
        checker.accepted(handle(qp), asked, offered, site);
        Vec::new()
    });
}

/// The type of a queue pair that a call is about, and whether it has a shared receive queue.
pub(super) fn kind_of(pair: Handle) -> Option<(QpType, bool)> {
    let qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair as usize);
    // SAFETY: as in `state`.
    let (c, ours) = unsafe { (qp.as_ref()?, Qp::of(qp)) };
    Some((ours.nic.init().kind, !c.srq.is_null()))
}

/// Whether a queue pair that a call is about is in a protection domain.
pub(super) fn is_in_domain(pair: Handle, pd: *mut ibv_pd) -> bool {
    let qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair as usize);
    // SAFETY: as in `state`; the domain of an address handle lives as long as that.
    unsafe { std::sync::Arc::ptr_eq(&Pd::of(pd).nic, &Pd::of((*qp).pd).nic) }
}

/// Completions that a queue which the checker knows holds and gives no event for.
pub(super) fn unannounced(queue: Handle) -> u32 {
    let cq = std::ptr::with_exposed_provenance_mut::<ibv_cq>(queue as usize);
    // SAFETY: the checker, whose lock is held, hears of a queue's end before it is freed.
    unsafe { Cq::of(cq) }.nic.unannounced()
}

/// The state of the queue pair that a call posts to.
pub(super) fn state_name(queue: Queue) -> &'static str {
    let (Queue::Send(pair) | Queue::Receive(pair)) = queue else { return "RTS" };
    match state(pair) {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Error => "ERR",
    }
}

pub(crate) fn queue_made(cq: *mut ibv_cq, depth: u32) {
    note(|checker, made| {
        let mut queue = CompletionQueue::new(depth, made.clone());
        // SAFETY: a queue of ours, just made.
        let channel = unsafe { (*cq).channel };
        queue.channel = (!channel.is_null()).then(|| handle(channel));
        checker.queue_made(handle(cq), queue);
        Vec::new()
    });
}

/// The program has called ibv_fork_init(3), or asked whether that is needed.
pub(crate) fn fork_prepared() {
    look(|checker| checker.fork_prepared());
}

pub(crate) fn queue_resized(cq: *mut ibv_cq, depth: u32) {
    note(|checker, _| {
        checker.queue_resized(handle(cq), depth);
        Vec::new()
    });
}

pub(crate) fn queue_gone(cq: *mut ibv_cq) {
    note(|checker, _| {
        checker.queue_gone(handle(cq));
        Vec::new()
    });
}

/// A queue pair, asked for with so many inline bytes.
///
/// # Safety
///
/// A queue pair of ours that lives.
pub(crate) unsafe fn pair_made(qp: *mut ibv_qp, max_inline: u32) {
    note(|checker, made| {
        // SAFETY: as the caller says.
        let (c, ours) = unsafe { (&*qp, Qp::of(qp)) };
        let init = ours.nic.init();
        let mut pair = QueuePair::new(c.qp_num, made.clone());
        pair.is_target = init.kind == QpType::XrcRecv;
        pair.domain = match ours.over {
            Over::Xrcd(domain) => handle(domain),
            Over::Nothing | Over::Table(_) => handle(c.pd),
        };
        (pair.send_queue, pair.receive_queue) = (handle(c.send_cq), handle(c.recv_cq));
        pair.shared = (!c.srq.is_null()).then(|| handle(c.srq));
        (pair.max_sends, pair.max_inline) = (init.cap.max_send_wr, max_inline);
        pair.max_receives = init.cap.max_recv_wr;
        pair.max_elements = (init.cap.max_send_sge, init.cap.max_recv_sge);
        pair.is_datagram = init.kind == QpType::Ud;
        pair.all_signaled = init.sq_sig_all;
        checker.pair_made(handle(qp), pair);
        Vec::new()
    });
}

pub(crate) fn pair_reset(qp: *mut ibv_qp) {
    note(|checker, _| {
        checker.pair_reset(handle(qp));
        Vec::new()
    });
}

pub(crate) fn pair_gone(qp: *mut ibv_qp) {
    note(|checker, _| {
        checker.pair_gone(handle(qp));
        Vec::new()
    });
}

/// A shared receive queue that is not for tags. One for XRC has a completion queue, others NULL.
pub(crate) fn shared_made(srq: *mut ibv_srq, pd: *mut ibv_pd, cq: *mut ibv_cq) {
    note(|checker, made| {
        let mut queue = SharedQueue::new(handle(pd), made.clone());
        queue.receive_queue = (!cq.is_null()).then(|| handle(cq));
        checker.shared_made(handle(srq), queue);
        Vec::new()
    });
}

pub(crate) fn shared_gone(srq: *mut ibv_srq) {
    note(|checker, _| {
        checker.shared_gone(handle(srq));
        Vec::new()
    });
}
