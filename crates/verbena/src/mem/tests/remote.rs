//! Memory that peers reach: handles and registrations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::support::domain;
use crate::error::ErrorKind;
use crate::mem::{Access, IoBuf, Memory, RemoteRead, RemoteWrite, SgeList};

#[test]
fn memory_is_registered_once_in_each_domain() {
    let pd = domain();
    let other = pd.device().new_pd().unwrap();
    let memory = Memory::<RemoteWrite>::zeroed(100).unwrap();
    let (mr, again) = (memory.mr(&pd).unwrap(), memory.clone().mr(&pd).unwrap());
    assert_eq!((mr.remote(), mr.remote().len()), (again.remote(), 100));
    assert_ne!(mr.remote().rkey(), memory.mr(&other).unwrap().remote().rkey());
    let own = memory.mr_with(&pd, Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
    assert_ne!(own.remote().rkey(), mr.remote().rkey());
    let slots = [&mr, &again, &own].map(|mr| mr.remote().rkey() >> 16);
    drop(own);
    assert!(pd.nic().unwrap().region(slots[2]).is_none() && pd.nic().unwrap().region(slots[0]).is_some());
    drop((mr, again));
    assert!(pd.nic().unwrap().region(slots[0]).is_some(), "it is the memory that keeps it");
    drop(memory);
    assert!(pd.nic().unwrap().region(slots[0]).is_none());
}

#[test]
fn a_registration_keeps_the_memory() {
    let pd = domain();
    let memory = Memory::<RemoteRead>::from_bytes(b"kept").unwrap();
    let mr = memory.mr(&pd).unwrap();
    drop(memory);
    assert_eq!(&mr.memory()[..], b"kept");
    assert_eq!(&mr.revoke().unwrap()[..], b"kept");
}

#[test]
fn addresses_are_the_same_in_each_run() {
    let run = || {
        let pd = domain();
        let memory = Memory::<RemoteWrite>::zeroed(5000).unwrap();
        let first = memory.mr(&pd).unwrap().remote();
        [first.addr(), memory.mr_with(&pd, Access::REMOTE_READ).unwrap().remote().addr()]
    };
    assert_eq!(run(), [0x1000_0000, 0x1000_3000]);
    assert_eq!(run(), run());
}

#[test]
fn rights_are_no_more_than_the_memory_has() {
    let pd = domain();
    let frozen = Memory::<RemoteRead>::from_bytes(b"x").unwrap();
    let error = frozen.mr_with(&pd, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    let memory = Memory::<RemoteWrite>::zeroed(8).unwrap();
    assert!(memory.mr_with(&pd, Access::FLUSH_PERSISTENT).is_err(), "no file is behind it");
    assert!(memory.mr_with(&pd, Access::FLUSH_GLOBAL | Access::REMOTE_WRITE).is_ok());
}

#[test]
fn parts_are_inside_and_may_overlap() {
    let pd = domain();
    let memory = Memory::<RemoteWrite>::zeroed(16).unwrap();
    assert!(memory.part(8..17).is_err());
    let both = [memory.part(0..12).unwrap(), memory.part(4..16).unwrap()];
    let mut list = SgeList::new(&pd);
    both.gather(&mut list);
    assert_eq!(list.len(), 24);
    let list = list.finish().unwrap();
    assert_eq!(list.as_slice()[0].addr + 4, list.as_slice()[1].addr);
    assert_eq!(Memory::<RemoteWrite>::zeroed(0).unwrap().part(0..0).unwrap().range(), 0..0);
}

#[test]
fn memory_of_the_program_is_given_back_at_the_end() {
    let pd = domain();
    let words: Box<[AtomicU64]> = (0..4).map(AtomicU64::new).collect();
    let (at, len) = (Box::leak(words).as_mut_ptr(), 32);
    let done = Arc::new(AtomicBool::new(false));
    // SAFETY: both are refused, or nothing is done with them.
    let [odd, short] = unsafe {
        [Memory::from_raw(at.cast::<u8>().wrapping_add(4), 8, || ()), Memory::from_raw(at.cast(), 31, || ())]
    };
    assert!(odd.is_err() && short.is_err());
    // SAFETY: atomics, leaked until `done`.
    let memory = unsafe {
        let (told, at) = (done.clone(), at.expose_provenance());
        Memory::from_raw(std::ptr::with_exposed_provenance_mut(at), len, move || {
            let words = std::ptr::with_exposed_provenance_mut::<[AtomicU64; 4]>(at);
            drop(Box::from_raw(words));
            told.store(true, Ordering::Relaxed);
        })
    }
    .unwrap();
    let part = memory.part(8..16).unwrap();
    let mr = memory.mr(&pd).unwrap();
    assert_eq!(mr.remote().addr() % 8, 0);
    assert_eq!(memory.shared().load::<[u64; 2]>(16).unwrap(), [2, 3]);
    drop((memory, mr));
    assert!(!done.load(Ordering::Relaxed));
    drop(part);
    assert!(done.load(Ordering::Relaxed));
}

#[test]
fn an_empty_file_is_not_mapped() {
    let path = std::env::temp_dir().join(format!("verbena-empty-{}", std::process::id()));
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Memory::map_file(&file).unwrap_err().kind(), ErrorKind::OutOfRange);
    file.set_len(20).unwrap();
    assert_eq!(Memory::map_file(&file).unwrap().len(), 20);
}
