//! The header before each MAD that a program writes to or reads from a umad port: the kernel's
//! `struct ib_user_mad_hdr` (rdma/ib_user_mad.h), 64 bytes. Numbers of the host's order but where
//! "be" stands.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4, 4..8 | agent, status: an errno |
//! | 8..12, 12..16 | timeout in milliseconds, retries |
//! | 16..20 | bytes of header and MAD |
//! | 20..24, 24..28 | queue pair, Q_Key (be) |
//! | 28..30 | LID (be) |
//! | 30, 31 | service level, path bits |
//! | 32..56 | GRH: present, GID index, hop limit, traffic class, GID, flow label (be) |
//! | 56..58 | P_Key index |

/// The header of a message between a program and a umad port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmadHeader {
    /// The agent that sends or receives.
    pub agent: u32,
    /// 0, or ETIMEDOUT of a request without an answer.
    pub status: u32,
    /// How long a request waits for its answer; 0: there is none.
    pub timeout_ms: u32,
    /// How often a request is sent again.
    pub retries: u32,
    /// Bytes of header and MAD.
    pub length: u32,
    /// The other end's queue pair.
    pub qpn: u32,
    /// The other end's Q_Key.
    pub qkey: u32,
    /// The other end's LID.
    pub lid: u16,
    /// The service level.
    pub sl: u8,
    /// Which of the own LIDs.
    pub path_bits: u8,
    /// The GRH, as it is: no packet leaves its subnet.
    pub grh: [u8; 24],
    /// Which P_Key of the port.
    pub pkey_index: u16,
}

impl UmadHeader {
    /// Bytes of the header.
    pub const LEN: usize = 64;

    /// The header at the front of a message; `None` for one that is shorter.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let host = |at: usize| u32::from_ne_bytes(four(at));
        let network = |at: usize| u32::from_be_bytes(four(at));
        let mut grh = [0; 24];
        grh.copy_from_slice(&bytes[32..56]);
        Some(Self {
            agent: host(0),
            status: host(4),
            timeout_ms: host(8),
            retries: host(12),
            length: host(16),
            qpn: network(20),
            qkey: network(24),
            lid: u16::from_be_bytes([bytes[28], bytes[29]]),
            sl: bytes[30],
            path_bits: bytes[31],
            grh,
            pkey_index: u16::from_ne_bytes([bytes[56], bytes[57]]),
        })
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        for (at, field) in
            [self.agent, self.status, self.timeout_ms, self.retries, self.length].into_iter().enumerate()
        {
            put(4 * at, &field.to_ne_bytes());
        }
        put(20, &self.qpn.to_be_bytes());
        put(24, &self.qkey.to_be_bytes());
        put(28, &self.lid.to_be_bytes());
        put(30, &[self.sl, self.path_bits]);
        put(32, &self.grh);
        put(56, &self.pkey_index.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_written_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 58)) {
            let bytes = [&bytes[..], &[0; 6]].concat();
            let header = UmadHeader::parse(&bytes).unwrap();
            prop_assert_eq!(&header.emit()[..], &bytes[..]);
        }
    }

    #[test]
    fn a_message_shorter_than_the_header_is_none() {
        assert_eq!(UmadHeader::parse(&[0; 63]), None);
    }
}
