//! What a protocol engine may use of its queue pair while that is locked: memory, receives, completion queues, events.

use std::collections::VecDeque;
use std::sync::Arc;

use transport::op::{
    AtOnce, Bulk, Company, Completion, Context, Fault, NetworkHeader, Part, Place, QpEvent, RecvWr, Remote,
    SendWr, Side, Status, Whole,
};
use transport::{CongestionWindow, Memory};
use wire::roce::Header;

use crate::cq::Note;
use crate::cq::counter::Counted;
use crate::device::async_events::EventKind;
use crate::link::{Path, Way};
use crate::memory::view::View;
use crate::qp::attr::QpType;
use crate::qp::engine::Engine;
use crate::qp::places::Places;
use crate::qp::shown::Shown;
use crate::qp::{Inner, Qp};
use crate::reach::{Peer, Reach};
use crate::srq::Srq;
use crate::srq::tag_matching::Rendezvous;

/// What a protocol engine may use of its queue pair during one call.
pub(crate) struct EngineContext<'a> {
    pub(crate) qp: &'a Qp,
    pub(crate) view: View<'a>,
    /// What peers may do.
    pub(crate) access: u32,
    /// The receives of a shared queue name memory of its domain.
    pub(crate) srq_view: Option<View<'a>>,
    /// At an XRC target, what the request in hand is for.
    pub(crate) chosen: Option<Arc<Srq>>,
    receives: &'a mut VecDeque<RecvWr>,
    pub(crate) places: &'a mut Places,
    room: u32,
    window: &'a CongestionWindow,
    notes: &'a mut Vec<Note>,
    pub(crate) counted: Option<&'a mut Counted>,
    fetch: &'a mut Option<Box<Rendezvous>>,
    /// The way to a peer whose memory may be reached.
    here: Option<&'a Path>,
    /// What the world knows of it.
    pub(crate) way: &'a mut Way,
    /// Whether the peer knows where a message goes.
    pub(crate) shown: &'a mut Shown,
    /// The queue pair is being destroyed or reset: its completions are dropped, as nobody will fetch them.
    pub(crate) mute: bool,
}

impl Context for EngineContext<'_> {
    fn memory(&self) -> &impl Memory {
        &self.view
    }
    fn receive_memory(&self) -> &impl Memory {
        self.srq_view.as_ref().unwrap_or(&self.view)
    }
    #[inline]
    fn take_receive(&mut self) -> Option<RecvWr> {
        match self.chosen.as_ref().or(self.qp.init.srq.as_ref()) {
            Some(srq) => srq.take(self.notes),
            None => self.receives.pop_front(),
        }
    }
    #[inline]
    fn place(&mut self, first: &[u8], whole: bool) -> Option<Place> {
        if let Some((srq, tags)) = self.qp.init.tags() {
            return tags.place(srq, first, whole, self.fetch, self.notes);
        }
        Some(Place::ordinary(self.take_receive()?, first))
    }
    #[inline]
    fn deliver(&mut self, message: &Whole<'_>) -> bool {
        let init = &self.qp.init;
        if self.mute || self.counted.is_some() || init.srq.is_some() {
            return false;
        }
        let Some(receive) = self.receives.front() else { return false };
        let [sge] = receive.sges.as_slice() else { return false };
        if self.view.put(sge, message.bytes).is_err() {
            return false;
        }
        let completion = Completion {
            byte_len: message.bytes.len() as u32,
            source_qp: message.source_qp,
            solicited: message.solicited,
            header: NetworkHeader::Unseen,
            ..receive.completion(Status::Success, self.qp.qpn())
        };
        init.recv_cq.push(completion, self.notes);
        self.receives.pop_front();
        true
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        if let Some((_, tags)) = self.qp.init.tags() {
            return tags.complete(side, completion, self.notes);
        }
        if let Some(counted) = &mut self.counted
            && !counted.completed(side, &completion)
        {
            return;
        }
        if self.shown.keeps(side, &completion) {
            return;
        }
        let chosen = self.chosen.as_ref().and_then(|srq| srq.xrc());
        let cq = match (side, chosen) {
            (Side::Receive, Some((_, cq))) => cq,
            _ if self.mute => return,
            (Side::Send, _) => {
                self.places.ends(&self.qp.init.send_cq);
                &self.qp.init.send_cq
            }
            (Side::Receive, None) => &self.qp.init.recv_cq,
        };
        cq.push(completion, self.notes);
    }
    fn event(&mut self, event: QpEvent) {
        let kind = match event {
            QpEvent::CommunicationEstablished => EventKind::CommunicationEstablished,
            QpEvent::RequestError => EventKind::QpRequestError,
            QpEvent::AccessError => EventKind::QpAccessError,
            QpEvent::Fatal => EventKind::QpFatal,
        };
        self.notes.extend(self.qp.note(kind));
    }
    fn choose_srq(&mut self, number: u32) -> Result<(), Fault> {
        self.choose(number)
    }
    fn execute_at_once(&mut self, wr: &SendWr) -> AtOnce {
        self.at_once(wr)
    }
    fn reaches(&self, wr: &SendWr) -> bool {
        self.reaches_for(wr)
    }
    fn company(&self, wr: &SendWr) -> Company {
        self.company_of(wr)
    }
    fn most_bulk(&self) -> usize {
        self.takes_bulk()
    }
    fn send_bulk(&self, header: &Header, part: Part<'_>) -> Result<Bulk, Fault> {
        self.bulk(header, part)
    }
    fn lend_bulk(&self, header: &Header, part: Part<'_>) -> Bulk {
        self.lend(header, part)
    }
    fn place_bulk(&mut self, header: &Header, part: Part<'_>, to: Remote) -> Bulk {
        self.place(header, part, to)
    }
    fn show_place(&mut self, header: &Header, receive: &RecvWr) -> bool {
        self.show(header, receive)
    }
    fn ask_bulk(&mut self, header: &Header, part: Part<'_>) -> Bulk {
        self.ask(header, part)
    }
    fn fetches(&self) -> bool {
        self.may_be_elsewhere()
    }
    fn shares_from(&self) -> Option<u32> {
        self.peer().and_then(|(reach, _)| reach.shares_from())
    }
    fn lends_no_more(&mut self) {
        if let Some((reach, _)) = self.peer() {
            reach.close(self.qp.qpn(), false);
        }
    }
    fn lies_unread(&self) -> bool {
        self.here.is_some_and(|path| self.qp.pd().device.link.lies_unread(path))
    }
    fn room(&self) -> u32 {
        self.room
    }
    fn window(&self) -> &CongestionWindow {
        self.window
    }
}

impl<'a> EngineContext<'a> {
    /// The way to a peer on this host.
    #[inline]
    pub(crate) fn here(&self) -> Option<&'a Path> {
        self.here
    }

    /// What this peer lends may be used from now on.
    pub(super) fn reaching(&mut self, peer: &'a Peer<'a>) {
        self.view = self.view.reaching(peer);
        self.srq_view = self.srq_view.map(|view| view.reaching(peer));
    }

    /// The peer's memory, where it may be reached, and the way to it.
    pub(crate) fn peer(&self) -> Option<(&'a dyn Reach, &'a Path)> {
        let (qp, path) = (self.qp, self.here?);
        // The READ of a rendezvous is none of the program's, and completes behind what matched.
        let plain = qp.init.kind == QpType::Rc && qp.init.tags().is_none();
        let reach = plain.then(|| qp.pd().device.platform.others_memory())??;
        Some((reach, path))
    }
}

impl Inner {
    /// The engine, and what it may use of its queue pair; inline, because few calls use all of it.
    #[inline]
    pub(crate) fn split<'a>(&'a mut self, qp: &'a Qp) -> (&'a mut Engine, EngineContext<'a>) {
        // Between processes of a host packets bear none.
        let here = self.carrier.datagram().filter(|carrier| carrier.is_here).map(|carrier| &carrier.path);
        let context = EngineContext {
            qp,
            view: qp
                .pd()
                .device
                .memory
                .view(qp.pd().id, self.attr.access)
                .on(qp.qpn())
                .sealing(here.is_none())
                .in_step_of(qp),
            access: self.attr.access,
            chosen: None,
            srq_view: qp.init.srq.as_ref().map(|s| s.pd().device.memory.view(s.pd().id, 0)),
            receives: &mut self.receives,
            places: &mut self.places,
            room: self.carrier.datagram().map_or(u32::MAX, |carrier| carrier.room),
            window: self.carrier.window(),
            notes: &mut self.notes,
            counted: self.counted.as_deref_mut(),
            fetch: &mut self.fetch,
            here,
            way: &mut self.way,
            shown: &mut self.shown,
            mute: false,
        };
        (&mut self.engine, context)
    }
}
