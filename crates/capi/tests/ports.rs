//! Binding to addresses and ports, as with TCP's sockets, in one process and across two.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::c_int;
use std::io::Read;
use std::net::Ipv6Addr;

use capi::cma::{channel, connect};
use rdma_core_abi::cma::*;

use cm::*;
use support::{errno, in_a_child};

const ANY: [u8; 4] = [0; 4];
const LOCAL: [u8; 4] = [127, 0, 0, 1];

/// Where to bind.
#[derive(Clone, Copy, Debug)]
enum To {
    V4([u8; 4]),
    V6(Ipv6Addr),
    /// IPv6 with RDMA_OPTION_ID_AFONLY.
    Only(Ipv6Addr),
}

impl To {
    fn bind(self, id: *mut rdma_cm_id, port: u16) -> c_int {
        match self {
            Self::V4(ip) => bind(id, &at(ip, port)),
            Self::V6(ip) => bind(id, &at6(ip, port)),
            Self::Only(ip) => {
                works(option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1));
                bind(id, &at6(ip, port))
            }
        }
    }

    /// What it is for TCP: here a loopback address stands for all of its family.
    fn for_tcp(self) -> Self {
        match self {
            Self::V4(LOCAL) => Self::V4(ANY),
            Self::V6(ip) if ip.is_loopback() => Self::V6(Ipv6Addr::UNSPECIFIED),
            Self::Only(ip) if ip.is_loopback() => Self::Only(Ipv6Addr::UNSPECIFIED),
            other => other,
        }
    }

    fn is_for_all(self) -> bool {
        match self.for_tcp() {
            Self::V4(ip) => ip == ANY,
            Self::V6(ip) | Self::Only(ip) => ip.is_unspecified(),
        }
    }
}

/// Two that want one port.
#[derive(Debug)]
struct Pair {
    first: To,
    second: To,
    reuse: [bool; 2],
    first_listens: bool,
}

impl Pair {
    /// What TCP says to the second when it binds, and when it listens, if it comes to that; with
    /// the errno of the kernel's rdma_cm.
    fn tcp(&self) -> [c_int; 2] {
        let for_all = self.first.is_for_all() || self.second.is_for_all();
        let check = |done: c_int| match done {
            0 => 0,
            _ if errno() == libc::EADDRINUSE && for_all => libc::EADDRNOTAVAIL,
            _ => errno(),
        };
        let (first, second) = (self.first.for_tcp(), self.second.for_tcp());
        let socket = |to: To, reuse: bool| unsafe {
            let family = if matches!(to, To::V4(_)) { libc::AF_INET } else { libc::AF_INET6 };
            let fd = libc::socket(family, libc::SOCK_STREAM, 0);
            assert!(fd >= 0);
            let set = |level, name, value: bool| {
                let value = c_int::from(value);
                let size = size_of::<c_int>() as u32;
                assert_eq!(libc::setsockopt(fd, level, name, (&raw const value).cast(), size), 0);
            };
            set(libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse);
            if family == libc::AF_INET6 {
                set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, matches!(to, To::Only(_)));
            }
            fd
        };
        let bind = |fd, to: To, port| unsafe {
            check(match to {
                To::V4(ip) => libc::bind(fd, std::ptr::from_ref(&at(ip, port)).cast(), 16),
                To::V6(ip) | To::Only(ip) => libc::bind(fd, std::ptr::from_ref(&at6(ip, port)).cast(), 28),
            })
        };
        unsafe {
            let (one, two) = (socket(first, self.reuse[0]), socket(second, self.reuse[1]));
            assert_eq!(bind(one, first, 0), 0, "{self:?}");
            let mut a: libc::sockaddr_in6 = std::mem::zeroed();
            let mut len = 28;
            assert_eq!(libc::getsockname(one, (&raw mut a).cast(), &raw mut len), 0);
            if self.first_listens {
                assert_eq!(libc::listen(one, 1), 0);
            }
            let mut said = [bind(two, second, u16::from_be(a.sin6_port)), 0];
            if said[0] == 0 {
                said[1] = check(libc::listen(two, 1));
            }
            libc::close(one);
            libc::close(two);
            said
        }
    }

    /// What Verbena says.
    fn ours(&self) -> [c_int; 2] {
        let check = |done: c_int| if done == 0 { 0 } else { errno() };
        let (one, two) = (new(), new());
        works(share(one, self.reuse[0].into()));
        works(share(two, self.reuse[1].into()));
        works(self.first.bind(one, 0));
        if self.first_listens {
            works(unsafe { connect::rdma_listen(one, 1) });
        }
        let mut said = [check(self.second.bind(two, port_of(one))), 0];
        if said[0] == 0 {
            said[1] = check(unsafe { connect::rdma_listen(two, 1) });
        }
        [one, two].into_iter().for_each(destroy);
        said
    }
}

/// An IPv4 address of a device that is not the loopback one, where there is one.
fn other() -> Option<[u8; 4]> {
    unsafe {
        let mut first = std::ptr::null_mut();
        assert_eq!(libc::getifaddrs(&raw mut first), 0);
        let mut at = first;
        let mut found = None;
        while let Some(one) = at.as_ref()
            && found.is_none()
        {
            let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
            let fits = one.ifa_flags & (wanted | libc::IFF_LOOPBACK as u32) == wanted;
            if fits && !one.ifa_addr.is_null() && i32::from((*one.ifa_addr).sa_family) == libc::AF_INET {
                found = Some((*one.ifa_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr.to_ne_bytes());
            }
            at = one.ifa_next;
        }
        libc::freeifaddrs(first);
        found
    }
}

/// All there is to bind to.
fn places() -> Vec<To> {
    let (any, local) = (Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST);
    let all = [To::V4(ANY), To::V4(LOCAL), To::V6(any), To::V6(local), To::Only(any), To::Only(local)];
    all.into_iter().chain(other().map(To::V4)).collect()
}

fn port_of(id: *mut rdma_cm_id) -> u16 {
    u16::from_be(unsafe { connect::rdma_get_src_port(id) })
}

fn new() -> *mut rdma_cm_id {
    id(channel(), RDMA_PS_TCP)
}

/// Whether the loopback interface has an IPv6 address.
fn has_v6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

/// Every pair of places is treated as TCP's, with and without a listener.
fn as_with_tcp(reuse: [bool; 2]) {
    let v6 = has_v6();
    for first in places() {
        for second in places() {
            if !v6 && !matches!((first, second), (To::V4(_), To::V4(_))) {
                continue;
            }
            for first_listens in [false, true] {
                let pair = Pair { first, second, reuse, first_listens };
                assert_eq!(pair.ours(), pair.tcp(), "{pair:?}");
            }
        }
    }
}

#[test]
fn who_is_in_whose_way_is_as_with_tcp() {
    as_with_tcp([false; 2]);
}

#[test]
fn who_may_share_with_whom_is_as_with_tcp() {
    as_with_tcp([true; 2]);
    as_with_tcp([true, false]);
    as_with_tcp([false, true]);
}

#[test]
fn a_port_that_another_process_has_is_in_use() {
    let one = new();
    works(bind(one, &loopback(0)));
    let port = port_of(one);
    assert!(in_a_child(|| {
        for to in [LOCAL, ANY].into_iter().chain(other()) {
            fails(bind(new(), &at(to, port)), libc::EADDRNOTAVAIL);
        }
    }));
    destroy(one);
}

#[test]
fn the_same_address_twice_is_in_use_and_beside_a_wildcard_it_is_not_available() {
    let Some(address) = other() else { return eprintln!("skipped: no interface but lo") };
    let (one, two) = (new(), new());
    works(bind(one, &at(address, 0)));
    let port = port_of(one);
    fails(bind(two, &at(address, port)), libc::EADDRINUSE);
    fails(bind(two, &at(ANY, port)), libc::EADDRNOTAVAIL);
    fails(bind(two, &loopback(port)), libc::EADDRNOTAVAIL);
    [one, two].into_iter().for_each(destroy);
}

#[test]
fn a_listener_on_a_loopback_address_has_no_device_and_is_reached_by_every_address() {
    let ours = channel();
    let one = id(ours, RDMA_PS_TCP);
    works(bind(one, &loopback(0)));
    assert!(unsafe { (*one).verbs.is_null() });
    works(unsafe { connect::rdma_listen(one, 1) });
    for to in std::iter::once(LOCAL).chain(other()) {
        let mine = channel();
        let client = id(mine, RDMA_PS_TCP);
        // As a source, too, it says nothing.
        let (from, to) = (loopback(0), at(to, port_of(one)));
        let [from, to] = [&raw const from, &raw const to].map(|a| a.cast_mut().cast());
        works(unsafe { connect::rdma_resolve_addr(client, from, to, 2000) });
        expect(mine, RDMA_CM_EVENT_ADDR_RESOLVED);
        works(unsafe { connect::rdma_resolve_route(client, 2000) });
        expect(mine, RDMA_CM_EVENT_ROUTE_RESOLVED);
        with_qp(client);
        works(unsafe { connect::rdma_connect(client, std::ptr::null_mut()) });
        let asked = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
        [client, asked.id].into_iter().for_each(destroy);
    }
    destroy(one);
}

#[test]
fn a_port_is_free_again_when_its_identifier_or_its_process_is_gone() {
    let one = new();
    works(bind(one, &loopback(0)));
    let port = port_of(one);
    destroy(one);
    assert!(in_a_child(|| works(bind(new(), &loopback(port)))));
    let two = new();
    works(bind(two, &at(ANY, port)));
    destroy(two);
}

#[test]
fn port_zero_is_any_free_one_and_never_the_same() {
    let ids: Vec<_> = (0..40).map(|_| new()).collect();
    ids.iter().for_each(|id| works(bind(*id, &loopback(0))));
    let mut ports: Vec<_> = ids.iter().map(|id| port_of(*id)).collect();
    assert!(ports.iter().all(|p| *p >= 49152));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), ids.len());
    ids.into_iter().for_each(destroy);
}

#[test]
fn an_identifier_is_bound_once_and_shows_its_address() {
    let one = new();
    works(bind(one, &loopback(0)));
    let shown = unsafe { (*one).route.addr.src.sin };
    assert_eq!((shown.sin_addr.s_addr.to_ne_bytes(), u16::from_be(shown.sin_port)), (LOCAL, port_of(one)));
    assert!(unsafe { (*one).verbs.is_null() });
    if let Some(address) = other() {
        let here = new();
        works(bind(here, &at(address, 0)));
        assert!(unsafe { !(*here).verbs.is_null() && (*here).port_num == 1 });
        destroy(here);
    }
    fails(bind(one, &loopback(0)), libc::EINVAL);
    let any = new();
    works(bind(any, &at(ANY, 0)));
    assert!(unsafe { (*any).verbs.is_null() });
    [one, any].into_iter().for_each(destroy);
}

#[test]
fn addresses_that_are_not_ours_and_families_that_are_none_are_refused() {
    fails(bind(new(), &at([203, 0, 113, 1], 0)), libc::EADDRNOTAVAIL);
    let mut unix = loopback(0);
    unix.sin_family = libc::AF_UNIX as _;
    fails(bind(new(), &unix), libc::EINVAL);
    fails(resolve(new(), &unix), libc::EINVAL);
    // A link-local address means nothing without its link.
    fails(bind(new(), &at6("fe80::1".parse().unwrap(), 0)), libc::EINVAL);
}

fn share(id: *mut rdma_cm_id, on: c_int) -> c_int {
    option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, on)
}

#[test]
fn a_port_is_shared_by_those_who_all_agree_until_one_listens() {
    let (one, two, three, four) = (new(), new(), new(), new());
    works(share(one, 1));
    works(bind(one, &loopback(0)));
    let port = port_of(one);
    fails(bind(four, &loopback(port)), libc::EADDRNOTAVAIL);
    for (id, to) in [(two, LOCAL), (three, ANY)] {
        works(share(id, 1));
        works(bind(id, &at(to, port)));
    }
    works(unsafe { connect::rdma_listen(one, 1) });
    for id in [two, three] {
        fails(unsafe { connect::rdma_listen(id, 1) }, libc::EADDRNOTAVAIL);
    }
    works(share(four, 1));
    fails(bind(four, &loopback(port)), libc::EADDRNOTAVAIL);
    // The place becomes free with the listener.
    destroy(one);
    works(unsafe { connect::rdma_listen(two, 1) });
    [two, three, four].into_iter().for_each(destroy);
}

#[test]
fn a_port_is_shared_with_another_process_and_requests_find_the_listener() {
    let ours = channel();
    let one = id(ours, RDMA_PS_TCP);
    works(share(one, 1));
    works(bind(one, &loopback(0)));
    let port = port_of(one);
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert!(in_a_child(|| {
        let two = new();
        works(share(two, 1));
        works(bind(two, &loopback(port)));
        works(unsafe { connect::rdma_listen(two, 1) });
        std::io::Write::write_all(&mut &writer, b"x").unwrap();
    }));
    reader.read_exact(&mut [0]).unwrap();
    // That process is gone, and its claim with it.
    works(unsafe { connect::rdma_listen(one, 1) });
    let mine = channel();
    let client = routed(mine, RDMA_PS_TCP, port);
    with_qp(client);
    works(unsafe { connect::rdma_connect(client, std::ptr::null_mut()) });
    let asked = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
    [client, asked.id, one].into_iter().for_each(destroy);
}

#[test]
fn sharing_can_be_agreed_to_after_binding_but_not_while_listening() {
    let (one, two) = (new(), new());
    works(bind(one, &loopback(0)));
    works(share(one, 1));
    works(share(two, 1));
    works(bind(two, &loopback(port_of(one))));
    fails(share(two, 0), libc::EADDRNOTAVAIL);
    works(unsafe { connect::rdma_listen(one, 1) });
    fails(share(one, 0), libc::EINVAL);
    [one, two].into_iter().for_each(destroy);
}

#[test]
fn a_listener_on_all_of_ipv6_takes_ipv4_too_unless_it_is_for_ipv6_only() {
    if !has_v6() {
        return eprintln!("skipped: no IPv6 on lo");
    }
    for (to, taken) in
        [(To::V6(Ipv6Addr::UNSPECIFIED), true), (To::Only(Ipv6Addr::UNSPECIFIED), false), (To::V4(ANY), true)]
    {
        let theirs = channel();
        let listener = id(theirs, RDMA_PS_TCP);
        works(to.bind(listener, 0));
        works(unsafe { connect::rdma_listen(listener, 4) });
        let ours = channel();
        let client = routed(ours, RDMA_PS_TCP, port_of(listener));
        with_qp(client);
        works(unsafe { connect::rdma_connect(client, std::ptr::null_mut()) });
        if taken {
            let asked = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
            destroy(asked.id);
        }
        let refused = expect(ours, RDMA_CM_EVENT_REJECTED);
        assert_eq!(refused.status == 8, !taken, "{to:?}: nobody listens");
        [client, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn ipv4_and_ipv6_alone_listen_on_one_port_side_by_side_and_across_processes() {
    if !has_v6() {
        return eprintln!("skipped: no IPv6 on lo");
    }
    let theirs = channel();
    let four = id(theirs, RDMA_PS_TCP);
    works(bind(four, &at(ANY, 0)));
    works(unsafe { connect::rdma_listen(four, 4) });
    let port = port_of(four);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let child = std::thread::spawn(move || {
        in_a_child(move || {
            let ours = channel();
            let six = id(ours, RDMA_PS_TCP);
            works(To::Only(Ipv6Addr::UNSPECIFIED).bind(six, port));
            works(unsafe { connect::rdma_listen(six, 4) });
            std::io::Write::write_all(&mut &writer, b"x").unwrap();
            let asked = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
            works(unsafe { connect::rdma_reject(asked.id, std::ptr::null_mut(), 0) });
        })
    });
    reader.read_exact(&mut [0]).unwrap();
    let mine = channel();
    let client = id(mine, RDMA_PS_TCP);
    works(resolve(client, &at6(Ipv6Addr::LOCALHOST, port)));
    expect(mine, RDMA_CM_EVENT_ADDR_RESOLVED);
    works(unsafe { connect::rdma_resolve_route(client, 2000) });
    expect(mine, RDMA_CM_EVENT_ROUTE_RESOLVED);
    with_qp(client);
    works(unsafe { connect::rdma_connect(client, std::ptr::null_mut()) });
    assert_eq!(expect(mine, RDMA_CM_EVENT_REJECTED).status, 28, "the other process said no");
    assert!(child.join().unwrap());
    assert!(!comes(theirs, 0));
    [client, four].into_iter().for_each(destroy);
    unsafe { channel::rdma_destroy_event_channel(theirs) };
}

#[test]
fn an_address_that_no_device_bears_is_not_resolved_though_it_is_this_host_s() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    works(resolve(made, &at([127, 9, 9, 9], 7)));
    assert_eq!(expect(ch, RDMA_CM_EVENT_ADDR_ERROR).status, -libc::ENODEV);
    destroy(made);
}

#[test]
fn the_source_of_a_connection_is_chosen_by_the_routing_table_or_by_the_program() {
    let ch = channel();
    let one = id(ch, RDMA_PS_TCP);
    works(resolve(one, &loopback(7)));
    expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
    let source = |id: *mut rdma_cm_id| unsafe { (*id).route.addr.src.sin.sin_addr.s_addr.to_ne_bytes() };
    assert_eq!(source(one), LOCAL);
    let Some(other) = other() else { return eprintln!("skipped: one address only") };
    let two = id(ch, RDMA_PS_TCP);
    let (mut from, mut to) = (at(other, 0), at(other, 7));
    works(unsafe { connect::rdma_resolve_addr(two, (&raw mut from).cast(), (&raw mut to).cast(), 2000) });
    expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(source(two), other);
    assert_ne!(port_of(two), 0);
    let three = id(ch, RDMA_PS_TCP);
    let mut foreign = at([203, 0, 113, 1], 0);
    let resolved =
        unsafe { connect::rdma_resolve_addr(three, (&raw mut foreign).cast(), (&raw mut to).cast(), 2000) };
    fails(resolved, libc::EADDRNOTAVAIL);
    [one, two, three].into_iter().for_each(destroy);
}
