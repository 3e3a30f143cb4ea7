//! What rdma_cm says of a connection to be, for queue pairs that the program makes and moves itself
//! (rdma_init_qp_attr(3)).

use std::net::IpAddr;

use nic::{AddressVector, QpAttr};
use wire::{Mtu, Psn, Qpn};

use crate::error::{Error, Result};

/// What a queue pair needs to be connected, as negotiated
/// ([`Id::attributes`](crate::cm::raw::Id::attributes)). Each may be changed before it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectAttr {
    /// Number of the peer's queue pair, 24 bits.
    pub dest_qp_num: u32,
    /// PSN of the peer's first request, 24 bits.
    pub rq_psn: u32,
    /// PSN of ours, 24 bits.
    pub sq_psn: u32,
    /// Largest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes.
    pub path_mtu: u32,
    /// READs and atomics of the peer that are served at once, 0 to 128.
    pub responder_resources: u8,
    /// READs and atomics that are started at once, 0 to 128.
    pub initiator_depth: u8,
    /// How long a peer waits that found no receive posted: a code, 0 to 31 (IBA 1.4 table 45). 12,
    /// which is 0.64 ms.
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 us * 2^timeout, 0 to 31; 0 is without end.
    pub timeout: u8,
    /// Retries after it, 0 to 7.
    pub retry_count: u8,
    /// Retries of a sender that finds no receive, 0 to 7; 7 is without end.
    pub rnr_retry: u8,
    av: AddressVector,
}

impl ConnectAttr {
    pub(crate) fn of(attr: &QpAttr) -> Self {
        Self {
            dest_qp_num: attr.dest_qpn.get(),
            rq_psn: attr.rq_psn.get(),
            sq_psn: attr.sq_psn.get(),
            path_mtu: attr.path_mtu.bytes() as u32,
            responder_resources: attr.max_dest_rd_atomic,
            initiator_depth: attr.max_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            av: attr.av,
        }
    }

    /// The peer's address.
    pub fn peer(&self) -> IpAddr {
        self.av.dgid.ip()
    }

    /// As the adapter takes it; that looks at the ranges.
    pub(crate) fn nic(&self) -> Result<QpAttr> {
        let all = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];
        let path_mtu = all.into_iter().find(|mtu| mtu.bytes() as u32 == self.path_mtu);
        let wrong = || Error::number("ibv_modify_qp", "path_mtu", self.path_mtu.into(), 256..=4096);
        Ok(QpAttr {
            port: 1,
            av: self.av,
            path_mtu: path_mtu.ok_or_else(wrong)?,
            dest_qpn: Qpn::new(self.dest_qp_num),
            rq_psn: Psn::new(self.rq_psn),
            sq_psn: Psn::new(self.sq_psn),
            max_dest_rd_atomic: self.responder_resources,
            max_rd_atomic: self.initiator_depth,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_count,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        })
    }
}
