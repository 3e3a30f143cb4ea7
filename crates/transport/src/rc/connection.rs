//! What an engine knows of its connection.

use wire::bth::{Bth, XrcEth};
use wire::roce::{Header, Op, Service};
use wire::{Pkey, Psn, Qpn};

use super::Role;
use crate::execute::Ends;

/// What every packet of a connection has in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) qpn: Qpn,
    pub(super) dest: Qpn,
    pub(super) pkey: Pkey,
    /// Payload bytes of a full packet.
    pub(super) mtu: usize,
    pub(super) role: Role,
}

impl super::Rc {
    /// Sets the P_Key that packets bear from now on.
    pub fn set_pkey(&mut self, pkey: Pkey) {
        self.conn.pkey = pkey;
    }
}

impl Connection {
    /// The header of a response.
    pub(super) fn header(&self, psn: Psn, op: Op) -> Header {
        let bth = Bth { pkey: self.pkey, dest_qp: self.dest, psn, ..Bth::default() };
        let service = if self.role == Role::Rc { Service::Rc } else { Service::Xrc(None) };
        Header { bth, service, op }
    }
    /// The header of a request; every one of an initiator, READs and the middle of a message
    /// included, bears the XRCETH.
    pub(super) fn request_header(&self, psn: Psn, op: Op, srq: u32) -> Header {
        let service = if self.role == Role::Rc { Service::Rc } else { Service::Xrc(Some(XrcEth { srq })) };
        Header { service, ..self.header(psn, op) }
    }
    /// What completions of receives name.
    pub(super) fn ends(&self) -> Ends {
        Ends { local: self.qpn, peer: self.dest }
    }
    /// Packets that carry `len` bytes: at least one.
    pub(super) fn packets(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu as u32).max(1)
    }
    /// Payload bytes of packet `at` of a message of `len` bytes.
    pub(super) fn payload_len(&self, len: u32, at: u32) -> usize {
        let before = u64::from(at) * self.mtu as u64;
        u64::from(len).saturating_sub(before).min(self.mtu as u64) as usize
    }
}
