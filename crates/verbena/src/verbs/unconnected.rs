//! Queue pairs that connect without rdma_cm: each side tells the other its [`Endpoint`] by ways of
//! its own (ibv_modify_qp(3)).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nic::{Access, AddressVector, QpAttr, QpState, QpType, mask};
use wire::{Psn, Qpn};

use super::ConnectAttr;
use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::{Device, Pd, Stack};
use crate::qp::inner::QpInner;
use crate::qp::{HasPeer, QueueConfig, QueuePair, Rc, Transport};
use crate::stack::node;

/// The C function that this file is about, as errors name it.
const CALL: &str = "ibv_modify_qp";
/// READs and atomics at once, in either direction: what any adapter has.
const RD_ATOMIC: u8 = 16;
/// How long a peer waits that found no receive posted: code 12, 0.64 ms.
const RNR_TIMER: u8 = 12;
/// Local ACK timeout: 4.096 us * 2^14, 67 ms.
const TIMEOUT: u8 = 14;
/// Of a timeout, and of a peer without receives, where it means without end.
const RETRIES: u8 = 7;
const HOP_LIMIT: u8 = 64;

/// What one side of two queue pairs that connect without rdma_cm tells the other. Plain data.
///
/// ```
/// use verbena::verbs::Endpoint;
///
/// // As the peer's program told it.
/// let peer = Endpoint::new([10, 0, 0, 2].into(), 0x17, 0x00ab_cdef);
/// assert_eq!((peer.qp_num, peer.psn), (0x17, 0x00ab_cdef));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// Number of the queue pair, 24 bits.
    pub qp_num: u32,
    /// PSN of its first request, 24 bits.
    pub psn: u32,
    /// The queue pair's address; GIDs and their indices are the crate's business.
    pub addr: IpAddr,
}

impl Endpoint {
    /// The queue pair `qp_num` at `addr`, whose first request has the PSN `psn`.
    pub fn new(addr: IpAddr, qp_num: u32, psn: u32) -> Self {
        Self { qp_num, psn, addr }
    }
}

/// A queue pair on its way to RTS by hand: in state Init, its receives posted.
///
/// ```no_run
/// # fn exchange(ours: verbena::verbs::Endpoint) -> verbena::verbs::Endpoint { ours }
/// # fn f(pd: verbena::Pd) -> verbena::Result<()> {
/// let ours = verbena::verbs::Unconnected::<verbena::Rc>::new(&pd, [10, 0, 0, 1].into(), &Default::default())?;
/// let theirs = exchange(ours.endpoint());
/// let qp = ours.connect(theirs)?;
/// qp.send_inline(b"hello").wait()?;
/// # Ok(()) }
/// ```
///
/// The peer is not told of its end: the peer's next request to it times out. The last handle of the
/// queue pair destroys it, and flushes what is under way.
#[must_use = "a queue pair that is not connected does nothing"]
pub struct Unconnected<T: HasPeer = Rc> {
    qp: QueuePair<T>,
    inner: Arc<QpInner>,
    psn: u32,
    from: IpAddr,
}

impl<T: HasPeer> Unconnected<T> {
    /// A new one that sends from this address of the domain's device. One that receives nothing has
    /// no receives, whatever `queues` say.
    ///
    /// # Errors
    ///
    /// `Unreachable` where the device does not bear the address, `OutOfRange`, `Exhausted`,
    /// `AddressInUse` where the UDP port of the device belongs to another user; `Unsupported`
    /// over the machine's rdma-core.
    pub fn new(pd: &Pd, from: IpAddr, queues: &QueueConfig) -> Result<Self> {
        let psn = random_psn(pd.device(), from)?;
        let inner = match T::KIND {
            QpType::XrcSend => {
                let queues = QueueConfig { recv_depth: 0, srq: None, ..queues.clone() };
                QpInner::create(pd, &queues, T::KIND)?
            }
            kind => QpInner::create(pd, queues, kind)?,
        };
        to_init(inner.stack(), inner.carrier().nic()?)?;
        inner.post_receives()?;
        Ok(Self { qp: QueuePair::new(inner.clone()), inner, psn, from })
    }

    /// What to tell the peer.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { qp_num: self.qp.number(), psn: self.psn, addr: self.from }
    }

    /// To RTR and RTS: the MTU of the link, which both links must have alike; a local ACK timeout
    /// of 67 ms, 7 retries, no end of waiting for receives, 16 READs and atomics at once.
    ///
    /// # Errors
    ///
    /// `Unreachable` for an address of another family; `WrongState`.
    pub fn connect(self, peer: Endpoint) -> Result<QueuePair<T>> {
        let Self { qp, inner, psn, from } = self;
        let attr = toward(inner.pd().device(), from, psn, peer)?;
        to_rts(inner.stack(), inner.carrier().nic()?, T::KIND, &attr)?;
        Ok(qp)
    }

    /// To RTR and RTS with what rdma_cm has negotiated for it
    /// ([`Id::attributes`](crate::cm::raw::Id::attributes)); the PSN of
    /// [`Unconnected::endpoint`] means nothing then.
    ///
    /// # Errors
    ///
    /// `OutOfRange`; `WrongState` where the path's addresses are gone.
    pub fn connect_with(self, attr: &ConnectAttr) -> Result<QueuePair<T>> {
        let Self { qp, inner, .. } = self;
        to_rts(inner.stack(), inner.carrier().nic()?, T::KIND, &attr.nic()?)?;
        Ok(qp)
    }
}

impl<T: Transport> QueuePair<T> {
    /// Moves the queue pair to the error state: what is under way is flushed, and receivers get
    /// `None` after the messages that came. For queue pairs made by hand; the peer of a connection
    /// is told that it has ended.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn fail(&self) -> Result<()> {
        let inner = self.inner();
        inner.stack().check(CALL)?;
        inner.fail();
        inner.ended(Error::new(ErrorKind::Disconnected, CALL));
        Ok(())
    }
}

/// The first PSN of a queue pair that will send from this address, whose device can send from now
/// on.
pub(super) fn random_psn(device: &Device, from: IpAddr) -> Result<u32> {
    let (ours, nic) = (device.stack().ours()?, device.nic()?);
    index_of(device, from)?;
    node!(ours, node => {
        node.attach(nic).map_err(|e| Error::of_nic("ibv_open_device", e))?;
        let mut random = [0; 4];
        nic::Platform::fill_random(&**node.env(), &mut random);
        Ok(Psn::new(u32::from_ne_bytes(random)).get())
    })
}

/// To state Init.
pub(super) fn to_init(stack: &Stack, qp: &nic::Qp) -> Result<()> {
    // Memory says by its own rights what peers may do: the queue pair allows all of it.
    let access = Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT;
    let attr = QpAttr { state: QpState::Init, port: 1, access, ..QpAttr::default() };
    modify(stack, qp, &attr, mask::INIT)
}

/// The attributes of a queue pair whose first PSN and address are these, and whose peer this is.
pub(super) fn toward(device: &Device, from: IpAddr, psn: u32, peer: Endpoint) -> Result<QpAttr> {
    if from.is_ipv4() != peer.addr.is_ipv4() {
        return Err(unreachable(peer.addr));
    }
    Ok(QpAttr {
        port: 1,
        av: AddressVector {
            dgid: peer.addr.into(),
            sgid_index: index_of(device, from)?,
            hop_limit: HOP_LIMIT,
            is_global: true,
            port: 1,
            ..AddressVector::default()
        },
        path_mtu: device.nic()?.port().mtu,
        dest_qpn: Qpn::new(peer.qp_num),
        rq_psn: Psn::new(peer.psn),
        sq_psn: Psn::new(psn),
        max_dest_rd_atomic: RD_ATOMIC,
        max_rd_atomic: RD_ATOMIC,
        min_rnr_timer: RNR_TIMER,
        timeout: TIMEOUT,
        retry_cnt: RETRIES,
        rnr_retry: RETRIES,
        ..QpAttr::default()
    })
}

/// To RTR and RTS.
pub(super) fn to_rts(stack: &Stack, qp: &nic::Qp, kind: QpType, attr: &QpAttr) -> Result<()> {
    let lacks = kind.lacks();
    modify(stack, qp, &attr.with_state(QpState::Rtr), mask::RTR & !lacks)?;
    modify(stack, qp, &attr.with_state(QpState::Rts), mask::RTS & !lacks)
}

fn modify(stack: &Stack, qp: &nic::Qp, attr: &QpAttr, bits: u32) -> Result<()> {
    stack.check(CALL)?;
    let modified = qp.modify(stack.now(), attr, bits);
    stack.later().run();
    modified.map_err(|e| Error::of_nic(CALL, e))
}

/// Index of the GID of an address of ours.
fn index_of(device: &Device, address: IpAddr) -> Result<u8> {
    device.nic()?.port().gids.index_of(address).ok_or_else(|| unreachable(address))
}

fn unreachable(address: IpAddr) -> Error {
    Error::new(ErrorKind::Unreachable, CALL).with(Value::Address(SocketAddr::new(address, 0)))
}

impl<T: HasPeer> std::fmt::Debug for Unconnected<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unconnected({:?})", self.endpoint())
    }
}
