//! Lines `do COMMAND` of ibsim's net files: commands of its console, for nodes that stand in the
//! file by name. They are carried out in their order once all cables are known.
//!
//! | command | what it does here |
//! |---|---|
//! | `Link "a"[1] "b"[2]` | a cable |
//! | `Unlink "a"[1]`, `Unlink "a"` | the cable is cut, or all of the node |
//! | `ReLink "a"[1]`, `ReLink "a"` | the cable is mended |
//! | `Error "a"[1] 5`, `Error "a" 5` | of a hundred packets that leave, five are lost |
//! | `PerformanceSet "a"[1] PortCounters.SymbolErrorCounter=7` | the counter's value |

use std::collections::BTreeMap;

use super::cursor::Cursor;
use super::file::Preset;
use super::parse::{Cable, End, File, name};
use super::{Excerpt, MAX_PORTS, Net, NetError, Problem};
use crate::counters::Counter;

/// A command for a node, or for one of its ports.
pub(super) struct Command<'a> {
    at: Cursor<'a>,
    node: &'a str,
    /// All ports with a cable, where none is named.
    port: Option<u8>,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Cut(bool),
    Drop(u32),
    Set(Counter, u64),
}

const NODE: &str = "the name of a node in quotes";
const PORT: &str = "the number of a port between brackets";

impl<'a> File<'a> {
    /// Reads the command behind `do`.
    pub(super) fn command(&mut self, cursor: &mut Cursor<'a>) -> Result<(), NetError> {
        cursor.skip_blanks();
        let before = *cursor;
        let word = cursor.until(char::is_whitespace);
        let is = |name: &str| word.eq_ignore_ascii_case(name);
        cursor.skip_blanks();
        let (at, node, port) = place(cursor)?;
        cursor.skip_blanks();
        let what = if is("Link") {
            let (peer_at, peer, peer_port) = place(cursor)?;
            let no_port = |at: Cursor<'_>| at.error(Problem::Expected(PORT));
            let port = port.ok_or_else(|| no_port(at))?;
            let peer_port = peer_port.ok_or_else(|| no_port(peer_at))?;
            let end = End { guid: None, peer, peer_port, peer_guid: None, rate: None, at: peer_at };
            self.cables.push(Cable { at, node, port, end });
            None
        } else if is("Unlink") || is("ReLink") {
            Some(What::Cut(is("Unlink")))
        } else if is("Error") {
            Some(What::Drop(percent(cursor)?))
        } else if is("PerformanceSet") {
            port.ok_or_else(|| at.error(Problem::Expected(PORT)))?;
            Some(counter(cursor)?)
        } else {
            return Err(before.error(Problem::NoCommand(Excerpt::of(word))));
        };
        cursor.skip_blanks();
        if !cursor.at_end() {
            return Err(cursor.error(Problem::Expected("the end of the command")));
        }
        self.commands.extend(what.map(|what| Command { at, node, port, what }));
        Ok(())
    }
}

/// `"a"[1]`, or `"a"`.
fn place<'a>(cursor: &mut Cursor<'a>) -> Result<(Cursor<'a>, &'a str, Option<u8>), NetError> {
    let at = *cursor;
    let node = name(cursor, NODE)?;
    let port = if cursor.begins("[") { Some(cursor.port(MAX_PORTS)?) } else { None };
    Ok((at, node, port))
}

fn percent(cursor: &mut Cursor<'_>) -> Result<u32, NetError> {
    let before = *cursor;
    let number = cursor.until(char::is_whitespace).parse::<u32>().ok().filter(|number| *number <= 100);
    Ok(10_000 * number.ok_or_else(|| before.error(Problem::Expected("a share from 0 to 100")))?)
}

/// `PortCounters.SymbolErrorCounter=7`
fn counter(cursor: &mut Cursor<'_>) -> Result<What, NetError> {
    const WHAT: &str = "PortCounters.NAME=VALUE, or PortCountersExtended.NAME=VALUE";
    let before = *cursor;
    let word = cursor.until(char::is_whitespace);
    let found = (|| {
        let (name, value) = word.split_once('=')?;
        let (attribute, name) = name.split_once('.')?;
        let is_known = ["PortCounters", "PortCountersExtended"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(attribute));
        is_known.then_some(What::Set(Counter::named(name)?, value.parse().ok()?))
    })();
    found.ok_or_else(|| before.error(Problem::Expected(WHAT)))
}

/// Carries the commands out; what counters begin with.
pub(super) fn carry_out(net: &mut Net, commands: &[Command<'_>]) -> Result<Vec<Preset>, NetError> {
    let named = |(index, node): (usize, &super::NetNode)| (node.name.clone(), index);
    let names: BTreeMap<String, usize> = net.nodes.iter().enumerate().map(named).collect();
    let mut counters = Vec::new();
    for command in commands {
        let index = names.get(command.node);
        let index = *index.ok_or_else(|| command.at.error(Problem::NoNode(Excerpt::of(command.node))))?;
        let node = &net.nodes[index];
        let ports: Vec<u8> = match command.port {
            Some(port) if port > node.ports => {
                let (port, ports) = (Excerpt::of(&port.to_string()), node.ports);
                return Err(command.at.error(Problem::NoPort { port, ports }));
            }
            Some(port) => vec![port],
            None => node.links.keys().copied().collect(),
        };
        for port in ports {
            if let What::Set(counter, value) = command.what {
                counters.push(Preset { node: index, port, counter, value });
                continue;
            }
            let link = net.nodes[index].links.get(&port).copied();
            let link = link.ok_or_else(|| command.at.error(Problem::NoCable))?;
            if let What::Cut(cut) = command.what {
                net.nodes[index].settings_of(port).cut = cut;
                net.nodes[link.peer].settings_of(link.peer_port).cut = cut;
            } else if let What::Drop(ppm) = command.what {
                net.nodes[index].settings_of(port).drop_ppm = ppm;
            }
        }
    }
    Ok(counters)
}
