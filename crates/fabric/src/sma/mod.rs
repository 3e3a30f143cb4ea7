//! The subnet management agent of a node (IBA 1.4 §14.2.5): reads and writes what a subnet manager
//! configures, if the M_Key allows it.
//!
//! | module | attributes |
//! |---|---|
//! | this one | NodeInfo, NodeDescription, SwitchInfo; which module has the others |
//! | `m_key` | whether a request may do what it asks |
//! | `port_info` | PortInfo |
//! | `tables` | forwarding, P_Keys, GUIDs, virtual lanes |

mod m_key;
mod port_info;
mod tables;

use std::time::Duration;

use wire::mad::smp::{Data, Smp, attribute};
use wire::mad::{NodeInfo, SwitchInfo, method, status};

use crate::subnet::{Node, PARTITION_CAP, PortId, Subnet};

/// A request as the agent sees it.
pub(crate) struct Request<'a> {
    /// Where it came in.
    pub(crate) at: PortId,
    /// The LID of the requester.
    pub(crate) slid: u16,
    /// The packet, into which the answer is written.
    pub(crate) smp: &'a mut Smp,
}

impl Subnet {
    /// Answers a Get or Set; false where the agent is silent.
    pub(crate) fn sma(&mut self, now: Duration, request: &mut Request<'_>) -> bool {
        if !self.m_key_allows(now, request) {
            return false;
        }
        let Request { at, ref mut smp, .. } = *request;
        let is_set = smp.header.method == method::SET;
        let modifier = smp.header.modifier;
        let answer = match smp.header.attribute {
            attribute::NODE_DESCRIPTION if !is_set => Ok(self.node_at(at).description()),
            attribute::NODE_INFO if !is_set => Ok(self.node_info(at)),
            attribute::SWITCH_INFO => self.switch_info(at, is_set.then_some(&smp.data)),
            attribute::PORT_INFO => self.port_info(at, modifier, smp.m_key, is_set.then_some(&smp.data)),
            // OpenSM asks devices of Mellanox for it and logs an error for each that refuses.
            attribute::VENDOR_EXTENDED_PORT_INFO => Ok([0; 64]),
            attribute => self.table(at, attribute, modifier, is_set.then_some(&smp.data)),
        };
        smp.header.status = match answer {
            Ok(data) => {
                smp.data = data;
                status::OK
            }
            Err(status) => status,
        };
        true
    }

    fn node_info(&self, at: PortId) -> Data {
        let (node, port) = (self.node_at(at), self.port(at));
        NodeInfo {
            kind: node.kind,
            ports: node.ports,
            system: node.system,
            node: node.guid,
            port: port.guid,
            partition_cap: PARTITION_CAP,
            device: node.device,
            revision: 0xa0,
            local_port: port.number,
            vendor: node.vendor,
        }
        .emit()
    }

    fn switch_info(&mut self, at: PortId, set: Option<&Data>) -> Result<Data, u16> {
        let id = self.port(at).node;
        let Some(switch) = &mut self.node_mut(id).switch else {
            return Err(status::BAD_ATTRIBUTE);
        };
        if let Some(data) = set {
            let new = SwitchInfo::parse(data).map_err(|_| status::BAD_FIELD)?;
            if new.linear_top > switch.info.linear_cap {
                return Err(status::BAD_FIELD);
            }
            switch.info = SwitchInfo {
                linear_top: new.linear_top,
                default_ports: new.default_ports,
                life_time: new.life_time,
                // Written 1 it is cleared.
                port_state_change: switch.info.port_state_change && !new.port_state_change,
                optimized_sl_to_vl: new.optimized_sl_to_vl,
                multicast_top: new.multicast_top,
                ..switch.info
            };
        }
        Ok(switch.info.emit())
    }
}

impl Node {
    fn description(&self) -> Data {
        let mut data = [0; 64];
        for (to, byte) in data.iter_mut().zip(self.description.bytes()) {
            *to = byte;
        }
        data
    }
}
