//! Two streams whose queue pairs are queues of requests, delivered one by one.

use std::collections::VecDeque;

use transport::op::Status;

use crate::conn_data::{SGE_LEN, Sge, field};
use crate::settings::{EXTRA_RECEIVES, Settings};
use crate::stream::{MAPPING_LEN, Stream, TARGETS};
use crate::verbs::{Mark, Payload, Place, Refused, Variant, Verbs};

const RING: Sge = Sge { addr: 0x1000_0000, key: 1, length: 0 };
const LISTS: Sge = Sge { addr: 0x2000_0000, key: 2, length: TARGETS };
/// Memory that the program maps.
pub(super) const MAPPED: Sge = Sge { addr: 0x3000_0000, key: 3, length: 4096 };

struct Op {
    mark: Mark,
    to: Place,
    bytes: Vec<u8>,
    message: Option<u32>,
    is_send: bool,
}

/// The queue pair of one end, and its memory.
pub(super) struct Port {
    send: Vec<u8>,
    pub(super) ring: Vec<u8>,
    pub(super) lists: Vec<u8>,
    pub(super) mapped: Vec<u8>,
    receives: VecDeque<u32>,
    messages: Vec<u32>,
    queue: VecDeque<Op>,
    /// Entries of the send queue that are taken, of so many.
    taken: u32,
    entries: u32,
    done: VecDeque<Mark>,
}

impl Port {
    fn new(settings: &Settings) -> Self {
        let receives = settings.receive_queue + EXTRA_RECEIVES;
        Self {
            send: vec![0; settings.send_buffer as usize],
            ring: vec![0; settings.receive_buffer as usize],
            lists: vec![0; TARGETS as usize * SGE_LEN + usize::from(settings.mappings) * MAPPING_LEN],
            mapped: vec![0; MAPPED.length as usize],
            receives: (0..receives).collect(),
            messages: vec![0; receives as usize],
            queue: VecDeque::new(),
            taken: 0,
            entries: settings.send_queue,
            done: VecDeque::new(),
        }
    }

    fn push(&mut self, op: Op) -> Result<(), Refused> {
        assert!(self.taken < self.entries, "the send queue is full");
        self.taken += 1;
        self.queue.push_back(op);
        Ok(())
    }

    /// What a WRITE of the peer does.
    fn written(&mut self, to: Place, bytes: &[u8]) {
        let memories = [(RING, &mut self.ring), (LISTS, &mut self.lists), (MAPPED, &mut self.mapped)];
        if bytes.is_empty() {
            return;
        }
        for (at, memory) in memories {
            if at.key == to.key {
                let at = usize::try_from(to.addr - at.addr).unwrap();
                return memory[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        panic!("no memory has the key {}", to.key);
    }
}

impl Verbs for Port {
    fn write(
        &mut self,
        mark: Mark,
        to: Place,
        payload: Payload<'_>,
        message: Option<u32>,
    ) -> Result<(), Refused> {
        let bytes = match payload {
            Payload::Inline(bytes) => bytes.to_vec(),
            Payload::Buffered(span) => {
                let (at, first) = (span.at as usize, span.first as usize);
                [&self.send[at..at + first], &self.send[..span.rest as usize]].concat()
            }
        };
        self.push(Op { mark, to, bytes, message, is_send: false })
    }
    fn send(&mut self, mark: Mark, message: u32) -> Result<(), Refused> {
        let to = Place { addr: 0, key: 0 };
        self.push(Op { mark, to, bytes: Vec::new(), message: Some(message), is_send: true })
    }
    fn post_receive(&mut self, slot: u32) -> Result<(), Refused> {
        self.receives.push_back(slot);
        Ok(())
    }
    fn received(&self, slot: u32) -> u32 {
        self.messages[slot as usize]
    }
    fn fill(&mut self, at: u32, bytes: &[u8]) {
        self.send[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }
    fn drain(&self, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.ring[at as usize..at as usize + bytes.len()]);
    }
    fn take_target(&mut self, entry: u32, length: u32) -> Option<Sge> {
        let at = entry as usize * SGE_LEN;
        let found = Sge::of_memory(&field(&self.lists, at));
        if found.length != length {
            return None;
        }
        self.lists[at + 12..at + 16].fill(0);
        Some(found)
    }
    fn mapping(&self, entry: u32) -> (u64, Sge) {
        let at = TARGETS as usize * SGE_LEN + entry as usize * MAPPING_LEN;
        (u64::from_ne_bytes(field(&self.lists, at)), Sge::of_memory(&field(&self.lists, at + 8)))
    }
    fn told(&self) -> (Sge, Sge) {
        (LISTS, Sge { length: self.ring.len() as u32, ..RING })
    }
}

/// One end.
pub(super) struct End {
    pub(super) stream: Stream,
    pub(super) port: Port,
}

impl End {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, nic::Errno> {
        self.write_of(bytes, false)
    }

    /// Writes, perhaps with more to say (MSG_MORE).
    pub(super) fn write_of(&mut self, bytes: &[u8], more: bool) -> Result<usize, nic::Errno> {
        let (one, other) = bytes.split_at(bytes.len() / 3);
        self.stream.write(&mut self.port, &[one, other], more)
    }

    pub(super) fn read(&mut self, most: usize) -> Result<Option<Vec<u8>>, nic::Errno> {
        let mut bytes = vec![0; most];
        let (one, other) = bytes.split_at_mut(most / 2);
        let n = self.stream.read(&self.port, &mut [one, other], false)?;
        self.stream.progress(&mut self.port);
        Ok(n.map(|n| {
            bytes.truncate(n);
            bytes
        }))
    }

    /// A message of 32 bits comes, whatever it says.
    pub(super) fn receive_word(&mut self, word: u32) {
        if let Some(slot) = self.port.receives.pop_front() {
            self.stream.on_received(&mut self.port, slot, Some(word));
            self.stream.progress(&mut self.port);
        }
    }

    /// Messages of data that this end has sent and the peer has not.
    pub(super) fn messages_under_way(&self) -> usize {
        self.port.queue.iter().filter(|op| op.mark.bytes > 0).count()
    }

    /// Takes a completion of a request, if there is one.
    pub(super) fn complete(&mut self) -> bool {
        let Some(mark) = self.port.done.pop_front() else { return false };
        self.port.taken -= 1;
        self.stream.on_sent(mark, Status::Success);
        self.stream.progress(&mut self.port);
        true
    }
}

/// Two ends.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    variant: Variant,
}

impl Pair {
    pub(super) fn new(settings: [Settings; 2], variant: Variant) -> Self {
        let settings = settings.map(Settings::in_range);
        let ports = settings.map(|settings| Port::new(&settings));
        let [one, other] = [0, 1].map(|n| Stream::conn_data(&settings[n], &ports[n]));
        let [a, b] = ports;
        let end = |n: usize, port, peer| {
            let mut end = End { stream: Stream::new(&settings[n], variant, peer), port };
            end.stream.progress(&mut end.port);
            end
        };
        Self { ends: [end(0, a, &other), end(1, b, &one)], variant }
    }

    /// Delivers the next request of an end, if there is one and a receive for it.
    pub(super) fn deliver(&mut self, from: usize) -> bool {
        let [one, other] = &mut self.ends;
        let (from, to) = if from == 0 { (one, other) } else { (other, one) };
        let Some(op) = from.port.queue.front() else { return false };
        if op.message.is_some() && to.port.receives.is_empty() {
            assert!(self.variant == Variant::Immediate, "a SEND finds no receive");
            return false;
        }
        let Some(op) = from.port.queue.pop_front() else { return false };
        to.port.written(op.to, &op.bytes);
        if let Some(word) = op.message {
            let slot = to.port.receives.pop_front().unwrap_or_default();
            to.port.messages[slot as usize] = word;
            to.stream.on_received(&mut to.port, slot, (!op.is_send).then_some(word));
            to.stream.progress(&mut to.port);
        }
        from.port.done.push_back(op.mark);
        true
    }

    /// Delivers and completes all there is.
    pub(super) fn settle(&mut self) {
        while (0..2).any(|n| self.deliver(n) || self.ends[n].complete()) {}
    }
}
