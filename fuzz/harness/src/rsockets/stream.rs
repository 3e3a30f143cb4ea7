//! One end of a stream. Its program calls anything, its peer writes anything to messages, target
//! list and table of mappings.
//!
//! Requests never exceed the queue, and stay inside of the send buffer. No more counts as received
//! than the peer may have sent. A receive is posted again only once it has completed.

use std::collections::VecDeque;

use nic::Errno;
use rsocket::Settings;
use rsocket::conn_data::{ConnData, LEN, Sge};
use rsocket::message::{Control, Message};
use rsocket::stream::{How, Mapping, Stream};
use rsocket::verbs::{Mark, Payload, Place, Refused, Variant, Verbs};
use transport::op::Status;

use crate::Input;

const STEPS: u32 = 400;
/// Entries of a target list.
const TARGETS: usize = 2;

/// A queue pair and its memory.
struct Ends {
    settings: Settings,
    /// Requests that have not completed.
    requests: VecDeque<Mark>,
    /// Receives that are posted, by their numbers.
    posted: Vec<bool>,
    words: Vec<u32>,
    targets: [Sge; TARGETS],
    /// Bytes of each piece of the peer's ring.
    piece: u32,
    mappings: Vec<(u64, Sge)>,
    /// The queue pair takes no request.
    is_full: bool,
}

impl Ends {
    fn new(settings: Settings, piece: u32) -> Self {
        let receives = (settings.receive_queue + rsocket::settings::EXTRA_RECEIVES) as usize;
        Self {
            settings,
            requests: VecDeque::new(),
            posted: vec![true; receives],
            words: vec![0; receives],
            targets: Default::default(),
            piece,
            mappings: vec![Default::default(); settings.mappings.into()],
            is_full: false,
        }
    }

    fn request(&mut self, mark: Mark) -> Result<(), Refused> {
        if self.is_full {
            return Err(Refused);
        }
        self.requests.push_back(mark);
        assert!(
            self.requests.len() <= self.settings.send_queue as usize,
            "more requests than the queue takes"
        );
        Ok(())
    }
}

impl Verbs for Ends {
    fn write(&mut self, mark: Mark, _: Place, payload: Payload<'_>, _: Option<u32>) -> Result<(), Refused> {
        match payload {
            Payload::Buffered(span) => {
                let end = span.at.checked_add(span.first).expect("a span of the buffer");
                let size = self.settings.send_buffer;
                assert!(end <= size && (span.rest == 0 || end == size) && span.rest <= span.at, "{span:?}");
            }
            Payload::Inline(bytes) => assert!(bytes.len() <= rsocket::verbs::MAX_INLINE),
        }
        self.request(mark)
    }

    fn send(&mut self, mark: Mark, _: u32) -> Result<(), Refused> {
        self.request(mark)
    }

    fn post_receive(&mut self, slot: u32) -> Result<(), Refused> {
        let posted = &mut self.posted[slot as usize];
        assert!(!*posted, "receive {slot} is posted already");
        *posted = true;
        Ok(())
    }

    fn received(&self, slot: u32) -> u32 {
        self.words[slot as usize]
    }

    fn fill(&mut self, at: u32, bytes: &[u8]) {
        assert!(
            at as usize + bytes.len() <= self.settings.send_buffer as usize,
            "outside of the send buffer"
        );
    }

    fn drain(&self, at: u32, bytes: &mut [u8]) {
        assert!(at as usize + bytes.len() <= self.settings.receive_buffer as usize, "outside of the ring");
    }

    fn take_target(&mut self, entry: u32, length: u32) -> Option<Sge> {
        let target = self.targets.get_mut(entry as usize).filter(|target| target.length == length)?;
        let found = *target;
        target.length = 0;
        Some(found)
    }

    fn mapping(&self, entry: u32) -> (u64, Sge) {
        self.mappings[entry as usize]
    }

    fn told(&self) -> (Sge, Sge) {
        let ring = Sge { addr: 1 << 20, key: 2, length: self.settings.receive_buffer };
        (Sge { addr: 1 << 30, key: 1, length: TARGETS as u32 }, ring)
    }
}

fn sge(input: &mut Input<'_>) -> Sge {
    let length = if input.any() { input.below(1 << 16) } else { input.u32() };
    Sge { addr: input.u64(), key: input.u32(), length }
}

/// Connection data: of any bytes, or right but for its numbers.
fn peer(input: &mut Input<'_>) -> Option<ConnData> {
    if input.any() {
        let data = ConnData {
            big_endian: input.any(),
            credits: input.any(),
            mappings: input.any::<bool>().then(|| input.below(300) as u16),
            target_list: Sge { length: 2 + input.below(1000), ..sge(input) },
            ring: sge(input),
        };
        return ConnData::decode(&data.encode()).ok();
    }
    let found = ConnData::decode(input.bytes(LEN + 16)).ok()?;
    let again = ConnData::decode(&found.encode()).expect("what is written is read");
    assert_eq!(again.target_list, found.target_list);
    Some(found)
}

fn word(input: &mut Input<'_>, settings: &Settings) -> u32 {
    match input.below(8) {
        0 => input.u32(),
        1 | 2 => Message::Data(input.below(settings.receive_buffer)).encode(),
        3 => Message::Data(input.below(100)).encode(),
        4 => Message::Credits(input.any()).encode(),
        5 => Message::Credits(input.below(600) as u16).encode(),
        6 => Message::Mapping(input.below(1 + u32::from(settings.mappings))).encode(),
        _ => {
            let which = [Control::KeepAlive, Control::Shutdown, Control::Disconnect];
            Message::Control(input.choose(&which)).encode()
        }
    }
}

pub(super) fn run(input: &mut Input<'_>) {
    let settings = Settings {
        send_buffer: input.below(1 << 17),
        receive_buffer: input.below(1 << 17),
        send_queue: input.below(64),
        receive_queue: input.below(64),
        mappings: input.below(40) as u16,
        ..Settings::default()
    };
    let settings = settings.in_range();
    let Some(peer) = peer(input) else { return };
    let variant = if input.any() { Variant::Immediate } else { Variant::Sends };
    let mut ends = Ends::new(settings, peer.ring.length);
    let mut stream = Stream::new(&settings, variant, &peer);
    stream.progress(&mut ends);
    let mut resets = 0;
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        resets += step(input, &mut stream, &mut ends, variant);
        stream.progress(&mut ends);
        let most = u64::from(settings.receive_buffer);
        assert!(stream.readable_bytes() <= most, "more counts as received than the ring has");
        assert!(stream.unsent_bytes() <= settings.send_buffer, "more is under way than the buffer has");
        assert!(resets <= 1, "an error is told once");
    }
}

/// A message comes to one of the receives that are posted.
fn message(input: &mut Input<'_>, stream: &mut Stream, ends: &mut Ends, variant: Variant) {
    let posted: Vec<u32> = (0..).zip(&ends.posted).filter(|(_, is)| **is).map(|(n, _)| n).collect();
    let Some(slot) = input.pick(&posted) else { return };
    ends.posted[slot as usize] = false;
    let word = word(input, &ends.settings);
    ends.words[slot as usize] = word;
    let is_right = !input.one_in(32);
    let immediate = (is_right == (variant == Variant::Immediate)).then_some(word);
    stream.on_received(ends, slot, immediate);
}

/// One thing happens; how many errors the program is told of.
fn step(input: &mut Input<'_>, stream: &mut Stream, ends: &mut Ends, variant: Variant) -> u32 {
    let told = |result: Result<(), Errno>| u32::from(result.is_err_and(|error| error != Errno::EPIPE));
    let mut bytes = vec![0; 1 + input.below(40_000) as usize];
    match input.below(14) {
        0..=4 => {
            message(input, stream, ends, variant);
            0
        }
        5 => {
            let entry = input.index(TARGETS);
            let target = sge(input);
            let length = if input.any() { ends.piece } else { target.length };
            ends.targets[entry] = Sge { length, ..target };
            0
        }
        6 => {
            let entry = input.index(ends.mappings.len().max(1));
            let mapping = (input.u64(), sge(input));
            if let Some(place) = ends.mappings.get_mut(entry) {
                *place = mapping;
            }
            0
        }
        7 => told(stream.write(ends, &[&bytes], input.one_in(4)).map(drop)),
        8 => told(stream.read(ends, &mut [&mut bytes], input.any()).map(drop)),
        9 => {
            let status = if input.one_in(16) { Status::RetryExceeded } else { Status::Success };
            let n = input.below(20) as usize;
            for mark in ends.requests.drain(..n.min(ends.requests.len())).collect::<Vec<_>>() {
                stream.on_sent(mark, status);
            }
            0
        }
        10 => {
            stream.shutdown(input.choose(&[How::Read, How::Write, How::Both]));
            0
        }
        11 => {
            let offset = ends.mappings.first().map_or(0, |m| m.0).wrapping_add(input.below(100).into());
            told(stream.write_mapped(ends, &bytes, offset).map(drop))
        }
        12 => {
            let memory = sge(input);
            if stream.map(Mapping { offset: input.u64(), memory }).is_ok() && input.any() {
                stream.unmap(memory.addr, memory.length);
            }
            0
        }
        _ => {
            match input.below(4) {
                0 => stream.keep_alive(ends),
                1 if input.one_in(8) => stream.on_disconnected(),
                2 if input.one_in(8) => ends.is_full = true,
                _ => {}
            }
            u32::from(input.one_in(8) && stream.take_error().is_some())
        }
    }
}
