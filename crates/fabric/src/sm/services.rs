//! Service records (IBA 1.4 §15.2.5.14): what programs register for others to find, until a lease
//! ends.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8, 8..24, 24..26 | service id, GID of the port, P_Key: what names a record |
//! | 28..32 | lease in seconds; all ones: no end |
//! | 32..48 | key: without it, no other program replaces or removes the record |
//! | 48..112 | name |
//! | 112..176 | data, of 8, 16, 32 and 64 bits |

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use wire::Gid;
use wire::mad::sa::{SaHeader, service, status};

use super::Manager;
use super::groups::guid_of;

/// Records at most; one more is refused.
const MAX_SERVICES: usize = 16_384;
/// Bytes of a record.
const LEN: usize = 176;
/// The default partition, full membership.
const DEFAULT_PKEY: [u8; 2] = [0xff, 0xff];
const ID: Range<usize> = 0..26;
const GID: Range<usize> = 8..24;
const PKEY: Range<usize> = 24..26;
const LEASE: Range<usize> = 28..32;
const KEY: Range<usize> = 32..48;
const NAME: Range<usize> = 48..112;
const NO_END: u32 = u32::MAX;

/// The components of a request, and their bytes.
pub(super) const SERVICE: [(u32, Range<usize>); 36] = components();

type Record = [u8; LEN];

/// A record, and when its lease ends.
#[derive(Debug)]
struct Service {
    record: Record,
    ends: Option<Duration>,
}

/// All records, by what names them.
#[derive(Debug, Default)]
pub(super) struct Services(BTreeMap<[u8; ID.end], Service>);

impl Services {
    /// All that have not ended, with what is left of their leases.
    pub(super) fn records(&mut self, now: Duration) -> Vec<Vec<u8>> {
        self.forget_old(now);
        let records = self.0.values().map(|service| {
            let mut record = service.record;
            let left = service.ends.map_or(NO_END, |ends| ends.saturating_sub(now).as_secs() as u32);
            record[LEASE].copy_from_slice(&left.to_be_bytes());
            record.to_vec()
        });
        records.collect()
    }

    fn forget_old(&mut self, now: Duration) {
        self.0.retain(|_, service| service.ends.is_none_or(|ends| ends > now));
    }
}

impl Manager {
    /// A program registers a service, or renews it.
    ///
    /// # Errors
    ///
    /// A status of subnet administration.
    pub(super) fn register_service(
        &mut self,
        now: Duration,
        asked: &SaHeader,
        wanted: &[u8],
    ) -> Result<Vec<u8>, u16> {
        if asked.components & service::NAMES != service::NAMES {
            return Err(status::INSUFFICIENT_COMPONENTS);
        }
        let (name, mut record) = self.named_service(wanted)?;
        let has = |component: u64| asked.components & component != 0;
        for (component, field) in [(service::LEASE, LEASE), (service::KEY, KEY), (service::NAME, NAME)] {
            if !has(component) {
                record[field].fill(if component == service::LEASE { 0xff } else { 0 });
            }
        }
        let [a, b, c, d] = record[LEASE] else { return Err(status::INVALID) };
        let lease = u32::from_be_bytes([a, b, c, d]);
        let ends = (lease != NO_END).then(|| now.saturating_add(Duration::from_secs(lease.into())));
        self.services.forget_old(now);
        let services = &mut self.services.0;
        match services.get(&name) {
            Some(old) if old.record[KEY] != record[KEY] && old.record[KEY] != [0; 16] => {
                return Err(status::INVALID);
            }
            None if services.len() >= MAX_SERVICES => return Err(status::NO_RESOURCES),
            _ => {}
        }
        services.insert(name, Service { record, ends });
        Ok(without_key(record))
    }

    /// A program removes a service; its record. The components do not matter, as OpenSM has it.
    ///
    /// # Errors
    ///
    /// A status of subnet administration.
    pub(super) fn remove_service(&mut self, now: Duration, wanted: &[u8]) -> Result<Vec<u8>, u16> {
        let (name, record) = self.named_service(wanted)?;
        self.services.forget_old(now);
        let old = self.services.0.get(&name).ok_or(status::NO_RECORDS)?.record;
        if old[KEY] != record[KEY] && old[KEY] != [0; 16] {
            return Err(status::INVALID);
        }
        self.services.0.remove(&name);
        Ok(without_key(old))
    }

    /// What names the record of a request, and the record. Without a P_Key that of the default
    /// partition.
    fn named_service(&self, wanted: &[u8]) -> Result<([u8; ID.end], Record), u16> {
        let mut record = wanted.first_chunk::<LEN>().copied().ok_or(status::INVALID)?;
        if record[PKEY] == [0; 2] {
            record[PKEY].copy_from_slice(&DEFAULT_PKEY);
        }
        let gid = record[GID].try_into().map(Gid).map_err(|_| status::INVALID)?;
        let guid = guid_of(gid);
        self.known.at_guid(guid).ok_or(status::INVALID_GID)?;
        let [high, low] = record[PKEY] else { return Err(status::INVALID) };
        if !self.partitions.is_member(guid, u16::from_be_bytes([high, low])) {
            return Err(status::INVALID);
        }
        let name = record.first_chunk().copied().ok_or(status::INVALID)?;
        Ok((name, record))
    }
}

/// A record as its program is answered: no key comes back (OpenSM; IBA 1.4 C15-0.1.14).
fn without_key(mut record: Record) -> Vec<u8> {
    record[KEY].fill(0);
    record.to_vec()
}

/// Hides the keys of records, which a subnet manager alone sees.
pub(super) fn hide_keys(records: &mut [Vec<u8>]) {
    records.iter_mut().filter_map(|record| record.get_mut(KEY)).for_each(|key| key.fill(0));
}

/// Bit 3 is that of the bytes 26 and 27, which are reserved. From bit 7 on each item of data has
/// one.
const fn components() -> [(u32, Range<usize>); 36] {
    let mut all = [const { (0, 0..8) }; 36];
    all[1] = (1, GID);
    all[2] = (2, PKEY);
    all[3] = (4, LEASE);
    all[4] = (5, KEY);
    all[5] = (6, NAME);
    let (mut at, mut bit, mut begin) = (6, 7, NAME.end);
    while at < all.len() {
        let len = match bit {
            7..=22 => 1,
            23..=30 => 2,
            31..=34 => 4,
            _ => 8,
        };
        all[at] = (bit, begin..begin + len);
        (at, bit, begin) = (at + 1, bit + 1, begin + len);
    }
    all
}
