//! Short messages to and from a process of this host, which need no packets ([`Link::send_short`](crate::Link::send_short)): such a SEND leaves as soon as it
//! is posted, where nothing of its queue pair waits before it.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use transport::Short;
use transport::op::{Data, Memory, SendOp, SendWr};
use transport::rc::{Hold, Rest};
use transport::short::MAX_SHORT;
use wire::roce::SendTail;

use crate::link::Path;
use crate::qp::engine::Engine;
use crate::qp::engine_context::EngineContext;
use crate::qp::post::Now;
use crate::qp::{Inner, Qp};

/// Room for most of them.
const CACHE_LINE: usize = 64;
/// And for others: as little as serves, because it is made zero first.
const FEW: usize = 256;
const MORE: usize = 1024;

impl Inner {
    /// Sends the message of a request, if it is such a SEND that may leave now. The engine has the request then, whose data was taken from here. Nobody is asked for the
    /// time before the message is on its way.
    #[inline]
    pub(super) fn send_short(&mut self, qp: &Qp, wr: &mut SendWr, now: &mut Now<'_>) -> bool {
        if !matches!(wr.op, SendOp::Send(SendTail::None)) || wr.fence {
            return false;
        }
        let len = match &wr.data {
            Data::Sges(list) => match list.as_slice() {
                [one] => one.length as usize,
                _ => return false,
            },
            Data::Inline(bytes) => bytes.len(),
            Data::InlineLong(bytes) => bytes.len(),
        };
        if !(1..=MAX_SHORT).contains(&len) {
            return false;
        }
        let acknowledged = self.acknowledged;
        let (engine, mut context) = self.split(qp);
        let (Engine::Rc(engine), Some(path)) = (engine, context.here()) else { return false };
        let Some(short) = engine.next_short(len, wr.solicited, acknowledged.is_some(), &mut context) else {
            return false;
        };
        let leaves = match len {
            _ if len <= CACHE_LINE => leaves::<CACHE_LINE>(path, &short, wr, len, &mut context),
            _ if len <= FEW => leaves::<FEW>(path, &short, wr, len, &mut context),
            _ if len <= MORE => apart(|| leaves::<MORE>(path, &short, wr, len, &mut context)),
            _ => apart(|| leaves::<MAX_SHORT>(path, &short, wr, len, &mut context)),
        };
        if leaves {
            if let Some(since) = acknowledged {
                engine.acknowledge_oldest(since, &mut context);
            }
            engine.sent_short(now.get(), wr, len, &mut context);
            self.acknowledged = None;
        }
        leaves
    }

    /// Tells the engine of an acknowledgement that it does not know of yet. Whoever locks the queue pair does that first, but for who sends a short message: the
    /// peer waits for that.
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

/// Apart: whoever posts less shall not have the room on his stack.
#[inline(never)]
fn apart(leaves: impl FnOnce() -> bool) -> bool {
    leaves()
}

/// Sends the message of `len` bytes, `MOST` at most, if the world takes it so.
#[inline]
fn leaves<const MOST: usize>(
    path: &Path,
    short: &Short,
    wr: &SendWr,
    len: usize,
    context: &mut EngineContext<'_>,
) -> bool {
    let mut room = [0; MOST];
    let bytes = match &wr.data {
        Data::Sges(list) => {
            // Where its memory is not there the request fails when its turn comes, as any.
            let is_there = |one| context.view.get(one, &mut room[..len]).is_ok();
            if !list.as_slice().first().is_some_and(is_there) {
                return false;
            }
            &room[..len]
        }
        Data::Inline(bytes) => bytes,
        Data::InlineLong(bytes) => bytes,
    };
    context.qp.pd.device.link.send_short(path, short, bytes, context.way)
}

impl Qp {
    /// A short message from a process of this host, perhaps with an ACK; the rest is as with [`Device::input`](crate::Device::input). False where the queue
    /// pair is destroyed: another one may have its number.
    pub fn input_short(
        &self,
        now: Instant,
        (source, dest): (IpAddr, IpAddr),
        hold: Hold,
        short: &Short,
        bytes: &[u8],
    ) -> bool {
        let mut inner = self.lock();
        if inner.destroyed {
            return false;
        }
        if let Some(counter) = self.stranger(&inner, source, dest) {
            counter.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        if !inner.lets_in(self, short.pkey) {
            return true;
        }
        let mut rest = Rest::Step;
        let (engine, mut context) = inner.split(self);
        if let Engine::Rc(engine) = engine {
            rest = engine.receive_short(now, short, bytes, hold, &mut context);
        }
        self.received.add(1);
        if rest == Rest::Acknowledge {
            inner.acknowledged = Some(now);
        }
        if rest == Rest::Step {
            inner.begin_rendezvous(self);
            self.settle(inner, now);
        } else {
            let about = inner.note_ack(self, || now);
            self.let_go(inner, None, about);
        }
        true
    }
}
