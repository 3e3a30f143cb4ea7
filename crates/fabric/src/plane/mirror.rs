//! The fabric's own end of a plane: what it writes there when a port or a table has changed, and
//! how it adds the rows of programs up to the counters of ports.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;

use wire::Mtu;
use wire::mad::smp::Data;
use wire::mad::{PhysicalState, PortState, Trap};

use super::rows::{Row, RowId};
use super::way::End;
use super::{Layout, MAGIC, NODES_AND_PORTS, NodeWord, Plane, PortWord, SEED, SWITCHES_AND_ROWS};
use crate::fabric::Fabric;
use crate::subnet::{NodeId, PortId, Subnet};

/// Bits of PortInfo's enforcement (IBA 1.4 §14.2.5.6).
pub(crate) const ENFORCES_IN: u8 = 8;
pub(crate) const ENFORCES_OUT: u8 = 4;

/// The words of a plane, which other processes may have mapped.
pub type Words = Arc<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// The plane of a fabric.
pub(crate) struct Mirror {
    words: Words,
    layout: Layout,
    /// The number of the tables of each switch.
    switches: Vec<Option<u32>>,
    /// What of each row was added up: packets and words.
    added: Vec<(u64, u64)>,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// What has been written to tables since the plane was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenBlock {
    pub(crate) node: NodeId,
    pub(crate) block: Block,
}

/// A block of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Block {
    /// Of a linear one, 64 LIDs from this one on.
    Linear(u16),
    /// Of a multicast one, by its modifier.
    Multicast(u32),
}

impl Mirror {
    fn new(subnet: &Subnet, layout: Layout, words: Words, seed: u64) -> Self {
        let mut next = 0..;
        let switches = subnet.nodes.iter().map(|node| node.switch.as_ref().and_then(|_| next.next()));
        let mirror = Self { switches: switches.collect(), words, layout, added: Vec::new() };
        let plane = mirror.plane();
        plane.store(NODES_AND_PORTS, u64::from(layout.nodes) | u64::from(layout.ports) << 32);
        plane.store(SWITCHES_AND_ROWS, u64::from(layout.switches) | u64::from(layout.rows) << 32);
        plane.store(SEED, seed);
        for (number, node) in subnet.nodes.iter().enumerate() {
            let switch = mirror.switches[number];
            plane.set_node(number as u32, NodeWord { first: node.first, ports: node.ports, switch });
            if let (Some(switch), Some(tables)) = (switch, &node.switch) {
                plane.set_linear(switch, 0, &tables.linear);
                tables.multicast.iter().for_each(|(key, data)| set_multicast(plane, switch, *key, data));
            }
        }
        subnet.all_ports().for_each(|at| write_port(plane, subnet, at));
        if let Some(magic) = (*mirror.words).as_ref().first() {
            magic.store(MAGIC, Release);
        }
        plane.publish();
        mirror
    }

    fn plane(&self) -> Plane<'_> {
        Plane::new((*self.words).as_ref(), self.layout)
    }

    /// Writes what has changed.
    fn follow(&self, subnet: &Subnet, written: &[WrittenBlock]) {
        let plane = self.plane();
        for at in &subnet.changed {
            write_port(plane, subnet, *at);
        }
        for WrittenBlock { node, block } in written {
            let tables = subnet.node(*node).switch.as_ref().zip(self.switches[node.0 as usize]);
            let Some((tables, switch)) = tables else { continue };
            match block {
                Block::Linear(lid) => {
                    let begin = usize::from(*lid).min(tables.linear.len());
                    let end = (begin + 64).min(tables.linear.len());
                    plane.set_linear(switch, begin, &tables.linear[begin..end]);
                }
                Block::Multicast(key) => {
                    let data = tables.multicast.get(key).into_iter();
                    data.for_each(|data| set_multicast(plane, switch, *key, data));
                }
            }
        }
        if !subnet.changed.is_empty() || !written.is_empty() {
            plane.publish();
        }
    }

    /// Adds up what rows say more than before. Rows that were given back are free from now on, and
    /// so are those of a program that has ended.
    fn fold(&mut self, subnet: &mut Subnet, ended: Option<u32>) {
        let words = self.words.clone();
        let plane = Plane::new((*words).as_ref(), self.layout);
        ended.into_iter().for_each(|program| plane.remove_members_of(program));
        for id in plane.used_rows() {
            let Some(owner) = plane.row_owner(id) else { continue };
            let has_ended = ended == Some(owner);
            let row = plane.row(id);
            if let Some(row) = &row {
                self.add(subnet, id, row);
            }
            if has_ended || row.is_some_and(|row| row.is_given_back) {
                if let Some(added) = self.added.get_mut(id.index()) {
                    *added = (0, 0);
                }
                plane.free(id);
            }
        }
    }

    fn add(&mut self, subnet: &mut Subnet, id: RowId, row: &Row) {
        if self.added.len() <= id.index() {
            self.added.resize(id.index() + 1, (0, 0));
        }
        let before = self.added[id.index()];
        let (packets, words) = (row.packets.saturating_sub(before.0), row.words.saturating_sub(before.1));
        self.added[id.index()] = (row.packets, row.words);
        if (packets, words) != (0, 0) {
            subnet.add_way(&row.hops, row.end, packets, words);
        }
    }
}

/// Writes a block of a multicast forwarding table: sixteen ports of 32 LIDs (IBA 1.4 §14.2.5.11).
fn set_multicast(plane: Plane<'_>, switch: u32, key: u32, data: &Data) {
    let (position, first) = (key >> 28, key & 0x1ff);
    for (n, ports) in data.as_chunks::<2>().0.iter().enumerate() {
        plane.set_multicast(switch, (first * 32) as u16 + n as u16, position, u16::from_be_bytes(*ports));
    }
}

fn write_port(plane: Plane<'_>, subnet: &Subnet, at: PortId) {
    let word = port_word(subnet, at);
    if word.enforces_in || word.enforces_out {
        plane.set_pkeys(at.0, subnet.pkeys_of(at));
    }
    plane.set_port(at.0, word);
}

fn port_word(subnet: &Subnet, at: PortId) -> PortWord {
    let port = subnet.port(at);
    // Of port 0 its own end is the adapter's.
    let is_of_switch = subnet.node_at(at).switch.is_some() && port.number != 0;
    let enforces = |bit: u8| is_of_switch && port.info.enforcement & bit != 0;
    PortWord {
        node: port.node.0,
        peer: port.peer.map(|peer| peer.0),
        lid: port.info.lid,
        lmc: port.info.lmc & 7,
        is_linked: port.info.physical_state == PhysicalState::LinkUp,
        is_active: port.info.state == PortState::Active,
        drop_ppm: port.drop_ppm,
        damage_ppm: port.damage_ppm,
        mtu: Mtu::from_code(port.info.neighbour_mtu).unwrap_or(Mtu::M4096),
        enforces_in: enforces(ENFORCES_IN),
        enforces_out: enforces(ENFORCES_OUT),
    }
}

impl Subnet {
    /// Counts packets that a program has sent at each port of their way.
    fn add_way(&mut self, hops: &[u32], end: End, packets: u64, words: u64) {
        let many = self.ports.len() as u32;
        for out in hops.iter().filter(|out| **out < many) {
            let Some(peer) = self.port(PortId(*out)).peer else { continue };
            self.count_passing(PortId(*out), peer, packets, words);
        }
        let port = match end {
            End::Arrived(_) | End::Astray => return,
            End::Discarded(port) | End::NoRelay(port) | End::Damaged(port) => port,
            End::RefusedOut(port) | End::RefusedIn(port) => port,
        };
        if port >= many {
            return;
        }
        if let End::Damaged(_) = end {
            if let Some(peer) = self.port(PortId(port)).peer {
                self.count_sent(PortId(port), packets, words);
                self.count_damaged(peer, packets);
            }
            return;
        }
        let counters = &mut self.port_mut(PortId(port)).counters;
        let add =
            |counter: &mut u16| *counter = counter.saturating_add(packets.try_into().unwrap_or(u16::MAX));
        let add_few =
            |counter: &mut u8| *counter = counter.saturating_add(packets.try_into().unwrap_or(u8::MAX));
        match end {
            End::Discarded(_) => add(&mut counters.transmit_discards),
            End::RefusedOut(_) => add_few(&mut counters.transmit_constraint_errors),
            End::RefusedIn(_) => add_few(&mut counters.receive_constraint_errors),
            _ => add(&mut counters.switch_relay_errors),
        }
        if matches!(end, End::RefusedOut(_) | End::RefusedIn(_)) {
            self.tell_of_refused(PortId(port));
        }
    }

    /// The switch of a port has refused packets there, and tells its subnet manager (IBA 1.4
    /// §14.2.5.1, trap 259).
    fn tell_of_refused(&mut self, at: PortId) {
        let (node, port) = (self.node_at(at), self.port(at).number);
        if node.switch.is_some() {
            let first = PortId(node.first);
            self.traps.push((first, Trap::BadPkeyAtSwitch { port }));
        }
    }
}

impl Fabric {
    /// Where the parts of the plane of this fabric lie.
    pub fn plane_layout(&self) -> Layout {
        let nodes = &self.subnet.nodes;
        let switches = nodes.iter().filter(|node| node.switch.is_some()).count();
        Layout::new(nodes.len() as u32, self.subnet.ports.len() as u32, switches as u32)
    }

    /// Has the plane in these words, all zero and as many as [`Fabric::plane_layout`] says, follow
    /// the fabric from now on. The dice that senders throw have the fabric's seed.
    pub fn map_plane(&mut self, words: Words) {
        self.map_plane_of(self.plane_layout(), words);
    }

    /// Like [`Fabric::map_plane`], with a layout that has fewer rows.
    pub fn map_plane_of(&mut self, layout: Layout, words: Words) {
        self.plane = Some(Mirror::new(&self.subnet, layout, words, self.seed));
    }

    /// Tells the plane what has changed.
    pub(crate) fn follow_plane(&mut self) {
        let written = std::mem::take(&mut self.subnet.written);
        if let Some(plane) = &self.plane {
            plane.follow(&self.subnet, &written);
        }
    }

    /// Adds up what programs have sent so far to the counters of ports.
    pub fn fold_plane(&mut self) {
        if let Some(plane) = &mut self.plane {
            plane.fold(&mut self.subnet, None);
        }
    }

    /// How often a path of a program had no row, so that its packets are lost.
    pub(crate) fn refused_rows(&self) -> u64 {
        self.plane.as_ref().map_or(0, |mirror| mirror.plane().refused_rows())
    }

    /// A program has ended, or let go of its host: its rows are added up and free.
    pub fn end_program(&mut self, program: u32) {
        if let Some(plane) = &mut self.plane {
            plane.fold(&mut self.subnet, Some(program));
        }
    }
}
