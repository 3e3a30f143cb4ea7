//! The ring by which packets come from one process of this host.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use locks::{Mutex, MutexGuard, Rank};
use node::world::{Datagram, Hold};
use node::{Guest, Input};
use ring::{Broken, Reader, memory_len};

use crate::counters::add;
use crate::fork::Fd;
use crate::name_messages;
use crate::rings::memory::SharedMemory;
use crate::rings::{LONGEST_RECORD, RING_BYTES, SIZE_BYTES};
use crate::rx_socket::{Delivery, Drained};

/// After so many records ACKs leave even if there is more to read: senders wait for them.
const RECORDS_PER_ACK: usize = 4;
/// A record longer than any single packet of ours: there may be more where it came from.
const BULK: usize = 8_192;

/// See the module.
pub(crate) struct RxRing {
    /// The connection by which it was offered.
    pub(crate) token: u64,
    receiver: Mutex<Receiver>,
    /// What came by it was no record, or no packet.
    broken: AtomicBool,
}

/// What the holder of the token works with.
struct Receiver {
    reader: Reader<SharedMemory>,
    /// A record, copied out: the writer may change its memory at any time.
    bytes: Box<[u8]>,
}

impl RxRing {
    /// The ring that another process offers.
    ///
    /// # Errors
    ///
    /// EINVAL for memory that is none of [`SharedMemory`]'s; those of mmap(2).
    pub(crate) fn open(fd: &Fd, token: u64) -> io::Result<RxRing> {
        let memory = SharedMemory::open(fd, memory_len(RING_BYTES))?;
        let reader = Reader::new(memory).ok_or(nic::Errno::EINVAL)?;
        let receiver = Receiver { reader, bytes: vec![0; LONGEST_RECORD].into_boxed_slice() };
        Ok(RxRing { token, receiver: Mutex::new(Rank::RingToken, receiver), broken: AtomicBool::new(false) })
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Dispatches at most `limit` records. A thread of the program that polls (`polled`: since just now) stops behind
    /// anything but bulk.
    #[inline]
    pub(crate) fn drain<G: Guest>(
        &self,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
    ) -> Drained {
        match self.receiver.try_lock() {
            Some(receiver) => self.drain_with(receiver, limit, polled, to),
            None => Drained::Busy,
        }
    }

    /// The same for a thread that waits until nobody else dispatches what came by the ring.
    pub(crate) fn drain_in_turn<G: Guest>(&self, limit: usize, to: &Delivery<'_, G>) -> Drained {
        self.drain_with(self.receiver.lock(), limit, None, to)
    }

    #[inline]
    fn drain_with<G: Guest>(
        &self,
        mut receiver: MutexGuard<'_, Receiver>,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, G>,
    ) -> Drained {
        let receiver = &mut *receiver;
        if receiver.reader.is_empty() || self.is_broken() {
            return Drained::Empty;
        }
        let now = polled.unwrap_or_else(Instant::now);
        let hold = if polled.is_some() { Hold::ForProgram } else { Hold::Briefly };
        let mut drained = Drained::Empty;
        for n in 1..=limit {
            match dispatch(receiver, now, hold, to) {
                Ok(0) => break,
                Ok(bytes) => {
                    let bulk = drained == Drained::Some { bulk: true } || bytes >= BULK;
                    drained = Drained::Some { bulk };
                    if n.is_multiple_of(RECORDS_PER_ACK) {
                        to.guest.release(false);
                    }
                    if polled.is_some() && bytes < BULK {
                        break;
                    }
                }
                Err(Broken) => {
                    add(&to.counters.ring_errors, 1);
                    self.broken.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        if drained != Drained::Empty {
            to.guest.release(false);
        }
        drained
    }

    /// Has whoever writes wake this process's engine; false where there is something to read. `wait`: for a thread that reads; else that is
    /// false, too.
    pub(crate) fn sleep(&self, wait: bool) -> bool {
        let receiver = if wait { Some(self.receiver.lock()) } else { self.receiver.try_lock() };
        receiver.is_some_and(|mut receiver| self.is_broken() || receiver.reader.sleep())
    }
}

/// Takes out one record and dispatches its packets; how many bytes it has, 0 where there is none.
#[inline]
fn dispatch<G: Guest>(
    receiver: &mut Receiver,
    now: Instant,
    hold: Hold,
    to: &Delivery<'_, G>,
) -> Result<usize, Broken> {
    let Some(len) = receiver.reader.pop(&mut receiver.bytes)? else { return Ok(0) };
    let (size, message) = receiver.bytes[..len].split_first_chunk::<SIZE_BYTES>().ok_or(Broken)?;
    let run = name_messages::read(message).ok_or(Broken)?;
    let size = u32::from_le_bytes(*size) as usize;
    if run.bytes.is_empty() || size == 0 {
        return Err(Broken);
    }
    add(&to.counters.ring_packets_received, run.bytes.len().div_ceil(size));
    to.guest.input(now, Input::Unsealed { run: Datagram { forwarded: false, hold, ..run }, size });
    Ok(len)
}
