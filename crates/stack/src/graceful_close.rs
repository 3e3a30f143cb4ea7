//! The end of a connection, and what was acknowledged before it: a message that was delivered
//! completes as delivered.
//!
//! What an end still owes its peer, an ACK held back, leaves before it says that the connection is
//! over, and both take the same flow: on the way neither overtakes the other, and a process that
//! shares the peer's address hands on both in their order. A peer may use two flows (kernels do),
//! and a packet may be handed on by a slow process. The news that a process of this host
//! ended comes from its name, and overtakes all packets. So an end, told by a DREQ or by such news,
//! waits a moment where the queue pair still waits for answers.
//!
//! It waits, too, while the program has not fetched all that it was sent. With an adapter a
//! message's completion is there long before the kernel has told of the end. Here one thread may
//! bring both between two looks of a program that is slow to run: it looks for completions, finds
//! none, then hears of the end, and destroys the queue pair with what came to it.

use std::time::{Duration, Instant};

use cm::ConnId;
use cm::mads::{Origin, is_question};
use nic::{DeviceId, Path, Qp};
use wire::mad::{Mad, Message};
use wire::{Address, LidAddress, Qpn};

use crate::Node;
use crate::cm_agent::{ConnKey, Core};
use crate::env::Env;

/// How long an end waits for answers under way, or for the program: on a busy machine a process
/// that hands answers on waits for a processor, some tens of milliseconds. So may this one, with
/// the answers unread in its sockets: it waits in steps, of which the next begins when it finds the
/// last one over, and reads its sockets between two.
const STEP: Duration = Duration::from_millis(2);
const STEPS: u32 = 50;
/// Where hundreds of threads want two processors each step takes a turn of all of them: after that
/// time so few steps are enough.
const LONG: Duration = Duration::from_secs(1);
const MIN: u32 = 5;

/// The end of a connection, which waits.
pub(crate) struct Waiting {
    key: ConnKey,
    end: End,
    /// Since when it waits, and when its step is over.
    since: Instant,
    pub(crate) until: Instant,
    /// Steps after that.
    left: u32,
}

/// Whether an end has waited for long enough, with so many steps left that it might take.
fn is_long(waited: Duration, left: u32) -> bool {
    waited >= LONG && left + MIN <= STEPS
}

/// How a connection ends.
enum End {
    Dreq(Origin, Box<Mad>),
    /// The peer's process is no more.
    Exit,
}

impl<W: Env> Node<W> {
    /// The way of a message; before one that ends its connection what the queue pair has to
    /// acknowledge is acknowledged.
    pub(crate) fn way(
        &self,
        core: &Core,
        now: Instant,
        (device, conn): (DeviceId, Option<ConnId>),
        path: &cm::PathRecord,
        mad: &Mad,
        attempt: u32,
    ) -> Path {
        let Some(key) = conn.map(|conn| (device, conn)) else { return way(path, mad, attempt, None) };
        if is_last_message(mad) {
            let data = core.qp(key).and_then(|qp| qp.let_acks_go(now));
            return way(path, mad, attempt, data);
        }
        self.flow(core, key, path, mad, attempt).unwrap_or_else(|| gsi_path(path, attempt))
    }

    /// Whether the message is a DREQ that has to wait; if so it does.
    pub(crate) fn must_wait(
        &self,
        core: &mut Core,
        now: Instant,
        device: DeviceId,
        origin: Origin,
        mad: &Mad,
    ) -> bool {
        let ended = core.cms.get_mut(&device).and_then(|cm| cm.mads()?.ended_by(origin, mad));
        let Some(key) = ended.map(|conn| (device, conn)) else { return false };
        self.wait(core, now, key, || End::Dreq(origin, Box::new(mad.clone())))
    }

    /// The process at the other end of a connection is no more.
    pub(crate) fn end_by_exit(&self, core: &mut Core, now: Instant, key: ConnKey) {
        if !self.wait(core, now, key, || End::Exit) {
            self.end_now(core, now, key, &End::Exit);
        }
    }

    /// Has the end of a connection wait if answers are missing or messages unread; whether it does.
    fn wait(&self, core: &mut Core, now: Instant, key: ConnKey, end: impl FnOnce() -> End) -> bool {
        let Some(qp) = core.qp(key).filter(|qp| must_come_later(qp)) else { return false };
        // A second word of the end changes nothing.
        if core.waiting_ends.get(&qp.qpn()).is_none_or(|waiting| waiting.key != key) {
            let waiting = Waiting { key, end: end(), since: now, until: now + STEP, left: STEPS - 1 };
            core.waiting_ends.insert(qp.qpn(), waiting);
            self.cm_agent.count_awaited(core);
        }
        true
    }

    /// A packet came for a queue pair: an end that waited for it comes if no answer is missing any
    /// more. Whether one did.
    pub(crate) fn end_wait(&self, core: &mut Core, now: Instant, qpn: Qpn) -> bool {
        let Some(waiting) = core.waiting_ends.get(&qpn) else { return false };
        let waits = core.qp(waiting.key).is_some_and(|qp| qp.qpn() == qpn && must_come_later(&qp));
        !waits && self.end_waiting(core, now, qpn)
    }

    /// Steps that are over: the next begin where they are needed, and what has waited long enough
    /// comes.
    pub(crate) fn end_waits(&self, core: &mut Core, now: Instant) {
        let over = core.waiting_ends.iter().filter(|(_, waiting)| waiting.until <= now);
        let over: Vec<_> = over
            .map(|(&qpn, waiting)| {
                (qpn, waiting.key, waiting.left, is_long(now.duration_since(waiting.since), waiting.left))
            })
            .collect();
        let mut due = Vec::new();
        for (qpn, key, left, is_long) in over {
            let waits = !is_long && core.qp(key).is_some_and(|qp| qp.qpn() == qpn && must_come_later(&qp));
            match (left.checked_sub(1).filter(|_| waits), core.waiting_ends.get_mut(&qpn)) {
                (Some(left), Some(waiting)) => (waiting.until, waiting.left) = (now + STEP, left),
                _ => due.push(qpn),
            }
        }
        for qpn in due {
            self.end_waiting(core, now, qpn);
        }
    }

    fn end_waiting(&self, core: &mut Core, now: Instant, qpn: Qpn) -> bool {
        let Some(Waiting { key, end, .. }) = core.waiting_ends.remove(&qpn) else { return false };
        self.cm_agent.count_awaited(core);
        self.end_now(core, now, key, &end);
        true
    }

    fn end_now(&self, core: &mut Core, now: Instant, key: ConnKey, end: &End) {
        match end {
            End::Dreq(origin, mad) => {
                if let Some(device) = self.device(key.0) {
                    self.hear(core, now, &device, *origin, mad);
                }
            }
            End::Exit => {
                if let Some((cm, conn)) = core.cm(key) {
                    cm.end_of_peer(now, conn);
                }
            }
        }
    }
}

/// Whether the end of a queue pair's connection is better heard of later.
fn must_come_later(qp: &Qp) -> bool {
    qp.awaits_answers() || qp.has_unread_messages()
}

/// Whether nothing of the connection follows.
fn is_last_message(mad: &Mad) -> bool {
    match &mad.message {
        Message::Dreq(dreq) => !is_question(dreq),
        message => matches!(message, Message::Drep(_) | Message::Rej(_)),
    }
}

/// The path from a port that messages to all peers share.
pub(crate) fn gsi_path(path: &cm::PathRecord, attempt: u32) -> Path {
    let at_level = |address: Address| match address {
        Address::Lid(lid) => {
            LidAddress::new(lid.lid(), path.service_level, lid.path_bits()).map_or(address, Address::Lid)
        }
        Address::Ip(_) => address,
    };
    Path {
        source: at_level(path.source()),
        dest: at_level(path.dest()),
        interface: path.link,
        dest_qpn: Qpn::GSI,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        source_port_epoch: attempt,
        no_multicast_loop: false,
    }
}

/// The way of a message. One that ends a connection takes that of its data, where that is known,
/// the first time.
pub(crate) fn way(path: &cm::PathRecord, mad: &Mad, attempt: u32, data: Option<Path>) -> Path {
    let way = gsi_path(path, attempt);
    match &mad.message {
        _ if attempt > 0 || !is_last_message(mad) => way,
        _ if data.is_some_and(|data| (data.source, data.dest) == (way.source, way.dest)) => {
            data.unwrap_or(way)
        }
        // The queue pair was destroyed before.
        Message::Dreq(dreq) => Path { dest_qpn: dreq.remote_qpn, ..way },
        _ => way,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_second_an_end_waits_for_five_steps_and_no_more() {
        let a_moment_less = LONG - STEP;
        assert!(!is_long(a_moment_less, 0), "so soon all steps are taken");
        // While the n-th step is under way, `STEPS - n` are left.
        assert!(!is_long(LONG * 10, STEPS - 4) && is_long(LONG, STEPS - 5));
    }
}
