//! Where addresses carry no UDP: the connection manager asks hosts for the queue pairs of peers
//! (SIDR_REQ, IBA 1.4 §12.11), and answers for ours.

use std::net::SocketAddr;
use std::sync::Arc;

use nic::Errno;
use nic::rdma_cm::ConnParam;
use stack::{Env, Event, Id};
use wire::mad::PortSpace;

use crate::datagram::Datagrams;
use crate::datagram::header::normal;

impl<W: Env> Datagrams<W> {
    /// bind(2), where there is no UDP: a peer that asks for the port is told of the queue pair.
    ///
    /// # Errors
    ///
    /// EINVAL where it is bound; EADDRINUSE, EADDRNOTAVAIL.
    pub fn bind(&mut self, addr: SocketAddr) -> Result<(), Errno> {
        if self.local.is_some() {
            return Err(Errno::EINVAL);
        }
        let id = self.node.create_id(&self.channel, PortSpace::Udp);
        let bound = self.node.bind(&id, normal(addr)).and_then(|()| self.node.listen(&id, 0));
        if let Err(error) = bound {
            self.node.destroy(&id);
            return Err(error.errno());
        }
        self.local = id.lock().source.map(normal);
        self.service = Some(id);
        Ok(())
    }

    pub(super) fn leave_service(&mut self) {
        self.service.take().iter().for_each(|id| self.node.destroy(id));
    }

    /// A peer asks for the queue pair.
    pub(super) fn answer_question(&mut self, id: &Arc<Id>) {
        let device = id.lock().device.clone().ok_or(Errno::ENODEV);
        let made = device.and_then(|device| self.queue_pair_on(id, &device));
        let served = made.and_then(|at| {
            let param = ConnParam { qp_num: self.queue_pairs[at].qpn().get(), ..ConnParam::default() };
            self.node.accept(id, Some(&param), &[]).map_err(|error| error.errno())
        });
        if served.is_err() {
            self.refused += 1;
            // An error says that the peer does not wait any more.
            _ = self.node.reject(id, &[]);
        }
        self.node.destroy(id);
    }

    /// The answer of a peer, or that there is none.
    pub(super) fn on_answer(&mut self, event: &Event) {
        let now = self.owner.now();
        let connected = self.peer;
        let Some((addr, peer)) = self.destinations.resolved_by(&event.id) else { return };
        match &event.ud {
            Some(ud) => _ = peer.told(ud.qpn, now),
            None => {
                peer.qpn = None;
                // As of UDP, a connected socket is told of that.
                let refused = if event.status > 0 { Errno::ECONNREFUSED } else { Errno::EHOSTUNREACH };
                self.error = if connected == Some(*addr) { Some(refused) } else { self.error };
            }
        }
    }

    /// Sends to a peer whose queue pair is not known, or was asked for a while ago: it is asked for
    /// again, from time to time. Until the first answer there is no room.
    pub(super) fn send_asking(&mut self, to: &SocketAddr, pieces: &[&[u8]]) -> Option<usize> {
        let (now, len) = (self.owner.now(), pieces.iter().map(|piece| piece.len()).sum());
        let peer = self.destinations.get(to)?;
        let (known, header, queue_pair) = (peer.ah.clone().zip(peer.qpn), peer.header, peer.queue_pair);
        if peer.resolving.is_none() && peer.retry_at.is_none_or(|at| at <= now) {
            self.resolve_again(to);
        }
        let Some((ah, qpn)) = known else {
            // Where there is no way, or no socket, it is lost.
            return (!self.destinations.waits(to)).then_some(len);
        };
        let whole: Vec<&[u8]> = [header.as_slice()].into_iter().chain(pieces.iter().copied()).collect();
        self.queue_pairs[queue_pair].send(&ah, qpn, &whole);
        Some(len)
    }

    /// Whether the way to the peer of connect(2) is being looked for, and nothing can be sent.
    pub(super) fn waits_for_answer(&self) -> bool {
        self.udp.is_none() && self.peer.is_some_and(|peer| self.destinations.waits(&peer))
    }
}
