//! Any bytes as a RoCEv2 packet: what parses must come back as a packet of the same length that
//! parses alike, and so must the tag-matching headers in its payload.

use wire::roce::{Packet, pad};
use wire::tm::TmMessage;

/// The fuzzer's bytes are the packet.
pub fn run(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut again = vec![0; packet.header.len()];
    packet.header.emit(packet.payload.len(), &mut again);
    again.extend_from_slice(packet.payload);
    again.resize(again.len() + pad(packet.payload.len()), 0);
    assert_eq!(again.len(), bytes.len());
    assert_eq!(Packet::parse(&again), Ok(packet));
    let message = TmMessage::parse(packet.payload);
    assert_eq!(TmMessage::parse(&message.emit()), message);
}
