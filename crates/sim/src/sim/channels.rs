//! From process to process of one host, past the network; and processes that die in the midst of a
//! call.

use std::cmp::Reverse;
use std::sync::atomic::AtomicU64;

use nic::peer_memory::Copy;
use stack::env::{AckDelay, Datagram, Input, InputHandler};
use transport::op::SharedBytes;

use super::{Sim, What};
use crate::env::{HostId, INTERFACE, ProcessId, Record};

/// Records after which ACKs that were held back leave, at the latest.
const RECORDS_PER_ACK: u32 = 8;

impl Sim {
    /// Whether processes of a host that are started from now on reach each other past the network:
    /// by channels, and in each other's memory. They do, unless this said no:
    /// then a host is as one whose processes run with `VERBENA_SAME_HOST=off`.
    pub fn set_same_host(&mut self, host: HostId, on: bool) {
        self.shared.hosts()[host.0].same_host.on = on;
    }

    /// Kills a process in the midst of a call, at its step of this number from now on (1: the
    /// next). A step is a packet that it sends, a record for a channel, the beginning and the
    /// middle of a copy, also of one that another process does with its memory, and each time that
    /// it lends something or takes it back. It may die in a call of its own program, which goes
    /// on with what has no effect any more: see [`Sim::lives`].
    pub fn kill_at_step(&mut self, process: ProcessId, steps: u64) {
        let Some(node) = self.node(process) else { return };
        self.shared.hosts()[node.env().host().0].same_host.light(process, steps);
    }

    /// Whether a process lives, to be asked after each call of its program where
    /// [`Sim::kill_at_step`] is used.
    pub fn lives(&mut self, process: ProcessId) -> bool {
        self.flush();
        self.node(process).is_some()
    }

    /// Kills the processes that died in the midst of a call, now that it is over.
    pub(super) fn bury(&mut self) {
        let died: Vec<ProcessId> =
            self.shared.hosts().iter_mut().flat_map(|host| std::mem::take(&mut host.died)).collect();
        died.into_iter().for_each(|process| self.kill(process));
    }

    pub(super) fn put(&mut self, from: ProcessId, block: u16, record: Record) {
        let Some(node) = self.node(from) else { return };
        let host = node.env().host();
        let now = self.shared.clock.nanos();
        let clogged = self.network.clogged_until(host, host);
        let put = {
            let host = &mut self.shared.hosts()[host.0];
            let owner = host.owner(block);
            host.same_host.put([now, clogged], from, block, owner)
        };
        let packets = record.bytes.len().div_ceil(record.size.max(1)) as u64;
        self.counters.sent += packets;
        let Some((at, to)) = put else {
            self.counters.lost += packets;
            return;
        };
        self.counters.by_channel += packets;
        self.note_record("put", &record);
        self.schedule_at(at, What::ByChannel { from, to, record });
    }

    /// What a process has sent by a way that is cut.
    pub(super) fn cut(&mut self, record: &Record) {
        let packets = record.bytes.len().div_ceil(record.size.max(1)) as u64;
        self.counters.sent += packets;
        self.counters.lost += packets;
        self.note_record("cut", record);
    }

    pub(super) fn copied(&mut self, from: ProcessId, to: ProcessId, what: Copy, len: u64, whole: bool) {
        match whole {
            true => self.counters.copied += 1,
            false => self.counters.not_copied += 1,
        }
        let word = match what {
            Copy::Write => "write",
            Copy::Read => "read",
            Copy::Pull => "pull",
            Copy::Put => "put",
            Copy::Flush(_) => "flush",
            Copy::Atomic(_) => "atomic",
        };
        self.note(word, &[from.0 as u64, to.0 as u64, len, whole.into()]);
    }

    /// A record is read, often with those after it: by a thread of the program, or by the engine.
    pub(super) fn arrive_by_channel(&mut self, from: ProcessId, to: ProcessId, record: &Record) {
        let ack_delay = self.dice.pick(&[AckDelay::No, AckDelay::Briefly, AckDelay::ForProgram]);
        self.read(to, ack_delay, record);
        let now = self.shared.clock.nanos();
        for _ in 1..RECORDS_PER_ACK {
            if !self.dice.chance(self.network.faults.together) {
                break;
            }
            match self.due.peek() {
                Some(Reverse(due))
                    if due.at == now
                        && matches!(&due.what, What::ByChannel { from: f, to: t, .. } if (*f, *t) == (from, to)) =>
                    {}
                _ => break,
            }
            let Some(Reverse(due)) = self.due.pop() else { break };
            if let What::ByChannel { record, .. } = due.what {
                self.read(to, ack_delay, &record);
            }
        }
        if let Some(node) = self.node(to) {
            node.release(false);
        }
    }

    fn read(&mut self, to: ProcessId, ack_delay: AckDelay, record: &Record) {
        // It may have died of what came before.
        self.flush();
        let Some(_) = self.node(to) else { return };
        let Record { source, dest, size, short, headers, bytes } = record;
        self.counters.delivered += bytes.len().div_ceil((*size).max(1)) as u64;
        self.note_record("read", record);
        let (source, dest, interface, forwarded) = ((*source).into(), (*dest).into(), INTERFACE, false);
        let run = Datagram { source, dest, interface, forwarded, ack_delay, bytes };
        if let Some(headers) = headers {
            let words: Vec<AtomicU64> = bytes.chunks(8).map(word).collect();
            let piece = SharedBytes::new(&words, bytes.len());
            return self.tell(to, Input::Fragment(Datagram { bytes: headers, ..run }, piece));
        }
        let told = match short {
            Some(short) => Input::Short(run, *short),
            None => Input::Unsealed { run, size: (*size).max(1) },
        };
        self.tell(to, told);
    }
}

/// Bytes, eight at most, as a word of memory that processes share.
fn word(bytes: &[u8]) -> AtomicU64 {
    let mut eight = [0; 8];
    eight[..bytes.len()].copy_from_slice(bytes);
    AtomicU64::new(u64::from_le_bytes(eight))
}
