//! Send work requests, as their packets show them: where one begins, and what becomes of the
//! packets of one that fails. Unreliable ones are complete before their packets are seen: those
//! that leave fail as they are posted, and those that arrive at their receives.
//!
//! The link loses a request that a fault befalls, and what comes after it, until the queue pair has
//! dealt with it. A request that came before is not counted again.

use std::collections::BTreeMap;

use nic::faults::Outcome;
use wire::bth::Bth;
use wire::{Address, Psn, Qpn};

use crate::spec::Action;

/// A direction of a connection: whether it leads out, the peer, and the queue pair that it leads
/// to.
pub(crate) type Way = (bool, Address, Qpn);

/// Connections that are remembered.
const MAX: usize = 4_096;

/// A requester does not go back further: what lies further back is of another connection.
const MAX_BACK: i32 = 1 << 20;
/// Packets after a lost one that are lost with it.
const MAX_AFTER: i32 = 1 << 16;

/// A packet of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestPacket {
    pub dest_qp: Qpn,
    pub psn: Psn,
    /// A request begins with it; of an unreliable one, where it takes a receive.
    is_first: bool,
    /// What is lost comes again.
    is_reliable: bool,
}

impl RequestPacket {
    /// `None` for a packet that is none of a requester, and for datagrams of the connection
    /// manager.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let opcode = *bytes.first()?;
        let is_reliable = matches!(opcode >> 5, 0 | 5);
        let is_request = matches!(opcode & 0x1f, 0x00..=0x0c | 0x13 | 0x14 | 0x16 | 0x17 | 0x1c | 0x1d);
        let psn = bytes.get(Bth::LEN - 3..Bth::LEN)?;
        let psn = Psn::new(psn.iter().fold(0, |psn, byte| psn << 8 | u32::from(*byte)));
        let is_first = matches!(
            opcode & 0x1f,
            0x00 | 0x04..=0x06 | 0x0a..=0x0c | 0x13 | 0x14 | 0x17 | 0x1c | 0x1d
        );
        let dest_qp = Bth::peek_dest_qp(bytes)?;
        if is_reliable {
            return is_request.then_some(Self { dest_qp, psn, is_first, is_reliable });
        }
        // UC and UD.
        let is_unreliable = matches!(opcode >> 5, 1 | 3) && dest_qp != Qpn::GSI;
        let is_message = matches!(opcode & 0x1f, 0x00 | 0x04 | 0x05 | 0x0b);
        (is_unreliable && is_request).then_some(Self { dest_qp, psn, is_first: is_message, is_reliable })
    }
}

/// Whether a packet of this opcode takes a receive: a whole SEND or the first packet of one, and
/// what brings immediate data with a WRITE, both of a reliable connection (IBA 1.4 table 38).
pub(crate) fn takes_receive(opcode: u8) -> bool {
    matches!(opcode >> 5, 0 | 5) && matches!(opcode & 0x1f, 0x00 | 0x04 | 0x05 | 0x09 | 0x0b | 0x17)
}

/// A request that is lost.
#[derive(Clone, Copy, Debug)]
struct Lost {
    psn: Psn,
    action: Action,
}

/// What a packet of a requester meets that was lost before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Met {
    /// Nothing.
    Nothing,
    /// A loss, too, by this action.
    Lost(Action),
    /// The lost one itself, once more.
    Again(Action),
}

/// The requests of all connections.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The PSN of the last request that began.
    begun: BTreeMap<Way, Psn>,
    lost: BTreeMap<Way, Lost>,
    /// Ways on which nothing comes again.
    unreliable: BTreeMap<Way, ()>,
}

impl Requests {
    /// Whether a request begins with this packet, which did not come before.
    pub(crate) fn begins(&mut self, way: Way, packet: RequestPacket) -> bool {
        if !packet.is_first {
            return false;
        }
        if !packet.is_reliable {
            bounded_insert(&mut self.unreliable, way, ());
            let (is_out, ..) = way;
            return !is_out;
        }
        self.unreliable.remove(&way);
        let back = self.begun.get(&way).map(|last| last.since(packet.psn));
        let is_known = back.is_some_and(|back| (0..MAX_BACK).contains(&back));
        if !is_known {
            bounded_insert(&mut self.begun, way, packet.psn);
        }
        !is_known
    }

    /// A packet is lost by this action, and those after it where it would come again.
    pub(crate) fn lose(&mut self, way: Way, psn: Psn, action: Action) {
        if self.unreliable.contains_key(&way) {
            return;
        }
        bounded_insert(&mut self.lost, way, Lost { psn, action });
    }

    /// What a packet meets. One that found no receive meets nothing when it comes again.
    pub(crate) fn meet(&mut self, way: Way, psn: Psn) -> Met {
        let Some(Lost { psn: lost, action }) = self.lost.get(&way).copied() else { return Met::Nothing };
        match psn.since(lost) {
            0 if action == Action::Rnr => {
                self.lost.remove(&way);
                Met::Nothing
            }
            0 => Met::Again(action),
            1..MAX_AFTER => Met::Lost(action),
            _ => Met::Nothing,
        }
    }

    /// What was lost had been executed before: its sender may not send it again.
    pub(crate) fn forget(&mut self, way: Way) {
        self.lost.remove(&way);
    }

    /// A request of ours that failed has ended, and its queue pair with it.
    pub(crate) fn ended(&mut self, way: Way, outcome: Outcome) {
        if outcome != Outcome::RnrNak {
            self.forget(way);
        }
    }
}

fn bounded_insert<T>(map: &mut BTreeMap<Way, T>, way: Way, value: T) {
    map.insert(way, value);
    if map.len() > MAX {
        map.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const WAY: Way = (true, Address::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST)), Qpn::GSI);

    fn packet(opcode: u8, psn: u32) -> RequestPacket {
        let [_, high, mid, low] = psn.to_be_bytes();
        let bytes = [opcode, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, high, mid, low];
        RequestPacket::of(&bytes).expect("a request")
    }

    #[test]
    fn a_request_that_comes_again_is_not_counted_again() {
        let mut requests = Requests::default();
        let begins: Vec<_> =
            [(0x00, 0xff_fffe), (0x02, 0xff_ffff), (0x04, 0), (0x00, 0xff_fffe), (0x04, 0), (0x0c, 1)]
                .map(|(opcode, psn)| requests.begins(WAY, packet(opcode, psn)))
                .into();
        assert_eq!(begins, [true, false, true, false, false, true]);
        let other = (false, WAY.1, WAY.2);
        assert!(requests.begins(other, packet(0x04, 0)), "the other direction has its own");
        let ack = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0];
        assert_eq!(RequestPacket::of(&ack), None);
        let mut datagram = packet(0x64, 7);
        assert_eq!((datagram.is_first, datagram.is_reliable), (true, false));
        datagram.dest_qp = WAY.2;
        assert!(!requests.begins(WAY, datagram), "it was judged as it was posted");
        for _ in 0..2 {
            assert!(requests.begins(other, datagram), "a datagram does not come again");
        }
        requests.lose(other, datagram.psn, Action::Error(Outcome::Unanswered));
        assert_eq!(requests.meet(other, datagram.psn), Met::Nothing);
    }

    #[test]
    fn what_comes_after_a_lost_request_is_lost_until_it_has_ended() {
        let mut requests = Requests::default();
        let (error, lost) = (Action::Error(Outcome::Unanswered), Psn::new(10));
        requests.lose(WAY, lost, error);
        let met = [9, 10, 11].map(|psn| requests.meet(WAY, Psn::new(psn)));
        assert_eq!(met, [Met::Nothing, Met::Again(error), Met::Lost(error)]);
        requests.ended(WAY, Outcome::Unanswered);
        assert_eq!(requests.meet(WAY, lost), Met::Nothing);
        requests.lose(WAY, lost, Action::Rnr);
        requests.ended(WAY, Outcome::RnrNak);
        let met = [11, 10, 11].map(|psn| requests.meet(WAY, Psn::new(psn)));
        assert_eq!(met, [Met::Lost(Action::Rnr), Met::Nothing, Met::Nothing]);
    }
}
