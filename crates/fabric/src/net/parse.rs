//! Reads a net file line by line.

use std::collections::BTreeMap;

use wire::Guid;

use super::cursor::Cursor;
use super::file::Preset;
use super::ibsim::{self, Command};
use super::settings::{MARK, NodeSettings, PortSettings};
use super::source::{At, Line};
use super::{
    Excerpt, MAX_NAME, MAX_NODES, MAX_PORTS, Net, NetError, NetNode, NodeType, Problem, Speed, Width, join,
};

/// KEY=VALUE lines before a node.
#[derive(Default)]
struct Head {
    vendor: u32,
    device: u16,
    system: Option<Guid>,
    guid: Option<Guid>,
}

/// A node with what has to be looked up when all lines are read.
pub(super) struct Draft<'a> {
    pub(super) node: NetNode,
    pub(super) guid: Option<Guid>,
    pub(super) system: Option<Guid>,
    /// The beginning of the line.
    pub(super) at: Cursor<'a>,
    pub(super) ends: BTreeMap<u8, End<'a>>,
}

/// An end of a link as its line tells it.
pub(super) struct End<'a> {
    pub(super) guid: Option<Guid>,
    pub(super) peer: &'a str,
    pub(super) peer_port: u8,
    pub(super) peer_guid: Option<Guid>,
    pub(super) rate: Option<(Width, Speed)>,
    pub(super) at: Cursor<'a>,
}

/// A cable of a command, whose node may stand further down.
pub(super) struct Cable<'a> {
    pub(super) at: Cursor<'a>,
    pub(super) node: &'a str,
    pub(super) port: u8,
    pub(super) end: End<'a>,
}

/// The lines as far as they are read.
#[derive(Default)]
pub(super) struct File<'a> {
    head: Head,
    drafts: Vec<Draft<'a>>,
    pub(super) cables: Vec<Cable<'a>>,
    pub(super) commands: Vec<Command<'a>>,
    counters: Vec<Preset>,
    /// The port whose line was read last, none after that of a node.
    port: Option<u8>,
}

/// Reads all lines, and then what they say of each other.
pub(super) fn parse(lines: &[Line<'_>]) -> Result<(Net, Vec<Preset>), NetError> {
    let mut file = File::default();
    lines.iter().try_for_each(|line| file.line(line))?;
    let File { mut drafts, cables, commands, mut counters, .. } = file;
    if drafts.is_empty() {
        let end = lines.last().map_or(At { file: None, line: 1 }, |line| line.at);
        return Err(Cursor::new("", end).error(Problem::NoNodes));
    }
    join::name_guids(&mut drafts)?;
    join::add_cables(&mut drafts, cables)?;
    let mut net = join::join(drafts)?;
    counters.extend(ibsim::carry_out(&mut net, &commands)?);
    // What says nothing is not written either.
    net.nodes.iter_mut().for_each(|node| node.port_settings.retain(|_, own| *own != PortSettings::default()));
    Ok((net, counters))
}

impl<'a> File<'a> {
    fn line(&mut self, line: &Line<'a>) -> Result<(), NetError> {
        let mut cursor = Cursor::new(line.text, line.at);
        if is_settings(&cursor) {
            return self.settings(&mut cursor);
        }
        if cursor.at_end() {
            return Ok(());
        }
        if cursor.begins("[") {
            self.port = Some(port(&mut cursor, self.drafts.last_mut())?);
            return Ok(());
        }
        let before = cursor;
        let word = cursor.until(|c: char| c.is_whitespace() || c == '=');
        let kind = match word {
            "vendid" | "devid" | "sysimgguid" | "switchguid" | "caguid" | "rtguid" => {
                return self.head.read(word, &mut cursor);
            }
            // What groups the switches of one housing.
            "Chassis" => return Ok(()),
            "do" => return self.command(&mut cursor),
            "Switch" => NodeType::Switch,
            "Ca" | "Hca" => NodeType::Ca,
            "Rt" => NodeType::Router,
            _ => return Err(before.error(Problem::NotALine)),
        };
        if self.drafts.len() >= MAX_NODES {
            return Err(before.error(Problem::TooManyNodes));
        }
        self.drafts.push(node(kind, &mut cursor, before, &mut self.head)?);
        self.port = None;
        Ok(())
    }

    /// `#verbena KEY=VALUE ...` below a node or a port.
    fn settings(&mut self, cursor: &mut Cursor<'a>) -> Result<(), NetError> {
        let before = *cursor;
        cursor.take(MARK);
        let index = self.drafts.len().checked_sub(1);
        let index = index.ok_or_else(|| before.error(Problem::SettingsOfNothing))?;
        let node = &mut self.drafts[index].node;
        let Some(port) = self.port else { return node.settings.read(node.kind, cursor) };
        let mut counters = Vec::new();
        node.settings_of(port).read(cursor, &mut counters)?;
        let presets =
            counters.into_iter().map(|(counter, value)| Preset { node: index, port, counter, value });
        self.counters.extend(presets);
        Ok(())
    }
}

/// Whether the mark stands there as a word; a comment may begin alike.
fn is_settings(cursor: &Cursor<'_>) -> bool {
    let mut cursor = *cursor;
    cursor.until(char::is_whitespace) == MARK
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
    at: Cursor<'a>,
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
    // An adapter has no port 0 to be enhanced.
    let enhanced_port_0 = kind == NodeType::Switch && cursor.begins("enhanced");
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
        settings: NodeSettings::default(),
        port_settings: BTreeMap::new(),
    };
    Ok(Draft { node, guid: guid.or_else(|| guid_in(name)), system, at, ends: BTreeMap::new() })
}

/// A GUID by which ibnetdiscover has named a node: `S-0002c90300210000`.
fn guid_in(name: &str) -> Option<Guid> {
    let digits =
        name.strip_prefix("S-").or_else(|| name.strip_prefix("H-")).or_else(|| name.strip_prefix("R-"));
    let digits = digits.filter(|digits| digits.len() == 16)?;
    guid(u64::from_str_radix(digits, 16).ok()?)
}

pub(super) fn name<'a>(cursor: &mut Cursor<'a>, what: &'static str) -> Result<&'a str, NetError> {
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
fn port<'a>(cursor: &mut Cursor<'a>, draft: Option<&mut Draft<'a>>) -> Result<u8, NetError> {
    let at = *cursor;
    let draft = draft.ok_or_else(|| at.error(Problem::PortWithoutNode))?;
    let number = cursor.port(draft.node.ports)?;
    let own_guid = port_guid(cursor)?;
    cursor.skip_blanks();
    let peer_at = *cursor;
    let peer = name(cursor, "the name of the node at the other end in quotes")?;
    let peer_port = cursor.port(MAX_PORTS)?;
    cursor.skip_blanks();
    let peer_guid = port_guid(cursor)?;
    cursor.skip_blanks();
    let rate = if cursor.take("#") { rate(cursor.until(|_| false)) } else { None };
    if let Some(other) = draft.ends.get(&number) {
        return Err(at.error(Problem::PortTwice { port: number, other: other.at.place().place() }));
    }
    draft.ends.insert(number, End { guid: own_guid, peer, peer_port, peer_guid, rate, at: peer_at });
    Ok(number)
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
    bare.split_whitespace().rev().find_map(rate_of)
}

/// A rate as ibnetdiscover(8) writes it: `4xEDR`.
pub fn rate_of(word: &str) -> Option<(Width, Speed)> {
    let (lanes, speed) = word.split_at(word.find('x')? + 1);
    let width = Width::ALL.into_iter().find(|(_, name)| *name == lanes)?.0;
    // ibnetdiscover's FDR10 is QDR's signalling rate with FDR's encoding.
    let speed = if speed == "FDR10" { "QDR" } else { speed };
    Some((width, Speed::ALL.into_iter().find(|(_, name)| *name == speed)?.0))
}
