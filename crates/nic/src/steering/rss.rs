//! Work queues outside a queue pair, and receive side scaling over them (ibv_create_wq(3),
//! ibv_create_rwq_ind_table(3)): a hash over a frame's addresses and ports chooses the queue.
//!
//! Locks: a work queue's, then its completion queue's. No queue pair is locked meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use locks::{Mutex, MutexGuard, Rank};
use transport::execute::{Ends, Refusal};
use transport::op::{RecvWr, Status};
use transport::ud::Taken;
use wire::Qpn;

use crate::cq::{Cq, Notification};
use crate::error::{Error, PostError, in_range};
use crate::limits;
use crate::memory::pd::Pd;
use crate::qp::raw_packet::whole_frame;
use crate::steering::frame::{Frame, Ports};

/// Bytes of a Toeplitz key.
pub const KEY_LEN: usize = 40;

/// Parts of a frame that are hashed: bits of `enum ibv_rx_hash_fields`.
#[expect(missing_docs, reason = "the names are the header's")]
pub mod fields {
    pub const SRC_IPV4: u64 = 1;
    pub const DST_IPV4: u64 = 1 << 1;
    pub const SRC_IPV6: u64 = 1 << 2;
    pub const DST_IPV6: u64 = 1 << 3;
    pub const SRC_PORT_TCP: u64 = 1 << 4;
    pub const DST_PORT_TCP: u64 = 1 << 5;
    pub const SRC_PORT_UDP: u64 = 1 << 6;
    pub const DST_PORT_UDP: u64 = 1 << 7;
    pub const ALL: u64 = 0xff;
}

/// State of a work queue: `enum ibv_wq_state`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WqState {
    /// Takes neither receives nor frames.
    Reset = 0,
    /// Works.
    Ready = 1,
    /// Everything is flushed.
    Error = 2,
}

impl WqState {
    /// From `enum ibv_wq_state`.
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Reset, Self::Ready, Self::Error].into_iter().find(|s| *s as u32 == code)
    }

    /// The state's name in the manual pages, without IBV_WQS_.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Ready => "RDY",
            Self::Error => "ERR",
        }
    }
}

/// A receive queue of its own, which completes to a completion queue. It keeps its domain and its
/// completion queue; whatever spreads frames over it keeps it.
#[derive(Debug)]
pub struct Wq {
    number: Qpn,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    max_wr: u32,
    max_sge: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: WqState,
    receives: VecDeque<RecvWr>,
}

impl Wq {
    /// A queue in state Reset, of `max_wr` receives with `max_sge` elements each.
    ///
    /// # Errors
    ///
    /// `OutOfRange`: sizes of 0 or beyond the device's. `Limit`: more queues than the device has.
    pub fn create(pd: &Arc<Pd>, cq: Arc<Cq>, max_wr: u32, max_sge: u32) -> Result<Arc<Self>, Error> {
        in_range("max_wr", max_wr, 1_u32, limits::MAX_QP_WR)?;
        in_range("max_sge", max_sge, 0_u32, limits::MAX_SGE)?;
        let quota = &pd.device.quotas.wqs;
        quota.take(1)?;
        // Its completions bear the number, so no queue pair may have the same.
        let number = pd.device.take_qpn().inspect_err(|_| quota.give(1))?;
        let inner = Mutex::new(Rank::WorkQueue, Inner { state: WqState::Reset, receives: VecDeque::new() });
        Ok(Arc::new(Self { number, pd: pd.clone(), cq, max_wr, max_sge, inner }))
    }

    /// The work queue's number, 24 bits, which its completions bear.
    pub fn number(&self) -> Qpn {
        self.number
    }
    /// The work queue's state.
    pub fn state(&self) -> WqState {
        self.lock().state
    }

    /// To another state. On the way to Error its receives are flushed, on the way to Reset they are
    /// forgotten, and its completions with them.
    ///
    /// # Errors
    ///
    /// `State`: `from` is given and not the current state; from Error straight to Ready.
    pub fn modify(&self, from: Option<WqState>, to: WqState) -> Result<(), Error> {
        let mut inner = self.lock();
        let wrong = |what, asked: WqState| {
            Err(Error::State { what, asked: asked.name(), current: inner.state.name() })
        };
        match from {
            Some(from) if from != inner.state => return wrong("curr_wq_state is", from),
            // It is reset first.
            _ if (inner.state, to) == (WqState::Error, WqState::Ready) => {
                return wrong("no transition to", to);
            }
            _ => {}
        }
        let mut notifications = Vec::new();
        match to {
            WqState::Ready => inner.state = to,
            WqState::Reset => {
                inner.state = to;
                inner.receives.clear();
                self.cq.forget_qp(self.number);
            }
            WqState::Error => self.fail(&mut inner, &mut notifications),
        }
        drop(inner);
        notifications.into_iter().for_each(Notification::send);
        Ok(())
    }

    /// Posts a receive; flushed at once in state Error.
    pub fn post(&self, wr: RecvWr) -> Result<(), PostError> {
        PostError::check_elements(wr.sges.as_slice().len(), self.max_sge)?;
        let mut inner = self.lock();
        match inner.state {
            WqState::Reset => Err(PostError::Invalid("work queue is in state RESET")),
            WqState::Error => {
                let mut notifications = Vec::new();
                self.cq.push(wr.completion(Status::WrFlush, self.number), &mut notifications);
                drop(inner);
                notifications.into_iter().for_each(Notification::send);
                Ok(())
            }
            WqState::Ready if inner.receives.len() >= self.max_wr as usize => Err(PostError::Full),
            WqState::Ready => {
                inner.receives.try_reserve(1).map_err(|_| PostError::Full)?;
                inner.receives.push_back(wr);
                Ok(())
            }
        }
    }

    fn receive(&self, frame: &[u8]) -> Taken {
        let mut inner = self.lock();
        if inner.state != WqState::Ready {
            return Taken::NotForUs;
        }
        let Some(wr) = inner.receives.front() else { return Taken::NoRoom };
        let ends = Ends { local: self.number, ..Ends::default() };
        let view = self.pd.device.memory.view(self.pd.id, 0);
        let (taken, completion) = match whole_frame(frame).deliver(wr, ends, &view) {
            Ok(completion) => (Taken::Yes, completion),
            Err(Refusal::Local(_)) => (Taken::NoRoom, wr.completion(Status::LocalProtection, self.number)),
            // It stays for the next frame.
            Err(_) => return Taken::NoRoom,
        };
        inner.receives.pop_front();
        let mut notifications = Vec::new();
        self.cq.push(completion, &mut notifications);
        if taken != Taken::Yes {
            self.fail(&mut inner, &mut notifications);
        }
        drop(inner);
        notifications.into_iter().for_each(Notification::send);
        taken
    }

    /// To state Error: all receives are flushed.
    fn fail(&self, inner: &mut Inner, notifications: &mut Vec<Notification>) {
        inner.state = WqState::Error;
        for wr in inner.receives.drain(..) {
            self.cq.push(wr.completion(Status::WrFlush, self.number), notifications);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Drop for Wq {
    fn drop(&mut self) {
        self.cq.forget_qp(self.number);
        self.pd.device.give_qpn(self.number);
        self.pd.device.quotas.wqs.give(1);
    }
}

/// How a queue pair's frames are spread over work queues.
#[derive(Debug)]
pub struct Spread {
    queues: Arc<[Arc<Wq>]>,
    key: [u8; KEY_LEN],
    fields: u64,
}

impl Spread {
    /// Over `queues`, a power of two, by the Toeplitz hash of the parts of a frame that `fields`
    /// names.
    ///
    /// # Errors
    ///
    /// `Value`: not a power of two. `Unsupported`: fields that are not hashed here.
    pub fn new(queues: Arc<[Arc<Wq>]>, key: [u8; KEY_LEN], fields: u64) -> Result<Arc<Self>, Error> {
        if !queues.len().is_power_of_two() {
            return Err(Error::number(
                "entries of an indirection table are no power of two",
                queues.len() as u64,
            ));
        }
        if fields & !fields::ALL != 0 {
            return Err(Error::Unsupported("hash fields other than addresses and ports"));
        }
        Ok(Arc::new(Self { queues, key, fields }))
    }

    /// A frame, to the queue that its hash says.
    pub(crate) fn receive(&self, frame: &[u8]) -> Taken {
        // A power of two of queues, so the remainder is the hash's low bits.
        self.queues[self.hash(frame) as usize % self.queues.len()].receive(frame)
    }

    /// The hash; 0 for a frame that has nothing to be hashed.
    fn hash(&self, bytes: &[u8]) -> u32 {
        let frame = Frame::parse(bytes);
        let mut input = Vec::with_capacity(36);
        let mut take = |bit: u64, bytes: &[u8]| {
            if self.fields & bit != 0 {
                input.extend_from_slice(bytes);
            }
        };
        if let Some(ip) = &frame.ipv4 {
            take(fields::SRC_IPV4, &ip.source);
            take(fields::DST_IPV4, &ip.dest);
        }
        if let Some(ip) = &frame.ipv6 {
            take(fields::SRC_IPV6, &ip.source);
            take(fields::DST_IPV6, &ip.dest);
        }
        match frame.ports {
            Some(Ports::Tcp { source, dest }) => {
                take(fields::SRC_PORT_TCP, &source);
                take(fields::DST_PORT_TCP, &dest);
            }
            Some(Ports::Udp { source, dest }) => {
                take(fields::SRC_PORT_UDP, &source);
                take(fields::DST_PORT_UDP, &dest);
            }
            None => {}
        }
        toeplitz(&self.key, &input)
    }
}

/// The Toeplitz hash (Microsoft, "RSS hashing functions"): for each bit set of the input, from the
/// left, the 32 bits of the key that begin at its place, combined by exclusive or. `input` has 36
/// bytes at most, as many as the key serves.
pub fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (i, byte) in input.iter().take(KEY_LEN - 4).enumerate() {
        let window = key[i..i + 5].iter().fold(0_u64, |window, &k| window << 8 | u64::from(k));
        for bit in (0..8).filter(|bit| byte & 0x80 >> bit != 0) {
            hash ^= (window >> (8 - bit)) as u32;
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verification suite of Microsoft's specification.
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_hash_is_that_of_the_published_examples() {
        let input = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        assert_eq!(toeplitz(&KEY, &input[..8]), 0x323e_8fc2);
        assert_eq!(toeplitz(&KEY, &input), 0x51cc_c178);
        assert_eq!(toeplitz(&KEY, &[]), 0);
    }
}
