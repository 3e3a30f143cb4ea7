//! What one line of a net file says of another: names, GUIDs, and the two ends of each link.

use std::collections::BTreeMap;

use wire::Guid;

use super::parse::{Cable, Draft, End};
use super::source::At;
use super::{Excerpt, MAX_PORTS, Net, NetError, NetLink, NetNode, NodeType, Problem, Speed, Width};

/// GUIDs that are made for nodes without one, as ibsim makes them.
const MADE_CA: u64 = 0x10_0000;
const MADE_SWITCH: u64 = 0x20_0000;
/// What a link is where the file says nothing.
const DEFAULT_RATE: (Width, Speed) = (Width::X4, Speed::Edr);

/// Gives each node its GUID, and makes those that are missing.
pub(super) fn name_guids(drafts: &mut [Draft<'_>]) -> Result<(), NetError> {
    let mut known = BTreeMap::new();
    for draft in drafts.iter() {
        let Some(guid) = draft.guid else { continue };
        if let Some(other) = known.insert(guid, draft.at.place()) {
            let other = other.place();
            return Err(draft.at.error(Problem::GuidTwice { guid: guid.0, other }));
        }
    }
    let (mut next_ca, mut next_switch) = (MADE_CA, MADE_SWITCH);
    for draft in drafts {
        let next = if draft.node.kind == NodeType::Switch { &mut next_switch } else { &mut next_ca };
        let guid = draft.guid.unwrap_or_else(|| {
            loop {
                let made = Guid(*next);
                // Behind the node's own GUID lie those of its ports.
                *next += 1 + u64::from(MAX_PORTS);
                if !known.contains_key(&made) {
                    break made;
                }
            }
        });
        (draft.node.guid, draft.node.system) = (guid, draft.system.unwrap_or(guid));
    }
    Ok(())
}

/// Looks up the node at the other end of each link, and compares what both ends tell.
pub(super) fn join(mut drafts: Vec<Draft<'_>>) -> Result<Net, NetError> {
    let mut names = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if let Some(other) = names.insert(draft.node.name.as_str(), index) {
            let other = drafts[other].at.place().place();
            return Err(draft.at.error(Problem::NameTwice { other }));
        }
    }
    let mut links: Vec<BTreeMap<u8, NetLink>> = vec![BTreeMap::new(); drafts.len()];
    for (index, draft) in drafts.iter().enumerate() {
        for (number, end) in &draft.ends {
            let peer = names.get(end.peer);
            let peer = *peer.ok_or_else(|| end.at.error(Problem::NoNode(Excerpt::of(end.peer))))?;
            let there = &drafts[peer];
            let ports = there.node.ports;
            if end.peer_port > ports {
                let port = Excerpt::of(&end.peer_port.to_string());
                return Err(end.at.error(Problem::NoPort { port, ports }));
            }
            if peer == index && end.peer_port == *number {
                return Err(end.at.error(Problem::ToItself));
            }
            let other = there.ends.get(&end.peer_port);
            if let Some(other) = other {
                agree(draft, *number, end, other)?;
            }
            let (width, speed) = end.rate.or(other.and_then(|other| other.rate)).unwrap_or(DEFAULT_RATE);
            let told = end.guid.or(other.and_then(|other| other.peer_guid));
            let own_guid = port_guid_of(&draft.node, *number, told);
            let link = NetLink { guid: own_guid, peer, peer_port: end.peer_port, width, speed };
            links[index].insert(*number, link);
            if other.is_none() {
                let back = NetLink {
                    guid: port_guid_of(&there.node, end.peer_port, end.peer_guid),
                    peer: index,
                    peer_port: *number,
                    width,
                    speed,
                };
                // Another line may have linked that port already, if none of its own does.
                if let Some(there) = links[peer].insert(end.peer_port, back)
                    && (there.peer, there.peer_port) != (index, *number)
                {
                    let other = drafts[there.peer].ends.get(&there.peer_port);
                    let other = other.map_or(At::default(), |end| end.at.place()).place();
                    return Err(end.at.error(Problem::EndsDiffer { other, what: "port" }));
                }
            }
        }
    }
    check_settings(&mut drafts, &links)?;
    let nodes = drafts.into_iter().zip(links).map(|(draft, links)| NetNode { links, ..draft.node });
    let mut net = Net { nodes: nodes.collect() };
    let cut = net.nodes.iter().flat_map(|node| {
        let cut = node.port_settings.iter().filter(|(_, settings)| settings.cut);
        cut.filter_map(|(port, _)| node.links.get(port)).map(|link| (link.peer, link.peer_port))
    });
    // A cable is cut at both ends.
    for (peer, port) in cut.collect::<Vec<_>>() {
        net.nodes[peer].settings_of(port).cut = true;
    }
    Ok(net)
}

/// Adds the cables of commands to the nodes that they name.
pub(super) fn add_cables<'a>(drafts: &mut [Draft<'a>], cables: Vec<Cable<'a>>) -> Result<(), NetError> {
    for Cable { at, node, port, end } in cables {
        let draft = drafts.iter_mut().find(|draft| draft.node.name == node);
        let draft = draft.ok_or_else(|| at.error(Problem::NoNode(Excerpt::of(node))))?;
        let ports = draft.node.ports;
        if port > ports {
            let port = Excerpt::of(&port.to_string());
            return Err(at.error(Problem::NoPort { port, ports }));
        }
        if let Some(other) = draft.ends.get(&port) {
            return Err(at.error(Problem::PortTwice { port, other: other.at.place().place() }));
        }
        draft.ends.insert(port, end);
    }
    Ok(())
}

/// Compares what ports have beside their cables with each other and with the cables.
fn check_settings(drafts: &mut [Draft<'_>], links: &[BTreeMap<u8, NetLink>]) -> Result<(), NetError> {
    let mut addresses = BTreeMap::new();
    for (draft, links) in drafts.iter_mut().zip(links) {
        for (port, settings) in &mut draft.node.port_settings {
            // Settings stand below the line of a port.
            let (Some(end), Some(link)) = (draft.ends.get(port), links.get(port)) else { continue };
            let is_of_adapters = settings.address.is_some() || !settings.pkeys.is_empty();
            if is_of_adapters && draft.node.kind != NodeType::Ca {
                return Err(end.at.error(Problem::NoAddress));
            }
            if let Some(address) = settings.address
                && let Some(other) = addresses.insert(address, end.at.place().place())
            {
                return Err(end.at.error(Problem::AddressTwice { address, other }));
            }
            let Some((width, speed)) = settings.supported else { continue };
            if width.lanes() < link.width.lanes() || speed < link.speed {
                return Err(end.at.error(Problem::LessThanLink));
            }
            settings.supported = settings.supported.filter(|rate| *rate != (link.width, link.speed));
        }
    }
    Ok(())
}

/// The GUID of a port, as the file tells it, or made; external ports of switches have none.
fn port_guid_of(node: &NetNode, number: u8, told: Option<Guid>) -> Option<Guid> {
    (node.kind != NodeType::Switch).then(|| told.unwrap_or_else(|| node.port_guid(number)))
}

/// Whether the other end of a link tells the same.
fn agree(draft: &Draft<'_>, number: u8, end: &End<'_>, other: &End<'_>) -> Result<(), NetError> {
    let guids = |one: Option<Guid>, two: Option<Guid>| one.is_none() || two.is_none() || one == two;
    let what = if other.peer != draft.node.name {
        "node"
    } else if other.peer_port != number {
        "port"
    } else if !guids(end.guid, other.peer_guid) || !guids(end.peer_guid, other.guid) {
        "port GUID"
    } else if end.rate.is_some() && other.rate.is_some() && end.rate != other.rate {
        "rate"
    } else {
        return Ok(());
    };
    Err(end.at.error(Problem::EndsDiffer { other: other.at.place().place(), what }))
}
