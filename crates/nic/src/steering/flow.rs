//! Flow steering (ibv_create_flow(3)): rules that say which frames of a device's interface go to which raw packet queue pair.
//! A queue pair without rules gets none.
//!
//! Rules are tried in the order of their priority, ordinary ones before the defaults; of those equally good the older wins. The
//! first that matches takes the frame, together with its equals: rules of the same kind, priority and specifications on
//! other queue pairs, each of which gets a copy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use crate::{Device, Error, Qp, QpType, limits};

/// What kind of rule: `enum ibv_flow_attr_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum FlowKind {
    /// Frames that match its specifications.
    Normal = 0,
    /// Every frame that no ordinary rule takes.
    AllDefault = 1,
    /// Every multicast frame that no other rule takes.
    MulticastDefault = 2,
    /// A copy of every frame, sent ones included.
    Sniffer = 3,
}

impl FlowKind {
    /// From `enum ibv_flow_attr_type`.
    pub fn from_code(code: u32) -> Option<FlowKind> {
        use FlowKind::*;
        [Normal, AllDefault, MulticastDefault, Sniffer].into_iter().find(|k| *k as u32 == code)
    }
}

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
#[allow(missing_docs)] // fields: the headers' own
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
    /// An IPv6 header; `next_header` is that behind the extension headers, `flow_label` has 20 bits.
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
    fn fits(&self, frame: &Frame) -> bool {
        match self {
            Spec::Eth { dest, source, ether_type, vlan_tag } => {
                dest.fits(&frame.dest)
                    && source.fits(&frame.source)
                    && ether_type.fits(&frame.ether_type)
                    && (vlan_tag.is_any() || frame.vlan_tag.is_some_and(|tag| vlan_tag.fits(&tag)))
            }
            Spec::Ipv4 { source, dest, proto, tos, ttl, flags } => frame.ipv4.as_ref().is_some_and(|ip| {
                source.fits(&ip.source)
                    && dest.fits(&ip.dest)
                    && proto.fits(&[ip.proto])
                    && tos.fits(&[ip.tos])
                    && ttl.fits(&[ip.ttl])
                    && flags.fits(&[ip.flags])
            }),
            Spec::Ipv6 { source, dest, flow_label, next_header, traffic_class, hop_limit } => {
                frame.ipv6.as_ref().is_some_and(|ip| {
                    source.fits(&ip.source)
                        && dest.fits(&ip.dest)
                        && flow_label.fits(&ip.flow_label)
                        && next_header.fits(&[ip.next_header])
                        && traffic_class.fits(&[ip.traffic_class])
                        && hop_limit.fits(&[ip.hop_limit])
                })
            }
            Spec::Tcp { source, dest } => {
                matches!(&frame.ports, Some(Ports::Tcp { source: s, dest: d }) if source.fits(s) && dest.fits(d))
            }
            Spec::Udp { source, dest } => {
                matches!(&frame.ports, Some(Ports::Udp { source: s, dest: d }) if source.fits(s) && dest.fits(d))
            }
        }
    }
}

/// What makes a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// What kind.
    pub kind: FlowKind,
    /// 0 is tried first.
    pub priority: u16,
    /// All must fit; none fits everything.
    pub specs: Vec<Spec>,
    /// What it takes goes nowhere.
    pub drop: bool,
    /// It gets a copy, and rules behind it are tried as if it were not there.
    pub dont_trap: bool,
}

impl Flow {
    fn fits(&self, frame: &Frame) -> bool {
        (self.kind != FlowKind::MulticastDefault || frame.is_multicast())
            && self.specs.iter().all(|spec| spec.fits(frame))
    }
    fn order(&self) -> (FlowKind, u16) {
        (self.kind, self.priority)
    }
}

/// What the rules that count into it have matched, whether they passed it on, copied or dropped it.
#[derive(Debug, Default)]
pub struct FlowCounter {
    /// Frames.
    pub packets: AtomicU64,
    /// Bytes of them, without preamble and checksum.
    pub bytes: AtomicU64,
}

/// A rule in force, by which it is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u64);

#[derive(Debug)]
struct Rule {
    id: u64,
    flow: Flow,
    qp: Arc<Qp>,
    counter: Option<Arc<FlowCounter>>,
}

/// The rules of a device, in the order in which they are tried.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    rules: RwLock<Vec<Rule>>,
    next: AtomicU64,
}

impl Flows {
    /// Who gets a frame; `returns` where it is one of ours that comes back, or came from elsewhere.
    fn takers(&self, bytes: &[u8], returns: bool) -> Vec<Arc<Qp>> {
        let frame = Frame::parse(bytes);
        let mut takers: Vec<Arc<Qp>> = Vec::new();
        let mut taken: Option<&Flow> = None;
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        for Rule { flow, qp, counter, .. } in rules.iter() {
            let is_copy = flow.kind == FlowKind::Sniffer || flow.dont_trap;
            let wanted = match taken {
                _ if !returns && flow.kind != FlowKind::Sniffer => false,
                Some(first) if flow.kind != FlowKind::Sniffer => first == flow,
                _ => flow.fits(&frame),
            };
            if !wanted {
                continue;
            }
            if let Some(counter) = counter {
                counter.packets.fetch_add(1, Ordering::Relaxed);
                counter.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            if !is_copy && taken.is_none() {
                taken = Some(flow);
            }
            if !flow.drop && !takers.iter().any(|t| Arc::ptr_eq(t, qp)) {
                takers.push(qp.clone());
            }
        }
        takers
    }
}

impl Qp {
    /// `ibv_create_flow`: frames that match go to this queue pair from now on.
    ///
    /// # Errors
    ///
    /// `Invalid`: not a raw packet queue pair; defaults and sniffers with specifications or "don't trap". `Limit`: more
    /// rules than the device has. `Unsupported`: a datagram queue pair. `System`: the world refused to listen.
    pub fn steer(self: &Arc<Self>, flow: Flow) -> Result<FlowId, Error> {
        self.steer_counted(flow, None)
    }

    /// The same with a counter of what the rule matches (IBV_FLOW_SPEC_ACTION_COUNT). Errors as of [`Qp::steer`].
    pub fn steer_counted(
        self: &Arc<Self>,
        flow: Flow,
        counter: Option<Arc<FlowCounter>>,
    ) -> Result<FlowId, Error> {
        match self.init().kind {
            QpType::RawPacket => {}
            QpType::Ud => return Err(Error::Unsupported("flow rules for datagram queue pairs")),
            _ => return Err(Error::Invalid("only raw packet queue pairs take frames")),
        }
        if flow.kind != FlowKind::Normal && (flow.dont_trap || !flow.specs.is_empty()) {
            return Err(Error::Invalid("defaults and sniffers have no specifications"));
        }
        let device = &self.pd().device;
        let mut rules = device.flows.rules.write().unwrap_or_else(PoisonError::into_inner);
        if rules.len() >= limits::MAX_FLOWS {
            return Err(Error::Limit("flow rules"));
        }
        if rules.is_empty() {
            device.frames.watch_frames(device.config.interface, true).map_err(Error::System)?;
        }
        let id = device.flows.next.fetch_add(1, Ordering::Relaxed);
        let at = rules.partition_point(|r| r.flow.order() <= flow.order());
        rules.insert(at, Rule { id, flow, qp: self.clone(), counter });
        Ok(FlowId(id))
    }

    /// Whether any rule steers frames to it.
    pub fn is_steered_to(self: &Arc<Self>) -> bool {
        let rules = self.pd().device.flows.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.iter().any(|r| Arc::ptr_eq(&r.qp, self))
    }
}

impl Device {
    /// `ibv_destroy_flow`. Nothing where it is taken back already.
    pub fn remove_flow(&self, id: FlowId) {
        self.retain_flows(|rule| rule.id != id.0);
    }

    /// Forgets all rules of a queue pair.
    pub(crate) fn forget_flows(&self, qp: &Arc<Qp>) {
        self.retain_flows(|rule| !Arc::ptr_eq(&rule.qp, qp));
    }

    fn retain_flows(&self, stays: impl Fn(&Rule) -> bool) {
        let mut rules = self.flows.rules.write().unwrap_or_else(PoisonError::into_inner);
        if rules.is_empty() {
            return;
        }
        rules.retain(stays);
        if rules.is_empty() {
            // To stop listening is never refused.
            let _ = self.frames.watch_frames(self.config.interface, false);
        }
    }

    /// A frame on the device's interface. `outgoing`: this host sent it, and nothing brings it back; like an adapter,
    /// the device returns those to multicast groups and to itself.
    pub fn input_frame(&self, now: Instant, outgoing: bool, frame: &[u8]) {
        let dest = frame.first_chunk::<6>();
        let returns = !outgoing || dest.is_some_and(|d| d[0] & 1 != 0 || *d == self.config.mac);
        for qp in self.flows.takers(frame, returns) {
            qp.input_frame(now, frame);
        }
    }
}

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
    proto: u8,
    tos: u8,
    ttl: u8,
    flags: u8,
}

/// What rules look at of an IPv6 header (RFC 8200 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6 {
    pub source: [u8; 16],
    pub dest: [u8; 16],
    flow_label: [u8; 4],
    next_header: u8,
    traffic_class: u8,
    hop_limit: u8,
}

/// The headers of an Ethernet frame, as far as they are whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    dest: [u8; 6],
    source: [u8; 6],
    vlan_tag: Option<[u8; 2]>,
    /// Behind VLAN tags.
    ether_type: [u8; 2],
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
/// Most extension headers that are looked behind.
const MAX_EXTENSIONS: usize = 8;

impl Frame {
    /// Never fails: what is cut short has no such header.
    pub fn parse(bytes: &[u8]) -> Frame {
        let mut frame = Frame::default();
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

    fn is_multicast(&self) -> bool {
        self.dest[0] & 1 != 0
    }
}

/// The protocol behind an IPv6 packet's extension headers (RFC 8200 §4), and its bytes where they are here.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn any<const N: usize>() -> Masked<N> {
        Masked { value: [0; N], mask: [0; N] }
    }
    fn is<const N: usize>(value: [u8; N]) -> Masked<N> {
        Masked { value, mask: [0xff; N] }
    }

    /// A VLAN-tagged UDP datagram over IPv4, from 10.0.0.1:1 to 10.0.0.2:2.
    fn datagram() -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0xa0, 0x07, 0x08, 0x00];
        bytes.extend([0x45, 0x10, 0, 28, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        bytes
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
