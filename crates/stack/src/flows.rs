//! Which port a message of a connection leaves from. A peer's kernel delivers a flow, from one port
//! to one address, to one process. Messages to all peers leave from ports that they share, and the
//! kernel delivers these to any process of the address, which hands them on.
//!
//! A message whose receiving process is known leaves from the port of packets to that process. The
//! process has a socket of its own for the flow once a few of its packets were handed on. Only a
//! port that is open already is taken: otherwise unsolicited requests would decide how many are. A
//! repeated message leaves from a shared port, because the process of the flow may be stopped.

use std::collections::VecDeque;

use cm::Service;
use cm::mads::{Destination, destination};
use nic::Path;
use wire::mad::{Mad, Message};
use wire::{Address, Qpn};

use crate::Node;
use crate::cm_agent::{ConnKey, Core};
use crate::env::Env;
use crate::graceful_close::gsi_path;

/// Most services whose acceptors are remembered.
const MAX_KNOWN: usize = 64;

/// The queue pair that accepted the latest connection to each service. The next request goes to its
/// process.
#[derive(Default)]
pub(crate) struct Acceptors(VecDeque<(Address, Service, Qpn)>);

impl Acceptors {
    fn note(&mut self, at: Address, service: Service, qpn: Qpn) {
        self.0.retain(|known| (known.0, known.1) != (at, service));
        self.0.truncate(MAX_KNOWN - 1);
        self.0.push_front((at, service, qpn));
    }

    fn of(&self, at: Address, service: Service) -> Option<Qpn> {
        self.0.iter().find(|known| (known.0, known.1) == (at, service)).map(|known| known.2)
    }
}

impl<W: Env> Node<W> {
    /// The path of the flow that leads to the receiving process of a message; `None` where the
    /// process is not known, or no packets take that flow.
    pub(crate) fn flow(
        &self,
        core: &Core,
        key: ConnKey,
        path: &cm::PathRecord,
        mad: &Mad,
        attempt: u32,
    ) -> Option<Path> {
        let data = match &mad.message {
            _ if attempt > 0 => None,
            Message::Rep(_) | Message::Rtu(_) => core.qp(key)?.path(),
            Message::Req(_) => {
                let Destination::Service(Some(service)) = destination(mad) else { return None };
                let dest_qpn = core.acceptors.of(path.dest(), service)?;
                Some(Path { dest_qpn, ..gsi_path(path, attempt) })
            }
            _ => None,
        };
        let has_ends = |data: &Path| (data.source, data.dest) == (path.source(), path.dest());
        data.filter(|data| has_ends(data) && self.env.has_flow(data))
    }

    /// Remembers the peer of a connection's queue pair, which has accepted the connection.
    pub(crate) fn note_acceptor(&self, core: &mut Core, key: ConnKey) {
        let Some(id) = core.ids.get(&key) else { return };
        let (service, qp) = {
            let inner = id.lock();
            (inner.dest.map(|dest| Service { space: id.space, port: dest.port() }), inner.qp.clone())
        };
        if let (Some(service), Some(path)) = (service, qp.and_then(|qp| qp.path())) {
            core.acceptors.note(path.dest, service, path.dest_qpn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use cm::PortSpace;

    use super::*;

    #[test]
    fn the_latest_acceptor_of_each_service_is_known_and_no_more_than_there_is_room_for() {
        let at = |n| Address::from(Ipv4Addr::new(10, 0, 0, n));
        let service = |port| Service { space: PortSpace::Tcp, port };
        let mut acceptors = Acceptors::default();
        acceptors.note(at(1), service(7), Qpn::new(0x1000));
        acceptors.note(at(2), service(7), Qpn::new(0x2000));
        acceptors.note(at(1), service(7), Qpn::new(0x3000));
        assert_eq!(acceptors.of(at(1), service(7)), Some(Qpn::new(0x3000)));
        assert_eq!(acceptors.of(at(2), service(7)), Some(Qpn::new(0x2000)));
        assert_eq!(acceptors.of(at(1), service(8)), None);
        (100..100 + MAX_KNOWN as u16).for_each(|port| acceptors.note(at(1), service(port), Qpn::new(0x4000)));
        assert_eq!((acceptors.0.len(), acceptors.of(at(1), service(7))), (MAX_KNOWN, None));
    }
}
