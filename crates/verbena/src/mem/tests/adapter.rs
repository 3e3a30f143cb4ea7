//! What an adapter does to each kind of memory, and what it does not.

use std::sync::atomic::Ordering;

use transport::op::{AtomicOp, SendOp, Status};
use wire::Rkey;
use wire::roce::SendTail;

use super::support::Pair;
use crate::mem::{Access, IoBufMut, Memory, Pool, RegBox, RemoteRead, RemoteWrite};
use crate::remote::RemoteMemory;

const SEND: SendOp = SendOp::Send(SendTail::None);

fn write(to: RemoteMemory) -> SendOp {
    SendOp::Write { addr: to.addr(), rkey: Rkey(to.rkey()), immediate: None }
}
fn read(from: RemoteMemory) -> SendOp {
    SendOp::Read { addr: from.addr(), rkey: Rkey(from.rkey()) }
}

#[test]
fn a_message_goes_from_pieces_to_pieces() {
    let mut pair = Pair::new();
    let (from, to) = (Pool::new(&pair.a.pd, 100, 3).unwrap(), Pool::new(&pair.b.pd, 50, 3).unwrap());
    let frozen = from.copy(&[1; 60]).unwrap().freeze();
    let parts = (frozen.slice(10..40).unwrap(), from.copy(&[2; 60]).unwrap(), frozen);
    let mut into = vec![to.get().unwrap(), to.get().unwrap(), to.get().unwrap()];
    let mut into = (into.remove(0), [into.remove(0), into.remove(0)]);
    pair.b.receive(&into);
    pair.a.post_from(SEND, &parts);
    assert_eq!(pair.status(), Status::Success);
    let came = pair.b.completions();
    assert_eq!((came[0].status, came[0].byte_len, into.capacity_bytes()), (Status::Success, 150, 150));
    into.set_filled(140);
    let all: Vec<u8> = into.0.iter().chain(into.1.iter().flat_map(|buf| buf.iter())).copied().collect();
    let wanted: Vec<u8> = [[1; 30].as_slice(), &[2; 60], &[1; 50]].concat();
    assert_eq!((all, into.1[1].len()), (wanted, 40));
}

#[test]
fn peers_read_what_is_frozen_and_cannot_change_it() {
    let mut pair = Pair::new();
    let memory = Memory::<RemoteRead>::from_bytes(b"for all to see").unwrap();
    let remote = memory.mr(&pair.b.pd).unwrap().remote();
    let pool = Pool::new(&pair.a.pd, 14, 2).unwrap();
    let mut buf = pool.get().unwrap();
    pair.a.post_into(read(remote), &buf);
    assert_eq!(pair.status(), Status::Success);
    buf.set_filled(14);
    assert_eq!(&buf[..], b"for all to see");
    pair.a.post_from(write(remote), &pool.copy(&[0; 14]).unwrap());
    assert_eq!((pair.status(), &memory[..]), (Status::RemoteAccess, &b"for all to see"[..]));
}

#[test]
fn peers_change_what_is_shared() {
    let mut pair = Pair::new();
    let memory = Memory::<RemoteWrite>::zeroed(64).unwrap();
    let remote = memory.mr(&pair.b.pd).unwrap().remote();
    let pool = Pool::new(&pair.a.pd, 64, 2).unwrap();
    pair.a.post_from(write(remote.slice(3..6).unwrap()), &pool.copy(&[1, 2, 3]).unwrap());
    assert_eq!(pair.status(), Status::Success);
    assert_eq!(memory.shared().load::<[u8; 5]>(2).unwrap(), [0, 1, 2, 3, 0]);
    let word = memory.shared().word(56).unwrap();
    word.store(40, Ordering::Release);
    let before = RegBox::new(&pool, 0_u64).unwrap();
    let at = remote.word(56).unwrap();
    let op = SendOp::Atomic { addr: at.addr(), rkey: Rkey(at.rkey()), op: AtomicOp::FetchAdd(2) };
    pair.a.post_into(op, &before);
    assert_eq!((pair.status(), *before, word.load(Ordering::Acquire)), (Status::Success, 40, 42));
}

#[test]
fn a_part_is_source_and_destination_and_grants_peers_nothing() {
    let mut pair = Pair::new();
    let ours = Memory::<RemoteWrite>::zeroed(64).unwrap();
    let theirs = Memory::<RemoteWrite>::zeroed(64).unwrap();
    let remote = theirs.mr(&pair.b.pd).unwrap().remote();
    ours.shared().copy_from(8, b"words").unwrap();
    pair.a.post_from(write(remote), &ours.part(8..13).unwrap());
    assert_eq!(pair.status(), Status::Success);
    let mut part = ours.part(20..30).unwrap();
    pair.a.post_into(read(remote), &part);
    assert_eq!(pair.status(), Status::Success);
    part.set_filled(5);
    assert_eq!((ours.shared().load::<[u8; 5]>(20).unwrap(), part.range()), (*b"words", 20..25));
    // The peer's own local registration, whose key no peer should know: no right for any peer.
    let mut list = crate::mem::SgeList::new(&pair.b.pd);
    crate::mem::IoBuf::gather(&theirs.part(0..8).unwrap(), &mut list);
    let local = list.finish().unwrap().as_slice()[0];
    pair.a.post_from(write(RemoteMemory::from_raw(local.addr, local.lkey.0, 8)), &ours.part(0..8).unwrap());
    assert_eq!(pair.status(), Status::RemoteAccess);
}

#[test]
fn a_key_grants_what_it_was_made_with_until_it_is_revoked() {
    for (revoked, wanted) in [(false, Status::Success), (true, Status::RemoteAccess)] {
        let mut pair = Pair::new();
        let memory = Memory::<RemoteWrite>::zeroed(8).unwrap();
        let mr = memory.mr_with(&pair.b.pd, Access::REMOTE_READ).unwrap();
        let remote = mr.remote();
        let pool = Pool::new(&pair.a.pd, 8, 1).unwrap();
        let mr = if revoked {
            drop(mr);
            None
        } else {
            Some(mr)
        };
        pair.a.post_into(read(remote), &pool.get().unwrap());
        assert_eq!(pair.status(), wanted);
        if mr.is_some() {
            pair.a.post_from(write(remote), &pool.copy(&[1; 8]).unwrap());
            assert_eq!((pair.status(), memory.shared().load(0).unwrap()), (Status::RemoteAccess, 0_u64));
        }
    }
}

#[test]
fn our_own_operations_go_on_when_keys_are_revoked() {
    let mut pair = Pair::new();
    let memory = Memory::<RemoteWrite>::zeroed(8).unwrap();
    let (first, second) = (memory.mr(&pair.b.pd).unwrap(), memory.mr(&pair.b.pd).unwrap());
    assert_eq!(first.remote(), second.remote());
    let remote = first.remote();
    pair.b.receive(&memory.part(0..8).unwrap());
    first.revoke().unwrap();
    let pool = Pool::new(&pair.a.pd, 8, 1).unwrap();
    pair.a.post_from(SEND, &pool.copy(&[5; 8]).unwrap());
    assert_eq!((pair.status(), memory.shared().load(0).unwrap()), (Status::Success, [5_u8; 8]));
    assert_ne!(memory.mr(&pair.b.pd).unwrap().remote(), remote);
    pair.a.post_into(read(remote), &pool.get().unwrap());
    assert_eq!(pair.status(), Status::RemoteAccess);
}

#[test]
fn what_peers_write_is_in_the_file() {
    let mut pair = Pair::new();
    let path = std::env::temp_dir().join(format!("verbena-map-{}", std::process::id()));
    std::fs::write(&path, b"0123456789").unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let memory = Memory::<RemoteWrite>::map_file(&file).unwrap();
    let remote = memory.mr(&pair.b.pd).unwrap().remote();
    let pool = Pool::new(&pair.a.pd, 8, 1).unwrap();
    pair.a.post_from(write(remote.slice(2..4).unwrap()), &pool.copy(b"ab").unwrap());
    assert_eq!(pair.status(), Status::Success);
    memory.shared().copy_from(9, b"z").unwrap();
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(content, b"01ab45678z");
}
