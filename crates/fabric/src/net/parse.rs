//! Reads a net file. First all lines, then what one line says of another: names, GUIDs, and the
//! two ends of each link.

use std::collections::BTreeMap;

use wire::Guid;

use super::cursor::Cursor;
use super::{
    Excerpt, MAX_NAME, MAX_NODES, MAX_PORTS, Net, NetError, NetLink, NetNode, NodeType, Problem, Speed, Width,
};

/// GUIDs that are made for nodes without one, as ibsim makes them.
const MADE_CA: u64 = 0x10_0000;
const MADE_SWITCH: u64 = 0x20_0000;
/// What a link is where the file says nothing.
const DEFAULT_RATE: (Width, Speed) = (Width::X4, Speed::Edr);

/// KEY=VALUE lines before a node.
#[derive(Default)]
struct Head {
    vendor: u32,
    device: u16,
    system: Option<Guid>,
    guid: Option<Guid>,
}

/// A node with what has to be looked up when all lines are read.
struct Draft<'a> {
    node: NetNode,
    guid: Option<Guid>,
    system: Option<Guid>,
    line: usize,
    ends: BTreeMap<u8, End<'a>>,
}

/// An end of a link as its line tells it.
struct End<'a> {
    guid: Option<Guid>,
    peer: &'a str,
    peer_port: u8,
    peer_guid: Option<Guid>,
    rate: Option<(Width, Speed)>,
    at: Cursor<'a>,
    line: usize,
}

impl Net {
    /// Reads a net file: what ibnetdiscover(8) prints, with or without grouping, or ibsim's. GUIDs
    /// that are missing are made; a link that one end tells of is there.
    ///
    /// # Errors
    ///
    /// The first line that is wrong, with its column.
    pub fn parse(text: &str) -> Result<Self, NetError> {
        let mut drafts: Vec<Draft<'_>> = Vec::new();
        let mut head = Head::default();
        for (index, line) in text.lines().enumerate() {
            let mut cursor = Cursor::new(line, index + 1);
            if cursor.at_end() {
                continue;
            }
            if cursor.begins("[") {
                port(&mut cursor, index + 1, drafts.last_mut())?;
                continue;
            }
            let before = cursor;
            let word = cursor.until(|c: char| c.is_whitespace() || c == '=');
            match word {
                "vendid" | "devid" | "sysimgguid" | "switchguid" | "caguid" | "rtguid" => {
                    head.read(word, &mut cursor)?;
                }
                "Switch" => drafts.push(node(NodeType::Switch, &mut cursor, index + 1, &mut head)?),
                "Ca" | "Hca" => drafts.push(node(NodeType::Ca, &mut cursor, index + 1, &mut head)?),
                "Rt" => drafts.push(node(NodeType::Router, &mut cursor, index + 1, &mut head)?),
                // What groups the switches of one housing.
                "Chassis" => {}
                "include" => return Err(before.error(Problem::Directive("include"))),
                "do" => return Err(before.error(Problem::Directive("do"))),
                _ => return Err(before.error(Problem::NotALine)),
            }
            if drafts.len() > MAX_NODES {
                return Err(before.error(Problem::TooManyNodes));
            }
        }
        if drafts.is_empty() {
            let end = Cursor::new("", text.lines().count().max(1));
            return Err(end.error(Problem::NoNodes));
        }
        name_guids(&mut drafts)?;
        join(drafts)
    }
}

impl Head {
    fn read(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), NetError> {
        if !cursor.take("=") {
            return Err(cursor.error(Problem::Expected("=")));
        }
        // Behind it may stand the GUID of port 0 in parentheses, and a comment.
        match key {
            "vendid" => self.vendor = cursor.hex(24)? as u32,
            "devid" => self.device = cursor.hex(16)? as u16,
            "sysimgguid" => self.system = guid(cursor.hex(64)?),
            _ => self.guid = guid(cursor.hex(64)?),
        }
        Ok(())
    }
}

/// 0 is what a device without a GUID says.
fn guid(number: u64) -> Option<Guid> {
    Some(Guid(number)).filter(|guid| guid.0 != 0)
}

/// `Switch 36 "S-0002c90300210000"  # "leaf0" enhanced port 0 lid 5 lmc 0`
fn node<'a>(
    kind: NodeType,
    cursor: &mut Cursor<'a>,
    line: usize,
    head: &mut Head,
) -> Result<Draft<'a>, NetError> {
    cursor.skip_blanks();
    let before = *cursor;
    let count = cursor.until(char::is_whitespace);
    let ports = count.parse().ok().filter(|n| (1..=MAX_PORTS).contains(n));
    let ports = ports.ok_or_else(|| before.error(Problem::PortCount(Excerpt::of(count))))?;
    cursor.skip_blanks();
    let name = name(cursor, "the name of the node in quotes")?;
    cursor.skip_blanks();
    let mut description = name;
    if cursor.take("#") {
        cursor.skip_blanks();
        if cursor.begins("\"") {
            description = self::name(cursor, "a description in quotes")?;
        }
    }
    cursor.skip_blanks();
    let enhanced_port_0 = cursor.begins("enhanced");
    let Head { vendor, device, system, guid } = std::mem::take(head);
    let node = NetNode {
        kind,
        name: name.to_owned(),
        description: description.to_owned(),
        ports,
        guid: Guid(0),
        system: Guid(0),
        vendor,
        device,
        enhanced_port_0,
        links: BTreeMap::new(),
    };
    Ok(Draft { node, guid: guid.or_else(|| guid_in(name)), system, line, ends: BTreeMap::new() })
}

/// A GUID by which ibnetdiscover has named a node: `S-0002c90300210000`.
fn guid_in(name: &str) -> Option<Guid> {
    let digits =
        name.strip_prefix("S-").or_else(|| name.strip_prefix("H-")).or_else(|| name.strip_prefix("R-"));
    let digits = digits.filter(|digits| digits.len() == 16)?;
    guid(u64::from_str_radix(digits, 16).ok()?)
}

fn name<'a>(cursor: &mut Cursor<'a>, what: &'static str) -> Result<&'a str, NetError> {
    let before = *cursor;
    let name = cursor.between('"', '"', what)?;
    if name.is_empty() {
        return Err(before.error(Problem::Expected(what)));
    }
    if name.len() > MAX_NAME {
        return Err(before.error(Problem::TooLong));
    }
    if name.chars().any(char::is_control) {
        return Err(before.error(Problem::Control));
    }
    Ok(name)
}

/// `[1](2c90300100000)  "S-0002c90300210000"[1](guid)  # lid 0 lmc 0 "leaf0" lid 0 4xEDR`
fn port<'a>(cursor: &mut Cursor<'a>, line: usize, draft: Option<&mut Draft<'a>>) -> Result<(), NetError> {
    let at = *cursor;
    let draft = draft.ok_or_else(|| at.error(Problem::PortWithoutNode))?;
    let number = cursor.port(draft.node.ports)?;
    let own_guid = port_guid(cursor)?;
    cursor.skip_blanks();
    let peer_at = *cursor;
    let peer = name(cursor, "the name of the node at the other end in quotes")?;
    let peer_port = cursor.port(MAX_PORTS)?;
    let peer_guid = port_guid(cursor)?;
    cursor.skip_blanks();
    let rate = if cursor.take("#") { rate(cursor.until(|_| false)) } else { None };
    if let Some(other) = draft.ends.get(&number) {
        return Err(at.error(Problem::PortTwice { port: number, other: other.line }));
    }
    draft.ends.insert(number, End { guid: own_guid, peer, peer_port, peer_guid, rate, at: peer_at, line });
    Ok(())
}

fn port_guid(cursor: &mut Cursor<'_>) -> Result<Option<Guid>, NetError> {
    if !cursor.take("(") {
        return Ok(None);
    }
    let number = cursor.hex(64)?;
    if !cursor.take(")") {
        return Err(cursor.error(Problem::Expected(")")));
    }
    Ok(guid(number))
}

/// The last word of a comment that is a rate, outside of descriptions: `4xEDR`.
fn rate(comment: &str) -> Option<(Width, Speed)> {
    let bare = comment.rsplit('"').next().unwrap_or(comment);
    bare.split_whitespace().rev().find_map(|word| {
        let (lanes, speed) = word.split_at(word.find('x')? + 1);
        let width = Width::ALL.into_iter().find(|(_, name)| *name == lanes)?.0;
        // ibnetdiscover's FDR10 is QDR's signalling rate with FDR's encoding.
        let speed = if speed == "FDR10" { "QDR" } else { speed };
        Some((width, Speed::ALL.into_iter().find(|(_, name)| *name == speed)?.0))
    })
}

/// Gives each node its GUID, and makes those that are missing.
fn name_guids(drafts: &mut [Draft<'_>]) -> Result<(), NetError> {
    let mut known = BTreeMap::new();
    for draft in drafts.iter() {
        let Some(guid) = draft.guid else { continue };
        if let Some(other) = known.insert(guid, draft.line) {
            let at = Cursor::new("", draft.line);
            return Err(at.error(Problem::GuidTwice { guid: guid.0, other }));
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
fn join(drafts: Vec<Draft<'_>>) -> Result<Net, NetError> {
    let mut names = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if let Some(other) = names.insert(draft.node.name.as_str(), index) {
            let at = Cursor::new("", draft.line);
            return Err(at.error(Problem::NameTwice { other: drafts[other].line }));
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
                    let other = drafts[there.peer].ends.get(&there.peer_port).map_or(0, |end| end.line);
                    return Err(end.at.error(Problem::EndsDiffer { other, what: "port" }));
                }
            }
        }
    }
    let nodes = drafts.into_iter().zip(links).map(|(draft, links)| NetNode { links, ..draft.node });
    Ok(Net { nodes: nodes.collect() })
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
    Err(end.at.error(Problem::EndsDiffer { other: other.line, what }))
}
