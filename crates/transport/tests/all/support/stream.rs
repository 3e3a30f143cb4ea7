//! Two iWARP engines and the streams between them, which are cut anywhere.

use std::cell::RefCell;

use transport::iwarp::{Attr, Iwarp, Sink, StreamBatch};
use transport::op::{RecvWr, SendWr, Status, Tail};
use transport::{Memory, Sge};
use wire::Qpn;
use wire::iwarp::fpdu::peek_fpdu_len;

use super::{Region, TestContext, pattern};

/// An engine with its context, and what it has not sent yet.
#[derive(Debug)]
pub(crate) struct StreamEnd {
    pub iwarp: Iwarp,
    pub cx: TestContext,
    pub batch: StreamBatch,
    /// Bytes go where [`Iwarp::sink`] says, where it does.
    pub places: bool,
}

/// Attributes that most tests share: short FPDUs, so that messages have several.
pub(crate) fn attr() -> Attr {
    Attr { crc: false, ird: 2, ord: 2, max_payload: 1000 }
}

impl StreamEnd {
    /// In RTS with one region of `len` bytes that counts 0, 1, ..., and one of zeroes.
    pub(crate) fn new(attr: Attr, len: usize) -> Self {
        let mut iwarp = Iwarp::new(Qpn::new(0x11));
        iwarp.ready(attr);
        let mut cx = TestContext::default();
        for bytes in [(0..len).map(pattern).collect(), vec![0; len]] {
            cx.memory.regions.push(Region { bytes: RefCell::new(bytes), remote: true });
        }
        Self { iwarp, cx, batch: StreamBatch::new(), places: false }
    }
    pub(crate) fn post(&mut self, wr: SendWr) {
        self.iwarp.post(wr, &mut self.cx);
    }
    pub(crate) fn post_receive(&mut self, wr_id: u64, sge: Sge) {
        self.cx.receives.push_back(RecvWr { wr_id, sges: [sge].into_iter().collect() });
    }
    /// What the stream takes now, which is at most `most` bytes.
    pub(crate) fn send(&mut self, most: usize) -> Vec<u8> {
        if self.batch.is_empty() {
            self.iwarp.fill(&mut self.batch, &mut self.cx);
        }
        let mut out = Vec::new();
        self.batch.copy_out(most, &&self.cx.memory, &mut out).expect("the memory is there");
        self.batch.advance(out.len() as u64);
        self.iwarp.sent(out.len() as u64, &mut self.cx);
        out
    }
    /// All that wants to leave.
    pub(crate) fn send_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let sent = self.send(usize::MAX);
            if sent.is_empty() {
                return all;
            }
            all.extend(sent);
        }
    }
    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        let rest = if self.places { self.place(bytes) } else { bytes };
        self.iwarp.receive(rest, &mut self.cx);
    }
    /// Puts bytes where they belong, as far as the engine tells; those that it does not.
    fn place<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let Some(sink) = self.iwarp.sink() else { return bytes };
        let (here, rest) = bytes.split_at(sink.len().min(bytes.len()));
        let memory = &&self.cx.memory;
        let put = match sink {
            Sink::Request(sges, at, _) | Sink::Receive(sges, at, _) => {
                memory.scatter(sges, at, here, Tail::More)
            }
            Sink::Remote(range) => memory.write(range, 0, here, Tail::More),
        };
        put.expect("memory that the engine has checked");
        self.iwarp.placed(here.len());
        rest
    }
    /// What completed since the last call: work request and status.
    pub(crate) fn completed(&mut self) -> Vec<(u64, Status)> {
        self.cx.completions.drain(..).map(|(_, completion)| (completion.wr_id, completion.status)).collect()
    }
}

/// Lets both ends send until neither has more to say.
pub(crate) fn talk(a: &mut StreamEnd, b: &mut StreamEnd) {
    loop {
        let (to_b, to_a) = (a.send_all(), b.send_all());
        if to_b.is_empty() && to_a.is_empty() {
            return;
        }
        b.hear(&to_b);
        a.hear(&to_a);
    }
}

/// The FPDUs of a stream.
pub(crate) fn fpdus(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some(len) = peek_fpdu_len(stream) {
        let (fpdu, rest) = stream.split_at(len);
        all.push(fpdu);
        stream = rest;
    }
    all
}
