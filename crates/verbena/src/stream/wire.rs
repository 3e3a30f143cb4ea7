//! What goes over the wire beside the bytes: the greeting in the private data, and the word that
//! each message carries as immediate data.
//!
//! Greeting, the first 12 bytes of the private data of request and acceptance, big-endian; the rest
//! is zero:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `vbst` |
//! | 4 | version: 1 |
//! | 5 | 0 |
//! | 6..8 | window: data messages that the sender has room for, 2 at least |
//! | 8..12 | bytes that such a message has at most, 1 at least |
//!
//! The smaller window and the smaller size are those of the stream, in both directions.
//!
//! Every message is a SEND with immediate data, 32 bits:
//!
//! | bits | what |
//! |---|---|
//! | 31 | FIN: no bytes come after this message |
//! | 30..16 | 0 |
//! | 15..0 | credits: data messages that the sender of this one has taken, and has room for again |
//!
//! A message with bytes is a data message and takes a credit. One without takes none: see
//! [`CONTROL`] for why there is room for it.

use crate::error::{Error, ErrorKind, Result, Value};

const MAGIC: [u8; 4] = *b"vbst";
/// The only version so far.
pub(super) const VERSION: u8 = 1;
const FIN: u32 = 1 << 31;

/// Receives beside those of the window. Credits alone are told of when half a window or more is
/// owed, and never more than a window is owed: two such messages at most are on their way or
/// unread. Another two may have been read, and their receives not be posted yet, by the one half of
/// a stream while the other half goes on. The fifth is a FIN.
pub(super) const CONTROL: u32 = 5;

/// How much is owed when credits are told of without a data message that could carry them.
pub(super) const fn worth_telling(window: u32) -> u32 {
    window.div_ceil(2)
}

/// What either side says of its receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Data messages, 2 at least.
    pub window: u16,
    /// Bytes of each, 1 at least.
    pub message_size: u32,
}

impl Greeting {
    pub(super) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[6..8].copy_from_slice(&self.window.to_be_bytes());
        bytes[8..].copy_from_slice(&self.message_size.to_be_bytes());
        bytes
    }

    /// What both have room for: either side goes by it in both directions.
    pub(super) fn smaller(self, other: Self) -> Self {
        Self {
            window: self.window.min(other.window),
            message_size: self.message_size.min(other.message_size),
        }
    }

    /// `Unsupported` where a peer does not speak this protocol, or no version of it that is known
    /// here.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some(&[a, b, c, d, version, _, w0, w1, s0, s1, s2, s3]) = bytes.first_chunk::<12>() else {
            return Err(refused("the peer speaks no stream protocol".to_owned()));
        };
        if [a, b, c, d] != MAGIC {
            return Err(refused("the peer speaks no stream protocol".to_owned()));
        }
        if version != VERSION {
            return Err(refused(format!(
                "the peer speaks version {version} of the stream protocol, not {VERSION}"
            )));
        }
        let greeting =
            Self { window: u16::from_be_bytes([w0, w1]), message_size: u32::from_be_bytes([s0, s1, s2, s3]) };
        if greeting.window < 2 || greeting.message_size == 0 {
            return Err(refused(format!("the peer has no room for a stream: {greeting:?}")));
        }
        Ok(greeting)
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Unsupported, "RdmaStream").with(Value::Text(why))
}

/// The immediate data of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub credits: u16,
    pub fin: bool,
}

impl Word {
    pub(super) fn to_imm(self) -> u32 {
        u32::from(self.credits) | if self.fin { FIN } else { 0 }
    }
    /// `None` for what this version does not know.
    pub(super) fn from_imm(imm: u32) -> Option<Self> {
        (imm & !FIN & 0xffff_0000 == 0).then_some(Self { credits: imm as u16, fin: imm & FIN != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_read() {
        let greeting = Greeting { window: 16, message_size: 65536 };
        let mut private_data = [0; 56];
        private_data[..12].copy_from_slice(&greeting.to_bytes());
        assert_eq!(private_data[..12], *b"vbst\x01\0\0\x10\0\x01\0\0");
        assert_eq!(Greeting::from_bytes(&private_data).unwrap(), greeting);
        for word in [Word::default(), Word { credits: 7, fin: true }, Word { credits: u16::MAX, fin: false }]
        {
            assert_eq!(Word::from_imm(word.to_imm()), Some(word));
        }
        assert_eq!(Word { credits: 3, fin: true }.to_imm(), 0x8000_0003);
        assert_eq!(Word::from_imm(0x1_0000), None);
    }

    #[test]
    fn who_speaks_otherwise_is_refused() {
        let good = Greeting { window: 2, message_size: 1 }.to_bytes();
        let change = |at: usize, to: u8| {
            let mut bytes = good;
            bytes[at] = to;
            Greeting::from_bytes(&bytes).unwrap_err().to_string()
        };
        assert!(change(0, b'x').ends_with("speaks no stream protocol"));
        assert!(change(4, 2).ends_with("version 2 of the stream protocol, not 1"));
        assert!(change(7, 1).contains("no room") && change(11, 0).contains("no room"));
        assert!(Greeting::from_bytes(&good[..11]).is_err());
    }

    #[test]
    fn two_messages_return_all_credits_at_most() {
        for window in 2..1000 {
            assert!(window / worth_telling(window) <= 2);
        }
    }
}
