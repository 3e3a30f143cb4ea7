//! How connections end: `rdma_disconnect`, `rdma_destroy_id`, processes and hosts that are gone,
//! the end of this process.

use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cm::Output;
use nic::rdma_cm::EventKind;
use transport::TxBatch;
use wire::{Address, CommId};

use crate::cm_agent::{ConnKey, Core, ListenKey};
use crate::env::{Env, Name, Watch};
use crate::graceful_close;
use crate::id::{Id, NOT_CONNECTED, Progress};
use crate::number_blocks::process_name;
use crate::{Error, Node};

impl<W: Env> Node<W> {
    /// `rdma_disconnect`: the queue pair goes to the error state, the peer is told. On an
    /// identifier whose connection has ended it does the former only.
    pub fn disconnect(&self, id: &Arc<Id>) -> Result<(), Error> {
        if id.is_datagram() {
            return self.stop(id);
        }
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let (key, qp) = {
            let inner = id.lock();
            match inner.progress {
                Progress::Connected | Progress::Answered | Progress::Disconnected | Progress::Connecting => {}
                progress => return Err(progress.refuses()),
            }
            (inner.conn.ok_or(NOT_CONNECTED)?, inner.qp.clone())
        };
        if let Some(qp) = qp {
            qp.fail(now);
        }
        if let Some((cm, conn)) = core.cm(key) {
            // An error says that the connection has ended already.
            _ = cm.disconnect(now, conn);
        }
        self.carry_out(core, now);
        Ok(())
    }

    /// `rdma_destroy_id`, whatever the state: peers are told what their state calls for, events not
    /// yet fetched vanish, and with a listener the requests that wait.
    pub fn destroy(&self, id: &Arc<Id>) {
        self.leave_all(id);
        let now = self.env.now();
        // No further stream is accepted.
        let streams = id.lock().stream_claim.take();
        drop(streams);
        let mut core = self.cm_agent.lock();
        let (key, channel, listened, was, names, qp) = {
            let mut inner = id.lock();
            let was = std::mem::replace(&mut inner.progress, Progress::Destroyed);
            let names = (inner.claim.take(), inner.listen_claim.take());
            let qp = inner.qp.clone();
            (inner.conn.take(), inner.channel.clone(), inner.listens_at(), was, names, qp)
        };
        if let Some(qp) = qp {
            // The queue pair may outlive it, and its peer hears no more after the end of the
            // connection.
            qp.let_acks_go(now);
        }
        if let (Progress::Listening, Some(listened)) = (was, listened) {
            stop_listening(&mut core, now, &listened);
        }
        core.begun(now, id);
        if let Some(key) = key {
            core.ids.remove(&key);
            if let Some((cm, conn)) = core.cm(key) {
                cm.destroy(now, conn);
            }
        }
        let names = match (was, listened) {
            (Progress::Listening, Some(listened)) => core.keep_port(now, &listened, names),
            _ => Some(names),
        };
        let gone = channel
            .take_back(|e| Arc::ptr_eq(&e.id, id) || e.listener.as_ref().is_some_and(|l| Arc::ptr_eq(l, id)));
        self.carry_out(core, now);
        drop(names);
        // Requests the program will not see: their identifiers never reached it.
        for event in gone.into_iter().filter(|e| e.kind == EventKind::ConnectRequest) {
            if event.id.cookie.load(Ordering::Relaxed) == 0 && !Arc::ptr_eq(&event.id, id) {
                self.destroy(&event.id);
            }
        }
    }

    /// The connection is no more. A connection that failed takes its queue pair to the error state;
    /// one that the peer ended leaves that to the program, as librdmacm does.
    pub(crate) fn end(&self, id: &Arc<Id>, now: Instant, failed: bool) {
        let qp = {
            let mut inner = id.lock();
            inner.progress = Progress::Disconnected;
            inner.qp.clone()
        };
        if let Some(qp) = qp.filter(|_| failed) {
            qp.fail(now);
        }
    }

    /// An ICMP error came for a packet of ours.
    ///
    /// `ours` is our communication id in it, where it is a message; `process` the block it was for,
    /// where the error says that no process has the port.
    pub(crate) fn peer_unreachable(
        &self,
        now: Instant,
        dest: Address,
        ours: Option<CommId>,
        process: Option<u32>,
    ) {
        let mut core = self.cm_agent.lock();
        for cm in core.cms.values_mut() {
            if let (Some(ours), Some(mads)) = (ours, cm.mads()) {
                mads.peer_unreachable(now, dest, ours);
            }
            if let Some(process) = process {
                cm.process_unreachable(now, dest, process);
            }
        }
        self.carry_out(core, now);
    }

    /// A process of this host ended. What it said last may still be under way. Another one may bear
    /// its name already: connections to that stay.
    pub(crate) fn peer_gone(&self, now: Instant, name: Name, watch: Watch) {
        let devices = self.devices();
        let local = |address: Address| devices.iter().any(|d| d.port().gids.bears(address));
        let is_it = |process, peer: Address| process_name(process) == name && local(peer);
        let mut core = self.cm_agent.lock();
        let of_all = core.cms.iter().map(|(&device, cm)| (device, cm.with_peer(&is_it)));
        let mut ended: Vec<ConnKey> =
            of_all.flat_map(|(device, conns)| conns.into_iter().map(move |conn| (device, conn))).collect();
        let is_borne = LazyCell::new(|| self.env.watch(name).is_some());
        ended.retain(|key| match core.ids.get(key).and_then(|id| id.lock().watch) {
            Some(known) => known == watch,
            // One from a process that is not watched yet: which process that is, is found out
            // before it goes on.
            None => !*is_borne,
        });
        ended.into_iter().for_each(|key| self.end_by_exit(&mut core, now, key));
        self.carry_out(core, now);
    }

    /// The process ends: what a kernel would say to its peers is said, once. No thread here is left
    /// to be told of anything.
    pub(crate) fn leave_connections(&self, now: Instant) {
        let Some(mut core) = self.cm_agent.try_lock() else { return };
        let mut batch = TxBatch::new();
        for cm in core.cms.values_mut() {
            cm.leave(now);
            while let Some(output) = cm.poll() {
                if let Output::Transmit { path, mad, attempt, .. } = output {
                    // A thread that has a queue pair in hand may never let it go.
                    let way = graceful_close::way(&path, &mad, attempt, None);
                    self.send_mad(&way, &path, &mad, &mut batch);
                }
            }
        }
    }
}

/// A listener is no more; requests that wait at it are refused.
pub(crate) fn stop_listening(core: &mut Core, now: Instant, at: &ListenKey) {
    let Some(listener) = core.listeners.remove(at) else { return };
    for unseen in listener.into_waiting() {
        if let Some(key) = core.forget(&unseen)
            && let Some((cm, conn)) = core.cm(key)
        {
            cm.destroy(now, conn);
        }
    }
}
