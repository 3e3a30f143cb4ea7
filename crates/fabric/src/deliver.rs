//! Where a MAD goes: along its way, then to the agent of a node, or to a program's.

use std::time::Duration;

use wire::mad::perf::{DATA, DATA_LEN};
use wire::mad::smp::{PERMISSIVE_LID, Smp, attribute};
use wire::mad::{Header, MAD_LEN, NodeType, Trap, class, method, status};

use crate::client::Client;
use crate::fabric::{Body, ClientId, Fabric, Packet};
use crate::rmpp;
use crate::route::{Load, LoadKind, Lost, SMP};
use crate::sma::Request;
use crate::subnet::PortId;
use crate::transactions::Transaction;
use crate::umad::UmadHeader;

/// The version of SMPs and of performance management.
const VERSION: u8 = 1;
const QP0: u32 = 0;
const QP1: u32 = 1;

/// What a receiver is told of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) port: PortId,
    pub(crate) lid: u16,
    pub(crate) qpn: u32,
    pub(crate) sl: u8,
    pub(crate) pkey_index: u16,
}

impl From {
    pub(crate) fn of(packet: &Packet) -> Self {
        Self {
            port: packet.at,
            lid: packet.slid,
            qpn: packet.source_qpn,
            sl: packet.sl,
            pkey_index: packet.pkey_index,
        }
    }
}

impl Fabric {
    pub(crate) fn deliver(&mut self, now: Duration, packet: Packet) {
        let from = From::of(&packet);
        let Packet { at, lid, .. } = packet;
        match packet.body {
            Body::Smp(mut smp) => match self.carry(at, lid, &mut smp) {
                Ok(end) => self.at_smi(now, end, from, smp),
                Err(_) => self.counters.lost += 1,
            },
            Body::Gmp(mad) => {
                let packets = rmpp::packets(&mad);
                let header = Header::parse(&mad).ok().filter(|_| packets > 1);
                if let Some(header) = header
                    && self.goes_in_segments(at, lid, &header, &mad)
                {
                    return self.segment(now, lid, from, &header, mad);
                }
                let load = Load { words: packets * SMP.words, packets, kind: LoadKind::Data };
                match self.subnet.route(at, lid, load, |_, _| ()) {
                    Ok(end) => self.at_gsi(now, end, from, packet.qpn, mad),
                    Err(_) => self.counters.lost += 1,
                }
            }
        }
    }

    /// Takes an SMP to where it is addressed: by LID, along its hops, or first the one and then
    /// the other (IBA 1.4 §14.2.2).
    fn carry(&mut self, at: PortId, lid: u16, smp: &mut Smp) -> Result<PortId, Lost> {
        let header = smp.header;
        if header.class != class::SUBN_DIRECTED_ROUTE {
            return self.subnet.route(at, lid, SMP, |_, _| ());
        }
        let is_routed = smp.dr_slid != PERMISSIVE_LID && smp.hop_count() > 0;
        if header.is_response() {
            let end = self.subnet.follow_back(at, smp)?;
            return if is_routed { self.subnet.route(end, smp.dr_slid, SMP, |_, _| ()) } else { Ok(end) };
        }
        let start = if is_routed { self.subnet.route(at, lid, SMP, |_, _| ())? } else { at };
        self.subnet.follow(start, smp)
    }

    /// An SMP has come to QP0 of a node.
    fn at_smi(&mut self, now: Duration, end: PortId, from: From, mut smp: Box<Smp>) {
        let header = smp.header;
        if self.subnet.node_at(end).frozen {
            self.counters.silent += 1;
            return;
        }
        let is_directed = header.class == class::SUBN_DIRECTED_ROUTE;
        let told = From { lid: if is_directed { PERMISSIVE_LID } else { from.lid }, qpn: QP0, ..from };
        if header.is_response() {
            let end = self.subnet.end_port(end);
            let is_repress = header.method == method::TRAP_REPRESS;
            if !is_repress || !self.traps.repress(end, header.transaction_id) {
                self.answer_to_agent(&header, end, told, &smp.emit());
            }
            return;
        }
        let is_get_or_set = matches!(header.method, method::GET | method::SET);
        if is_get_or_set && header.attribute != attribute::SM_INFO {
            if !self.subnet.sma(now, &mut Request { at: end, slid: from.lid, smp: &mut smp }) {
                self.counters.silent += 1;
                return;
            }
            self.counters.answered += 1;
        } else if self.request_to_agent(&header, end, told, &smp.emit()) {
            return;
        } else if is_get_or_set {
            smp.header.status = status::BAD_ATTRIBUTE;
        } else {
            self.counters.unexpected += 1;
            return;
        }
        smp.header.method = method::GET_RESP;
        if is_directed {
            smp.header.status |= status::DIRECTION;
        }
        self.answer(end, from, QP0, Body::Smp(smp));
    }

    /// A MAD, or a message of several, has come to QP1 of a node.
    fn at_gsi(&mut self, now: Duration, end: PortId, from: From, qpn: u32, mad: Vec<u8>) {
        let Ok(mut header) = Header::parse(&mad) else { return };
        if self.subnet.node_at(end).frozen {
            self.counters.silent += 1;
            return;
        }
        if qpn != QP1 {
            self.counters.unexpected += 1;
            return;
        }
        if self.transfer(now, end, from, &header, &mad) {
            return;
        }
        if header.is_response() {
            self.answer_to_agent(&header, end, from, &mad);
            return;
        }
        let is_get_or_set = matches!(header.method, method::GET | method::SET);
        let mut mad = mad;
        if is_get_or_set && header.class == class::PERF_MGMT && mad.len() == MAD_LEN {
            let mut data: [u8; DATA_LEN] = mad[DATA..].try_into().unwrap_or([0; DATA_LEN]);
            self.fold_plane();
            header.status = if header.class_version == VERSION {
                self.subnet.pma(end, header.method, header.attribute, &mut data)
            } else {
                status::BAD_VERSION
            };
            mad[DATA..].copy_from_slice(&data);
            self.counters.answered += 1;
        } else if self.request_to_agent(&header, end, from, &mad) {
            return;
        } else if is_get_or_set {
            header.status = status::BAD_ATTRIBUTE;
        } else {
            self.counters.unexpected += 1;
            return;
        }
        header.method = method::GET_RESP;
        mad[..Header::LEN].copy_from_slice(&header.emit());
        self.answer(end, from, QP1, Body::Gmp(mad));
    }

    /// Sends an answer to where a request came from.
    pub(crate) fn answer(&mut self, at: PortId, to: From, qpn: u32, body: Body) {
        let slid = self.subnet.port(self.subnet.end_port(at)).info.lid;
        let From { lid, qpn: to_qpn, sl, pkey_index, .. } = to;
        self.work.push_back(Packet { at, body, lid, slid, sl, source_qpn: qpn, qpn: to_qpn, pkey_index });
    }

    /// Gives an answer to the agent that waits for it.
    pub(crate) fn answer_to_agent(&mut self, header: &Header, end: PortId, from: From, mad: &[u8]) {
        let agent = (header.transaction_id >> 32) as u32;
        if agent == 0 {
            // The port has asked itself (`memberships`).
            return;
        }
        let key = Transaction { agent, low: header.transaction_id as u32 };
        let found = self.agents.get(&agent).copied().filter(|(client, _)| self.is_at(*client, end));
        let asked = found.and_then(|_| self.transactions.answered(key, header.class));
        match (found, asked) {
            (Some((client, id)), Some(asked)) => {
                if self.keeps_memberships(client, id) {
                    self.note_join(client, header, &asked.message);
                }
                self.deliver_to(client, id, from, mad);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// Whether an agent's port keeps its memberships for it.
    pub(crate) fn keeps_memberships(&self, client: ClientId, id: u32) -> bool {
        let agent = self.clients.get(&client).and_then(|client| client.agent(id));
        agent.is_some_and(|agent| agent.registration.keeps_memberships)
    }

    pub(crate) fn is_at(&self, client: ClientId, end: PortId) -> bool {
        self.clients.get(&client).is_some_and(|client| client.at == self.subnet.end_port(end))
    }

    /// Gives a request to the agent that takes its class and method; false where there is none.
    fn request_to_agent(&mut self, header: &Header, end: PortId, from: From, mad: &[u8]) -> bool {
        match self.taker(header, end, mad) {
            Some((client, id)) => {
                self.deliver_to(client, id, from, mad);
                true
            }
            None => false,
        }
    }

    /// The agent that takes a request.
    pub(crate) fn taker(&self, header: &Header, end: PortId, mad: &[u8]) -> Option<(ClientId, u32)> {
        // Of a vendor's MAD the OUI stands behind the RMPP header and a reserved byte.
        let oui = match mad.get(37..40) {
            Some([high, middle, low]) => u32::from_be_bytes([0, *high, *middle, *low]),
            _ => 0,
        };
        let end = self.subnet.end_port(end);
        let (class, version, method) = (header.class, header.class_version, header.method);
        let of = |client: &Client| {
            client.agents.iter().position(|agent| {
                agent.as_ref().is_some_and(|agent| agent.registration.takes(class, version, method, oui))
            })
        };
        let here = self.clients.iter().filter(|(_, client)| client.at == end);
        here.into_iter().find_map(|(id, client)| Some((*id, of(client)? as u32)))
    }

    pub(crate) fn deliver_to(&mut self, client: ClientId, agent: u32, from: From, mad: &[u8]) {
        let From { lid, qpn, sl, pkey_index, .. } = from;
        self.queue(client, &UmadHeader { agent, qpn, lid, sl, pkey_index, ..UmadHeader::default() }, mad);
    }

    /// Sends the traps of what has changed.
    pub(crate) fn raise_traps(&mut self, now: Duration) {
        let mut new = std::mem::take(&mut self.subnet.traps);
        new.dedup();
        for (at, trap) in new {
            // Each time that packets are counted more of them may have been refused.
            let is_told = matches!(trap, Trap::BadPkeyAtSwitch { .. }) && self.traps.is_raised(at, trap);
            if self.has_sm(at) && !is_told {
                let raised = self.traps.raise(now, at, trap);
                self.send_trap(at, raised.transaction_id, trap);
            }
        }
    }

    pub(crate) fn repeat_traps(&mut self, now: Duration) {
        for (at, raised) in self.traps.due(now) {
            if self.has_sm(at) {
                self.send_trap(at, raised.transaction_id, raised.trap);
            } else {
                self.traps.forget(at, raised.trap);
            }
        }
    }

    fn has_sm(&self, at: PortId) -> bool {
        let info = &self.subnet.port(at).info;
        info.lid != 0 && info.sm_lid != 0
    }

    fn send_trap(&mut self, at: PortId, transaction_id: u64, trap: Trap) {
        let kind = self.subnet.node_at(at).kind;
        if self.subnet.node_at(at).frozen {
            return;
        }
        let info = &self.subnet.port(at).info;
        let kind = if kind == NodeType::Switch { NodeType::Switch } else { NodeType::Ca };
        let header = Header {
            base_version: VERSION,
            class: class::SUBN_LID_ROUTED,
            class_version: VERSION,
            method: method::TRAP,
            transaction_id,
            attribute: attribute::NOTICE,
            ..Header::default()
        };
        let smp = Smp {
            header,
            m_key: 0,
            dr_slid: 0,
            dr_dlid: 0,
            data: trap.emit(kind, info.lid),
            initial_path: [0; 64],
            return_path: [0; 64],
        };
        let to = From { port: at, lid: info.sm_lid, qpn: QP0, sl: info.sm_sl, pkey_index: 0 };
        self.counters.traps += 1;
        self.answer(at, to, QP0, Body::Smp(Box::new(smp)));
    }
}
