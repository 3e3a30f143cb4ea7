//! Messages of one stream's end to the other: 32 bits, the immediate data of a WRITE or, where the
//! device is iWARP, the payload of a SEND.
//!
//! | bits 31..29 | message | bits 28..0 |
//! |---|---|---|
//! | 0 | data | bytes that the WRITE has put into the ring |
//! | 4 | credits | number of the first data message that may not be sent, modulo 2^16 |
//! | 6 | mapping | entry of the table that was written |
//! | 7 | control | 0 disconnect, 1 keep-alive, 2 shutdown |

/// Most bytes that a data message can tell of.
pub const MAX_BYTES: u32 = (1 << 29) - 1;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// Says nothing.
    KeepAlive,
    /// The sender sends no data any more.
    Shutdown,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes are in the ring.
    Data(u32),
    /// Data messages up to this number, without it, may be sent; entries of the target list may be
    /// new.
    Credits(u16),
    /// An entry of the table of mappings is new.
    Mapping(u32),
    /// Control.
    Control(Control),
}

impl Message {
    /// The message of 32 bits, where there is one.
    pub fn decode(word: u32) -> Option<Self> {
        let data = word & MAX_BYTES;
        match word >> 29 {
            0 => Some(Self::Data(data)),
            4 => Some(Self::Credits(data as u16)),
            6 => Some(Self::Mapping(data & 0xffff)),
            7 => match data {
                0 => Some(Self::Control(Control::Disconnect)),
                1 => Some(Self::Control(Control::KeepAlive)),
                2 => Some(Self::Control(Control::Shutdown)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The message's 32 bits.
    pub fn encode(self) -> u32 {
        match self {
            Self::Data(bytes) => bytes & MAX_BYTES,
            Self::Credits(until) => 4 << 29 | u32::from(until),
            Self::Mapping(entry) => 6 << 29 | (entry & 0xffff),
            Self::Control(Control::Disconnect) => 7 << 29,
            Self::Control(Control::KeepAlive) => 7 << 29 | 1,
            Self::Control(Control::Shutdown) => 7 << 29 | 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_reserved_ones_are_none() {
        let all = [
            Message::Data(0),
            Message::Data(MAX_BYTES),
            Message::Credits(0xffff),
            Message::Mapping(0xfffe),
            Message::Control(Control::Disconnect),
            Message::Control(Control::KeepAlive),
            Message::Control(Control::Shutdown),
        ];
        for message in all {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        // Of librdmacm: the type in the upper three bits.
        assert_eq!(Message::Credits(384).encode(), 0x8000_0180);
        assert_eq!(Message::Control(Control::Shutdown).encode(), 0xe000_0002);
        for reserved in [1_u32 << 29, 2 << 29, 3 << 29, 5 << 29, 7 << 29 | 3] {
            assert_eq!(Message::decode(reserved), None);
        }
    }
}
