//! Queue pairs whose attributes are given one by one.

use std::net::IpAddr;

use nic::{Access, AddressVector, QpAttr, QpState, QpType, mask};
use wire::{Mtu, Psn, Qkey, Qpn};

use super::RIGHTS;
use super::both_ways::End;

/// The attributes of one end.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub mtu: Mtu,
    pub access: u32,
    /// `max_dest_rd_atomic` and `max_rd_atomic`.
    pub resources: u8,
    pub depth: u8,
    /// The state to which it comes.
    pub state: QpState,
    pub dest: Qpn,
    pub from: IpAddr,
    pub to: IpAddr,
}

impl Side {
    /// Attributes of an end that fit its peer's.
    pub(crate) fn of(end: &End, peer: &End) -> Self {
        let psn = Psn::new(0xff_fff8);
        Self {
            rq_psn: psn,
            sq_psn: psn,
            mtu: Mtu::M1024,
            access: RIGHTS | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            resources: 4,
            depth: 4,
            state: QpState::Rts,
            dest: peer.endpoint.qp.qpn(),
            from: end.address,
            to: peer.address,
        }
    }
}

/// Takes a queue pair in RESET to the state that is wanted.
pub(crate) fn bring_up(end: &End, side: &Side) {
    let device = &end.node.devices()[0];
    end.node.attach(device).unwrap();
    let is_it = |address: Option<IpAddr>| address == Some(side.from);
    let (sgid_index, _) = device.port().gids.iter().find(|(_, e)| e.borne && is_it(e.address)).unwrap();
    let attr = QpAttr {
        port: 1,
        access: side.access,
        path_mtu: side.mtu,
        dest_qpn: side.dest,
        rq_psn: side.rq_psn,
        sq_psn: side.sq_psn,
        max_rd_atomic: side.depth,
        max_dest_rd_atomic: side.resources,
        min_rnr_timer: 12,
        timeout: 9,
        retry_cnt: 3,
        rnr_retry: 3,
        qkey: Qkey(5),
        av: AddressVector {
            dgid: side.to.into(),
            sgid_index: sgid_index as u8,
            hop_limit: 64,
            is_global: true,
            port: 1,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    };
    let answers = mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
    let asks = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
    let unknown = match end.endpoint.qp.init().kind {
        QpType::XrcSend => answers,
        QpType::Uc => answers | asks,
        _ => 0,
    };
    let init = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    let rtr = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | answers;
    let rts = mask::SQ_PSN | asks;
    let way = match side.state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        _ => 3,
    };
    let steps = [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)];
    for (state, bits) in steps.into_iter().take(way) {
        end.modify(attr.with_state(state), mask::STATE | bits & !unknown);
    }
    if matches!(side.state, QpState::Sqd | QpState::Error) {
        end.go_to(side.state);
    }
}
