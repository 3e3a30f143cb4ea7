//! What a flow rule asks of a frame, header by header (`struct ibv_flow_spec`).

use crate::steering::frame::{Frame, Ports};

/// Bytes that a field must have where the mask has ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked<const N: usize> {
    /// The bytes.
    pub value: [u8; N],
    /// Which bits of them count.
    pub mask: [u8; N],
}

impl<const N: usize> Masked<N> {
    fn fits(&self, field: &[u8; N]) -> bool {
        (0..N).all(|i| (field[i] ^ self.value[i]) & self.mask[i] == 0)
    }
    fn is_any(&self) -> bool {
        self.mask == [0; N]
    }
}

/// One header that a frame must have, all fields in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields: the headers' own")]
pub enum Spec {
    /// An Ethernet header; `vlan_tag` is the outer tag's control information.
    Eth { dest: Masked<6>, source: Masked<6>, ether_type: Masked<2>, vlan_tag: Masked<2> },
    /// An IPv4 header; `flags` as `enum ib_ipv4_flags`: 2 do not fragment, 4 more fragments.
    Ipv4 {
        source: Masked<4>,
        dest: Masked<4>,
        proto: Masked<1>,
        tos: Masked<1>,
        ttl: Masked<1>,
        flags: Masked<1>,
    },
    /// An IPv6 header; `next_header` is that after the extension headers, `flow_label` has 20 bits.
    Ipv6 {
        source: Masked<16>,
        dest: Masked<16>,
        flow_label: Masked<4>,
        next_header: Masked<1>,
        traffic_class: Masked<1>,
        hop_limit: Masked<1>,
    },
    /// A TCP header.
    Tcp { source: Masked<2>, dest: Masked<2> },
    /// A UDP header.
    Udp { source: Masked<2>, dest: Masked<2> },
}

impl Spec {
    /// Whether a frame has the header.
    pub(crate) fn fits(&self, frame: &Frame) -> bool {
        match self {
            Self::Eth { dest, source, ether_type, vlan_tag } => {
                dest.fits(&frame.dest)
                    && source.fits(&frame.source)
                    && ether_type.fits(&frame.ether_type)
                    && (vlan_tag.is_any() || frame.vlan_tag.is_some_and(|tag| vlan_tag.fits(&tag)))
            }
            Self::Ipv4 { source, dest, proto, tos, ttl, flags } => frame.ipv4.as_ref().is_some_and(|ip| {
                source.fits(&ip.source)
                    && dest.fits(&ip.dest)
                    && proto.fits(&[ip.proto])
                    && tos.fits(&[ip.tos])
                    && ttl.fits(&[ip.ttl])
                    && flags.fits(&[ip.flags])
            }),
            Self::Ipv6 { source, dest, flow_label, next_header, traffic_class, hop_limit } => {
                frame.ipv6.as_ref().is_some_and(|ip| {
                    source.fits(&ip.source)
                        && dest.fits(&ip.dest)
                        && flow_label.fits(&ip.flow_label)
                        && next_header.fits(&[ip.next_header])
                        && traffic_class.fits(&[ip.traffic_class])
                        && hop_limit.fits(&[ip.hop_limit])
                })
            }
            Self::Tcp { source, dest } => {
                matches!(&frame.ports, Some(Ports::Tcp { source: s, dest: d }) if source.fits(s) && dest.fits(d))
            }
            Self::Udp { source, dest } => {
                matches!(&frame.ports, Some(Ports::Udp { source: s, dest: d }) if source.fits(s) && dest.fits(d))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::frame::samples::datagram;

    const IPV4: [u8; 2] = [0x08, 0x00];
    const UDP: u8 = 17;

    fn any<const N: usize>() -> Masked<N> {
        Masked { value: [0; N], mask: [0; N] }
    }
    fn is<const N: usize>(value: [u8; N]) -> Masked<N> {
        Masked { value, mask: [0xff; N] }
    }

    #[test]
    fn a_specification_fits_by_its_mask_alone() {
        let bytes = datagram();
        let frame = Frame::parse(&bytes);
        let eth = |vlan_tag| Spec::Eth {
            dest: any(),
            source: is([2, 0, 0, 0, 0, 1]),
            ether_type: is(IPV4),
            vlan_tag,
        };
        assert!(eth(any()).fits(&frame));
        assert!(eth(Masked { value: [0, 7], mask: [0x0f, 0xff] }).fits(&frame));
        assert!(!eth(is([0, 7])).fits(&frame));
        let ip = |dest, flags| Spec::Ipv4 {
            source: any(),
            dest,
            proto: is([UDP]),
            tos: is([0x10]),
            ttl: is([64]),
            flags,
        };
        assert!(ip(Masked { value: [10, 9, 9, 9], mask: [0xff, 0, 0, 0] }, is([2])).fits(&frame));
        assert!(!ip(any(), is([4])).fits(&frame));
        assert!(Spec::Udp { source: is([0, 1]), dest: is([0, 2]) }.fits(&frame));
        assert!(!Spec::Tcp { source: any(), dest: any() }.fits(&frame));
    }
}
