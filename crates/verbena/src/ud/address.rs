//! Where datagrams go: [`UdAddress`], and what it becomes when something is sent there.

use std::net::{IpAddr, SocketAddr};

use nic::{AddressVector, Transport};
use wire::{Gid, Qkey, Qpn};

use crate::error::{Error, ErrorKind, Result, Value};
use crate::qp::carrier::Carrier;
use crate::qp::inner::QpInner;

/// Hop limit of what is sent, as the kernel's rdma_cm has it.
const HOP_LIMIT: u8 = 64;

/// The destination or source of a datagram: an IP address, a queue pair there, and the Q_Key that
/// it expects; on InfiniBand the way within the subnet, too. Plain data, good in any process and
/// with any socket; address handles and GIDs are the crate's business.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdAddress {
    ip: IpAddr,
    qp_num: u32,
    qkey: u32,
    subnet: Option<InSubnet>,
}

/// The way of a datagram within an InfiniBand subnet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct InSubnet {
    pub(super) lid: u16,
    pub(super) service_level: u8,
    /// Of the GRH of datagrams to a group; others have none.
    pub(super) group: Option<[u8; 16]>,
}

impl UdAddress {
    /// What a peer has told by other ways than [`lookup`](crate::UdSocket::lookup). Of `qp_num` the
    /// low 24 bits count; 0xffffff with a group's address is all members of it.
    pub const fn from_raw(ip: IpAddr, qp_num: u32, qkey: u32) -> Self {
        Self { ip, qp_num: qp_num & 0xff_ffff, qkey, subnet: None }
    }
    pub(crate) fn of(to: &nic::rdma_cm::UdParam) -> Self {
        let av = &to.av;
        let subnet = (av.dlid != 0).then(|| InSubnet {
            lid: av.dlid,
            service_level: av.sl,
            group: (to.qpn == Qpn::MULTICAST).then_some(av.dgid.0),
        });
        Self { ip: av.dgid.ip(), qp_num: to.qpn.get(), qkey: to.qkey.0, subnet }
    }
    /// By the way within an InfiniBand subnet, where there is one.
    pub(super) fn within(self, subnet: Option<InSubnet>) -> Self {
        Self { subnet, ..self }
    }
    /// With the IP address that the program knows it by. On InfiniBand that is no GID.
    pub(super) fn known_as(self, ip: IpAddr) -> Self {
        if self.subnet.is_some() { Self { ip, ..self } } else { self }
    }
    /// The address of a host, or of a group; 0.0.0.0 of the sender of an InfiniBand datagram, which
    /// bears a LID alone.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }
    /// Number of the queue pair, 24 bits.
    pub const fn qp_num(&self) -> u32 {
        self.qp_num
    }
    /// The address's Q_Key: 0x01234567 for all that rdma_cm tells of (RDMA_UDP_QKEY).
    pub const fn qkey(&self) -> u32 {
        self.qkey
    }
}

impl std::fmt::Debug for UdAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdAddress({} {:#x})", self.ip, self.qp_num)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for UdAddress {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        // As IPv6 throughout, so that formats without names of variants can tell.
        let ip = match self.ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        (ip.octets(), self.qp_num, self.qkey, self.subnet).serialize(s)
    }
}
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for UdAddress {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let (ip, qp_num, qkey, subnet): ([u8; 16], u32, u32, _) = serde::Deserialize::deserialize(d)?;
        Ok(UdAddress::from_raw(std::net::Ipv6Addr::from(ip).to_canonical(), qp_num, qkey).within(subnet))
    }
}

/// A [`UdAddress`] as a work request names it.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    to: To,
    /// Most bytes that a packet takes there.
    mtu: u64,
}

/// As the stack below names it.
#[derive(Clone, Debug)]
pub(crate) enum To {
    Ours(nic::Datagram),
    #[cfg(feature = "system")]
    System(rdma_core::handle::Datagram),
}

impl Destination {
    /// From an address of ours. `Unreachable` where that is not ours any more, or of another
    /// family.
    pub(super) fn new(qp: &QpInner, from: IpAddr, tos: u8, to: &UdAddress) -> Result<Self> {
        const CALL: &str = "ibv_create_ah";
        let unreachable =
            |ip| Error::new(ErrorKind::Unreachable, CALL).with(Value::Address(SocketAddr::new(ip, 0)));
        if to.subnet.is_none() && from.is_ipv4() != to.ip.is_ipv4() {
            return Err(unreachable(to.ip));
        }
        let pd = qp.pd();
        let named = match qp.carrier() {
            Carrier::Ours(_) => {
                let device = pd.device().nic()?;
                let sgid_index = device.port().gids.index_of(from).ok_or_else(|| unreachable(from))?;
                let plain = AddressVector { sgid_index, port: 1, ..AddressVector::default() };
                let av = match (device.config.transport == Transport::Ib, to.subnet) {
                    (true, Some(way)) => AddressVector {
                        dgid: Gid(way.group.unwrap_or_default()),
                        dlid: way.lid,
                        sl: way.service_level,
                        is_global: way.group.is_some(),
                        ..plain
                    },
                    (false, None) => AddressVector {
                        dgid: to.ip.into(),
                        hop_limit: HOP_LIMIT,
                        traffic_class: tos,
                        is_global: true,
                        ..plain
                    },
                    _ => return Err(unreachable(to.ip)),
                };
                let ah = nic::Ah::new(pd.nic()?, av).map_err(|e| Error::of_nic(CALL, e))?;
                To::Ours(nic::Datagram { ah, qpn: Qpn::new(to.qp_num), qkey: Qkey(to.qkey) })
            }
            #[cfg(feature = "system")]
            Carrier::System(theirs) => {
                pd.stack().check(CALL)?;
                let ah = theirs.qp().handle(from, to.ip, tos).map_err(|e| match e {
                    nic::Error::Missing(_) => unreachable(from),
                    other => Error::of_nic(CALL, other),
                })?;
                let qpn = Qpn::new(to.qp_num);
                To::System(rdma_core::handle::Datagram { ah, qpn, qkey: to.qkey })
            }
        };
        Ok(Self { to: named, mtu: pd.device().mtu().into() })
    }
    /// Whether a message of so many bytes can go there: an adapter would drop a longer one without
    /// a word (IBA 1.4 C10-93.1.1).
    pub(crate) fn check(&self, len: u64) -> Result<()> {
        if len <= self.mtu {
            Ok(())
        } else {
            Err(Error::number("ibv_post_send", "length", len, 0..=self.mtu))
        }
    }
    pub(crate) fn datagram(&self) -> &To {
        &self.to
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn addresses_travel_in_any_format() {
        for ip in ["10.0.0.1", "fe80::1", "239.1.2.3", "ff15::1"] {
            let address = UdAddress::from_raw(ip.parse().expect("an address"), 0x12_3456, 0x8001_0000);
            let text = serde_json::to_string(&address).expect("written");
            assert_eq!(serde_json::from_str::<UdAddress>(&text).expect("read"), address, "{text}");
            let subnet = Some(InSubnet { lid: 7, service_level: 1, group: Some([0xff; 16]) });
            let text = serde_json::to_string(&address.within(subnet)).expect("written");
            let read = serde_json::from_str::<UdAddress>(&text).expect("read");
            assert_eq!(read, address.within(subnet), "{text}");
        }
        assert!(serde_json::from_str::<UdAddress>("[[1], 2, 3]").is_err());
    }
}
