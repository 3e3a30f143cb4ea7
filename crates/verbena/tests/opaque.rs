//! Memory that is not the processor's: on a device, and dma-bufs, for which a memory file stands.
//! Over what `support` says.
#![cfg(feature = "software")]

mod support;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::thread;

use verbena::prelude::*;
use verbena::{Access, Connection, Device, ErrorKind, Memory, Opaque, RemoteMemory, WcStatus};

/// Both ends of a connection, whose passive one registered this memory for the active one.
fn registered(memory: &Memory<Opaque>) -> (Connection, Connection, RemoteMemory) {
    let listener = support::listen(support::any_port()).wait().unwrap();
    let to = listener.local_addr();
    thread::scope(|s| {
        let active = s.spawn(move || support::connect(to).wait().unwrap());
        let request = listener.blocking_request().unwrap();
        let remote = memory.mr(request.pd()).unwrap().remote();
        let passive = request.accept().wait().unwrap();
        (active.join().unwrap(), passive, remote)
    })
}

fn device() -> Device {
    support::provider().device_of(support::address()).unwrap()
}

/// Memory of the device; None where it has none for programs.
fn on_device(len: usize) -> Option<Memory<Opaque>> {
    match device().alloc_memory(len) {
        Ok(memory) => Some(memory),
        Err(error) => {
            assert!(error.kind() == ErrorKind::Unsupported && !support::is_ours(), "{error}");
            None
        }
    }
}

/// A file in memory of so many pages, each full of its number; None where the device takes no
/// dma-bufs.
fn pages(count: u8) -> Option<(File, OwnedFd)> {
    if !support::is_ours() {
        return None;
    }
    // SAFETY: the name ends; the descriptor is ours alone.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC)) };
    for page in 0..count {
        file.write_all(&[page; 4096]).unwrap();
    }
    let same = file.try_clone().unwrap();
    Some((file, same.into()))
}

#[test]
fn peers_and_operations_reach_memory_of_a_device() {
    let Some(memory) = on_device(4100) else { return };
    assert_eq!(memory.len(), 4100);
    memory.copy_from(4, b"written!").unwrap();
    let (active, passive, remote) = registered(&memory);
    assert_eq!(remote.len(), 4100);
    let (read, seen) = active.read(active.buffer().unwrap(), remote.slice(4..12).unwrap()).wait();
    read.unwrap();
    assert_eq!(seen[..], *b"written!");
    active.write_inline(b"by a peer", remote.slice(4000..4009).unwrap()).wait().unwrap();
    assert_eq!(active.fetch_add(remote.word(16).unwrap(), 7).wait().unwrap(), 0);
    let mut back = [0; 12];
    memory.copy_to(4000, &mut back).unwrap();
    assert_eq!(back[..9], *b"by a peer");
    memory.copy_to(16, &mut back[..8]).unwrap();
    assert_eq!(u64::from_ne_bytes(back[..8].try_into().unwrap()), 7);
    // Operations of its owner's.
    passive.send(memory.part(4..12).unwrap()).wait().buf().unwrap();
    assert_eq!(active.blocking_recv().unwrap().unwrap()[..], *b"written!");
    // The last bytes, which are no whole word.
    memory.copy_from(4096, b"last").unwrap();
    memory.copy_to(4096, &mut back[..4]).unwrap();
    assert_eq!(back[..4], *b"last");
}

#[test]
fn what_can_not_be_copied_or_registered_is_said() {
    let Some(memory) = on_device(64) else { return };
    for (at, len) in [(1, 4), (0, 3), (64, 4), (60, 8), (usize::MAX - 3, 8)] {
        assert_eq!(memory.copy_from(at, &vec![0; len]).unwrap_err().kind(), ErrorKind::OutOfRange);
        assert_eq!(memory.copy_to(at, &mut vec![0; len]).unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(device().alloc_memory(0).unwrap_err().kind(), ErrorKind::OutOfRange);
    let pd = device().pd().unwrap();
    let error = memory.mr_with(&pd, Access::FLUSH_PERSISTENT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    let devices = support::provider().devices().unwrap();
    if let Some(other) = devices.iter().find(|other| **other != device()) {
        let error = memory.mr(&other.pd().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongDomain);
    }
}

#[test]
fn a_devices_memory_is_given_back_in_any_order() {
    let Some(first) = on_device(1 << 20) else { return };
    let pd = device().new_pd().unwrap();
    let mr = first.mr(&pd).unwrap();
    drop(pd);
    drop(first);
    assert_eq!(mr.remote().len(), 1 << 20);
    let memory = mr.revoke().unwrap();
    memory.copy_from(0, &[1; 64]).unwrap();
    drop(memory);
    // As much as there is, again and again.
    for _ in 0..100 {
        let memory = on_device(8 << 20).expect("it was given back");
        assert!(memory.mr(&device().pd().unwrap()).is_ok());
    }
}

#[test]
fn peers_reach_a_dma_buf_from_its_offset_on() {
    let Some((mut file, fd)) = pages(4) else { return };
    let memory = Memory::dmabuf(fd, 4096 + 16, 2 * 4096).unwrap();
    let (active, passive, remote) = registered(&memory);
    let (read, seen) = active.read(active.buffer().unwrap(), remote.slice(4076..4084).unwrap()).wait();
    read.unwrap();
    assert_eq!(seen[..], [1, 1, 1, 1, 2, 2, 2, 2]);
    active.write_inline(b"peer", remote.slice(..4).unwrap()).wait().unwrap();
    let mut there = [0; 6];
    file.seek(SeekFrom::Start(4096 + 15)).unwrap();
    file.read_exact(&mut there).unwrap();
    assert_eq!(there, *b"\x01peer\x01");
    // What comes goes into it.
    let (read, _) = passive.read(memory.part(8..12).unwrap(), loan(&active)).wait();
    read.unwrap();
    file.seek(SeekFrom::Start(4096 + 16 + 8)).unwrap();
    file.read_exact(&mut there[..4]).unwrap();
    assert_eq!(there[..4], *b"loan");
    let refused = active.write_inline(&[0; 8], beyond(remote)).wait().expect_err("behind its end");
    assert_eq!(refused.kind(), ErrorKind::Completion(WcStatus::RemoteAccess));
}

/// Four bytes of the active side's.
fn loan(active: &Connection) -> RemoteMemory {
    let bytes = Memory::from_bytes(b"loan").unwrap();
    let remote = bytes.mr(active.pd()).unwrap().remote();
    std::mem::forget(bytes);
    remote
}

/// The eight bytes after a piece of memory.
fn beyond(remote: RemoteMemory) -> RemoteMemory {
    RemoteMemory::from_raw(remote.addr() + remote.len(), remote.rkey(), 8)
}

#[test]
fn what_is_no_dma_buf_is_said() {
    let Some((_file, fd)) = pages(1) else { return };
    for (offset, len) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 2)] {
        let error = Memory::dmabuf(fd.try_clone().unwrap(), offset, len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{offset} {len}");
    }
    let memory = Memory::dmabuf(fd, 0, 4096).unwrap();
    assert_eq!(memory.copy_to(0, &mut [0; 4]).unwrap_err().kind(), ErrorKind::Unsupported);
    let pd = device().pd().unwrap();
    let error = memory.mr_with(&pd, Access::REMOTE_READ | Access::FLUSH_GLOBAL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert!(memory.mr_with(&pd, Access::REMOTE_READ).is_ok());
    // One that can not be written.
    let path = std::env::temp_dir().join(format!("verbena-opaque-{}", std::process::id()));
    std::fs::write(&path, [0; 64]).unwrap();
    let read_only = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let memory = Memory::dmabuf(read_only.into(), 0, 64).unwrap();
    assert_eq!(memory.mr(&pd).unwrap_err().kind(), ErrorKind::PermissionDenied);
}
