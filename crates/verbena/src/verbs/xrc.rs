//! XRC domains and targets (ibv_open_xrcd(3)): one connection between two hosts reaches the shared
//! receive queues of all their parts.

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nic::device::async_events::AsyncEventQueue;
use nic::qp::xrc::domain::Xrcd;
use nic::{QpType, Signal};

use super::unconnected::{random_psn, to_init, to_rts, toward};
use super::{ConnectAttr, Endpoint};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{Device, Pd};
use crate::qp::XrcSrq;

/// An XRC domain: targets, and the shared receive queues that requests to them may name. A handle,
/// clones are the same one; its targets and queues keep it.
///
/// ```no_run
/// use verbena::XrcSend;
/// use verbena::verbs::{Endpoint, Unconnected, XrcDomain};
/// # fn f(pd: verbena::Pd, exchange: impl Fn(Endpoint, u32) -> (Endpoint, u32)) -> verbena::Result<()> {
/// // who receives
/// let domain = XrcDomain::open(pd.device(), None)?;
/// let srq = domain.srq(&pd, 64, 4096)?;
/// let target = domain.target([10, 0, 0, 1].into())?;
/// let (theirs, _) = exchange(target.endpoint(), srq.number());
/// let _target = target.connect(theirs)?;
/// println!("{:?}", srq.blocking_recv()?);
/// // and who sends
/// let ours = Unconnected::<XrcSend>::new(&pd, [10, 0, 0, 2].into(), &Default::default())?;
/// let (theirs, number) = exchange(ours.endpoint(), 0);
/// let qp = ours.connect(theirs)?;
/// qp.to_srq(number).send_inline(b"hello").wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct XrcDomain {
    device: Device,
    nic: Arc<Xrcd>,
}

impl XrcDomain {
    /// A new one; with a file, that of the file's inode in this process, made where there is none.
    ///
    /// # Errors
    ///
    /// `Exhausted` where the device has no more protection domains, of which it is one; what
    /// fstat(2) says of the file; `Forked`; `Unsupported` over the machine's rdma-core.
    pub fn open(device: &Device, file: Option<&File>) -> Result<Self> {
        const CALL: &str = "ibv_open_xrcd";
        device.stack().check(CALL)?;
        let inode = match file.map(File::metadata) {
            Some(Ok(file)) => Some((file.dev(), file.ino())),
            Some(Err(e)) => {
                let errno = nic::Errno(e.raw_os_error().unwrap_or(libc::EIO));
                return Err(Error::of_errno(CALL, errno));
            }
            None => None,
        };
        let nic = device.nic()?.open_xrcd(inode, true, false).map_err(|e| Error::of_nic(CALL, e))?;
        Ok(Self { device: device.clone(), nic })
    }

    /// A shared receive queue of it: `depth` receives (1 to 32768), each with a buffer of `size`
    /// bytes, all of them posted.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `Exhausted`, `Forked`; `WrongDomain` for a protection domain of another
    /// device.
    pub fn srq(&self, pd: &Pd, depth: u32, size: usize) -> Result<XrcSrq> {
        if *pd.device() != self.device {
            return Err(Error::new(ErrorKind::WrongDomain, "ibv_create_srq_ex"));
        }
        XrcSrq::new(&self.nic, pd, depth, size)
    }

    /// A target that receives at this address of the device, not connected yet.
    ///
    /// # Errors
    ///
    /// `Unreachable` where the device does not bear the address; `Exhausted`, `AddressInUse`,
    /// `Forked`.
    pub fn target(&self, at: IpAddr) -> Result<UnconnectedTarget> {
        const CALL: &str = "ibv_create_qp";
        self.device.stack().check(CALL)?;
        let psn = random_psn(&self.device, at)?;
        let events = AsyncEventQueue::new(Box::new(Unheard));
        let nic = nic::Qp::create_target(self.device.nic()?, &self.nic, events)
            .map_err(|e| Error::of_nic(CALL, e))?;
        let target = XrcTarget { device: self.device.clone(), nic };
        to_init(target.device.stack(), &target.nic)?;
        Ok(UnconnectedTarget { target, psn, at })
    }
}

impl std::fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "XrcDomain({})", self.device.name())
    }
}

/// What happens to a target its peer learns of.
struct Unheard;

impl Signal for Unheard {
    fn signal(&self) {}
    fn take_back(&self) {}
}

/// A target in state Init.
#[must_use = "a target that is not connected does nothing"]
pub struct UnconnectedTarget {
    target: XrcTarget,
    psn: u32,
    at: IpAddr,
}

impl UnconnectedTarget {
    /// What to tell the initiator.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { qp_num: self.target.number(), psn: self.psn, addr: self.at }
    }

    /// To RTR and RTS; as [`Unconnected::connect`](super::Unconnected::connect).
    ///
    /// # Errors
    ///
    /// `Unreachable` for an address of another family; `WrongState`.
    pub fn connect(self, peer: Endpoint) -> Result<XrcTarget> {
        let Self { target, psn, at } = self;
        let attr = toward(&target.device, at, psn, peer)?;
        to_rts(target.device.stack(), &target.nic, QpType::XrcRecv, &attr)?;
        Ok(target)
    }

    /// Like [`UnconnectedTarget::connect`], with what rdma_cm has negotiated for it.
    ///
    /// # Errors
    ///
    /// Those of [`Unconnected::connect_with`](super::Unconnected::connect_with).
    pub fn connect_with(self, attr: &ConnectAttr) -> Result<XrcTarget> {
        let target = self.target;
        to_rts(target.device.stack(), &target.nic, QpType::XrcRecv, &attr.nic()?)?;
        Ok(target)
    }
}

impl std::fmt::Debug for UnconnectedTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnconnectedTarget({:?})", self.endpoint())
    }
}

/// The target of an extended reliable connection. What comes by it is the shared receive queues'.
/// Dropped, it is gone: the initiator's next request times out.
#[must_use = "dropping it ends the connection"]
pub struct XrcTarget {
    device: Device,
    nic: Arc<nic::Qp>,
}

impl XrcTarget {
    /// The queue pair's number, 24 bits.
    pub fn number(&self) -> u32 {
        self.nic.qpn().get()
    }
    /// Whether the queue pair takes requests: it is connected, and has not failed.
    pub fn is_connected(&self) -> bool {
        matches!(self.nic.state(), nic::QpState::Rtr | nic::QpState::Rts)
    }
}

impl Drop for XrcTarget {
    fn drop(&mut self) {
        let stack = self.device.stack();
        // In a forked child it is the parent's.
        if stack.is_ours() {
            // A message that was under way gives its receive back.
            self.nic.fail(stack.now());
            self.nic.destroy();
            stack.later().run();
        }
    }
}

impl std::fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "XrcTarget({:#x}, {})", self.number(), self.nic.state().name())
    }
}
