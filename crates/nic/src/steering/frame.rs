//! The headers of an Ethernet frame, as far as rules and hashes look at them.

/// Ports of a TCP or UDP header, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    Tcp { source: [u8; 2], dest: [u8; 2] },
    Udp { source: [u8; 2], dest: [u8; 2] },
}

/// What rules look at of an IPv4 header (RFC 791 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4 {
    pub source: [u8; 4],
    pub dest: [u8; 4],
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}

/// What rules look at of an IPv6 header (RFC 8200 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6 {
    pub source: [u8; 16],
    pub dest: [u8; 16],
    pub flow_label: [u8; 4],
    pub next_header: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}

/// The headers of an Ethernet frame, as far as they are whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub dest: [u8; 6],
    pub source: [u8; 6],
    pub vlan_tag: Option<[u8; 2]>,
    /// The EtherType after VLAN tags.
    pub ether_type: [u8; 2],
    pub ipv4: Option<Ipv4>,
    pub ipv6: Option<Ipv6>,
    pub ports: Option<Ports>,
}

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const VLAN: [u8; 2] = [0x81, 0x00];
const SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Most extension headers that are passed over.
const MAX_EXTENSIONS: usize = 8;

impl Frame {
    /// Never fails: what is cut short has no such header.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut frame = Self::default();
        let Some((header, mut rest)) = bytes.split_first_chunk::<14>() else { return frame };
        frame.dest.copy_from_slice(&header[..6]);
        frame.source.copy_from_slice(&header[6..12]);
        frame.ether_type = [header[12], header[13]];
        // IEEE 802.1Q allows two: the service's and the customer's.
        for _ in 0..2 {
            if ![VLAN, SERVICE_VLAN].contains(&frame.ether_type) {
                break;
            }
            let Some((&[a, b, c, d], behind)) = rest.split_first_chunk::<4>() else { return frame };
            frame.vlan_tag.get_or_insert([a, b]);
            frame.ether_type = [c, d];
            rest = behind;
        }
        match frame.ether_type {
            IPV4 => frame.parse_ipv4(rest),
            IPV6 => frame.parse_ipv6(rest),
            _ => None,
        };
        frame
    }

    fn parse_ipv4(&mut self, bytes: &[u8]) -> Option<()> {
        let header = bytes.first_chunk::<20>()?;
        let len = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || len < 20 {
            return None;
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        self.ipv4 = Some(Ipv4 {
            source: *header[12..].first_chunk()?,
            dest: *header[16..].first_chunk()?,
            proto: header[9],
            tos: header[1],
            ttl: header[8],
            // The reserved bit, do not fragment and more fragments are bits 15 to 13.
            flags: (((fragment & 0x4000) >> 13) | ((fragment & 0x2000) >> 11)) as u8,
        });
        if fragment & 0x1fff == 0 {
            self.parse_ports(header[9], bytes.get(len..)?)?;
        }
        Some(())
    }

    fn parse_ipv6(&mut self, bytes: &[u8]) -> Option<()> {
        let header = bytes.first_chunk::<40>()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let (next_header, rest) = behind_extensions(header[6], &bytes[40..]);
        self.ipv6 = Some(Ipv6 {
            source: *header[8..].first_chunk()?,
            dest: *header[24..].first_chunk()?,
            flow_label: [0, header[1] & 0xf, header[2], header[3]],
            next_header,
            traffic_class: header[0] << 4 | header[1] >> 4,
            hop_limit: header[7],
        });
        self.parse_ports(next_header, rest?)
    }

    fn parse_ports(&mut self, proto: u8, bytes: &[u8]) -> Option<()> {
        let &[a, b, c, d] = bytes.first_chunk()?;
        let (source, dest) = ([a, b], [c, d]);
        self.ports = match proto {
            TCP => Some(Ports::Tcp { source, dest }),
            UDP => Some(Ports::Udp { source, dest }),
            _ => None,
        };
        Some(())
    }

    /// Whether it goes to a group.
    pub(crate) fn is_multicast(&self) -> bool {
        self.dest[0] & 1 != 0
    }
}

/// The protocol after an IPv6 packet's extension headers (RFC 8200 §4), and its bytes where they
/// are here.
fn behind_extensions(mut next: u8, mut bytes: &[u8]) -> (u8, Option<&[u8]>) {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    for _ in 0..MAX_EXTENSIONS {
        let (len, is_later) = match (next, bytes.first_chunk::<4>()) {
            (HOP_BY_HOP | ROUTING | DESTINATION, Some(h)) => (usize::from(h[1]) * 8 + 8, false),
            (FRAGMENT, Some(h)) => (8, u16::from_be_bytes([h[2], h[3]]) & 0xfff8 != 0),
            (HOP_BY_HOP | ROUTING | DESTINATION | FRAGMENT, None) => return (next, None),
            _ => return (next, Some(bytes)),
        };
        let (Some(&following), Some(rest)) = (bytes.first(), bytes.get(len..)) else { return (next, None) };
        next = following;
        bytes = rest;
        if is_later {
            return (next, None);
        }
    }
    (next, None)
}

/// Frames that tests of other modules look at too.
#[cfg(test)]
pub(crate) mod samples {
    use super::UDP;

    /// A VLAN-tagged UDP datagram over IPv4, from 10.0.0.1:1 to 10.0.0.2:2.
    pub(crate) fn datagram() -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0xa0, 0x07, 0x08, 0x00];
        bytes.extend([0x45, 0x10, 0, 28, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::samples::datagram;
    use super::*;

    #[test]
    fn frames_cut_short_anywhere_have_fewer_headers_and_no_panic() {
        let bytes = datagram();
        for len in 0..bytes.len() {
            let frame = Frame::parse(&bytes[..len]);
            assert_eq!(frame.ports.is_some(), len >= 18 + 20 + 4, "{len}");
        }
    }

    #[test]
    fn the_ports_of_a_later_fragment_are_not_looked_at() {
        let mut bytes = datagram();
        bytes[18 + 7] = 1;
        assert_eq!(Frame::parse(&bytes).ports, None);
    }

    #[test]
    fn ports_are_found_behind_extension_headers() {
        let mut bytes = vec![0; 12];
        bytes.extend(IPV6);
        bytes.extend([0x60, 0, 0, 0, 0, 0, 0, 64]);
        bytes.extend([1; 32]);
        bytes.extend([TCP, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0, 80, 1, 0, 0, 0, 0, 0]);
        let frame = Frame::parse(&bytes);
        assert_eq!(frame.ports, Some(Ports::Tcp { source: [0, 80], dest: [1, 0] }));
        assert_eq!(frame.ipv6.map(|ip| ip.next_header), Some(TCP));
        // A length that leaves the frame.
        bytes[55] = 255;
        assert_eq!(Frame::parse(&bytes).ports, None);
    }
}
