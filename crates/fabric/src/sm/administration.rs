//! Subnet administration (IBA 1.4 §15): what programs ask the manager, and what it answers. An
//! attribute that is not here is refused as unsupported.

use std::time::Duration;

use wire::mad::rmpp::{Kind, Rmpp};
use wire::mad::sa::{self, DATA, McMemberRecord, PathRecord, SaHeader, attribute};
use wire::mad::{Header, MAD_LEN, NodeType, PortInfo, capability, method, status};

use super::Manager;
use super::services::{SERVICE, hide_keys};
use super::topology::At;
use crate::client::{MAX_MESSAGE, RMPP_HEADERS};
use crate::fabric::Fabric;
use crate::umad::UmadHeader;

/// How long an answer may take: 4.096 µs times two to the power of it.
const RESPONSE_TIME: u8 = 16;
/// Bytes of NodeInfo, of SwitchInfo and of SMInfo in a record.
const NODE_INFO: usize = 40;
const SWITCH_INFO: usize = 20;
const SM_INFO: usize = 28;
/// The bit of a modifier by which a request for PortInfo wants all these capabilities, and not
/// exactly these.
const MATCH_SET_BITS: u32 = 1 << 31;
const CAPABILITY_MASK: u64 = 1 << 7;

/// The components that a request may give, and their bytes in the record.
type Components = &'static [(u32, std::ops::Range<usize>)];

const NODE: Components = &[
    (0, 0..2),
    (4, 6..7),
    (5, 7..8),
    (6, 8..16),
    (7, 16..24),
    (8, 24..32),
    (9, 32..34),
    (10, 34..36),
    (11, 36..40),
    (12, 40..41),
    (13, 41..44),
    (14, 44..108),
];
const PORT_INFO: Components =
    &[(0, 0..2), (1, 2..3), (3, 4..12), (4, 12..20), (5, 20..22), (6, 22..24), (7, 24..28)];
const SWITCH: Components = &[(0, 0..2)];
const MANAGER: Components = &[(0, 0..2), (2, 4..12)];
const LINK: Components = &[(0, 0..2), (1, 2..3), (2, 3..4), (3, 4..6)];
const PKEY_TABLE: Components = &[(0, 0..2), (1, 2..4), (2, 4..5)];
const MEMBER: Components = &[(0, 0..16), (1, 16..32), (2, 32..36), (3, 36..38), (6, 39..40), (7, 40..42)];

/// What a request asks.
struct Query<'a> {
    header: &'a Header,
    asked: SaHeader,
    /// The record with the components.
    record: &'a [u8],
}

/// An answer's record, or several.
enum Answer {
    One(Vec<u8>),
    Table(Vec<Vec<u8>>),
}

impl Manager {
    /// Answers a program. A manager that is not the master says nothing.
    pub(super) fn administrate(
        &mut self,
        now: Duration,
        fabric: &mut Fabric,
        umad: &UmadHeader,
        header: &Header,
        mad: &[u8],
    ) {
        let is_request = umad.status == 0 && !header.is_response();
        let (Some(record), Ok(asked)) = (mad.get(DATA..MAD_LEN), SaHeader::parse(mad)) else { return };
        if !is_request || !self.is_master() {
            return;
        }
        self.status.queries += 1;
        let answer = self.answer(now, &Query { header, asked, record });
        let answer = emit(header, asked, answer, mad);
        let UmadHeader { qpn, qkey, lid, sl, pkey_index, .. } = *umad;
        let agent = self.agents.administration;
        self.write(
            now,
            fabric,
            UmadHeader { agent, qpn, qkey, lid, sl, pkey_index, ..UmadHeader::default() },
            &answer,
        );
    }

    fn answer(&mut self, now: Duration, query: &Query<'_>) -> Result<Answer, u16> {
        let Query { header, asked, record } = query;
        if header.class_version != sa::VERSION {
            return Err(status::BAD_VERSION);
        }
        match (header.method, header.attribute) {
            (method::GET, attribute::CLASS_PORT_INFO) => Ok(Answer::One(class_port_info())),
            (method::SET | sa::method::DELETE, attribute::MC_MEMBER_RECORD) => {
                let wanted = McMemberRecord::parse(record).map_err(|_| sa::status::INVALID)?;
                let member = if header.method == method::SET {
                    self.join(asked, &wanted)
                } else {
                    self.leave(asked, &wanted)
                };
                Ok(Answer::One(member?.emit().to_vec()))
            }
            (method::SET, attribute::SERVICE_RECORD) => {
                self.register_service(now, asked, record).map(Answer::One)
            }
            (sa::method::DELETE, attribute::SERVICE_RECORD) => {
                self.remove_service(now, record).map(Answer::One)
            }
            (method::GET, _) => match &self.records(now, query)?[..] {
                [] => Err(sa::status::NO_RECORDS),
                [one] => Ok(Answer::One(one.clone())),
                [first, ..] if header.attribute == attribute::PATH_RECORD => Ok(Answer::One(first.clone())),
                _ => Err(sa::status::TOO_MANY_RECORDS),
            },
            (sa::method::GET_TABLE, _) => self.records(now, query).map(Answer::Table),
            _ => Err(status::BAD_ATTRIBUTE),
        }
    }

    /// The records that a request names.
    fn records(&mut self, now: Duration, query: &Query<'_>) -> Result<Vec<Vec<u8>>, u16> {
        let has_key = query.asked.sm_key != 0;
        let (records, components) = match query.header.attribute {
            attribute::NODE_RECORD => (self.node_records(), NODE),
            attribute::PORT_INFO_RECORD => return self.port_info_records(query),
            attribute::SWITCH_INFO_RECORD => (self.switch_records(), SWITCH),
            attribute::SM_INFO_RECORD => (self.manager_records(), MANAGER),
            attribute::LINK_RECORD => (self.link_records(), LINK),
            attribute::MC_MEMBER_RECORD => (self.member_records(has_key), MEMBER),
            attribute::SERVICE_RECORD => {
                let all = self.services.records(now);
                let mut found = matching(query.asked.components, query.record, &SERVICE, all)?;
                if !has_key {
                    hide_keys(&mut found);
                }
                return Ok(found);
            }
            attribute::PKEY_TABLE_RECORD => (self.pkey_table_records(), PKEY_TABLE),
            attribute::PATH_RECORD => {
                let wanted = PathRecord::parse(query.record).map_err(|_| sa::status::INVALID)?;
                let most = (MAX_MESSAGE - DATA) / PathRecord::LEN;
                let paths = self.path_records(&query.asked, &wanted, most)?;
                return Ok(paths.iter().map(|path| path.emit().to_vec()).collect());
            }
            _ => return Err(status::BAD_ATTRIBUTE),
        };
        matching(query.asked.components, query.record, components, records)
    }

    fn node_records(&self) -> Vec<Vec<u8>> {
        let record = |at: At| {
            let node = self.known.node(at.0)?;
            let mut info = node.info;
            if info.kind != NodeType::Switch {
                (info.local_port, info.port.0) = (at.1, self.known.port(at)?.guid);
            }
            Some([&self.lid_and(at, 0)[..], &info.emit()[..NODE_INFO], &node.description].concat())
        };
        self.known.ends().filter_map(record).collect()
    }

    /// The LID of the node that a port is of, and a number.
    fn lid_and(&self, at: At, number: u16) -> [u8; 4] {
        let [high, low] = self.node_lid(at).to_be_bytes();
        let [first, second] = number.to_be_bytes();
        [high, low, first, second]
    }

    /// The LID of a port, of a switch that of port 0.
    fn node_lid(&self, at: At) -> u16 {
        if self.known.is_end(at) { self.known.lid(at) } else { self.known.lid((at.0, 0)) }
    }

    fn port_info_records(&self, query: &Query<'_>) -> Result<Vec<Vec<u8>>, u16> {
        let record = |at: At, info: &PortInfo| {
            let number = u16::from(at.1) << 8;
            [&self.lid_and(at, number)[..], &info.emit()].concat()
        };
        let mut components = query.asked.components;
        let mut wanted_bits = 0;
        if components & CAPABILITY_MASK != 0 && query.header.modifier & MATCH_SET_BITS != 0 {
            components &= !CAPABILITY_MASK;
            wanted_bits =
                query.record.get(24..28).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        }
        let ports = self.known.ports().filter(|(at, info)| {
            let is_sm = *at == self.own;
            let has = info.capabilities | if is_sm { capability::IS_SM } else { 0 };
            (self.known.is_end(*at) || self.known.port(*at).is_some_and(|port| port.peer.is_some()))
                && has & wanted_bits == wanted_bits
        });
        let records = ports.map(|(at, info)| record(at, info)).collect();
        matching(components, query.record, PORT_INFO, records)
    }

    fn switch_records(&self) -> Vec<Vec<u8>> {
        let nodes = (0u32..).zip(&self.known.nodes);
        let record = |(index, node): (u32, &super::topology::Node)| {
            Some([&self.lid_and((index, 0), 0)[..], &node.switch?.emit()[..SWITCH_INFO]].concat())
        };
        nodes.filter_map(record).collect()
    }

    fn manager_records(&self) -> Vec<Vec<u8>> {
        vec![[&self.lid_and(self.own, 0)[..], &self.own_info().emit()[..SM_INFO]].concat()]
    }

    /// The P_Keys of each port with a LID: block 0, which is all.
    fn pkey_table_records(&self) -> Vec<Vec<u8>> {
        let record = |at: At| {
            let block = self.partitions.block(self.known.port(at)?.guid);
            Some([&self.lid_and(at, 0)[..], &[at.1, 0, 0, 0], &block].concat())
        };
        self.known.ends().filter_map(record).collect()
    }

    fn link_records(&self) -> Vec<Vec<u8>> {
        let record = |at: At| {
            let peer = self.known.port(at)?.peer?;
            let [high, low] = self.node_lid(at).to_be_bytes();
            let [peer_high, peer_low] = self.node_lid(peer).to_be_bytes();
            Some(vec![high, low, at.1, peer.1, peer_high, peer_low])
        };
        self.known.ports().filter_map(|(at, _)| record(at)).collect()
    }

    /// A record for each member, for requests with an SM_Key; else one for each group.
    fn member_records(&self, has_key: bool) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for group in self.groups.iter() {
            let members = group.members.iter().filter(|_| has_key);
            records.extend(members.filter_map(|(guid, state)| {
                let port_gid = self.gid(self.known.at_guid(*guid)?)?;
                let member = McMemberRecord { port_gid, join_state: *state, ..group.record };
                Some(member.emit().to_vec())
            }));
            if !has_key {
                records.push(group.record.emit().to_vec());
            }
        }
        records
    }
}

/// The records whose components are those of the request.
fn matching(
    asked: u64,
    wanted: &[u8],
    components: Components,
    records: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, u16> {
    let known = components.iter().fold(0, |all, (bit, _)| all | 1 << bit);
    if asked & !known != 0 {
        return Err(sa::status::INVALID);
    }
    let given: Vec<_> = components.iter().filter(|(bit, _)| asked >> bit & 1 != 0).collect();
    let is_it =
        |record: &Vec<u8>| given.iter().all(|(_, at)| record.get(at.clone()) == wanted.get(at.clone()));
    Ok(records.into_iter().filter(is_it).collect())
}

fn class_port_info() -> Vec<u8> {
    /// IsSendOnlyFullMemberSupported, of 27 bits; the response time is the last five.
    const CAPABILITIES: u32 = 1 << 12;
    let [a, b, c, d] = (CAPABILITIES << 5 | u32::from(RESPONSE_TIME)).to_be_bytes();
    vec![1, sa::VERSION, 0, 0, a, b, c, d]
}

/// The answer as a MAD, or as a message of several.
fn emit(header: &Header, asked: SaHeader, answer: Result<Answer, u16>, request: &[u8]) -> Vec<u8> {
    // SubnAdmSet has the response of SubnAdmGet (IBA 1.4 table 188).
    let response = if header.method == method::SET { method::GET } else { header.method };
    let mut header = Header { method: response | method::RESPONSE, ..*header };
    let (records, is_table) = match answer {
        Ok(Answer::One(record)) => (vec![record], false),
        Ok(Answer::Table(records)) => (records, true),
        Err(refusal) => {
            header.status = refusal;
            (vec![request[DATA..MAD_LEN].to_vec()], false)
        }
    };
    let padded = records.first().map_or(0, |record| record.len().next_multiple_of(8));
    if DATA + padded * records.len() > MAX_MESSAGE {
        return emit(&header, asked, Err(sa::status::NO_RESOURCES), request);
    }
    let offset = if is_table { (padded / 8) as u16 } else { 0 };
    let mut mad = header.emit().to_vec();
    mad.resize(RMPP_HEADERS, 0);
    if is_table {
        // The port puts in what else belongs to it.
        let rmpp = Rmpp {
            kind: Kind::Data,
            response_time: RESPONSE_TIME,
            is_first: true,
            is_last: true,
            status: 0,
            segment: 1,
            length_or_window: 0,
        };
        mad[Header::LEN..RMPP_HEADERS].copy_from_slice(&rmpp.emit());
    }
    mad.extend_from_slice(&SaHeader { offset, ..asked }.emit());
    for record in &records {
        let end = mad.len() + padded;
        mad.extend_from_slice(record);
        mad.resize(if is_table { end } else { MAD_LEN }, 0);
    }
    mad
}
