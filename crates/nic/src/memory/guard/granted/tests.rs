use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::*;

const SAYS: u64 = 0x1234_5678_9abc_def0;

/// False where the C library has no restartable sequences, and then nothing is copied so.
fn is_there() -> bool {
    let there = can_copy_granted();
    if !there {
        let (mut to, from, word) = ([0_u8; 8], [1_u8; 8], AtomicU64::new(SAYS));
        let grant = Grant { word: &word, says: SAYS };
        // SAFETY: arrays of ours.
        assert_eq!(unsafe { copy_granted(to.as_mut_ptr(), from.as_ptr(), 8, grant) }, Err(Ended::Unable));
        assert_eq!(to, [0; 8]);
        eprintln!("left out: no restartable sequences here");
    }
    there
}

fn copy(to: &mut [u8], from: &[u8], word: &AtomicU64) -> Result<(), Ended> {
    assert_eq!(to.len(), from.len());
    // SAFETY: slices of ours.
    unsafe { copy_granted(to.as_mut_ptr(), from.as_ptr(), from.len(), Grant { word, says: SAYS }) }
}

/// So many bytes that tell a wrong place.
fn bytes(count: u32) -> Vec<u8> {
    (0..count).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn what_is_granted_is_copied_whatever_its_length_and_place() {
    if !is_there() {
        return;
    }
    let word = AtomicU64::new(SAYS);
    let from = bytes(9000);
    for len in (1..80).chain([1016, 1023, 1024, 1025, 4096, 8192]) {
        for (begin, at) in [(0, 0), (3, 0), (0, 5), (1, 2)] {
            let mut to = vec![0xee; len + at + 8];
            copy(&mut to[at..at + len], &from[begin..begin + len], &word).unwrap();
            assert_eq!(to[at..at + len], from[begin..begin + len], "{len} bytes, {begin} to {at}");
            assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn what_lies_a_little_further_back_in_its_page_is_copied_too() {
    if !is_there() {
        return;
    }
    let word = AtomicU64::new(SAYS);
    let from = bytes(300_000);
    for len in [1024, 1025, 4096, 65_543, 200_001] {
        for behind in [1, 8, 15] {
            let mut to = vec![0xee; len + 3 * 4096];
            let at = (from.as_ptr().addr() + behind).wrapping_sub(to.as_ptr().addr()) % 4096;
            let place = &mut to[at..at + len];
            assert!(string_is_slow(place.as_ptr(), from.as_ptr()));
            copy(place, &from[..len], &word).unwrap();
            // SAFETY: bytes of the test's own, as many of both.
            let shared = unsafe { crate::memory::guard::copy_shared(place.as_mut_ptr(), from.as_ptr(), len) };
            assert!(shared.is_ok() && to[at..at + len] == from[..len], "{len} bytes, {behind} behind");
            assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn what_is_not_granted_is_not_copied() {
    if !is_there() {
        return;
    }
    let word = AtomicU64::new(0);
    for len in [1, 8, 64, 1024, 5000] {
        let mut to = vec![0xee; len];
        assert_eq!(copy(&mut to, &vec![1; len], &word), Err(Ended::TakenBack));
        assert!(to.iter().all(|byte| *byte == 0xee), "{len}");
    }
}

#[test]
fn memory_that_is_not_there_ends_a_copy_and_the_process_lives() {
    if !is_there() {
        return;
    }
    let (word, page) = (AtomicU64::new(SAYS), 4096);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, of which the second page is taken away again.
    let at = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        libc::munmap(at.add(page), page);
        at.cast::<u8>()
    };
    let mut ours = vec![7_u8; 4096];
    for (before, len) in [(0, 8), (8, 16), (64, 128), (2048, 4096), (3, 5)] {
        // SAFETY: ours, and the page with the hole behind it, which no other thread has.
        let copies = unsafe {
            let edge = at.add(page - before);
            [
                copy_granted(edge, ours.as_ptr(), len, Grant { word: &word, says: SAYS }),
                copy_granted(ours.as_mut_ptr(), edge, len, Grant { word: &word, says: SAYS }),
            ]
        };
        assert_eq!(copies, [Err(Ended::Fault); 2], "{len} bytes, {before} before the hole");
    }
    // SAFETY: the page that is left.
    unsafe { libc::munmap(at.cast(), page) };
}

#[test]
fn atomics_change_what_is_granted_and_say_what_was_there() {
    if !is_there() {
        return;
    }
    let (word, mut value) = (AtomicU64::new(SAYS), 5_u64);
    let change = |value: &mut u64, op| {
        // SAFETY: a word of ours.
        unsafe { change_granted(value, op, Grant { word: &word, says: SAYS }) }
    };
    assert_eq!((change(&mut value, AtomicOp::FetchAdd(u64::MAX)), value), (Ok(5), 4));
    assert_eq!((change(&mut value, AtomicOp::CompareSwap { compare: 5, swap: 9 }), value), (Ok(4), 4));
    assert_eq!((change(&mut value, AtomicOp::CompareSwap { compare: 4, swap: 9 }), value), (Ok(4), 9));
    assert_eq!((change(&mut value, AtomicOp::Write(77)), value), (Ok(9), 77));
    word.store(0, Ordering::Relaxed);
    for op in [AtomicOp::Write(1), AtomicOp::FetchAdd(1), AtomicOp::CompareSwap { compare: 77, swap: 1 }] {
        assert_eq!((change(&mut value, op), value), (Err(Ended::TakenBack), 77));
    }
    word.store(SAYS, Ordering::Relaxed);
    // SAFETY: nothing is there.
    let outcome =
        unsafe { change_granted(64 as *mut u64, AtomicOp::FetchAdd(1), Grant { word: &word, says: SAYS }) };
    assert_eq!(outcome, Err(Ended::Fault));
}

/// What the handler of a signal does in the midst of a copy: it takes the word back, and uses the
/// memory for something else.
static WORD: AtomicU64 = AtomicU64::new(0);
static PLACE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicBool = AtomicBool::new(false);

extern "C" fn take_back(_: c_int) {
    WORD.store(0, Ordering::SeqCst);
    // SAFETY: memory of the test, which no other thread uses while this thread is here.
    unsafe { PLACE.load(Ordering::Relaxed).write_bytes(0xaa, LEN.load(Ordering::Relaxed)) };
    TAKEN.store(true, Ordering::SeqCst);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a thread has to interrupt it")]
fn a_thread_that_is_interrupted_in_the_midst_stores_nothing_that_was_taken_back_meanwhile() {
    if !is_there() {
        return;
    }
    // SAFETY: a handler that stores to memory of this test only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = take_back as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
    // Long ones are hit in their midst; of short ones a run over many is.
    for (len, rounds) in [(8 << 20, 20), (1000, 200)] {
        let (from, mut to) = (vec![1_u8; len], vec![0_u8; len]);
        LEN.store(len, Ordering::Relaxed);
        for round in 0..rounds {
            to.fill(0);
            WORD.store(SAYS, Ordering::SeqCst);
            TAKEN.store(false, Ordering::SeqCst);
            PLACE.store(to.as_mut_ptr(), Ordering::Relaxed);
            // SAFETY: this thread.
            let me = unsafe { libc::pthread_self() } as usize;
            let sender = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(200 + round * 37 % 700));
                // SAFETY: the thread that waits for this one.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR2) };
            });
            let outcome = loop {
                let at = PLACE.load(Ordering::Relaxed);
                // SAFETY: as long as both.
                let outcome =
                    unsafe { copy_granted(at, from.as_ptr(), len, Grant { word: &WORD, says: SAYS }) };
                if outcome.is_err() {
                    break outcome;
                }
            };
            sender.join().unwrap();
            assert_eq!(outcome, Err(Ended::TakenBack));
            assert!(TAKEN.load(Ordering::SeqCst));
            assert!(to.iter().all(|byte| *byte == 0xaa), "stored behind what took the memory back");
        }
    }
}
