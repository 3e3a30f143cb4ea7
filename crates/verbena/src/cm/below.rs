//! Identifiers of the stack below: the one door to them. Errors are the node's, which
//! [`Identifier`](super::events::Identifier) turns into those of the call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nic::rdma_cm::{EventKind, UdParam};
use nic::{Error, QpType, Signal};
use wire::Mtu;
use wire::mad::PortSpace;

use super::ConnParam;
use crate::provider::{Adapter, NodeChannel, NodeId, Ours, Stack, node};
use crate::qp::carrier::Carrier;
use crate::thread_safe::ThreadSafe;

/// An identifier: a handle.
#[derive(Clone)]
pub(crate) enum Id {
    Ours(Ours, ThreadSafe<Arc<NodeId>>),
    #[cfg(feature = "system")]
    System(ThreadSafe<Arc<rdma_core::Id>>),
}

/// Where the events of one come in.
pub(crate) enum Events {
    Ours(Ours, ThreadSafe<Arc<NodeChannel>>),
    #[cfg(feature = "system")]
    System(ThreadSafe<Arc<rdma_core::System>>, ThreadSafe<Arc<rdma_core::Inbox>>),
}

/// An event.
pub(crate) struct Event {
    /// The new identifier of a request.
    pub request: Option<Id>,
    pub kind: EventKind,
    /// A negative errno; of a rejection its reason.
    pub status: i32,
    /// What the peer said, as it looks from here.
    pub param: nic::rdma_cm::ConnParam,
    /// Of a datagram service or a group: the destination to send to.
    pub ud: Option<UdParam>,
    pub private_data: Vec<u8>,
}

impl Events {
    /// A channel that calls `signal` for each event, with locks held.
    pub(crate) fn new(stack: &Stack, signal: Box<dyn Signal>) -> Self {
        match stack {
            Stack::Ours(ours) => node!(ours, _node => {
                Self::Ours(ours.clone(), ThreadSafe::new(NodeChannel::new(signal)))
            }),
            #[cfg(feature = "system")]
            Stack::System(system) => {
                Self::System(system.clone(), ThreadSafe::new(rdma_core::Inbox::new(signal)))
            }
        }
    }
    /// Takes the next one.
    pub(crate) fn next(&self) -> Option<Event> {
        match self {
            Self::Ours(ours, channel) => {
                node!(ours, node => {
                    let event = node.next_event(channel)?;
                    let is_request = event.kind == EventKind::ConnectRequest;
                    Some(Event {
                        request: is_request.then(|| Id::Ours(ours.clone(), ThreadSafe::new(event.id))),
                        kind: event.kind,
                        status: event.status,
                        param: event.param,
                        ud: event.ud,
                        private_data: event.private_data,
                    })
                })
            }
            #[cfg(feature = "system")]
            Self::System(_, inbox) => {
                let rdma_core::Event { request, kind, status, param, ud, private_data } = inbox.next()?;
                let request = request.map(|id| Id::System(ThreadSafe::new(id)));
                Some(Event { request, kind, status, param, ud, private_data })
            }
        }
    }
    /// A new identifier for queue pairs of a type, whose events come here.
    pub(crate) fn create_id(&self, kind: QpType) -> Result<Id, Error> {
        match self {
            Self::Ours(ours, channel) => {
                let space = match kind {
                    QpType::Rc => PortSpace::Tcp,
                    QpType::Ud => PortSpace::Udp,
                    // The one whose identifiers have a type of their own.
                    _ => PortSpace::Ib,
                };
                node!(ours, node => {
                    node.allow_id()?;
                    let id = node.create_id_for(channel, space, kind);
                    Ok(Id::Ours(ours.clone(), ThreadSafe::new(id)))
                })
            }
            #[cfg(feature = "system")]
            Self::System(system, inbox) => {
                rdma_core::Id::new(system, inbox, kind).map(|id| Id::System(ThreadSafe::new(id)))
            }
        }
    }
    /// From now on the identifier's events come here.
    pub(crate) fn adopt(&self, id: &Id) {
        match (self, id) {
            (Self::Ours(ours, channel), Id::Ours(_, id)) => node!(ours, node => node.migrate(id, channel)),
            #[cfg(feature = "system")]
            (Self::System(_, inbox), Id::System(id)) => id.adopt(inbox),
            // It came by this stack.
            #[cfg(feature = "system")]
            _ => {}
        }
    }
}

impl Id {
    /// Our address, where there is one.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Ours(ours, id) => node!(ours, _node => id.lock().source),
            #[cfg(feature = "system")]
            Self::System(id) => id.local_addr(),
        }
    }
    /// The peer's address.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Ours(ours, id) => node!(ours, _node => id.lock().dest),
            #[cfg(feature = "system")]
            Self::System(id) => id.peer_addr(),
        }
    }
    /// The device that it leads over, where there is one.
    pub(crate) fn device(&self) -> Option<Adapter> {
        match self {
            Self::Ours(ours, id) => node!(ours, _node => id.lock().device.clone().map(Adapter::Ours)),
            #[cfg(feature = "system")]
            Self::System(id) => id.device().map(Adapter::System),
        }
    }
    /// Largest payload of a packet that the route takes, in bytes.
    pub(crate) fn path_mtu(&self) -> u32 {
        match self {
            Self::Ours(ours, id) => node!(ours, _node => {
                let route = id.lock().route;
                route.and_then(|route| Mtu::for_link(route.mtu)).unwrap_or(Mtu::M256).bytes() as u32
            }),
            #[cfg(feature = "system")]
            Self::System(id) => id.path_mtu().unwrap_or(Mtu::M4096.bytes() as u32),
        }
    }

    /// Type of service and local ACK timeout, where they are said.
    pub(crate) fn set_options(&self, tos: Option<u8>, ack_timeout: Option<u8>) {
        match self {
            Self::Ours(ours, id) => node!(ours, _node => {
                let mut id = id.lock();
                id.tos = tos.or(id.tos);
                id.ack_timeout = ack_timeout.or(id.ack_timeout);
            }),
            #[cfg(feature = "system")]
            Self::System(id) => {
                // A kernel that can not has its own: the type of service is a wish.
                tos.into_iter().for_each(|tos| _ = id.set_tos(tos));
                ack_timeout.into_iter().for_each(|code| id.set_ack_timeout(code));
            }
        }
    }
    pub(crate) fn resolve_addr(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.resolve_addr(id, from, to, timeout)),
            #[cfg(feature = "system")]
            Self::System(id) => id.resolve_addr(from, to, timeout),
        }
    }
    /// Resolves the route, for at most so long.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.resolve_route(id, timeout)),
            #[cfg(feature = "system")]
            Self::System(id) => id.resolve_route(timeout),
        }
    }
    /// Gives the identifier the queue pair, which goes to INIT. Peers may do with it what their
    /// keys allow, and wait for receives by the timer of this code (IBA 1.4 §9.7.5.2.8).
    pub(crate) fn set_qp(&self, qp: &Carrier, min_rnr_timer: u8) -> Result<(), Error> {
        match (self, qp) {
            (Self::Ours(ours, id), Carrier::Ours(qp)) => node!(ours, node => {
                {
                    let mut id = id.lock();
                    // Memory says by its own rights what peers may do: the queue pair allows all of
                    // it.
                    id.more_access = nic::Access::FLUSH_GLOBAL | nic::Access::FLUSH_PERSISTENT;
                    id.min_rnr_timer = Some(min_rnr_timer);
                }
                node.set_qp(id, qp.nic())
            }),
            #[cfg(feature = "system")]
            (Self::System(id), Carrier::System(theirs)) => id.set_qp(theirs.qp(), min_rnr_timer),
            #[cfg(feature = "system")]
            _ => Err(Error::Invalid("a queue pair of another stack")),
        }
    }

    pub(crate) fn set_reuse(&self, reuse: bool) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.set_reuse(id, reuse)),
            #[cfg(feature = "system")]
            Self::System(id) => id.set_reuse(reuse),
        }
    }
    pub(crate) fn bind(&self, on: SocketAddr) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.bind(id, on)),
            #[cfg(feature = "system")]
            Self::System(id) => id.bind(on),
        }
    }
    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => {
                node.listen(id, backlog)?;
                // A listener here takes all requests; turns are for programs that have room for
                // one.
                node.serve_out_of_turn(id);
                Ok(())
            }),
            #[cfg(feature = "system")]
            Self::System(id) => id.listen(backlog),
        }
    }

    /// Asks the peer, which has so long to answer.
    pub(crate) fn connect(&self, param: &ConnParam, data: &[u8], timeout: Duration) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => {
                node.connect(id, &param.to_node(), data)
                    .inspect(|()| node.give_up_at(id, Stack::Ours(ours.clone()).now() + timeout))
            }),
            // The task that waits for the answer looks at the clock: see `Identifier::answer_in`.
            #[cfg(feature = "system")]
            Self::System(id) => {
                let &ConnParam { responder_resources, initiator_depth, .. } = param;
                id.connect(responder_resources, initiator_depth, &param.to_node(), data)
            }
        }
    }
    pub(crate) fn accept(&self, param: &nic::rdma_cm::ConnParam, data: &[u8]) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.accept(id, Some(param), data)),
            #[cfg(feature = "system")]
            Self::System(id) => id.accept(param, data),
        }
    }
    pub(crate) fn reject(&self, data: &[u8]) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.reject(id, data)),
            #[cfg(feature = "system")]
            Self::System(id) => id.reject(data),
        }
    }
    /// Joins a multicast group; the event of that bears the number.
    pub(crate) fn join(&self, group: IpAddr, send_only: bool, number: u64) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.join_multicast(id, group, send_only, number)),
            #[cfg(feature = "system")]
            Self::System(id) => id.join(group, send_only, number),
        }
    }
    /// An error says that it does not belong to the group.
    pub(crate) fn leave(&self, group: IpAddr) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.leave_multicast(id, group)),
            #[cfg(feature = "system")]
            Self::System(id) => id.leave(group),
        }
    }
    /// An error says that there is no connection.
    pub(crate) fn disconnect(&self) -> Result<(), Error> {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.disconnect(id)),
            #[cfg(feature = "system")]
            Self::System(id) => id.disconnect(),
        }
    }
    /// The peer is told what the state calls for; events not looked at vanish. Once.
    pub(crate) fn destroy(&self) {
        match self {
            Self::Ours(ours, id) => node!(ours, node => node.destroy(id)),
            #[cfg(feature = "system")]
            Self::System(id) => id.destroy(),
        }
    }
}
