//! NodeInfo (IBA 1.4 §14.2.5.3).
//!
//! | bytes | field |
//! |---|---|
//! | 0, 1 | base version, class version: 1 |
//! | 2 | type: 1 channel adapter, 2 switch, 3 router |
//! | 3 | ports |
//! | 4..12, 12..20, 20..28 | GUIDs of the system, the node, the port |
//! | 28..30 | P_Keys of a port |
//! | 30..32, 32..36 | device, revision |
//! | 36 | number of the port that the request came in by |
//! | 37..40 | vendor |

use super::smp::Data;
use crate::bytes::{Reader, Writer};
use crate::{Guid, Malformed};

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeType {
    /// A channel adapter.
    Ca = 1,
    /// A switch.
    Switch = 2,
    /// A router.
    Router = 3,
}

/// What a node says of itself and of the port that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Channel adapter, switch or router.
    pub kind: NodeType,
    /// External ports.
    pub ports: u8,
    /// The system image.
    pub system: Guid,
    /// The node.
    pub node: Guid,
    /// The port.
    pub port: Guid,
    /// Entries of a port's P_Key table.
    pub partition_cap: u16,
    /// The vendor's number of the device.
    pub device: u16,
    /// The device's revision.
    pub revision: u32,
    /// The port that the request came in by.
    pub local_port: u8,
    /// The vendor, 24 bits.
    pub vendor: u32,
}

impl NodeInfo {
    /// Reads the attribute.
    ///
    /// # Errors
    ///
    /// `Field` for a type that is none.
    pub fn parse(data: &Data) -> Result<Self, Malformed> {
        let from = &mut Reader::new(data);
        from.skip::<2>()?;
        let kind = match from.u8()? {
            1 => NodeType::Ca,
            2 => NodeType::Switch,
            3 => NodeType::Router,
            _ => return Err(Malformed::Field("node type")),
        };
        let ports = from.u8()?;
        let [system, node, port] = [from.u64()?, from.u64()?, from.u64()?].map(Guid);
        let (partition_cap, device, revision) = (from.u16()?, from.u16()?, from.u32()?);
        let (local_port, vendor) = from.u8_u24()?;
        Ok(Self { kind, ports, system, node, port, partition_cap, device, revision, local_port, vendor })
    }

    /// The attribute as bytes.
    pub fn emit(&self) -> Data {
        let mut data = [0; 64];
        let out = &mut Writer::new(&mut data);
        out.array([1, 1, self.kind as u8, self.ports]);
        for guid in [self.system, self.node, self.port] {
            out.u64(guid.0);
        }
        out.u16(self.partition_cap);
        out.u16(self.device);
        out.u32(self.revision);
        out.u8_u24(self.local_port, self.vendor);
        data
    }
}
