//! The records of a ring between two processes, and how both say where packets come from.
//!
//! The ends of packets are 52 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 4 or 6, the IP version; 1 between LIDs |
//! | 1 | 0 in a record; for messages between the processes that bear names |
//! | 2 | 0 |
//! | 4 | interface index |
//! | 2 + 2 | source port, destination port |
//! | 4 + 4 | scopes of source and destination address |
//! | 16 + 16 | source, destination address; an IPv4 address in the first four bytes; of a LID two bytes, service level, path bits, whose uppermost bit stands for a GRH |
//!
//! Numbers are little-endian. A record is 4 bytes, the ends, and one packet or more, BTH to ICRC.
//! The 4 bytes say how long each packet is but the last. In the upper bits they say whether the
//! ends are left out, because they are those of the record before. They also say whether there is
//! a short message in place of packets ([`read_record`]), or a fragment of several
//! ([`fragment_head`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use transport::Short;
use transport::short::{MAX_SHORT, What};
use wire::{Endpoint, LidAddress, Rkey};

use crate::ring::{self, Memory, PushError, Writer};

/// Where packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Sender; over UDP with the port it sent from.
    pub source: Endpoint,
    /// The address they are for; over UDP port 4791.
    pub dest: Endpoint,
    /// Interface (device) that bears it; 0 where the receiver has to find that out.
    pub interface: u32,
}

/// Bytes of a ring.
pub const RING_BYTES: usize = 1 << 20;
/// Bytes of the longest record: its packets leave in one segmented send elsewhere.
pub(crate) const MAX_RECORD: usize = transport::batch::MAX_RUN + HEADER + SIZE;
/// In place of an IP version: the ends are LIDs.
const BY_LID: u8 = 1;
/// Bytes of the ends of packets ([`emit`]).
pub const HEADER: usize = 52;
/// Bytes before the ends ([`HEADER`]) in a record.
pub const SIZE: usize = 4;
/// The packets follow at once: interface, addresses and ports are those of the record before.
const SAME: u32 = 1 << 30;
/// Like [`SAME`], but a short message stands in place of packets: [`Short`], then the message.
const SHORT: u32 = 1 << 29;
/// Like [`SHORT`], with immediate data: eight bytes before the message, immediate data first.
const SHORT_SEND: u32 = SHORT | 1 << 27;
/// Like [`SHORT`], for an RDMA WRITE with immediate data: 16 bytes, immediate data, key and
/// address.
const SHORT_WRITE: u32 = SHORT | 1 << 26;
/// Like [`SAME`], but for several packets as one fragment: beside this bit stands how many bytes
/// the headers have, 255 at most. The headers follow, and the payload is the record's body
/// ([`ring::BODY`]).
const FRAGMENT: u32 = 1 << 28;
/// Bytes of the longest head of such a record.
pub const FRAGMENT_HEAD: usize = ring::BODY;
/// Bytes before a short message.
pub const SHORT_HEADER: usize = SIZE + Short::LEN;

/// What a record of a ring begins with, as [`Record`] says; [`set_size`] says the rest of it.
pub fn emit_record(ends: &Ends) -> [u8; SIZE + HEADER] {
    let mut head = [0; SIZE + HEADER];
    head[SIZE..].copy_from_slice(&emit(ends));
    head
}

/// Says in the beginning of a record how long its packets are.
pub fn set_size(head: &mut [u8; SIZE + HEADER], size: usize) {
    head[..SIZE].copy_from_slice(&(size as u32).to_le_bytes());
}

/// What a record begins with where all else is that of the record before.
#[inline]
pub fn same_head(size: usize) -> [u8; SIZE] {
    (size as u32 | SAME).to_le_bytes()
}

/// What a record begins with that holds a short message, where all else is that of the record
/// before.
#[inline]
pub fn short_head(short: &Short) -> [u8; SHORT_HEADER] {
    let mut head = [0; SHORT_HEADER];
    let size = match short.what {
        What::Send => SHORT,
        What::SendImmediate(_) => SHORT_SEND,
        What::WriteImmediate(..) => SHORT_WRITE,
    };
    head[..SIZE].copy_from_slice(&size.to_le_bytes());
    head[SIZE..].copy_from_slice(&short.to_bytes());
    head
}

/// Writes such a record.
///
/// # Errors
///
/// Those of [`Writer::push_words`].
#[inline]
pub fn write_short<M: Memory>(to: &mut Writer<M>, short: &Short, bytes: &[u8]) -> Result<(), PushError> {
    let head = short_head(short);
    let (words, _) = head.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    let says = |data: [u8; 4], key: u32| u64::from(u32::from_le_bytes(data)) | u64::from(key) << 32;
    match short.what {
        What::Send => to.push_words::<{ SHORT_HEADER / 8 }>(std::array::from_fn(word), bytes),
        What::SendImmediate(data) => to.push_words([word(0), word(1), says(data, 0)], bytes),
        What::WriteImmediate(data, key, at) => {
            to.push_words([word(0), word(1), says(data, key.0), at], bytes)
        }
    }
}

/// What a record begins with that holds several packets as one fragment, and its length; where all
/// else is that of the record before. `None` for headers that are too long.
#[inline]
pub fn fragment_head(headers: &[u8]) -> Option<([u8; FRAGMENT_HEAD], usize)> {
    let mut head = [0; FRAGMENT_HEAD];
    let (size, rest) = head.split_first_chunk_mut::<SIZE>()?;
    rest.get_mut(..headers.len())?.copy_from_slice(headers);
    *size = (FRAGMENT | headers.len() as u32).to_le_bytes();
    Some((head, SIZE + headers.len()))
}

/// Whether a record that begins with these bytes is such a one.
#[inline]
pub fn is_fragment(begin: u64) -> bool {
    begin as u32 & !0xff == FRAGMENT
}

/// The headers in the head of such a record; `None` where they are none.
pub fn read_fragment(head: &[u8; FRAGMENT_HEAD]) -> Option<&[u8]> {
    let (size, rest) = head.split_first_chunk::<SIZE>()?;
    let len = u32::from_le_bytes(*size) & 0xff;
    rest.get(..len as usize)
}

/// The ends of packets as bytes.
pub fn emit(ends: &Ends) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = match ends.source {
        Endpoint::Udp(SocketAddr::V4(_)) => 4,
        Endpoint::Udp(SocketAddr::V6(_)) => 6,
        Endpoint::Lid(_) => BY_LID,
    };
    header[4..8].copy_from_slice(&ends.interface.to_le_bytes());
    for (end, port, scope, address) in [(&ends.source, 8, 12, 20), (&ends.dest, 10, 16, 36)] {
        if let Endpoint::Udp(end) = end {
            header[port..port + 2].copy_from_slice(&end.port().to_le_bytes());
        }
        match end {
            Endpoint::Udp(SocketAddr::V4(v4)) => {
                header[address..address + 4].copy_from_slice(&v4.ip().octets());
            }
            Endpoint::Udp(SocketAddr::V6(v6)) => {
                header[scope..scope + 4].copy_from_slice(&v6.scope_id().to_le_bytes());
                header[address..address + 16].copy_from_slice(&v6.ip().octets());
            }
            Endpoint::Lid(lid) => {
                header[address..address + 2].copy_from_slice(&lid.lid().to_le_bytes());
                let grh = u8::from(lid.has_grh()) << 7;
                header[address + 2..address + 4]
                    .copy_from_slice(&[lid.service_level(), lid.path_bits() | grh]);
            }
        }
    }
    header
}

/// The ends at the front of bytes, and what follows them; `None` where they are none.
pub fn read(message: &[u8]) -> Option<(Ends, &[u8])> {
    let (header, bytes) = message.split_first_chunk::<HEADER>()?;
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let end = |port: usize, scope: usize, at: usize| -> Option<Endpoint> {
        let port = u16::from_le_bytes([header[port], header[port + 1]]);
        let address: [u8; 16] = header[at..at + 16].try_into().ok()?;
        let [a, b, c, d, ..] = address;
        match header[0] {
            4 => Some(SocketAddr::from((IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)).into()),
            6 => Some(SocketAddr::V6(SocketAddrV6::new(address.into(), port, 0, u32_at(scope))).into()),
            BY_LID => {
                let lid = LidAddress::new(u16::from_le_bytes([a, b]), c, d & 0x7f).ok()?;
                Some(if d & 0x80 == 0 { lid } else { lid.with_grh() }.into())
            }
            _ => None,
        }
    };
    let (source, dest) = (end(8, 12, 20)?, end(10, 16, 36)?);
    Some((Ends { source, dest, interface: u32_at(4) }, bytes))
}

/// What a record of a ring holds.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// Packets.
    Packets {
        /// Where they come from and go to; `None` where that is said by the record before.
        ends: Option<Ends>,
        /// All packets, one after the other; not none.
        bytes: &'a [u8],
        /// Bytes of each but the last; not 0.
        size: usize,
    },
    /// A short message and its bytes. The record before says where it comes from and goes to.
    Short(Short, &'a [u8]),
}

/// The short message that a record of a ring holds; `None` where it holds something else.
#[inline]
pub fn read_short(record: &[u8]) -> Option<(Short, &[u8])> {
    let (size, message) = record.split_first_chunk::<SIZE>()?;
    let (short, bytes) = message.split_first_chunk()?;
    let short = Short::from_bytes(short);
    let (short, bytes) = match u32::from_le_bytes(*size) {
        SHORT => (short, bytes),
        size => read_what(size, bytes).map(|(what, bytes)| (Short { what, ..short }, bytes))?,
    };
    (bytes.len() <= MAX_SHORT).then_some((short, bytes))
}

/// What a short message is that is no plain SEND, and its bytes.
#[inline(never)]
fn read_what(size: u32, bytes: &[u8]) -> Option<(What, &[u8])> {
    if !matches!(size, SHORT_SEND | SHORT_WRITE) {
        return None;
    }
    let ([a, b, c, d, key @ ..], bytes) = bytes.split_first_chunk::<8>()?;
    let data = [*a, *b, *c, *d];
    if size == SHORT_SEND {
        return Some((What::SendImmediate(data), bytes));
    }
    let (at, bytes) = bytes.split_first_chunk()?;
    let key = Rkey(u32::from_le_bytes(*key));
    Some((What::WriteImmediate(data, key, u64::from_le_bytes(*at)), bytes))
}

/// What a record holds; `None` where it is none.
#[inline]
pub fn read_record(record: &[u8]) -> Option<Record<'_>> {
    let (size, message) = record.split_first_chunk::<SIZE>()?;
    let size = u32::from_le_bytes(*size);
    if matches!(size, SHORT | SHORT_SEND | SHORT_WRITE) {
        let (short, bytes) = read_short(record)?;
        return Some(Record::Short(short, bytes));
    }
    let (ends, bytes) = match size & SAME {
        0 => {
            let (ends, bytes) = read(message)?;
            (Some(ends), bytes)
        }
        _ => (None, message),
    };
    let size = (size & !SAME) as usize;
    (!bytes.is_empty() && size > 0).then_some(Record::Packets { ends, bytes, size })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use wire::{Pkey, Psn, Qpn};

    use super::*;

    const BEFORE: Ends = Ends {
        source: Endpoint::Udp(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 49_152)),
        dest: Endpoint::Udp(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4791)),
        interface: 3,
    };
    /// Bytes of the longest headers of a fragment.
    const MAX: usize = FRAGMENT_HEAD - SIZE;

    fn begins(record: &[u8]) -> u64 {
        u64::from_le_bytes(*record.first_chunk().unwrap())
    }

    #[test]
    fn the_head_of_a_fragment_gives_back_its_headers() {
        for len in 0..=MAX {
            let headers: Vec<u8> = (0..len as u8).map(|n| !n).collect();
            let (head, head_len) = fragment_head(&headers).unwrap();
            assert_eq!(head_len, SIZE + len);
            assert!(head[head_len..].iter().all(|byte| *byte == 0), "nothing of ours goes with it");
            assert!(is_fragment(begins(&head)), "{len}");
            assert_eq!(read_fragment(&head).unwrap(), headers);
        }
    }

    #[test]
    fn headers_that_are_too_long_make_no_fragment() {
        for len in [MAX + 1, MAX + 2, 255, 256, 257, 4096, 1 << 28] {
            assert!(fragment_head(&vec![0; len]).is_none(), "{len}");
        }
    }

    #[test]
    fn a_fragment_is_told_from_every_other_record() {
        let mut heads = Vec::new();
        // What their lengths may be: that of the longest record, and more than that.
        for size in (1..600).chain([4096, 0xffff, 0x1_0000, (1 << 28) - 1]) {
            heads.push([&same_head(size)[..], &[0xff; 8]].concat());
            let mut head = emit_record(&BEFORE);
            set_size(&mut head, size);
            heads.push(head.to_vec());
        }
        for acknowledged in [None, Some(Psn::new(0xff_ffff))] {
            let (dest_qp, psn) = (Qpn::new(0xff_ffff), Psn::new(0xff_ffff));
            for what in [
                What::Send,
                What::SendImmediate([0xff; 4]),
                What::WriteImmediate([0xff; 4], Rkey(u32::MAX), u64::MAX),
            ] {
                let short =
                    Short { dest_qp, pkey: Pkey::default(), psn, solicited: true, what, acknowledged };
                heads.push(short_head(&short).to_vec());
            }
        }
        for head in heads {
            assert!(!is_fragment(begins(&head)), "{head:?}");
        }
    }

    #[test]
    fn a_short_message_is_read_as_it_was_written_and_what_is_too_short_for_one_is_not() {
        let memory: std::sync::Arc<[ring::Word]> = (0..200).map(|_| ring::Word::new(0)).collect();
        let (mut writer, mut reader) =
            (Writer::new(memory.clone()).unwrap(), ring::Reader::new(memory).unwrap());
        let (dest_qp, pkey, psn) = (Qpn::new(5), Pkey(0x8001), Psn::new(6));
        let whats = [
            What::Send,
            What::SendImmediate([1, 2, 3, 0xff]),
            What::WriteImmediate([1, 2, 3, 0xff], Rkey(0x8765_4321), 1 << 63 | 5),
        ];
        for (what, len) in whats.into_iter().flat_map(|what| (0..70).map(move |len| (what, len))) {
            let short = Short { dest_qp, pkey, psn, solicited: true, what, acknowledged: Some(psn) };
            let (bytes, mut record) = (vec![len as u8; len], [0; 200]);
            write_short(&mut writer, &short, &bytes).unwrap();
            let read = reader.pop(&mut record).unwrap().unwrap();
            assert_eq!(read_short(&record[..read]), Some((short, &bytes[..])));
            let as_any = read_record(&record[..read]);
            assert!(matches!(as_any, Some(Record::Short(s, b)) if (s, b) == (short, &bytes[..])));
            // A record that is banned before its bytes is none.
            assert!((0..read - len).all(|cut| read_short(&record[..cut]).is_none()), "{len}");
        }
    }

    #[test]
    fn what_is_no_head_of_a_fragment_is_not_read() {
        let (head, _) = fragment_head(&[7; MAX]).unwrap();
        for len in MAX + 1..256 {
            let mut head = head;
            head[0] = len as u8;
            assert!(is_fragment(begins(&head)) && read_fragment(&head).is_none(), "{len}");
        }
        // As another kind of record it is none, either: it says of no place where its packets came
        // from.
        assert!(read_record(&head).is_none());
    }

    #[test]
    fn ends_are_read_as_they_were_written() {
        let address = |last| SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last), 4791, 0, 7);
        let v6 = |last| Endpoint::Udp(address(last).into());
        let lid = |lid, bits| Endpoint::Lid(LidAddress::new(lid, 3, bits).unwrap());
        let global = Endpoint::Lid(LidAddress::new(6, 0, 0).unwrap().with_grh());
        let by_lid = Ends { source: lid(5, 1), dest: lid(0xbfff, 127), interface: 0 };
        let with_grh = Ends { dest: global, ..by_lid };
        for ends in [BEFORE, Ends { source: v6(1), dest: v6(2), interface: 7 }, by_lid, with_grh] {
            assert_eq!(read(&[&emit(&ends)[..], b"packet"].concat()), Some((ends, &b"packet"[..])));
        }
        assert_eq!(read(&emit(&BEFORE)[1..]), None);
    }
}
