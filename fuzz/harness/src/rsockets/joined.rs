//! Both ends of a stream, joined by queues of requests. Their programs call anything; the order of
//! steps is any, and the connection may be cut between two of them.
//!
//! Bytes arrive in order, once, and all before the end. An end that is cut reads all that had
//! arrived, and is told of one error. WRITEs stay inside of what the peer has offered.

use std::collections::VecDeque;

use nic::Errno;
use rsocket::Settings;
use rsocket::conn_data::{SGE_LEN, Sge};
use rsocket::message::Message;
use rsocket::stream::{How, Mapping, Stream};
use rsocket::verbs::{MAX_INLINE, Mark, Payload, Place, Refused, Variant, Verbs};
use transport::op::Status;

use crate::Input;

const STEPS: u32 = 600;
const TARGETS: usize = 2;
/// Bytes of an entry of the table of mappings.
const MAPPING_LEN: usize = MAX_INLINE;
const RING: u64 = 0x1000_0000;
const LISTS: u64 = 0x2000_0000;
/// Memory that a program maps, and the offset that it begins at.
const MAPPED: Sge = Sge { addr: 0x3000_0000, key: 3, length: 512 };
const OFFSET: u64 = 1000;

struct Request {
    mark: Mark,
    to: Place,
    bytes: Vec<u8>,
    message: Option<u32>,
    is_send: bool,
}

/// The queue pair of one end, and its memory.
struct Port {
    send: Vec<u8>,
    ring: Vec<u8>,
    lists: Vec<u8>,
    mapped: Vec<u8>,
    receives: VecDeque<u32>,
    words: Vec<u32>,
    requests: VecDeque<Request>,
    /// Requests that have arrived, and whose completions have not come.
    done: VecDeque<Mark>,
    entries: usize,
}

impl Port {
    fn new(settings: &Settings) -> Self {
        let receives = settings.receive_queue + rsocket::settings::EXTRA_RECEIVES;
        Self {
            send: vec![0; settings.send_buffer as usize],
            ring: vec![0; settings.receive_buffer as usize],
            lists: vec![0; TARGETS * SGE_LEN + usize::from(settings.mappings) * MAPPING_LEN],
            mapped: vec![0; MAPPED.length as usize],
            receives: (0..receives).collect(),
            words: vec![0; receives as usize],
            requests: VecDeque::new(),
            done: VecDeque::new(),
            entries: settings.send_queue as usize,
        }
    }

    fn push(&mut self, request: Request) -> Result<(), Refused> {
        self.requests.push_back(request);
        assert!(self.requests.len() + self.done.len() <= self.entries, "more requests than the queue takes");
        Ok(())
    }

    /// A WRITE of the peer.
    fn written(&mut self, to: Place, bytes: &[u8]) {
        let (first, memory) = match to.key {
            _ if bytes.is_empty() => return,
            1 => (RING, &mut self.ring),
            2 => (LISTS, &mut self.lists),
            _ => (MAPPED.addr, &mut self.mapped),
        };
        let at = to.addr.checked_sub(first).expect("behind the beginning") as usize;
        memory.get_mut(at..at + bytes.len()).expect("before the end").copy_from_slice(bytes);
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
        self.push(Request { mark, to, bytes, message, is_send: false })
    }
    fn send(&mut self, mark: Mark, message: u32) -> Result<(), Refused> {
        let to = Place { addr: 0, key: 0 };
        self.push(Request { mark, to, bytes: Vec::new(), message: Some(message), is_send: true })
    }
    fn post_receive(&mut self, slot: u32) -> Result<(), Refused> {
        assert!(!self.receives.contains(&slot), "receive {slot} is posted already");
        self.receives.push_back(slot);
        Ok(())
    }
    fn received(&self, slot: u32) -> u32 {
        self.words[slot as usize]
    }
    fn fill(&mut self, at: u32, bytes: &[u8]) {
        self.send[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }
    fn drain(&self, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.ring[at as usize..at as usize + bytes.len()]);
    }
    fn take_target(&mut self, entry: u32, length: u32) -> Option<Sge> {
        let at = entry as usize * SGE_LEN;
        let found = Sge::of_memory(self.lists[at..].first_chunk().expect("an entry"));
        if found.length != length {
            return None;
        }
        self.lists[at + 12..at + SGE_LEN].fill(0);
        Some(found)
    }
    fn mapping(&self, entry: u32) -> (u64, Sge) {
        let entry = &self.lists[TARGETS * SGE_LEN + entry as usize * MAPPING_LEN..];
        let offset = u64::from_ne_bytes(*entry.first_chunk().expect("an offset"));
        (offset, Sge::of_memory(entry[8..].first_chunk().expect("its memory")))
    }
    fn told(&self) -> (Sge, Sge) {
        let list = Sge { addr: LISTS, key: 2, length: TARGETS as u32 };
        (list, Sge { addr: RING, key: 1, length: self.ring.len() as u32 })
    }
}

/// One end, and what its program knows.
struct End {
    stream: Stream,
    port: Port,
    /// Bytes that it has written and read, and bytes of the peer that have arrived.
    written: usize,
    read: usize,
    arrived: usize,
    /// Whether the program reads; whether it has said that it writes no more.
    reads: bool,
    is_shut: bool,
    errors: u32,
    /// What the peer has written to the mapped memory.
    expected: Vec<u8>,
}

fn byte(end: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ end) as u8
}

impl End {
    fn told_of(&mut self, error: Errno, is_cut: bool) {
        if error != Errno::EPIPE {
            assert!(is_cut && error == Errno::ECONNRESET, "{error:?} without a cut");
            self.errors += 1;
        }
    }

    fn progress(&mut self) {
        self.stream.progress(&mut self.port);
    }

    fn keep_alive(&mut self) {
        self.stream.keep_alive(&mut self.port);
    }
}

struct Pair {
    ends: [End; 2],
    variant: Variant,
    is_cut: bool,
}

impl Pair {
    fn new(settings: [Settings; 2], variant: Variant) -> Self {
        let ports = settings.map(|settings| Port::new(&settings));
        let told = [0, 1].map(|n| Stream::conn_data(&settings[n], &ports[n]));
        let mut peer = [1, 0].into_iter().zip(settings);
        let ends = ports.map(|port| {
            let (peer, settings) = peer.next().expect("two ends");
            let stream = Stream::new(&settings, variant, &told[peer]);
            let expected = port.mapped.clone();
            let (written, read, arrived, errors) = (0, 0, 0, 0);
            let mut end =
                End { stream, port, written, read, arrived, reads: true, is_shut: false, errors, expected };
            end.progress();
            end
        });
        Self { ends, variant, is_cut: false }
    }

    /// The next request of an end arrives; false where there is none, or it has to wait.
    fn deliver(&mut self, from: usize) -> bool {
        let [one, other] = &mut self.ends;
        let (from, to) = if from == 0 { (one, other) } else { (other, one) };
        let Some(request) = from.port.requests.front() else { return false };
        if request.message.is_some() && to.port.receives.is_empty() {
            assert!(self.variant == Variant::Immediate, "a SEND finds no receive");
            return false;
        }
        let Some(request) = from.port.requests.pop_front() else { return false };
        to.port.written(request.to, &request.bytes);
        if let Some(word) = request.message {
            let slot = to.port.receives.pop_front().expect("looked at above");
            to.port.words[slot as usize] = word;
            if let Some(Message::Data(bytes)) = Message::decode(word) {
                to.arrived += bytes as usize;
            }
            to.stream.on_received(&mut to.port, slot, (!request.is_send).then_some(word));
            to.progress();
        }
        from.port.done.push_back(request.mark);
        true
    }

    fn complete(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let Some(mark) = end.port.done.pop_front() else { return false };
        end.stream.on_sent(mark, Status::Success);
        end.progress();
        true
    }

    fn write(&mut self, at: usize, most: usize, more: bool) {
        let end = &mut self.ends[at];
        let bytes: Vec<u8> = (0..most).map(|n| byte(at, end.written + n)).collect();
        let (one, rest) = bytes.split_at(most / 3);
        match end.stream.write(&mut end.port, &[one, rest], more) {
            Ok(n) => end.written += n,
            Err(error) => end.told_of(error, self.is_cut),
        }
    }

    /// Reads; true where bytes have come.
    fn read(&mut self, at: usize, most: usize, peek: bool) -> bool {
        let peer = (self.ends[1 - at].written, self.ends[1 - at].is_shut);
        let end = &mut self.ends[at];
        let mut bytes = vec![0; most];
        let (one, rest) = bytes.split_at_mut(most / 2);
        let read = end.stream.read(&end.port, &mut [one, rest], peek);
        end.progress();
        match read {
            Ok(Some(0)) if end.reads && self.is_cut => {
                assert_eq!(end.read, end.arrived, "bytes that had arrived are lost");
            }
            Ok(Some(0)) if end.reads => assert_eq!((end.read, true), peer, "the end came too early"),
            Ok(Some(n)) => {
                assert!(n == 0 || end.reads, "bytes after the program has ended reading");
                let wrong = bytes[..n].iter().enumerate().find(|(i, b)| **b != byte(1 - at, end.read + i));
                assert_eq!(wrong, None, "behind {}", end.read);
                end.read += if peek { 0 } else { n };
                return n > 0 && !peek;
            }
            Ok(None) => {}
            Err(error) => {
                assert!(!end.reads || end.read == end.arrived, "bytes that had arrived are lost");
                end.told_of(error, self.is_cut);
            }
        }
        false
    }

    fn shut(&mut self, at: usize, how: How) {
        let end = &mut self.ends[at];
        end.reads &= how == How::Write;
        end.is_shut |= how != How::Read;
        end.stream.shutdown(how);
        end.progress();
    }

    /// Lets the peer write to memory, or writes to the peer's.
    fn map(&mut self, at: usize, input: &mut Input<'_>) {
        let [one, other] = &mut self.ends;
        let (end, peer) = if at == 0 { (one, other) } else { (other, one) };
        if input.one_in(4) {
            // ENOMEM: the peer's table is full.
            _ = end.stream.map(Mapping { offset: OFFSET, memory: MAPPED });
            return end.progress();
        }
        let (bytes, into) = (input.bytes(64), input.below(MAPPED.length) as usize);
        match end.stream.write_mapped(&mut end.port, bytes, OFFSET + into as u64) {
            Ok(Some(n)) => peer.expected[into..into + n].copy_from_slice(&bytes[..n]),
            Ok(None) => {}
            Err(error) => end.told_of(error, self.is_cut),
        }
    }

    fn cut(&mut self) {
        self.is_cut = true;
        for end in &mut self.ends {
            end.port.requests.clear();
            end.stream.on_disconnected();
        }
    }

    /// What is under way arrives, and is read.
    fn settle(&mut self) {
        self.ends.iter_mut().for_each(|end| end.stream.push(&mut end.port));
        while (0..2).any(|at| {
            let moved = !self.is_cut && self.deliver(at);
            moved || self.complete(at) || self.read(at, 4096, false)
        }) {}
        for at in 0..2 {
            let written = self.ends[1 - at].written;
            let end = &self.ends[at];
            let due = if self.is_cut { end.arrived } else { written };
            assert!(!end.reads || end.read == due, "{} of {due} bytes were read", end.read);
            assert!(end.stream.is_flushed(), "something waits for ever");
            assert!(end.errors <= 1, "an error is told once");
            assert!(self.is_cut || end.port.mapped == end.expected, "mapped memory has other bytes");
        }
    }
}

fn settings(input: &mut Input<'_>) -> Settings {
    let settings = Settings {
        send_buffer: input.below(1 << 14),
        receive_buffer: input.below(1 << 14),
        send_queue: input.below(64),
        receive_queue: input.below(64),
        mappings: input.below(4) as u16,
        ..Settings::default()
    };
    settings.in_range()
}

pub(super) fn run(input: &mut Input<'_>) {
    let variant = if input.any() { Variant::Immediate } else { Variant::Sends };
    let mut pair = Pair::new([settings(input), settings(input)], variant);
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        let at = usize::from(input.any::<bool>());
        match input.below(16) {
            0..=2 => pair.write(at, input.below(6000) as usize, input.one_in(4)),
            3..=5 => _ = pair.read(at, 1 + input.below(6000) as usize, input.one_in(8)),
            6..=9 => _ = !pair.is_cut && pair.deliver(at),
            10..=12 => _ = pair.complete(at),
            13 => pair.map(at, input),
            14 => pair.ends[at].keep_alive(),
            _ => match input.below(16) {
                0 => pair.cut(),
                1..=8 => pair.shut(at, input.choose(&[How::Read, How::Write, How::Both])),
                _ => _ = pair.ends[at].stream.readiness(),
            },
        }
    }
    pair.settle();
}
