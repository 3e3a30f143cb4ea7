//! Reading, writing and flushing a peer's memory, over software on 127.0.0.1, or what `support`
//! says.
#![cfg(feature = "software")]

mod support;

use std::fs::File;
use std::path::PathBuf;
use std::thread;

use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, FlushType, MrLocal, MrRemote, Peer, PeerCfg, Result, Usage,
};
use support::peer;
use verbena::{ErrorKind, WcStatus};

/// Both ends; the active one knows the passive one's memory and configuration.
struct Pair {
    peer: Peer,
    passive: Conn,
    active: Conn,
    remote: MrRemote,
}

/// For reading and writing, from either end.
fn all() -> Usage {
    Usage::READ_SRC | Usage::READ_DST | Usage::WRITE_SRC | Usage::WRITE_DST
}

fn connected(peer: Peer, memory: &MrLocal, cfg: &PeerCfg) -> Pair {
    let ep = Ep::blocking_listen(&peer, support::address()).unwrap();
    let to = ep.local_addr();
    let told = [&memory.descriptor()[..], &cfg.descriptor()].concat();
    let passive = thread::spawn(move || -> Result<Conn> {
        let conn = ep.blocking_next_conn_req(&ConnCfg::default())?.connect(&told)?;
        assert_eq!(conn.blocking_next_event()?, ConnEvent::Established);
        Ok(conn)
    });
    let active = ConnReq::blocking_new(&peer, to, &ConnCfg::default()).unwrap().connect(&[]).unwrap();
    assert_eq!(active.blocking_next_event().unwrap(), ConnEvent::Established);
    let told = active.private_data().unwrap();
    let remote = MrRemote::from_descriptor(told).unwrap();
    active.apply_remote_peer_cfg(&PeerCfg::from_descriptor(&told[MrRemote::DESCRIPTOR..]).unwrap());
    Pair { passive: passive.join().unwrap().unwrap(), active, remote, peer }
}

fn bytes(mr: &MrLocal, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    mr.shared().copy_to(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_written_is_there_and_can_be_read() {
    let peer = peer();
    let theirs = MrLocal::zeroed(&peer, 1 << 20, all() | Usage::FLUSH_VISIBILITY).unwrap();
    let Pair { passive, active, remote, peer } = connected(peer, &theirs, &PeerCfg::new());
    let ours = MrLocal::zeroed(&peer, 1 << 20, all()).unwrap();
    let data: Vec<u8> = (0..1_u32 << 20).map(|i| (i * 31 + 7) as u8).collect();
    ours.shared().copy_from(0, &data).unwrap();
    active.write(ours.source(0..1 << 20).unwrap(), &remote, 0).wait().0.unwrap();
    active.flush(&remote, 0, 1 << 20, FlushType::Visibility).wait().unwrap();
    assert_eq!(bytes(&theirs, 0, 1 << 20), data);
    let (result, part) = active.read(ours.destination(7..1007).unwrap(), &remote, 99, 1000).wait();
    assert_eq!((result.unwrap().len, part.range()), (1000, 7..1007));
    assert_eq!(bytes(&ours, 7, 1000), data[99..1099]);
    active.write_with_imm(ours.source(0..5).unwrap(), &remote, 1 << 19, 77).wait().0.unwrap();
    let told = passive.blocking_recv().unwrap().unwrap();
    assert_eq!((told.imm(), told.written(), told.len()), (Some(77), Some(5), 0));
    // Several at once.
    let under_way: Vec<_> = (0..8_usize)
        .map(|i| active.write(ours.source(i..i + 1).unwrap(), &remote, 100 + i as u64).post().unwrap())
        .collect();
    under_way.into_iter().for_each(|one| assert!(one.wait().0.is_ok()));
    assert_eq!(bytes(&theirs, 100, 8), bytes(&ours, 0, 8));
}

#[test]
fn a_flush_is_native_where_both_ends_have_it_and_a_read_otherwise() {
    let peer = peer();
    let theirs = MrLocal::zeroed(&peer, 4096, all() | Usage::FLUSH_VISIBILITY).unwrap();
    for (cfg, native) in [(PeerCfg::new(), false), (PeerCfg::of(&peer), true)] {
        let Pair { passive: _passive, active, remote, .. } = connected(peer.clone(), &theirs, &cfg);
        for (at, len) in [(0, 4096), (4095, 1), (8, 0)] {
            let flush = active.flush(&remote, at, len, FlushType::Visibility);
            assert_eq!(flush.is_native(), native);
            flush.wait().unwrap();
        }
        let write = active.atomic_write(&remote, 16, *b"at once!");
        assert_eq!(write.is_native(), native);
        write.wait().unwrap();
        assert_eq!(bytes(&theirs, 16, 8), b"at once!");
        active.atomic_write(&remote, 16, [0; 8]).wait().unwrap();
        let persistent = active.flush(&remote, 0, 8, FlushType::Persistent).wait();
        assert!(matches!(persistent, Err(Error::NoSupp(_))), "not registered for it");
        assert!(matches!(active.atomic_write(&remote, 4, [0; 8]).wait(), Err(Error::Inval(_))));
        assert!(active.flush(&remote, 4000, 97, FlushType::Visibility).wait().is_err());
    }
}

/// A file of some zeros, on a disk.
fn file(name: &str) -> (PathBuf, File) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, [0; 8192]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    (path, file)
}

#[test]
fn persistence_needs_flush_or_a_declared_direct_write() {
    let peer = peer();
    let (path, file) = file("rpma-persistent");
    let theirs = MrLocal::map_file(&peer, &file, Usage::WRITE_DST | Usage::FLUSH_PERSISTENT).unwrap();
    let mut direct = PeerCfg::new();
    direct.set_direct_write_to_pmem(true);
    let ways = [(PeerCfg::new(), None), (direct, Some(false)), (PeerCfg::of(&peer), Some(true))];
    for (n, (cfg, native)) in ways.into_iter().enumerate() {
        let Pair { passive: _passive, active, remote, peer } = connected(peer.clone(), &theirs, &cfg);
        let entry = MrLocal::zeroed(&peer, 8, Usage::WRITE_SRC).unwrap();
        entry.shared().copy_from(0, &[n as u8 + 1; 8]).unwrap();
        active.write(entry.source(0..8).unwrap(), &remote, 64).wait().0.unwrap();
        let flush = active.flush(&remote, 64, 8, FlushType::Persistent);
        match native {
            None => assert!(matches!(flush.wait(), Err(Error::NoSupp(_)))),
            Some(native) => {
                assert_eq!(flush.is_native(), native);
                flush.wait().unwrap();
                assert_eq!(std::fs::read(&path).unwrap()[64..72], [n as u8 + 1; 8]);
            }
        }
        let visible = active.flush(&remote, 64, 8, FlushType::Visibility).wait();
        assert!(matches!(visible, Err(Error::NoSupp(_))), "not registered for it");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn memory_is_for_what_it_was_registered_for() {
    let peer = peer();
    assert!(matches!(MrLocal::zeroed(&peer, 0, Usage::SEND), Err(Error::Inval(_))));
    assert!(matches!(MrLocal::zeroed(&peer, 8, Usage::FLUSH_PERSISTENT), Err(Error::NoSupp(_))));
    for none in [0, 0x100, 0x101] {
        assert!(matches!(Usage::from_bits(none), Err(Error::Inval(_))));
    }
    let mr = MrLocal::zeroed(&peer, 16, Usage::WRITE_SRC).unwrap();
    assert!(mr.source(8..16).is_ok() && mr.source(8..17).is_err() && mr.destination(0..8).is_err());
    let theirs = MrLocal::zeroed(&peer, 64, Usage::READ_SRC).unwrap();
    let Pair { passive, active, remote, .. } = connected(peer, &theirs, &PeerCfg::new());
    let (refused, part) = active.write(mr.source(0..16).unwrap(), &remote, 65).wait();
    assert!(matches!(refused, Err(Error::Inval(_))));
    let (refused, part) = active.write(part, &remote, 56).wait();
    assert_eq!(refused.unwrap_err().provider().map(verbena::Error::kind), Some(ErrorKind::OutOfRange));
    // The peer refuses what it did not grant, and that ends the connection.
    let refused = active.write(part, &remote, 0).wait().0.unwrap_err();
    assert_eq!(refused.provider().and_then(verbena::Error::status), Some(WcStatus::RemoteAccess));
    assert_eq!(active.blocking_next_event().unwrap(), ConnEvent::Lost);
    assert!(active.failure().is_some());
    assert!(matches!(passive.blocking_next_event().unwrap(), ConnEvent::Lost | ConnEvent::Closed));
}

#[test]
fn a_key_ends_with_its_memory() {
    let peer = peer();
    let theirs = MrLocal::zeroed(&peer, 64, all()).unwrap();
    let Pair { passive: _passive, active, remote, peer } = connected(peer, &theirs, &PeerCfg::new());
    let ours = MrLocal::zeroed(&peer, 64, all()).unwrap();
    let part = ours.destination(0..64).unwrap();
    drop(ours);
    let (read, part) = active.read(part, &remote, 0, 64).wait();
    read.unwrap();
    drop(theirs);
    let refused = active.read(part, &remote, 0, 64).wait().0.unwrap_err();
    assert_eq!(refused.provider().and_then(verbena::Error::status), Some(WcStatus::RemoteAccess));
}
