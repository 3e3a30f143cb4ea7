//! What the kernel knows of the network: interfaces, routes, neighbours, and errors from afar.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::support;
use crate::support::{LO, Told, V4, V6, alone, batch, counter, ip, path, route_to, start};
use nic::{Errno, Link};
use stack::Env;
use stack::env::RouteQuery;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn query(dest: &str) -> RouteQuery {
    RouteQuery { dest: address(dest), scope: 0, source: None }
}

#[test]
fn nobody_on_the_port_is_told_with_the_packet_and_the_next_send_goes_through() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let host = start();
    for there in [V4, V6] {
        for psn in 1..=5 {
            host.env().send(&path(there), &mut batch(psn, &[64]));
        }
        let told = host.handler().find(|told| match told {
            Told::Unreachable { dest, source, errno, sent } if *dest == there => {
                Some((*dest, *source, *errno, sent.clone()))
            }
            _ => None,
        });
        let (dest, source, errno, sent) = told.unwrap();
        assert_eq!((dest, source, errno), (there, there, Errno::ECONNREFUSED));
        // The BTH: opcode SEND MIDDLE, destination queue pair.
        assert_eq!((sent[0], &sent[5..8]), (1, &[0x12, 0x34, 0x56][..]));
    }
    assert_eq!(counter(&host, "packets_dropped_sending"), 0);
    assert_eq!(counter(&host, "packets_sent"), 10);
}

#[test]
fn the_input_handler_learns_the_interfaces_before_anything_else() {
    let _alone = alone();
    let host = start();
    let Some(interfaces) = host.handler().find(|told| match told {
        Told::Interfaces(interfaces) => Some(interfaces.clone()),
        _ => None,
    }) else {
        panic!("nothing told");
    };
    let lo = interfaces.iter().find(|interface| interface.name == "lo").unwrap();
    assert!(lo.loopback && lo.up && lo.index == LO && lo.mac == [0; 6] && lo.mtu >= 1500);
    assert!(lo.addresses.contains(&V4) && lo.addresses.contains(&V6));
}

#[test]
fn routes_to_ourselves_are_local_on_loopback() {
    let _alone = alone();
    let env = start().env().clone();
    for (dest, source) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.9", "127.0.0.9"),
        ("::1", "::1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
    ] {
        let route = env.route(query(dest)).unwrap();
        assert_eq!((route.interface, route.local, route.source), (LO, true, address(source)), "{dest}");
        assert_eq!(route.next_hop, route.dest);
        assert!(route.mtu >= 1500);
    }
    let mixed = RouteQuery { source: Some(V4), ..query("::1") };
    assert_eq!(env.route(mixed), Err(Errno::EAFNOSUPPORT));
}

#[test]
fn a_local_neighbour_is_reached_at_once() {
    let _alone = alone();
    let host = start();
    host.env().resolve_neighbour(5, &route_to(V4, LO, true));
    host.env().resolve_neighbour(6, &route_to(V6, LO, false));
    assert_eq!(host.handler().resolved(5), Some(Ok(())));
    assert_eq!(host.handler().resolved(6), Some(Ok(())));
}

#[test]
fn all_processes_of_a_namespace_have_one_host_id_of_40_bits() {
    let alone = alone();
    let id = start().env().host_id();
    assert_eq!(start().env().host_id(), id);
    assert!(id >> 40 == 0 && id != 0);
    if alone.own_namespace {
        let other = std::thread::spawn(|| {
            let _alone = support::alone();
            start().env().host_id()
        });
        assert_ne!(other.join().unwrap(), id);
    }
}

/// A process whose network namespace is the far end.
struct Far(std::process::Child);

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A veth pair to another namespace: we are 10.9.0.1 and fd09::1, the far end .2 and ::2. Returns
/// the index of ours.
fn veth(env: &linux::LinuxEnv) -> (u32, Far) {
    // The far end is the namespace of a process that waits for its input to end.
    let far = std::process::Command::new("unshare")
        .args(["--net", "sh", "-c", "echo ready; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut far = Far(far);
    std::io::Read::read_exact(far.0.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    let pid = far.0.id();
    ip(&format!("link add veth0 type veth peer name veth1 netns {pid}"));
    ip("addr add 10.9.0.1/24 dev veth0");
    ip("addr add fd09::1/64 dev veth0 nodad");
    ip("link set veth0 up");
    let enter = |command: &str| {
        let status = std::process::Command::new("nsenter")
            .args(["--net", "-t", &pid.to_string(), "ip"])
            .args(command.split(' '))
            .status()
            .unwrap();
        assert!(status.success(), "{command}");
    };
    enter("link set lo up");
    enter("addr add 10.9.0.2/24 dev veth1");
    enter("addr add fd09::2/64 dev veth1 nodad");
    enter("link set veth1 up");
    let end = std::time::Instant::now() + support::TIMEOUT;
    loop {
        let found = env.interfaces().into_iter().find(|interface| interface.name == "veth0" && interface.up);
        if let Some(veth0) = found.filter(|veth0| veth0.addresses.contains(&address("fd09::1"))) {
            return (veth0.index, far);
        }
        assert!(std::time::Instant::now() < end, "no veth0: {:?}", env.interfaces());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_route_to_ourselves_is_another_one_as_soon_as_the_tables_say_so() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let host = start();
    let env = host.env();
    let asked = || (env.route(query("127.0.0.9")).map(|route| route.local), env.route(query("::1")).is_ok());
    for _ in 0..3 {
        assert_eq!((asked(), asked()), ((Ok(true), true), (Ok(true), true)));
        ip("route add prohibit 127.0.0.9 table local");
        assert_eq!((asked(), asked()), ((Err(Errno::EACCES), true), (Err(Errno::EACCES), true)));
        ip("route del prohibit 127.0.0.9 table local");
    }
    assert_eq!(asked(), (Ok(true), true));
    ip("rule add to 127.0.0.9 prohibit pref 10");
    ip("rule add pref 20 table local");
    ip("rule del pref 0");
    assert_eq!(asked(), (Err(Errno::EACCES), true));
}

#[test]
fn a_change_of_routes_or_neighbours_changes_the_very_next_answer() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let host = start();
    let env = host.env();
    let (_, _far) = veth(env);
    let next_hop = |dest: &str| env.route(query(dest)).map(|route| route.next_hop);
    let is_resolved = |dest: &str| env.is_resolved(&env.route(query(dest)).unwrap());
    // Without this a nexthop object is told of with the routes that use it, too.
    std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
    ip("nexthop add id 1 via 10.9.0.2 dev veth0");
    ip("route add 198.51.100.0/24 nhid 1");
    ip("route add 192.0.2.0/24 via 10.9.0.2");
    for (ticket, hop) in [(1, "10.9.0.2"), (2, "10.9.0.3"), (3, "10.9.0.2"), (4, "10.9.0.3")] {
        ip(&format!("route replace 192.0.2.0/24 via {hop}"));
        assert_eq!(next_hop("192.0.2.1"), Ok(address(hop)));
        ip(&format!("nexthop replace id 1 via {hop} dev veth0"));
        assert_eq!(next_hop("198.51.100.1"), Ok(address(hop)));

        for dest in ["10.9.0.2", "fd09::2"] {
            env.resolve_neighbour(ticket, &env.route(query(dest)).unwrap());
            assert_eq!(host.handler().resolved(ticket), Some(Ok(())));
            assert!(is_resolved(dest) && is_resolved(dest));
            ip(&format!("neigh replace {dest} lladdr 02:00:00:00:00:0{ticket} dev veth0 nud permanent"));
            assert!(is_resolved(dest));
            assert_eq!(env.ethernet_address(query(dest)), Ok(([2, 0, 0, 0, 0, ticket as u8], None)));
            ip(&format!("neigh del {dest} dev veth0"));
            assert!(!is_resolved(dest));
        }
        ip("rule add to 10.9.0.2 prohibit pref 10");
        assert_eq!(next_hop("10.9.0.2"), Err(Errno::EACCES));
        ip("rule del pref 10");
        assert_eq!(next_hop("10.9.0.2"), Ok(address("10.9.0.2")));
    }
    ip("link set veth0 mtu 1400");
    let end = std::time::Instant::now() + support::TIMEOUT;
    while env.route(query("10.9.0.2")).unwrap().mtu != 1400 {
        // The engine follows the interfaces.
        assert!(std::time::Instant::now() < end, "the old MTU");
    }
    ip("addr del 10.9.0.1/24 dev veth0");
    assert_eq!(next_hop("10.9.0.2"), Err(Errno::ENETUNREACH));
    assert_eq!(next_hop("fd09::2"), Ok(address("fd09::2")));
    ip("link set veth0 down");
    assert_eq!(next_hop("fd09::2"), Err(Errno::ENETUNREACH));
}

#[test]
fn over_a_veth_pair_routes_neighbours_and_address_changes_are_as_on_any_network() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let host = start();
    let env = host.env();
    let (index, _far) = veth(env);
    env.attach(index).unwrap();

    // Ourselves: on the interface that bears the address, with its MTU.
    for dest in ["10.9.0.1", "fd09::1"] {
        let route = env.route(query(dest)).unwrap();
        assert_eq!(
            (route.interface, route.local, route.source, route.mtu),
            (index, true, address(dest), 1500)
        );
    }
    // The far end, with and without a source.
    for (source, dest) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
        for given in [None, Some(address(source))] {
            let route = env.route(RouteQuery { source: given, ..query(dest) }).unwrap();
            assert_eq!((route.interface, route.local, route.source), (index, false, address(source)));
            assert_eq!((route.next_hop, route.mtu), (address(dest), 1500));
        }
    }
    assert_eq!(env.route(query("192.0.2.1")), Err(Errno::ENETUNREACH));
    assert_eq!(env.route(query("2001:db8::1")), Err(Errno::ENETUNREACH));
    ip("route add 192.0.2.0/24 via 10.9.0.2 mtu 1400");
    let gateway = env.route(query("192.0.2.1")).unwrap();
    assert_eq!((gateway.next_hop, gateway.mtu), (address("10.9.0.2"), 1400));
    let foreign = RouteQuery { source: Some(address("10.77.0.1")), ..query("10.9.0.2") };
    assert_eq!(env.route(foreign), Err(Errno::EADDRNOTAVAIL));
    ip("route add prohibit 198.51.100.0/24");
    assert_eq!(env.route(query("198.51.100.1")), Err(Errno::EACCES));

    neighbours(&host);
    addresses(&host, index);
}

fn neighbours(host: &support::Recording) {
    let env = host.env();
    for (ticket, dest, result) in [
        (1, "10.9.0.2", Ok(())),
        (2, "fd09::2", Ok(())),
        // The second time it is known.
        (3, "10.9.0.2", Ok(())),
        (4, "10.9.0.77", Err(Errno::EHOSTUNREACH)),
        (5, "fd09::77", Err(Errno::EHOSTUNREACH)),
    ] {
        env.resolve_neighbour(ticket, &env.route(query(dest)).unwrap());
        assert_eq!(host.handler().resolved(ticket), Some(result), "{dest}");
    }
    let far = env.ethernet_address(query("10.9.0.2")).unwrap();
    assert_eq!(env.ethernet_address(query("fd09::2")), Ok(far));
    assert!(far.0 != [0; 6] && far.1.is_none());
    assert_eq!(env.ethernet_address(query("10.9.0.76")), Err(Errno::EHOSTUNREACH));
    // One that failed is asked again, not remembered.
    ip("neigh replace 10.9.0.78 lladdr 02:00:00:00:00:01 dev veth0 nud permanent");
    env.resolve_neighbour(6, &env.route(query("10.9.0.78")).unwrap());
    assert_eq!(host.handler().resolved(6), Some(Ok(())));
    assert_eq!(env.ethernet_address(query("10.9.0.78")), Ok(([2, 0, 0, 0, 0, 1], None)));
}

fn addresses(host: &support::Recording, index: u32) {
    let new = address("10.9.0.9");
    let sees = |there: bool| {
        host.handler().find(|told| match told {
            Told::Interfaces(interfaces) => {
                let veth0 = interfaces.iter().find(|interface| interface.index == index)?;
                (veth0.addresses.contains(&new) == there).then_some(())
            }
            _ => None,
        })
    };
    while host.handler().find_within(std::time::Duration::ZERO, |_| Some(())).is_some() {}
    ip("addr add 10.9.0.9/24 dev veth0");
    assert_eq!(sees(true), Some(()));
    let to_itself = nic::Path { source: new.into(), dest: new.into(), interface: index, ..path(V4) };
    host.env().send(&to_itself, &mut batch(1, &[1024; 20]));
    let packet = host.handler().packet().unwrap();
    assert_eq!((packet.psn(), packet.interface, packet.dest), (1, index, SocketAddr::new(new, 4791)));
    ip("addr del 10.9.0.9/24 dev veth0");
    assert_eq!(sees(false), Some(()));
    ip("addr add 10.9.0.9/24 dev lo");
    // Closed: another may have it.
    let end = std::time::Instant::now() + support::TIMEOUT;
    let socket = loop {
        match UdpSocket::bind((new, 4791)) {
            Ok(socket) => break socket,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
    };
    assert!(socket.as_raw_fd() >= 0);
}
