//! What the two ends tell each other when they connect: private data of the request and of the
//! reply, 40 bytes in network byte order.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | flags: bit 0, the end is big endian; bit 1, the end has a table of mappings |
//! | 2..4 | credits: receives that it has posted |
//! | 4..7 | 0 |
//! | 7 | entries of the table of mappings, scaled ([`scale`]) |
//! | 8..24 | the target list, which the peer writes to: address, key, entries |
//! | 24..40 | the first piece of the receive ring: address, key, bytes |

/// Bytes of it.
pub const LEN: usize = 40;
/// The one version there is.
const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1;
const MAPPINGS: u8 = 2;
/// Entries of a peer's target list: librdmacm has 2.
const ENTRIES: std::ops::RangeInclusive<u32> = 2..=1024;

/// A piece of memory of the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Key.
    pub key: u32,
    /// Bytes; of a list, entries.
    pub length: u32,
}

/// Bytes of an [`Sge`] in memory.
pub const SGE_LEN: usize = 16;

impl Sge {
    fn of_network(bytes: [u8; SGE_LEN]) -> Self {
        Self {
            addr: u64::from_be_bytes(field(&bytes, 0)),
            key: u32::from_be_bytes(field(&bytes, 8)),
            length: u32::from_be_bytes(field(&bytes, 12)),
        }
    }

    fn network(self) -> [u8; SGE_LEN] {
        let mut bytes = [0; SGE_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// An entry of our own lists, which the peer has written in our byte order.
    pub fn of_memory(bytes: &[u8; SGE_LEN]) -> Self {
        Self {
            addr: u64::from_ne_bytes(field(bytes, 0)),
            key: u32::from_ne_bytes(field(bytes, 8)),
            length: u32::from_ne_bytes(field(bytes, 12)),
        }
    }

    /// An entry of the peer's lists, in its byte order.
    pub fn memory(self, swapped: bool) -> [u8; SGE_LEN] {
        let (addr, key, length) = match swapped {
            true => (self.addr.swap_bytes(), self.key.swap_bytes(), self.length.swap_bytes()),
            false => (self.addr, self.key, self.length),
        };
        let mut bytes = [0; SGE_LEN];
        bytes[..8].copy_from_slice(&addr.to_ne_bytes());
        bytes[8..12].copy_from_slice(&key.to_ne_bytes());
        bytes[12..].copy_from_slice(&length.to_ne_bytes());
        bytes
    }
}

/// The bytes from `at` on, of which there are enough.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// A number of mappings in eight bits: exact up to 128, then in steps of 256.
pub fn scale(entries: u16) -> u8 {
    match entries {
        0..=0x80 => entries as u8,
        _ => 0x80 | (entries >> 8) as u8,
    }
}

/// The number of mappings that eight bits stand for.
pub fn unscale(scaled: u8) -> u16 {
    match scaled {
        0..=0x80 => scaled.into(),
        _ => u16::from(scaled & 0x7f) << 8,
    }
}

/// What one end tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnData {
    /// The end is big endian.
    pub big_endian: bool,
    /// Receives that it has posted.
    pub credits: u16,
    /// Entries of its table of mappings, which lies behind its target list; `None` where it does
    /// not know of such tables.
    pub mappings: Option<u16>,
    /// The target list.
    pub target_list: Sge,
    /// The first piece of its receive ring.
    pub ring: Sge,
}

/// Why a peer's bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Fewer bytes than there must be.
    Short(usize),
    /// Another version.
    Version(u8),
    /// A target list of so many entries.
    Entries(u32),
    /// A list or a ring that ends beyond the address space.
    Range(u64),
}

impl ConnData {
    /// Reads a peer's.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let bytes: &[u8; LEN] = bytes.first_chunk().ok_or(Refused::Short(bytes.len()))?;
        if bytes[0] != VERSION {
            return Err(Refused::Version(bytes[0]));
        }
        let (target_list, ring) = (Sge::of_network(field(bytes, 8)), Sge::of_network(field(bytes, 24)));
        if !ENTRIES.contains(&target_list.length) {
            return Err(Refused::Entries(target_list.length));
        }
        let mappings = (bytes[1] & MAPPINGS != 0).then(|| unscale(bytes[7]));
        // The table of mappings lies behind the list.
        let lists = u64::from(target_list.length) * 16 + u64::from(mappings.unwrap_or(0)) * 24;
        for (addr, len) in [(target_list.addr, lists), (ring.addr, ring.length.into())] {
            addr.checked_add(len).ok_or(Refused::Range(addr))?;
        }
        Ok(Self {
            big_endian: bytes[1] & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes(field(bytes, 2)),
            mappings,
            target_list,
            ring,
        })
    }

    /// The bytes of it.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = VERSION;
        bytes[1] = u8::from(self.big_endian) | if self.mappings.is_some() { MAPPINGS } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scale(self.mappings.unwrap_or(0));
        bytes[8..24].copy_from_slice(&self.target_list.network());
        bytes[24..].copy_from_slice(&self.ring.network());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> ConnData {
        ConnData {
            big_endian: false,
            credits: 384,
            mappings: Some(0),
            target_list: Sge { addr: 0x1000, key: 7, length: 2 },
            ring: Sge { addr: 0x7f00_0000_0000, key: 9, length: 65536 },
        }
    }

    #[test]
    fn connection_data_stands_as_librdmacm_writes_it() {
        let bytes = sample().encode();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], 0x1000_u64.to_be_bytes());
        assert_eq!(bytes[36..], 65536_u32.to_be_bytes());
        assert_eq!(ConnData::decode(&bytes), Ok(sample()));
        assert_eq!((unscale(scale(100)), unscale(scale(1000)), unscale(0xff)), (100, 768, 0x7f00));
    }

    #[test]
    fn a_peer_s_connection_data_is_refused_with_what_is_wrong() {
        let mut bytes = sample().encode();
        assert_eq!(ConnData::decode(&bytes[..39]), Err(Refused::Short(39)));
        bytes[0] = 2;
        assert_eq!(ConnData::decode(&bytes), Err(Refused::Version(2)));
        let of = |data: ConnData| ConnData::decode(&data.encode());
        for length in [0, 1, 1025] {
            let target_list = Sge { length, ..sample().target_list };
            assert_eq!(of(ConnData { target_list, ..sample() }), Err(Refused::Entries(length)));
        }
        let ring = Sge { addr: u64::MAX, ..sample().ring };
        assert_eq!(of(ConnData { ring, ..sample() }), Err(Refused::Range(u64::MAX)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(data) = ConnData::decode(&bytes) {
                prop_assert_eq!(ConnData::decode(&data.encode()), Ok(data));
            }
        }
    }
}
