//! Traffic at the reader of a ring that the ring's writer has caused: what the writer sent, and
//! what it copied to and from the reader's memory. The reader sees nothing of a copy, and counts
//! nothing of what it reads. So the writer says it from time to time, in words of the ring's
//! memory. A writer that counts nothing leaves them 0. The reader says in which files it counts:
//! a writer that counts in the same ones adds up both ends itself, which nothing delays.
//!
//! | word of the part with the hazards | what |
//! |---|---|
//! | 127 | from the reader: a number of the files in which it counts; 0: none |
//! | 128 + 16 n | the reader's interface, by its index plus 1; 0: free |
//! | 129 + 16 n to 132 + 16 n | what the reader got: packets, bytes, SENDs, immediates |
//! | 133 + 16 n to 136 + 16 n | what the reader sent, likewise |

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nic::Path;

use super::Rings;
use crate::memory::Part;
use crate::ring::Word;

/// Where the reader says in which files it counts.
const FILES: usize = 127;
/// Where the words begin.
const FIRST: usize = 128;
/// Interfaces of a reader.
const ENTRIES: usize = 8;
/// Words of an interface.
const STRIDE: usize = 16;
/// Numbers of an interface.
const NUMBERS: usize = 8;
/// Words of a ledger of one's own.
const WORDS: usize = FIRST + ENTRIES * STRIDE;

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets.
    pub packets: u64,
    /// Bytes, from BTH to ICRC.
    pub bytes: u64,
    /// SENDs, each counted with its last packet.
    pub sends: u64,
    /// RDMA WRITEs with immediate data, likewise.
    pub immediates: u64,
}

/// What went both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// What left.
    pub xmit: Passed,
    /// What came.
    pub rcv: Passed,
}

impl Passed {
    /// How much more it is than before; nothing where it is less.
    pub fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
            sends: self.sends.saturating_sub(before.sends),
            immediates: self.immediates.saturating_sub(before.immediates),
        }
    }
}

impl Traffic {
    /// How much more it is than before; nothing where it is less.
    pub fn since(self, before: Self) -> Self {
        Self { xmit: self.xmit.since(before.xmit), rcv: self.rcv.since(before.rcv) }
    }

    /// What the other end sees of the same traffic.
    pub fn mirrored(self) -> Self {
        Self { xmit: self.rcv, rcv: self.xmit }
    }

    fn numbers(self) -> [u64; NUMBERS] {
        let Self { xmit, rcv } = self;
        let of = |passed: Passed| [passed.packets, passed.bytes, passed.sends, passed.immediates];
        let ([a, b, c, d], [e, f, g, h]) = (of(rcv), of(xmit));
        [a, b, c, d, e, f, g, h]
    }

    fn of_numbers([a, b, c, d, e, f, g, h]: [u64; NUMBERS]) -> Self {
        let of = |[packets, bytes, sends, immediates]: [u64; 4]| Passed { packets, bytes, sends, immediates };
        Self { rcv: of([a, b, c, d]), xmit: of([e, f, g, h]) }
    }
}

/// The words of each interface: its index plus 1, and its numbers.
fn entries(words: &[Word]) -> impl Iterator<Item = (&Word, &[Word])> {
    let entries = words.get(FIRST..).unwrap_or_default().chunks_exact(STRIDE).take(ENTRIES);
    entries.filter_map(|entry| Some((entry.first()?, entry.get(1..=NUMBERS)?)))
}

/// Adds traffic at an interface of the reader. With more interfaces than there is room for, what is
/// said of the last ones is lost.
fn add(words: &[Word], interface: u32, traffic: Traffic) {
    let key = u64::from(interface) + 1;
    let mut all = entries(words);
    let found = all.find(|(word, _)| match word.compare_exchange(0, key, AcqRel, Acquire) {
        Ok(_) => true,
        Err(there) => there == key,
    });
    for (word, number) in found.into_iter().flat_map(|(_, numbers)| numbers.iter().zip(traffic.numbers())) {
        word.fetch_add(number, Relaxed);
    }
}

/// What was read of a ledger so far.
#[derive(Debug)]
pub(crate) struct Told([[AtomicU64; NUMBERS]; ENTRIES]);

impl Default for Told {
    fn default() -> Self {
        Self([const { [const { AtomicU64::new(0) }; NUMBERS] }; ENTRIES])
    }
}

impl Told {
    /// What a ledger says more than it did, by interface. A number that has become smaller, as no
    /// good writer makes it, counts again once it is larger than it ever was.
    pub(crate) fn take(&self, words: &[Word], mut each: impl FnMut(u32, Traffic)) {
        for ((key, numbers), told) in entries(words).zip(&self.0) {
            let Some(interface) =
                key.load(Acquire).checked_sub(1).and_then(|index| u32::try_from(index).ok())
            else {
                continue;
            };
            let mut more = [0; NUMBERS];
            for ((more, now), told) in more.iter_mut().zip(numbers).zip(told) {
                let now = now.load(Relaxed);
                *more = now.saturating_sub(told.fetch_max(now, Relaxed));
            }
            if more != [0; NUMBERS] {
                each(interface, Traffic::of_numbers(more));
            }
        }
    }
}

/// What rings that are gone have said at last, until it is asked for.
#[derive(Debug)]
pub(crate) struct LastWords {
    words: Box<[Word]>,
    told: Told,
}

impl Default for LastWords {
    fn default() -> Self {
        Self { words: (0..WORDS).map(|_| Word::new(0)).collect(), told: Told::default() }
    }
}

/// Where the process at the end of a path is told what has passed at its interface. It stays when
/// that process ends.
#[derive(Clone, Debug)]
pub struct Ledger(Part);

impl Ledger {
    /// Says more of what has passed at an interface of the other end, as that end sees it.
    pub fn tell(&self, interface: u32, traffic: Traffic) {
        add(&self.0, interface, traffic);
    }

    /// The number of the files in which the other end counts ([`Rings::count_in`]); 0: none, or not
    /// known yet.
    pub fn files(&self) -> u64 {
        self.0.get(FILES).map_or(0, |files| files.load(Acquire))
    }
}

impl<O: Send> Rings<O> {
    /// This process counts in files of this number, which is not 0. Called before there are rings.
    pub fn count_in(&self, files: u64) {
        self.files.store(files, Relaxed);
    }

    /// What the process at the end of a path is told by, where there is a ring to it.
    pub fn ledger(&self, path: &Path) -> Option<Ledger> {
        self.known(path).map(|ring| Ledger(ring.hazards().clone()))
    }

    /// What other processes have said that has passed here, since the last call, by the index of
    /// our interface.
    pub fn take_traffic(&self, mut each: impl FnMut(u32, Traffic)) {
        self.rx.load().iter().for_each(|ring| ring.take_traffic(&mut each));
        self.last_words.told.take(&self.last_words.words, each);
    }

    /// The writer of a ring learns in which files this process counts.
    pub(super) fn say_files(&self, ledger: &[Word]) {
        if let Some(word) = ledger.get(FILES) {
            word.store(self.files.load(Relaxed), Release);
        }
    }

    /// A ring goes: what it has said stays.
    pub(super) fn keep_traffic(&self, ring: &super::RxRing<O>) {
        ring.take_traffic(|interface, traffic| add(&self.last_words.words, interface, traffic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<Word> {
        (0..512).map(|_| Word::new(0)).collect()
    }

    fn taken(told: &Told, words: &[Word]) -> Vec<(u32, Traffic)> {
        let mut all = Vec::new();
        told.take(words, |interface, traffic| all.push((interface, traffic)));
        all
    }

    #[test]
    fn what_is_said_is_taken_once_by_interface() {
        let (words, told) = (words(), Told::default());
        let xmit = Passed { packets: 1, bytes: 2, sends: 3, immediates: 4 };
        let traffic = Traffic { xmit, rcv: Passed { packets: 5, ..xmit } };
        add(&words, 7, traffic);
        add(&words, 0, traffic.mirrored());
        assert_eq!(taken(&told, &words), [(7, traffic), (0, traffic.mirrored())]);
        assert_eq!(taken(&told, &words), []);
        add(&words, 7, Traffic { rcv: xmit, ..Traffic::default() });
        assert_eq!(taken(&told, &words), [(7, Traffic { rcv: xmit, ..Traffic::default() })]);
    }

    #[test]
    fn words_that_another_process_has_spoilt_do_no_harm() {
        let (words, told) = (words(), Told::default());
        words.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        assert_eq!(taken(&told, &words), [], "no such interface");
        words.iter().for_each(|word| word.store(5, Relaxed));
        assert_eq!(taken(&told, &words).len(), ENTRIES);
        words.iter().skip(FIRST + 1).for_each(|word| word.store(4, Relaxed));
        assert!(taken(&told, &words).is_empty(), "less than before is nothing");
        add(&words, 99, Traffic::default());
        assert_eq!(taken(&told, &[]), []);
    }
}
