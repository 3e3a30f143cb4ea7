//! Performance management (IBA 1.4 §16.1): the counters of a port.
//!
//! The attribute begins at byte 64 of the MAD. [`PortCounters`], attribute 0x0012:
//!
//! | bytes | field |
//! |---|---|
//! | 1, 2..4 | port, which counters a Set changes |
//! | 4..6, 6, 7 | symbol errors, link error recovery, link downed |
//! | 8..10, 10..12, 12..14 | receive: errors, remote physical errors, switch relay errors |
//! | 14..16 | transmit discards |
//! | 16, 17 | constraint errors of transmission, of reception |
//! | 18, 19 | more of what a Set changes; link integrity, buffer overrun errors (4 bits each) |
//! | 22..24 | VL15 dropped |
//! | 24..40, 4 each | words transmitted, words received, packets transmitted, packets received |
//! | 40..44 | transmit wait |
//!
//! [`PortCounters::emit_extended`], attribute 0x001d: 1 port, 2..4 selection, from 8 on eight
//! counters of 64 bits: words and packets as above, then unicast and multicast packets.

use crate::bytes::Writer;

/// Attributes (IBA 1.4 table 230).
pub mod attribute {
    /// What the agent can do.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    /// [`super::PortCounters`].
    pub const PORT_COUNTERS: u16 = 0x0012;
    /// [`super::PortCounters`], those of 64 bits.
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x001d;
}

/// The port that means all ports.
pub const ALL_PORTS: u8 = 255;
/// Where the attribute begins in the MAD.
pub const DATA: usize = 64;
/// Bytes of the attribute.
pub const DATA_LEN: usize = 192;

/// The counters of a port, each as wide as any attribute has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the table above")]
pub struct PortCounters {
    pub symbol_errors: u16,
    pub link_error_recovery: u8,
    pub link_downed: u8,
    pub receive_errors: u16,
    pub remote_physical_errors: u16,
    pub switch_relay_errors: u16,
    pub transmit_discards: u16,
    pub transmit_constraint_errors: u8,
    pub receive_constraint_errors: u8,
    pub local_link_integrity_errors: u8,
    pub buffer_overrun_errors: u8,
    pub vl15_dropped: u16,
    pub transmit_words: u64,
    pub receive_words: u64,
    pub transmit_packets: u64,
    pub receive_packets: u64,
    pub transmit_wait: u32,
}

impl PortCounters {
    /// The attribute of 32-bit counters, which stay at their highest value.
    pub fn emit(&self, port: u8, selected: [u8; 2]) -> [u8; DATA_LEN] {
        let mut data = [0; DATA_LEN];
        let out = &mut Writer::new(&mut data);
        out.array([0, port]);
        out.array(selected);
        out.u16(self.symbol_errors);
        out.array([self.link_error_recovery, self.link_downed]);
        out.u16(self.receive_errors);
        out.u16(self.remote_physical_errors);
        out.u16(self.switch_relay_errors);
        out.u16(self.transmit_discards);
        out.array([self.transmit_constraint_errors, self.receive_constraint_errors]);
        out.u8(0);
        out.u8(self.local_link_integrity_errors.min(15) << 4 | self.buffer_overrun_errors.min(15));
        out.skip::<2>();
        out.u16(self.vl15_dropped);
        for count in [self.transmit_words, self.receive_words, self.transmit_packets, self.receive_packets] {
            out.u32(u32::try_from(count).unwrap_or(u32::MAX));
        }
        out.u32(self.transmit_wait);
        data
    }

    /// The attribute of 64-bit counters. All packets are unicast ones.
    pub fn emit_extended(&self, port: u8, selected: [u8; 2]) -> [u8; DATA_LEN] {
        let mut data = [0; DATA_LEN];
        let out = &mut Writer::new(&mut data);
        out.array([0, port]);
        out.array(selected);
        out.skip::<4>();
        for count in [
            self.transmit_words,
            self.receive_words,
            self.transmit_packets,
            self.receive_packets,
            self.transmit_packets,
            self.receive_packets,
        ] {
            out.u64(count);
        }
        data
    }
}

/// ClassPortInfo of an agent (IBA 1.4 §13.4.8.1) with these capabilities.
pub fn class_port_info(capabilities: u16) -> [u8; DATA_LEN] {
    /// 4.096 µs · 2^16: a quarter of a second.
    const RESPONSE_TIME: u8 = 16;
    let mut data = [0; DATA_LEN];
    let out = &mut Writer::new(&mut data);
    out.array([1, 1]);
    out.u16(capabilities);
    out.array([0, 0, 0, RESPONSE_TIME]);
    data
}
