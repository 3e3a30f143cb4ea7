//! Tables that another process exports, with anything in them, and memory in which others say what
//! they use.
//!
//! What an initiator finds there lies inside of the region that the entry names, and only where all
//! of its words say so; what the owner entered is found and what it took back is not; whatever
//! stands in an importer's memory, the owner reads places and threads out of it and no more.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use local::fuzzed::{self, WORDS};
use nic::Path;
use nic::peer_memory::{Grant, Region};
use transport::op::Remote;
use wire::{Address, Qpn, Rkey};

use crate::Input;

const STEPS: u32 = 40;
/// Where the regions' entries begin.
const REGIONS: usize = 1 << 17;

thread_local! {
    /// Nine megabytes; what an input touched is zero again afterwards.
    static TABLES: RefCell<(Vec<AtomicU64>, Vec<usize>)> =
        RefCell::new(((0..WORDS).map(|_| AtomicU64::new(0)).collect(), Vec::new()));
}

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.one_in(3) {
        return hazards(&mut input);
    }
    TABLES.with_borrow_mut(|(words, touched)| {
        let mut scene = Scene { words, touched, input: &mut input };
        for _ in 0..STEPS {
            if !scene.input.more() {
                break;
            }
            scene.step();
        }
        for at in touched.drain(..) {
            words[at].store(0, Ordering::Relaxed);
        }
    });
}

struct Scene<'a, 'b> {
    words: &'a [AtomicU64],
    touched: &'a mut Vec<usize>,
    input: &'a mut Input<'b>,
}

/// What an initiator asks for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ends: (Qpn, Qpn, u32),
    remote: Remote,
    right: u32,
}

impl Scene<'_, '_> {
    fn step(&mut self) {
        let asked = self.asked();
        match self.input.below(4) {
            0 => self.entered(),
            n => {
                self.scribble(&asked, n == 3);
                self.ask(&asked);
            }
        }
    }

    fn asked(&mut self) -> Asked {
        let input = &mut *self.input;
        let qpn = Qpn::new(input.choose(&[0x123_456, 0x1_0000, 0xff_ffff, 0]));
        let from = Qpn::new(input.choose(&[0x321_001, 0xff_ffff, 0]));
        let rkey = Rkey(input.choose(&[0x42_0011, 0xffff_ffff, 0x1_0000, 0]));
        let addr =
            input.choose(&[0, 0x1000, u64::MAX, u64::MAX - 7, 1 << 47]).wrapping_add(input.below(32).into());
        let length = input.choose(&[0, 1, 8, 4096, (1 << 48) - 1, 1 << 48, u64::MAX]);
        Asked {
            ends: (qpn, from, input.choose(&[0, 7])),
            remote: Remote { addr, length, rkey },
            right: input.choose(&[2, 4, 6, 0, 0x200, 0x8200]),
        }
    }

    /// Where the words are of what is asked for, if the queue pair's entry names this table.
    fn places(asked: &Asked, table: u8) -> (usize, usize) {
        let (qpn, ..) = asked.ends;
        let slot = usize::from(table) << 16 | (asked.remote.rkey.0 >> 16) as usize;
        (usize::from(qpn.get() as u16) * 2, REGIONS + slot * 4)
    }

    fn set(&mut self, at: usize, word: u64) {
        self.words[at].store(word, Ordering::Relaxed);
        self.touched.push(at);
    }

    /// Entries for what is asked for, some bits or words of them others.
    fn scribble(&mut self, asked: &Asked, badly: bool) {
        let table = self.input.below(5) as u8;
        let (queue_pair, region) = Self::places(asked, table.min(3));
        let (qpn, from, ends) = asked.ends;
        let pd = self.input.below(3);
        let rights = self.input.choose(&[2, 4, 6, 0xfff, 0x206]);
        let number = |qpn: Qpn| u64::from(qpn.get());
        let len = self.input.choose(&[0, 8, 4096, (1 << 48) - 1]);
        let start = self.input.choose(&[0, 0x7000_0000_0000, u64::MAX - 4096, u64::MAX]);
        let back = self.input.choose(&[0, 0, 1, 4095, 1 << 40]);
        let entries = [
            (queue_pair, number(qpn) << 40 | number(from) << 16 | u64::from(table) << 12 | rights),
            (queue_pair + 1, u64::from(pd) << 32 | u64::from(ends)),
            (region, u64::from(asked.remote.rkey.0) << 32 | u64::from(pd)),
            (region + 1, start),
            (region + 2, rights << 48 | len),
            (region + 3, asked.remote.addr.wrapping_sub(back)),
        ];
        for (at, word) in entries {
            let word = match self.input.below(if badly { 3 } else { 16 }) {
                1 => word ^ 1 << self.input.below(64),
                2 if badly => self.input.u64(),
                _ => word,
            };
            self.set(at, word);
        }
    }

    /// What is found, beside what the words say.
    fn ask(&mut self, asked: &Asked) {
        let (words, Asked { ends, remote, right }) = (self.words, *asked);
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let (queue_pair, _) = Self::places(asked, 0);
        let (entry, more) = (word(queue_pair), word(queue_pair + 1));
        let table = (entry as u16 >> 12) as u8;
        // Another word while it looks: it is as if that had always been there, or not yet.
        let change = self.input.one_in(4).then(|| {
            let (_, region) = Self::places(asked, table.min(3));
            (region + self.input.index(4), self.input.u64())
        });
        let found = fuzzed::look_up(words, ends, remote, right, || {
            if let Some((at, other)) = change {
                words[at].store(other, Ordering::Relaxed);
            }
        });
        self.touched.extend(change.map(|(at, _)| at));
        let named = entry >> 40 == u64::from(ends.0.get())
            && entry >> 16 & 0xff_ffff == u64::from(ends.1.get())
            && more as u32 == ends.2
            && entry as u32 & 0xfff & right == right
            && table < 4;
        let (_, region) = Self::places(asked, table.min(3));
        let [key, addr, rights, iova] = [0, 1, 2, 3].map(|at| word(region + at));
        let wide = u128::from;
        let (addr, len) = (wide(addr), wide(rights & 0xffff_ffff_ffff));
        let first = (wide(remote.addr) + addr).checked_sub(wide(iova));
        let inside = remote.addr >= iova
            && wide(remote.addr - iova) + wide(remote.length) <= len
            && first.is_some_and(|first| first + wide(remote.length) <= wide(u64::MAX));
        let granted =
            key == u64::from(remote.rkey.0) << 32 | more >> 32 && (rights >> 48) as u32 & right == right;
        let expected = (named && granted && inside).then(|| first.expect("inside") as u64);
        assert_eq!(found, expected, "{asked:?}");
    }

    /// What an owner that keeps to the rules enters is found until it is taken back.
    fn entered(&mut self) {
        let asked = self.asked();
        let (qpn, from, _) = asked.ends;
        let table = self.input.below(4) as u8;
        let (queue_pair, region) = Self::places(&asked, table);
        (0..2).for_each(|n| self.set(queue_pair + n, 0));
        (0..4).for_each(|n| self.set(region + n, 0));
        let here = Address::from(self.input.choose(&[[127, 0, 0, 1], [10, 0, 0, 1]]));
        let path = Path {
            source: here,
            dest: here,
            interface: 1,
            dest_qpn: from,
            traffic_class: 0,
            hop_limit: 0,
            source_port_epoch: 0,
            no_multicast_loop: false,
        };
        let pd = self.input.below(3);
        let access = self.input.choose(&[2, 4, 6]);
        assert!(fuzzed::open(self.words, &Grant { qpn, path: &path, pd, table, access }));
        let key = asked.remote.rkey.0;
        let place = Region { key, pd, access, addr: 1 << 40, len: 4096, iova: 0x1000, persists: false };
        fuzzed::publish(self.words, table, (key >> 16) as u16, &place);
        let at = u64::from(self.input.below(4096));
        let remote = Remote { addr: 0x1000 + at, length: 4096 - at, rkey: asked.remote.rkey };
        let ends = (qpn, from, fuzzed::ends(&path));
        let look_up = |remote| fuzzed::look_up(self.words, ends, remote, access, || {});
        // A queue pair or key of 0 is none.
        let there = (qpn.get() != 0 || from.get() != 0) && key != 0;
        if there {
            assert_eq!(look_up(remote), Some((1 << 40) + at));
        }
        assert_eq!(look_up(Remote { length: remote.length + 1, ..remote }), None);
        assert_eq!(look_up(Remote { addr: 0xfff, ..remote }), None);
        match self.input.any() {
            true => fuzzed::close(self.words, qpn),
            false => fuzzed::withdraw(self.words, table, (key >> 16) as u16),
        }
        if there {
            assert_eq!(look_up(remote), None);
        }
    }
}

/// Numbers of threads.
const THREADS: u32 = (1 << 23) - 1;

/// An importer's memory.
fn hazards(input: &mut Input<'_>) {
    let words: Vec<AtomicU64> = (0..input.index(40)).map(|_| AtomicU64::new(0)).collect();
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        let (table, slot) = (input.below(4) as u8, input.below(4) as u16);
        let qpn = Qpn::new(input.below(4));
        if let Some(word) = input.pick(&words.iter().collect::<Vec<_>>()) {
            let access = 1 << 63 | u64::from(table) << 32 | u64::from(slot) << 16 | u64::from(qpn.get());
            word.store(if input.any() { access } else { input.u64() }, Ordering::Relaxed);
        }
        let of_region = fuzzed::users_of_region(&words, table, slot);
        let of_queue_pair = fuzzed::users_of_queue_pair(&words, qpn);
        for (at, thread) in of_region.iter().chain(&of_queue_pair) {
            let access = words[at * 2].load(Ordering::Relaxed);
            assert!(*at < 16 && (access >> 40) as u32 & THREADS == *thread && access >> 63 != 0);
        }
        let thread = input.u32() & THREADS;
        let free =
            words.as_chunks::<2>().0.iter().take(16).any(|place| place[0].load(Ordering::Relaxed) == 0);
        let begun = fuzzed::uses(&words, thread, qpn, (table, slot), || {
            // A thread that takes one of the two back finds it.
            let found = |users: Vec<(usize, u32)>| users.iter().any(|(_, known)| *known == thread);
            assert!(found(fuzzed::users_of_region(&words, table, slot)));
            assert!(found(fuzzed::users_of_queue_pair(&words, qpn)));
        });
        assert_eq!(begun, free);
    }
}
