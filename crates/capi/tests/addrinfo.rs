//! rdma_getaddrinfo(3) with its flags, and rdma_resolve_addrinfo(3).
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use capi::cma::{addrinfo, resolve_addrinfo};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::errno;

/// Hints of these flags for connections.
fn hints(flags: c_int) -> rdma_addrinfo {
    let mut h: rdma_addrinfo = unsafe { std::mem::zeroed() };
    (h.ai_flags, h.ai_port_space) = (flags, RDMA_PS_TCP as c_int);
    h
}

fn text(s: Option<&CStr>) -> *const c_char {
    s.map_or(null(), CStr::as_ptr)
}

/// The answer, or the code that is returned instead.
fn look_up(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, c_int> {
    let mut found = null_mut();
    let hints = hints.map_or(null(), |h| &raw const *h);
    match unsafe { addrinfo::rdma_getaddrinfo(text(node), text(service), hints, &raw mut found) } {
        0 => Ok(found),
        code => Err(code),
    }
}

/// Family, address and port of an IPv4 or IPv6 address.
fn show(addr: *const libc::sockaddr) -> String {
    if addr.is_null() {
        return "none".to_owned();
    }
    unsafe {
        match i32::from((*addr).sa_family) {
            libc::AF_INET => {
                let a = addr.cast::<libc::sockaddr_in>().read();
                let ip = std::net::Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                format!("{ip}:{}", u16::from_be(a.sin_port))
            }
            libc::AF_INET6 => {
                let a = addr.cast::<libc::sockaddr_in6>().read();
                let ip = std::net::Ipv6Addr::from(a.sin6_addr.s6_addr);
                format!("[{ip}%{}]:{}", a.sin6_scope_id, u16::from_be(a.sin6_port))
            }
            family => format!("family {family}"),
        }
    }
}

/// Destination and source of the first answer.
#[track_caller]
fn ends(node: Option<&CStr>, service: Option<&CStr>, hints: Option<&rdma_addrinfo>) -> (String, String) {
    let found = look_up(node, service, hints).unwrap_or_else(|code| panic!("{code}, errno {}", errno()));
    let shown = unsafe { (show((*found).ai_dst_addr), show((*found).ai_src_addr)) };
    unsafe { addrinfo::rdma_freeaddrinfo(found) };
    shown
}

fn pair(dest: &str, source: &str) -> (String, String) {
    (dest.to_owned(), source.to_owned())
}

#[test]
fn a_destination_comes_with_the_source_that_the_routing_table_chooses() {
    let (node, service) = (Some(c"127.0.0.1"), Some(c"7471"));
    assert_eq!(ends(node, service, None), pair("127.0.0.1:7471", "127.0.0.1:0"));
    assert_eq!(ends(node, service, Some(&hints(0))), pair("127.0.0.1:7471", "127.0.0.1:0"));
    assert_eq!(ends(node, service, Some(&hints(RAI_NOROUTE))), pair("127.0.0.1:7471", "none"));
    // No route, no source; a group has none before it is joined.
    assert_eq!(ends(Some(c"239.1.2.3"), service, None).1, "none");
}

#[test]
fn a_passive_address_is_a_source() {
    let passive = hints(RAI_PASSIVE);
    assert_eq!(ends(Some(c"127.0.0.1"), Some(c"7471"), Some(&passive)), pair("none", "127.0.0.1:7471"));
    let mut v4 = passive;
    v4.ai_family = libc::AF_INET;
    assert_eq!(ends(None, Some(c"7471"), Some(&v4)), pair("none", "0.0.0.0:7471"));
    v4.ai_family = libc::AF_INET6;
    assert_eq!(ends(None, Some(c"7471"), Some(&v4)), pair("none", "[::%0]:7471"));
}

#[test]
fn a_source_in_the_hints_is_kept() {
    let mut from = loopback(1234);
    let mut h = hints(0);
    h.ai_src_addr = (&raw mut from).cast();
    h.ai_src_len = size_of_val(&from) as u32;
    assert_eq!(ends(Some(c"127.0.0.1"), Some(c"1"), Some(&h)), pair("127.0.0.1:1", "127.0.0.1:1234"));
}

#[test]
fn hints_alone_say_both_addresses() {
    let (mut from, mut to) = (loopback(1234), loopback(7));
    let mut h = hints(0);
    (h.ai_src_addr, h.ai_src_len) = ((&raw mut from).cast(), 16);
    (h.ai_dst_addr, h.ai_dst_len) = ((&raw mut to).cast(), 16);
    assert_eq!(ends(None, None, Some(&h)), pair("127.0.0.1:7", "127.0.0.1:1234"));
    h.ai_src_len = 0;
    assert_eq!(ends(None, None, Some(&h)), pair("127.0.0.1:7", "127.0.0.1:0"), "by the routing table");
    assert_eq!(look_up(None, None, None).err(), Some(-1));
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn a_name_that_must_be_numeric_is_not_looked_up() {
    assert_eq!(
        look_up(Some(c"localhost"), None, Some(&hints(RAI_NUMERICHOST))).err(),
        Some(libc::EAI_NONAME)
    );
    assert_eq!(errno(), libc::ENODATA);
    assert_eq!(ends(Some(c"127.0.0.1"), None, Some(&hints(RAI_NUMERICHOST))).0, "127.0.0.1:0");
    let (dest, _) = ends(Some(c"localhost"), None, Some(&hints(0)));
    assert!(["127.0.0.1:0", "[::1%0]:0"].contains(&&*dest), "{dest}");
    assert!(matches!(
        look_up(Some(c"not.a.host.invalid"), None, None),
        Err(libc::EAI_NONAME | libc::EAI_AGAIN | libc::EAI_NODATA | libc::EAI_FAIL)
    ));
}

#[test]
fn services_have_names_of_their_protocol() {
    // /etc/services knows ssh for TCP, and tftp for UDP only.
    let known = std::fs::read_to_string("/etc/services").unwrap_or_default();
    if !known.contains("tftp\t\t69/udp") {
        return eprintln!("skipped: no such /etc/services");
    }
    let mut h = hints(0);
    assert_eq!(ends(Some(c"127.0.0.1"), Some(c"ssh"), Some(&h)).0, "127.0.0.1:22");
    assert_eq!(look_up(Some(c"127.0.0.1"), Some(c"tftp"), Some(&h)).err(), Some(libc::EAI_SERVICE));
    h.ai_port_space = RDMA_PS_UDP as c_int;
    assert_eq!(ends(Some(c"127.0.0.1"), Some(c"tftp"), Some(&h)).0, "127.0.0.1:69");
}

#[test]
fn a_link_local_address_keeps_its_link() {
    assert_eq!(ends(Some(c"fe80::1%lo"), Some(c"5"), Some(&hints(RAI_NOROUTE))).0, "[fe80::1%1]:5");
}

/// Of <netdb.h>.
const EAI_ADDRFAMILY: c_int = -9;

#[test]
fn the_family_of_the_hints_is_the_node_s() {
    for (family, node, code) in [
        (libc::AF_INET6, c"127.0.0.1", EAI_ADDRFAMILY),
        (libc::AF_INET, c"::1", EAI_ADDRFAMILY),
        (libc::AF_UNIX, c"127.0.0.1", libc::EAI_FAMILY),
    ] {
        let mut h = hints(RAI_FAMILY);
        h.ai_family = family;
        let got = look_up(Some(node), None, Some(&h)).err();
        assert!(got == Some(code) || got == Some(libc::EAI_NONAME), "{node:?}: {got:?}");
    }
}

#[test]
fn a_node_of_the_family_of_gids_is_a_gid() {
    let mut h = hints(RAI_FAMILY | RAI_NUMERICHOST);
    h.ai_family = AF_IB;
    for (service, sid, mask) in
        [(Some(c"7471"), RDMA_IB_IP_PS_TCP | 7471, u64::MAX), (None, RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_MASK)]
    {
        let found = look_up(Some(c"fe80::2:c903:0:1"), service, Some(&h)).unwrap();
        unsafe {
            let sib = (*found).ai_dst_addr.cast::<sockaddr_ib>().read();
            assert_eq!(((*found).ai_family, (*found).ai_dst_len), (AF_IB, 48));
            assert_eq!((i32::from(sib.sib_family), u16::from_be(sib.sib_pkey)), (AF_IB, 0xffff));
            assert_eq!((u64::from_be(sib.sib_sid), u64::from_be(sib.sib_sid_mask)), (sid, mask));
            assert_eq!(sib.sib_addr.raw, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 1]);
            addrinfo::rdma_freeaddrinfo(found);
        }
    }
    h.ai_flags |= RAI_PASSIVE;
    let found = look_up(None, Some(c"7471"), Some(&h)).unwrap();
    unsafe {
        let sib = (*found).ai_src_addr.cast::<sockaddr_ib>().read();
        assert_eq!((sib.sib_addr.raw, u64::from_be(sib.sib_sid)), ([0; 16], RDMA_IB_IP_PS_TCP | 7471));
        // And that can be listened on.
        let made = id(channel(), RDMA_PS_TCP);
        works(bind(made, &sib));
        assert_eq!(u16::from_be(capi::cma::connect::rdma_get_src_port(made)), 7471);
        destroy(made);
        addrinfo::rdma_freeaddrinfo(found);
    }
}

#[test]
fn there_is_no_administrator_to_ask_for_services() {
    let fails_with = |node, service, flags, code| {
        assert_eq!((look_up(node, service, Some(&hints(flags))).err(), errno()), (Some(-1), code));
    };
    fails_with(None, Some(c"service"), RAI_SA, libc::ENOENT);
    fails_with(None, None, RAI_SA, libc::EINVAL);
    fails_with(Some(c"127.0.0.1"), Some(c"service"), RAI_SA, libc::EOPNOTSUPP);
    fails_with(None, Some(c"service"), RAI_SA | RAI_DNS, libc::EOPNOTSUPP);
    assert_eq!(ends(Some(c"127.0.0.1"), None, Some(&hints(RAI_DNS))).0, "127.0.0.1:0");
    assert_eq!(look_up(Some(c"127.0.0.1"), None, Some(&hints(0x1000))).err(), Some(libc::EAI_BADFLAGS));
}

#[test]
fn port_space_and_queue_pair_type_of_the_hints_are_the_answer_s() {
    for (space, kind) in [(RDMA_PS_IB, IBV_QPT_RC), (RDMA_PS_IB, IBV_QPT_UD), (RDMA_PS_IPOIB, IBV_QPT_UD)] {
        let mut h = hints(0);
        (h.ai_port_space, h.ai_qp_type) = (space as c_int, kind as c_int);
        let found = look_up(Some(c"127.0.0.1"), Some(c"1"), Some(&h)).unwrap();
        let got = unsafe { ((*found).ai_port_space as u32, (*found).ai_qp_type as u32) };
        assert_eq!(got, (space, kind));
        unsafe { addrinfo::rdma_freeaddrinfo(found) };
    }
}

fn resolve_name(id: *mut rdma_cm_id, node: &CStr, hints: *const rdma_addrinfo) -> c_int {
    unsafe { resolve_addrinfo::rdma_resolve_addrinfo(id, node.as_ptr(), c"7471".as_ptr(), hints) }
}

#[test]
fn an_address_is_resolved_with_an_event_and_taken_once() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    let mut found = null_mut();
    unsafe {
        fails(resolve_addrinfo::rdma_query_addrinfo(made, &raw mut found), libc::ENOENT);
        works(resolve_name(made, c"127.0.0.1", null()));
        fails(resolve_name(made, c"127.0.0.1", null()), libc::EBUSY);
        assert_eq!(expect(ch, RDMA_CM_EVENT_ADDRINFO_RESOLVED).status, 0);
        works(resolve_addrinfo::rdma_query_addrinfo(made, &raw mut found));
        assert_eq!(show((*found).ai_dst_addr), "127.0.0.1:7471");
        addrinfo::rdma_freeaddrinfo(found);
        fails(resolve_addrinfo::rdma_query_addrinfo(made, &raw mut found), libc::ENOENT);
        // An answer that no call takes goes with its identifier.
        works(resolve_name(made, c"127.0.0.1", &hints(RAI_DNS)));
    }
    destroy(made);
    assert!(!comes(ch, 0));
}

#[test]
fn a_resolution_that_fails_at_once_has_no_event() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    let (numeric, sa) = (hints(RAI_NUMERICHOST), hints(RAI_SA));
    unsafe {
        fails(resolve_name(made, c"localhost", &raw const numeric), libc::ENODATA);
        fails(resolve_name(made, c"127.0.0.1", &raw const sa), libc::EOPNOTSUPP);
        let by_name =
            |id| resolve_addrinfo::rdma_resolve_addrinfo(id, null(), c"service".as_ptr(), &raw const sa);
        fails(by_name(made), libc::EINVAL);
        works(bind(made, &loopback(0)));
        fails(by_name(made), libc::EOPNOTSUPP);
        fails(resolve_name(null_mut(), c"127.0.0.1", null()), libc::EINVAL);
        fails(resolve_addrinfo::rdma_query_addrinfo(made, null_mut()), libc::EINVAL);
        fails(resolve_addrinfo::rdma_query_addrinfo(null_mut(), &mut null_mut()), libc::EINVAL);
    }
    assert!(!comes(ch, 0));
    destroy(made);
}

#[test]
fn a_synchronous_identifier_waits_for_its_addresses() {
    let made = id(null_mut(), RDMA_PS_TCP);
    works(resolve_name(made, c"127.0.0.1", null()));
    unsafe {
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        let mut found = null_mut();
        works(resolve_addrinfo::rdma_query_addrinfo(made, &raw mut found));
        addrinfo::rdma_freeaddrinfo(found);
    }
    destroy(made);
}
