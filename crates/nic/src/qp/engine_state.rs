//! What the steps of an engine work with, and change: of its queue pair, but not of the engine
//! itself.

use std::collections::VecDeque;

use transport::op::RecvWr;

use crate::cq::Notification;
use crate::cq::counter::Counted;
use crate::link::PathCache;
use crate::qp::advertised::Advertised;
use crate::qp::sq_occupancy::SqOccupancy;
use crate::srq::tag_matching::Rendezvous;

/// What the engine may change of a queue pair: see the module.
#[derive(Debug, Default)]
pub(super) struct EngineState {
    pub receives: VecDeque<RecvWr>,
    /// Of requests that were executed at once.
    pub sq_occupancy: SqOccupancy,
    /// To be told when the lock is released.
    pub notifications: Vec<Notification>,
    /// The completion counters it counts into, where there are some.
    pub counted: Option<Box<Counted>>,
    /// A rendezvous that was matched just now.
    pub fetch: Option<Box<Rendezvous>>,
    /// What the environment knows of the way of short messages.
    pub cache: PathCache,
    /// Whether the peer knows where a message goes, and may copy it there.
    pub advertised: Advertised,
    /// The peer was heard: the environment knows in which process of this host it is.
    pub has_received: bool,
}
