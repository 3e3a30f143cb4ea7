//! The way of a packet through the tables of a plane, as [`crate::route`] goes it in the fabric.

use super::Plane;
use super::rules::Rule;
use crate::route::MAX_ROUTE;
use crate::subnet::NO_PORT;

/// Where a way ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At a port that has the LID.
    Arrived(u32),
    /// Before it leaves a port, which counts a discard.
    Discarded(u32),
    /// At the other end of a port's link, damaged: that end counts errors.
    Damaged(u32),
    /// In a switch, whose port in counts a relay error.
    NoRelay(u32),
    /// Before it leaves a port of a switch, which is not in its partition.
    RefusedOut(u32),
    /// At a port into a switch, which is not in its partition.
    RefusedIn(u32),
    /// At an adapter without the LID, which counts nothing.
    Astray,
}

/// A way: the ports out of each node, and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) hops: Vec<u32>,
    pub(super) end: End,
    /// What links of the way take of some packets, in the order of the way.
    pub(super) rules: Vec<Rule>,
}

impl Way {
    /// The part of the way that packets go which a rule takes, and where that ends.
    pub(super) fn taken_by(&self, rule: &Rule) -> (&[u32], End) {
        let (has_passed, end) = rule.end();
        (&self.hops[..rule.hop + usize::from(has_passed)], end)
    }
}

impl Plane<'_> {
    /// The way of a packet from a port to a LID.
    pub(super) fn walk(&self, from: u32, lid: u16) -> Way {
        let mut way = Way { hops: Vec::new(), end: End::Astray, rules: Vec::new() };
        let (mut at, mut largest) = (from, None);
        for _ in 0..MAX_ROUTE {
            let out = match self.step(at, lid, way.hops.is_empty()) {
                Ok(out) => out,
                Err(end) => {
                    way.end = end;
                    return way;
                }
            };
            let port = self.port(out).filter(|port| port.is_linked && port.is_active);
            let Some((next, port)) = port.and_then(|port| Some((port.peer?, port))) else {
                way.end = End::Discarded(out);
                return way;
            };
            let largest = *largest.get_or_insert(port.mtu);
            way.rules.extend(Rule::of_link(*self, way.hops.len(), (out, &port), next, largest));
            way.hops.push(out);
            at = next;
        }
        way.end = End::NoRelay(at);
        way
    }

    /// Whether a port is a channel adapter's.
    pub fn is_adapter(&self, port: u32) -> bool {
        let node = self.port(port).and_then(|port| self.node(port.node));
        node.is_some_and(|node| node.switch.is_none())
    }

    /// The port out of the node of a port, or where the way ends there.
    fn step(&self, at: u32, lid: u16, is_first: bool) -> Result<u32, End> {
        let port = self.port(at).ok_or(End::Astray)?;
        let node = self.node(port.node).ok_or(End::Astray)?;
        let Some(switch) = node.switch else {
            return match (port.has_lid(lid), is_first) {
                (true, _) => Err(End::Arrived(at)),
                (false, true) => Ok(at),
                (false, false) => Err(End::Astray),
            };
        };
        if self.port(node.first).is_some_and(|port_0| port_0.has_lid(lid)) {
            return Err(End::Arrived(node.first));
        }
        match self.linear(switch, lid) {
            NO_PORT => Err(End::NoRelay(at)),
            out if (1..=node.ports).contains(&out) => Ok(node.first.saturating_add(out.into())),
            _ => Err(End::NoRelay(at)),
        }
    }
}
