//! What goes to a process of this host without packets, as the packets that it would be.

use local::rings::Passed;
use nic::peer_memory::{Copy, Transfer};
use transport::Short;
use transport::short::What;
use wire::Mtu;
use wire::bth::Bth;
use wire::icrc::ICRC_LEN;

/// Bytes of the headers of a packet in the midst of a message: BTH and ICRC.
const HEADERS: u64 = (Bth::LEN + ICRC_LEN) as u64;
/// Bytes of immediate data, of an RETH and of an AtomicETH with its answer's AtomicAckETH.
const IMMEDIATE: u64 = 4;
const RETH: u64 = 16;
const ATOMIC_ETH: u64 = 28;
const ATOMIC_ANSWER: u64 = 4 + 8;

/// An acknowledgement: its AETH.
pub(crate) const ACK: u64 = 4;

/// What a message of `len` bytes would be as packets.
#[inline]
fn as_packets(len: u64, mtu: Mtu) -> Passed {
    let packets = len.div_ceil(mtu.bytes() as u64).max(1);
    Passed { packets, bytes: len.next_multiple_of(4) + packets * HEADERS, ..Passed::default() }
}

/// One packet with so many bytes between its BTH and its ICRC.
#[inline]
pub(crate) fn one_packet(bytes: u64) -> Passed {
    Passed { packets: 1, bytes: HEADERS + bytes, ..Passed::default() }
}

/// Which message ends with a packet, by the lower bits of its opcode (IBA 1.4 table 38): a SEND, or
/// an RDMA WRITE with immediate data.
#[inline]
fn ends(opcode: u8) -> (u64, u64) {
    match opcode & 0x1f {
        0x02..=0x05 | 0x16 | 0x17 => (1, 0),
        0x09 | 0x0b => (0, 1),
        _ => (0, 0),
    }
}

/// Packets from BTH to ICRC.
pub(crate) fn of_packets<'a>(packets: impl Iterator<Item = &'a [u8]>) -> Passed {
    packets.fold(Passed::default(), |mut passed, packet| {
        let (sends, immediates) = packet.first().map_or((0, 0), |opcode| ends(*opcode));
        passed.packets += 1;
        passed.bytes += packet.len() as u64;
        passed.sends += sends;
        passed.immediates += immediates;
        passed
    })
}

/// A short message of so many bytes.
#[inline]
pub(crate) fn of_short(short: &Short, len: usize) -> Passed {
    let (more, sends) = match short.what {
        What::Send => (0, 1),
        What::SendImmediate(_) => (IMMEDIATE, 1),
        What::WriteImmediate(..) => (RETH + IMMEDIATE, 0),
    };
    let packet = one_packet((len as u64).next_multiple_of(4) + more);
    Passed { sends, immediates: 1 - sends, ..packet }
}

/// A copy: what leaves for it, and what comes.
#[inline]
pub(crate) fn of_copy(transfer: &Transfer<'_>) -> (Passed, Passed) {
    let passed = || as_packets(transfer.remote.length, transfer.mtu);
    match transfer.what {
        Copy::Write | Copy::Put => (passed(), Passed::default()),
        Copy::Read => (one_packet(RETH), passed()),
        Copy::Pull => (Passed::default(), passed()),
        Copy::Atomic(_) => (one_packet(ATOMIC_ETH), one_packet(ATOMIC_ANSWER)),
        Copy::Flush(_) => (one_packet(RETH + 4), Passed::default()),
    }
}

/// Several packets as one fragment, of which the headers and the path MTU's code are before `len`
/// bytes. Bytes that are elsewhere (`len` 0) the end counts that copies them. `None` for what says
/// where, and is no packet.
pub(crate) fn of_fragment(headers: &[u8], len: usize) -> Option<Passed> {
    let (opcode, mtu) = (*headers.first()?, Mtu::from_code(*headers.last()?)?);
    match opcode & 0x1f {
        0x0c => Some(one_packet(RETH)),
        0x11 => None,
        _ => {
            let (sends, immediates) = ends(opcode);
            let passed = if len == 0 { Passed::default() } else { as_packets(len as u64, mtu) };
            Some(Passed { sends, immediates, ..passed })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_by_memory_counts_as_the_packets_that_it_would_be() {
        let passed = |packets, bytes| Passed { packets, bytes, ..Passed::default() };
        assert_eq!(as_packets(1, Mtu::M4096), passed(1, 4 + 16));
        assert_eq!(as_packets(0, Mtu::M256), passed(1, 16));
        assert_eq!(as_packets(4097, Mtu::M4096), passed(2, 4100 + 32));
        assert_eq!(as_packets(1 << 20, Mtu::M1024), passed(1024, (1 << 20) + 1024 * 16));
    }

    #[test]
    fn messages_are_counted_with_their_last_packets() {
        let packets: [&[u8]; 6] = [&[0x00; 20], &[0x02; 24], &[0x64; 20], &[0x2b; 28], &[0x11; 20], &[]];
        let passed = of_packets(packets.into_iter());
        assert_eq!(passed, Passed { packets: 6, bytes: 112, sends: 2, immediates: 1 });
    }

    #[test]
    fn a_fragment_counts_its_packets_and_one_whose_bytes_are_elsewhere_its_message() {
        let of = |opcode, len| of_fragment(&[opcode, 0, 0, Mtu::M1024.code()], len);
        assert_eq!(of(0x04, 3000), Some(Passed { sends: 1, ..as_packets(3000, Mtu::M1024) }));
        assert_eq!(of(0x02, 0), Some(Passed { sends: 1, ..Passed::default() }));
        assert_eq!(of(0x0c, 17), Some(one_packet(16)));
        assert_eq!(of(0x11, 17), None);
    }
}
