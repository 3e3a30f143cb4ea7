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
            return format!(
                "No memory region of the peer has all of the {len} bytes at {addr:#x}. The nearest is a {region}."
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
