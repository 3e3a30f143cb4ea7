//! The built-in subnet manager, seen by programs and by the user.

use std::time::Duration;

use fabric::ClientId;
use fabric::net::{Dragonfly, FatTree, Net, NetFile, Torus};
use fabric::sm::SmEvent;
use fabric::umad::UmadHeader;
use wire::Gid;
use wire::mad::sa::{self, DATA, McMemberRecord, PathRecord, SaHeader, attribute, mc_member, path};
use wire::mad::smp::{Smp, attribute as smp_attribute};
use wire::mad::{Header, PortState, SmInfo, SmState, class, method, status};

use crate::support::{World, registration};

const SECOND: Duration = Duration::from_secs(1);

/// A table that the built-in manager does not give.
const VL_ARBITRATION_RECORD: u16 = 0x36;

/// A fabric that the built-in manager has brought up.
pub(crate) fn up(net: &Net, lmc: u8) -> World {
    let mut world = World::of(net);
    world.fabric.start_managers(Duration::ZERO, lmc).unwrap();
    world.pass(SECOND);
    world
}

fn tree() -> World {
    up(&FatTree::new(2, 4).unwrap().net(), 0)
}

/// Cuts a cable or mends it, and lets two seconds pass.
pub(crate) fn set_cut(world: &mut World, (node, port): (&str, u8), cut: bool) {
    world.fabric.set_cut(node, port, cut).unwrap();
    world.fabric.settle(world.now);
    world.pass(2 * SECOND);
}

fn all_active(world: &World) -> bool {
    let census = world.fabric.census();
    census.active_ports == census.linked_ports
}

/// A program that asks the administration.
pub(crate) struct Asker(ClientId, u32);

impl Asker {
    pub(crate) fn client(&self) -> ClientId {
        self.0
    }

    pub(crate) fn new(world: &mut World, host: &str) -> Self {
        Self::of(world, host, false)
    }

    pub(crate) fn of(world: &mut World, host: &str, keeps_memberships: bool) -> Self {
        let client = world.open(host);
        let wanted = fabric::agents::Registration {
            version: sa::VERSION,
            rmpp_version: 1,
            keeps_memberships,
            ..registration(class::SUBN_ADM, &[])
        };
        let agent = world.fabric.register(client, &wanted).unwrap();
        Self(client, agent)
    }

    /// Header and record, or records, of the answer.
    pub(crate) fn ask(
        &self,
        world: &mut World,
        (method, attribute): (u8, u16),
        components: u64,
        record: &[u8],
    ) -> (Header, u16, Vec<u8>) {
        let lid = world.fabric.describe("host0").or(world.fabric.describe("a")).unwrap()[0].ports[0].sm_lid;
        let header = Header {
            base_version: 1,
            class: class::SUBN_ADM,
            class_version: sa::VERSION,
            method,
            transaction_id: 7,
            attribute,
            ..Header::default()
        };
        let mut mad = header.emit().to_vec();
        mad.resize(36, 0);
        mad.extend_from_slice(&SaHeader { components, ..SaHeader::default() }.emit());
        mad.extend_from_slice(record);
        mad.resize(256, 0);
        let umad = UmadHeader { agent: self.1, timeout_ms: 500, lid, qpn: 1, ..UmadHeader::default() };
        world.send(self.0, umad, &mad);
        world.pass(Duration::ZERO);
        let answer = world.read(self.0).unwrap();
        assert_eq!(answer.umad.status, 0);
        let offset = SaHeader::parse(&answer.mad).unwrap().offset;
        (answer.header(), offset, answer.mad[DATA..].to_vec())
    }

    pub(crate) fn path(
        &self,
        world: &mut World,
        components: u64,
        wanted: PathRecord,
    ) -> Result<PathRecord, u16> {
        let asked = (method::GET, attribute::PATH_RECORD);
        let (header, _, record) = self.ask(world, asked, components, &wanted.emit());
        if header.status == 0 { Ok(PathRecord::parse(&record).unwrap()) } else { Err(header.status) }
    }

    pub(crate) fn member(
        &self,
        world: &mut World,
        method: u8,
        host: &str,
        wanted: McMemberRecord,
    ) -> (u16, McMemberRecord) {
        let wanted = McMemberRecord { port_gid: gid(world, host), ..wanted };
        let components = mc_member::JOIN | if wanted.qkey != 0 { mc_member::CREATE } else { 0 };
        let (header, _, record) =
            self.ask(world, (method, attribute::MC_MEMBER_RECORD), components, &wanted.emit());
        (header.status, McMemberRecord::parse(&record).unwrap())
    }
}

pub(crate) fn port(world: &World, host: &str) -> fabric::describe::PortDescription {
    world.fabric.describe(host).unwrap().remove(0).ports.remove(0)
}

pub(crate) fn gid(world: &World, host: &str) -> Gid {
    let port = port(world, host);
    Gid((u128::from(port.gid_prefix) << 64 | u128::from(port.guid)).to_be_bytes())
}

#[test]
fn a_tree_comes_up_and_every_host_has_a_way_to_every_other() {
    let mut world = tree();
    assert!(all_active(&world));
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))).filter(|(a, b)| a != b) {
        let (hops, lost) = world.fabric.trace(&format!("host{from}"), &format!("host{to}")).unwrap();
        assert_eq!((hops.len(), lost), (if from / 2 == to / 2 { 2 } else { 4 }, None), "{from} to {to}");
    }
    let events = world.fabric.take_sm_events();
    assert_eq!(events, [SmEvent::SubnetUp { nodes: 14, ports: 32, since: Duration::ZERO }]);
    let counters = world.fabric.counters();
    assert_eq!((counters.lost, counters.malformed, counters.unexpected, counters.timed_out), (0, 0, 0, 0));
    assert_eq!(world.fabric.deadline(), None, "and nothing goes on");
}

#[test]
fn on_a_torus_every_host_has_a_way_to_every_other() {
    let mut world = up(&"3x3x3".parse::<Torus>().unwrap().net(), 0);
    assert!(all_active(&world));
    for (from, to) in (0..27).flat_map(|from| (0..27).map(move |to| (from, to))).filter(|(a, b)| a != b) {
        let (_, lost) = world.fabric.trace(&format!("host{from}"), &format!("host{to}")).unwrap();
        assert_eq!(lost, None, "{from} to {to}");
    }
}

#[test]
fn on_a_dragonfly_every_host_has_a_way_to_every_other() {
    let mut world = up(&"4,2,2".parse::<Dragonfly>().unwrap().net(), 0);
    assert!(all_active(&world));
    for (from, to) in (0..72).flat_map(|from| (0..72).map(move |to| (from, to))).filter(|(a, b)| a != b) {
        let (_, lost) = world.fabric.trace(&format!("host{from}"), &format!("host{to}")).unwrap();
        assert_eq!(lost, None, "{from} to {to}");
    }
}

#[test]
fn lids_of_the_file_are_kept() {
    let world = tree();
    let written = world.fabric.write_net().replace("lid 6 ", "lid 77 ");
    let file = NetFile::parse(&written, &mut |_, _| Err(String::new())).unwrap();
    let mut again = World::of(&file.net);
    again.fabric.set_lids(&file.lids);
    again.fabric.start_managers(Duration::ZERO, 0).unwrap();
    again.pass(SECOND);
    assert!(all_active(&again));
    assert_eq!(again.fabric.write_net(), written);
    assert!(written.contains("lid 77 "));
}

#[test]
fn a_cut_cable_is_routed_around_and_used_again_when_it_is_mended() {
    let mut world = tree();
    let (hops, _) = world.fabric.trace("host0", "host7").unwrap();
    let (leaf, out) = hops[1].from.clone();
    set_cut(&mut world, (&leaf, out), true);
    let (hops, lost) = world.fabric.trace("host0", "host7").unwrap();
    assert_eq!((hops.len(), lost), (4, None));
    assert_ne!(hops[1].from, (leaf.clone(), out));
    set_cut(&mut world, (&leaf, out), false);
    assert!(all_active(&world));
    assert_eq!(world.fabric.deadline(), None, "all traps are repressed");
}

#[test]
fn hosts_keep_their_lids_when_they_come_back() {
    let mut world = tree();
    let lid = port(&world, "host5").lid;
    set_cut(&mut world, ("leaf2", 2), true);
    let asker = Asker::new(&mut world, "host0");
    let wanted = PathRecord { dlid: lid, slid: port(&world, "host0").lid, ..PathRecord::default() };
    assert_eq!(asker.path(&mut world, path::DLID | path::SLID, wanted), Err(sa::status::NO_RECORDS));
    set_cut(&mut world, ("leaf2", 2), false);
    assert_eq!(port(&world, "host5").lid, lid);
    assert!(all_active(&world));
}

#[test]
fn a_node_that_is_silent_is_configured_when_it_answers_again() {
    let mut world = World::of(&FatTree::new(2, 4).unwrap().net());
    world.fabric.set_frozen("host3", true).unwrap();
    world.fabric.start_managers(Duration::ZERO, 0).unwrap();
    world.pass(5 * SECOND);
    assert_eq!(world.fabric.census().active_ports, 30);
    world.fabric.set_frozen("host3", false).unwrap();
    world.pass(20 * SECOND);
    assert!(all_active(&world));
}

#[test]
fn a_lossy_cable_only_delays() {
    let mut world = World::of(&FatTree::new(2, 8).unwrap().net());
    for leaf in 0..8 {
        for port in 1..=8 {
            world.fabric.set_drop(&format!("leaf{leaf}"), port, 50_000).unwrap();
        }
    }
    world.fabric.start_managers(Duration::ZERO, 0).unwrap();
    world.pass(60 * SECOND);
    assert!(all_active(&world));
    assert!(world.fabric.counters().retried > 0);
}

#[test]
fn subnets_without_a_link_between_them_have_a_manager_each() {
    let net = Net::parse(
        "Switch 2 \"s\"\n[1] \"a\"[1]\nCa 2 \"a\"\n[2] \"t\"[1]\nSwitch 2 \"t\"\n[2] \"b\"[1]\nCa 1 \"b\"",
    );
    let mut world = up(&net.unwrap(), 0);
    assert!(all_active(&world));
    assert_eq!(world.fabric.sm_status().unwrap().masters, 2, "no adapter joins them");
    let mut pair = up(&Net::parse("Ca 1 \"a\"\n[1] \"b\"[1]\nCa 1 \"b\"").unwrap(), 0);
    assert!(all_active(&pair));
    assert_eq!(pair.fabric.trace("a", "b").unwrap().0.len(), 1);
    assert_eq!(world.fabric.take_sm_events().len(), 2);
    // Both planes have the same LIDs.
    let planes = "Switch 2 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\nSwitch 2 \"t\"\n[1] \"c\"[1]\n[2] \"d\"[1]\n\
                  Ca 1 \"a\"\nCa 1 \"b\"\nCa 1 \"c\"\nCa 1 \"d\"";
    let mut planes = up(&Net::parse(planes).unwrap(), 0);
    let mut lost = |from, to| planes.fabric.trace(from, to).unwrap().1;
    assert_eq!([lost("a", "b"), lost("c", "d")], [None; 2]);
    for (from, to) in [("a", "c"), ("a", "d"), ("d", "b")] {
        assert!(lost(from, to).is_some(), "{from} to {to}");
    }
}

#[test]
fn path_records_are_the_ways_of_the_tables() {
    let mut world = tree();
    let asker = Asker::new(&mut world, "host0");
    let (dgid, sgid) = (gid(&world, "host7"), gid(&world, "host0"));
    let wanted = PathRecord { dgid, sgid, ..PathRecord::default() };
    let record = asker.path(&mut world, path::DGID | path::SGID, wanted).unwrap();
    assert_eq!((record.slid, record.dlid), (port(&world, "host0").lid, port(&world, "host7").lid));
    // 4,096 bytes, 4 lanes of EDR, both ways.
    assert_eq!((record.mtu, record.rate, record.pkey), (0x85, 0x90, 0xffff));
    assert_eq!((record.dgid, record.sgid, record.reversible_and_count), (dgid, sgid, 0x80));
    let fast = PathRecord { rate: 16, ..wanted };
    let components = path::DGID | path::SGID | path::RATE | path::RATE_SELECTOR;
    assert_eq!(asker.path(&mut world, components, fast), Err(sa::status::NO_RECORDS), "more than it has");
    let unknown = PathRecord { dgid: Gid([0xfe; 16]), ..wanted };
    assert_eq!(asker.path(&mut world, path::DGID | path::SGID, unknown), Err(sa::status::INVALID_GID));
    let other = PathRecord { pkey: 5, ..wanted };
    assert_eq!(
        asker.path(&mut world, path::DGID | path::SGID | path::PKEY, other),
        Err(sa::status::NO_RECORDS)
    );
}

#[test]
fn all_records_of_a_kind_come_in_one_answer() {
    let mut world = tree();
    let asker = Asker::new(&mut world, "host0");
    for (attribute, bytes, records) in [
        (attribute::NODE_RECORD, 108, 14),
        (attribute::PORT_INFO_RECORD, 68, 32 + 6),
        (attribute::SWITCH_INFO_RECORD, 24, 6),
        (attribute::LINK_RECORD, 6, 32),
        (attribute::SM_INFO_RECORD, 32, 1),
        (attribute::PATH_RECORD, 64, 14 * 14),
        (attribute::MC_MEMBER_RECORD, 52, 1),
        (attribute::PKEY_TABLE_RECORD, 72, 14),
        (attribute::SERVICE_RECORD, 176, 0),
    ] {
        let (header, offset, answer) = asker.ask(&mut world, (sa::method::GET_TABLE, attribute), 0, &[]);
        let padded = usize::div_ceil(bytes, 8) * 8;
        assert_eq!((header.method, header.status), (sa::method::GET_TABLE_RESP, 0), "{attribute:#x}");
        let padded = if records == 0 { 0 } else { padded };
        assert_eq!((usize::from(offset) * 8, answer.len()), (padded, padded * records), "{attribute:#x}");
    }
    let lid = port(&world, "host5").lid.to_be_bytes();
    let (_, _, one) = asker.ask(&mut world, (sa::method::GET_TABLE, attribute::NODE_RECORD), 1, &lid);
    assert_eq!((one.len(), &one[..2]), (112, &lid[..]));
    assert!(one[44..].starts_with(b"host5 mlx5_0"));
    let (header, ..) = asker.ask(&mut world, (method::GET, VL_ARBITRATION_RECORD), 0, &[]);
    assert_eq!(header.status, status::BAD_ATTRIBUTE, "what is not built is refused");
    let (header, ..) = asker.ask(&mut world, (method::GET, attribute::NODE_RECORD), 0, &[]);
    assert_eq!(header.status, sa::status::TOO_MANY_RECORDS);
    let (header, ..) = asker.ask(&mut world, (method::GET, attribute::NODE_RECORD), 1 << 40, &[]);
    assert_eq!(header.status, sa::status::INVALID, "a component that is none");
}

/// The mask of the first multicast LID but that of broadcasts, of a switch's ports below 16.
fn mask(world: &mut World, who: (ClientId, u32), path: &[u8]) -> u16 {
    let block = world.get(who, path, smp_attribute::MULTICAST_FORWARDING, 0).unwrap();
    u16::from_be_bytes([block.data[2], block.data[3]])
}

#[test]
fn tables_lead_a_group_to_its_members_and_no_further() {
    let mut world = tree();
    let asker = Asker::new(&mut world, "host0");
    let who = world.prober("host0");
    let mut mgid = Gid([0; 16]);
    mgid.0[..2].copy_from_slice(&[0xff, 0x12]);
    mgid.0[15] = 9;
    let join = McMemberRecord { mgid, join_state: 1, ..McMemberRecord::default() };
    assert_eq!(
        asker.member(&mut world, method::SET, "host0", join).0,
        sa::status::INSUFFICIENT_COMPONENTS,
        "nothing says what the group is to be"
    );
    let make = McMemberRecord { qkey: 5, pkey: 0xffff, ..join };
    let (status, made) = asker.member(&mut world, method::SET, "host0", make);
    assert_eq!((status, made.mlid, made.join_state, made.qkey), (0, 0xc001, 1, 5));
    // leaf0 has host0 at port 1, host1 at port 2, spines at 3 and 4; leaf3 has host6.
    assert_eq!(mask(&mut world, who, &[1]), 1 << 1);
    assert_eq!(asker.member(&mut world, method::SET, "host6", join).0, 0);
    let leaf = mask(&mut world, who, &[1]);
    assert_eq!((leaf & 0b111, leaf.count_ones()), (1 << 1, 2), "the host and one spine");
    let spine = if leaf & 1 << 3 != 0 { 3 } else { 4 };
    assert_eq!(mask(&mut world, who, &[1, spine]), 1 << 1 | 1 << 4, "leaf0 and leaf3");
    assert_eq!(mask(&mut world, who, &[1, spine, 2]), 0, "leaf1 has none");
    let sender = McMemberRecord { join_state: 4, ..join };
    assert_eq!(asker.member(&mut world, method::SET, "host2", sender).0, 0);
    assert_eq!(mask(&mut world, who, &[1, spine, 2]).count_ones(), 1, "a way for its sender, and none back");
    for (host, state) in [("host0", join), ("host6", join)] {
        assert_eq!(asker.member(&mut world, sa::method::DELETE, host, state).0, 0);
    }
    assert_eq!(asker.member(&mut world, sa::method::DELETE, "host6", join).0, sa::status::INVALID);
    for path in [&[1][..], &[1, spine], &[1, spine, 2], &[1, spine, 4]] {
        assert_eq!(mask(&mut world, who, path), 0, "the group is gone: {path:?}");
    }
}

#[test]
fn a_port_is_in_a_group_as_long_as_one_of_its_programs_is() {
    let mut world = tree();
    let [one, two] = [(); 2].map(|()| Asker::of(&mut world, "host0", true));
    let who = world.prober("host0");
    let mgid = Gid([0xff; 16]);
    let join = McMemberRecord { mgid, join_state: 1, qkey: 5, pkey: 0xffff, ..McMemberRecord::default() };
    let sends = McMemberRecord { join_state: 8, ..join };
    for (asker, join) in [(&one, join), (&two, join), (&two, sends)] {
        assert_eq!(asker.member(&mut world, method::SET, "host0", join).0, 0);
    }
    // leaf0 has host0 at port 1.
    assert_eq!(mask(&mut world, who, &[1]), 1 << 1);
    assert_eq!(one.member(&mut world, sa::method::DELETE, "host0", join).0, 0);
    assert_eq!(mask(&mut world, who, &[1]), 1 << 1, "the other program is a member");
    assert_eq!(two.member(&mut world, sa::method::DELETE, "host0", join).0, 0);
    assert_eq!(mask(&mut world, who, &[1]), 0, "what is left only sends");
    assert_eq!(one.member(&mut world, method::SET, "host0", join).0, 0);
    assert_eq!(mask(&mut world, who, &[1]), 1 << 1);
    // Programs that end have left.
    world.fabric.close(one.0);
    world.fabric.settle(world.now);
    world.pass(SECOND);
    assert_eq!(mask(&mut world, who, &[1]), 0);
    world.fabric.close(two.0);
    world.fabric.settle(world.now);
    world.pass(SECOND);
    let other = Asker::new(&mut world, "host2");
    let joins_only = McMemberRecord { qkey: 0, ..join };
    let (status, _) = other.member(&mut world, method::SET, "host2", joins_only);
    assert_eq!(status, sa::status::INSUFFICIENT_COMPONENTS, "the group is gone");
    assert_eq!(world.fabric.counters().unexpected, 0);
}

/// A manager of a few lines: it answers for its state, and notes that it was given the subnet.
struct Other {
    client: ClientId,
    directed: u32,
    by_lid: u32,
    info: SmInfo,
    was_given: bool,
}

impl Other {
    fn new(world: &mut World, host: &str, priority: u8) -> Self {
        // As OpenSM does it: its port tells of it before it takes requests.
        let at = world.fabric.port_of_host(host, "", 1).unwrap();
        world.fabric.set_is_sm(at, true);
        world.fabric.settle(world.now);
        world.pass(SECOND / 10);
        let client = world.open(host);
        let mut register =
            |class, methods: &[u8]| world.fabric.register(client, &registration(class, methods)).unwrap();
        let methods = [method::GET, method::SET];
        let directed = register(class::SUBN_DIRECTED_ROUTE, &methods);
        let by_lid = register(class::SUBN_LID_ROUTED, &methods);
        let guid = port(world, host).guid;
        let info = SmInfo { guid, priority, state: SmState::Standby, ..SmInfo::default() };
        Self { client, directed, by_lid, info, was_given: false }
    }

    /// Lives for a second, and answers.
    fn pass(&mut self, world: &mut World) {
        for _ in 0..20 {
            world.pass(SECOND / 20);
            while let Some(message) = world.read(self.client) {
                let Ok(mut smp) = Smp::parse(&message.mad) else { continue };
                if smp.header.is_response() {
                    continue;
                }
                if smp.header.method == method::SET && smp.header.modifier == SmInfo::HANDOVER {
                    (self.was_given, self.info.state) = (true, SmState::Master);
                }
                smp.header.method = method::GET_RESP;
                smp.data = self.info.emit();
                let is_directed = smp.header.class == class::SUBN_DIRECTED_ROUTE;
                let agent = if is_directed { self.directed } else { self.by_lid };
                let to = UmadHeader { agent, lid: message.umad.lid, ..UmadHeader::default() };
                world.send(self.client, to, &smp.emit());
            }
        }
    }
}

#[test]
fn the_subnet_is_handed_to_a_manager_of_higher_priority_and_taken_again_when_that_is_silent() {
    let mut world = tree();
    world.fabric.take_sm_events();
    let mut other = Other::new(&mut world, "host4", 3);
    other.pass(&mut world);
    other.pass(&mut world);
    assert!(other.was_given);
    assert_eq!(world.fabric.sm_status().unwrap().masters, 0);
    let guid = other.info.guid;
    assert_eq!(world.fabric.take_sm_events(), [SmEvent::GaveWay { guid, priority: 3 }]);
    for _ in 0..10 {
        other.pass(&mut world);
    }
    assert_eq!(world.fabric.sm_status().unwrap().masters, 0, "as long as it answers");
    world.fabric.close(other.client);
    let at = world.fabric.port_of_host("host4", "", 1).unwrap();
    world.fabric.set_is_sm(at, false);
    world.pass(10 * SECOND);
    assert_eq!(world.fabric.sm_status().unwrap().masters, 1);
    assert!(matches!(world.fabric.take_sm_events()[..], [SmEvent::SubnetUp { nodes: 14, ports: 32, .. }]));
}

#[test]
fn a_manager_of_equal_priority_and_a_higher_guid_stands_by() {
    let mut world = tree();
    let mut other = Other::new(&mut world, "host4", 0);
    other.info.guid = u64::MAX;
    other.pass(&mut world);
    other.pass(&mut world);
    assert_eq!((other.was_given, world.fabric.sm_status().unwrap().masters), (false, 1));
}

#[test]
fn what_a_manager_says_of_itself_is_read_by_a_program() {
    let mut world = tree();
    let client = world.open("host2");
    let agent = world.fabric.register(client, &registration(class::SUBN_LID_ROUTED, &[])).unwrap();
    let smp = world.smp(&[], method::GET, smp_attribute::SM_INFO, 0);
    let header = Header { class: class::SUBN_LID_ROUTED, ..smp.header };
    let lid = port(&world, "host2").sm_lid;
    let umad = UmadHeader { agent, timeout_ms: 500, lid, ..UmadHeader::default() };
    world.send(client, umad, &Smp { header, dr_slid: 0, dr_dlid: 0, ..smp }.emit());
    world.pass(Duration::ZERO);
    let info = SmInfo::parse(&Smp::parse(&world.read(client).unwrap().mad).unwrap().data).unwrap();
    assert_eq!((info.state, info.priority), (SmState::Master, 0));
    assert_eq!(port(&world, "host2").state, PortState::Active as u8);
}
