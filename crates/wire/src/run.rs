//! Runs: packets of one message that a single read brings, one behind the other, equal but for PSN,
//! payload and ICRC. Segmentation of a long datagram (UDP GSO and GRO) makes them.

use crate::bth::Bth;
use crate::roce::{Header, Op, Packet, ReadAt, SendAt, Service, WriteAt};

/// Bytes of a BTH before its PSN that the packets of a run share.
const SHARED: usize = Bth::LEN - 3;

/// Pieces of one length, a stride apart.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// From the begin of the first piece to the end of the last one.
    bytes: &'a [u8],
    piece: usize,
    stride: usize,
}

impl<'a> Strided<'a> {
    /// The whole pieces in `bytes`, which begins with one.
    ///
    /// # Panics
    ///
    /// If `piece` is 0, or longer than `stride`.
    #[inline]
    pub fn new(bytes: &'a [u8], piece: usize, stride: usize) -> Self {
        assert!((1..=stride).contains(&piece), "pieces of {piece} bytes, {stride} bytes apart");
        let count = (bytes.len() + stride - piece) / stride;
        let len = count.checked_sub(1).map_or(0, |before| before * stride + piece);
        Strided { bytes: &bytes[..len], piece, stride }
    }

    /// Bytes of all pieces together.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "callers ask how many, never whether there are any")]
    pub fn len(&self) -> usize {
        self.pieces().len() * self.piece
    }

    /// The pieces in their order.
    #[inline]
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let piece = self.piece;
        self.bytes.chunks(self.stride).map(move |chunk| &chunk[..piece])
    }

    /// The bytes from `at` on, `len` of them, as slices in their order; fewer where there are not
    /// as many.
    pub fn range(&self, at: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (mut skip, mut left) = (at % self.piece, len);
        self.pieces().skip(at / self.piece).map_while(move |piece| {
            let from = std::mem::take(&mut skip);
            let taken = &piece[from..][..left.min(piece.len() - from)];
            left -= taken.len();
            (!taken.is_empty()).then_some(taken)
        })
    }
}

/// Packets whose PSNs follow one another, and that differ in nothing else but payload and ICRC.
/// Most runs are one packet.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    first: Packet<'a>,
    /// From the first packet's BTH to the last one's ICRC; empty where only the packet is known.
    bytes: &'a [u8],
    stride: usize,
    count: u32,
}

impl<'a> From<Packet<'a>> for Run<'a> {
    #[inline]
    fn from(packet: Packet<'a>) -> Self {
        Run { first: packet, bytes: &[], stride: 0, count: 1 }
    }
}

impl<'a> Run<'a> {
    /// The run that begins with `first`, which lies at the begin of `bytes` and is `stride` bytes
    /// long, BTH to ICRC. `is_good` judges the ICRC of each packet that may continue it; the run
    /// ends before the first one that does not.
    #[inline]
    pub fn beginning(
        first: Packet<'a>,
        bytes: &'a [u8],
        stride: usize,
        mut is_good: impl FnMut(&'a [u8]) -> bool,
    ) -> Self {
        let mut run = Run { first, bytes: &bytes[..stride], stride, count: 1 };
        if first.payload.is_empty() || !may_have_followers(&first.header) {
            return run;
        }
        let shared = &bytes[..SHARED];
        for next in bytes.chunks_exact(stride).skip(1) {
            let psn = first.header.bth.psn.add(run.count).get().to_be_bytes();
            if next[..SHARED] != *shared || next[SHARED..Bth::LEN] != psn[1..] || !is_good(next) {
                break;
            }
            run.count += 1;
        }
        Run { bytes: &bytes[..run.count as usize * stride], ..run }
    }

    /// The first packet.
    #[inline]
    pub fn first(&self) -> &Packet<'a> {
        &self.first
    }

    /// How many packets there are.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The packets in their order.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'a>> + use<'a> {
        let Run { first: Packet { mut header, payload }, bytes, stride, count } = *self;
        let psn = header.bth.psn;
        (0..count).map(move |n| {
            header.bth.psn = psn.add(n);
            let at = n as usize * stride + Bth::LEN;
            Packet { header, payload: if n == 0 { payload } else { &bytes[at..][..payload.len()] } }
        })
    }

    /// The packets as they came, BTH to ICRC; of a run made from a packet none.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.stride.max(1))
    }

    /// The payloads, of several packets.
    #[inline]
    pub fn payloads(&self) -> Option<Strided<'a>> {
        let piece = self.first.payload.len();
        (self.count > 1).then(|| Strided::new(&self.bytes[Bth::LEN..], piece, self.stride))
    }
}

/// Whether more packets with these headers may follow one: those in the midst of a message, which
/// have no headers behind the BTH.
#[inline]
fn may_have_followers(header: &Header) -> bool {
    let middle = Op::Send(SendAt::Middle) == header.op
        || Op::Write(WriteAt::Middle) == header.op
        || Op::ReadResponse(ReadAt::Middle) == header.op;
    middle && header.service == Service::Rc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Psn;
    use crate::icrc::ICRC_LEN;

    const PAYLOAD: usize = 64;

    /// Packets of these PSNs, one behind the other; the payload of each is its place.
    fn packets(op: Op, psns: &[u32]) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        for (n, &psn) in psns.iter().enumerate() {
            let bth = Bth { psn: Psn::new(psn), ..Bth::default() };
            let mut headers = vec![0; Bth::LEN];
            Header { bth, service: Service::Rc, op }.emit(PAYLOAD, &mut headers);
            bytes.extend(headers);
            bytes.extend([n as u8; PAYLOAD + ICRC_LEN]);
        }
        (bytes, Bth::LEN + PAYLOAD + ICRC_LEN)
    }

    fn begin<'a>(bytes: &'a [u8], stride: usize, is_good: impl FnMut(&'a [u8]) -> bool) -> Run<'a> {
        let first = Packet::parse(&bytes[..stride - ICRC_LEN]).unwrap();
        Run::beginning(first, bytes, stride, is_good)
    }

    #[test]
    fn a_run_ends_before_what_differs() {
        let middle = Op::Write(WriteAt::Middle);
        let count = |psns: &[u32], change: fn(&mut Vec<u8>)| {
            let (mut bytes, stride) = packets(middle, psns);
            change(&mut bytes);
            begin(&bytes, stride, |_| true).count()
        };
        assert_eq!(count(&[7, 8, 9], |_| ()), 3);
        assert_eq!(count(&[0xff_ffff, 0, 1], |_| ()), 3, "PSNs have 24 bits");
        assert_eq!(count(&[7, 9, 10], |_| ()), 1, "one is missing");
        assert_eq!(count(&[7, 7], |_| ()), 1, "the first one again");
        assert_eq!(count(&[7, 8], |bytes| bytes[80] = 0x08), 1, "another opcode");
        assert_eq!(count(&[7, 8], |bytes| bytes[80 + 8] = 0x80), 1, "it asks for an ACK");
        assert_eq!(count(&[7, 8, 9], |bytes| bytes.truncate(2 * 80 + 60)), 2, "a shorter one");
        let (bytes, stride) = packets(middle, &[7, 8, 9]);
        assert_eq!(begin(&bytes, stride, |packet| packet[Bth::LEN] != 2).count(), 2, "a bad ICRC");
        let (bytes, stride) = packets(Op::SEND_ONLY, &[7, 8]);
        assert_eq!(begin(&bytes, stride, |_| true).count(), 1, "a message of its own");
    }

    #[test]
    fn a_run_is_its_packets() {
        let (bytes, stride) = packets(Op::Send(SendAt::Middle), &[5, 6, 7]);
        let run = begin(&bytes, stride, |_| true);
        let singly: Vec<_> =
            bytes.chunks(stride).map(|packet| Packet::parse(&packet[..stride - ICRC_LEN]).unwrap()).collect();
        assert_eq!(run.packets().collect::<Vec<_>>(), singly);
        let payloads = run.payloads().unwrap();
        assert_eq!(payloads.len(), 3 * PAYLOAD);
        assert!(payloads.pieces().eq(singly.iter().map(|packet| packet.payload)));
        let first = Run::from(singly[0]);
        assert!(first.payloads().is_none() && first.packets().eq([singly[0]]));
    }

    #[test]
    fn a_range_of_pieces_is_that_of_their_bytes_in_one() {
        let bytes: Vec<u8> = (0..40).collect();
        let strided = Strided::new(&bytes, 6, 10);
        let whole: Vec<u8> = strided.pieces().flatten().copied().collect();
        assert_eq!((whole.len(), strided.len()), (24, 24));
        for at in 0..=24 {
            for len in 0..=24 - at {
                let range: Vec<u8> = strided.range(at, len).flatten().copied().collect();
                assert_eq!(range, whole[at..at + len], "{len} from {at}");
            }
        }
        assert_eq!(Strided::new(&bytes[..36], 6, 10).len(), 24, "nothing need follow the last one");
        assert_eq!(Strided::new(&bytes[..35], 6, 10).len(), 18, "a piece in part");
        assert_eq!(Strided::new(&[], 6, 10).len(), 0);
    }
}
