//! Several packets of a message to or from a process of this host, as one piece: copied from memory of the program to the ring between the two, and from there to
//! where they belong.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use transport::op::{Bulk, Fault, Memory, Part, Payload, SharedBytes, Source};
use transport::rc::Hold;
use wire::roce::Header;

use crate::qp::Qp;
use crate::qp::attr::QpType;
use crate::qp::engine::Engine;
use crate::qp::engine_context::EngineContext;

/// Bytes of the longest headers.
const MOST_HEADERS: usize = 44;

impl EngineContext<'_> {
    /// Bytes of the longest piece that goes to the peer so.
    #[inline]
    pub(super) fn takes_bulk(&self) -> usize {
        let goes = self.here().is_some() && self.qp.init.kind == QpType::Rc;
        if goes { self.qp.pd().device.link.most_bulk() } else { 0 }
    }

    /// Sends a piece.
    pub(super) fn bulk(&self, header: &Header, part: Part<'_>) -> Result<Bulk, Fault> {
        let Some(path) = self.here() else { return Ok(Bulk::NoWay) };
        let mut headers = [0; MOST_HEADERS];
        let headers_len = header.emit(0, &mut headers);
        let mut fill = |to: SharedBytes<'_>| match part.from {
            Source::List(list) => self.view.gather_shared(list, part.at, to),
            Source::Range(range) => self.view.read_shared(range, part.at, to),
        };
        self.qp.pd().device.link.send_bulk(path, &headers[..headers_len], part.len, &mut fill)
    }
}

impl Qp {
    /// A piece of a message from a process of this host; the rest is as with [`Qp::input`].
    pub(crate) fn input_bulk(
        &self,
        now: Instant,
        (source, dest): (IpAddr, IpAddr),
        hold: Hold,
        header: &Header,
        bytes: SharedBytes<'_>,
    ) {
        match self.of_peer(source, dest) {
            Ok(mut inner) => {
                if inner.lets_in(self, header.bth.pkey) {
                    // Where a message goes that has a tag is decided by what it begins with.
                    let copy = self.init.tags().map(|_| bytes.to_vec());
                    let payload = copy.as_deref().map_or(Payload::Shared(bytes), Payload::Own);
                    let (engine, mut context) = inner.split(self);
                    if let Engine::Rc(engine) = engine {
                        engine.receive_bulk(now, header, payload, hold, &mut context);
                    }
                    self.received.add(1);
                    inner.begin_rendezvous(self);
                }
                self.settle(inner, now);
            }
            Err(counter) => {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
