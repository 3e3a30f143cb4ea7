//! The messages between the processes that bear the names of `names`.
//!
//! A packet that is handed on is one message. Builds of every protocol number
//! ([`crate::name_text`]) understand it:
//!
//! | bytes | field |
//! |---|---|
//! | 52 | where the packet came from and went to, as [`local::record`] has it; the second byte is 1 where the process that made the packet hands it over, 0 where it came by the network |
//! | rest | the packet, BTH to ICRC |
//!
//! Numbers are little-endian. Other messages begin with a byte of their own:
//!
//! | byte | which way | what |
//! |---|---|---|
//! | 1 | to the owner | a ring of shared memory: 8 random bytes ([`ring_offer`]), and its descriptor. Packets come by it from now on (`rings`) |
//! | 2 | to the owner | there is something in the ring |
//! | 3 | from the owner | it takes no ring, or can not read what came by it: no further one is offered on this connection |
//! | 4 | from the owner | memory of it may be reached (`peer_memory`): 8 bytes address of the page that proves which process it is, 8 bytes what its first word says, and the descriptor of its tables |
//! | 5 | from the owner | it took the ring, and a thread of it that waits is woken by a byte to the socket that comes with the message (`rings::driver_slot`) |
//! | 6 | from the owner | a buffer of it may be mapped (`arena`): 8 bytes where it is there, 1 byte whether it may be written to, and its descriptor. It comes before what lets the buffer be reached |
//! | 7 | from the owner | a buffer is gone: 8 bytes where it was there |

use local::record::{self, Ends, HEADER};
use stack::env::{AckDelay, Datagram};

/// A ring is offered.
pub const RING: u8 = 1;
/// Bytes of that message.
pub const RING_LEN: usize = 9;
/// There is something in the ring.
pub const LOOK: u8 = 2;
/// No ring, please.
pub const NO_RING: u8 = 3;
/// The memory of the owner may be reached.
pub const EXPORT: u8 = 4;
/// Bytes of that message.
pub const EXPORT_LEN: usize = 17;
/// By this socket a thread of the owner is woken.
pub const WAKE_FD: u8 = 5;
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
pub fn export(address: u64, says: u64) -> [u8; EXPORT_LEN] {
    let mut bytes = [EXPORT; EXPORT_LEN];
    bytes[1..9].copy_from_slice(&address.to_le_bytes());
    bytes[9..].copy_from_slice(&says.to_le_bytes());
    bytes
}

/// What the message says that memory may be reached ([`export`]).
pub fn read_export(bytes: &[u8]) -> Option<(u64, u64)> {
    let [EXPORT, rest @ ..] = bytes else { return None };
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

/// Marks the header of a packet that came by no network.
pub fn mark_handed_over(header: &mut [u8; HEADER]) {
    header[1] = 1;
}

/// Whether a message is such a packet.
pub fn is_handed_over(message: &[u8]) -> bool {
    message.get(1) == Some(&1)
}

/// A packet's header in a message to another process.
pub fn emit(datagram: &Datagram<'_>) -> [u8; HEADER] {
    let &Datagram { source, dest, interface, .. } = datagram;
    record::emit(&Ends { source, dest, interface })
}

/// The packet of a message from another process; `None` where it is none.
pub fn read(message: &[u8]) -> Option<Datagram<'_>> {
    let (Ends { source, dest, interface }, bytes) = record::read(message)?;
    Some(Datagram { source, dest, interface, forwarded: true, ack_delay: AckDelay::No, bytes })
}
