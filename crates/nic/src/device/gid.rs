//! A port's GID table, in the kernel's order: the default GID made from the hardware address, then
//! the interface's addresses; all RoCE v2. An iWARP device keeps its addresses so, too, and reports
//! another table (`device::observed`).

use std::net::{IpAddr, Ipv6Addr};

use wire::{Address, Gid};

use crate::device::ib_port::IbPort;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// The address it is on the wire; for a default GID that no interface bears, the address that
    /// stands in for it inside this host (`None` where the interface has no address at all).
    pub address: Option<IpAddr>,
    /// Whether the interface really bears it: what it does not bear must not leave this host.
    pub borne: bool,
}

/// The table of a port; entries keep their index while their address stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    entries: Vec<Option<GidEntry>>,
    /// IPoIB's addresses, of an InfiniBand port. Connections between them go by the first GID.
    ipoib: Vec<IpAddr>,
}

/// The link-local address of a hardware address (RFC 4291 appendix A), which is a port's default
/// GID.
pub fn default_gid(mac: [u8; 6]) -> Gid {
    let [a, b, c, d, e, f] = mac;
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Whether it is an IPv6 group of one interface (RFC 4291 §2.7, scope 1), which never leaves the
/// host.
pub(crate) fn is_interface_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_multicast() && v6.octets()[1] & 15 == 1)
}

impl GidTable {
    /// The table for an interface, keeping the places of addresses that `before` held.
    pub fn updated(before: &Self, mac: [u8; 6], addresses: &[IpAddr]) -> Self {
        let default = default_gid(mac);
        let stand_in = addresses.iter().find(|a| a.is_ipv4()).or(addresses.first()).copied();
        let own = IpAddr::V6(Ipv6Addr::from(default.0));
        let borne = addresses.contains(&own);
        let mut entries =
            vec![Some(GidEntry { gid: default, address: if borne { Some(own) } else { stand_in }, borne })];
        let wanted: Vec<GidEntry> = addresses
            .iter()
            .map(|&a| GidEntry { gid: a.into(), address: Some(a), borne: true })
            .filter(|e| e.gid != default)
            .collect();
        for old in before.entries.iter().skip(1) {
            entries.push(old.filter(|o| wanted.contains(o)));
        }
        for new in wanted {
            if entries.contains(&Some(new)) {
                continue;
            }
            match entries.iter().skip(1).position(Option::is_none) {
                Some(hole) => entries[hole + 1] = Some(new),
                None if entries.len() < crate::limits::MAX_GIDS => entries.push(Some(new)),
                None => break,
            }
        }
        while entries.last() == Some(&None) {
            entries.pop();
        }
        Self { entries, ipoib: Vec::new() }
    }
    /// The table of an InfiniBand port: no address of IP stands behind its entries, but those of
    /// IPoIB belong to the first.
    pub fn of_infiniband(port: &IbPort, ipoib: &[IpAddr]) -> Self {
        let entry = |index| Some(GidEntry { gid: port.gid(index)?, address: None, borne: true });
        let entries = (0..port.guids.len().min(crate::limits::MAX_GIDS)).map(entry).collect();
        Self { entries, ipoib: ipoib.to_vec() }
    }
    /// Whether both tables have the same GIDs at the same indices.
    pub fn has_gids_of(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
    /// The index of a GID.
    pub fn index_of_gid(&self, gid: Gid) -> Option<u8> {
        let (index, _) = self.iter().find(|(_, entry)| entry.gid == gid)?;
        u8::try_from(index).ok()
    }
    /// The entry at an index.
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.entries.get(index)?.as_ref()
    }
    /// Entries with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        self.entries.iter().enumerate().filter_map(|(i, e)| Some((i, e.as_ref()?)))
    }
    /// The index of an address that the interface bears.
    pub fn index_of(&self, address: IpAddr) -> Option<u8> {
        if self.ipoib.contains(&address) {
            return Some(0);
        }
        let found = self.iter().find(|(_, e)| e.borne && e.address == Some(address));
        // There are at most 256.
        found.and_then(|(i, _)| u8::try_from(i).ok())
    }
    /// Whether packets to an address come to the interface.
    pub fn bears(&self, address: Address) -> bool {
        address.ip().is_some_and(|ip| self.index_of(ip).is_some())
    }
    /// Length, holes included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_default_gid_then_its_addresses() {
        let addresses = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let t = GidTable::updated(&GidTable::default(), [0; 6], &addresses);
        assert_eq!(t.get(0).unwrap().gid.ip().to_string(), "fe80::200:ff:fe00:0");
        assert!(!t.get(0).unwrap().borne);
        assert_eq!(t.get(0).unwrap().address, Some(addresses[0]));
        assert_eq!(t.index_of(addresses[0]), Some(1));
        assert_eq!(t.index_of(addresses[1]), Some(2));
    }

    #[test]
    fn an_address_keeps_its_index_when_another_goes() {
        let a: IpAddr = "10.0.0.1".parse().unwrap();
        let b: IpAddr = "10.0.0.2".parse().unwrap();
        let c: IpAddr = "10.0.0.3".parse().unwrap();
        let t = GidTable::updated(&GidTable::default(), [2, 0, 0, 0, 0, 1], &[a, b]);
        let t = GidTable::updated(&t, [2, 0, 0, 0, 0, 1], &[b]);
        assert_eq!((t.index_of(a), t.index_of(b)), (None, Some(2)));
        let t = GidTable::updated(&t, [2, 0, 0, 0, 0, 1], &[b, c]);
        assert_eq!((t.index_of(c), t.index_of(b)), (Some(1), Some(2)));
    }
}
