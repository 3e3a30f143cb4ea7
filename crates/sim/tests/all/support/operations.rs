//! What may be posted on a connection, each operation in its forms.

use transport::op::{AtomicOp, Data, Flush, SendOp, SendWr};
use wire::Rkey;
use wire::roce::SendTail;

use super::both_ways::{End, SEND, signaled};

/// Bytes of a message of several packets, and of one that goes in pieces.
pub(crate) const SEVERAL: usize = 3000;
pub(crate) const LONG: usize = 150_000;

/// An operation that the first end posts, with so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send(usize),
    SendImmediate(usize),
    SendInvalidate(usize),
    SendInline(usize),
    SendList(usize),
    Write(usize),
    WriteImmediate(usize),
    WriteInline(usize),
    WriteList(usize),
    Read(usize),
    ReadList(usize),
    Add,
    Swap,
    WriteWord,
    Flush,
    FlushAll,
    /// Several at once.
    Writes(usize),
    Reads(usize),
    Sends(usize),
}

pub(crate) use Operation::{
    Add, Flush as FlushSome, FlushAll, Read, ReadList, Reads, Send, SendImmediate, SendInline,
    SendInvalidate, SendList, Sends, Swap, Write, WriteImmediate, WriteInline, WriteList, WriteWord, Writes,
};

/// Each that RC has, of lengths that go different ways.
pub(crate) const OPERATIONS: [Operation; 38] = [
    Send(0),
    Send(8),
    Send(700),
    Send(2500),
    Send(SEVERAL),
    Send(LONG),
    SendImmediate(8),
    SendImmediate(SEVERAL),
    SendInvalidate(8),
    SendInline(100),
    SendList(SEVERAL),
    Write(0),
    Write(8),
    Write(700),
    Write(2500),
    Write(SEVERAL),
    Write(LONG),
    WriteImmediate(0),
    WriteImmediate(8),
    WriteImmediate(700),
    WriteImmediate(SEVERAL),
    WriteInline(100),
    WriteList(SEVERAL),
    Read(0),
    Read(8),
    Read(700),
    Read(2500),
    Read(SEVERAL),
    Read(LONG),
    ReadList(SEVERAL),
    Add,
    Swap,
    WriteWord,
    FlushSome,
    FlushAll,
    Writes(SEVERAL),
    Sends(8),
    Reads(SEVERAL),
];

impl Operation {
    /// The operation's requests, of memory of `a` by this local key, and of so much at the peer's
    /// address and key.
    pub(crate) fn requests(self, (a, lkey): (&End, Rkey), (addr, rkey): (u64, Rkey), n: u64) -> Vec<SendWr> {
        let sge = |at, len| transport::Sge { lkey, ..a.memory.sge(at, len) };
        let imm = *b"imm!";
        let one = |op, len| signaled(n, op, sge(0, len));
        let list = |op, len: usize| SendWr {
            data: Data::Sges([sge(0, len / 3), sge(500, len - len / 3)].into_iter().collect()),
            ..signaled(n, op, sge(0, 0))
        };
        let inline = |op, len| SendWr { data: Data::inline(&vec![7; len]), ..signaled(n, op, sge(0, 0)) };
        let write = |immediate| SendOp::Write { addr, rkey, immediate };
        let read = SendOp::Read { addr, rkey };
        let atomic = |op| SendOp::Atomic { addr: addr + 8, rkey, op };
        let flush = |whole| SendOp::Flush {
            addr,
            rkey,
            length: 64,
            how: Flush { global: true, persistent: false, whole },
        };
        let several = |op: SendOp, len| (0..3).map(|_| signaled(n, op.clone(), sge(0, len))).collect();
        vec![match self {
            Send(len) => one(SEND, len),
            SendImmediate(len) => one(SendOp::Send(SendTail::Immediate(imm)), len),
            // No window has this key.
            SendInvalidate(len) => one(SendOp::Send(SendTail::Invalidate(Rkey(rkey.0 ^ 2))), len),
            SendInline(len) => inline(SEND, len),
            SendList(len) => list(SEND, len),
            Write(len) => one(write(None), len),
            WriteImmediate(len) => one(write(Some(imm)), len),
            WriteInline(len) => inline(write(None), len),
            WriteList(len) => list(write(None), len),
            Read(len) => one(read, len),
            ReadList(len) => list(read, len),
            Add => one(atomic(AtomicOp::FetchAdd(3)), 8),
            Swap => one(atomic(AtomicOp::CompareSwap { compare: 0, swap: 5 }), 8),
            WriteWord => SendWr {
                data: Data::inline(&[9; 8]),
                ..one(atomic(AtomicOp::Write(u64::from_ne_bytes([9; 8]))), 8)
            },
            FlushSome => one(flush(false), 0),
            FlushAll => one(flush(true), 0),
            Writes(len) => return several(write(None), len),
            Reads(len) => return several(read, len),
            Sends(len) => return several(SEND, len),
        }]
    }
}
