//! What carries a queue pair's requests: the one door to the stack below. Work requests and
//! completions are those of `transport`, whatever the stack.

use std::sync::Arc;

use nic::device::async_events::AsyncEventQueue;
use nic::{Access, Arm, Buffer, PostFlags, QpCap, QpInit, QpState, QpType, Signal};
use transport::op::{Completion, RecvWr, SendWr, Sge};
use wire::Qpn;

use super::completions::{Completions, EventSignal};
use super::{QueueConfig, Srq};
use crate::error::{Error, Result};
use crate::provider::{Domain, Pd, Stack};
use crate::ud::To;

/// Where the queue pair's own words begin, as work requests name them.
const WORDS: u64 = 1 << 12;

/// A queue pair of the stack below, with a completion queue of its own unless it shares one.
pub(crate) enum Carrier {
    Ours(Box<Ours>),
    #[cfg(feature = "system")]
    System(Theirs),
}

/// The machine's libraries'.
#[cfg(feature = "system")]
pub(crate) struct Theirs {
    qp: Arc<rdma_core::Qp>,
    /// Of its own; none where they come to a shared queue.
    completions: Option<Completions>,
}

/// Verbena's own.
pub(crate) struct Ours {
    nic: Arc<nic::Qp>,
    /// Of its own; none where they come to a shared queue.
    completions: Option<Completions>,
    /// Eight bytes for each entry of the send queue: what atomics bring back.
    words: Buffer,
}

/// Asynchronous events say nothing that completions and the connection manager do not.
struct Unheard;

impl Signal for Unheard {
    fn signal(&self) {}
    fn take_back(&self) {}
}

/// What both sides have agreed on, and what this one does.
pub(crate) struct Agreed {
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
}

impl Carrier {
    /// A queue pair in state Reset, whose sizes are in range; its completion queue, armed by
    /// [`Carrier::arm`], fires the signal.
    pub(crate) fn create(
        pd: &Pd,
        config: &QueueConfig,
        kind: QpType,
        signal: &Arc<EventSignal>,
    ) -> Result<Self> {
        match pd.domain() {
            Domain::Ours(domain) => {
                Ours::create(pd, domain, config, kind, signal).map(Box::new).map(Carrier::Ours)
            }
            #[cfg(feature = "system")]
            Domain::System(domain) => Theirs::create(pd, domain, config, kind, signal)
                .map(Carrier::System)
                .map_err(|e| Error::of_nic("ibv_create_qp", e)),
        }
    }
    /// Verbena's own.
    ///
    /// # Errors
    ///
    /// `Unsupported` for another stack's.
    #[allow(clippy::unnecessary_wraps, reason = "not all queue pairs are")]
    pub(crate) fn nic(&self) -> Result<&Arc<nic::Qp>> {
        match self {
            Self::Ours(ours) => Ok(&ours.nic),
            #[cfg(feature = "system")]
            Self::System(_) => Err(crate::stack::unsupported()),
        }
    }
    /// The queue pair's number.
    pub(crate) fn qpn(&self) -> Qpn {
        match self {
            Self::Ours(ours) => ours.nic.qpn(),
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.qp.qpn(),
        }
    }
    /// The queue pair's state.
    pub(crate) fn state(&self) -> QpState {
        match self {
            Self::Ours(ours) => ours.nic.state(),
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.qp.state(),
        }
    }
    /// Of a connection that stands.
    pub(crate) fn agreed(&self) -> Agreed {
        match self {
            Self::Ours(ours) => {
                let attr = ours.nic.query();
                Agreed {
                    responder_resources: attr.max_dest_rd_atomic,
                    initiator_depth: attr.max_rd_atomic,
                    retry_count: attr.retry_cnt,
                }
            }
            #[cfg(feature = "system")]
            Self::System(theirs) => {
                let agreed = theirs.qp.agreed();
                let rdma_core::qp::Agreed { responder_resources, initiator_depth, retry_count } = agreed;
                Agreed { responder_resources, initiator_depth, retry_count }
            }
        }
    }

    /// Begins to post one request, or several, to the send queue. They are posted in one order: the
    /// caller holds the lock of the program's entries.
    #[inline]
    pub(crate) fn sender<'a>(&'a self, stack: &'a Stack, several: bool) -> Sender<'a> {
        match self {
            Self::Ours(ours) => Sender::Ours(ours.nic.sender_asking(stack), several),
            #[cfg(feature = "system")]
            Self::System(theirs) => Sender::System(&theirs.qp, several.then(Vec::new)),
        }
    }
    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// `QueueFull`, `WrongState`, `OutOfRange`.
    pub(crate) fn post_receive(&self, wr: RecvWr) -> Result<()> {
        match self {
            Self::Ours(ours) => {
                ours.nic.post_receive(wr).map_err(|e| Error::of_errno("ibv_post_recv", e.errno()))
            }
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.qp.post_receive(&wr).map_err(|e| of_refusal("ibv_post_recv", e)),
        }
    }
    /// Where the answer of the atomic in this entry of the send queue goes.
    pub(crate) fn word(&self, entry: u32) -> Sge {
        match self {
            Self::Ours(ours) => ours.words.sge(entry as usize * 8, 8),
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.qp.words().sge(entry as usize),
        }
    }
    /// What has been brought there.
    pub(crate) fn read_word(&self, entry: u32) -> u64 {
        match self {
            Self::Ours(ours) => {
                ours.words.read(entry as usize * 8, 8).try_into().map_or(0, u64::from_ne_bytes)
            }
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.qp.words().read(entry as usize),
        }
    }

    /// Takes up to `most` completions of its own queue; how many there were. It can not be overrun:
    /// it has room for all that may be under way.
    pub(crate) fn poll(&self, most: usize, take: impl FnMut(Completion)) -> usize {
        self.completions().map_or(0, |own| own.poll(most, take))
    }
    /// The queue pair's own completion queue, where it shares none.
    fn completions(&self) -> Option<&Completions> {
        match self {
            Self::Ours(ours) => ours.completions.as_ref(),
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.completions.as_ref(),
        }
    }
    /// Takes what has arrived, in this thread, where there are no completions; whether there may be
    /// some.
    #[inline]
    pub(crate) fn look(&self, stack: &Stack) -> bool {
        self.completions().is_none_or(|own| own.look(stack))
    }
    /// The next completion of its own queue fires the signal, or the next that is an error or that
    /// the peer asks for.
    pub(crate) fn ring_for(&self, arm: Arm) {
        self.completions().into_iter().for_each(|own| own.ring_for(arm));
    }
    /// Whether there are completions that no thread has taken.
    pub(crate) fn has_completions(&self) -> bool {
        self.completions().is_some_and(|own| !own.is_empty())
    }
    /// The signal has fired: drains, and has it ring again, until nothing came meanwhile.
    pub(crate) fn attend(&self, drain: impl FnMut(), again: impl FnMut()) {
        if let Some(own) = self.completions() {
            own.attend_as(drain, again);
        }
    }

    /// To the error state: what is under way is flushed.
    pub(crate) fn fail(&self, pd: &Pd) {
        match self {
            Self::Ours(ours) => ours.nic.fail(pd.stack().now()),
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs.qp.fail(),
        }
    }
    /// Destroys the queue pair: nothing of its memory is touched from now on. No completion comes
    /// after those that `drain` takes. Once. False where the stack below refuses: then its memory
    /// must stay for ever.
    #[cfg_attr(not(feature = "system"), allow(unused_variables, reason = "ours leaves none"))]
    pub(crate) fn destroy(&self, drain: impl FnOnce()) -> bool {
        let is_gone = match self {
            Self::Ours(ours) => {
                ours.nic.destroy();
                true
            }
            #[cfg(feature = "system")]
            Self::System(theirs) => {
                let is_gone = theirs.qp.destroy();
                // Of a kernel's there may be some in the queue, which a shared receive queue
                // misses.
                drain();
                is_gone
            }
        };
        self.completions().iter().for_each(|own| own.end());
        is_gone
    }
    /// Whether the stack below does what a request asks for.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    #[cfg_attr(
        not(feature = "system"),
        expect(clippy::unnecessary_wraps, unused_variables, reason = "only another stack refuses anything")
    )]
    #[inline]
    pub(crate) fn check(&self, request: impl FnOnce() -> SendWr) -> Result<()> {
        match self {
            Self::Ours(_) => Ok(()),
            #[cfg(feature = "system")]
            Self::System(theirs) => theirs
                .qp
                .check(&request())
                .map_err(|what| of_refusal("ibv_post_send", rdma_core::Refusal::Unsupported(what))),
        }
    }
}

#[cfg(feature = "system")]
impl Theirs {
    fn create(
        pd: &Pd,
        domain: &Arc<rdma_core::Pd>,
        config: &QueueConfig,
        kind: QpType,
        signal: &Arc<EventSignal>,
    ) -> Result<Self, nic::Error> {
        let &QueueConfig { send_depth, recv_depth, max_send_sge, max_inline, .. } = config;
        nic::in_range("max_send_sge", max_send_sge, 0_u32, nic::limits::MAX_SGE)?;
        nic::in_range("max_inline", max_inline, 0_u32, nic::limits::MAX_INLINE)?;
        let completions = match &config.cq {
            Some(_) => None,
            None => {
                let receives = config.srq.as_ref().map_or(recv_depth, Srq::depth);
                Some(Completions::new(pd.device(), send_depth + receives, signal)?)
            }
        };
        let shared = config.cq.as_ref().map(|cq| cq.inner().completions());
        let own = completions.as_ref().or(shared).ok_or(nic::Error::Missing("the completion queue"))?;
        let srq = config.srq.as_ref().map(|srq| srq.inner().system()).transpose()?;
        let sizes = rdma_core::Sizes {
            send_wr: send_depth,
            recv_wr: if srq.is_some() { 0 } else { recv_depth },
            send_sge: max_send_sge,
            inline: max_inline,
        };
        let qp = rdma_core::Qp::new(domain, kind, sizes, own.system()?, srq)?;
        Ok(Self { qp: Arc::new(qp), completions })
    }

    /// The library's.
    pub(crate) fn qp(&self) -> &Arc<rdma_core::Qp> {
        &self.qp
    }
}

impl Ours {
    fn create(
        pd: &Pd,
        domain: &Arc<nic::Pd>,
        config: &QueueConfig,
        kind: QpType,
        signal: &Arc<EventSignal>,
    ) -> Result<Self> {
        let failed = |e| Error::of_nic("ibv_create_qp", e);
        let &QueueConfig { send_depth, recv_depth, max_send_sge, max_inline, .. } = config;
        let device = pd.device().nic()?;
        let events = AsyncEventQueue::new(Box::new(Unheard));
        let (completions, cq) = match &config.cq {
            Some(shared) => (None, shared.inner().completions().ours().map_err(failed)?.clone()),
            None => {
                let receives = config.srq.as_ref().map_or(recv_depth, Srq::depth);
                let own = Completions::new(pd.device(), send_depth + receives, signal).map_err(failed)?;
                let cq = own.ours().map_err(failed)?.clone();
                (Some(own), cq)
            }
        };
        let srq = config.srq.as_ref().map(|srq| srq.inner().below().map(Arc::clone)).transpose()?;
        let cap = QpCap {
            max_send_wr: send_depth,
            max_recv_wr: if srq.is_some() { 0 } else { recv_depth },
            max_send_sge,
            max_recv_sge: 1,
            max_inline_data: max_inline,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq);
        let init = QpInit { kind, send_cq, recv_cq, srq, cap, sq_sig_all: true, events };
        let words =
            Buffer::new(domain, send_depth as usize * 8, WORDS, Access::LOCAL_WRITE).map_err(failed)?;
        let nic = nic::Qp::create(device, domain, init).map_err(failed)?;
        Ok(Self { nic, completions, words })
    }

    /// The adapter's.
    pub(crate) fn nic(&self) -> &Arc<nic::Qp> {
        &self.nic
    }
}

/// Requests on their way into the send queue of the stack below.
pub(crate) enum Sender<'a> {
    /// The adapter's, and whether there may be several requests.
    Ours(nic::Sender<'a>, bool),
    #[cfg(feature = "system")]
    /// Several are posted when all are there.
    System(&'a rdma_core::Qp, Option<Vec<SendWr>>),
}

#[cfg(feature = "system")]
pub(super) fn of_refusal(call: &'static str, refusal: rdma_core::Refusal) -> Error {
    use rdma_core::Refusal;
    match refusal {
        Refusal::Post(error) => Error::of_post(call, error),
        Refusal::Unsupported(what) => {
            let text = crate::Value::Text(format!("{what} over the machine's libraries"));
            Error::new(crate::ErrorKind::Unsupported, call).with(text)
        }
        Refusal::System(errno) => Error::of_errno(call, errno),
    }
}

/// Requests that were not posted after all, by their wr_id.
pub(crate) type NotPosted = Vec<(u64, Error)>;

impl Sender<'_> {
    /// Posts one; it leaves with [`Sender::finish`] at the latest. Of an XRC initiator it is for
    /// the shared receive queue of this number.
    ///
    /// # Errors
    ///
    /// `QueueFull`, `WrongState`, `OutOfRange`, `Unsupported`: it was not posted.
    #[cfg_attr(feature = "system", allow(unused_variables, reason = "there is no XRC over it"))]
    #[inline]
    pub(crate) fn post(&mut self, mut wr: SendWr, srq: u32) -> Result<()> {
        const CALL: &str = "ibv_post_send";
        match self {
            Sender::Ours(sender, several) => {
                let flags = PostFlags { last: !*several && srq == 0, keep: false, srq };
                sender.post(&mut wr, flags).map_err(|e| Error::of_post(CALL, e))
            }
            #[cfg(feature = "system")]
            Sender::System(qp, None) => qp.post_send(&wr).map_err(|e| of_refusal(CALL, e)),
            #[cfg(feature = "system")]
            Sender::System(qp, Some(list)) => {
                qp.check_fits(&wr).map_err(|e| of_refusal(CALL, e))?;
                list.push(wr);
                Ok(())
            }
        }
    }
    /// Like [`Sender::post`], but leaves the request as it is, to be posted again.
    ///
    /// # Errors
    ///
    /// Likewise.
    #[inline]
    pub(crate) fn post_kept(&mut self, wr: &mut SendWr) -> Result<()> {
        match self {
            Sender::Ours(sender, false) => {
                let flags = PostFlags { keep: true, ..PostFlags::LAST };
                sender.post(wr, flags).map_err(|e| Error::of_post("ibv_post_send", e))
            }
            other => other.post(wr.clone(), 0),
        }
    }
    /// Like [`Sender::post`], for a datagram queue pair.
    ///
    /// # Errors
    ///
    /// Likewise; `Unreachable`.
    pub(crate) fn post_datagram(&mut self, mut wr: SendWr, to: &To) -> Result<()> {
        const CALL: &str = "ibv_post_send";
        match (self, to) {
            (Sender::Ours(sender, _), To::Ours(to)) => {
                sender.post_datagram(&mut wr, to).map_err(|e| Error::of_post(CALL, e))
            }
            #[cfg(feature = "system")]
            (Sender::System(qp, _), To::System(to)) => {
                qp.post_datagram(&wr, to).map_err(|e| of_refusal(CALL, e))
            }
            #[cfg(feature = "system")]
            _ => Err(Error::new(crate::ErrorKind::WrongDomain, CALL)),
        }
    }
    /// What was posted leaves; what does not after all.
    #[inline]
    pub(crate) fn finish(self) -> NotPosted {
        match self {
            Sender::Ours(sender, _) => {
                sender.finish();
                Vec::new()
            }
            #[cfg(feature = "system")]
            Sender::System(qp, list) => {
                let list = list.unwrap_or_default();
                let Err((posted, why)) = qp.post_sends(&list) else { return Vec::new() };
                let error = of_refusal("ibv_post_send", why);
                list.into_iter().skip(posted).map(|wr| (wr.wr_id, error.clone())).collect()
            }
        }
    }
}
