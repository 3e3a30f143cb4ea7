//! The way out: one unconnected UDP socket for each pair of processes, runs of equal packets in one
//! segmented send, each packet sealed with the IPv4 identification the kernel will give it.
//!
//! Messages of connection managers leave from sockets that they share, whichever peer they are for:
//! any host can provoke one. A socket for each address, traffic class and hop limit that
//! unsolicited traffic names would be a socket for each other host.

mod room;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use locks::{Rank, RwLock};
use nic::{Errno, Path};
use socket2::{MsgHdr, SockAddr, SockRef};
use stack::{Input, InputHandler};
use sys::clock::Clock;
use sys::fork::Fd;
use sys::{ControlBuffer, HopControl};
use transport::TxBatch;
use transport::batch::Run;
use wire::Qpn;
use wire::icrc::{Flow, Icrc, Remainder};

use crate::Config;
use crate::counters::{Counters, add};
use crate::reactor::{ERRORS_ONLY, Reactor, Source};
use crate::sockets::{self, ROCE_PORT, Sending, endpoint};
use room::Closed;
pub(crate) use room::IDLE;

/// Most sockets that send.
const MAX_SOCKETS: usize = 256;
/// Most source ports of one flow. What is repeated still finds new ones: the port used longest ago
/// is given up for it.
const MAX_DETOURS: usize = 8;
/// A new port for a detour is had no earlier than so long after the one before.
const DETOURS_APART: Duration = Duration::from_millis(50);

/// The opcode of RC FLUSH (IBA annex A19).
const FLUSH: u8 = 0x1c;

/// All sockets that send.
pub(crate) struct Tx {
    sockets: RwLock<Sockets>,
    closed: Closed,
}

/// The sockets by their keys. At most [`MAX_SOCKETS`]: comparing a few keys is faster than hashing
/// one.
type Sockets = BTreeMap<Key, Arc<SendSocket>>;

/// What shares a socket, and so a source port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    source: IpAddr,
    dest: IpAddr,
    interface: u32,
    /// The upper bits of the destination queue pair: the process at the far end.
    block: u16,
    traffic_class: u8,
    hop_limit: u8,
    source_port_epoch: u32,
    no_multicast_loop: bool,
}

impl Key {
    /// The key of a path between two addresses, which are the path's.
    fn of(path: &Path, (source, dest): (IpAddr, IpAddr)) -> Self {
        if path.dest_qpn == Qpn::GSI {
            let dest = match source {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            let &Path { interface, source_port_epoch, .. } = path;
            return Self {
                source,
                dest,
                interface,
                block: 0,
                traffic_class: 0,
                hop_limit: 0,
                source_port_epoch,
                no_multicast_loop: false,
            };
        }
        Self {
            source,
            dest,
            interface: path.interface,
            block: (path.dest_qpn.get() >> 12) as u16,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            source_port_epoch: path.source_port_epoch,
            no_multicast_loop: path.no_multicast_loop,
        }
    }
}

/// A socket that sends.
pub(crate) struct SendSocket {
    fd: Fd,
    token: u64,
    source: SocketAddr,
    /// Where all its packets go; `None` for one that is shared.
    to: Option<To>,
    segmented: AtomicBool,
    opened_at: u64,
    used_at: AtomicU64,
    /// How FLUSH is sealed.
    for_rxe: bool,
}

/// A batch to be sealed ([`TxBatch::parts_to_seal`]).
type Parts<'a> = (&'a mut [u8], &'a [Run], &'a [Option<Remainder>]);

/// Where packets go.
struct To {
    flow: Flow,
    dest: SockAddr,
    /// Traffic class and hop limit, where they are not the socket's.
    hops: Option<HopControl>,
}

impl To {
    fn new(source: SocketAddr, dest: IpAddr, interface: u32, hops: Option<HopControl>) -> Self {
        let dest = endpoint(dest, ROCE_PORT, interface);
        Self { flow: Flow { source, dest }, dest: dest.into(), hops }
    }
}

/// What sending needs beside the sockets.
pub(crate) struct Sender<'a> {
    pub(crate) config: &'a Config,
    pub(crate) clock: &'a Clock,
    pub(crate) reactor: &'a Reactor,
    pub(crate) counters: &'a Counters,
}

impl Default for Tx {
    fn default() -> Self {
        Self { sockets: RwLock::new(Rank::TxSockets, Sockets::new()), closed: Closed::default() }
    }
}

impl Tx {
    /// Seals and sends a batch; what can not be sent is counted. True where a socket was opened for
    /// it.
    pub(crate) fn send(&self, path: &Path, batch: &mut TxBatch, with: &Sender<'_>) -> bool {
        // A LID has no UDP form.
        let (Some(source), Some(dest)) = (path.source.ip(), path.dest.ip()) else {
            add(&with.counters.packets_dropped_sending, batch.len());
            return false;
        };
        // On lo the wire itself is this host: IP_MULTICAST_LOOP keeps nothing off it.
        let heard_by_nobody = path.no_multicast_loop && dest.is_multicast() && source.is_loopback();
        if batch.is_empty() || heard_by_nobody {
            return false;
        }
        let key = Key::of(path, (source, dest));
        let found = self.sockets.read().get(&key).cloned();
        let is_new = found.is_none();
        let Some(socket) = found.or_else(|| self.open(key, with).ok()) else {
            add(&with.counters.packets_dropped_sending, batch.len());
            return false;
        };
        socket.used_at.store(with.clock.roughly(), Ordering::Relaxed);
        let parts = batch.parts_to_seal();
        match &socket.to {
            Some(to) => socket.send(parts, to, with),
            None => {
                let hops = sys::hop_control(source.is_ipv4(), path.traffic_class, path.hop_limit);
                let to = To::new(socket.source, dest, path.interface, Some(hops));
                socket.send(parts, &to, with);
            }
        }
        is_new
    }

    /// Whether there is a socket for this path.
    pub(crate) fn has_flow(&self, path: &Path) -> bool {
        let ends = path.source.ip().zip(path.dest.ip());
        ends.is_some_and(|ends| self.sockets.read().contains_key(&Key::of(path, ends)))
    }

    /// The port that packets of this path leave from, where there is a socket for it.
    pub(crate) fn source_port(&self, path: &Path) -> Option<u16> {
        let ends = path.source.ip().zip(path.dest.ip())?;
        self.sockets.read().get(&Key::of(path, ends)).map(|socket| socket.source.port())
    }

    /// Closes all sockets of addresses that are gone.
    pub(crate) fn retain(&self, ours: impl Fn(IpAddr) -> bool, reactor: &Reactor) {
        let mut sockets = self.sockets.write();
        sockets.retain(|key, socket| {
            let stays = ours(key.source);
            if !stays {
                reactor.remove(socket.token, &socket.fd);
            }
            stays
        });
    }

    fn open(&self, key: Key, with: &Sender<'_>) -> io::Result<Arc<SendSocket>> {
        let Key { source, dest, interface, traffic_class, hop_limit, no_multicast_loop, .. } = key;
        let mut sockets = self.sockets.write();
        if let Some(socket) = sockets.get(&key).or_else(|| in_place_of(&sockets, &key, with)) {
            return Ok(socket.clone());
        }
        let sending = Sending { source, dest, interface, traffic_class, hop_limit, no_multicast_loop };
        let (fd, source) = self
            .closed
            .while_none_is_left(&mut sockets, with.reactor, || sockets::sender(&sending, with.config))?;
        let shared = dest.is_unspecified();
        let now = with.clock.roughly();
        let socket = Arc::new(SendSocket {
            fd,
            token: with.reactor.token(),
            source,
            to: (!shared).then(|| To::new(source, dest, interface, None)),
            segmented: AtomicBool::new(with.config.segmentation && !shared),
            opened_at: now,
            used_at: AtomicU64::new(now),
            for_rxe: key.source_port_epoch.is_multiple_of(2),
        });
        with.reactor.add(socket.token, &socket.fd, ERRORS_ONLY, Source::Send(socket.clone()))?;
        self.closed.make_room(&mut sockets, &key, now, with.reactor);
        sockets.insert(key, socket.clone());
        Ok(socket)
    }
}

/// The sockets of a flow, whatever their detour.
fn of_flow<'a>(
    sockets: &'a Sockets,
    flow: &'a Key,
) -> impl Iterator<Item = (&'a Key, &'a Arc<SendSocket>)> + 'a {
    sockets.iter().filter(|(key, _)| Key { source_port_epoch: flow.source_port_epoch, ..**key } == *flow)
}

/// The socket that a detour has to do with: where a flow has many ports and had a new one just now.
fn in_place_of<'a>(sockets: &'a Sockets, key: &'a Key, with: &Sender<'_>) -> Option<&'a Arc<SendSocket>> {
    let newest = of_flow(sockets, key).map(|(_, socket)| socket.opened_at).max()?;
    let age = Duration::from_nanos(with.clock.roughly().saturating_sub(newest));
    if age >= DETOURS_APART || of_flow(sockets, key).count() < MAX_DETOURS {
        return None;
    }
    // An even detour and an odd one seal differently.
    let alike = || {
        of_flow(sockets, key).filter(|(other, _)| other.source_port_epoch % 2 == key.source_port_epoch % 2)
    };
    let turn = (key.source_port_epoch / 2) as usize % alike().count().max(1);
    alike().nth(turn).or_else(|| of_flow(sockets, key).next()).map(|(_, socket)| socket)
}

impl SendSocket {
    /// Sends packets run by run.
    fn send(&self, (bytes, runs, known): Parts<'_>, to: &To, with: &Sender<'_>) {
        let (mut rest, mut known) = (bytes, known.iter());
        for run in runs {
            let (packets, after) = rest.split_at_mut(run.len);
            let known = known.by_ref().take(run.count).copied();
            if self.segmented.load(Ordering::Relaxed) {
                self.send_run(packets, run.size, known, to, with);
            } else {
                let packets = packets.chunks_mut(run.size).zip(known);
                packets.for_each(|(packet, known)| self.send_run(packet, run.size, [known], to, with));
            }
            rest = after;
        }
    }

    /// Seals packets of one size, of which the last may be shorter, and sends them with one system
    /// call.
    fn send_run(
        &self,
        packets: &mut [u8],
        size: usize,
        known: impl IntoIterator<Item = Option<Remainder>>,
        to: &To,
        with: &Sender<'_>,
    ) {
        let count = packets.len().div_ceil(size);
        let mut icrc = Icrc::of(to.flow);
        for (id, (packet, known)) in packets.chunks_mut(size).zip(known).enumerate() {
            match known {
                Some(payload) => icrc.seal_with(id as u16, packet, payload),
                None => self.seal(&mut icrc, id as u16, packet),
            }
        }
        let Err(error) = self.send_segments(packets, (count > 1).then_some(size), to, with) else {
            add(&with.counters.packets_sent, count);
            return;
        };
        if count == 1 || !refuses_segments(&error) {
            add(&with.counters.packets_dropped_sending, count);
            return;
        }
        // The path may take single packets: a device without checksum offload, a segment longer
        // than it allows.
        let mut sent = 0;
        for packet in packets.chunks_mut(size) {
            self.seal(&mut icrc, 0, packet);
            sent += usize::from(self.send_segments(packet, None, to, with).is_ok());
        }
        add(&with.counters.packets_sent, sent);
        add(&with.counters.packets_dropped_sending, count - sent);
        if sent > 0 && self.segmented.swap(false, Ordering::Relaxed) {
            add(&with.counters.segmentation_given_up, 1);
        }
    }

    /// The kernel's rdma_rxe has an ICRC of its own for FLUSH, and takes no other; a Verbena takes
    /// both. A peer that takes the standard's only gets it with the next try, which leaves by a
    /// detour.
    fn seal(&self, icrc: &mut Icrc, id: u16, packet: &mut [u8]) {
        if self.for_rxe && packet.first() == Some(&FLUSH) {
            icrc.seal_rxe_flush(id, packet);
        } else {
            icrc.seal(id, packet);
        }
    }

    /// One sendmsg. An ICMP error that waits makes it fail once with an errno that has nothing to
    /// do with it.
    fn send_segments(
        &self,
        bytes: &[u8],
        segment: Option<usize>,
        to: &To,
        with: &Sender<'_>,
    ) -> io::Result<()> {
        let buffers = [IoSlice::new(bytes)];
        let control = segment.map(|size| sys::segment_control(size as u16));
        let mut message = MsgHdr::new().with_addr(&to.dest).with_buffers(&buffers);
        if let Some(control) = &control {
            message = message.with_control(control);
        } else if let Some(hops) = &to.hops {
            message = message.with_control(hops);
        }
        let mut attempts = 0;
        loop {
            add(&with.counters.sends, 1);
            match SockRef::from(&self.fd).sendmsg(&message, libc::MSG_DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(error) if is_full(&error) || attempts == 2 => return Err(error),
                Err(_) => attempts += 1,
            }
        }
    }

    /// Tells the input handler of the ICMP errors for what was sent here (IP_RECVERR, ip(7)).
    pub(crate) fn report_errors<G: InputHandler>(&self, handler: &G, counters: &Counters) {
        let mut bytes = [0; 2048];
        let mut control = ControlBuffer::new();
        // As many as may wait; the rest is told by the next event.
        for _ in 0..64 {
            let Ok(received) = sys::receive(&self.fd, &mut bytes, &mut control, libc::MSG_ERRQUEUE) else {
                return;
            };
            let Some(dest) = received.address else { continue };
            let errno =
                received.control.into_iter().find_map(|(level, kind, data)| icmp_errno(level, kind, data));
            let Some(errno) = errno else { continue };
            add(&counters.icmp_errors, 1);
            let source = self.source.ip();
            let sent = &bytes[..received.len];
            handler.input(
                Instant::now(),
                Input::Unreachable { dest: dest.ip().into(), source: source.into(), errno, sent },
            );
        }
    }
}

impl AsRawFd for SendSocket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

/// What the kernel says where a path has no segmented sends (net/ipv4/udp.c, udp_send_skb).
fn refuses_segments(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// The errno in a control message about an ICMP error. Errors that this host itself found (a packet
/// longer than the link takes) were returned by the send already.
fn icmp_errno(level: i32, kind: i32, data: &[u8]) -> Option<Errno> {
    let v4 = level == libc::IPPROTO_IP && kind == libc::IP_RECVERR;
    let v6 = level == libc::IPPROTO_IPV6 && kind == libc::IPV6_RECVERR;
    // sock_extended_err: errno (4), origin, ICMP type, code, padding, info (4), data (4).
    let from_icmp = matches!(data.get(4), Some(&(libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6)));
    sys::first_int(data).filter(|_| (v4 || v6) && from_icmp).map(Errno)
}
