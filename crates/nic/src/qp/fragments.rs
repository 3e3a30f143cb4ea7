//! Several packets of a message to or from a process of this host, as one piece: copied from memory
//! of the program to the ring between the two, and from there to where they belong.

use std::time::Instant;

use transport::op::{
    Access, DirectOutcome, Fault, FragmentOutcome, Memory, Part, Payload, RecvWr, Remote, Sge, SharedBytes,
    Source, ZeroCopy,
};
use transport::rc::AckDelay;
use wire::roce::{Header, Op};
use wire::{Address, Mtu};

use crate::memory;
use crate::peer_memory::{Copy, Peer, Transfer};
use crate::qp::Qp;
use crate::qp::attr::QpType;
use crate::qp::engine::Engine;
use crate::qp::engine_context::EngineContext;

/// Bytes of the longest headers, and of what follows them before a piece.
const MAX_HEAD: usize = 44 + ZeroCopy::LEN + 1;

impl EngineContext<'_> {
    /// Bytes of the longest piece that goes to the peer so.
    #[inline]
    pub(super) fn max_fragment(&self) -> usize {
        let goes = self.local_path().is_some() && self.qp.init.kind == QpType::Rc;
        if goes { self.local_link().map_or(0, |(link, _)| link.max_fragment()) } else { 0 }
    }

    /// Sends a piece.
    pub(super) fn send_inline(&self, header: &Header, part: Part<'_>) -> Result<FragmentOutcome, Fault> {
        let Some((link, path)) = self.local_link() else { return Ok(FragmentOutcome::Unavailable) };
        let (headers, len) = self.head(header, &[]);
        let mut fill = |to: SharedBytes<'_>| match part.from {
            Source::List(list) => self.view().gather_shared(list, part.at, to),
            Source::Range(range) => self.view().read_shared(range, part.at, to),
        };
        link.send_fragment(path, &headers[..len], part.len, &mut fill)
    }

    /// Whether bytes of pieces may be elsewhere: each end reaches the other one's memory, as it
    /// seems.
    pub(super) fn may_be_zero_copy(&self) -> bool {
        self.engine_state.has_received && self.peer().is_some_and(|(local, path)| local.reaches(path))
    }

    /// Whether the peer's process reaches the region of an element of ours for a message.
    fn tells_of(&self, sge: &Sge) -> bool {
        self.peer().is_some_and(|(local, _)| local.told(self.qp.qpn(), sge.lkey))
    }

    /// Sends a piece whose bytes lie in memory of ours, of one element or in a region that the peer
    /// reads, and stay there.
    pub(super) fn export(&self, header: &Header, part: Part<'_>) -> FragmentOutcome {
        let from = match part.from {
            Source::List(_) => element(part),
            // It names windows, too, which are not exported.
            Source::Range(range) => section(range, part)
                .filter(|section| self.view().check(*section, Access::Read).is_ok())
                .map(|section| Sge { addr: section.addr, length: section.length as u32, lkey: section.rkey }),
        };
        match from {
            Some(from) if self.view().has(&from, 0) && self.tells_of(&from) => {
                self.send_zero_copy(header, exported(&from))
            }
            _ => FragmentOutcome::Unavailable,
        }
    }

    /// Asks for a part of a READ, and tells the peer where it goes.
    pub(super) fn ask(&mut self, header: &Header, part: Part<'_>) -> FragmentOutcome {
        let is_good = |to: &Sge| self.view().has(to, memory::Access::LOCAL_WRITE) && self.tells_of(to);
        let Some(to) = element(part).filter(is_good) else {
            return FragmentOutcome::Unavailable;
        };
        self.engine_state.advertised.begin_read();
        self.tell(header, exported(&to))
    }

    /// Tells the peer of numbers that are used up. Where there is no way just now it does not learn
    /// of them.
    pub(super) fn say_used_up(&self, header: &Header, count: u32) {
        self.tell(header, ZeroCopy::Placed(count));
    }

    /// Tells the peer of a place, or of a number.
    fn tell(&self, header: &Header, place: ZeroCopy) -> FragmentOutcome {
        let Some((link, path)) = self.local_link() else { return FragmentOutcome::Unavailable };
        let (head, len) = self.head(header, &[]);
        let mut fill = |bytes: SharedBytes<'_>| {
            bytes.store(&place.to_bytes());
            Ok(())
        };
        let sent = link.send_fragment(path, &head[..len], ZeroCopy::LEN, &mut fill);
        sent.unwrap_or(FragmentOutcome::Unavailable)
    }

    /// Tells the peer of the place of a receive of one element, which is the queue pair's own.
    pub(super) fn advertise(&mut self, header: &Header, receive: &RecvWr) -> bool {
        let &[to] = receive.sges.as_slice() else { return false };
        if self.qp.init.srq.is_some() || !self.tells_of(&to) {
            return false;
        }
        // From the moment on in which it is told; it may have been before, when the piece could not
        // be copied.
        let was_advertised = self.engine_state.advertised.begin();
        let is_told = self.tell(header, exported(&to)) == FragmentOutcome::Sent;
        if !is_told && !was_advertised {
            self.engine_state.advertised.end();
        }
        is_told
    }

    /// Sends a piece of one element, or of what the peer reads, whose bytes are copied to where
    /// they belong.
    pub(super) fn place(&mut self, header: &Header, part: Part<'_>, to: Remote) -> FragmentOutcome {
        let Some((local, path)) = self.peer() else { return FragmentOutcome::Unavailable };
        let what = if matches!(header.op, Op::Write(_)) { Copy::Write } else { Copy::Put };
        let transfer = Transfer { path, from: self.qp.qpn, mtu: self.mtu(), remote: to, what };
        let copied = match part.from {
            Source::List(_) => element(part)
                .map(|from| transfer.copy_one(local, &from, &self.view(), &mut self.engine_state.cache)),
            Source::Range(range) => section(range, part)
                .map(|from| transfer.copy_of(local, from, &self.view(), &mut self.engine_state.cache)),
        };
        match copied {
            Some(DirectOutcome::Done) => self.send_zero_copy(header, ZeroCopy::Placed(part.len as u32)),
            _ => FragmentOutcome::Unavailable,
        }
    }

    fn send_zero_copy(&self, header: &Header, place: ZeroCopy) -> FragmentOutcome {
        let Some((link, path)) = self.local_link() else { return FragmentOutcome::Unavailable };
        let (head, len) = self.head(header, &place.to_bytes());
        let sent = link.send_fragment(path, &head[..len], 0, &mut |_| Ok(()));
        sent.unwrap_or(FragmentOutcome::Unavailable)
    }

    /// What goes before a piece, and its length: the headers, where the bytes are if they are
    /// elsewhere, and by its code the path MTU, by which the receiver counts the packets.
    fn head(&self, header: &Header, place: &[u8]) -> ([u8; MAX_HEAD], usize) {
        let mut head = [0; MAX_HEAD];
        let len = header.emit(0, &mut head);
        head[len..len + place.len()].copy_from_slice(place);
        head[len + place.len()] = self.mtu().code();
        (head, len + place.len() + 1)
    }
}

/// Memory of ours that the peer may copy from, or to.
fn exported(sge: &Sge) -> ZeroCopy {
    ZeroCopy::Exported(Remote { addr: sge.addr, length: sge.length.into(), rkey: sge.lkey })
}

/// A part of what the peer reads.
fn section(range: Remote, part: Part<'_>) -> Option<Remote> {
    let (end, length) = (part.at.checked_add(part.len as u64)?, u32::try_from(part.len).ok()?);
    (end <= range.length).then(|| Remote {
        addr: range.addr.wrapping_add(part.at),
        length: length.into(),
        ..range
    })
}

/// The element in which a part of a list lies as a whole.
fn element(part: Part<'_>) -> Option<Sge> {
    let Source::List(&[sge]) = part.from else { return None };
    let (end, length) = (part.at.checked_add(part.len as u64)?, u32::try_from(part.len).ok()?);
    (end <= sge.length.into()).then(|| Sge { addr: sge.addr.wrapping_add(part.at), length, ..sge })
}

impl Qp {
    /// A piece of a message from a process of this host; the rest is as with [`Qp::input`].
    pub(crate) fn input_fragment(
        &self,
        now: Instant,
        (source, dest): (Address, Address),
        ack_delay: AckDelay,
        (header, mtu): (&Header, Mtu),
        payload: Payload<'_>,
    ) {
        match self.of_peer(source, dest) {
            Ok(mut inner) => {
                if inner.lets_in(self, header.bth.pkey, 1) {
                    // Where a message goes that has a tag is decided by what it begins with.
                    let copy = match (payload, self.init.tags()) {
                        (Payload::Shared(bytes), Some(_)) => Some(bytes.to_vec()),
                        _ => None,
                    };
                    let payload = copy.as_deref().map_or(payload, Payload::Own);
                    let local = self.pd.device.link.local();
                    let carrier = inner.carrier.datagram().filter(|carrier| carrier.is_local);
                    let peer = local.zip(carrier);
                    let peer =
                        peer.map(|(local, c)| Peer { local, path: c.path, from: self.qpn, mtu: c.mtu });
                    let (engine, mut context) = inner.split(self);
                    if let Some(peer) = &peer {
                        context.reaching(peer);
                    }
                    if let Engine::Rc(engine) = engine {
                        engine.receive_fragment(now, header, mtu, payload, ack_delay, &mut context);
                    }
                    self.received.add(1);
                    inner.begin_rendezvous(self);
                }
                self.finish_step(inner, now);
            }
            Err(counter) => {
                counter.add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::Rkey;

    use super::*;

    #[test]
    fn what_lies_in_one_element_may_be_elsewhere_and_nothing_else() {
        let sge = Sge { addr: 1000, length: 100, lkey: Rkey(7) };
        fn part(list: &[Sge], at: u64, len: usize) -> Option<Sge> {
            element(Part { from: Source::List(list), at, len })
        }
        assert_eq!(part(&[sge], 0, 100), Some(sge));
        assert_eq!(part(&[sge], 60, 40), Some(Sge { addr: 1060, length: 40, ..sge }));
        assert_eq!(part(&[sge], 61, 40), None);
        assert_eq!(part(&[sge], u64::MAX, 2), None);
        assert_eq!(part(&[sge, sge], 0, 50), None);
        assert_eq!(part(&[], 0, 0), None);
        let peers = Source::Range(Remote { addr: 1000, length: 100, rkey: Rkey(7) });
        assert_eq!(element(Part { from: peers, at: 0, len: 50 }), None);
    }
}
