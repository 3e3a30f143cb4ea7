//! Whether a request's M_Key opens a port (IBA 1.4 §14.2.4).
//!
//! | protection | Get with another key | Set with another key |
//! |---|---|---|
//! | 0 | answered | silence |
//! | 1 | answered, with 0 in place of the key | silence |
//! | 2, 3 | silence | silence |
//!
//! Each silence is a violation, which is counted, told by trap 256, and starts the lease of the
//! key: when it ends, the protection is 0, so that a new subnet manager can read the key.

use std::time::Duration;

use wire::mad::{Trap, method};

use super::Request;
use crate::subnet::{PortId, Subnet};

impl Subnet {
    /// Whether the agent may answer. The keys of a switch are those of port 0.
    pub(super) fn m_key_allows(&mut self, now: Duration, request: &Request<'_>) -> bool {
        let at = self.end_port(request.at);
        self.end_lease(now, at);
        let header = request.smp.header;
        let port = self.port_mut(at);
        if port.info.m_key == 0 || request.smp.m_key == port.info.m_key {
            port.lease_ends = None;
            return true;
        }
        if header.method == method::GET && port.info.m_key_protection < 2 {
            return true;
        }
        port.info.m_key_violations = port.info.m_key_violations.saturating_add(1);
        let lease = u64::from(port.info.m_key_lease_s);
        if lease != 0 && port.lease_ends.is_none() {
            port.lease_ends = now.checked_add(Duration::from_secs(lease));
        }
        let trap = Trap::BadMKey {
            slid: request.slid,
            method: header.method,
            attribute: header.attribute,
            modifier: header.modifier,
            m_key: request.smp.m_key,
        };
        self.traps.push((at, trap));
        false
    }

    /// Takes the protection away where the lease has run out.
    fn end_lease(&mut self, now: Duration, at: PortId) {
        let port = self.port_mut(at);
        if port.lease_ends.is_some_and(|ends| ends <= now) {
            port.lease_ends = None;
            port.info.m_key_protection = 0;
        }
    }

    /// The key that an answer shows to a request with this key.
    pub(super) fn shown_m_key(&self, at: PortId, asked_with: u64) -> u64 {
        let info = &self.port(self.end_port(at)).info;
        if info.m_key_protection == 0 || asked_with == info.m_key { info.m_key } else { 0 }
    }
}
