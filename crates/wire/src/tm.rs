//! Headers of tag matching: what leads the payload of a SEND to a tag-matching shared receive queue
//! (<infiniband/tm_types.h>; rdma-core, Documentation/tag_matching.md).
//!
//! Tag-matching header, TMH:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | operation: 0 no tag, 1 rendezvous, 2 end of a rendezvous (FIN), 3 eager |
//! | 1..4 | reserved |
//! | 4..8 | the sender's own data |
//! | 8..16 | tag |
//!
//! After it in a rendezvous, and in the FIN that ends it, the rendezvous header, RVH, which is laid
//! out like a RETH:
//!
//! | bytes | field |
//! |---|---|
//! | 16..24 | virtual address of the sender's data |
//! | 24..28 | its key |
//! | 28..32 | its length |

use crate::bth::Reth;
use crate::bytes::{Reader, Writer};

/// Bytes of a TMH.
pub const TMH_LEN: usize = 16;
/// Bytes of a TMH with its RVH.
pub const RENDEZVOUS_LEN: usize = TMH_LEN + Reth::LEN;

const RENDEZVOUS: u8 = 1;
const FIN: u8 = 2;
const EAGER: u8 = 3;

/// What a sender says of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tmh {
    /// The sender's own data, which the receiver is told.
    pub app_ctx: u32,
    /// What the receiver matches.
    pub tag: u64,
}

/// What the beginning of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TmMessage {
    /// Nothing to be matched: no tag, or not even a header.
    Untagged,
    /// The data follow the TMH.
    Eager(Tmh),
    /// The data are to be read by the receiver that has a match; what follows the RVH is for
    /// software.
    Rendezvous(Tmh, Reth),
    /// The data of a rendezvous have been read.
    Fin(Tmh, Reth),
}

impl TmMessage {
    /// Reads the headers that lead a message. What is shorter than the headers it names, or names
    /// an operation that is not known, has nothing to be matched.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut from = Reader::new(bytes);
        let mut tmh = || {
            let op = from.u8()?;
            from.skip::<3>()?;
            Ok::<_, crate::Malformed>((op, Tmh { app_ctx: from.u32()?, tag: from.u64()? }))
        };
        match tmh() {
            Ok((EAGER, tmh)) => Self::Eager(tmh),
            Ok((RENDEZVOUS, tmh)) => {
                Reth::read(&mut from).map_or(Self::Untagged, |rvh| Self::Rendezvous(tmh, rvh))
            }
            Ok((FIN, tmh)) => Reth::read(&mut from).map_or(Self::Untagged, |rvh| Self::Fin(tmh, rvh)),
            _ => Self::Untagged,
        }
    }

    /// The headers as bytes: the first [`TMH_LEN`] where there is no RVH.
    pub fn emit(&self) -> [u8; RENDEZVOUS_LEN] {
        let mut bytes = [0; RENDEZVOUS_LEN];
        let mut out = Writer::new(&mut bytes);
        let (op, tmh, rvh) = match *self {
            Self::Untagged => return bytes,
            Self::Eager(tmh) => (EAGER, tmh, None),
            Self::Rendezvous(tmh, rvh) => (RENDEZVOUS, tmh, Some(rvh)),
            Self::Fin(tmh, rvh) => (FIN, tmh, Some(rvh)),
        };
        out.u8(op);
        out.skip::<3>();
        out.u32(tmh.app_ctx);
        out.u64(tmh.tag);
        if let Some(rvh) = rvh {
            rvh.write(&mut out);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;

    const TMH: Tmh = Tmh { app_ctx: 0x0102_0304, tag: 0x1122_3344_5566_7788 };
    const RVH: Reth = Reth { addr: 0xa1a2_a3a4_a5a6_a7a8, rkey: Rkey(0xb1b2_b3b4), length: 0xc1c2_c3c4 };

    #[test]
    fn headers_lie_in_network_order() {
        let bytes = TmMessage::Rendezvous(TMH, RVH).emit();
        let expected = "01000000010203041122334455667788a1a2a3a4a5a6a7a8b1b2b3b4c1c2c3c4";
        assert_eq!(bytes.iter().map(|b| format!("{b:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        for message in [
            TmMessage::Untagged,
            TmMessage::Eager(TMH),
            TmMessage::Rendezvous(TMH, RVH),
            TmMessage::Fin(TMH, RVH),
        ] {
            assert_eq!(TmMessage::parse(&message.emit()), message);
        }
    }

    #[test]
    fn a_message_shorter_than_its_headers_has_no_tag() {
        for message in [TmMessage::Rendezvous(TMH, RVH), TmMessage::Fin(TMH, RVH)] {
            for len in 0..RENDEZVOUS_LEN {
                assert_eq!(TmMessage::parse(&message.emit()[..len]), TmMessage::Untagged);
            }
        }
        let eager = TmMessage::Eager(TMH).emit();
        assert_eq!(TmMessage::parse(&eager[..TMH_LEN]), TmMessage::Eager(TMH));
        assert_eq!(TmMessage::parse(&eager[..TMH_LEN - 1]), TmMessage::Untagged);
        assert_eq!(TmMessage::parse(&[9; RENDEZVOUS_LEN]), TmMessage::Untagged);
    }
}
