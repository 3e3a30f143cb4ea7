//! The way out: one unconnected UDP socket for each pair of processes, runs of equal packets in one segmented send,
//! each packet sealed with the IPv4 identification the kernel will give it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nic::Path;
use node::{Guest, Input};
use socket2::{MsgHdr, SockAddr, SockRef};
use transport::TxBatch;
use transport::batch::Run;
use wire::icrc::{self, Flow};

use crate::Config;
use crate::clock::Clock;
use crate::counters::{Counters, add};
use crate::fork::Fd;
use crate::interest::{ERRORS_ONLY, Interest, Source};
use crate::sockets::{self, ROCE_PORT, Sending, endpoint};
use crate::sys::{self, ControlBuffer};

/// Most sockets that send.
const MAX_SOCKETS: usize = 256;
/// A detour that nobody has taken for so long is closed when the next one opens.
const OLD_DETOUR: Duration = Duration::from_secs(10);

/// The opcode of RC FLUSH (IBA annex A19).
const FLUSH: u8 = 0x1c;

/// All sockets that send.
#[derive(Default)]
pub(crate) struct Link {
    sockets: RwLock<Sockets>,
}

/// At most [`MAX_SOCKETS`]: comparing a few keys is faster than hashing one.
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
    detour: u32,
    quiet: bool,
}

impl From<&Path> for Key {
    fn from(path: &Path) -> Key {
        Key {
            source: path.source,
            dest: path.dest,
            interface: path.interface,
            block: (path.dest_qpn.get() >> 12) as u16,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            detour: path.detour,
            quiet: path.quiet,
        }
    }
}

/// One of them.
pub(crate) struct SendSocket {
    fd: Fd,
    token: u64,
    flow: Flow,
    dest: SockAddr,
    segmented: AtomicBool,
    used_at: AtomicU64,
    /// How FLUSH is sealed.
    for_rxe: bool,
}

/// What sending needs beside the sockets.
pub(crate) struct Sender<'a> {
    pub(crate) config: &'a Config,
    pub(crate) clock: &'a Clock,
    pub(crate) interest: &'a Interest,
    pub(crate) counters: &'a Counters,
}

impl Link {
    /// Seals and sends a batch; what can not be sent is counted.
    pub(crate) fn send(&self, path: &Path, batch: &mut TxBatch, with: &Sender<'_>) {
        // On lo the wire itself is this host: IP_MULTICAST_LOOP keeps nothing off it.
        let heard_by_nobody = path.quiet && path.dest.is_multicast() && path.source.is_loopback();
        if batch.is_empty() || heard_by_nobody {
            return;
        }
        let key = Key::from(path);
        let found = self.sockets.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let Some(socket) = found.or_else(|| self.open(key, with).ok()) else {
            add(&with.counters.packets_dropped_sending, batch.len());
            return;
        };
        socket.used_at.store(with.clock.roughly(), Ordering::Relaxed);
        let (bytes, runs) = batch.parts_mut();
        socket.send(bytes, runs, with);
    }

    /// Closes all sockets of addresses that are gone.
    pub(crate) fn retain(&self, ours: impl Fn(IpAddr) -> bool, interest: &Interest) {
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|key, socket| {
            let stays = ours(key.source);
            if !stays {
                interest.remove(socket.token, &socket.fd);
            }
            stays
        });
    }

    fn open(&self, key: Key, with: &Sender<'_>) -> io::Result<Arc<SendSocket>> {
        let Key { source, dest, interface, traffic_class, hop_limit, quiet, .. } = key;
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = sockets.get(&key) {
            return Ok(socket.clone());
        }
        let (fd, source) = sockets::sender(
            &Sending { source, dest, interface, traffic_class, hop_limit, quiet },
            with.config,
        )?;
        let dest = endpoint(dest, ROCE_PORT, interface);
        let socket = Arc::new(SendSocket {
            fd,
            token: with.interest.token(),
            flow: Flow { source, dest },
            dest: dest.into(),
            segmented: AtomicBool::new(with.config.segmentation),
            used_at: AtomicU64::new(with.clock.roughly()),
            for_rxe: key.detour.is_multiple_of(2),
        });
        with.interest.add(socket.token, &socket.fd, ERRORS_ONLY, Source::Send(socket.clone()))?;
        make_room(&mut sockets, &key, with);
        sockets.insert(key, socket.clone());
        Ok(socket)
    }
}

/// Closes old detours of the same flow, and the least recently used socket where there are too many.
fn make_room(sockets: &mut Sockets, new: &Key, with: &Sender<'_>) {
    let now = with.clock.roughly();
    let idle = |socket: &SendSocket| now.saturating_sub(socket.used_at.load(Ordering::Relaxed));
    let old: Vec<Key> = sockets
        .iter()
        .filter(|(key, socket)| {
            let same_flow = Key { detour: new.detour, ..**key } == *new;
            same_flow && Duration::from_nanos(idle(socket)) > OLD_DETOUR
        })
        .map(|(key, _)| *key)
        .collect();
    let excess = (sockets.len() - old.len() >= MAX_SOCKETS)
        .then(|| sockets.iter().max_by_key(|(_, socket)| idle(socket)).map(|(key, _)| *key))
        .flatten();
    for key in old.into_iter().chain(excess) {
        if let Some(socket) = sockets.remove(&key) {
            with.interest.remove(socket.token, &socket.fd);
        }
    }
}

impl SendSocket {
    /// Sends packets run by run.
    fn send(&self, bytes: &mut [u8], runs: &[Run], with: &Sender<'_>) {
        let mut rest = bytes;
        for run in runs {
            let (packets, after) = rest.split_at_mut(run.len);
            if self.segmented.load(Ordering::Relaxed) {
                self.send_run(packets, run.size, with);
            } else {
                packets.chunks_mut(run.size).for_each(|packet| self.send_run(packet, run.size, with));
            }
            rest = after;
        }
    }

    /// Seals packets of one size, of which the last may be shorter, and sends them with one system call.
    fn send_run(&self, packets: &mut [u8], size: usize, with: &Sender<'_>) {
        let count = packets.len().div_ceil(size);
        for (id, packet) in packets.chunks_mut(size).enumerate() {
            self.seal(id as u16, packet);
        }
        let Err(error) = self.send_segments(packets, (count > 1).then_some(size), with) else {
            add(&with.counters.packets_sent, count);
            return;
        };
        if count == 1 || !refuses_segments(&error) {
            add(&with.counters.packets_dropped_sending, count);
            return;
        }
        // The path may take single packets: a device without checksum offload, a segment longer than it allows.
        let mut sent = 0;
        for packet in packets.chunks_mut(size) {
            self.seal(0, packet);
            sent += usize::from(self.send_segments(packet, None, with).is_ok());
        }
        add(&with.counters.packets_sent, sent);
        add(&with.counters.packets_dropped_sending, count - sent);
        if sent > 0 && self.segmented.swap(false, Ordering::Relaxed) {
            add(&with.counters.segmentation_given_up, 1);
        }
    }

    /// The kernel's rdma_rxe has an ICRC of its own for FLUSH, and takes no other; a Verbena takes both. Who takes the standard's
    /// only gets it with the next try, which leaves by a detour.
    fn seal(&self, id: u16, packet: &mut [u8]) {
        if self.for_rxe && packet.first() == Some(&FLUSH) {
            icrc::seal_rxe_flush(&self.flow, id, packet);
        } else {
            icrc::seal(&self.flow, id, packet);
        }
    }

    /// One sendmsg. An ICMP error that waits makes it fail once with an errno that has nothing to do with it.
    fn send_segments(&self, bytes: &[u8], segment: Option<usize>, with: &Sender<'_>) -> io::Result<()> {
        let buffers = [IoSlice::new(bytes)];
        let control = segment.map(|size| sys::segment_control(size as u16));
        let mut message = MsgHdr::new().with_addr(&self.dest).with_buffers(&buffers);
        if let Some(control) = &control {
            message = message.with_control(control);
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

    /// Tells the guest of the ICMP errors for what was sent here (IP_RECVERR, ip(7)).
    pub(crate) fn report_errors<G: Guest>(&self, guest: &G, counters: &Counters) {
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
            let source = self.flow.source.ip();
            let sent = &bytes[..received.len];
            guest.input(Instant::now(), Input::Unreachable { dest: dest.ip(), source, errno, sent });
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

/// The errno in a control message about an ICMP error. Errors that this host itself found (a packet longer than the
/// link takes) were returned by the send already.
fn icmp_errno(level: i32, kind: i32, data: &[u8]) -> Option<i32> {
    let v4 = level == libc::IPPROTO_IP && kind == libc::IP_RECVERR;
    let v6 = level == libc::IPPROTO_IPV6 && kind == libc::IPV6_RECVERR;
    // sock_extended_err: errno (4), origin, ICMP type, code, padding, info (4), data (4).
    let from_icmp = matches!(data.get(4), Some(&(libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6)));
    sys::first_int(data).filter(|_| (v4 || v6) && from_icmp)
}
