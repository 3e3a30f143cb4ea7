//! rdma_cm events and the channels they travel on.

use std::sync::Arc;

use cm::{Ece, Parameters};
use nic::device::event_queue::EventQueue;
use nic::{AddressVector, Qp, Signal, in_range};
use wire::{Psn, Qkey, Qpn};

use crate::Error;
use crate::id::Id;

/// `enum rdma_cm_event_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the header's")]
pub enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
    AddrinfoResolved = 16,
    AddrinfoError = 17,
    User = 18,
}

/// Connection parameters (`struct rdma_conn_param` without its private data).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// READs and atomics this side accepts at once.
    pub responder_resources: u8,
    /// READs and atomics this side starts at once.
    pub initiator_depth: u8,
    /// End-to-end flow control, told to the peer only.
    pub flow_control: bool,
    /// Retries on timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries on RNR NAK, 0 to 7.
    pub rnr_retry_count: u8,
    /// The queue pair uses a shared receive queue.
    pub srq: bool,
    /// Number of the queue pair.
    pub qp_num: u32,
}

/// Whether private data fits a message that has room for `most` bytes of a program's.
pub(crate) fn check_private_data(private_data: &[u8], most: usize) -> Result<(), Error> {
    in_range("private_data_len", private_data.len() as u64, 0_u64, most as u64)
}

impl ConnParam {
    /// Ranges of rdma_connect(3) and rdma_accept(3).
    pub(crate) fn check(&self) -> Result<(), Error> {
        let most = nic::limits::MAX_RD_ATOMIC;
        in_range("responder_resources", self.responder_resources, 0_u8, most)?;
        in_range("initiator_depth", self.initiator_depth, 0_u8, most)
    }

    /// What a request offers, cut to what the device has.
    pub(crate) fn cut(&self) -> ConnParam {
        let most = nic::limits::MAX_RD_ATOMIC;
        ConnParam {
            responder_resources: self.responder_resources.min(most),
            initiator_depth: self.initiator_depth.min(most),
            ..*self
        }
    }

    /// What the peer is told; the identifier's own queue pair, if it has one, speaks for itself.
    pub(crate) fn parameters(&self, qp: Option<&Qp>, starting_psn: Psn, ece: Ece) -> Parameters {
        Parameters {
            qpn: qp.map_or(Qpn::new(self.qp_num), Qp::qpn),
            starting_psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control,
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: qp.map_or(self.srq, |qp| qp.init().srq.is_some()),
            ece,
        }
    }
}

/// What the peer has told.
impl From<&Parameters> for ConnParam {
    fn from(told: &Parameters) -> ConnParam {
        ConnParam {
            responder_resources: told.responder_resources,
            initiator_depth: told.initiator_depth,
            flow_control: told.flow_control,
            retry_count: told.retry_count,
            rnr_retry_count: told.rnr_retry_count,
            srq: told.srq,
            qp_num: told.qpn.get(),
        }
    }
}

/// Where datagrams of a service or a group go (`struct rdma_ud_param` without its private data).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdParam {
    /// The address.
    pub av: AddressVector,
    /// Queue pair there: [`Qpn::MULTICAST`] for a group, 0 in a request.
    pub qpn: Qpn,
    /// Q_Key of the queue pair.
    pub qkey: Qkey,
    /// What the program gave with its join of a group.
    pub context: u64,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The identifier it is for: for a connection request the new one.
    pub id: Arc<Id>,
    /// The listener, of a connection request.
    pub listener: Option<Arc<Id>>,
    /// What happened.
    pub kind: EventKind,
    /// 0, a negative errno, or a reject reason.
    pub status: i32,
    /// Connection parameters, where the event has them.
    pub param: ConnParam,
    /// Instead of these, in events of datagram services and groups.
    pub ud: Option<UdParam>,
    /// The program's own word, of a `User` event.
    pub arg: u64,
    /// The message's whole private data field, zero-padded; empty where there is none.
    pub private_data: Vec<u8>,
}

/// An event channel; [`crate::Node::next_event`] reads it.
pub struct EventChannel {
    queue: EventQueue<Event>,
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventChannel")
    }
}

impl EventChannel {
    /// A channel whose owner is told by `signal`, once an event.
    pub fn new(signal: Box<dyn Signal>) -> Arc<EventChannel> {
        Arc::new(EventChannel { queue: EventQueue::new(signal) })
    }
    pub(crate) fn pop(&self) -> Option<Event> {
        self.queue.pop()
    }
    pub(crate) fn push(&self, event: Event) {
        self.queue.push(event);
    }
    /// Takes the events that `which` names out again, in order.
    pub(crate) fn take_back(&self, which: impl FnMut(&Event) -> bool) -> Vec<Event> {
        self.queue.take_back(which)
    }
}
