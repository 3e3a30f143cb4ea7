//! Mappings: memory that this end lets its peer write to by offsets (riomap), and memory of the
//! peer's (riowrite).

use nic::Errno;

use crate::conn_data::{ConnData, Sge};
use crate::message::Message;
use crate::stream::Stream;
use crate::verbs::{Mark, Payload, Place, Refused, Verbs};

/// Bytes of an entry of a table of mappings: the offset, then the memory.
pub(crate) const MAPPING_LEN: usize = 24;

/// Memory of this end that the peer may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The offset that it begins at.
    pub offset: u64,
    /// The memory.
    pub memory: Sge,
}

#[derive(Debug)]
pub(super) struct Mappings {
    /// The peer's table.
    table: Place,
    swapped: bool,
    /// What is in each of its entries, and which the peer was not told of.
    entries: Vec<Option<Mapping>>,
    untold: Vec<u32>,
}

impl Mappings {
    pub(super) fn new(peer: &ConnData) -> Self {
        let list = u64::from(peer.target_list.length) * 16;
        Self {
            table: Place { addr: peer.target_list.addr + list, key: peer.target_list.key },
            swapped: peer.big_endian != cfg!(target_endian = "big"),
            entries: vec![None; peer.mappings.unwrap_or(0).into()],
            untold: Vec::new(),
        }
    }

    /// Whether the peer knows of all of them.
    pub(super) fn is_told(&self) -> bool {
        self.untold.is_empty()
    }
}

impl Stream {
    /// Lets the peer write to memory (riomap). It knows of that before it gets any byte that is
    /// written from now on.
    ///
    /// # Errors
    ///
    /// ENOMEM where the peer's table is full, or it has none.
    pub fn map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        let free = self.mappings.entries.iter().position(Option::is_none).ok_or(Errno::ENOMEM)?;
        self.mappings.entries[free] = Some(mapping);
        self.mappings.untold.push(free as u32);
        Ok(())
    }

    /// Forgets the mapping of this memory; its key is void from now on. False where there is none.
    pub fn unmap(&mut self, addr: u64, length: u32) -> Option<Mapping> {
        let is_it =
            |m: &Option<Mapping>| m.is_some_and(|m| (m.memory.addr, m.memory.length) == (addr, length));
        let at = self.mappings.entries.iter().position(is_it)?;
        self.mappings.untold.retain(|&entry| entry as usize != at);
        self.mappings.entries[at].take()
    }

    pub(super) fn send_mappings(&mut self, verbs: &mut impl Verbs) -> Result<(), Refused> {
        let entries = self.entries();
        while !self.peer_gone && !self.mappings.is_told() && self.sending.has_credit(entries) {
            let entry = self.mappings.untold.remove(0);
            let Some(mapping) = self.mappings.entries[entry as usize] else { continue };
            let swapped = self.mappings.swapped;
            let offset = if swapped { mapping.offset.swap_bytes() } else { mapping.offset };
            let mut bytes = [0; MAPPING_LEN];
            bytes[..8].copy_from_slice(&offset.to_ne_bytes());
            bytes[8..].copy_from_slice(&mapping.memory.memory(swapped));
            let Place { addr, key } = self.mappings.table;
            let to = Place { addr: addr + u64::from(entry) * MAPPING_LEN as u64, key };
            self.sending.take_credit(entries);
            let mark = Mark { control: false, bytes: 0 };
            self.post_write(verbs, mark, to, Payload::Inline(&bytes), Message::Mapping(entry))?;
        }
        Ok(())
    }

    /// Where the peer has the byte at this offset, and how many there are from it on.
    pub(super) fn find_mapping(&self, verbs: &impl Verbs, offset: u64) -> Option<(Place, u32)> {
        (0..self.settings.mappings.into()).find_map(|entry| {
            let (begins, memory) = verbs.mapping(entry);
            let into = u32::try_from(offset.checked_sub(begins)?).ok()?;
            let room = memory.length.checked_sub(into).filter(|&room| room > 0)?;
            Some((Place { addr: memory.addr.wrapping_add(into.into()), key: memory.key }, room))
        })
    }
}
