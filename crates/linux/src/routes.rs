//! Questions to the routing table (RTM_GETROUTE, rtnetlink(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use locks::Mutex;
use nic::Errno;
use stack::env::{Route, RouteQuery};

use crate::interfaces::{Interfaces, Known, family_and_bytes, ip, is_link_local};
use crate::netlink::{Attributes, Netlink, put_attribute, u16_at, u32_at};

const RTAX_MTU: u16 = 2;
// Types of routes that lead nowhere, and what the kernel makes of them (linux/rtnetlink.h,
// net/ipv4/fib_semantics.c).
const RTN_BLACKHOLE: u8 = 6;
const RTN_UNREACHABLE: u8 = 7;
const RTN_PROHIBIT: u8 = 8;

/// Bytes of an rtmsg.
const RTMSG: usize = 12;

/// So many answers are kept.
const MAX_KEPT: usize = 64;

/// Routes to addresses of this host that were asked for. They are good until the kernel tells of a
/// change in what it made them of. Its notification is there before the call returns that changed
/// something. Others are asked for each time: of what it learns of a path the kernel sends no
/// notification.
#[derive(Default)]
pub(crate) struct Routes {
    kept: Vec<(RouteQuery, Route)>,
    /// What was known of the interfaces, as [`Interfaces::version`] has it.
    version: u64,
    /// `None` where nothing was asked for yet, or the kernel tells nothing.
    changes: Option<Netlink>,
}

impl Routes {
    /// Where packets to a destination go.
    ///
    /// # Errors
    ///
    /// As [`route`].
    pub(crate) fn ask(
        &mut self,
        query: RouteQuery,
        interfaces: &Interfaces,
        requests: &Mutex<Netlink>,
    ) -> Result<Route, Errno> {
        if self.have_changed(interfaces.version()) {
            self.kept.clear();
        }
        if let Some((_, route)) = self.kept.iter().find(|(asked, _)| *asked == query) {
            return Ok(*route);
        }
        let route = route(&mut requests.lock(), &interfaces.current(), query)?;
        if route.local && self.changes.is_some() {
            self.kept.truncate(MAX_KEPT - 1);
            self.kept.insert(0, (query, route));
        }
        Ok(route)
    }

    /// Whether anything may be different than it was; what is kept from now on is not.
    fn have_changed(&mut self, version: u64) -> bool {
        let Some(changes) = &mut self.changes else {
            let groups = [
                libc::RTNLGRP_LINK,
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV4_RULE,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_IPV6_ROUTE,
                libc::RTNLGRP_IPV6_RULE,
            ];
            self.changes = Netlink::for_notifications(&groups).ok();
            return true;
        };
        let mut any = std::mem::replace(&mut self.version, version) != version;
        let lost = changes.notifications(|_| any = true).is_err();
        any || lost
    }
}

/// Asks where packets to a destination go. The unspecified address means this host.
///
/// # Errors
///
/// ENETUNREACH, EHOSTUNREACH, EACCES (prohibited), EADDRNOTAVAIL (the source is not ours),
/// EAFNOSUPPORT (the families of source and destination differ).
pub(crate) fn route(netlink: &mut Netlink, known: &Known, query: RouteQuery) -> Result<Route, Errno> {
    let dest = match query.dest {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        dest => dest,
    };
    let source = query.source.filter(|source| !source.is_unspecified());
    if source.is_some_and(|source| source.is_ipv4() != dest.is_ipv4()) {
        return Err(Errno::EAFNOSUPPORT);
    }
    // The kernel itself checks that for IPv4 only, and calls it ENETUNREACH or EINVAL.
    if source.is_some_and(|source| known.bearing(source, query.scope).is_none()) {
        return Err(Errno::EADDRNOTAVAIL);
    }
    let mut answer = None;
    netlink.ask(libc::RTM_GETROUTE, &request(dest, query.scope, source), |message| {
        if message.kind == libc::RTM_NEWROUTE {
            answer = message.head::<RTMSG>().map(|head| Answer::read(head, message.attributes(RTMSG)));
        }
    })?;
    let answer = answer.ok_or(Errno::EIO)?;
    match answer.kind {
        libc::RTN_LOCAL => Ok(local(known, dest, query.scope, source, &answer)),
        RTN_BLACKHOLE => Err(Errno::EINVAL),
        RTN_UNREACHABLE if dest.is_ipv6() => Err(Errno::ENETUNREACH),
        RTN_UNREACHABLE => Err(Errno::EHOSTUNREACH),
        RTN_PROHIBIT => Err(Errno::EACCES),
        _ => {
            let interface = answer.interface.ok_or(Errno::ENETUNREACH)?;
            let mtu = known.by_index(interface).map_or(0, |interface| interface.mtu);
            Ok(Route {
                source: source.or(answer.source).ok_or(Errno::EADDRNOTAVAIL)?,
                dest,
                interface,
                next_hop: answer.gateway.unwrap_or(dest),
                local: false,
                mtu: answer.mtu.unwrap_or(mtu),
            })
        }
    }
}

/// The route to one of our own addresses. The kernel would say "lo"; the device is the one that
/// bears the source.
fn local(known: &Known, dest: IpAddr, scope: u32, source: Option<IpAddr>, answer: &Answer) -> Route {
    let source = source.unwrap_or(dest);
    let owner = known.bearing(source, scope).or_else(|| known.bearing(dest, scope));
    Route {
        source,
        dest,
        interface: owner.map(|interface| interface.index).or(answer.interface).unwrap_or(scope),
        next_hop: dest,
        local: true,
        mtu: answer.mtu.or(owner.map(|interface| interface.mtu)).unwrap_or(0),
    }
}

/// An rtmsg (family, destination and source length, ToS, table, protocol, scope, type, flags (4))
/// and what is asked.
fn request(dest: IpAddr, scope: u32, source: Option<IpAddr>) -> Vec<u8> {
    let (family, dest_bytes) = family_and_bytes(&dest);
    let bits = dest_bytes.len() as u8 * 8;
    let mut body = vec![family, bits, if source.is_some() { bits } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    put_attribute(&mut body, libc::RTA_DST, &dest_bytes);
    if let Some(source) = source {
        put_attribute(&mut body, libc::RTA_SRC, &family_and_bytes(&source).1);
    }
    if scope != 0 && (is_link_local(dest) || dest.is_multicast()) {
        put_attribute(&mut body, libc::RTA_OIF, &scope.to_ne_bytes());
    }
    body
}

#[derive(Default)]
struct Answer {
    kind: u8,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
    interface: Option<u32>,
    mtu: Option<u32>,
}

impl Answer {
    fn read(head: &[u8; RTMSG], attributes: Attributes<'_>) -> Self {
        let mut answer = Self { kind: head[7], ..Self::default() };
        for (kind, value) in attributes {
            match kind {
                libc::RTA_OIF => answer.interface = u32_at(value, 0),
                libc::RTA_PREFSRC => answer.source = ip(value),
                libc::RTA_GATEWAY => answer.gateway = ip(value),
                // A gateway of the other family: its number, then the address (RFC 5549, struct
                // rtvia).
                libc::RTA_VIA => answer.gateway = u16_at(value, 0).and(ip(value.get(2..).unwrap_or(&[]))),
                libc::RTA_METRICS => {
                    answer.mtu = Attributes(value)
                        .find(|(metric, _)| *metric == RTAX_MTU)
                        .and_then(|(_, value)| u32_at(value, 0))
                        .filter(|&mtu| mtu > 0);
                }
                _ => {}
            }
        }
        answer
    }
}
