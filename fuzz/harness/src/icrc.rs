//! Any bytes between any addresses: what is sealed must open, whatever its identification; nothing
//! else may panic.
//!
//! | bytes | use |
//! |---|---|
//! | 0 | IPv4 if even, IPv6 if odd |
//! | 1..3 | identification |
//! | 3..35 | addresses |
//! | rest | packet |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::icrc::{self, Flow, ICRC_LEN, MAX_PACKET};

/// The fuzzer's bytes, laid out as above.
pub fn run(bytes: &[u8]) {
    let Some((head, packet)) = bytes.split_first_chunk::<35>() else { return };
    let address = |at: usize| -> IpAddr {
        let octets: [u8; 16] = std::array::from_fn(|i| head[at + i]);
        match head[0] % 2 {
            0 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
            _ => Ipv6Addr::from(octets).into(),
        }
    };
    let flow = Flow { source: SocketAddr::new(address(3), 49152), dest: SocketAddr::new(address(19), 4791) };
    let _ = icrc::open(&flow, packet);

    let mut packet = packet.to_vec();
    if packet.len() < 16 {
        return;
    }
    packet.truncate(MAX_PACKET);
    packet.truncate(packet.len() / 4 * 4);
    icrc::seal(&flow, u16::from_be_bytes([head[1], head[2]]), &mut packet);
    assert_eq!(icrc::open(&flow, &packet), Ok(&packet[..packet.len() - ICRC_LEN]));
}
