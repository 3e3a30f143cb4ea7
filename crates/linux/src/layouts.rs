//! What two processes say to each other and share, byte by byte, under the number that says so.
//!
//! A build of another number reads none of it ([`crate::name_text::PROTOCOL`]). So a change of any
//! of these bytes changes the number, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use local::fuzzed::{self, HAZARD_BYTES};
use local::record::{self, Ends, RING_BYTES};
use local::ring::{Reader, WakeTarget, Word, Writer, memory_len};
use nic::peer_memory::{Grant, Region};
use stack::env::{AckDelay, Datagram};
use transport::Short;
use transport::op::{Remote, ZeroCopy};
use transport::short::What;
use wire::{Pkey, Psn, Qpn, Rkey};

use crate::name_messages as messages;
use crate::name_text::PROTOCOL;

/// FNV-1a (Fowler, Noll, Vo).
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn add_words(&mut self, words: &[Word]) {
        words.iter().for_each(|word| self.add(&word.load(Relaxed).to_le_bytes()));
    }
}

fn words(len: usize) -> Arc<[Word]> {
    (0..len).map(|_| Word::new(0)).collect()
}

fn datagram() -> Datagram<'static> {
    let (source, dest) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    Datagram {
        source: SocketAddr::from((source, 49_152)).into(),
        dest: SocketAddr::from((dest, 4791)).into(),
        interface: 3,
        forwarded: false,
        ack_delay: AckDelay::No,
        bytes: &[],
    }
}

fn ends() -> Ends {
    let Datagram { source, dest, interface, .. } = datagram();
    Ends { source, dest, interface }
}

/// The messages by the sockets of names.
fn of_messages(hash: &mut Hash) {
    hash.add(&messages::ring_offer(0x0102_0304_0506_0708));
    hash.add(&[messages::LOOK, messages::NO_RING, messages::WAKE_FD]);
    hash.add(&messages::export(0x1112_1314_1516_1718, 0x2122_2324_2526_2728));
    hash.add(&messages::buffer(0x3132_3334_3536_3738, true));
    hash.add(&messages::buffer(0x3132_3334_3536_3738, false));
    hash.add(&messages::gone(0x4142_4344_4546_4748));
    hash.add(&messages::emit(&datagram()));
}

/// What records look like, and how a ring holds them.
fn of_rings(hash: &mut Hash) {
    let memory = words(memory_len(4096) / 8);
    let mut writer = Writer::new(memory.clone()).unwrap();
    let mut head = record::emit_record(&ends());
    record::set_size(&mut head, 100);
    writer.push(&[&head, &[7; 300]]).unwrap();
    writer.push(&[&record::same_head(64), &[8; 64]]).unwrap();
    let (dest_qp, psn) = (Qpn::new(0x12_3456), Psn::new(0x65_4321));
    let whats =
        [What::Send, What::SendImmediate([1, 2, 3, 4]), What::WriteImmediate([5; 4], Rkey(6), 1 << 40)];
    for (what, acknowledged) in whats.into_iter().zip([None, Some(psn), Some(psn)]) {
        let short = Short { dest_qp, pkey: Pkey(0x8001), psn, solicited: true, what, acknowledged };
        record::write_short(&mut writer, &short, &[9; 21]).unwrap();
    }
    let (bulk, len) = record::fragment_head(&[3; 20]).unwrap();
    writer.push_with(&bulk[..len], 100, |_| Ok::<(), ()>(())).unwrap().unwrap();
    let remote = Remote { addr: 1 << 50, length: 77, rkey: Rkey(0x8765_4321) };
    hash.add(&ZeroCopy::Exported(remote).to_bytes());
    hash.add(&ZeroCopy::Placed(5).to_bytes());
    hash.add_words(&memory);
    let mut reader = Reader::new(memory.clone()).unwrap();
    while reader.pop(&mut [0; 512]).unwrap().is_some() {}
    for wake_target in [WakeTarget::Engine, WakeTarget::AppThread] {
        reader.sleep(wake_target);
        hash.add_words(&memory);
    }
    let lengths = [RING_BYTES, memory_len(RING_BYTES), HAZARD_BYTES, fuzzed::WORDS];
    lengths.iter().for_each(|len| hash.add(&len.to_le_bytes()));
}

/// Tables, hazards, and the page by which a process is known.
fn of_peer_memory(hash: &mut Hash) {
    let path = nic::Path {
        source: Ipv4Addr::new(10, 0, 0, 2).into(),
        dest: Ipv4Addr::new(10, 0, 0, 1).into(),
        interface: 3,
        dest_qpn: Qpn::new(0x12_0003),
        traffic_class: 0,
        hop_limit: 0,
        source_port_epoch: 0,
        no_multicast_loop: false,
    };
    let tables = words(fuzzed::WORDS);
    let qpn = Qpn::new(0x34_0005);
    let grant = Grant { qpn, path: &path, pd: 7, table: 1, access: 0x30e };
    assert!(fuzzed::open(&tables, &grant));
    let region = Region {
        key: 0x0004_4321,
        pd: 7,
        access: 0x0f,
        addr: 1 << 44,
        len: 1 << 30,
        iova: 1 << 20,
        persists: true,
    };
    fuzzed::publish(&tables, 1, 4, &region);
    assert!(fuzzed::tell(&tables, qpn, region.key));
    for (at, word) in tables.iter().enumerate().filter(|(_, word)| word.load(Relaxed) != 0) {
        hash.add(&at.to_le_bytes());
        hash.add(&word.load(Relaxed).to_le_bytes());
    }
    let hazards = words(HAZARD_BYTES / 8);
    assert!(fuzzed::uses(&hazards, 77, qpn, (1, 4), || hash.add_words(&hazards)));
    hash.add(&fuzzed::granted_at().unwrap().to_le_bytes());
    fuzzed::proof(1, 2, 3).iter().for_each(|word| hash.add(&word.to_le_bytes()));
}

/// Where this fails something of the protocol has changed: the number does so, too, and then the
/// hash here.
#[test]
fn the_layouts_are_those_of_the_number() {
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    of_messages(&mut hash);
    of_rings(&mut hash);
    of_peer_memory(&mut hash);
    assert_eq!((PROTOCOL, format!("{:016x}", hash.0)), (2, String::from("0636879073664379")));
}
