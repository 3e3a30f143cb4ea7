//! Queue pairs (RC), each with a completion queue and a completion channel of its own.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use abi::cma::rdma_cm_id;
use abi::verbs::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC,
    ibv_comp_channel, ibv_cq, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_wc,
};
use locks::{Mutex, Rank};
use nic::{Access, Error, QpState, Signal};
use transport::op::Completion;
use wire::Qpn;

use crate::device::Pd;
use crate::extended::Extended;
use crate::memory::Words;
use crate::reactor::{Watch, set_nonblocking};
use crate::{minus_one, number, object, wr};

/// Completions taken at once.
const BATCH: usize = 32;

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
    qpn: Qpn,
    pub(crate) sizes: Sizes,
    words: Words,
    pub(crate) extended: Option<Extended>,
    pub(crate) raw: Mutex<Option<Raw>>,
}

/// The C objects.
pub(crate) struct Raw {
    pub(crate) qp: NonNull<ibv_qp>,
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    watch: Option<Watch>,
    /// The channel will tell of the next completion.
    armed: bool,
    /// What it was moved to last.
    state: QpState,
    attr: Agreed,
}

// SAFETY: the objects may be used by all threads; the lock says that nobody destroys them meanwhile.
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
    /// Those that it starts at once.
    pub initiator_depth: u8,
    /// Retries after a timeout.
    pub retry_count: u8,
}

/// How it is connected; `None`: as the connection manager says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connecting {
    /// READs and atomics that it serves at once.
    pub responder_resources: Option<u8>,
    /// Those that it starts at once.
    pub initiator_depth: Option<u8>,
    /// Code of the local ACK timeout.
    pub ack_timeout: Option<u8>,
    /// Code of the RNR NAK timer.
    pub min_rnr_timer: u8,
}

impl Qp {
    /// One in state Reset; `signal` is called, with no lock held, when a completion has come after [`Qp::arm`].
    ///
    /// # Errors
    ///
    /// Errno of ibv_create_comp_channel(3), ibv_create_cq(3), ibv_create_qp(3): EINVAL for sizes that the device does not have.
    pub fn new(pd: &Arc<Pd>, sizes: Sizes, signal: Arc<dyn Signal + Send + Sync>) -> Result<Qp, Error> {
        let (system, context) = (pd.system(), pd.device.context());
        let calls = &system.calls;
        let words = Words::new(pd, sizes.send_wr as usize)?;
        // SAFETY: the context lives.
        let channel = object(unsafe { (calls.ibv_create_comp_channel)(context) })?;
        // What is made is destroyed again where the next is refused.
        // SAFETY: of `channel`, `cq`: they live, and nobody has them afterwards.
        let drop_channel = |e| unsafe {
            if (calls.ibv_destroy_comp_channel)(channel.as_ptr()) != 0 {
                system.leak();
            }
            e
        };
        let entries = i32::try_from(sizes.send_wr + sizes.recv_wr).unwrap_or(i32::MAX);
        // SAFETY: context and channel live; the queue has no context of its own.
        let cq = unsafe { (calls.ibv_create_cq)(context, entries, null_mut(), channel.as_ptr(), 0) };
        let cq = object(cq).map_err(drop_channel)?;
        // SAFETY: as above.
        let drop_cq = |e| unsafe {
            if (calls.ibv_destroy_cq)(cq.as_ptr()) != 0 {
                system.leak();
            }
            drop_channel(e)
        };
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sizes.send_wr,
                max_recv_wr: sizes.recv_wr,
                max_send_sge: sizes.send_sge,
                max_recv_sge: 1,
                max_inline_data: sizes.inline,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: context, domain and queue live.
        let extended = unsafe { Extended::create(calls, context, pd.raw(), &init, pd.device.capabilities) };
        let (qp, extended) = match extended {
            Some((qp, extended)) => (qp, Some(extended)),
            None => {
                // SAFETY: as above; the attributes are read and written.
                let plain = object(unsafe { (calls.ibv_create_qp)(pd.raw(), &raw mut init) });
                (plain.map_err(drop_cq)?, None)
            }
        };
        let raw = Raw {
            qp,
            cq,
            channel,
            watch: None,
            armed: false,
            state: QpState::Reset,
            attr: Agreed::default(),
        };
        // SAFETY: both were just made.
        let (qpn, fd) = unsafe { (Qpn::new(qp.as_ref().qp_num), channel.as_ref().fd) };
        let raw = Mutex::new(Rank::SystemQp, Some(raw));
        let made = Qp { pd: pd.clone(), qpn, sizes, words, extended, raw };
        set_nonblocking(fd)?;
        let watch = system.reactor.watch(fd, signal)?;
        if let Some(raw) = &mut *made.raw.lock() {
            raw.watch = Some(watch);
        }
        Ok(made)
    }

    /// Its number.
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
    /// Its state, as the library says it: a failure moves it.
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
            abi::verbs::IBV_QPS_RESET => QpState::Reset,
            IBV_QPS_INIT => QpState::Init,
            IBV_QPS_RTR => QpState::Rtr,
            IBV_QPS_RTS => QpState::Rts,
            abi::verbs::IBV_QPS_SQD => QpState::Sqd,
            abi::verbs::IBV_QPS_SQE => QpState::Sqe,
            _ => QpState::Error,
        }
    }

    // ---- states ----

    /// To INIT, for the identifier.
    ///
    /// # Safety
    ///
    /// The identifier lives.
    pub(crate) unsafe fn init(&self, id: *mut rdma_cm_id) -> Result<(), Error> {
        let mut lock = self.raw.lock();
        let raw = lock.as_mut().ok_or(Error::Missing("the queue pair"))?;
        // SAFETY: as the caller says.
        unsafe { self.step(raw, id, IBV_QPS_INIT, &Connecting::default()) }
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
        // SAFETY: the queue pair lives; the attributes are read.
        number(unsafe { (calls.ibv_modify_qp)(raw.qp.as_ptr(), &raw mut attr, mask) })?;
        raw.state = match state {
            IBV_QPS_INIT => QpState::Init,
            IBV_QPS_RTR => QpState::Rtr,
            _ => QpState::Rts,
        };
        Ok(())
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

    // ---- completions ----

    /// Takes up to `most` completions; how many there were.
    pub fn poll(&self, most: usize, mut take: impl FnMut(Completion)) -> usize {
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let count = {
            let lock = self.raw.lock();
            let Some(raw) = &*lock else { return 0 };
            // SAFETY: the queue lives; its context has the functions that verbs.h calls; there is room for so many.
            let count = unsafe {
                let Some(poll) = (*raw.cq.as_ref().context).ops.poll_cq else { return 0 };
                poll(raw.cq.as_ptr(), most.min(BATCH) as i32, batch.as_mut_ptr().cast())
            };
            usize::try_from(count).unwrap_or(0)
        };
        for wc in batch.iter().take(count) {
            // SAFETY: written, as the count says.
            take(wr::completion(unsafe { wc.assume_init_ref() }));
        }
        count
    }

    /// Takes what the channel tells: it may tell again when it is armed.
    pub fn clear(&self) {
        let mut lock = self.raw.lock();
        let Some(raw) = lock.as_mut() else { return };
        let calls = &self.pd.system().calls;
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel lives, and does not block; its one queue lives, whose events are acknowledged at once, so that destroying it
        // waits for nobody.
        unsafe {
            while (calls.ibv_get_cq_event)(raw.channel.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                (calls.ibv_ack_cq_events)(cq, 1);
                raw.armed = false;
            }
        }
    }

    /// The channel tells of the next completion. True where some may have come before: then clear and look once more.
    pub fn arm(&self) -> bool {
        let mut lock = self.raw.lock();
        let Some(raw) = lock.as_mut().filter(|raw| !raw.armed) else { return false };
        // SAFETY: the queue lives; its context has the functions that verbs.h calls.
        raw.armed = unsafe {
            let notify = (*raw.cq.as_ref().context).ops.req_notify_cq;
            notify.is_some_and(|notify| notify(raw.cq.as_ptr(), 0) == 0)
        };
        raw.armed
    }

    /// It is no more: nothing of its memory is touched from now on, no completion comes. False where the library refuses: then its memory
    /// must stay for ever.
    pub fn destroy(&self) -> bool {
        let system = self.pd.system();
        if !system.is_ours() {
            return false;
        }
        let Some(mut raw) = self.raw.lock().take() else { return true };
        if let Some(watch) = raw.watch.take() {
            system.reactor.forget(watch);
        }
        // SAFETY: all three live, and nobody else has them any more.
        unsafe {
            if (system.calls.ibv_destroy_qp)(raw.qp.as_ptr()) != 0 {
                system.leak();
                return false;
            }
            if (system.calls.ibv_destroy_cq)(raw.cq.as_ptr()) != 0
                || (system.calls.ibv_destroy_comp_channel)(raw.channel.as_ptr()) != 0
            {
                system.leak();
            }
        }
        true
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}
