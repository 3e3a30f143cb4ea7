//! Ports whose listener is gone while a request that it took may come again.
//!
//! A server may stop listening as soon as it has accepted. Where the REP is lost, its client
//! repeats the REQ. The kernel may give that to another process of the address, which finds the
//! process with the connection by the name of the port, or refuses the request. So the name stays
//! until the connections are established, for [`KEPT`] at most. Its own process may bind the port
//! anew at once.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cm::{PortSpace, Service};

use crate::Node;
use crate::cm_agent::{ConnKey, Core, ListenKey};
use crate::env::Env;
use crate::id::Claimed;

/// For how long a port is kept at most: the first four repetitions of a REQ come within it.
const KEPT: Duration = Duration::from_secs(2);

/// The names by which a port is claimed, for its identifier and for its listener.
pub(crate) type Names = (Option<Claimed>, Option<Claimed>);

/// A port without a listener.
pub(crate) struct KeptPort {
    service: Service,
    /// Where the listener listened; unspecified: at all addresses of its family.
    addr: IpAddr,
    until: Instant,
    /// The connections that are not established yet.
    half_open: Vec<ConnKey>,
    /// Held for their drop, which makes system calls: not under the lock.
    _names: Names,
}

impl KeptPort {
    pub(crate) fn until(&self) -> Instant {
        self.until
    }
}

impl Core {
    /// Keeps the names of a listener that is gone, where one of its requests may come again; else
    /// returns them.
    pub(crate) fn keep_port(&mut self, now: Instant, at: &ListenKey, names: Names) -> Option<Names> {
        let &(space, addr, port) = at;
        let service = Service { space, port };
        let of_all = self.cms.iter().map(|(&device, cm)| (device, cm.half_open(service)));
        let half_open: Vec<ConnKey> =
            of_all.flat_map(|(device, conns)| conns.into_iter().map(move |conn| (device, conn))).collect();
        if half_open.is_empty() {
            return Some(names);
        }
        self.kept_ports.push(KeptPort { service, addr, until: now + KEPT, half_open, _names: names });
        None
    }

    /// Takes out the ports that need not be kept any longer, to be dropped without the lock.
    #[must_use]
    pub(crate) fn ports_not_kept_any_longer(&mut self, now: Instant) -> Vec<KeptPort> {
        let Self { cms, kept_ports, .. } = self;
        let is_over = |kept: &mut KeptPort| {
            kept.half_open.retain(|(device, conn)| cms.get(device).is_some_and(|cm| cm.is_half_open(*conn)));
            kept.until <= now || kept.half_open.is_empty()
        };
        kept_ports.extract_if(.., is_over).collect()
    }

    /// Whether the name of a service at an address leads here although nothing listens.
    pub(crate) fn keeps(&self, service: Service, dest: IpAddr) -> bool {
        let takes = |addr: IpAddr| addr == dest || addr.is_unspecified() && addr.is_ipv4() == dest.is_ipv4();
        self.kept_ports.iter().any(|kept| kept.service == service && takes(kept.addr))
    }
}

impl<W: Env> Node<W> {
    /// The process binds the port anew.
    pub(crate) fn give_up_kept(&self, space: PortSpace, port: u16) {
        let service = Service { space, port };
        let given_up: Vec<KeptPort> =
            self.cm_agent.lock().kept_ports.extract_if(.., |kept| kept.service == service).collect();
        drop(given_up);
    }
}
