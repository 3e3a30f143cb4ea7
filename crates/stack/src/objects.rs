//! What a node has given out and not got back: tests ask, that nothing is left behind.

use std::sync::Arc;

use nic::device::objects::Objects as OfDevice;

use crate::env::Env;
use crate::{Id, Node};

/// What exists in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Identifiers that are held.
    pub ids: usize,
    /// Connections and requests that an identifier has; those that only end are not among them.
    pub connections: usize,
    /// Places where an identifier listens.
    pub listeners: usize,
    /// Addresses being resolved.
    pub resolving: usize,
    /// Ends of connections that wait for an ACK.
    pub waiting_ends: usize,
    /// Objects of each device, in their order.
    pub devices: Vec<OfDevice>,
}

impl<W: Env> Node<W> {
    /// The identifiers of rdma_cm that are held, one after the other.
    pub fn ids(&self) -> impl Iterator<Item = Arc<Id>> + '_ {
        self.cm_agent.everyone.one_by_one()
    }

    /// What exists now.
    pub fn objects(&self) -> Objects {
        let core = self.cm_agent.lock();
        let (connections, listeners) = (core.ids.len(), core.listeners.len());
        let (resolving, waiting_ends) = (core.resolving.len(), core.waiting_ends.len());
        drop(core);
        Objects {
            ids: self.cm_agent.everyone.count(),
            connections,
            listeners,
            resolving,
            waiting_ends,
            devices: self.devices().iter().map(|device| device.objects()).collect(),
        }
    }
}
