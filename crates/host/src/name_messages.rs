//! The messages between the processes that bear the names of `names`, and the records of their
//! rings.
//!
//! A packet that is handed on is one message. Builds of every protocol number
//! ([`crate::name_text`]) understand it:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 4 or 6, the IP version |
//! | 1 | 1 where the process that made the packet hands it over, 0 where it came by the network |
//! | 2 | 0 |
//! | 4 | interface index |
//! | 2 + 2 | source port, destination port |
//! | 4 + 4 | scopes of source and destination address |
//! | 16 + 16 | source, destination address; an IPv4 address in the first four bytes |
//! | rest | the packet, BTH to ICRC |
//!
//! Numbers are little-endian. A record of a ring (`rings`) is such a message of one packet or more,
//! and 4 bytes before it. They say how long each packet is but the last. In the upper bits they say
//! whether all before the packets is left out, because it is that of the record before. They also
//! say whether there is a short message in place of packets ([`read_record`]), or a piece of
//! several ([`read_bulk`]). Other messages begin with a byte of their own:
//!
//! | byte | which way | what |
//! |---|---|---|
//! | 1 | to the bearer | a ring of shared memory: 8 random bytes ([`ring_offer`]), and its descriptor. Packets come by it from now on (`rings`) |
//! | 2 | to the bearer | there is something in the ring |
//! | 3 | from the bearer | it takes no ring, or can not read what came by it: no further one is offered on this connection |
//! | 4 | from the bearer | memory of it may be reached (`reach`): 8 bytes address of the page that proves which process it is, 8 bytes what its first word says, and the descriptor of its tables |
//! | 5 | from the bearer | it took the ring, and a thread of it that waits is woken by a byte to the socket that comes with the message (`rings::seat`) |
//! | 6 | from the bearer | a buffer of it may be mapped (`arena`): 8 bytes where it is there, 1 byte whether it may be written to, and its descriptor. It comes before what lets the buffer be reached |
//! | 7 | from the bearer | a buffer is gone: 8 bytes where it was there |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use local::ring::{Memory, PushError, Writer};
use node::world::{Datagram, Hold};
use transport::Short;
use transport::short::{MAX_SHORT, What};
use wire::Rkey;

/// A ring is offered.
pub const RING: u8 = 1;
/// Bytes of that message.
pub const RING_LEN: usize = 9;
/// There is something in the ring.
pub const LOOK: u8 = 2;
/// No ring, please.
pub const NO_RING: u8 = 3;
/// The memory of the bearer may be reached.
pub const LEND: u8 = 4;
/// Bytes of that message.
pub const LEND_LEN: usize = 17;
/// By this socket a thread of the bearer is woken.
pub const BELL: u8 = 5;
/// A buffer of its may be mapped.
pub const BUFFER: u8 = 6;
/// Bytes of that message.
pub const BUFFER_LEN: usize = 10;
/// A buffer is gone.
pub const GONE: u8 = 7;
/// Bytes of that message.
pub const GONE_LEN: usize = 9;

/// The offer of a ring. `nonce`: what the process that takes it repeats in memory of its own, to
/// prove which process it is.
pub fn ring_offer(nonce: u64) -> [u8; RING_LEN] {
    with_word(RING, nonce)
}

/// What the offer of a ring says ([`ring_offer`]).
pub fn read_ring_offer(bytes: &[u8]) -> Option<u64> {
    word_of(RING, bytes)
}

/// The message that a buffer which is at this address may be mapped.
pub fn buffer(address: u64, writable: bool) -> [u8; BUFFER_LEN] {
    let mut bytes = [u8::from(writable); BUFFER_LEN];
    bytes[..GONE_LEN].copy_from_slice(&with_word::<GONE_LEN>(BUFFER, address));
    bytes
}

/// A buffer that may be mapped, as the message says it ([`buffer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where its owner has it.
    pub address: u64,
    /// Whether the buffer may be written to.
    pub writable: bool,
}

/// What the message says that a buffer may be mapped ([`buffer`]).
pub fn read_buffer(bytes: &[u8]) -> Option<Buffer> {
    let (&writable, rest) = bytes.split_last()?;
    let address = word_of(BUFFER, rest)?;
    (writable <= 1).then_some(Buffer { address, writable: writable == 1 })
}

/// The message that the buffer at this address is gone.
pub fn gone(address: u64) -> [u8; GONE_LEN] {
    with_word(GONE, address)
}

/// What the message says that a buffer is gone ([`gone`]).
pub fn read_gone(bytes: &[u8]) -> Option<u64> {
    word_of(GONE, bytes)
}

/// The message that memory may be reached.
pub fn lend(address: u64, says: u64) -> [u8; LEND_LEN] {
    let mut bytes = [LEND; LEND_LEN];
    bytes[1..9].copy_from_slice(&address.to_le_bytes());
    bytes[9..].copy_from_slice(&says.to_le_bytes());
    bytes
}

/// What the message says that memory may be reached ([`lend`]).
pub fn read_lend(bytes: &[u8]) -> Option<(u64, u64)> {
    let [LEND, rest @ ..] = bytes else { return None };
    let (address, says) = rest.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*address), u64::from_le_bytes(says.try_into().ok()?)))
}

fn with_word<const LEN: usize>(kind: u8, word: u64) -> [u8; LEN] {
    let mut bytes = [kind; LEN];
    bytes[1..9].copy_from_slice(&word.to_le_bytes());
    bytes
}

fn word_of(kind: u8, bytes: &[u8]) -> Option<u64> {
    let (first, word) = bytes.split_first()?;
    let word = word.try_into().ok().filter(|_| *first == kind)?;
    Some(u64::from_le_bytes(word))
}

/// Bytes before a packet.
pub const HEADER: usize = 52;
/// Bytes before the header ([`HEADER`]) in a record of a ring.
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
/// Like [`SAME`], but for several packets as one piece: beside this bit stands how many bytes the
/// headers have, 255 at most. The headers follow, and the payload is the record's body
/// ([`local::ring::BODY`]).
const BULK: u32 = 1 << 28;
/// Bytes of the longest head of such a record.
pub const BULK_HEAD: usize = local::ring::BODY;
/// Bytes before a short message.
pub const SHORT_HEADER: usize = SIZE + Short::LEN;

/// Marks the header of a packet that came by no network.
pub fn mark_handed_over(header: &mut [u8; HEADER]) {
    header[1] = 1;
}

/// Whether a message is such a packet.
pub fn is_handed_over(message: &[u8]) -> bool {
    message.get(1) == Some(&1)
}

/// What a record of a ring begins with, as [`Record`] says; [`set_size`] says the rest of it.
pub fn emit_record(datagram: &Datagram<'_>) -> [u8; SIZE + HEADER] {
    let mut head = [0; SIZE + HEADER];
    head[SIZE..].copy_from_slice(&emit(datagram));
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

/// What a record begins with that holds several packets as one piece, and its length; where all
/// else is that of the record before. `None` for headers that are too long.
#[inline]
pub fn bulk_head(headers: &[u8]) -> Option<([u8; BULK_HEAD], usize)> {
    let mut head = [0; BULK_HEAD];
    let (size, rest) = head.split_first_chunk_mut::<SIZE>()?;
    rest.get_mut(..headers.len())?.copy_from_slice(headers);
    *size = (BULK | headers.len() as u32).to_le_bytes();
    Some((head, SIZE + headers.len()))
}

/// Whether a record that begins with these bytes is such a one.
#[inline]
pub fn is_bulk(begin: u64) -> bool {
    begin as u32 & !0xff == BULK
}

/// The headers in the head of such a record; `None` where they are none. `before`: where the
/// packets of the record before came from and went to.
pub fn read_bulk<'a>(head: &'a [u8; BULK_HEAD], before: &Option<Datagram<'static>>) -> Option<Datagram<'a>> {
    let (size, rest) = head.split_first_chunk::<SIZE>()?;
    let len = u32::from_le_bytes(*size) & 0xff;
    Some(Datagram { bytes: rest.get(..len as usize)?, ..(*before)? })
}

/// A packet's header in a message to another process.
pub fn emit(datagram: &Datagram<'_>) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = if datagram.source.is_ipv4() { 4 } else { 6 };
    header[4..8].copy_from_slice(&datagram.interface.to_le_bytes());
    for (end, port, scope, address) in [(&datagram.source, 8, 12, 20), (&datagram.dest, 10, 16, 36)] {
        header[port..port + 2].copy_from_slice(&end.port().to_le_bytes());
        match end {
            SocketAddr::V4(v4) => header[address..address + 4].copy_from_slice(&v4.ip().octets()),
            SocketAddr::V6(v6) => {
                header[scope..scope + 4].copy_from_slice(&v6.scope_id().to_le_bytes());
                header[address..address + 16].copy_from_slice(&v6.ip().octets());
            }
        }
    }
    header
}

/// The packet of a message from another process; `None` where it is none.
pub fn read(message: &[u8]) -> Option<Datagram<'_>> {
    let (header, bytes) = message.split_first_chunk::<HEADER>()?;
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let end = |port: usize, scope: usize, at: usize| {
        let port = u16::from_le_bytes([header[port], header[port + 1]]);
        let address: [u8; 16] = header[at..at + 16].try_into().ok()?;
        match header[0] {
            4 => {
                let [a, b, c, d, ..] = address;
                Some(SocketAddr::from((IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)))
            }
            6 => Some(SocketAddrV6::new(Ipv6Addr::from(address), port, 0, u32_at(scope)).into()),
            _ => None,
        }
    };
    let (source, dest) = (end(8, 12, 20)?, end(10, 16, 36)?);
    Some(Datagram { source, dest, interface: u32_at(4), forwarded: true, hold: Hold::No, bytes })
}

/// What a record of a ring holds.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// Packets.
    Packets {
        /// All packets, one after the other; not none.
        run: Datagram<'a>,
        /// Bytes of each but the last; not 0.
        size: usize,
    },
    /// A short message, whose bytes are the datagram's.
    Short(Datagram<'a>, Short),
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

/// What a record of a ring holds; `None` where it is none. `before`: where the packets of the
/// record before came from and went to; those of this one afterwards.
#[inline]
pub fn read_record<'a>(record: &'a [u8], before: &mut Option<Datagram<'static>>) -> Option<Record<'a>> {
    let (size, message) = record.split_first_chunk::<SIZE>()?;
    let size = u32::from_le_bytes(*size);
    if matches!(size, SHORT | SHORT_SEND | SHORT_WRITE) {
        let (short, bytes) = read_short(record)?;
        return Some(Record::Short(Datagram { bytes, ..(*before)? }, short));
    }
    let run = match before {
        Some(before) if size & SAME != 0 => Datagram { bytes: message, ..*before },
        None if size & SAME != 0 => return None,
        _ => {
            let run = Datagram { forwarded: false, ..read(message)? };
            *before = Some(Datagram { bytes: &[], ..run });
            run
        }
    };
    let size = (size & !SAME) as usize;
    (!run.bytes.is_empty() && size > 0).then_some(Record::Packets { run, size })
}

#[cfg(test)]
mod tests {
    use wire::{Pkey, Psn, Qpn};

    use super::*;

    const BEFORE: Datagram<'static> = Datagram {
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 49_152),
        dest: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4791),
        interface: 3,
        forwarded: false,
        hold: Hold::No,
        bytes: &[],
    };
    /// Bytes of the longest headers of a piece.
    const MOST: usize = BULK_HEAD - SIZE;

    fn begins(record: &[u8]) -> u64 {
        u64::from_le_bytes(*record.first_chunk().unwrap())
    }

    #[test]
    fn the_head_of_a_piece_gives_back_its_headers_and_where_the_record_before_was_from() {
        for len in 0..=MOST {
            let headers: Vec<u8> = (0..len as u8).map(|n| !n).collect();
            let (head, head_len) = bulk_head(&headers).unwrap();
            assert_eq!(head_len, SIZE + len);
            assert!(head[head_len..].iter().all(|byte| *byte == 0), "nothing of ours goes with it");
            assert!(is_bulk(begins(&head)), "{len}");
            let read = read_bulk(&head, &Some(BEFORE)).unwrap();
            assert_eq!(read.bytes, headers);
            assert_eq!((read.source, read.dest), (BEFORE.source, BEFORE.dest));
            assert_eq!((read.interface, read.forwarded), (BEFORE.interface, false));
        }
    }

    #[test]
    fn headers_that_are_too_long_make_no_piece() {
        for len in [MOST + 1, MOST + 2, 255, 256, 257, 4096, 1 << 28] {
            assert!(bulk_head(&vec![0; len]).is_none(), "{len}");
        }
    }

    #[test]
    fn a_piece_is_told_from_every_other_record() {
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
            assert!(!is_bulk(begins(&head)), "{head:?}");
        }
    }

    #[test]
    fn a_short_message_is_read_as_it_was_written_and_what_is_too_short_for_one_is_not() {
        let memory: std::sync::Arc<[local::ring::Word]> =
            (0..200).map(|_| local::ring::Word::new(0)).collect();
        let (mut writer, mut reader) =
            (Writer::new(memory.clone()).unwrap(), local::ring::Reader::new(memory).unwrap());
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
            let as_any = read_record(&record[..read], &mut Some(BEFORE));
            assert!(matches!(as_any, Some(Record::Short(d, s)) if (s, d.bytes) == (short, &bytes[..])));
            // A record that is cut off before its bytes is none.
            assert!((0..read - len).all(|cut| read_short(&record[..cut]).is_none()), "{len}");
        }
    }

    #[test]
    fn what_is_no_head_of_a_piece_is_not_read() {
        let (head, _) = bulk_head(&[7; MOST]).unwrap();
        assert!(read_bulk(&head, &None).is_none(), "it is the first record");
        for len in MOST + 1..256 {
            let mut head = head;
            head[0] = len as u8;
            assert!(is_bulk(begins(&head)) && read_bulk(&head, &Some(BEFORE)).is_none(), "{len}");
        }
        // As another kind of record it is none, either: it says of no place where its packets came
        // from.
        assert!(read_record(&head, &mut None).is_none());
    }
}
