//! Messages of connection managers that wait at a socket until its data is served: a connection
//! manager repeats what is lost, and works far longer over a message than a queue pair does over a
//! packet.

use std::collections::VecDeque;
use std::net::SocketAddr;

use wire::Qpn;
use wire::bth::Bth;
use wire::mad::MAD_LEN;

/// Length of every packet that carries a MAD: BTH, DETH, MAD, ICRC. Others are refused faster than
/// they are kept.
const PACKET_LEN: usize = 12 + 8 + MAD_LEN + 4;
/// Most that wait at the socket of an address, from however many peers: more than a default receive
/// buffer holds.
const MAX: usize = 8192;
/// Most that wait at the socket of one flow.
const MAX_OF_A_FLOW: usize = 512;
/// Room that is kept when nothing waits.
const KEPT: usize = 64;

/// A message of a connection manager that waits.
pub(crate) struct Message {
    pub(crate) source: SocketAddr,
    pub(crate) bytes: [u8; PACKET_LEN],
}

/// The messages that wait at one socket, oldest first.
pub(crate) struct Management {
    waiting: VecDeque<Message>,
    most: usize,
}

impl Management {
    /// For the socket of an address, or of `one_flow`.
    pub(crate) fn new(one_flow: bool) -> Self {
        Self { waiting: VecDeque::new(), most: if one_flow { MAX_OF_A_FLOW } else { MAX } }
    }

    /// Whether a packet is to wait here.
    #[inline]
    pub(crate) fn takes(bytes: &[u8]) -> bool {
        bytes.len() == PACKET_LEN && Bth::peek_dest_qp(bytes) == Some(Qpn::GSI)
    }

    /// Keeps a packet that [`Management::takes`]; false where too many wait.
    pub(crate) fn push(&mut self, source: SocketAddr, bytes: &[u8]) -> bool {
        let Ok(bytes) = bytes.try_into() else { return false };
        let fits = self.waiting.len() < self.most;
        if fits {
            self.waiting.push_back(Message { source, bytes });
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Message> {
        let message = self.waiting.pop_front();
        if message.is_none() && self.waiting.capacity() > KEPT {
            self.waiting.shrink_to(KEPT);
        }
        message
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: usize, qpn: u8) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[0] = 0x64;
        bytes[7] = qpn;
        bytes
    }

    #[test]
    fn whole_mads_to_qp1_wait_and_nothing_else() {
        assert!(Management::takes(&packet(PACKET_LEN, 1)));
        assert!(!Management::takes(&packet(PACKET_LEN, 2)));
        assert!(!Management::takes(&packet(PACKET_LEN - 4, 1)));
        assert!(!Management::takes(&[]));
    }

    #[test]
    fn so_many_wait_and_no_more_and_their_room_is_given_back() {
        let source = SocketAddr::from(([127, 0, 0, 1], 5));
        for (one_flow, most) in [(false, MAX), (true, MAX_OF_A_FLOW)] {
            let mut management = Management::new(one_flow);
            let kept = (0..2 * MAX).filter(|_| management.push(source, &packet(PACKET_LEN, 1))).count();
            assert_eq!(kept, most);
            assert_eq!(std::iter::from_fn(|| management.pop()).count(), most);
            assert!(management.is_empty() && management.waiting.capacity() <= 2 * KEPT);
        }
    }
}
