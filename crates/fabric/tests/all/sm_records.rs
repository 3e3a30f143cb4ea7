//! What the built-in subnet manager gives beside single LIDs and one partition: LIDs by LMC,
//! partitions of the net file, service records.

use std::time::Duration;

use fabric::net::{FatTree, NetFile};
use wire::Gid;
use wire::mad::method;
use wire::mad::sa::{self, McMemberRecord, PathRecord, attribute, path, service};
use wire::mad::smp::attribute as smp_attribute;

use crate::sm::{Asker, gid, port, set_cut, up};
use crate::support::World;

const PARTITIONED: &str = "\
Switch 4 \"leaf\"
[1] \"a\"[1]
[2] \"b\"[1]
[3] \"c\"[1]
[4] \"d\"[1]

Ca 1 \"a\"
[1] \"leaf\"[1]
#verbena pkeys=0x8001,0x0002
Ca 1 \"b\"
[1] \"leaf\"[2]
#verbena pkeys=0x0001,0x8003
Ca 1 \"c\"
[1] \"leaf\"[3]
#verbena pkeys=0x0001
Ca 1 \"d\"
";

fn partitioned() -> World {
    let file = NetFile::parse(PARTITIONED, &mut |_, _| Err(String::new())).unwrap();
    up(&file.net, 0)
}

/// The P_Key of the path between two hosts.
fn pkey(world: &mut World, from: &str, to: &str, wanted: Option<u16>) -> Result<u16, u16> {
    let asker = Asker::new(world, from);
    let (sgid, dgid) = (gid(world, from), gid(world, to));
    let record = PathRecord { sgid, dgid, pkey: wanted.unwrap_or_default(), ..PathRecord::default() };
    let components = path::SGID | path::DGID | wanted.map_or(0, |_| path::PKEY);
    let found = asker.path(world, components, record).map(|path| path.pkey);
    world.fabric.close(asker.client());
    found
}

#[test]
fn ports_have_the_partitions_of_the_file_and_no_path_leads_from_one_to_another() {
    let mut world = partitioned();
    let of = |host| port(&world, host).pkeys.iter().copied().filter(|key| *key != 0).collect::<Vec<_>>();
    // The default partition is added, for questions to the administration.
    assert_eq!(of("a"), [0x8001, 0x0002, 0x7fff]);
    assert_eq!((of("b"), of("c")), (vec![0x0001, 0x8003, 0x7fff], vec![0x0001, 0x7fff]));
    assert_eq!(of("d"), [0xffff]);
    let none = Err(sa::status::NO_RECORDS);
    for (from, to, wanted, expected) in [
        ("a", "b", None, Ok(0x8001)),
        ("b", "a", None, Ok(0x0001)),
        ("b", "c", None, none),
        ("b", "d", None, Ok(0x7fff)),
        ("a", "b", Some(0x0001), Ok(0x8001)),
        ("a", "b", Some(0x8003), none),
        ("b", "b", Some(0x8003), Ok(0x8003)),
    ] {
        assert_eq!(pkey(&mut world, from, to, wanted), expected, "{from} to {to} by {wanted:?}");
    }
}

#[test]
fn the_switch_keeps_ports_to_the_partitions_of_the_file() {
    let mut world = partitioned();
    let who = world.prober("d");
    for (number, enforcement, keys) in
        [(1, 12, [0x80, 1, 0, 2, 0x7f, 0xff]), (4, 0, [0xff, 0xff, 0, 0, 0, 0])]
    {
        assert_eq!(world.port_info(who, &[1], number).enforcement, enforcement, "port {number}");
        let table = world.get(who, &[1], smp_attribute::PKEY_TABLE, number << 16).unwrap();
        assert_eq!(table.data[..6], keys, "port {number}");
    }
    // A port that comes back is as it was.
    set_cut(&mut world, ("leaf", 1), true);
    set_cut(&mut world, ("leaf", 1), false);
    assert_eq!(world.port_info(who, &[1], 1).enforcement, 12);
    assert_eq!(pkey(&mut world, "a", "b", None), Ok(0x8001));
}

#[test]
fn members_of_a_partition_alone_join_its_groups() {
    let mut world = partitioned();
    let asker = Asker::new(&mut world, "a");
    let mgid = Gid([0xff; 16]);
    let join = McMemberRecord { mgid, join_state: 1, qkey: 5, pkey: 0x8001, ..McMemberRecord::default() };
    let not_there = McMemberRecord { pkey: 0x8009, ..join };
    assert_eq!(asker.member(&mut world, method::SET, "a", not_there).0, sa::status::INVALID);
    assert_eq!(asker.member(&mut world, method::SET, "a", join).0, 0);
    assert_eq!(asker.member(&mut world, method::SET, "b", join).0, 0);
    assert_eq!(asker.member(&mut world, method::SET, "d", join).0, sa::status::INVALID);
}

#[test]
fn partitions_of_a_file_stand_in_the_one_that_is_written_and_what_is_none_is_refused() {
    let world = partitioned();
    let written = world.fabric.write_net();
    assert_eq!(written.matches("#verbena pkeys=0x8001,0x0002\n").count(), 1, "{written}");
    let read = |text: &str| NetFile::parse(text, &mut |_, _| Err(String::new()));
    assert_eq!(World::of(&read(&written).unwrap().net).fabric.write_net().matches("pkeys=").count(), 3);
    let many = (1..33).map(|key| format!("{key:#x}")).collect::<Vec<_>>().join(",");
    for bad in ["", "1", "0x0", "0x8000", "0x1,0x8001", "0x1,", "0x10000", many.as_str()] {
        let text = PARTITIONED.replace("0x8001,0x0002", bad);
        let error = read(&text).unwrap_err().to_string();
        assert_eq!(error, "line 9, column 10: \"pkeys\" does not have such a value", "{bad}");
    }
    let of_a_switch = PARTITIONED.replace("[2] \"b\"[1]\n", "[2] \"b\"[1]\n#verbena pkeys=0x8001\n");
    let error = read(&of_a_switch).unwrap_err().to_string();
    assert!(error.contains("ports of adapters alone have addresses and P_Keys"), "{error}");
}

#[test]
fn by_an_lmc_a_port_has_several_lids_whose_ways_differ() {
    let mut world = up(&FatTree::new(2, 4).unwrap().net(), 2);
    let lids = |world: &World, host: &str| (port(world, host).lid, port(world, host).lmc);
    let (own, other) = (lids(&world, "host0"), lids(&world, "host7"));
    assert_eq!((own.0 % 4, own.1, other.0 % 4, other.1), (0, 2, 0, 2));
    assert_eq!(port(&world, "leaf0").lmc, 0);
    let asker = Asker::new(&mut world, "host0");
    let wanted =
        PathRecord { sgid: gid(&world, "host0"), dgid: gid(&world, "host7"), ..PathRecord::default() };
    let asked = (sa::method::GET_TABLE, attribute::PATH_RECORD);
    let (_, _, answer) = asker.ask(&mut world, asked, path::SGID | path::DGID, &wanted.emit());
    let paths = answer.as_chunks::<64>().0.iter().map(|record| PathRecord::parse(record).unwrap());
    let paths: Vec<_> = paths.map(|path| (path.slid, path.dlid)).collect();
    assert_eq!(paths, (0..4).map(|n| (own.0 + n, other.0 + n)).collect::<Vec<_>>());
    let one = PathRecord { dlid: other.0 + 3, slid: own.0 + 1, ..PathRecord::default() };
    let found = asker.path(&mut world, path::SLID | path::DLID, one).unwrap();
    assert_eq!((found.slid, found.dlid), (own.0 + 1, other.0 + 3));
    // The leaf's ports 3 and 4 lead to the two spines.
    let who = world.prober("host0");
    let table = world.get(who, &[1], smp_attribute::LINEAR_FORWARDING, u32::from(other.0 / 64)).unwrap();
    let begin = usize::from(other.0 % 64);
    let mut out = table.data[begin..begin + 4].to_vec();
    out.sort_unstable();
    assert_eq!(out, [3, 3, 4, 4]);
    set_cut(&mut world, ("leaf3", 2), true);
    set_cut(&mut world, ("leaf3", 2), false);
    assert_eq!(lids(&world, "host7"), other);
}

#[test]
fn what_was_joined_before_clients_registered_again_keeps_no_port_in_a_group() {
    let mut world = up(&FatTree::new(2, 4).unwrap().net(), 0);
    let [stale, other] = [(); 2].map(|()| Asker::of(&mut world, "host0", true));
    let join = McMemberRecord {
        mgid: Gid([0xff; 16]),
        join_state: 1,
        qkey: 5,
        pkey: 0xffff,
        ..McMemberRecord::default()
    };
    assert_eq!(stale.member(&mut world, method::SET, "host0", join).0, 0);
    // As a manager does that has just become the master.
    let who = world.prober("host0");
    assert_eq!(world.change(who, (&[], 1), |info| info.client_reregister = true), 0);
    assert_eq!(other.member(&mut world, method::SET, "host0", join).0, 0);
    assert_eq!(other.member(&mut world, sa::method::DELETE, "host0", join).0, 0);
    let joins_only = McMemberRecord { qkey: 0, ..join };
    let asker = Asker::new(&mut world, "host2");
    let (status, _) = asker.member(&mut world, method::SET, "host2", joins_only);
    assert_eq!(status, sa::status::INSUFFICIENT_COMPONENTS, "the group is gone");
}

/// A service of a host with a lease of so many seconds, and its key.
fn record(world: &World, host: &str, lease: u32, key: u8) -> [u8; 176] {
    let mut record = [0; 176];
    record[7] = 9;
    record[8..24].copy_from_slice(&gid(world, host).0);
    record[24..26].copy_from_slice(&[0xff, 0xff]);
    record[28..32].copy_from_slice(&lease.to_be_bytes());
    record[32..48].fill(key);
    record[48..51].copy_from_slice(b"mpi");
    record[112] = 77;
    record
}

#[test]
fn a_service_is_found_until_its_lease_ends_or_its_program_removes_it() {
    let mut world = up(&FatTree::new(2, 4).unwrap().net(), 0);
    let asker = Asker::new(&mut world, "host0");
    let all = service::NAMES | service::PKEY | service::LEASE | service::KEY | service::NAME;
    let ask = |world: &mut World, method: u8, components: u64, record: &[u8]| {
        let (header, _, answer) = asker.ask(world, (method, attribute::SERVICE_RECORD), components, record);
        if header.status == 0 { Ok(answer[..176].to_vec()) } else { Err(header.status) }
    };
    let own = record(&world, "host0", 10, 5);
    assert_eq!(ask(&mut world, method::SET, all, &own), Ok(record(&world, "host0", 10, 0).to_vec()));
    world.pass(Duration::from_secs(4));
    let found = ask(&mut world, method::GET, service::NAME, &own).unwrap();
    assert_eq!(found, record(&world, "host0", 6, 0), "what is left of the lease, without the key");
    assert_eq!(
        ask(&mut world, method::GET, service::KEY, &own).map(|found| found[..26] == own[..26]),
        Ok(true)
    );
    // The first byte of data is the component of bit 7.
    let mut other = own;
    other[112] = 78;
    assert_eq!(ask(&mut world, method::GET, 1 << 7, &other), Err(sa::status::NO_RECORDS));
    other[32..48].fill(6);
    for method in [method::SET, sa::method::DELETE] {
        assert_eq!(ask(&mut world, method, all, &other), Err(sa::status::INVALID), "another key");
    }
    let partition = service::NAMES | service::PKEY;
    other[24..26].copy_from_slice(&[0x80, 1]);
    assert_eq!(ask(&mut world, method::SET, partition, &other), Err(sa::status::INVALID), "no member");
    other[8] = 1;
    other[23] = 0xff;
    assert_eq!(ask(&mut world, method::SET, service::NAMES, &other), Err(sa::status::INVALID_GID));
    assert_eq!(ask(&mut world, method::SET, service::ID, &own), Err(sa::status::INSUFFICIENT_COMPONENTS));
    world.pass(Duration::from_secs(6));
    assert_eq!(ask(&mut world, method::GET, service::NAME, &own), Err(sa::status::NO_RECORDS));
    let lasting = record(&world, "host0", u32::MAX, 0);
    let without_lease = all & !service::LEASE;
    assert_eq!(ask(&mut world, method::SET, without_lease, &own), Ok(lasting.to_vec()));
    world.pass(Duration::from_secs(1_000_000));
    assert_eq!(ask(&mut world, sa::method::DELETE, all, &own), Ok(lasting.to_vec()));
    assert_eq!(ask(&mut world, sa::method::DELETE, all, &own), Err(sa::status::NO_RECORDS));
}
