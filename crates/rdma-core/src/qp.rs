//! Queue pairs: RC, UC, UD.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};
use nic::{Access, Error, QpState, QpType};
use rdma_core_abi::cma::rdma_cm_id;
use rdma_core_abi::verbs::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_cq, ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_srq,
};
use wire::Qpn;

use crate::cq::Cq;
use crate::device::Pd;
use crate::extended::Extended;
use crate::handle::Ah;
use crate::instance::System;
use crate::memory::Words;
use crate::srq::Srq;
use crate::window::Mw;
use crate::{minus_one, number, object};

/// Address handles that are kept for the next datagram.
const HANDLES: usize = 256;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Requests of the send queue.
    pub send_wr: u32,
    /// Requests of the receive queue.
    pub recv_wr: u32,
    /// Elements of a send request.
    pub send_sge: u32,
    /// Bytes inline.
    pub inline: u32,
}

/// A queue pair with all that belongs to it.
pub struct Qp {
    pd: Arc<Pd>,
    pub(crate) kind: QpType,
    qpn: Qpn,
    pub(crate) sizes: Sizes,
    words: Words,
    pub(crate) extended: Option<Extended>,
    pub(crate) raw: Mutex<Option<Raw>>,
    /// Address handles, by source and destination address, and their traffic class.
    known: Mutex<HashMap<(IpAddr, IpAddr, u8), Arc<Ah>>>,
    /// Kept until the queue pair is no more.
    _srq: Option<Arc<Srq>>,
    _cq: Arc<Cq>,
}

/// The C object, and what goes with it.
pub(crate) struct Raw {
    pub(crate) qp: NonNull<ibv_qp>,
    /// What it was moved to last.
    pub(crate) state: QpState,
    attr: Agreed,
    /// Windows that were bound by it: some devices destroy no queue pair that has one.
    pub(crate) windows: Vec<Weak<Mw>>,
    /// Multicast groups that it is attached to: some devices destroy no queue pair that has one.
    groups: Vec<Group>,
    /// Address handles of the last requests, as many as the send queue has.
    pub(crate) handles: VecDeque<Arc<Ah>>,
}

/// A multicast group, as ibv_attach_mcast(3) names it.
struct Group {
    gid: ibv_gid,
    lid: u16,
}

// SAFETY: the objects may be used by all threads; the lock says that no thread destroys them
// meanwhile.
unsafe impl Send for Raw {}
// SAFETY: its address is used only while `Raw` is there, under its lock.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// What the queue pair does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// READs and atomics that it serves at once.
    pub responder_resources: u8,
    /// READs and atomics that it starts at once.
    pub initiator_depth: u8,
    /// Retries after a timeout.
    pub retry_count: u8,
}

/// How the queue pair is connected; `None`: as the connection manager says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connecting {
    /// READs and atomics that it serves at once.
    pub responder_resources: Option<u8>,
    /// READs and atomics that it starts at once.
    pub initiator_depth: Option<u8>,
    /// Code of the local ACK timeout.
    pub ack_timeout: Option<u8>,
    /// Code of the RNR NAK timer.
    pub min_rnr_timer: u8,
}

impl Qp {
    /// A queue pair in state Reset, whose completions come to this queue, and whose receives from
    /// the shared one where there is one.
    ///
    /// # Errors
    ///
    /// Errno of ibv_create_qp(3): EINVAL for sizes that the device does not have. `Unsupported` for
    /// other services than RC, UC, UD.
    pub fn new(
        pd: &Arc<Pd>,
        kind: QpType,
        sizes: Sizes,
        cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
    ) -> Result<Self, Error> {
        let qp_type = match kind {
            QpType::Rc => IBV_QPT_RC,
            QpType::Uc => IBV_QPT_UC,
            QpType::Ud => IBV_QPT_UD,
            _ => return Err(Error::Unsupported("this service over the machine's libraries")),
        };
        let words = Words::new(pd, sizes.send_wr as usize)?;
        let make = |cq: *mut ibv_cq, srq: *mut ibv_srq| {
            let init = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq,
                cap: ibv_qp_cap {
                    max_send_wr: sizes.send_wr,
                    max_recv_wr: sizes.recv_wr,
                    max_send_sge: sizes.send_sge,
                    max_recv_sge: 1,
                    max_inline_data: sizes.inline,
                },
                qp_type,
                sq_sig_all: 1,
            };
            // SAFETY: domain and queues live.
            unsafe { create(pd, init) }
        };
        let (qp, extended) = cq.with(|cq| match srq {
            Some(srq) => srq.with(|srq| make(cq, srq)),
            None => make(cq, null_mut()),
        })?;
        // SAFETY: just made.
        let qpn = Qpn::new(unsafe { qp.as_ref() }.qp_num);
        let raw = Raw {
            qp,
            state: QpState::Reset,
            attr: Agreed::default(),
            windows: Vec::new(),
            groups: Vec::new(),
            handles: VecDeque::new(),
        };
        let raw = Mutex::new(Rank::SystemQp, Some(raw));
        let known = Mutex::new(Rank::SystemHandles, HashMap::new());
        let (pd, cq, srq) = (pd.clone(), cq.clone(), srq.cloned());
        Ok(Self { pd, kind, qpn, sizes, words, extended, raw, known, _srq: srq, _cq: cq })
    }

    pub(crate) fn system(&self) -> &Arc<System> {
        self.pd.system()
    }
    /// The queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// Where the answers of atomics go: one word for each entry of the send queue.
    pub fn words(&self) -> &Words {
        &self.words
    }
    /// What it does, of a connection that stands.
    pub fn agreed(&self) -> Agreed {
        self.raw.lock().as_ref().map_or_else(Agreed::default, |raw| raw.attr)
    }
    /// The queue pair's state, as the library says it: a failure moves it.
    pub fn state(&self) -> QpState {
        let lock = self.raw.lock();
        let Some(raw) = &*lock else { return QpState::Error };
        let (mut attr, mut init) =
            (MaybeUninit::<ibv_qp_attr>::zeroed(), MaybeUninit::<ibv_qp_init_attr>::zeroed());
        let query = self.pd.system().calls.ibv_query_qp;
        // SAFETY: the queue pair lives; there is room for both.
        let failed =
            unsafe { query(raw.qp.as_ptr(), attr.as_mut_ptr(), IBV_QP_STATE as i32, init.as_mut_ptr()) != 0 };
        if failed {
            return raw.state;
        }
        // SAFETY: numbers, written or zero.
        match unsafe { attr.assume_init() }.qp_state {
            rdma_core_abi::verbs::IBV_QPS_RESET => QpState::Reset,
            IBV_QPS_INIT => QpState::Init,
            IBV_QPS_RTR => QpState::Rtr,
            IBV_QPS_RTS => QpState::Rts,
            rdma_core_abi::verbs::IBV_QPS_SQD => QpState::Sqd,
            rdma_core_abi::verbs::IBV_QPS_SQE => QpState::Sqe,
            _ => QpState::Error,
        }
    }

    // ---- states ----

    /// To INIT, for the identifier; one for datagrams goes on to RTS.
    ///
    /// # Safety
    ///
    /// The identifier lives.
    pub(crate) unsafe fn init(&self, id: *mut rdma_cm_id) -> Result<(), Error> {
        let mut lock = self.raw.lock();
        let raw = lock.as_mut().ok_or(Error::Missing("the queue pair"))?;
        // SAFETY: as the caller says.
        unsafe { self.step(raw, id, IBV_QPS_INIT, &Connecting::default())? };
        if self.kind != QpType::Ud {
            return Ok(());
        }
        // There is no peer to agree with: see the table in ibv_modify_qp(3).
        for (state, mask) in [(IBV_QPS_RTR, IBV_QP_STATE), (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN)] {
            // SAFETY: numbers: all zeros are attributes.
            let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
            attr.qp_state = state;
            self.modify(raw, &mut attr, mask as i32)?;
        }
        Ok(())
    }

    fn modify(&self, raw: &mut Raw, attr: &mut ibv_qp_attr, mask: i32) -> Result<(), Error> {
        // SAFETY: the queue pair lives; the attributes are read.
        number(unsafe { (self.pd.system().calls.ibv_modify_qp)(raw.qp.as_ptr(), attr, mask) })?;
        raw.state = match attr.qp_state {
            IBV_QPS_INIT => QpState::Init,
            IBV_QPS_RTR => QpState::Rtr,
            _ => QpState::Rts,
        };
        Ok(())
    }

    /// From INIT to RTR and RTS, for the identifier.
    ///
    /// # Safety
    ///
    /// The identifier lives.
    pub(crate) unsafe fn connect(&self, id: *mut rdma_cm_id, how: &Connecting) -> Result<(), Error> {
        let mut lock = self.raw.lock();
        let raw = lock.as_mut().ok_or(Error::Missing("the queue pair"))?;
        // Once more to INIT: the connection manager knows the rights only now.
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            // SAFETY: as the caller says.
            unsafe { self.step(raw, id, state, how)? };
        }
        Ok(())
    }

    /// # Safety
    ///
    /// The identifier lives.
    unsafe fn step(
        &self,
        raw: &mut Raw,
        id: *mut rdma_cm_id,
        state: u32,
        how: &Connecting,
    ) -> Result<(), Error> {
        let calls = &self.pd.system().calls;
        // SAFETY: numbers: all zeros are attributes.
        let (mut attr, mut mask): (ibv_qp_attr, i32) = (unsafe { std::mem::zeroed() }, 0);
        attr.qp_state = state;
        // SAFETY: the identifier lives, as the caller says; both are written.
        let asked = minus_one(unsafe { (calls.rdma_init_qp_attr)(id, &raw mut attr, &raw mut mask) });
        asked.map_err(crate::id::gone)?;
        let mask_has = |bit: u32| mask as u32 & bit != 0;
        if mask_has(IBV_QP_ACCESS_FLAGS) {
            // Memory says by its own rights what peers may do: the queue pair allows all of it.
            let flush = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
            let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | flush;
            attr.qp_access_flags |= self.pd.device.possible(all);
        }
        if mask_has(IBV_QP_MIN_RNR_TIMER) {
            attr.min_rnr_timer = how.min_rnr_timer;
        }
        if mask_has(IBV_QP_MAX_DEST_RD_ATOMIC) {
            attr.max_dest_rd_atomic = how.responder_resources.unwrap_or(attr.max_dest_rd_atomic);
            raw.attr.responder_resources = attr.max_dest_rd_atomic;
        }
        if mask_has(IBV_QP_MAX_QP_RD_ATOMIC) {
            attr.max_rd_atomic = how.initiator_depth.unwrap_or(attr.max_rd_atomic);
            (raw.attr.initiator_depth, raw.attr.retry_count) = (attr.max_rd_atomic, attr.retry_cnt);
        }
        if mask_has(IBV_QP_TIMEOUT) {
            attr.timeout = how.ack_timeout.unwrap_or(attr.timeout);
        }
        self.modify(raw, &mut attr, mask)
    }

    /// To the error state: what is under way is flushed.
    pub fn fail(&self) {
        let mut lock = self.raw.lock();
        let Some(raw) = lock.as_mut() else { return };
        // SAFETY: numbers: all zeros are attributes.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = IBV_QPS_ERR;
        raw.state = QpState::Error;
        // SAFETY: the queue pair lives; the attributes are read. A refusal leaves it to `destroy`.
        _ = unsafe {
            (self.pd.system().calls.ibv_modify_qp)(raw.qp.as_ptr(), &raw mut attr, IBV_QP_STATE as i32)
        };
    }

    // ---- datagrams ----

    /// The handle for datagrams from an address of ours to another.
    ///
    /// # Errors
    ///
    /// Those of [`Ah::new`].
    pub fn handle(&self, from: IpAddr, to: IpAddr, traffic_class: u8) -> Result<Arc<Ah>, Error> {
        let key = (from, to, traffic_class);
        if let Some(known) = self.known.lock().get(&key) {
            return Ok(known.clone());
        }
        let made = Ah::new(&self.pd, from, to, traffic_class)?;
        let mut known = self.known.lock();
        let many = if known.len() >= HANDLES { std::mem::take(&mut *known) } else { HashMap::new() };
        known.insert(key, made.clone());
        drop(known);
        drop(many);
        Ok(made)
    }

    /// Gets what is sent to a group.
    pub(crate) fn attach(&self, gid: ibv_gid, lid: u16) -> Result<(), Error> {
        let mut lock = self.raw.lock();
        let raw = lock.as_mut().ok_or(Error::Missing("the queue pair"))?;
        let group = Group { gid, lid };
        if raw.groups.iter().any(|known| group.is(known)) {
            return Ok(());
        }
        // SAFETY: the queue pair lives; the GID is read.
        number(unsafe {
            (self.pd.system().calls.ibv_attach_mcast)(raw.qp.as_ptr(), &raw const group.gid, lid)
        })?;
        raw.groups.push(group);
        Ok(())
    }

    /// Does not any more; nothing where it did not.
    pub(crate) fn detach(&self, gid: ibv_gid) {
        let mut lock = self.raw.lock();
        let Some(raw) = lock.as_mut() else { return };
        let wanted = Group { gid, lid: 0 };
        let Some(at) = raw.groups.iter().position(|known| wanted.is(known)) else { return };
        let group = raw.groups.swap_remove(at);
        self.leave(raw.qp, &group);
    }

    fn leave(&self, qp: NonNull<ibv_qp>, group: &Group) {
        // SAFETY: the queue pair lives; the GID is read. A refusal shows when the queue pair is
        // destroyed.
        _ = unsafe {
            (self.pd.system().calls.ibv_detach_mcast)(qp.as_ptr(), &raw const group.gid, group.lid)
        };
    }

    // ---- the end ----

    /// Destroys the queue pair: nothing of its memory is touched from now on. No completion comes,
    /// but for those that are in the queue. False where the library refuses: then its memory must
    /// stay for ever.
    pub fn destroy(&self) -> bool {
        let system = self.pd.system();
        if !system.is_ours() {
            return false;
        }
        let Some(raw) = self.raw.lock().take() else { return true };
        for window in raw.windows.iter().filter_map(Weak::upgrade) {
            // A refusal shows when it is dropped.
            _ = window.free();
        }
        raw.groups.iter().for_each(|group| self.leave(raw.qp, group));
        // SAFETY: it lives, and no other thread has it any more.
        let gone = unsafe { (system.calls.ibv_destroy_qp)(raw.qp.as_ptr()) } == 0;
        if !gone {
            system.leak();
            // What is under way names them.
            std::mem::forget(raw.handles);
        }
        gone
    }
}

impl Group {
    fn is(&self, other: &Self) -> bool {
        // SAFETY: any sixteen bytes are a GID.
        unsafe { self.gid.raw == other.gid.raw }
    }
}

/// Makes the C object: an extended one, where the device can do more by that and the library knows
/// of it.
///
/// # Safety
///
/// What the attributes name lives.
unsafe fn create(pd: &Pd, mut init: ibv_qp_init_attr) -> Result<(NonNull<ibv_qp>, Option<Extended>), Error> {
    let calls = &pd.system().calls;
    if init.qp_type == IBV_QPT_RC {
        // SAFETY: context and domain live, and the rest as the caller says.
        let made =
            unsafe { Extended::create(calls, pd.device.context(), pd.raw(), &init, pd.device.capabilities) };
        if let Some((qp, extended)) = made {
            return Ok((qp, Some(extended)));
        }
    }
    // SAFETY: as above; the attributes are read and written.
    let plain = object(unsafe { (calls.ibv_create_qp)(pd.raw(), &raw mut init) })?;
    Ok((plain, None))
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}
