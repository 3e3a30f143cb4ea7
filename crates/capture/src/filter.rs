//! Which packets are shown.

use std::net::IpAddr;
use std::str::FromStr;

use wire::bth::Bth;
use wire::{Address, Qpn};

/// Which packets are shown: all, or those of a queue pair or a peer. Where several are named a
/// packet of any of them is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    qps: Vec<Qpn>,
    peers: Vec<Address>,
}

/// A filter that says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFilter(String);

impl std::fmt::Display for BadFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' is neither qp=NUMBER nor peer=ADDRESS or peer=LID", self.0)
    }
}

impl std::error::Error for BadFilter {}

impl Filter {
    /// Whether a packet is shown, BTH first, between us and a peer. Packets bear the queue pair
    /// they go to only.
    pub fn shows(&self, peer: Address, packet: &[u8]) -> bool {
        let is_of_qp = || Bth::peek_dest_qp(packet).is_some_and(|qp| self.qps.contains(&qp));
        self.shows_peer(peer) || is_of_qp()
    }

    /// Whether a stream to a peer is shown. Its bytes name no queue pair.
    pub fn shows_stream(&self, peer: IpAddr) -> bool {
        self.shows_peer(peer.into())
    }

    fn shows_peer(&self, peer: Address) -> bool {
        let peer = peer.ip().map_or(peer.bare(), |ip| ip.to_canonical().into());
        self.shows_frames() || self.peers.contains(&peer)
    }

    /// Whether Ethernet frames are shown, which name neither a queue pair nor a peer.
    pub fn shows_frames(&self) -> bool {
        self.qps.is_empty() && self.peers.is_empty()
    }
}

/// `qp=17,qp=0x12,peer=10.0.0.2,peer=0x5`.
impl FromStr for Filter {
    type Err = BadFilter;

    fn from_str(text: &str) -> Result<Self, BadFilter> {
        let mut filter = Self::default();
        for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let bad = || BadFilter(term.to_owned());
            match term.split_once('=').ok_or_else(bad)? {
                ("qp", number) => filter.qps.push(Qpn::parse(number).ok_or_else(bad)?),
                ("peer", address) => filter.peers.push(Address::parse_peer(address).ok_or_else(bad)?),
                _ => return Err(bad()),
            }
        }
        Ok(filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_shows_packets_of_its_queue_pairs_and_peers() {
        let filter: Filter = "qp=0x11, peer=10.0.0.2".parse().unwrap();
        let to = |qp: u8| [4, 0, 0xff, 0xff, 0, 0, 0, qp, 0, 0, 0, 0];
        let [near, far]: [IpAddr; 2] = ["10.0.0.2", "10.0.0.3"].map(|text| text.parse().unwrap());
        assert!(filter.shows(near.into(), &to(9)) && filter.shows(far.into(), &to(0x11)));
        assert!(!filter.shows(far.into(), &to(9)) && !filter.shows(far.into(), &[]));
        assert!(Filter::default().shows(far.into(), &to(9)) && Filter::default().shows_stream(far));
        let by_lid: Filter = "peer=0x11,peer=3".parse().unwrap();
        let lid = |lid| Address::Lid(wire::LidAddress::new(lid, 2, 1).unwrap().with_grh());
        assert!([3, 17].iter().all(|&near| by_lid.shows(lid(near), &to(9))) && !by_lid.shows(lid(4), &to(9)));
        assert!(filter.shows_stream(near) && !filter.shows_stream(far));
        assert!(!filter.shows_frames() && Filter::default().shows_frames());
        for bad in ["qp", "qp=x", "qp=0x1000000", "peer=me", "peer=0", "peer=0xffff", "host=10.0.0.1"] {
            assert_eq!(bad.parse::<Filter>(), Err(BadFilter(bad.to_owned())));
        }
    }
}
