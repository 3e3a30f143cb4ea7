//! Queue pairs on simulated nodes.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod both_ways;
pub(crate) mod connections;
pub(crate) mod dying;
pub(crate) mod jobs;
pub(crate) mod misfit;
pub(crate) mod operations;
pub(crate) mod plans;
pub(crate) mod subnet;
pub(crate) mod work;

use std::net::IpAddr;
use std::sync::Arc;

use nic::device::async_events::AsyncEventQueue;
use nic::{AddressVector, Cq, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, mask};
use sim::{Mark, SimEnv};
use stack::{Config, Node, devices};
use transport::op::{Completion, Data, SendOp, SendWr};
use wire::roce::SendTail;
use wire::{Mtu, Psn};

pub(crate) const RIGHTS: u32 = nic::Access::LOCAL_WRITE
    | nic::Access::REMOTE_WRITE
    | nic::Access::REMOTE_READ
    | nic::Access::REMOTE_ATOMIC;

/// Work requests of a queue.
pub(crate) const DEPTH: u32 = 64;

/// What two processes are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// On two hosts, with a network between them.
    Wire,
    /// On one, where a channel leads from one to the other and memory is reached past it.
    Channel,
    /// On one host as `Channel`, and both ends copy what is longer than some thousand bytes and
    /// goes by the channel.
    Shared,
    /// On one host, and memory is such as both map.
    Mapped,
    /// By a stream between iWARP devices, on two hosts or on one.
    Stream,
}

impl Way {
    pub(crate) fn is_one_host(self) -> bool {
        !matches!(self, Self::Wire | Self::Stream)
    }
    /// What its processes are started with.
    pub(crate) fn config(self) -> Config {
        if self == Self::Stream { iwarp() } else { Config::default() }
    }
}

/// A process whose one device is of iWARP.
pub(crate) fn iwarp() -> Config {
    Config { devices: Some(devices::parse("siw_eth0=iwarp:eth0").unwrap()), ..Config::default() }
}

pub(crate) type SimNode = Arc<Node<SimEnv>>;

/// A queue pair with its completion queues.
pub(crate) struct Endpoint {
    pub pd: Arc<Pd>,
    pub qp: Arc<Qp>,
    pub sends: Arc<Cq>,
    pub receives: Arc<Cq>,
    pub events: Arc<AsyncEventQueue>,
}

/// A SEND of a few bytes that completes as `wr_id`.
pub(crate) fn send(wr_id: u64, text: &[u8]) -> SendWr {
    let (op, data) = (SendOp::Send(SendTail::None), Data::inline(text));
    SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false }
}

impl Endpoint {
    pub(crate) fn new(node: &SimNode) -> Self {
        Self::of(node, QpType::Rc)
    }

    /// Like [`Endpoint::new`], of another kind.
    pub(crate) fn of(node: &SimNode, kind: QpType) -> Self {
        let device = node.devices()[0].clone();
        let pd = Arc::new(device.alloc_pd().unwrap());
        let events = AsyncEventQueue::new(Box::new(Mark::default()));
        let cq = || Cq::new(1024, None, events.clone()).unwrap();
        let (sends, receives) = (cq(), cq());
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: if kind == QpType::XrcSend { 0 } else { DEPTH },
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        };
        let init = QpInit {
            srq: None,
            kind,
            send_cq: sends.clone(),
            recv_cq: receives.clone(),
            cap,
            sq_sig_all: false,
            events: events.clone(),
        };
        let qp = Qp::create(&device, &pd, init).unwrap();
        Self { pd, qp, sends, receives, events }
    }

    /// All completions there are.
    pub(crate) fn poll(cq: &Cq) -> Vec<Completion> {
        let mut all = Vec::new();
        if !cq.is_empty() {
            cq.poll(1024, |c| all.push(c)).unwrap();
        }
        all
    }
}

/// What both ends of a connection made by hand agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wiring {
    pub mtu: Mtu,
    pub timeout: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
}

/// Takes a queue pair to RTS; `to` is the peer's address, `psns` are the first received and the
/// first sent.
pub(crate) fn wire_up(
    node: &SimNode,
    ours: &Endpoint,
    theirs: &Endpoint,
    to: IpAddr,
    w: &Wiring,
    psns: (Psn, Psn),
) {
    let device = &node.devices()[0];
    let family = |a: &IpAddr| a.is_ipv4() == to.is_ipv4();
    let sgid_index =
        device.port().gids.iter().find(|(_, e)| e.borne && e.address.as_ref().is_some_and(family)).unwrap().0;
    let av = AddressVector {
        dgid: to.into(),
        sgid_index: sgid_index as u8,
        hop_limit: 64,
        is_global: true,
        port: 1,
        ..AddressVector::default()
    };
    wire_up_by(node, ours, theirs, &av, w, psns);
}

/// Like [`wire_up`], to a peer at this address.
pub(crate) fn wire_up_by(
    node: &SimNode,
    ours: &Endpoint,
    theirs: &Endpoint,
    av: &AddressVector,
    w: &Wiring,
    psns: (Psn, Psn),
) {
    node.attach(&node.devices()[0]).unwrap();
    let attr = QpAttr {
        port: 1,
        access: RIGHTS,
        path_mtu: w.mtu,
        dest_qpn: theirs.qp.qpn(),
        rq_psn: psns.0,
        sq_psn: psns.1,
        max_rd_atomic: w.max_rd_atomic,
        max_dest_rd_atomic: w.max_rd_atomic,
        min_rnr_timer: w.min_rnr_timer,
        timeout: w.timeout,
        retry_cnt: 7,
        rnr_retry: w.rnr_retry,
        av: *av,
        ..QpAttr::default()
    };
    let now = stack::Env::now(&**node.env());
    let init = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    ours.qp.modify(now, &attr.with_state(QpState::Init), init).unwrap();
    let rtr = mask::STATE
        | mask::AV
        | mask::PATH_MTU
        | mask::DEST_QPN
        | mask::RQ_PSN
        | mask::MAX_DEST_RD_ATOMIC
        | mask::MIN_RNR_TIMER;
    // What an XRC queue pair has not, which is half of one, and one without acknowledgements.
    let unknown = match ours.qp.init().kind {
        QpType::XrcSend => mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
        QpType::XrcRecv => mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC,
        QpType::Uc => {
            mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC
        }
        _ => 0,
    };
    ours.qp.modify(now, &attr.with_state(QpState::Rtr), rtr & !unknown).unwrap();
    let rts = mask::STATE
        | mask::TIMEOUT
        | mask::RETRY_CNT
        | mask::RNR_RETRY
        | mask::SQ_PSN
        | mask::MAX_QP_RD_ATOMIC;
    ours.qp.modify(now, &attr.with_state(QpState::Rts), rts & !unknown).unwrap();
}
