//! The end of a connection, and what was acknowledged before it: a message that was delivered completes as delivered.
//!
//! What an end still owes its peer, an ACK held back, leaves before it says that the connection is over, and both take the same
//! flow: on the way neither overtakes the other, and a process that shares the peer's address hands on both in their order.
//! A peer may use two flows (kernels do), and a packet may be handed on by a slow process: so a DREQ waits a moment
//! where the queue pair still waits for answers.

use std::time::{Duration, Instant};

use cm::{ConnId, Origin};
use nic::Path;
use wire::Qpn;
use wire::mad::{Mad, Message};

use crate::Node;
use crate::cm_agent::{ConnKey, Core};
use crate::world::World;

/// How long a DREQ waits for answers under way: on a busy machine a process that hands them on waits for a processor, some tens of
/// milliseconds. A DREQ that is repeated meanwhile changes nothing.
const PATIENCE: Duration = Duration::from_millis(100);

/// A DREQ that waits.
pub(crate) struct Waiting {
    key: ConnKey,
    origin: Origin,
    mad: Mad,
    pub(crate) until: Instant,
}

impl<W: World> Node<W> {
    /// The way of a message; before one that ends its connection what the queue pair has to acknowledge is acknowledged.
    pub(crate) fn way(
        &self,
        core: &Core,
        now: Instant,
        (interface, conn): (u32, Option<ConnId>),
        path: &cm::Path,
        mad: &Mad,
        attempt: u32,
    ) -> Path {
        let qp = conn.filter(|_| is_farewell(mad)).and_then(|conn| core.qp((interface, conn)));
        way(path, mad, attempt, qp.and_then(|qp| qp.let_acks_go(now)))
    }

    /// Whether the message is a DREQ that has to wait; if so it does.
    pub(crate) fn must_wait(&self, core: &mut Core, now: Instant, origin: Origin, mad: &Mad) -> bool {
        let Message::Dreq(dreq) = &mad.message else { return false };
        let ended = core.cms.get(&origin.link).and_then(|cm| cm.ended_by(origin, mad.transaction_id, dreq));
        let Some(key) = ended.map(|conn| (origin.link, conn)) else { return false };
        let Some(qp) = core.qp(key).filter(|qp| qp.awaits_answers()) else { return false };
        // One that is repeated changes nothing.
        if core.dreqs.get(&qp.qpn()).is_none_or(|waiting| waiting.key != key) {
            let waiting = Waiting { key, origin, mad: mad.clone(), until: now + PATIENCE };
            core.dreqs.insert(qp.qpn(), waiting);
            self.cm_agent.count_awaited(core);
        }
        true
    }

    /// A packet came for a queue pair: a DREQ that waited for it is heard if no answer is missing any more. Whether one was.
    pub(crate) fn end_wait(&self, core: &mut Core, now: Instant, qpn: Qpn) -> bool {
        let Some(waiting) = core.dreqs.get(&qpn) else { return false };
        let waits = core.qp(waiting.key).is_some_and(|qp| qp.qpn() == qpn && qp.awaits_answers());
        !waits && self.hear_waiting(core, now, qpn)
    }

    /// DREQs that have waited for long enough are heard.
    pub(crate) fn end_waits(&self, core: &mut Core, now: Instant) {
        let due: Vec<Qpn> = core.dreqs.iter().filter(|(_, w)| w.until <= now).map(|(qpn, _)| *qpn).collect();
        for qpn in due {
            self.hear_waiting(core, now, qpn);
        }
    }

    fn hear_waiting(&self, core: &mut Core, now: Instant, qpn: Qpn) -> bool {
        let Some(Waiting { origin, mad, .. }) = core.dreqs.remove(&qpn) else { return false };
        self.cm_agent.count_awaited(core);
        self.hear(core, now, origin, &mad);
        true
    }
}

/// Whether nothing of the connection follows.
fn is_farewell(mad: &Mad) -> bool {
    match &mad.message {
        Message::Dreq(dreq) => !cm::is_question(dreq),
        message => matches!(message, Message::Drep(_) | Message::Rej(_)),
    }
}

/// The way of a message. One that ends a connection takes that of its data, where that is known, the first time.
pub(crate) fn way(path: &cm::Path, mad: &Mad, attempt: u32, data: Option<Path>) -> Path {
    let way = Path {
        source: path.local_gid.ip(),
        dest: path.remote_gid.ip(),
        interface: path.link,
        dest_qpn: Qpn::GSI,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        source_port_epoch: attempt,
        no_multicast_loop: false,
    };
    match &mad.message {
        _ if attempt > 0 || !is_farewell(mad) => way,
        _ if data.is_some_and(|data| (data.source, data.dest) == (way.source, way.dest)) => {
            data.unwrap_or(way)
        }
        // The queue pair was destroyed before.
        Message::Dreq(dreq) => Path { dest_qpn: dreq.remote_qpn, ..way },
        _ => way,
    }
}
