//! Fragments whose bytes are elsewhere, as they go from one end to the other.

use transport::op::{FragmentOutcome, Part, Payload, RecvWr, Source, ZeroCopy};
use transport::{Memory, Remote};
use wire::roce::{Header, Op, Packet};

use super::{End, TestContext};

/// What no packet begins with: such a fragment, and what tells of a place.
const MARK: u8 = 0xee;
const PLACE: u8 = 0xef;

/// Such a fragment, and its bytes, wherever they are.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    pub header: Header,
    pub place: ZeroCopy,
    pub bytes: Vec<u8>,
    /// Where they were placed.
    pub to: Remote,
}

impl Away {
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        let [MARK, to @ ..] = record else { return None };
        let (to, rest) = to.split_at(ZeroCopy::LEN);
        let (place, rest) = rest.split_at(ZeroCopy::LEN);
        let (len, rest) = rest.split_first()?;
        let (header, bytes) = rest.split_at(usize::from(*len));
        let Some(ZeroCopy::Exported(to)) = ZeroCopy::from_bytes(to) else { return None };
        let header = Packet::parse(header).expect("headers of a packet").header;
        Some(Self { header, place: ZeroCopy::from_bytes(place)?, bytes: bytes.to_vec(), to })
    }
    pub(crate) fn is_exported(&self) -> bool {
        matches!(self.place, ZeroCopy::Exported(_))
    }
    pub(crate) fn op(&self) -> Op {
        self.header.op
    }
}

/// What tells of a place.
pub(crate) fn place_of(record: &[u8]) -> Option<(Header, &[u8])> {
    let [PLACE, rest @ ..] = record else { return None };
    let (place, header) = rest.split_at(ZeroCopy::LEN);
    Some((Packet::parse(header).expect("headers of an ACK").header, place))
}

impl TestContext {
    /// Tells the peer of a place.
    pub(super) fn show(&self, header: &Header, receive: &RecvWr) -> bool {
        let [to] = receive.sges.as_slice() else { return false };
        self.tell(header, Remote { addr: to.addr, length: to.length.into(), rkey: to.lkey });
        true
    }

    /// Like [`TestContext::show`], of the place of a READ's part.
    pub(super) fn ask(&self, header: &Header, part: Part<'_>) -> FragmentOutcome {
        let Source::List([to]) = part.from else { return FragmentOutcome::Unavailable };
        let place = Remote { addr: to.addr + part.at, length: part.len as u64, rkey: to.lkey };
        let outcome = self.outcome.unwrap_or(FragmentOutcome::Sent);
        if outcome == FragmentOutcome::Sent {
            self.tell(header, place);
        }
        outcome
    }

    fn tell(&self, header: &Header, place: Remote) {
        let mut head = [0; 64];
        let len = header.emit(0, &mut head);
        let place = ZeroCopy::Exported(place).to_bytes();
        self.fragments.borrow_mut().push([&[PLACE][..], &place, &head[..len]].concat());
    }

    /// Sends a fragment that is exported, or placed there.
    pub(super) fn away(&self, header: &Header, part: Part<'_>, to: Option<Remote>) -> FragmentOutcome {
        let mut bytes = vec![0; part.len];
        let (read, addr, rkey) = match part.from {
            Source::List(list) => {
                ((&self.memory).gather(list, part.at, &mut bytes), list[0].addr, list[0].lkey)
            }
            Source::Range(range) => ((&self.memory).read(range, part.at, &mut bytes), range.addr, range.rkey),
        };
        if read.is_err() {
            return FragmentOutcome::Unavailable;
        }
        let outcome = self.outcome.unwrap_or(FragmentOutcome::Sent);
        if outcome == FragmentOutcome::Sent {
            let exported = Remote { addr: addr + part.at, length: part.len as u64, rkey };
            let place =
                if to.is_some() { ZeroCopy::Placed(part.len as u32) } else { ZeroCopy::Exported(exported) };
            let mut head = [0; 64];
            let len = header.emit(0, &mut head);
            let to = ZeroCopy::Exported(to.unwrap_or(exported)).to_bytes();
            let record = [&[MARK][..], &to, &place.to_bytes(), &[len as u8], &head[..len], &bytes];
            self.fragments.borrow_mut().push(record.concat());
        }
        outcome
    }
}

impl End {
    /// The bytes of a fragment are placed, of which is heard later.
    pub(crate) fn have(&self, away: &Away) {
        let placed = (&self.cx.memory).write(away.to, 0, &away.bytes, super::Tail::More);
        placed.expect("it may be written there");
    }

    /// Such a fragment comes; whether what is exported is reached.
    pub(crate) fn hear_away(&mut self, away: &Away, is_reached: bool) {
        if away.is_exported() {
            *self.cx.memory.exported.borrow_mut() = is_reached.then(|| away.bytes.clone());
        } else {
            self.have(away);
        }
        let payload = Payload::ZeroCopy(away.place);
        self.rc.receive_fragment(self.now, &away.header, self.mtu, payload, self.ack_delay, &mut self.cx);
    }
}
