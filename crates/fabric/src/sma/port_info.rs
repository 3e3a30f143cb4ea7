//! Get and Set of PortInfo (IBA 1.4 §14.2.5.6, §7.2.3).

use wire::mad::smp::Data;
use wire::mad::{PhysicalState, PortInfo, PortState, status};

use crate::subnet::{PortId, Subnet};

/// The highest unicast LID (IBA 1.4 §4.1.3).
const MAX_UNICAST: u16 = 0xbfff;

impl Subnet {
    /// The attribute of a port of the node at which the request came in: the modifier's low byte
    /// is its number. On an adapter 0 is the port where the request came in.
    pub(super) fn port_info(
        &mut self,
        at: PortId,
        modifier: u32,
        asked_with: u64,
        set: Option<&Data>,
    ) -> Result<Data, u16> {
        let node = self.node_at(at);
        let number = modifier as u8;
        if number > node.ports {
            return Err(status::BAD_FIELD);
        }
        let port =
            if number == 0 && node.switch.is_none() { at } else { self.port_of(self.port(at).node, number) };
        if let Some(data) = set {
            let new = PortInfo::parse(data).map_err(|_| status::BAD_FIELD)?;
            self.set_port_info(port, &new)?;
        }
        let mut info = PortInfo { local_port: self.port(at).number, ..self.port(port).info };
        // A Set that was allowed may see what it has set.
        if info.m_key != 0 && set.is_none() {
            info.m_key = self.shown_m_key(port, asked_with);
        }
        Ok(info.emit())
    }

    fn set_port_info(&mut self, at: PortId, new: &PortInfo) -> Result<(), u16> {
        let has_link = self.port(at).peer.is_some();
        let is_port_0 = self.node_at(at).switch.is_some() && self.port(at).number == 0;
        let has_lid = is_port_0 || self.node_at(at).switch.is_none();
        let old = self.port(at).info;
        let is_new_lid = has_lid && (new.lid > MAX_UNICAST || new.sm_lid > MAX_UNICAST);
        if is_new_lid || new.neighbour_mtu > old.mtu_cap || new.operational_vls > old.vl_cap {
            return Err(status::BAD_FIELD);
        }
        if !is_port_0 {
            self.may_become(at, new)?;
        }
        let keep = |new: u8, old: u8, no_change: &[u8]| if no_change.contains(&new) { old } else { new };
        let asks_again = has_lid && new.client_reregister;
        let reregisters = &mut self.port_mut(at).reregisters;
        *reregisters = reregisters.wrapping_add(asks_again.into());
        let info = &mut self.port_mut(at).info;
        if has_lid {
            info.m_key = new.m_key;
            info.gid_prefix = new.gid_prefix;
            (info.lid, info.sm_lid) = (new.lid, new.sm_lid);
            (info.lmc, info.m_key_protection) = (new.lmc, new.m_key_protection);
            info.m_key_lease_s = new.m_key_lease_s;
            info.sm_sl = new.sm_sl;
            (info.client_reregister, info.subnet_timeout) = (new.client_reregister, new.subnet_timeout);
        }
        info.width_enabled = match new.width_enabled {
            0 => old.width_enabled,
            255 => old.width_supported,
            width => width,
        };
        info.speed_enabled = match new.speed_enabled {
            0 => old.speed_enabled,
            15 => old.speed_supported,
            speed => speed,
        };
        info.extended_speed_enabled = keep(new.extended_speed_enabled, old.extended_speed_enabled, &[0, 31]);
        info.down_default = keep(new.down_default, old.down_default, &[0]);
        info.neighbour_mtu = keep(new.neighbour_mtu, old.neighbour_mtu, &[0]);
        info.operational_vls = keep(new.operational_vls, old.operational_vls, &[0]);
        (info.vl_high_limit, info.stall_and_life) = (new.vl_high_limit, new.stall_and_life);
        (info.init_type, info.enforcement) = (new.init_type, new.enforcement);
        info.error_thresholds = new.error_thresholds;
        // Counters that a Set clears (IBA 1.4 table 146).
        (info.m_key_violations, info.p_key_violations, info.q_key_violations) =
            (new.m_key_violations, new.p_key_violations, new.q_key_violations);
        if *info != old || asks_again {
            self.changed.push(at);
        }
        if has_link && !is_port_0 {
            self.set_state(at, new);
        }
        Ok(())
    }

    /// Whether a port may take the states of a Set: armed comes after initialized, active after
    /// armed.
    fn may_become(&self, at: PortId, new: &PortInfo) -> Result<(), u16> {
        use PortState::{Active, Armed, Down, Init, NoChange};
        let may = matches!(
            (self.port(at).info.state, new.state),
            (_, NoChange | Down) | (Init | Armed, Armed) | (Armed | Active, Active)
        );
        let physical = matches!(
            new.physical_state,
            PhysicalState::NoChange | PhysicalState::Sleep | PhysicalState::Polling | PhysicalState::Disabled
        );
        if may && physical { Ok(()) } else { Err(status::BAD_FIELD) }
    }

    /// Carries out the states of a Set that [`Subnet::may_become`] has allowed.
    fn set_state(&mut self, at: PortId, new: &PortInfo) {
        match new.physical_state {
            PhysicalState::Disabled => {
                self.take_down(at);
                self.port_mut(at).info.physical_state = PhysicalState::Disabled;
                self.changed.push(at);
                return;
            }
            PhysicalState::Polling if self.port(at).info.physical_state == PhysicalState::Disabled => {
                self.port_mut(at).info.physical_state = PhysicalState::Polling;
                self.changed.push(at);
                self.train(at);
                return;
            }
            _ => {}
        }
        match new.state {
            // The link goes down, and the ports find each other again.
            PortState::Down if self.port(at).info.physical_state == PhysicalState::LinkUp => {
                self.take_down(at);
                self.train(at);
            }
            PortState::Armed | PortState::Active => {
                self.port_mut(at).info.state = new.state;
                self.changed.push(at);
            }
            _ => {}
        }
    }
}
