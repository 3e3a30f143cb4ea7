//! Ports of the port spaces: which identifier may have which. The rules are those of TCP
//! (socket(7), ip(7), ipv6(7)), and hold for all processes of the host, because a port is a
//! [`Name`]. Errors are the kernel's (cma_check_port): EADDRNOTAVAIL where either side is for all
//! addresses, which loopback addresses are too, EADDRINUSE for the same address.
//!
//! | bound | name | in conflict with |
//! |---|---|---|
//! | to one address | the address | itself, the wildcards of its family |
//! | to `0.0.0.0` or 127.0.0.0/8, or to `::` or `::1` for IPv6 only | the unspecified address | all of its family |
//! | to `::` or `::1`, or to an `AF_IB` service id | no address | all |
//!
//! With RDMA_OPTION_ID_REUSEADDR several may hold a port until one of them listens: each holds a
//! [`Name::Shared`], which is in conflict only with those that do not share. An identifier that
//! listens claims the port itself too: that name is how requests find it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cm::PortSpace;

use crate::env::{Claim, ClaimError, Env, Name};
use crate::{Errno, Error, Node};

/// Ephemeral ports: the range of RFC 6335 §6.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;
/// Tries to find a free ephemeral port.
const PORT_TRIES: usize = 128;

/// Where a port is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub space: PortSpace,
    /// The address that names bear, an unspecified one for all of its family; `None` is all of
    /// both.
    pub addr: Option<IpAddr>,
    /// Others may share it.
    pub reuse: bool,
}

impl<W: Env> Node<W> {
    /// Claims a port, with 0 any free one. EADDRINUSE or EADDRNOTAVAIL where it is taken,
    /// EADDRNOTAVAIL where none is free.
    pub(crate) fn claim_port(&self, place: Place, port: u16) -> Result<(u16, Box<dyn Claim>), Error> {
        if port != 0 {
            self.give_up_kept(place.space, port);
            return Ok((port, self.claim_one(place, port)?));
        }
        for _ in 0..PORT_TRIES {
            let port = self.ephemeral();
            // No identifier is given a port by chance that another shares.
            match self.claim_one(Place { reuse: false, ..place }, port) {
                Err(Error::System(Errno::EADDRINUSE | Errno::EADDRNOTAVAIL)) => {}
                Ok(claim) if place.reuse => {
                    drop(claim);
                    return Ok((port, self.claim_one(place, port)?));
                }
                other => return Ok((port, other?)),
            }
        }
        Err(Error::System(Errno::EADDRNOTAVAIL))
    }

    /// Different names do not exclude each other by themselves: claim, then look for those in
    /// conflict, then back off.
    fn claim_one(&self, place: Place, port: u16) -> Result<Box<dyn Claim>, Error> {
        let Place { space, addr, reuse } = place;
        let mine = match reuse {
            true => Name::Shared { space, addr, port, holder: self.random_psn().get() },
            false => Name::Port { space, addr, port },
        };
        self.claim_beside(mine, addr, |other| match other {
            Name::Port { addr: theirs, .. } => Some(theirs),
            Name::Shared { addr: theirs, .. } => (!reuse).then_some(theirs),
            Name::Block(_) => None,
        })
    }

    /// An identifier that shares a port begins to listen. The errors are those of a port that is
    /// taken, where another of them listens.
    pub(crate) fn claim_to_listen(&self, place: Place, port: u16) -> Result<Box<dyn Claim>, Error> {
        let Place { space, addr, .. } = place;
        self.claim_beside(Name::Port { space, addr, port }, addr, |other| match other {
            Name::Port { addr: theirs, .. } => Some(theirs),
            Name::Shared { .. } | Name::Block(_) => None,
        })
    }

    /// Claims a name unless one of those for the same port, at the address that `counts` tells, is
    /// in conflict.
    fn claim_beside(
        &self,
        mine: Name,
        addr: Option<IpAddr>,
        counts: impl Fn(Name) -> Option<Option<IpAddr>>,
    ) -> Result<Box<dyn Claim>, Error> {
        let (Name::Port { space, port, .. } | Name::Shared { space, port, .. }) = mine else {
            return Err(Error::System(Errno::EADDRNOTAVAIL));
        };
        let claim = self.env.claim(mine).map_err(|e| match e {
            ClaimError::InUse => Error::System(taken(addr, addr)),
            ClaimError::System(errno) => Error::System(errno),
        })?;
        let others = self.env.port_names(space, port).into_iter().filter(|other| *other != mine);
        match others.filter_map(counts).find(|theirs| overlap(addr, *theirs)) {
            Some(theirs) => Err(Error::System(taken(addr, theirs))),
            None => Ok(claim),
        }
    }

    pub(crate) fn ephemeral(&self) -> u16 {
        let mut bytes = [0; 2];
        self.env.fill_random(&mut bytes);
        let span = u32::from(*EPHEMERAL.end() - *EPHEMERAL.start()) + 1;
        EPHEMERAL.start() + (u32::from(u16::from_ne_bytes(bytes)) % span) as u16
    }
}

/// The addresses under which a listener for requests to `ip` may have claimed its port.
pub(crate) fn places_for(ip: IpAddr) -> [Option<IpAddr>; 3] {
    let wildcard = match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    [Some(ip), Some(wildcard), None]
}

/// Whether there is an address that both would take requests to.
fn overlap(a: Option<IpAddr>, b: Option<IpAddr>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            a == b || a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified())
        }
        _ => true,
    }
}

/// The error of an identifier that wants a port that another has: two that overlap are the same
/// address, or one is for all.
fn taken(mine: Option<IpAddr>, theirs: Option<IpAddr>) -> Errno {
    let everywhere = |addr: Option<IpAddr>| addr.is_none_or(|ip| ip.is_unspecified());
    if everywhere(mine) || everywhere(theirs) { Errno::EADDRNOTAVAIL } else { Errno::EADDRINUSE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_conflict_with_all_of_their_family_and_the_dual_one_with_everything() {
        let at = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let (any4, any6, one4, one6) = (at("0.0.0.0"), at("::"), at("10.0.0.1"), at("fd00::1"));
        for (a, b, expected) in [
            (any4, one4, true),
            (any4, any6, false),
            (any4, one6, false),
            (any6, one6, true),
            (one4, one4, true),
            (one4, at("10.0.0.2"), false),
            (one4, one6, false),
            (None, one4, true),
            (None, any6, true),
            (None, None, true),
        ] {
            assert_eq!((overlap(a, b), overlap(b, a)), (expected, expected), "{a:?} {b:?}");
        }
    }
}
