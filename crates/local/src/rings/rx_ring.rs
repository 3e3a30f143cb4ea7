//! The ring by which packets come from one process of this host.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use locks::{Mutex, MutexGuard, Rank};
use nic::DeferredCounter;
use sys::fork::Fd;
use transport::likely::unlikely;
use transport::rc::AckDelay;

use crate::counters::{Counters, add};
use crate::env::{Connection, Delivery, Drained, Env, PacketHandler};
use crate::memory::{Part, SharedMemory, shared};
use crate::peer_memory::{After, Cleared, ExportTable, HAZARD_BYTES, Importer, Proof, Tables};
use crate::record::{self, MAX_RECORD, RING_BYTES, Record};
use crate::ring::{Broken, Found, Reader, Word, memory_len};
use crate::rings::brought_by::brought_by;
use crate::rings::driver_slot::DriverSlot;
use crate::rings::ledger::{Told, Traffic};

/// After so many records ACKs leave even if there is more to read: senders wait for them.
const RECORDS_PER_ACK: usize = 4;
/// A record longer than any single packet of ours: there may be more where it came from.
const BULK: usize = 8_192;
/// Room for a record, at first: longer ones come where much goes by packets.
const FEW: usize = 4_096;

/// The end of a ring that reads: packets that another process of this host writes.
pub(crate) struct RxRing<O> {
    /// The connection by which it was offered.
    connection: Arc<dyn Connection>,
    /// The process that offered the ring, which may reach memory of ours.
    importer: Importer,
    /// The inode of its memory, and the word that came with it.
    inode: u64,
    nonce: u64,
    /// [`Connection::token`].
    token: u64,
    receiver: Mutex<Receiver<O>>,
    /// The reader's memory, and which word it watches: a thread that polls looks there without the
    /// token.
    memory: Part,
    watched: AtomicUsize,
    /// The last look found nothing to read: a hint.
    was_empty: AtomicBool,
    /// What came by it was no record, or no packet.
    broken: AtomicBool,
    /// The writer knows that the ring is of no use.
    told: AtomicBool,
    /// Short messages; the thread that has the token counts.
    messages: DeferredCounter,
    /// Where the writer says what has passed here, and what of that was heard.
    ledger: Part,
    told_traffic: Told,
}

/// What the holder of the token works with.
struct Receiver<O> {
    reader: Reader<Part>,
    /// A record, copied out: the writer may change its memory at any time.
    /// As long as the longest record that came, and [`FEW`] at least.
    bytes: Vec<u8>,
    /// Where the packets of the last record came from and went to.
    origin: Option<O>,
}

impl<O: Send> RxRing<O> {
    /// The ring that another process offers.
    ///
    /// # Errors
    ///
    /// EINVAL for memory that is none of [`SharedMemory`]'s; those of mmap(2).
    pub(crate) fn open(fd: &Fd, nonce: u64, connection: Arc<dyn Connection>) -> io::Result<Self> {
        let memory = SharedMemory::open(fd, memory_len(RING_BYTES) + HAZARD_BYTES)?;
        let (memory, hazards) = memory.split(memory_len(RING_BYTES)).ok_or(nic::Errno::EINVAL)?;
        if hazards.len() * size_of::<Word>() != HAZARD_BYTES {
            return Err(nic::Errno::EINVAL.into());
        }
        let reader = Reader::new(memory.clone()).ok_or(nic::Errno::EINVAL)?;
        let watched = AtomicUsize::new(reader.watches());
        let bytes = vec![0; FEW];
        let receiver = Receiver { reader, bytes, origin: None };
        let importer = Importer::new(hazards.clone(), connection.fd());
        let receiver = Mutex::new(Rank::RingToken, receiver);
        Ok(Self {
            token: connection.token(),
            connection,
            importer,
            inode: sys::inode(fd)?,
            nonce,
            receiver,
            memory,
            watched,
            was_empty: AtomicBool::new(true),
            broken: AtomicBool::new(false),
            told: AtomicBool::new(false),
            messages: DeferredCounter::default(),
            ledger: hazards,
            told_traffic: Told::default(),
        })
    }

    /// The connection by which it was offered.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// The connection by which it was offered.
    pub(crate) fn connection(&self) -> &Arc<dyn Connection> {
        &self.connection
    }

    /// Whether the process that offered it may be exported what it has named.
    pub(crate) fn may_export(&self, exports: &ExportTable) -> bool {
        !self.importer.is_banned() && !exports.is_banned(self.importer.pid())
    }

    /// Lets the process that offered it reach what stands in these tables.
    pub(crate) fn export(&self, tables: &Tables) {
        let proof = Proof { nonce: self.nonce, tables: tables.inode, ring: self.inode };
        if let Ok(Some(known)) = self.importer.renew(&proof) {
            self.connection.export(&tables.fd, known);
        }
    }

    /// Whether the process that offered the ring says that it uses what was taken back.
    pub(crate) fn uses(&self, cleared: Cleared) -> bool {
        self.importer.uses(cleared)
    }

    /// Waits until the process that offered the ring does not use what was taken back. `began`:
    /// when we began to wait for any process.
    pub(crate) fn wait_for(
        &self,
        cleared: Cleared,
        began: &mut Option<Instant>,
        exports: &ExportTable,
        env: &impl Env,
    ) {
        match self.importer.wait(cleared, began, || self.connection.is_gone()) {
            After::Nothing => {}
            After::Export => {
                if let Some(tables) = exports.tables_of(self.token()).filter(|_| self.may_export(exports)) {
                    self.export(&tables);
                }
            }
            After::Banned => {
                add(&env.counters().peer_memory_banned, 1);
                exports.ban(self.importer.pid());
            }
        }
    }

    /// Whether nothing comes by the ring any more, of which its writer has not been told. From now
    /// on it has, and reaches nothing.
    pub(crate) fn must_tell(&self) -> bool {
        let must = self.is_broken() && !self.told.swap(true, Ordering::Relaxed);
        if must {
            self.importer.ban();
        }
        must
    }

    /// Whether there was nothing to read just now, as far as one tells without the token.
    #[inline]
    pub(crate) fn seems_empty(&self) -> bool {
        let is_empty = crate::ring::seems_empty(&self.memory, self.watched.load(Ordering::Relaxed));
        // Written where it says something else only: many threads may look at once.
        if is_empty && !self.was_empty.load(Ordering::Relaxed) {
            self.was_empty.store(true, Ordering::Relaxed);
        }
        is_empty
    }

    /// Where the writer says what has passed here.
    pub(crate) fn ledger(&self) -> &[Word] {
        &self.ledger
    }

    /// What the writer has said more of what has passed here ([`Told::take`]).
    pub(crate) fn take_traffic(&self, each: impl FnMut(u32, Traffic)) {
        self.told_traffic.take(&self.ledger, each);
    }

    /// Brings what it has counted to the counters.
    pub(crate) fn fold_counters(&self, counters: &Counters) {
        self.messages.fold_into(&counters.ring_messages_received);
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Dispatches at most `limit` records. A thread of the program that polls (`polled`: since just
    /// now) stops after anything but bulk and short messages.
    #[inline(always)]
    pub(crate) fn drain<H: PacketHandler<Origin = O>>(
        &self,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, H>,
    ) -> Drained {
        match self.receiver.try_lock() {
            Some(receiver) => self.drain_with(receiver, limit, polled, to),
            None => Drained::Busy,
        }
    }

    /// Like [`RxRing::drain`], for a thread that does not poll.
    #[inline(never)]
    pub(crate) fn drain_unpolled<H: PacketHandler<Origin = O>>(
        &self,
        limit: usize,
        to: &Delivery<'_, H>,
    ) -> Drained {
        self.drain(limit, None, to)
    }

    /// Like [`RxRing::drain`], for a thread that waits until no other one dispatches what came by
    /// the ring.
    #[inline(never)]
    pub(crate) fn drain_in_turn<H: PacketHandler<Origin = O>>(
        &self,
        limit: usize,
        to: &Delivery<'_, H>,
    ) -> Drained {
        self.drain_with(self.receiver.lock(), limit, None, to)
    }

    #[inline(always)]
    fn drain_with<H: PacketHandler<Origin = O>>(
        &self,
        mut receiver: MutexGuard<'_, Receiver<O>>,
        limit: usize,
        polled: Option<Instant>,
        to: &Delivery<'_, H>,
    ) -> Drained {
        let receiver = &mut *receiver;
        if unlikely(receiver.reader.is_empty() || self.is_broken()) {
            self.was_empty.store(true, Ordering::Relaxed);
            return Drained::Empty;
        }
        let _brought = brought_by(self.token());
        // A message that was waited for comes alone, as far as one knows. To look for another one
        // after it would be to wait for a line that its writer has just cleared. The program would
        // have to wait for the message meanwhile.
        let comes_alone = polled.is_some() && self.was_empty.load(Ordering::Relaxed);
        self.was_empty.store(false, Ordering::Relaxed);
        let limit = if comes_alone { 1 } else { limit };
        let now = polled.unwrap_or_else(Instant::now);
        let ack_delay = if polled.is_some() { AckDelay::ForProgram } else { AckDelay::Briefly };
        let (mut any, mut bulk) = (false, false);
        for n in 0..limit {
            match dispatch(receiver, &self.messages, now, ack_delay, to) {
                Ok(None) => break,
                Ok(Some(Taken { bytes, is_short })) => {
                    (any, bulk) = (true, bulk || bytes >= BULK);
                    if (n + 1).is_multiple_of(RECORDS_PER_ACK) {
                        to.all_is_read();
                    }
                    if polled.is_some() && bytes < BULK && !is_short {
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
        // The writer may have left the rest of the ring out, and no more.
        self.watched.store(receiver.reader.watches(), Ordering::Relaxed);
        if !any {
            return Drained::Empty;
        }
        if polled.is_none() {
            // Its reader may not come by again before there is more: the writer is told what was
            // read.
            receiver.reader.is_empty();
        }
        to.all_is_read();
        Drained::Some { bulk }
    }

    /// A thread of ours looks from now on until [`RxRing::sleep`]: the writer wakes no thread, as
    /// far as it sees that in time.
    pub(crate) fn stay_awake(&self) {
        self.receiver.lock().reader.stay_awake();
    }

    /// Has the writer wake this process's engine, or the thread in the driver slot; false where
    /// there is something to read. `wait`: for a thread that reads; else that is false, too.
    pub(crate) fn sleep(&self, wait: bool, driver_slot: &DriverSlot) -> bool {
        let receiver = if wait { Some(self.receiver.lock()) } else { self.receiver.try_lock() };
        // Which one it is is asked with the token held. A thread that takes the slot or stands up
        // says so first, and then comes here, too.
        receiver
            .is_some_and(|mut receiver| self.is_broken() || receiver.reader.sleep(driver_slot.wake_target()))
    }
}

/// A record that was taken out.
struct Taken {
    /// How many bytes the record has, or stands for.
    bytes: usize,
    /// The record is a short message.
    is_short: bool,
}

/// Takes out one record, where there is one, and dispatches its packets.
#[inline(always)]
fn dispatch<H: PacketHandler>(
    receiver: &mut Receiver<H::Origin>,
    messages: &DeferredCounter,
    now: Instant,
    ack_delay: AckDelay,
    to: &Delivery<'_, H>,
) -> Result<Option<Taken>, Broken> {
    let Some(found) = receiver.reader.peek()? else { return Ok(None) };
    if record::is_fragment(receiver.reader.words(&found)[0].load(Ordering::Relaxed)) {
        return dispatch_fragment(receiver, found, now, ack_delay, to).map(Some);
    }
    let len = found.len();
    if unlikely(len > receiver.bytes.len()) {
        grow(&mut receiver.bytes, len)?;
    }
    receiver.reader.copy_out(&found, receiver.bytes.get_mut(..len).ok_or(Broken)?);
    receiver.reader.leave(found);
    if let Some((short, bytes)) = record::read_short(&receiver.bytes[..len]) {
        let origin = receiver.origin.as_mut().ok_or(Broken)?;
        messages.add(1);
        to.handler.short(now, origin, ack_delay, &short, bytes);
        return Ok(Some(Taken { bytes: len, is_short: true }));
    }
    let record = record::read_record(&receiver.bytes[..len]);
    let Some(Record::Packets { ends, bytes, size }) = record else { return Err(Broken) };
    if let Some(ends) = ends {
        to.handler.come_from(&ends, &mut receiver.origin);
    }
    let origin = receiver.origin.as_ref().ok_or(Broken)?;
    add(&to.counters.ring_packets_received, bytes.len().div_ceil(size));
    to.handler.packets(now, origin, ack_delay, bytes, size);
    Ok(Some(Taken { bytes: len, is_short: false }))
}

#[cold]
fn grow(bytes: &mut Vec<u8>, len: usize) -> Result<(), Broken> {
    let within = len <= MAX_RECORD;
    within.then(|| bytes.resize(len.next_power_of_two().min(MAX_RECORD), 0)).ok_or(Broken)
}

/// Dispatches several packets as one fragment, whose bytes stay in the ring until they are where
/// they belong: no copy of ours is in between.
fn dispatch_fragment<H: PacketHandler>(
    receiver: &mut Receiver<H::Origin>,
    found: Found,
    now: Instant,
    ack_delay: AckDelay,
    to: &Delivery<'_, H>,
) -> Result<Taken, Broken> {
    let Receiver { reader, origin, .. } = receiver;
    let (mut head, len) = ([0; record::FRAGMENT_HEAD], found.len());
    reader.copy_out(&found, &mut head);
    // A handler that panics does not get it once more.
    let held = reader.hold(found);
    let headers = record::read_fragment(&head).ok_or(Broken)?;
    let origin = origin.as_ref().ok_or(Broken)?;
    let body_len = len.checked_sub(crate::ring::BODY).ok_or(Broken)?;
    let body = &held.words()[crate::ring::BODY / size_of::<Word>()..];
    add(&to.counters.ring_fragments_received, 1);
    to.handler.fragment(now, origin, ack_delay, headers, shared(body, body_len));
    Ok(Taken { bytes: len.max(BULK), is_short: false })
}
