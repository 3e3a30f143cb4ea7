//! Whether the next hop answers: the kernel's neighbour tables, and how an unprivileged process
//! makes the kernel look.
//!
//! Only the administrator may ask for ARP or neighbour discovery. But any datagram to a
//! neighbour that is not known starts it: so one byte goes to the neighbour's discard port (RFC
//! 863), with a hop limit of 1, and the kernel's notifications tell how it went.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use locks::{Mutex, MutexGuard, Rank};
use nic::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use stack::env::Route;
use sys::fork::Fd;

use crate::interfaces::{Known, family_and_bytes, ip};
use crate::netlink::{Message, Netlink, put_attribute, u16_at, u32_at};
use crate::reactor::{IN, Reactor, Source};

/// How long a caller is kept waiting; ARP and neighbour discovery give up after three seconds.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the table is looked at while a thread waits, since notifications can be lost.
const RECHECK: Duration = Duration::from_millis(250);
/// How often, and how long apart, a thread that waits itself looks: three seconds in all.
const ETHERNET_ROUNDS: u32 = 150;
const ETHERNET_PAUSE: Duration = Duration::from_millis(20);
/// Most that may wait.
const MAX_WAITING: usize = 4096;

/// Bytes of an ndmsg: family, padding (3), interface (4), state (2), flags, type.
const NDMSG: usize = 12;
/// States in which the link-layer address is known or needless.
const USABLE: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_NOARP
    | libc::NUD_PERMANENT;

/// Which threads wait for which neighbour.
pub(crate) struct Neighbours {
    state: Mutex<State>,
}

/// An answer for `Input::Resolved`: the ticket and the result.
pub(crate) type Answer = (u64, Result<(), Errno>);

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    answers: Vec<Answer>,
    /// Told of changes; opened when a thread has to wait.
    changes: Option<Netlink>,
    recheck_at: Option<Instant>,
}

struct Waiting {
    ticket: u64,
    neighbour: Neighbour,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Neighbour {
    interface: u32,
    address: IpAddr,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self { state: Mutex::new(Rank::Neighbours, State::default()) }
    }
}

impl Neighbours {
    /// Starts to find out about the next hop of `route`; the caller then wakes the engine.
    pub(crate) fn reach(
        &self,
        ticket: u64,
        route: &Route,
        known: &Known,
        requests: &Mutex<Netlink>,
        reactor: &Reactor,
    ) {
        let neighbour = Neighbour { interface: route.interface, address: route.next_hop };
        let mut state = self.lock();
        if has_none(route, known) || is_usable(requests, neighbour) {
            state.answers.push((ticket, Ok(())));
            return;
        }
        if state.waiting.len() >= MAX_WAITING {
            state.answers.push((ticket, Err(Errno::ENOBUFS)));
            return;
        }
        // First listen, then ask: the answer may be quick. Without notifications the rechecks have
        // to do.
        if state.changes.is_none() {
            state.changes = subscribe(reactor);
        }
        if let Err(error) = provoke(route) {
            state.answers.push((ticket, Err(error.into())));
            return;
        }
        let now = Instant::now();
        state.waiting.push(Waiting { ticket, neighbour, since: now });
        state.recheck_at.get_or_insert(now + RECHECK);
    }

    /// Takes the notifications that have come.
    pub(crate) fn follow(&self) {
        let state = &mut *self.lock();
        let State { waiting, answers, changes: Some(changes), .. } = state else { return };
        let result = changes.notifications(|message| {
            if let Some((neighbour, found)) = read(&message) {
                settle(waiting, answers, neighbour, found);
            }
        });
        if result.is_err() {
            state.recheck_at = Some(Instant::now());
        }
    }

    /// When [`Neighbours::recheck`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lock().recheck_at
    }

    /// Looks at the tables themselves, where it is time, and gives up on what takes too long.
    pub(crate) fn recheck(&self, now: Instant, requests: &Mutex<Netlink>) {
        let state = &mut *self.lock();
        if state.recheck_at.is_none_or(|at| at > now) {
            return;
        }
        let neighbours: Vec<Neighbour> = state.waiting.iter().map(|waiting| waiting.neighbour).collect();
        for neighbour in neighbours {
            if let Some(found) = look_up(requests, neighbour) {
                settle(&mut state.waiting, &mut state.answers, neighbour, found);
            }
        }
        let answers = &mut state.answers;
        state.waiting.retain(|waiting| {
            let patient = now.saturating_duration_since(waiting.since) < RESOLVE_TIMEOUT;
            if !patient {
                answers.push((waiting.ticket, Err(Errno::ETIMEDOUT)));
            }
            patient
        });
        state.recheck_at = (!state.waiting.is_empty()).then(|| now + RECHECK);
    }

    /// What has been found out since the last call.
    pub(crate) fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut self.lock().answers)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Whether packets of a route go to no neighbour that would have to answer first.
pub(crate) fn has_none(route: &Route, known: &Known) -> bool {
    route.local || route.dest.is_multicast() || known.has_no_neighbours(route.interface)
}

/// Whether the kernel's tables have the link-layer address of a route's next hop.
pub(crate) fn is_resolved(route: &Route, requests: &Mutex<Netlink>) -> bool {
    is_usable(requests, Neighbour { interface: route.interface, address: route.next_hop })
}

/// The Ethernet address that packets of a route are sent to: the group's, our own, or the next
/// hop's, for which the caller is kept waiting up to three seconds.
///
/// # Errors
///
/// EHOSTUNREACH where the next hop does not answer; what the system says to a packet for it.
pub(crate) fn ethernet(route: &Route, known: &Known, requests: &Mutex<Netlink>) -> Result<[u8; 6], Errno> {
    if let Some(group) = group(route.dest) {
        return Ok(group);
    }
    if route.local || known.has_no_neighbours(route.interface) {
        return known.by_index(route.interface).map(|interface| interface.mac).ok_or(Errno::ENODEV);
    }
    let neighbour = Neighbour { interface: route.interface, address: route.next_hop };
    for round in 0..ETHERNET_ROUNDS {
        if let Some(address) = link_address(requests, neighbour) {
            return Ok(address);
        }
        if round == 0 {
            provoke(route)?;
        }
        std::thread::sleep(ETHERNET_PAUSE);
    }
    Err(Errno::EHOSTUNREACH)
}

/// The Ethernet address of a multicast group (RFC 1112 §6.4, RFC 2464 §7); `None` for other
/// addresses.
fn group(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

/// The Ethernet address of a neighbour, where the kernel knows it and believes in it.
fn link_address(requests: &Mutex<Netlink>, neighbour: Neighbour) -> Option<[u8; 6]> {
    let mut found = None;
    ask(requests, neighbour, |message| {
        let usable = read(message).is_some_and(|(_, state)| state & USABLE != 0);
        let address = message.attributes(NDMSG).find(|(kind, _)| *kind == libc::NDA_LLADDR);
        found = address.filter(|_| usable).and_then(|(_, bytes)| bytes.try_into().ok());
    });
    found
}

/// Answers all that wait for `neighbour`, where `found` is an answer.
fn settle(waiting: &mut Vec<Waiting>, answers: &mut Vec<Answer>, neighbour: Neighbour, found: u16) {
    let result = match found {
        usable if usable & USABLE != 0 => Ok(()),
        failed if failed & libc::NUD_FAILED != 0 => Err(Errno::EHOSTUNREACH),
        _ => return,
    };
    waiting.retain(|waiting| {
        let other = waiting.neighbour != neighbour;
        if !other {
            answers.push((waiting.ticket, result));
        }
        other
    });
}

fn is_usable(requests: &Mutex<Netlink>, neighbour: Neighbour) -> bool {
    look_up(requests, neighbour).is_some_and(|found| found & USABLE != 0)
}

/// The state of a neighbour, where the kernel knows it.
fn look_up(requests: &Mutex<Netlink>, neighbour: Neighbour) -> Option<u16> {
    let mut found = None;
    ask(requests, neighbour, |message| found = read(message).map(|(_, state)| state));
    found
}

/// Hands what the kernel knows of a neighbour to `told`.
fn ask(requests: &Mutex<Netlink>, neighbour: Neighbour, mut told: impl FnMut(&Message<'_>)) {
    let (family, address) = family_and_bytes(&neighbour.address);
    let mut body = vec![family, 0, 0, 0];
    body.extend_from_slice(&neighbour.interface.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    put_attribute(&mut body, libc::NDA_DST, &address);
    let mut requests = requests.lock();
    // ENOENT: no such neighbour. EOPNOTSUPP and EINVAL before Linux 5.0: found out as if there were
    // none.
    let _ = requests.ask(libc::RTM_GETNEIGH, &body, |message| told(&message));
}

fn read(message: &Message<'_>) -> Option<(Neighbour, u16)> {
    let head = message.head::<NDMSG>().filter(|_| message.kind == libc::RTM_NEWNEIGH)?;
    let (_, address) = message.attributes(NDMSG).find(|(kind, _)| *kind == libc::NDA_DST)?;
    Some((Neighbour { interface: u32_at(head, 4)?, address: ip(address)? }, u16_at(head, 8)?))
}

fn subscribe(reactor: &Reactor) -> Option<Netlink> {
    let changes = Netlink::for_notifications(&[libc::RTNLGRP_NEIGH]).ok()?;
    reactor.add(reactor.token(), &changes.as_raw_fd(), IN, Source::Neighbours).ok()?;
    Some(changes)
}

/// Sends the byte.
fn provoke(route: &Route) -> std::io::Result<()> {
    const DISCARD: u16 = 9;
    let to: SocketAddr = match route.next_hop {
        IpAddr::V4(v4) => (v4, DISCARD).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, DISCARD, 0, route.interface).into(),
    };
    let socket = Fd::open(|| Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP)))?;
    let socket = SockRef::from(&socket);
    socket.set_nonblocking(true)?;
    // Best effort: the routing table leads there all the same, and farther than one hop nothing
    // would come to harm.
    let _ = socket.bind_device_by_index_v4(std::num::NonZeroU32::new(route.interface));
    let _ = if to.is_ipv4() { socket.set_ttl_v4(1) } else { socket.set_unicast_hops_v6(1) };
    match socket.send_to(&[0], &SockAddr::from(to)) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}
