//! Partitions (IBA 1.4 §10.9): the P_Keys that the net file gives to ports, and what two ports have
//! in common. A port without such is a full member of the default partition alone.

use std::collections::BTreeMap;

use wire::mad::smp::Data;

use crate::subnet::Subnet;

/// The default partition, of full and of limited members.
const FULL_DEFAULT: u16 = 0xffff;
const LIMITED_DEFAULT: u16 = 0x7fff;
/// The bit of a P_Key that says of full membership.
const FULL: u16 = 0x8000;

/// The P_Keys of ports that have others than the default one, by GUID.
#[derive(Clone, Debug, Default)]
pub(super) struct Partitions(BTreeMap<u64, Vec<u16>>);

impl Partitions {
    /// The partitions of a fabric. A port that the file leaves out of the default partition becomes
    /// a limited member of it: else it could not ask the administration (IBA 1.4 §10.9.8).
    pub(super) fn of(subnet: &Subnet) -> Self {
        let of_port = |(at, keys): (_, &Vec<u16>)| {
            let mut keys = keys.clone();
            if !has(&keys, FULL_DEFAULT) {
                keys.push(LIMITED_DEFAULT);
            }
            (subnet.port(at).guid.0, keys)
        };
        Self(subnet.partitions.iter().map(|(at, keys)| of_port((*at, keys))).collect())
    }

    /// Whether a port has P_Keys of the file.
    pub(super) fn has_own(&self, guid: u64) -> bool {
        self.0.contains_key(&guid)
    }

    fn keys(&self, guid: u64) -> &[u16] {
        self.0.get(&guid).map_or(&[FULL_DEFAULT], |keys| keys)
    }

    /// The block of the table of a port.
    pub(super) fn block(&self, guid: u64) -> Data {
        let mut data = [0; 64];
        for (bytes, key) in data.as_chunks_mut::<2>().0.iter_mut().zip(self.keys(guid)) {
            *bytes = key.to_be_bytes();
        }
        data
    }

    /// Whether a port is a member of a partition.
    pub(super) fn is_member(&self, guid: u64, key: u16) -> bool {
        has(self.keys(guid), key)
    }

    /// The first P_Key of a port by which it and another one hear each other; only of the partition
    /// that is wanted, if one is. Two limited members do not.
    pub(super) fn common(&self, from: u64, to: u64, wanted: Option<u16>) -> Option<u16> {
        let is_wanted = |key: &u16| wanted.is_none_or(|wanted| is_same(*key, wanted));
        let hears = |key: u16| {
            let other = self.keys(to).iter().find(|other| is_same(**other, key));
            from == to || other.is_some_and(|other| (key | *other) & FULL != 0)
        };
        self.keys(from).iter().copied().filter(is_wanted).find(|key| hears(*key))
    }
}

fn is_same(one: u16, other: u16) -> bool {
    (one ^ other) & !FULL == 0
}

fn has(keys: &[u16], key: u16) -> bool {
    keys.iter().any(|other| is_same(*other, key))
}
