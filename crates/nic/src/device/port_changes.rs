//! A port that changes: queue pairs follow its partition keys, and programs are told by
//! asynchronous events (IBA 1.4 §11.6.3, ibv_get_async_event(3)).

use crate::device::Device;
use crate::device::async_events::{Element, EventKind};
use crate::device::port::Port;

impl Device {
    /// The interface changed. Queue pairs bear the P_Keys of the table as it is now. All openings
    /// of the device are told what differs.
    pub fn set_port(&self, port: Port) {
        let before = self.replace_port(port);
        let now = self.port();
        if before.pkeys() != now.pkeys() {
            self.qps_one_by_one().for_each(|qp| qp.follow_pkeys());
        }
        for kind in differences(&before, &now) {
            self.announce(kind, Element::Port(1));
        }
    }
}

/// What programs are told of a port that was one and is another.
fn differences(before: &Port, now: &Port) -> Vec<EventKind> {
    let mut kinds = Vec::new();
    let mut add = |differs: bool, kind| kinds.extend(differs.then_some(kind));
    add(before.up && !now.up, EventKind::PortError);
    if let (Some(old), Some(new)) = (&before.ib, &now.ib) {
        add((old.lid, old.lmc) != (new.lid, new.lmc), EventKind::LidChange);
        add((old.sm_lid, old.sm_sl) != (new.sm_lid, new.sm_sl), EventKind::SmChange);
        add(old.client_reregister != new.client_reregister, EventKind::ClientReregister);
        add(old.pkeys != new.pkeys, EventKind::PkeyChange);
    }
    add(!before.gids.has_gids_of(&now.gids), EventKind::GidChange);
    add(!before.up && now.up, EventKind::PortActive);
    kinds
}
