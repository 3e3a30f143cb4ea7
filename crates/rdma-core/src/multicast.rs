//! Multicast groups (rdma_join_multicast(3)). librdmacm attaches the queue pairs that it has made;
//! this crate makes them itself.

use std::net::{IpAddr, SocketAddr};

use nic::Error;
use rdma_core_abi::cma::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, rdma_cm_join_mc_attr_ex,
};
use rdma_core_abi::verbs::ibv_ah_attr;

use crate::id::Id;
use crate::{minus_one, sockaddr};

/// A group that was asked for.
pub(crate) struct Join {
    number: u64,
    group: IpAddr,
    send_only: bool,
}

impl Id {
    /// Joins a group; the event of that bears the number.
    ///
    /// # Errors
    ///
    /// Errno of rdma_join_multicast_ex(3).
    pub fn join(&self, group: IpAddr, send_only: bool, number: u64) -> Result<(), Error> {
        // Before its event may come.
        self.joins(|joins| joins.push(Join { number, group, send_only }));
        let flags =
            if send_only { RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER } else { RDMA_MC_JOIN_FLAG_FULLMEMBER };
        let mut addr = sockaddr::to_c(SocketAddr::new(group, 0));
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
            join_flags: flags,
            addr: (&raw mut addr).cast(),
        };
        let context = std::ptr::without_provenance_mut(number as usize);
        let join = self.system().calls.rdma_join_multicast_ex;
        // SAFETY: the identifier lives; attributes and address are read.
        let begun = self.call(|id| minus_one(unsafe { join(id, &raw mut attr, context) }));
        if begun.is_err() {
            self.joins(|joins| joins.retain(|join| join.number != number));
        }
        begun
    }

    /// Leaves a group, however often it was joined.
    ///
    /// # Errors
    ///
    /// `Missing` where it was not; errno of rdma_leave_multicast(3).
    pub fn leave(&self, group: IpAddr) -> Result<(), Error> {
        let mut count = 0;
        self.joins(|joins| {
            joins.retain(|join| {
                join.group != group || {
                    count += 1;
                    false
                }
            });
        });
        if count == 0 {
            return Err(Error::Missing("the group"));
        }
        if let Some(qp) = self.qp() {
            qp.detach(crate::handle::gid(group));
        }
        let mut addr = sockaddr::to_c(SocketAddr::new(group, 0));
        let leave = self.system().calls.rdma_leave_multicast;
        // SAFETY: the identifier lives; the address is read.
        (0..count).try_for_each(|_| self.call(|id| minus_one(unsafe { leave(id, (&raw mut addr).cast()) })))
    }

    /// The system has joined for it: from now on the queue pair gets what is sent there, where that
    /// was asked for.
    pub(crate) fn joined(&self, number: u64, to: &ibv_ah_attr) -> Result<(), Error> {
        let mut hears = false;
        self.joins(|joins| hears = joins.iter().any(|join| join.number == number && !join.send_only));
        match self.qp().filter(|_| hears) {
            Some(qp) => qp.attach(to.grh.dgid, to.dlid),
            None => Ok(()),
        }
    }
}
