//! Memory of another process of this host, reached without it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::exported::{BOTH, INITIATOR, IOVA, KEY, PD, Pair, TARGET, TERMS, back, copy, local_link};
use crate::support::{TIMEOUT, V4, alone, batch, counter, is_peer_memory_reachable, path, start_with};
use linux::Config;
use nic::peer_memory::{Copy, Grant, Piece, Region, Regions};
use nic::{Access, Link, Path};
use stack::{Env, Name};
use transport::op::{DirectOutcome, Flush, Remote};
use wire::{Qpn, Rkey};

#[test]
fn bytes_go_both_ways_and_no_packet_does() {
    let _alone = alone();
    for pair in [Pair::new, Pair::mapped].into_iter().filter_map(|new| new()) {
        let before = counter(&pair.initiator, "ring_packets_sent");
        assert!(pair.copies(Copy::Write, pair.remote(8, 16), &mut [1, 2]));
        assert_eq!([0, 1, 2, 3].map(|at| pair.word(at)), [0, 1, 2, 0]);
        let mut read = [0; 3];
        assert!(pair.copies(Copy::Read, pair.remote(0, 24), &mut read));
        assert_eq!(read, [0, 1, 2]);
        // Any length and place: the last word is a range of its own.
        for (at, len) in [(0, 1), (1, 7), (3, 6), (5, 8), (7, 9), (1, 100), (511, 1), (0, 512)] {
            assert!(pair.copies(Copy::Write, pair.remote(at, len), &mut [!0; 64]), "{at} {len}");
        }
        assert_eq!(counter(&pair.initiator, "ring_packets_sent"), before);
        assert_eq!(
            (counter(&pair.initiator, "direct_writes"), counter(&pair.initiator, "peer_memory_refused")),
            (9, 0)
        );
    }
}

#[test]
fn what_is_not_granted_is_not_reached() {
    let _alone = alone();
    for pair in [Pair::new, Pair::mapped].into_iter().filter_map(|new| new()) {
        let good = pair.remote(0, 8);
        let mut word = [5];
        for remote in [
            Remote { rkey: Rkey(KEY ^ 1), ..good },
            Remote { rkey: Rkey(KEY + 0x1_0000), ..good },
            Remote { rkey: Rkey(0), ..good },
            Remote { addr: IOVA - 1, ..good },
            Remote { addr: IOVA + 505, ..good },
            Remote { addr: u64::MAX - 3, ..good },
        ] {
            for what in [Copy::Write, Copy::Read] {
                assert!(!pair.copies(what, remote, &mut word), "{remote:?}");
            }
        }
        let other = Qpn::new(INITIATOR.get() + 1);
        assert!(!pair.copies_as(&path(V4), other, Copy::Write, good, &mut word));
        let other = Path { dest_qpn: Qpn::new(TARGET.get() + 1), ..path(V4) };
        assert!(!pair.copies_as(&other, INITIATOR, Copy::Write, good, &mut word));
        let elsewhere = Path { source: [127, 0, 0, 2].into(), ..path(V4) };
        assert!(!pair.copies_as(&elsewhere, INITIATOR, Copy::Write, good, &mut word));
        assert_eq!((pair.word(0), word), (0, [5]));

        // Rights of the region, and of the queue pair.
        local_link(pair.target.env()).withdraw(pair.table, (KEY >> 16) as u16);
        assert!(!pair.copies(Copy::Read, good, &mut word));
        pair.publish(Access::REMOTE_READ);
        assert!(!pair.copies(Copy::Write, good, &mut word) && pair.copies(Copy::Read, good, &mut word));
        local_link(pair.target.env()).withdraw(pair.table, (KEY >> 16) as u16);
        pair.publish(BOTH);
        pair.open(Access::REMOTE_WRITE);
        assert!(pair.copies(Copy::Write, good, &mut word) && !pair.copies(Copy::Read, good, &mut word));
        local_link(pair.target.env()).close(TARGET, true);
        assert!(!pair.copies(Copy::Write, good, &mut word));
    }
}

/// What one end exports of a message needs no right of a peer's, but key, range and queue pair.
#[test]
fn what_is_exported_is_pulled_whatever_rights_peers_have() {
    let _alone = alone();
    for pair in [Pair::new, Pair::mapped].into_iter().filter_map(|new| new()) {
        assert!(pair.copies(Copy::Write, pair.remote(8, 8), &mut [77]));
        local_link(pair.target.env()).withdraw(pair.table, (KEY >> 16) as u16);
        pair.publish(0);
        pair.open(0);
        let (good, mut word) = (pair.remote(8, 8), [5]);
        assert!(!pair.copies(Copy::Pull, good, &mut word), "the peer has only named it");
        assert!(pair.tells());
        for what in [Copy::Write, Copy::Read] {
            assert!(!pair.copies(what, good, &mut word));
        }
        for remote in [
            Remote { rkey: Rkey(KEY ^ 1), ..good },
            Remote { addr: IOVA + 505, ..good },
            Remote { addr: IOVA - 1, ..good },
        ] {
            assert!(!pair.copies(Copy::Pull, remote, &mut word), "{remote:?}");
        }
        assert_eq!(word, [5]);
        assert!(pair.copies(Copy::Pull, good, &mut word));
        assert_eq!(word, [77]);
        let other = Qpn::new(INITIATOR.get() + 1);
        assert!(!pair.copies_as(&path(V4), other, Copy::Pull, good, &mut word));
        local_link(pair.target.env()).close(TARGET, true);
        assert!(!pair.copies(Copy::Pull, good, &mut word));
    }
}

#[test]
fn a_flush_needs_its_rights_and_memory_that_persists_without_work() {
    let _alone = alone();
    let Some(pair) = Pair::new() else { return };
    let both = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    // SAFETY: a new mapping of ten pages.
    let pages = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 40960, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    // As a registration does: what is not there is not reached.
    // SAFETY: the mapping from above, which nothing borrows.
    unsafe { pages.cast::<u8>().write_bytes(0, 40960) };
    let publish = |slot: u16, access, persists| {
        let (key, addr) = (u32::from(slot) << 16 | 1, pages as u64);
        let region = Region { key, pd: PD, access, addr, len: 40960, iova: 0, persists };
        local_link(pair.target.env()).publish(pair.table, slot, &region);
        key
    };
    let (file, in_memory) = (publish(0x99, both, false), publish(0x9a, both, true));
    let visible_only = publish(0x9b, Access::FLUSH_GLOBAL, true);
    let names = [file, in_memory, visible_only].map(|key| (TARGET, Rkey(key)));
    pair.target.handler().names.lock().unwrap().extend(names);
    pair.open(both);
    let flush = |key, addr, length, how| {
        let remote = Remote { addr, length, rkey: Rkey(key) };
        // SAFETY: no memory of ours is named.
        let flushed = unsafe { copy(pair.initiator.env(), remote, Copy::Flush(how), &[]) };
        flushed == DirectOutcome::Done
    };
    let global = Flush { global: true, persistent: false, whole: false };
    let persistent = Flush { global: false, persistent: true, whole: false };
    let before = counter(&pair.initiator, "ring_packets_sent");
    for key in [file, in_memory, visible_only] {
        assert!(flush(key, 8, 40952, global), "{key:x}");
        assert!(!flush(key, 8, 40953, global) && !flush(key ^ 1, 8, 8, global), "{key:x}");
        assert!(!flush(key, 0, 8, Flush { whole: true, ..global }), "the length is the owner's to know");
        assert_eq!(flush(key, 4090, 8, persistent), key == in_memory, "{key:x}");
    }
    assert!(flush(in_memory, 1, 32767, Flush { global: true, ..persistent }));
    assert!(!flush(in_memory, 4095, 28674, persistent), "more pages than are looked at");
    // SAFETY: the mapping from above, which nothing borrows.
    unsafe { libc::munmap(pages.add(4096), 4096) };
    assert!(flush(in_memory, 0, 4096, persistent) && !flush(in_memory, 0, 4097, persistent));
    assert_eq!(counter(&pair.initiator, "ring_packets_sent"), before);
    pair.open(Access::FLUSH_GLOBAL);
    assert!(flush(in_memory, 0, 8, global) && !flush(in_memory, 0, 8, persistent));
    assert_eq!(counter(&pair.initiator, "direct_flushes"), 7);
    // SAFETY: as above.
    unsafe { libc::munmap(pages, 40960) };
}

#[test]
fn memory_that_is_not_there_is_not_reached_and_the_rest_is_still() {
    let _alone = alone();
    let Some(pair) = Pair::new() else { return };
    // SAFETY: a new mapping of two pages.
    let pages = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    let key = 0x0099_0001;
    let region =
        Region { key, pd: PD, access: BOTH, addr: pages as u64, len: 8192, iova: 0, persists: false };
    local_link(pair.target.env()).publish(pair.table, 0x99, &region);
    pair.target.handler().names.lock().unwrap().push((TARGET, Rkey(key)));
    pair.names();
    let at = |addr| Remote { addr, length: 16, rkey: Rkey(key) };
    assert!(!pair.copies(Copy::Write, at(4088), &mut [1, 2]), "no page is there yet");
    // SAFETY: the mapping from above, which nothing borrows.
    unsafe { pages.cast::<u8>().write_bytes(0, 8192) };
    // Packets first, for a while.
    let in_time = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(1))).take(5_000);
    assert!(in_time.into_iter().any(|()| pair.copies(Copy::Write, at(4088), &mut [1, 2])));
    // SAFETY: the mapping from above, which nothing borrows.
    unsafe { libc::mprotect(pages.add(4096), 4096, libc::PROT_READ) };
    assert!(
        !pair.copies(Copy::Write, at(4088), &mut [3, 4]) && !pair.copies(Copy::Write, at(4096), &mut [3, 4])
    );
    let mut read = [0; 2];
    assert!(pair.copies(Copy::Read, at(4088), &mut read) && read[1] == 2, "{read:?}");
    // SAFETY: as above.
    unsafe { libc::munmap(pages, 8192) };
    assert!(!pair.copies(Copy::Read, at(4088), &mut read) && !pair.copies(Copy::Write, at(0), &mut read));
    let in_time = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(1))).take(5_000);
    assert!(in_time.into_iter().any(|()| pair.copies(Copy::Write, pair.remote(0, 8), &mut [9])));
    assert_eq!(pair.word(0), 9);
}

#[test]
fn who_takes_something_back_waits_for_those_who_copy() {
    let _alone = alone();
    for pair in [Pair::new, Pair::mapped].into_iter().filter_map(|new| new()) {
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    s.spawn(|| {
                        let mut word = [!0];
                        let (mut copied, begin) = (0_u64, Instant::now());
                        while begin.elapsed() < Duration::from_millis(300) {
                            copied += u64::from(pair.copies(Copy::Write, pair.remote(0, 8), &mut word));
                        }
                        copied
                    })
                })
                .collect();
            let (mut rounds, begin) = (0, Instant::now());
            while begin.elapsed() < Duration::from_millis(250) {
                match rounds % 2 {
                    0 => local_link(pair.target.env()).withdraw(pair.table, (KEY >> 16) as u16),
                    _ => local_link(pair.target.env()).close(TARGET, true),
                }
                // SAFETY: a word of ours, which no process may change now.
                unsafe { pair.memory.as_ptr().write_volatile(0) };
                std::thread::sleep(Duration::from_micros(50));
                assert_eq!(pair.word(0), 0, "written to when it was taken back");
                match rounds % 2 {
                    0 => pair.publish(BOTH),
                    _ => pair.open(BOTH),
                }
                rounds += 1;
            }
            let copied: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
            assert!(rounds > 2 && copied > 2, "{rounds} {copied}");
        });
    }
}

/// Another process, which writes to the target's first word all the time.
struct Writer(std::process::Child);

impl Writer {
    const ENVIRONMENT: &str = "VERBENA_TEST_WRITER";

    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "peer_memory::a_writer_of_another_process"]).env(Self::ENVIRONMENT, "1");
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, number: i32) {
        // SAFETY: integers only; the child is not waited for yet.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, number) }, 0);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// No test of its own: what [`Writer`] runs. Killed, or ended by its parent's end.
#[test]
fn a_writer_of_another_process() {
    if std::env::var_os(Writer::ENVIRONMENT).is_none() {
        return;
    }
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let initiator = start_with(Config::default());
    initiator.env().send(&path(V4), &mut batch(0, &[64]));
    let remote = Remote { addr: IOVA, length: 8, rkey: Rkey(KEY) };
    for n in 1..=u64::MAX {
        let pieces = [Piece { addr: (&raw const n) as u64, len: 8 }];
        // SAFETY: the piece is `n`, which lives across the call and is read only.
        if unsafe { copy(initiator.env(), remote, Copy::Write, &pieces) } != DirectOutcome::Done {
            // What is taken back and exported again has to be named again.
            initiator.env().send(&path(V4), &mut batch(0, &[64]));
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn revocation_does_not_wait_for_a_stopped_or_dead_peer_which_writes_nothing_afterwards() {
    let _alone = alone();
    if !is_peer_memory_reachable() {
        return;
    }
    let target = start_with(Config::default());
    let _claim = target.env().claim(Name::Block(0x123)).unwrap();
    let memory = vec![0_u64; 64].into_boxed_slice();
    target.handler().names.lock().unwrap().push((TARGET, Rkey(KEY)));
    let table = local_link(target.env()).table(&Regions::default()).unwrap();
    // SAFETY: a word of ours, which the kernel may change.
    let word = || unsafe { (&raw const memory[0]).read_volatile() };
    let clear = || {
        // SAFETY: as above; no other process may write to it now.
        unsafe { memory.as_ptr().cast_mut().write_volatile(0) };
    };
    let publish = || {
        let region = Region {
            key: KEY,
            pd: PD,
            access: BOTH,
            addr: memory.as_ptr() as u64,
            len: 512,
            iova: IOVA,
            persists: false,
        };
        local_link(target.env()).publish(table, (KEY >> 16) as u16, &region);
    };
    let take_back = || {
        let begin = Instant::now();
        local_link(target.env()).withdraw(table, (KEY >> 16) as u16);
        assert!(begin.elapsed() < TIMEOUT / 3, "{:?}", begin.elapsed());
        clear();
    };
    let comes = || {
        let begin = Instant::now();
        while word() == 0 {
            assert!(begin.elapsed() < TIMEOUT, "nothing is written");
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    let stays_away = || {
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(word(), 0, "written to when it was taken back");
    };
    local_link(target.env()).open(&Grant { qpn: TARGET, path: &back(), pd: PD, table, access: BOTH | TERMS });
    for kills in 0..4 {
        publish();
        let mut writer = Writer::start();
        for _ in 0..20 {
            comes();
            writer.signal(libc::SIGSTOP);
            take_back();
            writer.signal(libc::SIGCONT);
            stays_away();
            publish();
        }
        comes();
        if kills % 2 == 0 {
            writer.signal(libc::SIGKILL);
            take_back();
        } else {
            // Nothing of its last access may come after the news of its end.
            writer.signal(libc::SIGKILL);
            writer.0.wait().unwrap();
            take_back();
        }
        stays_away();
    }
}

#[test]
fn where_rings_are_off_nothing_is_reached() {
    let _alone = alone();
    let off = start_with(Config { same_host: false, ..Config::default() });
    assert!(off.env().local().is_none());
    let (initiator, target) = (start_with(Config::default()), off);
    let _claim = target.env().claim(Name::Block(0x123)).unwrap();
    initiator.env().send(&path(V4), &mut batch(0, &[64]));
    std::thread::sleep(Duration::from_millis(20));
    let (mut word, remote) = ([0_u64], Remote { addr: IOVA, length: 8, rkey: Rkey(KEY) });
    let pieces = [Piece { addr: word.as_mut_ptr() as u64, len: 8 }];
    // SAFETY: the piece is `word`, which lives across the call.
    let outcome = unsafe { copy(initiator.env(), remote, Copy::Read, &pieces) };
    assert_eq!(outcome, DirectOutcome::Unavailable);
}
