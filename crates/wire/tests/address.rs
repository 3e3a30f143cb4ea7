//! Addresses of peers: what is one, how they compare, and how they read.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use wire::address::{Address, Endpoint, LidAddress, LidError};

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        // Few, so that two of them are equal often.
        (0..3_u8).prop_map(|n| IpAddr::from([10, 0, 0, n])),
        (0..3_u16).prop_map(|n| IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, n])),
    ]
}

fn lid() -> impl Strategy<Value = LidAddress> {
    let lids = prop_oneof![1..=u16::MAX - 1, 1..4_u16];
    (lids, 0..=15_u8, 0..=127_u8).prop_map(|(lid, sl, bits)| LidAddress::new(lid, sl, bits).unwrap())
}

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![ip().prop_map(Address::from), lid().prop_map(Address::from)]
}

proptest! {
    #[test]
    fn a_lid_address_is_made_of_legal_numbers_and_of_no_others(
        number in any::<u16>(), sl in any::<u8>(), bits in any::<u8>()
    ) {
        let made = LidAddress::new(number, sl, bits);
        prop_assert_eq!(made.is_ok(), number != 0 && number != 0xffff && sl <= 15 && bits <= 127);
        if let Ok(made) = made {
            prop_assert_eq!((made.lid(), made.service_level(), made.path_bits()), (number, sl, bits));
            prop_assert_eq!(made.is_multicast(), number >= 0xc000);
        }
    }

    #[test]
    fn an_ip_address_comes_back_and_compares_and_reads_as_itself(a in ip(), b in ip()) {
        let (here, there) = (Address::from(a), Address::from(b));
        prop_assert_eq!(here.ip(), Some(a));
        prop_assert_eq!((here == there, here.cmp(&there)), (a == b, a.cmp(&b)));
        prop_assert_eq!(here == b, a == b);
        prop_assert_eq!(here.to_string(), a.to_string());
        prop_assert_eq!(here.is_multicast(), a.is_multicast());
    }

    #[test]
    fn lids_are_in_the_order_of_their_numbers(a in lid(), b in lid()) {
        let numbers = |it: LidAddress| (it.lid(), it.service_level(), it.path_bits());
        prop_assert_eq!(a.cmp(&b), numbers(a).cmp(&numbers(b)));
        prop_assert_eq!(a == b, numbers(a) == numbers(b));
        prop_assert_eq!(Address::from(a).cmp(&Address::from(b)), a.cmp(&b));
    }

    #[test]
    fn addresses_that_differ_have_different_numbers(a in address(), b in address()) {
        // An IPv4 address and the IPv6 address that maps it are one host's.
        let plain = |it: Address| it.ip().map_or(it, |ip| Address::from(ip.to_canonical()));
        // No interface bears an address of the discard prefix.
        prop_assume!([a, b].iter().all(|it| it.ip().is_none_or(|ip| !is_discarded(ip))));
        prop_assert_eq!(a.to_bits() == b.to_bits(), plain(a) == plain(b));
    }

    #[test]
    fn a_lid_is_no_ip_address(lid in lid(), ip in ip()) {
        let address = Address::from(lid);
        prop_assert_eq!(address.ip(), None);
        prop_assert_ne!(address, Address::from(ip));
        prop_assert!(address != ip && address > Address::from(ip));
        prop_assert_eq!(address.network(), u64::from(lid.lid()));
    }

    #[test]
    fn an_endpoint_gives_its_address(ip in ip(), port in any::<u16>(), lid in lid()) {
        let end = SocketAddr::new(ip, port);
        prop_assert_eq!(Endpoint::from(end).address(), Address::from(ip));
        prop_assert_eq!(Endpoint::from(end).udp(), Some(end));
        prop_assert_eq!(Endpoint::from(lid).address(), Address::from(lid));
        prop_assert_eq!(Endpoint::from(lid).udp(), None);
    }
}

fn is_discarded(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.segments()[..4] == [0x100, 0, 0, 0])
}

#[test]
fn an_address_reads_as_administrators_write_it() {
    let lid = |lid, sl, bits| Address::from(LidAddress::new(lid, sl, bits).unwrap());
    assert_eq!(Address::from(Ipv4Addr::new(10, 0, 0, 1)).to_string(), "10.0.0.1");
    assert_eq!(Address::from(Ipv6Addr::LOCALHOST).to_string(), "::1");
    assert_eq!(lid(5, 0, 0).to_string(), "LID 5 SL 0");
    assert_eq!(lid(49_151, 3, 127).to_string(), "LID 49151 SL 3 path bits 127");
    assert_eq!(format!("{:?}", lid(5, 0, 0)), "Lid(LidAddress(LID 5 SL 0))");
}

#[test]
fn a_number_that_is_too_large_is_named_with_what_is_taken() {
    let refused = |lid, sl, bits| LidAddress::new(lid, sl, bits).unwrap_err();
    assert_eq!(refused(5, 16, 0), LidError { what: "service level", value: 16, least: 0, most: 15 });
    assert_eq!(refused(0, 0, 0).to_string(), "LID 0x0 is not 0x1 to 0xfffe");
    assert_eq!(refused(5, 0, 128).to_string(), "path bits 0x80 is not 0x0 to 0x7f");
}

#[test]
fn an_address_is_as_large_as_an_ip_address() {
    assert_eq!(size_of::<Address>(), size_of::<IpAddr>());
}

#[test]
fn the_network_of_an_address_is_what_its_host_cannot_choose() {
    let network = |text: &str| Address::from(text.parse::<IpAddr>().unwrap()).network();
    assert_eq!(network("10.0.0.1"), 0x0a00_0001);
    assert_eq!(network("fd77::1"), network("fd77::2"));
    assert_ne!(network("fd77::1"), network("fd77:0:0:1::1"));
    let all = ["10.0.0.1", "10.0.0.2", "fd77::1"].map(network);
    assert_eq!(BTreeSet::from(all).len(), 3);
}
