//! The local routing header (LRH, IBA 1.4 §7.7), and what else the link layer adds to a packet
//! between LIDs. A simulated fabric carries neither; a file of packets has both.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | virtual lane (4 bits), link version 0 (4) |
//! | 1 | service level (4 bits), reserved (2), next header (2): 2 is a BTH, 3 a GRH |
//! | 2..4 | destination LID |
//! | 4..6 | reserved (5 bits), words of 4 bytes from the LRH to the ICRC (11) |
//! | 6..8 | source LID |
//!
//! The ICRC of such a packet (IBA 1.4 §7.8.1) is the CRC-32 of Ethernet from the LRH on, where what
//! switches and routers change reads one: virtual lane; traffic class, flow label and hop limit of
//! the GRH; byte 4 of the BTH. The variant CRC (VCRC, IBA 1.4 §7.8.2) covers all from the LRH to
//! the ICRC as they are, with the generator `x^16 + x^12 + x^3 + x + 1`. Both are complemented, and
//! stored least significant byte first.

use crc32fast::Hasher;

use crate::LidAddress;
use crate::bth::Bth;
use crate::grh::GRH_LEN;
use crate::icrc::ICRC_LEN;

/// Bytes on the wire.
pub const LRH_LEN: usize = 8;
/// Bytes of the VCRC at the end of every packet.
pub const VCRC_LEN: usize = 2;

/// The generator of the VCRC, with the bits in the order in which they are sent.
const GENERATOR: u16 = 0xd008;

/// A packet as it is on a link, from the LRH to the VCRC, in virtual lane 0. `packet` is from its
/// GRH, where `dest` says that it has one, or its BTH, to its ICRC, which is made anew.
///
/// `None` for one that is shorter than these headers, or longer than an LRH can say.
pub fn on_link(source: LidAddress, dest: LidAddress, packet: &[u8]) -> Option<Vec<u8>> {
    let grh_len = if dest.has_grh() { GRH_LEN } else { 0 };
    let covered = packet.get(..packet.len().checked_sub(ICRC_LEN)?)?;
    let words = u16::try_from((LRH_LEN + packet.len()) / 4).ok().filter(|words| *words < 1 << 11)?;
    if covered.len() < grh_len + Bth::LEN || !packet.len().is_multiple_of(4) {
        return None;
    }
    let next = if dest.has_grh() { 3 } else { 2 };
    let mut whole = Vec::with_capacity(LRH_LEN + packet.len() + VCRC_LEN);
    whole.extend([0, dest.service_level() << 4 | next]);
    whole.extend(dest.lid().to_be_bytes());
    whole.extend(words.to_be_bytes());
    whole.extend(source.lid().to_be_bytes());
    whole.extend(covered);
    let icrc = icrc(&whole, grh_len).to_le_bytes();
    whole.extend(icrc);
    let vcrc = vcrc(&whole).to_le_bytes();
    whole.extend(vcrc);
    Some(whole)
}

/// The ICRC of a packet from its LRH to the byte before its ICRC.
fn icrc(covered: &[u8], grh_len: usize) -> u32 {
    let (headers, rest) = covered.split_at(LRH_LEN + grh_len + Bth::LEN);
    let mut masked = headers.to_vec();
    masked[0] |= 0xf0;
    if grh_len > 0 {
        masked[LRH_LEN] |= 0x0f;
        masked[LRH_LEN + 1..LRH_LEN + 4].fill(0xff);
        masked[LRH_LEN + 7] = 0xff;
    }
    masked[LRH_LEN + grh_len + 4] = 0xff;
    let mut crc = Hasher::new();
    crc.update(&masked);
    crc.update(rest);
    crc.finalize()
}

/// The VCRC of a packet from its LRH to its ICRC.
fn vcrc(covered: &[u8]) -> u16 {
    let step = |crc: u16, _| if crc & 1 == 1 { crc >> 1 ^ GENERATOR } else { crc >> 1 };
    !covered.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u16::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lid(lid: u16, service_level: u8) -> LidAddress {
        LidAddress::new(lid, service_level, 0).unwrap()
    }

    #[test]
    fn a_packet_on_a_link_has_the_checksums_of_the_standard() {
        // A local packet of IBA 1.4 §7.8, whose virtual lane is 7.
        let mut sample: Vec<u8> = vec![0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2];
        let packet = [
            0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c,
            0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85,
            0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
        ];
        sample.extend(packet);
        let icrc = [0x96, 0x25, 0xb7, 0x5a];
        assert_eq!(super::icrc(&sample, 0).to_le_bytes(), icrc);
        sample.extend(icrc);
        assert_eq!(vcrc(&sample).to_le_bytes(), [0x45, 0xfa]);
        let whole = on_link(lid(0x17d2, 1), lid(0x375c, 1), &[&packet[..], &[0; 4]].concat()).unwrap();
        assert_eq!(whole[..8], [0x00, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2]);
        let (covered, vcrc) = whole.split_last_chunk::<VCRC_LEN>().unwrap();
        // The ICRC does not cover the virtual lane.
        assert_eq!(covered[8..], [&packet[..], &icrc].concat());
        assert_eq!(super::vcrc(covered).to_le_bytes(), *vcrc);
    }

    #[test]
    fn what_has_no_room_for_its_headers_or_is_no_words_is_no_packet() {
        let (near, far) = (lid(1, 0), lid(2, 0));
        assert!(on_link(near, far, &[0; 16]).is_some());
        for len in [0, 3, 12, 17, 4 * (1 << 11)] {
            assert_eq!(on_link(near, far, &vec![0; len]), None);
        }
        assert_eq!(on_link(near, far.with_grh(), &[0; 52]), None);
        let global = on_link(near, far.with_grh(), &[0; 56]).unwrap();
        assert_eq!((global[1], global[5], global.len()), (3, 16, 66));
    }
}
