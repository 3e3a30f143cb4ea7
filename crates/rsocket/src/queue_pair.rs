//! A stream's queue pair and memory on an adapter of this host.

use std::sync::Arc;
use std::time::Instant;

use nic::device::CqSlot;
use nic::device::async_events::AsyncEventQueue;
use nic::{
    Access, Arm, Buffer, Channel, Cq, Device, Error, Pd, Qp, QpCap, QpInit, QpType, Signal, Transport,
};
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, SgeList, Status};
use wire::Rkey;
use wire::roce::SendTail;

use crate::conn_data::{SGE_LEN, Sge, field};
use crate::settings::{EXTRA_RECEIVES, Settings};
use crate::stream::{MAPPING_LEN, Stream, TARGETS};
use crate::verbs::{MAX_INLINE, Mark, Payload, Place, Refused, Span, Variant, Verbs};

/// Registered memory of this end.
pub trait Memory: Send {
    /// The first byte, as work requests and peers name it.
    fn addr(&self) -> u64;
    /// Local and remote key.
    fn key(&self) -> Rkey;
    /// Copies to it from `at` on.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Copies from it from `at` on.
    fn read(&self, at: usize, bytes: &mut [u8]);
}

impl Memory for Buffer {
    fn addr(&self) -> u64 {
        Self::addr(self)
    }
    fn key(&self) -> Rkey {
        Self::key(self)
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        Self::write(self, at, bytes);
    }
    fn read(&self, at: usize, bytes: &mut [u8]) {
        let found = Self::read(self, at, bytes.len());
        bytes[..found.len()].copy_from_slice(&found);
    }
}

/// What the owner of a socket gives it.
pub trait Owner: Send + Sync {
    /// What tells that there is something to do: [`crate::Socket::step`].
    fn signal(&self) -> Box<dyn Signal>;
    /// So many zero bytes, registered with these rights.
    ///
    /// # Errors
    ///
    /// Those of [`Pd::register`].
    fn memory(&self, pd: &Arc<Pd>, len: usize, access: u32) -> Result<Box<dyn Memory>, Error>;
    /// The time.
    fn now(&self) -> Instant;
}

/// Asynchronous events say nothing that completions and the connection manager do not.
pub(crate) struct Unheard;

impl Signal for Unheard {
    fn signal(&self) {}
    fn take_back(&self) {}
}

/// In a work request's mark: it is a receive.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// Bytes of a message that comes by SEND.
const MESSAGE_LEN: usize = 4;
/// Completions that are taken at once.
pub(crate) const FEW: usize = 32;

/// A queue pair in a domain of its own, so that a peer reaches the memory of its connection only.
pub struct QueuePair {
    owner: Arc<dyn Owner>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    pd: Arc<Pd>,
    _slot: CqSlot,
    send: Box<dyn Memory>,
    ring: Box<dyn Memory>,
    ring_len: u32,
    /// The target list, then the table of mappings.
    lists: Box<dyn Memory>,
    /// Where messages come to that are SENDs.
    messages: Option<Box<dyn Memory>>,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueuePair({:?})", self.qp.qpn())
    }
}

/// How messages travel on a device.
pub fn variant_of(device: &Device) -> Variant {
    match device.config.transport {
        Transport::Roce | Transport::Ib => Variant::Immediate,
        Transport::Iwarp => Variant::Sends,
    }
}

impl QueuePair {
    /// A queue pair in state Reset, with its memory. Settings are in range.
    ///
    /// # Errors
    ///
    /// `Limit` where the device or the system has no more of something.
    pub fn new(owner: &Arc<dyn Owner>, device: &Arc<Device>, settings: &Settings) -> Result<Self, Error> {
        let receives = settings.receive_queue + EXTRA_RECEIVES;
        let pd = Arc::new(device.alloc_pd()?);
        let slot = device.take_cq()?;
        let channel = Channel::new(owner.signal());
        let events = AsyncEventQueue::new(Box::new(Unheard));
        let cq = Cq::new(settings.send_queue + receives, Some(channel.clone()), events.clone())?;
        let cap = QpCap {
            max_send_wr: settings.send_queue,
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: settings.inline.max(MAX_INLINE as u32),
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, events };
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = |len: usize, access| owner.memory(&pd, len, access);
        let send = memory(settings.send_buffer as usize, Access::LOCAL_WRITE)?;
        // What may be read, too, processes of this host map.
        let ring = memory(settings.receive_buffer as usize, written | Access::REMOTE_READ)?;
        let lists = TARGETS as usize * SGE_LEN + usize::from(settings.mappings) * MAPPING_LEN;
        let lists = memory(lists, written | Access::REMOTE_READ)?;
        let messages = match variant_of(device) {
            Variant::Immediate => None,
            Variant::Sends => Some(memory(receives as usize * MESSAGE_LEN, Access::LOCAL_WRITE)?),
        };
        let qp = Qp::create(device, &pd, init)?;
        Ok(Self {
            owner: owner.clone(),
            qp,
            cq,
            channel,
            pd,
            _slot: slot,
            send,
            ring,
            ring_len: settings.receive_buffer,
            lists,
            messages,
        })
    }

    /// Posts all receives; the queue pair is in state Init or later. Completions tell of themselves
    /// from now on.
    ///
    /// # Errors
    ///
    /// The queue pair does not take them.
    pub fn post_receives(&mut self, settings: &Settings) -> Result<(), Refused> {
        (0..settings.receive_queue + EXTRA_RECEIVES).try_for_each(|slot| self.post_receive(slot))?;
        self.cq.arm(Arm::Next);
        Ok(())
    }

    /// The adapter's queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The domain that the connection's memory is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The queue that requests complete in.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Tells the stream of all that has completed; whether that was anything.
    pub fn drive(&mut self, stream: &mut Stream) -> bool {
        let mut any = false;
        loop {
            while self.channel.pop().is_some() {}
            any |= self.take_completions(stream);
            self.cq.rearm(Arm::Next);
            // What came before it was armed has raised no event.
            if self.cq.is_empty() {
                return any;
            }
        }
    }

    /// Likewise, without asking for an event of the next: that was done.
    pub fn take(&mut self, stream: &mut Stream) {
        if !self.cq.is_empty() {
            self.take_completions(stream);
        }
    }

    fn take_completions(&mut self, stream: &mut Stream) -> bool {
        let mut any = false;
        loop {
            let mut few = [const { None }; FEW];
            let mut places = few.iter_mut();
            let taken = self.cq.poll(FEW, |completion| {
                if let Some(place) = places.next() {
                    *place = Some(completion);
                }
            });
            let Ok(n) = taken else {
                stream.on_disconnected();
                return true;
            };
            for completion in few.iter().flatten() {
                self.tell(stream, completion);
            }
            stream.progress(self);
            any |= n > 0;
            if n < FEW {
                return any;
            }
        }
    }

    fn tell(&mut self, stream: &mut Stream, completion: &Completion) {
        if completion.wr_id & RECEIVE == 0 {
            return stream.on_sent(Mark::of_word(completion.wr_id), completion.status);
        }
        if completion.status != Status::Success {
            // The queue pair has failed, perhaps by a request of the peer that it has refused:
            // receives are flushed after all that came.
            return stream.on_disconnected();
        }
        let immediate = match completion.tail {
            SendTail::Immediate(word) => Some(u32::from_be_bytes(word)),
            _ => None,
        };
        stream.on_received(self, completion.wr_id as u32, immediate);
    }

    fn post(&mut self, mark: Mark, op: SendOp, data: Data) -> Result<(), Refused> {
        let wr = SendWr { wr_id: mark.word(), op, data, signaled: true, solicited: false, fence: false };
        self.qp.post_send(self.owner.now(), wr).map_err(|_| Refused)
    }

    fn gather(&self, span: Span) -> Data {
        let sge = |at: u32, length| transport::Sge {
            addr: self.send.addr() + u64::from(at),
            length,
            lkey: self.send.key(),
        };
        Data::Sges(match span.rest {
            0 => SgeList::one(sge(span.at, span.first)),
            rest => [sge(span.at, span.first), sge(0, rest)].into_iter().collect(),
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.qp.destroy();
        self.channel.forget(&self.cq);
    }
}

impl Verbs for QueuePair {
    fn write(
        &mut self,
        mark: Mark,
        to: Place,
        payload: Payload<'_>,
        message: Option<u32>,
    ) -> Result<(), Refused> {
        let immediate = message.map(u32::to_be_bytes);
        let op = SendOp::Write { addr: to.addr, rkey: Rkey(to.key), immediate };
        let data = match payload {
            Payload::Buffered(span) => self.gather(span),
            Payload::Inline(&[]) => Data::Sges(SgeList::from_iter([])),
            Payload::Inline(bytes) => Data::inline(bytes),
        };
        self.post(mark, op, data)
    }

    fn send(&mut self, mark: Mark, message: u32) -> Result<(), Refused> {
        // In the byte order of the host, as librdmacm sends it.
        self.post(mark, SendOp::Send(SendTail::None), Data::inline(&message.to_ne_bytes()))
    }

    fn post_receive(&mut self, slot: u32) -> Result<(), Refused> {
        let sges = match &self.messages {
            None => SgeList::from_iter([]),
            Some(messages) => SgeList::one(transport::Sge {
                addr: messages.addr() + u64::from(slot) * MESSAGE_LEN as u64,
                length: MESSAGE_LEN as u32,
                lkey: messages.key(),
            }),
        };
        let wr = RecvWr { wr_id: RECEIVE | u64::from(slot), sges };
        self.qp.post_receive(wr).map_err(|_| Refused)
    }

    fn received(&self, slot: u32) -> u32 {
        let mut word = [0; MESSAGE_LEN];
        if let Some(messages) = &self.messages {
            messages.read(slot as usize * MESSAGE_LEN, &mut word);
        }
        u32::from_ne_bytes(word)
    }

    fn fill(&mut self, at: u32, bytes: &[u8]) {
        self.send.write(at as usize, bytes);
    }

    fn drain(&self, at: u32, bytes: &mut [u8]) {
        self.ring.read(at as usize, bytes);
    }

    fn take_target(&mut self, entry: u32, length: u32) -> Option<Sge> {
        let at = entry as usize * SGE_LEN;
        let mut bytes = [0; SGE_LEN];
        self.lists.read(at, &mut bytes);
        let found = Sge::of_memory(&bytes);
        if found.length != length {
            return None;
        }
        self.lists.write(at + 12, &[0; 4]);
        Some(found)
    }

    fn mapping(&self, entry: u32) -> (u64, Sge) {
        let mut bytes = [0; MAPPING_LEN];
        self.lists.read(TARGETS as usize * SGE_LEN + entry as usize * MAPPING_LEN, &mut bytes);
        (u64::from_ne_bytes(field(&bytes, 0)), Sge::of_memory(&field(&bytes, 8)))
    }

    fn told(&self) -> (Sge, Sge) {
        let piece = |memory: &dyn Memory, length| Sge { addr: memory.addr(), key: memory.key().0, length };
        (piece(&*self.lists, TARGETS), piece(&*self.ring, self.ring_len))
    }
}
