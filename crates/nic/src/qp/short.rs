//! Short messages to and from a process of this host, which need no packets ([`Link::send_short`](crate::Link::send_short)): such a SEND leaves as soon as it
//! is posted, where nothing of its queue pair waits before it.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use transport::Short;
use transport::op::{Data, SendOp, SendWr};
use transport::rc::Hold;
use transport::short::MAX_SHORT;
use wire::roce::SendTail;

use crate::qp::engine::Engine;
use crate::qp::{Inner, Qp};

/// Room for most of them.
const CACHE_LINE: usize = 64;

impl Inner {
    /// Sends the message of a request, if it is such a SEND; its length. The request is to be told to the engine then ([`Rc::sent_short`]).
    ///
    /// [`Rc::sent_short`]: transport::Rc::sent_short
    #[inline]
    pub(super) fn send_short(&mut self, qp: &Qp, wr: &SendWr) -> Option<usize> {
        if !matches!(wr.op, SendOp::Send(SendTail::None)) || wr.fence {
            return None;
        }
        let len = match &wr.data {
            Data::Sges(list) => match list.as_slice() {
                [one] => one.length as usize,
                _ => return None,
            },
            Data::Inline(bytes) => bytes.len(),
            Data::InlineLong(bytes) => bytes.len(),
        };
        let left = match len {
            1..=MAX_SHORT if len <= CACHE_LINE => self.leaves_short::<CACHE_LINE>(qp, wr, len),
            1..=MAX_SHORT => self.leaves_short::<MAX_SHORT>(qp, wr, len),
            _ => false,
        };
        left.then_some(len)
    }

    /// Sends the message of `len` bytes, `MOST` at most, if it may leave now.
    #[inline]
    fn leaves_short<const MOST: usize>(&mut self, qp: &Qp, wr: &SendWr, len: usize) -> bool {
        let (engine, mut context) = self.split(qp);
        let (Engine::Rc(engine), Some(path)) = (engine, context.here()) else { return false };
        let Some(short) = engine.next_short(len, wr.solicited, &mut context) else { return false };
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
        qp.pd.device.link.send_short(path, &short, bytes)
    }
}

impl Qp {
    /// A short message from a process of this host, perhaps with an ACK; the rest is as with [`Qp::input`].
    pub(crate) fn input_short(
        &self,
        now: Instant,
        (source, dest): (IpAddr, IpAddr),
        hold: Hold,
        short: &Short,
        bytes: &[u8],
    ) {
        match self.of_peer(source, dest) {
            Ok(mut inner) => {
                let taken = inner.lets_in(self, short.pkey);
                if taken {
                    let (engine, mut context) = inner.split(self);
                    if let Engine::Rc(engine) = engine {
                        engine.receive_short(now, short, bytes, hold, &mut context);
                    }
                    inner.begin_rendezvous(self);
                }
                self.received(inner, now, taken.into());
            }
            Err(counter) => {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
