//! Datagrams: [`UdSocket`], which sends to whomever each message names, in one packet each, to be
//! lost or not; found by address and port (RDMA_PS_UDP), member of multicast groups.
//!
//! ```no_run
//! # async fn f() -> verbena::Result<()> {
//! let socket = verbena::UdSocket::bind("10.0.0.1:7174").await?;
//! let datagram = socket.recv_from().await?;
//! socket.send_to(datagram.message, &datagram.from).await.0?;
//! // and at the other end
//! let socket = verbena::UdSocket::bind("10.0.0.2:0").await?;
//! let service = socket.lookup("10.0.0.1:7174").await?;
//! socket.send_inline_to(b"who are you?", &service).await?;
//! // to everybody who has joined
//! let group = socket.join([239, 1, 2, 3].into()).await?;
//! socket.send_inline_to(b"hello, all", group.address()).await?;
//! # Ok(()) }
//! ```
//!
//! A message is at most [`UdSocket::mtu`] bytes; a longer one is
//! [`OutOfRange`](crate::ErrorKind::OutOfRange) before anything is posted. One that comes to a
//! socket without a receive posted, or with receives too short for it, is lost, and neither side
//! hears of it.
//!
//! | file | what |
//! |---|---|
//! | this one | [`UdSocket`], [`Datagram`] |
//! | `bind` | a socket to be |
//! | `service` | answers to peers that look it up |
//! | `lookup` | looking others up |
//! | `group` | multicast groups |
//! | `address` | where datagrams go |

mod address;
mod bind;
mod group;
mod lookup;
mod service;

use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use locks::{Mutex, Rank};
use transport::op::Data;
use wire::Gid;
use wire::grh::Grh;

use address::InSubnet;
pub use address::UdAddress;
pub(crate) use address::{Destination, To};
pub use bind::Bind;
pub use group::{Join, Membership};
pub use lookup::Lookup;

use crate::cm::connection::Attached;
use crate::cm::{ToAddr, wait};
use crate::error::{Error, ErrorKind, Result};
use crate::exec;
use crate::mem::IoBuf;
use crate::op::kind::Copied;
use crate::op::{Asked, Op, kind};
use crate::provider::{Pd, Stack};
use crate::qp::inner::Place;
use crate::qp::{Message, QueuePair, Ud};

/// A datagram queue pair with its address: a handle, clones are the same one. The last one, and the
/// last [`Membership`], ends it; what is under way then is flushed: await what is to leave.
///
/// # Examples
///
/// ```
/// # verbena::block_on(async {
/// use verbena::UdSocket;
///
/// let (server, client) = (UdSocket::bind("127.0.0.1:0").await?, UdSocket::bind("127.0.0.1:0").await?);
/// client.send_inline_to(b"hello", &server.address()).await?;
/// let datagram = server.recv_from().await?;
/// assert_eq!((&datagram.message[..], datagram.from.qp_num()), (&b"hello"[..], client.address().qp_num()));
/// # Ok::<(), verbena::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct UdSocket {
    inner: Arc<Inner>,
    qp: QueuePair<Ud>,
}

/// What the handles share. A peer that asks gets no answer any more before the queue pair ends.
struct Inner {
    service: service::Service,
    groups: Mutex<group::Groups>,
    ends: Attached,
    tos: Option<u8>,
}

impl Inner {
    fn stack(&self) -> &Stack {
        self.pd().stack()
    }
    fn pd(&self) -> &Pd {
        self.ends.qp().pd()
    }
}

/// A datagram that came; the 40 bytes of network header are taken off.
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// The payload, with the immediate data. Dropping it posts its buffer again.
    pub message: Message,
    /// The sender, to answer to. Its Q_Key is not in the packet: it is rdma_cm's, as ours.
    pub from: UdAddress,
    /// The address that it was sent to: one of ours, or a group's.
    pub to: IpAddr,
}

impl Datagram {
    /// What came to the socket of an address. `None` for what has no network header, which nothing
    /// is that comes to such a queue pair, but on InfiniBand.
    fn of(message: Message, own: IpAddr) -> Option<Self> {
        let (header, qp_num) = message.source();
        let (ip, to, subnet) = match message.source_lid() {
            Some(lid) => {
                let to = Grh::parse(header).ok().filter(|_| lid.has_grh()).and_then(|grh| group_of(&grh));
                let (lid, service_level) = (lid.lid(), lid.service_level());
                let way = InSubnet { lid, service_level, group: None };
                (Ipv4Addr::UNSPECIFIED.into(), to.unwrap_or(own), Some(way))
            }
            None => match Grh::parse(header).ok()? {
                Grh::V4 { source, dest, .. } => (IpAddr::V4(source), IpAddr::V4(dest), None),
                Grh::V6 { source, dest, .. } => (IpAddr::V6(source), IpAddr::V6(dest), None),
                Grh::Ib { .. } => return None,
            },
        };
        let from = UdAddress::from_raw(ip, qp_num, nic::rdma_cm::UDP_QKEY.0).within(subnet);
        Some(Self { message, from, to })
    }
}

/// The group that an InfiniBand datagram was sent to: of IPv4 its address, which the GID has the
/// last 28 bits of (RFC 4391 §4); of others the GID.
fn group_of(grh: &Grh) -> Option<IpAddr> {
    const IPV4: u8 = 0x40;
    const CLASS_D: u32 = 0xe000_0000;
    let Grh::Ib { dgid: Gid(gid), .. } = grh else { return None };
    let [0xff, _, signature, .., a, b, c, d] = *gid else { return None };
    Some(match signature {
        IPV4 => Ipv4Addr::from_bits(CLASS_D | u32::from_be_bytes([a, b, c, d])).into(),
        _ => Ipv6Addr::from(*gid).into(),
    })
}

impl UdSocket {
    /// A socket at an address of ours, and in service: others find it there by
    /// [`lookup`](UdSocket::lookup). Port 0 is a free one.
    pub fn bind(on: impl ToAddr) -> Bind {
        Bind::new(on.to_addr())
    }

    fn new(service: service::Service, ends: Attached, tos: Option<u8>) -> Self {
        let qp = QueuePair::new(ends.qp().clone());
        let groups = Mutex::new(Rank::ConnectionState, group::Groups::default());
        Self { inner: Arc::new(Inner { service, groups, ends, tos }), qp }
    }

    /// Asks where to send to, by an address with a port.
    pub fn lookup(&self, service: impl ToAddr) -> Lookup<'_> {
        Lookup::new(self, service.to_addr())
    }

    /// Joins a group: what is sent to it comes here, our own too.
    pub fn join(&self, group: IpAddr) -> Join<'_> {
        Join::new(self, group)
    }

    /// Our address, with the port by which others find us.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.service.local_addr()
    }

    /// Where others send to reach us, to be told by other ways than [`lookup`](UdSocket::lookup).
    pub fn address(&self) -> UdAddress {
        let address = UdAddress::from_raw(self.local_addr().ip(), self.qp.number(), nic::rdma_cm::UDP_QKEY.0);
        let port = self.qp.pd().device().nic().ok().map(|device| device.port());
        let lid = port.and_then(|port| port.ib.as_ref().map(|ib| ib.lid)).filter(|lid| *lid != 0);
        address.within(lid.map(|lid| InSubnet { lid, service_level: 0, group: None }))
    }

    /// Bytes that a message has at most, 256 to 4096: the link's. A route with less loses longer
    /// ones.
    pub fn mtu(&self) -> u32 {
        self.qp.pd().device().mtu()
    }

    /// The socket's queue pair.
    pub fn queue_pair(&self) -> &QueuePair<Ud> {
        &self.qp
    }

    /// SEND of one datagram. It is complete when it has left.
    pub fn send_to<B: IoBuf>(&self, buf: B, to: &UdAddress) -> Op<'_, kind::Send, B> {
        Op::new(self.inner.ends.qp(), self.asked(to), buf)
    }

    /// SEND of one datagram of at most `max_inline` bytes, copied into the work request: no
    /// registration, nothing to give back.
    pub fn send_inline_to(&self, bytes: &[u8], to: &UdAddress) -> Op<'_, kind::Send, Copied> {
        let op = Op::new(self.inner.ends.qp(), self.asked(to), Copied(None));
        op.map(|request| request.inline = Some(Data::inline(bytes)))
    }

    /// SEND of one datagram whose bytes are copied to a buffer of the socket's pool.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for more bytes than its buffers have, `Exhausted`.
    pub fn send_copy_to(&self, bytes: &[u8], to: &UdAddress) -> Result<Op<'_, kind::Send, Copied>> {
        let copy = self.inner.ends.qp().pool().copy(bytes)?;
        Ok(Op::new(self.inner.ends.qp(), self.asked(to), Copied(Some(copy))))
    }

    /// Where it goes as things are now; what is wrong with it is told when it is posted.
    fn asked(&self, to: &UdAddress) -> Asked {
        let from = self.local_addr().ip();
        Asked::SendTo(Destination::new(self.inner.ends.qp(), from, self.inner.tos.unwrap_or(0), to))
    }

    /// The next datagram. Cancelling loses none that has come.
    ///
    /// # Errors
    ///
    /// What moved the queue pair to the error state, `Unreachable` when the device is gone, once;
    /// then `Disconnected`.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn recv_from(&self) -> impl Future<Output = Result<Datagram>> + Send + '_ {
        let mut place = Place::default();
        poll_fn(move |cx| {
            loop {
                match self.inner.ends.qp().poll_recv(Some((&mut place, cx))) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(message) => {
                        if let Some(datagram) = self.taken(message)? {
                            return Poll::Ready(Ok(datagram));
                        }
                    }
                }
            }
        })
    }

    /// Like [`UdSocket::recv_from`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`UdSocket::recv_from`]; `BlockingInSimulation`.
    pub fn blocking_recv_from(&self) -> Result<Datagram> {
        wait(self.qp.pd().device().provider(), "blocking_recv_from", self.recv_from())
    }

    /// Like [`UdSocket::blocking_recv_from`], for at most so long.
    ///
    /// # Errors
    ///
    /// `TimedOut`; those of [`UdSocket::recv_from`]; `BlockingInSimulation`.
    pub fn blocking_recv_from_timeout(&self, time: Duration) -> Result<Datagram> {
        const CALL: &str = "blocking_recv_from_timeout";
        if !self.inner.stack().may_block() {
            return Err(Error::new(ErrorKind::BlockingInSimulation, CALL));
        }
        let received = exec::block_on_for(self.recv_from(), time);
        received.unwrap_or_else(|| Err(Error::new(ErrorKind::TimedOut, CALL)))
    }

    /// The datagram in a message; `Disconnected` where there will be none any more.
    fn taken(&self, message: Result<Option<Message>>) -> Result<Option<Datagram>> {
        match message? {
            Some(message) => Ok(Datagram::of(message, self.local_addr().ip())),
            None => Err(Error::new(ErrorKind::Disconnected, "recv_from")),
        }
    }

    /// A datagram that has come already.
    ///
    /// # Errors
    ///
    /// Those of [`UdSocket::recv_from`].
    pub fn try_recv_from(&self) -> Result<Option<Datagram>> {
        match self.inner.ends.qp().poll_recv(None) {
            Poll::Ready(message) => self.taken(message),
            Poll::Pending => Ok(None),
        }
    }
}

impl std::fmt::Debug for UdSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdSocket({})", self.local_addr())
    }
}
