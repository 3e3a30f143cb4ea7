//! Send requests of the program: what leaves for them, and when they complete.
//!
//! ```text
//! front ... left, or READs not answered ... | cursor: framed up to `at` | ... not begun
//! ```
//!
//! Requests complete in the order in which they were posted. One whose memory or operation is wrong
//! fails when it is the oldest; nothing is framed behind it.

use std::collections::VecDeque;

use wire::Rkey;
use wire::iwarp::ddp::{Header, Segment, TaggedOp, UntaggedOp};
use wire::iwarp::rdmap::{ReadRequest, Terminate};
use wire::roce::SendTail;

use super::batch::{Source, StreamBatch};
use super::{Attr, Broken, Rtr, Way};
use crate::execute::Ends;
use crate::op::{
    Completion, Context, Data, Fault, LocalOp, MAX_MESSAGE, Memory, SendOp, SendWr, Sge, Side, Status, Tail,
};
use crate::pacing::sent;

/// What the peer's STag of an RTR message is: any, as there are no bytes; hardware may take 0 for
/// one of its own. So the kernel's siw sends it.
const RTR_STAG: Rkey = Rkey(1);

#[derive(Debug, Default)]
pub(super) struct Requester {
    queue: VecDeque<Request>,
    /// Index of the request that is framed next.
    cursor: usize,
    /// Bytes of its message that were framed.
    at: u64,
    /// Bytes given to batches.
    pub(super) framed: u64,
    /// Bytes that the stream took.
    taken: u64,
    /// FPDUs framed, without READ responses.
    fpdus: u64,
    /// SENDs framed.
    sends: u64,
    /// READ requests begun.
    reads: u32,
    /// READ requests that are not answered yet.
    unanswered: u32,
    /// Bytes of the oldest READ that have come.
    answered: u64,
    /// To be sent before all else.
    rtr: Option<Rtr>,
    /// A READ of no bytes was sent as RTR, and its response has not come.
    awaits_rtr: bool,
}

#[derive(Debug)]
struct Request {
    wr: SendWr,
    /// Where its last byte ends, counted as `framed`; `None` before all is framed.
    end: Option<u64>,
    /// A READ whose response has come.
    is_answered: bool,
}

/// What the next READ response is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub stag: Rkey,
    pub to: u64,
    /// Bytes that are still to come.
    pub left: u64,
}

impl Request {
    fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. })
    }
    fn completion(&self, status: Status, ends: Ends) -> Completion {
        let bytes = if self.is_read() { self.wr.data.len_bytes() as u32 } else { 0 };
        let byte_len = if status == Status::Success { bytes } else { 0 };
        Completion { byte_len, ..sent(&self.wr, status, ends.local) }
    }
}

/// Where the response to a READ goes, as the peer is told: the first element. The bytes of further
/// elements are as if they followed it.
fn sink(data: &Data) -> (Rkey, u64) {
    match data {
        Data::Sges(list) => list.as_slice().first().map_or((Rkey(0), 0), |sge| (sge.lkey, sge.addr)),
        Data::Inline(_) | Data::InlineLong(_) => (Rkey(0), 0),
    }
}

impl Requester {
    /// What left, `responses` FPDUs of READ responses among it.
    pub(super) fn sent_so_far(&self, responses: u64) -> Way {
        Way { bytes: self.taken, fpdus: self.fpdus + responses, sends: self.sends }
    }
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }
    pub(super) fn post(&mut self, wr: SendWr) {
        self.queue.push_back(Request { wr, end: None, is_answered: false });
    }
    pub(super) fn send_rtr(&mut self, rtr: Rtr) {
        self.rtr = Some(rtr);
    }

    // ---- what leaves ----

    /// The RTR message, where one is due.
    pub(super) fn lead(&mut self, attr: &Attr, batch: &mut StreamBatch) {
        let Some(rtr) = self.rtr.take() else { return };
        let (payload, segment) = match rtr {
            Rtr::Write => (vec![], Segment::Tagged { op: TaggedOp::Write, stag: RTR_STAG, to: 0 }),
            Rtr::Send => (vec![], self.untagged_send(false, SendTail::None)),
            Rtr::Read => {
                self.awaits_rtr = true;
                let source_stag = RTR_STAG;
                let asked =
                    ReadRequest { sink_stag: Rkey(0), sink_to: 0, size: 0, source_stag, source_to: 0 };
                (asked.emit().to_vec(), self.read_request())
            }
        };
        if rtr == Rtr::Send {
            self.sends += 1;
        }
        self.push_bytes(attr, segment, &payload, batch);
    }

    /// The last message of a stream.
    pub(super) fn terminate(&mut self, attr: &Attr, why: &Terminate, batch: &mut StreamBatch) {
        let mut payload = [0; Terminate::MAX_LEN];
        let len = why.emit(&mut payload);
        let segment = Segment::Untagged { op: UntaggedOp::Terminate, msn: 1, mo: 0 };
        self.push_bytes(attr, segment, &payload[..len], batch);
    }

    /// Frames what depth, fence and batch allow.
    pub(super) fn fill(
        &mut self,
        attr: &Attr,
        ends: Ends,
        batch: &mut StreamBatch,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        while batch.has_room()
            && let Some(request) = self.queue.get(self.cursor)
        {
            if self.at == 0 && self.must_wait(request, attr) {
                break;
            }
            if let Err(status) = self.fill_next(attr, batch, cx) {
                // Those before it complete first.
                if self.cursor > 0 {
                    break;
                }
                self.fail_oldest(status, ends, cx);
                return Err(Broken(None));
            }
            self.retire(ends, cx);
        }
        Ok(())
    }

    /// A fence waits for READs before it (RFC 5040 leaves it to the verbs: IBA 1.4 §10.8.3.3).
    fn must_wait(&self, request: &Request, attr: &Attr) -> bool {
        let is_fenced = request.wr.fence && self.unanswered > 0;
        is_fenced || (request.is_read() && attr.ord > 0 && self.unanswered >= u32::from(attr.ord))
    }

    /// Frames one FPDU of the request at the cursor, or does what needs none.
    fn fill_next(
        &mut self,
        attr: &Attr,
        batch: &mut StreamBatch,
        cx: &mut impl Context,
    ) -> Result<(), Status> {
        let Some(Request { wr, .. }) = self.queue.get(self.cursor) else { return Ok(()) };
        let len = wr.data.len_bytes();
        if len > MAX_MESSAGE {
            return Err(Status::LocalLength);
        }
        let left = len - self.at;
        let payload_len = left.min(attr.max_payload as u64);
        let is_last = payload_len == left;
        let segment = match wr.op {
            SendOp::Send(tail @ (SendTail::None | SendTail::Invalidate(_))) => {
                self.untagged_send(wr.solicited, tail)
            }
            SendOp::Write { addr, rkey, immediate: None } => {
                Segment::Tagged { op: TaggedOp::Write, stag: rkey, to: addr.wrapping_add(self.at) }
            }
            SendOp::Read { addr, rkey } if attr.ord > 0 => {
                self.ask(attr, addr, rkey, batch);
                return Ok(());
            }
            SendOp::Local(op) => {
                let done = match op {
                    LocalOp::Bind(bind) => cx.memory().bind(&bind),
                    LocalOp::Invalidate(key) => cx.memory().invalidate(key),
                };
                done.map_err(|_| Status::MwBind)?;
                self.pass();
                return Ok(());
            }
            // RFC 5040 has none of these; 7306, which has some, is not offered.
            SendOp::Send(SendTail::Immediate(_))
            | SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::Atomic { .. }
            | SendOp::Flush { .. } => return Err(Status::LocalQpOperation),
        };
        let header = Header { payload_len: payload_len as u16, last: is_last, segment };
        let (before, source) = (batch.len(), Source::Request(&wr.data, self.at));
        batch.push(&header, source, attr.crc, &cx.memory()).map_err(|_| Status::LocalProtection)?;
        self.framed += batch.len() - before;
        self.fpdus += 1;
        self.at += payload_len;
        if is_last {
            if matches!(segment, Segment::Untagged { .. }) {
                self.sends += 1;
            }
            self.pass();
        }
        Ok(())
    }

    /// The READ request at the cursor.
    fn ask(&mut self, attr: &Attr, addr: u64, rkey: Rkey, batch: &mut StreamBatch) {
        let Some(request) = self.queue.get(self.cursor) else { return };
        let (sink_stag, sink_to) = sink(&request.wr.data);
        let size = request.wr.data.len_bytes() as u32;
        let asked = ReadRequest { sink_stag, sink_to, size, source_stag: rkey, source_to: addr };
        let segment = self.read_request();
        self.push_bytes(attr, segment, &asked.emit(), batch);
        self.pass();
    }

    fn untagged_send(&self, solicited: bool, tail: SendTail) -> Segment {
        let invalidate = if let SendTail::Invalidate(key) = tail { Some(key) } else { None };
        let op = UntaggedOp::Send { solicited, invalidate };
        Segment::Untagged { op, msn: (self.sends as u32).wrapping_add(1), mo: self.at as u32 }
    }

    fn read_request(&mut self) -> Segment {
        self.unanswered += 1;
        self.reads = self.reads.wrapping_add(1);
        Segment::Untagged { op: UntaggedOp::ReadRequest, msn: self.reads, mo: 0 }
    }

    /// An FPDU whose payload is the engine's own.
    fn push_bytes(&mut self, attr: &Attr, segment: Segment, payload: &[u8], batch: &mut StreamBatch) {
        let header = Header { payload_len: payload.len() as u16, last: true, segment };
        let before = batch.len();
        batch.push_bytes(&header, payload, attr.crc);
        self.framed += batch.len() - before;
        self.fpdus += 1;
    }

    /// All of the request at the cursor is framed.
    fn pass(&mut self) {
        if let Some(request) = self.queue.get_mut(self.cursor) {
            request.end = Some(self.framed);
        }
        (self.cursor, self.at) = (self.cursor + 1, 0);
    }

    // ---- what completes ----

    pub(super) fn sent(&mut self, bytes: u64, ends: Ends, cx: &mut impl Context) {
        self.taken += bytes;
        self.retire(ends, cx);
    }

    /// Completes what has left, or was answered, and is the oldest.
    fn retire(&mut self, ends: Ends, cx: &mut impl Context) {
        while let Some(request) = self.queue.pop_front_if(|request| {
            request.end.is_some_and(|end| end <= self.taken) && request.is_answered == request.is_read()
        }) {
            self.cursor = self.cursor.saturating_sub(1);
            if request.wr.signaled {
                cx.complete(Side::Send, request.completion(Status::Success, ends));
            }
        }
    }

    fn oldest_read(&self) -> Option<&Request> {
        self.queue.iter().take(self.cursor).find(|request| request.is_read() && !request.is_answered)
    }

    /// What the READ response that comes next is to be; `None` where none is awaited.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        if self.awaits_rtr {
            return Some(Awaited { stag: Rkey(0), to: 0, left: 0 });
        }
        let read = self.oldest_read()?;
        let (stag, to) = sink(&read.wr.data);
        let left = read.wr.data.len_bytes().saturating_sub(self.answered);
        Some(Awaited { stag, to: to.wrapping_add(self.answered), left })
    }

    /// Where the awaited READ response belongs, and how much of it has come.
    pub(super) fn read_sink(&self) -> Option<(&[Sge], u64)> {
        let Data::Sges(list) = &self.oldest_read()?.wr.data else { return None };
        Some((list.as_slice(), self.answered))
    }

    /// So many bytes more of it are where [`Requester::read_sink`] says.
    pub(super) fn placed(&mut self, len: u64) {
        self.answered += len;
    }

    /// Puts bytes of the awaited READ response where its request says.
    pub(super) fn place(&mut self, bytes: &[u8], tail: Tail, cx: &impl Context) -> Result<(), Fault> {
        let Some(Request { wr: SendWr { data: Data::Sges(list), .. }, .. }) = self.oldest_read() else {
            return Err(Fault::Range);
        };
        cx.memory().scatter(list.as_slice(), self.answered, bytes, tail)?;
        self.answered += bytes.len() as u64;
        Ok(())
    }

    /// The awaited READ response has come whole.
    pub(super) fn response_ended(&mut self, ends: Ends, cx: &mut impl Context) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.answered = 0;
        if std::mem::take(&mut self.awaits_rtr) {
            return;
        }
        let mut framed = self.queue.iter_mut().take(self.cursor);
        if let Some(read) = framed.find(|request| request.is_read() && !request.is_answered) {
            read.is_answered = true;
        }
        self.retire(ends, cx);
    }

    /// The READ that is answered now fails: its memory refuses what comes.
    pub(super) fn fail_read(&mut self, status: Status, ends: Ends, cx: &mut impl Context) {
        // Those before it have left, but their completions wait for it.
        while let Some(request) = self.queue.pop_front() {
            self.cursor = self.cursor.saturating_sub(1);
            if request.is_read() && !request.is_answered {
                return cx.complete(Side::Send, request.completion(status, ends));
            }
            cx.complete(Side::Send, request.completion(Status::WrFlush, ends));
        }
    }

    pub(super) fn fail_oldest(&mut self, status: Status, ends: Ends, cx: &mut impl Context) {
        if let Some(request) = self.queue.pop_front() {
            cx.complete(Side::Send, request.completion(status, ends));
        }
    }

    /// Completes all that is queued as flushed.
    pub(super) fn flush(&mut self, ends: Ends, cx: &mut impl Context) {
        while let Some(request) = self.queue.pop_front() {
            cx.complete(Side::Send, request.completion(Status::WrFlush, ends));
        }
        (self.cursor, self.at, self.answered, self.unanswered) = (0, 0, 0, 0);
        (self.rtr, self.awaits_rtr) = (None, false);
    }
}
