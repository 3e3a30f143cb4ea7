//! Short messages to and from a process of this host, which need no packets
//! ([`LocalLink::send_short`](crate::LocalLink::send_short)): such a SEND leaves as soon as it is
//! posted, where nothing of its queue pair waits before it.

use std::time::Instant;

use transport::likely::{likely, rare, unlikely};
use transport::op::{Data, Memory, SendWr};
use transport::rc::{AckDelay, Rest};
use transport::short::{MAX_SHORT, What};
use transport::{Sge, Short};
use wire::Address;

use crate::link::Path;
use crate::qp::engine::Engine;
use crate::qp::engine_context::EngineContext;
use crate::qp::now::Now;
use crate::qp::{Inner, Qp};

/// Room for most of them.
const CACHE_LINE: usize = 64;
/// Room for other messages: as little as serves, because it is made zero first.
const FEW: usize = 256;
const MORE: usize = 1024;

/// Where the bytes of a message are.
enum Bytes<'a> {
    At(&'a Sge),
    Several(&'a [Sge]),
    Own(&'a [u8]),
}

impl Bytes<'_> {
    #[inline]
    fn of(wr: &SendWr) -> Bytes<'_> {
        match &wr.data {
            Data::Sges(list) => match list.as_slice() {
                [one] => Bytes::At(one),
                several => Bytes::Several(several),
            },
            Data::Inline(bytes) => Bytes::Own(bytes),
            Data::InlineLong(bytes) => Bytes::Own(bytes),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Bytes::At(sge) => sge.length as usize,
            Bytes::Several(sges) => sges.iter().map(|sge| sge.length as usize).sum(),
            Bytes::Own(bytes) => bytes.len(),
        }
    }
}

impl Inner {
    /// Sends a message, if it is one that may leave now. The engine has its request then: a copy,
    /// if the request is kept, else its data is taken. The clock is not asked for the time
    /// before the message is on its way.
    #[inline]
    pub(super) fn send_short(&mut self, qp: &Qp, wr: &mut SendWr, keep: bool, now: &mut Now<'_>) -> bool {
        let Some(what) = What::of(&wr.op).filter(|_| !wr.fence) else { return false };
        let bytes = Bytes::of(wr);
        let len = bytes.len();
        if len > MAX_SHORT {
            return false;
        }
        let acknowledged = self.acknowledged;
        let (engine, mut context) = self.split(qp);
        let (Engine::Rc(engine), Some(path)) = (engine, context.local_path()) else { return false };
        let (solicited, is_done) = (wr.solicited, acknowledged.is_some());
        let Some(short) = engine.next_short(len, solicited, what, is_done, &mut context) else {
            return false;
        };
        let leaves = match len {
            _ if len <= CACHE_LINE => leaves::<CACHE_LINE>(path, &short, &bytes, len, &mut context),
            _ if len <= FEW => leaves::<FEW>(path, &short, &bytes, len, &mut context),
            _ if len <= MORE => apart(|| leaves::<MORE>(path, &short, &bytes, len, &mut context)),
            _ => apart(|| leaves::<MAX_SHORT>(path, &short, &bytes, len, &mut context)),
        };
        if likely(leaves) {
            if let Some(since) = acknowledged {
                engine.acknowledge_oldest(since, &mut context);
            }
            let request = || if keep { wr.clone() } else { wr.take() };
            engine.sent_short(|| now.get(), request, len, &mut context);
            self.acknowledged = None;
        }
        leaves
    }

    /// Tells the engine of an acknowledgement that it does not know of yet. A thread that locks the
    /// queue pair does that first, unless it sends a short message: the peer waits for that.
    #[inline]
    pub(super) fn catch_up(&mut self, qp: &Qp) {
        if self.acknowledged.is_some() {
            self.acknowledge(qp);
        }
    }

    #[inline(never)]
    fn acknowledge(&mut self, qp: &Qp) {
        let Some(since) = self.acknowledged.take() else { return };
        let (engine, mut context) = self.split(qp);
        if let Engine::Rc(engine) = engine {
            engine.acknowledge_oldest(since, &mut context);
        }
    }
}

/// Apart: a thread that posts less shall not have the room on its stack.
#[inline(never)]
fn apart(leaves: impl FnOnce() -> bool) -> bool {
    leaves()
}

/// Sends the message of `len` bytes, `MAX` at most, if the environment takes it so.
#[inline(always)]
fn leaves<const MAX: usize>(
    path: &Path,
    short: &Short,
    bytes: &Bytes<'_>,
    len: usize,
    context: &mut EngineContext<'_>,
) -> bool {
    let mut room = [0; MAX];
    let bytes = match *bytes {
        Bytes::At(sge) => {
            // Where its memory is not there the request fails when its turn comes, as any.
            if unlikely(context.view().get(sge, &mut room[..len]).is_err()) {
                return false;
            }
            &room[..len]
        }
        Bytes::Several(sges) => {
            if unlikely(context.view().gather(sges, 0, &mut room[..len]).is_err()) {
                return false;
            }
            &room[..len]
        }
        Bytes::Own(bytes) => bytes,
    };
    let Some(link) = context.qp.pd.device.link.local() else { return false };
    link.send_short(path, short, bytes, &mut context.engine_state.cache)
}

impl Qp {
    /// A short message from a process of this host, perhaps with an ACK; the rest is as with
    /// [`Device::input`](crate::Device::input). False where the queue pair is destroyed:
    /// another one may have its number.
    pub fn input_short(
        &self,
        now: Instant,
        (source, dest): (Address, Address),
        ack_delay: AckDelay,
        short: &Short,
        bytes: &[u8],
    ) -> bool {
        let mut inner = self.lock();
        if unlikely(inner.destroyed) {
            return false;
        }
        if let Some(counter) = self.source_mismatch(&inner, source, dest) {
            rare();
            counter.add(1);
            return true;
        }
        if unlikely(!inner.lets_in(self, short.pkey, 1)) {
            return true;
        }
        let mut rest = Rest::Step;
        let (engine, mut context) = inner.split(self);
        if let Engine::Rc(engine) = engine {
            rest = engine.receive_short(now, short, bytes, ack_delay, &mut context);
        }
        self.received.add(1);
        if rest == Rest::Acknowledge {
            inner.acknowledged = Some(now);
        }
        if rest == Rest::Step {
            inner.begin_rendezvous(self);
            // As `finish_step`, but inlined: most messages with an ACK end here.
            self.finish_step_with(inner, || now);
        } else {
            let about = inner.note_ack(self, || now);
            self.unlock_and_notify(inner, None, about);
        }
        true
    }
}
