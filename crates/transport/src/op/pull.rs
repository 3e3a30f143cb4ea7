//! Bytes of a message that lie in the sender's memory, where a receiver on the same host finds them.

/// So many bytes at this address of the sender's process. In place of the payload of several packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

impl Pull {
    /// Packets for which it stands, at most: while their bytes are copied the next ones are on their way.
    pub const MOST_PACKETS: u32 = 64;
    /// Bytes of it between two processes: address and length, each little-endian.
    pub const LEN: usize = 12;

    /// As it goes to the receiver.
    pub fn to_bytes(self) -> [u8; Pull::LEN] {
        let mut bytes = [0; Pull::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// As it came from a sender; `None` for another number of bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Pull> {
        let (addr, len) = bytes.split_first_chunk()?;
        let len = <[u8; 4]>::try_from(len).ok()?;
        Some(Pull { addr: u64::from_le_bytes(*addr), len: u32::from_le_bytes(len) })
    }
}
