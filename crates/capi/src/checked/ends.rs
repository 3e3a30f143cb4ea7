//! What is known of a queue pair's peer, where that is in a process of this host.

use check::ends::{self, End, Peer, PeerRegion};
use inspect::{Device, Qp};
use linux::inspector::{self, Answer};

/// The peer of a queue pair of this process, which answered or not; `None` where it is not found.
pub(super) fn peer_of(number: u32, is_silent: bool) -> Option<Peer> {
    let own = std::process::id();
    let processes: Vec<_> = inspector::processes()
        .into_iter()
        .filter_map(|asked| {
            let Answer::Process(process) = asked.answer else { return None };
            Some((asked.pid == Some(own), process.devices))
        })
        .collect();
    let pairs = || {
        processes.iter().flat_map(|(is_own, devices)| {
            devices.iter().flat_map(move |device| device.qps.iter().map(move |qp| (*is_own, device, qp)))
        })
    };
    let (_, _, own) = pairs().find(|(is_own, _, qp)| *is_own && qp.lqpn == number)?;
    let is_peer =
        |qp: &Qp| Some(qp.lqpn) == own.rqpn && (qp.src_addr.is_none() || qp.src_addr == own.dst_addr);
    let Some((_, device, peer)) = pairs().find(|(_, _, qp)| is_peer(qp)) else {
        let all: Vec<_> = pairs().map(|(_, _, qp)| (qp.lqpn, qp.src_addr.as_deref())).collect();
        let is_here = own.dst_addr.is_some() && all.iter().any(|(_, addr)| *addr == own.dst_addr.as_deref());
        let numbers: Vec<u32> = all.iter().map(|(number, _)| *number).collect();
        let misfit = ends::nowhere(own.rqpn?, &numbers);
        return (is_silent && is_here).then(|| Peer { misfits: vec![misfit], ..Peer::default() });
    };
    let (own, there) = (end(own), end(peer));
    let is_connected = there.peer == Some(own.number) && !matches!(there.state.as_str(), "RESET" | "INIT");
    Some(Peer {
        misfits: ends::misfits(&own, &there, is_silent),
        reads_served: there.reads_served.filter(|_| is_connected),
        regions: regions(device, peer.pdn),
    })
}

/// The memory regions of a device, beside a protection domain of it.
fn regions(device: &Device, pdn: u32) -> Vec<PeerRegion> {
    let region = |mr: &inspect::Mr| PeerRegion {
        addr: mr.addr,
        len: mr.mrlen,
        is_in_domain: mr.pdn == pdn,
        access: mr.access.clone(),
    };
    device.mrs.iter().map(region).collect()
}

fn end(qp: &Qp) -> End {
    let in_flight = qp.reliable.as_ref().map_or(0, |reliable| reliable.in_flight);
    End {
        number: qp.lqpn,
        peer: qp.rqpn,
        state: qp.state.clone(),
        path_mtu: qp.path_mtu,
        oldest_psn: qp.sq_psn.map(|next| next.wrapping_sub(in_flight) & 0xff_ffff),
        next_psn: qp.sq_psn,
        expected_psn: qp.rq_psn,
        reads_sent: qp.reliable.as_ref().map(|reliable| reliable.max_rd_atomic),
        reads_served: qp.reliable.as_ref().map(|reliable| reliable.max_dest_rd_atomic),
    }
}
