//! Get and Set of tables, a block at a time. A block that was never written is as it is made.
//!
//! | attribute | modifier | who has it |
//! |---|---|---|
//! | LinearForwardingTable | block of 64 LIDs | switches |
//! | MulticastForwardingTable | position << 28, block of 32 LIDs | switches |
//! | P_KeyTable | port << 16, block | all |
//! | GUIDInfo | block | adapters, port 0 |
//! | SLtoVLMappingTable | port in << 8, port out | all |
//! | VLArbitrationTable | block << 16, port | all |

use wire::mad::smp::{Data, attribute};
use wire::mad::status;

use crate::plane::{Block, WrittenBlock};
use crate::subnet::{LINEAR_CAP, MULTICAST_CAP, NO_PORT, PARTITION_CAP, PortId, Subnet};

/// LIDs of a block of a linear forwarding table.
const LINEAR_BLOCK: usize = 64;
/// LIDs of a block of a multicast forwarding table, and ports of a position.
const MULTICAST_BLOCK: u32 = 32;
const PORTS_OF_A_POSITION: u32 = 16;

impl Subnet {
    pub(super) fn table(
        &mut self,
        at: PortId,
        attribute: u16,
        modifier: u32,
        set: Option<&Data>,
    ) -> Result<Data, u16> {
        match attribute {
            attribute::LINEAR_FORWARDING => self.linear(at, modifier, set),
            attribute::MULTICAST_FORWARDING => self.multicast(at, modifier, set),
            attribute::GUID_INFO => self.guids(at, modifier, set),
            attribute::PKEY_TABLE | attribute::SL_TO_VL | attribute::VL_ARBITRATION => {
                self.block(at, attribute, modifier, set)
            }
            _ => Err(status::BAD_ATTRIBUTE),
        }
    }

    fn linear(&mut self, at: PortId, modifier: u32, set: Option<&Data>) -> Result<Data, u16> {
        let id = self.port(at).node;
        let Some(switch) = &mut self.node_mut(id).switch else { return Err(status::BAD_ATTRIBUTE) };
        let begin = (modifier as usize).saturating_mul(LINEAR_BLOCK);
        if begin > usize::from(LINEAR_CAP) {
            return Err(status::BAD_FIELD);
        }
        let end = begin + LINEAR_BLOCK;
        if let Some(data) = set {
            if switch.linear.len() < end {
                switch.linear.resize(end, NO_PORT);
            }
            switch.linear[begin..end].copy_from_slice(data);
            self.written.push(WrittenBlock { node: id, block: Block::Linear(begin as u16) });
        }
        let Some(switch) = &self.node(id).switch else { return Err(status::BAD_ATTRIBUTE) };
        Ok(switch.linear.get(begin..end).and_then(|block| block.try_into().ok()).unwrap_or([NO_PORT; 64]))
    }

    fn multicast(&mut self, at: PortId, modifier: u32, set: Option<&Data>) -> Result<Data, u16> {
        let id = self.port(at).node;
        let node = self.node_mut(id);
        let ports = u32::from(node.ports);
        let Some(switch) = &mut node.switch else { return Err(status::BAD_ATTRIBUTE) };
        let (position, block) = (modifier >> 28, modifier & 0x1ff);
        if position * PORTS_OF_A_POSITION > ports || block * MULTICAST_BLOCK >= u32::from(MULTICAST_CAP) {
            return Err(status::BAD_FIELD);
        }
        let key = position << 28 | block;
        if let Some(data) = set {
            switch.multicast.insert(key, *data);
            self.written.push(WrittenBlock { node: id, block: Block::Multicast(key) });
        }
        let Some(switch) = &self.node(id).switch else { return Err(status::BAD_ATTRIBUTE) };
        Ok(switch.multicast.get(&key).copied().unwrap_or([0; 64]))
    }

    /// The first GUID is the port's own and cannot be changed (IBA 1.4 §14.2.5.5).
    fn guids(&mut self, at: PortId, modifier: u32, set: Option<&Data>) -> Result<Data, u16> {
        let at = self.end_port(at);
        let port = self.port(at);
        if modifier != 0 {
            return Err(status::BAD_FIELD);
        }
        let (id, own, key) = (port.node, port.guid.0.to_be_bytes(), u32::from(port.number));
        let tables = &mut self.node_mut(id).tables;
        if let Some(data) = set
            && tables.insert((attribute::GUID_INFO, key), *data) != Some(*data)
        {
            self.changed.push(at);
        }
        let tables = &self.node(id).tables;
        let mut data = tables.get(&(attribute::GUID_INFO, key)).copied().unwrap_or([0; 64]);
        data[..8].copy_from_slice(&own);
        Ok(data)
    }

    fn block(&mut self, at: PortId, attribute: u16, modifier: u32, set: Option<&Data>) -> Result<Data, u16> {
        let (number, id) = (self.port(at).number, self.port(at).node);
        let node = self.node_mut(id);
        let is_switch = node.switch.is_some();
        // An adapter has the tables of the port where the request came in.
        let port = |asked: u32| if is_switch { asked } else { u32::from(number) };
        let (key, len, is_there) = match attribute {
            attribute::PKEY_TABLE => {
                let block = modifier & 0xffff;
                let port = port(modifier >> 16);
                (port << 16 | block, 64, port <= node.ports.into() && block < u32::from(PARTITION_CAP) / 32)
            }
            attribute::SL_TO_VL => {
                let (into, out) = (modifier >> 8 & 0xff, modifier & 0xff);
                let there = into <= node.ports.into() && out <= node.ports.into();
                (port(into << 8 | out), 8, there)
            }
            _ => {
                let (block, port) = (modifier >> 16, port(modifier & 0xffff));
                (block << 16 | port, 64, (1..=4).contains(&block) && port <= node.ports.into())
            }
        };
        if !is_there {
            return Err(status::BAD_FIELD);
        }
        if let Some(data) = set {
            let mut kept = [0; 64];
            kept[..len].copy_from_slice(&data[..len]);
            let before = node.tables.insert((attribute, key), kept);
            if attribute == attribute::PKEY_TABLE && before != Some(kept) {
                let changed = if is_switch { self.port_of(id, (key >> 16) as u8) } else { at };
                self.changed.push(changed);
            }
        }
        let tables = &self.node(id).tables;
        Ok(tables.get(&(attribute, key)).copied().unwrap_or_else(|| made(attribute)))
    }
}

/// A block that was never written: the default partition with full membership (IBA 1.4 §10.9.1.2),
/// VL 0 for each service level, no arbitration.
fn made(attribute: u16) -> Data {
    let mut data = [0; 64];
    if attribute == attribute::PKEY_TABLE {
        data[..2].copy_from_slice(&[0xff, 0xff]);
    }
    data
}
