//! rdma_cm events and the channels they travel on; connection parameters as the connection manager
//! tells them ([`cm::Parameters`]).

use std::sync::Arc;

use cm::{Ece, Parameters, PrivateData};
use nic::device::event_queue::EventQueue;
use nic::rdma_cm::{ConnParam, EventKind, UdParam};
use nic::{Qp, Signal, in_range};
use wire::{Psn, Qpn};

use crate::Error;
use crate::id::Id;

/// Whether private data fits a message that has room for `most` bytes of a program's.
pub(crate) fn check_private_data(
    id: &Id,
    private_data: &[u8],
    limit: impl Fn(PrivateData) -> usize,
) -> Result<(), Error> {
    let most = limit(id.private_data());
    in_range("private_data_len", private_data.len() as u64, 0_u64, most as u64)
}

/// What the peer is told; the identifier's own queue pair, if it has one, speaks for itself.
pub(crate) fn parameters(param: &ConnParam, qp: Option<&Qp>, starting_psn: Psn, ece: Ece) -> Parameters {
    Parameters {
        qpn: qp.map_or(Qpn::new(param.qp_num), Qp::qpn),
        starting_psn,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq: qp.map_or(param.srq, |qp| qp.init().srq.is_some()),
        ece,
    }
}

/// What the peer has told.
pub(crate) fn told(told: &Parameters) -> ConnParam {
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
    pub fn new(signal: Box<dyn Signal>) -> Arc<Self> {
        Arc::new(Self { queue: EventQueue::new(signal) })
    }
    /// Events that wait.
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }
    pub(crate) fn pop(&self) -> Option<Event> {
        self.queue.pop()
    }
    pub(crate) fn push(&self, event: Event) {
        self.queue.push(event);
    }
    /// Adds an event that is handed out once it is published.
    pub(crate) fn enqueue(&self, event: Event) {
        self.queue.enqueue(event);
    }
    /// Tells the owner of the events that were enqueued.
    pub(crate) fn publish(&self) {
        self.queue.publish();
    }
    /// Takes the events that `which` names out again, in order.
    pub(crate) fn take_back(&self, which: impl FnMut(&Event) -> bool) -> Vec<Event> {
        self.queue.take_back(which)
    }
}
