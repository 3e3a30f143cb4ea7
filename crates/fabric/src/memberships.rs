//! Memberships of ports in multicast groups, as the kernel's ib_sa keeps them for rdma_cm: a port
//! is a member as long as one of its programs is. What the last one leaves, or has not left when it
//! ends, the port leaves.

use std::collections::BTreeMap;

use wire::Gid;
use wire::mad::rmpp::Rmpp;
use wire::mad::sa::{self, DATA, McMemberRecord, SaHeader, mc_member};
use wire::mad::{Header, MAD_LEN, class, method, status};

use crate::deliver::From;
use crate::fabric::{Body, ClientId, Fabric};
use crate::subnet::PortId;
use crate::umad::UmadHeader;

/// The memberships of programs, by the GID of the group.
#[derive(Debug, Default)]
pub(crate) struct Memberships(BTreeMap<(ClientId, Gid), Joined>);

#[derive(Clone, Copy, Debug, Default)]
struct Joined {
    states: u8,
    /// How often the port's clients had been told to register again. What they joined before that
    /// the subnet manager does not know.
    reregisters: u32,
}

impl Fabric {
    /// An answer for a program: where it has joined a group, it is a member.
    pub(crate) fn note_join(&mut self, client: ClientId, answer: &Header, request: &[u8]) {
        let is_join = (answer.class, answer.attribute, answer.method, answer.status)
            == (class::SUBN_ADM, sa::attribute::MC_MEMBER_RECORD, method::GET_RESP, status::OK);
        let record = request.get(UmadHeader::LEN + DATA..).and_then(|r| McMemberRecord::parse(r).ok());
        if let Some(asked) = record.filter(|_| is_join) {
            let reregisters = self.reregisters(client);
            let own = self.memberships.0.entry((client, asked.mgid)).or_default();
            if own.reregisters != reregisters {
                *own = Joined { states: 0, reregisters };
            }
            own.states |= asked.join_state;
        }
    }

    /// A program asks that its port leaves a group. The request is left with what no other program
    /// of the port is; false where there is nothing left of it.
    pub(crate) fn leave_for(&mut self, client: ClientId, header: &Header, mad: &mut [u8]) -> bool {
        let is_leave = (header.class, header.attribute, header.method)
            == (class::SUBN_ADM, sa::attribute::MC_MEMBER_RECORD, sa::method::DELETE);
        let room = mad.get_mut(DATA..DATA + McMemberRecord::LEN).filter(|_| is_leave);
        let Some((room, mut record)) =
            room.and_then(|room| McMemberRecord::parse(room).ok().map(|record| (room, record)))
        else {
            return true;
        };
        if let Some(own) = self.memberships.0.get_mut(&(client, record.mgid)) {
            own.states &= !record.join_state;
        }
        record.join_state &= !self.others_at_port(client, record.mgid);
        room.copy_from_slice(&record.emit());
        record.join_state != 0
    }

    /// The join states that other programs of a program's port have.
    fn others_at_port(&self, client: ClientId, mgid: Gid) -> u8 {
        let at = self.clients.get(&client).map(|own| own.at);
        let is_other = |other: &ClientId| {
            *other != client && self.clients.get(other).is_some_and(|other| Some(other.at) == at)
        };
        let reregisters = self.reregisters(client);
        let all = self.memberships.0.iter().filter(|((other, of), joined)| {
            *of == mgid && joined.reregisters == reregisters && is_other(other)
        });
        all.fold(0, |states, (_, joined)| states | joined.states)
    }

    /// How often the clients of a program's port were told to register again.
    fn reregisters(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(0, |own| self.subnet.port(own.at).reregisters)
    }

    /// A program ends: its port leaves what it alone was a member of.
    pub(crate) fn end_memberships(&mut self, client: ClientId) {
        let reregisters = self.reregisters(client);
        let own: Vec<(Gid, u8)> = self
            .memberships
            .0
            .extract_if((client, Gid([0; 16]))..=(client, Gid([0xff; 16])), |_, _| true)
            .filter(|(_, joined)| joined.reregisters == reregisters)
            .map(|((_, mgid), joined)| (mgid, joined.states))
            .collect();
        let Some(at) = self.clients.get(&client).map(|own| own.at) else { return };
        for (mgid, state) in own {
            let join_state = state & !self.others_at_port(client, mgid);
            if join_state != 0 {
                self.leave_group(at, mgid, join_state);
            }
        }
    }

    /// A port leaves a group of its own. No agent waits for the answer.
    fn leave_group(&mut self, at: PortId, mgid: Gid, join_state: u8) {
        let port = self.subnet.port(at);
        let (sm_lid, sl) = (port.info.sm_lid, port.info.sm_sl);
        let port_gid = Gid(self.gid(at).to_be_bytes());
        let header = Header {
            base_version: 1,
            class: class::SUBN_ADM,
            class_version: sa::VERSION,
            method: sa::method::DELETE,
            attribute: sa::attribute::MC_MEMBER_RECORD,
            ..Header::default()
        };
        let asked = SaHeader { components: mc_member::JOIN, ..SaHeader::default() };
        let record = McMemberRecord { mgid, port_gid, join_state, ..McMemberRecord::default() };
        let mut mad = header.emit().to_vec();
        mad.resize(Header::LEN + Rmpp::LEN, 0);
        mad.extend_from_slice(&asked.emit());
        mad.extend_from_slice(&record.emit());
        mad.resize(MAD_LEN, 0);
        let to = From { port: at, lid: sm_lid, qpn: 1, sl, pkey_index: 0 };
        self.answer(at, to, 1, Body::Gmp(mad));
    }
}
