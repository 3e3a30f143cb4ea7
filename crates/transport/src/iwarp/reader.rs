//! READ requests of the peer, and the READ responses that answer them (RFC 5040 §5.2).

use std::collections::VecDeque;

use wire::Rkey;
use wire::iwarp::ddp::{Header, Segment, TaggedOp};
use wire::iwarp::rdmap::{Cause, ReadRequest, Terminate};

use super::batch::{Source, StreamBatch};
use super::refused::{refused_read, refused_read_later};
use super::{Attr, Broken};
use crate::op::{Access, Context, MAX_MESSAGE, Memory, QpEvent, Remote};

#[derive(Debug, Default)]
pub(super) struct Reader {
    answers: VecDeque<Answer>,
    /// FPDUs of responses framed.
    fpdus: u64,
}

#[derive(Debug)]
struct Answer {
    sink_stag: Rkey,
    sink_to: u64,
    source: Remote,
    /// Bytes of it that were framed.
    at: u64,
    /// The FPDU that asked, for a TERMINATE.
    asked: Box<[u8]>,
}

impl Reader {
    pub(super) fn is_idle(&self) -> bool {
        self.answers.is_empty()
    }
    pub(super) fn framed(&self) -> u64 {
        self.fpdus
    }
    pub(super) fn clear(&mut self) {
        self.answers.clear();
    }

    /// A READ request has come, as an FPDU without padding and CRC.
    pub(super) fn request(
        &mut self,
        attr: &Attr,
        request: &ReadRequest,
        fpdu: &[u8],
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        if self.answers.len() >= usize::from(attr.ird) && request.size > 0 {
            // RFC 5040 leaves it open; the kernel's siw says so.
            cx.event(QpEvent::Fatal);
            return Err(Broken(Some(Terminate::of(Cause::StreamCatastrophic, fpdu))));
        }
        let source =
            Remote { addr: request.source_to, length: request.size.into(), rkey: request.source_stag };
        if source.length > MAX_MESSAGE {
            cx.event(QpEvent::Fatal);
            return Err(Broken(Some(Terminate::of(Cause::BaseOrBounds, fpdu))));
        }
        if source.length > 0 {
            let allowed = cx.memory().check(source, Access::Read);
            allowed.map_err(|fault| refused_read(fault, fpdu, cx))?;
        }
        self.answers.push_back(Answer {
            sink_stag: request.sink_stag,
            sink_to: request.sink_to,
            source,
            at: 0,
            asked: fpdu.into(),
        });
        Ok(())
    }

    /// Frames READ responses, as far as there is room.
    pub(super) fn fill(
        &mut self,
        attr: &Attr,
        framed: &mut u64,
        batch: &mut StreamBatch,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        while batch.has_room()
            && let Some(answer) = self.answers.front_mut()
        {
            let left = answer.source.length - answer.at;
            let payload_len = left.min(attr.max_payload as u64);
            let is_last = payload_len == left;
            let to = answer.sink_to.wrapping_add(answer.at);
            let segment = Segment::Tagged { op: TaggedOp::ReadResponse, stag: answer.sink_stag, to };
            let header = Header { payload_len: payload_len as u16, last: is_last, segment };
            let (before, source) = (batch.len(), Source::Remote(answer.source, answer.at));
            let pushed = batch.push(&header, source, attr.crc, &cx.memory());
            // Rights were taken back meanwhile, or the memory is gone.
            pushed.map_err(|fault| refused_read_later(fault, &answer.asked))?;
            *framed += batch.len() - before;
            self.fpdus += 1;
            answer.at += payload_len;
            if is_last {
                self.answers.pop_front();
            }
        }
        Ok(())
    }
}
