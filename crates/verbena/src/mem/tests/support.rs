//! Domains on simulated devices, and two queue pairs connected by hand.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nic::device::async_events::AsyncEventQueue;
use nic::{AddressVector, Cq, DeferredWork, Qp, QpAttr, QpCap, QpInit, QpState, QpType, mask};
use sim::{Faults, HostId, Mark, Sim};
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::{Mtu, Psn};

use crate::mem::{IoBuf, IoBufMut, SgeList};
use crate::provider::{Ours, Pd, Provider, SimProcess, Stack};
use crate::thread_safe::ThreadSafe;

/// A provider on a new process of a host.
pub(super) fn provider(sim: &mut Sim, host: HostId) -> Provider {
    let process = sim.start(host, &stack::Config::default());
    let process = SimProcess { node: sim.node(process).unwrap(), later: Arc::new(DeferredWork::default()) };
    Provider::over(Stack::Ours(Ours::Sim(ThreadSafe::new(Arc::new(process)))))
}

/// A domain of a world of its own.
pub(super) fn domain() -> Pd {
    let mut sim = Sim::new(1, Faults::default());
    let host = sim.add_host(&["10.0.0.1".parse().unwrap()], 1500);
    provider(&mut sim, host).devices().unwrap()[0].new_pd().unwrap()
}

/// One end of a connection.
pub(super) struct End {
    pub pd: Pd,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
}

impl End {
    fn new(sim: &mut Sim, address: IpAddr) -> Self {
        let host = sim.add_host(&[address], 1500);
        let pd = provider(sim, host).devices().unwrap()[0].new_pd().unwrap();
        let events = AsyncEventQueue::new(Box::new(Mark::default()));
        let cq = Cq::new(64, None, events.clone()).unwrap();
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { srq: None, kind: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true, events };
        let qp = Qp::create(pd.device().nic().unwrap(), pd.nic().unwrap(), init).unwrap();
        Self { pd, qp, cq }
    }

    fn connect(&self, peer: &Self, to: IpAddr) {
        crate::provider::node!(self.pd.stack().ours().unwrap(), node => node.attach(self.pd.device().nic().unwrap()).unwrap());
        let gids = &self.pd.device().nic().unwrap().port().gids;
        let sgid = gids.iter().find(|(_, e)| e.borne && e.address.is_some_and(|a| a.is_ipv4())).unwrap().0;
        let access = nic::Access::REMOTE_WRITE | nic::Access::REMOTE_READ | nic::Access::REMOTE_ATOMIC;
        let av = AddressVector {
            dgid: to.into(),
            sgid_index: sgid as u8,
            hop_limit: 64,
            is_global: true,
            port: 1,
            ..AddressVector::default()
        };
        let attr = QpAttr {
            port: 1,
            access,
            path_mtu: Mtu::M1024,
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(1),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            av,
            ..QpAttr::default()
        };
        let now = self.pd.stack().now();
        let init = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        self.qp.modify(now, &attr.with_state(QpState::Init), init).unwrap();
        let rtr = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.qp.modify(now, &attr.with_state(QpState::Rtr), rtr).unwrap();
        let rts = mask::STATE
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::SQ_PSN
            | mask::MAX_QP_RD_ATOMIC;
        self.qp.modify(now, &attr.with_state(QpState::Rts), rts).unwrap();
    }

    pub(super) fn receive(&self, buf: &impl IoBufMut) {
        let mut list = SgeList::new(&self.pd);
        buf.gather_mut(&mut list);
        self.qp.post_receive(RecvWr { wr_id: 0, sges: list.finish().unwrap() }).unwrap();
    }

    pub(super) fn post_from(&self, op: SendOp, buf: &impl IoBuf) {
        let mut list = SgeList::new(&self.pd);
        buf.gather(&mut list);
        self.post(op, list);
    }

    pub(super) fn post_into(&self, op: SendOp, buf: &impl IoBufMut) {
        let mut list = SgeList::new(&self.pd);
        buf.gather_mut(&mut list);
        self.post(op, list);
    }

    fn post(&self, op: SendOp, list: SgeList) {
        let data = Data::Sges(list.finish().unwrap());
        let mut sender = self.qp.sender(self.pd.stack().now());
        let mut wr = SendWr { wr_id: 1, op, data, signaled: true, solicited: false, fence: false };
        sender.post(&mut wr, nic::PostFlags::default()).unwrap();
        sender.finish();
    }

    pub(super) fn completions(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        self.cq.poll(64, |c| all.push(c)).unwrap();
        all
    }
}

impl Drop for End {
    /// Device and queue pair hold each other until then.
    fn drop(&mut self) {
        self.qp.destroy();
    }
}

/// Two ends, connected.
pub(super) struct Pair {
    pub sim: Sim,
    pub a: End,
    pub b: End,
}

impl Pair {
    pub(super) fn new() -> Self {
        let mut sim = Sim::new(7, Faults::default());
        let (left, right) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (a, b) = (End::new(&mut sim, left), End::new(&mut sim, right));
        a.connect(&b, right);
        b.connect(&a, left);
        Self { sim, a, b }
    }

    /// What `a` posted has completed: how.
    pub(super) fn status(&mut self) -> Status {
        self.sim.run_for(Duration::from_secs(1));
        let all = self.a.completions();
        assert_eq!(all.len(), 1);
        all[0].status
    }
}
