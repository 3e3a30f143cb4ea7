//! Faults that are brought about on purpose. A link that decorates another one may have some
//! ([`Link::faults`](crate::Link::faults)): it says when, and the adapter and the node above it do
//! what they would do if the fault were real.

use std::time::Instant;

use transport::op::Status;
use wire::bth::NakCode;
use wire::{Address, Psn, Qpn};

use crate::fate::{Arrival, FrameArrival};

/// What a program makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of verbs and rdma_cm")]
pub enum Object {
    Pd,
    Cq,
    Qp,
    Srq,
    Mr,
    Mw,
    Ah,
    CmId,
}

/// What is wrong with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortFault {
    /// The link is down.
    Down,
    /// The device was removed.
    Gone,
}

/// How a work request ends, or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The responder refuses it.
    Nak(NakCode),
    /// The responder has no receive.
    RnrNak,
    /// The responder never answers. The link loses the request until the requester gives up.
    Unanswered,
    /// The requester's adapter ends it with this status.
    Status(Status),
}

/// A request of a reliable connection that a link has lost, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFault {
    /// Whether it is a request of ours, which was to leave.
    pub is_out: bool,
    /// Our address.
    pub ours: Address,
    /// The peer's address.
    pub peer: Address,
    /// Index of our interface.
    pub interface: u32,
    /// The queue pair that the request is for.
    pub qpn: Qpn,
    /// The request's first PSN, or that of the packet that takes a receive.
    pub psn: Psn,
    /// What becomes of it.
    pub outcome: Outcome,
}

/// A service that acknowledges nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreliableService {
    /// An unreliable connection (UC).
    Connection,
    /// Unreliable datagrams (UD).
    Datagram,
    /// Ethernet frames of a raw packet queue pair.
    Frame,
}

/// A send request of an unreliable service. Such a request is complete before the link sees its
/// packets.
#[derive(Clone, Copy, Debug)]
pub struct UnreliableRequest {
    /// The address and the queue pair that it is for; `None` of a frame.
    pub peer: Option<(Address, Qpn)>,
    /// Index of our interface.
    pub interface: u32,
    /// The service.
    pub service: UnreliableService,
    /// Whether it is an RDMA WRITE.
    pub is_write: bool,
}

/// A connection request that a link has lost, and which is to be rejected.
#[derive(Clone, Copy, Debug)]
pub struct RejectedRequest<'a> {
    /// Whether it is a request of ours, which was to leave.
    pub is_out: bool,
    /// Our address.
    pub ours: Address,
    /// The peer's address.
    pub peer: Address,
    /// Index of our interface.
    pub interface: u32,
    /// The packet, BTH to ICRC.
    pub packet: &'a [u8],
    /// Why (IBA 1.4 table 109).
    pub reason: u16,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug)]
pub enum Due<'a> {
    /// A packet that was held arrives.
    Arrival(Arrival<'a>),
    /// An Ethernet frame that was held arrives.
    Frame(FrameArrival<'a>),
    /// A request fails, or waits.
    Request(&'a RequestFault),
    /// A connection request is rejected.
    Reject(RejectedRequest<'a>),
    /// The stream of this token is to be read, and written to where there is room again.
    Stream(u64, bool),
    /// [`Faults::port`] may say something else than before.
    Ports,
}

/// What became of what was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Done.
    Done,
    /// Not possible yet: due again a little later.
    NotYet,
    /// The request was executed before, so nothing is to fail.
    Executed,
}

/// A device, as rules name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The device's name.
    pub device: String,
    /// The name of its interface.
    pub interface_name: String,
    /// The index of its interface, which has one device of each kind at most.
    pub interface: u32,
    /// Whether it is one of iWARP, which travels on streams.
    pub has_streams: bool,
}

/// Faults of a link, as the node above it asks for them.
pub trait Faults {
    /// Says which devices there are. Called once, before the first packet.
    fn know(&self, devices: Vec<Named>);
    /// When [`Faults::expire`] wants to be called.
    fn deadline(&self) -> Option<Instant>;
    /// Until when the node stands still: no timer runs out meanwhile.
    fn stopped_until(&self) -> Option<Instant>;
    /// Lets go of what was held until now, which `to` does. Afterwards [`Faults::deadline`] is
    /// later than `now`. Called with no lock held.
    fn expire(&self, now: Instant, to: &mut dyn FnMut(Due<'_>) -> Told);
    /// What is wrong now with the port over an interface.
    fn port(&self, interface: u32) -> Option<PortFault>;
    /// Whether an object that a program is about to make cannot be made; each call counts one.
    /// `interface` is that of its device. An identifier is of no device.
    fn refuses(&self, interface: Option<u32>, object: Object) -> bool;
    /// With which status a request fails that is being posted; each call counts one.
    fn fails(&self, request: &UnreliableRequest) -> Option<Status>;
    /// Whether bytes of streams are changed: connections are to have CRCs then, which tell.
    fn damages_streams(&self) -> bool;
    /// The process ends: what is held and was to leave leaves. No lock is waited for.
    fn on_exit(&self);
}
