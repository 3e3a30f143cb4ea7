//! Path records (IBA 1.4 §15.2.5.16): the ways between ports, as the forwarding tables have them.

use std::ops::Range;

use wire::Gid;
use wire::mad::sa::{EXACTLY, PathRecord, SaHeader, path, status};
use wire::mad::{PortInfo, PortState};

use super::Manager;
use super::groups::guid_of;
use super::topology::At;
use crate::net::{Speed, Width};
use crate::route::MAX_ROUTE;

/// 4.096 µs times two to the power of it.
const LIFE_TIME: u8 = 18;
/// The codes of rates by tenths of a Gbit/s, ascending (IBA 1.4 table 207 and later additions).
const RATES: [(u32, u8); 22] = [
    (25, 2),
    (50, 5),
    (100, 3),
    (140, 11),
    (200, 6),
    (250, 15),
    (280, 19),
    (300, 4),
    (400, 7),
    (500, 20),
    (560, 12),
    (600, 8),
    (800, 9),
    (1000, 16),
    (1120, 13),
    (1200, 10),
    (1680, 14),
    (2000, 17),
    (3000, 18),
    (4000, 21),
    (6000, 22),
    (8000, 23),
];

/// What the narrowest link of a way has: the code of the MTU, and the rate by its place in
/// [`RATES`].
#[derive(Clone, Copy, Debug)]
struct Way {
    mtu: u8,
    rate: usize,
}

impl Manager {
    /// The paths that a request names, at most so many.
    ///
    /// # Errors
    ///
    /// A status of subnet administration.
    pub(super) fn path_records(
        &self,
        asked: &SaHeader,
        wanted: &PathRecord,
        most: usize,
    ) -> Result<Vec<PathRecord>, u16> {
        let has = |component: u64| asked.components & component != 0;
        if has(path::DGID) && wanted.dgid.0[0] == 0xff {
            return self.group_path(wanted).map(|path| vec![path]);
        }
        let sources =
            self.named(has(path::SGID).then_some(wanted.sgid), has(path::SLID).then_some(wanted.slid))?;
        let targets =
            self.named(has(path::DGID).then_some(wanted.dgid), has(path::DLID).then_some(wanted.dlid))?;
        if has(path::SL) && wanted.sl != 0 {
            return Ok(Vec::new());
        }
        let pkey = has(path::PKEY).then_some(wanted.pkey);
        let [slid, dlid] = [(path::SLID, wanted.slid), (path::DLID, wanted.dlid)]
            .map(|(component, lid)| has(component).then_some(lid));
        let mut records = Vec::new();
        let pairs = sources.iter().flat_map(|from| targets.iter().map(move |to| (*from, *to)));
        for (from, to) in pairs {
            for lids in self.lid_pairs((from, slid), (to, dlid)) {
                let Some(record) = self.path((from, to), lids, pkey) else { continue };
                let code = |code: u8| usize::from(code & 63);
                let place = |code: u8| RATES.iter().position(|(_, of)| *of == code & 63).unwrap_or(0);
                let fits = (!has(path::MTU)
                    || !has(path::MTU_SELECTOR)
                    || is_as_asked(wanted.mtu, code(record.mtu), code(wanted.mtu)))
                    && (!has(path::RATE)
                        || !has(path::RATE_SELECTOR)
                        || is_as_asked(wanted.rate, place(record.rate), place(wanted.rate)));
                if !fits {
                    continue;
                }
                if records.len() >= most {
                    return Err(status::NO_RESOURCES);
                }
                records.push(record);
            }
        }
        Ok(records)
    }

    /// The ports that a GID or a LID names; without both, all.
    fn named(&self, gid: Option<Gid>, lid: Option<u16>) -> Result<Vec<At>, u16> {
        let by_gid = match gid {
            Some(gid) => Some(self.known.at_guid(guid_of(gid)).ok_or(status::INVALID_GID)?),
            None => None,
        };
        let by_lid = match lid {
            Some(lid) => Some(self.known.at_lid(lid).ok_or(status::NO_RECORDS)?),
            None => None,
        };
        Ok(match (by_gid, by_lid) {
            (Some(one), Some(other)) if one != other => Vec::new(),
            (Some(at), _) | (None, Some(at)) => vec![at],
            (None, None) => self.known.ends().collect(),
        })
    }

    /// The LIDs at both ends of each path between two ports: as many paths as the one with more of
    /// them has LIDs; one where the request names a LID.
    fn lid_pairs(
        &self,
        (from, slid): (At, Option<u16>),
        (to, dlid): (At, Option<u16>),
    ) -> impl Iterator<Item = (u16, u16)> + use<> {
        let [own, other] = [from, to].map(|at| self.known.lids(at));
        let first = match (slid, dlid) {
            (_, Some(dlid)) => dlid.saturating_sub(other.start),
            (Some(slid), None) => slid.saturating_sub(own.start),
            (None, None) => 0,
        };
        let is_all = slid.or(dlid).is_none();
        let count = if is_all { own.len().max(other.len()) as u16 } else { 1 };
        let nth = |lids: &Range<u16>, n: u16| lids.start + n % (lids.len() as u16).max(1);
        (first..first.saturating_add(count))
            .map(move |n| (slid.unwrap_or(nth(&own, n)), dlid.unwrap_or(nth(&other, n))))
    }

    /// The path between two ports by these LIDs, in this partition if one is named; `None` where
    /// the tables have no way, or the ports no partition.
    fn path(&self, (from, to): (At, At), (slid, dlid): (u16, u16), pkey: Option<u16>) -> Option<PathRecord> {
        let [own, other] = [self.known.port(from)?.guid, self.known.port(to)?.guid];
        let pkey = self.partitions.common(own, other, pkey)?;
        let way = self.way(from, to, dlid)?;
        Some(PathRecord {
            dgid: self.gid(to)?,
            sgid: self.gid(from)?,
            dlid,
            slid,
            reversible_and_count: PathRecord::REVERSIBLE,
            pkey,
            mtu: EXACTLY | way.mtu,
            rate: EXACTLY | RATES[way.rate].1,
            life_time: EXACTLY | LIFE_TIME,
            ..PathRecord::default()
        })
    }

    fn group_path(&self, wanted: &PathRecord) -> Result<PathRecord, u16> {
        let group = self.groups.get(wanted.dgid).ok_or(status::INVALID_GID)?;
        let record = &group.record;
        let slid = self.known.at_guid(guid_of(wanted.sgid)).map_or(wanted.slid, |at| self.known.lid(at));
        Ok(PathRecord {
            dgid: wanted.dgid,
            sgid: wanted.sgid,
            dlid: record.mlid,
            slid,
            flow_and_hops: record.sl_flow_hops & 0x0fff_ffff,
            traffic_class: record.traffic_class,
            pkey: record.pkey,
            sl: (record.sl_flow_hops >> 28) as u8,
            mtu: record.mtu,
            rate: record.rate,
            life_time: record.life_time,
            ..PathRecord::default()
        })
    }

    pub(super) fn gid(&self, at: At) -> Option<Gid> {
        let (prefix, guid) = (self.known.info(at)?.gid_prefix, self.known.port(at)?.guid);
        Some(Gid((u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes()))
    }

    /// Follows the tables from a port to a LID of another.
    fn way(&self, from: At, to: At, lid: u16) -> Option<Way> {
        let lid = usize::from(lid);
        let own = self.known.info(from)?;
        let mut way = Way { mtu: own.neighbour_mtu, rate: RATES.len() - 1 };
        if !self.known.is_port_0(from) {
            way.rate = rate(own);
        }
        let mut at = from;
        for _ in 0..MAX_ROUTE {
            if at == to || (at.0 == to.0 && self.known.is_port_0(to)) {
                return (lid != 0).then_some(way);
            }
            let node = self.known.node(at.0)?;
            let out = match node.switch {
                Some(_) => (at.0, *self.written.get(&node.info.node.0)?.linear.get(lid)?),
                None if at == from => at,
                None => return None,
            };
            let info = self.known.info(out).filter(|info| info.state == PortState::Active)?;
            way.mtu = way.mtu.min(info.neighbour_mtu);
            way.rate = way.rate.min(rate(info));
            at = self.known.port(out)?.peer?;
        }
        None
    }
}

/// Whether a value is as a selector of two bits asks.
fn is_as_asked(selector: u8, has: usize, asked: usize) -> bool {
    match selector >> 6 {
        0 => has > asked,
        1 => has < asked,
        2 => has == asked,
        _ => true,
    }
}

/// The place in [`RATES`] of the rate of a port.
fn rate(info: &PortInfo) -> usize {
    let width = Width::ALL.into_iter().find(|(width, _)| *width as u8 == info.width_active);
    let codes = (info.speed_active, info.extended_speed_active);
    let speed = Speed::ALL.into_iter().find(|(speed, _)| speed.codes() == codes);
    let tenths = width.map_or(1, |(width, _)| width.lanes()) * speed.map_or(25, |(speed, _)| speed.tenths());
    RATES.iter().rposition(|(of, _)| *of <= tenths).unwrap_or(0)
}
