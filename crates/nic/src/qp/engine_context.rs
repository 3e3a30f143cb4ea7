//! What a protocol engine may use of its queue pair while that is locked: memory, receives,
//! completion queues, events.

use std::sync::Arc;

use transport::likely::{likely, rare, unlikely};
use transport::op::{
    Completion, Context, Fault, LocalPath, NetworkHeader, Place, QpEvent, RecvWr, Side, Status, Whole,
};
use transport::op::{SendOp, SendWr};
use transport::ud::Destination;
use transport::{CongestionWindow, Memory};
use wire::Mtu;

use crate::device::async_events::EventKind;
use crate::faults::{UnreliableRequest, UnreliableService};
use crate::link::Path;
use crate::memory::view::View;
use crate::peer_memory::{LocalLink, Peer};
use crate::qp::attr::QpType;
use crate::qp::carrier::Carrier;
use crate::qp::engine::{Engine, SendFault};
use crate::qp::engine_state::EngineState;
use crate::qp::local_path::HostPath;
use crate::qp::{Inner, Qp};
use crate::srq::Srq;

/// What a protocol engine may use of its queue pair during one call. It is made for each, so it has
/// little of its own.
pub(crate) struct EngineContext<'a> {
    pub(crate) qp: &'a Qp,
    pub(super) engine_state: &'a mut EngineState,
    carrier: &'a Carrier,
    /// What peers may do.
    pub(super) access: u32,
    /// The way to a peer whose memory may be reached.
    local_path: Option<&'a Path>,
    /// The peer whose memory is reached, too.
    exporter: Option<&'a Peer<'a>>,
    /// At an XRC target, what the request in hand is for.
    pub(super) chosen: Option<Arc<Srq>>,
    /// The queue pair is being destroyed or reset: its completions are dropped, as the program will
    /// not fetch them.
    pub(super) discard_completions: bool,
}

impl Context for EngineContext<'_> {
    #[inline]
    fn memory(&self) -> impl Memory + Copy {
        self.view()
    }
    #[inline]
    fn receive_memory(&self) -> impl Memory + Copy {
        self.receive_view()
    }
    #[inline]
    fn take_receive(&mut self) -> Option<RecvWr> {
        match self.chosen.as_ref().or(self.qp.init.srq.as_ref()) {
            Some(srq) => srq.take(&mut self.engine_state.notifications),
            None => self.engine_state.receives.pop_front(),
        }
    }
    #[inline]
    fn place(&mut self, first: &[u8], whole: bool) -> Option<Place> {
        if let Some((srq, tags)) = self.qp.init.tags() {
            return tags.place(
                srq,
                first,
                whole,
                &mut self.engine_state.fetch,
                &mut self.engine_state.notifications,
            );
        }
        Some(Place::ordinary(self.take_receive()?, first))
    }
    #[inline(always)]
    fn deliver(&mut self, message: &Whole<'_>) -> bool {
        let init = &self.qp.init;
        if unlikely(self.discard_completions || self.engine_state.counted.is_some() || init.srq.is_some()) {
            return false;
        }
        self.hear();
        let Some(receive) = self.engine_state.receives.front() else { return false };
        if likely(!message.bytes.is_empty()) {
            let [sge] = receive.sges.as_slice() else { return false };
            if unlikely(self.view().put(sge, message.bytes).is_err()) {
                return false;
            }
        }
        let completion = Completion {
            byte_len: message.bytes.len() as u32,
            tail: message.tail,
            source_qp: message.source_qp,
            solicited: message.solicited,
            header: NetworkHeader::Unseen,
            ..receive.completion(Status::Success, self.qp.qpn())
        };
        init.recv_cq.push(completion, &mut self.engine_state.notifications);
        self.engine_state.receives.pop_front();
        true
    }
    #[inline(always)]
    fn complete(&mut self, side: Side, completion: Completion) {
        self.hear();
        if let Some((_, tags)) = self.qp.init.tags() {
            rare();
            return tags.complete(side, completion, &mut self.engine_state.notifications);
        }
        if let Some(counted) = &mut self.engine_state.counted {
            rare();
            if !counted.completed(side, &completion) {
                return;
            }
        }
        if unlikely(self.engine_state.advertised.keeps(side, &completion)) {
            return;
        }
        let chosen = self.chosen.as_ref().and_then(|srq| srq.xrc());
        let cq = match (side, chosen) {
            (Side::Receive, Some((_, cq))) => cq,
            _ if unlikely(self.discard_completions) => return,
            (Side::Send, _) => {
                self.engine_state.sq_occupancy.ends(&self.qp.init.send_cq);
                &self.qp.init.send_cq
            }
            (Side::Receive, None) => &self.qp.init.recv_cq,
        };
        cq.push(completion, &mut self.engine_state.notifications);
    }
    fn event(&mut self, event: QpEvent) {
        let kind = match event {
            QpEvent::CommunicationEstablished => EventKind::CommunicationEstablished,
            QpEvent::RequestError => EventKind::QpRequestError,
            QpEvent::AccessError => EventKind::QpAccessError,
            QpEvent::Fatal => EventKind::QpFatal,
        };
        self.engine_state.notifications.extend(self.qp.note(kind));
    }
    fn choose_srq(&mut self, number: u32) -> Result<(), Fault> {
        self.choose(number)
    }
    #[inline]
    fn local(&mut self) -> impl LocalPath {
        HostPath { context: self }
    }
    fn room(&self) -> u32 {
        self.carrier.datagram().map_or(u32::MAX, |carrier| carrier.room)
    }
    fn window(&self) -> &CongestionWindow {
        self.carrier.window()
    }
}

impl SendFault for EngineContext<'_> {
    #[inline]
    fn send_fault(&self, wr: &SendWr, to: Option<&Destination<Path>>) -> Option<Status> {
        let adapter = &self.qp.pd.device;
        if likely(!adapter.has_faults) {
            return None;
        }
        let is_write = matches!(wr.op, SendOp::Write { .. });
        let (service, way) = match (self.qp.init.kind, to) {
            (QpType::RawPacket, _) => (UnreliableService::Frame, None),
            (_, Some(to)) => (UnreliableService::Datagram, Some((&to.address, to.qpn))),
            (_, None) => {
                let path = &self.carrier.datagram()?.path;
                (UnreliableService::Connection, Some((path, path.dest_qpn)))
            }
        };
        // No fault concerns what goes by memory of this host.
        let is_local = |path: &Path| adapter.link.local().is_some_and(|local| local.is_local(path));
        if way.is_some_and(|(path, _)| is_local(path)) {
            return None;
        }
        let interface = way.map_or(adapter.config.interface, |(path, _)| path.interface);
        let peer = way.map(|(path, qpn)| (path.dest, qpn));
        adapter.link.faults()?.fails(&UnreliableRequest { peer, interface, service, is_write })
    }
}

impl<'a> EngineContext<'a> {
    /// The way to a peer on this host.
    #[inline]
    pub(crate) fn local_path(&self) -> Option<&'a Path> {
        self.local_path
    }

    /// The way to a peer on this host, and the link that carries short messages and fragments.
    #[inline]
    pub(crate) fn local_link(&self) -> Option<(&'a dyn LocalLink, &'a Path)> {
        Some((self.qp.pd().device.link.local()?, self.local_path?))
    }

    /// The path to the peer, where there is one.
    pub(super) fn path(&self) -> Option<&'a Path> {
        self.carrier.datagram().map(|carrier| &carrier.path)
    }

    /// The path MTU.
    #[inline]
    pub(super) fn mtu(&self) -> Mtu {
        self.carrier.datagram().map_or_else(Mtu::default, |carrier| carrier.mtu)
    }

    /// What this peer exports may be used from now on.
    pub(super) fn reaching(&mut self, peer: &'a Peer<'a>) {
        self.exporter = Some(peer);
    }

    /// Memory of the queue pair's protection domain; at an XRC target of that of the queue which
    /// was chosen.
    #[inline]
    pub(super) fn view(&self) -> View<'a> {
        let (qp, table) = (self.qp, &self.qp.pd().device.memory);
        if let Some(srq) = &self.chosen {
            return table.view(srq.pd().id, self.access).on(qp.qpn());
        }
        // Between processes of a host packets bear no ICRC.
        let view = table.view(qp.pd().id, self.access).on(qp.qpn()).sealing(self.local_path.is_none());
        view.pinned_by(qp).reaching(self.exporter)
    }

    /// Memory that receives name.
    #[inline]
    pub(super) fn receive_view(&self) -> View<'a> {
        match (&self.chosen, &self.qp.init.srq) {
            (Some(srq), _) => self.qp.pd().device.memory.view(srq.pd().id, 0),
            (None, Some(srq)) => srq.pd().device.memory.view(srq.pd().id, 0).reaching(self.exporter),
            (None, None) => self.view(),
        }
    }

    /// What came from the peer just now bore the numbers of the connection, if anything came: it is
    /// known then in which process of this host the peer is.
    #[inline]
    pub(super) fn hear(&mut self) {
        if unlikely(!self.engine_state.has_received) && self.local_path.is_some() {
            self.engine_state.has_received =
                self.peer().is_some_and(|(local, _)| local.has_received(self.qp.qpn));
        }
    }

    /// The peer's memory, where it may be reached, and the way to it.
    pub(crate) fn peer(&self) -> Option<(&'a dyn LocalLink, &'a Path)> {
        let (qp, path) = (self.qp, self.local_path?);
        // The READ of a rendezvous is none of the program's, and completes after what matched.
        let plain = qp.init.kind == QpType::Rc && qp.init.tags().is_none();
        let local = plain.then(|| qp.pd().device.link.local())??;
        Some((local, path))
    }
}

impl Inner {
    /// The engine, and what it may use of its queue pair; inline, because few calls use all of it.
    #[inline]
    pub(crate) fn split<'a>(&'a mut self, qp: &'a Qp) -> (&'a mut Engine, EngineContext<'a>) {
        let carrier = &self.carrier;
        let context = EngineContext {
            qp,
            engine_state: &mut self.engine_state,
            carrier,
            access: self.attr.access,
            local_path: carrier.datagram().filter(|carrier| carrier.is_local).map(|carrier| &carrier.path),
            exporter: None,
            chosen: None,
            discard_completions: false,
        };
        (&mut self.engine, context)
    }
}
