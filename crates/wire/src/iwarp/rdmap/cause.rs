//! Why a stream is terminated: layer, error type and error code of a TERMINATE (RFC 5040 §4.8,
//! RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8; registered by RFC 6580).
//!
//! | layer | error type | codes |
//! |---|---|---|
//! | 0 RDMA | 0 local catastrophic | 0 |
//! | | 1 remote protection | 0 to 4, 9, 0xff |
//! | | 2 remote operation | 5 to 9, 0xff |
//! | 1 DDP | 0 local catastrophic | 0 |
//! | | 1 tagged buffer | 0 to 4 |
//! | | 2 untagged buffer | 1 to 6 |
//! | 2 LLP | 0 MPA | 1 to 7 |

/// What a TERMINATE says of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// Layer that found the error, 4 bits: 0 RDMA, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type, 4 bits; its meaning depends on the layer.
    pub etype: u8,
    /// Error code; its meaning depends on layer and type.
    pub code: u8,
}

impl Code {
    /// The layer of RDMAP.
    pub const RDMA: u8 = 0;
    /// The layer of DDP.
    pub const DDP: u8 = 1;
    /// The lower layer, MPA.
    pub const LLP: u8 = 2;
}

/// Declares [`Cause`] and its codes from one list, so that no cause is without a code.
macro_rules! causes {
    ($($(#[$doc:meta])+ $name:ident = $layer:literal / $etype:literal / $code:literal,)*) => {
        /// The errors that RFC 6580 lists.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Cause {
            $($(#[$doc])+ $name,)*
        }

        impl Cause {
            /// All of them, by layer, type and code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Layer, type and code.
            pub const fn code(self) -> Code {
                let (layer, etype, code) = match self {
                    $(Self::$name => ($layer, $etype, $code),)*
                };
                Code { layer, etype, code }
            }

            /// The cause with this code; `None` for a code that RFC 6580 does not list.
            pub const fn from_code(code: Code) -> Option<Self> {
                match (code.layer, code.etype, code.code) {
                    $(($layer, $etype, $code) => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

causes! {
    /// RDMA, local catastrophic error (RFC 5040 §4.8).
    RdmaCatastrophic = 0 / 0 / 0x00,
    /// RDMA, remote protection: the STag is invalid (RFC 5040 §4.8).
    InvalidStag = 0 / 1 / 0x00,
    /// RDMA, remote protection: base or bounds violation (RFC 5040 §4.8).
    BaseOrBounds = 0 / 1 / 0x01,
    /// RDMA, remote protection: access rights violation (RFC 5040 §4.8).
    AccessRights = 0 / 1 / 0x02,
    /// RDMA, remote protection: the STag is not associated with the stream (RFC 5040 §4.8).
    StagNotAssociated = 0 / 1 / 0x03,
    /// RDMA, remote protection: the tagged offset wraps (RFC 5040 §4.8).
    ToWrap = 0 / 1 / 0x04,
    /// RDMA, remote protection: the STag cannot be invalidated (RFC 5040 §4.8).
    CannotInvalidate = 0 / 1 / 0x09,
    /// RDMA, remote protection: unspecified (RFC 5040 §4.8).
    ProtectionUnspecified = 0 / 1 / 0xff,
    /// RDMA, remote operation: RDMAP version other than 1 (RFC 5040 §4.8).
    RdmapVersion = 0 / 2 / 0x05,
    /// RDMA, remote operation: unexpected opcode (RFC 5040 §4.8).
    UnexpectedOpcode = 0 / 2 / 0x06,
    /// RDMA, remote operation: catastrophic error, localized to the stream (RFC 5040 §4.8).
    StreamCatastrophic = 0 / 2 / 0x07,
    /// RDMA, remote operation: catastrophic error, global (RFC 5040 §4.8).
    GlobalCatastrophic = 0 / 2 / 0x08,
    /// RDMA, remote operation: the STag cannot be invalidated (RFC 5040 §4.8).
    OperationCannotInvalidate = 0 / 2 / 0x09,
    /// RDMA, remote operation: unspecified (RFC 5040 §4.8).
    OperationUnspecified = 0 / 2 / 0xff,
    /// DDP, local catastrophic error (RFC 5041 §7.2).
    DdpCatastrophic = 1 / 0 / 0x00,
    /// DDP, tagged buffer: the STag is invalid (RFC 5041 §7.2).
    TaggedInvalidStag = 1 / 1 / 0x00,
    /// DDP, tagged buffer: base or bounds violation (RFC 5041 §7.2).
    TaggedBaseOrBounds = 1 / 1 / 0x01,
    /// DDP, tagged buffer: the STag is not associated with the stream (RFC 5041 §7.2).
    TaggedStagNotAssociated = 1 / 1 / 0x02,
    /// DDP, tagged buffer: the tagged offset wraps (RFC 5041 §7.2).
    TaggedToWrap = 1 / 1 / 0x03,
    /// DDP, tagged buffer: DDP version other than 1 (RFC 5041 §7.2).
    TaggedVersion = 1 / 1 / 0x04,
    /// DDP, untagged buffer: there is no such queue (RFC 5041 §7.2).
    InvalidQn = 1 / 2 / 0x01,
    /// DDP, untagged buffer: no buffer is available for the MSN (RFC 5041 §7.2).
    MsnNoBuffer = 1 / 2 / 0x02,
    /// DDP, untagged buffer: the MSN is out of range (RFC 5041 §7.2).
    MsnRange = 1 / 2 / 0x03,
    /// DDP, untagged buffer: the MO is invalid (RFC 5041 §7.2).
    InvalidMo = 1 / 2 / 0x04,
    /// DDP, untagged buffer: the message is too long for its buffer (RFC 5041 §7.2).
    MessageTooLong = 1 / 2 / 0x05,
    /// DDP, untagged buffer: DDP version other than 1 (RFC 5041 §7.2).
    UntaggedVersion = 1 / 2 / 0x06,
    /// MPA: the TCP connection is closed, terminated or lost (RFC 5044 §8).
    MpaConnectionLost = 2 / 0 / 0x01,
    /// MPA: the CRC of an FPDU does not match (RFC 5044 §8).
    MpaCrc = 2 / 0 / 0x02,
    /// MPA: marker and ULPDU length do not agree on the start of an FPDU (RFC 5044 §8).
    MpaFpduStart = 2 / 0 / 0x03,
    /// MPA: malformed MPA request or reply (RFC 5044 §8).
    MpaFrame = 2 / 0 / 0x04,
    /// MPA, enhanced: local catastrophic error (RFC 6581 §8).
    MpaCatastrophic = 2 / 0 / 0x05,
    /// MPA, enhanced: the IRD does not suffice (RFC 6581 §8).
    MpaInsufficientIrd = 2 / 0 / 0x06,
    /// MPA, enhanced: no RTR that both sides can do (RFC 6581 §8).
    MpaNoMatchingRtr = 2 / 0 / 0x07,
}

impl Cause {
    /// Whether a TERMINATE has copies of headers: the error is one of a segment whose layout is
    /// known.
    pub(super) const fn copies_headers(self) -> bool {
        let code = self.code();
        let is_catastrophic = code.etype == 0;
        let is_unknown_layout = matches!(
            self,
            Self::RdmapVersion | Self::UnexpectedOpcode | Self::TaggedVersion | Self::UntaggedVersion
        );
        code.layer != Code::LLP && !is_catastrophic && !is_unknown_layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_comes_back_from_its_code() {
        assert_eq!(Cause::ALL.len(), 33);
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_code(cause.code()), Some(cause));
        }
        let codes = (0..=0xff).flat_map(|layer_type: u8| (0..=0xff).map(move |code| (layer_type, code)));
        let code = |(both, code): (u8, u8)| Code { layer: both >> 4, etype: both & 0x0f, code };
        assert_eq!(codes.filter_map(|both| Cause::from_code(code(both))).count(), 33);
    }
}
