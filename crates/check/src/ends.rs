//! The two ends of a connection: attributes that do not fit.

/// PSNs have 24 bits (IBA 1.4 §9.7.2), half of which are before, and half behind another.
const PSNS: u32 = 1 << 24;

/// One end of a reliable connection, as its process says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The queue pair's number, and the one that it is connected to.
    pub number: u32,
    /// The number of the queue pair that it is connected to.
    pub peer: Option<u32>,
    /// The state, as RESET, INIT, RTR, RTS, SQD, SQE or ERR.
    pub state: String,
    /// Bytes of the path MTU.
    pub path_mtu: u32,
    /// The oldest PSN that was sent and not acknowledged.
    pub oldest_psn: Option<u32>,
    /// The PSN of the next new request.
    pub next_psn: Option<u32>,
    /// The PSN that is expected next.
    pub expected_psn: Option<u32>,
    /// READs and atomics that it sends at a time (`max_rd_atomic`).
    pub reads_sent: Option<u8>,
    /// READs and atomics that it serves at a time (`max_dest_rd_atomic`).
    pub reads_served: Option<u8>,
}

/// A memory region of the peer's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerRegion {
    /// The address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it is in the protection domain of the peer's queue pair.
    pub is_in_domain: bool,
    /// Rights, as `enum ibv_access_flags` names them, without IBV_ACCESS_.
    pub access: Vec<String>,
}

/// What is known of a queue pair's peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// What does not fit, a sentence each ([`misfits`]).
    pub misfits: Vec<String>,
    /// READs and atomics that it serves at a time, where its queue pair is connected to this one.
    pub reads_served: Option<u8>,
    /// The memory regions of its process.
    pub regions: Vec<PeerRegion>,
}

impl Peer {
    /// Why the peer refused a request for its memory, which needs such a right.
    pub fn refusal(&self, addr: u64, len: u64, right: &str) -> String {
        let distance = |region: &PeerRegion| {
            let end = region.addr.saturating_add(region.len);
            region.addr.saturating_sub(addr).max(addr.saturating_add(len).saturating_sub(end))
        };
        let Some(nearest) = self.regions.iter().min_by_key(|region| distance(region)) else {
            return "The peer has no memory region.".to_owned();
        };
        let (from, bytes) = (nearest.addr, nearest.len);
        let region = format!("memory region of {bytes} bytes from {from:#x}");
        if distance(nearest) > 0 {
            let slip = self.slip(addr, len).unwrap_or_default();
            return format!(
                "No memory region of the peer has all of the {len} bytes at {addr:#x}. The nearest is a {region}.{slip}"
            );
        }
        let covering = || self.regions.iter().filter(|region| distance(region) == 0);
        let allowing = |region: &&PeerRegion| region.access.iter().any(|has| has == right);
        if !covering().any(|region| region.is_in_domain) {
            format!("The peer's {region} is in another protection domain than its queue pair.")
        } else if !covering().filter(|region| region.is_in_domain).any(|region| allowing(&region)) {
            format!("The peer's {region} is without IBV_ACCESS_{right}.")
        } else {
            format!(
                "The peer's {region} allows it: the rkey is of another one, or its queue pair's qp_access_flags are without IBV_ACCESS_{right}."
            )
        }
    }

    /// What happened to an address of the peer's memory on its way, where another one that is like
    /// it is in a region.
    fn slip(&self, addr: u64, len: u64) -> Option<String> {
        const LOW: u64 = u32::MAX as u64;
        let has = |region: &PeerRegion, at: u64| {
            at.checked_sub(region.addr).is_some_and(|at| at <= region.len && len <= region.len - at)
        };
        let swapped = addr.swap_bytes();
        if self.regions.iter().any(|region| has(region, swapped)) {
            return Some(format!(
                " {swapped:#x} is in a region: the bytes of the address are in reverse order, as htobe64 leaves them."
            ));
        }
        let (low, swapped) = (addr & LOW, u64::from((addr as u32).swap_bytes()));
        let halves = self
            .regions
            .iter()
            .flat_map(|region| [low, swapped].map(|low| (region, (region.addr & !LOW) | low)));
        if let Some((_, whole)) = halves.filter(|_| addr <= LOW).find(|(region, at)| has(region, *at)) {
            return Some(format!(
                " {whole:#x} is in a region: the address has lost its upper 32 bits, as htonl and ntohl do to 64 bits."
            ));
        }
        let is_offset = |region: &&PeerRegion| has(region, region.addr.saturating_add(addr));
        self.regions.iter().find(is_offset).map(|region| {
            format!(
                " A remote address is one of the peer's memory, from {:#x} on, and no offset.",
                region.addr
            )
        })
    }
}

/// Why requests from one end do not succeed at the other: a sentence for each attribute. A peer
/// that answers with a NAK goes to ERR by that, which is no cause.
pub fn misfits(own: &End, peer: &End, is_silent: bool) -> Vec<String> {
    let mut found = Vec::new();
    let number = peer.number;
    if matches!(peer.state.as_str(), "RESET" | "INIT") {
        found.push(format!("The peer's queue pair {number} is in {}: it does not receive yet.", peer.state));
        return found;
    }
    if peer.state == "ERR" && is_silent {
        found.push(format!("The peer's queue pair {number} is in ERR."));
    }
    if let Some(other) = peer.peer.filter(|other| *other != own.number) {
        let own = own.number;
        found.push(format!(
            "The peer's queue pair {number} is connected to queue pair {other}, not to {own}."
        ));
    }
    if own.path_mtu != peer.path_mtu {
        let (here, there) = (own.path_mtu, peer.path_mtu);
        found.push(format!("The path MTU is {here} bytes here and {there} bytes at the peer."));
    }
    if let (Some(oldest), Some(next), Some(expected)) = (own.oldest_psn, own.next_psn, peer.expected_psn) {
        let ahead = |psn: u32| psn.wrapping_sub(oldest) % PSNS;
        if ahead(expected) > ahead(next) {
            found.push(format!(
                "The peer expects PSN {expected}; requests from PSN {oldest} on are sent: rq_psn there is not sq_psn here."
            ));
        }
    }
    if let (Some(sent), Some(served)) = (own.reads_sent, peer.reads_served)
        && sent > served
    {
        found.push(format!(
            "max_rd_atomic is {sent} here, and max_dest_rd_atomic is {served} at the peer: of READs and atomics it serves no more at a time."
        ));
    }
    found
}

/// Why requests to a queue pair of this host find none: of those that are there it has no number.
pub fn nowhere(peer: u32, all: &[u32]) -> String {
    let is_it = |number: &&u32| number.swap_bytes() & (PSNS - 1) == peer;
    match all.iter().find(is_it) {
        Some(number) => format!(
            "No queue pair {peer} is there, and queue pair {number} is: the bytes of dest_qp_num are in reverse order, as htonl leaves them."
        ),
        None => format!(
            "No process of this user has queue pair {peer}: it was destroyed, its process has ended, or dest_qp_num is another one."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (End, End) {
        let end = |number, peer| End {
            number,
            peer: Some(peer),
            state: "RTS".to_owned(),
            path_mtu: 1024,
            oldest_psn: Some(PSNS - 2),
            next_psn: Some(3),
            expected_psn: Some(PSNS - 2),
            reads_sent: Some(4),
            reads_served: Some(4),
        };
        (end(17, 18), end(18, 17))
    }

    fn with(change: impl FnOnce(&mut End)) -> Vec<String> {
        let (own, mut peer) = ends();
        change(&mut peer);
        misfits(&own, &peer, true)
    }

    #[test]
    fn what_does_not_fit_is_said_and_what_fits_is_not() {
        assert_eq!(with(|_| {}), [""; 0]);
        assert_eq!(with(|peer| peer.reads_served = Some(5)), [""; 0]);
        assert_eq!(
            with(|peer| peer.reads_served = Some(3)),
            [
                "max_rd_atomic is 4 here, and max_dest_rd_atomic is 3 at the peer: of READs and atomics it serves no more at a time."
            ]
        );
        assert_eq!(with(|peer| peer.expected_psn = Some(3)), [""; 0], "all was received");
        assert_eq!(with(|peer| peer.expected_psn = Some(4)).len(), 1);
        assert_eq!(with(|peer| peer.expected_psn = Some(PSNS - 3)).len(), 1);
        assert_eq!(
            with(|peer| peer.path_mtu = 4096),
            ["The path MTU is 1024 bytes here and 4096 bytes at the peer."]
        );
        assert_eq!(
            with(|peer| peer.peer = Some(19)),
            ["The peer's queue pair 18 is connected to queue pair 19, not to 17."]
        );
        assert_eq!(
            with(|peer| (peer.state, peer.peer) = ("INIT".to_owned(), None)),
            ["The peer's queue pair 18 is in INIT: it does not receive yet."]
        );
    }

    #[test]
    fn a_number_in_reverse_order_is_told_with_the_queue_pair_that_is_meant() {
        let said = nowhere(0x0063_e900, &[0x17, 0x00e9_631b]);
        assert!(said.starts_with("No queue pair 6547712 is there, and queue pair 15295259 is"), "{said}");
        assert!(nowhere(0x18, &[0x17]).starts_with("No process of this user has queue pair 24:"));
    }

    #[test]
    fn what_the_peer_refused_is_said_by_its_regions() {
        let region = |addr, is_in_domain, access: &[&str]| PeerRegion {
            addr,
            len: 4096,
            is_in_domain,
            access: access.iter().map(|right| (*right).to_owned()).collect(),
        };
        let refusal = |regions: &[PeerRegion], addr, len| {
            Peer { regions: regions.to_vec(), ..Peer::default() }.refusal(addr, len, "REMOTE_WRITE")
        };
        let writable = region(0x1000, true, &["LOCAL_WRITE", "REMOTE_WRITE"]);
        let readable = region(0x1000, true, &["REMOTE_READ"]);
        assert_eq!(refusal(&[], 0x1000, 8), "The peer has no memory region.");
        let at = |addr| refusal(&[region(0x7f12_3456_7000, true, &["REMOTE_WRITE"])], addr, 8);
        assert!(
            at(0x0070_5634_127f_0000)
                .contains(" 0x7f1234567000 is in a region: the bytes of the address are in reverse")
        );
        for lost in [0x3456_7008, 0x0870_5634] {
            assert!(
                at(lost).contains(" 0x7f1234567008 is in a region: the address has lost its upper 32 bits")
            );
        }
        assert!(at(8).ends_with("one of the peer's memory, from 0x7f1234567000 on, and no offset."));
        assert!(at(0x7f12_3456_8000).ends_with("bytes from 0x7f1234567000."), "{}", at(0x7f12_3456_8000));
        let far = region(0x9000, true, &[]);
        assert_eq!(
            refusal(&[far, writable.clone()], 0x1ffc, 8),
            "No memory region of the peer has all of the 8 bytes at 0x1ffc. The nearest is a memory region of 4096 bytes from 0x1000."
        );
        let said = |region| refusal(&[region], 0x1ff8, 8);
        assert!(
            said(PeerRegion { is_in_domain: false, ..writable.clone() })
                .contains("another protection domain")
        );
        assert!(said(readable).ends_with("is without IBV_ACCESS_REMOTE_WRITE."));
        assert!(said(writable).contains("allows it: the rkey is of another one"));
    }
}
