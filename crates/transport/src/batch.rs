//! A batch of packets to one destination: one contiguous buffer, so that a run of equal sizes
//! leaves in one segmented send. Reused; filling it allocates nothing once it has grown.

use wire::bth::Bth;
use wire::grh::{GRH_LEN, Grh};
use wire::icrc::{ICRC_LEN, MAX_PACKET, PAGE, Remainder};
use wire::roce::{Header, send_only};

use crate::Fault;

/// Most packets a batch takes (the kernel's UDP_MAX_SEGMENTS is 64 on the oldest kernels we meet).
pub const MAX_PACKETS: usize = 64;
/// Most bytes a batch takes: a message of 64 KiB with its headers and the beginning of the next,
/// little enough to stay in a cache.
pub const MAX_BYTES: usize = 72 << 10;
/// Most bytes of a run: what one UDP datagram may hold.
pub const MAX_RUN: usize = 65_507;

/// Fewest packets in the midst of a message that are written as one ([`TxBatch::push_run`]).
pub(crate) const MIN_RUN: usize = 2;

/// Most bytes of a packet's headers.
const MAX_HEADERS: usize = MAX_PACKET - PAGE - ICRC_LEN;

/// Packets for one destination, each from BTH to ICRC, the ICRC's four bytes left for the link to
/// seal.
#[derive(Debug, Default)]
pub struct TxBatch {
    /// Bytes of the packets, as long as the fullest batch so far was: they are overwritten, not
    /// cleared first.
    bytes: Vec<u8>,
    /// Bytes in use.
    used: usize,
    /// Packets.
    count: usize,
    set_aside: usize,
    runs: Vec<Run>,
    /// What the payload of each packet adds to the ICRC, where that was computed on the way.
    remainders: Vec<Option<Remainder>>,
}

/// Packets of a batch that can leave in one segmented send: all of one size, but for the last,
/// which may be shorter; together no longer than [`MAX_RUN`].
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Bytes of each packet but the last.
    pub size: usize,
    /// Bytes of all.
    pub len: usize,
    /// Packets.
    pub count: usize,
}

impl Run {
    /// Whether a packet of `len` bytes would be one more: none has been shorter yet.
    fn goes_on_with(&self, len: usize) -> bool {
        self.len == self.count * self.size && len <= self.size
    }
}

/// The payloads of packets of one size that lie one behind the other in a batch, to be written.
#[derive(Debug)]
pub struct Payloads<'a> {
    /// From the first payload on, to the end of the last packet.
    bytes: &'a mut [u8],
    /// Bytes of each payload.
    len: usize,
    stride: usize,
    remainders: &'a mut [Option<Remainder>],
}

impl Payloads<'_> {
    /// Bytes of all payloads together.
    pub fn len_bytes(&self) -> usize {
        self.remainders.len() * self.len
    }
    /// The payloads in their order; and what each adds to the ICRC, for a writer that knows.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&mut [u8], &mut Option<Remainder>)> {
        let len = self.len;
        self.bytes.chunks_mut(self.stride).map(move |chunk| &mut chunk[..len]).zip(&mut *self.remainders)
    }
    /// The parts of payloads that are the bytes from `at` on, `len` of them, in their order. Where
    /// a part is a whole payload, with what it adds to the ICRC, for a writer that knows.
    pub fn range_mut(
        &mut self,
        at: usize,
        len: usize,
    ) -> impl Iterator<Item = (&mut [u8], Option<&mut Option<Remainder>>)> {
        let (of_one, mut skip, mut left) = (self.len, at % self.len, len);
        self.iter_mut().skip(at / of_one).map_while(move |(payload, remainder)| {
            let from = std::mem::take(&mut skip);
            let part = left.min(of_one - from);
            left -= part;
            (part > 0).then(|| (&mut payload[from..from + part], (part == of_one).then_some(remainder)))
        })
    }
}

/// Bytes of a packet in a batch, BTH to ICRC.
#[inline]
pub fn packet_len(header: &Header, payload_len: usize) -> usize {
    packet_len_of(header.len(), payload_len)
}

/// Like [`packet_len`], for headers of so many bytes.
#[inline]
pub fn packet_len_of(header_len: usize, payload_len: usize) -> usize {
    header_len + payload_len.next_multiple_of(4) + ICRC_LEN
}

impl TxBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Forgets all packets, keeps the memory.
    pub fn clear(&mut self) {
        (self.used, self.count) = (0, 0);
        self.runs.clear();
        self.remainders.clear();
        self.set_aside = 0;
    }
    /// Packets held.
    pub fn len(&self) -> usize {
        self.count
    }
    /// Bytes of all.
    pub fn len_bytes(&self) -> usize {
        self.used
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
    /// Whether a packet of `len` bytes (BTH to ICRC) still fits. A full run ends the batch, so that
    /// the packet after it begins the next one and does not leave alone.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        if self.runs.last().is_some_and(|run| run.goes_on_with(len) && run.len + len > MAX_RUN) {
            return false;
        }
        let more = 1 + usize::from(self.set_aside > 0);
        self.count + more <= MAX_PACKETS && self.used + len + self.set_aside <= MAX_BYTES
    }
    /// How many packets of `len` bytes fit in one run with each other ([`TxBatch::has_room`]).
    pub fn room_for(&self, len: usize) -> usize {
        let in_run = match self.runs.last() {
            Some(run) if run.goes_on_with(len) && run.size == len => (MAX_RUN - run.len) / len,
            // It ends the run before it, or is too long for that.
            Some(run) if run.goes_on_with(len) => usize::from(run.len + len <= MAX_RUN),
            _ => MAX_RUN / len,
        };
        let packets = MAX_PACKETS.saturating_sub(self.count + usize::from(self.set_aside > 0));
        let in_batch = MAX_BYTES.saturating_sub(self.used + self.set_aside) / len;
        in_run.min(packets).min(in_batch)
    }
    /// Keeps room for one packet of `len` bytes that comes last; 0 gives it back.
    pub fn set_aside(&mut self, len: usize) {
        self.set_aside = len;
    }
    /// Appends a packet: headers, then `payload_len` bytes that `fill` writes, then zero padding
    /// and room for the ICRC. Where `fill` fails the batch is as it was. The caller has asked
    /// [`TxBatch::has_room`].
    pub fn push(
        &mut self,
        header: &Header,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.push_with_remainder(header, payload_len, |dst| fill(dst).map(|()| None))
    }
    /// Like [`TxBatch::push`], where `fill` may know what the bytes add to the ICRC.
    pub fn push_with_remainder(
        &mut self,
        header: &Header,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<Remainder>, Fault>,
    ) -> Result<(), Fault> {
        let emit = |packet: &mut [u8]| _ = header.emit(payload_len, packet);
        self.append(header.len(), emit, payload_len, fill)
    }
    /// Like [`TxBatch::push_with_remainder`], for an InfiniBand packet that begins with a GRH.
    pub fn push_global(
        &mut self,
        grh: &Grh,
        header: &Header,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<Remainder>, Fault>,
    ) -> Result<(), Fault> {
        let grh = grh.with_payload_len(packet_len(header, payload_len) as u16);
        let emit = |packet: &mut [u8]| {
            let (before, packet) = packet.split_at_mut(GRH_LEN);
            before.copy_from_slice(&grh.emit());
            header.emit(payload_len, packet);
        };
        self.append(GRH_LEN + header.len(), emit, payload_len, fill)
    }
    /// Like [`TxBatch::push`], for `count` packets with these headers but for the PSN, which grows
    /// from packet to packet. Each has a payload of `payload_len` bytes, whole words.
    ///
    /// # Panics
    ///
    /// If `payload_len` is 0 or not whole words.
    pub fn push_run(
        &mut self,
        header: &Header,
        payload_len: usize,
        count: usize,
        fill: impl FnOnce(&mut Payloads<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        assert!(payload_len > 0 && payload_len.is_multiple_of(4), "{payload_len} bytes are padded");
        let (header_len, len) = (header.len(), packet_len(header, payload_len));
        let end = self.used + count * len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let mut template = [0; MAX_HEADERS];
        header.emit(payload_len, &mut template);
        let packets = &mut self.bytes[self.used..end];
        for (n, packet) in packets.chunks_mut(len).enumerate() {
            packet[..header_len].copy_from_slice(&template[..header_len]);
            Bth::set_psn(packet, header.bth.psn.add(n as u32));
            packet[len - ICRC_LEN..].copy_from_slice(&[0; ICRC_LEN]);
        }
        let known = self.remainders.len();
        self.remainders.resize(known + count, None);
        let mut payloads = Payloads {
            bytes: &mut packets[header_len..],
            len: payload_len,
            stride: len,
            remainders: &mut self.remainders[known..],
        };
        if let Err(fault) = fill(&mut payloads) {
            self.remainders.truncate(known);
            return Err(fault);
        }
        (0..count).for_each(|_| self.lies_behind(len));
        Ok(())
    }
    /// Like [`TxBatch::push`], for a packet with a BTH alone, whose opcode is that of a SEND ONLY
    /// over RC.
    #[inline]
    pub fn push_send_only(
        &mut self,
        bth: &Bth,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let emit = |packet: &mut [u8]| packet[..Bth::LEN].copy_from_slice(&send_only(bth, payload_len));
        self.append(Bth::LEN, emit, payload_len, |dst| fill(dst).map(|()| None))
    }
    /// Writes a packet after the others: `header_len` bytes that `emit` writes, and what follows
    /// them.
    #[inline]
    fn append(
        &mut self,
        header_len: usize,
        emit: impl FnOnce(&mut [u8]),
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<Remainder>, Fault>,
    ) -> Result<(), Fault> {
        let len = packet_len_of(header_len, payload_len);
        let end = self.used + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let packet = &mut self.bytes[self.used..end];
        emit(packet);
        let (payload, rest) = packet[header_len..].split_at_mut(payload_len);
        let remainder = fill(payload)?;
        // Four bytes to seven: two stores, which may overlap, are less than a call.
        let end_of_packet = rest.len() - ICRC_LEN;
        rest[..ICRC_LEN].copy_from_slice(&[0; ICRC_LEN]);
        rest[end_of_packet..].copy_from_slice(&[0; ICRC_LEN]);
        self.took(len, remainder);
        Ok(())
    }
    /// A packet of `len` bytes lies after the others.
    #[inline]
    fn took(&mut self, len: usize, remainder: Option<Remainder>) {
        self.remainders.push(remainder);
        self.lies_behind(len);
    }
    /// A packet of `len` bytes lies after the others, and what is known of it among theirs.
    #[inline]
    fn lies_behind(&mut self, len: usize) {
        (self.used, self.count) = (self.used + len, self.count + 1);
        match self.runs.last_mut() {
            Some(run) if run.goes_on_with(len) => (run.len, run.count) = (run.len + len, run.count + 1),
            _ => self.runs.push(Run { size: len, len, count: 1 }),
        }
    }
    /// Appends a packet as it is, BTH to ICRC: what a link does that repeats some. The caller has
    /// asked [`TxBatch::has_room`].
    pub fn push_packet(&mut self, packet: &[u8]) {
        let end = self.used + packet.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.used..end].copy_from_slice(packet);
        self.took(packet.len(), None);
    }
    /// Keeps the packets, in their order, for which `keep` says so: what a link does that loses
    /// some.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        let runs = std::mem::take(&mut self.runs);
        let remainders = std::mem::take(&mut self.remainders);
        let (mut from, end) = (0, self.used);
        (self.used, self.count) = (0, 0);
        let sizes = runs.iter().flat_map(|run| (0..run.count).map(|n| run.size.min(run.len - n * run.size)));
        for (len, remainder) in sizes.zip(remainders) {
            let packet = from..from + len;
            from += len;
            if keep(&self.bytes[packet.clone()]) {
                self.bytes.copy_within(packet, self.used);
                self.took(len, remainder);
            }
        }
        debug_assert_eq!(from, end);
    }
    /// The bytes of all packets, and how they leave.
    pub fn parts_mut(&mut self) -> (&mut [u8], &[Run]) {
        (&mut self.bytes[..self.used], &self.runs)
    }
    /// Like [`TxBatch::parts_mut`], with what is known of each packet's payload, in their order.
    pub fn parts_to_seal(&mut self) -> (&mut [u8], &[Run], &[Option<Remainder>]) {
        (&mut self.bytes[..self.used], &self.runs, &self.remainders)
    }
    /// The packets, one by one.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.runs().flat_map(|(run, packets)| packets.chunks(run.size))
    }
    /// The runs, with the bytes of each.
    pub fn runs(&self) -> impl Iterator<Item = (&Run, &[u8])> {
        self.runs.iter().scan(&self.bytes[..], |rest, run| {
            let (packets, after) = rest.split_at(run.len);
            *rest = after;
            Some((run, packets))
        })
    }
}
