//! One socket that receives: its receive token, its lease, and how what it brings reaches the
//! input handler.
//!
//! The thread that reads the socket holds the token until what was read is dispatched. Two threads
//! that drain one socket would reorder packets, and go-back-N turns that into a storm of NAKs.
//!
//! Data comes first: messages of connection managers wait in [`Management`] until the socket is
//! read empty, and are served a few at a time with a look at the socket in between. So a flood of
//! them takes what time data leaves.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use local::lease::Lease;
use local::{Drained, Rings};
use locks::{Mutex, Rank};
use stack::env::{AckDelay, Datagram};
use stack::{Input, InputHandler};
use sys::clock::Clock;
use sys::fork::Fd;
use sys::{ControlBuffer, Room};

use crate::alarm::Alarm;
use crate::counters::{Counters, add};
use crate::env::LinuxEnv;
use crate::leased::{Armed, Leased};
use crate::management::Management;
use crate::reactor::{IN, Reactor};
use crate::to_handler::{Origin, ToHandler};

/// After so many reads, of up to 64 packets each, ACKs leave even if there is more to read: senders
/// wait for them.
const READS_PER_ACK: usize = 4;
/// What is read at once and is longer than any single packet of ours: there may be more where it
/// came from.
pub(crate) const BULK: usize = 8_192;
/// What is read at once and is so many packets: the sender may well have sent more, and one ACK
/// answers for all.
const RUN: usize = 8;
/// Messages of connection managers that are served between two looks at the socket.
const SLICE: usize = 4;
/// A thread of the program that finds data at each of so many polls in a row serves one of them all
/// the same.
const POLLS_PER_MESSAGE: u32 = 32;

/// A socket on the RoCEv2 port of one of our addresses.
pub(crate) struct RxSocket {
    fd: Fd,
    /// The name of the socket with the engine.
    pub(crate) token: u64,
    /// Our address.
    pub(crate) dest: SocketAddr,
    /// The interface that bears it.
    pub(crate) interface: u32,
    /// The one flow it is connected to, if it is.
    pub(crate) peer: Option<SocketAddr>,
    receiver: Mutex<Receiver>,
    /// Whether polling threads serve it, the engine, or both.
    pub(crate) lease: Lease,
    /// When the socket last brought something; before that, when it was opened.
    delivered_at: AtomicU64,
    /// Messages of connection managers were left waiting.
    backlog: AtomicBool,
    armed: Armed,
}

/// What the holder of the token works with.
struct Receiver {
    room: Room,
    /// Datagrams dropped so far, as the socket told last (SO_RXQ_OVFL).
    dropped: u32,
    management: Management,
    /// Polls that found data while messages waited.
    passed_over: u32,
}

/// Where packets go.
pub(crate) struct Delivery<'a, G> {
    pub(crate) handler: &'a G,
    pub(crate) clock: &'a Clock,
    pub(crate) counters: &'a Counters,
    pub(crate) rings: &'a Rings<Origin>,
    /// Wakes the engine.
    pub(crate) alarm: &'a Alarm,
    /// Which interface bears a LID.
    pub(crate) env: &'a LinuxEnv,
}

impl<'a, G: InputHandler> Delivery<'a, G> {
    /// Where what comes by rings goes.
    #[inline(always)]
    pub(crate) fn of_rings(&self) -> local::Delivery<'a, ToHandler<'a, G>> {
        let to = ToHandler { handler: self.handler, env: self.env };
        self.rings.delivery(to, &self.counters.local)
    }
}

/// What one read brought.
struct Brought {
    bytes: usize,
    packets: usize,
    /// The read brought not only messages of connection managers.
    data: bool,
}

/// How far reading a socket has come.
enum Read {
    /// Nothing is left in the socket.
    All,
    /// There may be more in the socket.
    Enough,
}

impl RxSocket {
    pub(crate) fn new(
        fd: Fd,
        token: u64,
        dest: SocketAddr,
        interface: u32,
        peer: Option<SocketAddr>,
        opened_at: u64,
    ) -> Self {
        Self {
            fd,
            token,
            dest,
            interface,
            peer,
            receiver: Mutex::new(
                Rank::ReceiveToken,
                Receiver {
                    // The longest UDP datagram, and so the longest that segments are put together
                    // to.
                    room: Room::new(1 << 16),
                    dropped: 0,
                    management: Management::new(peer.is_some()),
                    passed_over: 0,
                },
            ),
            lease: Lease::default(),
            delivered_at: AtomicU64::new(opened_at),
            backlog: AtomicBool::new(false),
            armed: Armed::default(),
        }
    }

    pub(crate) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Reads at most `limit` times and dispatches. A thread of the program that polls (`polled`:
    /// since just now) stops after anything but bulk and runs of packets. More is likely after
    /// those only, and the program comes back at once.
    pub(crate) fn drain<G: InputHandler>(
        &self,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
    ) -> Drained {
        match self.receiver.try_lock() {
            Some(mut receiver) => self.drain_with(&mut receiver, limit, polled, to),
            None => Drained::Busy,
        }
    }

    /// Whether no thread dispatches what it read here, and nothing that was read waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.receiver.try_lock().is_some_and(|receiver| receiver.management.is_empty()) && !self.has_backlog()
    }

    /// For the engine, holding no lock: waits until it has the token, then reads at most `limit`
    /// times and dispatches. Where it runs on the processor of the very thread that holds it,
    /// trying again would only keep that thread from going on.
    pub(crate) fn drain_in_turn<G: InputHandler>(&self, limit: usize, to: &Delivery<'_, G>) -> Drained {
        let mut receiver = self.receiver.lock();
        self.drain_with(&mut receiver, limit, None, to)
    }

    #[inline]
    fn drain_with<G: InputHandler>(
        &self,
        receiver: &mut Receiver,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
    ) -> Drained {
        let mut drained = Drained::Empty;
        let read = self.read_up_to(receiver, limit, polled, to, &mut drained);
        if drained != Drained::Empty {
            to.handler.release(false);
        }
        if !receiver.management.is_empty() || self.has_backlog() {
            self.manage(receiver, read, limit, polled, to, &mut drained);
        }
        drained
    }

    /// Reads at most `limit` times and dispatches the data.
    #[inline]
    fn read_up_to<G: InputHandler>(
        &self,
        receiver: &mut Receiver,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
        drained: &mut Drained,
    ) -> Read {
        let (is_engine, polled_at) = (polled.is_none(), self.lease.polled_at());
        for n in 1..=limit {
            // A thread of the program has come to poll: the rest is its own.
            if is_engine && n > 1 && self.lease.polled_at() != polled_at && !self.lease.is_shared() {
                return Read::Enough;
            }
            match self.read(receiver, polled, to) {
                Ok(Brought { bytes, packets, data }) => {
                    let before = *drained == Drained::Some { bulk: true };
                    *drained = Drained::Some { bulk: before || bytes >= BULK };
                    if n.is_multiple_of(READS_PER_ACK) {
                        to.handler.release(false);
                    }
                    if polled.is_some() && bytes < BULK && packets < RUN && data {
                        return Read::Enough;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Read::All,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An ICMP error that was forged (nothing is sent from here): reading it
                // took it away.
                Err(_) => add(&to.counters.receive_errors, 1),
            }
        }
        Read::Enough
    }

    /// Serves messages of connection managers: up to `limit` while the socket brings nothing else,
    /// a few where it does. What is left is the engine's.
    #[cold]
    fn manage<G: InputHandler>(
        &self,
        receiver: &mut Receiver,
        mut read: Read,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
        drained: &mut Drained,
    ) {
        let mut left = limit;
        while left > 0 {
            let slice = match (&read, polled) {
                (_, None) | (Read::All, Some(_)) => SLICE,
                (Read::Enough, Some(_)) => {
                    receiver.passed_over = receiver.passed_over.wrapping_add(1);
                    usize::from(receiver.passed_over.is_multiple_of(POLLS_PER_MESSAGE))
                }
            };
            let served = self.serve(receiver, slice.min(left), to);
            if served > 0 && *drained == Drained::Empty {
                *drained = Drained::Some { bulk: false };
            }
            left -= served;
            if served < SLICE || matches!(read, Read::Enough) {
                break;
            }
            read = self.read_up_to(receiver, SLICE, polled, to, drained);
            to.handler.release(false);
        }
        let backlog = !receiver.management.is_empty();
        if !self.backlog.swap(backlog, Ordering::AcqRel) && backlog {
            to.alarm.set(0);
        }
    }

    /// Hands at most `most` messages of connection managers to the input handler; how many there
    /// were.
    fn serve<G: InputHandler>(&self, receiver: &mut Receiver, most: usize, to: &Delivery<'_, G>) -> usize {
        if most > 0 && !receiver.management.is_empty() {
            // What was sent by a ring before such a message was sent: an ACK before a DREQ.
            to.rings.drain_all(&to.of_rings());
        }
        let messages = std::iter::from_fn(|| receiver.management.pop()).take(most);
        messages
            .map(|message| {
                let datagram = self.datagram(message.source, &message.bytes, AckDelay::No);
                to.handler.input(Instant::now(), Input::Datagram(datagram));
            })
            .count()
    }

    fn datagram<'a>(&self, source: SocketAddr, bytes: &'a [u8], ack_delay: AckDelay) -> Datagram<'a> {
        let (source, dest, interface) = (source.into(), self.dest.into(), self.interface);
        Datagram { source, dest, interface, forwarded: false, ack_delay, bytes }
    }

    /// One recvmsg and its dispatch.
    #[inline]
    fn read<G: InputHandler>(
        &self,
        receiver: &mut Receiver,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
    ) -> io::Result<Brought> {
        let mut control = ControlBuffer::new();
        let received = receiver.room.receive(&self.fd, &mut control, 0)?;
        let now = polled.unwrap_or_else(Instant::now);
        self.delivered_at.store(to.clock.nanos(now), Ordering::Relaxed);
        let mut size = received.len;
        for (level, kind, data) in received.control {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    size = sys::first_int(data).and_then(|size| usize::try_from(size).ok()).unwrap_or(size);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    let dropped = sys::first_int(data).unwrap_or(0) as u32;
                    add(&to.counters.overflow_drops, dropped.wrapping_sub(receiver.dropped) as usize);
                    receiver.dropped = dropped;
                }
                _ => {}
            }
        }
        let Some(source) = received.address.filter(|_| !received.truncated && size > 0) else {
            add(&to.counters.receive_errors, 1);
            return Ok(Brought { bytes: 0, packets: 0, data: true });
        };
        let packets = receiver.room.chunks(size);
        let count = packets.len();
        add(&to.counters.receives, 1);
        add(&to.counters.packets_received, count);
        let ack_delay = if polled.is_some() { AckDelay::ForProgram } else { AckDelay::Briefly };
        let mut data = false;
        // Where the data begins that is not dispatched yet, and where the packet in hand does.
        let (mut begin, mut at) = (0, 0);
        let mut dispatch = |bytes: &[u8]| {
            if !bytes.is_empty() {
                data = true;
                let run = self.datagram(source, bytes, ack_delay);
                to.handler.input(now, Input::Datagrams { run, size });
            }
        };
        for bytes in packets {
            let end = at + bytes.len();
            if Management::takes(bytes) {
                dispatch(&receiver.room[begin..at]);
                begin = end;
                if !receiver.management.push(source, bytes) {
                    add(&to.counters.management_drops, 1);
                }
            }
            at = end;
        }
        dispatch(&receiver.room[begin..at]);
        Ok(Brought { bytes: received.len, packets: count, data })
    }

    /// Whether messages of connection managers were left waiting by the thread that read the socket
    /// last.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Acquire)
    }

    /// When the socket last brought something, in nanoseconds of the clock.
    pub(crate) fn delivered_at(&self) -> u64 {
        self.delivered_at.load(Ordering::Relaxed)
    }
}

impl Leased for RxSocket {
    fn token(&self) -> u64 {
        self.token
    }
    fn lease(&self) -> &Lease {
        &self.lease
    }
    fn arm(&self, reactor: &Reactor) {
        self.armed.set(true, || reactor.resume(self.token, self, IN));
    }
    fn disarm(&self, reactor: &Reactor) {
        self.armed.set(false, || reactor.pause(self));
    }
}

impl AsRawFd for RxSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_two_attempts_has_packets_where_one_had_and_bulk_likewise() {
        let (some, bulk) = (Drained::Some { bulk: false }, Drained::Some { bulk: true });
        assert_eq!(Drained::Empty.plus(some), some);
        assert_eq!(some.plus(Drained::Busy), some);
        assert_eq!((some.plus(bulk), bulk.plus(some)), (bulk, bulk));
        assert_eq!(Drained::Empty.plus(Drained::Busy), Drained::Empty, "as if nobody had tried");
    }
}
