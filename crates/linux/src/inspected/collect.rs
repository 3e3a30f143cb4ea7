//! What this process has, as values: each object is locked while it is copied, and no other is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use inspect::{CmId, Cq, Device, LastError, Mr, Process, Qp, Reliable, Srq, Stream};
use nic::QpType;
use nic::memory::RegionSnapshot;
use nic::qp::snapshot::{QpSnapshot, Reliable as Known};
use stack::{EventChannel, Progress};
use transport::iwarp::Carried;
use transport::op::Status;
use transport::rc::Failure;
use wire::bth::NakCode;
use wire::mad::PortSpace;

use crate::process::{self, Instance};

/// Bytes of the heap for what is said of one object, in both forms.
const BYTES_AN_OBJECT: u64 = 1 << 10;

/// What the process has, which has used Verbena `since` then. `None` where the heap has no room.
pub(super) fn process(instance: &Instance, since: Instant) -> Option<Process> {
    let node = instance.node();
    let on_devices = node.devices().into_iter().map(|device| device.objects());
    let count = on_devices.map(|of| of.qps + of.cqs + of.regions).sum::<u64>() + node.ids().count() as u64;
    process::room(usize::try_from(count.saturating_mul(BYTES_AN_OBJECT)).ok()?).ok()?;
    let host = instance.host.env().counters().snapshot();
    let host = host.into_iter().map(|(name, n)| (format!("host.{name}"), n));
    Some(Process {
        pid: std::process::id(),
        comm: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
        uptime_ms: millis_since(since),
        view: instance.view(),
        devices: node.devices().iter().map(|device| of_device(device)).collect(),
        cm_ids: of_ids(instance),
        counters: host.chain(node.counted()).collect(),
    })
}

fn millis_since(then: Instant) -> u64 {
    then.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

/// The completion queues of a device: those of its queue pairs in the order in which they are met,
/// then the others.
#[derive(Default)]
struct Queues {
    all: Vec<(Arc<nic::Cq>, u32)>,
    places: BTreeMap<*const nic::Cq, usize>,
}

impl Queues {
    /// The number of a queue, which has one user more.
    fn number(&mut self, cq: &Arc<nic::Cq>) -> u32 {
        let place = self.place(cq);
        if let Some((_, users)) = self.all.get_mut(place) {
            *users += 1;
        }
        place as u32
    }

    fn place(&mut self, cq: &Arc<nic::Cq>) -> usize {
        let place = *self.places.entry(Arc::as_ptr(cq)).or_insert(self.all.len());
        if place == self.all.len() {
            self.all.push((cq.clone(), 0));
        }
        place
    }
}

fn of_device(device: &nic::Device) -> Device {
    let port = device.port();
    let (mut queues, mut mrs) = (Queues::default(), Vec::new());
    let qps = device.qps_one_by_one().map(|qp| of_qp(&qp.snapshot(), &mut queues)).collect();
    device.each_region(|region| mrs.push(of_region(region)));
    let srqs = device.srqs().iter().map(|srq| of_srq(srq, &mut queues)).collect();
    device.cqs().iter().for_each(|cq| _ = queues.place(cq));
    let cqs = queues.all.iter().zip(0..).map(|((cq, users), cqn)| of_cq(cq, cqn, *users));
    Device {
        ifname: device.config.name.clone(),
        netdev: device.config.interface_name.clone(),
        state: if port.up { "ACTIVE" } else { "DOWN" }.to_owned(),
        mtu: port.mtu.bytes() as u32,
        pds: device.objects().pds,
        qps,
        cqs: cqs.collect(),
        srqs,
        mrs,
    }
}

fn of_qp(qp: &QpSnapshot, queues: &mut Queues) -> Qp {
    let path = qp.path.as_ref();
    Qp {
        lqpn: qp.qpn.get(),
        rqpn: path.map(|path| path.dest_qpn.get()),
        kind: kind(qp.kind).to_owned(),
        state: qp.state.name().to_owned(),
        rq_psn: qp.rq_psn.map(wire::Psn::get),
        sq_psn: qp.sq_psn.map(wire::Psn::get),
        pdn: qp.pd,
        src_addr: path.map(|path| path.source.to_string()),
        dst_addr: path.map(|path| path.dest.to_string()),
        via: path.map(|_| if qp.by_memory { "memory" } else { "wire" }.to_owned()),
        path_mtu: qp.mtu.bytes() as u32,
        sends: qp.sends as u32,
        max_send_wr: qp.cap.max_send_wr,
        recvs: qp.receives as u32,
        max_recv_wr: qp.cap.max_recv_wr,
        received: qp.received,
        stream: qp.carried.map(|carried| of_stream(&carried)),
        reliable: qp.reliable.map(|known| of_reliable(&known)),
        send_cqn: queues.number(&qp.send_cq),
        recv_cqn: queues.number(&qp.recv_cq),
        srqn: qp.srq,
    }
}

/// The type's name in rdma-resource(8).
fn kind(kind: QpType) -> &'static str {
    match kind {
        QpType::XrcSend => "XRC_INI",
        QpType::XrcRecv => "XRC_TGT",
        other => other.name(),
    }
}

fn of_stream(carried: &Carried) -> Stream {
    Stream {
        sent_bytes: carried.sent.bytes,
        sent_fpdus: carried.sent.fpdus,
        received_bytes: carried.received.bytes,
        received_fpdus: carried.received.fpdus,
    }
}

fn of_reliable(known: &Known) -> Reliable {
    let last_error = known
        .failure
        .map(|(why, when)| LastError { status: failure(why).to_owned(), ms_ago: millis_since(when) });
    Reliable {
        in_flight: known.in_flight,
        completed: known.completed,
        retransmissions: known.recoveries.retransmissions,
        timeouts: known.recoveries.timeouts,
        rcvd_rnr_naks: known.recoveries.rnr_naks,
        sent_rnr_naks: known.rnr_naks_sent,
        max_rd_atomic: known.max_rd_atomic,
        max_dest_rd_atomic: known.max_dest_rd_atomic,
        last_error,
    }
}

/// A status without IBV_WC_, or the NAK that the peer was sent, as IBA 1.4 table 45 names it.
fn failure(why: Failure) -> &'static str {
    match why {
        Failure::Request(status) => match status {
            Status::LocalLength => "LOC_LEN_ERR",
            Status::LocalQpOperation => "LOC_QP_OP_ERR",
            Status::LocalProtection => "LOC_PROT_ERR",
            Status::MwBind => "MW_BIND_ERR",
            Status::BadResponse => "BAD_RESP_ERR",
            Status::LocalAccess => "LOC_ACCESS_ERR",
            Status::RemoteInvalidRequest => "REM_INV_REQ_ERR",
            Status::RemoteAccess => "REM_ACCESS_ERR",
            Status::RemoteOperation => "REM_OP_ERR",
            Status::RetryExceeded => "RETRY_EXC_ERR",
            Status::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
            _ => "GENERAL_ERR",
        },
        Failure::Refused(NakCode::PsnSequence) => "NAK: PSN Sequence Error",
        Failure::Refused(NakCode::InvalidRequest) => "NAK: Invalid Request",
        Failure::Refused(NakCode::RemoteAccess) => "NAK: Remote Access Error",
        Failure::Refused(NakCode::RemoteOperational) => "NAK: Remote Operational Error",
        Failure::Refused(NakCode::InvalidRdRequest) => "NAK: Invalid RD Request",
    }
}

fn of_cq(cq: &nic::Cq, cqn: u32, users: u32) -> Cq {
    let (fill, added) = cq.fill();
    let (cqe, overrun) = (cq.capacity(), cq.is_overrun());
    Cq { cqn, cqe, fill, added, overrun, channel: cq.channel().is_some(), users }
}

fn of_srq(srq: &nic::Srq, queues: &mut Queues) -> Srq {
    let (sizes, own_cq) = (srq.query(), srq.own_cq());
    let kind = match own_cq {
        None => "BASIC",
        Some(_) if srq.is_for_xrc() => "XRC",
        Some(_) => "TM",
    };
    Srq {
        srqn: srq.number(),
        kind: kind.to_owned(),
        pdn: srq.pdn(),
        cqn: own_cq.map(|cq| queues.number(cq)),
        recvs: srq.posted() as u32,
        max_recv_wr: sizes.max_wr,
        limit: sizes.limit,
    }
}

fn of_region(region: RegionSnapshot) -> Mr {
    let access = nic::memory::access_names(region.access).map(str::to_owned).collect();
    Mr { addr: region.addr, mrlen: region.len, pdn: region.pd, access }
}

fn of_ids(instance: &Instance) -> Vec<CmId> {
    let mut channels: BTreeMap<*const EventChannel, (u32, Arc<EventChannel>)> = BTreeMap::new();
    let mut found = Vec::new();
    for id in instance.node().ids() {
        let (mut said, channel) = {
            let inner = id.lock();
            let device = inner.device.as_ref().map(|device| device.config.name.clone());
            let said = CmId {
                ifname: device,
                lqpn: inner.qp.as_ref().map(|qp| qp.qpn().get()),
                qp_type: kind(id.kind).to_owned(),
                state: state(inner.progress).to_owned(),
                progress: inner.progress.name().to_owned(),
                ps: port_space(id.space).to_owned(),
                src_addr: inner.source.map(|source| source.to_string()),
                dst_addr: inner.dest.map(|dest| dest.to_string()),
                ..CmId::default()
            };
            (said, inner.channel.clone())
        };
        if said.progress == Progress::Destroyed.name() {
            continue;
        }
        let next = channels.len() as u32;
        let (number, channel) = channels.entry(Arc::as_ptr(&channel)).or_insert((next, channel));
        (said.channel, said.events) = (*number, channel.waiting() as u32);
        found.push(said);
    }
    found
}

/// The state's name in rdma-resource(8).
fn state(progress: Progress) -> &'static str {
    match progress {
        Progress::Idle => "IDLE",
        Progress::Bound => "ADDR_BOUND",
        Progress::AddressQuery => "ADDR_QUERY",
        Progress::AddressResolved => "ADDR_RESOLVED",
        Progress::RouteQuery => "ROUTE_QUERY",
        Progress::RouteResolved => "ROUTE_RESOLVED",
        Progress::Listening => "LISTEN",
        Progress::Connecting | Progress::Requested | Progress::Answered | Progress::Connected => "CONNECT",
        Progress::Disconnected => "DISCONNECT",
        Progress::Destroyed => "DESTROYING",
    }
}

fn port_space(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "TCP",
        PortSpace::Udp => "UDP",
        PortSpace::Ipoib => "IPoIB",
        PortSpace::Ib => "IB",
    }
}
