//! A process of this host that means harm: it has a ring to us and what we export, and keeps to no
//! rule.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::exported::{INITIATOR, PD, TARGET, TERMS, copy, local_link};
use crate::support::{
    BLOCK, LO, Recording, TIMEOUT, V4, alone, batch, counter, is_peer_memory_reachable, path, raw, start_with,
};
use linux::eventfd::Counter;
use linux::{Config, name_messages};
use local::record::{self, Ends};
use nic::peer_memory::{Copy, Grant, Piece, Region, Regions};
use nic::{Access, Link, Path};
use stack::Env;
use stack::env::Claim;
use transport::op::{DirectOutcome, Remote};
use wire::Rkey;

const BOTH: u32 = Access::REMOTE_WRITE | Access::REMOTE_READ;
/// A region that an honest process uses, and one that no process does.
const USED: u16 = 0x42;
const UNUSED: u16 = 0x99;
/// Bytes of a ring's memory, and of that after it where its writer says what it uses.
const RING: usize = local::ring::memory_len(1 << 20);
const HAZARDS: usize = 4096;
/// What a liar sends with its ring.
const NONCE: u64 = 0x1234_5678_9abc_def0;
/// What `local::peer_memory` promises.
const MAX_REVOKING: Duration = Duration::from_secs(5);

fn key(slot: u16) -> u32 {
    u32::from(slot) << 16 | 0x11
}

/// The process that is attacked, with a queue pair and two regions of 512 bytes.
struct Target {
    host: Recording,
    memory: Box<[u64]>,
    table: u8,
    _claim: Box<dyn Claim>,
}

impl Target {
    fn new() -> Self {
        let host = start_with(Config::default());
        let claim = host.env().claim(BLOCK).unwrap();
        let table = local_link(host.env()).table(&Regions::default()).unwrap();
        let target = Self { host, memory: vec![0; 64].into_boxed_slice(), table, _claim: claim };
        let names = [USED, UNUSED].map(|slot| (TARGET, Rkey(key(slot))));
        target.host.handler().names.lock().unwrap().extend(names);
        target.publish(USED);
        target.publish(UNUSED);
        assert!(target.opens(BOTH));
        target
    }

    fn opens(&self, access: u32) -> bool {
        let path = Path { dest_qpn: INITIATOR, ..path(V4) };
        local_link(self.host.env()).open(&Grant {
            qpn: TARGET,
            path: &path,
            pd: PD,
            table: self.table,
            access: access | TERMS,
        })
    }

    fn publish(&self, slot: u16) {
        let addr = self.memory.as_ptr() as u64;
        let region =
            Region { key: key(slot), pd: PD, access: BOTH, addr, len: 512, iova: 0, persists: false };
        local_link(self.host.env()).publish(self.table, slot, &region);
    }

    /// How long it takes to take a region back that no process uses.
    fn takes_back(&self) -> Duration {
        let begin = Instant::now();
        local_link(self.host.env()).withdraw(self.table, UNUSED);
        let took = begin.elapsed();
        self.publish(UNUSED);
        took
    }
}

/// How often a process that keeps to the rules is at it at least.
const LEAST_ROUNDS: u32 = 20;

/// A process that keeps to the rules.
struct Honest(Recording);

impl Honest {
    fn new(target: &Target) -> Self {
        let honest = Self(start_with(Config::default()));
        honest.0.env().send(&path(V4), &mut batch(0, &[64]));
        assert!(target.host.handler().packet().is_some());
        let begin = Instant::now();
        while !honest.writes(0) {
            assert!(begin.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(1));
        }
        honest
    }

    fn writes(&self, word: u64) -> bool {
        let remote = Remote { addr: 8, length: 8, rkey: Rkey(key(USED)) };
        let pieces = [Piece { addr: (&raw const word) as u64, len: 8 }];
        // SAFETY: the piece is `word`, which lives across the call and is read only.
        let outcome = unsafe { copy(self.0.env(), remote, Copy::Write, &pieces) };
        outcome == DirectOutcome::Done
    }

    /// Sends packets and writes while `during` runs, [`LEAST_ROUNDS`] times at least, and checks
    /// that all arrive; how often it was at it, and the longest time it took.
    fn goes_on<T>(&self, target: &Target, during: impl FnOnce() -> T) -> (T, u32, Duration) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let (mut rounds, mut longest) = (0, Duration::ZERO);
                while rounds < LEAST_ROUNDS || !over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    self.0.env().send(&path(V4), &mut batch(rounds, &[64]));
                    assert!(self.writes(u64::from(rounds) + 1));
                    let packet = target.host.handler().packet().expect("it arrives");
                    assert_eq!(packet.bytes[12], rounds as u8);
                    longest = longest.max(begin.elapsed());
                    rounds += 1;
                }
                (rounds, longest)
            });
            let result = during();
            over.store(true, Ordering::Relaxed);
            let (rounds, longest) = traffic.join().unwrap();
            (result, rounds, longest)
        })
    }
}

/// A process that keeps to no rule. No library: what it sends and maps is its own.
struct Liar {
    socket: OwnedFd,
    memory: OwnedFd,
    words: &'static [AtomicU64],
}

/// What a process exports.
struct Exported {
    tables: OwnedFd,
    identity: u64,
}

impl Liar {
    /// Connects to the target's name and offers a ring.
    fn connect() -> Self {
        let (memory, words) = raw::memory(RING + HAZARDS);
        let liar = Self { socket: raw::connect(&raw::own_text(BLOCK)), memory, words };
        liar.offer();
        liar
    }

    fn offer(&self) {
        raw::send(&self.socket, &name_messages::ring_offer(NONCE), Some(&self.memory));
    }

    fn look(&self) {
        raw::send(&self.socket, &[name_messages::LOOK], None);
    }

    /// The next message within a time, and the descriptor with it; not the one by which it gets a
    /// wake descriptor.
    fn hears(&self, time: Duration) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        loop {
            let heard = self.hears_any(time);
            if !matches!(&heard, Some((bytes, _)) if bytes[..] == [name_messages::WAKE_FD]) {
                return heard;
            }
        }
    }

    /// What wakes a thread of the target's.
    fn wake_fd(&self) -> Option<OwnedFd> {
        loop {
            let (bytes, descriptor) = self.hears_any(TIMEOUT)?;
            if bytes[..] == [name_messages::WAKE_FD] {
                return descriptor;
            }
        }
    }

    fn hears_any(&self, time: Duration) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        raw::receive(&self.socket, time)
    }

    /// What the liar is exported once it has named a region in a request that the target executes.
    fn is_exported(&self, by: &Target) -> Option<Exported> {
        write(self, &[packet()]);
        assert_eq!(by.host.handler().packet()?.bytes, [1; 100]);
        let (bytes, tables) = self.hears(TIMEOUT)?;
        let (identity, _) = name_messages::read_export(&bytes)?;
        Some(Exported { tables: tables?, identity })
    }

    /// Says that it uses what is not even there, and everything else.
    fn claims_to_use(&self, table: u8, slot: u16) {
        for place in self.words[RING / 8..].as_chunks::<2>().0 {
            place[1].store(1, Ordering::Relaxed);
            let both = u64::from(slot) << 16 | u64::from(TARGET.get() as u16);
            place[0].store(1 << 63 | u64::from(table) << 32 | both, Ordering::SeqCst);
        }
    }
}

/// The words of tables.
fn read(tables: &OwnedFd) -> Vec<u64> {
    let bytes = std::fs::read(format!("/proc/self/fd/{}", tables.as_raw_fd())).unwrap();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Whether a page of this process is there.
fn is_mapped(page: u64) -> bool {
    let mut resident = 0u8;
    // SAFETY: the kernel writes one byte, for one page.
    unsafe { libc::mincore(page as *mut libc::c_void, 4096, &raw mut resident) == 0 }
}

#[test]
fn nobody_is_waited_for_where_a_lock_may_be_held() {
    let _alone = alone();
    let target = Target::new();
    let liar = Liar::connect();
    assert!(liar.is_exported(&target).is_some());
    liar.claims_to_use(target.table, UNUSED);
    // Other rights: the program's call waits when it has given the lock back.
    let begin = Instant::now();
    assert!(!target.opens(Access::REMOTE_READ));
    local_link(target.host.env()).close(TARGET, false);
    assert!(begin.elapsed() < MAX_REVOKING / 2, "{:?}", begin.elapsed());
    assert!(target.opens(Access::REMOTE_READ) && target.opens(Access::REMOTE_READ));
}

#[test]
fn who_lies_about_what_it_uses_is_waited_for_once_and_nobody_else_is_held_up() {
    let _alone = alone();
    // The honest process reaches memory.
    if !is_peer_memory_reachable() {
        return;
    }
    let target = Target::new();
    let honest = Honest::new(&target);
    assert!(target.takes_back() < Duration::from_secs(1));
    let liar = Liar::connect();
    let exports = liar.is_exported(&target).expect("it is a local peer as any other one");
    liar.claims_to_use(target.table, UNUSED);
    let (took, rounds, longest) = honest.goes_on(&target, || target.takes_back());
    assert!((MAX_REVOKING..MAX_REVOKING + Duration::from_secs(2)).contains(&took), "{took:?}");
    assert!(rounds > 1000 && longest < Duration::from_secs(1), "{rounds} rounds, {longest:?}");
    assert_eq!((counter(&target.host, "peer_memory_banned"), counter(&target.host, "ring_errors")), (1, 0));

    // From now on it is not believed, and reaches nothing; by another connection neither.
    let again = Liar::connect();
    again.claims_to_use(target.table, UNUSED);
    let soon = Duration::from_millis(200);
    assert!(liar.hears(soon).is_none() && again.hears(soon).is_none());
    assert!(!is_mapped(exports.identity));
    let (took, ..) = honest.goes_on(&target, || (0..20).map(|_| target.takes_back()).max());
    assert!(took < Some(Duration::from_millis(500)), "{took:?}");
    let begin = Instant::now();
    local_link(target.host.env()).close(TARGET, true);
    assert!(begin.elapsed() < Duration::from_millis(500));
}

#[test]
fn a_local_peer_that_has_named_nothing_is_shown_nothing() {
    let _alone = alone();
    let target = Target::new();
    let liar = Liar::connect();
    assert!(liar.wake_fd().is_some(), "its ring was taken");
    assert!(liar.hears(Duration::from_millis(200)).is_none());
    // Packets that are not executed show nothing, either.
    target.host.handler().names.lock().unwrap().clear();
    write(&liar, &[packet()]);
    assert_eq!(target.host.handler().packet().unwrap().bytes, [1; 100]);
    assert!(liar.hears(Duration::from_millis(200)).is_none());
}

#[test]
fn a_local_peer_that_has_named_a_region_is_shown_that_and_no_other_key() {
    let _alone = alone();
    let target = Target::new();
    *target.host.handler().names.lock().unwrap() = vec![(TARGET, Rkey(key(USED)))];
    let liar = Liar::connect();
    let exports = liar.is_exported(&target).unwrap();
    let words = read(&exports.tables);
    let named = |slot| words.iter().filter(|word| (**word >> 32) as u32 == key(slot)).count();
    assert_eq!((named(USED), named(UNUSED)), (1, 0));
    local_link(target.host.env()).withdraw(target.table, USED);
    let keys = read(&exports.tables).iter().filter(|word| (**word >> 32) as u32 == key(USED)).count();
    assert_eq!(keys, 0, "what is taken back is shown no more");
}

#[test]
fn what_is_exported_is_read_and_not_written_to() {
    let _alone = alone();
    let target = Target::new();
    let liar = Liar::connect();
    let exports = liar.is_exported(&target).unwrap();
    let fd = exports.tables.as_raw_fd();
    let name = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).unwrap();
    // SAFETY: calls on a descriptor and mappings of the test's own.
    unsafe {
        let map = |rights, fd| libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_SHARED, fd, 0);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let opened = libc::open(name.as_ptr(), libc::O_RDWR);
        for fd in [fd, opened].into_iter().filter(|fd| *fd >= 0) {
            assert_eq!(map(both, fd), libc::MAP_FAILED);
            let read = map(libc::PROT_READ, fd);
            assert_ne!(read, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(read, 4096, both), -1);
            assert_eq!(libc::pwrite(fd, (&raw const fd).cast(), 4, 0), -1);
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert_eq!(libc::fallocate(fd, hole, 0, 4096), -1);
            assert_eq!(libc::ftruncate(fd, 4096), -1);
        }
    }
    drop(target);
}

#[test]
fn who_writes_nonsense_into_its_ring_reaches_nothing_any_more_and_gets_no_other_ring() {
    let _alone = alone();
    // The honest process reaches memory.
    if !is_peer_memory_reachable() {
        return;
    }
    let target = Target::new();
    let honest = Honest::new(&target);
    let liar = Liar::connect();
    let exports = liar.is_exported(&target).unwrap();
    assert!(is_mapped(exports.identity));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let (heard, rounds, _) = honest.goes_on(&target, || {
        for word in &liar.words[..RING / 8] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.store(state | 2, Ordering::Relaxed);
        }
        liar.look();
        liar.hears(TIMEOUT)
    });
    assert_eq!(heard.unwrap().0, [name_messages::NO_RING]);
    assert!(rounds >= LEAST_ROUNDS && counter(&target.host, "ring_errors") == 1, "{rounds}");
    assert!(!is_mapped(exports.identity));
    liar.words[..RING / 8].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    liar.offer();
    assert_eq!(liar.hears(TIMEOUT).unwrap().0, [name_messages::NO_RING]);
    assert_eq!(counter(&target.host, "rings_taken"), 2);
    assert_eq!(counter(&target.host, "panics"), 0);
}

/// A record of one packet.
fn packet() -> Vec<u8> {
    let (source, dest) = ((V4, 49_152).into(), (V4, 4791).into());
    let mut head = record::emit_record(&Ends { source, dest, interface: LO });
    record::set_size(&mut head, 100);
    [&head[..], &[1; 100]].concat()
}

/// Records of a ring, one after the other from its first line on, as a local peer may write them.
fn write(liar: &Liar, records: &[Vec<u8>]) {
    const LINE: usize = 8;
    let mut line = 0;
    for record in records {
        let words = &liar.words[(2 + line) * LINE..];
        for (word, bytes) in words[1..].iter().zip(record.chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        words[0].store((record.len() as u64) << 32 | (line as u64) << 1 | 1, Ordering::Release);
        line += (8 + record.len()).div_ceil(64);
    }
    liar.look();
}

#[test]
fn a_piece_that_is_none_is_an_error_of_its_ring_and_reaches_nobody() {
    let _alone = alone();
    let target = Target::new();
    let packet = packet();
    let (head, head_len) = record::fragment_head(&[2; 12]).unwrap();
    let piece = [&head[..], &[3; 2048]].concat();
    let too_long = |len: u8| [&[len], &piece[1..]].concat();
    let nonsense = [
        ("the first record of its ring", vec![piece.clone()]),
        ("shorter than its head", vec![packet.clone(), head[..local::ring::BODY - 1].to_vec()]),
        ("its headers and no more", vec![packet.clone(), head[..head_len].to_vec()]),
        ("so many bytes and no more", vec![packet.clone(), head[..4].to_vec()]),
        ("headers beyond the head", vec![packet.clone(), too_long(local::ring::BODY as u8 - 3)]),
        ("the longest headers", vec![packet.clone(), too_long(255)]),
        // Bits of other kinds of records.
        ("another kind beside", vec![packet.clone(), [&piece[..3], &[0x10 | 0x20], &piece[4..]].concat()]),
    ];
    for (errors, (what, records)) in (1..).zip(&nonsense) {
        let liar = Liar::connect();
        // Nothing after it is taken, either.
        write(&liar, &[&records[..], &[packet.clone(), piece.clone()]].concat());
        let brings = records.len() - 1;
        for _ in 0..brings {
            assert_eq!(target.host.handler().packet().expect(what).bytes, [1; 100]);
        }
        let mut heard = liar.hears(TIMEOUT).expect(what).0;
        if heard[0] == name_messages::EXPORT {
            heard = liar.hears(TIMEOUT).expect(what).0;
        }
        assert_eq!(heard, [name_messages::NO_RING], "{what}");
        assert_eq!(counter(&target.host, "ring_errors"), errors, "{what}");
    }
    assert!(target.host.handler().find_within(Duration::from_millis(50), support::packet).is_none());
    assert_eq!((counter(&target.host, "ring_fragments_received"), counter(&target.host, "panics")), (0, 0));
    // One that is a piece comes, if of no more than a head.
    let liar = Liar::connect();
    write(&liar, &[packet, piece, head.to_vec()]);
    let lengths = [0; 3].map(|_| target.host.handler().packet().unwrap().bytes.len());
    assert_eq!(lengths, [100, 12 + 2048, 12]);
    assert_eq!(counter(&target.host, "ring_fragments_received"), 2);
}

#[test]
fn who_rings_without_end_or_hangs_up_the_wake_descriptor_takes_no_event_from_others() {
    const PACKETS: u32 = 60;
    let _alone = alone();
    let target = Target::new();
    let honest = Honest::new(&target);
    let counter = Counter::new().unwrap();
    *target.host.handler().counter.lock().unwrap() = Some(counter.clone());
    let wake_fd = Liar::connect().wake_fd().unwrap();
    let ring = || {
        // SAFETY: one byte that lives across the call.
        unsafe {
            libc::send(wake_fd.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        }
    };
    let host = target.host.clone();
    let waiter = std::thread::spawn(move || (0..PACKETS).for_each(|_| support::wait(&host, &counter)));
    for n in 0..PACKETS {
        if n < PACKETS / 2 {
            (0..100).for_each(|_| _ = ring());
        } else if n == PACKETS / 2 {
            // SAFETY: integers only.
            assert_eq!(unsafe { libc::shutdown(wake_fd.as_raw_fd(), libc::SHUT_RDWR) }, 0);
        }
        honest.0.env().send(&path(V4), &mut batch(n, &[64]));
        assert_eq!(target.host.handler().packet().expect("it arrives").bytes[12], n as u8);
        std::thread::sleep(Duration::from_millis(1));
    }
    waiter.join().unwrap();
}
