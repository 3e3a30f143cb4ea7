//! What a process says to the collector of its packets, over a stream: messages of a length, 4
//! bytes least significant first, and so many bytes in the format of postcard.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use nic::Fate;
use serde::{Deserialize, Serialize};
use wire::LidAddress;

/// The version of this format. Processes and their collector are of one build as a rule.
pub const VERSION: u32 = 4;
/// Most bytes of a message: the largest datagram that a peer may send, and what is said of it.
pub const MAX_LEN: usize = 80 << 10;

/// A message to the collector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message<'a> {
    /// The first one.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The process's number.
        pid: u32,
        /// The process's name.
        name: &'a str,
    },
    /// A device, before its packets.
    Device {
        /// The index of its interface.
        interface: u32,
        /// The device's name.
        name: &'a str,
        /// The name of its interface.
        over: &'a str,
        /// Which packets it has.
        link: DeviceLink,
    },
    /// A packet.
    #[serde(borrow)]
    Packet(Packet<'a>),
    /// So many packets were not recorded, since the last time that this was said.
    Lost(u64),
}

/// How the packets of a device travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceLink {
    /// Over UDP: RoCEv2.
    Udp,
    /// As segments of streams: iWARP.
    Tcp,
    /// Between LIDs: InfiniBand.
    Lids,
}

/// A packet that was sent, or has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// In or out.
    pub direction: Direction,
    /// Index of our interface.
    pub interface: u32,
    /// Address and port of the sender; [`NOWHERE`] of an Ethernet frame.
    pub source: SocketAddr,
    /// Address and port of the receiver, likewise.
    pub dest: SocketAddr,
    /// IPv4 ToS or IPv6 traffic class, as far as it is known.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 where it is not known.
    pub hop_limit: u8,
    /// What became of it.
    #[serde(borrow)]
    pub outcome: Outcome<'a>,
    /// What it is.
    pub protocol: Protocol,
    /// BTH to ICRC, between LIDs with the GRH before it; of a segment the payload; the whole of an
    /// Ethernet frame, without its checksum.
    pub bytes: &'a [u8],
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// RoCEv2, over UDP.
    Roce,
    /// A segment of a stream, over TCP.
    Tcp(Segment),
    /// An Ethernet frame of a raw packet queue pair.
    Ethernet,
    /// A packet between LIDs, whose ICRC is still to be made.
    Infiniband(Lids),
}

/// The ends of a packet between LIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lids {
    /// The sender's LID.
    pub source: u16,
    /// The receiver's LID.
    pub dest: u16,
    /// The service level.
    pub service_level: u8,
    /// Whether the packet begins with a GRH.
    pub has_grh: bool,
}

impl Lids {
    /// The ends of a packet from one to the other; the destination says whether there is a GRH.
    pub fn of(source: LidAddress, dest: LidAddress) -> Self {
        let (service_level, has_grh) = (dest.service_level(), dest.has_grh());
        Self { source: source.lid(), dest: dest.lid(), service_level, has_grh }
    }

    /// Both ends; `None` for numbers that no LID has.
    pub fn ends(self) -> Option<[LidAddress; 2]> {
        let end = |lid| LidAddress::new(lid, self.service_level, 0).ok();
        let (source, dest) = (end(self.source)?, end(self.dest)?);
        Some([source, if self.has_grh { dest.with_grh() } else { dest }])
    }
}

/// In place of the addresses that an Ethernet frame has inside, and of those of LIDs.
pub const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// What the TCP header of a segment says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The sequence number of its first byte.
    pub seq: u32,
    /// The sequence number that its sender expects next.
    pub ack: u32,
    /// FIN, SYN, RST, PSH and ACK, as in the header ([`flags`]).
    pub flags: u8,
}

/// Flags of TCP (RFC 9293 §3.1).
pub mod flags {
    /// No more bytes from the sender.
    pub const FIN: u8 = 1;
    /// The stream begins.
    pub const SYN: u8 = 2;
    /// The stream ends at once.
    pub const RST: u8 = 4;
    /// The receiver is to be told of the bytes.
    pub const PSH: u8 = 8;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
}

/// Where a packet goes, as its process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// The packet has arrived.
    In,
    /// The packet was sent.
    Out,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome<'a> {
    /// Sent, or taken.
    Good,
    /// Dropped by the process it arrived at; the name of the counter that counts it.
    Dropped(&'a str),
    /// What a fault did to it.
    Fault(&'a str),
    /// The stream is lost with it; the name of the errno.
    Lost(&'a str),
}

impl Outcome<'_> {
    /// That of a packet that has arrived; `None` where another process of this host has it, which
    /// shows it itself.
    pub fn of(fate: Fate) -> Option<Self> {
        match fate {
            Fate::Taken => Some(Self::Good),
            Fate::PassedOn => None,
            Fate::Dropped(reason) => Some(Self::Dropped(reason)),
            Fate::Fault(what) => Some(Self::Fault(what)),
        }
    }
}

/// Appends a message to what is to be sent.
pub fn push(message: &Message<'_>, to: &mut Vec<u8>) {
    let begin = to.len();
    to.extend([0; 4]);
    let written = postcard::to_extend(message, std::mem::take(to));
    // Lengths are known to it, and a vector takes all: it cannot fail.
    *to = written.unwrap_or_default();
    let len = (to.len() - begin - 4) as u32;
    to[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
}

/// Why a stream of messages is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Takes the messages off the front of what has come so far, whole ones only; how many bytes they
/// were.
///
/// # Errors
///
/// [`Malformed`] for a message that is none, or longer than [`MAX_LEN`]; those before it were
/// given.
pub fn take_all(bytes: &[u8], mut each: impl FnMut(Message<'_>)) -> Result<usize, Malformed> {
    let mut rest = bytes;
    while let Some((len, after)) = rest.split_first_chunk() {
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_LEN {
            return Err(Malformed);
        }
        let Some((message, after)) = after.split_at_checked(len) else { break };
        each(postcard::from_bytes(message).map_err(|_| Malformed)?);
        rest = after;
    }
    Ok(bytes.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(bytes: &[u8]) -> Message<'_> {
        Message::Packet(Packet {
            time: 1 << 60,
            direction: Direction::In,
            interface: 3,
            source: "10.0.0.1:49152".parse().unwrap(),
            dest: "[fe80::1]:4791".parse().unwrap(),
            traffic_class: 1,
            hop_limit: 64,
            outcome: Outcome::Dropped("unknown_qp"),
            protocol: Protocol::Roce,
            bytes,
        })
    }

    fn segment(bytes: &[u8]) -> Message<'_> {
        let Message::Packet(packet) = packet(bytes) else { unreachable!() };
        let protocol = Protocol::Tcp(Segment { seq: u32::MAX, ack: 1, flags: flags::ACK });
        Message::Packet(Packet { protocol, ..packet })
    }

    fn by_lid(bytes: &[u8]) -> Message<'_> {
        let Message::Packet(packet) = packet(bytes) else { unreachable!() };
        let lids = Lids { source: 1, dest: 0xfffe, service_level: 15, has_grh: true };
        Message::Packet(Packet {
            source: NOWHERE,
            dest: NOWHERE,
            protocol: Protocol::Infiniband(lids),
            ..packet
        })
    }

    fn frame(bytes: &[u8]) -> Message<'_> {
        let Message::Packet(packet) = packet(bytes) else { unreachable!() };
        let (source, dest, protocol) = (NOWHERE, NOWHERE, Protocol::Ethernet);
        Message::Packet(Packet { source, dest, protocol, ..packet })
    }

    #[test]
    fn messages_come_out_as_they_went_in_however_the_stream_is_cut() {
        // The payload of the largest UDP datagram.
        let bytes = [7; 65_507];
        let all = [
            Message::Hello { version: VERSION, pid: 4711, name: "rping" },
            Message::Device { interface: 3, name: "rxe_eth0", over: "eth0", link: DeviceLink::Lids },
            packet(&bytes),
            segment(&bytes),
            frame(&[1; 65_553]),
            by_lid(&[1; 60]),
            Message::Lost(5),
        ];
        let mut stream = Vec::new();
        all.iter().for_each(|message| push(message, &mut stream));
        for cut in [0, 3, 4, 5, 40, stream.len() - 1, stream.len()] {
            let mut out = 0;
            let mut check = |message: Message<'_>| {
                assert_eq!(message, all[out]);
                out += 1;
            };
            let taken = take_all(&stream[..cut], &mut check).unwrap();
            assert!(taken <= cut);
            assert_eq!(take_all(&stream[taken..], check).unwrap(), stream.len() - taken);
            assert_eq!(out, all.len());
        }
    }

    #[test]
    fn what_is_no_message_ends_the_stream() {
        assert_eq!(take_all(&[0xff; 8], |_| unreachable!()), Err(Malformed));
        assert_eq!(take_all(&[1, 0, 0, 0, 99], |_| unreachable!()), Err(Malformed));
    }
}
