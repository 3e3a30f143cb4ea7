//! A message that came.

use std::sync::{Arc, Weak};

use transport::op::{Completed, Completion, NetworkHeader, Status};
use wire::LidAddress;
use wire::roce::SendTail;

use super::inner::{QpInner, RECEIVE};
use super::srq::SrqInner;
use crate::mem::{IoBuf, IoBufMut, RegBuf, SgeList};

/// A message in its receive buffer. Dropping it posts the buffer again; a program that keeps
/// messages has the peer wait (RNR).
/// ```compile_fail,E0382
/// async fn f(conn: verbena::Connection, msg: verbena::Message) {
///     conn.send(msg).await.0.unwrap();
///     println!("{}", msg.len()); // sent away
/// }
/// ```
pub struct Message {
    home: Home,
    /// `None` when it was given away.
    buf: Option<RegBuf>,
    /// What lies in the receive before the message: the network header of a datagram.
    head: Option<RegBuf>,
    what: What,
}

/// The queue whose receive it was.
pub(super) enum Home {
    Qp(Weak<QpInner>),
    Srq(Arc<SrqInner>),
}

impl Home {
    /// A queue that takes none any more needs none; the buffer goes back to its pool.
    fn post(&self, buf: RegBuf) {
        match self {
            Self::Qp(qp) => _ = qp.upgrade().map(|qp| qp.post_receive(buf)),
            Self::Srq(srq) => _ = srq.post(buf),
        }
    }
    /// In place of a buffer that the program keeps, where the pool has one.
    fn post_another(&self) {
        match self {
            Self::Qp(qp) => {
                if let Some(qp) = qp.upgrade()
                    && let Ok(other) = qp.pool().get()
                {
                    _ = qp.post_receive(other);
                }
            }
            Self::Srq(srq) => _ = srq.pool().get().map(|other| srq.post(other)),
        }
    }
}

/// What came with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct What {
    imm: Option<u32>,
    invalidated: Option<u32>,
    pub written: Option<u32>,
    /// The sender of a datagram, and on InfiniBand its LID.
    source_qp: u32,
    lid: Option<LidAddress>,
}

impl What {
    pub(super) fn of(completion: &Completion) -> Self {
        let (imm, invalidated) = match completion.tail {
            SendTail::None => (None, None),
            SendTail::Immediate(imm) => (Some(u32::from_be_bytes(imm)), None),
            SendTail::Invalidate(key) => (None, Some(key.0)),
        };
        let is_write = completion.opcode == Completed::ReceiveWriteImmediate;
        Self {
            imm,
            invalidated,
            written: is_write.then_some(completion.byte_len),
            source_qp: completion.source_qp.get(),
            lid: match completion.header {
                NetworkHeader::Lrh(from) => Some(from),
                _ => None,
            },
        }
    }
}

impl Message {
    /// The first `head` bytes are not the message's.
    pub(super) fn new(home: Home, mut buf: RegBuf, head: usize, what: What) -> Self {
        let head = if head > 0 { buf.split_to(head).ok() } else { None };
        Self { home, buf: Some(buf), head, what }
    }
    /// The receive that a completion of a shared queue is for, where it is one.
    pub(super) fn unseen(srq: &Arc<SrqInner>, completion: &Completion) -> Option<Self> {
        let place = (completion.wr_id & RECEIVE != 0).then_some(completion.wr_id as u32)?;
        Some(Self::new(Home::Srq(srq.clone()), srq.take(place)?, 0, What::of(completion)))
    }
    /// The message that has come to a shared receive queue of its own completions.
    pub(super) fn of_srq(srq: &Arc<SrqInner>, completion: &Completion) -> Option<Self> {
        let what = What::of(completion);
        let mut buffer = srq.take(completion.wr_id as u32)?;
        if completion.status == Status::Success {
            buffer.set_filled(if what.written.is_some() { 0 } else { completion.byte_len as usize });
        }
        Some(Self::new(Home::Srq(srq.clone()), buffer, 0, what))
    }
    /// The network header of a datagram, and its sender's queue pair.
    pub(crate) fn source(&self) -> (&[u8], u32) {
        (self.head.as_deref().unwrap_or_default(), self.what.source_qp)
    }
    /// The LID of the sender of a datagram, on InfiniBand. Such a datagram need not have a network
    /// header.
    pub(crate) fn source_lid(&self) -> Option<LidAddress> {
        self.what.lid
    }
    /// The buffer as it was posted.
    fn whole(&mut self) -> Option<RegBuf> {
        let buf = self.buf.take()?;
        match self.head.take() {
            // They were one.
            Some(head) => head.unsplit(buf).ok(),
            None => Some(buf),
        }
    }
    /// Immediate data.
    pub fn imm(&self) -> Option<u32> {
        self.what.imm
    }
    /// Bytes that a WRITE with immediate data wrote elsewhere; `None` for a SEND.
    pub fn written(&self) -> Option<u32> {
        self.what.written
    }
    /// The key that the sender took back.
    pub fn invalidated(&self) -> Option<u32> {
        self.what.invalidated
    }
    /// Keeps the buffer; the queue gets another from its pool, where that has one.
    pub fn into_buf(mut self) -> Option<RegBuf> {
        let buf = self.buf.take();
        self.home.post_another();
        buf
    }
}

impl std::ops::Deref for Message {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl std::ops::DerefMut for Message {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({} bytes, {:?})", self.len(), self.what)
    }
}

#[allow(unsafe_code, reason = "a promise about its buffer")]
// SAFETY: the pieces are its buffer's, which is one.
unsafe impl IoBuf for Message {
    fn gather(&self, list: &mut SgeList) {
        self.buf.iter().for_each(|buf| buf.gather(list));
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(buf) = self.whole() {
            self.home.post(buf);
        }
    }
}
