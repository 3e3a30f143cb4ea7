//! Network interfaces and their addresses, by netlink (rtnetlink(7)), now and as they change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use locks::{Mutex, MutexGuard, Rank};
use nic::Errno;
use stack::env::Interface;

use crate::netlink::{Message, Netlink, u32_at};

// linux/if_link.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Addresses nothing can be bound to: duplicate detection runs, or has found a duplicate.
const IFA_UNUSABLE: u32 = 0x40 | 0x08;

/// The interfaces at one time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) list: Vec<Interface>,
    /// Indices of interfaces whose neighbours need no resolution.
    without_neighbours: Vec<u32>,
}

impl Known {
    pub(crate) fn by_index(&self, index: u32) -> Option<&Interface> {
        self.list.iter().find(|interface| interface.index == index)
    }

    /// The interface that bears `address`; `scope` tells link-local ones apart.
    pub(crate) fn bearing(&self, address: IpAddr, scope: u32) -> Option<&Interface> {
        let bears = |interface: &&Interface| {
            interface.addresses.contains(&address)
                && (!is_link_local(address) || scope == 0 || interface.index == scope)
        };
        let loopback = |interface: &&Interface| interface.loopback && address.is_loopback();
        self.list.iter().find(bears).or_else(|| self.list.iter().find(loopback))
    }

    /// The interface of the port that has a LID.
    pub(crate) fn with_lid(&self, lid: u16) -> Option<u32> {
        let has = |interface: &&Interface| {
            interface
                .infiniband
                .as_ref()
                .is_some_and(|ib| ib.port.lid != 0 && lid & !((1 << (ib.port.lmc & 7)) - 1) == ib.port.lid)
        };
        self.list.iter().find(has).map(|interface| interface.index)
    }

    /// The interface of this host at the end of a path, where the path ends here.
    pub(crate) fn at_end(&self, path: &nic::Path) -> Option<&Interface> {
        self.bearing(path.dest.ip()?, path.interface)
    }

    /// Whether neighbours on the interface need no resolution: loopback, point-to-point.
    pub(crate) fn has_no_neighbours(&self, index: u32) -> bool {
        self.without_neighbours.contains(&index)
    }
}

/// The interfaces as they are now.
pub(crate) struct Interfaces {
    /// Read for each WRITE and READ.
    current: ArcSwap<Known>,
    /// Held while it changes.
    changing: Mutex<()>,
    /// How often the interfaces have changed.
    changed: AtomicU64,
    /// Told of changes of the system's; the engine reads it.
    changes: Option<Mutex<Netlink>>,
}

impl Interfaces {
    /// Subscribes to changes, then reads what is there.
    pub(crate) fn open(requests: &mut Netlink) -> Result<Self, Errno> {
        let groups = [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        let changes = Netlink::for_notifications(&groups)?;
        let current = ArcSwap::from_pointee(read(requests)?);
        Ok(Self {
            current,
            changing: Mutex::new(Rank::Interfaces, ()),
            changed: AtomicU64::new(0),
            changes: Some(Mutex::new(Rank::InterfaceChanges, changes)),
        })
    }

    /// Interfaces that are not the system's: [`Interfaces::set`] says how they change.
    pub(crate) fn given(list: Vec<Interface>) -> Self {
        Self {
            current: ArcSwap::from_pointee(Known { list, ..Known::default() }),
            changing: Mutex::new(Rank::Interfaces, ()),
            changed: AtomicU64::new(0),
            changes: None,
        }
    }

    #[inline]
    pub(crate) fn current(&self) -> Guard<Arc<Known>> {
        self.current.load()
    }

    /// A number that is another one when they have changed. Ask for it first: what is known by then
    /// may be kept with it.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    /// The descriptor to wait on, of the system's interfaces.
    pub(crate) fn changes(&self) -> Option<MutexGuard<'_, Netlink>> {
        Some(self.changes.as_ref()?.lock())
    }

    /// Takes the notifications that have come; the interfaces where they differ from those known.
    pub(crate) fn follow(&self, requests: &Mutex<Netlink>) -> Option<Arc<Known>> {
        // What they say is not looked at: they can be lost (ENOBUFS), the tables themselves can
        // not.
        let _ = self.changes()?.notifications(|_| {});
        let known = read(&mut requests.lock()).ok()?;
        self.replace(known)
    }

    /// The interfaces are these now; all of them where that is another list.
    pub(crate) fn set(&self, list: Vec<Interface>) -> Option<Arc<Known>> {
        self.replace(Known { list, ..Known::default() })
    }

    fn replace(&self, known: Known) -> Option<Arc<Known>> {
        let _changing = self.changing.lock();
        if **self.current.load() == known {
            return None;
        }
        let known = Arc::new(known);
        self.current.store(known.clone());
        self.changed.fetch_add(1, Ordering::Release);
        Some(known)
    }
}

/// Whether the address means something on one link or one interface only (RFC 4291 §2.7: a group of
/// scope 1 or 2), so that the system wants the interface with it.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    let is_group_of_one = |v6: Ipv6Addr| v6.is_multicast() && matches!(v6.octets()[1] & 15, 1 | 2);
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() || is_group_of_one(v6))
}

fn read(requests: &mut Netlink) -> Result<Known, Errno> {
    // An ifinfomsg, 16 bytes, and an ifaddrmsg, 8 bytes, of all families.
    let mut known = requests.dump(libc::RTM_GETLINK, &[0; 16], Known::default, |known, message| {
        read_link(known, &message);
    })?;
    let addresses = requests.dump(libc::RTM_GETADDR, &[0; 8], Vec::new, |addresses, message| {
        addresses.extend(read_address(&message));
    })?;
    for (index, address) in addresses {
        if let Some(interface) = known.list.iter_mut().find(|interface| interface.index == index) {
            interface.addresses.push(address);
        }
    }
    Ok(known)
}

fn read_link(known: &mut Known, message: &Message<'_>) {
    if message.kind != libc::RTM_NEWLINK {
        return;
    }
    // ifinfomsg: family, padding, type (2), index (4), flags (4), change (4).
    let Some(head) = message.head::<16>() else { return };
    let (Some(index), Some(flags)) = (u32_at(head, 4), u32_at(head, 8)) else { return };
    let has = |flag: i32| flags & flag as u32 != 0;
    let mut interface = Interface {
        index,
        name: String::new(),
        mac: [0; 6],
        mtu: 0,
        up: has(libc::IFF_UP) && has(libc::IFF_LOWER_UP),
        loopback: has(libc::IFF_LOOPBACK),
        speed_mbps: None,
        addresses: Vec::new(),
        infiniband: None,
    };
    for (kind, value) in message.attributes(16) {
        match kind {
            IFLA_ADDRESS => interface.mac = value.try_into().unwrap_or([0; 6]),
            IFLA_IFNAME => {
                interface.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
            }
            IFLA_MTU => interface.mtu = u32_at(value, 0).unwrap_or(0),
            _ => {}
        }
    }
    interface.speed_mbps = speed(&interface.name);
    if has(libc::IFF_LOOPBACK) || has(libc::IFF_NOARP) || has(libc::IFF_POINTOPOINT) {
        known.without_neighbours.push(index);
    }
    known.list.push(interface);
}

/// Tx speed in Mb/s (Documentation/ABI/testing/sysfs-class-net); reading fails, or says -1, where
/// there is none.
fn speed(name: &str) -> Option<u32> {
    if name.contains('/') {
        return None;
    }
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed"))
        .ok()?
        .trim()
        .parse()
        .ok()
        .filter(|&mbps| mbps > 0)
}

fn read_address(message: &Message<'_>) -> Option<(u32, IpAddr)> {
    if message.kind != libc::RTM_NEWADDR {
        return None;
    }
    // ifaddrmsg: family, prefix length, flags, scope, index (4).
    let head = message.head::<8>()?;
    let mut flags = u32::from(head[2]);
    let (mut address, mut local) = (None, None);
    for (kind, value) in message.attributes(8) {
        match kind {
            // On a point-to-point link this is the peer's, and IFA_LOCAL ours.
            IFA_ADDRESS => address = ip(value),
            IFA_LOCAL => local = ip(value),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    (flags & IFA_UNUSABLE == 0).then_some((u32_at(head, 4)?, local.or(address)?))
}

/// An address of 4 or 16 bytes.
pub(crate) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// Family and bytes of an address, as netlink has them.
pub(crate) fn family_and_bytes(address: &IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

/// The number of the VLAN that an interface is, where it is one (8021q's file: "NAME  VID: 5 ...").
pub(crate) fn vlan(name: &str) -> Option<u16> {
    let text = std::fs::read_to_string(std::path::Path::new("/proc/net/vlan").join(name)).ok()?;
    text.split_once("VID:")?.1.split_whitespace().next()?.parse().ok()
}
