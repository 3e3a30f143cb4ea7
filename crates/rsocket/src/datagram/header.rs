//! What stands before the bytes of a datagram, as librdmacm writes it. Numbers are big-endian.
//!
//! | bytes | header of a datagram |
//! |---|---|
//! | 0 | 4 or 6, the version of IP |
//! | 1 | length of the header: 8 or 24 |
//! | 2-3 | the sender's port |
//! | 4-7 | its IPv4 address; of IPv6 the flow information |
//! | 8-23 | its IPv6 address |
//!
//! | bytes | header of a message between the UDP sockets |
//! |---|---|
//! | 0-3 | 0x55555555 |
//! | 4 | 4 or 6, the version of IP |
//! | 5 | 0: a datagram follows; 7: only the queue pair is told |
//! | 6 | length of the header: 16 or 28 |
//! | 8-11 | the sender's queue pair, in the lower 24 bits |
//! | 12- | the address of its device, 4 or 16 bytes |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use wire::Qpn;

use crate::conn_data::field;

/// The longest header of a datagram.
pub const HEADER_MAX: usize = 24;
const V4_LEN: usize = 8;

const TAG: u32 = 0x5555_5555;
const SERVICE_V4_LEN: usize = 16;
const SERVICE_V6_LEN: usize = 28;

/// A peer's bytes that are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A header as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Bytes<N> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The address by which a peer is known: an IPv4-mapped IPv6 address is the IPv4 address, and flow
/// information says nothing.
pub fn normal(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => (v4, v6.port()).into(),
            None => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        },
        SocketAddr::V4(_) => addr,
    }
}

/// The header of a datagram from this address.
pub fn encode(from: &SocketAddr) -> Bytes<HEADER_MAX> {
    let mut bytes = [0; HEADER_MAX];
    bytes[2..4].copy_from_slice(&from.port().to_be_bytes());
    let len = match from {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            V4_LEN
        }
        SocketAddr::V6(v6) => {
            // In network order already (ipv6(7)).
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            HEADER_MAX
        }
    };
    (bytes[0], bytes[1]) = (if from.is_ipv4() { 4 } else { 6 }, len as u8);
    Bytes { bytes, len }
}

/// The sender of a datagram that begins with these bytes, and the length of the header.
///
/// # Errors
///
/// They are no header.
pub fn decode(bytes: &[u8]) -> Result<(SocketAddr, usize), Malformed> {
    let (&[version, len], rest) = bytes.split_first_chunk().ok_or(Malformed)?;
    let (port, rest) = rest.split_first_chunk().ok_or(Malformed)?;
    let port = u16::from_be_bytes(*port);
    match (version, usize::from(len)) {
        (4, V4_LEN) => {
            let ip: &[u8; 4] = rest.first_chunk().ok_or(Malformed)?;
            Ok(((Ipv4Addr::from(*ip), port).into(), V4_LEN))
        }
        (6, HEADER_MAX) => {
            let rest: &[u8; 20] = rest.first_chunk().ok_or(Malformed)?;
            let (flow, ip) = (u32::from_ne_bytes(field(rest, 0)), Ipv6Addr::from(field::<16>(rest, 4)));
            Ok((SocketAddrV6::new(ip, port, flow, 0).into(), HEADER_MAX))
        }
        _ => Err(Malformed),
    }
}

/// What a message between UDP sockets is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A datagram to a peer whose queue pair is not known, or was not heard of for a while. It
    /// asks for an answer.
    Data,
    /// The answer.
    Control,
}

const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// Whether the number stands for queue pairs for management, or for a group (IBA 1.4 §3.5.10).
fn is_reserved(qpn: Qpn) -> bool {
    qpn.get() < 2 || qpn == Qpn::MULTICAST
}

/// The header of a message between UDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// What it is for.
    pub op: Op,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The address of the sender's device.
    pub address: IpAddr,
}

impl Service {
    /// So many bytes, of the address's family.
    pub fn len_of(address: &IpAddr) -> usize {
        if address.is_ipv4() { SERVICE_V4_LEN } else { SERVICE_V6_LEN }
    }

    /// The header.
    pub fn encode(&self) -> Bytes<SERVICE_V6_LEN> {
        let (mut bytes, len) = ([0; SERVICE_V6_LEN], Self::len_of(&self.address));
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[4] = if self.address.is_ipv4() { 4 } else { 6 };
        bytes[5] = match self.op {
            Op::Data => DATA,
            Op::Control => CONTROL,
        };
        bytes[6] = len as u8;
        bytes[8..12].copy_from_slice(&self.qpn.get().to_be_bytes());
        match self.address {
            IpAddr::V4(v4) => bytes[12..16].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes[12..28].copy_from_slice(&v6.octets()),
        }
        Bytes { bytes, len }
    }

    /// The header of a message from `from`, and the bytes behind it.
    ///
    /// # Errors
    ///
    /// The bytes are no such message, or one of the other family of addresses. Or they name one of
    /// the queue pairs for management or a group.
    pub fn decode<'a>(from: &SocketAddr, bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let head: &[u8; 12] = bytes.first_chunk().ok_or(Malformed)?;
        let (tag, [version, op, len, _]) = (u32::from_be_bytes(field(head, 0)), field::<4>(head, 4));
        let qpn = Qpn::new(u32::from_be_bytes(field(head, 8)) & 0xff_ffff);
        let (expected, family) = if from.is_ipv4() { (SERVICE_V4_LEN, 4) } else { (SERVICE_V6_LEN, 6) };
        if tag != TAG || version != family || usize::from(len) != expected || is_reserved(qpn) {
            return Err(Malformed);
        }
        let (header, rest) = bytes.split_at_checked(expected).ok_or(Malformed)?;
        let address = match from {
            SocketAddr::V4(_) => IpAddr::from(*header[12..].first_chunk::<4>().ok_or(Malformed)?),
            SocketAddr::V6(_) => IpAddr::from(*header[12..].first_chunk::<16>().ok_or(Malformed)?),
        };
        let op = match op {
            DATA => Op::Data,
            CONTROL => Op::Control,
            _ => return Err(Malformed),
        };
        Ok((Self { op, qpn, address }, rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_address() -> impl Strategy<Value = SocketAddr> {
        (any::<bool>(), any::<[u8; 16]>(), any::<u16>(), any::<u32>()).prop_map(|(v4, ip, port, flow)| {
            match v4 {
                true => ([ip[0], ip[1], ip[2], ip[3]], port).into(),
                false => SocketAddrV6::new(ip.into(), port, flow, 0).into(),
            }
        })
    }

    #[test]
    fn headers_stand_as_librdmacm_writes_them() {
        let v4: SocketAddr = ([10, 1, 2, 3], 7174).into();
        assert_eq!(encode(&v4).as_slice(), [4, 8, 0x1c, 0x06, 10, 1, 2, 3]);
        let v6: SocketAddr = "[fd00::1]:258".parse().unwrap();
        assert_eq!(encode(&v6).as_slice()[..8], [6, 24, 1, 2, 0, 0, 0, 0]);
        let told = Service { op: Op::Control, qpn: Qpn::new(0x01_2345), address: v4.ip() };
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 1, 0x23, 0x45, 10, 1, 2, 3];
        assert_eq!(told.encode().as_slice(), bytes);
    }

    #[test]
    fn a_message_of_another_family_or_for_a_management_queue_pair_is_refused() {
        let (v4, v6): (SocketAddr, SocketAddr) = (([10, 1, 2, 3], 1).into(), "[fd00::1]:1".parse().unwrap());
        let message = |qpn| Service { op: Op::Data, qpn: Qpn::new(qpn), address: v4.ip() }.encode();
        assert!(Service::decode(&v4, message(2).as_slice()).is_ok());
        assert_eq!(Service::decode(&v6, message(2).as_slice()), Err(Malformed));
        assert_eq!(Service::decode(&v4, message(1).as_slice()), Err(Malformed));
        assert_eq!(Service::decode(&v4, &message(2).as_slice()[..15]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_datagram_are_refused_or_come_back(bytes: Vec<u8>, from in any_address()) {
            if let Ok((sender, len)) = decode(&bytes) {
                let again = encode(&sender);
                prop_assert_eq!(again.as_slice(), &bytes[..len]);
            }
            let header = encode(&from);
            prop_assert_eq!(decode(header.as_slice()), Ok((from, header.len)));
        }

        #[test]
        fn any_bytes_of_a_udp_message_are_refused_or_come_back(
            mut bytes: Vec<u8>,
            from in any_address(),
            qpn in 2_u32..0xff_ffff,
            is_header: bool,
        ) {
            let service = Service { op: Op::Data, qpn: Qpn::new(qpn), address: from.ip() };
            if is_header {
                bytes.splice(0..0, service.encode().as_slice().iter().copied());
                prop_assert_eq!(Service::decode(&from, &bytes).map(|found| found.0), Ok(service));
            }
            if let Ok((found, rest)) = Service::decode(&from, &bytes) {
                prop_assert_eq!(rest.len(), bytes.len() - Service::len_of(&from.ip()));
                prop_assert!(found.qpn.get() >= 2);
            }
        }
    }
}
