//! FLUSH (IBA annex A19) at the responder: the request waits while the adapter does it, and what
//! comes after it is dropped until it is done.

use std::task::Poll;

use wire::bth::{Feth, NakCode, Reth};
use wire::{Psn, Rkey};

use super::{Broken, Responder, nothing};
use crate::execute::Refusal;
use crate::op::{Context, Fault, Flush, QpEvent, Remote};
use crate::segmentation::remote;

/// The FLUSH that is not done yet. Until it is, nothing is executed that comes after it: an ATOMIC
/// WRITE must not pass it (IBA annex A19).
#[derive(Debug)]
pub(in crate::rc) struct Flushing {
    pub(super) psn: Psn,
    pub(super) rkey: Rkey,
    pub(super) task: Option<FlushTask>,
    /// A later request came and was dropped: it will be asked for.
    pub(super) missed: bool,
    /// How often it was asked for again.
    pub(super) repeated: u32,
}

/// A FLUSH that takes long, for [`Rc::take_flush`](crate::rc::Rc::take_flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTask {
    /// What the peer named; the key and, of a range, the bytes.
    pub range: Remote,
    /// How.
    pub how: Flush,
    /// At an XRC target, the shared receive queue in whose domain that counts.
    pub srq: Option<u32>,
}

impl Responder {
    #[inline]
    pub(in crate::rc) fn take_flush(&mut self) -> Option<FlushTask> {
        self.flushing.as_mut()?.task.take()
    }

    /// The FLUSH is done.
    pub(in crate::rc) fn flushed(
        &mut self,
        result: Result<(), Fault>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        let Some(flushing) = self.flushing.take() else { return Ok(()) };
        let Flushing { psn, rkey, missed, .. } = *flushing;
        match result {
            Ok(()) => {}
            // Nothing is wrong with the request (IBA 1.4 §9.7.5.2.7).
            Err(Fault::Storage) => {
                self.answers.nak(psn, self.msn, NakCode::RemoteOperational);
                return Err(Broken(NakCode::RemoteOperational));
            }
            Err(_) => {
                self.answers.nak(psn, self.msn, NakCode::RemoteAccess);
                cx.event(QpEvent::AccessError);
                return Err(Broken(NakCode::RemoteAccess));
            }
        }
        self.flush_done(psn, rkey);
        if missed {
            self.quiet = true;
            self.answers.nak(self.expected, self.msn, NakCode::PsnSequence);
        }
        Ok(())
    }

    /// FLUSH (IBA annex A19): a READ response of no bytes answers it when it is done, as in the
    /// kernel. It does not count among READs, as the kernel's requester does not count it.
    pub(super) fn start_flush(
        &mut self,
        psn: Psn,
        feth: Feth,
        reth: Reth,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let how = Flush {
            global: feth.placement & 1 != 0,
            persistent: feth.placement & 2 != 0,
            whole: feth.selectivity == 1,
        };
        if feth.placement > 3 || feth.selectivity > 1 {
            return Err(Refusal::Illegal);
        }
        match self.inbound.flush(remote(reth), how, cx)? {
            Poll::Ready(()) => self.flush_done(psn, reth.rkey),
            Poll::Pending => {
                let task = FlushTask { range: remote(reth), how, srq: self.srq };
                self.flushing = Some(Box::new(Flushing {
                    psn,
                    rkey: reth.rkey,
                    task: Some(task),
                    missed: false,
                    repeated: 0,
                }));
            }
        }
        Ok(())
    }

    fn flush_done(&mut self, psn: Psn, rkey: Rkey) {
        self.take(1, true);
        self.resources.keep_flush(psn, rkey);
        self.answers.read(nothing(psn, self.msn, true));
    }
}
