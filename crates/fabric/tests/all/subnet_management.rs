//! The agent of a node as a subnet manager sees it.

use std::time::Duration;

use wire::mad::smp::attribute;
use wire::mad::{NodeInfo, NodeType, PhysicalState, PortInfo, PortState, SwitchInfo, method, status};

use crate::support::World;

#[test]
fn a_node_says_what_it_is_and_by_which_port_it_was_asked() {
    let mut world = World::new();
    let who = world.prober("a");
    let own = NodeInfo::parse(&world.get(who, &[], attribute::NODE_INFO, 0).unwrap().data).unwrap();
    assert_eq!((own.kind, own.ports, own.local_port), (NodeType::Ca, 1, 1));
    let answer = world.get(who, &[1, 3], attribute::NODE_INFO, 0).unwrap();
    let leaf = NodeInfo::parse(&answer.data).unwrap();
    assert_eq!((leaf.kind, leaf.ports, leaf.local_port), (NodeType::Switch, 4, 3));
    assert_eq!((answer.header.status, answer.hop_pointer()), (0x8000, 0));
    assert_eq!(answer.return_path[1..3], [1, 3]);
    let text = world.get(who, &[1, 3, 1], attribute::NODE_DESCRIPTION, 0).unwrap().data;
    assert_eq!(&text[..2], b"c\0");
    let refused = world.get(who, &[], attribute::SWITCH_INFO, 0).unwrap();
    assert_eq!(refused.header.status & !0x8000, status::BAD_ATTRIBUTE);
    assert_eq!(world.get(who, &[], 0x1234, 0).unwrap().header.status & !0x8000, status::BAD_ATTRIBUTE);
}

#[test]
fn a_port_becomes_active_by_way_of_armed_and_in_no_other_way() {
    let mut world = World::new();
    let who = world.prober("a");
    let at: (&[u8], u32) = (&[1], 3);
    assert_eq!(world.port_info(who, at.0, at.1).state, PortState::Init);
    let mut become_state = |state| world.change(who, at, |new| new.state = state);
    assert_eq!(become_state(PortState::Active), status::BAD_FIELD);
    assert_eq!(become_state(PortState::Armed), status::OK);
    assert_eq!(become_state(PortState::Init), status::BAD_FIELD);
    assert_eq!(become_state(PortState::Active), status::OK);
    assert_eq!(become_state(PortState::Armed), status::BAD_FIELD);
    // Down is a link that trains again, at both ends.
    assert_eq!(become_state(PortState::Down), status::OK);
    for path in [&[1][..], &[1, 4]] {
        let info = world.port_info(who, path, 3);
        assert_eq!((info.state, info.physical_state), (PortState::Init, PhysicalState::LinkUp), "{path:?}");
    }
}

#[test]
fn a_disabled_port_has_no_link_until_it_is_enabled() {
    let mut world = World::new();
    let who = world.prober("a");
    let physical = |world: &mut World, state| world.change(who, (&[1], 3), |new| new.physical_state = state);
    assert_eq!(physical(&mut world, PhysicalState::Disabled), status::OK);
    let states = |world: &mut World, path: &[u8]| {
        let info = world.port_info(who, path, 3);
        (info.state, info.physical_state)
    };
    assert_eq!(states(&mut world, &[1]), (PortState::Down, PhysicalState::Disabled));
    assert_eq!(states(&mut world, &[1, 4]), (PortState::Down, PhysicalState::Polling));
    assert!(world.get(who, &[1, 3], attribute::NODE_INFO, 0).is_none());
    assert_eq!(physical(&mut world, PhysicalState::Polling), status::OK);
    assert_eq!(states(&mut world, &[1, 4]), (PortState::Init, PhysicalState::LinkUp));
    assert_eq!(physical(&mut world, PhysicalState::LinkUp), status::BAD_FIELD);
}

#[test]
fn what_a_set_of_port_info_may_not_change_stays() {
    let mut world = World::new();
    let who = world.prober("a");
    let before = world.port_info(who, &[], 1);
    let status = world.change(who, (&[], 1), |new| {
        (new.capabilities, new.mtu_cap, new.guid_cap) = (0, 1, 200);
        (new.width_enabled, new.speed_enabled, new.extended_speed_enabled) = (255, 15, 31);
        (new.lid, new.lmc) = (7, 2);
    });
    let after = world.port_info(who, &[], 1);
    assert_eq!((status, after), (0, PortInfo { lid: 7, lmc: 2, ..before }));
    for wrong in [0xc000, 0xffff] {
        assert_eq!(world.change(who, (&[], 1), |new| new.lid = wrong), status::BAD_FIELD);
    }
    assert_eq!(world.change(who, (&[], 1), |new| new.neighbour_mtu = 6), status::BAD_FIELD);
    let no_port = world.get(who, &[], attribute::PORT_INFO, 9).unwrap();
    assert_eq!(no_port.header.status & !0x8000, status::BAD_FIELD);
}

#[test]
fn tables_are_read_as_they_were_written_and_bounded() {
    let mut world = World::new();
    let who = world.prober("a");
    for (attribute, modifier) in [
        (attribute::LINEAR_FORWARDING, 2),
        (attribute::MULTICAST_FORWARDING, 3),
        (attribute::PKEY_TABLE, 3 << 16),
        (attribute::VL_ARBITRATION, 2 << 16 | 3),
    ] {
        let data = [attribute as u8; 64];
        assert_eq!(world.set(who, &[1], (attribute, modifier), data).unwrap().data, data);
        assert_eq!(world.get(who, &[1], attribute, modifier).unwrap().data, data);
    }
    let vls = world.set(who, &[1], (attribute::SL_TO_VL, 0x0102), [7; 64]).unwrap().data;
    assert_eq!((&vls[..8], &vls[8..]), (&[7; 8][..], &[0; 56][..]));
    let keys = world.get(who, &[], attribute::PKEY_TABLE, 0).unwrap().data;
    assert_eq!(keys[..4], [0xff, 0xff, 0, 0], "the default partition");
    let guids = world.set(who, &[], (attribute::GUID_INFO, 0), [5; 64]).unwrap().data;
    assert_eq!(guids[8..], [5; 56]);
    assert_ne!(guids[..8], [5; 8], "the port's own GUID stays");
    for (attribute, modifier) in [
        (attribute::LINEAR_FORWARDING, 768),
        (attribute::LINEAR_FORWARDING, u32::MAX),
        (attribute::MULTICAST_FORWARDING, 32),
        (attribute::MULTICAST_FORWARDING, 1 << 28),
        (attribute::PKEY_TABLE, 1),
        (attribute::PKEY_TABLE, 9 << 16),
        (attribute::SL_TO_VL, 0x0900),
        (attribute::VL_ARBITRATION, 5 << 16),
    ] {
        let refused = world.get(who, &[1], attribute, modifier).unwrap().header.status;
        assert_eq!(refused & !0x8000, status::BAD_FIELD, "{attribute:#x} {modifier:#x}");
    }
}

#[test]
fn a_changed_port_shows_in_the_switch_until_the_bit_is_cleared() {
    let mut world = World::new();
    let who = world.prober("a");
    let info = |world: &mut World| {
        SwitchInfo::parse(&world.get(who, &[1], attribute::SWITCH_INFO, 0).unwrap().data).unwrap()
    };
    assert!(!info(&mut world).port_state_change);
    world.fabric.set_cut("leaf0", 4, true).unwrap();
    let changed = info(&mut world);
    assert!(changed.port_state_change);
    let kept = SwitchInfo { port_state_change: false, life_time: 3, ..changed };
    world.set(who, &[1], (attribute::SWITCH_INFO, 0), kept.emit()).unwrap();
    assert_eq!((info(&mut world).port_state_change, info(&mut world).life_time), (true, 3));
    world.set(who, &[1], (attribute::SWITCH_INFO, 0), changed.emit()).unwrap();
    assert!(!info(&mut world).port_state_change);
    let too_high = SwitchInfo { linear_top: 0xffff, ..changed };
    let refused = world.set(who, &[1], (attribute::SWITCH_INFO, 0), too_high.emit()).unwrap();
    assert_eq!(refused.header.status & !0x8000, status::BAD_FIELD);
}

/// What a Get and a Set with the wrong key come to: silence, or the key that is shown.
fn with_wrong_key(protection: u8, lease_s: u16) -> (World, (fabric::ClientId, u32), Option<u64>, bool) {
    let mut world = World::new();
    let who = world.prober("a");
    let done = world.change(who, (&[1, 2], 1), |new| {
        (new.m_key, new.m_key_protection, new.m_key_lease_s) = (77, protection, lease_s);
    });
    assert_eq!(done, 0);
    let got = world.get(who, &[1, 2], attribute::PORT_INFO, 1);
    let shown = got.map(|smp| PortInfo::parse(&smp.data).unwrap().m_key);
    let set = world.set(who, &[1, 2], (attribute::PKEY_TABLE, 0), [0; 64]).is_some();
    (world, who, shown, set)
}

#[test]
fn the_m_key_protects_as_its_level_says() {
    for (protection, shown) in [(0, Some(77)), (1, Some(0)), (2, None), (3, None)] {
        let (mut world, who, got, set) = with_wrong_key(protection, 0);
        assert_eq!((got, set), (shown, false), "level {protection}");
        let mut smp = world.smp(&[1, 2], method::GET, attribute::PORT_INFO, 1);
        smp.m_key = 77;
        let info = PortInfo::parse(&world.ask(who, &smp).unwrap().data).unwrap();
        let silences = if shown.is_some() { 1 } else { 2 };
        assert_eq!((info.m_key, info.m_key_violations), (77, silences), "level {protection}");
    }
}

#[test]
fn a_set_that_changes_the_key_is_answered_with_it() {
    let mut world = World::new();
    let who = world.prober("a");
    let info = PortInfo { m_key: 77, m_key_protection: 2, ..world.port_info(who, &[1, 2], 1) };
    let set = PortInfo { state: PortState::NoChange, physical_state: PhysicalState::NoChange, ..info };
    let answer = world.set(who, &[1, 2], (attribute::PORT_INFO, 1), set.emit()).unwrap();
    assert_eq!(PortInfo::parse(&answer.data), Ok(info));
}

#[test]
fn the_protection_ends_with_its_lease() {
    let (mut world, who, shown, _) = with_wrong_key(2, 5);
    assert_eq!(shown, None);
    world.pass(Duration::from_secs(4));
    let info = PortInfo::parse(&world.get(who, &[1, 2], attribute::PORT_INFO, 1).unwrap().data).unwrap();
    assert_eq!((info.m_key, info.m_key_protection), (77, 0));
}
