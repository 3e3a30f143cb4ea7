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
/// How long the route to another host is kept at most. The kernel sends no notification of what it
/// learns of a path: its MTU, a redirection.
const MAX_AGE_NANOS: u64 = 1_000_000_000;

/// Answers of the routing table and of the neighbour tables. Any notification of the kernel ends
/// all of them. Each question reads what has come, and a notification is there before the call
/// returns that changed something. So an answer was true at some time during the question.
#[derive(Default)]
pub(crate) struct Routes {
    kept: Vec<Kept>,
    /// What was known of the interfaces, as [`Interfaces::version`] has it.
    version: u64,
    /// How often all answers were forgotten.
    forgotten: u64,
    /// `None` where nothing was asked for yet, or the kernel tells nothing.
    changes: Option<Netlink>,
}

/// An answer.
struct Kept {
    query: RouteQuery,
    route: Route,
    /// Until when it is good without a notification, on the environment's clock.
    until: u64,
    /// The next hop answers, or its link-layer address is known.
    is_resolved: bool,
}

impl Routes {
    /// Where packets to a destination go. `now` is the time of the environment's clock.
    ///
    /// # Errors
    ///
    /// As [`route`].
    pub(crate) fn ask(
        &mut self,
        query: RouteQuery,
        now: u64,
        interfaces: &Interfaces,
        requests: &Mutex<Netlink>,
    ) -> Result<Route, Errno> {
        if self.have_changed(interfaces.version()) {
            self.kept.clear();
            self.forgotten += 1;
        }
        let is_old = |kept: &Kept| kept.query == query && kept.until <= now;
        self.kept.retain(|kept| !is_old(kept));
        if let Some(kept) = self.kept.iter().find(|kept| kept.query == query) {
            return Ok(kept.route);
        }
        let route = route(&mut requests.lock(), &interfaces.current(), query)?;
        if self.changes.is_some() {
            let until = if route.local { u64::MAX } else { now.saturating_add(MAX_AGE_NANOS) };
            self.kept.truncate(MAX_KEPT - 1);
            self.kept.insert(0, Kept { query, route, until, is_resolved: false });
        }
        Ok(route)
    }

    /// Whether the next hop of a route was known to answer when the route was asked for.
    pub(crate) fn is_resolved(&self, route: &Route) -> bool {
        self.kept.iter().any(|kept| kept.is_resolved && kept.route == *route)
    }

    /// How often all answers were forgotten, for [`Routes::resolved`].
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Keeps that the next hop of a route answers, unless a notification was read since `forgotten`
    /// was the number of [`Routes::forgotten`]: it may have been about this.
    pub(crate) fn resolved(&mut self, route: &Route, forgotten: u64) {
        if self.forgotten == forgotten {
            let of_it = self.kept.iter_mut().filter(|kept| kept.route == *route);
            of_it.for_each(|kept| kept.is_resolved = true);
        }
    }

    /// Whether anything may be different than it was; what is kept from now on is not.
    fn have_changed(&mut self, version: u64) -> bool {
        let Some(changes) = &mut self.changes else {
            let groups = [
                libc::RTNLGRP_LINK,
                libc::RTNLGRP_NEIGH,
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV4_RULE,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_IPV6_ROUTE,
                libc::RTNLGRP_IPV6_RULE,
                libc::RTNLGRP_NEXTHOP,
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use locks::Rank;

    use super::*;

    /// A network of the calling thread's own: 10.9.0.1 on a link to nowhere. `None` where the
    /// system refuses.
    fn network() -> Option<(Interfaces, Mutex<Netlink>)> {
        if sys::unshare(libc::CLONE_NEWNET).is_err() {
            eprintln!("skipped: needs a network namespace");
            return None;
        }
        // Duplicate address detection is told of whenever it ends. The file is the network's own.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        ip("link set lo up");
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth1 up");
        ip("link set veth0 up");
        ip("addr add 10.9.0.1/24 dev veth0");
        // The kernel tells of a link that has come up a moment later.
        let links = || String::from_utf8(Command::new("ip").arg("link").output().unwrap().stdout).unwrap();
        while links().matches("state UP").count() < 2 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let mut requests = Netlink::for_requests().unwrap();
        let interfaces = Interfaces::open(&mut requests).unwrap();
        Some((interfaces, Mutex::new(Rank::NetlinkRequests, requests)))
    }

    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    fn query(dest: &str) -> RouteQuery {
        RouteQuery { dest: dest.parse().unwrap(), scope: 0, source: None }
    }

    /// The answer, for which the kernel is not asked: the lock over requests is not free.
    fn kept(routes: &mut Routes, dest: &str, now: u64, on: &(Interfaces, Mutex<Netlink>)) -> Route {
        let _held = on.1.lock();
        routes.ask(query(dest), now, &on.0, &on.1).unwrap()
    }

    #[test]
    fn a_route_to_another_host_is_kept_for_a_second_and_one_to_this_host_for_longer() {
        let Some(on) = network() else { return };
        let mut routes = Routes::default();
        for dest in ["10.9.0.1", "10.9.0.2"] {
            let route = routes.ask(query(dest), 5, &on.0, &on.1).unwrap();
            assert_eq!(kept(&mut routes, dest, 4 + MAX_AGE_NANOS, &on), route);
        }
        assert_eq!(routes.kept.len(), 2);
        kept(&mut routes, "10.9.0.1", u64::MAX - 1, &on);
        let now = 5 + MAX_AGE_NANOS;
        routes.ask(query("10.9.0.2"), now, &on.0, &on.1).unwrap();
        let ends: Vec<u64> = routes.kept.iter().map(|kept| kept.until).collect();
        assert_eq!(ends, [now + MAX_AGE_NANOS, u64::MAX]);
    }

    #[test]
    fn as_many_answers_are_kept_as_there_is_room_for_and_none_after_a_notification() {
        let Some(on) = network() else { return };
        let mut routes = Routes::default();
        for round in 0..2 {
            for host in 2..2 + MAX_KEPT + 5 {
                routes.ask(query(&format!("10.9.0.{host}")), 0, &on.0, &on.1).unwrap();
            }
            assert!(round == 0 || routes.kept.len() == MAX_KEPT);
        }
        ip("neigh replace 10.9.0.9 lladdr 02:00:00:00:00:01 dev veth0 nud permanent");
        routes.ask(query("10.9.0.2"), 0, &on.0, &on.1).unwrap();
        assert_eq!(routes.kept.len(), 1);
    }

    #[test]
    fn a_lost_notification_ends_what_is_kept() {
        let Some(on) = network() else { return };
        let mut routes = Routes::default();
        routes.ask(query("10.9.0.2"), 0, &on.0, &on.1).unwrap();
        routes.changes.as_ref().unwrap().leave_little_room();
        for host in 100..120 {
            ip(&format!("route add 192.0.2.{host} via 10.9.0.2"));
        }
        // This one is lost without an error, as others are that were not read yet.
        ip("route add prohibit 198.51.100.1");
        routes.ask(query("10.9.0.3"), 0, &on.0, &on.1).unwrap();
        assert_eq!(routes.kept.len(), 1);
        assert_eq!(routes.ask(query("198.51.100.1"), 0, &on.0, &on.1), Err(Errno::EACCES));
    }

    #[test]
    fn a_next_hop_is_not_known_any_more_where_a_notification_was_read_while_it_was_asked_for() {
        let Some(on) = network() else { return };
        let mut routes = Routes::default();
        let route = routes.ask(query("10.9.0.2"), 0, &on.0, &on.1).unwrap();
        let forgotten = routes.forgotten();
        ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:01 dev veth0 nud permanent");
        routes.ask(query("10.9.0.2"), 0, &on.0, &on.1).unwrap();
        routes.resolved(&route, forgotten);
        assert!(!routes.is_resolved(&route));
        routes.resolved(&route, routes.forgotten());
        assert!(routes.is_resolved(&route));
        ip("neigh del 10.9.0.2 dev veth0");
        routes.ask(query("10.9.0.2"), 0, &on.0, &on.1).unwrap();
        assert!(!routes.is_resolved(&route));
    }
}
