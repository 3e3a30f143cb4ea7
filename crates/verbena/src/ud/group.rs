//! Multicast groups (rdma_join_multicast(3)). RoCE has no subnet manager to ask: joining is a
//! membership of the interface, by IGMP or MLD, and the queue pair's place among those that get
//! what comes to the group. On InfiniBand the subnet manager has it come to the port.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use super::{Inner, UdAddress, UdSocket};
use crate::cm::wait;
use crate::error::{Error, ErrorKind, Result, Value};

/// The C function that this file is about, as errors name it.
const CALL: &str = "rdma_join_multicast";

/// The groups of a socket.
#[derive(Default)]
pub(super) struct Groups {
    /// Number of the next join.
    next: u64,
    /// How many memberships there are of each. The last one leaves.
    members: BTreeMap<IpAddr, usize>,
}

/// A membership to be: configure, then `.await` or `.wait()`.
///
/// # Errors
///
/// `OutOfRange` for an address that is no group's, or of another family than the socket's, with the
/// address; `Exhausted` where the device has no more groups; what the system says of joining.
#[must_use = "nothing happens before it is awaited"]
pub struct Join<'s> {
    socket: &'s UdSocket,
    group: IpAddr,
    send_only: bool,
}

impl<'s> Join<'s> {
    pub(super) fn new(socket: &'s UdSocket, group: IpAddr) -> Self {
        Join { socket, group, send_only: false }
    }
    /// To send to it and get nothing of it (RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER); where the
    /// socket is a full member too, that stays.
    pub fn send_only(mut self) -> Self {
        self.send_only = true;
        self
    }
    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(self) -> Result<Membership> {
        let provider = self.socket.inner.pd().device().provider().clone();
        wait(&provider, CALL, self.into_future())
    }
}

impl<'s> IntoFuture for Join<'s> {
    type Output = Result<Membership>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Membership>> + Send + 's>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Join { socket, group, send_only } = self;
            if !group.is_multicast() || group.is_ipv4() != socket.local_addr().is_ipv4() {
                let address = Value::Address(SocketAddr::new(group, 0));
                return Err(Error::new(ErrorKind::OutOfRange, CALL).with(address));
            }
            let mut membership = Membership::begin(&socket.inner, group, send_only)?;
            let number = membership.number;
            let joined = socket.inner.ends.identifier.until(move |seen| {
                let gone = || seen.ended.clone().map(Err);
                seen.joined.remove(&number).or_else(gone)
            });
            membership.address = UdAddress::of(&joined.await?).known_as(group);
            Ok(membership)
        })
    }
}

/// A group that a socket has joined: the address to send to. The last one of a socket and group
/// leaves it when dropped; it keeps the socket.
pub struct Membership {
    socket: Arc<Inner>,
    group: IpAddr,
    number: u64,
    address: UdAddress,
}

impl Membership {
    /// One more membership of this group; joining has begun.
    fn begin(socket: &Arc<Inner>, group: IpAddr, send_only: bool) -> Result<Self> {
        socket.stack().check(CALL)?;
        let identifier = &socket.ends.identifier;
        let (number, begun) = {
            // Leaving happens under this lock too: the last member's goodbye does not undo a new
            // one's welcome.
            let mut groups = socket.groups.lock();
            let number = groups.next;
            groups.next += 1;
            let begun = identifier.below().join(group, send_only, number);
            if begun.is_ok() {
                *groups.members.entry(group).or_default() += 1;
            }
            (number, begun)
        };
        identifier.called(CALL, begun)?;
        let address = UdAddress::from_raw(group, wire::Qpn::MULTICAST.get(), nic::rdma_cm::UDP_QKEY.0);
        Ok(Self { socket: socket.clone(), group, number, address })
    }

    /// The group's address, to send to.
    pub fn address(&self) -> &UdAddress {
        &self.address
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Membership({})", self.group)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let (stack, identifier) = (self.socket.stack(), &self.socket.ends.identifier);
        if !stack.is_ours() {
            return;
        }
        {
            let mut groups = self.socket.groups.lock();
            let members = groups.members.get_mut(&self.group);
            let left = members.map_or(0, |members| {
                *members -= 1;
                *members
            });
            if left == 0 {
                groups.members.remove(&self.group);
                // An error says that joining had failed.
                _ = identifier.below().leave(self.group);
            }
        }
        identifier.forget_join(self.number);
        stack.later().run();
    }
}
