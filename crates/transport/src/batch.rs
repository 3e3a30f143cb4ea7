//! A batch of packets to one destination: one contiguous buffer, so that a run of equal sizes
//! leaves in one segmented send. Reused; filling it allocates nothing once it has grown.

use wire::bth::Bth;
use wire::icrc::{ICRC_LEN, Remainder};
use wire::roce::{Header, send_only};

use crate::Fault;

/// Most packets a batch takes (the kernel's UDP_MAX_SEGMENTS is 64 on the oldest kernels we meet).
pub const MAX_PACKETS: usize = 64;
/// Most bytes a batch takes: a message of 64 KiB with its headers and the beginning of the next,
/// little enough to stay in a cache.
pub const MAX_BYTES: usize = 72 << 10;
/// Most bytes of a run: what one UDP datagram may hold.
pub const MAX_RUN: usize = 65_507;

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
        (self.used, self.count) = (self.used + len, self.count + 1);
        self.remainders.push(remainder);
        match self.runs.last_mut() {
            Some(run) if run.goes_on_with(len) => (run.len, run.count) = (run.len + len, run.count + 1),
            _ => self.runs.push(Run { size: len, len, count: 1 }),
        }
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
